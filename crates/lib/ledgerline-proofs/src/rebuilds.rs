//! Rebuilds: a view is rebuilt from the log while commits are written and delivered, over a wire
//! that misbehaves.
//!
//! Workers and functions are killed in the middle of calls. Functions that started before the
//! rebuild do not see the new generation for a while. After the closing comparison has found every
//! stream, a read must never show an older version than an earlier read, whatever is delivered. In
//! the end, the rows of both generations must be the fold of the log.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use jiff::Timestamp;
use ledgerline::{
    Changes, ChangesError, Commit, EventLog, LogView, StateView, Write,
    changes::{Fields, Key},
    load,
    manifest::Manifest,
    testing::tank::Tank,
};
use ledgerline_dynamodb::{DynamoDbStore, KeyNames, LogRows, Move, StateRows, ViewTable};
use ledgerline_lambda::{
    log_projector::{self, LogProjector},
    queue::{Consumer, QueueRunner},
    rebuild::{RebuildError, RebuildRequest, RebuildResponse},
    state_projector::{self, StateProjector},
    wire::Message,
};
use ledgerline_tank::views::FILLS;
use ledgerline_testing::table;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    Application, Effort, Finding, Tried,
    pipeline::message,
    roles::Role,
    tank::{SITES, Site},
    wire::{Plan, Wire},
    world::{World, each_seed},
};

/// The number of the rebuilt generation.
const MADE: u32 = 1;
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

/// Plays rebuilds.
///
/// # Errors
/// When a read would show an older version than an earlier one, or the rows are not the fold.
pub fn proof(effort: &Effort, application: &Application) -> Result<Tried, Finding> {
    play(effort, application, Kind::manifest)
}

/// Plays rebuilds by functions with the grants of this manifest.
fn play(
    effort: &Effort,
    application: &Application,
    manifest: fn(Kind) -> Manifest,
) -> Result<Tried, Finding> {
    let runs = effort.runs(240, 10_000);
    let mut sum = Tally::default();
    let world = || {
        let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable", "SitesTable"]);
        world.map(|world| (Wire::new(world.wire.services().database().clone()), world))
    };
    let play = |_: &mut (), seed| {
        // Each run has a world of its own, because a rebuild reads the whole log.
        let (quiet, world) = world()?;
        let played = world.runtime.block_on(async {
            let mut run = Run::new(&world.wire, &quiet, application, manifest, seed);
            run.play().await.map_err(|story| format!("{:?}: {story}", run.kind))
        });
        played.map_err(|story| Finding { seed, story })
    };
    each_seed(
        effort.seed,
        runs,
        || Ok(()),
        play,
        |tally: Tally| {
            sum.commits += tally.commits;
            sum.ended += tally.ended;
            sum.asked_again += tally.asked_again;
            sum.closed_with += tally.closed_with;
            sum.faults += tally.faults;
            sum.batches += tally.batches;
        },
    )?;
    if runs >= 200
        && [sum.ended, sum.asked_again, sum.closed_with, sum.faults, sum.batches].contains(&0)
    {
        return Err(Finding {
            seed: effort.seed,
            story: format!("something was not tried: {sum:?}"),
        });
    }
    let beside = format!(
        "{} commits, {} batches of several streams, {} faults, {} invocations ended in the middle of a call, {} parts asked for again, {} streams found missing by the closing comparison",
        sum.commits, sum.batches, sum.faults, sum.ended, sum.asked_again, sum.closed_with
    );
    Ok(Tried::new(runs, "rebuilds", beside))
}

