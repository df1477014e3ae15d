//! Todos over HTTP, as clients use them, at `BASE_URL` or on a local stack.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use ledgerline_testing::{UnderTest, eventually, fresh_id};
use reqwest::{Method, StatusCode};
use serde_json::json;

/// "HTTP optimistic concurrency control example" of "An AWS Event Sourcing architecture with DynamoDB".
/// A stale version gets 412 here, as RFC 9110 defines, and 409 in the article.
#[tokio::test]
async fn only_a_client_with_the_current_version_changes_a_todo() {
    let todos = UnderTest::start().await;
    let id = fresh_id();
    let todo = format!("/todo/{id}");
    let create = json!({ "id": &id, "title": "TODO", "message": "Make coffee" });
    let created = todos.post("/todo", create.clone()).await;
    assert_eq!((created.status, created.etag()), (StatusCode::CREATED, Some("\"1\"")));
    assert_eq!(todos.post("/todo", create).await.problem(), "todo-exists");
    let change = async |if_match: Option<&str>, path: &str| {
        let headers: Vec<_> = if_match.map(|tag| ("If-Match", tag)).into_iter().collect();
        todos
            .post_with(path, &headers, json!({ "title": "TODO", "message": "Make 2 coffees" }))
            .await
    };
    assert_eq!(
        change(Some("\"1\""), &format!("/todo/{}", fresh_id())).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(change(None, &todo).await.status, StatusCode::PRECONDITION_REQUIRED);
    assert_eq!(change(Some("\"1\""), &todo).await.etag(), Some("\"2\""));
    assert_eq!(change(Some("\"1\""), &todo).await.status, StatusCode::PRECONDITION_FAILED);

    let shown = todos.get(&format!("{todo}?minVersion=2")).await;
    assert_eq!((shown.etag_version(), &shown.body["message"]), (Some(2), &json!("Make 2 coffees")));
    let is_listed = async || {
        let listed = todos.get("/todo?status=open&limit=200").await;
        assert_eq!(listed.status, StatusCode::OK);
        listed.body["todos"].as_array().unwrap().iter().any(|todo| todo["id"] == *id)
    };
    eventually("it is listed", async || is_listed().await.then_some(())).await;
    assert_eq!(todos.get("/todo?status=late").await.body["field"], "status");
    let stranger = todos.stranger();
    assert_eq!(stranger.get(&todo).await.status, StatusCode::NOT_FOUND);

    let deleted = todos.call(Method::DELETE, &todo, &[("If-Match", "\"2\"")], String::new()).await;
    assert_eq!((deleted.status, deleted.etag()), (StatusCode::OK, Some("\"3\"")));
    assert_eq!(todos.get(&format!("{todo}?minVersion=3")).await.problem(), "unknown-todo");
    eventually("it is listed no more", async || (!is_listed().await).then_some(())).await;
    assert_eq!(change(Some("\"3\""), &todo).await.problem(), "unknown-todo");
    let without =
        todos.post("/todo", json!({ "id": fresh_id(), "title": "TODO", "message": null })).await;
    assert_eq!(without.status, StatusCode::CREATED, "null is no message");
    let again = todos.post("/todo", json!({ "id": &id, "title": "Again" })).await;
    assert_eq!(again.problem(), "todo-exists");
}
