//! Positions: the versions up to which streams are applied.
//!
//! The position in a stream is an item next to the rows. A view that inserts its rows has it in the
//! newest row of the stream as well, which costs no write. The higher one counts.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    operation::put_item::PutItemError,
    types::{ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure},
};
use ledgerline::StreamId;

use super::{
    Item, LogRows, POSITION, POSITION_ENTRY, Position, RowKey, VERSION, ViewError, ViewTable,
    from_item, number, number_of, to_item,
};
use crate::error::table_error;

/// The newest inserted row of a stream.
pub(super) struct NewestRow {
    /// Its sort key; `None` without a row.
    pub(super) entry: Option<String>,
    /// The version up to which the stream is applied, by this row.
    pub(super) position: u64,
}

/// A condition on a position.
pub(super) struct Condition {
    pub(super) expression: &'static str,
    pub(super) values: Item,
}

/// Returns the condition that the position is this one.
pub(super) fn position_equals(position: u64) -> Condition {
    let expression = match position {
        // An unfinished first commit has left the position 0.
        0 => "attribute_not_exists(#position) OR #position = :before",
        _ => "#position = :before",
    };
    Condition { expression, values: HashMap::from([(":before".to_owned(), number(position))]) }
}

/// Returns the condition that the position is anywhere below this version.
pub(super) fn position_below(version: u64) -> Condition {
    Condition {
        expression: "attribute_not_exists(#position) OR #position < :version",
        values: HashMap::from([(":version".to_owned(), number(version))]),
    }
}

impl LogRows {
    /// Returns the last version of the stream that the view shows; 0 for none. The newest row is
    /// searched in the partition that is named like the stream's id, where inserted rows are.
    pub async fn position(&self, stream: &StreamId) -> Result<u64, ViewError> {
        self.view.position(stream, false).await
    }

    /// Returns the same as [`position`](Self::position), by strongly consistent reads.
    pub async fn consistent_position(&self, stream: &StreamId) -> Result<u64, ViewError> {
        self.view.consistent_position(stream).await
    }

    /// Reads the position in the item next to the rows, and the progress in the next commit (see
    /// [`begin`](Self::begin)). The read is strongly consistent.
    pub async fn progress(&self, stream: &StreamId) -> Result<(u64, Option<String>), ViewError> {
        let Position { position, progress } = self.view.position_beside(stream, true).await?;
        Ok((position, progress))
    }
}

impl ViewTable {
    /// Returns the last version of each of these streams that the table has, in their order.
    pub(super) async fn applied_versions(
        &self,
        streams: &[StreamId],
    ) -> Result<Vec<u64>, ViewError> {
        let versions = streams.iter().map(|stream| self.applied_version(stream));
        futures::future::try_join_all(versions).await
    }

    /// Returns the last version of the stream that the table has; 0 for none. It is the version of
    /// the stream's row, if the table has no sort key, or the position in the stream.
    ///
    /// # Errors
    /// When the table fails, or the row has no version. [`ViewError::Row`] with the reason, when the
    /// function of a view in another store does not answer.
    pub async fn applied_version(&self, stream: &StreamId) -> Result<u64, ViewError> {
        if let Some(positions) = &self.positions {
            return positions.position(self.generation, stream).await;
        }
        if self.keys.sort.is_some() {
            return self.position(stream, false).await;
        }
        let key = HashMap::from([(self.keys.partition.to_string(), self.partition(stream.id()))]);
        match self.item(key, false).await? {
            Some(item) => match number_of(Some(&item), VERSION)? {
                0 => Err(ViewError::Row(format!("the attribute {VERSION} is missing"))),
                version => Ok(version),
            },
            None => Ok(0),
        }
    }

    /// Returns the position in a stream, by strongly consistent reads.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn consistent_position(&self, stream: &StreamId) -> Result<u64, ViewError> {
        self.position(stream, true).await
    }

    async fn position(&self, stream: &StreamId, strongly: bool) -> Result<u64, ViewError> {
        let beside = self.position_beside(stream, strongly);
        let (beside, newest) = futures::try_join!(beside, self.newest_row(stream, strongly))?;
        Ok(beside.position.max(newest.position))
    }

    pub(super) async fn position_beside(
        &self,
        stream: &StreamId,
        strongly: bool,
    ) -> Result<Position, ViewError> {
        let key = self.key(RowKey { partition: stream.as_str(), sort: POSITION_ENTRY });
        self.item(key, strongly).await?.map_or(Ok(Position::new(0)), from_item)
    }

    /// Returns the row with the last sort key, and its position. The position is 0 if the partition
    /// has no row, or that row has no position: only inserted rows have one.
    pub(super) async fn newest_row(
        &self,
        stream: &StreamId,
        strongly: bool,
    ) -> Result<NewestRow, ViewError> {
        let sort = self.keys.sort.as_deref().unwrap_or(POSITION_ENTRY);
        let rows = self
            .client
            .query()
            .table_name(&self.name)
            .key_condition_expression("#partition = :partition")
            .expression_attribute_names("#partition", &*self.keys.partition)
            .expression_attribute_values(":partition", self.partition(stream.id()))
            .projection_expression("#position, #sort")
            .expression_attribute_names("#position", POSITION_ENTRY)
            .expression_attribute_names("#sort", sort)
            .scan_index_forward(false)
            .limit(1)
            .consistent_read(strongly)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        let newest = rows.items().first();
        let entry = newest.and_then(|row| row.get(sort)?.as_s().ok().cloned());
        Ok(NewestRow { entry, position: number_of(newest, POSITION_ENTRY)? })
    }

    /// Returns the item with a position in a stream, in this generation.
    pub(super) fn position_item(
        &self,
        stream: &StreamId,
        position: &Position,
    ) -> Result<Item, ViewError> {
        let mut item = to_item(position)?;
        item.extend(self.key(RowKey { partition: stream.as_str(), sort: POSITION_ENTRY }));
        Ok(item)
    }

    /// Writes the position under this condition. If the condition does not hold, returns the
    /// existing position.
    pub(super) async fn put_position(
        &self,
        position: Item,
        condition: Condition,
    ) -> Result<Option<u64>, ViewError> {
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(position))
            .condition_expression(condition.expression)
            .expression_attribute_names("#position", POSITION)
            .set_expression_attribute_values(Some(condition.values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(_) => Ok(None),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    number_of(failed.item(), POSITION).map(Some)
                }
                Some(_) | None => Err(table_error(error)),
            },
        }
    }
}
