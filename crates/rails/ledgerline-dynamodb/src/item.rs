//! Commits and requests as items: names, encoding and size.
//!
//! The attributes of a commit are the fields of [`Commit`] in its serde form, which is therefore a storage format:
//! the tests below pin it.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline::{Commit, Request, StoreError};
use serde::Deserialize;

pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) const STREAM: &str = "stream";
pub(crate) const VERSION: &str = "version";
pub(crate) const REQUEST: &str = "request";
const FINGERPRINT: &str = "fingerprint";
const ANSWER: &str = "answer";
pub(crate) const EXPIRES: &str = "expires";

/// The largest item that DynamoDB stores, in bytes.
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// An item or stream image that is no commit.
#[derive(Debug, thiserror::Error)]
#[error("not a commit of this program: {0}")]
pub struct InvalidItem(String);

/// Reads a commit from an item or from the new image of a stream record.
///
/// # Errors
/// When this program did not write the image. The reason names what is missing, never a value (rule 14).
pub fn commit_from_item(item: serde_dynamo::Item) -> Result<Commit, InvalidItem> {
    let commit: Commit =
        serde_dynamo::from_item(item).map_err(|error| InvalidItem(without_values(&error)))?;
    if commit.version == 0 || commit.events.is_empty() {
        return Err(InvalidItem("it has version 0 or no events".into()));
    }
    Ok(commit)
}

/// The keys of a commit: enough to find it in the log when its image cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Keys {
    /// The stream's name, unchecked.
    pub stream: String,
    /// The version.
    pub version: u64,
}

/// The keys in a stream record, if they are of this table's shape.
#[must_use]
pub fn keys_from_item(item: serde_dynamo::Item) -> Option<Keys> {
    serde_dynamo::from_item(item).ok()
}

/// Serde's messages quote the offending value after "invalid type" and "invalid value": it stays out (rule 14).
fn without_values(error: &serde_dynamo::Error) -> String {
    let message = error.to_string();
    match message.split_once("invalid ") {
        Some((before, _)) => format!("{before}a value of the wrong type or range"),
        None => message,
    }
}

pub(crate) fn commit(item: Item) -> Result<Commit, StoreError> {
    let string = |name| item.get(name).and_then(|value: &AttributeValue| value.as_s().ok()).cloned();
    let stream = string(STREAM).unwrap_or_default();
    let version =
        item.get(VERSION).and_then(|value| value.as_n().ok()).and_then(|n| n.parse().ok()).unwrap_or(0);
    commit_from_item(item.into()).map_err(|error| StoreError::Corrupt {
        stream,
        version,
        reason: error.to_string(),
    })
}

pub(crate) fn commit_to_item(commit: &Commit) -> Result<Item, StoreError> {
    serde_dynamo::to_item(commit).map_err(|error| StoreError::Unavailable(error.into()))
}

pub(crate) fn request_to_item(request: &Request) -> Item {
    HashMap::from([
        (REQUEST.into(), AttributeValue::S(request.key.clone())),
        (FINGERPRINT.into(), AttributeValue::S(request.fingerprint.clone())),
        (ANSWER.into(), AttributeValue::S(request.answer.clone())),
        (EXPIRES.into(), AttributeValue::N(request.expires.to_string())),
    ])
}

pub(crate) fn request(item: Item) -> Result<Request, StoreError> {
    #[derive(Deserialize)]
    struct Stored {
        request: String,
        fingerprint: String,
        answer: String,
        expires: i64,
    }
    let stored: Stored = serde_dynamo::from_item(item).map_err(|error| {
        StoreError::Unavailable(format!("a request cannot be read: {}", without_values(&error)).into())
    })?;
    let Stored { request: key, fingerprint, answer, expires } = stored;
    Ok(Request { key, fingerprint, answer, expires })
}

/// The size of an item as DynamoDB counts it against the limit and the write units, in bytes: names and values in
/// UTF-8, 3 bytes for each list or map and 1 for each of its elements, about half a byte for each digit.
/// Source: the developer guide, "DynamoDB item sizes and formats".
pub(crate) fn bytes(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value_bytes(value)).sum()
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the SDK may learn new types, this program writes none of them"
)]
fn value_bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(number) => number.len().div_ceil(2) + 1,
        AttributeValue::B(blob) => blob.as_ref().len(),
        AttributeValue::Bool(_) | AttributeValue::Null(_) => 1,
        AttributeValue::L(values) => 3 + values.iter().map(|value| 1 + value_bytes(value)).sum::<usize>(),
        AttributeValue::M(map) => {
            3 + map.iter().map(|(name, value)| 1 + name.len() + value_bytes(value)).sum::<usize>()
        }
        AttributeValue::Ss(values) => values.iter().map(String::len).sum(),
        AttributeValue::Ns(values) => values.iter().map(|number| number.len().div_ceil(2) + 1).sum(),
        AttributeValue::Bs(values) => values.iter().map(|blob| blob.as_ref().len()).sum(),
        // Too large rather than nothing.
        _ => MAX_ITEM_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use ledgerline::{Meta, RecordedEvent, RecordedState, StreamId};
    use serde_json::json;

    use super::*;

    fn full() -> Commit {
        Commit {
            stream: StreamId::new("tank", "1").unwrap(),
            version: 3,
            events: vec![RecordedEvent {
                event_type: "TankDrawn".into(),
                schema: 1,
                data: r#"{"amount":30}"#.into(),
            }],
            state: Some(RecordedState { schema: 1, data: r#"{"level":500}"#.into() }),
            command: "c-1".into(),
            at: "2026-11-21T09:30:00Z".parse().unwrap(),
            meta: Meta { actor: Some("ada".into()), ..Meta::default() },
        }
    }

    /// The storage format. If this test fails, every commit ever stored is about to become unreadable.
    #[test]
    fn the_attributes_of_a_commit_are_these() {
        let item: serde_json::Value = serde_dynamo::from_item(commit_to_item(&full()).unwrap()).unwrap();
        assert_eq!(
            item,
            json!({
                "stream": "tank-1",
                "version": 3,
                "events": [{ "type": "TankDrawn", "schema": 1, "data": "{\"amount\":30}" }],
                "state": { "schema": 1, "data": "{\"level\":500}" },
                "command": "c-1",
                "at": "2026-11-21T09:30:00Z",
                "meta": { "actor": "ada" },
            })
        );
    }

    #[test]
    fn a_damaged_image_is_refused_by_name_and_without_its_values() {
        let damaged = |name: &str, value: Option<AttributeValue>| {
            let mut item = commit_to_item(&full()).unwrap();
            item.remove(name);
            item.extend(value.map(|value| (name.to_owned(), value)));
            commit_from_item(item.into()).unwrap_err().to_string()
        };
        assert!(damaged("events", None).contains("`events`"));
        assert!(damaged("version", Some(AttributeValue::N("0".into()))).contains("version 0"));
        for name in ["stream", "version", "events", "state", "at", "meta"] {
            let message = damaged(name, Some(AttributeValue::S("secret!".into())));
            assert!(!message.contains("secret!"), "{name}: {message}");
        }
    }
}
