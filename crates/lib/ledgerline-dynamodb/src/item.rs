//! Commits and requests as items: names, encoding and size.
//!
//! The attributes are a storage format: the tests below pin it. They are read and written by hand,
//! because a fold of a long stream spends most of its time here; through serde, each map of an item
//! is built twice.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
};

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline::{
    Commit, FoldedCommit, IdempotencyRecord, Meta, RecordedEvent, RecordedState, StoreError,
    StreamId,
};
use serde::Deserialize;

use crate::{error, payload};

pub(crate) type Item = HashMap<String, AttributeValue>;
/// An item to write. The order of its fields is always the same, so that the statement that writes
/// it is the same too.
pub(crate) type Fields = Vec<(&'static str, AttributeValue)>;

pub(crate) const STREAM: &str = "stream";
pub(crate) const VERSION: &str = "version";
pub(crate) const EVENTS: &str = "events";
const TYPE: &str = "type";
const SCHEMA: &str = "schema";
const DATA: &str = "data";
pub(crate) const STATE: &str = "state";
pub(crate) const COMMAND: &str = "command";
pub(crate) const AT: &str = "at";
pub(crate) const META: &str = "meta";
/// The name of the object that has the payloads of the commit.
pub(crate) const BODY: &str = "body";
const ACTOR: &str = "actor";
const CORRELATION_ID: &str = "correlationId";
const CAUSATION_ID: &str = "causationId";
const SOURCE_ADDRESS: &str = "sourceAddress";
const TRACE_ID: &str = "traceId";

pub(crate) const REQUEST: &str = "request";
const FINGERPRINT: &str = "fingerprint";
const ANSWER: &str = "answer";
pub(crate) const EXPIRES: &str = "expires";

/// The largest item that DynamoDB stores, in bytes.
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// The error for an item or stream image that is not a commit. It does not quote the value (rule
/// 14).
#[derive(Debug, thiserror::Error)]
#[error("not a commit of this program: `{attribute}` is missing, or of the wrong type or range")]
pub struct InvalidItem {
    attribute: &'static str,
    version: Option<u64>,
}

/// A value of an item, as the SDK has it, or `serde_dynamo` in the images of stream records.
trait Attribute: Sized {
    fn text(self) -> Option<String>;
    /// Returns the JSON text of a payload in either stored form. `room` has the bytes of text that
    /// the payloads of the item may still have.
    fn payload(self, room: &mut usize) -> Option<String>;
    fn number(self) -> Option<String>;
    fn list(self) -> Option<Vec<Self>>;
    fn map(self) -> Option<HashMap<String, Self>>;
}

macro_rules! attribute {
    ($value:ty) => {
        impl Attribute for $value {
            fn text(self) -> Option<String> {
                if let Self::S(text) = self { Some(text) } else { None }
            }

            fn payload(self, room: &mut usize) -> Option<String> {
                if let Self::B(gzip) = self {
                    return payload::decompress(gzip.as_ref(), room);
                }
                self.text()
            }

            fn number(self) -> Option<String> {
                if let Self::N(number) = self { Some(number) } else { None }
            }

            fn list(self) -> Option<Vec<Self>> {
                if let Self::L(values) = self { Some(values) } else { None }
            }

            fn map(self) -> Option<HashMap<String, Self>> {
                if let Self::M(fields) = self { Some(fields) } else { None }
            }
        }
    };
}
attribute!(AttributeValue);
attribute!(serde_dynamo::AttributeValue);

/// A commit in the new image of a stream record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitImage {
    /// The commit.
    pub commit: Commit,
    /// Whether its payloads are in an object. Then they are `null` here, and it has no state.
    pub has_body: bool,
}

/// Reads a commit from the new image of a stream record.
///
/// # Errors
/// When this program did not write the image.
pub fn commit_from_image(mut image: serde_dynamo::Item) -> Result<CommitImage, InvalidItem> {
    let item = std::mem::take(image.inner_mut());
    let has_body = item.contains_key(BODY);
    Ok(CommitImage { commit: read(item, has_body.then_some("null"))?, has_body })
}

