//! The guards of views, tested over a real connection. A row and its position are one write, and an
//! older version does not overwrite a newer one. The number of calls stays in the budget.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use aws_smithy_runtime_api::{
    client::{
        http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
        orchestrator::{HttpRequest, HttpResponse},
    },
    http::StatusCode,
};
use jiff::Timestamp;
use ledgerline::{
    Changes, Index, LogTable, Projection, StateTable, StreamId, Write, contract,
    position::Delivery,
    view_store::{
        CommitBatch, CommitChanges, LogRowStore,
        Overwrite::{Shows, Written},
        RowStore, StateRowStore, ViewError,
    },
};
use ledgerline_dynamodb::{
    Generations, LogRows, Marks, Move, PageQuery, Phase, RowKey, StateRows, ViewTable,
};
use ledgerline_testing::{Wire, client_and_wire};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

async fn fills() -> (LogRows, Wire) {
    let (client, wire) = client_and_wire(&["FillsTable"]).await;
    (LogRows::new(client, ledgerline_testing::table("FillsTable"), KEYS), wire)
}

async fn levels() -> (StateRows, Wire) {
    let (client, wire) = client_and_wire(&["LevelsTable"]).await;
    (StateRows::new(client, ledgerline_testing::table("LevelsTable"), LEVELS), wire)
}

mod log_rows {
    ledgerline::log_row_store_tests!(async { super::fills().await.0 });
}

mod state_rows {
    ledgerline::state_row_store_tests!(async { super::levels().await.0 });
}

/// Delivers a commit of the stream [`tank`].
async fn deliver(
    rows: &LogRows,
    version: u64,
    changes: &Changes,
) -> Result<(Delivery, u64), ViewError> {
    rows.deliver(CommitChanges { stream: &tank(), version, changes: changes.clone() }).await
}

/// Begins a commit of the stream [`tank`]. The commit has one row.
async fn begin(
    rows: &LogRows,
    version: u64,
    progress: Option<String>,
) -> Result<(Delivery, u64), ViewError> {
    let delivery = CommitChanges { stream: &tank(), version, changes: self::rows(version, 1) };
    rows.begin(delivery, progress).await
}

const KEYS: LogTable = LogTable { variable: "FILLS_TABLE", partition: "tankId", sort: "entry" };
const LEVELS: StateTable = StateTable { variable: "LEVELS_TABLE", key: "tankId", indexes: &[] };

/// A row of the view of fills, one for each amount filled into a tank.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    tank_id: String,
    entry: String,
    version: u64,
}

fn rows(version: u64, count: usize) -> Changes {
    let mut changes = Changes::new(KEYS);
    (0..count)
        .map(|index| Row {
            tank_id: "1".into(),
            entry: format!("{version:020}#{index:04}"),
            version,
        })
        .for_each(|row| changes.put(&row).unwrap());
    changes
}

async fn versions(table: &LogRows) -> Vec<u64> {
    let query = PageQuery::new("1", 100, None);
    let (rows, _) = table.page::<Row>(&query).await.unwrap().whole().unwrap();
    rows.iter().map(|row| row.version).collect()
}

/// Rule 8 needs no read before a write.
#[tokio::test]
async fn a_row_of_a_state_and_a_tombstone_are_one_conditional_write_each() {
    let (levels, wire) = levels().await;
    let row = json!({ "tankId": "1", "site": "North" });
    for (version, expected) in [(2, Written), (1, Shows(2))] {
        assert_eq!(levels.put_newer(&row, version).await.unwrap().0, expected);
        assert_eq!(wire.operations(), ["PutItem"]);
    }
    assert_eq!(levels.forget("1", 3, 9).await.unwrap().0, Written);
    assert_eq!(wire.operations(), ["PutItem"]);
    assert_eq!(levels.find_row::<Value>("1").await.unwrap(), (3, None));
}

/// A commit that takes more than one write may begin several times. Only the last write moves the
/// position.
#[tokio::test]
async fn a_begun_commit_leaves_the_position_until_it_is_delivered() {
    let (table, _) = fills().await;
    assert_eq!(table.progress(&tank()).await.unwrap(), (0, None));
    for progress in [None, Some("half".to_owned())] {
        let begun = begin(&table, 1, progress.clone()).await.unwrap();
        assert_eq!(begun, (Delivery::Next, 1));
        assert_eq!(table.progress(&tank()).await.unwrap(), (0, progress));
    }
    assert_eq!(begin(&table, 2, None).await.unwrap(), (Delivery::Gap, 0));
    deliver(&table, 1, &rows(1, 0)).await.unwrap();
    assert_eq!(table.progress(&tank()).await.unwrap(), (1, None));
    assert_eq!(begin(&table, 1, None).await.unwrap(), (Delivery::Duplicate, 1));
}

