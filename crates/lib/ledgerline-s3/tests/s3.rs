//! The client against the buckets of the local stack, and against a server that fails.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode};
use ledgerline::StoreError;
use ledgerline_dynamodb::{Bodies, sdk_config};
use ledgerline_local::buckets::Buckets;
use ledgerline_s3::S3Bodies;

/// A key with each kind of character that a stream may have.
const KEY: &str = "bodies/tank-A.b_c:d-1/1-1-00ff.jsonl.gz";

async fn bodies() -> S3Bodies {
    let buckets = Buckets::open(["bodies".to_owned()], None, None).unwrap();
    S3Bodies::new(&sdk_config(&buckets.serve().await.unwrap()), "bodies")
}

#[tokio::test]
async fn an_object_is_stored_once_and_read_as_it_was_stored() {
    let bodies = bodies().await;
    assert_eq!(bodies.get(KEY).await.unwrap(), None);
    let content = vec![0x1f, 0x8b, 0, 255];
    assert!(bodies.put_new(KEY, content.clone()).await.unwrap());
    assert!(!bodies.put_new(KEY, vec![1]).await.unwrap());
    assert_eq!(bodies.get(KEY).await.unwrap(), Some(content));
    let other = KEY.replace("tank-A", "tank-a");
    assert_eq!(bodies.get(&other).await.unwrap(), None, "capitals are other letters");
}

/// S3 lists a thousand keys at once.
#[tokio::test]
async fn all_keys_of_a_prefix_are_listed() {
    let buckets = Buckets::open(["bodies".to_owned()], None, None).unwrap();
    let sdk = sdk_config(&buckets.serve().await.unwrap());
    let bodies = S3Bodies::new(&sdk, "bodies");
    let mut keys: Vec<_> = (0..1_001).map(|n| format!("bodies/tank-a:b+{n:04}")).collect();
    for key in keys.iter().map(String::as_str).chain(["bodies/haul-1"]) {
        assert!(bodies.put_new(key, vec![1]).await.unwrap());
    }
    let mut listed = ledgerline_s3::list_keys(&sdk, "bodies", "bodies/tank-").await.unwrap();
    listed.sort();
    keys.sort();
    assert_eq!(listed, keys);
    let error = ledgerline_s3::list_keys(&sdk, "other", "bodies/").await.unwrap_err();
    assert!(ledgerline::Causes(&error).to_string().contains("404 NoSuchBucket"), "{error}");
}

#[tokio::test]
async fn one_of_many_concurrent_puts_stores_the_object() {
    let bodies = bodies().await;
    let puts = (0..20_u8).map(|place| {
        let bodies = bodies.clone();
        async move { bodies.put_new(KEY, vec![place]).await }
    });
    let puts = futures::future::join_all(puts).await;
    let stored: Vec<_> =
        (0..20_u8).filter(|place| *puts[usize::from(*place)].as_ref().unwrap_or(&false)).collect();
    assert_eq!(stored.len(), 1, "{puts:?}");
    assert_eq!(bodies.get(KEY).await.unwrap(), Some(stored));
}

#[tokio::test]
async fn a_bucket_that_does_not_exist_is_no_missing_object() {
    let buckets = Buckets::open(["bodies".to_owned()], None, None).unwrap();
    let bodies = S3Bodies::new(&sdk_config(&buckets.serve().await.unwrap()), "other");
    let error = bodies.get(KEY).await.unwrap_err();
    let error = ledgerline::Causes(&error).to_string();
    assert!(error.contains("404 NoSuchBucket") && error.contains(KEY), "{error}");
}

/// A server that answers these statuses, one after the other, and then 200.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<VecDeque<(u16, &'static str)>>>);

async fn failing_server(answers: &[(u16, &'static str)]) -> (S3Bodies, Answers) {
    let answers = Answers(Arc::new(Mutex::new(answers.iter().copied().collect())));
    let answer = async |State(answers): State<Answers>| {
        let next = answers.0.lock().unwrap().pop_front();
        if next == Some((0, "slow")) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        let (status, code) = next.unwrap_or((200, ""));
        let body = format!("<Error><Code>{code}</Code></Error>");
        (StatusCode::from_u16(status.max(200)).unwrap(), body)
    };
    let router = Router::new().fallback(answer).with_state(answers.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let sdk = sdk_config(&url).into_builder();
    let sdk = sdk.retry_config(ledgerline_lambda::retries());
    let sdk = sdk.timeout_config(ledgerline_lambda::timeouts()).build();
    (S3Bodies::new(&sdk, "bodies"), answers)
}

/// Rule 11: bounded attempts, and then an error that names the object.
#[tokio::test]
async fn transient_failures_are_retried_and_permanent_ones_name_the_object() {
    for status in [(500, "InternalError"), (503, "SlowDown"), (409, "ConditionalRequestConflict")] {
        let (bodies, answers) = failing_server(&[status; 2]).await;
        assert!(bodies.put_new(KEY, vec![1]).await.unwrap(), "{status:?}");
        assert!(answers.0.lock().unwrap().is_empty());
    }
    for (status, is_throttled, attempts) in [
        ((503, "SlowDown"), true, 3),
        ((500, "InternalError"), false, 3),
        ((403, "AccessDenied"), false, 1),
        ((301, "PermanentRedirect"), false, 1),
    ] {
        let (bodies, answers) = failing_server(&[status; 9]).await;
        let error = bodies.put_new(KEY, vec![1]).await.unwrap_err();
        assert_eq!(9 - answers.0.lock().unwrap().len(), attempts, "{status:?}");
        assert_eq!(matches!(error, StoreError::Throttled(_)), is_throttled, "{error}");
        let error = ledgerline::Causes(&error).to_string();
        assert!(error.contains(KEY) && error.contains(status.1), "{error}");
        assert!(bodies.get(KEY).await.is_err(), "{status:?}");
    }
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_an_error_with_the_object() {
    let (bodies, _) = failing_server(&[(0, "slow"); 9]).await;
    let error = ledgerline::Causes(&bodies.get(KEY).await.unwrap_err()).to_string();
    assert!(error.contains(KEY) && error.contains("timeout"), "{error}");
}
