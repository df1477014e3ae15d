//! The tests that every [`IdempotencyStore`] must pass, together with the log with which its
//! records are written.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use super::{commit, request, stream};
use crate::{AppendError, EventLog, IdempotencyStore};

/// A request is written in one transaction with its commit: neither can exist without the other.
pub(super) async fn a_commit_and_its_idempotency_record_are_stored_both_or_none(
    store: &(impl EventLog + IdempotencyStore),
) {
    let stream = stream("both");
    store.append(&commit(&stream, 1), Some(&request("k1", "one"))).await.unwrap();
    assert_eq!(store.find_response("k1").await.unwrap().unwrap().answer, "one");

    // The version is taken: the request must not appear.
    let refused = store.append(&commit(&stream, 1), Some(&request("k2", "two"))).await;
    assert!(matches!(refused, Err(AppendError::VersionTaken)));
    assert_eq!(store.find_response("k2").await.unwrap(), None);

    // The request is taken: the commit must not appear, whether or not its version is free.
    for version in [1, 2] {
        let refused = store.append(&commit(&stream, version), Some(&request("k1", "again"))).await;
        assert!(matches!(refused, Err(AppendError::RequestTaken)));
    }
    assert_eq!(store.get(&stream, 2).await.unwrap(), None);
    assert_eq!(store.find_response("k1").await.unwrap().unwrap().answer, "one");
}

/// A key is taken until the database has deleted it, even after its time: the clock of an instance
/// does not free it.
pub(super) async fn a_recorded_response_never_changes(store: &(impl EventLog + IdempotencyStore)) {
    let first = request("k", "first");
    assert_eq!(first.expires, 100, "that is long ago");
    store.record_response(&first).await.unwrap();
    assert!(matches!(
        store.record_response(&request("k", "second")).await,
        Err(AppendError::RequestTaken)
    ));

    let stream = stream("remembered");
    let appended = store.append(&commit(&stream, 1), Some(&request("k", "third"))).await;
    assert!(matches!(appended, Err(AppendError::RequestTaken)), "{appended:?}");
    assert_eq!(store.get(&stream, 1).await.unwrap(), None);
    assert_eq!(store.find_response("k").await.unwrap(), Some(first));
}
