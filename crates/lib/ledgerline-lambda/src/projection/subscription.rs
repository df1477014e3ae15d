//! The runner of subscriptions: functions that read `$all` from a checkpoint, and write a view in
//! one order over all streams.
//!
//! The sequencer invokes a subscription after each batch. A schedule invokes it too, in case the
//! sequencer's invocation was lost. The invocation does not name the new entries: the function
//! reads on from its checkpoint. One instance works at a time, and another one that is invoked
//! meanwhile returns at once. The first instance finds that one's entries, because it reads once
//! more after it has released the checkpoint.

mod subscribe_error;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::LocalBoxFuture};
use jiff::{SignedDuration, Timestamp};
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Causes, Changes, Commit, EventLog, LogTable, OrderedView, StoreError, StreamId, Write,
    all::{CLOCK_SKEW, Cursor, Delivered, Entry, Filter, Page, Subscription},
    manifest::{Action, Manifest, Name, Source, SubscriberKind, Table},
};
use ledgerline_dynamodb::{
    Checkpoint, DynamoDbStore, LogRows, MAX_CHANGES, NextCheckpoint, OrderedRows, Phase,
    StreamPosition,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;

pub use self::subscribe_error::SubscribeError;
use crate::{
    config,
    failure::Error,
    metrics,
    projection::view_rebuild::{
        RebuildError, RebuildRequest, RebuildResponse, ViewAnswer, is_outage,
    },
    start::{Handle, dynamodb, handler, start},
    table_grants,
};

/// The time for which one invocation begins new pages. The function has a minute: the rest is for
/// the last page.
const WORK_TIME: Duration = Duration::from_secs(40);
/// The time for which an invocation begins new pages of a generation that is not read, before it
/// turns to the active one. Such a generation may be the whole log behind.
const STANDBY_WORK_TIME: Duration = Duration::from_secs(10);
/// The duration of the lease on the checkpoint. Each write renews the lease, so a killed instance
/// blocks the others no longer than this.
const LEASE: SignedDuration = SignedDuration::from_secs(20);
/// The most commits of a page.
const PAGE_COMMITS: usize = 100;
/// The number of other categories' entries that are read without moving the checkpoint. So an idle
/// subscription writes nothing.
const MAX_IDLE_ENTRIES: usize = 500;
/// The limit of a view's state, and of its memory of a stream, in bytes of JSON. Each page writes
/// both with its rows, at one write unit per KB. The limit of an item is 400 KB.
const MAX_KEPT_BYTES: usize = 64 * 1024;
/// The size from which a metric measures both, so that an operator can act before a commit fails.
const LARGE_KEPT_BYTES: usize = MAX_KEPT_BYTES / 2;
/// The bytes of rows after which a part of a page is written. A transaction may have 4 MB, and rows
/// are larger in it than as JSON.
const MAX_WRITE_BYTES: usize = 1_000_000;
/// The age from which a commit that a subscription has not applied means that the subscription
/// lags.
const LAG_LIMIT: SignedDuration = SignedDuration::from_mins(5);

/// Runs a subscription.
///
/// ```no_run
/// use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, OrderedView, Write};
/// use ledgerline::testing::tank::Tank;
/// use serde::{Deserialize, Serialize};
///
/// const TABLE: LogTable = LogTable { variable: "COUNTS_TABLE", partition: "of", sort: "entry" };
/// const COUNTS: OrderedView<Count, ()> =
///     OrderedView { table: TABLE, of: &[Tank::CATEGORY], writes: &[Write::Update], changes };
///
/// #[derive(Debug, Clone, Default, Serialize, Deserialize)]
/// struct Count(u64);
///
/// fn changes(count: &mut Count, _: &mut (), _: &Commit, changes: &mut Changes) -> Result<(), ChangesError> {
///     count.0 += 1;
///     changes.set("all", "count", "commits", count.0);
///     Ok(())
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::subscription::run(COUNTS).await
/// }
/// ```
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `SEQUENCE_TABLE`, and the variable of the
/// view's table. When the view inserts rows.
pub async fn run<State: Kept + 'static, Memory: Kept + 'static>(
    view: OrderedView<State, Memory>,
) -> Result<(), Error> {
    if view.writes.contains(&Write::Insert) {
        return Err(
            "a subscription cannot insert rows: it must put them, together with its checkpoint"
                .into(),
        );
    }
    let build = async {
        let client = dynamodb().await;
        let sequence =
            DynamoDbStore::new(client.clone(), config::text(table_grants::SEQUENCE_TABLE)?);
        let table = LogRows::new(client.clone(), config::text(view.table.variable)?, view.table);
        let log = crate::start::store(client).await?;
        let subscriber = Arc::new(Subscriber::new(view, table, sequence, log));
        Ok(handler(move |LambdaEvent { payload: mut event, .. }: LambdaEvent<Value>| {
            let subscriber = Arc::clone(&subscriber);
            async move {
                let Some(request) = event.get_mut("rebuild") else {
                    return Ok(ViewAnswer::Handled(subscriber.catch_up_all().await?));
                };
                let request: RebuildRequest = serde_json::from_value(request.take())?;
                let is_done = subscriber.rebuild(&request).await?;
                Ok(ViewAnswer::Rebuilt(RebuildResponse { is_done, ..RebuildResponse::default() }))
            }
        }))
    };
    serve(manifest(&view), build.boxed_local()).await
}

/// The manifest of the function of this view.
#[must_use]
pub fn manifest<State, Memory>(view: &OrderedView<State, Memory>) -> Manifest {
    // The function puts and gets the checkpoint and the positions. An update takes the lease on the
    // checkpoint.
    let own = [Action::BatchGetItem, Action::GetItem, Action::PutItem, Action::UpdateItem];
    let actions = view.writes.iter().copied().map(Action::from).chain(own);
    let categories = view.of.iter().map(|of| Name::Borrowed(*of)).collect();
    table_grants::reader_of_sequence(Manifest::new(Source::Sequence(categories)))
        .subscriber(SubscriberKind::Subscription, Table::grant(view.table, actions))
        .metric(metrics::SUBSCRIPTION_BEHIND)
}

/// Data that a view keeps from one commit to the next.
pub trait Kept: Clone + Default + Serialize + DeserializeOwned {}

impl<T: Clone + Default + Serialize + DeserializeOwned> Kept for T {}

/// This function has no type parameters, so it is compiled once for all subscriptions.
fn serve(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Handle<Value, ViewAnswer<()>>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(manifest, build)
}

/// The parts of a subscription.
#[derive(Debug)]
pub struct Subscriber<State, Memory> {
    view: OrderedView<State, Memory>,
    table: LogRows,
    subscription: Subscription<DynamoDbStore, DynamoDbStore>,
    /// The name under which this instance holds the lease on the checkpoint.
    holder: String,
    /// The duration of the lease.
    holding: SignedDuration,
    /// Whether this generation is the active one: only that one can lag.
    is_read: bool,
    /// Whether this instance has measured a commit. A metric has room for a hundred values at once,
    /// and the subscription may have the whole log to catch up with. So only the first commit is
    /// measured, which waited longest.
    has_measured: AtomicBool,
    /// Whether this instance has measured the kept data.
    has_measured_kept: AtomicBool,
}

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
struct RetryMode {
    /// Whether each commit has its own write, so that commits before the failed one are applied.
    one_by_one: bool,
    /// The failed commits that an operator has skipped.
    skips: BTreeSet<(StreamId, u64)>,
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
    /// Creates a subscription that writes this view into this table, and reads this `$all` of this
    /// log.
    #[must_use]
    pub fn new(
        view: OrderedView<State, Memory>,
        table: LogRows,
        sequence: DynamoDbStore,
        log: DynamoDbStore,
    ) -> Self {
        let categories: BTreeSet<_> =
            view.of.iter().map(|category| (*category).to_owned()).collect();
        let filter = Filter { categories, events: BTreeSet::new() };
        let subscription = Subscription { sequence, log, filter, limit: PAGE_COMMITS };
        Self {
            view,
            table,
            subscription,
            holder: uuid::Uuid::new_v4().to_string(),
            holding: LEASE,
            is_read: true,
            has_measured: AtomicBool::new(false),
            has_measured_kept: AtomicBool::new(false),
        }
    }

    /// Sets another duration for the lease. With a duration of zero, instances keep taking the
    /// lease from each other.
    #[must_use]
    pub fn with_lease(self, holding: SignedDuration) -> Self {
        Self { holding, ..self }
    }

    /// Catches up in every written generation of the view. The active one is last, so that it is
    /// never ahead of the generation to which reads will switch. But the active one is before a
    /// generation that is being built, which may be the whole log behind.
    ///
    /// # Errors
    /// As those of [`catch_up`](Self::catch_up), and when the generations cannot be read. A failure
    /// in a generation that is not read does not block the active one.
    pub async fn catch_up_all(&self) -> Result<(), SubscribeError> {
        let generations = self.table.view().recent_generations().await?;
        let now = Timestamp::now();
        let mut others = Ok(());
        let mut numbers = generations.generations_to_write(now);
        if generations.generation_in_phase(Phase::Building).is_some() {
            numbers.reverse();
        }
        for number in numbers {
            if number == generations.active_generation(now) {
                self.in_generation(number, true).catch_up().await?;
            } else {
                let done = self
                    .in_generation(number, false)
                    .catch_up_until(Instant::now() + STANDBY_WORK_TIME)
                    .await;
                others = others.and(done.map(|_| ()));
            }
        }
        others
    }

    /// Rebuilds a generation from the beginning, for the time of one invocation. Returns whether
    /// nothing is left.
    ///
    /// # Errors
    /// When the generation is not being built, and as those of [`catch_up`](Self::catch_up).
    pub async fn rebuild(&self, request: &RebuildRequest) -> Result<bool, SubscribeError> {
        let generations = self.table.view().generations().await?;
        if generations.generation_in_phase(Phase::Building) != Some(request.generation) {
            return Err(RebuildError::NotBuilding(request.generation).into());
        }
        self.in_generation(request.generation, false).catch_up().await
    }

    fn in_generation(&self, generation: u32, is_read: bool) -> Self {
        Self {
            view: self.view,
            table: self.table.at(generation),
            subscription: self.subscription.clone(),
            holder: self.holder.clone(),
            holding: self.holding,
            is_read,
            has_measured: AtomicBool::new(false),
            has_measured_kept: AtomicBool::new(false),
        }
    }

    /// Applies new entries until nothing is left, or the time of an invocation is over. Returns at
    /// once if another instance holds the lease. Returns whether nothing is left.
    ///
    /// # Errors
    /// When a table fails, or a commit cannot be applied. The commits applied before it stay
    /// applied.
    pub async fn catch_up(&self) -> Result<bool, SubscribeError> {
        self.catch_up_until(Instant::now() + WORK_TIME).await
    }

    async fn catch_up_until(&self, until: Instant) -> Result<bool, SubscribeError> {
        self.apply_new_pages(until).await.inspect_err(|_| self.count_lag())
    }

    fn count_lag(&self) {
        if self.is_read {
            metrics::subscription_lag();
        }
    }

    async fn apply_new_pages(&self, until: Instant) -> Result<bool, SubscribeError> {
        loop {
            let seen = self.table.checkpoint().await?;
            if seen.is_held_by_another(&self.holder, Timestamp::now(), self.holding) {
                return Ok(false);
            }
            let page = self.read_page(&seen).await?;
            if page.delivered.is_empty() && page.complete && page.entries < MAX_IDLE_ENTRIES {
                return Ok(true);
            }
            if Instant::now() >= until {
                self.count_lag_if_old(&page);
                return Ok(false);
            }
            let now = Timestamp::now();
            let taken = self.table.take_checkpoint(&self.holder, now, self.holding);
            let Some(mut checkpoint) = taken.await? else { return Ok(false) };
            // Another instance may have applied the page before this instance took the lease.
            let page = Some(page).filter(|_| checkpoint.cursor == seen.cursor);
            if let Err(error) = self.apply_pages(&mut checkpoint, page, until).await {
                // The release leaves the cursor unchanged, because a lost reply hides where the
                // cursor is. The next instance need not wait for the end of the lease.
                if let Err(error) = self.table.give_back_checkpoint(&checkpoint).await {
                    tracing::warn!(error = %Causes(&error), "the lease on the checkpoint was not released");
                }
                return Err(error);
            }
        }
    }

    /// Counts a lagging subscription, if the first commit that is left is old.
    fn count_lag_if_old(&self, left: &Page) {
        let first = left.delivered.first().and_then(|delivered| delivered.commit.as_ref().ok());
        if first.is_some_and(|commit| Timestamp::now().duration_since(commit.at) > LAG_LIMIT) {
            self.count_lag();
        }
    }

    async fn read_page(&self, checkpoint: &Checkpoint) -> Result<Page, SubscribeError> {
        let after = match checkpoint.cursor.as_str() {
            "" => Cursor::beginning(),
            cursor => cursor.parse()?,
        };
        Ok(self.subscription.read_page(after).await?)
    }

    /// Applies page after page from the checkpoint that this instance holds, and releases the lease
    /// with the last page.
    async fn apply_pages(
        &self,
        checkpoint: &mut Checkpoint,
        mut first: Option<Page>,
        until: Instant,
    ) -> Result<(), SubscribeError> {
        let mut mode = RetryMode::default();
        loop {
            let page = match first.take() {
                Some(page) => page,
                None => self.read_page(checkpoint).await?,
            };
            match self.apply_page(checkpoint, page, until, &mode).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // The page has a row that can never be written.
                Err(SubscribeError::Table(error)) if !mode.one_by_one && !is_outage(&error) => {
                    mode.one_by_one = true;
                }
                Err(error) => {
                    let Some(commit) = error.commit() else { return Err(error) };
                    if !self.is_skipped(&commit.0, commit.1).await? || !mode.skips.insert(commit) {
                        return Err(error);
                    }
                    tracing::warn!(error = %Causes(&error), "an operator has skipped the commit");
                }
            }
        }
    }

    /// Whether an operator has skipped a commit. The check runs only for a commit that cannot be
    /// applied.
    async fn is_skipped(&self, stream: &StreamId, version: u64) -> Result<bool, SubscribeError> {
        let generations = self.table.view().generations().await?;
        Ok(generations.skips(stream, version))
    }

    /// Applies a page, in as many writes as it needs. Returns whether there is more to do, and this
    /// instance still holds the lease.
    async fn apply_page(
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
        for (what, bytes) in [("state", state.len()), ("memory of the stream", memory.len())] {
            if bytes > MAX_KEPT_BYTES {
                let stream = commit.stream.clone();
                let version = commit.version;
                return Err(SubscribeError::TooLarge { stream, version, what, bytes });
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
            [(stream, version, _)] if !is_outage(&source) => {
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
