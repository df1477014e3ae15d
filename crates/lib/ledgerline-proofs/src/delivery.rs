//! Delivery from commit to row. Records, states and messages may be duplicated, swapped or late, or
//! need an operator's redrive, while new commits arrive. After all deliveries, the rows are those
//! of the fold, byte for byte.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fastrand::Rng;
use futures::FutureExt;
use ledgerline::{Commit, EventLog, StreamId};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::stream_records::{Handler, Record, records};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Effort, Runs, Tried,
    application::Application,
    counts::Counts,
    emulated_services::DEDUPLICATION,
    faulty_wire::{Plan, Wire},
    pipeline::{self, Logged, Pipeline, Rows, message, record},
    world::{World, each_seed},
};

/// The number of attempts after which a queue dead-letters a message. The template has many more,
/// so that an outage of an hour dead-letters no message.
const MAX_RECEIVES: usize = 5;
/// The largest batch of a function, in records or messages.
const BATCH: usize = 10;

const DELIVERIES: &str = "deliveries";
const FAULTS: &str = "faults";
/// In an outage, every loss; in a restored log, the commits that are gone.
const LOST: &str = "losses";
const REDRIVEN_STATES: &str = "states redriven";
const LOST_STATES: &str = "states lost for good";
const REDRIVEN_MESSAGES: &str = "messages redriven";
const LOST_MESSAGES: &str = "messages lost for good";
const CRASHES: &str = "crashes of the fanout";
const QUARANTINED: &str = "quarantined records";

/// Plays schedules of each kind of faults. Fails if rows are not those of the fold.
pub(crate) fn proof(effort: &Effort, application: &Application) -> Result<Tried> {
    let mut total = 0;
    let mut beside = Vec::new();
    let dynamics =
        if effort.tries_libraries(application) { &DYNAMICS[..] } else { &[Dynamics::Usual] };
    for dynamics in dynamics.iter().copied() {
        let runs = dynamics.runs();
        let counts = play(effort, &runs, dynamics, application)?;
        counts.ensure_tried(effort, &runs, &dynamics.faults(application))?;
        total += counts.runs;
        beside.push(format!("{dynamics:?} {}: {counts}", counts.runs));
    }
    Ok(Tried::new(total, "schedules", beside.join("; ")))
}

/// The kind of faults in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dynamics {
    /// All faults of a bad day.
    Usual,
    /// Consumers are slow, so that the queue redelivers their messages to a second instance
    /// meanwhile.
    SlowConsumers,
    /// For more than a day, nothing behind the log works. Everything in the stream, the
    /// invocations, the queues and the dead letters is gone. Then an operator redelivers the
    /// commits of the log.
    Outage,
    /// The log is restored to an earlier time. Then an operator follows the procedure of the
    /// runbook.
    Restored,
    /// The fanout crashes whenever it passes on a record of one of the streams. Then an operator
    /// repairs the fanout and redelivers the quarantined records.
    Deadly,
}

const DYNAMICS: [Dynamics; 5] = [
    Dynamics::Usual,
    Dynamics::SlowConsumers,
    Dynamics::Outage,
    Dynamics::Restored,
    Dynamics::Deadly,
];

impl Dynamics {
    fn runs(self) -> Runs {
        match self {
            Self::Usual => Runs { least: 150, seconds: 6, long: 2_500 },
            Self::SlowConsumers | Self::Outage | Self::Restored | Self::Deadly => {
                Runs { least: 100, seconds: 5, long: 1_000 }
            }
        }
    }

    /// The counts of faults that some schedule must have.
    fn faults(self, application: &Application) -> Vec<&'static str> {
        match self {
            Self::Usual => {
                let queues = [REDRIVEN_MESSAGES, LOST_MESSAGES].into_iter();
                let views = [REDRIVEN_STATES, LOST_STATES].into_iter();
                let queues = queues.filter(|_| !application.logged.is_empty());
                let views = views.filter(|_| !application.stateful.is_empty());
                queues.chain(views).chain([FAULTS]).collect()
            }
            Self::SlowConsumers => vec![DELIVERIES],
            Self::Outage | Self::Restored => vec![LOST],
            Self::Deadly => vec![CRASHES, QUARANTINED],
        }
    }
}

