//! Every way in which some of ten entries can fail (rule 10): on the bus, on a queue, in the answer
//! to the stream, and in the answer to a queue. Only failed entries are delivered again, and no
//! entry overtakes an earlier one of its stream.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use ledgerline::{Commit, EventLog, MemoryStore, position::Delivery};
use ledgerline_lambda::{
    log_projector::LogProjector,
    queue::{ApplyError, Consumer, QueueRunner},
    stream_records::{Handler, response},
};
use ledgerline_tank::views::FILLS_VIEW;
use ledgerline_testing::table;
use serde_json::Value;

use crate::{
    Effort, Finding, Runs, Tried,
    application::Application,
    faulty_wire::Wire,
    pipeline::{Pipeline, commit_message, records},
    tank_application::{filled, tanks},
    world::{World, each_seed},
};

/// The number of entries of a call.
const TEN: usize = 10;

/// Runs all masks of ten entries, in each of the four parts. Fails if an entry is lost, duplicated,
/// or overtakes another.
pub(crate) fn proof(effort: &Effort, _: &Application) -> Result<Tried> {
    let masks = 1 << TEN;
    let application = tanks();
    let play = |world: &mut World, mask| {
        world.runtime.block_on(async {
            fastrand::seed(mask);
            // The first commits of ten tanks fill one call. With five tanks, the second commits
            // would fit into the same call.
            for (part, tanks) in
                [(Part::Bus, 10), (Part::Bus, 5), (Part::Queue, 10), (Part::Queue, 5)]
            {
                let batch =
                    Batch { wire: &world.wire, application: &application, part, tanks, mask };
                batch.refuse_once().await.with_context(|| format!("{part:?}, once"))?;
                batch.refuse_for_good().await.with_context(|| format!("{part:?}, for good"))?;
            }
            answer_to_a_queue(&world.wire, mask).await
        })
    };
    let all = Effort { seed: 0, runs: None, ..*effort };
    each_seed(
        &all,
        &Runs::exactly(masks),
        || World::new(&application.tables()),
        |world, mask| play(world, mask).with_context(|| format!("mask {mask:010b}")),
    )
    .map_err(|finding| Finding { seed: effort.seed, runs: None, ..finding })?;
    let beside = format!(
        "PutEvents, SendMessageBatch, the answer to the stream, the answer to a queue: {masks} each"
    );
    Ok(Tried::new(4 * masks, "masks, all of them", beside))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Bus,
    Queue,
}

/// The index of a commit in its batch, from the name of its stream.
fn place(stream: &str, version: u64, tanks: usize) -> Option<usize> {
    let tank: usize = stream.rsplit('-').next()?.parse().ok()?;
    Some(tank + tanks * usize::try_from(version.checked_sub(1)?).ok()?)
}

fn has(mask: u64, place: usize) -> bool {
    place < TEN && mask & (1 << place) != 0
}

/// The stream and version in the content of an entry or a message.
fn key(content: &Value, version: &Value) -> (String, u64) {
    (content["stream"].as_str().unwrap_or_default().to_owned(), version.as_u64().unwrap_or(0))
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// The number of times that each commit of a batch was sent, by index.
type Sent = Arc<Mutex<BTreeMap<usize, usize>>>;
type Versions = Vec<(String, u64)>;

/// A batch of two commits of each tank: first the first commits of all tanks, then the second ones.
/// The mask has the commits that the part refuses.
struct Batch<'a> {
    wire: &'a Wire,
    application: &'a Application,
    part: Part,
    tanks: usize,
    mask: u64,
}

