//! The engine of views, and of everything else that applies commits: state views, log views, views
//! of all streams in one order, and their rebuilds.

mod apply_error;
pub(crate) mod bus_consumer;
mod gap_repair;
pub(crate) mod kinesis;
pub mod log_projector;
mod publication;
pub mod queue_runner;
pub mod state_projector;
pub mod subscription;
mod view_fold;
pub mod view_rebuild;
