//! The event store: streams of commits with versions, the port that a database implements, an in-memory store, and
//! [`execute`], which loads, decides, appends and repairs.

mod cache;
mod commit;
mod execute;
mod load;
mod memory;
mod states;
mod store;
mod stream;

pub mod contract;

pub use cache::Cache;
pub use commit::{Commit, Meta};
pub use execute::{CONFLICTS, ExecuteError, Execution, Ledger, Outcome, Precondition, RETRIES, execute};
pub use load::{History, LoadError, Loaded, history, load};
pub use memory::MemoryStore;
pub use states::states;
pub use store::{AppendError, Consistency, EventStore, Page, Range, Request, StoreError, append_all_once};
pub use stream::{InvalidStreamId, StreamId};
