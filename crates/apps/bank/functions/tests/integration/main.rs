//! The tests of the functions in one binary. Cargo runs test binaries one after another, and most
//! of these tests wait for a stack, so one binary saves time.

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
mod cors;
mod projectors;
mod queries;
mod sessions;
mod settlement;
mod transfer;