impl Batch<'_> {
    fn commits(&self, run: &str) -> Vec<Commit> {
        let Self { part, tanks, mask, .. } = self;
        let streams: Vec<_> = (0..*tanks)
            .map(|place| filled(&format!("{part:?}-{tanks}-{run}-{mask}-{place}"), 1))
            .collect();
        (0..2).flat_map(|version| streams.iter().map(move |tank| tank[version].clone())).collect()
    }

    /// Refuses the commits in the mask `times` times each. The result counts the sends of each
    /// commit.
    fn refuse(&self, times: usize) -> Sent {
        let sent = Sent::default();
        let counts = Arc::clone(&sent);
        let Self { part, tanks, mask, .. } = *self;
        self.wire.services().refuse(Some(Box::new(move |entry: &Value| {
            let (stream, version) = match part {
                Part::Bus => {
                    let content = parse(entry["Detail"].as_str().unwrap_or_default());
                    key(&content, &content["lastEvent"]["version"])
                }
                Part::Queue => {
                    let content = parse(entry["MessageBody"].as_str().unwrap_or_default());
                    key(&content, &content["version"])
                }
            };
            let Some(place) = place(&stream, version, tanks) else { return false };
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(place).or_insert(0);
            *count += 1;
            has(mask, place) && *count <= times
        })));
        sent
    }

    /// Checks that an entry that was refused once is sent once more, and that no other entry is.
    async fn refuse_once(&self) -> Result<()> {
        let commits = self.commits("once");
        let pipeline = self.application.pipeline_at(self.wire);
        let sent = self.refuse(1);
        let failed = pipeline.fanout.handle(&records(&commits)).await;
        self.wire.services().refuse(None);
        ensure!(failed.is_none(), "record {failed:?} is said to have failed");
        for (place, count) in sent.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let expected = 1 + usize::from(has(self.mask, *place));
            ensure!(*count == expected, "record {place} was sent {count} times");
        }
        let (entries, messages) = self.take(&pipeline);
        ensure!(entries.len() == commits.len(), "{} entries on the bus", entries.len());
        ensure_complete(&commits, entries, &messages)
    }

    /// Checks entries that are refused until the fanout gives up. The answer to the stream names the
    /// first of their records. The stream redelivers this record and all later ones. The messages of
    /// each stream must stay in order.
    async fn refuse_for_good(&self) -> Result<()> {
        let commits = self.commits("good");
        let pipeline = self.application.pipeline_at(self.wire);
        let _sent = self.refuse(usize::MAX);
        let first = records(&commits);
        let failed = pipeline.fanout.handle(&first).await;
        self.wire.services().refuse(None);
        let expected = (0..TEN).find(|place| has(self.mask, *place));
        ensure!(failed == expected, "the first failure is {failed:?}, not {expected:?}");
        let failures = response(&first, failed).batch_item_failures.into_iter();
        let named: Vec<_> = failures.filter_map(|failure| failure.item_identifier).collect();
        let expected: Vec<_> =
            expected.map(|place| first[place].sequence_number.clone()).into_iter().collect();
        ensure!(named == expected, "the stream is told {named:?}, not {expected:?}");
        let (mut entries, mut messages) = self.take(&pipeline);
        let overtook = messages.iter().find(|(stream, version)| {
            let first = place(stream, 1, self.tanks).unwrap_or(TEN);
            self.part == Part::Queue && *version == 2 && has(self.mask, first)
        });
        ensure!(overtook.is_none(), "{overtook:?} overtook the first commit of its stream");
        if let Some(place) = failed {
            // Lambda redelivers the named record and all records behind it.
            let again = pipeline.fanout.handle(&records(&commits[place..])).await;
            ensure!(again.is_none(), "record {again:?} failed again");
            let (more_entries, more_messages) = self.take(&pipeline);
            entries.extend(more_entries);
            messages.extend(more_messages);
        }
        ensure_complete(&commits, entries, &messages)
    }

    /// Takes the streams and versions on the bus, and in the queue of fills.
    fn take(&self, pipeline: &Pipeline) -> (Versions, Versions) {
        let services = self.wire.services();
        let entries = services.take_entries();
        let messages = services.take_messages(&pipeline.logged[0].url);
        let messages = messages.iter().map(|queued| parse(&queued.body));
        (
            entries.iter().map(|entry| key(entry, &entry["lastEvent"]["version"])).collect(),
            messages.map(|content| key(&content, &content["version"])).collect(),
        )
    }
}

/// Checks that all commits arrived, in the queue once and in order.
fn ensure_complete(commits: &[Commit], entries: Versions, messages: &Versions) -> Result<()> {
    let all: BTreeSet<_> =
        commits.iter().map(|commit| (commit.stream.to_string(), commit.version)).collect();
    let entries: BTreeSet<_> = entries.into_iter().collect();
    ensure!(entries == all, "{} entries on the bus, of {}", entries.len(), all.len());
    let mut last = BTreeMap::new();
    for (stream, version) in messages {
        let before = last.insert(stream, *version).unwrap_or(0);
        ensure!(before + 1 == *version, "version {version} of {stream} is out of order");
    }
    ensure!(messages.len() == all.len(), "{} messages, of {}", messages.len(), all.len());
    Ok(())
}

