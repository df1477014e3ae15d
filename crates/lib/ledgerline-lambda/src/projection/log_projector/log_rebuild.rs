//! The rebuild of a log view.

use std::collections::BTreeSet;

use ledgerline::{
    Causes, Changes, ChangesError, Commit, EventLog, StreamId,
    view_store::{Applied, CommitBatch, CommitChanges, LogRowStore, RowStore, ViewError},
};
use ledgerline_dynamodb::{DynamoDbStore, ViewTable};
use tokio::time::Instant;

use super::LogProjector;
use crate::projection::{
    view_fold::MAX_BYTES,
    view_rebuild::{
        Progress, Rebuild, RebuildError, StreamFold, StreamRange, find_hole, rebuild_each,
    },
};

/// The estimated bytes of a row's keys in a response.
const KEY_BYTES: usize = 200;
/// The number of retries of a stream after another writer moved the position (rule 11).
const MAX_RETRIES: usize = 5;

/// A page of the log while it is written.
struct Page<'p, S> {
    rows: &'p S,
    batch: CommitBatch,
    progress: Progress,
    /// Streams that are each written alone, from the log. Their commits are not all in the page, or
    /// could not be written with those of the others.
    alone: BTreeSet<StreamId>,
}

impl<S: LogRowStore> Page<'_, S> {
    /// Writes the batch, and empties it. The table may write nothing, because of a position, or of
    /// a row that can never be written. Then each stream of the batch is written alone. So the
    /// stream at fault is named, and does not keep the others from their rows.
    async fn flush(&mut self, empty: CommitBatch) -> Result<(), ViewError> {
        let full = std::mem::replace(&mut self.batch, empty);
        if full.is_empty() {
            return Ok(());
        }
        match self.rows.apply(&full).await {
            Ok(Applied::Written { units, .. }) => self.progress.writes += units,
            Err(error) if error.is_outage() => return Err(error),
            Ok(Applied::PositionIs(_)) | Err(_) => self.alone.extend(full.into_stream_ids()),
        }
        Ok(())
    }
}

