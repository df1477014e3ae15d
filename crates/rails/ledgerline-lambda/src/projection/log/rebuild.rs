//! Rebuilds a view that is written from the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable};
use ledgerline::{Causes, Changes, ChangesError, Commit, EventLog, LogView, StreamId};
use ledgerline_dynamodb::{DynamoDbStore, Inserted, KeyNames, MAX_CHANGES, ReadTable, TableError};
use tokio::time::Instant;

use super::{LogProjector, inserts};
use crate::rebuild::{Progress, Rebuild, RebuildError, hole_in, is_outage, rebuild_each};

/// The bytes of rows after which a transaction is written. It takes 4 MB, and rows are larger in it than as JSON.
const MAX_BYTES: usize = 1_000_000;
/// The number of times that a stream is tried again after somebody else moved the position (rule 11).
const MAX_TRIES: usize = 5;
/// The number of times that a write is tried again after it met another writer at one of its rows (rule 11).
const MAX_CONFLICTS: usize = 10;

/// What the commits of some streams come to.
struct Batch {
    streams: BTreeMap<StreamId, (u64, u64)>,
    changes: Changes,
    bytes: usize,
}

impl Batch {
    fn new(view: &LogView) -> Self {
        Self { streams: BTreeMap::new(), changes: Changes::new(view.table), bytes: 0 }
    }

    /// Whether one more commit may be too much for one transaction.
    fn is_full_for(&self, changes: &Changes, bytes: usize) -> bool {
        !self.streams.is_empty()
            && (self.streams.len() + self.changes.len() + changes.len() > MAX_CHANGES
                || self.bytes + bytes > MAX_BYTES)
    }

    /// Adds a commit. Those of its stream that are in the batch come right before it.
    fn add(&mut self, commit: &Commit, changes: Changes, bytes: usize) {
        let before = commit.version - 1;
        self.streams.entry(commit.stream.clone()).or_insert((before, before)).1 = commit.version;
        self.changes.extend(changes);
        self.bytes += bytes;
    }
}

impl Rebuild for LogProjector {
    fn of(&self) -> Vec<&'static str> {
        self.view.of.to_vec()
    }

    fn keys(&self) -> KeyNames<'static> {
        KeyNames::from(&self.view.table)
    }

    async fn rebuild_page(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> Result<Progress, TableError> {
        if inserts(&self.view) {
            return self.reinsert(table, log, streams, until).await;
        }
        let mut made = Progress::default();
        let mut batch = Batch::new(&self.view);
        // Streams whose commits are not all there are made from the log.
        let mut alone = BTreeSet::new();
        for commits in streams {
            if hole_in(&commits).is_some() {
                alone.extend(commits.first().map(|commit| commit.stream.clone()));
                continue;
            }
            for commit in commits {
                // What comes before it was not written.
                if alone.contains(&commit.stream) || made.left.contains(&commit.stream) {
                    break;
                }
                // The batch still writes the stream's earlier commits. The next invocation
                // resumes the stream.
                if Instant::now() >= until {
                    made.left.insert(commit.stream);
                    break;
                }
                let changes = match self.changes(&commit) {
                    Ok(changes) => changes,
                    Err(error) => {
                        made.failed.push(unchanged(&commit, &error));
                        break;
                    }
                };
                let bytes = changes.bytes();
                if batch.is_full_for(&changes, bytes) {
                    self.flush(table, &mut batch, &mut made, &mut alone).await?;
                }
                batch.add(&commit, changes, bytes);
            }
        }
        self.flush(table, &mut batch, &mut made, &mut alone).await?;
        self.rebuild_alone(table, log, alone, &mut made, until).await;
        Ok(made)
    }

    async fn rebuild_stream(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        stream: &StreamId,
        until: Instant,
    ) -> Result<f64, RebuildError> {
        let mut made = Progress::default();
        let mut busy = 0;
        loop {
            let position = self.position_now(table, stream).await?;
            let page = log.read_forwards(stream, position, u64::MAX).await?;
            let Some(first) = page.commits.first() else { return Ok(made.writes) };
            if first.version != position + 1 {
                return Err(RebuildError::Missing(position + 1));
            }
            if let Some(missing) = hole_in(&page.commits) {
                return Err(RebuildError::Missing(missing));
            }
            if inserts(&self.view) {
                let inserted = self.inserted(&page.commits).map_err(|(_, error)| error)?;
                made.writes += table.insert_all(&self.view.table, &[inserted]).await?;
            } else {
                let mut batch = Batch::new(&self.view);
                let mut is_busy = false;
                for commit in &page.commits {
                    let changes = self.changes(commit).map_err(|error| unchanged(commit, &error).1)?;
                    let bytes = changes.bytes();
                    if batch.is_full_for(&changes, bytes) {
                        let full = std::mem::replace(&mut batch, Batch::new(&self.view));
                        is_busy |= !self.write(table, &full, &mut made).await?;
                    }
                    batch.add(commit, changes, bytes);
                }
                is_busy |= !self.write(table, &batch, &mut made).await?;
                // A live commit moved the position meanwhile: it goes on from there.
                busy += usize::from(is_busy);
                if busy > MAX_TRIES {
                    return Err(RebuildError::Busy);
                }
            }
            // A long stream is made in several invocations.
            if Instant::now() >= until {
                return Err(RebuildError::TimeIsOver { writes: made.writes });
            }
        }
    }
}

