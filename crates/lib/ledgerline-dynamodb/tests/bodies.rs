//! The DynamoDB store with payloads in body objects: the contract of the port, each reader, and
//! objects that are missing, damaged or out of reach.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline::{
    AppendError, Commit, Consistency, EventLog, FoldedCommit, IdempotencyRecord, Range,
    RecordedState, StoreError, StreamId, append_all_once, contract::commit,
};
use ledgerline_dynamodb::{DynamoDbStore, MAX_ITEM_BYTES, ScanPart, commit_from_image};
use ledgerline_testing::{BodyFailure, MemoryBodies, Wire, client_and_wire, store_and_wire, table};
use serde_json::json;

/// A store that puts the payloads of each commit into an object.
async fn store() -> DynamoDbStore {
    store_and_wire().await.0.with_bodies(Arc::default() as Arc<MemoryBodies>, 0)
}

ledgerline::contract_tests!(store());

/// A store that puts payloads into objects if the item is larger than this.
async fn store_and_bodies(over: usize) -> (DynamoDbStore, Wire, Arc<MemoryBodies>) {
    let (store, wire) = store_and_wire().await;
    let bodies = Arc::<MemoryBodies>::default();
    (store.with_bodies(bodies.clone(), over), wire, bodies)
}

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

const ALL: Range = Range { after: 0, up_to: u64::MAX, limit: None };

#[tokio::test]
async fn each_reader_reads_payloads_in_items_and_in_objects() {
    // Given a stream in which each second commit has its payloads in an object,
    let (inline, _) = store_and_wire().await;
    let bodies = Arc::<MemoryBodies>::default();
    let store = inline.clone().with_bodies(bodies.clone(), 0);
    let commits: Vec<_> = (1..=4).map(full).collect();
    for commit in &commits {
        let store = if commit.version % 2 == 0 { &store } else { &inline };
        store.append(commit, None).await.unwrap();
    }
    let stream = stream();
    let mut newest_first = commits.clone();
    newest_first.reverse();
    // then each reader returns the commits as they were appended.
    assert_eq!(store.read(&stream, ALL, Consistency::Strong).await.unwrap().commits, newest_first);
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
        // A redelivery sends what the stream of the table sends.
        let record = store.record(&stream, commit.version).await.unwrap().unwrap();
        let image = serde_json::from_value(record["NewImage"].clone()).unwrap();
        let image = commit_from_image(image).unwrap();
        assert_eq!(image.has_body, commit.version % 2 == 0);
        assert_eq!(image.commit == *commit, !image.has_body);
        assert_eq!(record["Keys"]["version"], json!({ "N": commit.version.to_string() }));
    }
}

/// The item keeps what the fanout and an operator look at: types, schemas, times and origins.
#[tokio::test]
async fn an_item_with_a_body_has_all_but_payloads_and_state() {
    let (client, _) = client_and_wire(&["CommitsTable", "RequestsTable"]).await;
    let bodies = Arc::<MemoryBodies>::default();
    let store = DynamoDbStore::new(client.clone(), table("CommitsTable"));
    store.with_bodies(bodies.clone(), 0).append(&full(1), None).await.unwrap();
    let items = client.scan().table_name(table("CommitsTable")).send().await.unwrap().items;
    let [item] = <[_; 1]>::try_from(items.unwrap()).unwrap();
    let mut names: Vec<_> = item.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["at", "body", "command", "events", "meta", "stream", "version"]);
    let event = item["events"].as_l().unwrap()[0].as_m().unwrap();
    assert_eq!(event.len(), 2, "type and schema: {event:?}");
    let name = item["body"].as_s().unwrap().clone();
    bodies.change(|objects| {
        let key = format!("bodies/tank-north/{name}.jsonl.gz");
        assert_eq!(objects.keys().collect::<Vec<_>>(), [&key]);
    });
}

