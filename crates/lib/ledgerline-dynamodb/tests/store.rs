//! The DynamoDB store, tested over a real connection: the contract of the port, and the budgets of
//! a command.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use ledgerline::{
    AppendError, Cache, Commit, Consistency, Context, EventLog, EventStore, ExecuteError,
    Execution, Idempotency, IdempotencyRecord, MemoryStore, Meta, Outcome, Range, Refusal,
    StreamId,
    contract::commit,
    execute, load,
    spec::valid,
    testing::tank::{Amount, Command, Tank},
};
use ledgerline_dynamodb::{DynamoDbStore, MAX_ITEM_BYTES};
use ledgerline_testing::{client_and_wire, cold, store_and_wire};

async fn store() -> DynamoDbStore {
    store_and_wire().await.0
}

ledgerline::contract_tests!(store());

/// The SDK retries a call whose reply was lost. If the retry counted as an attempt, a good record
/// would be quarantined too soon.
#[tokio::test]
async fn an_attempt_counts_once_even_if_the_call_is_retried() {
    let store = store().await;
    for (id, before) in [("a", 0), ("a", 0), ("b", 1), ("b", 1), ("c", 2)] {
        assert_eq!(store.record_attempt("fanout/1", id, i64::MAX).await.unwrap(), before, "{id}");
    }
    store.clear_attempts("fanout/1").await.unwrap();
    assert_eq!(store.record_attempt("fanout/1", "d", i64::MAX).await.unwrap(), 0);
}

fn stream() -> StreamId {
    StreamId::new("tank", "163082d2-b005-75d7-8eb6-aa1f83efd55d").unwrap()
}

async fn send(
    store: &impl EventStore,
    cache: &Cache<Tank>,
    command: Command,
    key: Option<&str>,
) -> Result<Outcome<Tank>, ExecuteError> {
    let at = "2026-11-21T09:30:00.123456Z".parse().unwrap();
    let id = key.map_or_else(|| uuid::Uuid::now_v7().to_string(), ToOwned::to_owned);
    let answer =
        |answer: Result<(&ledgerline::testing::tank::State, u64), &Refusal>| format!("{answer:?}");
    let meta = Meta {
        actor: Some("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10".into()),
        correlation_id: Some("JKJaXmPLvHcESHA=".into()),
        causation_id: None,
        source_address: Some("192.0.2.1".into()),
        trace_id: Some("Root=1-5759e988-bd862e3fe1be46a994272793".into()),
    };
    let stream = stream();
    let context = Context { at, actor: meta.actor.clone() };
    let execution = Execution {
        creates: matches!(command, Command::Install { .. }),
        idempotency: key.map(|key| Idempotency {
            key,
            fingerprint: "f",
            retention: 100,
            answer: &answer,
        }),
        ..Execution::new(&stream, &command, &context, &id, &meta)
    };
    execute(store, cache, &DynamoDbStore::HOST, &execution).await
}

fn install() -> Command {
    Command::Install { site: valid("Ada Lovelace"), liquid: valid("water") }
}

fn fill() -> Command {
    Command::Fill(Amount { amount: valid(1), note: Some(valid("salary")) })
}

/// A read for a fold leaves the metadata and the time of commits in the database, because a fold
/// does not need them.
#[tokio::test]
async fn a_read_for_a_fold_transfers_fewer_bytes_for_the_same_units() {
    let (store, wire) = store_and_wire().await;
    let cache = cold();
    send(&store, &cache, install(), None).await.unwrap();
    for _ in 0..8 {
        send(&store, &cache, fill(), None).await.unwrap();
    }
    wire.take();

    let range = Range { after: 0, up_to: 9, limit: None };
    let strong = Consistency::Strong;
    store.read(&stream(), range, strong).await.unwrap();
    store.read_for_fold(&stream(), range, strong).await.unwrap();
    store.read_forwards(&stream(), 0, 9).await.unwrap();
    store.read_forwards_for_fold(&stream(), 0, 9).await.unwrap();
    let calls = wire.take();
    assert_eq!(calls.len(), 4);
    for pair in calls.chunks(2) {
        let [commits, steps] = pair else { panic!("{pair:?}") };
        assert_eq!((steps.operation.as_str(), steps.units), ("Query", commits.units));
        assert!(3 * steps.bytes < 2 * commits.bytes, "{} of {} bytes", steps.bytes, commits.bytes);
    }
}

