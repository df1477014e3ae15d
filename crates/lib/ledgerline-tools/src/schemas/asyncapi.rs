//! The AsyncAPI document: the messages on the bus, on the queues, and of `GET /events`.

use std::collections::BTreeMap;

use anyhow::Result;
use ledgerline::{
    Commit, STATE_REPUBLISHED,
    manifest::{Manifest, Manifests, Source as Events},
    schemas,
};
use ledgerline_sam::{lookup::event_source, template::Source};
use serde_json::{Map, Value, json};

use super::{Documents, stored::path, types::AggregateType};

/// Whether events are on the bus: the template has a rule for them, or `BusEvents` names them.
///
/// # Errors
/// When the template cannot be read.
pub(super) fn has_listeners(source: &Source) -> Result<bool> {
    let template = source.template(&BTreeMap::new(), "http://127.0.0.1")?;
    let types = template.functions.iter().filter_map(|it| it.environment.get("BUS_EVENTS"));
    Ok(types.into_iter().any(|types| !types.trim().is_empty()))
}

/// Makes the document. `documents` has the schemas of events.
pub(super) fn document(
    source: &Source,
    manifests: &Manifests,
    aggregates: &[AggregateType],
    documents: &Documents,
) -> Value {
    let template = source.json();
    let of = event_source(&template).unwrap_or("ledgerline").to_owned();
    let mut messages = Messages { of, documents, messages: Map::new(), schemas: Map::new() };
    aggregates.iter().for_each(|aggregate| messages.add(aggregate));
    let Messages { mut messages, mut schemas, .. } = messages;
    let mut channels = channels(manifests);
    channels.insert(
        "bus".into(),
        json!({
            "address": "EventBus",
            "description": "The EventBridge bus: one entry for each event that a rule wants, with \
                the state of its aggregate.",
            "messages": references(messages.keys()),
        }),
    );
    if manifests.values().any(|manifest| manifest.kinesis) {
        let name = "StoredCommit".to_owned();
        channels.insert(
            "kinesis".into(),
            json!({
                "address": "CommitsKinesisStream",
                "description": "The Kinesis stream: each insertion of a commit, at least once and \
                    in any order.",
                "messages": references([&name]),
            }),
        );
        messages.insert(name, stored_commit());
    }
    messages.insert(COMMIT.into(), commit());
    schemas.insert(COMMIT.into(), schemas::row::<Commit>());
    let operations: Map<_, _> = channels
        .keys()
        .map(|channel| {
            let is_ours = ["bus", "kinesis"].contains(&channel.as_str());
            let action = if is_ours { "send" } else { "receive" };
            let channel_of = json!({ "$ref": format!("#/channels/{channel}") });
            (format!("{action}-{channel}"), json!({ "action": action, "channel": channel_of }))
        })
        .collect();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": source.stack(),
            "version": "1",
            "description": "The events of the application, for listeners of other teams.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages, "schemas": schemas },
    })
}

/// The name of the message on queues, and of its schema.
const COMMIT: &str = "Commit";

/// Returns the channels of the queues: one for each function behind a FIFO queue.
fn channels(manifests: &Manifests) -> Map<String, Value> {
    let queue = |(function, manifest): (&String, &Manifest)| {
        let Events::Queue(categories) = &manifest.source else { return None };
        let categories: Vec<_> = categories.iter().map(AsRef::as_ref).collect();
        let description = format!(
            "The FIFO queue of `{function}`: every commit of {}. The stream is the message group.",
            categories.join(", ")
        );
        let messages = references([&COMMIT.to_owned()]);
        let channel =
            json!({ "address": function, "description": description, "messages": messages });
        Some((function.clone(), channel))
    };
    manifests.iter().filter_map(queue).collect()
}

/// Returns references to messages, by their names.
fn references<'n>(names: impl IntoIterator<Item = &'n String>) -> Map<String, Value> {
    let reference = |name: &String| json!({ "$ref": format!("#/components/messages/{name}") });
    names.into_iter().map(|name| (name.clone(), reference(name))).collect()
}