/// A commit of which each part fits into an item costs no request for an object.
#[tokio::test]
async fn only_a_commit_that_does_not_fit_or_is_over_the_limit_has_an_object() {
    for (over, text, calls) in [
        (usize::MAX, 2_000, &[][..]),
        (usize::MAX, MAX_ITEM_BYTES, &["put"]),
        (8_192, 8_000, &[]),
        (8_192, 8_200, &["put"]),
    ] {
        let (store, wire, bodies) = store_and_bodies(over).await;
        let mut commit = commit(&stream(), 1);
        commit.events[0].data = format!("\"{}\"", "x".repeat(text));
        store.append(&commit, None).await.unwrap();
        assert_eq!(bodies.take_calls(), calls, "{text} bytes, over {over}");
        let [write] = wire.take().try_into().unwrap();
        let most = if calls.is_empty() { 9.0 } else { 1.0 };
        assert!(write.units <= most, "{text} bytes, over {over}: {write:?}");
        assert_eq!(store.get(&stream(), 1).await.unwrap(), Some(commit));
    }
}

/// A function may append to a category without objects, too, and has no right to store some for it.
#[tokio::test]
async fn only_commits_of_the_categories_of_the_store_have_objects() {
    let (store, _, bodies) = store_and_bodies(0).await;
    let store = store.with_body_categories(&["tank"]);
    let haul = Commit { stream: StreamId::new("haul", "1").unwrap(), ..full(1) };
    store.append_all(&[haul.clone(), full(1)], None).await.unwrap();
    assert_eq!(bodies.take_calls(), ["put"]);
    assert_eq!(store.get(&haul.stream, 1).await.unwrap().as_ref(), Some(&haul));
    let mut large = Commit { version: 2, ..haul };
    large.events[0].data = format!("\"{}\"", "x".repeat(MAX_ITEM_BYTES));
    let refused = store.append(&large, None).await;
    assert!(matches!(refused, Err(AppendError::TooLarge { limit: MAX_ITEM_BYTES, .. })));
}

/// The state has 1 MB, and is stored with each eighth commit.
#[tokio::test]
async fn a_cold_load_of_a_large_state_is_one_query_and_one_object() {
    let (store, wire, bodies) = store_and_bodies(usize::MAX).await;
    for version in 1..=19 {
        let mut commit = commit(&stream(), version);
        if version % 8 == 0 {
            let data = format!("\"{}\"", "x".repeat(1_000_000));
            commit.state = Some(RecordedState { schema: 1, data });
        }
        store.append(&commit, None).await.unwrap();
    }
    assert_eq!(bodies.take_calls(), ["put", "put"]);
    wire.take();
    let range = Range { limit: Some(8), ..ALL };
    let page = store.read_for_fold(&stream(), range, Consistency::Eventual).await.unwrap();
    let oldest = page.commits.last().unwrap();
    assert_eq!((oldest.version, page.commits[3].version, page.complete), (12, 16, false));
    assert!(page.commits[3].state.is_some());
    assert_eq!((wire.operations(), bodies.take_calls()), (vec!["Query".to_owned()], vec!["get"]));
    // A page with an older body ends in front of it.
    let range = Range { limit: Some(20), ..ALL };
    let page = store.read_for_fold(&stream(), range, Consistency::Eventual).await.unwrap();
    assert_eq!((page.commits.last().unwrap().version, page.complete), (9, false));
    assert_eq!(bodies.take_calls(), ["get"]);
}

