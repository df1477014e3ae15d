//! The checkpoint of a subscription: an item next to the rows. Only one holder at a time may move
//! it, in one transaction with the rows.
//!
//! A holder has a lease of the checkpoint, and extends it with each write. The next holder gives
//! the checkpoint a higher number, the *fence*. A paused or disconnected holder that resumes later
//! cannot write: each of its writes has the condition that the fence is still its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use aws_sdk_dynamodb::{
    operation::{
        put_item::PutItemError, transact_write_items::TransactWriteItemsError,
        update_item::UpdateItemError,
    },
    types::{AttributeValue, Put, ReturnConsumedCapacity, ReturnValue, TransactWriteItem},
};
use backon::{BackoffBuilder, ExponentialBuilder};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{Changes, StreamId, all::CLOCK_SKEW};
use serde::{Deserialize, Serialize};

use super::{
    Item, LogRows, MAX_TRANSACTION_ITEMS, POSITION_ENTRY, Position, RowKey, ViewError,
    cancellation_error, from_item, invalid, number, to_item,
};
use crate::error::table_error;

/// The partition key of the checkpoint. No stream has this name.
pub(super) const CHECKPOINT: &str = "$checkpoint";
/// The most rows and streams that one write of a checkpoint changes.
pub const MAX_CHANGES: usize = MAX_TRANSACTION_ITEMS - 1;

/// The progress of a subscription. The names of the attributes begin with a sign that no key of a
/// table begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The cursor, as text; empty for the beginning.
    #[serde(default, rename = "$cursor")]
    pub cursor: String,
    /// The state that passes from one commit to the next, as JSON; empty at the beginning.
    #[serde(default, rename = "$state")]
    pub state: String,
    /// The number of its holder.
    #[serde(default, rename = "$fence")]
    fence: u64,
    /// The name of its holder.
    #[serde(default, rename = "$holder")]
    holder: String,
    /// The number of its moves. A copy of an earlier write that arrives late finds another number.
    #[serde(default, rename = "$moves")]
    moves: u64,
    /// The end of the lease, in milliseconds since 1970. After it, another holder may take the
    /// checkpoint.
    #[serde(default, rename = "$until")]
    until: i64,
}

impl Checkpoint {
    /// Whether another holder has it at `now`. `holding` is the duration of a lease.
    pub fn is_held_by_another(
        &self,
        holder: &str,
        now: Timestamp,
        holding: SignedDuration,
    ) -> bool {
        let (now, longest) = (now.as_millisecond(), longest(now, holding).as_millisecond());
        self.holder != holder && (now + 1..=longest).contains(&self.until)
    }
}

/// The progress of a subscription in a stream, and its memory of the stream, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// The last version that it applied; 0 for none.
    pub position: u64,
    /// The memory.
    pub memory: Option<String>,
}

/// The new values of a checkpoint.
#[derive(Debug, Clone)]
pub struct NextCheckpoint {
    /// The cursor after the last commit that was applied.
    pub cursor: String,
    /// The state of the view, as JSON.
    pub state: String,
    /// The end of the lease. A time in the past releases the checkpoint.
    pub until: Timestamp,
}

/// The rows of an ordered view, and the positions in streams, that are written together with the
/// checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct OrderedRows<'a> {
    /// The changes of rows.
    pub changes: &'a Changes,
    /// The positions.
    pub positions: &'a BTreeMap<StreamId, StreamPosition>,
}

impl LogRows {
    /// Returns the progress of the subscription in these streams, by strongly consistent reads, one
    /// call for a hundred streams. A stream without applied commits is left out.
    pub async fn applied_positions(
        &self,
        streams: &BTreeSet<&StreamId>,
    ) -> Result<BTreeMap<StreamId, StreamPosition>, ViewError> {
        let mut wanted = Vec::new();
        let mut asked = HashMap::new();
        for stream in streams {
            let key = self.view.key(RowKey { partition: stream.as_str(), sort: POSITION_ENTRY });
            asked.insert(text(&key, self.keys.partition).to_owned(), *stream);
            wanted.push(key);
        }
        let mut reached = BTreeMap::new();
        for item in self.view.get_items(wanted, true).await? {
            let Some(stream) = asked.get(text(&item, self.keys.partition)) else { continue };
            let Position { position, progress } = from_item(item)?;
            reached.insert((*stream).clone(), StreamPosition { position, memory: progress });
        }
        Ok(reached)
    }

