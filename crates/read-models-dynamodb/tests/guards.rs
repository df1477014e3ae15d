//! The guards against a real wire: rows and positions in one write, newer rows only, and what it costs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use aws_sdk_dynamodb::Client;
use jiff::Timestamp;
use local::testing::{self, Wire};
use read_models::{
    LogTable,
    guard::Verdict,
    transactions::{Kind, Row, TABLE},
};
use read_models_dynamodb::{PageQuery, ReadTable, TableError};
use serde_json::json;

async fn table(id: &str) -> (ReadTable, Wire) {
    let dynamodb = testing::dynamodb(&[id]).await;
    let wire = Wire::default();
    let config =
        aws_sdk_dynamodb::config::Builder::from(&testing::sdk_config(&dynamodb)).interceptor(wire.clone());
    (ReadTable::new(Client::from_conf(config.build()), testing::table(id)), wire)
}

const STREAM: &str = "account-1";
const KEYS: &LogTable = &TABLE;

fn rows(version: u64, count: usize) -> Vec<Row> {
    (0..count)
        .map(|index| Row {
            account_id: "1".into(),
            entry: format!("{version:020}#{index:04}"),
            version,
            kind: Kind::Credit,
            amount: 1,
            balance: 1,
            reference: None,
            booked_on: jiff::civil::date(2026, 11, 21),
            at: Timestamp::UNIX_EPOCH,
        })
        .collect()
}

async fn shown(table: &ReadTable) -> Vec<u64> {
    let query = PageQuery {
        index: None,
        partition: ("accountId", "1"),
        keys: &["entry"],
        starts_with: None,
        newest_first: false,
        limit: 100,
        cursor: None,
    };
    table.page::<Row>(&query).await.unwrap().rows.iter().map(|row| row.version).collect()
}

#[tokio::test]
async fn rule_8_a_row_is_overwritten_by_a_newer_version_only() {
    let (balances, wire) = table("BalancesTable").await;
    let row = |balance: i64| json!({ "accountId": "1", "owner": "Ada", "totalBalance": balance });
    for (version, balance, written) in
        [(2, 20, true), (2, 99, false), (1, 99, false), (5, 50, true), (4, 99, false)]
    {
        assert_eq!(balances.put_newer(&row(balance), version).await.unwrap(), written, "version {version}");
        assert_eq!(wire.operations(), ["PutItem"], "one conditional write, no read");
    }
    let found: serde_json::Value = balances.get(&[("accountId", "1")]).await.unwrap().unwrap();
    assert_eq!((found["totalBalance"].as_i64(), found["version"].as_u64()), (Some(50), Some(5)));
}

#[tokio::test]
async fn rule_7_only_the_next_commit_is_applied() {
    let (table, _) = table("TransactionsTable").await;
    for (version, expected) in [
        (2, (Verdict::Gap, 0)),
        (1, (Verdict::Apply, 1)),
        (1, (Verdict::Skip, 1)),
        (3, (Verdict::Gap, 1)),
        (2, (Verdict::Apply, 2)),
        (1, (Verdict::Skip, 2)),
        (3, (Verdict::Apply, 3)),
    ] {
        let verdict = table.apply(KEYS, STREAM, version, &rows(version, 1)).await.unwrap();
        assert_eq!(verdict, expected, "version {version}");
    }
    assert_eq!(shown(&table).await, [1, 2, 3]);
    assert_eq!(table.position(KEYS, STREAM).await.unwrap(), 3);
}

/// The same for commits that add no row, which only move the position.
#[tokio::test]
async fn rule_7_holds_for_commits_without_rows() {
    let (table, _) = table("TransactionsTable").await;
    for (version, expected) in
        [(2, (Verdict::Gap, 0)), (1, (Verdict::Apply, 1)), (1, (Verdict::Skip, 1)), (2, (Verdict::Apply, 2))]
    {
        assert_eq!(table.apply(KEYS, STREAM, version, &rows(version, 0)).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn rule_9_rows_and_position_are_one_write() {
    let (table, wire) = table("TransactionsTable").await;
    table.apply(KEYS, STREAM, 1, &rows(1, 0)).await.unwrap();
    assert_eq!(wire.operations(), ["PutItem"]);
    table.apply(KEYS, STREAM, 2, &rows(2, 3)).await.unwrap();
    assert_eq!(wire.operations(), ["TransactWriteItems"]);
    // What is out of order leaves no row behind.
    table.apply(KEYS, STREAM, 9, &rows(9, 3)).await.unwrap();
    assert_eq!(shown(&table).await, [2, 2, 2]);
}

#[tokio::test]
async fn a_commit_may_change_as_many_rows_as_one_transaction_takes() {
    let (table, _) = table("TransactionsTable").await;
    let refused = table.apply(KEYS, STREAM, 1, &rows(1, 100)).await;
    assert!(matches!(refused, Err(TableError::TooManyRows(100))));
    assert_eq!(table.apply(KEYS, STREAM, 1, &rows(1, 99)).await.unwrap(), (Verdict::Apply, 1));
    assert_eq!(shown(&table).await.len(), 99);
}

#[tokio::test]
async fn pages_show_every_row_once_newest_first() {
    let (table, _) = table("TransactionsTable").await;
    for version in 1..=25 {
        table.apply(KEYS, STREAM, version, &rows(version, 1)).await.unwrap();
    }
    let mut cursor = None;
    let mut versions = Vec::new();
    loop {
        let query = PageQuery {
            index: None,
            partition: ("accountId", "1"),
            keys: &["entry"],
            starts_with: None,
            newest_first: true,
            limit: 10,
            cursor: cursor.as_deref(),
        };
        let page = table.page::<Row>(&query).await.unwrap();
        versions.extend(page.rows.iter().map(|row| row.version));
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(versions, (1..=25).rev().collect::<Vec<_>>());
}
