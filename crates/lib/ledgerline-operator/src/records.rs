//! The records of operators' actions, and the parked messages: one table, which no function reads
//! or writes.

use std::collections::HashMap;

use anyhow::{Context, Result};
use aws_sdk_dynamodb::types::AttributeValue;
use jiff::Timestamp;
use ledgerline_sam::lookup::OPERATIONS;
use serde_json::{Value, json};

use crate::deployment::Deployment;

/// The partition with the parked messages.
const PARKED: &str = "parked";

/// The record of an operator's action.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The command of the tool.
    pub(crate) kind: &'static str,
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) detail: Value,
}

/// Returns the name of the table.
pub(crate) fn table(deployment: &Deployment) -> Result<&str> {
    deployment.table_name(OPERATIONS).with_context(|| {
        format!("the stack has no `{OPERATIONS}` for the records of operators: run `cargo xtask new operators`, and deploy the stack")
    })
}

/// Writes a record.
pub(crate) async fn store(deployment: &Deployment, table: &str, record: Record) -> Result<()> {
    let now = Timestamp::now();
    let key = key(record.kind, &format!("{now}#{}", uuid::Uuid::new_v4()));
    put(deployment, table, key, now, &record, None).await
}

/// Writes a record if the stack has the table. This is for actions that cannot lose data.
pub(crate) async fn store_if_possible(deployment: &Deployment, record: Record) -> Result<()> {
    match table(deployment) {
        Ok(table) => store(deployment, table, record).await,
        Err(error) => {
            eprintln!("{error:#}");
            Ok(())
        }
    }
}

/// A message of a dead-letter queue that an operator parks.
pub(crate) struct ParkedMessage<'a> {
    /// The logical id of the queue.
    pub(crate) queue: &'a str,
    /// The id of the message.
    pub(crate) id: &'a str,
    /// Its queue, id, group and time.
    pub(crate) detail: Value,
    /// Its body, unchanged.
    pub(crate) body: &'a str,
}

/// Parks a message.
pub(crate) async fn park(
    deployment: &Deployment,
    table: &str,
    message: ParkedMessage<'_>,
    why: String,
) -> Result<()> {
    let ParkedMessage { queue, id, detail, body } = message;
    let record = Record { kind: PARKED, what: "park".to_owned(), why, detail };
    put(
        deployment,
        table,
        key(PARKED, &parked_key(queue, id)),
        Timestamp::now(),
        &record,
        Some(body),
    )
    .await
}

/// Deletes a parked message.
pub(crate) async fn unpark(
    deployment: &Deployment,
    table: &str,
    queue: &str,
    id: &str,
) -> Result<()> {
    let delete = deployment.dynamodb.delete_item().table_name(table);
    delete.set_key(Some(key(PARKED, &parked_key(queue, id)))).send().await?;
    Ok(())
}

/// Returns the parked messages, each with the operator, the time and the reason.
pub(crate) async fn parked_messages(
    deployment: &Deployment,
    table: &str,
) -> Result<Vec<(Value, Record)>> {
    let query = deployment.dynamodb.query().table_name(table).consistent_read(true);
    let query =
        query.key_condition_expression("#kind = :kind").expression_attribute_names("#kind", "kind");
    let query = query.expression_attribute_values(":kind", AttributeValue::S(PARKED.to_owned()));
    let mut items = query.into_paginator().items().send();
    let mut found = Vec::new();
    while let Some(item) = items.next().await {
        let item = item?;
        let text = |name: &str| {
            item.get(name).and_then(|value| value.as_s().ok()).cloned().unwrap_or_default()
        };
        let mut message: Value = serde_json::from_str(&text("detail")).unwrap_or_default();
        message["body"] = text("body").into();
        let detail = json!({ "at": text("done"), "who": text("who") });
        found
            .push((message, Record { kind: PARKED, what: text("what"), why: text("why"), detail }));
    }
    Ok(found)
}

fn parked_key(queue: &str, id: &str) -> String {
    format!("{queue}#{id}")
}

fn key(kind: &str, place: &str) -> HashMap<String, AttributeValue> {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    HashMap::from([("kind".to_owned(), text(kind)), ("at".to_owned(), text(place))])
}

async fn put(
    deployment: &Deployment,
    table: &str,
    key: HashMap<String, AttributeValue>,
    now: Timestamp,
    Record { kind: _, what, why, detail }: &Record,
    body: Option<&str>,
) -> Result<()> {
    let mut item = key;
    let mut set =
        |name: &str, value: String| _ = item.insert(name.to_owned(), AttributeValue::S(value));
    set("done", now.to_string());
    set("who", deployment.operator().await?);
    set("what", what.clone());
    set("why", why.clone());
    set("detail", detail.to_string());
    if let Some(body) = body {
        set("body", body.to_owned());
    }
    deployment.dynamodb.put_item().table_name(table).set_item(Some(item)).send().await?;
    Ok(())
}
