//! The AsyncAPI document: the messages on the bus, on the queues, and of `GET /events`.

use std::path::PathBuf;

use ledgerline::{
    Aggregate, Aggregates, Commit, EventTypes, Visitor,
    manifest::{Manifests, Source as Events},
    schemas,
};
use ledgerline_sam::{grants::event_source, template::Source};
use serde_json::{Map, Value, json};

use super::{Documents, stored::path};

/// Makes the document. `documents` has the schemas of events.
pub(super) fn document<L: Aggregates>(
    source: &Source,
    manifests: &Manifests,
    documents: &Documents,
) -> Value {
    let template = source.json();
    let of = event_source(&template).unwrap_or("ledgerline").to_owned();
    let mut messages = Messages { of, documents, messages: Map::new(), schemas: Map::new() };
    L::visit(&mut messages);
    let Messages { messages, mut schemas, .. } = messages;
    let mut channels = Map::new();
    let mut operations = Map::new();
    let named = |names: &mut dyn Iterator<Item = &String>| -> Map<String, Value> {
        names
            .map(|name| (name.clone(), json!({ "$ref": format!("#/components/messages/{name}") })))
            .collect()
    };
    channels.insert("bus".into(), json!({
        "address": "EventBus",
        "description": "The EventBridge bus: one entry for each event that a rule wants, with the state of its aggregate.",
        "messages": named(&mut messages.keys()),
    }));
    operations.insert("publishEvents".into(), operation("send", "bus"));
    let commit = "Commit".to_owned();
    let queues =
        manifests.iter().filter(|(_, manifest)| matches!(manifest.source, Events::Queue(_)));
    for (function, manifest) in queues {
        let Events::Queue(categories) = &manifest.source else { continue };
        let categories: Vec<_> = categories.iter().map(AsRef::as_ref).collect();
        channels.insert(function.clone(), json!({
            "address": function,
            "description": format!(
                "The FIFO queue of `{function}`: every commit of {}. The stream is the message group.",
                categories.join(", ")
            ),
            "messages": named(&mut [&commit].into_iter()),
        }));
        operations.insert(format!("receive-{function}"), operation("receive", function));
    }
    let reads = |manifest: &ledgerline::manifest::Manifest| {
        manifest.endpoints().iter().any(|endpoint| endpoint.route == "GET /events")
    };
    if manifests.values().any(reads) {
        channels.insert("events".into(), json!({
            "address": "/events",
            "description": "Commits of all streams in one order: `GET /events` of openapi.json.",
            "messages": named(&mut [&commit].into_iter()),
        }));
        operations.insert("readEvents".into(), operation("receive", "events"));
    }
    let mut messages = messages;
    messages.insert(commit, json!({
        "title": "A commit",
        "summary": "All events of one command. A commit that is too large for a queue is a message with `stream` and `version` alone.",
        "payload": { "$ref": "#/components/schemas/Commit" },
    }));
    schemas.insert("Commit".into(), schemas::row::<Commit>());
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

fn operation(action: &str, channel: &str) -> Value {
    json!({ "action": action, "channel": { "$ref": format!("#/channels/{channel}") } })
}

/// Collects the messages of all events.
struct Messages<'a> {
    /// The first part of the source of every entry.
    of: String,
    documents: &'a Documents,
    messages: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Visitor for Messages<'_> {
    fn visit<A: Aggregate>(&mut self) {
        let category = A::CATEGORY;
        let state = format!("{category}-state");
        self.schemas.insert(state.clone(), schemas::state::<A>());
        for known in A::Event::TYPES {
            let payloads = (1..=known.schema).map(|schema| {
                let document: Option<&Value> =
                    self.documents.get(&path(category, known.name, schema) as &PathBuf);
                let mut payload = document.cloned().unwrap_or(Value::Bool(true));
                payload.as_object_mut().map(|fields| fields.remove("$schema"));
                json!({ "properties": { "schema": { "const": schema }, "payload": payload } })
            });
            let payload = json!({
                "type": "object",
                "properties": {
                    "source": { "const": format!("{}.{category}", self.of) },
                    "detail-type": { "const": known.name },
                    "detail": detail(known.name, &state, A::STATE_SCHEMA, payloads.collect()),
                },
                "required": ["source", "detail-type", "detail"],
            });
            self.messages
                .insert(known.name.to_owned(), json!({ "title": known.name, "payload": payload }));
        }
    }
}

/// Returns the schema of the `detail` of an entry: `BusEntry` of `ledgerline-lambda`, in docs/data.md.
fn detail(name: &str, state: &str, state_schema: u32, payloads: Vec<Value>) -> Value {
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
                    "index": { "type": "integer", "description": "The event's place in its commit, from 0." },
                    "eventType": { "const": name },
                    "schema": { "type": "integer" },
                    "at": { "type": "string", "format": "date-time" },
                },
                "required": ["stream", "version", "index", "eventType", "schema", "payload", "at"],
                "anyOf": payloads,
            },
            "meta": { "type": "object", "description": "The origin of the commit." },
        },
        "required": ["stream", "aggregate", "aggregateSchema", "lastEvent", "meta"],
        "if": { "properties": { "aggregateSchema": { "const": state_schema } } },
        "then": { "properties": { "aggregate": { "$ref": format!("#/components/schemas/{state}") } } },
    })
}

#[cfg(test)]
mod tests {
    use ledgerline::{
        Meta, RecordedState, StreamId, encode, encode_state, fold,
        testing::tank::{Event, Tank, Tanks},
    };
    use ledgerline_lambda::wire;

    use super::*;
    use crate::schemas::misfit;

    #[test]
    fn an_entry_of_the_bus_fits_the_schema_of_its_message() {
        let event = Event::TankMoved { site: "north".into() };
        let state = fold::<Tank>(Tank::initial(), [&event]);
        let commit = Commit {
            stream: StreamId::new("tank", "1").unwrap(),
            version: 2,
            events: vec![encode::<Tank>(&event).unwrap()],
            state: None,
            command: "c".into(),
            at: "2026-11-28T09:30:00Z".parse().unwrap(),
            meta: Meta::default(),
        };
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
        Tanks::visit(&mut messages);
        let mut schema = messages.messages["TankMoved"]["payload"].clone();
        schema["components"] = json!({ "schemas": messages.schemas });
        let entry = |state: &RecordedState| {
            let detail = wire::details(&commit, state).unwrap().remove(0);
            let detail: Value = serde_json::from_str(&detail).unwrap();
            json!({ "source": "water.tank", "detail-type": "TankMoved", "detail": detail })
        };
        for state in [encode_state::<Tank>(&state).unwrap(), wire::unknown_state()] {
            let entry = entry(&state);
            assert_eq!(misfit(&schema, &entry), None, "{entry}");
        }
        let mut wrong = entry(&wire::unknown_state());
        wrong["detail"]["lastEvent"]["payload"]["site"] = json!(1);
        assert!(misfit(&schema, &wrong).is_some());
    }
}
