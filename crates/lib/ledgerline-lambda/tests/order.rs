//! The sequencer, `GET /events`, subscriptions and the reconciler with the real SDK client, against
//! an emulated DynamoDB.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Changes, ChangesError, Commit, EventLog, LogTable, OrderedView, StreamId, Write,
    all::{CLOCK_SKEW, Candidate, Entry, NamedEntry, Sequencer, newest_segment},
    contract,
    manifest::SubscriberKind,
    testing::tank::Tanks,
    view_store::RowStore,
};
use ledgerline_dynamodb::{
    DynamoDbStore, LogRows, Move, PageQuery,
    reconcile::{self, Comparison, Difference},
};
use ledgerline_lambda::{
    events::Events,
    http::{HttpRequest, Problem, Routes},
    rebuild::RebuildRequest,
    reconciler::Reconciler,
    sequencer::{Sequencing, Voided},
    stream_records::{Record, Unreadable},
    subscription::Subscriber,
};
use ledgerline_testing::{Call, Wire, client_and_wire, http_event};
use serde_json::{Value, json};

/// A log, its `$all` and a view, with a record of the calls to all of them.
struct World {
    log: DynamoDbStore,
    sequence: DynamoDbStore,
    sequencing: Sequencing,
    events: Events,
    client: Client,
    rows: LogRows,
    wire: Wire,
}

impl World {
    async fn new() -> Self {
        let (client, wire) =
            client_and_wire(&["CommitsTable", "SequenceTable", "FillsTable"]).await;
        let log = DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable"));
        let sequence =
            DynamoDbStore::new(client.clone(), ledgerline_testing::table("SequenceTable"));
        let rows = LogRows::new(client.clone(), ledgerline_testing::table("FillsTable"), KEYS);
        Self {
            client,
            rows,
            sequencing: Sequencing::new(sequence.clone(), log.clone()),
            events: Events::new::<Tanks>(sequence.clone(), log.clone()),
            log,
            sequence,
            wire,
        }
    }

    /// Appends these commits, and sequences their records in one batch.
    async fn commit(&self, commits: &[(&str, u64)]) {
        let mut records = Vec::new();
        for (id, version) in commits {
            let commit = commit(id, *version);
            self.log.append(&commit, None).await.unwrap();
            records.push(record(Ok(commit)));
        }
        assert_eq!(self.sequencing.sequence(&records, true).await, None);
    }

    /// Damages a stored commit.
    async fn damage(&self, stream: &str, version: u64) {
        let update =
            self.client.update_item().table_name(ledgerline_testing::table("CommitsTable"));
        let update = update.key("stream", AttributeValue::S(stream.to_owned()));
        let update = update.key("version", AttributeValue::N(version.to_string()));
        let update =
            update.update_expression("SET #at = :none").expression_attribute_names("#at", "at");
        update
            .expression_attribute_values(":none", AttributeValue::S("never".into()))
            .send()
            .await
            .unwrap();
    }

    /// Returns the response of `GET /events` to this query.
    async fn get(&self, query: &str) -> Result<Value, Problem> {
        let answer = self.events.handle(&request(query)).await?;
        assert_eq!(answer.status, StatusCode::OK);
        Ok(answer.body.unwrap())
    }

    /// Reads all commits after this cursor, page by page.
    async fn read_all(&self, mut after: String, query: &str) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        loop {
            let page = self.get(&format!("after={after}&{query}")).await.unwrap();
            let named = |commit: &Value| {
                (commit["stream"].as_str().unwrap().to_owned(), commit["version"].as_u64().unwrap())
            };
            all.extend(page["commits"].as_array().unwrap().iter().map(named));
            after = page["cursor"].as_str().unwrap().to_owned();
            if page["complete"] == true {
                return all;
            }
        }
    }
}

fn commit(id: &str, version: u64) -> Commit {
    let mut commit = contract::commit(&StreamId::try_from(id.to_owned()).unwrap(), version);
    commit.events[0].event_type = "TankFilled".into();
    commit
}

fn record(commit: Result<Commit, Unreadable>) -> Record {
    Record { sequence_number: "4421".into(), created: None, run: None, has_body: false, commit }
}

fn request(query: &str) -> HttpRequest {
    let fields = json!({ "rawQueryString": query });
    http_event::<ApiGatewayV2httpRequest>("GET /events", fields).into()
}

fn names(commits: &[(&str, u64)]) -> Vec<(String, u64)> {
    commits.iter().map(|(stream, version)| ((*stream).to_owned(), *version)).collect()
}

#[tokio::test]
async fn commits_are_read_in_the_order_in_which_their_records_arrived() {
    let world = World::new().await;
    let batches: [&[(&str, u64)]; 3] = [
        &[("tank-a", 1), ("lamp-b", 1), ("tank-a", 2)],
        &[("lamp-b", 2)],
        &[("tank-c", 1), ("tank-a", 3)],
    ];
    for batch in batches {
        world.commit(batch).await;
    }
    assert_eq!(world.read_all("beginning".into(), "limit=2").await, names(&batches.concat()));
    assert_eq!(
        world.read_all("beginning".into(), "category=tank").await,
        names(&[("tank-a", 1), ("tank-a", 2), ("tank-c", 1), ("tank-a", 3)])
    );
    assert_eq!(world.read_all("beginning".into(), "type=TankFilled&type=TankDrawn").await.len(), 6);
    assert_eq!(world.read_all("beginning".into(), "type=TankDrawn").await, []);
    world.wire.take();
    assert_eq!(world.read_all("now".into(), "").await, []);
    // Between two reads, the sequencer could add commits that are older than the request.
    assert_eq!(world.wire.operations(), ["Query"]);
    assert_eq!(world.read_all("2020-01-01T00:00:00Z".into(), "").await.len(), 6);
    assert_eq!(world.read_all("2120-01-01T00:00:00Z".into(), "").await, []);
}

