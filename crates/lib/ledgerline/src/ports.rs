//! The ports: what a database must do to hold streams, snapshots and idempotency records.

use std::future::Future;

use crate::{Commit, RecordedEvent, RecordedState, StreamId};

/// The commits of a stream that are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Only versions above this one; 0 for all.
    pub after: u64,
    /// Only versions up to this one.
    pub up_to: u64,
    /// At most this many commits in the page; `None` for as many as the database returns in one
    /// call.
    pub limit: Option<u32>,
}

/// The freshness that a read must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The read may miss the newest commits, and costs half the price.
    Eventual,
    /// The read sees every commit that was acknowledged before it began.
    Strong,
}

/// The stored response to a client's request. It is written in the same transaction as the commit
/// of the request, or alone when the request was refused. A record under a key means that its
/// request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// The Idempotency-Key together with the caller.
    pub key: String,
    /// The hash of the request. The same key with another fingerprint is another request.
    pub fingerprint: String,
    /// The response, as the edge wrote it.
    pub answer: String,
    /// Unix time in seconds after which the store may delete the record. The key is taken until the
    /// store does so: a response never changes, whatever time the clock of an instance shows.
    pub expires: i64,
}

/// The part of a commit that a fold reads. The rest, which is often the larger one, need not come
/// from the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedCommit {
    /// The version of the commit.
    pub version: u64,
    /// The events, in the order in which they happened.
    pub events: Vec<RecordedEvent>,
    /// The state after the commit, if it embeds one.
    pub state: Option<RecordedState>,
}

impl From<Commit> for FoldedCommit {
    fn from(commit: Commit) -> Self {
        Self { version: commit.version, events: commit.events, state: commit.state }
    }
}

