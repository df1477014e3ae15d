//! The operator's tool on a local stack of the tank application. The tests are in one binary: cargo
//! runs test binaries one after another, and most of these tests wait for a stack.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "in a test a panic is the report")]

mod busy_rebuild;
mod dead_letters;
mod interruptions;
mod ledger;
mod rebuild;
mod reconcile;
mod rights;
mod runbook;
mod skip;
mod stored_forms;
mod wrong_rows;