#[tokio::test]
async fn a_reader_gets_the_stored_events_and_not_the_state() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let page = world.get("").await.unwrap();
    assert_eq!(
        page["commits"],
        json!([{
            "stream": "tank-a", "version": 1, "at": "2026-11-21T09:30:00.123456789Z",
            "events": [{ "type": "TankFilled", "schema": 1, "data": { "n": 1 } }],
        }])
    );
}

/// Lambda redelivers a batch that failed or whose response was lost, possibly with other bounds or
/// to another instance.
#[tokio::test]
async fn redelivered_records_add_no_entry() {
    let world = World::new().await;
    let commits = [("tank-a", 1), ("lamp-b", 1), ("tank-a", 2), ("tank-c", 1)];
    world.commit(&commits).await;
    let records: Vec<_> =
        commits.iter().map(|(id, version)| record(Ok(commit(id, *version)))).collect();
    assert_eq!(world.sequencing.sequence(&records[1..], true).await, None);
    let other = Sequencing::new(world.sequence.clone(), world.log.clone());
    assert_eq!(other.sequence(&records, true).await, None);
    let all = world.read_all("beginning".into(), "").await;
    let different: HashSet<_> = all.iter().collect();
    assert_eq!((all.len(), different.len()), (4, 4), "{all:?}");
}

/// An entry is final. So an operator's record of a missing commit gets no entry, and neither does a
/// missing cause that a commit names.
#[tokio::test]
async fn a_commit_that_is_not_in_the_log_gets_no_entry() {
    // Given a commit whose record never arrived,
    let world = World::new().await;
    world.log.append(&commit("tank-a", 1), None).await.unwrap();
    // when an operator sends its record and a forged one, first in the form of the stream and then
    // in the form of a redelivery,
    let forged = |run: Option<&str>| Record {
        run: run.map(ToOwned::to_owned),
        ..record(Ok(commit("tank-forged", 7)))
    };
    let right = record(Ok(commit("tank-a", 1)));
    assert_eq!(world.sequencing.sequence(&[forged(None), right], false).await, None);
    assert_eq!(world.sequencing.sequence(&[forged(Some("run"))], true).await, None);
    // and a commit names a cause that does not exist,
    let mut caused = commit("tank-b", 1);
    caused.meta.causation_id = Some("tank-forged:7".into());
    world.log.append(&caused, None).await.unwrap();
    world.wire.take();
    assert_eq!(world.sequencing.sequence(&[record(Ok(caused))], true).await, None);
    // then only the commits in the log have entries, and the check of the log is one call.
    assert_eq!(
        world.read_all("beginning".into(), "").await,
        names(&[("tank-a", 1), ("tank-b", 1)])
    );
    let calls: Vec<_> = world.wire.take().into_iter().map(|call| call.operation).collect();
    assert_eq!(calls[..2], ["BatchGetItem", "ExecuteStatement"], "{calls:?}");
}

#[tokio::test]
async fn an_entry_without_a_commit_stops_readers_until_it_is_void() {
    // Given an entry of `$all` whose commit is not in the log,
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let forged = Entry { stream: StreamId::new("tank", "forged").unwrap(), version: 7 };
    let wrong = vec![Candidate::from_record(forged.clone())];
    let mut faulty = Sequencer::new(DynamoDbStore::HOST.pause);
    faulty.append(&world.sequence, &world.log, "faulty", wrong, Timestamp::now()).await.unwrap();
    world.commit(&[("tank-a", 2)]).await;
    let diary = world.subscriber();
    assert!(diary.catch_up().await.is_err(), "a subscription stops at it");
    // when an operator voids it, and attempts to void a correct entry too,
    let right = Entry { stream: StreamId::new("tank", "a").unwrap(), version: 2 };
    let void =
        async |segment, entry| world.sequencing.void(NamedEntry { segment, entry }).await.unwrap();
    assert!(matches!(void(3, right).await, Voided::Refused(_)));
    assert!(
        matches!(void(3, forged.clone()).await, Voided::Refused(_)),
        "another segment names it"
    );
    for _ in 0..2 {
        assert_eq!(void(2, forged.clone()).await, Voided::Void(forged.clone()));
    }
    // then every reader passes the entry, and the comparison finds nothing ahead of the log.
    assert!(diary.catch_up().await.unwrap());
    world.commit(&[("tank-b", 1)]).await;
    assert!(diary.catch_up().await.unwrap());
    let expected = names(&[("tank-a", 1), ("tank-a", 2), ("tank-b", 1)]);
    assert_eq!(world.read_all("beginning".into(), "").await, expected);
    let comparison = Comparison {
        log: &world.log,
        parts: 1,
        order: Some(&world.sequence),
        with_order: true,
        subscribers: &[],
        since: None,
        until: Timestamp::now(),
        most: usize::MAX,
    };
    let found = comparison.run().await.unwrap();
    assert!(found.is_clean(), "{found:?}");
}

/// The sequencer reads only the keys of a record. So a damaged commit stops neither the sequencer
/// nor the readers of other commits.
#[tokio::test]
async fn a_damaged_commit_gets_its_entry_and_stops_no_reader() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let damaged = |stream: Option<&str>, version| {
        record(Err(Unreadable {
            reason: "the field at".into(),
            stream: stream.map(ToOwned::to_owned),
            version,
            event_id: None,
            sequence_number: "4422".into(),
            event_source_arn: None,
        }))
    };
    let records =
        [damaged(Some("tank-b"), Some(1)), damaged(None, None), damaged(Some("?"), Some(1))];
    assert_eq!(world.sequencing.sequence(&records, true).await, None);
    world.commit(&[("tank-c", 1)]).await;
    let page = world.get("").await.unwrap();
    assert_eq!(
        page["commits"][1],
        json!({ "stream": "tank-b", "version": 1, "unreadable": "it is missing, and $all names it" })
    );
    assert_eq!(page["commits"][2]["stream"], "tank-c");
}

