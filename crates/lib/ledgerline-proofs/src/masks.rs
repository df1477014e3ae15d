//! Every way in which some of ten entries can fail (rule 10): on the bus, on a queue, in the answer
//! to the stream, and in the answer to a queue. Only failed entries are delivered again, and no
//! entry overtakes an earlier one of its stream.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use ledgerline::{Commit, EventLog, MemoryStore, position::Delivery};
use ledgerline_lambda::{
    log_projector::LogProjector,
    queue::{ApplyError, Consumer, QueueRunner},
    stream::{Handler, Record, response},
};
use ledgerline_tank::views::FILLS_VIEW;
use ledgerline_testing::table;
use serde_json::Value;

use crate::{
    Effort, Finding, Tried,
    application::Application,
    pipeline::{Pipeline, message, record},
    tank::{self, filled},
    wire::Wire,
    world::{World, each_seed},
};

/// The number of entries of a call.
const TEN: usize = 10;

/// Runs all masks of ten entries, in each of the four parts.
///
/// # Errors
/// When an entry is lost, duplicated, or overtakes another.
pub fn proof(_: &Effort, _: &Application) -> Result<Tried, Finding> {
    let masks = 1 << TEN;
    let tables = tank::application().tables();
    let world = || World::new(&tables);
    let play = |world: &mut World, mask| {
        world.runtime.block_on(async {
            fastrand::seed(mask);
            // The first commits of ten tanks fill one call. With five tanks, the second commits
            // would fit into the same call.
            for (part, tanks) in
                [(Part::Bus, 10), (Part::Bus, 5), (Part::Queue, 10), (Part::Queue, 5)]
            {
                refused_once(&world.wire, part, tanks, mask).await?;
                refused_for_good(&world.wire, part, tanks, mask).await?;
            }
            queue_response(&world.wire, mask).await
        })
    };
    each_seed(0, masks, world, play, |()| ())?;
    Ok(Tried::new(
        4 * masks,
        "masks, all of them",
        format!(
            "PutEvents, SendMessageBatch, the answer to the stream, the answer to a queue: {masks} each"
        ),
    ))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Bus,
    Queue,
}

/// Two commits of each tank: first the first commits of all tanks, then the second commits.
fn batch(part: Part, tanks: usize, run: &str) -> Vec<Commit> {
    let tanks: Vec<_> =
        (0..tanks).map(|place| filled(&format!("{part:?}-{tanks}-{run}-{place}"), 1)).collect();
    (0..2).flat_map(|version| tanks.iter().map(move |tank| tank[version].clone())).collect()
}

/// The index of a commit in its batch, from the name of its stream.
fn place(stream: &str, version: u64, tanks: usize) -> Option<usize> {
    let tank: usize = stream.rsplit('-').next()?.parse().ok()?;
    Some(tank + tanks * usize::try_from(version.checked_sub(1)?).ok()?)
}

fn records(commits: &[Commit]) -> Vec<Record> {
    commits.iter().enumerate().map(|(place, commit)| record(place, commit)).collect()
}

fn has(mask: u64, place: usize) -> bool {
    place < TEN && mask & (1 << place) != 0
}

/// The number of times that each commit of a batch was sent, by index.
type Sent = Arc<Mutex<BTreeMap<usize, usize>>>;

/// Refuses the commits in the mask `times` times each. The result counts the sends of each commit.
fn refuse(wire: &Wire, part: Part, tanks: usize, mask: u64, times: usize) -> Sent {
    let sent = Sent::default();
    let counts = Arc::clone(&sent);
    wire.services().refuse(Some(Box::new(move |entry: &Value| {
        let text = match part {
            Part::Bus => &entry["Detail"],
            Part::Queue => &entry["MessageBody"],
        };
        let content: Value =
            serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or_default();
        let version = match part {
            Part::Bus => &content["lastEvent"]["version"],
            Part::Queue => &content["version"],
        };
        let stream = content["stream"].as_str().unwrap_or_default();
        let Some(place) = version.as_u64().and_then(|version| place(stream, version, tanks)) else {
            return false;
        };
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(place).or_insert(0);
        *count += 1;
        has(mask, place) && *count <= times
    })));
    sent
}

