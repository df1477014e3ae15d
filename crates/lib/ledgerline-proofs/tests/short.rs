//! The short form of every proof. `cargo run --profile fast -p ledgerline-proofs` is the long one.

fn short(number: u8) {
    ledgerline_proofs::test(number, &ledgerline_proofs::tanks());
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
