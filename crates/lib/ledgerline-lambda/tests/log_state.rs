//! A route that reads a state from the log.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{sync::Arc, time::Duration};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use http::StatusCode;
use ledgerline::{
    Commit, Consistency, EventLog, Range, RecordedEvent, StreamId, contract,
    spec::valid,
    testing::tank::{Amount, Command, State, Tank, UNKNOWN},
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    http::{HttpRequest, Problem, Response, Routes},
    queries::{Queries, Views, VisibleTo, state},
};
use ledgerline_tank::views::{self, Level};
use ledgerline_testing::{
    Call, MemoryBodies, Wire, cold, commits, http_event, send, store_and_wire,
};
use serde_json::{Value, json};
use tokio::time::Instant;

const ROUTE: &str = "GET /tanks/{id}/state";
const NORTH: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
const SOUTH: &str = "263082d2-b005-45d7-9eb6-aa1f83efd55d";

/// A function with one route, over a log with a tank of the caller "ada".
struct Function {
    queries: Queries,
    store: DynamoDbStore,
    wire: Wire,
}

impl Function {
    /// Returns the function, after this number of fills of the tank.
    async fn with_fills(fills: u64) -> Self {
        let (store, wire) = store_and_wire().await;
        let stream = north();
        let install = Command::Install { site: valid("North"), liquid: valid("water") };
        let fill = Command::Fill(Amount { amount: valid(2), note: None });
        let commands = std::iter::once(install).chain((0..fills).map(|_| fill.clone()));
        for command in commands {
            send::<Tank>(&store, &cold(), &stream, &command, false).await.unwrap();
        }
        let _ = wire.take();
        Self { queries: queries(store.clone()), store, wire }
    }

    async fn ask(&self, fields: Value) -> Result<Response, Problem> {
        ask(&self.queries, fields).await
    }
}

fn north() -> StreamId {
    StreamId::new("tank", NORTH).unwrap()
}

fn queries(log: DynamoDbStore) -> Queries {
    let yours = VisibleTo::Owner(|row: &Level| row.installed_by.as_deref());
    let route = state::<Tank, _, _>(ROUTE, views::level, UNKNOWN, yours, |row| row);
    Queries { routes: vec![route], views: Views::default().with_log(log) }
}

async fn ask(queries: &Queries, fields: Value) -> Result<Response, Problem> {
    let event: ApiGatewayV2httpRequest = http_event(ROUTE, fields);
    queries.handle(&HttpRequest::from(event)).await
}

fn id(id: &str) -> Value {
    json!({ "pathParameters": { "id": id } })
}

#[tokio::test]
async fn the_newest_commit_is_shown_by_one_query_at_any_length_of_the_stream() {
    for fills in [0, 1, 7, 40] {
        let function = Function::with_fills(fills).await;
        let shown = function.ask(id(NORTH)).await.unwrap();
        let calls = function.wire.take();
        assert!(matches!(&*calls, [Call { operation, .. }] if operation == "Query"), "{calls:?}");
        let body = shown.body.as_ref().unwrap();
        assert_eq!((&body["level"], &body["version"]), (&json!(2 * fills), &json!(fills + 1)));
        let (_, etag) = shown.headers.iter().find(|(name, _)| name == "etag").unwrap();
        assert!(etag.starts_with(&format!("\"{}.", fills + 1)), "{etag}");
        // A client that has this state gets no body.
        let known = json!({ "pathParameters": { "id": NORTH },
            "headers": { "if-none-match": etag } });
        assert_eq!(function.ask(known).await.unwrap().status, StatusCode::NOT_MODIFIED);
    }
}

#[tokio::test]
async fn the_read_is_strongly_consistent_and_ends_at_the_newest_state() {
    let function = Function::with_fills(40).await;
    let units = || function.wire.take().iter().map(|call| call.units).sum::<f64>();
    // Each eighth commit embeds a state.
    let range = Range { after: 0, up_to: u64::MAX, limit: Some(8) };
    let mut expected = Vec::new();
    for consistency in [Consistency::Eventual, Consistency::Strong] {
        function.store.read_for_fold(&north(), range, consistency).await.unwrap();
        expected.push(units());
    }
    function.ask(id(NORTH)).await.unwrap();
    let asked = units();
    assert!(expected[0] < expected[1], "{expected:?}");
    assert_eq!(asked, expected[1]);
}