/// Rule 11: a failing table must not leave a commit without an entry.
#[tokio::test]
async fn a_batch_fails_as_a_whole_while_the_table_fails() {
    let world = World::new().await;
    let (client, _) = client_and_wire(&["CommitsTable"]).await;
    let nowhere = DynamoDbStore::new(client, ledgerline_testing::table("SequenceTable"));
    let records = [record(Ok(commit("tank-a", 1))), record(Ok(commit("tank-a", 2)))];
    assert_eq!(Sequencing::new(nowhere, world.log.clone()).sequence(&records, true).await, Some(0));
    assert_eq!(world.sequencing.sequence(&records, true).await, None);
}

/// Escapes make a text longer. A quote in a value is one byte in the log and four bytes in the
/// response of the function.
#[tokio::test]
async fn a_page_is_almost_as_large_as_the_largest_response_of_a_function() {
    for (text, least) in
        [("\"", 4_500_000), ("a", 3_500_000), ("\u{1}", 4_500_000), ("ü", 3_500_000)]
    {
        let world = World::new().await;
        let data = json!({ "text": text.repeat(50_000 / text.len()) }).to_string();
        let all: Vec<_> = (1..=90).map(|number| (format!("tank-{number}"), 1)).collect();
        let mut records = Vec::new();
        for (stream, version) in &all {
            let mut commit = commit(stream, *version);
            commit.events[0].data.clone_from(&data);
            world.log.append(&commit, None).await.unwrap();
            records.push(record(Ok(commit)));
        }
        assert_eq!(world.sequencing.sequence(&records, true).await, None);
        let mut after = "beginning".to_owned();
        let mut found = Vec::new();
        let mut largest = 0;
        loop {
            let page = world.get(&format!("after={after}&limit=1000")).await.unwrap();
            largest = largest.max(json!({ "body": page.to_string() }).to_string().len());
            for commit in page["commits"].as_array().unwrap() {
                found.push((commit["stream"].as_str().unwrap().to_owned(), 1));
            }
            after = page["cursor"].as_str().unwrap().to_owned();
            if page["complete"] == true {
                break;
            }
        }
        assert_eq!(found, all, "{text:?}");
        assert!((least..6_000_000).contains(&largest), "{text:?}: {largest}");
    }
}

#[tokio::test]
async fn a_bad_query_is_answered_with_the_name_of_its_parameter() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let cursor = world.get("").await.unwrap()["cursor"].as_str().unwrap().to_owned();
    let (cut, many) = (
        &cursor[..cursor.len() - 1],
        "category=a&".to_owned() + &(0..51).map(|n| format!("category=c{n}&")).collect::<String>(),
    );
    for (query, field) in [
        (format!("after={cut}"), "after"),
        ("after=".into(), "after"),
        ("after=yesterday".into(), "after"),
        ("after=eyJpZCI6MX0".into(), "after"),
        (format!("after={cursor}&after={cursor}"), "after"),
        ("limit=0".into(), "limit"),
        ("limit=1000000000".into(), "limit"),
        ("limit=ten".into(), "limit"),
        ("wait=21".into(), "wait"),
        ("wait=-1".into(), "wait"),
        ("category=Tank".into(), "category"),
        ("category=tanks".into(), "category"),
        ("category=".into(), "category"),
        ("type=".into(), "type"),
        ("type=TankFlown".into(), "type"),
        ("After=now".into(), "After"),
        ("limit=%2B5".into(), "limit"),
        ("limit=05".into(), "limit"),
        // A `+` in a query is a space.
        ("after=2026-11-26T01:00:00+01:00".into(), "after"),
        ("after=2026-11-26".into(), "after"),
        (many, "category"),
    ] {
        let problem = world.get(&query).await.unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (StatusCode::BAD_REQUEST, Some(field)),
            "{query}"
        );
    }
    for time in ["2026-11-26T01:00:00+01:00", "9999-12-31T23:59:59Z", "2026-11-26"] {
        let problem = world.get(&format!("after={time}")).await.unwrap_err();
        assert!(problem.detail.contains("the time cannot be read"), "{time}: {}", problem.detail);
    }
    // The cursor is of another `$all`: a new one, and one that was restored from a backup.
    let anew = World::new().await;
    let restored = World::new().await;
    anew.commit(&[("tank-b", 1)]).await;
    for (world, text) in [
        (&anew, "older than the current `$all`: read from `beginning`"),
        (&restored, "ahead of `$all`"),
    ] {
        let problem = world.get(&format!("after={cursor}")).await.unwrap_err();
        assert!(
            problem.detail.contains(text) && problem.field.as_deref() == Some("after"),
            "{problem:?}"
        );
    }
}

#[tokio::test]
async fn a_request_may_wait_for_the_next_commit() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let began = Instant::now();
    let (answer, ()) = tokio::join!(world.get("after=now&wait=20&category=tank"), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.commit(&[("lamp-b", 1)]).await;
        world.commit(&[("tank-a", 2)]).await;
    });
    assert_eq!(answer.unwrap()["commits"][0]["version"], 2);
    assert!(began.elapsed() < Duration::from_secs(15));
    let began = Instant::now();
    let nothing = world.get("after=now&wait=1").await.unwrap();
    assert_eq!((&nothing["commits"], &nothing["complete"]), (&json!([]), &json!(true)));
    assert!(began.elapsed() >= Duration::from_secs(1));
}

