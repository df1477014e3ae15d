//! The unit of storage: all events of one command (rule 1).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{RecordedEvent, RecordedState, StreamId};

/// All events of one command, stored as one item (rule 1). Immutable once appended (rule 3).
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Commit {
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// Its number in the stream: 1, 2, 3 … without holes (rule 2).
    pub version: u64,
    /// The events, in the order in which they happened.
    pub events: Vec<RecordedEvent>,
    /// The aggregate's state after this commit, when the snapshot policy embedded it: a cache (rule
    /// 5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RecordedState>,
    /// The id of the command that caused it. It makes the append idempotent (rule 4).
    pub command: String,
    /// The time of the decision, in UTC. It is information only: `version` determines the order.
    pub at: Timestamp,
    /// The origin of the commit.
    pub meta: Meta,
}

impl Commit {
    /// Returns a sort key for a row of this commit: the version and a place in the commit, up to
    /// 9999. The keys, as texts, are in the order of the log.
    pub fn entry(&self, place: usize) -> String {
        format!("{:020}#{place:04}", self.version)
    }

    /// Returns the size of its texts and numbers, in bytes, without the database's overhead.
    pub fn bytes(&self) -> usize {
        let Self { stream, version: _, events, state, command, at: _, meta } = self;
        let events = events.iter().map(|event| event.event_type.len() + event.data.len());
        let state = state.as_ref().map_or(0, |state| state.data.len());
        let Meta { actor, correlation_id, causation_id, source_address, trace_id } = meta;
        let meta = [actor, correlation_id, causation_id, source_address, trace_id];
        let meta = meta.iter().map(|value| value.as_ref().map_or(0, String::len));
        let numbers = size_of::<u64>() + size_of::<Timestamp>();
        stream.as_str().len()
            + numbers
            + command.len()
            + state
            + events.sum::<usize>()
            + meta.sum::<usize>()
    }
}

/// The origin of a commit: for audits and for following a request through the system.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// The caller's subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The id that all commits share which one request from outside caused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The direct cause of this commit: a request, or the commit that a process manager reacted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    /// The caller's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_address: Option<String>,
    /// The trace that the request belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}