/// Holds streams of commits.
///
/// Every implementation passes the tests of the module `contract`.
/// [`contract_tests!`](crate::contract_tests) writes them for another implementation.
///
/// ```
/// use ledgerline::{Commit, Consistency, EventLog, MemoryStore, Meta, Range, StreamId};
///
/// # let done = async {
/// let store = MemoryStore::default();
/// let commit = Commit {
///     stream: StreamId::new("tank", "north")?,
///     version: 1,
///     events: Vec::new(),
///     state: None,
///     command: "c".into(),
///     at: "2026-11-22T09:30:00Z".parse()?,
///     meta: Meta::default(),
/// };
/// store.append(&commit, None).await?;
/// assert!(store.append(&commit, None).await.is_err(), "the version is taken");
/// let all = Range { after: 0, up_to: u64::MAX, limit: None };
/// assert_eq!(store.read(&commit.stream, all, Consistency::Strong).await?.commits, [commit]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
pub trait EventLog: Send + Sync {
    /// Reads one page of a stream, newest first. [`Page::complete`](Page) is true if the page ends
    /// the range.
    fn read(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Reads one page of the commits above a version and up to another one, oldest first, with
    /// strong consistency. [`Page::complete`](Page) is true if the page ends the range.
    fn read_forwards(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Reads one commit, with strong consistency.
    fn get(
        &self,
        stream: &StreamId,
        version: u64,
    ) -> impl Future<Output = Result<Option<Commit>, StoreError>> + Send;

    /// Returns the size of a commit in the store, in bytes. The snapshot policy measures with it.
    fn stored_bytes(&self, commit: &Commit) -> usize;

    /// Stores the commit, and the idempotency record if there is one: both or neither.
    ///
    /// Refuses a version that is taken. Callers append only at the version after the last one that
    /// they read. Together, the two keep streams free of holes (rule 2).
    fn append(
        &self,
        commit: &Commit,
        record: Option<&IdempotencyRecord>,
    ) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// Stores commits of several streams, and the idempotency record if there is one: all or none.
    /// It is for changes that must never be visible in part. For other changes it is cheaper, and
    /// leaves more freedom, to append one commit after the other (docs/data.md).
    ///
    /// Refuses all of them if one version is taken, in the store or by another one of them. It does
    /// not detect that an earlier attempt was stored and only its reply was lost: callers use
    /// [`append_all_once`].
    fn append_all(
        &self,
        commits: &[Commit],
        record: Option<&IdempotencyRecord>,
    ) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// Reads the same page as [`read`](Self::read), with only the parts of commits that a fold
    /// needs. The page may be shorter, if it has a state. A store that can leave the rest in the
    /// database has its own implementation.
    fn read_for_fold(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Page<FoldedCommit>, StoreError>> + Send {
        async move { Ok(self.read(stream, range, consistency).await?.for_fold()) }
    }

    /// Reads the same page as [`read_forwards`](Self::read_forwards), with only the parts of
    /// commits that a fold needs.
    fn read_forwards_for_fold(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> impl Future<Output = Result<Page<FoldedCommit>, StoreError>> + Send {
        async move { Ok(self.read_forwards(stream, after, up_to).await?.for_fold()) }
    }

    /// Returns the number of commits that a reader reads together, so that they fit into the memory of
    /// a function: 40 MB, if each is as large as an item or a body object.
    fn read_batch_size(&self) -> usize {
        100
    }

    /// Reads many commits, with strong consistency, in the order of their names. No name may be in
    /// the list twice. A commit that cannot be read is an error at its place, and the others are
    /// read nevertheless. A store that reads many at once has its own implementation.
    fn get_all(
        &self,
        names: &[(&StreamId, u64)],
    ) -> impl Future<Output = Result<Vec<Result<Option<Commit>, StoreError>>, StoreError>> + Send
    {
        async move {
            let mut found = Vec::new();
            for &(stream, version) in names {
                match self.get(stream, version).await {
                    Err(error) if !matches!(error, StoreError::Corrupt { .. }) => {
                        return Err(error);
                    }
                    commit => found.push(commit),
                }
            }
            Ok(found)
        }
    }
}

/// Holds snapshots next to the log, one for each stream and schema of its state. A snapshot is a
/// cache (rule 5) and may be deleted at any time.
pub trait SnapshotStore: Send + Sync {
    /// Reads the snapshot of a stream in this schema, and its version, with strong consistency.
    fn load_snapshot(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> impl Future<Output = Result<Option<(u64, RecordedState)>, StoreError>> + Send;

    /// Saves a snapshot, and overwrites the one of the same schema. A fold that outlasts one
    /// invocation resumes from it in the next one. A store that has no place for it, or for which
    /// the state is too large, saves nothing and returns no error.
    fn save_snapshot(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Holds the responses to answered requests. A response that belongs to a commit is written with
/// it: [`EventLog::append`].
pub trait IdempotencyStore: Send + Sync {
    /// Records the response to a request that appended nothing.
    ///
    /// Refuses a key that already has a record ([`AppendError::RequestTaken`]).
    fn record_response(
        &self,
        record: &IdempotencyRecord,
    ) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// Reads the record with this key, with strong consistency.
    fn find_response(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<IdempotencyRecord>, StoreError>> + Send;
}

/// A store for every need of a command: the log, snapshots and idempotency records.
pub trait EventStore: EventLog + SnapshotStore + IdempotencyStore {}

impl<S: EventLog + SnapshotStore + IdempotencyStore> EventStore for S {}

/// Appends commits of several streams, all or none, and recognises its own. If every version has
/// the very commit that is to take it, an earlier attempt was stored and only its reply was lost
/// (rule 4).
pub async fn append_all_once(
    store: &impl EventLog,
    commits: &[Commit],
    record: Option<&IdempotencyRecord>,
) -> Result<(), AppendError> {
    let error = match store.append_all(commits, record).await {
        Err(
            error @ (AppendError::VersionTaken
            | AppendError::RequestTaken
            | AppendError::Busy
            | AppendError::Store(StoreError::Unavailable(_) | StoreError::Throttled(_))),
        ) => error,
        other => return other,
    };
    if commits.is_empty() {
        // Without a commit, an earlier attempt cannot be recognised in the log.
        return Err(error);
    }
    for commit in commits {
        match store.get(&commit.stream, commit.version).await {
            Ok(Some(stored))
                if stored.command == commit.command && stored.events == commit.events => {}
            Ok(_) | Err(_) => return Err(error),
        }
    }
    Ok(())
}

/// A page of commits, or of the parts of commits that a fold reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<C = Commit> {
    /// The commits.
    pub commits: Vec<C>,
    /// Whether the range ends with this page.
    pub complete: bool,
}

impl Page {
    fn for_fold(self) -> Page<FoldedCommit> {
        Page {
            commits: self.commits.into_iter().map(FoldedCommit::from).collect(),
            complete: self.complete,
        }
    }
}

/// The reason why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database throttles the request. The text has its reason and the throttled resource, as
    /// far as the database names them.
    #[error("the store is throttled: {0}")]
    Throttled(String),
    /// The database could not be reached or failed.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The payloads of a commit are in an object, and this program reads no objects.
    #[error(
        "commit {version} of `{stream}` has its payloads in a body object, and this program has no `BODIES_BUCKET`: declare `bodies` in the `handlers!` of its package, and run `cargo xtask wire`"
    )]
    PayloadElsewhere {
        /// The stream.
        stream: String,
        /// The version.
        version: u64,
    },
    /// The log has an item that this program cannot have written, or lacks a commit.
    #[error("commit {version} of {stream} is corrupt: {reason}")]
    Corrupt {
        /// The stream.
        stream: String,
        /// The version.
        version: u64,
        /// The text describes the damage, without the item's content (rule 14).
        reason: String,
    },
}

/// The reason why an append failed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another commit has this version.
    #[error("the version is taken")]
    VersionTaken,
    /// A request with this key already has an answer.
    #[error("the request was answered already")]
    RequestTaken,
    /// Another writer, or an earlier attempt of this one, is busy with the same items. This attempt
    /// wrote nothing.
    #[error("another writer is busy with this stream")]
    Busy,
    /// A commit does not fit in one item, its payloads have more bytes than a reader accepts, or all
    /// commits together do not fit in one transaction. Nothing was written.
    #[error("the append has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The largest size in bytes.
        limit: usize,
    },
    /// There are more commits than one transaction accepts. Nothing was written.
    #[error("the append has {commits} commits, the limit is {limit}")]
    TooMany {
        /// The number of commits.
        commits: usize,
        /// The largest number of commits.
        limit: usize,
    },
    /// The database failed. For [`StoreError::Unavailable`] and [`StoreError::Throttled`] the
    /// commit may have been stored nevertheless, by an attempt whose reply was lost.
    #[error(transparent)]
    Store(#[from] StoreError),
}
