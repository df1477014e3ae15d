//! Rebuilds: a view is rebuilt from the log while commits are written and delivered, over a wire
//! that misbehaves.
//!
//! Workers and functions are killed in the middle of calls. Functions that started before the
//! rebuild do not see the new generation for a while. Then reads switch to it, back, and forward
//! again, each time after a comparison. Some deliveries are late, and some are lost. A read must
//! never show an older version than an earlier read, whatever is delivered. In the end, the rows of
//! both generations must be the fold of the log.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Changes, ChangesError, Commit, EventLog, LogView, StreamId, Write,
    changes::{Fields, Key},
    load,
    manifest::Manifest,
    testing::tank::Tank,
};
use ledgerline_dynamodb::{
    DynamoDbStore, Generations, KeyNames, LogRows, Move, StateRows, ViewTable,
};
use ledgerline_lambda::{
    log_projector::{self, LogProjector},
    queue::{Consumer, QueueRunner},
    rebuild::{RebuildError, RebuildRequest, RebuildResponse},
    state_projector::{self, StateProjector},
};
use ledgerline_tank::views::FILLS;
use ledgerline_testing::table;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    Application, Effort, Runs, Tried,
    counts::Counts,
    faulty_wire::{Plan, Wire},
    pipeline::commit_message,
    role::Role,
    tank_application::{SITES, Site},
    world::{World, each_seed},
};

/// The number of the rebuilt generation.
const MADE: u32 = 1;
/// The most comparisons of a switch, as of the operator's tool.
const COMPARISONS: usize = 5;
/// The number of parts into which a rebuild divides the log.
const PARTS: i32 = 3;

/// A view with a row for each commit, and a sum over all streams.
const SUMS: LogView = LogView {
    table: FILLS,
    of: &["tank"],
    writes: &[Write::Put, Write::Update, Write::Delete],
    changes: |commit| {
        let mut changes = Changes::new(FILLS);
        changes.put(&row(commit, 0))?;
        changes.add("all", "sum", "versions", i64::try_from(commit.version).unwrap_or(0));
        changes.add("all", "sum", "commits", 1);
        // Some rows are deleted.
        if commit.version > 3 {
            changes.delete(commit.stream.id(), &format!("{:020}#0000", commit.version - 3));
        }
        Ok(changes)
    },
};

/// A view that inserts rows: none, nine or eighteen for a commit.
const LISTS: LogView = LogView {
    table: FILLS,
    of: &["tank"],
    writes: &[Write::Insert],
    changes: |commit| {
        let mut changes = Changes::new(FILLS);
        // A stream has more rows than one call writes.
        for place in 0..commit.version % 3 * 9 {
            changes.insert(commit, &row(commit, place))?;
        }
        Ok::<_, ChangesError>(changes)
    },
};

fn row(commit: &Commit, place: u64) -> Value {
    let entry = format!("{:020}#{place:04}", commit.version);
    json!({ "tankId": commit.stream.id(), "entry": entry, "command": commit.command })
}

const COMMITS: &str = "commits";
const FAULTS: &str = "faults";
/// Deliveries with commits of several streams.
const BATCHES: &str = "batches of several streams";
const KILLED: &str = "invocations killed in the middle of a call";
const ASKED_AGAIN: &str = "parts asked for again";
const MISSING: &str = "streams found missing by a comparison";
const REPAIRED: &str = "streams repaired before a rollback";
const SWITCHED: &str = "switches of the reads";

/// At least twice the rebuilds in which the planted bugs of the tests are found.
const RUNS: Runs = Runs { least: 80, seconds: 20, long: 10_000 };

/// Plays rebuilds. Fails if a read would show an older version than an earlier one, or the rows are
/// not the fold.
pub(crate) fn proof(effort: &Effort, application: &Application) -> Result<Tried> {
    play(effort, application, Kind::manifest, Rollback::Compared)
}

/// The way in which the operator's tool rolls back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rollback {
    Compared,
    /// A planted bug: reads return to the previous generation as it is.
    Blind,
}

