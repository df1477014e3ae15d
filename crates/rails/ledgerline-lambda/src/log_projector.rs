//! The runner of log projectors: functions behind a FIFO queue of commits, whose read model needs every event.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable};
use jiff::Timestamp;
use ledgerline::{
    Causes, Changes, ChangesError, Commit, EventLog, LogView, StreamId, Write,
    guard::Verdict,
    manifest::{Action, Manifest, Name, Source, SubscriberKind, Table},
};
use ledgerline_dynamodb::{DynamoDbStore, Inserted, Insertion, KeyNames, MAX_CHANGES, ReadTable, TableError};
use tokio::time::Instant;

use crate::{
    Error, config,
    fifo::{self, ApplyError, Consumer},
    grants,
    rebuild::{Made, Rebuild, RebuildError, Rebuilt, Remake, hole_in, is_outage, rebuild, remake_streams},
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
    fifo::run(manifest(&view), async |sdk| {
        let table = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text(view.table.variable)?);
        // This opens the connection, so that the first message does not wait for it. A failure is that of the first message.
        let _ = table.recent_generations(KeyNames::from(&view.table)).await;
        Ok(LogProjector { table, view })
    })
    .await
}

/// The manifest of the function of this view.
#[must_use]
pub fn manifest(view: &LogView) -> Manifest {
    // Every log projector may put its position beside the rows, and reads which generations there are. A projector that inserts rows also looks for
    // its position in the newest row, and inserts the rows of many streams at once.
    let more = if inserts(view) { &[Action::Query, Action::BatchWriteItem][..] } else { &[] };
    let actions = view.writes.iter().copied().map(Action::from).chain(more.iter().copied());
    let actions = actions.chain([Action::GetItem, Action::PutItem]);
    let categories = view.of.iter().map(|of| Name::Borrowed(*of)).collect();
    Manifest::new(Source::Queue(categories))
        .subscriber(SubscriberKind::LogProjector, Table::with(view.table, actions))
        .table(grants::scan_log())
        .table(grants::read_streams())
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
        if inserts(&self.view) {
            let taken = self.insert(&[commit]).await?.pop();
            return Ok(taken.unwrap_or_else(|| unreachable!("every commit has a verdict")));
        }
        ApplyError::unless_of(self.view.of, commit)?;
        let changes = self.changes(commit).map_err(|source| ApplyError::changes(commit, source))?;
        let (keys, stream, version) = (&self.view.table, commit.stream.as_str(), commit.version);
        Ok(self.table.apply(keys, stream, version, &changes).await?)
    }

    /// Rows that are inserted have no conditions, so that one call writes those of many streams.
    async fn take_together(&self, commits: &[&Commit]) -> Result<Vec<(Verdict, u64)>, ApplyError> {
        if !inserts(&self.view) {
            return Ok(Vec::new());
        }
        self.insert(commits).await
    }

    async fn generations(&self) -> Result<Vec<Self>, TableError> {
        let generations = self
            .table
            .recent_generations(KeyNames::from(&self.view.table))
            .await?
            .written_at(Timestamp::now());
        let at = |number| Self { table: self.table.at(number), view: self.view };
        Ok(generations.into_iter().map(at).collect())
    }

    async fn rebuild(&self, log: &DynamoDbStore, asked: &Rebuild) -> Result<Rebuilt, RebuildError> {
        rebuild(self, &self.table, log, asked).await
    }
}

impl LogProjector {
    fn changes(&self, commit: &Commit) -> Result<Changes, ChangesError> {
        (self.view.changes)(commit).and_then(|changes| changes.only(self.view.writes))
    }

    /// Inserts the rows of these commits.
    async fn insert(&self, commits: &[&Commit]) -> Result<Vec<(Verdict, u64)>, ApplyError> {
        let mut insertions = Vec::new();
        for commit in commits {
            ApplyError::unless_of(self.view.of, commit)?;
            let changes = self.changes(commit).map_err(|source| ApplyError::changes(commit, source))?;
            insertions.push(Insertion { stream: &commit.stream, version: commit.version, changes });
        }
        Ok(self.table.insert(&self.view.table, &insertions).await?)
    }
}

// --- Making the view again ------------------------------------------------------------------------------------------

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

impl Remake for LogProjector {
    fn of(&self) -> Vec<&'static str> {
        self.view.of.to_vec()
    }

    fn keys(&self) -> KeyNames<'static> {
        KeyNames::from(&self.view.table)
    }

    async fn remake(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> Result<Made, TableError> {
        if inserts(&self.view) {
            return self.insert_again(table, log, streams, until).await;
        }
        let (mut made, mut batch) = (Made::default(), Batch::new(&self.view));
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
        self.make_alone(table, log, alone, &mut made, until).await;
        Ok(made)
    }

    async fn remake_stream(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        stream: &StreamId,
        until: Instant,
    ) -> Result<f64, RebuildError> {
        let (mut made, mut busy) = (Made::default(), 0);
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
    async fn write(&self, table: &ReadTable, batch: &Batch, made: &mut Made) -> Result<bool, TableError> {
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
        made: &mut Made,
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

    async fn make_alone(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        streams: BTreeSet<StreamId>,
        made: &mut Made,
        until: Instant,
    ) {
        let alone = remake_streams(self, table, log, streams, until).await;
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

    async fn insert_again(
        &self,
        table: &ReadTable,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> Result<Made, TableError> {
        let (mut made, mut alone, mut all) = (Made::default(), BTreeSet::new(), Vec::new());
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
        self.make_alone(table, log, alone, &mut made, until).await;
        Ok(made)
    }
}
