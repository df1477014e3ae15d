//! The tests of the functions in one binary. Cargo runs test binaries one after another, and most
//! of these tests wait for a stack, so one binary saves time.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../accounts/mod.rs"]
mod accounts;
mod article;
mod bookings;
mod cors;
mod search;
mod sessions;
mod settlement;
mod start;
mod transfer;
