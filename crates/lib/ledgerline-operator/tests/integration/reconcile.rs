//! Lost last commits among many streams: each is found and repaired, no other row changes, and the
//! read units are counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, DeleteRequest, WriteRequest},
};
use futures::future::join_all;
use ledgerline_local::services;
use ledgerline_testing::{
    LocalStack, Tool, copy_streams, differences, eventually, table,
    tank::{draw, fill, haul, install, litres_moved_once, settled, stock_adds_up},
};
use serde_json::{Value, json};

/// The tables whose rows are lost, each with its sort key, if it has one, and the function that
/// writes it.
const VIEWS: [(&str, Option<&str>, &str); 2] = [
    ("LevelsTable", None, "LevelsProjectorFunction"),
    ("ReadingsTable", Some("entry"), "ReadingsProjectorFunction"),
];

type Item = BTreeMap<String, String>;

/// Returns all rows of a table, by their keys.
async fn rows(
    client: &Client,
    (id, sort, _): (&str, Option<&str>, &str),
) -> BTreeMap<[String; 2], Item> {
    let mut rows = BTreeMap::new();
    let mut items = client.scan().table_name(table(id)).into_paginator().items().send();
    while let Some(item) = items.next().await {
        let item = item.unwrap();
        let key = |name: &str| item[name].as_s().unwrap().clone();
        let keys = [key("tankId"), sort.map_or_else(String::new, key)];
        // The attributes of an item have no order, so they are sorted.
        rows.insert(
            keys,
            item.iter().map(|(name, value)| (name.clone(), format!("{value:?}"))).collect(),
        );
    }
    rows
}

/// Copies tanks in the data of a stopped stack, up to this number of streams with two commits.
fn copy(data: &Path, streams: usize) {
    let database = services::open(data).unwrap();
    database.enable_bulk_loading().unwrap();
    let tables = ["CommitsTable", "LevelsTable", "ReadingsTable"].map(table);
    let tables: Vec<_> = tables.iter().map(String::as_str).collect();
    assert_eq!(copy_streams(&database, "tank", &tables, 2 * streams).unwrap(), 2 * streams);
}

