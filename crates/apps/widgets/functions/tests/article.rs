//! The examples of "Build a CQRS event store with Amazon DynamoDB", on the AWS Database Blog. Every
//! test names its section.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use ledgerline::{StreamId, spec::valid};
use ledgerline_testing::{cold, commits, event_types, send, store_and_wire};
use serde_json::{Value, json};
use widgets::widget::{Command, Widget};

fn create() -> Command {
    Command::Create(valid("Sprocket"), valid(""), valid(5))
}

fn commands() -> [Command; 3] {
    [
        Command::ChangeName(valid("Cog")),
        Command::ChangeDescription(valid("Round")),
        Command::UpdateStock(valid(4)),
    ]
}

fn widget_123() -> StreamId {
    StreamId::new("widget", "123").unwrap()
}

/// "Event table", figure 3, and "Loading and saving aggregate examples", figures 9 to 13. The
/// stream has one commit for each of CreateWidget, ChangeWidgetName, ChangeWidgetDescription and
/// the update of the stock.
#[tokio::test]
async fn widget_123_is_a_stream_of_four_events() {
    let (store, _) = store_and_wire().await;
    let cache = cold::<Widget>();
    assert_eq!(send(&store, &cache, &widget_123(), &create(), true).await, Ok(1));
    for (version, command) in (2..).zip(commands()) {
        assert_eq!(send(&store, &cache, &widget_123(), &command, false).await, Ok(version));
    }
    let log = commits(&store, &widget_123()).await;
    let expected =
        ["WidgetCreated", "WidgetNameChanged", "WidgetDescriptionChanged", "WidgetStockUpdated"];
    assert_eq!(event_types(&log), expected.map(|event| vec![event]));
    assert_eq!(log[1].events[0].data, r#"{"name":"Cog"}"#);
    // "Snapshot table", figure 5: the newest commit embeds the state, without another table or
    // write.
    let state: Value = serde_json::from_str(&log[3].state.as_ref().unwrap().data).unwrap();
    assert_eq!((&state["name"], &state["stock"]), (&json!("Cog"), &json!(4)));
}

/// "Loading an aggregate algorithm" and "Saving an aggregate algorithm" take five calls for a command.
/// The README of the widgets has a table of them.
#[tokio::test]
async fn a_command_that_took_five_calls_takes_one_or_two() {
    let (store, wire) = store_and_wire().await;
    send(&store, &cold::<Widget>(), &widget_123(), &create(), true).await.unwrap();
    assert_eq!(wire.operations(), ["ExecuteStatement"]);
    let [name, description, stock] = commands();
    send(&store, &cold::<Widget>(), &widget_123(), &name, false).await.unwrap();
    let [query, write] = wire.take().try_into().unwrap();
    assert_eq!((query.operation.as_str(), write.operation.as_str()), ("Query", "ExecuteStatement"));
    assert!(query.units <= 1.0 && write.units == 1.0);
    let warm = cold::<Widget>();
    send(&store, &warm, &widget_123(), &description, false).await.unwrap();
    wire.take();
    send(&store, &warm, &widget_123(), &stock, false).await.unwrap();
    assert_eq!(wire.operations(), ["ExecuteStatement"]);
}

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    ledgerline_testing::session_of_application_is_real().await;
}
