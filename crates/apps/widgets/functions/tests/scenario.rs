//! Widgets over HTTP, as clients use them, at `BASE_URL` or on a local stack.

use ledgerline_testing::{UnderTest, eventually, fresh_id};
use reqwest::StatusCode;
use serde_json::json;

/// The widgets are those of the article on the AWS event store.
#[tokio::test]
async fn a_widget_changes_its_name_description_and_stock() {
    let widgets = UnderTest::start().await;
    let id = fresh_id();
    let widget = format!("/widgets/{id}");
    let create = json!({ "widgetId": &id, "name": "Sprocket", "description": null, "stock": 5 });
    let created = widgets.post("/widgets", create).await;
    assert_eq!((created.status, created.etag()), (StatusCode::CREATED, Some("\"1\"")));
    for (path, body, version) in [
        ("name", json!({ "name": "Cog" }), 2),
        ("description", json!({ "description": "Round,\nwith teeth" }), 3),
        ("stock", json!({ "stock": 4 }), 4),
        // A command with the current value changes nothing.
        ("stock", json!({ "stock": 4 }), 4),
    ] {
        let changed = widgets.post(&format!("{widget}/{path}"), body).await;
        assert_eq!((changed.status, changed.version()), (StatusCode::OK, version), "{changed:?}");
    }
    let negative = widgets.post(&format!("{widget}/stock"), json!({ "stock": -1 })).await;
    assert_eq!(
        (negative.status, &negative.body["field"]),
        (StatusCode::BAD_REQUEST, &json!("stock"))
    );
    let stranger = widgets.stranger();
    assert_eq!(
        stranger.post(&format!("{widget}/name"), json!({ "name": "Mine" })).await.problem(),
        "not-your-widget"
    );
    let shown = widgets.get(&format!("{widget}?minVersion=4")).await;
    let expected = json!({
        "widgetId": &id, "name": "Cog", "description": "Round,\nwith teeth", "stock": 4, "version": 4,
    });
    assert_eq!(shown.body, expected);
    eventually("it is listed", async || {
        let listed = widgets.get("/widgets?limit=200").await;
        listed.body["widgets"].as_array()?.contains(&expected).then_some(())
    })
    .await;
    assert_eq!(stranger.get(&widget).await.problem(), "unknown-widget");
}