/// Returns the message of a commit on a queue: `Message` of `ledgerline-lambda`.
fn commit() -> Value {
    let reference = json!({
        "type": "object",
        "description": "A commit that is too large for the queue: read the commit from the log.",
        "properties": { "stream": { "type": "string" }, "version": { "type": "integer" } },
        "required": ["stream", "version"],
        "additionalProperties": false,
    });
    json!({
        "title": "A commit",
        "summary": "All events of one command, or the place of a commit in the log.",
        "payload": { "anyOf": [{ "$ref": format!("#/components/schemas/{COMMIT}") }, reference] },
    })
}

/// Returns the message in the Kinesis stream: the record of DynamoDB, with the stored form of a
/// commit.
fn stored_commit() -> Value {
    let of = |kind: &str, value: Value| {
        let properties = json!({ kind: value });
        json!({ "type": "object", "properties": properties, "required": [kind] })
    };
    let text = of("S", json!({ "type": "string" }));
    let number = of("N", json!({ "type": "string" }));
    let payload = json!({
        "description": "The payload as JSON (S), or as gzip (B), which DynamoDB encodes twice in \
            Base64 for Kinesis. Missing if the commit has a body object.",
        "anyOf": [text, of("B", json!({ "type": "string" }))],
    });
    let payload_of = |fields: &[(&str, &Value)]| {
        let properties: Map<_, _> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).clone())).collect();
        of("M", json!({ "type": "object", "properties": properties }))
    };
    let event = payload_of(&[("type", &text), ("schema", &number), ("data", &payload)]);
    let fields = json!({
        "stream": text,
        "version": number,
        "events": of("L", json!({ "type": "array", "items": event })),
        "state": payload_of(&[("schema", &number), ("data", &payload)]),
        "command": text,
        "at": of("S", json!({ "type": "string", "format": "date-time" })),
        "meta": of("M", json!({ "type": "object" })),
        "body": of("S", json!({
            "type": "string", "description": "The name of the body object with the commit.",
        })),
    });
    let image = json!({
        "type": "object",
        "properties": fields,
        "required": ["stream", "version", "events", "command", "at", "meta"],
    });
    let dynamodb = json!({
        "type": "object", "properties": { "NewImage": image }, "required": ["NewImage"],
    });
    json!({
        "title": "A stored commit",
        "summary": "The record that DynamoDB writes for a new item of CommitsTable.",
        "payload": {
            "type": "object",
            "properties": { "eventName": { "const": "INSERT" }, "dynamodb": dynamodb },
            "required": ["eventName", "dynamodb"],
        },
    })
}

/// Collects the messages of all events.
struct Messages<'a> {
    /// The first part of the source of every entry.
    of: String,
    documents: &'a Documents,
    messages: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Messages<'_> {
    /// Adds the state and the messages of an aggregate.
    fn add(&mut self, aggregate: &AggregateType) {
        let category = &aggregate.category;
        self.schemas.insert(state_name(aggregate), aggregate.state.clone());
        for (event, current) in &aggregate.events {
            let shapes = (1..=*current).map(|schema| {
                let document = self.documents.get(&path(category, event, schema));
                let mut payload = document.cloned().unwrap_or(Value::Bool(true));
                payload.as_object_mut().map(|fields| fields.remove("$schema"));
                json!({ "properties": { "schema": { "const": schema }, "payload": payload } })
            });
            let elsewhere =
                json!({ "payload": { "type": "null" }, "payloadIn": { "const": "log" } });
            let elsewhere = json!({ "properties": elsewhere, "required": ["payloadIn"] });
            self.message(aggregate, event, shapes.chain([elsewhere]).collect());
        }
        // An operator republishes a state by a commit without events.
        let payload = json!({ "schema": { "const": 1 }, "payload": { "type": "null" } });
        self.message(aggregate, STATE_REPUBLISHED, vec![json!({ "properties": payload })]);
    }

    /// Adds the message of an event of an aggregate. Two aggregates may have events of one name.
    fn message(&mut self, aggregate: &AggregateType, event: &str, payloads: Vec<Value>) {
        let category = &aggregate.category;
        let detail = detail(event, aggregate, payloads);
        let payload = json!({
            "type": "object",
            "properties": {
                "source": { "const": format!("{}.{category}", self.of) },
                "detail-type": { "const": event },
                "detail": detail,
            },
            "required": ["source", "detail-type", "detail"],
        });
        let message = json!({ "title": event, "payload": payload });
        self.messages.insert(format!("{category}.{event}"), message);
    }
}

