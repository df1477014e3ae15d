//! Subscriptions: several instances share one checkpoint and read `$all` over a wire that
//! misbehaves.
//!
//! `$all` has duplicate entries, entries of commits that were overtaken, and no entries for some
//! commits, because their records never arrived. Instances are killed in the middle of calls, and
//! some resume after others have continued. Their leases have no length, so that only the fence
//! separates instances.
//!
//! In the end each commit must have been applied once, in the order of `$all`. Rows, running number
//! and positions must be those of a fold by a single undisturbed reader.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::{Error, Result, bail, ensure};
use fastrand::Rng;
use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Changes, ChangesError, Commit, EventLog, LogTable, OrderedView, RecordedEvent, StreamId, Write,
    all::{Cursor, Filter, Sequencer, Subscription, candidates},
    contract::commit,
};
use ledgerline_dynamodb::{DynamoDbStore, LogRows, PageQuery};
use ledgerline_lambda::subscription::{self, Subscriber};
use ledgerline_tank::views::FILLS;
use ledgerline_testing::table;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::{
    Application, Effort, Runs, Tried,
    case::{Case, Done},
    counts::Counts,
    faulty_wire::{Plan, Wire},
    role::Role,
    world::{World, each_seed},
};

/// A view with one numbered row for each commit of a tank.
const DIARY: OrderedView<Last, u64> =
    OrderedView { table: KEYS, of: &["tank"], writes: &[Write::Put, Write::Update], changes };

const KEYS: LogTable = FILLS;

/// The state that the view carries from one row to the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Last {
    number: u64,
    /// The sum of all versions. It differs if a commit is missing or duplicated.
    sum: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    tank_id: String,
    entry: String,
    commit: String,
    sum: u64,
}

fn changes(
    last: &mut Last,
    before: &mut u64,
    commit: &Commit,
    changes: &mut Changes,
) -> Result<(), ChangesError> {
    if commit.version != *before + 1 {
        return Err(ChangesError::NoRow(format!(
            "{} comes after version {before}",
            commit.version
        )));
    }
    *before = commit.version;
    last.number += 1;
    last.sum += commit.version;
    let tank_id = "diary".to_owned();
    let entry = format!("{:020}", last.number);
    changes.put(&Row {
        tank_id,
        entry,
        commit: format!("{} {}", commit.stream, commit.version),
        sum: last.sum,
    })?;
    // A row that every commit updates.
    changes.set("sums", "sum", "sum", last.sum);
    Ok(())
}

const RUNS: Runs = Runs { least: 60, seconds: 10, long: 20_000 };

/// Plays histories of subscriptions. Fails if a commit is missing, duplicated or out of order, or if
/// the rows are not the fold.
pub(crate) fn proof(effort: &Effort, _: &Application) -> Result<Tried> {
    let play = |(): &mut (), seed| {
        // Each run has a world of its own, because the runs of one world would share `$all`.
        let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable"])?;
        let wire = world.wire.fork();
        world.runtime.block_on(play(&world.wire, &wire, seed))
    };
    let counts = each_seed(effort, &RUNS, || Ok(()), play)?;
    counts.ensure_tried(effort, &RUNS, &[FAULTS, KILLED, FAILED])?;
    Ok(Tried::new(counts.runs, "histories", counts))
}

const COMMITS: &str = "commits";
const FAULTS: &str = "faults";
const KILLED: &str = "instances killed in the middle of a call";
const FAILED: &str = "instances that failed";

/// Plays one run, over a wire with faults and a quiet one.
async fn play(wire: &Wire, quiet: &Wire, seed: u64) -> Result<Counts> {
    let mut rng = Rng::with_seed(seed);
    let log = World::store_at(quiet);
    let shape = Shape::new(&mut rng);
    let mut counts = Counts::default();
    for commit in shape.log.values().flatten() {
        log.append(commit, None).await?;
        counts.add(COMMITS, 1);
    }
    wire.follow(Plan::Random(rng.u32(0..300)), seed);
    let mut segments = shape.segments.into_iter().enumerate();
    let mut instances: Vec<_> = (0..3).map(|_| subscriber(wire)).collect();
    for round in 0..24 {
        if round % 4 == 0 || round > 12 {
            for (number, entries) in segments.by_ref().take(3) {
                log.append(&segment(number as u64 + 1, &entries), None).await?;
            }
        }
        // Two instances run at once. Some are killed in the middle of a call and replaced.
        let one = rng.usize(0..3);
        let other = rng.usize(0..3);
        let time = |rng: &mut Rng| match rng.u32(0..3) {
            0 => Duration::from_millis(rng.u64(1..300)),
            _ => Duration::from_secs(300),
        };
        let first = time(&mut rng);
        let second = time(&mut rng);
        let pause = Duration::from_millis(rng.u64(0..100));
        let (first, second) = tokio::join!(timeout(first, instances[one].catch_up()), async {
            sleep(pause).await;
            timeout(second, instances[other].catch_up()).await
        });
        for (instance, done) in [(one, first), (other, second)] {
            match done {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => counts.add(FAILED, 1),
                Err(_) => {
                    counts.add(KILLED, 1);
                    instances[instance] = subscriber(wire);
                }
            }
        }
    }
    // The wire applies late requests within this time.
    wire.calm();
    sleep(Duration::from_secs(120)).await;
    for (number, entries) in segments {
        log.append(&segment(number as u64 + 1, &entries), None).await?;
    }
    subscriber(wire).catch_up().await?;
    counts.add(FAULTS, wire.take_faults().values().sum());
    wire.ensure_nothing_denied()?;
    let expected = fold(quiet).await?;
    compare(quiet, &expected, &shape.log).await?;
    Ok(counts)
}

