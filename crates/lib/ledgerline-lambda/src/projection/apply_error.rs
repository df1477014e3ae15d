//! The errors of applying a commit.

use ledgerline::{
    ChangesError, Commit, ExecuteError, LoadError, StoreError, StreamId, view_store::ViewError,
};

/// The reason why a commit was not applied. Its message is delivered again; after the last attempt
/// it goes to the dead-letter queue.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The fanout did not write this message.
    #[error("the message is not valid: {0}")]
    Malformed(String),
    /// The log does not have the commit that the message names.
    #[error("version {version} of {stream} is not in the log")]
    Missing {
        /// The stream.
        stream: StreamId,
        /// The version.
        version: u64,
    },
    /// The gap before the commit is too long for one invocation, in a generation that is not read.
    #[error("the gap before version {version} of {stream} is too long for one invocation")]
    Behind {
        /// The stream.
        stream: StreamId,
        /// The version of the delivered commit.
        version: u64,
    },
    /// The log does not have the version of the position. The log was restored to an earlier time,
    /// and the read table still has the commits after that time. If this commit were skipped, the
    /// commits that have those versions in the restored log would never be applied.
    #[error(
        "{stream} was applied up to version {position}, which the log lacks: it was restored, and version {version} is another one now"
    )]
    WentBack {
        /// The stream.
        stream: StreamId,
        /// The version of the delivered commit.
        version: u64,
        /// The version up to which the stream was applied.
        position: u64,
    },
    /// The queue is wired to a category whose commits the consumer does not apply.
    #[error("the function applies no commits of this category: version {version} of {stream}")]
    NotWanted {
        /// The stream.
        stream: StreamId,
        /// The version.
        version: u64,
    },
    /// An event was written by a newer program or is damaged, or a row of it cannot be written.
    #[error("version {version} of {stream} cannot be read")]
    Changes {
        /// The stream.
        stream: StreamId,
        /// The version.
        version: u64,
        /// The error of the event or the row.
        source: ChangesError,
    },
    /// The log could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rows could not be written.
    #[error(transparent)]
    Table(#[from] ViewError),
    /// The state of a stream could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A command on behalf of the commit failed, other than by a refusal. Mostly it is unknown
    /// whether the command is in the log.
    #[error("the command `{id}` failed, or its outcome is not known")]
    Command {
        /// The id of the command.
        id: String,
        /// The failure of the command.
        source: ExecuteError,
    },
    /// An effect of the commit beyond the tables, such as a mail or a command, could not be
    /// completed.
    #[error("{0}")]
    Effect(String),
}

impl ApplyError {
    /// Whether the log or a table is unavailable or throttled.
    pub(super) fn is_outage(&self) -> bool {
        matches!(self, Self::Store(StoreError::Throttled(_) | StoreError::Unavailable(_)))
            || matches!(self, Self::Table(error) if error.is_outage())
    }

    /// Refuses a commit whose category is not among these: the queue is wired to the wrong streams.
    pub fn check_category(categories: &[&str], commit: &Commit) -> Result<(), Self> {
        if categories.contains(&commit.stream.category()) {
            return Ok(());
        }
        Err(Self::NotWanted { stream: commit.stream.clone(), version: commit.version })
    }

    /// Creates the error for a commit with an event that cannot be read, or a row that cannot be
    /// written.
    pub fn changes(commit: &Commit, source: impl Into<ChangesError>) -> Self {
        Self::Changes {
            stream: commit.stream.clone(),
            version: commit.version,
            source: source.into(),
        }
    }
}
