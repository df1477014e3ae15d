#![doc = include_str!("../README.md")]

pub mod commands;
mod commit_list;
pub mod config;
pub mod events;
pub mod fanout;
mod function_url;
mod grants;
pub mod handlers;
pub mod http;
pub mod metrics;
mod operations;
mod operators;
pub mod process_manager;
mod projection;
pub mod queries;
mod rate_limit;
pub mod reconciler;
pub mod sequencer;
mod snapshot_warmup;
mod start;
pub mod stream;
pub mod wire;

pub use lambda_runtime::LambdaEvent;
use projection::bus;
pub use projection::{
    log as log_projector, ordered as subscription, queue, rebuild, state as state_projector,
};
pub use start::{Handle, dynamodb, retries, sdk_config, start, store, timeouts};

/// The error of a function that cannot start, or of an event that it cannot handle.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The examples in the pages about views, queries, process managers and value objects.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../../docs/reference/process-manager.md")]
    struct ProcessManager;
    #[doc = include_str!("../../../../docs/reference/query.md")]
    struct Query;
    #[doc = include_str!("../../../../docs/reference/value-object.md")]
    struct ValueObject;
    #[doc = include_str!("../../../../docs/reference/view.md")]
    struct View;
}