/// Returns the name of the schema of a state. It has the number of the state's shape: the
/// comparison with the released contract allows another shape under another number.
fn state_name(aggregate: &AggregateType) -> String {
    format!("{}-state.{}", aggregate.category, aggregate.state_schema)
}

/// Returns the problem of each aggregate whose state has a field of the entry beside it. No
/// consumer could read its entries.
pub(super) fn taken_fields(aggregates: &[AggregateType]) -> impl Iterator<Item = String> {
    let taken =
        aggregates.iter().filter(|of| !of.state["properties"]["lastKnownVersion"].is_null());
    taken.map(|of| {
        format!(
            "the state of `{}` has the field `lastKnownVersion`, as its entries on the bus have: \
             rename it",
            of.category
        )
    })
}

/// Returns the schema of the `detail` of an entry: `BusEntry` of `ledgerline-lambda`, in
/// docs/data.md.
fn detail(name: &str, aggregate: &AggregateType, payloads: Vec<Value>) -> Value {
    let state = json!({ "$ref": format!("#/components/schemas/{}", state_name(aggregate)) });
    json!({
        "type": "object",
        "properties": {
            "stream": { "type": "string" },
            "aggregate": {
                "type": "object",
                "description": "The state, with the version that it shows.",
                "properties": { "lastKnownVersion": { "type": "integer" } },
                "required": ["lastKnownVersion"],
            },
            "aggregateSchema": {
                "type": "integer",
                "description": "The number of the state's shape; 0 if the state is not attached.",
            },
            "lastEvent": {
                "type": "object",
                "properties": {
                    "stream": { "type": "string" },
                    "version": { "type": "integer" },
                    "index": {
                        "type": "integer",
                        "description": "The event's place in its commit, from 0.",
                    },
                    "eventType": { "const": name },
                    "schema": { "type": "integer" },
                    "at": { "type": "string", "format": "date-time" },
                    "payloadIn": {
                        "description": "`log` if the payload is not in the entry: read the commit from the log.",
                    },
                },
                "required": ["stream", "version", "index", "eventType", "schema", "payload", "at"],
                "anyOf": payloads,
            },
            "meta": { "type": "object", "description": "The origin of the commit." },
        },
        "required": ["stream", "aggregate", "aggregateSchema", "lastEvent", "meta"],
        "if": { "properties": { "aggregateSchema": { "const": aggregate.state_schema } } },
        "then": { "properties": { "aggregate": state } },
    })
}

#[cfg(test)]
mod tests {
    use ledgerline::{
        Aggregate, EventTypes, Meta, RecordedState, StreamId, encode, encode_state, fold,
        testing::tank::{Event, Tank, Tanks},
    };
    use ledgerline_lambda::messages;

    use super::*;
    use crate::schemas::{misfit, types::aggregates};

    #[test]
    fn both_kinds_of_messages_on_a_queue_fit_the_schema() {
        let mut schema = commit()["payload"].clone();
        schema["components"] = json!({ "schemas": { COMMIT: schemas::row::<Commit>() } });
        let moved = Event::TankMoved { site: "north".into() };
        let commit = messages::Message::Commit(Box::new(commit_of(&[moved])));
        let stream = StreamId::new("tank", "1").unwrap();
        let reference = messages::Message::Reference(messages::Reference { stream, version: 2 });
        for message in [commit, reference] {
            let message = serde_json::to_value(message).unwrap();
            assert_eq!(misfit(&schema, &message), None, "{message}");
        }
        assert!(misfit(&schema, &json!({ "stream": "tank-1" })).is_some());
    }

