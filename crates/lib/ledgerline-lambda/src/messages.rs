//! The formats of messages between functions: entries on the bus, messages on the queues.

use std::borrow::Cow;

use jiff::Timestamp;
use ledgerline::{Commit, Meta, RecordedEvent, RecordedState, STATE_REPUBLISHED, StreamId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

/// The `detail` of an entry on the bus: one event, and the state of its aggregate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BusEntry {
    /// The stream.
    pub stream: StreamId,
    /// The state, with the version that it shows.
    pub aggregate: Aggregate,
    /// The number of the state's shape.
    pub aggregate_schema: u32,
    /// The event.
    pub last_event: Event,
    /// The origin of the event's commit.
    pub meta: Meta,
}

/// A state on the bus.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aggregate {
    /// The version of the state.
    pub last_known_version: u64,
    /// The fields of the state.
    #[serde(flatten)]
    pub state: Map<String, Value>,
}

/// An event on the bus.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The stream.
    pub stream: StreamId,
    /// The version of the event's commit.
    pub version: u64,
    /// The event's place in the commit, from 0.
    pub index: usize,
    /// The event's type.
    pub event_type: String,
    /// The number of the payload's shape.
    pub schema: u32,
    /// The payload, byte for byte in its stored form; `null` if it is elsewhere.
    pub payload: Box<RawValue>,
    /// The place of the payload, if it is not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_in: Option<PayloadPlace>,
    /// The time of the event's commit.
    pub at: Timestamp,
}

/// The place of a payload that is too large for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadPlace {
    /// The commit in the log.
    Log,
}

/// The schema number of an entry without a state; no aggregate has the number 0. The fanout
/// attaches it to an event that it cannot fold, because a newer program wrote the event or because
/// the event is damaged. A reader of the entry folds the state from the log, as soon as its program
/// can. So the order in which a deployment replaces functions does not matter. A reader that never
/// can reports the failure itself (rule 11).
const UNKNOWN: u32 = 0;

/// The placeholder of an unknown state.
pub fn unknown_state() -> RecordedState {
    RecordedState { schema: UNKNOWN, data: "{}".into() }
}

/// Builds the `detail` of each entry of a commit: one event, and the state. A state projector folds
/// the [unknown one](unknown_state) from the log. Payloads have a place if they are not in the
/// entry.
pub fn details(
    commit: &Commit,
    state: &RecordedState,
    payload_in: Option<PayloadPlace>,
) -> Result<Vec<String>, String> {
    let detail = |(index, event): (usize, &RecordedEvent)| {
        let fields =
            serde_json::from_str(&state.data).map_err(|_| "the state is not a JSON object")?;
        let data = if payload_in.is_none() { event.data.clone() } else { "null".to_owned() };
        let payload = RawValue::from_string(data).map_err(|_| "the payload is not JSON")?;
        let entry = BusEntry {
            stream: commit.stream.clone(),
            aggregate: Aggregate { last_known_version: commit.version, state: fields },
            aggregate_schema: state.schema,
            last_event: Event {
                stream: commit.stream.clone(),
                version: commit.version,
                index,
                event_type: event.event_type.clone(),
                schema: event.schema,
                payload,
                payload_in,
                at: commit.at,
            },
            meta: commit.meta.clone(),
        };
        serde_json::to_string(&entry).map_err(|error| error.to_string())
    };
    published_events(commit).iter().enumerate().map(detail).collect()
}

/// The published events of a commit. State views get a commit without events as one with the event
/// [`STATE_REPUBLISHED`].
pub(crate) fn published_events(commit: &Commit) -> Cow<'_, [RecordedEvent]> {
    if !commit.events.is_empty() {
        return Cow::Borrowed(&commit.events);
    }
    let event_type = STATE_REPUBLISHED.to_owned();
    let data = "null".to_owned();
    Cow::Owned(vec![RecordedEvent { event_type, schema: 1, data }])
}

/// A message on a FIFO queue: a commit, or a reference to a commit that is too large for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Message {
    /// The commit, without its state.
    Commit(Box<Commit>),
    /// The place of the commit in the log.
    Reference(Reference),
}

/// The place of a commit in the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Reference {
    /// The stream.
    pub stream: StreamId,
    /// The version.
    pub version: u64,
}

impl Message {
    /// The commit, if the message holds it.
    #[must_use]
    pub fn into_commit(self) -> Option<Commit> {
        match self {
            Self::Commit(commit) => Some(*commit),
            Self::Reference(_) => None,
        }
    }