/// docs/costs.md: a batch costs one write unit for each KB of its segment.
#[tokio::test]
async fn a_batch_is_one_write_and_costs_one_unit_for_each_kilobyte() {
    let world = World::new().await;
    world.commit(&[("tank-warm", 1)]).await;
    for (size, units) in [(1, 1.0), (10, 1.0), (100, 6.0)] {
        let id = |number| format!("account-{number:08}-b005-45d7-9eb6-{size:012}");
        let records: Vec<_> = (0..size).map(|number| record(Ok(commit(&id(number), 1)))).collect();
        world.wire.take();
        assert_eq!(world.sequencing.sequence(&records, true).await, None);
        let calls = world.wire.take();
        let (operations, sum): (Vec<_>, f64) = (
            calls.iter().map(|call| call.operation.as_str()).collect(),
            calls.iter().map(|call| call.units).sum(),
        );
        assert_eq!(
            (operations.as_slice(), sum),
            (["ExecuteStatement"].as_slice(), units),
            "{size}"
        );
    }
}

/// docs/costs.md: a page is one Query of its segments, one Query for each stream with many commits,
/// and one BatchGetItem for all other streams. A BatchGetItem costs one read unit for each commit.
#[tokio::test]
async fn a_page_keeps_its_budget_of_calls_and_units() {
    let world = World::new().await;
    let ids: Vec<_> = (0..10).map(|number| format!("tank-{number}")).collect();
    let first: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    world.commit(&first).await;
    world.commit(&(2..=21).map(|version| ("tank-0", version)).collect::<Vec<_>>()).await;
    world.wire.take();
    assert_eq!(world.get("limit=30").await.unwrap()["commits"].as_array().unwrap().len(), 30);
    let calls = world.wire.take();
    assert_eq!(calls.len(), 1 + 1 + 1, "{calls:?}");
    assert!(calls.iter().map(|call| call.units).sum::<f64>() <= 14.0, "{calls:?}");
}

/// A view in one order that lists all commits of tanks.
const DIARY: OrderedView<u64, u64> =
    OrderedView { table: KEYS, of: &["tank"], writes: &[Write::Put], changes };

const KEYS: LogTable = LogTable { variable: "FILLS_TABLE", partition: "tankId", sort: "entry" };

fn changes(
    last: &mut u64,
    _: &mut u64,
    commit: &Commit,
    changes: &mut Changes,
) -> Result<(), ChangesError> {
    if commit.stream.id() == "refused" {
        return Err(ChangesError::NoRow("a test".into()));
    }
    *last += 1;
    let entry = format!("{last:020}");
    changes.put(&json!({ "tankId": "diary", "entry": entry, "commit": format!("{} {}", commit.stream, commit.version) }))
}

impl World {
    fn subscriber(&self) -> Subscriber<u64, u64> {
        Subscriber::new(DIARY, self.rows.clone(), self.sequence.clone(), self.log.clone())
    }

    /// Reads the rows of the diary.
    async fn diary(&self) -> Vec<String> {
        self.diary_of(0).await
    }

    async fn diary_of(&self, generation: u32) -> Vec<String> {
        let query = PageQuery::new("diary", 1_000, None);
        let (rows, _) = self
            .rows
            .at_generation(generation)
            .page::<Value>(&query)
            .await
            .unwrap()
            .whole()
            .unwrap();
        rows.iter().map(|row| row["commit"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn a_subscription_applies_its_commits_once_and_an_idle_run_is_two_reads() {
    let world = World::new().await;
    let subscriber = world.subscriber();
    subscriber.catch_up().await.unwrap();
    world.commit(&[("tank-a", 1), ("lamp-b", 1), ("tank-c", 1)]).await;
    subscriber.catch_up().await.unwrap();
    world.commit(&[("lamp-b", 2), ("tank-a", 2)]).await;
    world.subscriber().catch_up().await.unwrap();
    assert_eq!(world.diary().await, ["tank-a 1", "tank-c 1", "tank-a 2"]);
    world.wire.take();
    subscriber.catch_up().await.unwrap();
    assert_eq!(world.wire.operations(), ["GetItem", "Query"], "to look costs two reads");
    // The subscription passes commits of other categories without a write.
    world.commit(&[("lamp-b", 3)]).await;
    world.wire.take();
    subscriber.catch_up().await.unwrap();
    assert_eq!(world.wire.operations(), ["GetItem", "Query"]);
}

/// The backlog is more than one page and more than one transaction.
#[tokio::test]
async fn a_subscription_catches_up_with_a_long_backlog() {
    let world = World::new().await;
    let ids: Vec<_> = (0..250).map(|number| format!("tank-{number}")).collect();
    world.commit(&ids.iter().map(|id| (id.as_str(), 1)).collect::<Vec<_>>()).await;
    world.commit(&(2..=130).map(|version| ("tank-7", version)).collect::<Vec<_>>()).await;
    world.subscriber().catch_up().await.unwrap();
    let expected = ids
        .iter()
        .map(|id| format!("{id} 1"))
        .chain((2..=130).map(|version| format!("tank-7 {version}")));
    assert_eq!(world.diary().await, expected.collect::<Vec<_>>());
}

/// An unreadable commit stops a subscription, because the rows have one order. The subscription
/// applies the commits before it.
#[tokio::test]
async fn a_subscription_stops_before_an_unreadable_commit() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let missing = record(Ok(commit("tank-b", 1)));
    assert_eq!(world.sequencing.sequence(&[missing], true).await, None);
    world.commit(&[("tank-c", 1)]).await;
    let subscriber = world.subscriber();
    for _ in 0..2 {
        let error = subscriber.catch_up().await.unwrap_err().to_string();
        assert!(error.contains("version 1 of tank-b cannot be read"), "{error}");
        assert_eq!(world.diary().await, ["tank-a 1"]);
    }
    world.log.append(&commit("tank-b", 1), None).await.unwrap();
    subscriber.catch_up().await.unwrap();
    assert_eq!(world.diary().await, ["tank-a 1", "tank-b 1", "tank-c 1"]);
}

/// While one instance has the lease, another instance returns at once. After the lease has expired,
/// the other instance takes it.
#[tokio::test]
async fn a_killed_instance_holds_others_up_until_its_lease_expires() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let now = Timestamp::now();
    let minute = SignedDuration::from_mins(1);
    assert!(world.rows.take_checkpoint("killed", now, minute).await.unwrap().is_some());
    let subscriber = world.subscriber();
    subscriber.catch_up().await.unwrap();
    assert!(world.diary().await.is_empty(), "another instance holds the lease");
    // The same holder takes the lease with a time a minute ago, so the lease has expired.
    assert!(world.rows.take_checkpoint("killed", now - minute, minute).await.unwrap().is_some());
    subscriber.catch_up().await.unwrap();
    assert_eq!(world.diary().await, ["tank-a 1"]);
}

#[tokio::test]
async fn a_killed_instance_with_a_clock_in_the_future_holds_up_no_other_instance() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1)]).await;
    let future = Timestamp::now() + SignedDuration::from_hours(24);
    let holding = SignedDuration::from_secs(20);
    assert!(world.rows.take_checkpoint("killed", future, holding).await.unwrap().is_some());
    world.subscriber().catch_up().await.unwrap();
    assert_eq!(world.diary().await, ["tank-a 1"]);
}

