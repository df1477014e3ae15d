//! The checkpoint of a subscription: an item beside the rows, which one holder at a time may move,
//! in one transaction with the rows.
//!
//! A holder has the checkpoint for a while, and has it longer with each write. Whoever takes it
//! after that gives it a higher number, the *fence*. A holder that was paused, or is cut off, and
//! wakes up later, writes nothing any more: each of its writes is on the condition that the fence
//! is still its own.

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
    Item, LogRows, MAX_TRANSACTION_ITEMS, POSITION_ENTRY, Position, RowKey, TableError, from_item,
    invalid, number, refused, to_item,
};
use crate::error::table_error;

/// The partition key of the checkpoint. No stream has this name.
pub(super) const CHECKPOINT: &str = "$checkpoint";
/// The most rows and streams that one write of a checkpoint changes.
pub const MAX_CHANGES: usize = MAX_TRANSACTION_ITEMS - 1;

/// How far a subscription got. The names of the attributes begin with a sign that no key of a table
/// begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The cursor, as text; empty for the beginning.
    #[serde(default, rename = "$cursor")]
    pub cursor: String,
    /// What goes from one commit to the next, as JSON; empty at the beginning.
    #[serde(default, rename = "$state")]
    pub state: String,
    /// The number of its holder.
    #[serde(default, rename = "$fence")]
    fence: u64,
    /// The name of its holder.
    #[serde(default, rename = "$holder")]
    holder: String,
    /// The number of times that it was moved. A copy of an earlier write that arrives late finds
    /// another number.
    #[serde(default, rename = "$moves")]
    moves: u64,
    /// When somebody else may take it, in milliseconds since 1970.
    #[serde(default, rename = "$until")]
    until: i64,
}

impl Checkpoint {
    /// Whether another holder has it at `now`. `holding` is the time for which a holder takes it.
    #[must_use]
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

/// How far a subscription got in a stream, and what it remembers of the stream, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// The last version that it applied; 0 for none.
    pub position: u64,
    /// What it remembers.
    pub memory: Option<String>,
}

/// Where a checkpoint moves to.
#[derive(Debug, Clone)]
pub struct NextCheckpoint {
    /// The cursor after the last commit that was applied.
    pub cursor: String,
    /// The state of the view, as JSON.
    pub state: String,
    /// The time until which the holder keeps it. A time that is over gives it back.
    pub until: Timestamp,
}

/// The rows of a view in one order, and the positions in streams, that are written together with
/// the checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct OrderedRows<'a> {
    /// The changes of rows.
    pub changes: &'a Changes,
    /// The positions.
    pub positions: &'a BTreeMap<StreamId, StreamPosition>,
}

impl LogRows {
    /// How far the subscription got in these streams, read strongly, in one call for a hundred of
    /// them. A stream of which nothing was applied is left out.
    ///
    /// # Errors
    /// When the table fails, or is throttled for too long.
    pub async fn reached_in(
        &self,
        streams: &BTreeSet<&StreamId>,
    ) -> Result<BTreeMap<StreamId, StreamPosition>, TableError> {
        let mut wanted = Vec::new();
        let mut asked = HashMap::new();
        for stream in streams {
            let key = self.view.key(RowKey { partition: stream.as_str(), sort: POSITION_ENTRY });
            asked.insert(text(&key, self.keys.partition).to_owned(), *stream);
            wanted.push(key);
        }
        let mut reached = BTreeMap::new();
        for item in self.view.items_of(wanted, true).await? {
            let Some(stream) = asked.get(text(&item, self.keys.partition)) else { continue };
            let Position { position, progress } = from_item(item)?;
            reached.insert((*stream).clone(), StreamPosition { position, memory: progress });
        }
        Ok(reached)
    }

