#![doc = include_str!("../README.md")]

pub mod body_store;
pub mod commands;
mod commit_list;
pub mod config;
pub mod events;
mod failure;
pub mod fanout;
mod function_url;
pub mod handlers;
pub mod http;
pub mod messages;
pub mod metrics;
mod operators;
pub mod process_manager;
mod projection;
pub mod queries;
mod rate_limit;
pub mod reconciler;
mod route_descriptions;
pub mod sequencer;
pub mod sign_up;
pub mod signed_requests;
mod snapshot_warmup;
mod start;
pub mod stream_records;
mod table_grants;

pub use self::{
    failure::Error,
    projection::{
        log_projector, queue_runner as queue, state_projector, subscription,
        view_rebuild as rebuild,
    },
    start::{dynamodb, retries, sdk_config, store, timeouts},
};

/// The examples in the pages about commands, views, queries, process managers and value objects.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../../docs/reference/command.md")]
    struct Command;
    #[doc = include_str!("../../../../docs/reference/process-manager.md")]
    struct ProcessManager;
    #[doc = include_str!("../../../../docs/reference/query.md")]
    struct Query;
    #[doc = include_str!("../../../../docs/reference/value-object.md")]
    struct ValueObject;
    #[doc = include_str!("../../../../docs/reference/view.md")]
    struct View;
}
