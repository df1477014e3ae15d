//! A store in memory: the reference implementation of the port, for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    AppendError, Commit, Consistency, EventStore, Meta, Page, Range, RecordedState, Request, StoreError,
    StreamId,
};

/// Streams in memory. Pages end after 100 commits, so that paging is exercised.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    commits: BTreeMap<(StreamId, u64), Commit>,
    requests: BTreeMap<String, Request>,
    kept: BTreeMap<(StreamId, u32), (u64, RecordedState)>,
}

impl Tables {
    fn check(&self, request: &Request) -> Result<(), AppendError> {
        if self.requests.contains_key(&request.key) { Err(AppendError::RequestTaken) } else { Ok(()) }
    }
}

const PAGE: usize = 100;

impl MemoryStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventStore for MemoryStore {
    async fn read(&self, stream: &StreamId, range: Range, _: Consistency) -> Result<Page, StoreError> {
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

    async fn forward(&self, stream: &StreamId, after: u64, up_to: u64) -> Result<Page, StoreError> {
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

    async fn kept(&self, stream: &StreamId, schema: u32) -> Result<Option<(u64, RecordedState)>, StoreError> {
        Ok(self.tables().kept.get(&(stream.clone(), schema)).cloned())
    }

    async fn keep(&self, stream: &StreamId, version: u64, state: &RecordedState) -> Result<(), StoreError> {
        self.tables().kept.insert((stream.clone(), state.schema), (version, state.clone()));
        Ok(())
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        Ok(self.tables().commits.get(&(stream.clone(), version)).cloned())
    }

    async fn append(&self, commit: &Commit, request: Option<&Request>) -> Result<(), AppendError> {
        self.append_all(std::slice::from_ref(commit), request).await
    }

    async fn append_all(&self, commits: &[Commit], request: Option<&Request>) -> Result<(), AppendError> {
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

    async fn remember(&self, request: &Request) -> Result<(), AppendError> {
        let mut tables = self.tables();
        tables.check(request)?;
        tables.requests.insert(request.key.clone(), request.clone());
        Ok(())
    }

    async fn recall(&self, key: &str) -> Result<Option<Request>, StoreError> {
        Ok(self.tables().requests.get(key).cloned())
    }

    /// A store in memory does not wait: no other writer finishes anything meanwhile.
    async fn pause(&self, _: Duration) {}

    fn stored_bytes(&self, commit: &Commit) -> usize {
        let Commit { stream, version: _, events, state, command, at: _, meta } = commit;
        let events = events.iter().map(|event| event.event_type.len() + event.data.len());
        let state = state.as_ref().map_or(0, |state| state.data.len());
        let Meta { actor, correlation_id, causation_id, source_address, trace_id } = meta;
        let meta = [actor, correlation_id, causation_id, source_address, trace_id];
        let meta = meta.iter().map(|value| value.as_ref().map_or(0, String::len));
        let numbers = size_of::<u64>() + size_of::<Timestamp>();
        stream.as_str().len() + numbers + command.len() + state + events.sum::<usize>() + meta.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryStore;

    crate::contract_tests!(async { MemoryStore::default() });
}