/// Plays rebuilds by functions with the grants of this manifest.
fn play(
    effort: &Effort,
    application: &Application,
    manifest: fn(Kind) -> Manifest,
    rollback: Rollback,
) -> Result<Tried> {
    let play = |(): &mut (), seed| {
        // Each run has a world of its own, because a rebuild reads the whole log.
        let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable", "SitesTable"])?;
        let quiet = world.wire.fork();
        let mut run = Run::new(&world.wire, &quiet, application, manifest, seed);
        let played = world.runtime.block_on(run.play(rollback));
        played.with_context(|| format!("{:?}", run.kind))?;
        Ok(run.counts)
    };
    let counts = each_seed(effort, &RUNS, || Ok(()), play)?;
    let units = [KILLED, ASKED_AGAIN, MISSING, REPAIRED, SWITCHED, FAULTS, BATCHES];
    counts.ensure_tried(effort, &RUNS, &units)?;
    Ok(Tried::new(counts.runs, "rebuilds", counts))
}

/// The kinds of views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sums,
    Lists,
    States,
}

impl Kind {
    /// The manifest of the view's function.
    fn manifest(self) -> Manifest {
        match self {
            Self::Sums => log_projector::manifest(&SUMS),
            Self::Lists => log_projector::manifest(&LISTS),
            Self::States => state_projector::manifest(&SITES),
        }
    }

    /// The view's table.
    fn table(self, wire: &Wire) -> ViewTable {
        let (id, keys) = match self {
            Self::States => ("SitesTable", KeyNames::from(&SITES.table)),
            Self::Sums | Self::Lists => ("FillsTable", KeyNames::from(&FILLS)),
        };
        ViewTable::new(wire.dynamodb(), table(id), keys)
    }
}

/// An instance of the view's function. It uses the generations that it read at its start, because
/// the wall clock does not advance in a run.
enum Instance {
    Log(QueueRunner<DynamoDbStore, LogProjector>),
    States(StateProjector<Tank, Site>),
}

impl Instance {
    fn new(wire: &Wire, kind: Kind, role: &Arc<Role>) -> Self {
        let wire = &wire.under(role);
        let store = || World::store_at(wire);
        let log = |view| {
            let consumer = LogProjector::new(wire.dynamodb(), table("FillsTable"), view);
            Self::Log(QueueRunner { store: store(), consumer })
        };
        match kind {
            Kind::Sums => log(SUMS),
            Kind::Lists => log(LISTS),
            Kind::States => {
                let table = StateRows::new(wire.dynamodb(), table("SitesTable"), SITES.table);
                Self::States(StateProjector::new(table, store(), SITES))
            }
        }
    }

    /// Delivers commits in one batch. The result has, for each commit, whether the instance applied
    /// it.
    async fn deliver(&self, commits: &[&Commit]) -> Vec<bool> {
        match self {
            Self::Log(runner) => {
                let id = |commit: &Commit| format!("{}@{}", commit.stream, commit.version);
                let messages = commits.iter().map(|commit| commit_message(&id(commit), commit));
                let messages: Vec<_> = messages.collect();
                let failed = runner.batch(&messages).await.batch_item_failures;
                let is_taken =
                    |commit: &&Commit| failed.iter().all(|one| one.item_identifier != id(commit));
                commits.iter().map(is_taken).collect()
            }
            // No code reads the schema of this state, so the projector folds the state from the
            // log.
            Self::States(projector) => {
                let entry = |commit: &&Commit| {
                    json!({
                        "stream": commit.stream, "aggregate": { "lastKnownVersion": commit.version }, "aggregateSchema": 0,
                        "lastEvent": { "stream": commit.stream, "version": commit.version, "index": 0, "eventType": "", "schema": 1, "payload": null, "at": commit.at },
                        "meta": commit.meta,
                    })
                };
                let taken =
                    projector.project_all(commits.iter().map(entry).collect()).await.is_ok();
                // A failed invocation is retried with all of its states.
                vec![taken; commits.len()]
            }
        }
    }