fn subscriber(wire: &Wire) -> Subscriber<Last, u64> {
    static ROLE: LazyLock<Arc<Role>> = LazyLock::new(|| Role::new(&subscription::manifest(&DIARY)));
    let own = wire.under(&ROLE);
    let rows = LogRows::new(own.dynamodb(), table("FillsTable"), KEYS);
    // `$all` is in the Commits table here, because not every workspace has a table for it. No other
    // stream has the names of `$all`. The role is for another table, so the reads of `$all` do not
    // use it.
    Subscriber::new(DIARY, rows, World::store_at(wire), World::store_at(&own))
        .with_lease(SignedDuration::ZERO)
}

/// A log, and the entries of `$all` by segment.
struct Shape {
    log: BTreeMap<StreamId, Vec<Commit>>,
    segments: Vec<Vec<(StreamId, u64)>>,
}

impl Shape {
    fn new(rng: &mut Rng) -> Self {
        let mut log = BTreeMap::<StreamId, Vec<Commit>>::new();
        let mut order = Vec::new();
        for _ in 0..rng.usize(5..150) {
            let category = if rng.u32(0..4) == 0 { "lamp" } else { "tank" };
            let Ok(stream) = StreamId::new(category, &rng.u32(0..8).to_string()) else { continue };
            let commits = log.entry(stream.clone()).or_default();
            let version = commits.len() as u64 + 1;
            commits.push(commit(&stream, version));
            order.push((stream, version));
        }
        for place in 1..order.len() {
            if rng.u32(0..6) == 0 {
                order.swap(place - 1, place);
            }
        }
        order.retain(|_| rng.u32(0..15) > 0);
        for _ in 0..order.len() / 10 {
            let entry = order[rng.usize(0..order.len())].clone();
            order.insert(rng.usize(0..order.len()), entry);
        }
        // Comparing the heads of all streams with `$all` adds the commits whose records were lost.
        order.extend(log.iter().map(|(stream, commits)| (stream.clone(), commits.len() as u64)));
        let mut segments = Vec::new();
        while !order.is_empty() {
            let rest = order.split_off(rng.usize(1..12).min(order.len()));
            segments.push(std::mem::replace(&mut order, rest));
        }
        Self { log, segments }
    }
}

/// A segment with these entries. No sequencer would append it in this form.
fn segment(number: u64, entries: &[(StreamId, u64)]) -> Commit {
    let data = serde_json::to_string(entries).unwrap_or_default();
    let all = StreamId::try_from("$all".to_owned())
        .unwrap_or_else(|_| unreachable!("it is a stream of $all"));
    Commit {
        events: vec![RecordedEvent { event_type: "Sequenced".into(), schema: 1, data }],
        ..commit(&all, number)
    }
}

/// The rows, by their keys.
type Rows = BTreeMap<(String, String), serde_json::Map<String, serde_json::Value>>;

/// Folds `$all` like a single undisturbed reader: the rows, and the position in each stream.
async fn fold(quiet: &Wire) -> Result<(Rows, BTreeMap<StreamId, u64>)> {
    let filter =
        Filter { categories: BTreeSet::from(["tank".to_owned()]), events: BTreeSet::new() };
    let sequence = World::store_at(quiet);
    let log = World::store_at(quiet);
    let subscription = Subscription { sequence, log, filter, limit: 7 };
    let (mut rows, mut positions, mut last) =
        (Rows::new(), BTreeMap::<StreamId, u64>::new(), Last::default());
    let mut cursor = Cursor::beginning();
    loop {
        let page = subscription.read_page(cursor).await?;
        for delivered in page.delivered {
            let commit = delivered.commit.map_err(Error::msg)?;
            loop {
                let position = positions.get(&commit.stream).copied().unwrap_or_default();
                let due = subscription.due_commits(&commit, position).await?;
                if due.is_empty() {
                    break;
                }
                for commit in due {
                    let mut made = Changes::new(KEYS);
                    let mut before = commit.version - 1;
                    changes(&mut last, &mut before, &commit, &mut made)?;
                    made.fold(&mut rows);
                    positions.insert(commit.stream, commit.version);
                }
            }
        }
        cursor = page.cursor;
        if page.complete {
            return Ok((rows, positions));
        }
    }
}

