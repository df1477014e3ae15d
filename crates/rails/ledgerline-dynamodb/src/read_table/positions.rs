//! Positions: the versions up to which streams are applied.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
use ledgerline::{LogTable, StreamId};

use super::{
    KeyNames, POSITION_ENTRY, Position, ReadTable, RowKey, TableError, VERSION, from_item, number_of,
};
use crate::error::table_error;

impl ReadTable {
    /// The last version of the stream that the read model shows; 0 for none. The newest row is
    /// looked for in the partition that is named like the stream's id, because rows that were
    /// inserted are there.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn position(&self, keys: &LogTable, stream: &StreamId) -> Result<u64, TableError> {
        self.position_read(keys, stream, false).await
    }

    /// The same as [`position`](Self::position), read strongly.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn position_now(&self, keys: &LogTable, stream: &StreamId) -> Result<u64, TableError> {
        self.position_read(keys, stream, true).await
    }

    /// The last version of the stream that a table with these keys has: that of its row, if there
    /// is no sort key, or the position in it; 0 for none.
    ///
    /// # Errors
    /// When the table fails, or the row has no version.
    pub async fn reached(&self, keys: KeyNames<'_>, stream: &StreamId) -> Result<u64, TableError> {
        if keys.sort.is_some() {
            return self.position_read(keys, stream, false).await;
        }
        let key = HashMap::from([(keys.partition.to_owned(), self.partition(stream.id()))]);
        match self.item(key, false).await? {
            Some(item) => match number_of(Some(&item), VERSION) {
                0 => Err(TableError::Row(format!("its {VERSION} is missing, or no number"))),
                version => Ok(version),
            },
            None => Ok(0),
        }
    }

    async fn position_read<'k>(
        &self,
        keys: impl Into<KeyNames<'k>>,
        stream: &StreamId,
        strongly: bool,
    ) -> Result<u64, TableError> {
        let keys = keys.into();
        let put = self.put_beside(keys, stream.as_str(), strongly);
        let (put, newest) = futures::try_join!(put, self.newest(keys, stream, strongly))?;
        Ok(put.position.max(newest))
    }

    /// The position in the item beside the rows, read strongly, and the progress in the next commit
    /// (see [`begin`](Self::begin)).
    ///
    /// # Errors
    /// When the table fails.
    pub async fn progress(&self, keys: &LogTable, stream: &str) -> Result<(u64, Option<String>), TableError> {
        let put = self.put_beside(keys, stream, true).await?;
        Ok((put.position, put.progress))
    }

    pub(super) async fn put_beside<'k>(
        &self,
        keys: impl Into<KeyNames<'k>>,
        stream: &str,
        strongly: bool,
    ) -> Result<Position, TableError> {
        let item =
            self.item(self.key(keys, RowKey { partition: stream, sort: POSITION_ENTRY }), strongly).await?;
        item.map_or(Ok(Position::at(0)), from_item)
    }

    /// The position in the newest row; 0 if there is no row, or if the row contains none because it
    /// was not inserted, or was written by an earlier version of the program, which put the
    /// position beside the rows.
    pub(super) async fn newest<'k>(
        &self,
        keys: impl Into<KeyNames<'k>>,
        stream: &StreamId,
        strongly: bool,
    ) -> Result<u64, TableError> {
        let rows = self
            .client
            .query()
            .table_name(&self.name)
            .key_condition_expression("#partition = :partition")
            .expression_attribute_names("#partition", keys.into().partition)
            .expression_attribute_values(":partition", self.partition(stream.id()))
            .projection_expression("#position")
            .expression_attribute_names("#position", POSITION_ENTRY)
            .scan_index_forward(false)
            .limit(1)
            .consistent_read(strongly)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok(number_of(rows.items().first(), POSITION_ENTRY))
    }
}
