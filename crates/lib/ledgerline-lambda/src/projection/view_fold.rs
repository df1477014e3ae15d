//! The fold of streams into the changes that a rebuild would write. The operator's tool compares
//! them with the stored rows. Nothing is written.

use ledgerline::{
    StreamId,
    changes::{Change, Key},
};
use serde::{Deserialize, Serialize};

/// The bytes of changes after which no commit and no stream is added to a response. Lambda accepts
/// 6 MB.
pub(super) const MAX_BYTES: usize = 1_000_000;

/// Versions of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamRange {
    /// The stream.
    pub stream: StreamId,
    /// The version before the first one.
    pub after: u64,
    /// The last version.
    pub up_to: u64,
}

/// The changes that a range of a stream makes in a view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamFold {
    /// The stream.
    pub stream: StreamId,
    /// The last folded version.
    pub version: u64,
    /// One change for each row that the range touches. The sort key is empty in a table without
    /// one.
    pub rows: Vec<(Key, Change)>,
}

impl StreamFold {
    /// Returns the bytes of the changes in a response.
    pub(super) fn bytes(&self) -> usize {
        serde_json::to_vec(&self.rows).map_or(0, |rows| rows.len())
    }
}
