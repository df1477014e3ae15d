//! Rows in DynamoDB, PostgreSQL and memory are the fold of the log after any schedule of
//! deliveries.

use std::{collections::BTreeMap, time::Duration};

use aws_lambda_events::sqs::SqsMessage;
use fastrand::Rng;
use ledgerline::{
    Changes, ChangesError, Commit, EventLog, LogView, MemoryStore, StreamId, Write,
    changes::{Fields, Key},
    contract::{self, log_row_store::TABLE},
    view_store::{LogRowStore, MemoryLogRows, RowStore},
};
use ledgerline_dynamodb::{LogRows, ViewTable};
use ledgerline_lambda::{log_projector::LogProjector, messages::Message, queue::QueueRunner};
use ledgerline_postgres::PostgresLogRows;
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
    let (id, version) = (commit.stream.id(), commit.version);
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

#[tokio::test]
async fn rows_of_all_stores_are_the_fold_after_any_schedule() {
    if !has_postgres() {
        return;
    }
    let number = std::env::var(SCHEDULES).ok().and_then(|number| number.parse().ok()).unwrap_or(20);
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