/// Plays schedules.
fn play(
    effort: &Effort,
    runs: &Runs,
    dynamics: Dynamics,
    application: &Application,
) -> Result<Counts> {
    if application.streams.is_empty() {
        return Ok(Counts::default());
    }
    let world = || {
        let world = World::new(&application.tables())?;
        // The writer of the log and the checker have a wire without faults.
        let quiet = world.wire.fork();
        let pipeline = application.pipeline_at(&world.wire);
        Ok((world, quiet, pipeline))
    };
    let play = |(world, quiet, pipeline): &mut (World, Wire, Pipeline), seed| {
        let mut schedule = Schedule::new(&world.wire, quiet, application, pipeline, seed, dynamics);
        let played = world.runtime.block_on(schedule.play());
        world.wire.ensure_nothing_denied()?;
        played.with_context(|| format!("{dynamics:?}"))?;
        let mut counts = schedule.counts;
        counts.add(FAULTS, world.wire.take_faults().values().sum());
        Ok(counts)
    };
    Ok(each_seed(effort, runs, world, play)?)
}

/// A message in a queue.
#[derive(Debug, Clone)]
struct Message {
    id: String,
    group: String,
    body: String,
    receives: usize,
}

/// A queue and its dead-letter queue.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    dead: Vec<Message>,
}

struct Schedule<'a> {
    wire: &'a Wire,
    pipeline: &'a Pipeline,
    log: DynamoDbStore,
    quiet: aws_sdk_dynamodb::Client,
    rng: Rng,
    seed: u64,
    dynamics: Dynamics,
    streams: Vec<Vec<Commit>>,
    /// The number of commits of each stream that are in the log.
    written: Vec<usize>,
    /// The stream of each commit in the log, in the order of writing.
    order: Vec<usize>,
    /// Commits in the log that the stream has still to deliver or redeliver.
    pending: Vec<Commit>,
    passed_on: Vec<Commit>,
    states: Vec<Value>,
    undelivered: Vec<Value>,
    queues: BTreeMap<String, Queue>,
    messages: usize,
    counts: Counts,
}

impl<'a> Schedule<'a> {
    fn new(
        wire: &'a Wire,
        quiet: &Wire,
        application: &Application,
        pipeline: &'a Pipeline,
        seed: u64,
        dynamics: Dynamics,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        fastrand::seed(seed);
        let kind = &application.streams[rng.usize(0..application.streams.len())];
        // Two streams of the same category, because a row may add up over streams.
        let streams: Vec<_> =
            (0..2).map(|number| (kind.write)(&format!("{seed}-{number}"), &mut rng)).collect();
        assert!(
            streams.iter().all(|stream| !stream.is_empty()),
            "{application:?} writes something"
        );
        let plan = match dynamics {
            Dynamics::SlowConsumers => Plan::Slow,
            Dynamics::Usual | Dynamics::Outage | Dynamics::Restored | Dynamics::Deadly => {
                Plan::Random([0, 50, 200][rng.usize(0..3)])
            }
        };
        wire.follow(plan, rng.u64(..));
        Self {
            wire,
            pipeline,
            log: World::store_at(quiet),
            quiet: quiet.dynamodb(),
            rng,
            seed,
            dynamics,
            written: vec![0; streams.len()],
            order: Vec::new(),
            streams,
            pending: Vec::new(),
            passed_on: Vec::new(),
            states: Vec::new(),
            undelivered: Vec::new(),
            queues: BTreeMap::new(),
            messages: 0,
            counts: Counts::default(),
        }
    }

