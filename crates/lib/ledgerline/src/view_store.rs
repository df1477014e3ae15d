//! The port of a store of views: the rows of one view, at one generation, and the positions up to
//! which they show the log. The engine of projectors and rebuilds writes rows through it alone, so
//! it works with each store that passes the contract
//! ([`log_row_store_tests!`](crate::log_row_store_tests),
//! [`state_row_store_tests!`](crate::state_row_store_tests)).

mod commit_batch;
mod memory_rows;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

pub use self::{
    commit_batch::{Applied, CommitBatch, CommitChanges, PositionMove},
    memory_rows::{MemoryLogRows, MemoryStateRows},
};
use crate::{
    StreamId,
    changes::{Fields, Key},
    position::Delivery,
};

/// The rows of a view, and the positions up to which they show the log. Cheap to clone.
pub trait RowStore: Clone {
    /// Returns the same view, at the rows of this generation.
    #[must_use]
    fn at_generation(&self, generation: u32) -> Self;

    /// Creates what the store needs for this generation, such as tables. The function calls it at
    /// its start, and the store itself when something is missing later.
    ///
    /// # Errors
    /// When the store fails, or has something else under a name that it needs.
    fn prepare(&self) -> impl Future<Output = Result<(), ViewError>> {
        std::future::ready(Ok(()))
    }

    /// Whether this process has to publish this generation. An implementation that publishes
    /// remembers its last attempt, and pauses after a failure: each event asks.
    fn is_publish_due(&self) -> bool {
        false
    }

    /// Publishes this generation, the active one, to readers that know the store but not the
    /// generations, such as people who write SQL.
    ///
    /// # Errors
    /// When the store fails, or lacks a right.
    fn publish(&self) -> impl Future<Output = Result<(), ViewError>> {
        std::future::ready(Ok(()))
    }

    /// Returns the last version of each of these streams that the view shows, in their order; 0 for
    /// none. The reads may be eventually consistent.
    ///
    /// # Errors
    /// When the store fails.
    fn positions(&self, streams: &[StreamId]) -> impl Future<Output = Result<Vec<u64>, ViewError>>;

    /// Deletes all rows and positions of this generation, if the store does that at once. A store
    /// whose rows the operator's tool deletes does nothing.
    ///
    /// # Errors
    /// When the store fails.
    fn delete_generation(&self) -> impl Future<Output = Result<(), ViewError>> {
        std::future::ready(Ok(()))
    }

    /// Reads the rows with these keys that exist, as they are stored, with strong consistency. The
    /// sort keys of a state view are empty.
    ///
    /// # Errors
    /// When the store fails, or a row is no JSON.
    fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> impl Future<Output = Result<BTreeMap<Key, StoredRow>, ViewError>>;
}

/// The rows of a log view, with the position in each stream.
pub trait LogRowStore: RowStore {
    /// Whether one call writes the commits of many streams.
    fn writes_many(&self) -> bool;

    /// Returns the most rows and positions that one call of [`apply`](Self::apply) writes; `None`
    /// for any number.
    fn max_items(&self) -> Option<usize>;

    /// Applies commits in this order. The changes of a commit and the move of its position are one
    /// write (rule 9). A commit that is not the next one in its stream writes nothing (rule 7).
    /// Returns the delivery of each commit, and the position in its stream.
    ///
    /// # Errors
    /// When the store fails, or a row cannot be written. Some of the commits may have been applied,
    /// each as a whole.
    fn deliver_all(
        &self,
        commits: Vec<CommitChanges<'_>>,
    ) -> impl Future<Output = Result<Vec<(Delivery, u64)>, ViewError>>;

    /// Applies the changes of these commits, and moves the positions in their streams (rule 9).
    ///
    /// # Errors
    /// When the store fails, or a row cannot be written.
    fn apply(&self, batch: &CommitBatch) -> impl Future<Output = Result<Applied, ViewError>>;

