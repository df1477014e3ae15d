//! Rows that are written from the log, together with the position in its stream (rule 9).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use aws_sdk_dynamodb::{
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError, transact_write_items::TransactWriteItemsError,
    },
    types::{
        AttributeValue, Delete, Put, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure,
        TransactWriteItem, Update,
    },
};
use backon::{BackoffBuilder, ExponentialBuilder};
use ledgerline::{
    Changes, LogTable, StreamId,
    changes::{Change, Key},
    guard::{Verdict, judge},
};
use serde::Serialize;

use super::{
    Condition, Item, MAX_CONFLICTS, MAX_TRANSACTION_ITEMS, POSITION, POSITION_ENTRY, Position, ReadTable,
    RowKey, TableError, after, batch, before_or_none, invalid, number, number_of, refused, verdict, written,
};
use crate::error::table_error;

/// A commit, and the rows that it inserts.
#[derive(Debug)]
pub struct Insertion<'c> {
    /// The stream.
    pub stream: &'c StreamId,
    /// The version.
    pub version: u64,
    /// The rows.
    pub changes: Changes,
}

/// A step of one stream when rows are inserted.
enum InsertStep<'c> {
    /// A row.
    Row(Item),
    /// The position after a commit without rows: the stream, the version, and the place of the
    /// commit.
    Position(&'c StreamId, u64, usize),
}

/// The position in a stream before a commit and after it.
#[derive(Clone, Copy)]
pub(super) struct Positions {
    pub(super) before: u64,
    pub(super) after: u64,
}

/// The item of a position, and the first version that it is moved over: the position must be right
/// before it.
pub(super) struct NextPosition {
    pub(super) item: Item,
    pub(super) version: u64,
}

/// Whether changes and positions were written.
pub(super) enum Written {
    /// They were, for so many write units.
    Units(f64),
    /// They were not, because a position is here.
    Not { position: u64 },
}

impl Written {
    /// The position that kept them from being written.
    fn found(self) -> Option<u64> {
        match self {
            Self::Units(_) => None,
            Self::Not { position } => Some(position),
        }
    }
}

