//! The DynamoDB store with compressed payloads: the contract of the port, and each reader of items.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use ledgerline::{
    AppendError, Commit, Consistency, EventLog, FoldedCommit, Range, RecordedState, SnapshotStore,
    StoreError, StreamId, contract::commit,
};
use ledgerline_dynamodb::{DynamoDbStore, MAX_ITEM_BYTES, ScanPart, commit_from_image};
use ledgerline_testing::{client_and_wire, store_and_wire, table};
use serde_json::json;

/// A store that compresses each payload.
async fn store() -> DynamoDbStore {
    store_and_wire().await.0.with_compression(0)
}

ledgerline::contract_tests!(store());

fn stream() -> StreamId {
    StreamId::new("tank", "north").unwrap()
}

/// A commit with a state, and with numbers and characters that a payload must keep.
fn full(version: u64) -> Commit {
    let mut full = commit(&stream(), version);
    full.events[0].data = format!(r#"{{"amount":1.0,"note":"é{}"}}"#, "x".repeat(2_000));
    full.state = Some(RecordedState { schema: 1, data: r#"{"level":1.0}"#.into() });
    full
}

/// A stream whose commits have text and gzip alternately, with a store that writes text.
async fn two_forms() -> (DynamoDbStore, Vec<Commit>) {
    let (text, _) = store_and_wire().await;
    let gzip = text.clone().with_compression(1_024);
    let commits: Vec<_> = (1..=4).map(full).collect();
    for commit in &commits {
        let store = if commit.version % 2 == 0 { &gzip } else { &text };
        store.append(commit, None).await.unwrap();
    }
    (text, commits)
}

#[tokio::test]
async fn each_reader_reads_text_and_gzip_of_one_stream() {
    let (store, commits) = two_forms().await;
    let stream = stream();
    let all = Range { after: 0, up_to: u64::MAX, limit: None };
    let mut newest_first = commits.clone();
    newest_first.reverse();
    let page = store.read(&stream, all, Consistency::Strong).await.unwrap();
    assert_eq!(page.commits, newest_first);
    assert_eq!(store.read_forwards(&stream, 0, u64::MAX).await.unwrap().commits, commits);
    let folded: Vec<_> = commits.iter().cloned().map(FoldedCommit::from).collect();
    let page = store.read_forwards_for_fold(&stream, 0, u64::MAX).await.unwrap();
    assert_eq!(page.commits, folded);
    let scanned = store.scan(ScanPart::WHOLE, None, &[], 100).await.unwrap();
    assert_eq!((scanned.commits, scanned.damaged), (commits.clone(), 0));
    let names: Vec<_> = (1..=4).map(|version| (&stream, version)).collect();
    let read = store.get_all(&names).await.unwrap().into_iter().map(|read| read.unwrap().unwrap());
    assert_eq!(read.collect::<Vec<_>>(), commits);
    for commit in &commits {
        assert_eq!(store.get(&stream, commit.version).await.unwrap().as_ref(), Some(commit));
        // A redelivery sends the commit in this form.
        let record = store.record(&stream, commit.version).await.unwrap().unwrap();
        let is_gzip = record["NewImage"]["events"]["L"][0]["M"]["data"]["B"].is_string();
        assert_eq!(is_gzip, commit.version % 2 == 0, "{record}");
        let image = serde_json::from_value(record["NewImage"].clone()).unwrap();
        assert_eq!(commit_from_image(image).unwrap().commit, *commit);
    }
}

#[tokio::test]
async fn a_snapshot_is_read_in_both_forms() {
    let (text, _) = store_and_wire().await;
    let state = RecordedState { schema: 1, data: "1".repeat(2_000) };
    for store in [&text, &text.clone().with_compression(1_024)] {
        store.save_snapshot(&stream(), 7, &state).await.unwrap();
        let read = text.load_snapshot(&stream(), 1).await.unwrap();
        assert_eq!(read, Some((7, state.clone())));
    }
}

#[tokio::test]
async fn a_compressed_commit_costs_what_its_gzip_has_and_may_have_more_text_than_an_item() {
    let (store, wire) = store_and_wire().await;
    let store = store.with_compression(1_024);
    let mut large = full(1);
    for text in [1_000, 100_000, 2 * MAX_ITEM_BYTES] {
        large.events[0].data = format!("\"{}\"", "litres of water ".repeat(text / 16));
        let units = store.stored_bytes(&large).div_ceil(1_024);
        store.append(&large, None).await.unwrap();
        let [write] = wire.take().try_into().unwrap();
        assert_eq!(write.units, units as f64, "{text} bytes");
        assert!(units <= 6, "{text} bytes cost {units} units");
        large.version += 1;
    }
}

/// A payload is text below the limit: not a byte of the item changes.
#[tokio::test]
async fn a_payload_at_the_limit_stays_text() {
    let (store, _) = store_and_wire().await;
    let bytes = full(1).events[0].data.len();
    for (over, version, is_text) in [(bytes, 1, true), (bytes - 1, 2, false)] {
        let store = store.clone().with_compression(over);
        store.append(&full(version), None).await.unwrap();
        let record = store.record(&stream(), version).await.unwrap().unwrap();
        assert_eq!(record["NewImage"]["events"]["L"][0]["M"]["data"]["S"].is_string(), is_text);
        assert_eq!(record["NewImage"]["state"]["M"]["data"], json!({ "S": r#"{"level":1.0}"# }));
    }
}

/// Beyond 4 MB the payloads of a commit could not be read, so they are refused before the write.
#[tokio::test]
async fn payloads_beyond_the_limit_of_readers_are_refused() {
    const LIMIT: usize = 4 * 1024 * 1024;
    let store = store().await;
    let mut large = full(1);
    large.events[0].data = " ".repeat(LIMIT / 2);
    large.state.as_mut().unwrap().data = " ".repeat(LIMIT / 2 + 1);
    let refused = store.append(&large, None).await;
    assert!(
        matches!(refused, Err(AppendError::TooLarge { bytes, limit: LIMIT }) if bytes == LIMIT + 1),
        "{refused:?}"
    );
    large.state.as_mut().unwrap().data.pop();
    store.append(&large, None).await.unwrap();
    assert_eq!(store.get(&stream(), 1).await.unwrap(), Some(large.clone()));
    // A snapshot beyond the limit is not written: no reader could use it.
    let state = RecordedState { schema: 1, data: " ".repeat(LIMIT + 1) };
    store.save_snapshot(&stream(), 7, &state).await.unwrap();
    assert_eq!(store.load_snapshot(&stream(), 1).await.unwrap(), None);
}

#[tokio::test]
async fn a_damaged_gzip_is_a_corrupt_commit_and_names_the_attribute() {
    let (client, _) = client_and_wire(&["CommitsTable", "RequestsTable"]).await;
    let store = DynamoDbStore::new(client.clone(), table("CommitsTable")).with_compression(0);
    store.append(&full(1), None).await.unwrap();
    let update = client.update_item().table_name(table("CommitsTable"));
    let update = update.key("stream", AttributeValue::S(stream().to_string()));
    let update = update.key("version", AttributeValue::N("1".into()));
    let update = update.update_expression("SET events[0].#data = :damaged");
    let update = update.expression_attribute_names("#data", "data");
    let damaged = AttributeValue::B(Blob::new(*b"{}"));
    update.expression_attribute_values(":damaged", damaged).send().await.unwrap();
    let error = store.get(&stream(), 1).await.unwrap_err();
    let StoreError::Corrupt { stream: named, version: 1, reason } = error else {
        panic!("{error}")
    };
    assert_eq!(named, stream().as_str());
    assert!(reason.contains("`events`"), "{reason}");
}
