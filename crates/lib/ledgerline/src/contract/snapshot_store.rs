//! The tests that every [`SnapshotStore`] must pass.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use super::stream;
use crate::{RecordedState, SnapshotStore};

/// Given a snapshot, it is found by stream and schema, and a later one replaces it.
pub(super) async fn a_snapshot_is_found_by_its_schema_until_a_newer_one_replaces_it(
    store: &impl SnapshotStore,
) {
    let state = |schema, data: &str| RecordedState { schema, data: data.into() };
    let one = stream("kept");
    let other = stream("other");
    assert_eq!(store.load_snapshot(&one, 1).await.unwrap(), None);
    store.save_snapshot(&one, 10, &state(1, r#"{"n":10}"#)).await.unwrap();
    store.save_snapshot(&one, 12, &state(2, r#"{"m":12}"#)).await.unwrap();
    store.save_snapshot(&one, 20, &state(1, r#"{"n":20}"#)).await.unwrap();
    assert_eq!(store.load_snapshot(&one, 1).await.unwrap(), Some((20, state(1, r#"{"n":20}"#))));
    assert_eq!(store.load_snapshot(&one, 2).await.unwrap(), Some((12, state(2, r#"{"m":12}"#))));
    assert_eq!(store.load_snapshot(&one, 3).await.unwrap(), None);
    assert_eq!(store.load_snapshot(&other, 1).await.unwrap(), None);
}
