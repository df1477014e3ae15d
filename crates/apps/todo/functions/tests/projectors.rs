//! The projector of todos with its sample event, against a real table.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use aws_lambda_events::eventbridge::EventBridgeEvent;
use aws_sdk_dynamodb::Client;
use ledgerline::{Aggregate, EventLog, contract};
use ledgerline_dynamodb::{DynamoDbStore, StateRows};
use ledgerline_lambda::state_projector::StateProjector;
use serde_json::{Value, json};
use todo::{todo::Todo, views::todos};

const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

fn sample(name: &str) -> Value {
    let path = format!("{}/../../../../events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Rule 8: a late or duplicate entry does not restore the row of a deleted todo.
#[tokio::test]
async fn a_late_entry_does_not_restore_a_deleted_todo() {
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "TodosTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let table =
        StateRows::new(client.clone(), ledgerline_testing::table("TodosTable"), todos::TABLE);
    let log = DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable"));
    let stream = Todo::stream(ID).unwrap();
    for version in 1..=3 {
        log.append(&contract::commit(&stream, version), None).await.unwrap();
    }
    let projector = StateProjector { table: table.clone(), log, view: todos::VIEW };
    let updated: EventBridgeEvent =
        serde_json::from_value(sample("todos-projector/updated")).unwrap();
    let mut deleted = updated.detail.clone();
    deleted["aggregate"]["lastKnownVersion"] = json!(3);
    deleted["aggregate"]["status"] = json!("deleted");
    let shown = async || table.find_row::<todos::Row>(ID).await.unwrap();
    projector.project(updated.detail.clone()).await.unwrap();
    assert_eq!(shown().await.0, 2);
    for detail in [&deleted, &updated.detail, &deleted, &updated.detail] {
        projector.project(detail.clone()).await.unwrap();
        assert_eq!(shown().await, (3, None));
    }
}
