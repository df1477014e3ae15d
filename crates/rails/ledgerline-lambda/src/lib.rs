//! What every function shares, so that a binary is a few lines: typed configuration, clients whose connections are
//! opened during init, JSON logs, HTTP and its problems, and the batch runners for streams, FIFO queues and the bus.

pub mod bus;
pub mod commands;
pub mod config;
pub mod fanout;
pub mod fields;
pub mod fifo;
pub mod http;
pub mod metrics;
pub mod process_manager;
pub mod queries;
mod start;
pub mod stream;
pub mod wire;

pub use start::{Handle, dynamodb, retries, sdk_config, start, store, timeouts};

/// Whatever keeps a function from starting or a batch from being done.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