/// A consumer that fails for some commits, as with a throttled table.
#[derive(Debug)]
struct Moody {
    projector: LogProjector,
    fails: RefCell<BTreeSet<(String, u64)>>,
    tried: RefCell<BTreeSet<(String, u64)>>,
}

impl Consumer for Moody {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        let commit_id = (commit.stream.to_string(), commit.version);
        self.tried.borrow_mut().insert(commit_id.clone());
        if self.fails.borrow().contains(&commit_id) {
            return Err(ApplyError::Effect("not now".into()));
        }
        self.projector.apply(commit).await
    }

    /// Fails at the first failing commit, after it has applied the earlier ones.
    async fn apply_batch(&self, commits: &[&Commit]) -> Result<Vec<(Delivery, u64)>, ApplyError> {
        let mut taken = Vec::new();
        for commit in commits {
            taken.push(self.apply(commit).await?);
        }
        Ok(taken)
    }
}

/// Checks ten messages in three groups. The answer must name the failed messages and all later
/// messages of their groups. All others must be done.
async fn answer_to_a_queue(wire: &Wire, mask: u64) -> Result<()> {
    let tanks: Vec<_> = (0..3).map(|group| filled(&format!("fifo-{mask}-{group}"), 5)).collect();
    // A tank has two commits. The further commits repeat the fill with the next versions.
    let commits: Vec<_> = (0..TEN)
        .map(|place| {
            let version = place as u64 / 3 + 1;
            Commit { version, ..tanks[place % 3][usize::from(version > 1)].clone() }
        })
        .collect();
    // The guard looks up a skipped commit in the log.
    let store = MemoryStore::default();
    for commit in &commits {
        store.append(commit, None).await?;
    }
    let projector = LogProjector::new(wire.dynamodb(), table("FillsTable"), FILLS_VIEW);
    let fails = commits.iter().enumerate().filter(|(place, _)| has(mask, *place));
    let fails = fails.map(|(_, commit)| (commit.stream.to_string(), commit.version)).collect();
    let consumer = Moody { projector, fails: RefCell::new(fails), tried: RefCell::default() };
    let runner = QueueRunner { store, consumer };
    let messages: Vec<_> = commits
        .iter()
        .enumerate()
        .map(|(place, commit)| commit_message(&place.to_string(), commit))
        .collect();
    let failed = |answer: aws_lambda_events::sqs::SqsBatchResponse| -> BTreeSet<usize> {
        let failures = answer.batch_item_failures.iter();
        failures.filter_map(|failure| failure.item_identifier.parse().ok()).collect()
    };
    let first = failed(runner.batch(&messages).await);
    let expected: BTreeSet<_> = (0..TEN)
        .filter(|place| (0..=*place).any(|before| before % 3 == place % 3 && has(mask, before)))
        .collect();
    ensure!(first == expected, "the queue is told {first:?}, not {expected:?}");
    // A message behind a failure of its group must not be attempted, because it would overtake.
    let tried = |place: &usize| {
        let commit = &commits[*place];
        runner.consumer.tried.borrow().contains(&(commit.stream.to_string(), commit.version))
    };
    let overtook = first.iter().find(|place| tried(place) && !has(mask, **place));
    ensure!(overtook.is_none(), "message {overtook:?} was tried behind a failure of its group");
    runner.consumer.fails.borrow_mut().clear();
    let again: Vec<_> = first.iter().map(|place| messages[*place].clone()).collect();
    let still = failed(runner.batch(&again).await);
    ensure!(still.is_empty(), "{still:?} failed again");
    for tank in &tanks {
        let stream = &tank[0].stream;
        let position = runner.consumer.projector.rows.position(stream).await?;
        let last = commits.iter().filter(|commit| commit.stream == *stream).count() as u64;
        ensure!(position == last, "the position in {stream} is {position}, not {last}");
    }
    Ok(())
}
