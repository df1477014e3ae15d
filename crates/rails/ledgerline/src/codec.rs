//! Events and states as they are stored: a type, the number of its shape, and JSON text.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Aggregate;

/// One type of event in the log.
///
/// Its current schema is one more than the number of its upcasters, so that adding an upcaster is what raises
/// the schema, and a shape without a way to read it cannot exist.
#[derive(Debug, Clone, Copy)]
pub struct EventType {
    /// The name in the log, the bus and the queues.
    pub name: &'static str,
    /// `upcasters[n]` turns the data of schema `n + 1` into the data of schema `n + 2`.
    pub upcasters: &'static [fn(Value) -> Value],
}

impl EventType {
    /// An event type whose first shape is still the current one.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, upcasters: &[] }
    }

    /// The number of the current shape, from 1.
    #[must_use]
    pub const fn schema(&self) -> u32 {
        self.upcasters.len() as u32 + 1
    }
}

/// An event as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEvent {
    /// The name of its [`EventType`].
    #[serde(rename = "type")]
    pub event_type: String,
    /// Number of the shape of `data`, from 1.
    pub schema: u32,
    /// The payload, JSON text. Text, because a number that passes through a database's own types can come back
    /// in another form.
    pub data: String,
}

/// A state as it is stored: a cache of the fold (rule 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedState {
    /// [`Aggregate::STATE_SCHEMA`] of the writer.
    pub schema: u32,
    /// The state, JSON text.
    pub data: String,
}

/// An event or state that this code cannot write or read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Written by a version of the program that knows more event types than this one.
    #[error("unknown event type {event_type:?} in category {category:?}")]
    UnknownType {
        /// The aggregate's category.
        category: &'static str,
        /// The type that was read.
        event_type: String,
    },
    /// Written by a version of the program that knows a newer shape, or schema 0.
    #[error("event {event_type} has schema {schema}, this program reads 1 to {newest}")]
    UnknownSchema {
        /// The type that was read.
        event_type: String,
        /// The schema that was read.
        schema: u32,
        /// The newest schema that this program knows.
        newest: u32,
    },
    /// The payload is not of the shape that its schema promises. The parser's own words would quote the payload, so
    /// they are in the source and not in the message (rule 14).
    #[error("event {event_type} does not have the shape of schema {schema}")]
    Malformed {
        /// The type.
        event_type: String,
        /// The schema.
        schema: u32,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The type cannot be represented as JSON: a programming error in the aggregate's types.
    #[error("cannot be encoded: {0}")]
    Unencodable(String),
}

fn event_type<A: Aggregate>(name: &str) -> Result<&'static EventType, DecodeError> {
    A::EVENTS
        .iter()
        .find(|known| known.name == name)
        .ok_or_else(|| DecodeError::UnknownType { category: A::CATEGORY, event_type: name.to_owned() })
}

/// The stored form of an event, at the current schema.
///
/// # Errors
/// [`DecodeError::UnknownType`] when the event is missing from [`Aggregate::EVENTS`], and
/// [`DecodeError::Unencodable`] when it is not adjacently tagged as `type` and `data`: it could not be read again.
pub fn encode<A: Aggregate>(event: &A::Event) -> Result<RecordedEvent, DecodeError> {
    #[derive(Deserialize)]
    struct Tagged {
        #[serde(rename = "type")]
        event_type: String,
        #[serde(default)]
        data: Value,
    }
    let tagged: Tagged = serde_json::to_value(event)
        .and_then(serde_json::from_value)
        .map_err(|error| DecodeError::Unencodable(error.to_string()))?;
    let schema = event_type::<A>(&tagged.event_type)?.schema();
    Ok(RecordedEvent { event_type: tagged.event_type, schema, data: tagged.data.to_string() })
}

/// Reads a stored event of any schema so far.
///
/// # Errors
/// When the type or schema is unknown (the log was written by a newer program), or the data malformed.
pub fn decode<A: Aggregate>(recorded: &RecordedEvent) -> Result<A::Event, DecodeError> {
    let RecordedEvent { event_type: name, schema, data } = recorded;
    let known = event_type::<A>(name)?;
    if *schema == 0 || *schema > known.schema() {
        return Err(DecodeError::UnknownSchema {
            event_type: name.clone(),
            schema: *schema,
            newest: known.schema(),
        });
    }
    let malformed = |source| DecodeError::Malformed { event_type: name.clone(), schema: *schema, source };
    let stored: Value = serde_json::from_str(data).map_err(malformed)?;
    let current = known.upcasters[*schema as usize - 1..].iter().fold(stored, |data, upcast| upcast(data));
    serde_json::from_value(serde_json::json!({ "type": name, "data": current })).map_err(malformed)
}

/// The stored form of a state.
///
/// # Errors
/// [`DecodeError::Unencodable`] when the state is not a JSON object.
pub fn encode_state<A: Aggregate>(state: &A::State) -> Result<RecordedState, DecodeError> {
    let value = serde_json::to_value(state).map_err(|error| DecodeError::Unencodable(error.to_string()))?;
    if !value.is_object() {
        return Err(DecodeError::Unencodable(format!("the state of {} is not a JSON object", A::CATEGORY)));
    }
    Ok(RecordedState { schema: A::STATE_SCHEMA, data: value.to_string() })
}

/// Reads a stored state, or `None` when it was written under another schema or cannot be read: the caller then
/// folds the events instead (rule 5).
#[must_use]
pub fn decode_state<A: Aggregate>(recorded: &RecordedState) -> Option<A::State> {
    if recorded.schema != A::STATE_SCHEMA {
        return None;
    }
    serde_json::from_str(&recorded.data).ok()
}
