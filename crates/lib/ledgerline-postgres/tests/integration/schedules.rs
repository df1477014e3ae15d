//! Rows in DynamoDB, PostgreSQL and memory are the fold of the log after any schedule of
//! deliveries.

use std::{collections::BTreeMap, time::Duration};

use aws_lambda_events::sqs::SqsMessage;
use fastrand::Rng;
use ledgerline::{
    Changes, ChangesError, Commit, EventLog, LogView, MemoryStore, StreamId, Write,
    changes::{Fields, Key},
    contract::{self, log_row_store::TABLE, state_row_store},
    view_store::{
        LogRowStore, MemoryLogRows, MemoryStateRows, RowStore, StateRowStore, StoredRow, ViewError,
    },
};
use ledgerline_dynamodb::{LogRows, StateRows, ViewTable};
use ledgerline_lambda::{log_projector::LogProjector, messages::Message, queue::QueueRunner};
use ledgerline_local::search::{SearchFault, SearchServer};
use ledgerline_opensearch::{Domain, SearchRows};
use ledgerline_postgres::{PostgresLogRows, PostgresStateRows};
use ledgerline_testing::{client_and_wire, has_postgres, table};
use tokio::time::timeout;

use super::database;

/// The variable with the number of schedules.
const SCHEDULES: &str = "SCHEDULES";
const STREAMS: u64 = 3;
const VERSIONS: u64 = 6;
const DELIVERIES: usize = 16;

const VIEW: LogView = LogView {
    table: TABLE,
    of: &["contract"],
    writes: &[Write::Put, Write::Update, Write::Delete],
    changes,
};

/// A version puts, updates or deletes a row of its stream, and adds to one sum over all streams.
/// Versions 1 and 5 change no row.
fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
    let id = commit.stream.id();
    let version = commit.version;
    let mut changes = Changes::new(TABLE);
    match version % 4 {
        0 => changes.delete(id, &format!("{}", version - 2)),
        1 => return Ok(changes),
        2 => changes.put(&serde_json::json!({
            "tankId": id, "entry": version.to_string(), "n": version, "text": "ö'",
        }))?,
        _ => changes.set(id, "last", "n", version),
    }
    changes.add("all", "sum", "total", i64::try_from(version).unwrap_or_default());
    Ok(changes)
}

/// The keys that a commit may touch.
fn keys() -> impl Iterator<Item = Key> {
    let of_stream = |id: u64| {
        let entries = (1..=VERSIONS).map(|version| version.to_string());
        entries.chain(["last".to_owned()]).map(move |entry| (id.to_string(), entry))
    };
    (0..STREAMS).flat_map(of_stream).chain([("all".to_owned(), "sum".to_owned())])
}

async fn rows(store: &impl LogRowStore) -> BTreeMap<Key, Fields> {
    let found = store.stored_rows(&keys().collect()).await.unwrap();
    found.into_iter().map(|(key, row)| (key, row.fields.unwrap())).collect()
}

fn message(number: usize, commit: &Commit) -> SqsMessage {
    let mut message = SqsMessage::default();
    message.message_id = Some(number.to_string());
    message.body = Some(serde_json::to_string(&Message::Commit(Box::new(commit.clone()))).unwrap());
    message.attributes.insert("MessageGroupId".into(), commit.stream.to_string());
    message
}

/// A schedule: batches with commits in any order, repeated or missing. Some are given up after a
/// time, as when a function is killed.
struct Schedule {
    batches: Vec<(Vec<SqsMessage>, Option<Duration>)>,
    last: Vec<SqsMessage>,
}