/// Otherwise a page of small items that name large objects would take the time and the memory of the
/// function.
#[tokio::test]
async fn a_page_ends_after_some_objects_or_bytes_and_the_next_one_continues() {
    for (commits, text, of_page) in [(40, 10, 32), (5, 3_000_000, 2)] {
        let (store, _, bodies) = store_and_bodies(0).await;
        for version in 1..=commits {
            let mut commit = commit(&stream(), version);
            commit.events[0].data = format!("\"{}\"", "x".repeat(text));
            store.append(&commit, None).await.unwrap();
        }
        bodies.take_calls();
        let versions = |commits: &[Commit]| -> Vec<_> {
            commits.iter().map(|commit| commit.version).collect()
        };
        let (mut read, mut scanned, mut after) = (Vec::new(), Vec::new(), None);
        while read.len() < usize::try_from(commits).unwrap() {
            let last = read.last().copied().unwrap_or(0);
            let page = store.read_forwards(&stream(), last, u64::MAX).await.unwrap();
            assert!(page.commits.len() <= of_page, "{} of {commits}", page.commits.len());
            read.extend(versions(&page.commits));
            assert_eq!(page.complete, read.last() == Some(&commits));
        }
        loop {
            let page = store.scan(ScanPart::WHOLE, after.as_ref(), &[], 100).await.unwrap();
            assert!(page.commits.len() <= of_page, "{} of {commits}", page.commits.len());
            scanned.extend(versions(&page.commits));
            after = page.after;
            if after.is_none() {
                break;
            }
        }
        let all: Vec<_> = (1..=commits).collect();
        assert_eq!((read, scanned), (all.clone(), all.clone()));
        let stream = stream();
        let names: Vec<_> = all.iter().map(|version| (&stream, *version)).collect();
        let read = store.get_all(&names).await.unwrap();
        assert!(read.iter().all(|commit| matches!(commit, Ok(Some(_)))));
    }
}

/// Rule 4: a repetition finds the object of the lost answer, and stores no other one.
#[tokio::test]
async fn an_append_whose_answers_are_lost_is_stored_once() {
    let (store, wire, bodies) = store_and_bodies(0).await;
    for failure in [BodyFailure::Lost, BodyFailure::AnswerLost] {
        bodies.fail(&[failure]);
        let failed = store.append(&full(1), None).await;
        assert!(matches!(failed, Err(AppendError::Store(StoreError::Unavailable(_)))));
        assert_eq!(wire.operations(), [""; 0], "no item names an object that may be missing");
    }
    bodies.fail(&[BodyFailure::Throttled]);
    let failed = store.append(&full(1), None).await;
    assert!(matches!(failed, Err(AppendError::Store(StoreError::Throttled(_)))));
    bodies.take_calls();
    store.append(&full(1), None).await.unwrap();
    assert_eq!(bodies.take_calls(), ["put", "get"]);
    assert!(matches!(store.append(&full(1), None).await, Err(AppendError::VersionTaken)));
    append_all_once(&store, &[full(1)], None).await.unwrap();
    bodies.change(|objects| assert_eq!(objects.len(), 1));
    assert_eq!(store.get(&stream(), 1).await.unwrap(), Some(full(1)));
}

