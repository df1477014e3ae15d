//! The one way to write the changes of commits into the rows of a view that is written from the
//! log: a batch of commits, with the positions that they move. Deliveries write one commit or a
//! few, a rebuild writes many.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use aws_sdk_dynamodb::{
    operation::transact_write_items::TransactWriteItemsError,
    types::{
        AttributeValue, Delete, Put, ReturnConsumedCapacity, ReturnValuesOnConditionCheckFailure,
        TransactWriteItem, Update,
    },
};
use backon::{ExponentialBuilder, Retryable};
use ledgerline::{
    StreamId,
    changes::{Change, Key},
    view_store::{Applied, CommitBatch, ViewError},
};

use super::{
    LogRows, MAX_TRANSACTION_ITEMS, POSITION, POSITION_ENTRY, Position, RowKey, batch,
    cancellation_error, invalid, number, number_of,
    stream_position::{Condition, position_below, position_equals},
};
use crate::error::table_error;

/// The number of times that a write is retried after a conflict with another writer at one of its
/// rows (rule 11).
const MAX_CONFLICTS: usize = 10;
/// The longest pause of a rebuild, whose workers conflict at sums.
pub(super) const REBUILD_PAUSE: Duration = Duration::from_millis(500);

impl LogRows {
    /// Writes a batch in one transaction. `longest` is the longest pause between two attempts.
    pub(super) async fn transact(
        &self,
        batch: &CommitBatch,
        longest: Duration,
    ) -> Result<Applied, ViewError> {
        // Usually another stream changes the same row, such as a sum. A pause here costs less than
        // a redelivery of the message, which would delay all of its group.
        let delays = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(10))
            .with_max_delay(longest)
            .with_max_times(MAX_CONFLICTS)
            .with_jitter();
        let write = || self.write_together(batch);
        let is_busy = |error: &ViewError| matches!(error, ViewError::Throttled(_));
        write.retry(delays).sleep(tokio::time::sleep).when(is_busy).await
    }

    /// Inserts the rows of a batch, and writes the positions of the streams in `beside` next to the
    /// rows, too.
    pub(super) async fn insert_rows(
        &self,
        batch: &CommitBatch,
        beside: &BTreeSet<StreamId>,
    ) -> Result<Applied, ViewError> {
        let mut rows = BTreeMap::<_, Vec<_>>::new();
        for ((partition, _), change) in batch.changes.iter() {
            let Change::Insert(fields) = change else {
                return Err(ViewError::Row("a view that inserts rows cannot change rows".into()));
            };
            rows.entry(partition.as_str()).or_default().push(self.row(fields)?);
        }
        let (mut first_rows, mut last_rows, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for (stream, step) in &batch.moves {
            // No commit of another stream has a row in this partition, and rows are in the order of
            // versions.
            let mut rows = rows.remove(stream.id()).unwrap_or_default();
            if let Some(mut last) = rows.pop() {
                last.insert(POSITION_ENTRY.into(), number(step.last_row));
                last_rows.push(last);
            }
            for mut row in rows {
                row.insert(POSITION_ENTRY.into(), number(step.from));
                first_rows.push(row);
            }
            if step.last_row < step.to || beside.contains(stream) {
                positions.push((stream, step.to));
            }
        }
        if !rows.is_empty() {
            return Err(ViewError::Row(
                "an inserted row must be in the partition of its stream's id".into(),
            ));
        }
        let mut units =
            self.view.put_items(first_rows).await? + self.view.put_items(last_rows).await?;
        let mut further = BTreeMap::new();
        for (stream, to) in positions {
            let position = self.view.position_item(stream, &Position::new(to))?;
            let found = self.view.put_position(position, position_below(to)).await?;
            further.extend(found.map(|found| (stream.clone(), found)));
            units += 1.0;
        }
        Ok(Applied::Written { units, further })
    }

    async fn write_together(&self, batch: &CommitBatch) -> Result<Applied, ViewError> {
        let mut positions = Vec::new();
        for (stream, step) in &batch.moves {
            let position = Position { position: step.to, progress: step.progress.clone() };
            positions
                .push((self.view.position_item(stream, &position)?, position_equals(step.from)));
        }
        if batch.changes.is_empty() && positions.len() == 1 {
            let (item, condition) = positions.remove(0);
            let found = self.view.put_position(item, condition).await?;
            return Ok(match found {
                None => Applied::Written { units: 1.0, further: BTreeMap::new() },
                Some(position) => Applied::PositionIs(position),
            });
        }
        if batch.changes.len() + positions.len() > MAX_TRANSACTION_ITEMS {
            let rows = batch.changes.len();
            let max = MAX_TRANSACTION_ITEMS - 1;
            return Err(ViewError::TooManyRows { rows, max });
        }
        let mut writes = Vec::new();
        for (item, Condition { expression, values }) in positions {
            let guarded = Put::builder()
                .table_name(&self.view.name)
                .set_item(Some(item))
                .condition_expression(expression)
                .expression_attribute_names("#position", POSITION)
                .set_expression_attribute_values(Some(values))
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                )
                .build()
                .map_err(invalid)?;
            writes.push(TransactWriteItem::builder().put(guarded).build());
        }
        for (key, change) in batch.changes.iter() {
            writes.push(self.transact_item(key, change)?);
        }
        let write = self.view.client.transact_write_items().set_transact_items(Some(writes));
        let error = match write.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await
        {
            Ok(output) => {
                let units = batch::consumed_units(output.consumed_capacity());
                return Ok(Applied::Written { units, further: BTreeMap::new() });
            }
            Err(error) => error,
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Err(table_error(error));
        };
        // Only positions have a condition.
        let mut reasons = cancelled.cancellation_reasons().iter();
        if let Some(guard) = reasons.find(|reason| reason.code() == Some("ConditionalCheckFailed"))
        {
            return number_of(guard.item(), POSITION).map(Applied::PositionIs);
        }
        Err(cancellation_error(cancelled).unwrap_or_else(|| table_error(error)))
    }

    /// Returns the write of one row for a transaction, without a condition.
    ///
    /// # Errors
    /// When a field cannot be stored as an attribute.
    pub(super) fn transact_item(
        &self,
        key: &Key,
        change: &Change,
    ) -> Result<TransactWriteItem, ViewError> {
        let item = TransactWriteItem::builder();
        let key = self.view.key(RowKey::from(key));
        let name = &self.view.name;
        Ok(match change {
            Change::Insert(fields) | Change::Put(fields) => {
                let put = Put::builder().table_name(name).set_item(Some(self.row(fields)?));
                item.put(put.build().map_err(invalid)?)
            }
            Change::Delete => {
                let delete = Delete::builder().table_name(name).set_key(Some(key));
                item.delete(delete.build().map_err(invalid)?)
            }
            Change::Update { set, add } => {
                let (mut sets, mut adds) = (Vec::new(), Vec::new());
                let mut update = Update::builder().table_name(name).set_key(Some(key));
                for (place, (field, value)) in set.iter().enumerate() {
                    sets.push(format!("#s{place} = :s{place}"));
                    let value = serde_dynamo::to_attribute_value(value)
                        .map_err(|error| ViewError::Row(error.to_string()))?;
                    update = update
                        .expression_attribute_names(format!("#s{place}"), field)
                        .expression_attribute_values(format!(":s{place}"), value);
                }
                for (place, (field, amount)) in add.iter().enumerate() {
                    adds.push(format!("#a{place} :a{place}"));
                    let amount = AttributeValue::N(amount.to_string());
                    update = update
                        .expression_attribute_names(format!("#a{place}"), field)
                        .expression_attribute_values(format!(":a{place}"), amount);
                }
                let clause = |word: &str, parts: Vec<String>| match parts.is_empty() {
                    true => String::new(),
                    false => format!("{word} {} ", parts.join(", ")),
                };
                let expression = clause("SET", sets) + &clause("ADD", adds);
                item.update(
                    update.update_expression(expression.trim_end()).build().map_err(invalid)?,
                )
            }
        }
        .build())
    }
}
