//! Event sourcing, pure: aggregates and how their events and states are stored; streams of commits with versions, the
//! port that a database implements, a store in memory, and [`execute`], which loads, decides, appends and repairs; and
//! what changes in a view, with the guards that keep it right when events come twice, late or not at all.
//!
//! Nothing here knows AWS, a clock or randomness (rule 12), and nothing here knows an application.

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
