//! The rebuild of a view: a function writes the rows of a new generation
//! ([`Generations`](ledgerline_dynamodb::Generations)) from the log, part by part.
//!
//! The operator's tool invokes the function. Each invocation works for some seconds and stores its
//! progress, and the tool invokes the function again. A commit may be written twice, by two
//! concurrent workers or after a kill. The guards are those of deliveries.

use std::{collections::BTreeSet, time::Duration};

use aws_config::SdkConfig;
use futures::{StreamExt, TryFutureExt, stream};
use ledgerline::{
    Causes, Commit, LoadError, StoreError, StreamId,
    manifest::{OtherView, VIEWS_TABLE},
    view_store::{RowStore, ViewError},
};
use ledgerline_dynamodb::{
    DynamoDbStore, Generations, Phase, ScanPart, Scanned, SegmentProgress, Units, ViewTable,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::view_fold::MAX_BYTES;
pub use super::{
    publication::Publication,
    view_fold::{StreamFold, StreamRange},
};
use crate::config::{self, ConfigError};

/// The time for which one invocation begins new pages. A log projector has ten seconds: the rest is
/// for the last page.
const WORK_TIME: Duration = Duration::from_secs(5);
/// The most commits that are read at once. They fit into the least memory that Lambda gives.
const PAGE_COMMITS: i32 = 1_000;
/// The number of failures that a response names.
const MAX_NAMED_FAILURES: usize = 20;

/// A request of the operator's tool: to rebuild one part of a view, or some of its streams, or to
/// fold some streams without a write.
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
    /// The ranges of streams to fold, instead of a rebuild. Their rows are those of the generation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<StreamRange>,
    /// The streams whose positions in the generation are read, instead of a rebuild.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<StreamId>,
    /// Whether the generation, which is being dropped, is deleted, instead of a rebuild.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete: bool,
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
    pub failed: Vec<FailedStream>,
    /// The folds that fit into the time and the size of a response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<StreamFold>,
    /// The positions, in the order of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<u64>,
}

/// A stream that could not be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedStream {
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
    /// The generation is not in the phase in which it is built or repaired. A late worker must not
    /// write rows of a generation that is active, or that is being deleted.
    #[error("the generation {0} is neither built nor kept")]
    NotStandby(u32),
    /// The generation is not in the phase [`Phase::Dropping`], so the function does not delete it.
    #[error("the generation {0} is not being dropped; drop it with `ledger` first")]
    NotDropping(u32),
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
    Table(#[from] ViewError),
}

/// The write units used, the failed streams, and the streams that are left.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The write units used.
    pub(crate) writes: f64,
    /// Streams that could not be rebuilt.
    pub(crate) failed: Vec<(StreamId, RebuildError)>,
    /// Streams that the invocation did not reach in its time.
    pub(crate) left: BTreeSet<StreamId>,
}