#[tokio::test]
async fn a_state_is_read_from_body_objects_and_from_commits_without_states() {
    let function = Function::with_fills(60).await;
    let bodies = Arc::new(MemoryBodies::default());
    let log = function.store.clone().with_bodies(bodies, 0);
    for commit in commits(&function.store, &north()).await {
        let stream = StreamId::new("tank", SOUTH).unwrap();
        log.append(&Commit { stream, state: None, ..commit }, None).await.unwrap();
    }
    let expected = function.ask(id(NORTH)).await.unwrap().body.unwrap();
    let shown = ask(&queries(log), id(SOUTH)).await.unwrap().body.unwrap();
    assert_eq!((&shown["level"], &shown["version"]), (&json!(120), &json!(61)));
    assert_eq!(shown["level"], expected["level"]);
}

/// A view has no row of such a stream, also if its function makes one of each state.
#[tokio::test]
async fn a_stream_without_commits_has_no_state() {
    let (store, _) = store_and_wire().await;
    let any = |_: &str, version: u64, _: State| Some(version);
    let route = state::<Tank, _, _>(ROUTE, any, UNKNOWN, VisibleTo::All, |version| version);
    let queries = Queries { routes: vec![route], views: Views::default().with_log(store) };
    assert_eq!(ask(&queries, id(NORTH)).await.unwrap_err().code, "unknown-tank");
}

#[tokio::test]
async fn a_state_of_another_caller_looks_like_a_missing_one() {
    let function = Function::with_fills(0).await;
    let mut foreign = id(NORTH);
    foreign["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = json!("eve");
    let foreign = function.ask(foreign).await.unwrap_err();
    let missing = function.ask(id(SOUTH)).await.unwrap_err();
    assert_eq!((missing.status, missing.code), (StatusCode::NOT_FOUND, "unknown-tank"));
    assert_eq!(foreign, missing);
    // A scrapped tank has no row.
    send::<Tank>(&function.store, &cold(), &north(), &Command::Scrap, false).await.unwrap();
    assert_eq!(function.ask(id(NORTH)).await.unwrap_err(), missing);
}

#[tokio::test]
async fn the_refusal_of_a_wrong_request_names_the_field() {
    let function = Function::with_fills(1).await;
    let mut waits = id(NORTH);
    waits["rawQueryString"] = json!("minVersion=2");
    for (fields, field) in [(waits, "minVersion"), (id("no id"), "id")] {
        let problem = function.ask(fields).await.unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (StatusCode::BAD_REQUEST, Some(field))
        );
    }
    assert_eq!(function.wire.take(), []);
}

/// The client gets a response before Lambda ends the function (rule 11).
#[tokio::test(start_paused = true)]
async fn a_log_that_never_answers_is_an_error_after_eight_seconds() {
    // The kernel accepts connections to the port, and no program reads from them.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let client = aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&url));
    let silent_log = queries(DynamoDbStore::new(client, "Commits"));
    let began = Instant::now();
    let problem = ask(&silent_log, id(NORTH)).await.unwrap_err();
    assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(began.elapsed() <= Duration::from_millis(8_100), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_unreadable_log_is_an_error_and_not_a_missing_row() {
    let function = Function::with_fills(1).await;
    let unknown = RecordedEvent { event_type: "Unknown".into(), schema: 1, data: "{}".into() };
    let commit = Commit { events: vec![unknown], ..contract::commit(&north(), 3) };
    function.store.append(&commit, None).await.unwrap();
    let damaged = function.ask(id(NORTH)).await.unwrap_err();
    assert_eq!(damaged.status, StatusCode::SERVICE_UNAVAILABLE);

    let dynamodb = ledgerline_testing::dynamodb(&[]).await;
    let client = aws_sdk_dynamodb::Client::new(&dynamodb.sdk_config());
    let absent = queries(DynamoDbStore::new(client, "NoSuchTable"));
    let absent = ask(&absent, id(NORTH)).await.unwrap_err();
    assert_eq!(absent.status, StatusCode::SERVICE_UNAVAILABLE);
    // A route that does not declare the log is a programming error.
    let undeclared = Queries { views: Views::default(), ..queries(function.store.clone()) };
    let undeclared = ask(&undeclared, id(NORTH)).await.unwrap_err();
    assert_eq!(undeclared.status, StatusCode::INTERNAL_SERVER_ERROR);
}