#[tokio::test]
async fn rule_9_rows_and_position_are_one_write() {
    let (table, wire) = fills().await;
    deliver(&table, 1, &rows(1, 0)).await.unwrap();
    assert_eq!(wire.operations(), ["PutItem"]);
    deliver(&table, 2, &rows(2, 3)).await.unwrap();
    assert_eq!(wire.operations(), ["TransactWriteItems"]);
    let duplicate = deliver(&table, 2, &rows(2, 3)).await.unwrap();
    assert_eq!(
        (duplicate, wire.operations()),
        ((Delivery::Duplicate, 2), vec!["TransactWriteItems".to_owned()])
    );
    // A commit that is out of order writes no row.
    deliver(&table, 9, &rows(9, 3)).await.unwrap();
    assert_eq!(versions(&table).await, [2, 2, 2]);
}

async fn insert(table: &LogRows, version: u64, count: usize) -> (Delivery, u64) {
    let table = table.clone().with_writes(&[Write::Insert]);
    table.deliver(insertion(&tank(), version, count)).await.unwrap()
}

/// Returns a commit that inserts this many rows.
fn insertion(stream: &StreamId, version: u64, count: usize) -> CommitChanges<'_> {
    let commit = contract::commit(stream, version);
    let mut changes = Changes::new(KEYS);
    (0..count)
        .map(|place| Row { tank_id: stream.id().into(), entry: commit.entry(place), version })
        .for_each(|row| changes.insert(&commit, &row).unwrap());
    CommitChanges { stream, version, changes }
}

fn tank() -> StreamId {
    StreamId::new("tank", "1").unwrap()
}

/// A commit of one row costs one read unit and one write unit. The first commit of a stream costs
/// one read unit more. A transaction of the row and the position would cost four write units.
#[tokio::test]
async fn the_newest_inserted_row_is_the_position() {
    let (table, wire) = fills().await;
    for (version, verdict, operations) in [
        // Without a row, the guard reads the position item too.
        (1, (Delivery::Next, 1), &["Query", "GetItem", "BatchWriteItem"][..]),
        (1, (Delivery::Duplicate, 1), &["Query", "GetItem"]),
        // The rows of a commit are not shown before the rows of the commits before it.
        (3, (Delivery::Gap, 1), &["Query", "GetItem"]),
        (2, (Delivery::Next, 2), &["Query", "BatchWriteItem"]),
        (3, (Delivery::Next, 3), &["Query", "BatchWriteItem"]),
        (2, (Delivery::Duplicate, 3), &["Query", "GetItem"]),
    ] {
        wire.take();
        assert_eq!(insert(&table, version, 1).await, verdict);
        let calls = wire.take();
        assert_eq!(
            calls.iter().map(|call| call.operation.as_str()).collect::<Vec<_>>(),
            operations
        );
        assert!(calls.iter().all(|call| call.units <= 1.0), "{calls:?}");
    }
    assert_eq!(versions(&table).await, [1, 2, 3]);
    assert_eq!(table.position(&tank()).await.unwrap(), 3);
}

/// A commit without rows writes the position item. The position is the newer one of that item and
/// of the newest inserted row.
#[tokio::test]
async fn rule_7_holds_for_commits_without_rows_between_commits_that_insert() {
    let (table, _) = fills().await;
    for (version, count, verdict) in [
        (2, 0, (Delivery::Gap, 0)),
        (1, 0, (Delivery::Next, 1)),
        (1, 0, (Delivery::Duplicate, 1)),
        (2, 2, (Delivery::Next, 2)),
        (4, 0, (Delivery::Gap, 2)),
        (3, 1, (Delivery::Next, 3)),
        (4, 0, (Delivery::Next, 4)),
        (3, 1, (Delivery::Duplicate, 4)),
        (4, 0, (Delivery::Duplicate, 4)),
        (6, 1, (Delivery::Gap, 4)),
        (5, 0, (Delivery::Next, 5)),
        (6, 1, (Delivery::Next, 6)),
    ] {
        let found = insert(&table, version, count).await;
        assert_eq!(found, verdict, "version {version}");
    }
    assert_eq!(versions(&table).await, [2, 2, 3, 6]);
}

