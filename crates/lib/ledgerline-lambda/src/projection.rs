//! The engine of views, and of everything else that applies commits: state views, log views, views
//! of all streams in one order, and their rebuilds.

pub(crate) mod bus;
mod error;
mod gap_repair;
pub mod log;
pub mod ordered;
pub mod queue;
pub mod rebuild;
pub mod state;
