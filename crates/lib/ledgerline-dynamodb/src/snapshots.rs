//! Snapshots: states folded from many commits, so that the next invocation continues from there.
//! They are in the Requests table and expire like requests.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use ledgerline::{RecordedState, StoreError, StreamId};

use crate::{
    DynamoDbStore, error,
    item::{self, Item, MAX_ITEM_BYTES},
    payload,
};

/// The lifetime of a snapshot: a deployment of the new schema is complete by its end.
const SNAPSHOT_LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// Returns the key of a snapshot. No request has such a key: see [`DynamoDbStore::record_attempt`].
fn key(stream: &StreamId, schema: u32) -> AttributeValue {
    AttributeValue::S(format!("state/{stream}/{schema}"))
}

impl DynamoDbStore {
    pub(crate) async fn read_snapshot(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> Result<Option<(u64, RecordedState)>, StoreError> {
        let Some(table) = self.requests.as_deref() else { return Ok(None) };
        let found = self.item(table, [(item::REQUEST, key(stream, schema))]).await?;
        // A snapshot that cannot be read is ignored, because it is a cache (rule 5).
        Ok(found.and_then(item::snapshot))
    }

    pub(crate) async fn write_snapshot(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> Result<(), StoreError> {
        let Some(table) = self.requests.as_deref() else { return Ok(()) };
        if state.data.len() > payload::MAX_BYTES {
            return Ok(());
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let expires = (now + SNAPSHOT_LIFETIME).as_secs();
        let stored: Item = HashMap::from([
            (item::REQUEST.to_owned(), key(stream, state.schema)),
            (item::VERSION.to_owned(), AttributeValue::N(version.to_string())),
            (item::STATE.to_owned(), item::state_to_attribute(state, self.compress_over)),
            (item::EXPIRES.to_owned(), AttributeValue::N(expires.to_string())),
        ]);
        if item::bytes(stored.iter().map(|(name, value)| (name.as_str(), value))) > MAX_ITEM_BYTES {
            return Ok(());
        }
        let put = self.client.put_item().table_name(table).set_item(Some(stored));
        let put = put.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await;
        put.map(|_| ()).map_err(error::store_error)
    }
}