/// The rows may have no position, because the view wrote them in another way. A view that inserts
/// resumes from the position item.
#[tokio::test]
async fn a_view_that_inserts_resumes_from_the_position_item() {
    let (table, _) = fills().await;
    for version in 1..=3 {
        deliver(&table, version, &rows(version, 1)).await.unwrap();
    }
    assert_eq!(table.position(&tank()).await.unwrap(), 3);
    for (version, verdict) in [
        (2, (Delivery::Duplicate, 3)),
        (5, (Delivery::Gap, 3)),
        (4, (Delivery::Next, 4)),
        (5, (Delivery::Next, 5)),
        (3, (Delivery::Duplicate, 5)),
    ] {
        assert_eq!(insert(&table, version, 1).await, verdict);
    }
    assert_eq!(versions(&table).await, [1, 2, 3, 4, 5]);
    assert_eq!(table.position(&tank()).await.unwrap(), 5);
}

/// A rebuild writes the last row of a stream after the others. A crash between the two calls leaves
/// rows with an earlier position, which the delivered commits move all the same.
#[tokio::test]
async fn commits_catch_up_a_stream_whose_rebuild_crashed_between_two_calls() {
    let (client, _) = client_and_wire(&["FillsTable"]).await;
    let name = ledgerline_testing::table("FillsTable");
    let table = LogRows::new(client.clone(), &name, KEYS).with_writes(&[Write::Insert]);
    assert_eq!(insert(&table, 1, 1).await, (Delivery::Next, 1));
    let stream = tank();
    let mut batch = CommitBatch::new(KEYS, None);
    for version in 2..=5 {
        batch.try_add(insertion(&stream, version, 1)).unwrap();
    }
    table.apply(&batch).await.unwrap();
    let last = contract::commit(&stream, 5).entry(0);
    let last = [("tankId", stream.id()), ("entry", &last)]
        .map(|(key, value)| (key.to_owned(), AttributeValue::S(value.to_owned())));
    client.delete_item().table_name(&name).set_key(Some(last.into())).send().await.unwrap();
    assert_eq!(table.consistent_position(&stream).await.unwrap(), 1);

    for (version, verdict) in [
        (3, (Delivery::Gap, 1)),
        (2, (Delivery::Next, 2)),
        (2, (Delivery::Duplicate, 2)),
        (3, (Delivery::Next, 3)),
        (4, (Delivery::Next, 4)),
        (5, (Delivery::Next, 5)),
        (6, (Delivery::Next, 6)),
        (4, (Delivery::Duplicate, 6)),
    ] {
        assert_eq!(insert(&table, version, 1).await, verdict, "version {version}");
    }
    assert_eq!(versions(&table).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(table.consistent_position(&stream).await.unwrap(), 6);
}

/// One call writes the rows of ten streams. A later call writes the next commit of each stream.
#[tokio::test]
async fn one_call_writes_rows_of_many_streams_and_rows_of_one_stream_stay_in_order() {
    let (table, wire) = fills().await;
    let table = table.with_writes(&[Write::Insert]);
    let streams: Vec<_> =
        (1..=10).map(|id| StreamId::new("tank", &id.to_string()).unwrap()).collect();
    let of = insertion;
    let first: Vec<_> = streams.iter().map(|stream| of(stream, 1, 1)).collect();
    let found = table.deliver_all(first).await.unwrap();
    assert_eq!(found, [(Delivery::Next, 1); 10]);
    let calls = wire.operations();
    assert_eq!(calls.iter().filter(|operation| *operation == "BatchWriteItem").count(), 1);
    assert_eq!(
        calls.len(),
        10 + 10 + 1,
        "each first commit of a stream looks for a position at two places"
    );

    // Stream `a` has two commits (one of them with two rows), a duplicate and a gap. Stream `b` has
    // a gap and a duplicate. Stream `c` has a commit without rows after one with a row.
    let [a, b, c] = [&streams[0], &streams[1], &streams[2]];
    let next = vec![
        of(a, 2, 2),
        of(b, 4, 1),
        of(c, 2, 1),
        of(a, 3, 1),
        of(b, 1, 1),
        of(c, 3, 0),
        of(a, 3, 1),
        of(a, 5, 1),
    ];
    let found = table.deliver_all(next).await.unwrap();
    assert_eq!(
        found,
        [
            (Delivery::Next, 2),
            (Delivery::Gap, 1),
            (Delivery::Next, 2),
            (Delivery::Next, 3),
            (Delivery::Duplicate, 1),
            (Delivery::Next, 3),
            (Delivery::Duplicate, 3),
            (Delivery::Gap, 3),
        ]
    );
    let written = wire.operations().into_iter().filter(|operation| operation == "BatchWriteItem");
    assert_eq!(
        written.count(),
        3,
        "two for the first commits, whose last rows come later, and one for the second ones"
    );
    assert_eq!(table.position(a).await.unwrap(), 3);
    assert_eq!(table.position(b).await.unwrap(), 1);
    assert_eq!(table.position(c).await.unwrap(), 3);
    assert_eq!(versions(&table).await, [1, 2, 2, 3]);
}

/// An empty database under load. It leaves every row of the first batch unprocessed but the first
/// row. It reads one key of each batch, and never a key of the tank `z`. It records the rows and
/// keys of each batch.
#[derive(Debug, Clone, Default)]
struct Busy(Arc<Mutex<Vec<Vec<String>>>>);

impl Busy {
    fn table(&self) -> LogRows {
        let connector = self.clone();
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version_latest()
            .region(aws_sdk_dynamodb::config::Region::new("eu-central-1"))
            .credentials_provider(aws_sdk_dynamodb::config::Credentials::for_tests())
            .http_client(http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone())));
        LogRows::new(Client::from_conf(config.build()), "Fills", KEYS).with_writes(&[Write::Insert])
    }

    fn batches(&self) -> Vec<Vec<String>> {
        self.0.lock().unwrap().clone()
    }
}

