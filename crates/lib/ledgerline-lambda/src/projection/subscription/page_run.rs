//! The application of a page of `$all` to a view, in as few writes as fit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use jiff::Timestamp;
use ledgerline::{
    Changes, Commit, EventLog, LogTable, StoreError, StreamId,
    all::{CLOCK_SKEW, Delivered, Entry, Page},
};
use ledgerline_dynamodb::{Checkpoint, MAX_CHANGES, NextCheckpoint, OrderedRows, StreamPosition};
use tokio::time::Instant;

use super::{Kept, SubscribeError, Subscriber};
use crate::metrics;

/// The limit of a view's state, and of its memory of a stream, in bytes of JSON. Each page writes
/// both with its rows, at one write unit per KB. The limit of an item is 400 KB.
pub(super) const MAX_KEPT_BYTES: usize = 64 * 1024;
/// The size from which a metric measures both, so that an operator can act before a commit fails.
const LARGE_KEPT_BYTES: usize = MAX_KEPT_BYTES / 2;
/// The bytes of rows after which a part of a page is written. A transaction may have 4 MB, and rows
/// are larger in it than as JSON.
const MAX_WRITE_BYTES: usize = 1_000_000;

/// The work between two moves of the checkpoint.
#[derive(Debug, Clone)]
struct Work<State> {
    state: State,
    changes: Changes,
    positions: BTreeMap<StreamId, StreamPosition>,
    /// The applied commits, in their order, with their times.
    applied: Vec<(StreamId, u64, Timestamp)>,
}

/// A page while it is applied.
struct PageRun<'a, State> {
    checkpoint: &'a mut Checkpoint,
    /// The cursor before which every entry is applied once the work is written.
    cursor: String,
    work: Work<State>,
    /// The positions up to which the streams were applied.
    known: BTreeMap<StreamId, StreamPosition>,
    mode: &'a RetryMode,
    /// The time at which the invocation ends.
    until: Instant,
}

/// How a retry applies a page after one of its commits failed.
#[derive(Debug, Default)]
pub(super) struct RetryMode {
    /// Whether each commit has its own write, so that commits before the failed one are applied.
    pub(super) one_by_one: bool,
    /// The failed commits that an operator has skipped.
    pub(super) skips: BTreeSet<(StreamId, u64)>,
}

impl<State> Work<State> {
    /// Creates work that changes nothing yet, from a state.
    fn new(table: LogTable, state: State) -> Self {
        let (positions, applied) = (BTreeMap::new(), Vec::new());
        Self { state, changes: Changes::new(table), positions, applied }
    }

    /// Removes the changes after they are written, and keeps the state.
    fn clear(&mut self, table: LogTable) {
        self.changes = Changes::new(table);
        self.positions.clear();
        self.applied.clear();
    }

    /// Moves the position of a stream over a commit that an operator has skipped.
    fn skip(
        &mut self,
        stream: &StreamId,
        version: u64,
        known: &BTreeMap<StreamId, StreamPosition>,
    ) -> StreamPosition {
        let memory = known.get(stream).and_then(|reached| reached.memory.clone());
        let reached = StreamPosition { position: version, memory };
        self.positions.insert(stream.clone(), reached.clone());
        reached
    }

    /// Whether the work is too much for one write.
    fn is_too_much(&self) -> bool {
        self.changes.len() + self.positions.len() > MAX_CHANGES
            || self.changes.bytes() > MAX_WRITE_BYTES
    }
}

impl<State: Kept, Memory: Kept> Subscriber<State, Memory> {
    /// Applies a page, in as many writes as it needs. Returns whether there is more to do, and this
    /// instance still holds the lease.
    pub(super) async fn apply_page(
        &self,
        checkpoint: &mut Checkpoint,
        page: Page,
        until: Instant,
        mode: &RetryMode,
    ) -> Result<bool, SubscribeError> {
        let known = self.load_positions(&page).await?;
        let state = match checkpoint.state.as_str() {
            "" => State::default(),
            state => serde_json::from_str(state).map_err(|_| SubscribeError::Kept)?,
        };
        let work = Work::new(self.view.table, state);
        let cursor = checkpoint.cursor.clone();
        let mut run = PageRun { checkpoint, cursor, work, known, mode, until };
        for delivered in page.delivered {
            if !self.apply_delivered(&mut run, &delivered).await? {
                return Ok(false);
            }
            run.cursor = delivered.cursor.to_string();
        }
        run.cursor = page.cursor.to_string();
        let is_last = page.complete || Instant::now() >= until;
        Ok(self.save(&mut run, is_last).await? && !is_last)
    }