    async fn play(&mut self) -> Result<()> {
        let steps = self.rng.u32(10..60);
        let outage = self.rng.u32(0..steps);
        let mut most = BATCH;
        if self.dynamics == Dynamics::Deadly {
            self.wire.crash_at(Some(self.streams[0][0].stream.to_string()));
        }
        for step in 0..steps {
            if self.dynamics == Dynamics::Outage && step == outage {
                self.outage().await?;
            }
            if self.dynamics == Dynamics::Restored && step == outage {
                self.restore().await;
                self.catch_up().await?;
            }
            match self.rng.u32(0..15) {
                0..=2 => self.write().await?,
                3..=5 if self.dynamics == Dynamics::Deadly => self.shard(&mut most).await,
                3..=5 => self.pass_on().await,
                6..=8 => self.project().await,
                9..=11 => self.consume().await,
                12 => self.redrive(),
                13 => self.dead_letter(),
                _ => self.pause().await,
            }
        }
        while self
            .written
            .iter()
            .zip(&self.streams)
            .any(|(written, stream)| *written < stream.len())
        {
            self.write().await?;
        }
        if self.dynamics == Dynamics::Outage {
            self.catch_up().await?;
        }
        if self.dynamics == Dynamics::Deadly {
            self.repair_fanout(most).await?;
        }
        self.settle().await?;
        let expected = self.pipeline.fold(&self.streams)?;
        let found = self.pipeline.take_rows(&self.quiet).await?;
        ensure!(found == expected, "rows differ from the fold\n{}", difference(&found, &expected));
        Ok(())
    }

    /// Writes the next commit of a stream.
    async fn write(&mut self) -> Result<()> {
        let stream = self.rng.usize(0..self.streams.len());
        if let Some(commit) = self.streams[stream].get(self.written[stream]) {
            self.log.append(commit, None).await?;
            self.pending.push(commit.clone());
            self.written[stream] += 1;
            self.order.push(stream);
        }
        Ok(())
    }

    /// The stream delivers records to the fanout. They have any order, because no two are of the
    /// same item (rule 7), and some are duplicates. The first failed record and all later ones are
    /// redelivered.
    async fn pass_on(&mut self) {
        let mut batch: Vec<_> = (0..self.rng.usize(1..=BATCH).min(self.pending.len()))
            .map(|_| self.pending.swap_remove(self.rng.usize(0..self.pending.len())))
            .collect();
        if self.rng.u32(0..4) == 0 && !self.passed_on.is_empty() {
            batch.push(self.passed_on[self.rng.usize(0..self.passed_on.len())].clone());
        }
        self.rng.shuffle(&mut batch);
        let records = pipeline::records(&batch);
        let failed =
            if records.is_empty() { None } else { self.pipeline.fanout.handle(&records).await };
        self.counts.add(DELIVERIES, records.len() as u64);
        let again = batch.split_off(failed.unwrap_or(batch.len()));
        self.pending.extend(again);
        self.passed_on.extend(batch);
        self.collect();
    }

    /// A shard of the stream delivers its next records in order to the fanout, at most `most` of
    /// them. After a batch failed as a whole, Lambda may deliver only its first half.
    async fn shard(&mut self, most: &mut usize) {
        let mut batch = self.pending[..self.pending.len().min(*most)].to_vec();
        let records: Vec<_> = batch
            .iter()
            .map(|commit| {
                let stream = self.streams.iter().position(|of| of[0].stream == commit.stream);
                let place = stream.unwrap_or_default() * 1_000_000
                    + usize::try_from(commit.version).unwrap_or_default();
                // The guard counts the attempts of a record by its sequence number. The number
                // contains the seed, because the counts of earlier schedules still exist. The
                // record is old enough that the guard counts its attempts.
                let sequence_number = format!("{}-{place:021}", self.seed);
                Record { sequence_number, created: Some(0), ..record(place, commit) }
            })
            .collect();
        if records.is_empty() {
            return;
        }
        self.counts.add(DELIVERIES, records.len() as u64);
        // A notification of an earlier crash may be left over. It would end this invocation at
        // once.
        let _ = self.wire.crashed().now_or_never();
        let done = tokio::select! {
            failed = self.pipeline.fanout.handle(&records) => failed.unwrap_or(batch.len()),
            () = self.wire.crashed() => {
                self.counts.add(CRASHES, 1);
                0
            }
        };
        *most = if done == 0 && self.rng.bool() { (batch.len() / 2).max(1) } else { BATCH };
        self.pending.drain(..done);
        batch.truncate(done);
        self.passed_on.extend(batch);
        self.collect();
    }