impl HttpConnector for Busy {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let operation = request.headers().get("x-amz-target").unwrap().rsplit('.').next().unwrap();
        let body: Value = serde_json::from_slice(request.body().bytes().unwrap()).unwrap();
        let answer = match operation {
            "Query" => json!({ "Count": 0, "Items": [] }),
            "GetItem" => json!({}),
            "BatchWriteItem" => {
                let mut batches = self.0.lock().unwrap();
                let puts = body["RequestItems"]["Fills"].as_array().unwrap();
                let row = |put: &Value| {
                    let row = &put["PutRequest"]["Item"];
                    format!(
                        "{}@{}",
                        row["tankId"]["S"].as_str().unwrap(),
                        row["version"]["N"].as_str().unwrap()
                    )
                };
                batches.push(puts.iter().map(row).collect());
                let left: Vec<_> = puts.iter().skip(1).filter(|_| batches.len() == 1).collect();
                if left.is_empty() {
                    json!({})
                } else {
                    json!({ "UnprocessedItems": { "Fills": left } })
                }
            }
            "BatchGetItem" => {
                let mut left = body["RequestItems"]["Fills"]["Keys"].as_array().unwrap().clone();
                let tank = |key: &Value| key["tankId"]["S"].as_str().unwrap().to_owned();
                self.0.lock().unwrap().push(left.iter().map(tank).collect());
                let read =
                    left.iter().position(|key| tank(key) != "z").map(|place| left.remove(place));
                json!({
                    "Responses": { "Fills": read.as_slice() },
                    "UnprocessedKeys": if left.is_empty() { json!({}) } else { json!({ "Fills": { "Keys": left } }) },
                })
            }
            other => panic!("{other}"),
        };
        let status = StatusCode::try_from(200).unwrap();
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, answer.to_string().into())))
    }
}

/// Rule 10: the view writes an unprocessed row before any later row of its stream.
#[tokio::test]
async fn unprocessed_rows_are_written_before_later_rows() {
    let busy = Busy::default();
    let table = busy.table();
    let a = StreamId::new("tank", "a").unwrap();
    let b = StreamId::new("tank", "b").unwrap();
    let of = |stream, version| insertion(stream, version, 1);
    let found = table.deliver_all(vec![of(&a, 1), of(&a, 2), of(&b, 1), of(&b, 2)]).await.unwrap();
    assert_eq!(
        found,
        [(Delivery::Next, 1), (Delivery::Next, 2), (Delivery::Next, 1), (Delivery::Next, 2)]
    );
    assert_eq!(busy.batches(), [vec!["a@1", "b@1"], vec!["b@1"], vec!["a@2", "b@2"]]);
}