    fn commit_of(events: &[Event]) -> Commit {
        Commit {
            stream: StreamId::new("tank", "1").unwrap(),
            version: 2,
            events: events.iter().map(|event| encode::<Tank>(event).unwrap()).collect(),
            state: None,
            command: "c".into(),
            at: "2026-11-28T09:30:00Z".parse().unwrap(),
            meta: Meta::default(),
        }
    }

    #[test]
    fn events_are_on_the_bus_for_a_rule_or_by_the_parameter() {
        let tank = concat!(env!("CARGO_MANIFEST_DIR"), "/../ledgerline-tank/template.yaml");
        let text = std::fs::read_to_string(tank).unwrap();
        let parameter = text.replacen(
            "  BusEvents:\n    Type: String\n    Default: \"\"",
            "  BusEvents:\n    Type: String\n    Default: TankMoved",
            1,
        );
        let rule = text.replacen(
            "            ${BusEvents}\n",
            "            ${BusEvents}\n            TankMoved\n",
            1,
        );
        for (text, expected) in [(&text, false), (&parameter, true), (&rule, true)] {
            let source = Source::parse(text, std::path::Path::new(tank)).unwrap();
            assert_eq!(has_listeners(&source).unwrap(), expected);
        }
    }

    #[test]
    fn a_state_with_a_field_of_its_entries_is_a_problem() {
        let mut aggregates = aggregates::<Tanks>();
        assert_eq!(taken_fields(&aggregates).next(), None);
        aggregates[0].state["properties"]["lastKnownVersion"] = json!({ "type": "integer" });
        let problem = taken_fields(&aggregates).next().unwrap();
        assert!(problem.starts_with("the state of `tank` has"), "{problem}");
    }

    #[test]
    fn an_entry_of_the_bus_fits_the_schema_of_its_message() {
        let event = Event::TankMoved { site: "north".into() };
        let state = fold::<Tank>(Tank::initial(), [&event]);
        let commit = commit_of(std::slice::from_ref(&event));
        let republished = commit_of(&[]);
        let documents = Documents::from([(
            path("tank", "TankMoved", 1),
            schemas::event::<Tank>(
                Event::TYPES.iter().find(|known| known.name == "TankMoved").unwrap(),
            )
            .unwrap(),
        )]);
        let mut messages = Messages {
            of: "water".into(),
            documents: &documents,
            messages: Map::new(),
            schemas: Map::new(),
        };
        aggregates::<Tanks>().iter().for_each(|aggregate| messages.add(aggregate));
        let schema_of = |event: &str| {
            let mut schema = messages.messages[&format!("tank.{event}")]["payload"].clone();
            schema["components"] = json!({ "schemas": messages.schemas });
            schema
        };
        let entry = |commit: &Commit, event: &str, state: &RecordedState| {
            let detail = messages::details(commit, state, None).unwrap().remove(0);
            let detail: Value = serde_json::from_str(&detail).unwrap();
            json!({ "source": "water.tank", "detail-type": event, "detail": detail })
        };
        let elsewhere = Some(messages::PayloadPlace::Log);
        let without = messages::details(&commit, &messages::unknown_state(), elsewhere);
        let without: Value = serde_json::from_str(&without.unwrap()[0]).unwrap();
        let without =
            json!({ "source": "water.tank", "detail-type": "TankMoved", "detail": without });
        assert_eq!(misfit(&schema_of("TankMoved"), &without), None, "{without}");
        for state in [encode_state::<Tank>(&state).unwrap(), messages::unknown_state()] {
            for (commit, event) in [(&commit, "TankMoved"), (&republished, "StateRepublished")] {
                let entry = entry(commit, event, &state);
                assert_eq!(misfit(&schema_of(event), &entry), None, "{entry}");
            }
        }
        let schema = schema_of("TankMoved");
        let mut wrong = entry(&commit, "TankMoved", &messages::unknown_state());
        wrong["detail"]["lastEvent"]["payload"]["site"] = json!(1);
        assert!(misfit(&schema, &wrong).is_some());
    }
}