    /// Checks that the shard is processed to its end despite the deadly records. Then it repairs
    /// the fanout and redelivers the quarantined records.
    async fn repair_fanout(&mut self, mut most: usize) -> Result<()> {
        // A record is quarantined after halving has isolated it in its batch, and three more
        // attempts. Faults of the wire take further attempts.
        let invocations = 40 * self.pending.len();
        for _ in 0..invocations {
            self.shard(&mut most).await;
        }
        let left = self.pending.len();
        ensure!(left == 0, "after {invocations} invocations, {left} records wait");
        self.wire.crash_at(None);
        // The wire applies late requests within this time.
        sleep(Duration::from_secs(60)).await;
        let deadly = self.streams[0][0].stream.clone();
        for letter in self.wire.services().take_messages("http://wire.invalid/dead-letters") {
            let letter: Value = serde_json::from_str(&letter.body).unwrap_or_default();
            let is_deadly = letter["stream"] == deadly.as_str();
            ensure!(is_deadly, "a record that crashes no function was quarantined: {letter}");
            let mut commits = self.streams[0].iter();
            let commit = commits.find(|commit| letter["version"] == commit.version);
            self.pending.extend(commit.cloned());
            self.counts.add(QUARANTINED, 1);
        }
        Ok(())
    }

    /// Collects the states and messages that the services have accepted.
    fn collect(&mut self) {
        self.states.extend(self.wire.services().take_states());
        for logged in &self.pipeline.logged {
            let queue = self.queues.entry(logged.url.clone()).or_default();
            for queued in self.wire.services().take_messages(&logged.url) {
                self.messages += 1;
                let id = self.messages.to_string();
                let group = queued.group;
                let body = queued.body;
                queue.messages.push_back(Message { id, group, body, receives: 0 });
            }
        }
    }

    /// Plays an outage: for more than a day, the log accepts commits and nothing else works.
    async fn outage(&mut self) -> Result<()> {
        for _ in 0..self.rng.u32(0..6) {
            self.write().await?;
        }
        sleep(Duration::from_secs(26 * 3_600)).await;
        self.collect();
        let queues = self.queues.values().map(|queue| queue.messages.len() + queue.dead.len());
        let lost = self.pending.len() + self.states.len() + self.undelivered.len();
        self.counts.add(LOST, (lost + queues.sum::<usize>()) as u64);
        self.forget_deliveries();
        // Tombstones expire a month after the deletion of their aggregates. After that, no item
        // refuses older versions.
        for stateful in &self.pipeline.stateful {
            let items = self.items(stateful.table).into_iter();
            for item in items.filter(|item| item["tombstone"].is_object()) {
                self.delete_item(stateful.table, &json!({ stateful.key: item[stateful.key] }));
            }
        }
        Ok(())
    }

    /// Follows "Restore" of docs/runbook.md: the log returns to an earlier state, and everything
    /// behind it is emptied. Some of the lost commits are written again.
    async fn restore(&mut self) {
        // Late requests arrive in this time; otherwise they would be written into the restored log.
        // The deduplication windows of the queues end too. Otherwise a queue would drop a new
        // commit as a duplicate of a lost one with the same version. No restore of a table takes
        // less than five minutes.
        sleep(DEDUPLICATION + Duration::from_secs(60)).await;
        self.collect();
        for lost in self.order.split_off(self.rng.usize(0..=self.order.len())) {
            self.written[lost] -= 1;
            let Commit { stream, version, .. } = &self.streams[lost][self.written[lost]];
            let key = json!({ "stream": { "S": stream.as_str() }, "version": { "N": version.to_string() } });
            self.delete_item("CommitsTable", &key);
            self.counts.add(LOST, 1);
        }
        for (stream, written) in self.streams.iter_mut().zip(&self.written) {
            stream.truncate(self.rng.usize(*written..=stream.len()));
        }
        let views = self.pipeline.stateful.iter().map(|view| (view.table, view.key, None));
        let logged = self.pipeline.logged.iter().map(|view| {
            let keys = view.runner.consumer.view.table;
            (view.table, keys.partition, Some(keys.sort))
        });
        for (table, partition, sort) in views.chain(logged) {
            for item in self.items(table) {
                let keys = [Some(partition), sort].into_iter().flatten();
                let key: Value = keys.map(|key| (key.to_owned(), item[key].clone())).collect();
                self.delete_item(table, &key);
            }
        }
        self.forget_deliveries();
    }

    /// Loses everything between the log and the views.
    fn forget_deliveries(&mut self) {
        (self.pending, self.passed_on) = Default::default();
        (self.states, self.undelivered) = Default::default();
        self.queues.clear();
    }