/// A read does not report an unprocessed key as a missing row.
#[tokio::test(start_paused = true)]
async fn unprocessed_keys_are_read_before_the_call_returns() {
    let busy = Busy::default();
    let key = |tank: &str| (tank.to_owned(), "1".to_owned());
    let found = busy.table().get_all(&[key("a"), key("b"), key("c")]).await.unwrap();
    let found: Vec<Value> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found.len(), 3);
    assert_eq!(busy.batches(), [vec!["a", "b", "c"], vec!["b", "c"], vec!["c"]]);
    let failed = busy.table().get_all::<Value>(&[key("a"), key("z")]).await;
    assert!(matches!(failed, Err(ViewError::Throttled(_))), "{failed:?}");
}

/// A crash between two rows of a commit does not move the position.
#[tokio::test]
async fn the_last_row_of_a_commit_moves_the_position() {
    let (table, wire) = fills().await;
    insert(&table, 1, 2).await;
    for left in [1, 2, 150, 299] {
        // The table has this many rows of the commit, as after a crash. The rows have other
        // content, as after a restore of the log from a backup.
        for place in 0..left {
            let entry = contract::commit(&tank(), 2).entry(place);
            let row = json!({ "tankId": "1", "entry": entry, "version": 2, "#position": 1, "lost": true });
            table.put_new(&row).await.unwrap();
        }
        assert_eq!(table.position(&tank()).await.unwrap(), 1);
    }
    wire.take();
    assert_eq!(insert(&table, 2, 300).await, (Delivery::Next, 2));
    let calls = wire.operations();
    assert_eq!(
        calls.len(),
        1 + 12 + 1,
        "a read, the rows but the last in lots of 25, and the last"
    );
    assert_eq!(table.position(&tank()).await.unwrap(), 2);
    let entry = contract::commit(&tank(), 2).entry(0);
    let first: Value =
        table.get(RowKey { partition: "1", sort: entry.as_str() }).await.unwrap().unwrap();
    assert_eq!(
        first,
        json!({ "tankId": "1", "entry": entry, "version": 2 }),
        "the row of the crashed attempt is overwritten"
    );
}

/// A late request must not delete the newer row of another writer.
#[tokio::test]
async fn a_row_is_deleted_only_while_its_claim_is_the_given_one() {
    let (table, _) = fills().await;
    let entry = "mail";
    table.put_new(&json!({ "tankId": "1", "entry": entry, "claim": "theirs" })).await.unwrap();
    for (claim, deleted) in [("ours", false), ("theirs", true), ("theirs", false)] {
        assert_eq!(
            table.delete_if(RowKey { partition: "1", sort: entry }, "claim", claim).await.unwrap(),
            deleted,
            "{claim}"
        );
        let row: Option<Value> = table.get(RowKey { partition: "1", sort: entry }).await.unwrap();
        assert_eq!(row.is_some(), claim == "ours");
    }
}

#[tokio::test]
async fn a_commit_may_change_as_many_rows_as_one_transaction_accepts() {
    let (table, _) = fills().await;
    let refused = deliver(&table, 1, &rows(1, 100)).await;
    assert!(matches!(refused, Err(ViewError::TooManyRows { rows: 100, max: 99 })));
    assert_eq!(deliver(&table, 1, &rows(1, 99)).await.unwrap(), (Delivery::Next, 1));
    assert_eq!(versions(&table).await.len(), 99);
}