/// Reads a commit. A payload that the item lacks is `missing`.
fn read<V: Attribute>(
    item: HashMap<String, V>,
    missing: Option<&str>,
) -> Result<Commit, InvalidItem> {
    let (mut stream, mut version, mut events, mut command, mut at, mut meta) =
        (None, None, None, None, None, None);
    let mut state = None;
    let room = &mut { payload::MAX_BYTES };
    for (name, value) in item {
        match name.as_str() {
            STREAM => stream = value.text().and_then(|name| StreamId::try_from(name).ok()),
            VERSION => version = recorded_version(value),
            EVENTS => events = recorded_events(value, room, missing),
            STATE => state = Some(recorded_state(value, room)),
            COMMAND => command = value.text(),
            AT => at = value.text().and_then(|at| at.parse().ok()),
            META => meta = value.map().and_then(origin),
            _ => {}
        }
    }
    let invalid = |attribute| InvalidItem { attribute, version };
    Ok(Commit {
        stream: stream.ok_or_else(|| invalid(STREAM))?,
        version: version.ok_or_else(|| invalid(VERSION))?,
        events: events.ok_or_else(|| invalid(EVENTS))?,
        state: state.map(|state| state.ok_or_else(|| invalid(STATE))).transpose()?,
        command: command.ok_or_else(|| invalid(COMMAND))?,
        at: at.ok_or_else(|| invalid(AT))?,
        meta: meta.ok_or_else(|| invalid(META))?,
    })
}

fn number<V: Attribute, N: std::str::FromStr>(value: V) -> Option<N> {
    value.number()?.parse().ok()
}

/// Reads a version. Versions begin with 1.
fn recorded_version<V: Attribute>(value: V) -> Option<u64> {
    number(value).filter(|version| *version > 0)
}

/// Reads the events of a commit. A commit that republishes state has none.
fn recorded_events<V: Attribute>(
    value: V,
    room: &mut usize,
    missing: Option<&str>,
) -> Option<Vec<RecordedEvent>> {
    value.list()?.into_iter().map(|value| event(value, room, missing)).collect()
}

fn event<V: Attribute>(value: V, room: &mut usize, missing: Option<&str>) -> Option<RecordedEvent> {
    let (mut event_type, mut schema, mut data) = (None, None, None);
    for (name, value) in value.map()? {
        match name.as_str() {
            TYPE => event_type = value.text(),
            SCHEMA => schema = number(value),
            DATA => data = value.payload(room),
            _ => {}
        }
    }
    let data = data.or_else(|| missing.map(ToOwned::to_owned))?;
    Some(RecordedEvent { event_type: event_type?, schema: schema?, data })
}

fn recorded_state<V: Attribute>(value: V, room: &mut usize) -> Option<RecordedState> {
    let (mut schema, mut data) = (None, None);
    for (name, value) in value.map()? {
        match name.as_str() {
            SCHEMA => schema = number(value),
            DATA => data = value.payload(room),
            _ => {}
        }
    }
    Some(RecordedState { schema: schema?, data: data? })
}

fn origin<V: Attribute>(fields: HashMap<String, V>) -> Option<Meta> {
    let mut meta = Meta::default();
    for (name, value) in fields {
        let field = match name.as_str() {
            ACTOR => &mut meta.actor,
            CORRELATION_ID => &mut meta.correlation_id,
            CAUSATION_ID => &mut meta.causation_id,
            SOURCE_ADDRESS => &mut meta.source_address,
            TRACE_ID => &mut meta.trace_id,
            _ => continue,
        };
        *field = Some(value.text()?);
    }
    Some(meta)
}

/// Reads the version and the state of a snapshot.
pub(crate) fn snapshot(mut item: Item) -> Option<(u64, RecordedState)> {
    let state = recorded_state(item.remove(STATE)?, &mut { payload::MAX_BYTES })?;
    Some((recorded_version(item.remove(VERSION)?)?, state))
}

/// Returns the stream and the version of an item.
pub(crate) fn keys(item: &Item) -> Option<(StreamId, u64)> {
    let stream = StreamId::try_from(item.get(STREAM)?.as_s().ok()?.clone()).ok()?;
    Some((stream, version(item)?))
}

pub(crate) fn version(item: &Item) -> Option<u64> {
    item.get(VERSION)?.as_n().ok()?.parse().ok()
}

/// Reads a commit of this stream.
pub(crate) fn commit(stream: &StreamId, item: Item) -> Result<Commit, StoreError> {
    read(item, None).map_err(|error| corrupt(stream, &error))
}

fn corrupt(stream: &StreamId, error: &InvalidItem) -> StoreError {
    StoreError::Corrupt {
        stream: stream.to_string(),
        version: error.version.unwrap_or_default(),
        reason: error.to_string(),
    }
}

