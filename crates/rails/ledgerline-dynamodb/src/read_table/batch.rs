//! Many rows in one call, if they need no transaction: a batch may write or read only some of its rows (rule 10).

use std::{collections::HashMap, time::Duration};

use aws_sdk_dynamodb::types::{
    AttributeValue, DeleteRequest, KeysAndAttributes, PutRequest, ReturnConsumedCapacity, WriteRequest,
};
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{StreamExt, TryStreamExt};
use ledgerline::{LogTable, changes::Key};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::table_error,
    read_table::{Item, ReadTable, TableError, from_item, invalid, to_item},
};

/// The most rows that one call writes.
const WRITES: usize = 25;
/// The most rows that one call reads.
const READS: usize = 100;
/// The most calls that are under way at the same time.
const CONCURRENCY: usize = 8;
/// The number of times that the rows which a call left over are sent again (rule 11).
const MAX_TRIES: usize = 8;

fn delays() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(MAX_TRIES)
        .with_jitter()
        .build()
}

impl ReadTable {
    /// Writes rows, in no particular order, and overwrites rows with the same keys. No key may be in the list twice.
    ///
    /// # Errors
    /// When the table fails, or is throttled for too long. Some of the rows may have been written.
    pub async fn put_all(&self, rows: &[impl Serialize]) -> Result<(), TableError> {
        let mut writes = Vec::new();
        for row in rows {
            let put = PutRequest::builder().set_item(Some(to_item(row)?)).build().map_err(invalid)?;
            writes.push(WriteRequest::builder().put_request(put).build());
        }
        self.write_all(writes).await
    }

    /// Deletes rows, in no particular order, whether they exist or not. No key may be in the list twice.
    ///
    /// # Errors
    /// When the table fails, or is throttled for too long. Some of the rows may have been deleted.
    pub async fn delete_all(&self, keys: &LogTable, rows: &[Key]) -> Result<(), TableError> {
        let mut writes = Vec::new();
        for row in rows {
            let delete = DeleteRequest::builder().set_key(Some(key(keys, row))).build().map_err(invalid)?;
            writes.push(WriteRequest::builder().delete_request(delete).build());
        }
        self.write_all(writes).await
    }

    async fn write_all(&self, writes: Vec<WriteRequest>) -> Result<(), TableError> {
        let calls: Vec<_> = writes.chunks(WRITES).map(<[WriteRequest]>::to_vec).collect();
        futures::stream::iter(calls)
            .map(|call| self.write_batch(call))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await
    }

    async fn write_batch(&self, mut writes: Vec<WriteRequest>) -> Result<(), TableError> {
        let mut delays = delays();
        loop {
            let output = self
                .client
                .batch_write_item()
                .request_items(&self.name, writes)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(table_error)?;
            writes = output.unprocessed_items.unwrap_or_default().remove(&self.name).unwrap_or_default();
            if writes.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(delays.next().ok_or(TableError::Throttled)?).await;
        }
    }

    /// The rows with these keys, read strongly, in no particular order, if they exist. No key may be in the list twice.
    ///
    /// # Errors
    /// When the table fails, or is throttled for too long.
    pub async fn get_all<T: DeserializeOwned>(
        &self,
        keys: &LogTable,
        rows: &[Key],
    ) -> Result<Vec<T>, TableError> {
        let found = self.items_of(rows.iter().map(|row| key(keys, row)).collect(), true).await?;
        found.into_iter().map(from_item).collect()
    }

    /// The items with these keys, in no particular order, if they exist. No key may be in the list twice.
    pub(crate) async fn items_of(&self, keys: Vec<Item>, strongly: bool) -> Result<Vec<Item>, TableError> {
        let mut found = Vec::new();
        for keys in keys.chunks(READS) {
            let mut wanted = keys.to_vec();
            let mut delays = delays();
            loop {
                let wants = KeysAndAttributes::builder()
                    .set_keys(Some(wanted))
                    .consistent_read(strongly)
                    .build()
                    .map_err(invalid)?;
                let output = self
                    .client
                    .batch_get_item()
                    .request_items(&self.name, wants)
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .send()
                    .await
                    .map_err(table_error)?;
                found.extend(output.responses.unwrap_or_default().remove(&self.name).unwrap_or_default());
                wanted = match output.unprocessed_keys.unwrap_or_default().remove(&self.name) {
                    Some(left) if !left.keys().is_empty() => left.keys,
                    Some(_) | None => break,
                };
                tokio::time::sleep(delays.next().ok_or(TableError::Throttled)?).await;
            }
        }
        Ok(found)
    }
}

fn key(keys: &LogTable, row: &Key) -> Item {
    HashMap::from([
        (keys.partition.to_owned(), AttributeValue::S(row.0.clone())),
        (keys.sort.to_owned(), AttributeValue::S(row.1.clone())),
    ])
}