    /// The items of a table.
    fn items(&self, id: &str) -> Vec<Value> {
        let scan = json!({ "TableName": ledgerline_testing::table(id) });
        let scan = self.wire.services().call("Scan", &scan).body;
        let scan: Value = serde_json::from_slice(&scan).unwrap_or_default();
        scan["Items"].as_array().cloned().unwrap_or_default()
    }

    fn delete_item(&self, id: &str, key: &Value) {
        let delete = json!({ "TableName": ledgerline_testing::table(id), "Key": key });
        self.wire.services().call("DeleteItem", &delete);
    }

    /// Does the same as `ledger redeliver --all`: reads the records of the commits for the fanout.
    async fn catch_up(&mut self) -> Result<()> {
        let is_of_this_run = |item: &Value| {
            let mut streams = self.streams.iter().flat_map(|commits| commits.first());
            streams.any(|commit| item["stream"]["S"] == commit.stream.as_str())
        };
        let mut batch = Vec::new();
        for item in self.items("CommitsTable").into_iter().filter(is_of_this_run) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let stream = StreamId::try_from(text(&item["stream"]["S"]))?;
            let record = self.log.record(&stream, text(&item["version"]["N"]).parse()?).await?;
            let mut record = record.context("the log lacks a commit")?;
            record["SequenceNumber"] = (batch.len() + 1).to_string().into();
            batch.push(json!({
                "eventName": "INSERT", "eventSourceARN": "redelivery/1", "dynamodb": record,
            }));
        }
        for record in records(serde_json::from_value(json!({ "Records": batch }))?) {
            let mut commit = record.commit.map_err(|unreadable| anyhow!("{unreadable:?}"))?;
            if record.has_body {
                let stored = self.log.get(&commit.stream, commit.version).await?;
                commit = stored.context("the log lacks a commit")?;
            }
            self.pending.push(commit);
        }
        Ok(())
    }

    /// Lambda delivers any one of the states. It may redeliver the state, or dead-letter it.
    async fn project(&mut self) {
        self.collect();
        if self.states.is_empty() {
            return;
        }
        let entry = self.states.swap_remove(self.rng.usize(0..self.states.len()));
        if self.rng.u32(0..12) == 0 {
            self.undelivered.push(entry);
            return;
        }
        self.counts.add(DELIVERIES, 1);
        let delivered = self.deliver(&entry).await;
        if !delivered || self.rng.u32(0..6) == 0 {
            self.states.push(entry);
        }
    }

    async fn deliver(&self, entry: &Value) -> bool {
        let stream = entry["stream"].as_str().unwrap_or_default();
        let mut delivered = true;
        // Lambda invokes each function separately. Here all functions get a failed state again, and
        // a function that has applied the state skips it.
        for stateful in &self.pipeline.stateful {
            if stream.starts_with(&format!("{}-", stateful.category)) {
                delivered &= stateful.project(entry.clone()).await.is_ok();
            }
        }
        delivered
    }

    /// A queue delivers a batch to its projector. It may redeliver finished messages.
    async fn consume(&mut self) {
        self.collect();
        if self.pipeline.logged.is_empty() {
            return;
        }
        let number = self.rng.usize(0..self.pipeline.logged.len());
        let forgets = self.rng.u32(0..6) == 0;
        let logged = &self.pipeline.logged[number];
        let queue = self.queues.entry(logged.url.clone()).or_default();
        if self.dynamics == Dynamics::SlowConsumers {
            // The visibility timeout ends while the first instance still processes the batch.
            let mut again = Queue { messages: queue.messages.clone(), dead: Vec::new() };
            let pause = Duration::from_millis(self.rng.u64(0..400));
            let second = async {
                sleep(pause).await;
                batch(logged, &mut again, false).await
            };
            let (first, second) = tokio::join!(batch(logged, queue, forgets), second);
            self.counts.add(DELIVERIES, first + second);
        } else {
            self.counts.add(DELIVERIES, batch(logged, queue, forgets).await);
        }
    }

    /// A queue dead-letters its first message, as after too many attempts.
    fn dead_letter(&mut self) {
        let number = self.rng.usize(0..self.queues.len().max(1));
        if let Some(queue) = self.queues.values_mut().nth(number) {
            queue.dead.extend(queue.messages.pop_front());
        }
    }

    /// Redrives dead letters, or loses them if a later one repairs the loss. The dead letter of the
    /// last version is never lost.
    fn redrive(&mut self) {
        let version =
            |text: &Value| (text["stream"].to_string(), text["lastEvent"]["version"].as_u64());
        let newest = |stream: &str| {
            self.streams
                .iter()
                .filter_map(|commits| commits.last())
                .find(|commit| commit.stream.as_str() == stream)
                .map(|commit| commit.version)
        };
        for entry in std::mem::take(&mut self.undelivered) {
            let (_, shown) = version(&entry);
            let last = newest(entry["stream"].as_str().unwrap_or_default()) == shown;
            if last || self.rng.bool() {
                self.counts.add(REDRIVEN_STATES, 1);
                self.states.push(entry);
            } else {
                self.counts.add(LOST_STATES, 1);
            }
        }
        for queue in self.queues.values_mut() {
            for message in std::mem::take(&mut queue.dead) {
                let commit: Value = serde_json::from_str(&message.body).unwrap_or_default();
                let last = newest(commit["stream"].as_str().unwrap_or_default())
                    == commit["version"].as_u64();
                if last || self.rng.bool() {
                    self.counts.add(REDRIVEN_MESSAGES, 1);
                    queue.messages.push_back(Message { receives: 0, ..message });
                } else {
                    self.counts.add(LOST_MESSAGES, 1);
                }
            }
        }
    }

    /// Lets time pass. After more than the deduplication window, the stream redelivers a record.
    async fn pause(&mut self) {
        let pause = Duration::from_secs(self.rng.u64(0..600));
        sleep(pause).await;
        if pause > DEDUPLICATION && !self.passed_on.is_empty() {
            let again = self.passed_on[self.rng.usize(0..self.passed_on.len())].clone();
            self.pending.push(again);
        }
    }

    /// Delivers everything that is left, without new faults.
    async fn settle(&mut self) -> Result<()> {
        // The wire applies late requests within this time.
        sleep(Duration::from_secs(60)).await;
        self.wire.calm();
        for _ in 0..1_000 {
            self.redrive();
            while !self.pending.is_empty() {
                self.pass_on().await;
            }
            self.collect();
            for entry in std::mem::take(&mut self.states) {
                if !self.deliver(&entry).await {
                    self.undelivered.push(entry);
                }
            }
            for logged in &self.pipeline.logged {
                batch(logged, self.queues.entry(logged.url.clone()).or_default(), false).await;
            }
            let quiet = |queue: &Queue| queue.messages.is_empty() && queue.dead.is_empty();
            if self.undelivered.is_empty() && self.queues.values().all(quiet) {
                return Ok(());
            }
        }
        bail!("it never becomes quiet")
    }
}