/// A segment with a time in the past would hide the commits before it from a reader that begins at
/// a time.
#[tokio::test]
async fn a_sequencer_whose_clock_lags_writes_the_time_of_the_database() {
    let world = World::new().await;
    let commit = commit("tank-a", 1);
    world.log.append(&commit, None).await.unwrap();
    // The database's time is an hour later than the clock of this instance.
    let written = Timestamp::now().as_second() + 3_600;
    let record = Record { created: Some(written), ..record(Ok(commit)) };
    assert_eq!(world.sequencing.sequence(&[record], true).await, None);
    assert_eq!(newest_segment(&world.sequence).await.unwrap().unwrap().at.as_second(), written);
}

/// A command function with its clock in the year 2099 writes one commit. The view must not get that
/// time.
#[tokio::test]
async fn an_ordered_view_gets_no_time_later_than_five_minutes_after_the_segment() {
    const TIMES: OrderedView<u64, ()> =
        OrderedView { table: KEYS, of: &["tank"], writes: &[Write::Put], changes };
    fn changes(
        last: &mut u64,
        (): &mut (),
        commit: &Commit,
        changes: &mut Changes,
    ) -> Result<(), ChangesError> {
        *last += 1;
        let entry = format!("{last:020}");
        changes.put(&json!({ "tankId": "diary", "entry": entry, "commit": commit.at.to_string() }))
    }
    let world = World::new().await;
    let mut future = commit("tank-a", 1);
    future.at = "2099-06-01T00:00:00Z".parse().unwrap();
    let past = commit("tank-b", 1);
    for commit in [&future, &past] {
        world.log.append(commit, None).await.unwrap();
        assert_eq!(world.sequencing.sequence(&[record(Ok(commit.clone()))], true).await, None);
    }
    let subscriber =
        Subscriber::new(TIMES, world.rows.clone(), world.sequence.clone(), world.log.clone());
    subscriber.catch_up().await.unwrap();
    let segment = newest_segment(&world.sequence).await.unwrap().unwrap().at;
    let times = world.diary().await;
    let shown: Timestamp = times[0].parse().unwrap();
    // The newest segment may be slightly later than the segment of the commit.
    let ahead = segment.duration_until(shown);
    assert!(!ahead.is_negative() && ahead <= CLOCK_SKEW, "{shown}, and the segment {segment}");
    assert_eq!(times[1], past.at.to_string());
    // A rebuild writes the same rows.
    let first = world.rows.view().generations().await.unwrap();
    let by = Move { at: Timestamp::now(), what: "begin".into(), ..Move::default() };
    assert!(
        world
            .rows
            .view()
            .compare_and_set(&first, first.begin_build(by.at).unwrap(), by)
            .await
            .unwrap()
    );
    let rebuild = RebuildRequest { generation: 1, ..RebuildRequest::default() };
    assert!(subscriber.rebuild(&rebuild).await.unwrap());
    assert_eq!(world.diary_of(1).await, times);
}

/// docs/costs.md: the read and write units of a subscription, for a batch of 1 commit and for a
/// batch of 10 commits of 10 streams.
#[tokio::test]
async fn a_subscription_keeps_its_budget_of_read_and_write_units() {
    let world = World::new().await;
    let subscriber = world.subscriber();
    world.commit(&[("tank-warm", 1)]).await;
    subscriber.catch_up().await.unwrap();
    for (size, reads, writes) in [(1, 6.0, 7.0), (10, 24.0, 43.0)] {
        let ids: Vec<_> = (0..size).map(|number| format!("tank-{size}-{number}")).collect();
        world.commit(&ids.iter().map(|id| (id.as_str(), 1)).collect::<Vec<_>>()).await;
        world.wire.take();
        subscriber.catch_up().await.unwrap();
        let calls = world.wire.take();
        let is_read =
            |call: &&Call| ["BatchGetItem", "GetItem", "Query"].contains(&call.operation.as_str());
        let batches = calls.iter().filter(|call| call.operation == "BatchGetItem");
        assert_eq!(
            batches.count(),
            2,
            "the commits are one call, and the positions in their streams another one"
        );
        let read: f64 = calls.iter().filter(is_read).map(|call| call.units).sum();
        let all: f64 = calls.iter().map(|call| call.units).sum();
        assert_eq!((read, all - read), (reads, writes), "{size}: {calls:?}");
    }
}

