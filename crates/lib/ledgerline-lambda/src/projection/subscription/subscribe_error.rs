//! The errors of a subscription.

use ledgerline::{
    ChangesError, StoreError, StreamId,
    all::{CursorError, SubscriptionError},
    view_store::ViewError,
};

use super::page_run::MAX_KEPT_BYTES;
use crate::projection::view_rebuild::RebuildError;

/// The reason why a subscription stopped. The next invocation resumes from its checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// `$all` or the log failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The checkpoint belongs to another `$all`.
    #[error("the subscription cannot resume from its checkpoint")]
    Cursor(#[from] CursorError),
    /// The table of the view failed.
    #[error(transparent)]
    Table(#[from] ViewError),
    /// A commit cannot be read.
    #[error("version {version} of {stream} cannot be read: {reason}")]
    Unreadable {
        /// The commit's stream.
        stream: StreamId,
        /// The commit's version.
        version: u64,
        /// The reason, without values (rule 14).
        reason: String,
    },
    /// The view could not work out the changes of a commit.
    #[error("the changes of version {version} of {stream} cannot be computed")]
    Changes {
        /// The commit's stream.
        stream: StreamId,
        /// The commit's version.
        version: u64,
        /// The reason.
        source: ChangesError,
    },
    /// The view would keep more data than the limit allows.
    #[error(
        "version {version} of {stream} makes the view's {what} {bytes} bytes long, over the limit of {MAX_KEPT_BYTES}: store such data in rows"
    )]
    TooLarge {
        /// The commit's stream.
        stream: StreamId,
        /// The commit's version.
        version: u64,
        /// The kind of data: the state, or the memory of the stream.
        what: &'static str,
        /// The size in bytes.
        bytes: usize,
    },
    /// The table refuses the rows of a commit at each attempt.
    #[error("the rows of version {version} of {stream} cannot be written")]
    Refused {
        /// The commit's stream.
        stream: StreamId,
        /// The commit's version.
        version: u64,
        /// The refusal.
        source: ViewError,
    },
    /// A generation cannot be rebuilt.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// The data kept with the checkpoint, or for a stream, is not of this program.
    #[error("the view's state cannot be read, because its shape has changed: rebuild the view")]
    Kept,
}

impl SubscribeError {
    /// Returns the commit at fault, if a commit is at fault.
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