impl Schedule {
    fn new(rng: &mut Rng, commits: &[Commit]) -> Self {
        let mut batches = Vec::new();
        for _ in 0..rng.usize(1..DELIVERIES) {
            let batch = (0..rng.usize(1..8))
                .map(|place| message(place, &commits[rng.usize(..commits.len())]));
            let batch = batch.collect();
            let killed_after = rng.bool().then(|| Duration::from_micros(rng.u64(..6_000)));
            batches.push((batch, killed_after));
        }
        // The newest commit of each stream repairs what is missing.
        let newest = commits.iter().filter(|commit| commit.version == VERSIONS);
        Self { batches, last: newest.enumerate().map(|(place, it)| message(place, it)).collect() }
    }

    async fn run<S: LogRowStore>(
        &self,
        store: S,
        commits: &[Commit],
        generations: &ViewTable,
    ) -> BTreeMap<Key, Fields> {
        let log = MemoryStore::default();
        for commit in commits {
            log.append(commit, None).await.unwrap();
        }
        let generations = generations.clone();
        let consumer = LogProjector { rows: store.clone(), generations, view: VIEW };
        let runner = QueueRunner { store: log, consumer };
        for (batch, killed_after) in &self.batches {
            match killed_after {
                Some(time) => _ = timeout(*time, runner.batch(batch)).await,
                None => _ = runner.batch(batch).await,
            }
        }
        let mut left = self.last.clone();
        while !left.is_empty() {
            let failed = runner.batch(&left).await.batch_item_failures;
            left.retain(|message| {
                failed
                    .iter()
                    .any(|failed| Some(&failed.item_identifier) == message.message_id.as_ref())
            });
        }
        rows(&store).await
    }
}

fn number_of_schedules() -> u64 {
    std::env::var(SCHEDULES).ok().and_then(|number| number.parse().ok()).unwrap_or(20)
}

#[tokio::test]
async fn rows_of_all_stores_are_the_fold_after_any_schedule() {
    if !has_postgres() {
        return;
    }
    let number = number_of_schedules();
    let seed = ledgerline_testing::seed();
    let mut rng = Rng::with_seed(seed);
    let streams = (0..STREAMS).map(|id| StreamId::new("contract", &id.to_string()).unwrap());
    let commits: Vec<_> = streams
        .flat_map(|stream| (1..=VERSIONS).map(move |version| contract::commit(&stream, version)))
        .collect();
    let mut expected = BTreeMap::new();
    commits.iter().for_each(|commit| changes(commit).unwrap().fold(&mut expected));
    let (client, _) = client_and_wire(&["FillsTable"]).await;
    let dynamodb = LogRows::new(client, table("FillsTable"), TABLE);
    let postgres = PostgresLogRows::new(database().await, TABLE, "");
    let generations = dynamodb.view();
    for schedule in 0..number {
        let run = Schedule::new(&mut rng, &commits);
        let again = format!("schedule {schedule}: {SCHEDULES}={number} LEDGERLINE_SEED={seed}");
        let memory = run.run(MemoryLogRows::default(), &commits, generations).await;
        assert_eq!(memory, expected, "in memory, {again}");
        let found = run.run(dynamodb.clone(), &commits, generations).await;
        assert_eq!(found, expected, "in DynamoDB, {again}");
        let found = run.run(postgres.clone(), &commits, generations).await;
        assert_eq!(found, expected, "in PostgreSQL, {again}");
        // The next schedule begins without rows.
        generations.clear(None).await.unwrap();
        postgres.delete_generation().await.unwrap();
    }
}

/// A state of a stream that arrives, and the time after which its write is given up, as when a
/// function is killed.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    id: u64,
    version: u64,
    killed_after: Option<Duration>,
}

/// Writes the row of a version, or forgets the row at every fourth version.
async fn write(store: &impl StateRowStore, id: u64, version: u64) -> Result<(), ViewError> {
    let id = id.to_string();
    if version.is_multiple_of(4) {
        return store.forget(&id, version, i64::MAX >> 1).await.map(|_| ());
    }
    let row = serde_json::json!({ "tankId": id, "n": version, "text": "ö'" });
    store.put_newer(&row, version).await.map(|_| ())
}

