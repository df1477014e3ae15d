//! Why a subscription stopped.

use ledgerline::{
    ChangesError, StoreError, StreamId,
    all::{CursorError, SubscriptionError},
};
use ledgerline_dynamodb::TableError;

use super::MAX_KEPT;
use crate::rebuild::RebuildError;

/// Why a subscription did not get on. It continues from its checkpoint when it is woken again.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// `$all` or the log failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `$all` is not the one that the checkpoint is of.
    #[error("the checkpoint cannot be gone on from")]
    Cursor(#[from] CursorError),
    /// The table of the view failed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A commit cannot be read.
    #[error("version {version} of {stream} cannot be read: {reason}")]
    Unreadable {
        /// Its stream.
        stream: StreamId,
        /// Its version.
        version: u64,
        /// The reason, without values (rule 14).
        reason: String,
    },
    /// The view could not work out the changes of a commit.
    #[error("the changes of version {version} of {stream} cannot be worked out")]
    Changes {
        /// Its stream.
        stream: StreamId,
        /// Its version.
        version: u64,
        /// The reason.
        source: ChangesError,
    },
    /// The view would keep more than it may.
    #[error(
        "version {version} of {stream} makes the view's {what} {bytes} bytes, and {MAX_KEPT} are the most: keep such data in rows"
    )]
    TooLarge {
        /// Its stream.
        stream: StreamId,
        /// Its version.
        version: u64,
        /// State, or memory of the stream.
        what: &'static str,
        /// The bytes.
        bytes: usize,
    },
    /// The table refuses the rows of a commit, and will each time.
    #[error("the rows of version {version} of {stream} cannot be written")]
    Refused {
        /// Its stream.
        stream: StreamId,
        /// Its version.
        version: u64,
        /// The refusal.
        source: TableError,
    },
    /// A generation cannot be made.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// What was kept with the checkpoint, or of a stream, is not of this program.
    #[error("what was kept cannot be read: its shape has changed, and the view must be made again")]
    Kept,
}

impl SubscribeError {
    /// The commit at fault, if it is one.
    pub(super) fn commit(&self) -> Option<(StreamId, u64)> {
        match self {
            Self::Unreadable { stream, version, .. }
            | Self::Changes { stream, version, .. }
            | Self::TooLarge { stream, version, .. }
            | Self::Refused { stream, version, .. } => Some((stream.clone(), *version)),
            Self::Store(_) | Self::Cursor(_) | Self::Table(_) | Self::Rebuild(_) | Self::Kept => {
                None
            }
        }
    }
}

impl From<SubscriptionError> for SubscribeError {
    fn from(error: SubscriptionError) -> Self {
        match error {
            SubscriptionError::Cursor(error) => error.into(),
            SubscriptionError::Store(error) => error.into(),
        }
    }
}