#[tokio::test]
async fn pages_show_every_row_once_newest_first() {
    let (table, _) = fills().await;
    for version in 1..=25 {
        deliver(&table, version, &rows(version, 1)).await.unwrap();
    }
    let mut cursor = None;
    let mut versions = Vec::new();
    loop {
        let query = PageQuery { newest_first: true, ..PageQuery::new("1", 10, cursor.as_deref()) };
        let (rows, next) = table.page::<Row>(&query).await.unwrap().whole().unwrap();
        versions.extend(rows.iter().map(|row| row.version));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(versions, (1..=25).rev().collect::<Vec<_>>());
}

/// Begins a generation, which no read uses.
async fn begin_generation(table: &ViewTable) -> Generations {
    let (at, none) = (Timestamp::UNIX_EPOCH, Generations::default());
    let by = Move { at, what: "begin".into(), ..Move::default() };
    assert!(table.compare_and_set(&none, none.begin_build(at).unwrap(), by).await.unwrap());
    table.generations().await.unwrap()
}

#[tokio::test]
async fn marks_at_once_all_succeed_and_a_stream_is_marked_once() {
    // Given a generation that no read uses,
    let (rows, wire) = fills().await;
    let table = rows.view();
    let begun = begin_generation(table).await;
    let standby = table.at(1);
    let streams: Vec<_> =
        (0..8).map(|id| StreamId::new("tank", &id.to_string()).unwrap()).collect();
    // when functions mark several of its streams at once,
    let marks = streams.iter().map(|stream| standby.mark_behind(Some(stream)));
    let marked = futures::future::try_join_all(marks).await.unwrap();
    // then no mark is lost, and nothing else has changed.
    assert_eq!(marked, [true; 8]);
    let generations = table.generations().await.unwrap();
    let marks = generations.marks_since(&begun).unwrap();
    assert_eq!(marks.streams, streams.iter().cloned().collect());
    assert!(generations.standby.as_ref().unwrap().behind.is_some() && !marks.any);
    // A stream that is marked is not marked again.
    wire.take();
    assert!(standby.mark_behind(Some(&streams[0])).await.unwrap());
    assert_eq!(wire.operations(), ["GetItem"]);
    // The generation that queries read is not marked.
    assert!(!table.at(0).mark_behind(Some(&streams[0])).await.unwrap());
    assert_eq!(table.generations().await.unwrap(), generations);
}

#[tokio::test]
async fn a_comparison_removes_marks_and_finds_later_marks_and_other_changes() {
    let (rows, _) = fills().await;
    let (table, stream) = (rows.view(), tank());
    begin_generation(table).await;
    table.at(1).mark_behind(Some(&stream)).await.unwrap();
    // Given a comparison that has removed the marks,
    let compared = table.remove_marks().await.unwrap();
    assert_eq!(compared, table.generations().await.unwrap());
    assert_eq!(compared.marks_since(&compared), Some(&Marks::default()));
    // when the same stream is marked, then the comparison finds it.
    table.at(1).mark_behind(Some(&stream)).await.unwrap();
    let marked = table.generations().await.unwrap();
    assert_eq!(marked.marks_since(&compared).unwrap().streams, [stream.clone()].into());
    // When another comparison removes the mark, then the first one finds that, too.
    table.remove_marks().await.unwrap();
    assert_eq!(table.generations().await.unwrap().marks_since(&compared), None);
    table.at(1).mark_behind(Some(&stream)).await.unwrap();
    assert_eq!(table.generations().await.unwrap().marks_since(&compared), None);
    // The item has room for a hundred names. Other streams are marked together.
    let compared = table.remove_marks().await.unwrap();
    for id in 0..103 {
        let stream = StreamId::new("tank", &id.to_string()).unwrap();
        assert!(table.at(1).mark_behind(Some(&stream)).await.unwrap());
    }
    let marked = table.generations().await.unwrap();
    let marks = marked.marks_since(&compared).unwrap();
    assert_eq!((marks.streams.len(), marks.any), (100, true));
}

/// A deployment may replace the functions before the operator's tool, or after it.
#[tokio::test]
async fn changes_of_the_generations_keep_the_fields_of_a_newer_version() {
    // Given generations with a field of a newer version,
    let (client, _) = client_and_wire(&["FillsTable"]).await;
    let name = ledgerline_testing::table("FillsTable");
    let rows = LogRows::new(client.clone(), &name, KEYS);
    let table = rows.view();
    begin_generation(table).await;
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let change = client.update_item().table_name(&name).key("tankId", text("$generations"));
    let change = change.key("entry", text("#position")).update_expression("SET #new = :new");
    let new = AttributeValue::M([("of".to_owned(), AttributeValue::L(vec![text("x")]))].into());
    let change = change.expression_attribute_names("#new", "$new");
    change.expression_attribute_values(":new", new.clone()).send().await.unwrap();
    // when a function marks a stream, and an operator switches,
    table.at(1).mark_behind(Some(&tank())).await.unwrap();
    let marked = table.generations().await.unwrap();
    let switched = marked.switch(1, Timestamp::UNIX_EPOCH).unwrap();
    assert!(table.compare_and_set(&marked, switched, Move::default()).await.unwrap());
    // then the field stays.
    let stored = client.scan().table_name(&name).send().await.unwrap();
    let [stored] = stored.items() else { panic!("{stored:?}") };
    assert_eq!((&stored["$new"], &stored["$read"]), (&new, &AttributeValue::N("1".into())));
}

/// Two generations share no row, position or cursor, even with equal keys. Clearing one generation
/// deletes nothing of the other.
#[tokio::test]
async fn two_generations_share_no_row_position_or_cursor() {
    let (table, _) = fills().await;
    let old = table.at_generation(0);
    let new = table.at_generation(2);
    let stream = StreamId::new("tank", "1").unwrap();
    for (rows, version, of) in [(&old, 1, "old"), (&new, 1, "new"), (&new, 2, "new")] {
        let mut changes = Changes::new(KEYS);
        changes.put(&json!({ "tankId": "1", "entry": format!("{version}"), "of": of })).unwrap();
        changes.add("all", "sum", "count", 1);
        assert_eq!(deliver(rows, version, &changes).await.unwrap().0, Delivery::Next);
    }
    let building = Generations::default().begin_build(Timestamp::UNIX_EPOCH).unwrap();
    let by = |what: &str| Move { what: what.into(), ..Move::default() };
    let begin = async |what| {
        table
            .view()
            .compare_and_set(&Generations::default(), building.clone(), by(what))
            .await
            .unwrap()
    };
    assert!(begin("begin").await);
    let seen = table.view().generations().await.unwrap();
    assert_eq!((seen.active, seen.generation_in_phase(Phase::Building)), (0, Some(1)));
    assert!(!begin("begin too").await, "the generations changed after they were read");
    assert!(begin("begin").await, "a retry of a change whose response was lost");

    let page = |cursor: Option<String>| {
        let new = new.clone();
        async move {
            let query = PageQuery::new("1", 1, cursor.as_deref());
            new.page::<Value>(&query).await.unwrap().whole().unwrap()
        }
    };
    let (first, cursor) = page(None).await;
    assert_eq!(
        first,
        [json!({ "tankId": "1", "entry": "1", "of": "new" })],
        "the sign is not shown"
    );
    let cursor = cursor.unwrap();
    assert_eq!(page(Some(cursor.clone())).await.0.len(), 1);
    let of_old = PageQuery::new("1", 1, Some(&cursor));
    assert!(
        old.page::<Value>(&of_old).await.unwrap().rows.is_empty(),
        "it leads to the same place"
    );
    assert_eq!(
        (old.position(&stream).await.unwrap(), new.position(&stream).await.unwrap()),
        (1, 2)
    );

    let mut after = None;
    let mut deleted = 0;
    loop {
        let cleared = new.view().clear(after).await.unwrap();
        deleted += cleared.deleted;
        after = cleared.after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(
        (deleted, new.position(&stream).await.unwrap()),
        (4, 0),
        "two rows, a sum and a position"
    );
    assert_eq!(
        old.get::<Value>(RowKey { partition: "all", sort: "sum" }).await.unwrap().unwrap()["count"],
        1
    );
    assert_eq!(old.position(&stream).await.unwrap(), 1);
    assert_eq!(table.view().generations().await.unwrap(), seen);

    // A client's text that looks like the prefix of a generation stays in its own generation.
    let mut looks_like_it = Changes::new(KEYS);
    looks_like_it.set("$2/1", "sum", "count", 9);
    assert_eq!(deliver(&old, 2, &looks_like_it).await.unwrap().0, Delivery::Next);
    let sum = old.get::<Value>(RowKey { partition: "$2/1", sort: "sum" }).await.unwrap();
    assert_eq!(sum, Some(json!({ "tankId": "$2/1", "entry": "sum", "count": 9 })));
    assert_eq!(new.get::<Value>(RowKey { partition: "1", sort: "sum" }).await.unwrap(), None);
}

const BY_SITE: Index =
    Index { name: "bySite", partition: "site", sort: "inspector", projection: Projection::All };
const BY_INSPECTOR: Index = Index {
    name: "byInspector",
    partition: "inspector",
    sort: "site",
    projection: Projection::KeysOnly,
};
const INSPECTIONS: StateTable =
    StateTable { variable: "INSPECTIONS_TABLE", key: "tankId", indexes: &[BY_SITE, BY_INSPECTOR] };

async fn inspections() -> StateRows {
    let (client, _) = client_and_wire(&["InspectionsTable"]).await;
    StateRows::new(client, ledgerline_testing::table("InspectionsTable"), INSPECTIONS)
}

/// Reads all rows of a list page by page, with an optional prefix of the sort key.
async fn read_list(
    table: &StateRows,
    index: Index,
    of: &str,
    starts_with: Option<&str>,
) -> Vec<Value> {
    let (mut all, mut cursor, mut turns) = (Vec::new(), None::<String>, 0);
    loop {
        let query = PageQuery { starts_with, ..PageQuery::new(of, 1, cursor.as_deref()) };
        let (rows, next) = table.page(&index, &query).await.unwrap().whole().unwrap();
        all.extend(rows);
        turns += 1;
        assert!(turns <= 3, "the list of {of} comes to its end: {all:?}");
        cursor = next;
        if cursor.is_none() {
            return all;
        }
    }
}

/// Rule 11: one unreadable row does not hide the other rows from a reader that tolerates it.
#[tokio::test]
async fn an_unreadable_row_is_named_and_the_others_are_read() {
    let (table, _) = fills().await;
    for (entry, version) in [("1", json!(1)), ("2", json!("two")), ("3", json!(3))] {
        table.put_new(&json!({ "tankId": "1", "entry": entry, "version": version })).await.unwrap();
    }
    let query = PageQuery::new("1", 10, None);
    let page = || async { table.page::<Row>(&query).await.unwrap() };
    let rows: Vec<_> = page()
        .await
        .rows
        .into_iter()
        .map(|row| row.map(|row| row.version).map_err(|row| row.key))
        .collect();
    assert_eq!(rows, [Ok(1), Err("2".to_owned()), Ok(3)]);
    let error = page().await.whole().unwrap_err().to_string();
    assert!(error.contains("cannot be written or read") && !error.contains("two"), "{error}");
}

/// A page reads the index, then the table. A row that moves to another list in between may belong
/// to another caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_never_shows_a_row_that_has_left_it() {
    let table = inspections().await;
    let writer = {
        let table = table.clone();
        tokio::spawn(async move {
            for version in 1.. {
                let inspector = if version % 2 == 0 { "ada" } else { "bob" };
                let row = json!({ "tankId": "1", "site": "Here", "inspector": inspector });
                table.put_newer(&row, version).await.unwrap();
            }
        })
    };
    for _ in 0..300 {
        let shown = read_list(&table, BY_INSPECTOR, "ada", None).await;
        assert!(shown.iter().all(|row| row["inspector"] == "ada"), "{shown:?}");
    }
    writer.abort();
}

/// A row whose index key is null is written to the table and appears in no list of that index.
#[tokio::test]
async fn a_row_without_an_index_key_is_in_no_list_of_that_index() {
    let table = inspections().await;
    let row = json!({ "tankId": "1", "site": "Here", "inspector": null });
    table.put_newer(&row, 1).await.unwrap();
    let shown: Option<Value> = table.find_row("1").await.unwrap().1;
    assert_eq!(shown, Some(json!({ "tankId": "1", "site": "Here", "version": 1 })));
    // The inspector is the sort key of this index.
    assert_eq!(read_list(&table, BY_SITE, "Here", None).await, Vec::<Value>::new());
}

/// The texts look like the library's own keys. The test writes them to both indexes and to the
/// generations 0 and 1.
#[tokio::test]
async fn a_text_that_begins_with_a_dollar_is_only_in_its_own_list_and_is_shown_as_sent() {
    const TEXTS: [&str; 9] = [
        "Zed",
        "$Zed",
        "$1/Zed",
        "$0/Zed",
        "$1/$1/Zed",
        "$",
        "$generations",
        "$checkpoint",
        "$part-0-of-1",
    ];
    let table = inspections().await;
    let row = |tank: &str, site: &str, inspector: &str| json!({ "tankId": tank, "site": site, "inspector": inspector });
    for generation in [0, 1] {
        for (place, text) in TEXTS.iter().enumerate() {
            let row = row(&format!("{place}"), text, TEXTS[TEXTS.len() - 1 - place]);
            table.at_generation(generation).put_newer(&row, 1).await.unwrap();
        }
    }
    for generation in [0, 1] {
        let table = table.at_generation(generation);
        for (place, text) in TEXTS.iter().enumerate() {
            let other = TEXTS[TEXTS.len() - 1 - place];
            let mut expected = row(&format!("{place}"), text, other);
            expected["version"] = 1.into();
            let shown: Option<Value> = table.find_row(&place.to_string()).await.unwrap().1;
            assert_eq!(shown.as_ref(), Some(&expected), "{generation}");
            for (index, of, sort) in [(BY_SITE, *text, other), (BY_INSPECTOR, other, *text)] {
                for starts_with in [None, Some(sort)] {
                    let found = read_list(&table, index, of, starts_with).await;
                    assert_eq!(found, [expected.clone()], "{generation} {} {of}", index.name);
                }
            }
        }
    }
}
