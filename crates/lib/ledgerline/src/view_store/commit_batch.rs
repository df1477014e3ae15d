//! A batch of commits, with the positions that they move.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{Changes, LogTable, StreamId};

/// The bytes of rows after which a batch with a limit is written. A transaction of DynamoDB has at
/// most 4 MB, and rows are larger in it than as JSON.
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
    /// The move of the position in each stream.
    pub moves: BTreeMap<StreamId, PositionMove>,
    /// The joint changes: one for each row.
    pub changes: Changes,
    max_items: Option<usize>,
    /// About the bytes of the changes, if there is a limit.
    bytes: usize,
}

/// The move of a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionMove {
    /// The position that the stream must have.
    pub from: u64,
    /// The new position.
    pub to: u64,
    /// The version of the last commit that changes a row; `from` if none does.
    pub last_row: u64,
    /// The progress in the commit after `to`, if that commit takes more than one write.
    pub progress: Option<String>,
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

impl PositionMove {
    /// Returns the move of a commit that changes no rows and has not been applied yet.
    fn from_version(version: u64) -> Self {
        let from = version.saturating_sub(1);
        Self { from, to: from, last_row: from, progress: None }
    }
}

impl CommitBatch {
    /// Returns a batch without commits, for a store that writes this many rows and positions in one
    /// call ([`LogRowStore::max_items`](super::LogRowStore::max_items)).
    pub fn new(table: LogTable, max_items: Option<usize>) -> Self {
        Self { moves: BTreeMap::new(), changes: Changes::new(table), max_items, bytes: 0 }
    }

    /// Returns a batch of one commit.
    pub fn from_commit(commit: CommitChanges<'_>) -> Self {
        let CommitChanges { stream, version, changes } = commit;
        let unmoved = PositionMove::from_version(version);
        let last_row = if changes.is_empty() { unmoved.from } else { version };
        let step = PositionMove { to: version, last_row, ..unmoved };
        let moves = BTreeMap::from([(stream.clone(), step)]);
        Self { moves, changes, max_items: None, bytes: 0 }
    }

    /// Returns a batch of the first changes of a commit, which do not move the position.
    pub fn from_first_changes(commit: CommitChanges<'_>, progress: Option<String>) -> Self {
        let CommitChanges { stream, version, changes } = commit;
        let step = PositionMove { progress, ..PositionMove::from_version(version) };
        let moves = BTreeMap::from([(stream.clone(), step)]);
        Self { moves, changes, max_items: None, bytes: 0 }
    }

    /// Adds a commit. The batch's earlier commits of its stream are those right before it.
    ///
    /// # Errors
    /// When the batch has to be written first, because both together exceed the limits of one call.
    /// The changes are returned.
    pub fn try_add(&mut self, commit: CommitChanges<'_>) -> Result<(), Changes> {
        let CommitChanges { stream, version, changes } = commit;
        if let Some(max_items) = self.max_items {
            let bytes = changes.bytes();
            let items = self.moves.len() + 1 + self.changes.len() + changes.len();
            if !self.is_empty() && (items > max_items || self.bytes + bytes > MAX_BYTES) {
                return Err(changes);
            }
            self.bytes += bytes;
        }
        let step = match self.moves.entry(stream.clone()) {
            Entry::Occupied(step) => step.into_mut(),
            Entry::Vacant(step) => step.insert(PositionMove::from_version(version)),
        };
        step.to = version;
        if !changes.is_empty() {
            step.last_row = version;
        }
        self.changes.extend(changes);
        Ok(())
    }

    /// Whether it has no commits.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Returns its streams.
    pub fn into_stream_ids(self) -> impl Iterator<Item = StreamId> {
        self.moves.into_keys()
    }
}
