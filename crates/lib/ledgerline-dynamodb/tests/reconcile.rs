//! The comparison of the log with a state view, against an emulated DynamoDB.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Commit, EventLog, StreamId,
    all::{Candidate, Entry, Sequencer},
    contract,
    manifest::SubscriberKind,
};
use ledgerline_dynamodb::{
    DynamoDbStore, KeyNames, ViewTable,
    reconcile::{Comparison, Difference, Found, Subscriber},
};

/// Returns the ids of the streams that differ, sorted.
fn ids(differences: &[Difference]) -> Vec<&str> {
    let mut ids: Vec<_> = differences.iter().map(|difference| difference.stream.id()).collect();
    ids.sort_unstable();
    ids
}

/// Returns the state view of the tanks as a subscriber.
fn levels(client: Client) -> Subscriber {
    Subscriber {
        id: "LevelsFunction".into(),
        kind: SubscriberKind::StateProjector,
        of: vec!["tank".into()],
        table: ViewTable::new(
            client,
            ledgerline_testing::table("LevelsTable"),
            KeyNames { partition: "tankId".into(), sort: None },
        ),
        other: None,
    }
}

/// A row whose version is unreadable is reported as unreadable. A missing row whose commit is older
/// than any tombstone may have been forgotten, so it is reported separately.
#[tokio::test]
async fn unreadable_missing_and_possibly_forgotten_rows_are_distinguished() {
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "LevelsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let log = DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable"));
    let now = Timestamp::now();
    let days = |days: i64| now - SignedDuration::from_hours(days * 24);
    for (id, at) in
        [("shown", days(60)), ("damaged", days(60)), ("forgotten", days(60)), ("missing", days(2))]
    {
        let stream = StreamId::new("tank", id).unwrap();
        log.append(&Commit { at, ..contract::commit(&stream, 1) }, None).await.unwrap();
    }
    for (id, version) in
        [("shown", AttributeValue::N("1".into())), ("damaged", AttributeValue::S("1".into()))]
    {
        let put = client.put_item().table_name(ledgerline_testing::table("LevelsTable"));
        put.item("tankId", AttributeValue::S(id.into()))
            .item("version", version)
            .send()
            .await
            .unwrap();
    }
    let subscribers = [levels(client)];
    let comparison = Comparison {
        log: &log,
        parts: 1,
        order: None,
        with_order: false,
        subscribers: &subscribers,
        since: None,
        until: now,
        most: usize::MAX,
    };
    let found = comparison.run().await.unwrap();
    let Found { looked, missing, ahead, forgotten, unreadable, .. } = &found;
    assert_eq!((ids(missing), ids(ahead)), (vec!["missing"], vec![]));
    assert_eq!((ids(forgotten), ids(unreadable)), (vec!["forgotten"], vec!["damaged"]));
    assert_eq!((looked[0].streams, looked[0].forgotten, looked[0].unreadable), (4, 1, 1));
}

/// Rule 11: with more streams than one batch compares, every stream is counted once, and the report
/// has at most `most` differences of each kind.
#[tokio::test]
async fn a_comparison_since_a_time_compares_streams_in_batches() {
    const STREAMS: usize = 2_100;
    let dynamodb =
        ledgerline_testing::dynamodb(&["CommitsTable", "SequenceTable", "LevelsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let log = DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable"));
    let sequence = DynamoDbStore::new(client.clone(), ledgerline_testing::table("SequenceTable"));
    let commits: Vec<_> = (0..STREAMS)
        .map(|id| contract::commit(&StreamId::new("tank", &id.to_string()).unwrap(), 1))
        .collect();
    let appended =
        stream::iter(&commits).map(|commit| log.append(commit, None)).buffer_unordered(16);
    appended.collect::<Vec<_>>().await.into_iter().for_each(Result::unwrap);
    // Each stream has two entries in `$all`, far from each other.
    let entry = |commit: &Commit| {
        Candidate::from_record(Entry { stream: commit.stream.clone(), version: 1 })
    };
    let mut sequencer = Sequencer::new(DynamoDbStore::HOST.pause);
    let candidates = commits.iter().map(entry).collect();
    let appended =
        sequencer.append(&sequence, &log, "b", candidates, Timestamp::now()).await.unwrap();
    for number in 1..=appended.segments as u64 {
        let all = StreamId::try_from("$all".to_owned()).unwrap();
        let segment = sequence.get(&all, number).await.unwrap().unwrap();
        let again = Commit { version: number + appended.segments as u64, ..segment };
        sequence.append(&again, None).await.unwrap();
    }
    let subscribers = [levels(client)];
    let comparison = Comparison {
        log: &log,
        parts: 1,
        order: Some(&sequence),
        with_order: false,
        subscribers: &subscribers,
        since: Some(Timestamp::UNIX_EPOCH),
        until: Timestamp::now(),
        most: 7,
    };
    let found = comparison.run().await.unwrap();
    assert_eq!(
        (found.looked[0].streams, found.looked[0].missing + found.looked[0].forgotten),
        (STREAMS, STREAMS)
    );
    assert!(found.missing.len() <= 7 && found.forgotten.len() <= 7);
}

/// A commit of a clock that is wrong by a year is missing now, and not in a year.
#[tokio::test]
async fn a_missing_commit_of_a_clock_in_the_future_is_compared() {
    // Given commits by clocks that are right, late, and ahead, which no subscriber has applied,
    let dynamodb =
        ledgerline_testing::dynamodb(&["CommitsTable", "SequenceTable", "LevelsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let log = DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable"));
    let sequence = DynamoDbStore::new(client.clone(), ledgerline_testing::table("SequenceTable"));
    let now = Timestamp::now();
    for (id, minutes) in [("late", -6), ("right", 1), ("ahead", 10), ("year", 365 * 24 * 60)] {
        let at = now + SignedDuration::from_mins(minutes);
        let stream = StreamId::new("tank", id).unwrap();
        log.append(&Commit { at, ..contract::commit(&stream, 1) }, None).await.unwrap();
    }
    // when all streams are compared,
    let subscribers = [levels(client)];
    let comparison = Comparison {
        log: &log,
        parts: 1,
        order: Some(&sequence),
        with_order: true,
        subscribers: &subscribers,
        since: None,
        until: now,
        most: usize::MAX,
    };
    let found = comparison.run().await.unwrap();
    // then only the commit that may be in transit is left out, for the view and for `$all`.
    let expected = ["ahead", "ahead", "late", "late", "year", "year"];
    assert_eq!((ids(&found.missing), found.too_young), (expected.to_vec(), 2));
}
