//! The projectors with the sample events, duplicates, swaps and gaps, against real tables.

use std::time::Duration;

use aws_lambda_events::{eventbridge::EventBridgeEvent, sqs::SqsEvent};
use aws_sdk_dynamodb::{Client, config::Builder};
use bank::{
    account::{Account, Opened, State},
    views::{balances, transactions},
};
use jiff::{Timestamp, civil::date};
use ledgerline::{Changes, Commit, EventLog, Projection, StreamId};
use ledgerline_dynamodb::{DynamoDbStore, Move, PageQuery, StateRows};
use ledgerline_lambda::{
    log_projector::LogProjector,
    messages::Message,
    queue::{Consumer, QueueRunner},
    rebuild::RebuildRequest,
    state_projector::{StateProjector, details},
};
use ledgerline_testing::Wire;
use proptest::prelude::*;
use serde_json::{Value, json};

const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

fn sample(name: &str) -> Value {
    let path = format!("{}/../../../../events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

struct Transactions {
    projector: QueueRunner<DynamoDbStore, LogProjector>,
    wire: Wire,
}

impl Transactions {
    async fn new() -> Self {
        let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "TransactionsTable"]).await;
        let wire = Wire::default();
        let client = Client::from_conf(
            Builder::from(&dynamodb.sdk_config()).interceptor(wire.clone()).build(),
        );
        let projector = QueueRunner {
            store: DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable")),
            consumer: LogProjector::new(
                client,
                ledgerline_testing::table("TransactionsTable"),
                transactions::VIEW,
            ),
        };
        // The function reads the generations at its start, and after that at most once in ten
        // seconds.
        projector.consumer.generations().await.unwrap();
        wire.take();
        Self { projector, wire }
    }

    /// Appends the commits of the sample messages to the log.
    async fn log(&self) -> Vec<Commit> {
        let mut commits = Vec::new();
        for record in sample("transactions-projector/commits")["Records"].as_array().unwrap() {
            let Message::Commit(commit) = Message::read(record["body"].as_str().unwrap()).unwrap()
            else {
                panic!()
            };
            self.projector.store.append(&commit, None).await.unwrap();
            commits.push(*commit);
        }
        self.wire.take();
        commits
    }

    /// Appends the commits of the sample messages, and then credits until the log has `length`
    /// commits.
    async fn longer_log(&self, length: u64) -> Vec<Commit> {
        let mut commits = self.log().await;
        for version in 4..=length {
            let mut next = commits[1].clone();
            next.version = version;
            self.projector.store.append(&next, None).await.unwrap();
            commits.push(next);
        }
        self.wire.take();
        commits
    }

    async fn rows(&self) -> Vec<transactions::Row> {
        self.rows_of(0).await
    }

    async fn rows_of(&self, generation: u32) -> Vec<transactions::Row> {
        let query = PageQuery::new(ID, 100, None);
        self.projector.consumer.table.at(generation).page(&query).await.unwrap().whole().unwrap().0
    }
}

fn fold(commits: &[Commit]) -> Vec<transactions::Row> {
    commits.iter().flat_map(|commit| transactions::rows(commit).unwrap()).collect()
}

fn event(messages: impl IntoIterator<Item = (String, String, String)>) -> SqsEvent {
    let records: Vec<_> = messages
        .into_iter()
        .map(|(id, group, body)| json!({ "messageId": id, "body": body, "attributes": { "MessageGroupId": group }, "messageAttributes": {} }))
        .collect();
    serde_json::from_value(json!({ "Records": records })).unwrap()
}

fn message(commit: &Commit) -> String {
    serde_json::to_string(&Message::Commit(Box::new(commit.clone()))).unwrap()
}

