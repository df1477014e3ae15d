//! A batch of commits, with the positions that they move.

use std::collections::BTreeMap;

use ledgerline::{Changes, LogTable, StreamId};

use super::MAX_TRANSACTION_ITEMS;

/// The bytes of rows after which a transaction is written. The limit is 4 MB, and rows are larger
/// in a transaction than as JSON.
const MAX_BYTES: usize = 1_000_000;
/// A delivered commit, and the changes that it makes.
#[derive(Debug)]
pub struct CommitChanges<'c> {
    /// The stream.
    pub stream: &'c StreamId,
    /// The version.
    pub version: u64,
    /// The changes.
    pub changes: Changes,
}

/// Commits of some streams: their joint changes, and the moves of the position in each stream.
#[derive(Debug, Clone)]
pub struct CommitBatch {
    pub(super) moves: BTreeMap<StreamId, Move>,
    pub(super) changes: Changes,
    /// About the bytes of the changes, as far as [`LogRows::try_add`](super::LogRows::try_add)
    /// counted them.
    pub(super) bytes: usize,
}

/// The move of a position.
#[derive(Debug, Clone)]
pub(super) struct Move {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The version of the last commit that changes a row; `from` if none does.
    pub(super) last_row: u64,
    /// The progress in the commit after `to`.
    pub(super) progress: Option<String>,
    /// Whether the position is written next to the rows, although rows have it.
    pub(super) beside: bool,
}

/// Whether a batch was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Applied {
    /// The batch was written.
    Written {
        /// The consumed write units.
        units: f64,
        /// The positions that were higher already: another writer of the same rows moved them.
        further: BTreeMap<StreamId, u64>,
    },
    /// Nothing was written, because the position in one of the streams is this one.
    PositionIs(u64),
}

impl CommitBatch {
    /// Returns a batch without commits.
    pub fn new(table: LogTable) -> Self {
        Self { moves: BTreeMap::new(), changes: Changes::new(table), bytes: 0 }
    }

    /// Returns a batch of one commit.
    pub(super) fn from_commit(stream: &StreamId, version: u64, changes: Changes) -> Self {
        let from = version.saturating_sub(1);
        let last_row = if changes.is_empty() { from } else { version };
        let step = Move { from, to: version, last_row, progress: None, beside: false };
        Self { moves: BTreeMap::from([(stream.clone(), step)]), changes, bytes: 0 }
    }

    /// Returns a batch of the first changes of a commit, which do not move the position.
    pub(super) fn from_first_changes(
        stream: &StreamId,
        version: u64,
        changes: Changes,
        progress: Option<String>,
    ) -> Self {
        let from = version.saturating_sub(1);
        let step = Move { from, to: from, last_row: from, progress, beside: false };
        Self { moves: BTreeMap::from([(stream.clone(), step)]), changes, bytes: 0 }
    }

    /// Adds a commit. The batch's earlier commits of its stream are those right before it.
    pub(super) fn add(&mut self, stream: &StreamId, version: u64, changes: Changes) {
        let from = version.saturating_sub(1);
        let first = || Move { from, to: from, last_row: from, progress: None, beside: false };
        let step = self.moves.entry(stream.clone()).or_insert_with(first);
        step.to = version;
        if !changes.is_empty() {
            step.last_row = version;
        }
        self.changes.extend(changes);
    }

    /// Writes the position in this stream next to the rows, too.
    pub(super) fn write_position_beside(&mut self, stream: &StreamId) {
        if let Some(step) = self.moves.get_mut(stream) {
            step.beside = true;
        }
    }

    /// Whether it has no commits.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Returns its streams.
    pub fn into_stream_ids(self) -> impl Iterator<Item = StreamId> {
        self.moves.into_keys()
    }

    /// Whether one more commit may exceed the limits of one transaction.
    pub(super) fn is_full_for(&self, changes: &Changes, bytes: usize) -> bool {
        !self.is_empty()
            && (self.moves.len() + 1 + self.changes.len() + changes.len() > MAX_TRANSACTION_ITEMS
                || self.bytes + bytes > MAX_BYTES)
    }
}