/// The budget of docs/costs.md, at every length of the stream. A command on a warm instance is one
/// write and no read. A command on a cold instance is one Query of at most one read unit, and one
/// write. A write costs one write unit for each KB.
#[tokio::test]
async fn a_command_keeps_its_budget_at_every_length() {
    let (store, wire) = store_and_wire().await;
    let warm = cold();
    send(&store, &warm, install(), None).await.unwrap();
    assert_eq!(wire.operations(), ["ExecuteStatement"], "a creation reads nothing");

    let mut version = 1;
    for length in [10_u64, 1_000, 20_000] {
        let filled = version.max(length.saturating_sub(LAST));
        grow(&store, version, filled).await;
        version = filled;
        let warm = cold();
        while version < length {
            send(&store, &warm, fill(), None).await.unwrap();
            version += 1;
        }
        wire.take();

        send(&store, &warm, fill(), None).await.unwrap();
        let [write] = wire.take().try_into().unwrap();
        assert_eq!(
            (write.operation.as_str(), write.units),
            ("ExecuteStatement", 1.0),
            "warm, at {length}"
        );

        send(&store, &cold(), fill(), None).await.unwrap();
        let [read, write] = wire.take().try_into().unwrap();
        assert_eq!(read.operation, "Query", "cold, at {length}");
        assert!(read.units <= 1.0, "{} read units at {length}", read.units);
        assert_eq!(
            (write.operation.as_str(), write.units),
            ("ExecuteStatement", 1.0),
            "cold, at {length}"
        );

        // The cached state of the warm instance is stale by one version. The instance loses the
        // race, makes one strongly consistent read, and appends again.
        send(&store, &warm, fill(), None).await.unwrap();
        assert_eq!(wire.operations(), ["ExecuteStatement", "Query", "ExecuteStatement"]);
        version += 3;
    }
}

/// The number of commits at the end of a long stream that commands on the wire write. It is several
/// times the number of commits that the snapshot policy allows without a state.
const LAST: u64 = 200;