/// The budget of a booking's commit is a write unit for its row. The batch reads the position in
/// the stream once. That costs a read unit for the newest row and one for the position item,
/// because the batch begins with the opening. The opening has no row, and writes the position item.
#[tokio::test]
async fn the_sample_commits_become_rows_and_the_last_row_is_the_position() {
    let transactions = Transactions::new().await;
    let commits = transactions.log().await;
    let event: SqsEvent = serde_json::from_value(sample("transactions-projector/commits")).unwrap();
    let response = transactions.projector.batch(&event.records).await;
    assert_eq!(response.batch_item_failures.len(), 0);
    let calls = transactions.wire.take();
    let (operations, units): (Vec<_>, Vec<_>) =
        calls.iter().map(|call| (call.operation.as_str(), call.units)).unzip();
    assert_eq!(operations, ["Query", "GetItem", "PutItem", "BatchWriteItem", "BatchWriteItem"]);
    assert!(units.iter().all(|units| *units <= 1.0), "{units:?}");
    assert_eq!(transactions.rows().await, fold(&commits));
}

/// One call writes the rows of all streams of a batch. The projector applies a redelivered batch
/// commit by commit, because one of the commits may have crashed the function.
#[tokio::test]
async fn bookings_of_many_accounts_are_written_in_one_call() {
    let transactions = Transactions::new().await;
    let commits = transactions.log().await;
    let other = |account: u8, commit: &Commit| {
        let stream = StreamId::new("account", &format!("other-{account}")).unwrap();
        Commit { stream, ..commit.clone() }
    };
    for (place, calls) in [(1, 1), (2, 9)] {
        let batch = (1..=9).map(|account| {
            let commit = other(account, &commits[place]);
            (format!("{account}"), commit.stream.to_string(), message(&commit))
        });
        let mut batch = event(batch).records;
        if place == 1 {
            for account in 1..=9 {
                transactions
                    .projector
                    .message(&message(&other(account, &commits[0])))
                    .await
                    .unwrap();
            }
        } else {
            batch[8].attributes.insert("ApproximateReceiveCount".into(), "2".into());
        }
        transactions.wire.take();
        assert_eq!(transactions.projector.batch(&batch).await.batch_item_failures.len(), 0);
        let operations = transactions.wire.operations();
        assert_eq!(
            operations.iter().filter(|operation| *operation == "BatchWriteItem").count(),
            calls
        );
    }
}

/// One row of the batch is too large, so one call cannot write the batch.
#[tokio::test]
async fn a_commit_that_cannot_be_written_does_not_stop_those_of_other_accounts() {
    let mut transactions = Transactions::new().await;
    let commits = transactions.log().await;
    transactions.projector.consumer.view.changes = |commit| match commit.stream.id() {
        "large" => {
            let row = json!({ "accountId": "large", "entry": commit.entry(0), "text": "x".repeat(500_000) });
            let mut changes = Changes::new(transactions::TABLE);
            changes.insert(commit, &row).map(|()| changes)
        }
        _ => transactions::changes(commit),
    };
    let large = Commit { stream: StreamId::new("account", "large").unwrap(), ..commits[0].clone() };
    let next = Commit { version: 2, ..large.clone() };
    let message =
        |id: &str, commit: &Commit| (id.to_owned(), commit.stream.to_string(), message(commit));
    let [a, b] = [message("a", &commits[0]), message("b", &commits[1])];
    let batch = event([message("1", &large), a, message("2", &next), b]);
    let response = transactions.projector.batch(&batch.records).await;
    let failed: Vec<_> = response
        .batch_item_failures
        .iter()
        .map(|failure| failure.item_identifier.as_str())
        .collect();
    assert_eq!(failed, ["1", "2"]);
    assert_eq!(transactions.rows().await, fold(&commits[..2]));
}

#[tokio::test]
async fn rule_7_a_gap_is_read_from_the_log() {
    let transactions = Transactions::new().await;
    let commits = transactions.log().await;
    transactions.projector.message(&message(&commits[2])).await.unwrap();
    assert_eq!(transactions.rows().await, fold(&commits));
}

#[tokio::test]
async fn a_reference_is_read_from_the_log() {
    let transactions = Transactions::new().await;
    let commits = transactions.log().await;
    for version in 1..=3 {
        let body = json!({ "stream": format!("account-{ID}"), "version": version });
        transactions.projector.message(&body.to_string()).await.unwrap();
    }
    assert_eq!(transactions.rows().await, fold(&commits));
    let missing = json!({ "stream": format!("account-{ID}"), "version": 9 });
    assert!(transactions.projector.message(&missing.to_string()).await.is_err());
}

