//! Rebuilds of views on a local stack, while the views are written and read, and functions and the
//! tool are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures::future::join_all;
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{fill, install, settled},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

const TANKS: usize = 12;
/// The number of tanks that clients write to during the rebuild.
const WRITTEN: usize = 6;

pub(crate) fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// Makes processes use their copies of the generations of these tables for a second, and not for
/// ten. So the tool waits nine seconds less for the copies to expire. No function has run yet.
pub(crate) async fn hasten(client: &Client, tables: &[&str]) {
    for id in tables {
        let partition = if *id == "StockTable" { "book" } else { "tankId" };
        let put = client.put_item().table_name(table(id)).item(partition, text("$generations"));
        let put = match *id {
            "LevelsTable" => put,
            _ => put.item("entry", text("#position")),
        };
        put.item("$fresh", AttributeValue::N("1".into())).send().await.unwrap();
    }
}

/// Changes rows as a faulty projector would have written them: levels, and amounts of readings,
/// that are a thousand too high.
async fn spoil(client: &Client, ids: &[String]) {
    for id in ids {
        let update = client.update_item().table_name(table("LevelsTable")).key("tankId", text(id));
        let update = update
            .update_expression("SET #level = #level + :wrong")
            .expression_attribute_names("#level", "level");
        let wrong = AttributeValue::N("1000".into());
        update.expression_attribute_values(":wrong", wrong.clone()).send().await.unwrap();
        let update =
            client.update_item().table_name(table("ReadingsTable")).key("tankId", text(id));
        let update = update.key("entry", text("00000000000000000002#0000"));
        let update = update.update_expression("SET amount = amount + :wrong");
        update.expression_attribute_values(":wrong", wrong).send().await.unwrap();
    }
}

