//! The rebuild of a view: a function writes the rows of a new generation
//! ([`Generations`](ledgerline_dynamodb::Generations)) from the log, part by part.
//!
//! The operator's tool invokes the function. Each invocation works for some seconds and stores its
//! progress, and the tool invokes the function again. A commit may be written twice, by two
//! concurrent workers or after a kill. The guards are those of deliveries.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, stream};
use ledgerline::{Causes, Commit, LoadError, StoreError, StreamId};
use ledgerline_dynamodb::{DynamoDbStore, Phase, ScanPart, SegmentProgress, TableError, ViewTable};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The time for which one invocation begins new pages. A log projector has ten seconds: the rest is
/// for the last page.
const WORKING: Duration = Duration::from_secs(5);
/// The most commits that are read at once. They fit into the least memory that Lambda gives.
const PAGE: i32 = 1_000;
/// The number of failures that a response names.
const NAMED: usize = 20;

/// A request of the operator's tool: to rebuild one part of a view, or some of its streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RebuildRequest {
    /// The generation that is built.
    pub generation: u32,
    /// The part of the log.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: i32,
    /// The number of parts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub parts: i32,
    /// The most write units a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_units: Option<f64>,
    /// The streams to rebuild, instead of a part of the log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamId>,
}

/// Whether a number is zero. A function of an older version refuses an unknown field, so a field
/// without a value is not sent.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// The progress of a rebuild.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RebuildResponse {
    /// Whether nothing is left of the requested work.
    pub is_done: bool,
    /// The commits that all invocations for this part have read.
    pub commits: u64,
    /// The read units used.
    pub reads: f64,
    /// The write units used.
    pub writes: f64,
    /// The milliseconds for which no caller should request this part again, so that the rebuild
    /// keeps to the requested write units.
    pub pause: u64,
    /// Streams that could not be rebuilt, and why. The reasons contain no payload (rule 14).
    pub failed: Vec<Failed>,
}

/// A stream that could not be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The stream's name.
    pub stream: StreamId,
    /// The reason.
    pub reason: String,
}

impl RebuildResponse {
    /// Adds the units and the commits of another part, and the streams that could not be rebuilt.
    pub fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.reads += other.reads;
        self.writes += other.writes;
        self.failed.extend(other.failed.iter().cloned());
    }
}

/// The reason why a generation, or a stream of it, was not rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The generation is not in the phase in which it is built. A late worker must not write rows
    /// of a generation that is active, or that is being deleted.
    #[error("the generation {0} is not being built")]
    NotBuilding(u32),
    /// No part has this number.
    #[error("there is no part {part} of {parts}")]
    NoPart {
        /// The part.
        part: i32,
        /// The number of parts.
        parts: i32,
    },
    /// The function writes no view, or one that does not depend on commits alone.
    #[error("this function writes no view that can be rebuilt from the log")]
    NoView,
    /// The changes of a commit cannot be worked out.
    #[error("the changes of version {version} cannot be computed: {reason}")]
    Changes {
        /// The version.
        version: u64,
        /// The reason.
        reason: String,
    },
    /// The log has a hole.
    #[error("the log lacks version {0}")]
    Missing(u64),
    /// Another writer moves the position at each attempt.
    #[error("another writer keeps moving the position of the stream")]
    Busy,
    /// The invocation ran out of time before the stream was rebuilt. The written rows stay, and the
    /// next invocation resumes after them.
    #[error("the invocation ran out of time before it rebuilt the stream; the next one resumes it")]
    TimeIsOver {
        /// The write units used for the stream.
        writes: f64,
    },
    /// The log failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A state could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The table failed.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// The write units used, the failed streams, and the streams that are left.
#[derive(Debug, Default)]
pub struct Progress {
    /// The write units used.
    pub writes: f64,
    /// Streams that could not be rebuilt.
    pub failed: Vec<(StreamId, RebuildError)>,
    /// Streams that the invocation did not reach in its time.
    pub left: BTreeSet<StreamId>,
}