    /// Whether [`apply`](Self::apply) may write this version of a stream as the first of a batch. A
    /// store whose `apply` compares the positions by itself always returns `true`.
    ///
    /// # Errors
    /// When the store fails.
    fn can_begin_at(
        &self,
        stream: &StreamId,
        version: u64,
    ) -> impl Future<Output = Result<bool, ViewError>>;

    /// Returns the position from which a rebuild resumes in a stream, by a strongly consistent
    /// read.
    ///
    /// # Errors
    /// When the store fails.
    fn resume_position(&self, stream: &StreamId) -> impl Future<Output = Result<u64, ViewError>>;
}

/// The rows of a state view, each with the version that it shows.
pub trait StateRowStore: RowStore {
    /// Writes a row made from a state, unless the store shows the same version or a newer one
    /// already (rule 8). Also returns the consumed write units.
    ///
    /// # Errors
    /// When the store fails, or the row cannot be written.
    fn put_newer(
        &self,
        row: &impl Serialize,
        version: u64,
    ) -> impl Future<Output = Result<(Overwrite, f64), ViewError>>;

    /// Deletes a row, unless the store shows the same version or a newer one already. It leaves a
    /// tombstone, which keeps older versions out (rule 8) until `expires`, in Unix seconds, or
    /// longer. No older version may arrive after that time.
    ///
    /// # Errors
    /// When the store fails.
    fn forget(
        &self,
        id: &str,
        version: u64,
        expires: i64,
    ) -> impl Future<Output = Result<(Overwrite, f64), ViewError>>;

    /// Returns the fields that [`put_newer`](Self::put_newer) stores.
    ///
    /// # Errors
    /// When the row cannot be stored, or is no JSON as it is stored.
    fn stored_fields(&self, row: &impl Serialize, version: u64) -> Result<Fields, ViewError>;
}

/// The result of overwriting a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// The row was written.
    Written,
    /// The row was not written: the store shows this version already, the same or a newer one.
    Shows(u64),
}

/// A row as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRow {
    /// The version of the state that it shows; 0 in a log view.
    pub version: u64,
    /// The fields, as the store keeps them; `None` for a forgotten row.
    pub fields: Option<Fields>,
}

/// The reason why rows could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The store throttles the request, or another writer is busy with the same rows. The text has
    /// the reason and the throttled resource, as far as the store names them.
    #[error("the store of the view is throttled: {0}")]
    Throttled(String),
    /// The store could not be reached or failed.
    #[error("the store of the view is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// This program or the store cannot write or read a row or a key.
    #[error("a row cannot be written or read: {0}")]
    Row(String),
    /// One commit would change more rows than one transaction accepts (rule 9).
    #[error("a commit changes {rows} rows, and one transaction has {max} at most")]
    TooManyRows {
        /// The rows of the commit.
        rows: usize,
        /// The most rows of a transaction.
        max: usize,
    },
    /// The client's cursor is not from a page of this query.
    #[error(transparent)]
    Cursor(#[from] InvalidCursor),
}

impl ViewError {
    /// Whether all rows would fail like this one, and may be written later.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Throttled(_) | Self::Unavailable(_) => true,
            Self::Row(_) | Self::TooManyRows { .. } | Self::Cursor(_) => false,
        }
    }
}

/// A cursor that no page of this query ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not one that a page of this list ended with")]
pub struct InvalidCursor;

/// Returns the fields of a row of a state, with the version that it shows, for a store that keeps
/// JSON.
///
/// # Errors
/// When the row is not an object with this key. This is a programming error in its type.
pub fn state_fields(row: &impl Serialize, key: &str, version: u64) -> Result<Fields, ViewError> {
    let mut fields = match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(ViewError::Row("a row must be a JSON object".into())),
        Err(error) => return Err(ViewError::Row(error.to_string())),
    };
    if !fields.get(key).is_some_and(Value::is_string) {
        return Err(ViewError::Row(format!("a row must have the key {key}")));
    }
    fields.insert("version".to_owned(), version.into());
    Ok(fields)
}