impl ReadTable {
    /// Writes a row unless a row has its keys already. Returns whether it was written.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn put_new(&self, keys: &LogTable, row: &impl Serialize) -> Result<bool, TableError> {
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(self.row(keys, row)?))
            .condition_expression("attribute_not_exists(#sort)")
            .expression_attribute_names("#sort", keys.sort)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        written(result)
    }

    /// Deletes a row if this field of it still has this value. Returns whether it was deleted.
    /// Because of the condition, an earlier try that arrives late does not delete a row that was
    /// written since.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn delete_if(
        &self,
        keys: &LogTable,
        RowKey { partition, sort }: RowKey<'_>,
        field: &str,
        value: &str,
    ) -> Result<bool, TableError> {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let result = self
            .client
            .delete_item()
            .table_name(&self.name)
            .key(keys.partition, self.partition(partition))
            .key(keys.sort, text(sort))
            .condition_expression("#field = :value")
            .expression_attribute_names("#field", field)
            .expression_attribute_values(":value", text(value))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(_)) => Ok(false),
                Some(_) | None => Err(table_error(error)),
            },
        }
    }

    /// Makes the changes of a commit, and moves the handler's position to its version, if the
    /// commit is the next one in its stream: all in one write (rule 9). Otherwise nothing is
    /// written, and the verdict says why (rule 7). The handler's position is returned with the
    /// verdict.
    ///
    /// # Errors
    /// When the table fails, or the commit changes more rows than one transaction takes.
    pub async fn apply(
        &self,
        keys: &LogTable,
        stream: &str,
        version: u64,
        changes: &Changes,
    ) -> Result<(Verdict, u64), TableError> {
        self.guarded(keys, stream, version, changes, Position::at(version)).await
    }

    /// The same as [`apply`](Self::apply) for a commit that needs more than one write: the position
    /// does not move, so that the commit comes again until a call of `apply` moves it. All changes
    /// until then may be made twice. With [`Verdict::Apply`] the commit's version is returned, not
    /// the position.
    ///
    /// # Errors
    /// When the table fails, or there are more changes than one transaction takes.
    pub async fn begin(
        &self,
        keys: &LogTable,
        stream: &str,
        version: u64,
        changes: &Changes,
        progress: Option<String>,
    ) -> Result<(Verdict, u64), TableError> {
        self.guarded(keys, stream, version, changes, Position { position: version - 1, progress }).await
    }

    async fn guarded(
        &self,
        keys: &LogTable,
        stream: &str,
        version: u64,
        changes: &Changes,
        next: Position,
    ) -> Result<(Verdict, u64), TableError> {
        let position = self.position_item(keys, stream, &next)?;
        let mut delays = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(10))
            .with_max_delay(Duration::from_millis(200))
            .with_max_times(MAX_CONFLICTS)
            .with_jitter()
            .build();
        let found = loop {
            let written = if changes.is_empty() {
                self.put_position(position.clone(), after(version)).await
            } else {
                let next = NextPosition { item: position.clone(), version };
                self.put_changes_and_positions(keys, changes, vec![next]).await.map(Written::found)
            };
            match (written, delays.next()) {
                // Usually another stream changes the same row, such as a sum. Waiting here costs
                // less than a second delivery of the message, for which all of its group would
                // wait.
                (Err(TableError::Throttled), Some(delay)) => tokio::time::sleep(delay).await,
                (written, _) => break written?,
            }
        };
        verdict(found, version)
    }

    /// Inserts the rows of these commits ([`Changes::insert`]), each commit if it is the next one
    /// in its stream. Otherwise nothing of it is written, and its verdict says why (rule 7). The
    /// handler's position in the stream is returned with each verdict, in the order of the commits.
    ///
    /// The newest row of a stream contains the position: the last row of a commit contains the
    /// commit's version, and its other rows contain the version before. The rows of a stream are
    /// written one after the other, and those of different streams at once. So the table always has
    /// all rows of the commits up to the position, and maybe the first rows of the next one (rule
    /// 9). After a crash between two rows, the commit comes again and writes its rows again. A
    /// commit without rows writes the position as an item beside the rows.
    ///
    /// # Errors
    /// When the table fails, or a change is no insertion. Some of the commits may have been
    /// applied.
    pub async fn insert(
        &self,
        keys: &LogTable,
        commits: &[Insertion<'_>],
    ) -> Result<Vec<(Verdict, u64)>, TableError> {
        let (mut positions, mut steps) = (BTreeMap::new(), BTreeMap::<_, Vec<InsertStep>>::new());
        let mut verdicts = Vec::new();
        for &Insertion { stream, version, ref changes } in commits {
            let position = match positions.entry(stream) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.position_before(keys, stream, version).await?),
            };
            let verdict = judge(*position, version);
            if verdict == Verdict::Apply {
                let before = *position;
                *position = version;
                let rows = self.rows_of(keys, changes, Positions { before, after: version })?;
                let steps = steps.entry(stream).or_default();
                if rows.is_empty() {
                    steps.push(InsertStep::Position(stream, version, verdicts.len()));
                }
                steps.extend(rows.into_iter().map(InsertStep::Row));
            }
            verdicts.push((verdict, *position));
        }
        // The writes have no condition: if a row is there already, it is the same row, or the row
        // of a commit that is lost because the log was restored from a backup.
        let mut streams: Vec<_> = steps.into_values().map(Vec::into_iter).collect();
        loop {
            let (mut rows, mut is_over) = (Vec::new(), true);
            for step in streams.iter_mut().filter_map(Iterator::next) {
                is_over = false;
                match step {
                    InsertStep::Row(row) => rows.push(row),
                    InsertStep::Position(stream, version, place) => {
                        let position = self.position_item(keys, stream.as_str(), &Position::at(version))?;
                        let found = self.put_position(position, before_or_none(version)).await?;
                        verdicts[place] = verdict(found, version)?;
                    }
                }
            }
            if is_over {
                return Ok(verdicts);
            }
            self.put_items(rows).await?;
        }
    }

    /// The position in a stream, read for a commit of this version.
    async fn position_before(
        &self,
        keys: &LogTable,
        stream: &StreamId,
        version: u64,
    ) -> Result<u64, TableError> {
        let before = version.saturating_sub(1);
        let newest = self.newest(keys, stream, true).await?;
        if newest == before && before > 0 {
            return Ok(newest);
        }
        // The position beside the rows is usually older than the newest row: it is read only if the
        // newest row is not enough for the verdict.
        Ok(newest.max(self.put_beside(keys, stream.as_str(), true).await?.position))
    }

    /// The rows that a commit inserts, with the position in all of them but the last, and that in
    /// the last one.
    pub(super) fn rows_of(
        &self,
        keys: &LogTable,
        changes: &Changes,
        Positions { before, after }: Positions,
    ) -> Result<Vec<Item>, TableError> {
        let last = changes.len().saturating_sub(1);
        let row = |(place, (_, change)): (usize, (_, &Change))| {
            let Change::Insert(fields) = change else {
                return Err(TableError::Row("a view that inserts rows changes none".into()));
            };
            let mut row = self.row(keys, fields)?;
            row.insert(POSITION_ENTRY.into(), number(if place == last { after } else { before }));
            Ok(row)
        };
        changes.iter().enumerate().map(row).collect()
    }

    /// Writes the position under this condition. Returns the position that is there if the
    /// condition does not hold.
    pub(super) async fn put_position(
        &self,
        position: Item,
        (condition, values): Condition,
    ) -> Result<Option<u64>, TableError> {
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(position))
            .condition_expression(condition)
            .expression_attribute_names("#position", POSITION)
            .set_expression_attribute_values(values)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(_) => Ok(None),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Some(number_of(failed.item(), POSITION)))
                }
                Some(_) | None => Err(table_error(error)),
            },
        }
    }

    /// Makes these changes, and moves these positions, in one write (rule 9).
    pub(super) async fn put_changes_and_positions(
        &self,
        keys: &LogTable,
        changes: &Changes,
        positions: Vec<NextPosition>,
    ) -> Result<Written, TableError> {
        if changes.len() + positions.len() > MAX_TRANSACTION_ITEMS {
            return Err(TableError::TooManyRows(changes.len()));
        }
        let mut writes = Vec::new();
        for NextPosition { item, version } in positions {
            let (condition, values) = after(version);
            let guarded = Put::builder()
                .table_name(&self.name)
                .set_item(Some(item))
                .condition_expression(condition)
                .expression_attribute_names("#position", POSITION)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
                .build()
                .map_err(invalid)?;
            writes.push(TransactWriteItem::builder().put(guarded).build());
        }
        for (key, change) in changes.iter() {
            writes.push(self.write(keys, key, change)?);
        }
        let write = self.client.transact_write_items().set_transact_items(Some(writes));
        let error = match write.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await {
            Ok(output) => return Ok(Written::Units(batch::units_of(output.consumed_capacity()))),
            Err(error) => error,
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) = error.as_service_error()
        else {
            return Err(table_error(error));
        };
        // Nothing but a position has a condition.
        let mut reasons = cancelled.cancellation_reasons().iter();
        if let Some(guard) = reasons.find(|reason| reason.code() == Some("ConditionalCheckFailed")) {
            return Ok(Written::Not { position: number_of(guard.item(), POSITION) });
        }
        Err(refused(cancelled).unwrap_or_else(|| table_error(error)))
    }

    /// One change, as a part of a transaction.
    pub(super) fn write(
        &self,
        keys: &LogTable,
        key: &Key,
        change: &Change,
    ) -> Result<TransactWriteItem, TableError> {
        let item = TransactWriteItem::builder();
        let key = self.key(keys, RowKey::from(key));
        Ok(match change {
            Change::Insert(fields) | Change::Put(fields) => {
                let put = Put::builder().table_name(&self.name).set_item(Some(self.row(keys, fields)?));
                item.put(put.build().map_err(invalid)?)
            }
            Change::Delete => {
                let delete = Delete::builder().table_name(&self.name).set_key(Some(key));
                item.delete(delete.build().map_err(invalid)?)
            }
            Change::Update { set, add } => {
                let (mut sets, mut adds) = (Vec::new(), Vec::new());
                let mut update = Update::builder().table_name(&self.name).set_key(Some(key));
                for (place, (field, value)) in set.iter().enumerate() {
                    sets.push(format!("#s{place} = :s{place}"));
                    let value = serde_dynamo::to_attribute_value(value)
                        .map_err(|error| TableError::Row(error.to_string()))?;
                    update = update
                        .expression_attribute_names(format!("#s{place}"), field)
                        .expression_attribute_values(format!(":s{place}"), value);
                }
                for (place, (field, amount)) in add.iter().enumerate() {
                    adds.push(format!("#a{place} :a{place}"));
                    update = update
                        .expression_attribute_names(format!("#a{place}"), field)
                        .expression_attribute_values(
                            format!(":a{place}"),
                            AttributeValue::N(amount.to_string()),
                        );
                }
                let clause = |word: &str, parts: Vec<String>| match parts.is_empty() {
                    true => String::new(),
                    false => format!("{word} {} ", parts.join(", ")),
                };
                let expression = clause("SET", sets) + &clause("ADD", adds);
                item.update(update.update_expression(expression.trim_end()).build().map_err(invalid)?)
            }
        }
        .build())
    }
}