/// An object under the key of the commit that is not its object would be its loss.
#[tokio::test]
async fn no_commit_is_appended_to_an_object_of_another_content() {
    let (store, wire, bodies) = store_and_bodies(0).await;
    bodies.fail(&[BodyFailure::AnswerLost]);
    store.append(&full(1), None).await.unwrap_err();
    bodies.change(|objects| objects.values_mut().for_each(|object| object.truncate(9)));
    let refused = store.append(&full(1), None).await;
    let Err(AppendError::Store(StoreError::Corrupt { reason, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("another object has its key"), "{reason}");
    assert_eq!(wire.operations(), [""; 0]);
}

#[tokio::test]
async fn commits_of_several_streams_have_an_object_each() {
    let (store, _, bodies) = store_and_bodies(0).await;
    let south = StreamId::new("tank", "south").unwrap();
    let commits = [full(1), Commit { stream: south.clone(), ..full(1) }];
    store.append_all(&commits, None).await.unwrap();
    assert_eq!(bodies.take_calls(), ["put", "put"]);
    assert_eq!(store.get(&south, 1).await.unwrap().as_ref(), Some(&commits[1]));
}

#[tokio::test]
async fn a_commit_beyond_the_limit_of_readers_is_refused() {
    let (store, wire, bodies) = store_and_bodies(usize::MAX).await;
    let mut large = full(1);
    large.state.as_mut().unwrap().data = "x".repeat(4 * 1024 * 1024 + 1);
    let refused = store.append(&large, None).await;
    assert!(
        matches!(refused, Err(AppendError::TooLarge { limit, .. }) if limit == 4 * 1024 * 1024),
        "{refused:?}"
    );
    assert_eq!((bodies.take_calls(), wire.operations()), (vec![], vec![]));
}

/// No attempt could write it, and each would leave another object.
#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_before_an_object_is_stored() {
    let (store, wire, bodies) = store_and_bodies(0).await;
    let request = IdempotencyRecord {
        key: "k ada".into(),
        fingerprint: String::new(),
        answer: "x".repeat(MAX_ITEM_BYTES),
        expires: 1,
    };
    let refused = store.append(&full(1), Some(&request)).await;
    assert!(matches!(refused, Err(AppendError::TooLarge { limit: MAX_ITEM_BYTES, .. })));
    assert_eq!((bodies.take_calls(), wire.operations()), (vec![], vec![]));
}

/// Each reader names the object, and the other commits are read.
#[tokio::test]
async fn a_missing_or_damaged_object_is_a_corrupt_commit_that_names_it() {
    let (store, _, bodies) = store_and_bodies(0).await;
    for version in 1..=3 {
        store.append(&full(version), None).await.unwrap();
    }
    let stream = stream();
    type Damage = fn(&mut Vec<u8>);
    let damages: [(Option<Damage>, &str); 3] = [
        (Some(|object| object.truncate(20)), "it has another hash"),
        (Some(|object| object.clear()), "it has another hash"),
        (None, "it does not exist"),
    ];
    for (damage, named) in damages {
        bodies.change(|objects| match damage {
            Some(damage) => damage(objects.values_mut().nth(1).unwrap()),
            None => objects.retain(|key, _| !key.contains("/2-2-")),
        });
        let error = store.get(&stream, 2).await.unwrap_err();
        let StoreError::Corrupt { version: 2, reason, .. } = error else { panic!("{error}") };
        assert!(reason.contains(named) && reason.contains("bodies/tank-north/2-2-"), "{reason}");
        assert!(store.read(&stream, ALL, Consistency::Strong).await.is_err());
        let scanned = store.scan(ScanPart::WHOLE, None, &[], 100).await.unwrap();
        assert_eq!((scanned.commits, scanned.damaged), (vec![full(1), full(3)], 1));
        let names: Vec<_> = (1..=3).map(|version| (&stream, version)).collect();
        let read = store.get_all(&names).await.unwrap();
        assert!(read[0].is_ok() && read[1].is_err() && read[2].is_ok(), "{read:?}");
    }
}

/// Nothing is skipped while objects are out of reach: each reader fails, to be repeated.
#[tokio::test]
async fn an_object_out_of_reach_fails_the_reader_and_is_no_damage() {
    let (store, _, bodies) = store_and_bodies(0).await;
    store.append(&full(1), None).await.unwrap();
    let stream = stream();
    for failure in [BodyFailure::Lost, BodyFailure::Throttled] {
        let transient =
            |error: &StoreError| assert!(!matches!(error, StoreError::Corrupt { .. }), "{error}");
        bodies.fail(&[failure; 4]);
        transient(&store.get(&stream, 1).await.unwrap_err());
        transient(&store.read(&stream, ALL, Consistency::Strong).await.unwrap_err());
        transient(&store.scan(ScanPart::WHOLE, None, &[], 100).await.unwrap_err());
        transient(&store.get_all(&[(&stream, 1)]).await.unwrap_err());
    }
    assert_eq!(store.get(&stream, 1).await.unwrap(), Some(full(1)));
}

#[tokio::test]
async fn a_reader_without_a_bucket_names_the_variable() {
    let (inline, _) = store_and_wire().await;
    let bodies = Arc::<MemoryBodies>::default();
    inline.clone().with_bodies(bodies, 0).append(&full(1), None).await.unwrap();
    inline.append(&full(2), None).await.unwrap();
    let stream = stream();
    for error in [
        inline.get(&stream, 1).await.unwrap_err(),
        inline.read(&stream, ALL, Consistency::Eventual).await.unwrap_err(),
        // Above it, version 2 has a state, at which a load ends.
        inline
            .read_for_fold(&stream, Range { up_to: 1, ..ALL }, Consistency::Eventual)
            .await
            .unwrap_err(),
        inline.scan(ScanPart::WHOLE, None, &[], 100).await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::PayloadElsewhere { version: 1, .. }), "{error}");
        assert!(error.to_string().contains("BODIES_BUCKET"), "{error}");
    }
    // Of many, the others are read: the sequencer needs to know only which ones are missing.
    let [first, second, third] = [1, 2, 3].map(|version| (&stream, version));
    let read = inline.get_all(&[first, second, third]).await.unwrap();
    assert!(matches!(read[0], Err(StoreError::PayloadElsewhere { version: 1, .. })), "{read:?}");
    assert!(matches!(&read[1..], [Ok(Some(_)), Ok(None)]), "{read:?}");
}