fn finding(mask: u64, what: impl std::fmt::Display) -> Finding {
    Finding { seed: mask, story: format!("mask {mask:010b}: {what}") }
}

/// Checks that an entry that was refused once is sent once more, and that no other entry is.
async fn refused_once(wire: &Wire, part: Part, tanks: usize, mask: u64) -> Result<(), Finding> {
    let commits = batch(part, tanks, &format!("once-{mask}"));
    let pipeline = tank::application().pipeline_at(wire);
    let sent = refuse(wire, part, tanks, mask, 1);
    let failed = pipeline.fanout.handle(&records(&commits)).await;
    wire.services().refuse(None);
    if failed.is_some() {
        return Err(finding(mask, format!("{part:?}: record {failed:?} is said to have failed")));
    }
    for (place, count) in sent.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if *count != 1 + usize::from(has(mask, *place)) {
            return Err(finding(mask, format!("{part:?}: record {place} was sent {count} times")));
        }
    }
    let (entries, messages) = taken(wire, &pipeline);
    complete(mask, part, &commits, entries, messages, true)
}

/// Checks entries that are refused until the fanout gives up. The answer to the stream names the
/// first of their records. The stream redelivers this record and all later ones. The messages of
/// each stream must stay in order.
async fn refused_for_good(wire: &Wire, part: Part, tanks: usize, mask: u64) -> Result<(), Finding> {
    let commits = batch(part, tanks, &format!("good-{mask}"));
    let pipeline = tank::application().pipeline_at(wire);
    let _sent = refuse(wire, part, tanks, mask, usize::MAX);
    let first = records(&commits);
    let failed = pipeline.fanout.handle(&first).await;
    wire.services().refuse(None);
    let expected = (0..TEN).find(|place| has(mask, *place));
    if failed != expected {
        return Err(finding(
            mask,
            format!("{part:?}: the first failure is {failed:?}, not {expected:?}"),
        ));
    }
    let named: Vec<_> = response(&first, failed)
        .batch_item_failures
        .into_iter()
        .filter_map(|failure| failure.item_identifier)
        .collect();
    let expected: Vec<_> =
        expected.map(|place| first[place].sequence_number.clone()).into_iter().collect();
    if named != expected {
        return Err(finding(
            mask,
            format!("{part:?}: the stream is told {named:?}, not {expected:?}"),
        ));
    }
    let (mut entries, mut messages) = taken(wire, &pipeline);
    let overtook = messages.iter().find(|(stream, version)| {
        let first = place(stream, 1, tanks).unwrap_or(TEN);
        part == Part::Queue && *version == 2 && has(mask, first)
    });
    if let Some((stream, _)) = overtook {
        return Err(finding(mask, format!("the second commit of {stream} overtook the first")));
    }
    if let Some(place) = failed {
        // Lambda redelivers the named record and all records behind it.
        let again = pipeline.fanout.handle(&records(&commits[place..])).await;
        if again.is_some() {
            return Err(finding(mask, format!("{part:?}: it failed again")));
        }
        let (more_entries, more_messages) = taken(wire, &pipeline);
        entries.extend(more_entries);
        messages.extend(more_messages);
    }
    complete(mask, part, &commits, entries, messages, false)
}

type Versions = Vec<(String, u64)>;

/// The streams and versions on the bus, and in the queue of fills.
fn taken(wire: &Wire, pipeline: &Pipeline) -> (Versions, Versions) {
    let of = |content: &Value, version: &Value| {
        (content["stream"].as_str().unwrap_or_default().to_owned(), version.as_u64().unwrap_or(0))
    };
    let entries = wire.services().take_entries();
    let entries = entries.iter().map(|entry| of(entry, &entry["lastEvent"]["version"])).collect();
    let messages = wire.services().take_messages(&pipeline.logged[0].url);
    let messages = messages.iter().map(|queued| {
        let content: Value = serde_json::from_str(&queued.body).unwrap_or_default();
        of(&content, &content["version"])
    });
    (entries, messages.collect())
}

