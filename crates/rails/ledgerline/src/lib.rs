#![doc = include_str!("../README.md")]

mod aggregate;
mod cache;
pub mod changes;
mod codec;
mod commit;
pub mod contract;
mod execute;
pub mod guard;
mod load;
mod memory;
pub mod spec;
mod states;
mod store;
mod stream;
mod table;
pub mod tank;

pub use aggregate::{Aggregate, Aggregates, Context, Rejection, RejectionKind, Visitor, fold};
pub use cache::Cache;
pub use changes::Changes;
pub use codec::{
    DecodeError, EventType, RecordedEvent, RecordedState, decode, decode_state, encode, encode_state,
};
pub use commit::{Commit, Meta};
pub use execute::{CONFLICTS, ExecuteError, Execution, Ledger, Outcome, Precondition, RETRIES, execute};
pub use load::{History, LoadError, Loaded, history, load};
pub use memory::MemoryStore;
pub use states::states;
pub use store::{AppendError, Consistency, EventStore, Page, Range, Request, StoreError, append_all_once};
pub use stream::{InvalidStreamId, StreamId};
pub use table::{LogTable, StateTable};