    /// The checkpoint, read strongly.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn checkpoint(&self) -> Result<Checkpoint, TableError> {
        let item = self.view.item(self.view.beside(CHECKPOINT), true).await?;
        item.map_or_else(|| Ok(Checkpoint::default()), from_item)
    }

    /// Takes the lease for the time `holding`; `None` if another holder has it. `holder` is unique.
    ///
    /// A holder whose clock was in the future has it no longer than others would: the fence keeps
    /// its writes out, whenever another one takes the checkpoint.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn take_checkpoint(
        &self,
        holder: &str,
        now: Timestamp,
        holding: SignedDuration,
    ) -> Result<Option<Checkpoint>, TableError> {
        let until = now + holding;
        let result = self
            .view
            .client
            .update_item()
            .table_name(&self.view.name)
            .set_key(Some(self.view.beside(CHECKPOINT)))
            .update_expression("SET #until = :until, #holder = :holder, #moves = if_not_exists(#moves, :none) ADD #fence :one")
            // A try of this very holder, whose reply was lost, is no other holder.
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
                // Somebody else has it, or is about to move it.
                Some(
                    UpdateItemError::ConditionalCheckFailedException(_)
                    | UpdateItemError::TransactionConflictException(_),
                ) => Ok(None),
                Some(_) | None => Err(table_error(error)),
            },
        }
    }

    /// Moves the checkpoint to this cursor and state, together with rows and positions in streams:
    /// all or nothing. It is this holder's until this time then; a time that is over gives it back.
    /// Returns the checkpoint as it is now; `None` if somebody else has taken it, and nothing was
    /// written.
    ///
    /// # Errors
    /// When the table fails, or there are more rows and streams than one transaction takes. It is
    /// not known then whether it was moved: whoever takes it next sees that.
    pub async fn move_checkpoint(
        &self,
        from: &Checkpoint,
        to: NextCheckpoint,
        rows: OrderedRows<'_>,
    ) -> Result<Option<Checkpoint>, TableError> {
        let moved = Checkpoint {
            cursor: to.cursor,
            state: to.state,
            moves: from.moves + 1,
            until: to.until.as_millisecond(),
            ..from.clone()
        };
        let mut item = to_item(&moved)?;
        item.extend(self.view.beside(CHECKPOINT));
        let is_moved = if rows.changes.is_empty() && rows.positions.is_empty() {
            self.put_checkpoint(item, from).await?
                // An earlier try of this very write, whose reply was lost.
                || self.checkpoint().await? == moved
        } else {
            self.put_checkpoint_and_rows(item, from, rows).await?
        };
        Ok(is_moved.then_some(moved))
    }

    /// Gives the checkpoint back where it is, if it is still this holder's.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn give_back_checkpoint(&self, taken: &Checkpoint) -> Result<(), TableError> {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_times(3);
        for pause in pauses.build() {
            let result = self
                .view
                .client
                .update_item()
                .table_name(&self.view.name)
                .set_key(Some(self.view.beside(CHECKPOINT)))
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
                // A write of its own, whose outcome is not known, may be under way still.
                Some(UpdateItemError::TransactionConflictException(_)) => {
                    tokio::time::sleep(pause).await;
                }
                Some(_) | None => return Err(table_error(error)),
            }
        }
        Err(TableError::Throttled("a transaction on the checkpoint is in progress".into()))
    }

    async fn put_checkpoint_and_rows(
        &self,
        item: Item,
        from: &Checkpoint,
        OrderedRows { changes, positions }: OrderedRows<'_>,
    ) -> Result<bool, TableError> {
        if changes.len() + positions.len() > MAX_CHANGES {
            return Err(TableError::TooManyRows(changes.len() + positions.len()));
        }
        let guarded = Put::builder()
            .table_name(&self.view.name)
            .set_item(Some(item))
            .condition_expression(UNMOVED)
            .expression_attribute_names("#fence", "$fence")
            .expression_attribute_names("#moves", "$moves")
            .set_expression_attribute_values(Some(unmoved(from)));
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
            writes.push(self.write(key, change)?);
        }
        // The SDK sends a token with it, by which DynamoDB knows a try whose reply was lost.
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
        Err(refused(cancelled).unwrap_or_else(|| table_error(error)))
    }

    async fn put_checkpoint(&self, item: Item, from: &Checkpoint) -> Result<bool, TableError> {
        let put = self
            .view
            .client
            .put_item()
            .table_name(&self.view.name)
            .set_item(Some(item))
            .condition_expression(UNMOVED)
            .expression_attribute_names("#fence", "$fence")
            .expression_attribute_names("#moves", "$moves")
            .set_expression_attribute_values(Some(unmoved(from)))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let Err(error) = put.send().await else { return Ok(true) };
        match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(_)) => Ok(false),
            Some(_) | None => Err(table_error(error)),
        }
    }
}

/// The latest end of a holding that a right clock can have written.
fn longest(now: Timestamp, holding: SignedDuration) -> Timestamp {
    now + holding + CLOCK_SKEW
}

fn text<'i>(item: &'i Item, name: &str) -> &'i str {
    item.get(name).and_then(|value| value.as_s().ok()).map_or("", String::as_str)
}

/// The condition that nobody has taken or moved the checkpoint.
const UNMOVED: &str = "#fence = :fence AND #moves = :moves";

fn unmoved(from: &Checkpoint) -> Item {
    HashMap::from([
        (":fence".to_owned(), number(from.fence)),
        (":moves".to_owned(), number(from.moves)),
    ])
}