/// The stream of a commit, and why the commit makes no changes.
fn unchanged(commit: &Commit, error: &ChangesError) -> (StreamId, RebuildError) {
    let reason = Causes(error).to_string();
    (commit.stream.clone(), RebuildError::Changes { version: commit.version, reason })
}

impl LogProjector {
    /// The position in a stream. A view that inserts rows has it in the newest row, or beside the rows; all others have it beside the rows only, and their roles allow no query.
    async fn position_now(&self, table: &ReadTable, stream: &StreamId) -> Result<u64, TableError> {
        if inserts(&self.view) {
            return table.position_now(&self.view.table, stream).await;
        }
        Ok(table.progress(&self.view.table, stream.as_str()).await?.0)
    }

    /// Writes a batch. Returns whether it was written: not if a position is not where it is said to be.
    async fn write(&self, table: &ReadTable, batch: &Batch, made: &mut Progress) -> Result<bool, TableError> {
        if batch.streams.is_empty() {
            return Ok(true);
        }
        // Other workers, and live commits, may change the same row, such as a sum.
        let delays = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(10))
            .with_max_delay(Duration::from_millis(500))
            .with_max_times(MAX_CONFLICTS)
            .with_jitter();
        let write = || table.apply_all(&self.view.table, &batch.streams, &batch.changes);
        let is_busy = |error: &TableError| matches!(error, TableError::Throttled);
        let units = write.retry(delays).sleep(tokio::time::sleep).when(is_busy).await?;
        made.writes += units.unwrap_or(0.0);
        Ok(units.is_some())
    }

    /// Writes a batch, and empties it. If nothing was written, because of a position, or of a row that can never be written, each of its streams is to be made alone, so that the one at
    /// fault is named and does not keep the others from their rows.
    async fn flush(
        &self,
        table: &ReadTable,
        batch: &mut Batch,
        made: &mut Progress,
        alone: &mut BTreeSet<StreamId>,
    ) -> Result<(), TableError> {
        let full = std::mem::replace(batch, Batch::new(&self.view));
        match self.write(table, &full, made).await {
            Ok(true) => {}
            Err(error) if is_outage(&error) => return Err(error),
            Ok(false) | Err(_) => alone.extend(full.streams.into_keys()),
        }
        Ok(())
    }

    async fn rebuild_alone(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        streams: BTreeSet<StreamId>,
        made: &mut Progress,
        until: Instant,
    ) {
        let alone = rebuild_each(self, table, log, streams, until).await;
        made.writes += alone.writes;
        made.failed.extend(alone.failed);
        made.left.extend(alone.left);
    }

    /// The rows of these commits, which follow each other in their stream.
    fn inserted(&self, commits: &[Commit]) -> Result<Inserted, (StreamId, RebuildError)> {
        let rows = |commit: &Commit| {
            let changes = self.changes(commit).map_err(|error| unchanged(commit, &error))?;
            Ok((commit.version, changes))
        };
        let (stream, from) = commits.first().map_or_else(
            || unreachable!("there is a commit in every list"),
            |first| (first.stream.clone(), first.version - 1),
        );
        Ok(Inserted { stream, from, commits: commits.iter().map(rows).collect::<Result<_, _>>()? })
    }

    async fn reinsert(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> Result<Progress, TableError> {
        let mut made = Progress::default();
        let mut alone = BTreeSet::new();
        let mut all = Vec::new();
        for commits in streams {
            let Some(first) = commits.first() else { continue };
            // A page begins within a stream if the one before it ended there: its rows are there, or the stream is made from the log.
            let follows = first.version == 1
                || table.position_now(&self.view.table, &first.stream).await? == first.version - 1;
            if !follows || hole_in(&commits).is_some() {
                alone.insert(first.stream.clone());
                continue;
            }
            match self.inserted(&commits) {
                Ok(inserted) => all.push(inserted),
                Err(failed) => made.failed.push(failed),
            }
        }
        match table.insert_all(&self.view.table, &all).await {
            Ok(units) => made.writes += units,
            Err(error) if is_outage(&error) => return Err(error),
            Err(_) => alone.extend(all.into_iter().map(|inserted| inserted.stream)),
        }
        self.rebuild_alone(table, log, alone, &mut made, until).await;
        Ok(made)
    }
}