    /// Reads the body of a message.
    ///
    /// # Errors
    /// When the body is neither a commit nor a reference. The reason names the field, never a value
    /// (rule 14).
    pub fn read(body: &str) -> Result<Self, String> {
        // This code determines the kind of message, in place of serde's `untagged`: a commit with a
        // damaged field must not be read as a reference to itself.
        let fields: Map<String, Value> =
            serde_json::from_str(body).map_err(|_| "the body is not a JSON object")?;
        if fields.contains_key("events") {
            let commit: Commit = serde_path_to_error::deserialize(Value::Object(fields))
                .map_err(|error| format!("the field {}", field_or_root(&error)))?;
            match commit.version {
                // Versions begin at 1; position 0 is that of a stream without commits.
                0 => Err("the field version".to_owned()),
                _ => Ok(Self::Commit(Box::new(commit))),
            }
        } else {
            let reference = serde_path_to_error::deserialize(Value::Object(fields));
            reference
                .map(Self::Reference)
                .map_err(|error| format!("the field {}", field_or_root(&error)))
        }
    }
}

/// Returns the field of an error. Serde reports the place of the field, or the name of a missing,
/// unknown or duplicate field. The rest of serde's message may quote a value, and is left out (rule
/// 14).
pub(crate) fn field_of<E: std::fmt::Display>(
    error: &serde_path_to_error::Error<E>,
) -> Option<String> {
    let message = error.inner().to_string();
    let named =
        ["missing field `", "unknown field `", "duplicate field `"].iter().find_map(|start| {
            message.strip_prefix(start)?.split_once('`').map(|(name, _)| name.to_owned())
        });
    let path = error.path().to_string();
    named.or_else(|| Some(path).filter(|path| path != "."))
}

/// Returns the field of an error, for a message. It is `.` if the error is about the whole value.
pub(crate) fn field_or_root<E: std::fmt::Display>(error: &serde_path_to_error::Error<E>) -> String {
    field_of(error).unwrap_or_else(|| ".".to_owned())
}

#[cfg(test)]
mod tests {
    use ledgerline::{StreamId, contract::commit};

    use super::*;

    /// JSON readers that know only doubles are exact up to 2^53. Messages have no such limit.
    #[test]
    fn a_message_has_any_version_from_1_on() {
        let stream = StreamId::new("tank", "1").unwrap();
        let read = |version| {
            let message = Message::Commit(Box::new(commit(&stream, version)));
            let message = Message::read(&serde_json::to_string(&message).unwrap()).ok()?;
            Some(message.into_commit()?.version)
        };
        assert_eq!(read(0), None);
        for version in [1, (1 << 53) + 1, u64::MAX] {
            assert_eq!(read(version), Some(version));
        }
    }

    /// A later version of the program may add fields to a message.
    #[test]
    fn unknown_fields_of_a_message_are_ignored() {
        fn add_to_each_object(value: &mut Value) {
            match value {
                Value::Object(fields) => {
                    fields.values_mut().for_each(add_to_each_object);
                    fields.insert("tenant".into(), serde_json::json!({ "of": "the future" }));
                }
                Value::Array(values) => values.iter_mut().for_each(add_to_each_object),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let later = |message: &str| {
            let mut message = serde_json::from_str(message).unwrap();
            add_to_each_object(&mut message);
            message.to_string()
        };
        let stream = StreamId::new("tank", "1").unwrap();
        let mut commit = commit(&stream, 3);
        commit.state = Some(RecordedState { schema: 1, data: "{}".into() });
        for message in [
            Message::Commit(Box::new(commit.clone())),
            Message::Reference(Reference { stream, version: 3 }),
        ] {
            let body = serde_json::to_string(&message).unwrap();
            assert_eq!(Message::read(&later(&body)).unwrap(), message);
        }
        let detail = details(&commit, &unknown_state(), None).unwrap().remove(0);
        let entry: BusEntry = serde_json::from_str(&later(&detail)).unwrap();
        assert_eq!((entry.last_event.version, entry.meta), (3, commit.meta));
    }

    /// A message without `events` is a reference: its commit is read from the log, which refuses it.
    #[test]
    fn a_message_with_a_commit_of_the_future_is_refused() {
        let message = |events: Value| {
            serde_json::json!({
                "stream": "tank-1", "version": 3, "events": events, "command": "c", "meta": {},
                "at": "2027-11-21T09:30:00Z",
            })
            .to_string()
        };
        let event = serde_json::json!({ "type": "TankFilled", "schema": 1 });
        let mut reference = event.clone();
        reference["reference"] = "s3://commits/1".into();
        let mut binary = event.clone();
        binary["data"] = serde_json::json!({ "binary": "KLUv" });
        for (events, expected) in [
            (serde_json::json!([event]), "data"),
            (serde_json::json!([reference]), "data"),
            (serde_json::json!([binary]), "events[0].data"),
            (Value::from("s3://commits/1"), "events"),
        ] {
            let reason = Message::read(&message(events)).unwrap_err();
            assert_eq!(reason, format!("the field {expected}"));
        }
    }

    #[test]
    fn rule_14_no_reason_quotes_the_message() {
        for body in [
            "\"secret!\"",
            "secret!",
            r#"{"stream":"secret!","version":1}"#,
            r#"{"stream":"tank-1","version":"secret!"}"#,
            r#"{"stream":"tank-1","version":1,"events":"secret!"}"#,
        ] {
            let reason = Message::read(body).unwrap_err();
            assert!(!reason.contains("secret!"), "{body}: {reason}");
        }
    }
}
