#![doc = include_str!("../README.md")]

pub mod build;
mod callers;
mod cli;
mod dynamodb;
mod gateway;
mod hops;
pub mod host;
mod http_api;
pub mod iam;
mod loops;
mod mailbox;
mod operations;
mod outages;
mod pattern;
pub mod permissions;
pub mod samples;
pub mod services;
mod sources;
pub mod stack;
mod stream_records;
pub mod template;
pub mod testing;
mod watch;
pub mod wiring;
mod yaml;

pub use cli::main;