#[tokio::test]
async fn a_poison_pill_stops_its_group_and_no_other() {
    let transactions = Transactions::new().await;
    let commits = transactions.log().await;
    let poison =
        |id: &str, group: &str| (id.to_owned(), group.to_owned(), "{\"stream\":1}".to_owned());
    let good =
        |id: &str, group: &str, commit: &Commit| (id.to_owned(), group.to_owned(), message(commit));
    let event = event([
        poison("a1", "a"),
        good("b1", "b", &commits[0]),
        good("a2", "a", &commits[1]),
        good("b2", "b", &commits[1]),
    ]);
    let response = transactions.projector.batch(&event.records).await;
    let failed: Vec<_> = response
        .batch_item_failures
        .iter()
        .map(|failure| failure.item_identifier.as_str())
        .collect();
    assert_eq!(failed, ["a1", "a2"]);
    assert_eq!(transactions.rows().await, fold(&commits[..2]));
}

#[tokio::test]
async fn a_panic_over_one_message_does_not_stop_the_others() {
    let mut transactions = Transactions::new().await;
    let commits = transactions.log().await;
    transactions.projector.consumer.view.changes = |commit| match commit.version {
        2 => panic!("a bug"),
        _ => transactions::changes(commit),
    };
    let message =
        |id: &str, group: &str, commit: &Commit| (id.to_owned(), group.to_owned(), message(commit));
    let event = event([message("1", "a", &commits[1]), message("2", "b", &commits[0])]);
    let response = transactions.projector.batch(&event.records).await;
    let failed: Vec<_> = response
        .batch_item_failures
        .iter()
        .map(|failure| failure.item_identifier.as_str())
        .collect();
    assert_eq!(failed, ["1"]);
}

/// Returns the projector of balances, with a log of the sample commits.
async fn balances() -> (StateProjector<Account, balances::Row>, Wire) {
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "BalancesTable"]).await;
    let wire = Wire::default();
    let client =
        Client::from_conf(Builder::from(&dynamodb.sdk_config()).interceptor(wire.clone()).build());
    let log = DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable"));
    for record in sample("transactions-projector/commits")["Records"].as_array().unwrap() {
        let commit =
            Message::read(record["body"].as_str().unwrap()).unwrap().into_commit().unwrap();
        log.append(&commit, None).await.unwrap();
    }
    let table = StateRows::new(client, ledgerline_testing::table("BalancesTable"), balances::TABLE);
    // The function reads the generations at its start, and after that at most once in ten seconds.
    table.view().recent_generations().await.unwrap();
    wire.take();
    (StateProjector { table, log, view: balances::VIEW }, wire)
}

async fn balance(projector: &StateProjector<Account, balances::Row>) -> Option<balances::Row> {
    projector.table.find_row(ID).await.unwrap().1
}

/// A stream of ten commits has nine rows, and a position item for the opening.
#[tokio::test]
async fn a_rebuild_with_a_limit_returns_a_pause_and_resumes_where_it_stopped() {
    let transactions = Transactions::new().await;
    let commits = transactions.longer_log(10).await;
    let consumer = &transactions.projector.consumer;
    let now = consumer.table.view().generations().await.unwrap();
    let by =
        Move { at: Timestamp::now(), what: "begin".into(), who: String::new(), why: String::new() };
    let begun = now.begin_build(by.at).unwrap();
    assert!(consumer.table.view().compare_and_set(&now, begun, by).await.unwrap());
    let asked = RebuildRequest {
        generation: 1,
        part: 0,
        parts: 1,
        write_units: Some(0.5),
        streams: Vec::new(),
    };
    let (mut asks, mut waits) = (0, 0);
    let made = loop {
        let made = consumer.rebuild(&transactions.projector.store, &asked).await.unwrap();
        (asks, waits) = (asks + 1, waits + made.pause);
        if made.is_done {
            break made;
        }
    };
    assert_eq!((made.commits, made.failed.len()), (10, 0));
    let seconds = Duration::from_millis(waits).as_secs_f64();
    assert!(asks > 1 && seconds > made.writes, "{asks} times, {seconds} s, {made:?}");
    assert_eq!(transactions.rows_of(1).await, fold(&commits));
    // A late request does not rebuild another generation.
    let other = consumer
        .rebuild(&transactions.projector.store, &RebuildRequest { generation: 2, ..asked })
        .await;
    assert_eq!(other.unwrap_err().to_string(), "the generation 2 is not being built");
}

