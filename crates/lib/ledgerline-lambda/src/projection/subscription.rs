//! The runner of subscriptions: functions that read `$all` from a checkpoint, and write a view in
//! one order over all streams.
//!
//! The sequencer invokes a subscription after each batch. A schedule invokes it too, in case the
//! sequencer's invocation was lost. The invocation does not name the new entries: the function
//! reads on from its checkpoint. One instance works at a time, and another one that is invoked
//! meanwhile returns at once. The first instance finds that one's entries, because it reads once
//! more after it has released the checkpoint.

mod page_run;
mod subscribe_error;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::{FutureExt, future::LocalBoxFuture};
use jiff::{SignedDuration, Timestamp};
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Causes, OrderedView, StreamId, Write,
    all::{Cursor, Filter, Page, Subscription},
    manifest::{Action, Manifest, Name, Source, SubscriberKind, Table},
    view_store::RowStore,
};
use ledgerline_dynamodb::{Checkpoint, DynamoDbStore, LogRows, Phase};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;

use self::page_run::RetryMode;
pub use self::subscribe_error::SubscribeError;
use crate::{
    config,
    failure::Error,
    metrics,
    projection::view_rebuild::{RebuildRequest, RebuildResponse, ViewAnswer, check_standby},
    start::{Handle, handler, sdk_config, start},
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
        let sdk = sdk_config().await;
        let client = aws_sdk_dynamodb::Client::new(&sdk);
        let sequence =
            DynamoDbStore::new(client.clone(), config::text(table_grants::SEQUENCE_TABLE)?);
        let table = LogRows::new(client.clone(), config::text(view.table.variable)?, view.table);
        let log = crate::start::store(&sdk, client).await?;
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

impl<State: Kept, Memory: Kept> Subscriber<State, Memory> {
    /// Creates a subscription that writes this view into this table, and reads this `$all` of this
    /// log.
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
    /// As those of [`catch_up`](Self::catch_up), and when the generations cannot be read or marked.
    /// A generation that is not read does not block the active one: it is marked as behind.
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
                let standby = self.in_generation(number, false);
                let until = Instant::now() + STANDBY_WORK_TIME;
                let done = standby.catch_up_until(until).await;
                // Another instance that works in the generation catches up there. If it crashes,
                // its lease may last until reads use the generation.
                let is_next = number == generations.active;
                let may_lack = match &done {
                    Ok(is_done) => !is_done && (is_next || Instant::now() >= until),
                    Err(_) => true,
                };
                let done = done.map(|_| ());
                if may_lack {
                    if !standby.table.view().mark_behind(None).await? {
                        // Reads are about to use this generation.
                        return done;
                    }
                    tracing::warn!(generation = number, "a standby generation is behind");
                }
                others = others.and(done);
            }
        }
        others
    }

    /// Rebuilds a generation from the beginning, for the time of one invocation. Returns whether
    /// nothing is left.
    ///
    /// # Errors
    /// When the generation is neither built nor kept, and as those of [`catch_up`](Self::catch_up).
    pub async fn rebuild(&self, request: &RebuildRequest) -> Result<bool, SubscribeError> {
        check_standby(&self.table.view().generations().await?, request.generation)?;
        self.in_generation(request.generation, false).catch_up().await
    }

    fn in_generation(&self, generation: u32, is_read: bool) -> Self {
        Self {
            view: self.view,
            table: self.table.at_generation(generation),
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

    /// Counts a lagging subscription, if the first entry that is left is old. Its commit may be of
    /// a clock in the future.
    fn count_lag_if_old(&self, left: &Page) {
        let first = left.delivered.first();
        if first.is_some_and(|entry| Timestamp::now().duration_since(entry.at) > LAG_LIMIT) {
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
                Err(SubscribeError::Table(error)) if !mode.one_by_one && !error.is_outage() => {
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
}