/// A subscription that fails at a commit has written the rows of the commits before it.
#[tokio::test]
async fn a_subscription_applies_the_commits_before_one_that_it_cannot_apply() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1), ("tank-b", 1), ("tank-refused", 1), ("tank-c", 1)]).await;
    let subscriber = world.subscriber();
    for _ in 0..2 {
        let error = subscriber.catch_up().await.unwrap_err().to_string();
        assert!(error.contains("version 1 of tank-refused cannot be computed"), "{error}");
        assert_eq!(world.diary().await, ["tank-a 1", "tank-b 1"]);
    }
}

/// A position in the previous generation cannot be read.
#[tokio::test]
async fn a_commit_that_the_previous_generation_cannot_get_marks_it() {
    let world = World::new().await;
    let (view, at) = (world.rows.view(), Timestamp::UNIX_EPOCH);
    let by = || Move { at, what: "x".into(), ..Move::default() };
    let none = view.generations().await.unwrap();
    assert!(view.compare_and_set(&none, none.begin_build(at).unwrap(), by()).await.unwrap());
    let building = view.generations().await.unwrap();
    assert!(view.compare_and_set(&building, building.switch(1, at).unwrap(), by()).await.unwrap());
    let compared = view.generations().await.unwrap();
    world.commit(&[("tank-a", 1)]).await;
    world.subscriber().catch_up_all().await.unwrap();
    assert_eq!(view.generations().await.unwrap(), compared);
    let put = world.client.put_item().table_name(ledgerline_testing::table("FillsTable"));
    let put = put.item("tankId", AttributeValue::S("tank-a".into()));
    let put = put.item("entry", AttributeValue::S("#position".into()));
    put.item("position", AttributeValue::S("one".into())).send().await.unwrap();
    // The active generation gets the next commit. Any stream of the previous one may be behind.
    world.commit(&[("tank-a", 2)]).await;
    assert!(world.subscriber().catch_up_all().await.is_err());
    assert_eq!(world.diary_of(1).await, ["tank-a 1", "tank-a 2"]);
    let marked = view.generations().await.unwrap();
    assert!(marked.marks_since(&compared).unwrap().any, "{marked:?}");
}

/// An instance crashed while it applied commits in the generation to which reads switch.
#[tokio::test]
async fn a_commit_waits_for_the_generation_to_which_reads_switch() {
    let world = World::new().await;
    let (view, now) = (world.rows.view(), Timestamp::now());
    let none = view.generations().await.unwrap();
    let building = none.begin_build(now).unwrap();
    assert!(view.compare_and_set(&none, building, Move::default()).await.unwrap());
    let building = view.generations().await.unwrap();
    let switched = building.switch(1, now).unwrap();
    assert!(view.compare_and_set(&building, switched, Move::default()).await.unwrap());
    let standby = world.rows.at_generation(1);
    let lease = SignedDuration::from_secs(20);
    let taken = standby.take_checkpoint("crashed", now, lease).await.unwrap().unwrap();
    world.commit(&[("tank-a", 1)]).await;
    world.subscriber().catch_up_all().await.unwrap();
    assert_eq!(world.diary_of(0).await, [""; 0]);
    // After the lease, both generations get the commit.
    standby.give_back_checkpoint(&taken).await.unwrap();
    world.subscriber().catch_up_all().await.unwrap();
    for generation in [0, 1] {
        assert_eq!(world.diary_of(generation).await, ["tank-a 1"]);
    }
}

/// On a log that is older than its sequencer, the first entry of a stream may name its newest
/// commit. The subscription applies the earlier commits part by part and never holds all of them.
#[tokio::test]
async fn commits_before_the_first_entry_of_a_stream_are_applied_part_by_part() {
    let world = World::new().await;
    for version in 1..=2_300 {
        world.log.append(&commit("tank-a", version), None).await.unwrap();
    }
    world.commit(&[("tank-b", 1), ("tank-a", 2_301), ("tank-c", 1)]).await;
    world.subscriber().catch_up().await.unwrap();
    let checkpoint = world.rows.checkpoint().await.unwrap();
    assert_eq!(checkpoint.state, "2303");
    let stream = StreamId::new("tank", "a").unwrap();
    assert_eq!(world.rows.progress(&stream).await.unwrap().0, 2_301);
    assert_eq!(world.diary().await[..3], ["tank-b 1", "tank-a 1", "tank-a 2"]);
}

/// A rebuild writes a second generation of a view in one order from the beginning of the log.
/// Meanwhile the subscription writes the active generation, and later it writes both.
#[tokio::test]
async fn a_view_in_one_order_is_rebuilt_while_its_subscription_continues() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1), ("tank-b", 1), ("tank-a", 2)]).await;
    world.subscriber().catch_up_all().await.unwrap();
    let asked = |generation| RebuildRequest { generation, ..RebuildRequest::default() };
    let error = world.subscriber().rebuild(&asked(1)).await.unwrap_err().to_string();
    assert_eq!(error, "the generation 1 is neither built nor kept");

    let now = Timestamp::now();
    let by = |what: &str| Move { at: now, what: what.into(), ..Move::default() };
    let first = world.rows.view().generations().await.unwrap();
    assert!(
        world
            .rows
            .view()
            .compare_and_set(&first, first.begin_build(now).unwrap(), by("begin"))
            .await
            .unwrap()
    );
    // A change based on the earlier generations fails.
    assert!(
        !world
            .rows
            .view()
            .compare_and_set(&first, first.begin_build(now).unwrap(), by("late"))
            .await
            .unwrap()
    );
    assert!(world.subscriber().rebuild(&asked(1)).await.unwrap());
    let expected = ["tank-a 1", "tank-b 1", "tank-a 2", "tank-c 1"];
    assert_eq!(world.diary_of(1).await, expected[..3]);

    // A subscription that has read the new generations writes both of them.
    let fresh = LogRows::new(world.client.clone(), ledgerline_testing::table("FillsTable"), KEYS);
    let subscriber = Subscriber::new(DIARY, fresh, world.sequence.clone(), world.log.clone());
    world.commit(&[("tank-c", 1)]).await;
    subscriber.catch_up_all().await.unwrap();
    assert_eq!(
        (world.diary_of(0).await, world.diary_of(1).await),
        (expected.map(String::from).to_vec(), expected.map(String::from).to_vec())
    );
}