#[tokio::test]
async fn the_sample_entry_becomes_a_row_in_one_write() {
    let (projector, wire) = balances().await;
    let event: EventBridgeEvent =
        serde_json::from_value(sample("balances-projector/debited")).unwrap();
    projector.project(event.detail.clone()).await.unwrap();
    let [write] = wire.take().try_into().unwrap();
    assert_eq!((write.operation.as_str(), write.units >= 1.0), ("PutItem", true));
    let row = balance(&projector).await.unwrap();
    assert_eq!((row.version, row.total_balance, row.last_month_balance), (3, 1_000, 1_000));

    // A duplicate of the entry and an older entry change nothing.
    projector.project(event.detail.clone()).await.unwrap();
    let mut older = event.detail.clone();
    older["aggregate"]["lastKnownVersion"] = json!(2);
    older["aggregate"]["totalBalance"] = json!(5_000);
    projector.project(older).await.unwrap();
    assert_eq!(balance(&projector).await, Some(row));
}

/// During a deployment, an older version of the program puts states of its schema on the bus.
#[tokio::test]
async fn an_entry_with_a_state_of_an_older_schema_is_upcast() {
    let (projector, _) = balances().await;
    let mut detail = sample("balances-projector/debited")["detail"].take();
    detail["aggregateSchema"] = json!(1);
    detail["aggregate"].as_object_mut().unwrap().remove("currency");
    projector.project(detail).await.unwrap();
    let row = balance(&projector).await.unwrap();
    assert_eq!((row.version, row.currency.as_str()), (3, "EUR"));
}

/// DynamoDB writes an index of keys alone only if one of the keys changes. So a booking costs one
/// write unit, not two. Source: DynamoDB developer guide, "Global secondary indexes", on write
/// capacity.
#[test]
fn a_booking_changes_no_key_of_the_index() {
    let opened = Opened { owner: "Ada".into(), opened_by: Some("ada".into()), ..Opened::default() };
    let booked = Opened {
        total_balance: 5,
        last_month: Some(date(2026, 11, 1)),
        last_month_balance: 5,
        ..opened.clone()
    };
    let states = [State::Open(opened), State::Open(booked.clone()), State::Closed(booked)];
    let rows = states.map(|state| json!(balances::row(ID, 1, state).unwrap()));
    for key in [balances::TABLE.key, balances::OF_OPENER.partition, balances::OF_OPENER.sort] {
        assert!(
            rows[0][key].is_string() && rows.iter().all(|row| row[key] == rows[0][key]),
            "{key}"
        );
    }
    assert_eq!(balances::OF_OPENER.projection, Projection::KeysOnly);
}

/// During a deployment and its rollback, the row is right, whether the fanout or the projector is
/// replaced first.
#[tokio::test]
async fn a_state_of_another_schema_is_folded_from_the_log() {
    let (projector, _) = balances().await;
    let event: EventBridgeEvent =
        serde_json::from_value(sample("balances-projector/debited")).unwrap();
    for version in [1, 3] {
        let mut other = event.detail.clone();
        other["aggregateSchema"] = json!(99);
        other["aggregate"] = json!({ "lastKnownVersion": version, "totalBalance": 5_000 });
        projector.project(other).await.unwrap();
        let row = balance(&projector).await.unwrap();
        assert_eq!((row.version, row.total_balance), (3, 1_000));
    }
}

/// Rule 8 rejects older versions. After a restore of the log to an earlier time, every delivered
/// version is older. Without an error, the row would stay wrong unnoticed.
#[tokio::test]
async fn a_row_ahead_of_the_log_is_an_error() {
    let (projector, _) = balances().await;
    let event: EventBridgeEvent =
        serde_json::from_value(sample("balances-projector/debited")).unwrap();
    let mut ahead = event.detail.clone();
    ahead["aggregate"]["lastKnownVersion"] = json!(7);
    projector.project(ahead.clone()).await.unwrap();
    let error = projector.project(event.detail).await.unwrap_err().to_string();
    assert!(error.contains("version 7") && error.contains("which was restored"), "{error}");
    ahead["aggregateSchema"] = json!(99);
    let error = projector.project(ahead).await.unwrap_err().to_string();
    assert!(error.contains("version 7") && error.contains("which was restored"), "{error}");
}

