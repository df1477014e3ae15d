//! Events and states as they are stored: a type, the number of its shape, and JSON text.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::Aggregate;

/// One type of event in the log.
#[derive(Debug, Clone, Copy)]
pub struct EventType {
    /// The name in the log, the bus and the queues.
    pub name: &'static str,
    /// The number of the current shape, from 1.
    pub schema: u32,
    /// `upcasters[n]` turns the data of schema `n + 1` into the data of schema `n + 2`.
    pub upcasters: &'static [fn(Value) -> Value],
    /// Other names under which it is read. The log may have events with these names.
    pub other_names: &'static [&'static str],
}

impl EventType {
    /// Returns an event type.
    ///
    /// # Panics
    /// When there is not one upcaster for each schema before the current one: every shape must have
    /// a way to read it. In a constant, as [`events!`](crate::events) makes it, that is a compile
    /// error.
    pub const fn new(
        name: &'static str,
        schema: u32,
        upcasters: &'static [fn(Value) -> Value],
    ) -> Self {
        assert!(
            upcasters.len() as u32 + 1 == schema,
            "a schema needs one upcaster for each schema before it"
        );
        Self { name, schema, upcasters, other_names: &[] }
    }

    /// Returns the same type, which is read under these names too.
    #[must_use]
    pub const fn or(self, other_names: &'static [&'static str]) -> Self {
        Self { other_names, ..self }
    }

    /// Returns the names under which it is read, first the one under which it is written.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.name].into_iter().chain(self.other_names.iter().copied())
    }

    /// Whether it is read under this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

/// The types of an aggregate's events. [`events!`](crate::events) implements it.
pub trait EventTypes: JsonSchema + Sized {
    /// Every type that was ever stored.
    const TYPES: &'static [EventType];

    /// Returns the type of this event.
    fn event_type(&self) -> &'static EventType;

    /// Reads the data of an event of this type, in the shape of its current schema.
    ///
    /// # Errors
    /// When there is no such type, or the data has another shape.
    fn read<'de, D: Deserializer<'de>>(name: &str, data: D) -> Result<Self, D::Error>;
}

