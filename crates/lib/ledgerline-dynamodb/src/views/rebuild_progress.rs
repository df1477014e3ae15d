//! The progress of a rebuild in each part of the log, next to the rows. Also the deletion of a
//! generation.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use ledgerline::StreamId;
use serde::{Deserialize, Serialize};

use super::{ViewError, ViewTable, batch, from_item, generations::PART, to_item};
use crate::error::table_error;

/// The progress of a view's rebuild in one part of the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentProgress {
    /// The last commit that was read: its stream and its version.
    #[serde(default, rename = "$after")]
    pub after: Option<(StreamId, u64)>,
    /// Whether the whole part was read.
    #[serde(default, rename = "$isDone")]
    pub is_done: bool,
    /// The number of commits that were read.
    #[serde(default, rename = "$commits")]
    pub commits: u64,
    /// The consumed read units.
    #[serde(default, rename = "$reads")]
    pub reads: f64,
    /// The consumed write units.
    #[serde(default, rename = "$writes")]
    pub writes: f64,
}

impl SegmentProgress {
    /// Returns the name under which the progress of a part is stored.
    pub fn name(part: i32, parts: i32) -> String {
        format!("{PART}{part}-of-{parts}")
    }
}

/// A page of examined rows, from which those of one generation were deleted.
#[derive(Debug)]
pub struct Cleared {
    /// The number of rows that were deleted.
    pub deleted: usize,
    /// The place where the next page begins, if there is one.
    pub after: Option<HashMap<String, AttributeValue>>,
}

impl ViewTable {
    /// Reads the progress of this generation's rebuild in this part of the log.
    pub async fn part(&self, name: &str) -> Result<SegmentProgress, ViewError> {
        self.item(self.item_key(name), true)
            .await?
            .map_or_else(|| Ok(SegmentProgress::default()), from_item)
    }

    /// Stores the progress of the rebuild.
    pub async fn put_part(&self, name: &str, part: &SegmentProgress) -> Result<(), ViewError> {
        let mut item = to_item(part)?;
        item.extend(self.item_key(name));
        let put = self.client.put_item().table_name(&self.name).set_item(Some(item));
        put.return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok(())
    }

    /// Deletes the rows of this generation, and everything next to them, in the page after this
    /// place.
    ///
    /// # Errors
    /// When the table fails. Some of the rows may have been deleted.
    pub async fn clear(
        &self,
        after: Option<HashMap<String, AttributeValue>>,
    ) -> Result<Cleared, ViewError> {
        let mut scan = self
            .client
            .scan()
            .table_name(&self.name)
            .expression_attribute_names("#partition", &*self.keys.partition)
            // The emulated database reads the whole rest of the table for a page without a limit.
            .limit(1_000)
            .set_exclusive_start_key(after);
        let mut names = "#partition".to_owned();
        if let Some(sort) = &self.keys.sort {
            scan = scan.expression_attribute_names("#sort", &**sort);
            names.push_str(", #sort");
        }
        let page = scan.projection_expression(names).send().await.map_err(table_error)?;
        let found: Vec<_> = page.items().iter().filter(|key| self.has_key(key)).cloned().collect();
        let deletions =
            found.iter().cloned().map(batch::delete_request).collect::<Result<_, _>>()?;
        self.write_all(deletions).await?;
        Ok(Cleared { deleted: found.len(), after: page.last_evaluated_key })
    }
}
