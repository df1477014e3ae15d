//! The tests that every [`LogRowStore`] must pass.

#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use serde_json::{Value, json};

use super::stream;
use crate::{
    Changes, LogTable, StreamId,
    changes::{Fields, Key},
    position::Delivery::{self, Duplicate, Gap, Next},
    view_store::{Applied, CommitBatch, CommitChanges, LogRowStore, ViewError},
};

/// Writes one `#[tokio::test]` for each test of the contract of log views. The argument makes a
/// store without rows, whose table has the keys of [`TABLE`].
#[macro_export]
macro_rules! log_row_store_tests {
    ($make:expr) => {
        $crate::contract_tests!(@each [$make] log_row_store:
            only_the_next_commit_is_applied_with_rows_or_without
            fields_are_set_and_summed_and_rows_deleted_once
            commits_of_one_call_are_applied_in_their_order
            a_commit_that_cannot_be_written_leaves_rows_and_position
            a_commit_that_arrives_many_times_at_once_is_applied_once
            a_sum_over_many_streams_is_exact
            a_batch_is_written_as_a_whole_or_not_at_all
            two_generations_share_no_row_and_no_position
            a_row_is_stored_as_it_is_given);
    };
}

/// The keys of the table.
pub const TABLE: LogTable =
    LogTable { variable: "FILLS_TABLE", partition: "tankId", sort: "entry" };

/// Returns changes that put one row with this version, and count it.
fn count(version: u64) -> Changes {
    let mut changes = Changes::new(TABLE);
    changes.put(&json!({ "tankId": "1", "entry": format!("{version}"), "n": version })).unwrap();
    changes.add("1", "sum", "count", 1);
    changes
}

async fn deliver(
    store: &impl LogRowStore,
    stream: &StreamId,
    version: u64,
    changes: Changes,
) -> Result<(Delivery, u64), ViewError> {
    let deliveries = store.deliver_all(vec![CommitChanges { stream, version, changes }]).await?;
    let [delivery] = deliveries[..] else { panic!("one delivery for one commit: {deliveries:?}") };
    Ok(delivery)
}

fn key(entry: &str) -> Key {
    ("1".to_owned(), entry.to_owned())
}

/// Reads the rows with these sort keys, without their partition key, which may have the sign of a
/// generation.
async fn rows(store: &impl LogRowStore, entries: &[&str]) -> BTreeMap<String, Fields> {
    let keys: BTreeSet<_> = entries.iter().map(|entry| key(entry)).collect();
    let found = store.stored_rows(&keys).await.unwrap().into_iter();
    let row = |((_, sort), row): (Key, crate::view_store::StoredRow)| {
        let mut fields = row.fields.unwrap();
        fields.remove(TABLE.partition).unwrap();
        (sort, fields)
    };
    found.map(row).collect()
}

async fn sum(store: &impl LogRowStore) -> Value {
    rows(store, &["sum"]).await.get("sum").map_or(Value::Null, |row| row["count"].clone())
}

/// Rule 7: a duplicate and a commit after a gap write nothing, and the store names its position.
pub async fn only_the_next_commit_is_applied_with_rows_or_without(store: &impl LogRowStore) {
    for (id, changes) in
        [("with", count as fn(u64) -> Changes), ("without", |_| Changes::new(TABLE))]
    {
        let stream = stream(id);
        for (version, expected) in [
            (2, (Gap, 0)),
            (1, (Next, 1)),
            (1, (Duplicate, 1)),
            (3, (Gap, 1)),
            (2, (Next, 2)),
            (1, (Duplicate, 2)),
            (3, (Next, 3)),
        ] {
            let found = deliver(store, &stream, version, changes(version)).await.unwrap();
            assert_eq!(found, expected, "{id}: version {version}");
        }
        assert_eq!(store.resume_position(&stream).await.unwrap(), 3);
    }
    assert_eq!(sum(store).await, 3);
    assert_eq!(rows(store, &["1", "2", "3", "4"]).await.len(), 3);
}

