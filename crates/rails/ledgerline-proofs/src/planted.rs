//! Stores with planted bugs: the check of histories must find each of them, or its verdict on the real store is worth nothing.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a bug is a difference in one place, and none everywhere else"
)]

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use ledgerline::{
    AppendError, Commit, Consistency, EventStore, Page, Range, RecordedState, Request, StoreError, StreamId,
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_local::testing;

/// A mistake that somebody could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// None: the store is the real one, but for the states, of which it keeps none (rule 5).
    None,
    /// The append writes whatever is there (rule 3).
    NoCondition,
    /// The append looks whether another version is free than the one that it takes (rule 2).
    ConditionOnTheWrongKey,
    /// Its own commit, whose reply was lost, is not recognised (rule 4).
    RetryTakenForAConflict,
    /// A version that is taken counts as written (rule 4).
    ConflictTakenForSuccess,
    /// What should be read strongly is not (rule 6).
    StaleRefusal,
    /// What is behind the first page of a load is not there.
    OnePageLoad,
    /// What may have been written is taken back, and its version given to the next one (rule 3).
    ReusedVersion,
    /// What an instance has read it never reads again.
    LostCacheInvalidation,
}

/// The bugs.
pub const BUGS: [Bug; 8] = [
    Bug::NoCondition,
    Bug::ConditionOnTheWrongKey,
    Bug::RetryTakenForAConflict,
    Bug::ConflictTakenForSuccess,
    Bug::StaleRefusal,
    Bug::OnePageLoad,
    Bug::ReusedVersion,
    Bug::LostCacheInvalidation,
];

/// The real store with one of them. Commits go without their states where that makes a bug matter.
#[derive(Debug)]
pub struct Planted {
    store: DynamoDbStore,
    client: Client,
    bug: Bug,
    read: Mutex<BTreeMap<(StreamId, u64), Page>>,
}

impl Planted {
    /// The store of `client`, with this bug.
    #[must_use]
    pub fn new(store: DynamoDbStore, client: Client, bug: Bug) -> Self {
        Self { store, client, bug, read: Mutex::default() }
    }

    /// Writes over what is there. Never do this.
    async fn overwrite(&self, commit: &Commit, request: Option<&Request>) -> Result<(), AppendError> {
        if let Some(request) = request {
            self.store.remember(request).await?;
        }
        let item = serde_dynamo::to_item(commit).map_err(|error| unavailable(&error))?;
        let put = self.client.put_item().table_name(testing::table("CommitsTable")).set_item(Some(item));
        put.send().await.map_err(|error| unavailable(&error))?;
        Ok(())
    }

    /// Deletes a commit. Never do this.
    async fn take_back(&self, commit: &Commit) {
        let key = [
            ("stream".to_owned(), AttributeValue::S(commit.stream.to_string())),
            ("version".to_owned(), AttributeValue::N(commit.version.to_string())),
        ];
        let delete = self.client.delete_item().table_name(testing::table("CommitsTable"));
        let _ = delete.set_key(Some(key.into_iter().collect())).send().await;
    }
}

fn unavailable(error: &impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string().into())
}

impl EventStore for Planted {
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

    async fn forward(&self, stream: &StreamId, after: u64, up_to: u64) -> Result<Page, StoreError> {
        self.store.forward(stream, after, up_to).await
    }

    async fn kept(&self, stream: &StreamId, schema: u32) -> Result<Option<(u64, RecordedState)>, StoreError> {
        self.store.kept(stream, schema).await
    }

    async fn keep(&self, stream: &StreamId, version: u64, state: &RecordedState) -> Result<(), StoreError> {
        self.store.keep(stream, version, state).await
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        match self.bug {
            Bug::RetryTakenForAConflict => Ok(None),
            _ => self.store.get(stream, version).await,
        }
    }

    async fn append(&self, commit: &Commit, request: Option<&Request>) -> Result<(), AppendError> {
        let commit = &match self.bug {
            Bug::None | Bug::OnePageLoad => Commit { state: None, ..commit.clone() },
            _ => commit.clone(),
        };
        match self.bug {
            Bug::NoCondition => self.overwrite(commit, request).await,
            Bug::ConditionOnTheWrongKey => match self.store.get(&commit.stream, commit.version + 1).await? {
                Some(_) => Err(AppendError::VersionTaken),
                None => self.overwrite(commit, request).await,
            },
            Bug::ConflictTakenForSuccess => match self.store.append(commit, request).await {
                Err(AppendError::VersionTaken) => Ok(()),
                appended => appended,
            },
            Bug::ReusedVersion => {
                let appended = self.store.append(commit, request).await;
                if matches!(appended, Err(AppendError::Store(_))) {
                    self.take_back(commit).await;
                }
                appended
            }
            _ => self.store.append(commit, request).await,
        }
    }

    async fn append_all(&self, commits: &[Commit], request: Option<&Request>) -> Result<(), AppendError> {
        self.store.append_all(commits, request).await
    }

    async fn remember(&self, request: &Request) -> Result<(), AppendError> {
        self.store.remember(request).await
    }

    async fn recall(&self, key: &str) -> Result<Option<Request>, StoreError> {
        self.store.recall(key).await
    }

    async fn pause(&self, duration: Duration) {
        self.store.pause(duration).await;
    }

    fn stored_bytes(&self, commit: &Commit) -> usize {
        self.store.stored_bytes(commit)
    }
}