/// Returns the number of items of a table, by their generation.
async fn generations(client: &Client, id: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut items = client.scan().table_name(table(id)).into_paginator().items().send();
    while let Some(item) = items.next().await {
        let item = item.unwrap();
        let key = item["tankId"].as_s().unwrap().clone();
        // No rebuild has begun.
        if key == "$generations" && !item.contains_key("$moves") {
            continue;
        }
        let generation = key.split_once('/').map_or(String::new(), |(sign, _)| sign.to_owned());
        *counts.entry(if key == "$generations" { key } else { generation }).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn a_rebuild_replaces_wrong_rows_while_they_are_read_and_written_and_workers_are_killed() {
    let stack = LocalStack::start(None).await;
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    hasten(&client, &["LevelsTable", "ReadingsTable"]).await;
    let ids = join_all((0..TANKS).map(|_| install(&stack, 1_000))).await;
    join_all(ids.iter().map(|id| settled(&stack, id))).await;
    spoil(&client, &ids).await;
    // No comparison finds the wrong rows, because they have the right versions.
    let ledger = Tool::at(&stack);
    eventually("nothing is missing, not even in `$all`, which is a second behind", async || {
        (ledger.run(&["reconcile", "--younger", "0"]).0 == 0).then_some(())
    })
    .await;
    assert_eq!(stack.get(&format!("/tanks/{}", ids[0])).await.body["level"], 2_000);
    // A repair or a redelivery would change nothing: the rows have the same versions as the log.

    let ends = AtomicBool::new(false);
    let right_ones = AtomicUsize::new(0);
    let write = async |id: &String| {
        while !ends.load(Ordering::Relaxed) {
            fill(&stack, id, 1).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    // A read never fails, never shows an older version than an earlier read, and never shows a
    // wrong level after a right one.
    let read = async |id: &String| {
        let (mut version, mut is_right, mut reads) = (0, false, 0);
        while !ends.load(Ordering::Relaxed) {
            let shown = stack.get(&format!("/tanks/{id}")).await;
            assert_eq!(shown.status, StatusCode::OK, "{shown:?}");
            assert!(shown.version() >= version, "{} after {version}: {shown:?}", shown.version());
            version = shown.version();
            // The installation, a fill of a thousand, and fills of one.
            let right = 1_000 + i64::try_from(version).unwrap() - 2;
            let level = shown.body["level"].as_i64().unwrap();
            assert!(!is_right || level == right, "wrong again: {shown:?}");
            if level == right && !is_right {
                is_right = true;
                right_ones.fetch_add(1, Ordering::Relaxed);
            }
            reads += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        reads
    };
    let killed = async {
        let mut killed = 0_u64;
        while !ends.load(Ordering::Relaxed) {
            // On a slow machine, a second may be too short for any part. So the pauses grow after
            // the required number of kills: otherwise the tool would give up.
            tokio::time::sleep(Duration::from_millis(1_000 + 500 * killed.saturating_sub(11)))
                .await;
            stack.kill_instances("levels-projector");
            stack.kill_instances("readings-projector");
            killed += 1;
        }
        killed
    };
    let views = ["LevelsProjectorFunction", "Readings"];
    let rebuilt = async {
        let arguments = |view| {
            ["rebuild", "switch", view, "--write", "--yes", "--why", "wrong rows", "--parts", "3"]
        };
        // The tool itself is killed as soon as its rebuild has begun.
        for (view, id) in views.into_iter().zip(["LevelsTable", "ReadingsTable"]) {
            let mut first = ledger.start(&arguments(view));
            eventually("it has begun", async || {
                generations(&client, id).await.contains_key("$generations").then_some(())
            })
            .await;
            first.kill().unwrap();
            first.wait().unwrap();
        }
        // Reads still use the old rows, which are wrong for tanks without a writer.
        assert!(right_ones.load(Ordering::Relaxed) <= WRITTEN);
        let both = views.map(|view| Tool::end(ledger.start(&arguments(view))));
        for (code, printed) in futures::future::join_all(both).await {
            assert_eq!(code, 0, "{printed:?}");
        }
        eventually("all reads have gone over", async || {
            (right_ones.load(Ordering::Relaxed) == TANKS).then_some(())
        })
        .await;
        ends.store(true, Ordering::Relaxed);
    };
    let (_, reads, killed, ()) = futures::join!(
        futures::future::join_all(ids[..WRITTEN].iter().map(write)),
        futures::future::join_all(ids.iter().map(read)),
        killed,
        rebuilt,
    );
    eprintln!("{reads:?} reads, functions were killed {killed} times");
    assert!(killed > 10, "{killed}");
    join_all(ids.iter().map(|id| settled(&stack, id))).await;
    eventually("nothing is missing", async || {
        (ledger.run(&["reconcile", "--younger", "0"]).0 == 0).then_some(())
    })
    .await;

    // Each tank has two rows in the table and in its index, and one in the list.
    let listed = stack.get("/tanks?limit=200").await.body["tanks"].as_array().unwrap().clone();
    let listed: BTreeSet<_> = listed.iter().map(|tank| tank["tankId"].as_str().unwrap()).collect();
    assert_eq!(listed, ids.iter().map(String::as_str).collect());
    let first = stack.get("/tanks?limit=5").await.body;
    let cursor = first["cursor"].as_str().unwrap();

    // A rollback returns to the old rows, which are wrong, and as new as the others.
    let (code, plan) = ledger.run(&["rebuild", "rollback", views[0]]);
    let would =
        "switch all reads of LevelsProjectorFunction from generation 1 back to generation 0";
    assert_eq!((code, &plan[0]["would"]), (0, &json!(would)));
    let (code, _) =
        ledger.run(&["rebuild", "rollback", views[0], "--write", "--yes", "--why", "a try"]);
    assert_eq!(code, 0);
    let last = &ids[TANKS - 1];
    assert_eq!(stack.get(&format!("/tanks/{last}")).await.body["level"], 2_000);
    // A list that began before the rollback resumes where it stopped.
    let mut all = first["tanks"].as_array().unwrap().clone();
    let rest = stack.get(&format!("/tanks?limit=200&cursor={cursor}")).await.body;
    all.extend(rest["tanks"].as_array().unwrap().iter().cloned());
    let all: Vec<_> = all.iter().map(|tank| tank["tankId"].as_str().unwrap()).collect();
    assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<_>>()), (TANKS, listed));

    let (code, plan) = ledger.run(&["rebuild", "drop", views[0]]);
    let would = "delete the rows of generation 1 of LevelsProjectorFunction";
    assert_eq!((code, &plan[0]["would"]), (0, &json!(would)));
    let rows = generations(&client, "LevelsTable").await;
    assert_eq!((rows[""], rows["$1"] > TANKS), (TANKS, true), "{rows:?}");
    let drops = views.map(|view| {
        Tool::end(ledger.start(&[
            "rebuild",
            "drop",
            view,
            "--write",
            "--yes",
            "--why",
            "all is well",
        ]))
    });
    for (code, _) in futures::future::join_all(drops).await {
        assert_eq!(code, 0);
    }
    for (id, left) in [("LevelsTable", ""), ("ReadingsTable", "$1")] {
        let rows = generations(&client, id).await;
        assert_eq!(
            rows.keys().collect::<Vec<_>>(),
            BTreeSet::from([left, "$generations"]).into_iter().collect::<Vec<_>>(),
            "{rows:?}"
        );
    }

    // The operators and their reasons are stored, and impossible changes are refused.
    let done = || {
        let (code, status) = ledger.run(&["rebuild", "status", "Levels"]);
        let done = status.iter().filter_map(|line| line["what"].as_str().map(ToOwned::to_owned));
        (code, done.collect::<Vec<_>>())
    };
    let all = ["begin", "switch", "rollback", "drop", "dropped"].map(ToOwned::to_owned).to_vec();
    assert_eq!(done(), (0, all.clone()));
    // Without --write, a subcommand prints what it would do, and changes nothing.
    let would = |verb: &str| {
        let (code, printed) = ledger.run(&["rebuild", verb, "Levels"]);
        (code, printed.first().map(|line| line["would"].as_str().unwrap().to_owned()))
    };
    for (verb, ends) in
        [("start", "leave reads on the active one"), ("switch", "and switch all reads to it")]
    {
        let (code, plan) = would(verb);
        let plan = plan.unwrap();
        let begins = "build a standby generation of LevelsProjectorFunction, ";
        assert_eq!(code, 0);
        assert!(plan.starts_with(begins) && plan.contains(ends) && plan.contains("US$"), "{plan}");
    }
    assert_eq!(would("rollback"), (1, None));
    assert_eq!(done(), (0, all));
    for wrong in [
        &["rebuild", "status", "Nobody"][..],
        &["rebuild", "status", "Tank"],
        &["rebuild", "status", "HaulFunction"],
        &["rebuild", "status", "FanoutFunction"],
        &["rebuild", "rollback", "Levels", "--write", "--yes", "--why", "x"],
        &["rebuild", "switch", "Levels", "--write", "--why", "nobody is there to say yes"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
    for wrong in
        [&["--write", "--yes"][..], &["--parts", "0"], &["--workers", "0"], &["--write-units", "0"]]
    {
        assert_eq!(
            ledger.run(&[&["rebuild", "switch", "Levels"], wrong].concat()).0,
            2,
            "{wrong:?}"
        );
    }
}

/// Deliveries to the previous generation were lost. One position in it is unreadable.
#[tokio::test]
async fn a_rollback_repairs_what_is_behind_and_is_refused_for_what_it_cannot_repair() {
    const VIEW: &str = "ReadingsProjectorFunction";
    // Given a view with a new generation, and a previous one that is behind in two streams,
    let stack = LocalStack::start(None).await;
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    hasten(&client, &["ReadingsTable"]).await;
    let ids = join_all((0..3).map(|_| install(&stack, 1_000))).await;
    join_all(ids.iter().map(|id| settled(&stack, id))).await;
    let ledger = Tool::at(&stack);
    let rebuild = |verb, more: &[&str]| {
        let sure = ["rebuild", verb, "Readings", "--write", "--yes", "--why", "a test"];
        ledger.run(&[&sure, more].concat())
    };
    assert_eq!(rebuild("switch", &[]).0, 0);
    assert_eq!(rebuild("switch", &[]), (0, vec![json!({ "active": 1, "standby": 0 })]));
    let delete = client.delete_item().table_name(table("ReadingsTable"));
    let delete = delete.key("tankId", text(&ids[0]));
    delete.key("entry", text("00000000000000000002#0000")).send().await.unwrap();
    let damaged = format!("tank-{}", ids[1]);
    let put = client.put_item().table_name(table("ReadingsTable"));
    let put = put.item("tankId", text(&damaged)).item("entry", text("#position"));
    put.item("position", text("one")).send().await.unwrap();
    let (code, printed) = ledger.run(&["reconcile", "--younger", "0", "--only", VIEW]);
    let found = |printed: &[Value]| {
        let found = printed.iter().filter(|line| line["stream"].is_string());
        found.map(|line| line["stream"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let both = BTreeSet::from([format!("tank-{}", ids[0]), damaged.clone()]);
    assert_eq!((code, found(&printed)), (2, both));
    // when an operator rolls back,
    let (code, printed) = rebuild("rollback", &[]);
    // then it repairs one of them, names the other one, and is refused.
    assert_eq!((code, found(&printed)), (2, BTreeSet::from([damaged.clone()])));
    assert_eq!(rebuild("switch", &[]), (0, vec![json!({ "active": 1, "standby": 0 })]));
    // With --anyway, it rolls back. Killed and run again, it rolls back once.
    let arguments = ["rebuild", "rollback", "Readings", "--anyway"];
    let sure = ["--write", "--yes", "--why", "a test"];
    let mut first = ledger.start(&[&arguments[..], &sure].concat());
    let history = || {
        let status = ledger.run(&["rebuild", "status", "Readings"]).1;
        let done = status.iter().filter_map(|line| Some(line["what"].as_str()?.to_owned()));
        done.collect::<Vec<_>>()
    };
    let done = ["begin", "switch", &*format!("rollback without {damaged}")].map(str::to_owned);
    // A client writes to the damaged stream meanwhile, so functions mark it.
    let ends = AtomicBool::new(false);
    let write = async {
        while !ends.load(Ordering::Relaxed) {
            fill(&stack, &ids[1], 1).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let rolled_back = async {
        eventually("it has rolled back", async || (history() == done).then_some(())).await;
        ends.store(true, Ordering::Relaxed);
    };
    futures::join!(write, rolled_back);
    first.kill().unwrap();
    first.wait().unwrap();
    for _ in 0..2 {
        assert_eq!(rebuild("rollback", &[]), (0, vec![json!({ "active": 0, "standby": 1 })]));
    }
    assert_eq!(history(), done);
    let readings = stack.get(&format!("/tanks/{}/readings", ids[0])).await.body;
    assert_eq!(readings["readings"].as_array().unwrap().len(), 1, "it is repaired");
    // Forward again, the tool compares too.
    assert_eq!(rebuild("switch", &[]).0, 0);
    assert_eq!(rebuild("rollback", &[]).0, 2);
}
