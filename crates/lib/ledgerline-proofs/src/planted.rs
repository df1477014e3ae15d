//! Stores with planted bugs. The check of histories must find each of the bugs; otherwise, passing
//! the check would prove nothing about the real store.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a bug is a difference in one place, and none everywhere else"
)]

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use ledgerline::{
    AppendError, Commit, Consistency, EventLog, IdempotencyRecord, IdempotencyStore, Page, Range,
    RecordedState, SnapshotStore, StoreError, StreamId,
};
use ledgerline_dynamodb::DynamoDbStore;

/// A plausible mistake in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// No bug: the real store, but without states in its commits. States are a cache, so results
    /// must not change without them (rule 5).
    WithoutEmbeddedState,
    /// The append overwrites an existing commit (rule 3).
    NoCondition,
    /// The append checks another version than the version that it writes (rule 2).
    ConditionOnTheWrongKey,
    /// The store does not recognise the command's own commit, whose reply was lost (rule 4).
    RetryTakenForAConflict,
    /// The append reports success when another command took the version (rule 4).
    ConflictTakenForSuccess,
    /// Strongly consistent reads are eventual, so that a command is refused on an old state (rule
    /// 6).
    StaleRefusal,
    /// A load ends after its first page.
    OnePageLoad,
    /// An append that may have succeeded is deleted, and the next commit reuses its version (rule
    /// 3).
    ReusedVersion,
    /// A page that an instance has read once is never read again, even if the stream has grown.
    LostCacheInvalidation,
}

/// All the bugs.
pub(crate) const BUGS: [Bug; 8] = [
    Bug::NoCondition,
    Bug::ConditionOnTheWrongKey,
    Bug::RetryTakenForAConflict,
    Bug::ConflictTakenForSuccess,
    Bug::StaleRefusal,
    Bug::OnePageLoad,
    Bug::ReusedVersion,
    Bug::LostCacheInvalidation,
];

/// The real store with one of the bugs. With `OnePageLoad`, commits have no states: with states, a
/// load needs only its first page.
#[derive(Debug)]
pub(crate) struct Planted {
    store: DynamoDbStore,
    client: Client,
    bug: Bug,
    read: Mutex<BTreeMap<(StreamId, u64), Page>>,
}

impl Planted {
    /// Adds the bug to a store. `client` sends the writes and deletions that the real store never
    /// sends.
    pub(crate) fn new(store: DynamoDbStore, client: Client, bug: Bug) -> Self {
        Self { store, client, bug, read: Mutex::default() }
    }

    /// Overwrites a commit, which a real store must never do (rule 3).
    async fn overwrite(
        &self,
        commit: &Commit,
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        if let Some(request) = request {
            self.store.record_response(request).await?;
        }
        let item = serde_dynamo::to_item(commit).map_err(|error| unavailable(&error))?;
        let put = self
            .client
            .put_item()
            .table_name(ledgerline_testing::table("CommitsTable"))
            .set_item(Some(item));
        put.send().await.map_err(|error| unavailable(&error))?;
        Ok(())
    }

    /// Deletes a commit, which a real store must never do (rule 3).
    async fn delete(&self, commit: &Commit) {
        let key = [
            ("stream".to_owned(), AttributeValue::S(commit.stream.to_string())),
            ("version".to_owned(), AttributeValue::N(commit.version.to_string())),
        ];
        let delete =
            self.client.delete_item().table_name(ledgerline_testing::table("CommitsTable"));
        let _ = delete.set_key(Some(key.into_iter().collect())).send().await;
    }
}

fn unavailable(error: &impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string().into())
}

impl EventLog for Planted {
    async fn read(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> Result<Page, StoreError> {
        let consistency = match self.bug {
            Bug::StaleRefusal => Consistency::Eventual,
            _ => consistency,
        };
        let key = (stream.clone(), range.after);
        if self.bug == Bug::LostCacheInvalidation
            && let Some(page) = self.read.lock().unwrap_or_else(PoisonError::into_inner).get(&key)
        {
            return Ok(page.clone());
        }
        let mut page = self.store.read(stream, range, consistency).await?;
        match self.bug {
            Bug::OnePageLoad => page.complete = true,
            Bug::RetryTakenForAConflict => {
                page.commits.iter_mut().for_each(|commit| commit.command.insert_str(0, "not "));
            }
            Bug::LostCacheInvalidation => {
                self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(key, page.clone());
            }
            _ => {}
        }
        Ok(page)
    }

    async fn read_forwards(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> Result<Page, StoreError> {
        self.store.read_forwards(stream, after, up_to).await
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        match self.bug {
            Bug::RetryTakenForAConflict => Ok(None),
            _ => self.store.get(stream, version).await,
        }
    }

    fn stored_bytes(&self, commit: &Commit) -> usize {
        self.store.stored_bytes(commit)
    }

    async fn append(
        &self,
        commit: &Commit,
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        let commit = &match self.bug {
            Bug::WithoutEmbeddedState | Bug::OnePageLoad => {
                Commit { state: None, ..commit.clone() }
            }
            _ => commit.clone(),
        };
        match self.bug {
            Bug::NoCondition => self.overwrite(commit, request).await,
            Bug::ConditionOnTheWrongKey => {
                match self.store.get(&commit.stream, commit.version + 1).await? {
                    Some(_) => Err(AppendError::VersionTaken),
                    None => self.overwrite(commit, request).await,
                }
            }
            Bug::ConflictTakenForSuccess => match self.store.append(commit, request).await {
                Err(AppendError::VersionTaken) => Ok(()),
                appended => appended,
            },
            Bug::ReusedVersion => {
                let appended = self.store.append(commit, request).await;
                if matches!(appended, Err(AppendError::Store(_))) {
                    self.delete(commit).await;
                }
                appended
            }
            _ => self.store.append(commit, request).await,
        }
    }

    async fn append_all(
        &self,
        commits: &[Commit],
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        self.store.append_all(commits, request).await
    }
}

impl SnapshotStore for Planted {
    async fn load_snapshot(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> Result<Option<(u64, RecordedState)>, StoreError> {
        self.store.load_snapshot(stream, schema).await
    }

    async fn save_snapshot(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> Result<(), StoreError> {
        self.store.save_snapshot(stream, version, state).await
    }
}

impl IdempotencyStore for Planted {
    async fn record_response(&self, request: &IdempotencyRecord) -> Result<(), AppendError> {
        self.store.record_response(request).await
    }

    async fn find_response(&self, key: &str) -> Result<Option<IdempotencyRecord>, StoreError> {
        self.store.find_response(key).await
    }
}
