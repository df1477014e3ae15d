//! The short form of every proof. `cargo run --profile fast -p ledgerline-proofs` is the long one.

/// Defines a test for each proof, by its number.
macro_rules! short {
    ($($number:literal $name:ident)*) => {$(
        #[test]
        fn $name() {
            ledgerline_proofs::test($number, &ledgerline_proofs::tanks());
        }
    )*};
}

short! {
    1 concurrent_histories_are_linearizable
    2 the_check_of_histories_finds_planted_bugs
    3 whatever_the_delivery_rows_are_the_fold
    4 a_crash_after_any_call_loses_and_doubles_nothing
    5 any_of_ten_entries_may_fail
    6 the_model_of_the_pipeline_has_no_wrong_state
    7 bad_input_stops_nothing
    8 two_versions_at_once_leave_the_rows_of_one
    9 the_order_of_all_commits_is_final
    10 a_subscription_applies_each_commit_once
    11 a_view_is_rebuilt_while_it_is_written
}