/// Lambda and EventBridge deliver an entry in several forms, and put it into the queue of failed
/// invocations in others.
#[test]
fn an_entry_is_found_in_every_form_of_delivery() {
    let event = sample("balances-projector/debited");
    let message = |body: &Value| {
        let record = json!({ "messageId": "1", "body": body.to_string(), "attributes": {}, "messageAttributes": {} });
        json!({ "Records": [record] })
    };
    let given_up =
        json!({ "requestContext": { "condition": "RetriesExhausted" }, "requestPayload": event });
    let invoked = json!({ "states": [event["detail"]] });
    let invoked_in_vain = json!({ "requestPayload": invoked });
    for brought in
        [&event, &message(&event), &message(&given_up), &invoked, &message(&invoked_in_vain)]
    {
        assert_eq!(details(brought.clone()).unwrap(), std::slice::from_ref(&event["detail"]));
    }
    for malformed in [
        json!({}),
        json!({ "Records": [{ "body": "secret" }] }),
        message(&json!({ "requestPayload": 1 })),
        json!({ "states": "secret" }),
    ] {
        let error = details(malformed).unwrap_err().to_string();
        assert!(error.contains("no valid field") && !error.contains("secret"), "{error}");
    }
}

/// One state may crash the function each time. If that state were always first, the projector would
/// never write the others.
#[test]
fn a_redelivered_message_begins_with_a_different_state_at_each_receive() {
    let mut firsts = Vec::new();
    for received in 1..=4 {
        let body = json!({ "requestPayload": { "states": ["a", "b", "c"] } }).to_string();
        let attributes = json!({ "ApproximateReceiveCount": received.to_string() });
        let record = json!({ "messageId": "1", "body": body, "attributes": attributes, "messageAttributes": {} });
        let states = details(json!({ "Records": [record] })).unwrap();
        assert_eq!(states.len(), 3);
        firsts.push(states[0].clone());
    }
    assert_eq!(firsts, ["a", "b", "c", "a"]);
}

#[tokio::test]
async fn a_failed_state_does_not_stop_the_others() {
    let (mut projector, wire) = balances().await;
    projector.view.row = |id, version, state| match id.ends_with('0') {
        true => panic!("a bug"),
        false => (balances::VIEW.row)(id, version, state),
    };
    let states = sample("balances-projector/states")["states"].as_array().unwrap().clone();
    let bug = json!(states[0].to_string().replace(ID, "0190163d-8694-739b-aea5-000000000000"));
    let bug = serde_json::from_str(bug.as_str().unwrap()).unwrap();
    let batch = vec![json!({ "stream": "account-1" }), states[0].clone(), bug, states[1].clone()];
    let error = projector.project_all(batch).await.unwrap_err().to_string();
    assert!(error.contains("aggregate"), "the first error: {error}");
    assert_eq!(wire.operations(), ["PutItem"; 2]);
    assert_eq!(balance(&projector).await.unwrap().version, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Rules 7 and 9: with duplicates, swaps and losses, the rows equal the fold of the log, as
    /// long as the last commit arrives.
    #[test]
    fn any_delivery_gives_the_fold_of_the_log(deliveries in prop::collection::vec(0..10_usize, 0..30)) {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
            let transactions = Transactions::new().await;
            let commits = transactions.longer_log(10).await;
            for index in deliveries.into_iter().chain([9]) {
                transactions.projector.message(&message(&commits[index])).await.unwrap();
            }
            prop_assert_eq!(transactions.rows().await, fold(&commits));
            let stream = StreamId::new("account", ID).unwrap();
            prop_assert_eq!(transactions.projector.consumer.table.position(&stream).await.unwrap(), 10);
            Ok(())
        })?;
    }
}