    /// Reads the checkpoint, with strong consistency.
    pub async fn checkpoint(&self) -> Result<Checkpoint, ViewError> {
        let item = self.view.item(self.view.item_key(CHECKPOINT), true).await?;
        item.map_or_else(|| Ok(Checkpoint::default()), from_item)
    }

    /// Takes the lease for the time `holding`; `None` if another holder has it. `holder` is unique.
    ///
    /// A holder with a clock in the future does not keep the lease for more time than others would.
    /// The fence keeps its writes out after another holder takes the checkpoint.
    pub async fn take_checkpoint(
        &self,
        holder: &str,
        now: Timestamp,
        holding: SignedDuration,
    ) -> Result<Option<Checkpoint>, ViewError> {
        let until = now + holding;
        let result = self
            .view
            .client
            .update_item()
            .table_name(&self.view.name)
            .set_key(Some(self.view.item_key(CHECKPOINT)))
            .update_expression("SET #until = :until, #holder = :holder, #moves = if_not_exists(#moves, :none) ADD #fence :one")
            // An earlier attempt of this very holder, whose reply was lost, is no other holder.
            .condition_expression("attribute_not_exists(#until) OR NOT #until BETWEEN :now AND :longest OR #holder = :holder")
            .expression_attribute_names("#until", "$until")
            .expression_attribute_names("#holder", "$holder")
            .expression_attribute_names("#fence", "$fence")
            .expression_attribute_names("#moves", "$moves")
            .expression_attribute_values(":none", number(0))
            .expression_attribute_values(":until", AttributeValue::N(until.as_millisecond().to_string()))
            .expression_attribute_values(":now", AttributeValue::N((now.as_millisecond() + 1).to_string()))
            .expression_attribute_values(
                ":longest",
                AttributeValue::N(longest(now, holding).as_millisecond().to_string()),
            )
            .expression_attribute_values(":holder", AttributeValue::S(holder.to_owned()))
            .expression_attribute_values(":one", number(1))
            .return_values(ReturnValue::AllNew)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(output) => output.attributes.map(from_item).transpose(),
            Err(error) => match error.as_service_error() {
                // Another holder has it, or is about to move it.
                Some(
                    UpdateItemError::ConditionalCheckFailedException(_)
                    | UpdateItemError::TransactionConflictException(_),
                ) => Ok(None),
                Some(_) | None => Err(table_error(error)),
            },
        }
    }

    /// Moves the checkpoint to this cursor and state, together with rows and positions in streams:
    /// all or nothing. The lease then ends at `to.until`; a time in the past releases the
    /// checkpoint. Returns the new checkpoint; `None` if another holder has taken it, and nothing
    /// was written.
    ///
    /// # Errors
    /// When the table fails, or there are more rows and streams than one transaction accepts. The
    /// outcome is then unknown: the next holder sees it.
    pub async fn move_checkpoint(
        &self,
        from: &Checkpoint,
        to: NextCheckpoint,
        rows: OrderedRows<'_>,
    ) -> Result<Option<Checkpoint>, ViewError> {
        let moved = Checkpoint {
            cursor: to.cursor,
            state: to.state,
            moves: from.moves + 1,
            until: to.until.as_millisecond(),
            ..from.clone()
        };
        let mut item = to_item(&moved)?;
        item.extend(self.view.item_key(CHECKPOINT));
        let is_moved = if rows.changes.is_empty() && rows.positions.is_empty() {
            self.put_checkpoint(item, from).await?
                // An earlier attempt of this very write, whose reply was lost.
                || self.checkpoint().await? == moved
        } else {
            self.put_checkpoint_and_rows(item, from, rows).await?
        };
        Ok(is_moved.then_some(moved))
    }

    /// Releases the checkpoint without a move, if it is still this holder's.
    pub async fn give_back_checkpoint(&self, taken: &Checkpoint) -> Result<(), ViewError> {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_times(3);
        for pause in pauses.build() {
            let result = self
                .view
                .client
                .update_item()
                .table_name(&self.view.name)
                .set_key(Some(self.view.item_key(CHECKPOINT)))
                .update_expression("SET #until = :until")
                .condition_expression("#fence = :fence")
                .expression_attribute_names("#until", "$until")
                .expression_attribute_names("#fence", "$fence")
                .expression_attribute_values(":until", number(0))
                .expression_attribute_values(":fence", number(taken.fence))
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await;
            let Err(error) = result else { return Ok(()) };
            match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(_)) => return Ok(()),
                // A write of this holder with an unknown outcome may still be in progress.
                Some(UpdateItemError::TransactionConflictException(_)) => {
                    tokio::time::sleep(pause).await;
                }
                Some(_) | None => return Err(table_error(error)),
            }
        }
        Err(ViewError::Throttled("a transaction on the checkpoint is in progress".into()))
    }

    async fn put_checkpoint_and_rows(
        &self,
        item: Item,
        from: &Checkpoint,
        OrderedRows { changes, positions }: OrderedRows<'_>,
    ) -> Result<bool, ViewError> {
        if changes.len() + positions.len() > MAX_CHANGES {
            return Err(ViewError::TooManyRows {
                rows: changes.len() + positions.len(),
                max: MAX_TRANSACTION_ITEMS - 1,
            });
        }
        let guarded = Put::builder()
            .table_name(&self.view.name)
            .set_item(Some(item))
            .condition_expression(UNMOVED)
            .expression_attribute_names("#fence", "$fence")
            .expression_attribute_names("#moves", "$moves")
            .set_expression_attribute_values(Some(has_not_moved(from)));
        let mut writes =
            vec![TransactWriteItem::builder().put(guarded.build().map_err(invalid)?).build()];
        for (stream, StreamPosition { position, memory }) in positions {
            let position = Position { position: *position, progress: memory.clone() };
            let item = self.view.position_item(stream, &position)?;
            let put = Put::builder()
                .table_name(&self.view.name)
                .set_item(Some(item))
                .build()
                .map_err(invalid)?;
            writes.push(TransactWriteItem::builder().put(put).build());
        }
        for (key, change) in changes.iter() {
            writes.push(self.transact_item(key, change)?);
        }
        // The SDK sends a token, by which DynamoDB recognises an attempt whose reply was lost.
        let write = self.view.client.transact_write_items().set_transact_items(Some(writes));
        let Err(error) = write.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await
        else {
            return Ok(true);
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        else {
            return Err(table_error(error));
        };
        let guard = cancelled.cancellation_reasons().first().and_then(|reason| reason.code());
        if guard == Some("ConditionalCheckFailed") {
            return Ok(false);
        }
        Err(cancellation_error(cancelled).unwrap_or_else(|| table_error(error)))
    }

    async fn put_checkpoint(&self, item: Item, from: &Checkpoint) -> Result<bool, ViewError> {
        let put = self
            .view
            .client
            .put_item()
            .table_name(&self.view.name)
            .set_item(Some(item))
            .condition_expression(UNMOVED)
            .expression_attribute_names("#fence", "$fence")
            .expression_attribute_names("#moves", "$moves")
            .set_expression_attribute_values(Some(has_not_moved(from)))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let Err(error) = put.send().await else { return Ok(true) };
        match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(_)) => Ok(false),
            Some(_) | None => Err(table_error(error)),
        }
    }
}

/// Returns the latest end of a lease that a correct clock can have written.
fn longest(now: Timestamp, holding: SignedDuration) -> Timestamp {
    now + holding + CLOCK_SKEW
}

fn text<'i>(item: &'i Item, name: &str) -> &'i str {
    item.get(name).and_then(|value| value.as_s().ok()).map_or("", String::as_str)
}

/// The condition that no holder has taken or moved the checkpoint.
const UNMOVED: &str = "#fence = :fence AND #moves = :moves";

fn has_not_moved(from: &Checkpoint) -> Item {
    HashMap::from([
        (":fence".to_owned(), number(from.fence)),
        (":moves".to_owned(), number(from.moves)),
    ])
}
