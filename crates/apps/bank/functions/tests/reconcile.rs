//! Lost last commits among many streams: each is found and mended, no other row is touched, and the read units are counted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod accounts;
#[path = "../examples/load/fill.rs"]
#[allow(dead_code, reason = "the example has a command line, too")]
mod fill;
mod operator;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

use accounts::{Accounts, Balances};
use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, DeleteRequest, WriteRequest},
};
use futures::{StreamExt, stream};
use ledgerline_local::{
    services,
    testing::{LocalStack, eventually, table},
};
use operator::Ledger;
use serde_json::{Value, json};

/// The tables whose rows are lost, each with its sort key, if it has one, and the function that writes it.
const VIEWS: [(&str, Option<&str>, &str); 2] = [
    ("BalancesTable", None, "BalancesProjectorFunction"),
    ("TransactionsTable", Some("entry"), "TransactionsProjectorFunction"),
];

type Item = BTreeMap<String, String>;

/// All rows of a table, by their keys.
async fn rows(client: &Client, (id, sort, _): (&str, Option<&str>, &str)) -> BTreeMap<[String; 2], Item> {
    let mut rows = BTreeMap::new();
    let mut items = client.scan().table_name(table(id)).into_paginator().items().send();
    while let Some(item) = items.next().await {
        let item = item.unwrap();
        let key = |name: &str| item[name].as_s().unwrap().clone();
        let keys = [key("accountId"), sort.map_or_else(String::new, key)];
        // The attributes of an item come in any order.
        rows.insert(keys, item.iter().map(|(name, value)| (name.clone(), format!("{value:?}"))).collect());
    }
    rows
}

/// Copies accounts in the data of a stopped stack until there are so many streams of two commits.
fn copy(data: &Path, streams: usize) {
    let database = services::open(data).unwrap();
    database.enable_bulk_loading().unwrap();
    let tables = ["CommitsTable", "BalancesTable", "TransactionsTable"].map(table);
    let tables: Vec<_> = tables.iter().map(String::as_str).collect();
    assert_eq!(fill::fill(&database, tables[0], &tables, 2 * streams).unwrap(), 2 * streams);
}

/// The newest row is taken from so many of so many streams, half of them in each of two views.
async fn lost_last_commits_are_found_and_mended(streams: usize, lost: usize) {
    let data = tempfile::tempdir().unwrap();
    let bank = LocalStack::start(Some(data.path())).await;
    for amount in [100, 200] {
        let id = bank.account(amount).await;
        bank.settled(&id).await;
    }
    bank.kill();
    copy(data.path(), streams);
    let began = Instant::now();
    let took = |what: &str| eprintln!("{what} after {:.1} s", began.elapsed().as_secs_f64());
    let bank = LocalStack::start(Some(data.path())).await;
    took("the stack has started");
    let client = Client::new(&services::sdk_config(&bank.aws_url()));
    let before = [rows(&client, VIEWS[0]).await, rows(&client, VIEWS[1]).await];
    assert_eq!(before[0].len(), streams);

    let (half, mut expected) = (lost / 2, BTreeSet::new());
    for (place, (id, sort, who)) in VIEWS.into_iter().enumerate() {
        // Streams from everywhere, and others in each view.
        let ids = before[0].keys().map(|[id, _]| id).skip(place).step_by(streams / half).take(half);
        let newest =
            ids.map(|id| before[place].range([id.clone(), String::new()]..).rfind(|row| row.0[0] == *id));
        let newest: Vec<_> = newest.map(|row| row.unwrap().0).collect();
        let delete = |keys: &&[String; 2]| {
            let delete = DeleteRequest::builder().key("accountId", AttributeValue::S(keys[0].clone()));
            let delete = match sort {
                Some(sort) => delete.key(sort, AttributeValue::S(keys[1].clone())),
                None => delete,
            };
            WriteRequest::builder().delete_request(delete.build().unwrap()).build()
        };
        for batch in newest.chunks(25) {
            let deletes = batch.iter().map(delete).collect();
            client.batch_write_item().request_items(table(id), deletes).send().await.unwrap();
        }
        let there = u64::from(sort.is_some());
        expected.extend(newest.iter().map(|keys| (who.to_owned(), format!("account-{}", keys[0]), there)));
    }
    assert_eq!(expected.len(), lost);
    took("rows are lost");

    let ledger = Ledger::at(&bank);
    let reconcile = |more: &[&str]| {
        let only = ["--only", VIEWS[0].2, "--only", VIEWS[1].2];
        let (code, printed) = ledger.run(&[&["reconcile", "--younger", "0"], &only[..], more].concat());
        let missing = printed.iter().filter(|line| line["what"] == "missing");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let missing =
            missing.map(|line| (text(&line["who"]), text(&line["stream"]), line["there"].as_u64().unwrap()));
        let missing: BTreeSet<_> = missing.collect();
        assert!(printed.iter().all(|line| line["what"] != "ahead" && line["what"] != "hole"));
        let reads = printed.iter().find(|line| line["what"] == "cost").unwrap()["reads"].as_f64().unwrap();
        (code, missing, reads)
    };
    let (code, found, reads) = reconcile(&[]);
    took("they are found");
    eprintln!("{reads} read units for {streams} streams");
    assert_eq!((code, found == expected), (2, true), "exactly those are found");
    // Of each stream, the balance takes half a unit, the newest transaction and the position beside it take one. The commits, of half a KB, take less than a tenth, and what differs is
    // looked at again.
    let least = 1.5 * streams as f64;
    assert!((least..=least * 1.25).contains(&reads), "{reads} for {streams} streams");

    let (code, found, _) = reconcile(&["--write", "--yes", "--why", "a test"]);
    took("they are sent");
    assert_eq!((code, found == expected), (0, true), "all is sent");
    eventually("all rows are there again", async || {
        (rows(&client, VIEWS[0]).await.len() == streams
            && rows(&client, VIEWS[1]).await.len() == before[1].len())
        .then_some(())
    })
    .await;
    took("they are there again");
    let after = [rows(&client, VIEWS[0]).await, rows(&client, VIEWS[1]).await];
    assert!(before == after, "every row is as it was");
    let (code, found, _) = reconcile(&[]);
    took("nothing is missing");
    assert_eq!((code, found.len()), (0, 0));
}

#[tokio::test]
async fn lost_last_commits_among_many_streams_are_found_and_mended_and_no_other_row_is_touched() {
    lost_last_commits_are_found_and_mended(10_000, 100).await;
}

/// The same at its full size: `cargo test --profile fast -p bank-functions --test reconcile -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "it takes minutes"]
async fn a_thousand_lost_commits_among_a_hundred_thousand_streams_are_found_and_mended() {
    lost_last_commits_are_found_and_mended(100_000, 1_000).await;
}