    async fn rebuild(&self, asked: &RebuildRequest) -> Result<RebuildResponse, RebuildError> {
        match self {
            Self::Log(runner) => runner.consumer.rebuild(&runner.store, asked).await,
            Self::States(projector) => projector.rebuild(asked).await,
        }
    }
}

struct Run<'a> {
    wire: &'a Wire,
    quiet: &'a Wire,
    rng: Rng,
    kind: Kind,
    /// The role of the view's function.
    role: Arc<Role>,
    /// The table, at the quiet wire.
    table: ViewTable,
    streams: Vec<Vec<Commit>>,
    /// The number of commits of each stream that are in the log, and of those that were delivered.
    written: Vec<usize>,
    delivered: Vec<usize>,
    instances: Vec<Instance>,
    parts: BTreeMap<i32, bool>,
    /// The stream whose messages are lost, until the last one.
    lost: Option<usize>,
    /// The generation that reads use.
    active: u32,
    /// The generation to which reads may switch: a comparison found every stream in it.
    complete: Option<u32>,
    /// The version of each stream at the last read.
    shown: Vec<u64>,
    /// Whether the plan of the wire has no faults.
    is_calm: bool,
    counts: Counts,
}

impl<'a> Run<'a> {
    fn new(
        wire: &'a Wire,
        quiet: &'a Wire,
        application: &Application,
        manifest: fn(Kind) -> Manifest,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        fastrand::seed(seed);
        let kind = [Kind::Sums, Kind::Lists, Kind::States][rng.usize(0..3)];
        let role = Role::new(&manifest(kind));
        let written = &application.streams[rng.usize(0..application.streams.len())];
        let streams: Vec<_> = (0..rng.usize(2..7))
            .map(|number| (written.write)(&number.to_string(), &mut rng))
            .collect();
        let faults = [0, 30, 150][rng.usize(0..3)];
        wire.follow(Plan::Random(faults), seed);
        Self {
            instances: (0..3).map(|_| Instance::new(wire, kind, &role)).collect(),
            role,
            table: kind.table(quiet),
            written: vec![0; streams.len()],
            delivered: vec![0; streams.len()],
            parts: (0..PARTS).map(|part| (part, false)).collect(),
            lost: rng.bool().then(|| rng.usize(0..streams.len())),
            active: 0,
            complete: None,
            shown: vec![0; streams.len()],
            is_calm: faults == 0,
            counts: Counts::default(),
            wire,
            quiet,
            rng,
            kind,
            streams,
        }
    }

    async fn play(&mut self, rollback: Rollback) -> Result<()> {
        for _ in 0..self.rng.usize(0..40) {
            self.write_or_deliver().await?;
        }
        self.begin().await?;
        for _ in 0..self.rng.usize(10..60) {
            match self.rng.u32(0..6) {
                0 => self.work().await?,
                1 => self.replace(),
                _ => self.write_or_deliver().await?,
            }
        }
        // At this point, the cached generations of every function have expired.
        self.instances = (0..3).map(|_| self.cold_instance()).collect();
        while self.parts.values().any(|is_done| !is_done) {
            self.work().await?;
            if self.rng.bool() {
                self.write_or_deliver().await?;
            }
        }
        for to in [MADE, 0, MADE].into_iter().take(self.rng.usize(1..=3)) {
            self.switch(to, rollback).await?;
            for _ in 0..self.rng.usize(0..40) {
                self.write_or_deliver().await?;
            }
        }
        // The wire applies late requests within this time.
        self.wire.calm();
        sleep(Duration::from_secs(120)).await;
        for stream in 0..self.streams.len() {
            while self.written[stream] < self.streams[stream].len() {
                self.write(stream).await?;
            }
            let last = self.streams[stream].last().cloned().context("an empty stream")?;
            let delivered = self.instances[0].deliver(&[&last]).await;
            ensure!(delivered == [true], "{} cannot be delivered", last.stream);
        }
        self.counts.add(FAULTS, self.wire.take_faults().values().sum());
        self.wire.ensure_nothing_denied()?;
        self.compare().await
    }

