//! The tests of the functions together, in one binary: cargo runs test binaries one after another,
//! and most of these wait for a stack.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

#[path = "../accounts/mod.rs"]
mod accounts;
mod article;
mod bookings;
mod commands;
mod projectors;
mod queries;
mod sessions;
mod settlement;
mod transfer;
