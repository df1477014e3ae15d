//! The runner of log projectors: functions behind a FIFO queue of commits, whose read model needs
//! every event.

mod log_rebuild;

use aws_sdk_dynamodb::Client;
use ledgerline::{
    Changes, ChangesError, Commit, LogView, Write,
    manifest::{Action, Manifest, Name, Source, SubscriberKind, Table},
    position::Delivery,
};
use ledgerline_dynamodb::{CommitChanges, DynamoDbStore, LogRows, TableError, ViewTable};

use crate::{
    config,
    failure::Error,
    projection::queue_runner::{self, ApplyError, Consumer},
    projection::view_rebuild::{RebuildError, RebuildRequest, RebuildResponse, rebuild},
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
    queue_runner::run(manifest(&view), async |sdk| {
        let client = Client::new(&sdk);
        let projector = LogProjector::new(client, config::text(view.table.variable)?, view);
        // This call opens the connection, so that the first message does not wait for it. If the
        // call fails, so will the first message.
        let _ = projector.table.view().recent_generations().await;
        Ok(projector)
    })
    .await
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
    let categories = view.of.iter().map(|of| Name::Borrowed(*of)).collect();
    Manifest::new(Source::Queue(categories))
        .subscriber(SubscriberKind::LogProjector, Table::grant(view.table, actions))
        .table(table_grants::scan_log())
        .table(table_grants::read_streams())
}

/// The parts of a log projector.
#[derive(Debug)]
#[non_exhaustive]
pub struct LogProjector {
    /// The rows, written as the view's [`writes`](LogView::writes) allow.
    pub table: LogRows,
    /// The view that defines the rows.
    pub view: LogView,
}

impl Consumer for LogProjector {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        Ok(self.table.deliver(self.commit_changes(commit)?).await?)
    }

    /// Inserted rows have no conditions, so one call writes those of many streams.
    async fn apply_batch(&self, commits: &[&Commit]) -> Result<Vec<(Delivery, u64)>, ApplyError> {
        if !self.table.inserts() {
            return Ok(Vec::new());
        }
        let deliveries =
            commits.iter().map(|commit| self.commit_changes(commit)).collect::<Result<_, _>>()?;
        Ok(self.table.deliver_all(deliveries).await?)
    }

    async fn generations(&self) -> Result<Vec<Self>, TableError> {
        let at = |number| Self { table: self.table.at(number), view: self.view };
        Ok(self.table.view().written().await?.into_iter().map(at).collect())
    }

    fn view_table(&self) -> Option<&ViewTable> {
        Some(self.table.view())
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
        Self { table: LogRows::new(client, name, view.table).with_writes(view.writes), view }
    }

    fn changes(&self, commit: &Commit) -> Result<Changes, ChangesError> {
        (self.view.changes)(commit).and_then(|changes| changes.only(self.view.writes))
    }

    fn commit_changes<'c>(&self, commit: &'c Commit) -> Result<CommitChanges<'c>, ApplyError> {
        ApplyError::check_category(self.view.of, commit)?;
        let changes = self.changes(commit).map_err(|source| ApplyError::changes(commit, source))?;
        Ok(CommitChanges { stream: &commit.stream, version: commit.version, changes })
    }
}