/// Checks that all commits arrived, in the queue once and in order.
fn complete(
    mask: u64,
    part: Part,
    commits: &[Commit],
    entries: Versions,
    messages: Versions,
    once: bool,
) -> Result<(), Finding> {
    let all: BTreeSet<_> =
        commits.iter().map(|commit| (commit.stream.to_string(), commit.version)).collect();
    let sent = entries.len();
    let queued = messages.len();
    if entries.into_iter().collect::<BTreeSet<_>>() != all || once && sent != all.len() {
        return Err(finding(
            mask,
            format!("{part:?}: {sent} entries on the bus, of {}", all.len()),
        ));
    }
    let mut last = BTreeMap::new();
    for (stream, version) in &messages {
        if last.insert(stream, *version).unwrap_or(0) + 1 != *version {
            return Err(finding(
                mask,
                format!("{part:?}: version {version} of {stream} is out of order"),
            ));
        }
    }
    if queued != all.len() {
        return Err(finding(mask, format!("{part:?}: {queued} messages, of {}", all.len())));
    }
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
async fn queue_response(wire: &Wire, mask: u64) -> Result<(), Finding> {
    let tanks: Vec<_> = (0..3).map(|group| filled(&format!("fifo-{mask}-{group}"), 5)).collect();
    // A tank has two commits. The further commits repeat the fill with the next versions.
    let commits: Vec<_> = (0..TEN)
        .map(|place| {
            let tank = &tanks[place % 3];
            let version = place as u64 / 3 + 1;
            let mut commit = tank[usize::from(version > 1)].clone();
            commit.version = version;
            commit
        })
        .collect();
    // The guard looks up a skipped commit in the log.
    let store = MemoryStore::default();
    for commit in &commits {
        store.append(commit, None).await.map_err(|error| finding(mask, error))?;
    }
    let projector = LogProjector::new(wire.dynamodb(), table("FillsTable"), FILLS_VIEW);
    let fails = commits.iter().enumerate().filter(|(place, _)| has(mask, *place));
    let fails = fails.map(|(_, commit)| (commit.stream.to_string(), commit.version)).collect();
    let runner = QueueRunner {
        store,
        consumer: Moody { projector, fails: RefCell::new(fails), tried: RefCell::default() },
    };
    let mut messages = Vec::new();
    for (place, commit) in commits.iter().enumerate() {
        let whole = ledgerline_lambda::wire::Message::Commit(Box::new(commit.clone()));
        let body = serde_json::to_string(&whole).map_err(|error| finding(mask, error))?;
        messages.push(message(&place.to_string(), commit.stream.as_str(), &body, 1));
    }
    let failed = |answer: aws_lambda_events::sqs::SqsBatchResponse| -> BTreeSet<usize> {
        answer
            .batch_item_failures
            .iter()
            .filter_map(|failure| failure.item_identifier.parse().ok())
            .collect()
    };
    let first = failed(runner.batch(&messages).await);
    let expected: BTreeSet<_> = (0..TEN)
        .filter(|place| (0..=*place).any(|before| before % 3 == place % 3 && has(mask, before)))
        .collect();
    if first != expected {
        return Err(finding(mask, format!("the queue is told {first:?}, not {expected:?}")));
    }
    // A message behind a failure of its group must not be attempted, because it would overtake.
    let tried = |place: &usize| {
        let commit = &commits[*place];
        runner.consumer.tried.borrow().contains(&(commit.stream.to_string(), commit.version))
    };
    if let Some(place) = first.iter().find(|place| tried(place) && !has(mask, **place)) {
        return Err(finding(
            mask,
            format!("message {place} was tried behind a failure of its group"),
        ));
    }
    runner.consumer.fails.borrow_mut().clear();
    let again: Vec<_> = first.iter().map(|place| messages[*place].clone()).collect();
    let still = failed(runner.batch(&again).await);
    if !still.is_empty() {
        return Err(finding(mask, format!("{still:?} failed again")));
    }
    for tank in &tanks {
        let stream = &tank[0].stream;
        let position = runner.consumer.projector.table.position(stream).await;
        let last = commits.iter().filter(|commit| commit.stream == *stream).count() as u64;
        if position.as_ref().ok() != Some(&last) {
            return Err(finding(
                mask,
                format!("the position in {stream} is {position:?}, not {last}"),
            ));
        }
    }
    Ok(())
}
