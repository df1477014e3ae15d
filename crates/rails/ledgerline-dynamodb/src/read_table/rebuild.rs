//! Rows that are made again from many commits at once, under the same guards as those of one commit.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use ledgerline::{Changes, LogTable, StreamId};
use serde::{Deserialize, Serialize};

use super::{
    Item, POSITION_ENTRY, Position, ReadTable, TableError, batch, before_or_none, from_item,
    generations::{KeyNames, PART, generation_of},
    log::{NextPosition, Positions, Written},
    number, to_item,
};
use crate::error::table_error;

/// How far the rebuild of a view got in one part of the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The last commit that was read: its stream and its version.
    #[serde(default, rename = "$after")]
    pub after: Option<(StreamId, u64)>,
    /// Whether the whole part was read.
    #[serde(default, rename = "$isDone")]
    pub is_done: bool,
    /// The number of commits that were read.
    #[serde(default, rename = "$commits")]
    pub commits: u64,
    /// The read units that it took.
    #[serde(default, rename = "$reads")]
    pub reads: f64,
    /// The write units that it took.
    #[serde(default, rename = "$writes")]
    pub writes: f64,
}

impl Part {
    /// The name under which it is noted how far a part is.
    #[must_use]
    pub fn name(part: i32, parts: i32) -> String {
        format!("{PART}{part}-of-{parts}")
    }
}

/// Commits of one stream that follow each other, and the rows that each of them inserts.
#[derive(Debug, Clone)]
pub struct Inserted {
    /// The stream.
    pub stream: StreamId,
    /// The version before the first of them.
    pub from: u64,
    /// The rows of each.
    pub commits: Vec<(u64, Changes)>,
}

/// A page of rows that were looked through, to delete those of one generation.
#[derive(Debug)]
pub struct Cleared {
    /// The number of rows that were deleted.
    pub deleted: usize,
    /// The place where the next page begins, if there is one.
    pub after: Option<HashMap<String, AttributeValue>>,
}

impl ReadTable {
    /// How far the rebuild of this generation got in this part of the log.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn part(&self, keys: KeyNames<'_>, name: &str) -> Result<Part, TableError> {
        self.item(self.of_part(keys, name), true).await?.map_or_else(|| Ok(Part::default()), from_item)
    }

    /// Notes how far the rebuild got.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn put_part(&self, keys: KeyNames<'_>, name: &str, part: &Part) -> Result<(), TableError> {
        let mut item = to_item(part)?;
        item.extend(self.of_part(keys, name));
        let put = self.client.put_item().table_name(&self.name).set_item(Some(item));
        put.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await.map_err(table_error)?;
        Ok(())
    }

    /// The key of a part's item. It belongs to its generation, and goes with it.
    fn of_part(&self, keys: KeyNames<'_>, name: &str) -> Item {
        self.beside(keys, name)
    }

    /// Makes the changes that many commits come to, and moves the positions in their streams, each from one version to a later one, all in one write (rule 9). Returns the write units
    /// that it took; `None` if a position is not where it is said to be, and nothing was written.
    ///
    /// # Errors
    /// When the table fails, or there are more rows and streams than one transaction takes.
    pub async fn apply_all(
        &self,
        keys: &LogTable,
        streams: &BTreeMap<StreamId, (u64, u64)>,
        changes: &Changes,
    ) -> Result<Option<f64>, TableError> {
        let mut positions = Vec::new();
        for (stream, (from, to)) in streams {
            let item = self.position_item(keys, stream.as_str(), &Position::at(*to))?;
            positions.push(NextPosition { item, version: from + 1 });
        }
        Ok(match self.put_changes_and_positions(keys, changes, positions).await? {
            Written::Units(units) => Some(units),
            Written::Not { .. } => None,
        })
    }

    /// Inserts the rows of many commits. Returns the write units that it took.
    ///
    /// The rows of a stream contain the position before the first of these commits, and only the last row contains that of its own commit. It is written when all the others are there:
    /// so the newest row never contains a position whose rows are not there.
    ///
    /// # Errors
    /// When the table fails, or a change is no insertion. Some of the rows may have been written.
    pub async fn insert_all(&self, keys: &LogTable, streams: &[Inserted]) -> Result<f64, TableError> {
        let (mut rows, mut last_rows, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for Inserted { stream, from, commits } in streams {
            let mut of_stream = Vec::new();
            for (version, changes) in commits {
                let rows = self.rows_of(keys, changes, Positions { before: *from, after: *from })?;
                of_stream.extend(rows.into_iter().map(|row| (*version, row)));
            }
            let last = of_stream.pop().map(|(version, mut row)| {
                row.insert(POSITION_ENTRY.into(), number(version));
                (version, row)
            });
            rows.extend(of_stream.into_iter().map(|(_, row)| row));
            let to = commits.last().map_or(*from, |(version, _)| *version);
            if last.as_ref().is_none_or(|(version, _)| *version < to) {
                positions.push((self.position_item(keys, stream.as_str(), &Position::at(to))?, to));
            }
            last_rows.extend(last.map(|(_, row)| row));
        }
        let mut units = self.put_items(rows).await? + self.put_items(last_rows).await?;
        for (position, to) in positions {
            // A live commit may have moved it further.
            self.put_position(position, before_or_none(to)).await?;
            units += 1.0;
        }
        Ok(units)
    }

    /// Deletes the rows of this generation, and everything beside them, in the page after this place.
    ///
    /// # Errors
    /// When the table fails. Some of the rows may have been deleted.
    pub async fn clear(
        &self,
        keys: KeyNames<'_>,
        after: Option<HashMap<String, AttributeValue>>,
    ) -> Result<Cleared, TableError> {
        let mut scan = self
            .client
            .scan()
            .table_name(&self.name)
            .expression_attribute_names("#partition", keys.partition)
            // The emulated database reads all that is left of the table for a page without a limit.
            .limit(1_000)
            .set_exclusive_start_key(after);
        let mut names = "#partition".to_owned();
        if let Some(sort) = keys.sort {
            scan = scan.expression_attribute_names("#sort", sort);
            names.push_str(", #sort");
        }
        let page = scan.projection_expression(names).send().await.map_err(table_error)?;
        let is_of_it = |key: &&Item| {
            let partition = key.get(keys.partition).and_then(|key| key.as_s().ok());
            partition.is_some_and(|key| generation_of(key) == Some(self.generation))
        };
        let found: Vec<_> = page.items().iter().filter(is_of_it).cloned().collect();
        let deletions = found.iter().cloned().map(batch::delete_of).collect::<Result<_, _>>()?;
        self.write_all(deletions).await?;
        Ok(Cleared { deleted: found.len(), after: page.last_evaluated_key })
    }
}