    async fn begin(&mut self) -> Result<()> {
        let generations = self.table.generations().await?;
        begin(&self.table, &generations).await
    }

    fn cold_instance(&self) -> Instance {
        Instance::new(self.wire, self.kind, &self.role)
    }

    /// A time after which an invocation is killed in the middle of a call, or one in which it ends.
    fn time(&mut self, is_short: bool, short: u64) -> Duration {
        Duration::from_millis(if is_short { self.rng.u64(1..short) } else { 300_000 })
    }

    /// Replaces an instance by one that reads the generations.
    fn replace(&mut self) {
        let one = self.rng.usize(0..self.instances.len());
        self.instances[one] = self.cold_instance();
    }

    async fn write(&mut self, stream: usize) -> Result<()> {
        let Some(commit) = self.streams[stream].get(self.written[stream]) else { return Ok(()) };
        World::store_at(self.quiet).append(commit, None).await?;
        self.written[stream] += 1;
        self.counts.add(COMMITS, 1);
        Ok(())
    }

    /// Writes the next commit of a stream, or delivers one commit, or a batch from all streams. It
    /// delivers mostly the next commits, and sometimes earlier or later ones.
    async fn write_or_deliver(&mut self) -> Result<()> {
        let stream = self.rng.usize(0..self.streams.len());
        let is_lost = self.lost == Some(stream);
        if self.written[stream] == 0 || is_lost || self.rng.u32(0..3) == 0 {
            return self.write(stream).await;
        }
        let mut batch = Vec::new();
        let (of, most) = if self.rng.u32(0..4) == 0 {
            (0..self.streams.len(), 3)
        } else {
            (stream..stream + 1, 1)
        };
        let lost = self.lost;
        for stream in of.filter(|stream| self.written[*stream] > 0 && lost != Some(*stream)) {
            let first = match self.rng.u32(0..4) {
                0 => self.rng.usize(0..self.written[stream]),
                _ => self.delivered[stream].min(self.written[stream] - 1),
            };
            let end = self.written[stream].min(first + self.rng.usize(1..=most));
            batch.extend((first..end).map(|place| (stream, place)));
        }
        // A queue delivers at most ten messages in a batch.
        batch.truncate(10);
        let is_mixed = batch.iter().any(|(other, _)| *other != batch[0].0);
        self.counts.add(BATCHES, is_mixed.into());
        let one = self.rng.usize(0..self.instances.len());
        let is_short = self.rng.u32(0..5) == 0;
        let time = self.time(is_short, 200);
        let commits: Vec<_> =
            batch.iter().map(|(stream, place)| &self.streams[*stream][*place]).collect();
        match timeout(time, self.instances[one].deliver(&commits)).await {
            Ok(taken) => {
                // A function answers a panic like any other failure. Without faults on the wire, no
                // delivery may fail.
                ensure!(
                    !self.is_calm || !taken.contains(&false),
                    "no request fails, and of the commits {batch:?} some are not taken: {taken:?}"
                );
                for ((stream, place), _) in
                    batch.into_iter().zip(taken).filter(|(_, is_taken)| *is_taken)
                {
                    self.delivered[stream] = self.delivered[stream].max(place + 1);
                }
            }
            Err(_) => {
                self.counts.add(KILLED, 1);
                self.instances[one] = self.cold_instance();
            }
        }
        self.no_read_goes_back().await
    }

    /// Two workers rebuild parts of the log. One of the workers may be killed in the middle of a
    /// call.
    async fn work(&mut self) -> Result<()> {
        let left: Vec<_> =
            self.parts.iter().filter(|(_, is_done)| !**is_done).map(|(part, _)| *part).collect();
        let (Some(one), Some(other)) = (self.rng.choice(&left), self.rng.choice(&left)) else {
            return Ok(());
        };
        let workers = [self.cold_instance(), self.cold_instance()];
        let requests = [*one, *other].map(|part| request(part, PARTS, Vec::new()));
        let is_short = self.rng.bool();
        let time = self.time(is_short, 400);
        let (first, second) = tokio::join!(
            timeout(time, workers[0].rebuild(&requests[0])),
            timeout(Duration::from_secs(300), workers[1].rebuild(&requests[1])),
        );
        for (part, made) in [(*one, first), (*other, second)] {
            match made {
                Ok(Ok(rebuilt)) if rebuilt.is_done => _ = self.parts.insert(part, true),
                made => {
                    self.counts.add(ASKED_AGAIN, 1);
                    self.counts.add(KILLED, u64::from(made.is_err()));
                }
            }
        }
        self.wire.ensure_nothing_denied()
    }

