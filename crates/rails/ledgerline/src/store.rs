//! The port: what a database must do to hold streams.

use std::{future::Future, time::Duration};

use crate::{Commit, RecordedState, StreamId};

/// Which commits of a stream to read. Always newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Only versions above this one; 0 for all.
    pub after: u64,
    /// Only versions up to this one.
    pub up_to: u64,
    /// At most this many commits in the page; `None` for what the database gives at once.
    pub limit: Option<u32>,
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// May miss the newest commits, at half the price.
    Eventual,
    /// Sees every commit that was acknowledged before it began.
    Strong,
}

/// The memory of a client's request: written in the same transaction as the commit that it caused, or alone when it
/// was refused. Its existence means that the request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who asked, and the Idempotency-Key.
    pub key: String,
    /// Hash of what was asked: the same key with another fingerprint is another request.
    pub fingerprint: String,
    /// The answer that was given, as the edge wrote it.
    pub answer: String,
    /// Unix time in seconds after which the store may forget it. The key is taken until it does: what is remembered is never
    /// changed, whatever the clock of an instance says.
    pub expires: i64,
}

/// Holds streams of commits, and the requests that were answered.
///
/// Every implementation passes the tests of the module `contract`.
///
/// [`contract_tests!`](crate::contract_tests) tests another implementation.
///
/// ```
/// use ledgerline::{Commit, Consistency, EventStore, MemoryStore, Meta, Range, StreamId};
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
pub trait EventStore: Send + Sync {
    /// One page of a stream, newest first. The page ends the range when [`Page::complete`](Page) says so.
    fn read(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// One page of the commits above a version and up to another one, oldest first, read strongly. The page ends the range when
    /// [`Page::complete`](Page) says so.
    fn forward(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The state of this schema that was kept of a stream, and its version, read strongly.
    fn kept(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> impl Future<Output = Result<Option<(u64, RecordedState)>, StoreError>> + Send;

    /// Keeps a state beside the log, in the place of one of the same schema: how far a fold got that takes longer than one invocation.
    /// It is a cache (rule 5), and may be forgotten at any time. A store without a place for it keeps nothing, nor one for which the state is too
    /// large.
    fn keep(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// One commit, read strongly.
    fn get(
        &self,
        stream: &StreamId,
        version: u64,
    ) -> impl Future<Output = Result<Option<Commit>, StoreError>> + Send;

    /// Stores the commit, and with it the request if there is one: both or none.
    ///
    /// Refuses a version that is taken. That streams have no holes (rule 2) rests on this and on every caller asking
    /// for one more than the version of a commit that it has seen.
    fn append(
        &self,
        commit: &Commit,
        request: Option<&Request>,
    ) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// Stores commits of several streams, and with them the request if there is one: all or none. For what must never
    /// be seen half done; everything else is cheaper and freer as one commit after the other (docs/data.md).
    ///
    /// Refuses all of them if one version is taken, also by another one of them. A reply that was lost is not looked
    /// into: callers use [`append_all_once`].
    fn append_all(
        &self,
        commits: &[Commit],
        request: Option<&Request>,
    ) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// Remembers the answer to a request that appended nothing.
    fn remember(&self, request: &Request) -> impl Future<Output = Result<(), AppendError>> + Send;

    /// The remembered request with this key, read strongly.
    fn recall(&self, key: &str) -> impl Future<Output = Result<Option<Request>, StoreError>> + Send;

    /// Waits before a lost race is run again, by the clock of the runtime that the store's calls run in. The core has none
    /// (rule 12).
    fn pause(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// The size of the commit as this store keeps it, in bytes: what the snapshot policy measures.
    fn stored_bytes(&self, commit: &Commit) -> usize;
}

/// Appends commits of several streams, all or none, and recognises its own: a version that is taken by the very commit
/// that was to take it means that only the reply of an earlier try was lost (rule 4).
///
/// # Errors
/// See [`EventStore::append_all`].
pub async fn append_all_once(
    store: &impl EventStore,
    commits: &[Commit],
    request: Option<&Request>,
) -> Result<(), AppendError> {
    let error = match store.append_all(commits, request).await {
        Err(
            error @ (AppendError::VersionTaken
            | AppendError::RequestTaken
            | AppendError::Busy
            | AppendError::Store(StoreError::Unavailable(_) | StoreError::Throttled)),
        ) => error,
        other => return other,
    };
    if commits.is_empty() {
        // There is nothing to recognise it by.
        return Err(error);
    }
    for commit in commits {
        match store.get(&commit.stream, commit.version).await {
            Ok(Some(stored)) if stored.command == commit.command && stored.events == commit.events => {}
            Ok(_) | Err(_) => return Err(error),
        }
    }
    Ok(())
}

/// A page of commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The commits.
    pub commits: Vec<Commit>,
    /// Nothing of the range is left behind this page.
    pub complete: bool,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database asks to slow down.
    #[error("the store is throttled")]
    Throttled,
    /// The database could not be reached or failed.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Something in the log cannot be what this program wrote.
    #[error("commit {version} of {stream} is corrupt: {reason}")]
    Corrupt {
        /// The stream.
        stream: String,
        /// The version.
        version: u64,
        /// What is wrong with it, without its content (rule 14).
        reason: String,
    },
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another commit has this version.
    #[error("the version is taken")]
    VersionTaken,
    /// A request with this key was answered already.
    #[error("the request was answered already")]
    RequestTaken,
    /// Another writer is busy with the same items. Nothing was written.
    #[error("another writer is busy with this stream")]
    Busy,
    /// A commit does not fit in one item, or all of them together not in one transaction. Nothing was written.
    #[error("there are {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The largest size in bytes.
        limit: usize,
    },
    /// More commits than one transaction takes. Nothing was written.
    #[error("there are {commits} commits, the limit is {limit}")]
    TooMany {
        /// How many there are.
        commits: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The database failed. For [`StoreError::Unavailable`] the commit may have been stored all the same.
    #[error(transparent)]
    Store(#[from] StoreError),
}
