//! The short form of every proof. `cargo run --profile fast -p ledgerline-proofs` is the long one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use ledgerline_proofs::{Effort, Finding, PROOFS, tank};

fn short(number: u8) {
    ledgerline_proofs::test(number, &tank::application());
}

#[test]
fn the_proofs_are_numbered_from_1_to_11() {
    assert!(PROOFS.iter().map(|proof| proof.number).eq(1..=11));
}

#[test]
fn one_command_repeats_a_finding() {
    let effort = Effort { seed: 7, long: false, runs: None };
    let finding = |seed| Finding { seed, story: String::new() };
    let again = |seed| PROOFS[8].again(&finding(seed), &tank::application(), &effort);
    let command = "Again: cargo run --profile fast -p ledgerline-proofs -- --only 9 --seed";
    assert_eq!(again(9), format!("{command} 9 --runs 1 --short"));
    // A finding with the first seed may be about all runs, for example that no run had a fault.
    assert_eq!(again(7), format!("{command} 7 --short"));
    let command = "cargo test -p ledgerline-proofs --test proofs moved";
    assert_eq!(
        effort.again(&finding(9), "moved"),
        format!("Again: LEDGERLINE_SEED=9 PROOFS_RUNS=1 {command}")
    );
}

#[test]
fn concurrent_histories_are_linearizable() {
    short(1);
}

#[test]
fn the_check_of_histories_finds_planted_bugs() {
    short(2);
}

#[test]
fn whatever_the_delivery_rows_are_the_fold() {
    short(3);
}

#[test]
fn a_crash_after_any_call_loses_and_doubles_nothing() {
    short(4);
}

#[test]
fn any_of_ten_entries_may_fail() {
    short(5);
}

#[test]
fn the_model_of_the_pipeline_has_no_wrong_state() {
    short(6);
}

#[test]
fn bad_input_stops_nothing() {
    short(7);
}

#[test]
fn two_versions_at_once_leave_the_rows_of_one() {
    short(8);
}

#[test]
fn the_order_of_all_commits_is_final() {
    short(9);
}

#[test]
fn a_subscription_applies_each_commit_once() {
    short(10);
}

#[test]
fn a_view_is_rebuilt_while_it_is_written() {
    short(11);
}
