//! Commits that a later version of the program may write: a command to such a stream is answered
//! with 503, and so is a read that waits for it. Other streams are not affected.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{num::NonZeroUsize, time::Duration};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use ledgerline::{
    Aggregate, Cache, Commit, EventLog, Meta, RecordedEvent, StreamId,
    testing::tank::{Command, State, Tank},
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    commands::{Commands, update},
    http::{HttpRequest, Routes},
    queries::{Patience, Views, Visibility},
};
use ledgerline_testing::http_event;
use serde_json::{Value, json};

fn install(stream: StreamId) -> Commit {
    let data = r#"{"site":"North","liquid":"water","installedBy":"ada","on":"2026-11-21"}"#;
    Commit {
        stream,
        version: 1,
        events: vec![RecordedEvent {
            event_type: "TankInstalled".into(),
            schema: 2,
            data: data.into(),
        }],
        state: None,
        command: "c-1".into(),
        at: "2026-11-21T09:30:00Z".parse().unwrap(),
        meta: Meta::default(),
    }
}

fn request(id: &str, query: &str) -> HttpRequest {
    let fields = json!({
        "body": r#"{"amount":1}"#, "pathParameters": { "id": id }, "rawQueryString": query,
    });
    http_event::<ApiGatewayV2httpRequest>("POST /tanks/{id}/fills", fields).into()
}

#[tokio::test]
async fn a_stream_with_a_commit_of_the_future_is_answered_with_503_and_no_other_stream() {
    let corpus = include_str!("../../ledgerline-dynamodb/tests/commits_of_the_future.json");
    let corpus: Value = serde_json::from_str(corpus).unwrap();
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let table = ledgerline_testing::table("CommitsTable");
    let store = DynamoDbStore::new(client.clone(), table.clone());
    let fill = update("POST /tanks/{id}/fills", Command::Fill, |_, state: &State, _| state.level());
    let cache = Cache::<Tank>::new(NonZeroUsize::MIN);
    let routes = vec![fill];
    let function =
        Commands { store: store.clone(), cache, retention: 60, source_addresses: false, routes };
    let views = Views::new(Patience::new(Duration::from_millis(50), store.clone()));
    let answers = async |id: &str| {
        let command = function.handle(&request(id, "")).await;
        let command = command.map_or_else(|problem| problem.status, |answer| answer.status);
        // The view shows each stream up to the commit of the future.
        let shown = async || Ok((Visibility::Version(1), ()));
        let stream = Tank::stream(id).unwrap();
        let read = views.read(&request(id, "minVersion=2"), &stream, shown).await;
        let old = views.read(&request(id, "minVersion=1"), &stream, shown).await;
        assert_eq!(old.unwrap().0, 1);
        (command.as_u16(), read.map_or_else(|problem| problem.status.as_u16(), |_| 200))
    };
    for (number, case) in corpus["refused"].as_array().unwrap().iter().enumerate() {
        // A client cannot name the stream of the last case.
        if case["attribute"] == "stream" {
            continue;
        }
        // A route accepts ids of its own form.
        let id = format!("163082d2-b005-45d7-9eb6-aa1f83efd5{number:02}");
        store.append(&install(Tank::stream(&id).unwrap()), None).await.unwrap();
        let item: serde_dynamo::Item = serde_json::from_value(case["item"].clone()).unwrap();
        let put = client.put_item().table_name(&table).set_item(Some(item.into()));
        let put = put.item("stream", AttributeValue::S(format!("tank-{id}")));
        put.send().await.unwrap();
        assert_eq!(answers(&id).await, (503, 503), "{}", case["about"]);
        let other = format!("163082d2-b005-45d7-9eb6-aa1f83efd6{number:02}");
        store.append(&install(Tank::stream(&other).unwrap()), None).await.unwrap();
        assert_eq!(function.handle(&request(&other, "")).await.unwrap().status.as_u16(), 200);
    }
}