/// Declares the events of an aggregate: the stored fields of each, and the number of its shape.
///
/// A shape changes only together with the number, and with an upcaster that turns data of the
/// previous schema into the current shape: `Opened: 2 [in_euro] { … }`. An event without a number
/// does not compile. The fields are written in camel case. They have plain types, so that old
/// events stay readable when a rule is tightened.
///
/// An event that was renamed has its other names after the number: `Closed: 1 (or Ended) { … }`. It
/// is written as `Closed`, and read under both names.
///
/// ```
/// use ledgerline::{EventTypes, with_field};
/// use serde_json::Value;
///
/// ledgerline::events! {
///     /// What happened to an account.
///     pub enum Event {
///         /// The account exists from now on. Schema 1 had no currency.
///         Opened: 2 [in_euro] { owner: String, currency: String },
///         /// It takes no more changes. Older events have the name `Ended`.
///         Closed: 1 (or Ended) {},
///     }
/// }
///
/// fn in_euro(data: Value) -> Value {
///     with_field(data, "currency", "EUR")
/// }
///
/// assert_eq!(Event::Closed {}.event_type().schema, 1);
/// assert_eq!(Event::TYPES.iter().map(|known| known.name).collect::<Vec<_>>(), ["Opened", "Closed"]);
/// assert_eq!(Event::TYPES[1].names().collect::<Vec<_>>(), ["Closed", "Ended"]);
/// ```
///
/// ```compile_fail
/// ledgerline::events! {
///     /// What happened.
///     pub enum Event {
///         /// It has no upcaster from schema 1.
///         Opened: 2 { owner: String },
///     }
/// }
/// # let _ = ledgerline::EventTypes::event_type(&Event::Opened { owner: String::new() });
/// ```
#[macro_export]
macro_rules! events {
    (
        $(#[$enum_attribute:meta])*
        pub enum $name:ident {
            $(
                $(#[$attribute:meta])*
                $event:ident: $schema:literal $([$($upcaster:expr),+ $(,)?])? $((or $($other_name:ident),+))? {
                    $($(#[$field_attribute:meta])* $field:ident: $kind:ty),* $(,)?
                }
            ),+ $(,)?
        }
    ) => {
        $(#[$enum_attribute])*
        #[derive(Debug, Clone, PartialEq)]
        #[derive(::schemars::JsonSchema, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(tag = "type", content = "data", rename_all_fields = "camelCase")]
        #[allow(missing_docs, reason = "the comment of an event says what its fields do not say by their names")]
        pub enum $name {
            $($(#[$attribute])* $event { $($(#[$field_attribute])* $field: $kind),* }),+
        }

        impl $crate::EventTypes for $name {
            const TYPES: &'static [$crate::EventType] = &[
                $(
                    $crate::EventType::new(stringify!($event), $schema, &[$($($upcaster),+)?])
                        .or(&[$($(stringify!($other_name)),+)?])
                ),+
            ];

            fn event_type(&self) -> &'static $crate::EventType {
                match self {
                    $(Self::$event { .. } => {
                        const TYPE: $crate::EventType =
                            $crate::EventType::new(stringify!($event), $schema, &[$($($upcaster),+)?])
                                .or(&[$($(stringify!($other_name)),+)?]);
                        &TYPE
                    })+
                }
            }

            fn read<'de, D: ::serde::Deserializer<'de>>(name: &str, data: D) -> Result<Self, D::Error> {
                match name {
                    $(stringify!($event) => {
                        #[derive(::serde::Deserialize)]
                        #[serde(rename_all = "camelCase")]
                        struct Data { $($(#[$field_attribute])* $field: $kind),* }

                        let Data { $($field),* } = ::serde::Deserialize::deserialize(data)?;
                        Ok(Self::$event { $($field),* })
                    })+
                    _ => Err(::serde::de::Error::custom("the aggregate has no event of this type")),
                }
            }
        }
    };
}

/// Returns the data of an event with one more field, unless it has the field already: the work of
/// most upcasters.
pub fn with_field(mut data: Value, name: &str, value: impl Into<Value>) -> Value {
    if let Some(fields) = data.as_object_mut() {
        fields.entry(name).or_insert(value.into());
    }
    data
}

/// The stored form of an event.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RecordedEvent {
    /// The name of its [`EventType`].
    #[serde(rename = "type")]
    pub event_type: String,
    /// The number of the shape of `data`, from 1.
    pub schema: u32,
    /// The payload as JSON text. It is text because a database's own types can change the form of a
    /// number.
    pub data: String,
}

/// The stored form of a state: a cache of the fold (rule 5).
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct RecordedState {
    /// [`Aggregate::STATE_SCHEMA`] of the writer.
    pub schema: u32,
    /// The state as JSON text.
    pub data: String,
}

/// An event or state that this program cannot write: its type has no JSON, or not the JSON that it
/// must have. This is a programming error in the aggregate.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The type cannot be represented as JSON.
    #[error("{what} cannot be written as JSON")]
    Json {
        /// The name of the event's type, or the category of the state.
        what: &'static str,
        /// The writer's error.
        source: serde_json::Error,
    },
    /// An event is not adjacently tagged as `type` and `data`: no program could read it back.
    #[error("event {0} has no data")]
    WithoutData(&'static str),
    /// The state is not a JSON object.
    #[error("the state of {0} is not a JSON object")]
    NoObject(&'static str),
}

/// An event that this program cannot read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The writer is a version of the program that knows more event types than this one.
    #[error("unknown event type {event_type:?} in category {category:?}")]
    UnknownType {
        /// The aggregate's category.
        category: &'static str,
        /// The type that was read.
        event_type: String,
    },
    /// The writer is a version of the program that knows a newer shape, or the event has schema 0.
    #[error("event {event_type} has schema {schema}, this program reads 1 to {newest}")]
    UnknownSchema {
        /// The type that was read.
        event_type: String,
        /// The schema that was read.
        schema: u32,
        /// The newest schema that this program knows.
        newest: u32,
    },
    /// The payload does not have the shape that its schema promises. The parser's own words would
    /// quote the payload, so they are neither in the message nor among the causes, which are logged
    /// (rule 14).
    #[error("event {event_type} does not have the shape of schema {schema}")]
    Malformed {
        /// The type.
        event_type: String,
        /// The schema.
        schema: u32,
        /// The parser's error. It quotes the payload.
        parser: serde_json::Error,
    },
}

fn event_type<A: Aggregate>(name: &str) -> Result<&'static EventType, DecodeError> {
    A::Event::TYPES.iter().find(|known| known.has_name(name)).ok_or_else(|| {
        DecodeError::UnknownType { category: A::CATEGORY, event_type: name.to_owned() }
    })
}

/// Returns the stored form of an event, at the current schema.
///
/// # Errors
/// When [`events!`](crate::events) did not make the event's type: no program could read it back.
pub fn encode<A: Aggregate>(event: &A::Event) -> Result<RecordedEvent, EncodeError> {
    let EventType { name, schema, .. } = event.event_type();
    let json = |source| EncodeError::Json { what: name, source };
    // The event becomes a `Value` first, because its fields are then in alphabetical order. The
    // text of its events identifies a command that is sent again, so it must always be the same.
    let tagged = serde_json::to_value(event).map_err(json)?;
    let data = tagged.get("data").ok_or(EncodeError::WithoutData(name))?;
    let data = serde_json::to_string(data).map_err(json)?;
    Ok(RecordedEvent { event_type: (*name).to_owned(), schema: *schema, data })
}

/// Reads a stored event of any schema up to the current one.
///
/// # Errors
/// When the type or schema is unknown, because a newer program wrote the log. Also when the data
/// does not have the shape of its schema.
pub fn decode<A: Aggregate>(recorded: &RecordedEvent) -> Result<A::Event, DecodeError> {
    let RecordedEvent { event_type: name, schema, data } = recorded;
    let known = event_type::<A>(name)?;
    if *schema == 0 || *schema > known.schema {
        return Err(DecodeError::UnknownSchema {
            event_type: name.clone(),
            schema: *schema,
            newest: known.schema,
        });
    }
    let malformed =
        |parser| DecodeError::Malformed { event_type: name.clone(), schema: *schema, parser };
    let upcasters = &known.upcasters[*schema as usize - 1..];
    if upcasters.is_empty() {
        return read(known.name, data).map_err(malformed);
    }
    let stored: Value = serde_json::from_str(data).map_err(malformed)?;
    A::Event::read(known.name, upcasters.iter().fold(stored, |data, upcast| upcast(data)))
        .map_err(malformed)
}

/// Reads the data of an event directly from its text, without a `Value`: a fold of a long stream
/// spends much of its time here.
fn read<E: EventTypes>(name: &str, data: &str) -> Result<E, serde_json::Error> {
    let mut data = serde_json::Deserializer::from_str(data);
    let event = E::read(name, &mut data)?;
    data.end()?;
    Ok(event)
}

/// Returns the stored form of a state.
pub fn encode_state<A: Aggregate>(state: &A::State) -> Result<RecordedState, EncodeError> {
    let data = serde_json::to_string(state)
        .map_err(|source| EncodeError::Json { what: A::CATEGORY, source })?;
    if !data.starts_with('{') {
        return Err(EncodeError::NoObject(A::CATEGORY));
    }
    Ok(RecordedState { schema: A::STATE_SCHEMA, data })
}

/// Reads a stored state, or returns `None` when it has another schema, or cannot be read. The
/// caller then folds the events instead (rule 5). A state of an older schema is read if the
/// aggregate upcasts it.
pub fn decode_state<A: Aggregate>(recorded: &RecordedState) -> Option<A::State> {
    if recorded.schema == A::STATE_SCHEMA {
        return serde_json::from_str(&recorded.data).ok();
    }
    let data = serde_json::from_str(&recorded.data).ok()?;
    serde_json::from_value(upcast::<A>(recorded.schema, data)?).ok()
}

/// Returns the data of a state of an older schema in the shape of the current schema; `None` if the
/// aggregate cannot upcast it.
pub fn upcast<A: Aggregate>(schema: u32, data: Value) -> Option<Value> {
    if schema < A::STATE_SCHEMA { A::upcast_state(schema, data) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Causes, ChangesError, LoadError, testing::tank::Tank};

    /// `decode` reads the data alone. It gives the same event as serde gives for `type` and `data`.
    #[test]
    fn decoding_the_data_alone_gives_the_same_event_as_serde() {
        for (name, data) in [
            ("TankFilled", r#"{"amount":1,"level":2,"on":"2026-11-22"}"#),
            (
                "TankFilled",
                r#"{"amount":1,"level":2,"note":"A \u00e9","on":"2026-11-22","later":[1,{}]}"#,
            ),
            ("TankFilled", r#"{"amount":1,"on":"2026-11-22"}"#),
            ("TankFilled", r#"{"amount":1.5,"level":2,"on":"2026-11-22"}"#),
            ("TankScrapped", r#"{"on":"2026-11-22"}"#),
            ("TankScrapped", r#"{"on":"2026-11-22"} {}"#),
            ("TankScrapped", r#"{"on":"2026-11-22""#),
            ("TankScrapped", "null"),
        ] {
            let stored = RecordedEvent { event_type: name.into(), schema: 1, data: data.into() };
            let tagged = format!(r#"{{"type":"{name}","data":{data}}}"#);
            assert_eq!(decode::<Tank>(&stored).ok(), serde_json::from_str(&tagged).ok(), "{data}");
        }
    }

    #[test]
    fn a_renamed_event_is_read_under_all_its_names_and_written_under_the_new_one() {
        events! {
            /// The events.
            #[allow(unreachable_pub, reason = "the macro makes public types")]
            #[derive(Eq)]
            pub enum Event {
                /// The type got its second shape and its second name together.
                Moved: 2 [further] (or Shifted, Slid) { by: i64 },
                Ended: 1 {},
            }
        }
        fn further(data: Value) -> Value {
            with_field(data, "by", 1)
        }
        let read = |name: &str, schema, data: &str| {
            let known = Event::TYPES.iter().find(|known| known.has_name(name))?;
            let upcasters = &known.upcasters[schema as usize - 1..];
            let data = upcasters
                .iter()
                .fold(serde_json::from_str(data).unwrap(), |data, upcast| upcast(data));
            Event::read(known.name, data).ok()
        };
        for (name, schema, data, by) in [
            ("Moved", 2, r#"{"by":3}"#, Some(3)),
            ("Shifted", 2, r#"{"by":3}"#, Some(3)),
            ("Slid", 1, "{}", Some(1)),
            ("Ran", 2, r#"{"by":3}"#, None),
        ] {
            assert_eq!(read(name, schema, data), by.map(|by| Event::Moved { by }), "{name}");
        }
        assert_eq!(Event::Moved { by: 1 }.event_type().name, "Moved");
        assert_eq!(Event::Ended {}.event_type().names().collect::<Vec<_>>(), ["Ended"]);
    }

    /// Rule 14: code that logs an error also logs its causes.
    #[test]
    fn rule_14_neither_an_error_nor_its_causes_quote_the_payload() {
        for data in [
            r#"{"amount":"secret!"}"#,
            r#""secret!""#,
            r#"{"amount":1,"level":"secret!","on":"2026-11-22"}"#,
        ] {
            let stored =
                RecordedEvent { event_type: "TankFilled".into(), schema: 1, data: data.into() };
            let malformed = || decode::<Tank>(&stored).unwrap_err();
            let load = LoadError::Decode {
                stream: Tank::stream("1").unwrap(),
                version: 1,
                source: malformed(),
            };
            for error in [
                Causes(&malformed()).to_string(),
                Causes(&ChangesError::from(malformed())).to_string(),
                Causes(&load).to_string(),
            ] {
                assert!(error.contains("TankFilled") && !error.contains("secret!"), "{error}");
            }
        }
    }
}
