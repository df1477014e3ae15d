//! The tests that every store must pass, one function each, so that the name of a failed test
//! describes the fault. Each port has a module.
//!
//! A crate that implements the ports of an event store runs all tests with
//! [`contract_tests!`](crate::contract_tests). A store of views has
//! [`log_row_store_tests!`](crate::log_row_store_tests) and
//! [`state_row_store_tests!`](crate::state_row_store_tests).

#![expect(clippy::missing_panics_doc, clippy::unwrap_used, reason = "these are tests")]

mod event_log;
mod idempotency_store;
pub mod log_row_store;
mod snapshot_store;
pub mod state_row_store;

use crate::{
    Commit, Consistency, EventLog, EventStore, IdempotencyRecord, Meta, Range, RecordedEvent,
    StreamId,
};

/// Writes one `#[tokio::test]` for each test of the contract. The argument makes an empty store.
#[macro_export]
macro_rules! contract_tests {
    ($make:expr) => {
        $crate::contract_tests!(@list write $make);
    };
    (@list $then:ident $($arguments:tt)*) => {
        $crate::contract_tests!(@$then [$($arguments)*]
            event_log:
                an_unknown_stream_is_empty
                what_was_appended_is_read_as_it_was_written
                a_taken_version_is_refused_and_what_took_it_stays
                pages_cover_the_stream_newest_first_without_holes
                a_range_bounds_what_is_read
                forward_pages_cover_a_range_oldest_first_without_holes
                a_page_for_a_fold_has_what_the_commits_of_the_page_have
                a_stream_of_more_than_a_megabyte_is_read_whole
                streams_do_not_see_each_other
                of_concurrent_appends_at_one_version_exactly_one_wins
                commits_of_several_streams_are_stored_all_or_none
                of_concurrent_transactions_over_the_same_streams_exactly_one_wins
                the_same_transaction_twice_is_one;
            snapshot_store:
                a_snapshot_is_found_by_its_schema_until_a_newer_one_replaces_it;
            idempotency_store:
                a_commit_and_its_idempotency_record_are_stored_both_or_none
                a_recorded_response_never_changes;
        );
    };
    (@write [$make:expr] $($port:ident: $($name:ident)*;)*) => {
        $($(#[tokio::test]
        async fn $name() {
            let store = $make.await;
            $crate::contract::check(stringify!($name), &store).await;
        })*)*
    };
    (@each [$make:expr] $port:ident: $($name:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            let store = $make.await;
            $crate::contract::$port::$name(&store).await;
        })*
    };
    (@call [$test:ident $store:ident] $($port:ident: $($name:ident)*;)*) => {
        match $test {
            $($(stringify!($name) => $port::$name($store).await,)*)*
            _ => panic!("the contract has no test `{}`", $test),
        }
    };
}

/// Runs one test of the contract on an empty store.
pub async fn check(test: &str, store: &impl EventStore) {
    contract_tests!(@list call test store);
}

fn stream(id: &str) -> StreamId {
    StreamId::new("contract", id).unwrap()
}

/// Returns a commit with this version and nothing special in it.
pub fn commit(stream: &StreamId, version: u64) -> Commit {
    Commit {
        stream: stream.clone(),
        version,
        events: vec![RecordedEvent {
            event_type: "Happened".into(),
            schema: 1,
            data: format!(r#"{{"n":{version}}}"#),
        }],
        state: None,
        command: format!("command-{version}"),
        at: "2026-11-21T09:30:00.123456789Z".parse().unwrap(),
        meta: Meta::default(),
    }
}

fn request(key: &str, answer: &str) -> IdempotencyRecord {
    IdempotencyRecord {
        key: key.into(),
        fingerprint: "f".into(),
        answer: answer.into(),
        expires: 100,
    }
}

const ALL: Range = Range { after: 0, up_to: u64::MAX, limit: None };

/// Reads a range to its end, page by page, oldest first.
pub(crate) async fn read_all(
    store: &impl EventLog,
    stream: &StreamId,
    mut range: Range,
) -> Vec<Commit> {
    let mut commits = Vec::new();
    loop {
        let page = store.read(stream, range, Consistency::Strong).await.unwrap();
        commits.extend(page.commits);
        if page.complete {
            commits.reverse();
            return commits;
        }
        range.up_to = commits.last().unwrap().version - 1;
    }
}