    /// Compares a generation with the log, and switches reads to it, as the operator's tool does.
    async fn switch(&mut self, to: u32, rollback: Rollback) -> Result<()> {
        let mut is_switched = false;
        for _ in 0..COMPARISONS {
            let from = self.table.remove_marks().await?;
            if to == 0 && rollback == Rollback::Blind {
                self.complete = Some(to);
            } else {
                self.close(to).await?;
            }
            // The wall clock does not reach the end of the switch during a run.
            let at = Timestamp::now() + SignedDuration::from_hours(1);
            is_switched = change(&self.table, &from, from.switch(to, at)?).await?;
            if is_switched {
                break;
            }
            self.complete = None;
            let marks = self.table.generations().await?.marks_since(&from).cloned();
            ensure!(marks.is_some_and(|marks| !marks.is_empty()), "no function has marked it");
        }
        ensure!(is_switched, "functions mark the generation {to} after each comparison");
        self.counts.add(SWITCHED, 1);
        // Some functions do not know of the switch yet, and reads still use the other generation.
        for _ in 0..self.rng.usize(0..20) {
            self.write_or_deliver().await?;
        }
        let from = self.table.generations().await?;
        let mut switched = from.clone();
        switched.previous = None;
        ensure!(change(&self.table, &from, switched).await?, "the switch has not ended");
        self.instances = (0..3).map(|_| self.cold_instance()).collect();
        self.active = to;
        self.complete = None;
        self.no_read_goes_back().await
    }

    /// Compares a generation with the log, and repairs it.
    async fn close(&mut self, generation: u32) -> Result<()> {
        for _ in 0..200 {
            let mut missing = Vec::new();
            for (place, stream) in self.streams.iter().enumerate() {
                let head = self.written[place] as u64;
                if self.position(generation, &stream[0].stream).await? < head {
                    missing.push(stream[0].stream.clone());
                }
            }
            if missing.is_empty() {
                self.complete = Some(generation);
                return self.no_read_goes_back().await;
            }
            self.counts.add(if generation == 0 { REPAIRED } else { MISSING }, missing.len() as u64);
            let request = RebuildRequest { generation, ..request(0, PARTS, missing) };
            let is_short = self.rng.bool();
            let time = self.time(is_short, 400);
            let instance = self.cold_instance();
            if timeout(time, instance.rebuild(&request)).await.is_err() {
                self.counts.add(KILLED, 1);
            }
            self.write_or_deliver().await?;
        }
        bail!("the comparison of generation {generation} comes to no end")
    }

    async fn position(&self, generation: u32, stream: &StreamId) -> Result<u64> {
        position(self.table.at(generation), self.kind, stream).await
    }

    /// Checks that no read shows an older version than an earlier read, and that a complete
    /// generation is never behind the one that is read.
    async fn no_read_goes_back(&mut self) -> Result<()> {
        for (place, commits) in self.streams.iter().enumerate() {
            let stream = &commits[0].stream;
            // It is written first, so it is read last.
            let read = self.position(self.active, stream).await?;
            let shown = std::mem::replace(&mut self.shown[place], read);
            ensure!(read >= shown, "{stream} goes back from {shown} to {read}");
            if let Some(complete) = self.complete {
                let there = self.position(complete, stream).await?;
                ensure!(there >= read, "{stream} would go back from {read} to {there}");
            }
        }
        Ok(())
    }

