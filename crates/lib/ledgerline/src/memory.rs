//! A store in memory: the reference implementation of the port, for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    AppendError, Commit, Consistency, EventLog, Host, IdempotencyRecord, IdempotencyStore, Page,
    Range, RecordedState, SnapshotStore, StoreError, StreamId,
};

/// Streams in memory. Pages end after 100 commits, so that paging is exercised.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    commits: BTreeMap<(StreamId, u64), Commit>,
    requests: BTreeMap<String, IdempotencyRecord>,
    kept: BTreeMap<(StreamId, u32), (u64, RecordedState)>,
}

impl Tables {
    /// Refuses a request whose idempotency key already has a record.
    fn check(&self, request: &IdempotencyRecord) -> Result<(), AppendError> {
        if self.requests.contains_key(&request.key) {
            Err(AppendError::RequestTaken)
        } else {
            Ok(())
        }
    }
}

const PAGE: usize = 100;

impl MemoryStore {
    /// The host of a store in memory. It does not wait: no other writer finishes anything
    /// meanwhile.
    pub const HOST: Host = Host { pause: |_| Box::pin(std::future::ready(())) };

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventLog for MemoryStore {
    async fn read(
        &self,
        stream: &StreamId,
        range: Range,
        _: Consistency,
    ) -> Result<Page, StoreError> {
        if range.after >= range.up_to {
            return Ok(Page { commits: Vec::new(), complete: true });
        }
        let limit = range.limit.map_or(PAGE, |limit| PAGE.min(limit as usize));
        let tables = self.tables();
        let mut newest_first = tables
            .commits
            .range((stream.clone(), range.after + 1)..=(stream.clone(), range.up_to))
            .rev()
            .map(|(_, commit)| commit.clone());
        let commits: Vec<_> = newest_first.by_ref().take(limit).collect();
        let complete = newest_first.next().is_none();
        Ok(Page { commits, complete })
    }

    async fn read_forwards(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> Result<Page, StoreError> {
        if after >= up_to {
            return Ok(Page { commits: Vec::new(), complete: true });
        }
        let tables = self.tables();
        let range = (stream.clone(), after + 1)..=(stream.clone(), up_to);
        let mut oldest_first = tables.commits.range(range).map(|(_, commit)| commit.clone());
        let commits: Vec<_> = oldest_first.by_ref().take(PAGE).collect();
        let complete = oldest_first.next().is_none();
        Ok(Page { commits, complete })
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        Ok(self.tables().commits.get(&(stream.clone(), version)).cloned())
    }

    fn stored_bytes(&self, commit: &Commit) -> usize {
        commit.bytes()
    }

    async fn append(
        &self,
        commit: &Commit,
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        self.append_all(std::slice::from_ref(commit), request).await
    }

    async fn append_all(
        &self,
        commits: &[Commit],
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        let mut tables = self.tables();
        if let Some(request) = request {
            tables.check(request)?;
        }
        let key = |commit: &Commit| (commit.stream.clone(), commit.version);
        let keys: BTreeSet<_> = commits.iter().map(key).collect();
        if keys.len() < commits.len() || keys.iter().any(|key| tables.commits.contains_key(key)) {
            return Err(AppendError::VersionTaken);
        }
        if let Some(request) = request {
            tables.requests.insert(request.key.clone(), request.clone());
        }
        tables.commits.extend(commits.iter().map(|commit| (key(commit), commit.clone())));
        Ok(())
    }
}

impl SnapshotStore for MemoryStore {
    async fn load_snapshot(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> Result<Option<(u64, RecordedState)>, StoreError> {
        Ok(self.tables().kept.get(&(stream.clone(), schema)).cloned())
    }

    async fn save_snapshot(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> Result<(), StoreError> {
        self.tables().kept.insert((stream.clone(), state.schema), (version, state.clone()));
        Ok(())
    }
}

impl IdempotencyStore for MemoryStore {
    async fn record_response(&self, request: &IdempotencyRecord) -> Result<(), AppendError> {
        let mut tables = self.tables();
        // The first record of a key stays: `check` refuses another one.
        tables.check(request)?;
        tables.requests.insert(request.key.clone(), request.clone());
        Ok(())
    }

    async fn find_response(&self, key: &str) -> Result<Option<IdempotencyRecord>, StoreError> {
        Ok(self.tables().requests.get(key).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryStore;

    crate::contract_tests!(async { MemoryStore::default() });
}
