#![doc = include_str!("../README.md")]

mod aggregate;
pub mod all;
pub mod api;
mod cache;
mod causes;
pub mod changes;
mod codec;
mod commit;
pub mod contract;
mod execute;
mod load;
pub mod manifest;
mod memory;
mod ports;
pub mod position;
mod refusal;
pub mod schemas;
pub mod shapes;
pub mod spec;
mod states;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod url_text;
pub mod values;
mod view;
pub mod view_store;

pub(crate) use self::execute::Pause;
pub use self::{
    aggregate::{Aggregate, Aggregates, Context, Visitor, categories, fold},
    cache::Cache,
    causes::Causes,
    changes::{Changes, ChangesError, Write},
    codec::{
        DecodeError, EncodeError, EventType, EventTypes, RecordedEvent, RecordedState, decode,
        decode_state, encode, encode_state, upcast, with_field,
    },
    commit::{Commit, Meta},
    execute::{
        CONFLICTS, ExecuteError, Execution, Host, Idempotency, Outcome, Precondition, RETRIES,
        STATE_REPUBLISHED, UNKNOWN_STREAM, execute,
    },
    load::{History, LoadError, Loaded, history, load},
    memory::MemoryStore,
    ports::{
        AppendError, Consistency, EventLog, EventStore, FoldedCommit, IdempotencyRecord,
        IdempotencyStore, Page, Range, SnapshotStore, StoreError, append_all_once,
    },
    refusal::{Refusal, RefusalKind},
    states::states,
    stream::{InvalidStreamId, StreamId},
    values::{Id, Invalid, LongText, Number, Text, ValueObject},
    view::{Index, LogTable, LogView, OrderedView, Projection, StateTable, StateView},
};
