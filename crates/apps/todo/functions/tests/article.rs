//! The todos of "An AWS Event Sourcing architecture with DynamoDB". Every test names its section.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use ledgerline::StreamId;
use ledgerline_testing::{LocalStack, commits, event_types};
use reqwest::{Method, StatusCode};
use serde_json::json;

/// "HTTP optimistic concurrency control example", its four parts. A stale version gets 412 here, as
/// RFC 9110 defines, and 409 in the article. Versions begin at 1 here, and at 0 in the article.
#[tokio::test]
async fn create_get_update_and_delete_are_guarded_by_the_etag() {
    let local = LocalStack::start(None).await;
    let id = "d8e8b51e-0337-4300-b414-0cc65918aaf8";
    let path = format!("/todo/{id}");
    // 1. Create
    let create = json!({ "id": id, "title": "TODO", "message": "Make coffee" });
    let created = local.post("/todo", create.clone()).await;
    assert_eq!((created.status, created.etag()), (StatusCode::CREATED, Some("\"1\"")));
    assert_eq!(local.post("/todo", create).await.status, StatusCode::CONFLICT);
    // 2. Get
    let got = local.get(&format!("{path}?minVersion=1")).await;
    assert_eq!((got.etag_version(), &got.body["message"]), (Some(1), &json!("Make coffee")));
    let read = got.etag().unwrap();
    // 3. Update
    let body = json!({ "title": "TODO", "message": "Make 2 coffees" });
    let unknown = format!("/todo/{}", uuid::Uuid::new_v4());
    for (path, tag, status) in [
        (&unknown, "\"1\"", StatusCode::NOT_FOUND),
        (&path, "\"9\"", StatusCode::PRECONDITION_FAILED),
        (&path, read, StatusCode::OK),
        (&path, read, StatusCode::PRECONDITION_FAILED),
    ] {
        let answer = local.post_with(path, &[("If-Match", tag)], body.clone()).await;
        assert_eq!(answer.status, status, "{path} {tag}");
    }
    // 4. Delete
    for (path, tag, status) in [
        (&unknown, "\"1\"", StatusCode::NOT_FOUND),
        (&path, "\"1\"", StatusCode::PRECONDITION_FAILED),
        (&path, "\"2\"", StatusCode::OK),
        (&path, "\"3\"", StatusCode::NOT_FOUND),
    ] {
        let answer = local.call(Method::DELETE, path, &[("If-Match", tag)], String::new()).await;
        assert_eq!(answer.status, status, "{path} {tag}");
    }
    assert_eq!(local.get(&format!("{path}?minVersion=3")).await.status, StatusCode::NOT_FOUND);
    // "Accountants Don't Use Erasers": the log has all events.
    let log = commits(&local.store(), &StreamId::new("todo", id).unwrap()).await;
    assert_eq!(event_types(&log), [["TodoCreated"], ["TodoUpdated"], ["TodoDeleted"]]);
}

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    ledgerline_testing::session_of_application_is_real().await;
}