    /// Applies the commits of a stream up to the delivered one. Returns whether the next delivered
    /// commit can follow: there is time, and this instance still holds the lease.
    async fn apply_delivered(
        &self,
        run: &mut PageRun<'_, State>,
        delivered: &Delivered,
    ) -> Result<bool, SubscribeError> {
        let Entry { stream, version } = &delivered.entry;
        // The latest time depends on the log and `$all` alone, so that a rebuild writes the same
        // rows.
        let latest = delivered.at.saturating_add(CLOCK_SKEW).unwrap_or(Timestamp::MAX);
        loop {
            let position = run.known.get(stream).map_or(0, |reached| reached.position);
            if position >= *version {
                return Ok(true);
            }
            if run.mode.skips.contains(&(stream.clone(), position + 1)) {
                let reached = run.work.skip(stream, position + 1, &run.known);
                run.known.insert(stream.clone(), reached);
                continue;
            }
            let due = match self.due_commits(stream, *version, &delivered.commit, position).await {
                Ok(due) => due,
                Err(error) => return self.stop_before(run, error).await,
            };
            let is_part = due.last().is_some_and(|last| last.version < *version);
            for mut commit in due {
                commit.at = commit.at.min(latest);
                if !self.add_to_run(run, &commit).await? {
                    return Ok(false);
                }
            }
            // The stream has many commits to catch up with. The applied ones stay applied,
            // whichever instance resumes the rest.
            if is_part {
                let is_over = Instant::now() >= run.until;
                if !self.save(run, is_over).await? || is_over {
                    return Ok(false);
                }
                run.work.clear(self.view.table);
            }
        }
    }

    /// Adds a commit to the work of a page, and first writes the work if both are too much for one
    /// write. Returns whether this instance still holds the lease.
    async fn add_to_run(
        &self,
        run: &mut PageRun<'_, State>,
        commit: &Commit,
    ) -> Result<bool, SubscribeError> {
        let mut with_commit = run.work.clone();
        let mut added = self.add(commit, &run.known, &mut with_commit, run.mode);
        let is_too_much = with_commit.is_too_much() || run.mode.one_by_one;
        if added.is_ok() && is_too_much && !run.work.positions.is_empty() {
            if !self.save(run, false).await? {
                return Ok(false);
            }
            run.work.clear(self.view.table);
            with_commit = run.work.clone();
            added = self.add(commit, &run.known, &mut with_commit, run.mode);
        }
        match added {
            Ok(reached) => _ = run.known.insert(commit.stream.clone(), reached),
            Err(error) => return self.stop_before(run, error).await,
        }
        run.work = with_commit;
        Ok(true)
    }

