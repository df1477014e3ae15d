//! Views: tables of rows that are written only under their guard, and read one by one or in pages.
//!
//! [`StateRows`] are written from states, [`LogRows`] from commits. Both know the keys of their
//! table, and have its [`ViewTable`], which holds the items next to the rows.

mod apply;
pub(crate) mod batch;
mod checkpoint;
mod generations;
mod log_rows;
mod page_cursor;
mod pages;
mod rebuild_progress;
mod remote_positions;
mod state_rows;
mod stored_rows;
mod stream_position;

use std::{borrow::Cow, collections::HashMap};

use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::put_item::PutItemError,
    types::{AttributeValue, ReturnConsumedCapacity, error::TransactionCanceledException},
};
use ledgerline::{
    LogTable, StateTable,
    changes::Key,
    manifest::{OtherView, Table, VIEWS_TABLE},
    view_store::ViewError,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use self::remote_positions::RemotePositions;
pub use self::{
    checkpoint::{Checkpoint, MAX_CHANGES, NextCheckpoint, OrderedRows, StreamPosition},
    generations::{Generations, InvalidTransition, Marks, Move, Phase, Previous, Standby},
    log_rows::LogRows,
    page_cursor::{read_cursor, write_cursor},
    pages::{Page, PageQuery, UnreadableRow},
    rebuild_progress::{Cleared, SegmentProgress},
    remote_positions::ReadPositions,
    state_rows::StateRows,
};
use crate::error::{self, cancellation, is_busy, is_throttling, table_error};

type Item = HashMap<String, AttributeValue>;

/// The attribute of a row that was written from a state: the version that the row shows.
const VERSION: &str = "version";
/// The attribute of a handler's position in a stream: the last version that it applied.
const POSITION: &str = "position";
/// The attribute of a forgotten row: the time in Unix seconds after which no older version can
/// arrive. It is the table's time to live.
const TOMBSTONE: &str = "tombstone";
/// The sort key of the item with a handler's position in a stream. It is also the name of an
/// attribute of inserted rows. Once such a row is written, the rows of all versions of its stream
/// up to this number exist.
const POSITION_ENTRY: &str = "#position";

/// The most items of one transaction.
const MAX_TRANSACTION_ITEMS: usize = 100;

/// A handler's position in a stream.
#[derive(Debug, Serialize, Deserialize)]
struct Position {
    /// The last version that it applied.
    position: u64,
    /// The progress of the handler in the next version, if that takes more than one write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<String>,
}

impl Position {
    fn new(version: u64) -> Self {
        Self { position: version, progress: None }
    }
}

/// The table of a view, at one generation of its rows ([`Generations`]). If another store has the
/// rows, the table has the generations of many views, and the progress of their rebuilds. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct ViewTable {
    client: Client,
    name: String,
    keys: KeyNames,
    /// The partition of the view's items, if another store has its rows.
    view: Option<String>,
    /// Reads the positions, if another store has them.
    positions: Option<RemotePositions>,
    generation: u32,
    known: generations::Known,
}

/// The names of a table's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyNames {
    /// That of the partition key.
    pub partition: Cow<'static, str>,
    /// That of the sort key, if there is one.
    pub sort: Option<Cow<'static, str>>,
}

impl From<&LogTable> for KeyNames {
    fn from(table: &LogTable) -> Self {
        Self { partition: table.partition.into(), sort: Some(table.sort.into()) }
    }
}

impl From<&StateTable> for KeyNames {
    fn from(table: &StateTable) -> Self {
        Self { partition: table.key.into(), sort: None }
    }
}

impl From<&Table> for KeyNames {
    fn from(table: &Table) -> Self {
        Self { partition: table.partition.clone(), sort: table.sort.clone() }
    }
}

/// The keys of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowKey<'a> {
    /// The value of the partition key.
    pub partition: &'a str,
    /// The value of the sort key.
    pub sort: &'a str,
}

impl<'a> From<&'a Key> for RowKey<'a> {
    fn from((partition, sort): &'a Key) -> Self {
        Self { partition, sort }
    }
}

impl ViewTable {
    /// Returns the table of this name, at the generation 0.
    pub fn new(client: Client, name: impl Into<String>, keys: impl Into<KeyNames>) -> Self {
        Self {
            client,
            name: name.into(),
            keys: keys.into(),
            view: None,
            positions: None,
            generation: 0,
            known: generations::Known::default(),
        }
    }

    /// Returns the generations of a view whose rows are in another store, in the table of this
    /// name.
    pub fn from_view(client: Client, name: impl Into<String>, view: &OtherView) -> Self {
        Self { view: Some(view.key()), ..Self::new(client, name, &VIEWS_TABLE) }
    }

    /// Makes [`applied_version`](Self::applied_version) ask the function of a view whose rows are
    /// in another store. Positions that are asked for at the same time are read in one call.
    #[must_use]
    pub fn with_positions(self, read: ReadPositions) -> Self {
        Self { positions: Some(RemotePositions::new(read)), ..self }
    }

    /// Whether another store has the rows.
    pub fn is_in_other_store(&self) -> bool {
        self.view.is_some()
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the names of its keys.
    pub fn keys(&self) -> &KeyNames {
        &self.keys
    }

    async fn item(&self, key: Item, strongly: bool) -> Result<Option<Item>, ViewError> {
        let output = self
            .client
            .get_item()
            .table_name(&self.name)
            .set_key(Some(key))
            .consistent_read(strongly)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok(output.item)
    }
}

/// Returns the error in the reasons of a cancelled transaction, if the reasons are more specific
/// than the error itself.
fn cancellation_error(cancelled: &TransactionCanceledException) -> Option<ViewError> {
    let reasons = cancelled.cancellation_reasons();
    let busy = |code: &str| is_busy(code) || is_throttling(code);
    if let Some(reason) = reasons.iter().find(|reason| reason.code().is_some_and(busy)) {
        return Some(ViewError::Throttled(cancellation(reason)));
    }
    // A change that can never be written, such as an addition to a text. If the error were
    // `Unavailable`, the caller would retry.
    let invalid = reasons.iter().find(|reason| reason.code() == Some("ValidationError"))?;
    Some(ViewError::Row(invalid.message().unwrap_or("a change is not valid").to_owned()))
}

/// Whether the condition of a write held.
fn condition_held<T>(result: Result<T, SdkError<PutItemError>>) -> Result<bool, ViewError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) => match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(_)) => Ok(false),
            Some(_) | None => Err(table_error(error)),
        },
    }
}

fn invalid(error: aws_sdk_dynamodb::error::BuildError) -> ViewError {
    ViewError::Row(error.to_string())
}

fn number_of(item: Option<&Item>, attribute: &str) -> Result<u64, ViewError> {
    let Some(value) = item.and_then(|item| item.get(attribute)) else { return Ok(0) };
    let number = value.as_n().ok().and_then(|number| number.parse().ok());
    number.ok_or_else(|| ViewError::Row(format!("the attribute {attribute} is not a number")))
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn to_item(row: &impl Serialize) -> Result<Item, ViewError> {
    serde_dynamo::to_item(row).map_err(|error| ViewError::Row(error.to_string()))
}

fn from_item<T: DeserializeOwned>(item: Item) -> Result<T, ViewError> {
    deserialize(item).map_err(ViewError::Row)
}

/// Returns the content of an item, or the reason why it cannot be read, without values (rule 14).
fn deserialize<T: DeserializeOwned>(mut item: Item) -> Result<T, String> {
    item.remove(POSITION_ENTRY);
    serde_dynamo::from_item(item).map_err(|error| error::without_values(&error))
}