/// Reads the fields that a fold needs of a commit of this stream, from an item that may have only
/// these.
pub(crate) fn step(stream: &StreamId, item: Item) -> Result<FoldedCommit, StoreError> {
    let (mut version, mut events, mut state) = (None, None, None);
    let room = &mut { payload::MAX_BYTES };
    for (name, value) in item {
        match name.as_str() {
            VERSION => version = recorded_version(value),
            EVENTS => events = recorded_events(value, room, None),
            STATE => state = Some(recorded_state(value, room)),
            _ => {}
        }
    }
    let invalid = |attribute| corrupt(stream, &InvalidItem { attribute, version });
    Ok(FoldedCommit {
        version: version.ok_or_else(|| invalid(VERSION))?,
        events: events.ok_or_else(|| invalid(EVENTS))?,
        state: state.map(|state| state.ok_or_else(|| invalid(STATE))).transpose()?,
    })
}

fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn map<const N: usize>(fields: [(&str, AttributeValue); N]) -> AttributeValue {
    AttributeValue::M(fields.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Returns the fields of `meta`, by their stored names.
fn meta_fields(meta: &Meta) -> [(&'static str, &Option<String>); 5] {
    let Meta { actor, correlation_id, causation_id, source_address, trace_id } = meta;
    [
        (ACTOR, actor),
        (CORRELATION_ID, correlation_id),
        (CAUSATION_ID, causation_id),
        (SOURCE_ADDRESS, source_address),
        (TRACE_ID, trace_id),
    ]
}

/// Returns the item of a commit. Payloads with more bytes than `compress_over` are compressed.
pub(crate) fn commit_to_item(commit: &Commit, compress_over: usize) -> Fields {
    let mut item = fields(commit, |RecordedEvent { event_type, schema, data }| {
        map([
            (TYPE, text(event_type)),
            (SCHEMA, AttributeValue::N(schema.to_string())),
            (DATA, payload::to_attribute(data, compress_over)),
        ])
    });
    let state = commit.state.as_ref();
    item.extend(state.map(|state| (STATE, state_to_attribute(state, compress_over))));
    item
}

/// Returns the item of a commit whose payloads are in the object with this name.
pub(crate) fn item_with_body(commit: &Commit, body: String) -> Fields {
    let mut item = fields(commit, |RecordedEvent { event_type, schema, .. }| {
        map([(TYPE, text(event_type)), (SCHEMA, AttributeValue::N(schema.to_string()))])
    });
    item.push((BODY, text(body)));
    item
}

fn fields(commit: &Commit, event: impl Fn(&RecordedEvent) -> AttributeValue) -> Fields {
    let meta = meta_fields(&commit.meta).into_iter();
    let meta = meta.filter_map(|(name, value)| Some((name.to_owned(), text(value.as_ref()?))));
    vec![
        (STREAM, text(commit.stream.as_str())),
        (VERSION, AttributeValue::N(commit.version.to_string())),
        (EVENTS, AttributeValue::L(commit.events.iter().map(event).collect())),
        (COMMAND, text(&commit.command)),
        (AT, text(commit.at.to_string())),
        (META, AttributeValue::M(meta.collect())),
    ]
}

pub(crate) fn state_to_attribute(
    RecordedState { schema, data }: &RecordedState,
    compress_over: usize,
) -> AttributeValue {
    let data = payload::to_attribute(data, compress_over);
    map([(SCHEMA, AttributeValue::N(schema.to_string())), (DATA, data)])
}

pub(crate) fn request_to_item(request: &IdempotencyRecord) -> Fields {
    vec![
        (REQUEST, text(&request.key)),
        (FINGERPRINT, text(&request.fingerprint)),
        (ANSWER, text(&request.answer)),
        (EXPIRES, AttributeValue::N(request.expires.to_string())),
    ]
}

pub(crate) fn request(item: Item) -> Result<IdempotencyRecord, StoreError> {
    #[derive(Deserialize)]
    struct Stored {
        request: String,
        fingerprint: String,
        answer: String,
        expires: i64,
    }
    let stored: Stored = serde_dynamo::from_item(item).map_err(|error| {
        StoreError::Unavailable(
            format!("an idempotency record cannot be read: {}", error::without_values(&error))
                .into(),
        )
    })?;
    let Stored { request: key, fingerprint, answer, expires } = stored;
    Ok(IdempotencyRecord { key, fingerprint, answer, expires })
}

/// Returns the size of an item as DynamoDB counts it against the limit and the write units, in
/// bytes. It counts names and values in UTF-8, and about half a byte for each digit. A list or map
/// counts 3 bytes, and each of its elements 1.
///
/// Source: the developer guide, "DynamoDB item sizes and formats".
pub(crate) fn bytes<'a>(fields: impl IntoIterator<Item = (&'a str, &'a AttributeValue)>) -> usize {
    fields.into_iter().map(|(name, value)| name.len() + value_bytes(value)).sum()
}

/// Returns the size of a commit's item, without making the item: each command measures its commit
/// twice.
pub(crate) fn commit_bytes(commit: &Commit, compress_over: usize) -> usize {
    let payload = |json: &str| payload::stored_bytes(json, compress_over);
    let number =
        |number: u64| (number.checked_ilog10().unwrap_or_default() as usize + 1).div_ceil(2) + 1;
    let field = |name: &str, bytes: usize| 1 + name.len() + bytes;
    let Commit { stream, version, events, state, command, at, meta } = commit;
    let event = |RecordedEvent { event_type, schema, data }: &RecordedEvent| {
        let fields =
            [(TYPE, event_type.len()), (SCHEMA, number((*schema).into())), (DATA, payload(data))];
        4 + fields.map(|(name, bytes)| field(name, bytes)).iter().sum::<usize>()
    };
    let state = state.as_ref().map_or(0, |RecordedState { schema, data }| {
        STATE.len() + 3 + field(SCHEMA, number((*schema).into())) + field(DATA, payload(data))
    });
    let meta = meta_fields(meta)
        .map(|(name, value)| value.as_ref().map_or(0, |value| field(name, value.len())));
    let mut time = Length(0);
    // This writer has no errors.
    let _ = write!(time, "{at}");
    let names = [STREAM, VERSION, EVENTS, COMMAND, AT, META].map(str::len).iter().sum::<usize>();
    let values = stream.as_str().len() + number(*version) + command.len() + time.0;
    let events = 3 + events.iter().map(event).sum::<usize>();
    names + values + events + state + 3 + meta.iter().sum::<usize>()
}

/// A writer that counts the length of its text.
struct Length(usize);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Returns the size of an item to write.
pub(crate) fn bytes_of(item: &Fields) -> usize {
    bytes(item.iter().map(|(name, value)| (*name, value)))
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
        AttributeValue::L(values) => {
            3 + values.iter().map(|value| 1 + value_bytes(value)).sum::<usize>()
        }
        AttributeValue::M(map) => {
            3 + map.iter().map(|(name, value)| 1 + name.len() + value_bytes(value)).sum::<usize>()
        }
        AttributeValue::Ss(values) => values.iter().map(String::len).sum(),
        AttributeValue::Ns(values) => {
            values.iter().map(|number| number.len().div_ceil(2) + 1).sum()
        }
        AttributeValue::Bs(values) => values.iter().map(|blob| blob.as_ref().len()).sum(),
        // A value of an unknown type counts as too large, so that its size is never too small.
        _ => MAX_ITEM_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
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

    fn item(commit: &Commit) -> Item {
        commit_to_item(commit, usize::MAX)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// The item is the storage format. A change that fails this test makes every stored commit
    /// unreadable.
    #[test]
    fn the_attributes_of_a_commit_are_these() {
        let item: serde_json::Value = serde_dynamo::from_item(item(&full())).unwrap();
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

    fn any_commit() -> impl Strategy<Value = Commit> {
        // Numbers of every length, because one more digit may be one more byte.
        let schema = || prop_oneof![1..1_000_u32, any::<u32>()];
        let version = prop_oneof![1..2_000_u64, 1..=u64::MAX];
        let event = (".{0,9}", schema(), ".{0,40}")
            .prop_map(|(event_type, schema, data)| RecordedEvent { event_type, schema, data });
        let state = (schema(), ".{0,40}").prop_map(|(schema, data)| RecordedState { schema, data });
        let text = || proptest::option::of(".{0,20}");
        let meta = (text(), text(), text(), text(), text()).prop_map(
            |(actor, correlation_id, causation_id, source_address, trace_id)| Meta {
                actor,
                correlation_id,
                causation_id,
                source_address,
                trace_id,
            },
        );
        let at = (-62_000_000_000..253_000_000_000_i64, 0..1_000_000_000_i32)
            .prop_map(|(second, nanosecond)| jiff::Timestamp::new(second, nanosecond).unwrap());
        let name = ("[a-z]{1,9}", "[A-Za-z0-9]{1,9}")
            .prop_map(|(category, id)| StreamId::new(&category, &id).unwrap());
        let events = proptest::collection::vec(event, 0..4);
        let fields = (name, version, events, proptest::option::of(state), ".{0,20}", at, meta);
        fields.prop_map(|(stream, version, events, state, command, at, meta)| Commit {
            stream,
            version,
            events,
            state,
            command,
            at,
            meta,
        })
    }

    proptest! {
        /// The queues have commits in serde's form. With one form, an operator reads both alike.
        #[test]
        fn a_commit_is_stored_and_read_as_serde_has_it(commit in any_commit()) {
            let item = item(&commit);
            prop_assert_eq!(&item, &serde_dynamo::to_item::<_, Item>(&commit).unwrap());
            prop_assert_eq!(commit_from_image(item.into()).unwrap().commit, commit);
        }

        #[test]
        fn an_image_with_a_body_has_all_but_payloads_and_state(commit in any_commit()) {
            let (name, _) = crate::body_object::encode(std::slice::from_ref(&commit)).unwrap();
            let fields = item_with_body(&commit, name.to_string()).into_iter();
            let item: Item = fields.map(|(name, value)| (name.to_owned(), value)).collect();
            prop_assert!(super::commit(&commit.stream, item.clone()).is_err() || commit.events.is_empty());
            let mut expected = Commit { state: None, ..commit };
            expected.events.iter_mut().for_each(|event| event.data = "null".to_owned());
            let image = commit_from_image(item.into()).unwrap();
            prop_assert_eq!(image, CommitImage { commit: expected, has_body: true });
        }

        #[test]
        fn a_commit_is_read_from_text_and_from_gzip(commit in any_commit(), compress_over in prop_oneof![0..40_usize, Just(usize::MAX)]) {
            let fields = commit_to_item(&commit, compress_over);
            prop_assert_eq!(commit_bytes(&commit, compress_over), bytes_of(&fields));
            let item: Item =
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            prop_assert_eq!(&commit_from_image(item.clone().into()).unwrap().commit, &commit);
            prop_assert_eq!(&super::commit(&commit.stream, item.clone()).unwrap(), &commit);
            prop_assert_eq!(step(&commit.stream, item).unwrap(), FoldedCommit::from(commit));
        }
    }

    #[test]
    fn fields_of_a_later_version_are_ignored() {
        let mut item = item(&full());
        item.insert("region".into(), AttributeValue::Bool(true));
        for name in [META, STATE] {
            let Some(AttributeValue::M(fields)) = item.get_mut(name) else { panic!("{name}") };
            fields.insert("region".into(), AttributeValue::Bool(true));
        }
        assert_eq!(commit(&full().stream, item).unwrap(), full());
    }

    /// A load must not treat a damaged commit as a missing one: the balance would be wrong.
    #[test]
    fn a_damaged_step_is_refused_by_name_and_without_its_values() {
        let secret = || AttributeValue::S("secret!".into());
        let some = |value: AttributeValue| AttributeValue::L(vec![value]);
        let event = || map([(TYPE, text("TankFilled")), (SCHEMA, AttributeValue::N("1".into()))]);
        for (name, value, version) in [
            (VERSION, None, 0),
            (VERSION, Some(secret()), 0),
            (VERSION, Some(AttributeValue::N("0".into())), 0),
            (EVENTS, None, full().version),
            (EVENTS, Some(secret()), full().version),
            (EVENTS, Some(some(secret())), full().version),
            (EVENTS, Some(some(event())), full().version),
            (STATE, Some(secret()), full().version),
            (STATE, Some(map([(DATA, secret())])), full().version),
        ] {
            let mut item = item(&full());
            item.remove(name);
            item.extend(value.map(|value| (name.to_owned(), value)));
            let error = step(&full().stream, item).unwrap_err();
            let StoreError::Corrupt { stream, version: named, reason } = error else {
                panic!("{error}")
            };
            assert_eq!((stream.as_str(), named), (full().stream.as_str(), version), "{name}");
            assert!(
                reason.contains(&format!("`{name}`")) && !reason.contains("secret!"),
                "{reason}"
            );
        }
    }

    #[test]
    fn a_damaged_image_is_refused_by_name_and_without_its_values() {
        let damaged = |name: &str, value: Option<AttributeValue>| {
            let mut item = item(&full());
            item.remove(name);
            item.extend(value.map(|value| (name.to_owned(), value)));
            commit_from_image(item.into()).unwrap_err().to_string()
        };
        for name in [STREAM, VERSION, EVENTS, COMMAND, AT, META] {
            assert!(damaged(name, None).contains(&format!("`{name}`")));
        }
        assert!(damaged(VERSION, Some(AttributeValue::N("0".into()))).contains("`version`"));
        assert!(
            damaged(EVENTS, Some(AttributeValue::L(vec![AttributeValue::Bool(true)])))
                .contains("`events`")
        );
        assert!(damaged(META, Some(map([(ACTOR, AttributeValue::Bool(true))]))).contains("`meta`"));
        for name in [STREAM, VERSION, EVENTS, STATE, AT, META] {
            let message = damaged(name, Some(AttributeValue::S("secret!".into())));
            assert!(
                message.contains(&format!("`{name}`")) && !message.contains("secret!"),
                "{message}"
            );
        }
    }
}