impl<S: LogRowStore> Rebuild for LogProjector<S> {
    fn categories(&self) -> Vec<&'static str> {
        self.view.of.to_vec()
    }

    fn generations(&self) -> &ViewTable {
        &self.generations
    }

    fn rows(&self, generation: u32) -> impl RowStore {
        self.rows.at_generation(generation)
    }

    async fn rebuild_page(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> Result<Progress, ViewError> {
        let rows = &self.rows.at_generation(generation);
        let progress = Progress::default();
        let mut page = Page { rows, batch: self.empty_batch(), progress, alone: BTreeSet::new() };
        for commits in streams {
            let Some(first) = commits.first() else { continue };
            if find_hole(&commits).is_some()
                || !rows.can_begin_at(&first.stream, first.version).await?
            {
                page.alone.insert(first.stream.clone());
                continue;
            }
            for commit in commits {
                // The stream's commits before this one were not written.
                if page.alone.contains(&commit.stream)
                    || page.progress.left.contains(&commit.stream)
                {
                    break;
                }
                // The batch still writes the stream's earlier commits. The next invocation resumes
                // the stream. A store that writes many streams at once needs few calls for the whole page.
                if Instant::now() >= until && !rows.writes_many() {
                    page.progress.left.insert(commit.stream);
                    break;
                }
                let mut changes = match self.changes(&commit) {
                    Ok(changes) => changes,
                    Err(error) => {
                        page.progress
                            .failed
                            .push((commit.stream.clone(), changes_error(&commit, &error)));
                        break;
                    }
                };
                while let Err(too_much) = page.batch.try_add(commit_changes(&commit, changes)) {
                    page.flush(self.empty_batch()).await?;
                    changes = too_much;
                }
            }
        }
        page.flush(self.empty_batch()).await?;
        let Page { progress: mut all, alone, .. } = page;
        let progress = rebuild_each(self, generation, log, alone, until).await;
        all.writes += progress.writes;
        all.failed.extend(progress.failed);
        all.left.extend(progress.left);
        Ok(all)
    }

    async fn rebuild_stream(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        stream: &StreamId,
        until: Instant,
    ) -> Result<f64, RebuildError> {
        let rows = &self.rows.at_generation(generation);
        let mut writes = 0.0;
        let mut retries = 0;
        loop {
            let position = rows.resume_position(stream).await?;
            let commits = read_page(log, stream, position, u64::MAX).await?;
            if commits.is_empty() {
                return Ok(writes);
            }
            let mut batch = self.empty_batch();
            let mut is_moved = false;
            for commit in &commits {
                let mut changes =
                    self.changes(commit).map_err(|error| changes_error(commit, &error))?;
                while let Err(too_much) = batch.try_add(commit_changes(commit, changes)) {
                    let full = std::mem::replace(&mut batch, self.empty_batch());
                    is_moved |= !write(rows, &full, &mut writes).await?;
                    changes = too_much;
                }
                if is_moved {
                    break;
                }
            }
            is_moved = is_moved || !write(rows, &batch, &mut writes).await?;
            if is_moved {
                // A live commit has moved the position. The next attempt resumes there.
                if retries == MAX_RETRIES {
                    return Err(RebuildError::Busy);
                }
                retries += 1;
            }
            // A long stream is rebuilt in several invocations.
            if Instant::now() >= until {
                return Err(RebuildError::TimeIsOver { writes });
            }
        }
    }

    async fn fold_range(
        &self,
        _: u32,
        log: &DynamoDbStore,
        range: &StreamRange,
        until: Instant,
    ) -> Result<StreamFold, RebuildError> {
        let mut folded = Changes::new(self.view.table);
        let (mut version, mut bytes) = (range.after, 0);
        while version < range.up_to && bytes < MAX_BYTES {
            let commits = read_page(log, &range.stream, version, range.up_to).await?;
            if commits.is_empty() {
                return Err(RebuildError::Missing(version + 1));
            }
            for commit in &commits {
                let changes =
                    self.changes(commit).map_err(|error| changes_error(commit, &error))?;
                bytes += changes.bytes() + changes.len() * KEY_BYTES;
                folded.extend(changes);
                version = commit.version;
                if bytes >= MAX_BYTES {
                    break;
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        let rows = folded.iter().map(|(key, change)| (key.clone(), change.clone())).collect();
        Ok(StreamFold { stream: range.stream.clone(), version, rows })
    }
}

/// Reads the commits of a stream after this version, as many as a page has.
async fn read_page(
    log: &DynamoDbStore,
    stream: &StreamId,
    after: u64,
    up_to: u64,
) -> Result<Vec<Commit>, RebuildError> {
    let commits = log.read_forwards(stream, after, up_to).await?.commits;
    let first = commits.first().map_or(after + 1, |first| first.version);
    match (first != after + 1).then_some(after + 1).or_else(|| find_hole(&commits)) {
        Some(missing) => Err(RebuildError::Missing(missing)),
        None => Ok(commits),
    }
}

/// Writes a batch, and adds its units to `writes`. Returns whether it was written, which it is not
/// if the position is elsewhere.
async fn write(
    rows: &impl LogRowStore,
    batch: &CommitBatch,
    writes: &mut f64,
) -> Result<bool, ViewError> {
    Ok(match rows.apply(batch).await? {
        Applied::Written { units, .. } => {
            *writes += units;
            true
        }
        Applied::PositionIs(_) => false,
    })
}

fn commit_changes(commit: &Commit, changes: Changes) -> CommitChanges<'_> {
    CommitChanges { stream: &commit.stream, version: commit.version, changes }
}

/// The error for a commit whose changes cannot be worked out.
fn changes_error(commit: &Commit, error: &ChangesError) -> RebuildError {
    RebuildError::Changes { version: commit.version, reason: Causes(error).to_string() }
}

impl<S: LogRowStore> LogProjector<S> {
    fn empty_batch(&self) -> CommitBatch {
        CommitBatch::new(self.view.table, self.rows.max_items())
    }
}
