//! The local stack. It reads `template.yaml`, starts the emulated services in its own process, and runs the Lambda
//! binaries that SAM ships behind the Lambda Runtime API. What is ours here is the Lambda side; the services are
//! borrowed.

pub mod build;
mod callers;
mod cli;
mod dynamodb;
mod gateway;
mod hops;
pub mod host;
mod http_api;
mod mailbox;
mod pattern;
pub mod samples;
pub mod services;
mod sources;
pub mod stack;
mod stream_records;
pub mod template;
pub mod testing;
mod watch;
mod yaml;

pub use cli::main;
