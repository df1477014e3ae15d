#![doc = include_str!("../README.md")]

mod access_log;
mod aws_answer;
pub mod buckets;
mod bus_rules;
mod cli;
mod connections;
mod contract;
mod cors;
mod descriptors;
mod door;
mod dynamodb;
mod event_bus;
mod gateway;
pub mod host;
mod http_api;
pub mod iam;
mod identity;
mod limits;
pub mod mailbox;
mod operations;
mod outages;
mod output;
mod pattern;
pub mod postgres;
pub mod search;
pub mod services;
mod shard_checkpoint;
mod sign_in;
mod sources;
pub mod stack;
mod stream_records;
mod tokens;
mod trace_log;
mod watch;
mod web_app;

pub use cli::main;

/// Returns an HTTP client for the stack's own services on this machine. The client ignores the
/// proxy of the environment, because a proxy cannot reach the services and must not see the
/// requests.
///
/// # Panics
/// When the client cannot be built, which no input causes.
#[expect(clippy::expect_used, reason = "the options are constants")]
#[must_use]
pub fn http_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("the client has no options that can fail")
}