async fn compare(
    quiet: &Wire,
    (rows, positions): &(Rows, BTreeMap<StreamId, u64>),
    log: &BTreeMap<StreamId, Vec<Commit>>,
) -> Result<()> {
    let heads: BTreeMap<_, _> = log
        .iter()
        .filter(|(stream, _)| stream.category() == "tank")
        .map(|(stream, commits)| (stream.clone(), commits.len() as u64))
        .collect();
    if *positions != heads {
        bail!("a reader came to {positions:?}, and the heads are {heads:?}");
    }
    let table = LogRows::new(quiet.dynamodb(), table("FillsTable"), KEYS);
    for (stream, head) in &heads {
        let (position, _) = table.progress(stream).await?;
        if position != *head {
            bail!("the position in {stream} is {position}, not {head}");
        }
    }
    let mut found = Rows::new();
    for partition in ["diary", "sums"] {
        let mut cursor: Option<String> = None;
        loop {
            let query = PageQuery::new(partition, 100, cursor.as_deref());
            let page = table.page::<serde_json::Map<String, serde_json::Value>>(&query).await;
            let (rows, next) = page.and_then(ledgerline_dynamodb::Page::whole)?;
            let key = |row: &serde_json::Map<String, serde_json::Value>, name: &str| {
                row.get(name).and_then(|key| key.as_str()).unwrap_or_default().to_owned()
            };
            found.extend(
                rows.into_iter()
                    .map(|row| ((key(&row, KEYS.partition), key(&row, KEYS.sort)), row)),
            );
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
    }
    ensure!(found == *rows, "rows are {found:?}\n  and should be {rows:?}");
    Ok(())
}

/// The case of a subscription for the proof of crashes.
pub(crate) fn case() -> Case {
    let streams: Vec<Vec<Commit>> = ["1", "2", "3"]
        .into_iter()
        .filter_map(|id| StreamId::new("tank", id).ok())
        .map(|stream| (1..=20).map(|version| commit(&stream, version)).collect())
        .collect();
    let log = streams.clone();
    Case::new("subscription", log, move |wire: Wire, _: Done| {
        let streams = streams.clone();
        async move {
            let quiet = World::store_at(&wire.fork());
            let ordered = Sequencer::new(DynamoDbStore::HOST.pause)
                .append(
                    &quiet,
                    &quiet,
                    "batch",
                    candidates(streams.iter().flatten()),
                    Timestamp::UNIX_EPOCH,
                )
                .await;
            ordered.is_ok() && subscriber(&wire).catch_up().await.is_ok()
        }
        .boxed_local()
    })
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use ledgerline_dynamodb::{Generations, Move};

    use ledgerline::view_store::RowStore;

    use super::*;
    use crate::faulty_wire::Fault;

    /// The previous generation is behind by all commits, and its table fails or is slow.
    #[test]
    fn a_previous_generation_that_fails_or_is_slow_is_marked_and_holds_up_no_commit() {
        // The first call reads the generations. A call has three attempts.
        for (fault, times) in [(Fault::Failed, 3), (Fault::Slow, 60)] {
            let world = World::new(&["CommitsTable", "RequestsTable", "FillsTable"]).unwrap();
            let quiet = world.wire.fork();
            world.runtime.block_on(async {
                let (log, rows) = (World::store_at(&quiet), |generation| {
                    LogRows::new(quiet.dynamodb(), table("FillsTable"), KEYS)
                        .at_generation(generation)
                });
                let stream = StreamId::new("tank", "1").unwrap();
                for version in 1..=1_000 {
                    log.append(&commit(&stream, version), None).await.unwrap();
                }
                let (table, active) = (rows(0), rows(1));
                let table = table.view();
                let change = async |from: &Generations, to| {
                    assert!(table.compare_and_set(from, to, Move::default()).await.unwrap());
                    table.generations().await.unwrap()
                };
                let none = Generations::default();
                let begun = change(&none, none.begin_build(Timestamp::UNIX_EPOCH).unwrap()).await;
                let compared =
                    change(&begun, begun.switch(1, Timestamp::UNIX_EPOCH).unwrap()).await;
                for number in 0..10 {
                    let versions = number * 100 + 1..=number * 100 + 100;
                    let entries: Vec<_> =
                        versions.map(|version| (stream.clone(), version)).collect();
                    log.append(&segment(number + 1, &entries), None).await.unwrap();
                }
                let script = [None].into_iter().chain(repeat_n(Some(fault), times));
                world.wire.follow(Plan::Script(script.collect()), 1);
                let done = subscriber(&world.wire).catch_up_all().await;
                assert_eq!(done.is_err(), fault == Fault::Failed, "{done:?}");
                assert_eq!(active.progress(&stream).await.unwrap().0, 1_000, "{fault:?}");
                assert!(rows(0).progress(&stream).await.unwrap().0 < 1_000, "{fault:?}");
                let generations = table.generations().await.unwrap();
                assert!(generations.marks_since(&compared).unwrap().any, "{fault:?}");
                world.wire.calm();
                subscriber(&world.wire).catch_up_all().await.unwrap();
                assert_eq!(rows(0).progress(&stream).await.unwrap().0, 1_000, "{fault:?}");
            });
        }
    }
}
