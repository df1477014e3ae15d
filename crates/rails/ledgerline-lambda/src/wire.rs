//! The formats of what functions send to each other: entries on the bus, messages on the queues.

use jiff::Timestamp;
use ledgerline::{Commit, Meta, StreamId};
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
    /// The origin of the commit that the event is in.
    pub meta: Meta,
}

/// A state on the bus.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aggregate {
    /// The version of the state.
    pub last_known_version: u64,
    /// Its fields.
    #[serde(flatten)]
    pub state: Map<String, Value>,
}

/// An event on the bus.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The stream.
    pub stream: StreamId,
    /// The version of the commit that it is in.
    pub version: u64,
    /// Its place in the commit, from 0.
    pub index: usize,
    /// Its type.
    pub event_type: String,
    /// The number of the payload's shape.
    pub schema: u32,
    /// The payload, byte for byte as it was stored.
    pub payload: Box<RawValue>,
    /// The time of its commit.
    pub at: Timestamp,
}

/// A message on a FIFO queue: a commit, or a reference to one that is too large for a message.
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
    /// When it is neither a commit nor a reference. The reason says which field, never a value (rule 14).
    pub fn read(body: &str) -> Result<Self, String> {
        // The kind of message is told by hand and not by serde's `untagged`: a commit with a damaged field must not be taken for a
        // reference to itself.
        let fields: Map<String, Value> = serde_json::from_str(body).map_err(|_| "it is no JSON object")?;
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
            reference.map(Self::Reference).map_err(|error| format!("the field {}", field_or_root(&error)))
        }
    }
}

/// The field that an error is about: serde tells where the field is, or the name of a field that is missing, unknown or double. The rest of
/// serde's message may quote a value, and is left out (rule 14).
pub(crate) fn field_of<E: std::fmt::Display>(error: &serde_path_to_error::Error<E>) -> Option<String> {
    let message = error.inner().to_string();
    let named = ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split_once('`').map(|(name, _)| name.to_owned()));
    let path = error.path().to_string();
    named.or_else(|| Some(path).filter(|path| path != "."))
}

/// The field that an error is about, for a message. It is `.` if the error is about the whole.
pub(crate) fn field_or_root<E: std::fmt::Display>(error: &serde_path_to_error::Error<E>) -> String {
    field_of(error).unwrap_or_else(|| ".".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