/// Writes states that arrive in groups, those of a group at the same time. In the middle, the
/// newest state of each stream is written, with retries. No later group has a newer state. Returns
/// the rows.
async fn write_states(
    store: &impl StateRowStore,
    groups: &[Vec<Arrival>],
    newest: &BTreeMap<u64, u64>,
) -> BTreeMap<Key, StoredRow> {
    let (earlier, later) = groups.split_at(groups.len() / 2);
    write_groups(store, earlier).await;
    for (id, version) in newest {
        let mut attempts = 0;
        while let Err(error) = write(store, *id, *version).await {
            attempts += 1;
            assert!(attempts < 20, "{error}");
        }
    }
    write_groups(store, later).await;
    let keys = newest.keys().map(|id| (id.to_string(), String::new()));
    store.stored_rows(&keys.collect()).await.unwrap()
}

async fn write_groups(store: &impl StateRowStore, groups: &[Vec<Arrival>]) {
    for group in groups {
        let arrivals = group.iter().map(async |arrival| {
            let write = write(store, arrival.id, arrival.version);
            match arrival.killed_after {
                Some(time) => _ = timeout(time, write).await,
                None => _ = write.await,
            }
        });
        futures::future::join_all(arrivals).await;
    }
}

/// Rule 8. Requests to OpenSearch also fail, as a whole and for one row.
#[tokio::test]
async fn rows_of_all_stores_are_the_newest_states_after_any_schedule() {
    if !has_postgres() {
        return;
    }
    let number = number_of_schedules();
    let seed = ledgerline_testing::seed();
    let mut rng = Rng::with_seed(seed);
    let keys = state_row_store::TABLE;
    let (client, _) = client_and_wire(&["LevelsTable"]).await;
    let dynamodb = StateRows::new(client, table("LevelsTable"), keys);
    let postgres = PostgresStateRows::new(database().await, keys, "");
    let server = SearchServer::start().await.unwrap();
    let sdk = ledgerline_dynamodb::sdk_config("http://127.0.0.1:1");
    let opensearch = SearchRows::new(Domain::new(&sdk, server.url()), keys, "{}");
    for schedule in 0..number {
        let newest: BTreeMap<_, _> = (0..STREAMS).map(|id| (id, rng.u64(1..=VERSIONS))).collect();
        let mut arrival = || {
            let id = rng.u64(..STREAMS);
            let killed_after = rng.bool().then(|| Duration::from_micros(rng.u64(..3_000)));
            Arrival { id, version: rng.u64(1..=newest[&id]), killed_after }
        };
        let groups: Vec<Vec<_>> =
            (0..DELIVERIES / 4).map(|_| (0..4).map(|_| arrival()).collect()).collect();
        let fault =
            [SearchFault::FirstRow(429), SearchFault::Request(400), SearchFault::LostAnswer]
                [rng.usize(..3)];
        server.fail_next([fault]);
        let again = format!("schedule {schedule}: {SCHEDULES}={number} LEDGERLINE_SEED={seed}");
        let expected = write_states(&MemoryStateRows::new(keys), &groups, &newest).await;
        for (id, version) in &newest {
            let row = &expected[&(id.to_string(), String::new())];
            assert_eq!(
                (row.version, row.fields.is_none()),
                (*version, version % 4 == 0),
                "{again}"
            );
        }
        let found = write_states(&dynamodb, &groups, &newest).await;
        assert_eq!(found, expected, "in DynamoDB, {again}");
        let found = write_states(&postgres, &groups, &newest).await;
        assert_eq!(found, expected, "in PostgreSQL, {again}");
        let found = write_states(&opensearch, &groups, &newest).await;
        assert_eq!(found, expected, "in OpenSearch, {again}");
        // The next schedule begins without rows.
        dynamodb.view().clear(None).await.unwrap();
        postgres.delete_generation().await.unwrap();
        opensearch.delete_generation().await.unwrap();
    }
}