/// The rows equal the fold of the changes. A second delivery changes nothing.
pub async fn fields_are_set_and_summed_and_rows_deleted_once(store: &impl LogRowStore) {
    let stream = stream("fields");
    let mut first = Changes::new(TABLE);
    first.add("1", "sum", "count", 1);
    first.add("1", "sum", "total", 4);
    first.set("1", "a", "title", "First");
    first.set("1", "a", "tags", json!(["x", "y"]));
    first.put(&json!({ "tankId": "1", "entry": "b", "n": 1 })).unwrap();
    first.put(&json!({ "tankId": "1", "entry": "c", "n": 1, "lost": true })).unwrap();
    let mut second = Changes::new(TABLE);
    second.add("1", "sum", "total", -9);
    second.set("1", "sum", "name", "it");
    second.set("1", "a", "tags", Value::Null);
    second.set("1", "new", "n", 1);
    second.add("1", "new", "m", 2);
    second.delete("1", "b");
    second.delete("1", "none");
    second.put(&json!({ "tankId": "1", "entry": "c", "n": 2 })).unwrap();
    let mut expected = BTreeMap::new();
    for (version, changes) in [(1, first), (2, second)] {
        changes.fold(&mut expected);
        for delivery in [Next, Duplicate] {
            let found = deliver(store, &stream, version, changes.clone()).await.unwrap();
            assert_eq!(found, (delivery, version));
        }
    }
    let found = rows(store, &["sum", "a", "b", "c", "new", "none"]).await;
    let expected = expected.into_iter().map(|((_, sort), mut fields)| {
        fields.remove(TABLE.partition);
        (sort, fields)
    });
    assert_eq!(found, expected.collect());
}

/// One call has commits of two streams, a duplicate, a gap, and the commit before the gap.
pub async fn commits_of_one_call_are_applied_in_their_order(store: &impl LogRowStore) {
    let a = stream("a");
    let b = stream("b");
    let changes = |stream, version| {
        let mut changes = Changes::new(TABLE);
        changes.set("1", "last", "n", version);
        changes.add("1", "sum", "count", 1);
        CommitChanges { stream, version, changes }
    };
    let commits = [(&a, 1), (&b, 2), (&a, 2), (&a, 2), (&b, 1), (&a, 4), (&b, 2), (&a, 3)];
    let commits = commits.map(|(stream, version)| changes(stream, version)).into();
    let expected =
        [(Next, 1), (Gap, 0), (Next, 2), (Duplicate, 2), (Next, 1), (Gap, 2), (Next, 2), (Next, 3)];
    assert_eq!(store.deliver_all(commits).await.unwrap(), expected);
    assert_eq!(rows(store, &["last"]).await["last"]["n"], 3);
    assert_eq!(sum(store).await, 5);
}

/// Rule 9: a number cannot be added to a text, so neither a row of the commit nor the position is
/// written.
pub async fn a_commit_that_cannot_be_written_leaves_rows_and_position(store: &impl LogRowStore) {
    let stream = stream("refused");
    let mut text = Changes::new(TABLE);
    text.set("1", "text", "n", "secret");
    deliver(store, &stream, 1, text).await.unwrap();
    let mut changes = count(2);
    changes.add("1", "text", "n", 1);
    let error = deliver(store, &stream, 2, changes).await.unwrap_err();
    assert!(matches!(error, ViewError::Row(_)) && !error.is_outage(), "{error}");
    // Rule 14: no value of a row is in an error.
    assert!(!crate::Causes(&error).to_string().contains("secret"), "{error}");
    assert_eq!(store.resume_position(&stream).await.unwrap(), 1);
    assert_eq!(rows(store, &["2", "sum"]).await, BTreeMap::new());
    assert_eq!(deliver(store, &stream, 2, count(2)).await.unwrap(), (Next, 2));
}

/// Delivers a commit until the store is not throttled.
async fn deliver_at_last(
    store: &impl LogRowStore,
    stream: &StreamId,
    version: u64,
    changes: &Changes,
) -> (Delivery, u64) {
    for _ in 0..100 {
        match deliver(store, stream, version, changes.clone()).await {
            Err(ViewError::Throttled(_)) => {}
            delivered => return delivered.unwrap(),
        }
    }
    panic!("the store throttles {stream} at each of a hundred attempts");
}

/// Two instances may get the same message.
pub async fn a_commit_that_arrives_many_times_at_once_is_applied_once(store: &impl LogRowStore) {
    let stream = stream("twice");
    let changes = count(1);
    let found = join_all((0..8).map(|_| deliver_at_last(store, &stream, 1, &changes))).await;
    let first = found.iter().filter(|found| **found == (Next, 1)).count();
    assert_eq!((first, found.iter().filter(|found| **found == (Duplicate, 1)).count()), (1, 7));
    assert_eq!(sum(store).await, 1);
}