    /// Returns the next commits to apply after this position: the delivered one, or earlier commits
    /// of its stream. If one of them cannot be read, those before it are read one by one. So the
    /// error names the commit at fault, and nothing before it is lost.
    async fn due_commits(
        &self,
        stream: &StreamId,
        version: u64,
        delivered: &Result<Commit, String>,
        position: u64,
    ) -> Result<Vec<Commit>, SubscribeError> {
        let next = position + 1;
        let unreadable =
            |reason| SubscribeError::Unreadable { stream: stream.clone(), version: next, reason };
        match delivered {
            Ok(commit) => match self.subscription.due_commits(commit, position).await {
                Err(StoreError::Corrupt { .. }) if next < version => {}
                due => return Ok(due?),
            },
            Err(reason) if next == version => return Err(unreadable(reason.clone())),
            Err(_) => {}
        }
        match self.subscription.log.get(stream, next).await {
            Ok(Some(commit)) => Ok(vec![commit]),
            Ok(None) => Err(unreadable("the log lacks the commit".to_owned())),
            Err(StoreError::Corrupt { reason, .. }) => Err(unreadable(reason)),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the work before a commit that cannot be applied, so that a retry does not repeat it.
    async fn stop_before(
        &self,
        run: &mut PageRun<'_, State>,
        error: SubscribeError,
    ) -> Result<bool, SubscribeError> {
        if !run.work.positions.is_empty() {
            self.save(run, false).await?;
        }
        Err(error)
    }

    /// Adds a commit to the work. `known` has the positions up to which the streams were applied.
    fn add(
        &self,
        commit: &Commit,
        known: &BTreeMap<StreamId, StreamPosition>,
        work: &mut Work<State>,
        mode: &RetryMode,
    ) -> Result<StreamPosition, SubscribeError> {
        if mode.skips.contains(&(commit.stream.clone(), commit.version)) {
            return Ok(work.skip(&commit.stream, commit.version, known));
        }
        let failed = |source| SubscribeError::Changes {
            stream: commit.stream.clone(),
            version: commit.version,
            source,
        };
        let before = known.get(&commit.stream).and_then(|reached| reached.memory.as_deref());
        let mut memory = before.map_or_else(|| Ok(Memory::default()), serde_json::from_str);
        let memory = memory.as_mut().map_err(|_| SubscribeError::Kept)?;
        (self.view.changes)(&mut work.state, memory, commit, &mut work.changes).map_err(failed)?;
        work.changes.clone().only(self.view.writes).map_err(failed)?;
        let memory = serde_json::to_string(memory).map_err(|_| SubscribeError::Kept)?;
        let state = serde_json::to_string(&work.state).map_err(|_| SubscribeError::Kept)?;
        for (part, bytes) in [("state", state.len()), ("memory of the stream", memory.len())] {
            if bytes > MAX_KEPT_BYTES {
                let stream = commit.stream.clone();
                let version = commit.version;
                return Err(SubscribeError::TooLarge { stream, version, what: part, bytes });
            }
        }
        // `null` is the memory of a view that keeps no memory.
        let reached = StreamPosition {
            position: commit.version,
            memory: Some(memory).filter(|text| text != "null"),
        };
        work.positions.insert(commit.stream.clone(), reached.clone());
        work.applied.push((commit.stream.clone(), commit.version, commit.at));
        Ok(reached)
    }

    /// Writes the work of a page, and moves the checkpoint to its cursor in the same write. Returns
    /// whether this instance held the lease.
    async fn save(
        &self,
        run: &mut PageRun<'_, State>,
        is_last: bool,
    ) -> Result<bool, SubscribeError> {
        let PageRun { work, cursor, .. } = &*run;
        let cursor = cursor.clone();
        let state = serde_json::to_string(&work.state).map_err(|_| SubscribeError::Kept)?;
        let until = if is_last { Timestamp::UNIX_EPOCH } else { Timestamp::now() + self.holding };
        self.measure_kept_data(&state, work);
        let to = NextCheckpoint { cursor, state, until };
        let rows = OrderedRows { changes: &work.changes, positions: &work.positions };
        let moved = self.table.move_checkpoint(run.checkpoint, to, rows).await;
        let moved = moved.map_err(|source| match work.applied.as_slice() {
            [(stream, version, _)] if !source.is_outage() => {
                SubscribeError::Refused { stream: stream.clone(), version: *version, source }
            }
            _ => source.into(),
        })?;
        let Some(moved) = moved else {
            tracing::warn!("another instance holds the lease on the checkpoint");
            return Ok(false);
        };
        *run.checkpoint = moved;
        let work = &run.work;
        if !work.applied.is_empty() {
            tracing::info!(commits = work.applied.len(), "applied");
        }
        // The commits of a generation that is being built are as old as the log, and no reader
        // waits for them.
        let measured = work.applied.first().filter(|_| self.is_read);
        if let Some((_, _, at)) =
            measured.filter(|_| !self.has_measured.swap(true, Ordering::Relaxed))
        {
            metrics::projection_lag(*at);
        }
        Ok(true)
    }

    /// Measures the kept data, if it is large.
    fn measure_kept_data(&self, state: &str, work: &Work<State>) {
        let memories = work.positions.values().filter_map(|reached| reached.memory.as_ref());
        let most = memories.map(String::len).chain([state.len()]).max().unwrap_or(0);
        if self.is_read
            && most >= LARGE_KEPT_BYTES
            && !self.has_measured_kept.swap(true, Ordering::Relaxed)
        {
            metrics::subscription_data(most);
        }
    }

    /// The positions in the streams of a page.
    async fn load_positions(
        &self,
        page: &Page,
    ) -> Result<BTreeMap<StreamId, StreamPosition>, SubscribeError> {
        let streams = page.delivered.iter().map(|delivered| &delivered.entry.stream).collect();
        Ok(self.table.applied_positions(&streams).await?)
    }
}
