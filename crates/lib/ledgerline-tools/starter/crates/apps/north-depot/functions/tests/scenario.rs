//! A scenario of stock items over HTTP: at `BASE_URL`, or on a local stack.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use ledgerline_testing::{UnderTest, eventually, fresh_id};
use reqwest::StatusCode;
use serde_json::json;

#[tokio::test]
async fn a_stock_item_is_created_renamed_and_shown() {
    let api = UnderTest::start().await;
    let id = fresh_id();
    let created = api.post("/stock-items", json!({ "id": &id, "name": "First" })).await;
    assert_eq!((created.status, created.etag()), (StatusCode::CREATED, Some("\"1\"")));
    let again = api.post("/stock-items", json!({ "id": &id, "name": "First" })).await;
    assert_eq!((again.status, again.problem()), (StatusCode::CONFLICT, "stock-item-exists"));
    let nameless = api.post("/stock-items", json!({})).await;
    assert_eq!(
        (nameless.status, &nameless.body["field"]),
        (StatusCode::BAD_REQUEST, &json!("name"))
    );

    let rename = format!("/stock-items/{id}/name");
    let renamed =
        api.post_with(&rename, &[("if-match", "\"1\"")], json!({ "name": "Second" })).await;
    assert_eq!((renamed.status, renamed.etag()), (StatusCode::OK, Some("\"2\"")));
    let late = api.post_with(&rename, &[("if-match", "\"1\"")], json!({ "name": "Third" })).await;
    assert_eq!(late.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(
        api.stranger().post(&rename, json!({ "name": "Mine" })).await.problem(),
        "not-your-stock-item"
    );

    // The caller reads its own write.
    let shown = api.get(&format!("/stock-cards/{id}?minVersion=2")).await;
    assert_eq!((shown.status, shown.etag_version()), (StatusCode::OK, Some(2)));
    assert_eq!(shown.body["name"], "Second");
    eventually("it is shown without a version, too", async || {
        (api.get(&format!("/stock-cards/{id}")).await.body["name"] == "Second").then_some(())
    })
    .await;
}
