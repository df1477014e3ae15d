//! The runner of log projectors: functions behind a FIFO queue of commits, whose read model needs every event.

use ledgerline::{Commit, LogView, Write, guard::Verdict};
use ledgerline_dynamodb::ReadTable;

use crate::{
    Error, config,
    fifo::{self, ApplyError, Consumer},
    needs::{Action, Needs, Source, Table},
};

/// Runs a log projector, which makes the changes of every commit exactly once and in order (rule 7).
///
/// ```no_run
/// use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write, tank::Tank};
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
/// When its configuration is wrong: `COMMITS_TABLE`, and the variable of the view's table. When [`LogView::check`] refuses the view.
pub async fn run(view: LogView) -> Result<(), Error> {
    view.check()?;
    // Every log projector may put its position beside the rows. A projector that inserts rows also reads its position: from the newest row,
    // or from the item beside the rows.
    let reads = if inserts(&view) { &[Action::Query, Action::GetItem][..] } else { &[] };
    let actions = view.writes.iter().copied().map(Action::from).chain(reads.iter().copied());
    let actions = actions.chain([Action::PutItem]);
    let needs = Needs::new(Source::Queue(view.of.to_vec())).table(Table::with(view.table, actions));
    fifo::run(needs, async |sdk| {
        let table = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text(view.table.variable)?);
        table.connect(view.table.partition).await;
        Ok(LogProjector { table, view })
    })
    .await
}

fn inserts(view: &LogView) -> bool {
    view.writes.contains(&Write::Insert)
}

/// The parts of a log projector.
#[derive(Debug)]
pub struct LogProjector {
    /// The table that has the rows.
    pub table: ReadTable,
    /// The view that says what the rows are.
    pub view: LogView,
}

impl Consumer for LogProjector {
    async fn take(&self, commit: &Commit) -> Result<(Verdict, u64), ApplyError> {
        ApplyError::unless_of(self.view.of, commit)?;
        let changes = (self.view.changes)(commit).and_then(|changes| changes.only(self.view.writes));
        let changes = changes.map_err(|source| ApplyError::changes(commit, source))?;
        let (keys, stream, version) = (&self.view.table, &commit.stream, commit.version);
        Ok(if inserts(&self.view) {
            self.table.insert(keys, stream, version, &changes).await?
        } else {
            self.table.apply(keys, stream.as_str(), version, &changes).await?
        })
    }
}
