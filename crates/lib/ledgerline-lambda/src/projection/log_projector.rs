//! The runner of log projectors: functions behind a FIFO queue of commits, whose read model needs
//! every event.

mod log_rebuild;

use std::collections::BTreeSet;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use ledgerline::{
    Changes, ChangesError, Commit, LogView, Write,
    manifest::{Action, Manifest, Name, OtherView, Source, SubscriberKind, Table, ViewStore},
    position::Delivery,
    view_store::{CommitChanges, LogRowStore, ViewError},
};
use ledgerline_dynamodb::{DynamoDbStore, LogRows, ViewTable};

use crate::{
    config,
    failure::Error,
    projection::{
        kinesis,
        queue_runner::{self, ApplyError, Consumer},
        view_rebuild::{
            RebuildError, RebuildRequest, RebuildResponse, generation_table, prepare_start,
            publish_active, rebuild,
        },
    },
    table_grants,
};

/// Runs a log projector, which applies the changes of every commit exactly once and in order (rule
/// 7).
///
/// ```no_run
/// use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write};
/// use ledgerline::testing::tank::Tank;
///
/// const TABLE: LogTable = LogTable { variable: "COUNTS_TABLE", partition: "owner", sort: "entry" };
/// const COUNTS: LogView =
///     LogView { table: TABLE, of: &[Tank::CATEGORY], writes: &[Write::Update], changes };
///
/// fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
///     let mut changes = Changes::new(TABLE);
///     changes.add(commit.stream.id(), "sum", "commits", 1);
///     Ok(changes)
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::log_projector::run(COUNTS).await
/// }
/// ```
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, and the variable of the view's table. When
/// [`LogView::check`] refuses the view.
pub async fn run(view: LogView) -> Result<(), Error> {
    view.check()?;
    queue_runner::run(manifest(&view), async |sdk| open(&sdk, view).await).await
}

async fn open(sdk: &SdkConfig, view: LogView) -> Result<LogProjector, Error> {
    let projector = LogProjector::new(Client::new(sdk), config::text(view.table.variable)?, view);
    // This call opens the connection, so that the first message does not wait for it. If the call
    // fails, so will the first message.
    let _ = projector.generations.recent_generations().await;
    Ok(projector)
}

/// Runs a log projector that also applies the records of the log's Kinesis stream, if the stack has
/// one. It applies a commit that both sources deliver once.
///
/// # Errors
/// Those of [`run`].
pub async fn run_with_kinesis(view: LogView) -> Result<(), Error> {
    view.check()?;
    kinesis::run(manifest(&view), async |sdk| open(&sdk, view).await).await
}

/// Runs a log projector that writes the rows of a view into another store than DynamoDB. `open`
/// opens the store. `manifest` is that of [`manifest_in_store`], with what `open` reads.
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `VIEWS_TABLE`, and what `open` reads. When
/// [`LogView::check`] refuses the view.
pub async fn run_in_store<S: LogRowStore + 'static>(
    view: LogView,
    store: ViewStore,
    manifest: Manifest,
    open: impl AsyncFnOnce(&SdkConfig) -> Result<S, Error>,
) -> Result<(), Error> {
    view.check()?;
    queue_runner::run(manifest, async |sdk| {
        let rows = open(&sdk).await?;
        let other = OtherView::new(store, view.table.variable);
        let generations = generation_table(&sdk, &other)?;
        prepare_start(&generations, &rows).await?;
        Ok(LogProjector { rows, generations, view })
    })
    .await
}

/// The manifest of the function that writes this view into another store than DynamoDB.
pub fn manifest_in_store(view: &LogView, store: ViewStore) -> Manifest {
    let other = OtherView::new(store, view.table.variable);
    Manifest::new(Source::Queue(categories(view)))
        .other_view(SubscriberKind::LogProjector, other)
        .table(table_grants::scan_log())
        .table(table_grants::read_streams())
}

fn categories(view: &LogView) -> BTreeSet<Name> {
    view.of.iter().map(|of| Name::Borrowed(*of)).collect()
}

/// The manifest of the function of this view.
pub fn manifest(view: &LogView) -> Manifest {
    // Every log projector may put its position in an item next to the rows, and reads the
    // generations. A projector that inserts rows also looks for its position in the newest row, and
    // inserts the rows of many streams at once.
    let inserts = view.writes.contains(&Write::Insert);
    let more = if inserts { &[Action::Query, Action::BatchWriteItem][..] } else { &[] };
    let actions = view.writes.iter().copied().map(Action::from).chain(more.iter().copied());
    let actions = actions.chain([Action::GetItem, Action::PutItem]);
    Manifest::new(Source::Queue(categories(view)))
        .subscriber(SubscriberKind::LogProjector, Table::grant(view.table, actions))
        .table(table_grants::scan_log())
        .table(table_grants::read_streams())
}

/// The parts of a log projector.
#[derive(Debug)]
pub struct LogProjector<S = LogRows> {
    /// The rows, written as the view's [`writes`](LogView::writes) allow.
    pub rows: S,
    /// The generations of the view.
    pub generations: ViewTable,
    /// The view that defines the rows.
    pub view: LogView,
}

impl<S: LogRowStore> Consumer for LogProjector<S> {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        let delivered = self.rows.deliver_all(vec![self.commit_changes(commit)?]).await?;
        delivered.first().copied().ok_or_else(|| {
            ApplyError::Effect("the store of the view returned no delivery".to_owned())
        })
    }

    async fn apply_batch(&self, commits: &[&Commit]) -> Result<Vec<(Delivery, u64)>, ApplyError> {
        if !self.rows.writes_many() {
            return Ok(Vec::new());
        }
        let deliveries =
            commits.iter().map(|commit| self.commit_changes(commit)).collect::<Result<_, _>>()?;
        Ok(self.rows.deliver_all(deliveries).await?)
    }

    async fn generations(&self) -> Result<Vec<Self>, ViewError> {
        let at = |number| Self {
            rows: self.rows.at_generation(number),
            generations: self.generations.at(number),
            view: self.view,
        };
        let written = self.generations.written().await?;
        publish_active(&self.rows, &written).await;
        Ok(written.into_iter().map(at).collect())
    }

    fn view_table(&self) -> Option<&ViewTable> {
        Some(&self.generations)
    }

    async fn rebuild(
        &self,
        log: &DynamoDbStore,
        request: &RebuildRequest,
    ) -> Result<RebuildResponse, RebuildError> {
        rebuild(self, log, request).await
    }
}

impl LogProjector {
    /// Creates a projector that writes the rows of this view into the table of this name.
    pub fn new(client: Client, name: impl Into<String>, view: LogView) -> Self {
        let rows = LogRows::new(client, name, view.table).with_writes(view.writes);
        Self { generations: rows.view().clone(), rows, view }
    }
}

impl<S: LogRowStore> LogProjector<S> {
    fn changes(&self, commit: &Commit) -> Result<Changes, ChangesError> {
        (self.view.changes)(commit).and_then(|changes| changes.only(self.view.writes))
    }

    fn commit_changes<'c>(&self, commit: &'c Commit) -> Result<CommitChanges<'c>, ApplyError> {
        ApplyError::check_category(self.view.of, commit)?;
        let changes = self.changes(commit).map_err(|source| ApplyError::changes(commit, source))?;
        Ok(CommitChanges { stream: &commit.stream, version: commit.version, changes })
    }
}
