//! Many rows in one call, if they need no transaction: a batch may write or read only some of its
//! rows (rule 10).

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    types::{
        ConsumedCapacity, DeleteRequest, KeysAndAttributes, PutRequest, ReturnConsumedCapacity,
        WriteRequest,
    },
};
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{StreamExt, TryStreamExt};
use ledgerline::changes::Key;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Failure, failure, table_error, to_table_error},
    views::{Item, LogRows, UnreadableRow, ViewError, ViewTable, invalid},
};

/// The most rows that one call writes.
const WRITES: usize = 25;
/// The most rows that one call reads.
const READS: usize = 100;
/// The most calls in progress at the same time.
const CONCURRENCY: usize = 8;
/// The number of times that the unprocessed rows of a call are sent again (rule 11).
const MAX_TRIES: usize = 8;

fn delays() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(MAX_TRIES)
        .with_jitter()
        .build()
}

impl LogRows {
    /// Writes rows, in any order, and overwrites rows with the same keys. No key may be in the list
    /// twice.
    ///
    /// # Errors
    /// When the table fails, or is throttled for too long. Some of the rows may have been written.
    pub async fn put_all(&self, rows: &[impl Serialize]) -> Result<(), ViewError> {
        let rows = rows.iter().map(|row| self.row(row)).collect::<Result<_, _>>()?;
        self.view.put_items(rows).await.map(|_| ())
    }

    /// Deletes rows, in any order, whether they exist or not. No key may be in the list twice.
    ///
    /// # Errors
    /// When the table fails, or is throttled for too long. Some of the rows may have been deleted.
    pub async fn delete_all(&self, rows: &[Key]) -> Result<(), ViewError> {
        let mut writes = Vec::new();
        for row in rows {
            writes.push(delete_request(self.view.key(row.into()))?);
        }
        self.view.write_all(writes).await.map(|_| ())
    }

    /// Reads the rows with these keys that exist, in no particular order, with strong consistency.
    /// No key may be in the list twice.
    pub async fn get_all<T: DeserializeOwned>(
        &self,
        rows: &[Key],
    ) -> Result<Vec<Result<T, UnreadableRow>>, ViewError> {
        let rows = rows.iter().map(|row| self.view.key(row.into()));
        let found = self.view.get_items(rows.collect(), true).await?;
        Ok(self.view.rows_read(found, self.keys.sort, &[self.keys.partition]))
    }
}

impl ViewTable {
    /// Writes items as they are. Returns the consumed write units.
    pub(super) async fn put_items(&self, items: Vec<Item>) -> Result<f64, ViewError> {
        let mut writes = Vec::new();
        for item in items {
            let put = PutRequest::builder().set_item(Some(item)).build().map_err(invalid)?;
            writes.push(WriteRequest::builder().put_request(put).build());
        }
        self.write_all(writes).await
    }

    pub(super) async fn write_all(&self, writes: Vec<WriteRequest>) -> Result<f64, ViewError> {
        let calls: Vec<_> = writes.chunks(WRITES).map(<[WriteRequest]>::to_vec).collect();
        futures::stream::iter(calls)
            .map(|call| self.write_batch(call))
            .buffer_unordered(CONCURRENCY)
            .try_fold(0.0, async |sum, units| Ok(sum + units))
            .await
    }

    async fn write_batch(&self, mut writes: Vec<WriteRequest>) -> Result<f64, ViewError> {
        let mut delays = delays();
        let mut units = 0.0;
        loop {
            let output = self
                .client
                .batch_write_item()
                .request_items(&self.name, writes)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(table_error)?;
            units += consumed_units(output.consumed_capacity());
            writes =
                output.unprocessed_items.unwrap_or_default().remove(&self.name).unwrap_or_default();
            if writes.is_empty() {
                return Ok(units);
            }
            tokio::time::sleep(
                delays
                    .next()
                    .ok_or_else(|| ViewError::Throttled(remaining_requests(&self.name)))?,
            )
            .await;
        }
    }

    /// Reads the items with these keys that exist, in no particular order. No key may be in the
    /// list twice.
    pub(crate) async fn get_items(
        &self,
        keys: Vec<Item>,
        strongly: bool,
    ) -> Result<Vec<Item>, ViewError> {
        get_items(&self.client, &self.name, keys, strongly).await.map_err(to_table_error)
    }
}

/// Reads the items of a table with these keys that exist, in no particular order. No key may be in
/// the list twice.
pub(crate) async fn get_items(
    client: &Client,
    table: &str,
    keys: Vec<Item>,
    strongly: bool,
) -> Result<Vec<Item>, Failure> {
    let mut found = Vec::new();
    for keys in keys.chunks(READS) {
        let mut wanted = keys.to_vec();
        let mut delays = delays();
        loop {
            let wants = KeysAndAttributes::builder()
                .set_keys(Some(wanted))
                .consistent_read(strongly)
                .build()
                .map_err(|error| Failure::Invalid(error.to_string()))?;
            let output = client
                .batch_get_item()
                .request_items(table, wants)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(failure)?;
            found.extend(output.responses.unwrap_or_default().remove(table).unwrap_or_default());
            wanted = match output.unprocessed_keys.unwrap_or_default().remove(table) {
                Some(left) if !left.keys().is_empty() => left.keys,
                Some(_) | None => break,
            };
            tokio::time::sleep(
                delays.next().ok_or_else(|| Failure::Throttled(remaining_requests(table)))?,
            )
            .await;
        }
    }
    Ok(found)
}

/// Returns the throttling text for a batch call that succeeds and leaves items unprocessed:
/// DynamoDB names no reason.
fn remaining_requests(table: &str) -> String {
    format!("DynamoDB leaves items of table {table} unprocessed")
}

/// Returns the deletion of a row.
pub(super) fn delete_request(key: Item) -> Result<WriteRequest, ViewError> {
    let delete = DeleteRequest::builder().set_key(Some(key)).build().map_err(invalid)?;
    Ok(WriteRequest::builder().delete_request(delete).build())
}

/// Returns the units that a call consumed.
pub(super) fn consumed_units(capacity: &[ConsumedCapacity]) -> f64 {
    capacity.iter().filter_map(ConsumedCapacity::capacity_units).sum()
}
