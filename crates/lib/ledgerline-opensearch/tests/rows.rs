//! The rows of a state view, in a server that keeps OpenSearch's promises on versions, partial
//! failures and throttling.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::{Duration, Instant};

use aws_types::SdkConfig;
use futures::future::join_all;
use ledgerline::{
    Causes, StreamId,
    contract::state_row_store::TABLE,
    view_store::{
        Overwrite::{Shows, Written},
        RowStore, StateRowStore, ViewError,
    },
};
use ledgerline_local::search::{SearchFault, SearchServer};
use ledgerline_opensearch::{Domain, SearchRows};
use serde_json::{Value, json};

const DEFINITION: &str = r#"{ "mappings": { "properties": { "level": { "type": "long" } } } }"#;

fn rows(server: &SearchServer) -> SearchRows {
    SearchRows::new(Domain::new(&sdk(), server.url()), TABLE, DEFINITION)
}

/// Signs requests, which the server does not check.
fn sdk() -> SdkConfig {
    let sdk = ledgerline_dynamodb::sdk_config("http://127.0.0.1:1").into_builder();
    sdk.retry_config(ledgerline_lambda::retries()).build()
}

fn row(id: &str, level: impl Into<Value>) -> Value {
    json!({ "tankId": id, "level": level.into() })
}

fn stream(id: &str) -> StreamId {
    StreamId::new("tank", id).unwrap()
}

mod contract {
    use super::*;

    // Each test leaks its server, which lives as long as the process.
    ledgerline::state_row_store_tests!(async {
        rows(Box::leak(Box::new(SearchServer::start().await.unwrap())))
    });
}

#[tokio::test]
async fn concurrent_rows_share_requests_and_each_has_its_own_result() {
    let server = SearchServer::start().await.unwrap();
    let rows = rows(&server);
    rows.prepare().await.unwrap();
    // Given a row of a newer version, when many rows are written at once, one of them wrong,
    rows.put_newer(&row("3", 9), 7).await.unwrap();
    let write = async |number: u64| {
        let level = if number == 5 { json!("full") } else { json!(number) };
        rows.put_newer(&row(&number.to_string(), level), 2).await
    };
    let results = join_all((0..100).map(write)).await;
    // then each has its own result, in three requests.
    for (number, result) in results.into_iter().enumerate() {
        match number {
            3 => assert_eq!(result.unwrap().0, Shows(7)),
            5 => {
                let error = result.unwrap_err();
                assert!(matches!(&error, ViewError::Row(_)), "{error:?}");
                assert!(!format!("{error:?}").contains("full"), "{error:?}");
            }
            _ => assert_eq!(result.unwrap().0, Written, "{number}"),
        }
    }
    assert_eq!(server.bulk_requests(), 3);
    assert_eq!(rows.positions(&["3", "5", "6"].map(stream)).await.unwrap(), [7, 0, 2]);
}

#[tokio::test]
async fn a_throttled_row_is_an_outage_and_a_throttled_request_is_repeated() {
    let server = SearchServer::start().await.unwrap();
    let rows = rows(&server);
    rows.prepare().await.unwrap();
    server.fail_next([SearchFault::FirstRow(429)]);
    let error = rows.put_newer(&row("1", 1), 1).await.unwrap_err();
    assert!(matches!(&error, ViewError::Throttled(_)), "{error:?}");
    server.fail_next([SearchFault::FirstRow(503)]);
    let error = rows.put_newer(&row("1", 1), 1).await.unwrap_err();
    assert!(error.is_outage(), "{error:?}");
    assert_eq!(rows.positions(&[stream("1")]).await.unwrap(), [0]);
    server.fail_next([SearchFault::Request(429), SearchFault::Request(503)]);
    assert_eq!(rows.put_newer(&row("1", 1), 1).await.unwrap().0, Written);
}

#[tokio::test]
async fn a_row_whose_answer_is_lost_is_a_duplicate_when_it_is_sent_again() {
    let server = SearchServer::start().await.unwrap();
    let rows = rows(&server);
    rows.prepare().await.unwrap();
    server.fail_next([SearchFault::LostAnswer]);
    assert_eq!(rows.put_newer(&row("1", 1), 4).await.unwrap().0, Shows(4));
    assert_eq!(rows.positions(&[stream("1")]).await.unwrap(), [4]);
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_outage_without_the_row() {
    let server = SearchServer::start().await.unwrap();
    let rows = rows(&server);
    drop(server);
    let error = rows.put_newer(&row("secret", 1), 1).await.unwrap_err();
    let text = Causes(&error).to_string();
    assert!(error.is_outage() && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_an_outage_after_five_seconds() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let rows = SearchRows::new(Domain::new(&sdk(), &url), TABLE, DEFINITION);
    let begun = Instant::now();
    let error = rows.put_newer(&row("1", 1), 1).await.unwrap_err();
    assert!(error.is_outage() && begun.elapsed() < Duration::from_secs(8), "{error:?}");
    drop(listener);
}

#[tokio::test]
async fn a_definition_that_is_refused_names_the_index() {
    let server = SearchServer::start().await.unwrap();
    let unknown = r#"{ "mappings": { "properties": { "level": { "type": "number" } } } }"#;
    for (definition, expected) in [
        ("{ mappings }", "`levels-g0` is no JSON"),
        (unknown, "index `levels-g0`: OpenSearch answers 400 mapper_parsing_exception"),
    ] {
        let rows = SearchRows::new(Domain::new(&sdk(), server.url()), TABLE, definition);
        let error = rows.prepare().await.unwrap_err();
        assert!(!error.is_outage() && error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_missing_index_is_created_with_its_definition() {
    let server = SearchServer::start().await.unwrap();
    let rows = rows(&server);
    assert_eq!(rows.put_newer(&row("1", 1), 1).await.unwrap().0, Written);
    server.delete_all();
    assert_eq!(rows.positions(&[stream("1")]).await.unwrap(), [0]);
    // The definition refuses a text as the level.
    assert!(matches!(rows.put_newer(&row("1", "full"), 1).await, Err(ViewError::Row(_))));
    assert_eq!(rows.put_newer(&row("1", 2), 1).await.unwrap().0, Written);
    rows.delete_generation().await.unwrap();
    rows.delete_generation().await.unwrap();
}

#[tokio::test]
async fn people_see_the_active_generation_without_forgotten_rows() {
    let server = SearchServer::start().await.unwrap();
    let rows = rows(&server);
    rows.put_newer(&row("1", 1), 1).await.unwrap();
    rows.put_newer(&row("2", 2), 1).await.unwrap();
    rows.forget("2", 2, 0).await.unwrap();
    assert!(rows.is_publish_due());
    rows.publish().await.unwrap();
    assert!(!rows.is_publish_due());
    let shown = |level: u64| vec![json!({ "tankId": "1", "level": level, "version": 1 })];
    assert_eq!(server.documents("levels").unwrap(), shown(1));
    // After a switch, people see the next generation, and the earlier one can be deleted.
    let next = rows.at_generation(1);
    next.put_newer(&row("1", 5), 1).await.unwrap();
    assert!(next.is_publish_due());
    next.publish().await.unwrap();
    assert_eq!(server.documents("levels").unwrap(), shown(5));
    rows.delete_generation().await.unwrap();
    assert_eq!(server.documents("levels").unwrap(), shown(5));
}
