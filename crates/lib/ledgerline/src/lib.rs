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
pub mod position;
mod refusal;
pub mod schemas;
pub mod shapes;
pub mod spec;
mod states;
mod store;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod values;
mod view;

pub use aggregate::{Aggregate, Aggregates, Context, Visitor, categories, fold};
pub use cache::Cache;
pub use causes::Causes;
pub use changes::{Changes, ChangesError, Write};
pub use codec::{
    DecodeError, EncodeError, EventType, EventTypes, RecordedEvent, RecordedState, decode,
    decode_state, encode, encode_state, upcast, with_field,
};
pub use commit::{Commit, Meta};
pub use execute::{
    CONFLICTS, ExecuteError, Execution, Host, Idempotency, Outcome, Pause, Precondition, RETRIES,
    STATE_REPUBLISHED, UNKNOWN_STREAM, execute,
};
pub use load::{History, LoadError, Loaded, history, load};
pub use memory::MemoryStore;
pub use refusal::{Refusal, RefusalKind};
pub use states::states;
pub use store::{
    AppendError, Consistency, EventLog, EventStore, FoldedCommit, IdempotencyRecord,
    IdempotencyStore, Page, Range, SnapshotStore, StoreError, append_all_once,
};
pub use stream::{InvalidStreamId, StreamId};
pub use values::{Id, Invalid, LongText, Number, Text, ValueObject};
pub use view::{
    ChangesOf, Index, LogTable, LogView, OrderedChanges, OrderedView, Projection, RowOf,
    StateTable, StateView,
};