/// Many streams change one row at the same time.
pub async fn a_sum_over_many_streams_is_exact(store: &impl LogRowStore) {
    let streams: Vec<_> = (0..20).map(|id| stream(&id.to_string())).collect();
    let mut changes = Changes::new(TABLE);
    changes.add("1", "sum", "count", 1);
    join_all(streams.iter().map(|stream| deliver_at_last(store, stream, 1, &changes))).await;
    assert_eq!(sum(store).await, 20);
}

/// Given a batch of two streams, of which one has another position, nothing is written.
pub async fn a_batch_is_written_as_a_whole_or_not_at_all(store: &impl LogRowStore) {
    let a = stream("a");
    let b = stream("b");
    let batch = |versions: [u64; 2]| {
        let mut batch = CommitBatch::new(TABLE, store.max_items());
        for (stream, last) in [&a, &b].into_iter().zip(versions) {
            for version in last - 1..=last {
                let mut changes = Changes::new(TABLE);
                changes.add("1", "sum", "count", 1);
                batch.try_add(CommitChanges { stream, version, changes }).unwrap();
            }
        }
        batch
    };
    let is_written = |applied| matches!(applied, Applied::Written { .. });
    assert!(is_written(store.apply(&batch([2, 2])).await.unwrap()));
    assert_eq!(store.apply(&batch([4, 2])).await.unwrap(), Applied::PositionIs(2));
    assert_eq!(store.apply(&batch([2, 4])).await.unwrap(), Applied::PositionIs(2));
    assert_eq!(sum(store).await, 4);
    assert!(is_written(store.apply(&batch([4, 4])).await.unwrap()));
    assert_eq!(sum(store).await, 8);
    for stream in [&a, &b] {
        assert_eq!(store.resume_position(stream).await.unwrap(), 4);
        assert!(store.can_begin_at(stream, 5).await.unwrap());
    }
}

/// Equal keys of two generations are two rows.
pub async fn two_generations_share_no_row_and_no_position(store: &impl LogRowStore) {
    let old = store.at_generation(0);
    let new = store.at_generation(2);
    let stream = stream("generations");
    assert_eq!(deliver(&old, &stream, 1, count(1)).await.unwrap(), (Next, 1));
    assert_eq!(deliver(&new, &stream, 2, count(2)).await.unwrap(), (Gap, 0));
    for version in 1..=2 {
        assert_eq!(deliver(&new, &stream, version, count(version)).await.unwrap(), (Next, version));
    }
    assert_eq!((sum(&old).await, sum(&new).await), (json!(1), json!(2)));
    assert_eq!(rows(&old, &["2"]).await, BTreeMap::new());
    let positions =
        (old.resume_position(&stream).await.unwrap(), new.resume_position(&stream).await.unwrap());
    assert_eq!(positions, (1, 2));
}

/// Each kind of JSON value, and texts that a store may take for its own syntax.
pub async fn a_row_is_stored_as_it_is_given(store: &impl LogRowStore) {
    let stream = stream("forms");
    let row = json!({
        "tankId": "1", "entry": "forms", "text": "ö \" \\ \n {} , ' $1 NULL", "empty": "",
        "big": i64::MAX, "negative": -1, "half": 1.5, "no": null, "yes": true,
        "list": [1, "x", null, []], "map": { "a": { "b": {} } },
    });
    let mut changes = Changes::new(TABLE);
    changes.put(&row).unwrap();
    changes.set("1", "$.a'", "a \"b\"'{}", json!({ "a": [1] }));
    changes.add("1", "$.a'", "sum, '{}", i64::MAX);
    deliver(store, &stream, 1, changes).await.unwrap();
    let found = rows(store, &["forms", "$.a'"]).await;
    let Value::Object(mut expected) = row else { unreachable!() };
    expected.remove(TABLE.partition);
    assert_eq!(found["forms"], expected);
    let set = json!({ "entry": "$.a'", "a \"b\"'{}": { "a": [1] }, "sum, '{}": i64::MAX });
    assert_eq!(Value::Object(found["$.a'"].clone()), set);
}