fn difference(found: &Rows, expected: &Rows) -> String {
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let different = keys.into_iter().filter(|key| found.get(*key) != expected.get(*key));
    let lines = different.map(|key| {
        let (found, expected) = (found.get(key), expected.get(key));
        format!("  {} {}\n    is        {found:?}\n    should be {expected:?}", key.0, key.1)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A queue delivers a batch. If it `forgets`, finished messages stay in the queue. The result is
/// the number of messages.
async fn batch(logged: &Logged, queue: &mut Queue, forgets: bool) -> u64 {
    let taken: Vec<_> = queue.messages.drain(..BATCH.min(queue.messages.len())).collect();
    if taken.is_empty() {
        return 0;
    }
    let messages: Vec<_> = taken
        .iter()
        .map(|taken| message(&taken.id, &taken.group, &taken.body, taken.receives + 1))
        .collect();
    let response = logged.runner.batch(&messages).await;
    let failed: BTreeSet<_> = response
        .batch_item_failures
        .iter()
        .map(|failure| failure.item_identifier.as_str())
        .collect();
    // A failed message returns to the head of its group, so that no later message overtakes it.
    for message in taken.iter().rev() {
        let mut message = message.clone();
        message.receives += 1;
        if failed.contains(message.id.as_str()) {
            if message.receives >= MAX_RECEIVES {
                queue.dead.push(message);
            } else {
                queue.messages.push_front(message);
            }
        } else if forgets {
            queue.messages.push_front(message);
        }
    }
    taken.len() as u64
}
