//! Lost last commits among many streams: each is found and mended, no other row is touched, and the read units are counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

use crate::accounts::{Accounts, Balances};
use crate::{
    fill,
    operator::{self, Ledger},
};
use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, DeleteRequest, WriteRequest},
};
use futures::future::join_all;
use ledgerline_local::services;
use ledgerline_testing::{Api, LocalStack, eventually, table};
use reqwest::StatusCode;
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
    let bank = LocalStack::start_busy(Some(data.path())).await;
    for amount in [100, 200] {
        let id = bank.account(amount).await;
        bank.settled(&id).await;
    }
    bank.kill();
    copy(data.path(), streams);
    let began = Instant::now();
    let took = |what: &str| eprintln!("{what} after {:.1} s", began.elapsed().as_secs_f64());
    let bank = LocalStack::start_busy(Some(data.path())).await;
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
        let missing = |keys: &&[String; 2]| {
            ("missing".to_owned(), who.to_owned(), format!("account-{}", keys[0]), there)
        };
        expected.extend(newest.iter().map(missing));
    }
    assert_eq!(expected.len(), lost);
    took("rows are lost");

    let ledger = Ledger::at(&bank);
    let reconcile = |more: &[&str]| {
        let only = ["--only", VIEWS[0].2, "--only", VIEWS[1].2];
        let (code, printed) = ledger.run(&[&["reconcile", "--younger", "0"], &only[..], more].concat());
        let missing = operator::differences(&printed);
        assert!(printed.iter().all(|line| line["what"] != "hole"));
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

/// The same at its full size: `cargo test --profile fast -p bank-functions --test integration reconcile -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "it takes minutes"]
async fn a_thousand_lost_commits_among_a_hundred_thousand_streams_are_found_and_mended() {
    lost_last_commits_are_found_and_mended(100_000, 1_000).await;
}

/// The tables of what is behind the log in this incident.
const BEHIND: [&str; 6] = [
    "BalancesTable",
    "TransactionsTable",
    "TransfersTable",
    "BookingsTable",
    "TransferPositionsTable",
    "WelcomeEmailPositionsTable",
];

/// The items behind the log that are about none of these. The checkpoint of the ledger of bookings, which moves with any of them, is left out.
async fn others(client: &Client, about: &[&String]) -> Vec<Value> {
    let mut others = Vec::new();
    for id in BEHIND {
        let mut items = client.scan().table_name(table(id)).into_paginator().items().send();
        while let Some(item) = items.next().await {
            let item: Value = serde_dynamo::from_item(item.unwrap()).unwrap();
            let is_about = |about: &&String| item.to_string().contains(about.as_str());
            if !about.iter().any(is_about) && item["day"] != "$checkpoint" {
                others.push(json!([id, item]));
            }
        }
    }
    others
}

/// The incident of the runbook: everything behind the log fails for longer than the stream keeps its records, and with the power the queues are gone. What was committed then reached
/// nobody: no view, no process manager, not even the order of everything.
#[tokio::test]
async fn what_nobody_heard_of_for_more_than_a_day_is_found_and_mended_and_nothing_else_is_touched() {
    let data = tempfile::tempdir().unwrap();
    let bank = LocalStack::start_busy(Some(data.path())).await;
    let user = async |bank: &LocalStack, name: &str| {
        let user = Api::new(bank.url().to_owned(), Some(name.to_owned()));
        let email = format!("{name}@example.com");
        let registered = user.post("/users", json!({ "name": name, "email": email })).await;
        assert_eq!(registered.status, StatusCode::CREATED, "{registered:?}");
        registered.body["userId"].as_str().unwrap().to_owned()
    };
    let transfer = async |bank: &LocalStack, from: &str, to: &str, amount: i64| {
        let asked = json!({ "fromAccountId": from, "toAccountId": to, "amount": amount, "currency": "EUR" });
        let requested = bank.post("/transfers", asked).await;
        assert_eq!(requested.status, StatusCode::CREATED, "{requested:?}");
        requested.body["transferId"].as_str().unwrap().to_owned()
    };
    let mails = async |bank: &LocalStack| {
        let mails = reqwest::get(format!("{}/mailbox", bank.aws_url())).await.unwrap();
        mails.json::<Value>().await.unwrap()["mails"].as_array().unwrap().len()
    };
    let mut ids = join_all((0..5).map(|_| bank.account(1_000))).await;
    transfer(&bank, &ids[0], &ids[1], 10).await;
    user(&bank, "ada").await;
    bank.money_moved_once().await;
    let ledger = Ledger::at(&bank);
    eventually("everything has everything", async || (ledger.found(&[]).0 == 0).then_some(())).await;
    eventually("the mail is there", async || (mails(&bank).await == 1).then_some(())).await;

    // Commands are taken as ever.
    for of in [".fifo", ":live", "events", "SequenceTable"] {
        let outage = json!({ "of": of, "seconds": 3_600 });
        let begun = reqwest::Client::new().post(format!("{}/outages", bank.aws_url())).json(&outage);
        assert!(begun.send().await.unwrap().status().is_success());
    }
    for (path, amount) in [("credits", 5), ("debits", 7)] {
        bank.post(&format!("/accounts/{}/{path}", ids[2]), json!({ "amount": amount })).await;
    }
    ids.push(bank.account(50).await);
    let moved = transfer(&bank, &ids[0], &ids[1], 100).await;
    let eve = user(&bank, "eve").await;
    bank.kill();
    services::forget_stream_records(data.path()).unwrap();

    let bank = LocalStack::start_busy(Some(data.path())).await;
    let (ledger, client) = (Ledger::at(&bank), Client::new(&services::sdk_config(&bank.aws_url())));
    // The two accounts of the transfer change when it goes on.
    let (about, streams) = ([&ids[2], &ids[5], &moved, &ids[0], &ids[1], &eve], [&ids[2], &ids[5]]);
    let before = others(&client, &about).await;
    assert!(before.len() > 10, "{before:?}");
    let missing = |who: &str, stream: String, there| ("missing".to_owned(), who.to_owned(), stream, there);
    let mut expected = BTreeSet::new();
    for (id, there) in streams.into_iter().zip([2, 0]) {
        for view in [
            "BalancesProjectorFunction",
            "TransactionsProjectorFunction",
            "BookingsSubscriptionFunction",
            "$all",
        ] {
            expected.insert(missing(view, format!("account-{id}"), there));
        }
    }
    let (moved_stream, eve_stream) = (format!("transfer-{moved}"), format!("user-{eve}"));
    let to_act = BTreeSet::from([
        missing("TransferFunction", moved_stream.clone(), 0),
        missing("WelcomeEmailFunction", eve_stream.clone(), 0),
    ]);
    for (who, stream) in [
        ("TransfersProjectorFunction", &moved_stream),
        ("$all", &moved_stream),
        ("FeedsProjectorFunction", &eve_stream),
        ("$all", &eve_stream),
    ] {
        expected.insert(missing(who, stream.clone(), 0));
    }
    expected.extend(to_act.iter().cloned());
    assert_eq!(ledger.found(&[]), (2, expected), "exactly what was lost");

    // The tool is killed as soon as it has begun to send, and so are functions that it sends to.
    let records = async || {
        let records = client.scan().table_name(table("OperationsTable")).send().await.unwrap();
        records.items.unwrap_or_default().len()
    };
    let write = ["--write", "--yes", "--why", "an outage of a day"];
    let is_killed = async |arguments: &[&str]| {
        let before = records().await;
        let mut tool = ledger.start(&[&["reconcile", "--younger", "0"], &write[..], arguments].concat());
        eventually("it has begun to send", async || (records().await > before).then_some(())).await;
        tool.kill().unwrap();
        tool.wait().unwrap();
        for function in ["transactions-projector", "balances-projector", "sequencer", "transfer"] {
            bank.kill_instances(function);
        }
    };
    is_killed(&[]).await;
    eventually("all is mended but what process managers would act on", async || {
        let (code, _) = ledger.found(&write);
        let (_, left) = ledger.found(&[]);
        (code == 2 && left == to_act).then_some(())
    })
    .await;
    assert_eq!(bank.get(&format!("/transfers/{moved}")).await.body["status"], "requested");
    assert_eq!(mails(&bank).await, 0, "the mailbox began anew with the stack");
    bank.settled(&ids[0]).await;

    is_killed(&["--act"]).await;
    eventually("all is mended", async || {
        let (_, left) = ledger.found(&[&write[..], &["--act"]].concat());
        left.is_empty().then_some(())
    })
    .await;
    assert_eq!(bank.money_moved_once().await, BTreeMap::from([("credit", 2)]));
    eventually("everything has everything", async || (ledger.found(&[]).0 == 0).then_some(())).await;
    assert_eq!(mails(&bank).await, 1, "one to Eve, and none again to Ada");
    join_all(ids.iter().map(|id| bank.settled(id))).await;
    bank.bookings_add_up().await;
    let after = others(&client, &about).await;
    assert_eq!(after.len(), before.len(), "{after:?}");
    assert!(
        before.iter().all(|item| after.contains(item)),
        "nothing else was touched: {before:?}, {after:?}"
    );
}
