#![doc = include_str!("../README.md")]

mod ahead;
mod callers;
pub mod commands;
pub mod config;
pub mod events;
pub mod fanout;
pub mod fifo;
mod function_url;
mod grants;
pub mod handlers;
pub mod http;
mod line;
pub mod log_projector;
pub mod metrics;
mod operators;
pub mod process_manager;
pub mod queries;
pub mod rebuild;
pub mod reconciler;
pub mod sequencer;
mod start;
pub mod state_projector;
pub mod stream;
pub mod subscription;
pub mod wire;

pub use lambda_runtime::LambdaEvent;
pub use start::{Handle, dynamodb, retries, sdk_config, start, store, timeouts};

/// The error of a function that cannot start, or of an event that it cannot handle.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
