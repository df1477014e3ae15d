//! The tests that every [`StateRowStore`] must pass.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    StateTable,
    view_store::{
        Overwrite::{Shows, Written},
        StateRowStore, StoredRow,
    },
};

/// Writes one `#[tokio::test]` for each test of the contract of state views. The argument makes a
/// store without rows, whose table has the key of [`TABLE`].
#[macro_export]
macro_rules! state_row_store_tests {
    ($make:expr) => {
        $crate::contract_tests!(@each [$make] state_row_store:
            a_row_is_overwritten_by_a_newer_version_only
            a_forgotten_row_stays_forgotten
            the_newest_of_concurrent_versions_is_shown
            each_generation_has_rows_of_its_own
            a_stored_row_equals_the_stored_fields);
    };
}

/// The key of the table.
pub const TABLE: StateTable = StateTable { variable: "LEVELS_TABLE", key: "tankId", indexes: &[] };

/// After this time, in Unix seconds, no older version arrives.
const EXPIRES: i64 = i64::MAX >> 1;

fn row(level: u64) -> Value {
    json!({ "tankId": "1", "site": "ö ' \"", "level": level, "note": null })
}

async fn stored(store: &impl StateRowStore) -> Option<StoredRow> {
    let keys = BTreeSet::from([("1".to_owned(), String::new())]);
    store.stored_rows(&keys).await.unwrap().into_values().next()
}

/// Returns the version that the store shows, and the level in the row if it is not forgotten.
async fn shown(store: &impl StateRowStore) -> (u64, Option<Value>) {
    let row = stored(store).await.unwrap();
    (row.version, row.fields.map(|fields| fields["level"].clone()))
}

/// Rule 8.
pub async fn a_row_is_overwritten_by_a_newer_version_only(store: &impl StateRowStore) {
    assert_eq!(stored(store).await, None);
    for (version, level, expected) in [
        (2, 20, Written),
        (2, 99, Shows(2)),
        (1, 99, Shows(2)),
        (5, 50, Written),
        (4, 99, Shows(5)),
    ] {
        let found = store.put_newer(&row(level), version).await.unwrap().0;
        assert_eq!(found, expected, "version {version}");
    }
    assert_eq!(shown(store).await, (5, Some(json!(50))));
}

/// Rule 8: a late state of an earlier version does not bring a row back.
pub async fn a_forgotten_row_stays_forgotten(store: &impl StateRowStore) {
    store.put_newer(&row(1), 1).await.unwrap();
    assert_eq!(store.forget("1", 1, EXPIRES).await.unwrap().0, Shows(1));
    assert_eq!(store.forget("1", 3, EXPIRES).await.unwrap().0, Written);
    for version in [2, 3] {
        assert_eq!(store.put_newer(&row(9), version).await.unwrap().0, Shows(3), "{version}");
    }
    assert_eq!(shown(store).await, (3, None));
    assert_eq!(store.put_newer(&row(4), 4).await.unwrap().0, Written);
    assert_eq!(shown(store).await, (4, Some(json!(4))));
    // A tombstone may be the first write of a row.
    let other = json!({ "tankId": "2" });
    assert_eq!(store.forget("2", 2, EXPIRES).await.unwrap().0, Written);
    assert_eq!(store.put_newer(&other, 1).await.unwrap().0, Shows(2));
}

/// Functions that run at the same time write states of one stream in any order.
pub async fn the_newest_of_concurrent_versions_is_shown(store: &impl StateRowStore) {
    let put = |version| {
        let row = row(version);
        async move { store.put_newer(&row, version).await.unwrap().0 }
    };
    let found = join_all([3, 8, 1, 5, 8, 2].map(put)).await;
    assert!(found.iter().filter(|found| **found == Written).count() >= 1, "{found:?}");
    assert_eq!(shown(store).await, (8, Some(json!(8))));
}

/// A write in one generation changes no row in another one.
pub async fn each_generation_has_rows_of_its_own(store: &impl StateRowStore) {
    for (generation, version) in [(0, 7), (2, 4), (3, 5)] {
        let found =
            store.at_generation(generation).put_newer(&row(version), version).await.unwrap().0;
        assert_eq!(found, Written, "{generation}");
    }
    for (generation, version) in [(0, 7), (2, 4), (3, 5)] {
        assert_eq!(shown(&store.at_generation(generation)).await, (version, Some(json!(version))));
    }
}

/// The comparison of rows with the log needs the form in which a row is stored.
pub async fn a_stored_row_equals_the_stored_fields(store: &impl StateRowStore) {
    let store = store.at_generation(1);
    store.put_newer(&row(1), 3).await.unwrap();
    let expected = store.stored_fields(&row(1), 3).unwrap();
    assert_eq!(expected["version"], 3);
    assert_eq!(stored(&store).await.unwrap().fields, Some(expected));
}