/// A changed item cannot borrow the payloads of another commit.
#[tokio::test]
async fn an_item_that_names_a_foreign_object_is_corrupt() {
    let (client, _) = client_and_wire(&["CommitsTable", "RequestsTable"]).await;
    let bodies = Arc::<MemoryBodies>::default();
    let store = DynamoDbStore::new(client.clone(), table("CommitsTable")).with_bodies(bodies, 0);
    let south = StreamId::new("tank", "south").unwrap();
    let other = Commit { stream: south.clone(), command: "another".into(), ..full(1) };
    store.append_all(&[full(1), full(2), other], None).await.unwrap();
    let set = async |version: u64, name: &str, value: AttributeValue| {
        let update = client.update_item().table_name(table("CommitsTable"));
        let update = update.key("stream", AttributeValue::S(stream().to_string()));
        let update = update.key("version", AttributeValue::N(version.to_string()));
        let update = update.update_expression("SET #name = :value");
        let update = update.expression_attribute_names("#name", name);
        update.expression_attribute_values(":value", value).send().await.unwrap();
    };
    let body = async |stream: &StreamId, version| {
        let items = client.scan().table_name(table("CommitsTable")).send().await.unwrap().items;
        let key = (stream.to_string(), AttributeValue::N(version));
        let item = items
            .unwrap()
            .into_iter()
            .find(|item| item["stream"].as_s().unwrap() == &key.0 && item["version"] == key.1);
        item.unwrap()["body"].clone()
    };
    let own = body(&stream(), "1".to_owned()).await;
    for (name, value, damage) in [
        ("body", body(&stream(), "2".to_owned()).await, "names no object of this version"),
        ("body", body(&south, "1".to_owned()).await, "it does not exist"),
        ("body", AttributeValue::S("1-1".into()), "names no object of this version"),
        ("body", AttributeValue::N("1".into()), "names no object of this version"),
        ("command", AttributeValue::S("another".into()), "its line has another command or time"),
        ("at", AttributeValue::S("2026-01-01T00:00:00Z".into()), "another command or time"),
    ] {
        assert_eq!(store.get(&stream(), 1).await.unwrap(), Some(full(1)));
        set(1, name, value).await;
        let error = store.get(&stream(), 1).await.unwrap_err();
        let StoreError::Corrupt { reason, .. } = error else { panic!("{error}") };
        assert!(reason.contains(damage), "{reason}");
        set(1, "body", own.clone()).await;
        set(1, "command", AttributeValue::S(full(1).command)).await;
        set(1, "at", AttributeValue::S(full(1).at.to_string())).await;
    }
}
