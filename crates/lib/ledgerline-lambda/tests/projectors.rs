//! The projectors of a state view and of a log view on real tables. No state and no commit stops
//! another one, and a log that was restored is reported.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use std::time::Duration;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use aws_sdk_dynamodb::{Client, config::Builder};
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Commit, EventLog, changes::Change, testing::tank::Tank, view_store::RowStore,
};
use ledgerline_dynamodb::{DynamoDbStore, Move, StateRows};
use ledgerline_lambda::{
    log_projector::LogProjector,
    messages::Message,
    queue::{Consumer, QueueRunner},
    rebuild::{RebuildRequest, StreamFold, StreamRange},
    state_projector::{StateProjector, details},
};
use ledgerline_tank::views::{LEVELS, LEVELS_VIEW, Level, READINGS_VIEW};
use ledgerline_testing::{Wire, dynamodb, table};
use serde_json::{Value, json};

const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

fn sample(name: &str) -> Value {
    let path = format!("{}/events/{name}.json", ledgerline_tank::FOLDER);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn messages() -> Vec<SqsMessage> {
    serde_json::from_value::<SqsEvent>(sample("readings-projector/commits")).unwrap().records
}

/// The commits of the sample messages: three versions of one tank.
fn commits() -> Vec<Commit> {
    let body = |message: SqsMessage| message.body.unwrap();
    messages().into_iter().map(|sent| read_commit(&body(sent))).collect()
}

fn read_commit(body: &str) -> Commit {
    Message::read(body).unwrap().into_commit().unwrap()
}

/// Returns a client of these tables, a log with the sample commits, and the calls from now on.
async fn log(tables: &[&str]) -> (Client, DynamoDbStore, Wire) {
    let wire = Wire::default();
    let config = dynamodb(tables).await.sdk_config();
    let client = Client::from_conf(Builder::from(&config).interceptor(wire.clone()).build());
    let log = DynamoDbStore::new(client.clone(), table("CommitsTable"));
    for commit in commits() {
        log.append(&commit, None).await.unwrap();
    }
    (client, log, wire)
}

async fn levels() -> (StateProjector<Tank, Level>, Wire) {
    let (client, log, wire) = log(&["CommitsTable", "LevelsTable"]).await;
    let table = StateRows::new(client, table("LevelsTable"), LEVELS);
    // The function reads the generations at its start, and after that at most once in ten seconds.
    table.view().recent_generations().await.unwrap();
    wire.take();
    (StateProjector::new(table, log, LEVELS_VIEW), wire)
}

async fn readings() -> (QueueRunner<DynamoDbStore, LogProjector>, Wire) {
    let (client, store, wire) = log(&["CommitsTable", "ReadingsTable"]).await;
    let consumer = LogProjector::new(client, table("ReadingsTable"), READINGS_VIEW);
    consumer.generations().await.unwrap();
    (QueueRunner { store, consumer }, wire)
}

async fn row(projector: &StateProjector<Tank, Level>) -> Option<Level> {
    projector.rows.find_row(ID).await.unwrap().1
}

#[tokio::test]
async fn rule_8_a_state_is_one_write_and_an_older_state_changes_nothing() {
    let (projector, wire) = levels().await;
    let state = sample("levels-projector/drawn")["detail"].take();
    projector.project(state.clone()).await.unwrap();
    assert_eq!(wire.operations(), ["PutItem"]);
    let written = row(&projector).await.unwrap();
    assert_eq!((written.version, written.level), (3, 1_000));
    let mut older = state.clone();
    older["aggregate"]["lastKnownVersion"] = json!(2);
    for state in [state, older] {
        projector.project(state).await.unwrap();
        assert_eq!(row(&projector).await.as_ref(), Some(&written));
    }
}

/// Rule 8 rejects older versions. After a restore of the log to an earlier time, every delivered
/// version is older. Without an error, the row would stay wrong unnoticed.
#[tokio::test]
async fn a_row_ahead_of_the_log_is_an_error() {
    let (projector, _) = levels().await;
    let state = sample("levels-projector/drawn")["detail"].take();
    let mut ahead = state.clone();
    ahead["aggregate"]["lastKnownVersion"] = json!(7);
    projector.project(ahead.clone()).await.unwrap();
    // A state of another schema is folded from the log, which is also behind the entry.
    ahead["aggregateSchema"] = json!(99);
    for state in [state, ahead] {
        let error = projector.project(state).await.unwrap_err().to_string();
        assert!(error.contains("version 7") && error.contains("which was restored"), "{error}");
    }
}

#[tokio::test]
async fn a_malformed_state_and_a_panic_do_not_stop_the_other_states() {
    let (mut projector, wire) = levels().await;
    projector.view.row = |id, version, state| match id {
        "bug" => panic!("a bug"),
        _ => (LEVELS_VIEW.row)(id, version, state),
    };
    let state = sample("levels-projector/drawn")["detail"].take();
    let mut bug = state.clone();
    bug["stream"] = json!("tank-bug");
    // A malformed state (it has no `aggregate`), a state whose row panics, and a valid state.
    let batch = vec![json!({ "stream": "tank-1" }), bug, state];
    let error = projector.project_all(batch).await.unwrap_err().to_string();
    assert!(error.contains("aggregate"), "the first error: {error}");
    assert_eq!(wire.operations(), ["PutItem"]);
}

/// Lambda and EventBridge deliver an entry in several forms, and put it into the queue of failed
/// invocations in others.
#[test]
fn an_entry_is_found_in_every_form_of_delivery() {
    let event = sample("levels-projector/drawn");
    let message = |body: &Value| json!({ "Records": [{ "body": body.to_string(), "attributes": {}, "messageAttributes": {} }] });
    let invoked = json!({ "states": [event["detail"]] });
    for delivered in [
        &event,
        &message(&event),
        &message(&json!({ "requestContext": {}, "requestPayload": event })),
        &invoked,
        &message(&json!({ "requestPayload": invoked })),
    ] {
        assert_eq!(details(delivered.clone()).unwrap(), std::slice::from_ref(&event["detail"]));
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
    let first = |received: u32| {
        let body = json!({ "requestPayload": { "states": ["a", "b", "c"] } }).to_string();
        let attributes = json!({ "ApproximateReceiveCount": received.to_string() });
        let record = json!({ "body": body, "attributes": attributes, "messageAttributes": {} });
        details(json!({ "Records": [record] })).unwrap().swap_remove(0)
    };
    assert_eq!([1, 2, 3, 4].map(first), ["a", "b", "c", "a"]);
}

#[tokio::test]
async fn a_message_at_which_the_view_panics_or_that_is_malformed_stops_only_its_group() {
    let (mut readings, _) = readings().await;
    readings.consumer.view.changes = |commit| match commit.stream.id() {
        "bug" => panic!("a bug"),
        _ => (READINGS_VIEW.changes)(commit),
    };
    let mut batch = messages();
    batch[1].body = Some("{\"stream\":1}".to_owned());
    let bug = Commit { stream: Tank::stream("bug").unwrap(), ..commits().swap_remove(0) };
    batch[2].body = serde_json::to_string(&Message::Commit(Box::new(bug))).ok();
    for (message, group) in batch.iter_mut().zip(["a", "b", "c"]) {
        message.message_id = Some(group.to_owned());
        message.attributes.insert("MessageGroupId".to_owned(), group.to_owned());
    }
    let failures = readings.batch(&batch).await.batch_item_failures;
    let failed: Vec<_> = failures.iter().map(|failure| &failure.item_identifier).collect();
    assert_eq!(failed, ["b", "c"]);
    let stream = Tank::stream(ID).unwrap();
    assert_eq!(readings.consumer.rows.position(&stream).await.unwrap(), 1);
}

#[tokio::test]
async fn commits_of_many_streams_are_written_in_one_call() {
    let (readings, wire) = readings().await;
    let batch: Vec<_> = (1..=9)
        .map(|tank| {
            let stream = Tank::stream(&format!("other-{tank}")).unwrap();
            let commit = Commit { stream, version: 1, ..commits().swap_remove(1) };
            let mut message = messages().swap_remove(0);
            message.body = serde_json::to_string(&Message::Commit(Box::new(commit))).ok();
            message.message_id = Some(tank.to_string());
            message.attributes.insert("MessageGroupId".to_owned(), format!("tank-other-{tank}"));
            message
        })
        .collect();
    wire.take();
    assert_eq!(readings.batch(&batch).await.batch_item_failures, []);
    let calls = wire.operations();
    let writes: Vec<_> =
        calls.iter().filter(|call| call.contains("Item") && *call != "GetItem").collect();
    assert_eq!(writes, ["BatchWriteItem"]);
}

#[tokio::test]
async fn a_reference_to_a_commit_that_the_log_lacks_is_an_error() {
    let reference = json!({ "stream": format!("tank-{ID}"), "version": 9 }).to_string();
    assert!(readings().await.0.message(&reference).await.is_err());
}

#[tokio::test]
async fn a_rebuild_with_a_limit_returns_a_pause_and_resumes_where_it_stopped() {
    let (readings, _) = readings().await;
    for version in 4..=10 {
        let commit = Commit { version, ..commits().swap_remove(1) };
        readings.store.append(&commit, None).await.unwrap();
    }
    let view = readings.consumer.rows.view();
    let now = view.generations().await.unwrap();
    let by = Move { at: Timestamp::now(), what: "begin".into(), ..Move::default() };
    let begun = now.begin_build(by.at).unwrap();
    assert!(view.compare_and_set(&now, begun, by).await.unwrap());
    let (generation, write_units) = (1, Some(0.5));
    let request = RebuildRequest { generation, parts: 1, write_units, ..RebuildRequest::default() };
    let (mut requests, mut pauses) = (0, 0);
    let last = loop {
        let response = readings.consumer.rebuild(&readings.store, &request).await.unwrap();
        (requests, pauses) = (requests + 1, pauses + response.pause);
        if response.is_done {
            break response;
        }
    };
    assert_eq!((last.commits, last.failed.len()), (10, 0));
    let seconds = Duration::from_millis(pauses).as_secs_f64();
    assert!(requests > 1 && seconds > last.writes, "{requests} requests, {seconds} s, {last:?}");
    let rebuilt = readings.consumer.rows.at_generation(1);
    assert_eq!(rebuilt.position(&Tank::stream(ID).unwrap()).await.unwrap(), 10);
    // A late request does not rebuild another generation.
    let late = RebuildRequest { generation: 2, ..request };
    let refused = readings.consumer.rebuild(&readings.store, &late).await.unwrap_err();
    assert_eq!(refused.to_string(), "the generation 2 is neither built nor kept");
}

#[tokio::test]
async fn a_fold_resumes_at_a_version_counts_its_reads_and_writes_nothing() {
    let (readings, _) = readings().await;
    let (levels, wire) = levels().await;
    let range = |after, up_to| StreamRange { stream: Tank::stream(ID).unwrap(), after, up_to };
    let request = |folds| RebuildRequest { folds, ..RebuildRequest::default() };

    // Given a fold of two ranges of a log view, and one of versions that the log lacks,
    let folds = vec![range(0, 2), range(2, 3), range(3, 4)];
    let folded = readings.consumer.rebuild(&readings.store, &request(folds)).await.unwrap();

    // then each range has the rows of its versions, and the log lacks the last one.
    let keys =
        |fold: &StreamFold| fold.rows.iter().map(|(key, _)| key.1[..20].to_owned()).collect();
    let rows: Vec<Vec<String>> = folded.folds.iter().map(keys).collect();
    let row = |version: u64| format!("{version:020}");
    assert_eq!(rows, [vec![row(2)], vec![row(3)]], "{folded:?}");
    assert_eq!(folded.failed[0].reason, "the log lacks version 4");
    assert!(folded.reads >= 1.0, "{folded:?}");

    // A fold of states has the row as it is stored in the generation.
    let request = RebuildRequest { generation: 2, ..request(vec![range(0, 2)]) };
    let folded = levels.rebuild(&request).await.unwrap();
    let Change::Put(fields) = &folded.folds[0].rows[0].1 else { panic!("{folded:?}") };
    assert_eq!((&fields["version"], &fields["liquid"]), (&json!(2), &json!("$2/water")));
    let calls = wire.operations();
    assert!(!calls.is_empty() && calls.iter().all(|call| call == "Query"), "{calls:?}");
}