/// The counts of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    commits: u64,
    ended: u64,
    asked_again: u64,
    closed_with: u64,
    faults: u64,
    /// The number of deliveries with commits of several streams.
    batches: u64,
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
                Self::States(StateProjector { table, log: store(), view: SITES })
            }
        }
    }

    /// Delivers commits in one batch. The result has, for each commit, whether the instance applied
    /// it.
    async fn deliver(&self, commits: &[&Commit]) -> Vec<bool> {
        match self {
            Self::Log(runner) => {
                let id = |commit: &Commit| format!("{}@{}", commit.stream, commit.version);
                let sent = |commit: &&Commit| {
                    let body = serde_json::to_string(&Message::Commit(Box::new((*commit).clone())));
                    message(&id(commit), commit.stream.as_str(), &body.unwrap_or_default(), 1)
                };
                let messages: Vec<_> = commits.iter().map(sent).collect();
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
                let taken = projector.all(commits.iter().map(entry).collect()).await.is_ok();
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
    /// Whether the closing comparison found every stream, so that reads may use the rebuilt
    /// generation.
    is_closed: bool,
    /// Whether the plan of the wire has no faults.
    is_calm: bool,
    tally: Tally,
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
        let role = Role::of(&manifest(kind));
        let written = &application.streams[rng.usize(0..application.streams.len())];
        let streams: Vec<_> = (0..rng.usize(2..7))
            .map(|number| (written.write)(&number.to_string(), &mut rng))
            .collect();
        let faults = [0, 30, 150][rng.usize(0..3)];
        wire.follow(Plan::Random(faults), seed);
        let (id, keys) = match kind {
            Kind::States => ("SitesTable", KeyNames::from(&SITES.table)),
            Kind::Sums | Kind::Lists => ("FillsTable", KeyNames::from(&FILLS)),
        };
        Self {
            instances: (0..3).map(|_| Instance::new(wire, kind, &role)).collect(),
            role,
            table: ViewTable::new(quiet.dynamodb(), table(id), keys),
            written: vec![0; streams.len()],
            delivered: vec![0; streams.len()],
            parts: (0..PARTS).map(|part| (part, false)).collect(),
            is_closed: false,
            is_calm: faults == 0,
            tally: Tally::default(),
            wire,
            quiet,
            rng,
            kind,
            streams,
        }
    }

    async fn play(&mut self) -> Result<Tally, String> {
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
        self.instances = (0..3).map(|_| Instance::new(self.wire, self.kind, &self.role)).collect();
        while self.parts.values().any(|is_done| !is_done) {
            self.work().await?;
            if self.rng.bool() {
                self.write_or_deliver().await?;
            }
        }
        self.close().await?;
        for _ in 0..self.rng.usize(0..40) {
            self.write_or_deliver().await?;
        }
        // The wire applies late requests within this time.
        self.wire.calm();
        sleep(Duration::from_secs(120)).await;
        for stream in 0..self.streams.len() {
            while self.written[stream] < self.streams[stream].len() {
                self.write(stream).await?;
            }
            let last = self.streams[stream].last().cloned().ok_or("an empty stream")?;
            if self.instances[0].deliver(&[&last]).await != [true] {
                return Err(format!("{} cannot be delivered", last.stream));
            }
        }
        self.tally.faults = self.wire.take_faults().values().sum();
        self.nothing_was_denied()?;
        self.compare().await?;
        Ok(self.tally)
    }

    async fn begin(&mut self) -> Result<(), String> {
        let now = self.table.generations().await.map_err(|error| error.to_string())?;
        let begun = now.begun(Timestamp::UNIX_EPOCH).map_err(|error| error.to_string())?;
        let by = Move {
            at: Timestamp::UNIX_EPOCH,
            what: "begin".into(),
            who: String::new(),
            why: String::new(),
        };
        let moved = self.table.compare_and_set(&now, begun, by).await;
        moved
            .map_err(|error| error.to_string())?
            .then_some(())
            .ok_or_else(|| "not begun".to_owned())
    }

    /// Replaces an instance by one that reads the generations.
    fn replace(&mut self) {
        let one = self.rng.usize(0..self.instances.len());
        self.instances[one] = Instance::new(self.wire, self.kind, &self.role);
    }

    async fn write(&mut self, stream: usize) -> Result<(), String> {
        let Some(commit) = self.streams[stream].get(self.written[stream]) else { return Ok(()) };
        World::store_at(self.quiet)
            .append(commit, None)
            .await
            .map_err(|error| error.to_string())?;
        self.written[stream] += 1;
        self.tally.commits += 1;
        Ok(())
    }

    /// Writes the next commit of a stream, or delivers one commit, or a batch from all streams. It
    /// delivers mostly the next commits, and sometimes earlier or later ones.
    async fn write_or_deliver(&mut self) -> Result<(), String> {
        let stream = self.rng.usize(0..self.streams.len());
        if self.written[stream] == 0 || self.rng.u32(0..3) == 0 {
            return self.write(stream).await;
        }
        let mut batch = Vec::new();
        let (of, most) = if self.rng.u32(0..4) == 0 {
            (0..self.streams.len(), 3)
        } else {
            (stream..stream + 1, 1)
        };
        for stream in of.filter(|stream| self.written[*stream] > 0) {
            let first = match self.rng.u32(0..4) {
                0 => self.rng.usize(0..self.written[stream]),
                _ => self.delivered[stream].min(self.written[stream] - 1),
            };
            let end = self.written[stream].min(first + self.rng.usize(1..=most));
            batch.extend((first..end).map(|place| (stream, place)));
        }
        // A queue delivers at most ten messages in a batch.
        batch.truncate(10);
        self.tally.batches += u64::from(batch.iter().any(|(other, _)| *other != batch[0].0));
        let one = self.rng.usize(0..self.instances.len());
        let time = Duration::from_millis(if self.rng.u32(0..5) == 0 {
            self.rng.u64(1..200)
        } else {
            300_000
        });
        let commits: Vec<_> =
            batch.iter().map(|(stream, place)| &self.streams[*stream][*place]).collect();
        match timeout(time, self.instances[one].deliver(&commits)).await {
            Ok(taken) => {
                // A function answers a panic like any other failure. Without faults on the wire, no
                // delivery may fail.
                if self.is_calm && taken.contains(&false) {
                    return Err(format!(
                        "no request fails, and of the commits {batch:?} some are not taken: {taken:?}"
                    ));
                }
                for ((stream, place), _) in
                    batch.into_iter().zip(taken).filter(|(_, is_taken)| *is_taken)
                {
                    self.delivered[stream] = self.delivered[stream].max(place + 1);
                }
            }
            Err(_) => {
                self.tally.ended += 1;
                self.instances[one] = Instance::new(self.wire, self.kind, &self.role);
            }
        }
        self.no_read_goes_back().await
    }

    /// Reports a missing grant by its name. Otherwise the only symptom would be a rebuild that does
    /// not finish.
    fn nothing_was_denied(&self) -> Result<(), String> {
        self.wire.take_denied().pop().map_or(Ok(()), Err)
    }

    /// Two workers rebuild parts of the log. One of the workers may be killed in the middle of a
    /// call.
    async fn work(&mut self) -> Result<(), String> {
        let asked = |part| RebuildRequest {
            generation: MADE,
            part,
            parts: PARTS,
            write_units: None,
            streams: Vec::new(),
        };
        let left: Vec<_> =
            self.parts.iter().filter(|(_, is_done)| !**is_done).map(|(part, _)| *part).collect();
        let (Some(one), Some(other)) = (self.rng.choice(&left), self.rng.choice(&left)) else {
            return Ok(());
        };
        let workers = [
            Instance::new(self.wire, self.kind, &self.role),
            Instance::new(self.wire, self.kind, &self.role),
        ];
        let time =
            Duration::from_millis(if self.rng.bool() { self.rng.u64(1..400) } else { 300_000 });
        let one_asked = asked(*one);
        let other_asked = asked(*other);
        let (first, second) = tokio::join!(
            timeout(time, workers[0].rebuild(&one_asked)),
            timeout(Duration::from_secs(300), workers[1].rebuild(&other_asked)),
        );
        for (part, made) in [(*one, first), (*other, second)] {
            match made {
                Ok(Ok(rebuilt)) if rebuilt.is_done => _ = self.parts.insert(part, true),
                Ok(_) => self.tally.asked_again += 1,
                Err(_) => self.tally.ended += 1,
            }
        }
        self.nothing_was_denied()
    }

    /// Makes the closing comparison, as the operator's tool does.
    async fn close(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            let mut missing = Vec::new();
            for (place, stream) in self.streams.iter().enumerate() {
                let head = self.written[place] as u64;
                if self.reached(MADE, &stream[0]).await? < head {
                    missing.push(stream[0].stream.clone());
                }
            }
            if missing.is_empty() {
                self.is_closed = true;
                return self.no_read_goes_back().await;
            }
            self.tally.closed_with += missing.len() as u64;
            let asked = RebuildRequest {
                generation: MADE,
                part: 0,
                parts: PARTS,
                write_units: None,
                streams: missing,
            };
            let time = if self.rng.bool() { self.rng.u64(1..400) } else { 300_000 };
            let made = Instance::new(self.wire, self.kind, &self.role);
            if timeout(Duration::from_millis(time), made.rebuild(&asked)).await.is_err() {
                self.tally.ended += 1;
            }
            self.write_or_deliver().await?;
        }
        Err("the closing comparison comes to no end".to_owned())
    }

    /// The position of a generation in a stream.
    async fn reached(&self, generation: u32, of: &Commit) -> Result<u64, String> {
        let table = self.table.at(generation);
        let reached = match self.kind {
            Kind::States => {
                let rows = StateRows::in_table(table, SITES.table);
                rows.shown::<Value>(of.stream.id()).await.map(|(version, _)| version)
            }
            Kind::Sums | Kind::Lists => {
                LogRows::in_table(table, FILLS).position_now(&of.stream).await
            }
        };
        reached.map_err(|error| error.to_string())
    }

    /// Checks that a complete generation is never behind the previous one.
    async fn no_read_goes_back(&self) -> Result<(), String> {
        for stream in self.streams.iter().filter(|_| self.is_closed) {
            let made = self.reached(MADE, &stream[0]).await?;
            let before = self.reached(0, &stream[0]).await?;
            if made < before {
                return Err(format!("{} goes back from {before} to {made}", stream[0].stream));
            }
        }
        Ok(())
    }

    /// Checks that both generations have the rows of the fold.
    async fn compare(&self) -> Result<(), String> {
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
        let scanned = self.quiet.dynamodb().scan().table_name(table(name)).send().await;
        for mut item in scanned.map_err(|error| format!("{error:?}"))?.items.unwrap_or_default() {
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
            let fields: Fields =
                serde_dynamo::from_item(item).map_err(|error| error.to_string())?;
            let text = |name: &str| {
                fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let key = (text(partition_key), sort.as_deref().map(text).unwrap_or_default());
            found.entry(generation).or_default().insert(key, fields);
        }
        for (generation, rows) in &found {
            if *rows != expected {
                return Err(format!(
                    "the rows of generation {generation} are {rows:?}\n  and should be {expected:?}"
                ));
            }
        }
        Ok(())
    }

    fn fold(&self, view: &LogView) -> Result<BTreeMap<Key, Fields>, String> {
        let mut rows = BTreeMap::new();
        for commit in self.streams.iter().flatten() {
            (view.changes)(commit).map_err(|error| error.to_string())?.fold(&mut rows);
        }
        Ok(rows)
    }

    async fn states(&self) -> Result<BTreeMap<Key, Fields>, String> {
        let mut rows = BTreeMap::new();
        let log = World::store_at(self.quiet);
        let view = SITES;
        for stream in self.streams.iter().map(|stream| &stream[0].stream) {
            let loaded = load::<Tank>(&log, stream, None, ledgerline::Consistency::Strong).await;
            let loaded = loaded.map_err(|error| error.to_string())?;
            let row = site_of(&view, stream.id(), loaded.version, loaded.state);
            if let Some(Value::Object(fields)) = row {
                rows.insert((stream.id().to_owned(), String::new()), fields);
            }
        }
        Ok(rows)
    }
}

fn site_of(
    view: &StateView<Tank, Site>,
    id: &str,
    version: u64,
    state: <Tank as ledgerline::Aggregate>::State,
) -> Option<Value> {
    serde_json::to_value((view.row)(id, version, state)?).ok()
}

#[cfg(test)]
mod tests {
    use ledgerline::manifest::Action;

    use super::*;

    /// The manifest without the grant to scan the log. Everything but a rebuild works with it.
    fn without_scan(kind: Kind) -> Manifest {
        let mut manifest = kind.manifest();
        manifest.tables.iter_mut().for_each(|table| _ = table.actions.remove(&Action::Scan));
        manifest
    }

    #[test]
    fn a_missing_grant_that_only_a_rebuild_needs_is_reported() {
        let effort = Effort { seed: 1, long: false, runs: Some(20) };
        assert!(play(&effort, &crate::tank::application(), Kind::manifest).is_ok());
        let finding = play(&effort, &crate::tank::application(), without_scan).unwrap_err();
        assert!(finding.story.contains("not authorized to perform: dynamodb:Scan"), "{finding}");
    }

    /// A worker was killed after it wrote rows and before it saved its progress. Every batch finds
    /// newer positions in the table, so the next worker rebuilds each stream alone.
    #[test]
    fn a_rebuild_stream_by_stream_finishes_in_invocations_of_ten_seconds() {
        let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable"]).unwrap();
        world.runtime.block_on(async {
            let log = World::store_at(&world.wire);
            let wire = &world.wire;
            for tank in 0..600 {
                for commit in crate::tank::filled(&format!("{tank:03}"), 5) {
                    log.append(&commit, None).await.unwrap();
                }
            }
            let table = ViewTable::new(wire.dynamodb(), table("FillsTable"), &FILLS);
            let none = ledgerline_dynamodb::Generations::default();
            let begun = none.begun(Timestamp::UNIX_EPOCH).unwrap();
            let by = Move {
                at: Timestamp::UNIX_EPOCH,
                what: "begin".into(),
                who: String::new(),
                why: String::new(),
            };
            assert!(table.compare_and_set(&none, begun, by).await.unwrap());
            let asked = RebuildRequest {
                generation: MADE,
                part: 0,
                parts: 1,
                write_units: None,
                streams: Vec::new(),
            };
            let instance = Instance::new(wire, Kind::Sums, &Role::of(&Kind::Sums.manifest()));
            let rebuild = async || {
                for invocations in 1..20 {
                    let rebuilt = timeout(Duration::from_secs(10), instance.rebuild(&asked)).await;
                    let rebuilt = rebuilt.expect("an invocation ends by itself").unwrap();
                    assert_eq!(rebuilt.failed, []);
                    if rebuilt.is_done {
                        return (invocations, rebuilt.commits);
                    }
                }
                panic!("the rebuild comes to no end");
            };
            assert_eq!(rebuild().await.1, 1_200);
            let part = ledgerline_dynamodb::SegmentProgress::default();
            table
                .at(MADE)
                .put_part(&ledgerline_dynamodb::SegmentProgress::name(0, 1), &part)
                .await
                .unwrap();
            // A slow table spreads the rebuild over several invocations.
            wire.follow(Plan::Slow, 1);
            let (invocations, commits) = rebuild().await;
            assert_eq!(commits, 1_200);
            assert!(invocations > 1, "it is more than the work of one invocation");
        });
    }
}