impl Progress {
    /// Adds the result of one stream: the write units used, or the error.
    pub(crate) fn note(&mut self, stream: StreamId, made: Result<f64, RebuildError>) {
        match made {
            Ok(units) => self.writes += units,
            Err(RebuildError::TimeIsOver { writes }) => {
                self.writes += writes;
                self.left.insert(stream);
            }
            Err(error) => self.failed.push((stream, error)),
        }
    }
}

/// A view that can be rebuilt.
pub(crate) trait Rebuild {
    /// The categories of the view's commits.
    fn of(&self) -> Vec<&'static str>;

    /// The view's table.
    fn view(&self) -> &ViewTable;

    /// Writes these commits into the rows of this generation. Each list is of one stream, in order.
    /// A stream that cannot be rebuilt is named, and does not keep the others from their rows.
    /// After `until`, no more streams are begun.
    fn rebuild_page(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> impl Future<Output = Result<Progress, TableError>>;

    /// Writes the commits of a stream that this generation lacks, from the log. Returns the write
    /// units used.
    fn rebuild_stream(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        stream: &StreamId,
        until: Instant,
    ) -> impl Future<Output = Result<f64, RebuildError>>;
}

/// The number of streams that are rebuilt at once.
pub(crate) const AT_ONCE: usize = 16;

/// Rebuilds each of these streams from the log, [`AT_ONCE`] at a time, until the time is over.
pub(crate) async fn rebuild_each(
    view: &impl Rebuild,
    generation: u32,
    log: &DynamoDbStore,
    streams: impl IntoIterator<Item = StreamId>,
    until: Instant,
) -> Progress {
    let rebuild_one = async |stream: StreamId| {
        let made = if Instant::now() < until {
            view.rebuild_stream(generation, log, &stream, until).await
        } else {
            Err(RebuildError::TimeIsOver { writes: 0.0 })
        };
        (stream, made)
    };
    let all = stream::iter(streams).map(rebuild_one).buffer_unordered(AT_ONCE);
    all.fold(Progress::default(), async |mut all, (stream, made)| {
        all.note(stream, made);
        all
    })
    .await
}

/// Rebuilds the requested part or streams, for some seconds.
///
/// # Errors
/// When the generation is not being built, or the log or the table fails. The stored progress
/// stays.
pub(crate) async fn rebuild(
    view: &impl Rebuild,
    log: &DynamoDbStore,
    asked: &RebuildRequest,
) -> Result<RebuildResponse, RebuildError> {
    let began = Instant::now();
    let until = began + WORKING;
    let generation = asked.generation;
    if view.view().generations().await?.in_phase(Phase::Building) != Some(generation) {
        return Err(RebuildError::NotBuilding(generation));
    }
    let table = view.view().at(generation);
    let mut failed = Vec::new();
    if !asked.streams.is_empty() {
        let made = rebuild_each(view, generation, log, asked.streams.iter().cloned(), until).await;
        let rebuilt = RebuildResponse {
            is_done: made.left.is_empty(),
            writes: made.writes,
            ..RebuildResponse::default()
        };
        return Ok(answer(rebuilt, made.failed));
    }
    let RebuildRequest { part: number, parts, .. } = *asked;
    if !(0..parts).contains(&number) {
        return Err(RebuildError::NoPart { part: number, parts });
    }
    let of = view.of();
    let name = SegmentProgress::name(number, parts);
    let scanned = ScanPart { part: number, parts };
    let mut part = table.part(&name).await?;
    let written_before = part.writes;
    // A page is written without a pause, so it may not be more than the work of one invocation.
    #[expect(clippy::cast_possible_truncation, reason = "it is at most PAGE")]
    let limit = asked
        .write_units
        .map_or(PAGE, |units| (units * WORKING.as_secs_f64()).clamp(1.0, f64::from(PAGE)) as i32);
    let mut next = None;
    let mut pause = Duration::ZERO;
    while !part.is_done && Instant::now() < until && pause.is_zero() {
        let page = match next.take() {
            Some(page) => page,
            None => log.scan(scanned, part.after.as_ref(), &of, limit).await?,
        };
        let streams = by_stream(page.commits);
        let ends: Vec<_> = streams.iter().filter_map(|commits| End::of(commits)).collect();
        // The next page is read while this one is written.
        let read = async {
            let is_wanted = page.after.is_some() && Instant::now() < until;
            let read = log.scan(scanned, page.after.as_ref(), &of, limit);
            Ok::<_, RebuildError>(if is_wanted { Some(read.await?) } else { None })
        };
        let make = async { Ok(view.rebuild_page(generation, log, streams, until).await?) };
        let (made, read) = futures::try_join!(make, read)?;
        next = read;
        failed.extend(made.failed);
        // The streams before the first one that was left are done, and are not read again.
        let done =
            ends.iter().position(|end| made.left.contains(&end.stream)).unwrap_or(ends.len());
        let is_whole = done == ends.len();
        let reached = ends[..done].last().map(|end| (end.stream.clone(), end.version));
        part = SegmentProgress {
            is_done: is_whole && page.after.is_none(),
            after: if is_whole { page.after } else { reached.or(part.after) },
            commits: part.commits + ends[..done].iter().map(|end| end.commits).sum::<u64>(),
            reads: part.reads + page.units,
            writes: part.writes + made.writes,
        };
        table.put_part(&name, &part).await?;
        if let Some(units) = asked.write_units {
            // The caller waits, so that the operator does not pay for a sleeping function.
            let due = Duration::try_from_secs_f64((part.writes - written_before) / units)
                .unwrap_or_default();
            pause = due.saturating_sub(began.elapsed());
        }
        if !is_whole {
            break;
        }
    }
    let SegmentProgress { is_done, commits, reads, writes, after: _ } = part;
    let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    Ok(answer(
        RebuildResponse { is_done, commits, reads, writes, pause, failed: Vec::new() },
        failed,
    ))
}

fn answer(rebuilt: RebuildResponse, failed: Vec<(StreamId, RebuildError)>) -> RebuildResponse {
    for (stream, error) in &failed {
        tracing::error!(%stream, error = %Causes(error), "not rebuilt");
    }
    let named = failed.into_iter().take(NAMED);
    let named = named.map(|(stream, error)| Failed { stream, reason: Causes(&error).to_string() });
    RebuildResponse { failed: named.collect(), ..rebuilt }
}

/// The end of a stream's commits in a page of the log.
struct End {
    stream: StreamId,
    version: u64,
    commits: u64,
}

impl End {
    fn of(commits: &[Commit]) -> Option<Self> {
        let last = commits.last()?;
        Some(Self {
            stream: last.stream.clone(),
            version: last.version,
            commits: commits.len() as u64,
        })
    }
}

/// Groups consecutive commits of the same stream.
fn by_stream(commits: Vec<Commit>) -> Vec<Vec<Commit>> {
    let mut streams: Vec<Vec<Commit>> = Vec::new();
    for commit in commits {
        match streams.last_mut() {
            Some(list) if list.last().is_some_and(|last| last.stream == commit.stream) => {
                list.push(commit)
            }
            Some(_) | None => streams.push(vec![commit]),
        }
    }
    streams
}

/// Returns the first version that is missing between these commits of one stream.
pub(crate) fn hole_in(commits: &[Commit]) -> Option<u64> {
    commits.windows(2).find_map(|pair| {
        let next = pair[0].version + 1;
        (pair[1].version != next).then_some(next)
    })
}

/// The response of a function that handled an event of its own kind, or a request to rebuild its
/// view.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer<Handled> {
    /// The response to an event.
    Handled(Handled),
    /// The progress of the rebuild.
    Rebuilt(RebuildResponse),
}

/// Whether all rows would fail like this one, and may be written later.
pub(crate) fn is_outage(error: &TableError) -> bool {
    match error {
        TableError::Throttled(_) | TableError::Unavailable(_) => true,
        TableError::Row(_) | TableError::TooManyRows(_) | TableError::Cursor(_) => false,
    }
}
