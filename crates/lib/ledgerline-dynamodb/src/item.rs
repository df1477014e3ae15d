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

use crate::{body_object::BodyName, error, payload};

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

/// Returns whether the new image of a stream record is a stub. A stub has only the attributes that an
/// archive keeps, and names an object with its version.
pub fn is_stub_image(image: &serde_dynamo::Item) -> bool {
    let image = image.inner();
    let version = image.get(VERSION).cloned().and_then(recorded_version);
    let name = image.get(BODY).cloned().and_then(Attribute::text);
    let kept = [STREAM, VERSION, COMMAND, AT, BODY];
    image.len() == kept.len()
        && kept.iter().all(|name| image.contains_key(*name))
        && version.zip(name).is_some_and(|(it, name)| BodyName::parse(&name, it).is_some())
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

/// Whether the item is a stub: an archive has moved the commit into an object.
pub(crate) fn is_stub(item: &Item) -> bool {
    item.contains_key(BODY) && !item.contains_key(EVENTS)
}

/// Whether the item of a commit has a field that this program does not know. A reader ignores it,
/// but an archive would lose it.
pub(crate) fn has_unknown_field(item: &Item) -> bool {
    let names = |value: &AttributeValue, known: &[&str]| {
        value.as_m().is_ok_and(|map| map.keys().any(|name| !known.contains(&name.as_str())))
    };
    let event = |event| names(event, &[TYPE, SCHEMA, DATA]);
    item.iter().any(|(name, value)| match name.as_str() {
        STREAM | VERSION | COMMAND | AT | BODY => false,
        EVENTS => value.as_l().is_ok_and(|events| events.iter().any(event)),
        STATE => names(value, &[SCHEMA, DATA]),
        META => names(value, &[ACTOR, CORRELATION_ID, CAUSATION_ID, SOURCE_ADDRESS, TRACE_ID]),
        _ => true,
    })
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
mod tests;