impl Progress {
    /// Adds the result of one stream: the write units used, or the error.
    pub(crate) fn add(&mut self, stream: StreamId, result: Result<f64, RebuildError>) {
        match result {
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
    fn categories(&self) -> Vec<&'static str>;

    /// The generations of the view.
    fn generations(&self) -> &ViewTable;

    /// Returns the store of the rows, at this generation.
    fn rows(&self, generation: u32) -> impl RowStore;

    /// Writes these commits into the rows of this generation. Each list is of one stream, in order.
    /// A stream that cannot be rebuilt is named, and does not keep the others from their rows.
    /// After `until`, no more streams are begun.
    fn rebuild_page(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> impl Future<Output = Result<Progress, ViewError>>;

    /// Writes the commits of a stream that this generation lacks, from the log. Returns the write
    /// units used.
    fn rebuild_stream(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        stream: &StreamId,
        until: Instant,
    ) -> impl Future<Output = Result<f64, RebuildError>>;

    /// Folds a range of a stream into the changes that a rebuild of this generation would write,
    /// and writes nothing. A long range ends early.
    fn fold_range(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        range: &StreamRange,
        until: Instant,
    ) -> impl Future<Output = Result<StreamFold, RebuildError>>;
}

/// Returns the number of streams that are rebuilt at once. Each has a page of commits in memory,
/// which is much larger with body objects.
pub(crate) fn concurrent_streams(log: &DynamoDbStore) -> usize {
    if log.has_bodies() { 8 } else { 16 }
}

/// Rebuilds each of these streams from the log, some at a time, until the time is over.
pub(crate) async fn rebuild_each(
    view: &impl Rebuild,
    generation: u32,
    log: &DynamoDbStore,
    streams: impl IntoIterator<Item = StreamId>,
    until: Instant,
) -> Progress {
    let rebuild_one = async |stream: StreamId| {
        let result = if Instant::now() < until {
            view.rebuild_stream(generation, log, &stream, until).await
        } else {
            Err(RebuildError::TimeIsOver { writes: 0.0 })
        };
        (stream, result)
    };
    let all = stream::iter(streams).map(rebuild_one).buffer_unordered(concurrent_streams(log));
    all.fold(Progress::default(), async |mut all, (stream, result)| {
        all.add(stream, result);
        all
    })
    .await
}

/// Rebuilds the requested part or streams, for some seconds.
///
/// # Errors
/// When the generation is neither built nor kept, or the log or the table fails. The stored
/// progress stays.
pub(crate) async fn rebuild(
    view: &impl Rebuild,
    log: &DynamoDbStore,
    request: &RebuildRequest,
) -> Result<RebuildResponse, RebuildError> {
    let began = Instant::now();
    let generation = request.generation;
    if !request.folds.is_empty() {
        return Ok(fold_ranges(view, log, request, began + WORK_TIME).await);
    }
    if !request.positions.is_empty() {
        let positions = view.rows(generation).positions(&request.positions).await?;
        return Ok(RebuildResponse { is_done: true, positions, ..RebuildResponse::default() });
    }
    let generations = view.generations().generations().await?;
    if request.delete {
        if generations.generation_in_phase(Phase::Dropping) != Some(generation) {
            return Err(RebuildError::NotDropping(generation));
        }
        // Readers of the store itself may still see the generation.
        if let Some(active) = view.generations().written().await?.last() {
            view.rows(*active).publish().await?;
        }
        view.rows(generation).delete_generation().await?;
        return Ok(RebuildResponse { is_done: true, ..RebuildResponse::default() });
    }
    check_standby(&generations, generation)?;
    if request.streams.is_empty() {
        return rebuild_part(view, log, request, began).await;
    }
    let streams = request.streams.iter().cloned();
    let progress = rebuild_each(view, generation, log, streams, began + WORK_TIME).await;
    let response = RebuildResponse {
        is_done: progress.left.is_empty(),
        writes: progress.writes,
        ..RebuildResponse::default()
    };
    Ok(with_failures(response, progress.failed))
}

/// Checks that a generation is being built, or is kept: before a rollback, the tool repairs streams
/// that are behind in it.
pub(crate) fn check_standby(
    generations: &Generations,
    generation: u32,
) -> Result<(), RebuildError> {
    let is_standby = [Phase::Building, Phase::Kept]
        .into_iter()
        .any(|phase| generations.generation_in_phase(phase) == Some(generation));
    is_standby.then_some(()).ok_or(RebuildError::NotStandby(generation))
}

/// Folds these ranges, at least the first one, until the time is over or the response is full.
async fn fold_ranges(
    view: &impl Rebuild,
    log: &DynamoDbStore,
    request: &RebuildRequest,
    until: Instant,
) -> RebuildResponse {
    let units = Units::default();
    let log = log.with_units(&units);
    let (mut folds, mut failed, mut bytes) = (Vec::new(), Vec::new(), 0);
    for range in &request.folds {
        match view.fold_range(request.generation, &log, range, until).await {
            Ok(fold) => {
                bytes += fold.bytes();
                folds.push(fold);
            }
            Err(error) => failed.push((range.stream.clone(), error)),
        }
        if bytes >= MAX_BYTES || Instant::now() >= until {
            break;
        }
    }
    let reads = units.total();
    with_failures(RebuildResponse { is_done: true, reads, folds, ..Default::default() }, failed)
}

async fn rebuild_part(
    view: &impl Rebuild,
    log: &DynamoDbStore,
    request: &RebuildRequest,
    began: Instant,
) -> Result<RebuildResponse, RebuildError> {
    let RebuildRequest { generation, part: number, parts, write_units, .. } = *request;
    if !(0..parts).contains(&number) {
        return Err(RebuildError::NoPart { part: number, parts });
    }
    let until = began + WORK_TIME;
    let reader = PartReader {
        log,
        part: ScanPart { part: number, parts },
        categories: view.categories(),
        limit: page_limit(write_units),
    };
    let table = view.generations().at(generation);
    let name = SegmentProgress::name(number, parts);
    let mut part = table.part(&name).await?;
    let written_before = part.writes;
    let mut failed = Vec::new();
    let mut next = None;
    let mut pause = Duration::ZERO;
    while !part.is_done && Instant::now() < until && pause.is_zero() {
        let Scanned { commits, after, units, damaged: _ } = match next.take() {
            Some(page) => page,
            None => reader.read(part.after.as_ref()).await?,
        };
        let streams = group_by_stream(commits);
        let ends: Vec<_> = streams.iter().filter_map(|commits| StreamEnd::new(commits)).collect();
        // The next page is read while this one is written.
        let read_next = async {
            let is_wanted = after.is_some() && Instant::now() < until;
            Ok(if is_wanted { Some(reader.read(after.as_ref()).await?) } else { None })
        };
        let write = view.rebuild_page(generation, log, streams, until).map_err(RebuildError::Table);
        let (progress, read) = futures::try_join!(write, read_next)?;
        next = read;
        let is_whole = !ends.iter().any(|end| progress.left.contains(&end.stream));
        part.reads += units;
        advance(&mut part, &ends, after, &progress);
        failed.extend(progress.failed);
        table.put_part(&name, &part).await?;
        if let Some(units) = write_units {
            pause = due_pause(part.writes - written_before, units, began);
        }
        if !is_whole {
            break;
        }
    }
    let SegmentProgress { is_done, commits, reads, writes, after: _ } = part;
    let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
    let response =
        RebuildResponse { is_done, commits, reads, writes, pause, ..RebuildResponse::default() };
    Ok(with_failures(response, failed))
}

/// A reader of the pages of one part of the log.
struct PartReader<'a> {
    log: &'a DynamoDbStore,
    part: ScanPart,
    categories: Vec<&'static str>,
    limit: i32,
}

impl PartReader<'_> {
    async fn read(&self, after: Option<&(StreamId, u64)>) -> Result<Scanned, RebuildError> {
        Ok(self.log.scan(self.part, after, &self.categories, self.limit).await?)
    }
}

/// The most commits of a page. A page is written without a pause, so it may not be more than the
/// work of one invocation.
#[expect(clippy::cast_possible_truncation, reason = "it is at most PAGE_COMMITS")]
fn page_limit(write_units: Option<f64>) -> i32 {
    let limit = |units: f64| (units * WORK_TIME.as_secs_f64()).clamp(1.0, f64::from(PAGE_COMMITS));
    write_units.map_or(PAGE_COMMITS, |units| limit(units) as i32)
}

/// Advances a part over the written streams of a page. The streams before the first one that was
/// left are done, and are not read again.
fn advance(
    part: &mut SegmentProgress,
    ends: &[StreamEnd],
    after: Option<(StreamId, u64)>,
    progress: &Progress,
) {
    let is_left = |end: &StreamEnd| progress.left.contains(&end.stream);
    let done = ends.iter().position(is_left).unwrap_or(ends.len());
    part.commits += ends[..done].iter().map(|end| end.commits).sum::<u64>();
    part.writes += progress.writes;
    if done == ends.len() {
        part.is_done = after.is_none();
        part.after = after;
    } else if let Some(end) = ends[..done].last() {
        part.after = Some((end.stream.clone(), end.version));
    }
}

/// The pause after this many write units since the invocation began. The caller waits, so that the
/// operator does not pay for a sleeping function.
fn due_pause(written: f64, units_per_second: f64, began: Instant) -> Duration {
    let due = Duration::try_from_secs_f64(written / units_per_second).unwrap_or_default();
    due.saturating_sub(began.elapsed())
}

/// Adds the streams that could not be folded to a response, and logs them.
fn with_failures(
    response: RebuildResponse,
    failed: Vec<(StreamId, RebuildError)>,
) -> RebuildResponse {
    for (stream, error) in &failed {
        tracing::error!(%stream, error = %Causes(error), "not folded");
    }
    let named = failed.into_iter().take(MAX_NAMED_FAILURES);
    let named =
        named.map(|(stream, error)| FailedStream { stream, reason: Causes(&error).to_string() });
    RebuildResponse { failed: named.collect(), ..response }
}

/// The end of a stream's commits in a page of the log.
struct StreamEnd {
    stream: StreamId,
    version: u64,
    commits: u64,
}

impl StreamEnd {
    fn new(commits: &[Commit]) -> Option<Self> {
        let last = commits.last()?;
        Some(Self {
            stream: last.stream.clone(),
            version: last.version,
            commits: commits.len() as u64,
        })
    }
}

/// Groups consecutive commits of the same stream.
fn group_by_stream(commits: Vec<Commit>) -> Vec<Vec<Commit>> {
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
pub(crate) fn find_hole(commits: &[Commit]) -> Option<u64> {
    commits.windows(2).find_map(|pair| {
        let next = pair[0].version + 1;
        (pair[1].version != next).then_some(next)
    })
}

/// Returns the generations of a view whose rows are in another store.
pub(super) fn generation_table(
    sdk: &SdkConfig,
    view: &OtherView,
) -> Result<ViewTable, ConfigError> {
    let name = config::text(VIEWS_TABLE.variable)?;
    Ok(ViewTable::from_view(aws_sdk_dynamodb::Client::new(sdk), name, view))
}

/// Prepares the written generations of a store, which also opens the connections, and publishes the
/// active one. A store that lacks a right, or has another table under a name of the view, fails the
/// start. An outage does not: the events fail until the store is back.
pub(super) async fn prepare_start(
    generations: &ViewTable,
    rows: &impl RowStore,
) -> Result<(), ViewError> {
    let written = generations.written().await.unwrap_or_default();
    for number in &written {
        if let Err(error) = rows.at_generation(*number).prepare().await {
            if !error.is_outage() {
                return Err(error);
            }
            tracing::warn!(error = %Causes(&error), "the store of the view cannot be reached");
        }
    }
    publish_active(rows, &written).await;
    Ok(())
}

/// Publishes the active generation, the last number in `written`, to readers of the store itself.
/// After a failure, these readers see the previous generation.
pub(super) async fn publish_active(rows: &impl RowStore, written: &[u32]) {
    let Some(active) = written.last().map(|number| rows.at_generation(*number)) else { return };
    if active.is_publish_due()
        && let Err(error) = active.publish().await
    {
        tracing::warn!(error = %Causes(&error), "the active generation was not published");
    }
}

/// The response of a function that handled an event of its own kind, or a request to rebuild its
/// view.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ViewAnswer<Handled> {
    /// The response to an event.
    Handled(Handled),
    /// The progress of the rebuild.
    Rebuilt(RebuildResponse),
}
