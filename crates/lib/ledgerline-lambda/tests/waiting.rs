//! Read-your-writes: a read with `?minVersion=` waits only for a version that the log has and the
//! view does not show yet.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use aws_sdk_dynamodb::Client;
use http::StatusCode;
use ledgerline::{EventLog, StreamId, contract};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{Patience, Views, Visibility},
};
use ledgerline_testing::http_event;
use serde_json::json;

/// A patience longer than any test that does not wait.
const LONG: Duration = Duration::from_secs(60);
/// A patience short enough for a test to wait until it times out.
const SHORT: Duration = Duration::from_millis(80);

fn north() -> StreamId {
    StreamId::new("tank", "north").unwrap()
}

/// Returns views over a log. In that log, the stream of the tank "north" ends at version 2.
async fn views(patience: Duration) -> Views {
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let log = DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable"));
    for version in 1..=2 {
        log.append(&contract::commit(&north(), version), None).await.unwrap();
    }
    Views::new(Patience::new(patience, log))
}

fn request(version: u64) -> HttpRequest {
    let fields = json!({ "rawQueryString": format!("minVersion={version}") });
    http_event::<ApiGatewayV2httpRequest>("GET /tanks/{id}", fields).into()
}

/// Reads a view that never changes. Returns the number of reads of the view, and the result.
async fn always(views: &Views, version: u64, shown: Visibility) -> (u64, Result<u64, Problem>) {
    let reads = AtomicU64::new(0);
    let read = async || {
        reads.fetch_add(1, Relaxed);
        Ok((shown, ()))
    };
    let read = views.read(&request(version), &north(), read).await;
    (reads.into_inner(), read.map(|(version, ())| version))
}

#[tokio::test]
async fn a_read_waits_until_the_view_shows_a_version_of_the_log() {
    let views = views(LONG).await;
    let reads = AtomicU64::new(0);
    let read = async || Ok((Visibility::Version(reads.fetch_add(1, Relaxed)), "row"));
    let read = views.read(&request(2), &north(), read).await.unwrap();
    assert_eq!((read, reads.into_inner()), ((2, "row"), 3));
}

#[tokio::test]
async fn a_read_does_not_wait_for_a_version_that_is_not_in_the_log() {
    let views = views(LONG).await;
    for version in [3, u64::MAX] {
        // Each request reads the log, because another request may have appended the version.
        for _ in 0..3 {
            let (reads, behind) = always(&views, version, Visibility::Version(2)).await;
            let behind = behind.unwrap_err();
            assert_eq!(
                (behind.status, behind.code),
                (StatusCode::SERVICE_UNAVAILABLE, "read-model-behind")
            );
            assert_eq!((reads, behind.version), (1, Some(2)));
        }
    }
}

/// Otherwise the response time would reveal to another caller that the row exists.
#[tokio::test]
async fn a_read_of_another_callers_row_never_waits() {
    let views = views(LONG).await;
    let nothing = always(&views, 3, Visibility::Version(0)).await;
    for version in [1, 2, 3] {
        let (reads, behind) = always(&views, version, Visibility::Hidden).await;
        let behind = behind.unwrap_err();
        assert_eq!(
            (reads, behind.status, behind.version),
            (1, StatusCode::SERVICE_UNAVAILABLE, Some(0))
        );
        if version == 3 {
            assert_eq!((reads, Err(behind)), nothing);
        }
    }
}

#[tokio::test]
async fn a_read_after_a_timed_out_wait_does_not_wait_again_at_once() {
    let mut short = SHORT;
    let views = loop {
        let views = views(short).await;
        let began = Instant::now();
        let (reads, _) = always(&views, 2, Visibility::Version(1)).await;
        assert!(began.elapsed() >= short);
        if reads > 1 {
            break views;
        }
        // On a busy machine, the read of the log alone may take as long.
        short *= 2;
        assert!(short < LONG, "the view is read once in {short:?}");
    };
    let (reads, behind) = always(&views, 2, Visibility::Version(1)).await;
    assert_eq!((reads, behind.unwrap_err().version), (1, Some(1)));
}

#[tokio::test]
async fn a_read_does_not_wait_if_the_log_is_unavailable() {
    let dynamodb = ledgerline_testing::dynamodb(&[]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let views = Views::new(Patience::new(LONG, DynamoDbStore::new(client, "NoSuchTable")));
    let (reads, behind) = always(&views, 1, Visibility::Version(0)).await;
    assert_eq!((reads, behind.unwrap_err().code), (1, "read-model-behind"));
}