    /// Checks that both generations have the rows of the fold.
    async fn compare(&self) -> Result<()> {
        let expected = match self.kind {
            Kind::Sums => self.fold(&SUMS)?,
            Kind::Lists => self.fold(&LISTS)?,
            Kind::States => self.states().await?,
        };
        let name = match self.kind {
            Kind::States => "SitesTable",
            Kind::Sums | Kind::Lists => "FillsTable",
        };
        let mut found: BTreeMap<u32, BTreeMap<Key, Fields>> =
            BTreeMap::from([(0, BTreeMap::new()), (MADE, BTreeMap::new())]);
        let KeyNames { partition: partition_key, sort } = self.table.keys();
        let scanned = self.quiet.dynamodb().scan().table_name(table(name)).send().await?;
        for mut item in scanned.items.unwrap_or_default() {
            let Some(AttributeValue::S(partition)) = item.get(&**partition_key).cloned() else {
                continue;
            };
            let (generation, bare) = match partition.strip_prefix("$1/") {
                Some(bare) => (MADE, bare),
                None => (0, partition.as_str()),
            };
            // The items that are no rows differ between generations: parts, and separate positions.
            let is_beside =
                item.values().any(|value| *value == AttributeValue::S("#position".to_owned()));
            if is_beside || bare.starts_with('$') {
                continue;
            }
            item.insert(partition_key.to_string(), AttributeValue::S(bare.to_owned()));
            item.remove("#position");
            let fields: Fields = serde_dynamo::from_item(item)?;
            let text = |name: &str| {
                fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let key = (text(partition_key), sort.as_deref().map(text).unwrap_or_default());
            found.entry(generation).or_default().insert(key, fields);
        }
        for (generation, rows) in &found {
            ensure!(
                *rows == expected,
                "the rows of generation {generation} are {rows:?}\n  and should be {expected:?}"
            );
        }
        Ok(())
    }

    fn fold(&self, view: &LogView) -> Result<BTreeMap<Key, Fields>> {
        let mut rows = BTreeMap::new();
        for commit in self.streams.iter().flatten() {
            (view.changes)(commit)?.fold(&mut rows);
        }
        Ok(rows)
    }

    async fn states(&self) -> Result<BTreeMap<Key, Fields>> {
        let mut rows = BTreeMap::new();
        let log = World::store_at(self.quiet);
        for stream in self.streams.iter().map(|stream| &stream[0].stream) {
            let loaded = load::<Tank>(&log, stream, None, ledgerline::Consistency::Strong).await;
            let loaded = loaded?;
            let row = (SITES.row)(stream.id(), loaded.version, loaded.state);
            if let Some(Value::Object(fields)) = row.map(serde_json::to_value).transpose()? {
                rows.insert((stream.id().to_owned(), String::new()), fields);
            }
        }
        Ok(rows)
    }
}

/// Returns the position of a view's table, at a generation, in a stream.
async fn position(table: ViewTable, kind: Kind, stream: &StreamId) -> Result<u64> {
    Ok(match kind {
        Kind::States => {
            let rows = StateRows::from_table(table, SITES.table);
            rows.find_row::<Value>(stream.id()).await?.0
        }
        Kind::Sums | Kind::Lists => {
            LogRows::from_table(table, FILLS).consistent_position(stream).await?
        }
    })
}

/// Begins the rebuild of a table with these generations.
async fn begin(table: &ViewTable, generations: &Generations) -> Result<()> {
    let building = generations.begin_build(Timestamp::UNIX_EPOCH)?;
    ensure!(change(table, generations, building).await?, "not begun");
    Ok(())
}

/// Changes the generations, as an operator. Returns whether they were changed.
async fn change(table: &ViewTable, from: &Generations, to: Generations) -> Result<bool> {
    let at = Timestamp::UNIX_EPOCH;
    let by = Move { at, what: "a proof".into(), ..Move::default() };
    Ok(table.compare_and_set(from, to, by).await?)
}

fn request(part: i32, parts: i32, streams: Vec<StreamId>) -> RebuildRequest {
    RebuildRequest { generation: MADE, part, parts, streams, ..RebuildRequest::default() }
}