/// Deletes the newest rows of this many streams, half of them in each of two views, and repairs
/// them.
async fn lost_last_commits_are_found_and_repaired(streams: usize, lost: usize) {
    let data = tempfile::tempdir().unwrap();
    let stack = LocalStack::start(Some(data.path())).await;
    for amount in [100, 200] {
        let id = install(&stack, amount).await;
        settled(&stack, &id).await;
    }
    stack.kill();
    copy(data.path(), streams);
    let began = Instant::now();
    let took = |what: &str| eprintln!("{what} after {:.1} s", began.elapsed().as_secs_f64());
    let stack = LocalStack::start(Some(data.path())).await;
    took("the stack has started");
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let before = [rows(&client, VIEWS[0]).await, rows(&client, VIEWS[1]).await];
    assert_eq!(before[0].len(), streams);

    let half = lost / 2;
    let mut expected = BTreeSet::new();
    for (place, (id, sort, who)) in VIEWS.into_iter().enumerate() {
        // Streams from the whole log, and different ones in each view.
        let ids = before[0].keys().map(|[id, _]| id).skip(place).step_by(streams / half).take(half);
        let newest = ids.map(|id| {
            before[place].range([id.clone(), String::new()]..).rfind(|row| row.0[0] == *id)
        });
        let newest: Vec<_> = newest.map(|row| row.unwrap().0).collect();
        let delete = |keys: &&[String; 2]| {
            let delete = DeleteRequest::builder().key("tankId", AttributeValue::S(keys[0].clone()));
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
            ("missing".to_owned(), who.to_owned(), format!("tank-{}", keys[0]), there)
        };
        expected.extend(newest.iter().map(missing));
    }
    assert_eq!(expected.len(), lost);
    took("rows are lost");

    let ledger = Tool::at(&stack);
    let reconcile = |more: &[&str]| {
        let only = ["--only", VIEWS[0].2, "--only", VIEWS[1].2];
        let verb: &[&str] =
            if more.contains(&"--write") { &["redeliver", "--missing"] } else { &["reconcile"] };
        let (code, printed) = ledger.run(&[verb, &["--younger", "0"], &only, more].concat());
        let missing = differences(&printed);
        assert!(printed.iter().all(|line| line["what"] != "hole"));
        let reads =
            printed.iter().find(|line| line["what"] == "cost").unwrap()["reads"].as_f64().unwrap();
        (code, missing, reads)
    };
    let (code, found, reads) = reconcile(&[]);
    took("they are found");
    eprintln!("{reads} read units for {streams} streams");
    assert_eq!((code, found == expected), (2, true), "exactly those are found");
    // For each stream, its level costs half a unit, and its newest reading with its position costs
    // one. The commits, of half a KB, cost less than a tenth of that, and each difference is read
    // again.
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
async fn lost_last_commits_among_many_streams_are_repaired_and_no_other_row_is_touched() {
    lost_last_commits_are_found_and_repaired(2_000, 20).await;
}

/// The same test at its full size: `cargo test --profile fast -p ledgerline-operator --test
/// integration reconcile -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "it takes minutes"]
async fn a_thousand_lost_commits_among_a_hundred_thousand_streams_are_repaired() {
    lost_last_commits_are_found_and_repaired(100_000, 1_000).await;
}

/// The tables of the subscribers.
const BEHIND: [&str; 5] =
    ["LevelsTable", "ReadingsTable", "FillsTable", "StockTable", "HaulPositionsTable"];

/// Returns the items of subscribers that are about none of these streams. It leaves out the
/// checkpoint of the stock, which moves with any stream.
async fn others(client: &Client, about: &[&String]) -> Vec<Value> {
    let mut others = Vec::new();
    for id in BEHIND {
        let mut items = client.scan().table_name(table(id)).into_paginator().items().send();
        while let Some(item) = items.next().await {
            let item: Value = serde_dynamo::from_item(item.unwrap()).unwrap();
            let is_about = |about: &&String| item.to_string().contains(about.as_str());
            if !about.iter().any(is_about) && item["book"] != "$checkpoint" {
                others.push(json!([id, item]));
            }
        }
    }
    others
}

/// All subscribers fail for longer than the stream stores its records, and a power cut loses the
/// queues. No subscriber gets the commits of that time, not even the sequencer.
#[tokio::test]
async fn commits_of_a_days_outage_are_repaired_in_every_subscriber_and_no_other_row_changes() {
    let data = tempfile::tempdir().unwrap();
    let stack = LocalStack::start(Some(data.path())).await;
    let mut ids = join_all((0..5).map(|_| install(&stack, 1_000))).await;
    haul(&stack, &ids[0], &ids[1], 10).await;
    litres_moved_once(&stack).await;
    let ledger = Tool::at(&stack);
    eventually("every subscriber has every commit", async || {
        (ledger.found(&[]).0 == 0).then_some(())
    })
    .await;

    // Given an outage of all subscribers, commands still succeed,
    for of in [".fifo", ":live", "events", "SequenceTable"] {
        let outage = json!({ "of": of, "seconds": 3_600 });
        let begun =
            reqwest::Client::new().post(format!("{}/outages", stack.aws_url())).json(&outage);
        assert!(begun.send().await.unwrap().status().is_success());
    }
    fill(&stack, &ids[2], 5).await;
    draw(&stack, &ids[2], 7).await;
    ids.push(install(&stack, 50).await);
    let moved = haul(&stack, &ids[0], &ids[1], 100).await;
    // and a day passes.
    stack.kill();
    services::forget_stream_records(data.path()).unwrap();

    // Then exactly those commits are missing.
    let stack = LocalStack::start(Some(data.path())).await;
    let (ledger, client) =
        (Tool::at(&stack), Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url())));
    // The two tanks of the haul change when it resumes.
    let about = [&ids[2], &ids[5], &moved, &ids[0], &ids[1]];
    let before = others(&client, &about).await;
    assert!(before.len() > 10, "{before:?}");
    let missing =
        |who: &str, stream: String, there| ("missing".to_owned(), who.to_owned(), stream, there);
    let mut expected = BTreeSet::new();
    for (id, there) in [(&ids[2], 2), (&ids[5], 0)] {
        for subscriber in [
            "LevelsProjectorFunction",
            "ReadingsProjectorFunction",
            "FillsProjectorFunction",
            "StockSubscriptionFunction",
            "$all",
        ] {
            expected.insert(missing(subscriber, format!("tank-{id}"), there));
        }
    }
    let to_act = BTreeSet::from([missing("HaulFunction", format!("haul-{moved}"), 0)]);
    expected.insert(missing("$all", format!("haul-{moved}"), 0));
    expected.extend(to_act.iter().cloned());
    assert_eq!(ledger.found(&[]), (2, expected));

    // When the tool is killed as soon as it sends, and so are the functions that it invokes,
    let records = async || {
        let records = client.scan().table_name(table("OperationsTable")).send().await.unwrap();
        records.items.unwrap_or_default().len()
    };
    let write = ["--write", "--yes", "--why", "an outage of a day"];
    let is_killed = async |arguments: &[&str]| {
        let before = records().await;
        let mut tool = ledger.start(
            &[&["redeliver", "--missing", "--younger", "0"], &write[..], arguments].concat(),
        );
        eventually("it sends", async || (records().await > before).then_some(())).await;
        tool.kill().unwrap();
        tool.wait().unwrap();
        for function in ["readings-projector", "levels-projector", "tank-sequencer", "haul"] {
            stack.kill_instances(function);
        }
    };
    is_killed(&[]).await;
    // then a second run repairs all but the commits that a process manager would act on,
    eventually("only the process manager lacks a commit", async || {
        let (code, _) = ledger.repaired(&write);
        let (_, left) = ledger.found(&[]);
        (code == 2 && left == to_act).then_some(())
    })
    .await;
    assert_eq!(ledgerline_testing::category_commits(&stack, "haul").await.len(), 4);
    settled(&stack, &ids[0]).await;

    // and a run with `--act` repairs those too.
    is_killed(&["--act"]).await;
    eventually("nothing is missing", async || {
        let (_, left) = ledger.repaired(&[&write[..], &["--act"]].concat());
        left.is_empty().then_some(())
    })
    .await;
    assert_eq!(litres_moved_once(&stack).await, BTreeMap::from([("completed".to_owned(), 2)]));
    eventually("every subscriber has every commit", async || {
        (ledger.found(&[]).0 == 0).then_some(())
    })
    .await;
    join_all(ids.iter().map(|id| settled(&stack, id))).await;
    stock_adds_up(&stack).await;
    let after = others(&client, &about).await;
    assert_eq!(after.len(), before.len(), "{after:?}");
    assert!(before.iter().all(|item| after.contains(item)), "{before:?}, {after:?}");
}