/// Runs the reconciler at this time. Returns the stream of each difference, its version in the log
/// and its version in the view.
async fn reconcile_at(world: &World, at: Timestamp) -> Vec<(String, u64, u64)> {
    let subscriber = reconcile::Subscriber {
        id: "DiaryFunction".into(),
        kind: SubscriberKind::Subscription,
        of: vec!["tank".into()],
        table: world.rows.view().clone(),
        other: None,
    };
    let log = world.log.clone();
    let sequence = world.sequence.clone();
    let found =
        Reconciler { log, sequence, subscribers: vec![subscriber] }.reconcile(at).await.unwrap();
    let found = [found.missing, found.ahead, found.unreadable].concat().into_iter();
    let mut found: Vec<_> = found
        .map(|Difference { stream, head, found, .. }| (stream.to_string(), head, found))
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn the_reconciler_finds_recent_commits_that_are_missing_and_views_ahead_of_the_log() {
    let world = World::new().await;
    world.commit(&[("tank-a", 1), ("lamp-b", 1), ("tank-c", 1), ("tank-d", 1)]).await;
    world.subscriber().catch_up().await.unwrap();
    // The view misses the last commits of two streams. Its position in a third stream is ahead of
    // the log.
    world.commit(&[("tank-a", 2), ("lamp-b", 2), ("tank-e", 1)]).await;
    let put = world.client.put_item().table_name(ledgerline_testing::table("FillsTable"));
    let put = put.item("tankId", AttributeValue::S("tank-d".into()));
    let put = put.item("entry", AttributeValue::S("#position".into()));
    put.item("position", AttributeValue::N("7".into())).send().await.unwrap();

    let soon = Timestamp::now() + SignedDuration::from_mins(20);
    let expected =
        [("tank-a".to_owned(), 2, 1), ("tank-d".to_owned(), 1, 7), ("tank-e".to_owned(), 1, 0)];
    assert_eq!(reconcile_at(&world, soon).await, expected);
    // An unreadable position and an unreadable commit hide no other difference.
    let put = async |id: &str, position: AttributeValue| {
        let put = world.client.put_item().table_name(ledgerline_testing::table("FillsTable"));
        let put = put
            .item("tankId", AttributeValue::S(id.into()))
            .item("entry", AttributeValue::S("#position".into()));
        put.item("position", position).send().await.unwrap();
    };
    put("tank-c", AttributeValue::S("one".into())).await;
    let damaged = world.client.put_item().table_name(ledgerline_testing::table("CommitsTable"));
    let damaged = damaged.item("stream", AttributeValue::S("tank-e".into()));
    let damaged = damaged.item("version", AttributeValue::N("2".into()));
    damaged.item("at", AttributeValue::S("2026-11-21T09:30:00Z".into())).send().await.unwrap();
    let expected = [
        ("tank-a".into(), 2, 1),
        ("tank-c".into(), 1, 0),
        ("tank-d".into(), 1, 7),
        ("tank-e".into(), 2, 0),
    ];
    assert_eq!(reconcile_at(&world, soon).await, expected);
    put("tank-c", AttributeValue::N("1".into())).await;
    // A commit that is still being delivered is not missing.
    let at = commit("tank-a", 1).at;
    let ahead = [("tank-d".to_owned(), 1, 7)];
    assert_eq!(
        reconcile_at(&world, at + SignedDuration::from_mins(14)).await,
        ahead,
        "no commit is on its way to it"
    );
    // After two days, a run costs only the reads of the newest segments that find its beginning.
    world.wire.take();
    assert_eq!(reconcile_at(&world, soon + SignedDuration::from_hours(48)).await, []);
    let calls = world.wire.take();
    assert!(calls.len() <= 5, "{calls:?}");
    // The view continues up to the damaged commit.
    world.subscriber().catch_up().await.unwrap();
    assert_eq!(
        reconcile_at(&world, soon).await,
        [("tank-d".to_owned(), 1, 7), ("tank-e".to_owned(), 2, 1)]
    );
    // The reconciler finds an old missing commit even if the newest commit of its stream is young.
    world.commit(&[("tank-f", 1)]).await;
    let young = Commit { at: Timestamp::now(), ..commit("tank-f", 2) };
    world.log.append(&young, None).await.unwrap();
    assert_eq!(world.sequencing.sequence(&[record(Ok(young))], true).await, None);
    let found = reconcile_at(&world, at + SignedDuration::from_mins(16)).await;
    assert_eq!(found.last(), Some(&("tank-f".to_owned(), 2, 0)));
    assert_eq!(reconcile_at(&world, at + SignedDuration::from_mins(14)).await, ahead);
}

/// The position of one stream in the previous generation is lost.
#[tokio::test]
async fn the_reconciler_compares_the_previous_generation() {
    let world = World::new().await;
    let began = Timestamp::now() - SignedDuration::from_hours(13 * 24);
    let by = || Move { at: began, what: "x".into(), ..Move::default() };
    let view = world.rows.view();
    let none = view.generations().await.unwrap();
    let building = none.begin_build(began).unwrap();
    assert!(view.compare_and_set(&none, building, by()).await.unwrap());
    let building = view.generations().await.unwrap();
    let kept = building.switch(1, began).unwrap();
    assert!(view.compare_and_set(&building, kept, by()).await.unwrap());
    world.commit(&[("tank-a", 1), ("tank-b", 1)]).await;
    world.subscriber().catch_up_all().await.unwrap();
    let soon = Timestamp::now() + SignedDuration::from_mins(20);
    assert_eq!(reconcile_at(&world, soon).await, []);
    let delete = world.client.delete_item().table_name(ledgerline_testing::table("FillsTable"));
    let delete = delete.key("tankId", AttributeValue::S("tank-a".into()));
    delete.key("entry", AttributeValue::S("#position".into())).send().await.unwrap();
    assert_eq!(reconcile_at(&world, soon).await, [("tank-a".to_owned(), 1, 0)]);
}

/// The commit at fault exceeds a limit or is unreadable. The error names the commit, the
/// subscription applies the commits before it, and an operator can skip it.
#[tokio::test]
async fn an_operator_skips_a_commit_that_a_subscription_cannot_apply() {
    fn changes(
        state: &mut String,
        memory: &mut String,
        commit: &Commit,
        changes: &mut Changes,
    ) -> Result<(), ChangesError> {
        match commit.stream.id() {
            "state" => state.push_str(&"s".repeat(40_000)),
            "memory" => memory.push_str(&"m".repeat(40_000)),
            "shrinks" => *state = "small".to_owned(),
            // The row is larger than an item may be.
            "row" => changes
                .put(&json!({ "tankId": "row", "entry": "1", "text": "x".repeat(500_000) }))?,
            _ => {}
        }
        let entry = format!("{} {}", commit.stream, commit.version);
        changes.put(&json!({ "tankId": "diary", "entry": entry, "commit": entry }))
    }
    const VIEW: OrderedView<String, String> =
        OrderedView { table: KEYS, of: &["tank"], writes: &[Write::Put], changes };
    for at_fault in ["tank-state", "tank-memory", "tank-row", "tank-unreadable"] {
        let world = World::new().await;
        let subscriber =
            Subscriber::new(VIEW, world.rows.clone(), world.sequence.clone(), world.log.clone());
        world
            .commit(&[("tank-a", 1), (at_fault, 1), ("tank-b", 1), (at_fault, 2), ("tank-c", 1)])
            .await;
        let version = match at_fault {
            "tank-row" | "tank-unreadable" => 1,
            _ => 2,
        };
        if at_fault == "tank-unreadable" {
            world.damage(at_fault, 1).await;
        }
        // The second 40,000 bytes exceed the limit of a state, and the first row exceeds the limit
        // of an item. The commits before the one at fault are applied.
        for _ in 0..2 {
            let error = subscriber.catch_up().await.unwrap_err().to_string();
            assert!(error.contains(&format!("version {version} of {at_fault}")), "{error}");
        }
        let all = ["tank-a 1", "tank-b 1", "tank-c 1"].map(ToOwned::to_owned);
        let before = if version == 1 { 1 } else { 2 };
        let others = async || {
            let mut diary = world.diary().await;
            diary.retain(|entry| !entry.starts_with(at_fault));
            diary
        };
        assert_eq!(others().await, all[..before], "{at_fault}");

        let mut skipped = Vec::new();
        while let Err(error) = subscriber.catch_up().await {
            // The operator skips each commit at fault by name.
            let version = [1, 2].into_iter().find(|version| {
                error.to_string().contains(&format!("version {version} of {at_fault}"))
            });
            let stream = StreamId::try_from(at_fault.to_owned()).unwrap();
            let seen = world.rows.view().generations().await.unwrap();
            let by = Move { what: "skip".into(), ..Move::default() };
            let skipping = seen.skip_commit(&stream, version.unwrap()).unwrap();
            assert!(world.rows.view().compare_and_set(&seen, skipping.clone(), by).await.unwrap());
            assert!(skipping.skip_commit(&stream, version.unwrap()).is_err());
            skipped.push(version.unwrap());
        }
        let expected = match at_fault {
            "tank-row" => vec![1, 2],
            "tank-unreadable" => vec![1],
            _ => vec![2],
        };
        assert_eq!(skipped, expected, "{at_fault}");
        assert_eq!(others().await, all, "{at_fault}");
        // The state may shrink, and grow again.
        if at_fault == "tank-state" {
            world.commit(&[("tank-shrinks", 1), ("tank-state", 3)]).await;
            assert!(subscriber.catch_up().await.unwrap());
        }
    }
}

/// `$all` names version 2 before version 1, and one of the two commits is damaged.
#[tokio::test]
async fn skipping_an_out_of_order_commit_skips_no_other_commit() {
    for damaged in [1, 2] {
        let world = World::new().await;
        let stream = StreamId::new("tank", "a").unwrap();
        for version in [1, 2, 3] {
            world.log.append(&commit("tank-a", version), None).await.unwrap();
        }
        let records = [2, 1, 3].map(|version| record(Ok(commit("tank-a", version))));
        assert_eq!(world.sequencing.sequence(&records, true).await, None);
        world.commit(&[("tank-b", 1)]).await;
        world.damage("tank-a", damaged).await;
        let subscriber = world.subscriber();
        let error = subscriber.catch_up().await.unwrap_err().to_string();
        assert!(error.contains(&format!("version {damaged} of tank-a")), "{damaged}: {error}");
        let seen = world.rows.view().generations().await.unwrap();
        let skipping = seen.skip_commit(&stream, damaged).unwrap();
        let by = Move { what: "skip".into(), ..Move::default() };
        assert!(world.rows.view().compare_and_set(&seen, skipping, by).await.unwrap());
        assert!(subscriber.catch_up().await.unwrap());
        let others = [1, 2, 3].into_iter().filter(|version| *version != damaged);
        let expected =
            others.map(|version| format!("tank-a {version}")).chain(["tank-b 1".to_owned()]);
        assert_eq!(world.diary().await, expected.collect::<Vec<_>>(), "{damaged}");
    }
}