/// Adds the commits between two versions to the stream. It decides the commands in memory and
/// writes the commits by the hundred, because twenty thousand commands on the wire take minutes.
async fn grow(store: &DynamoDbStore, from: u64, to: u64) {
    let memory = MemoryStore::default();
    let cache = cold();
    // The last commits suffice to decide the next command, because one of them embeds a state.
    for version in from.saturating_sub(LAST) + 1..=from {
        let commit = store.get(&stream(), version).await.unwrap().unwrap();
        memory.append(&commit, None).await.unwrap();
    }
    for first in (from + 1..=to).step_by(100) {
        let mut commits = Vec::new();
        for version in first..=to.min(first + 99) {
            send(&memory, &cache, fill(), None).await.unwrap();
            commits.push(memory.get(&stream(), version).await.unwrap().unwrap());
        }
        store.append_all(&commits, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_with_an_idempotency_key_is_one_transaction_and_a_retry_adds_a_read() {
    let (store, wire) = store_and_wire().await;
    let warm = cold();
    send(&store, &warm, install(), None).await.unwrap();
    wire.take();
    send(&store, &warm, fill(), Some("k")).await.unwrap();
    let [write] = wire.take().try_into().unwrap();
    assert_eq!((write.operation.as_str(), write.units), ("ExecuteTransaction", 4.0));

    assert!(matches!(send(&store, &warm, fill(), Some("k")).await, Ok(Outcome::Repeated(_))));
    assert_eq!(wire.operations(), ["ExecuteTransaction", "GetItem"]);
}

/// The snapshot policy measures the size that the database charges: one write unit for each KB or
/// part of a KB.
#[tokio::test]
async fn the_measured_size_of_a_commit_equals_the_size_that_the_database_charges() {
    let (store, wire) = store_and_wire().await;
    for (version, length) in
        (1..).zip([0, 700, 800, 805, 810, 815, 820, 825, 830, 1_800, 1_850, 9_000])
    {
        let mut commit = commit(&stream(), version);
        commit.events[0].data = format!("\"{}\"", "x".repeat(length));
        let expected = store.stored_bytes(&commit).div_ceil(1024);
        store.append(&commit, None).await.unwrap();
        let [write] = wire.take().try_into().unwrap();
        assert_eq!(write.units, expected as f64, "{} bytes", store.stored_bytes(&commit));
    }
}

#[tokio::test]
async fn a_commit_over_the_limit_is_refused_before_the_write() {
    let (store, wire) = store_and_wire().await;
    let mut large = commit(&stream(), 1);
    let room = MAX_ITEM_BYTES - store.stored_bytes(&large);
    large.events[0].data.push_str(&" ".repeat(room));
    let over = Commit {
        events: vec![ledgerline::RecordedEvent {
            data: format!("{} ", large.events[0].data),
            ..large.events[0].clone()
        }],
        ..large.clone()
    };
    let refused = store.append(&over, None).await;
    assert!(matches!(refused, Err(AppendError::TooLarge { bytes, limit }) if bytes == limit + 1));
    assert_eq!(wire.operations(), [""; 0]);
    store.append(&large, None).await.unwrap();
}

/// Each value within a limit of a transaction is accepted, and the next one is refused.
#[tokio::test]
async fn a_transaction_has_as_many_commits_and_bytes_as_the_database_accepts() {
    let store = store().await;
    let commits = |name: &str, count: usize| -> Vec<_> {
        let id = |number| StreamId::new("tank", &format!("{name}-{number}")).unwrap();
        (0..count).map(|number| commit(&id(number), 1)).collect()
    };
    let request = IdempotencyRecord {
        key: "transaction".into(),
        fingerprint: String::new(),
        answer: String::new(),
        expires: i64::MAX,
    };
    // The idempotency record is an item of the transaction too.
    for (request, limit) in [(None, 100), (Some(&request), 99)] {
        let refused = store.append_all(&commits("many", limit + 1), request).await;
        assert!(
            matches!(refused, Err(AppendError::TooMany { commits, limit: most })
                if (commits, most) == (limit + 1, limit)),
            "{refused:?}"
        );
        store.append_all(&commits(&format!("most-{limit}"), limit), request).await.unwrap();
    }
    let large = |name: &str, bytes: usize| {
        let mut commits = commits(name, 10);
        for commit in &mut commits {
            let room = bytes / 10 - store.stored_bytes(commit);
            commit.events[0].data.push_str(&" ".repeat(room));
        }
        commits[9].events[0].data.push_str(&" ".repeat(bytes % 10));
        commits
    };
    store.append_all(&large("full", 4_000_000), None).await.unwrap();
    let refused = store.append_all(&large("over", 4_000_001), None).await;
    assert!(matches!(refused, Err(AppendError::TooLarge { bytes: 4_000_001, .. })), "{refused:?}");
}

#[tokio::test]
async fn a_stream_of_more_than_a_megabyte_loads_and_accepts_the_next_command() {
    let (store, _) = store_and_wire().await;
    let warm = cold();
    send(&store, &warm, install(), None).await.unwrap();
    let note = Some(valid("x".repeat(100_000)));
    for _ in 0..15 {
        send(&store, &warm, Command::Fill(Amount { amount: valid(1), note: note.clone() }), None)
            .await
            .unwrap();
    }
    // The copy of the stream has no state, so a load must read all of its commits.
    let (client, _) = client_and_wire(&["CommitsTable"]).await;
    let stripped = DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable"));
    for version in 1..=16 {
        let commit = store.get(&stream(), version).await.unwrap().unwrap();
        stripped.append(&Commit { state: None, ..commit }, None).await.unwrap();
    }
    let loaded = load::<Tank>(&stripped, &stream(), None, Consistency::Eventual).await.unwrap();
    assert_eq!((loaded.version, loaded.state.level()), (16, 15));
    let Outcome::Committed(after) = send(&stripped, &cold(), fill(), None).await.unwrap() else {
        panic!()
    };
    assert_eq!((after.version, after.state.level()), (17, 16));
}

/// A function with a wrong configuration fails at its start. A function that starts during a short
/// outage must not fail, because a failed start costs another cold start.
#[tokio::test]
async fn connecting_fails_for_a_missing_table_and_not_for_an_outage() {
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable"]).await;
    let store = |config: &SdkConfig, table: String| DynamoDbStore::new(Client::new(config), table);
    let there = dynamodb.sdk_config();
    assert!(matches!(
        store(&there, ledgerline_testing::table("CommitsTable")).connect().await,
        Ok(None)
    ));
    assert!(store(&there, "Nowhere".into()).connect().await.is_err());
    let nobody = there.into_builder().endpoint_url("http://127.0.0.1:1").build();
    assert!(matches!(
        store(&nobody, ledgerline_testing::table("CommitsTable")).connect().await,
        Ok(Some(_))
    ));
}
