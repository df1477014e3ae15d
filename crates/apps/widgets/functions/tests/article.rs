//! The examples of "Build a CQRS event store with Amazon DynamoDB", on the AWS Database Blog. Every
//! test names its section.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use std::collections::HashMap;

use aws_sdk_dynamodb::{Client, config::Builder, types::AttributeValue};
use ledgerline::{StreamId, spec::valid};
use ledgerline_local::services::DynamoDb;
use ledgerline_sam::template;
use ledgerline_testing::{LocalStack, Wire, cold, commits, counted, event_types, send};
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
    let (store, _) = counted().await;
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

/// The article's own algorithms on its own three tables, in the article's steps.
struct Article {
    client: Client,
    wire: Wire,
}

impl Article {
    async fn new() -> Self {
        let dynamodb = DynamoDb::start(None).await.unwrap();
        for (name, sorted) in [("aggregate", false), ("event", true), ("snapshot", true)] {
            let key = |name: &str, kind: &str| json!({ "AttributeName": name, "KeyType": kind });
            let number = |name: &str| json!({ "AttributeName": name, "AttributeType": "N" });
            let mut keys = vec![key("PK", "HASH")];
            let mut attributes = vec![number("PK")];
            if sorted {
                keys.push(key("SK", "RANGE"));
                attributes.push(number("SK"));
            }
            let create = json!({
                "TableName": name, "KeySchema": keys, "AttributeDefinitions": attributes,
                "BillingMode": "PAY_PER_REQUEST",
            });
            let table = template::Table {
                id: name.into(),
                name: name.into(),
                stream_arn: None,
                create,
                time_to_live: None,
                policy: None,
            };
            dynamodb.create_table(&table).unwrap();
        }
        let wire = Wire::default();
        let config = Builder::from(&dynamodb.sdk_config()).interceptor(wire.clone());
        Self { client: Client::from_conf(config.build()), wire }
    }

    fn key(number: u64) -> AttributeValue {
        AttributeValue::N(number.to_string())
    }

    /// "Loading an aggregate algorithm": reads the aggregate, writes its last events as items, and
    /// reads the last snapshot and the remaining events. Returns the version and the number of the
    /// last event.
    async fn load(&self) -> (u64, u64) {
        let aggregate = self.client.get_item().table_name("aggregate").key("PK", Self::key(123));
        let aggregate = aggregate.send().await.unwrap().item.unwrap();
        for (number, payload) in aggregate["last_events"].as_m().unwrap() {
            let put = self.client.put_item().table_name("event").item("PK", Self::key(123));
            let put =
                put.item("SK", AttributeValue::N(number.clone())).item("payload", payload.clone());
            put.condition_expression("attribute_not_exists(PK)").send().await.unwrap();
        }
        let last = |table| {
            let query = self.client.query().table_name(table).key_condition_expression("PK = :pk");
            query.expression_attribute_values(":pk", Self::key(123)).scan_index_forward(false)
        };
        assert_eq!(last("snapshot").limit(1).send().await.unwrap().count, 0);
        let events = last("event").send().await.unwrap().items.unwrap();
        let newest = events[0]["SK"].as_n().unwrap().parse().unwrap();
        (aggregate["version"].as_n().unwrap().parse().unwrap(), newest)
    }

    /// "Saving an aggregate algorithm": writes the aggregate with its new events, if the table
    /// still has the version that the load read.
    async fn save(&self, version: Option<u64>, event: u64) {
        let events = HashMap::from([(event.to_string(), AttributeValue::S("{}".into()))]);
        let put = self.client.put_item().table_name("aggregate").item("PK", Self::key(123));
        let put = put.item("version", Self::key(version.map_or(0, |version| version + 1)));
        let put = put.item("last_events", AttributeValue::M(events));
        let put = match version {
            None => put.condition_expression("attribute_not_exists(PK)"),
            Some(version) => put
                .condition_expression("#version = :version")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":version", Self::key(version)),
        };
        put.send().await.unwrap();
    }
}

/// "Loading an aggregate algorithm" and "Saving an aggregate algorithm": counts the calls of the
/// article and of the library. The README of the widgets has a table of them.
#[tokio::test]
async fn a_command_that_took_five_calls_takes_one_or_two() {
    let article = Article::new().await;
    article.save(None, 1).await;
    assert_eq!(article.wire.operations(), ["PutItem"]);
    let (version, newest) = article.load().await;
    article.save(Some(version), newest + 1).await;
    assert_eq!(article.wire.operations(), ["GetItem", "PutItem", "Query", "Query", "PutItem"]);

    let (store, wire) = counted().await;
    let warm = cold::<Widget>();
    send(&store, &warm, &widget_123(), &create(), true).await.unwrap();
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

/// "Event store change data capture with DynamoDB Streams": the query side shows the written
/// commits.
#[tokio::test]
async fn a_widget_reaches_the_read_side_through_the_stream() {
    let local = LocalStack::start(None).await;
    let id = uuid::Uuid::new_v4().to_string();
    local.post("/widgets", json!({ "widgetId": &id, "name": "Sprocket" })).await;
    local.post(&format!("/widgets/{id}/name"), json!({ "name": "Cog" })).await;
    let shown = local.get(&format!("/widgets/{id}?minVersion=2")).await;
    assert_eq!(shown.body["name"], "Cog");
}

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    ledgerline_testing::session_of_application_is_real().await;
}
