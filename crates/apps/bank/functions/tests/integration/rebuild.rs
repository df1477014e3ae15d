//! A view made again on a local stack: while it is written and read, and functions and the tool are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use crate::accounts::{Accounts, Balances};
use crate::operator::Ledger;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use bank::{transfer::Transfer, views::transfers::Status};
use futures::{StreamExt, future::join_all, stream};
use ledgerline::{decode, fold};
use ledgerline_local::services;
use ledgerline_testing::{LocalStack, eventually, table};
use reqwest::StatusCode;
use serde_json::json;

const ACCOUNTS: usize = 12;
/// The number of accounts that are written to meanwhile.
const WRITTEN: usize = 6;

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// What a projector with a bug would have written: balances that are a thousand too high, and amounts of transactions that are too.
async fn spoil(client: &Client, ids: &[String]) {
    for id in ids {
        let update = client.update_item().table_name(table("BalancesTable")).key("accountId", text(id));
        let update = update.update_expression("SET totalBalance = totalBalance + :wrong");
        let wrong = AttributeValue::N("1000".into());
        update.expression_attribute_values(":wrong", wrong.clone()).send().await.unwrap();
        let update = client.update_item().table_name(table("TransactionsTable")).key("accountId", text(id));
        let update = update.key("entry", text("00000000000000000002#0000"));
        let update = update.update_expression("SET amount = amount + :wrong");
        update.expression_attribute_values(":wrong", wrong).send().await.unwrap();
    }
}

/// The number of items of a table by the generation that they belong to.
async fn generations(client: &Client, id: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut items = client.scan().table_name(table(id)).into_paginator().items().send();
    while let Some(item) = items.next().await {
        let key = item.unwrap()["accountId"].as_s().unwrap().clone();
        let generation = key.split_once('/').map_or(String::new(), |(sign, _)| sign.to_owned());
        *counts.entry(if key == "$generations" { key } else { generation }).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn wrong_rows_are_made_again_while_they_are_read_and_written_and_whoever_works_is_killed() {
    let mut bank = LocalStack::start_busy(None).await;
    let mut ids = Vec::new();
    for _ in 0..ACCOUNTS {
        ids.push(bank.account(1_000).await);
    }
    for id in &ids {
        bank.settled(id).await;
    }
    let client = Client::new(&services::sdk_config(&bank.aws_url()));
    spoil(&client, &ids).await;
    // Nothing says so: the rows show the versions that they should.
    let ledger = Ledger::at(&bank);
    eventually(
        "nothing is missing, in the order of everything neither, which is a second behind",
        async || (ledger.run(&["reconcile", "--younger", "0"]).0 == 0).then_some(()),
    )
    .await;
    assert_eq!(bank.get(&format!("/accounts/{}", ids[0])).await.body["totalBalance"], 2_000);
    // Reconciling, and delivering everything again, would change nothing: the rows are as new as the log.

    let (ends, right_ones) = (AtomicBool::new(false), AtomicUsize::new(0));
    let write = async |id: &String| {
        while !ends.load(Ordering::Relaxed) {
            bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // Nobody sees a failure, or an older version than before, or, once the rows are right, a wrong one.
    let read = async |id: &String| {
        let (mut version, mut is_right, mut reads) = (0, false, 0);
        while !ends.load(Ordering::Relaxed) {
            let shown = bank.get(&format!("/accounts/{id}")).await;
            assert_eq!(shown.status, StatusCode::OK, "{shown:?}");
            assert!(shown.version() >= version, "{} after {version}: {shown:?}", shown.version());
            version = shown.version();
            // The opening, a credit of a thousand, and credits of one.
            let right = 1_000 + i64::try_from(version).unwrap() - 2;
            let balance = shown.body["totalBalance"].as_i64().unwrap();
            assert!(!is_right || balance == right, "wrong again: {shown:?}");
            if balance == right && !is_right {
                is_right = true;
                right_ones.fetch_add(1, Ordering::Relaxed);
            }
            reads += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        reads
    };
    let killed = async {
        let mut killed = 0_u64;
        while !ends.load(Ordering::Relaxed) {
            // On a slow machine, a second may be too short for any part: after as many kills as are asked for, the pauses grow, or the tool gives up in the end.
            tokio::time::sleep(Duration::from_millis(1_000 + 100 * killed.saturating_sub(11))).await;
            bank.kill_instances("balances-projector");
            bank.kill_instances("transactions-projector");
            killed += 1;
        }
        killed
    };
    let views = ["BalancesProjectorFunction", "Transactions"];
    let rebuilt = async {
        let arguments = |view| ["rebuild", view, "--write", "--yes", "--why", "wrong rows", "--parts", "3"];
        // The tool itself is killed as soon as it has begun.
        for (view, id) in views.into_iter().zip(["BalancesTable", "TransactionsTable"]) {
            let mut first = ledger.start(&arguments(view));
            eventually("it has begun", async || {
                generations(&client, id).await.contains_key("$generations").then_some(())
            })
            .await;
            first.kill().unwrap();
            first.wait().unwrap();
        }
        // The old rows are read until then: those of accounts that nobody writes to are wrong.
        assert!(right_ones.load(Ordering::Relaxed) <= WRITTEN);
        let both = views.map(|view| Ledger::end(ledger.start(&arguments(view))));
        for (code, printed) in futures::future::join_all(both).await {
            assert_eq!(code, 0, "{printed:?}");
        }
        eventually("all reads have gone over", async || {
            (right_ones.load(Ordering::Relaxed) == ACCOUNTS).then_some(())
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
    bank.quiet_from_now();
    eprintln!("{reads:?} reads, functions were killed {killed} times");
    assert!(killed > 10, "{killed}");
    for id in &ids {
        bank.settled(id).await;
    }
    eventually("nothing is missing", async || {
        (ledger.run(&["reconcile", "--younger", "0"]).0 == 0).then_some(())
    })
    .await;

    // There are two rows of each account in the table and in its index, and one in the list.
    let listed = bank.get("/accounts?limit=200").await.body["accounts"].as_array().unwrap().clone();
    let listed: BTreeSet<_> = listed.iter().map(|account| account["accountId"].as_str().unwrap()).collect();
    assert_eq!(listed, ids.iter().map(String::as_str).collect());
    let first = bank.get("/accounts?limit=5").await.body;
    let cursor = first["cursor"].as_str().unwrap();

    // One can go back to the old rows, which are wrong, and as new as the others.
    let (code, _) = ledger.run(&["rebuild", views[0], "--write", "--yes", "--why", "a try", "--back"]);
    assert_eq!(code, 0);
    let last = &ids[ACCOUNTS - 1];
    assert_eq!(bank.get(&format!("/accounts/{last}")).await.body["totalBalance"], 2_000);
    // A list that was begun before goes on where it was.
    let mut all = first["accounts"].as_array().unwrap().clone();
    let rest = bank.get(&format!("/accounts?limit=200&cursor={cursor}")).await.body;
    all.extend(rest["accounts"].as_array().unwrap().iter().cloned());
    let all: Vec<_> = all.iter().map(|account| account["accountId"].as_str().unwrap()).collect();
    assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<_>>()), (ACCOUNTS, listed));

    let rows = generations(&client, "BalancesTable").await;
    assert_eq!((rows[""], rows["$1"] > ACCOUNTS), (ACCOUNTS, true), "{rows:?}");
    let drops = views.map(|view| {
        Ledger::end(ledger.start(&["rebuild", view, "--write", "--yes", "--why", "all is well", "--drop"]))
    });
    for (code, _) in futures::future::join_all(drops).await {
        assert_eq!(code, 0);
    }
    for (id, left) in [("BalancesTable", ""), ("TransactionsTable", "$1")] {
        let rows = generations(&client, id).await;
        assert_eq!(
            rows.keys().collect::<Vec<_>>(),
            BTreeSet::from([left, "$generations"]).into_iter().collect::<Vec<_>>(),
            "{rows:?}"
        );
    }

    // Who did what, and why, is kept; and what is not possible is refused.
    let (_, status) = ledger.run(&["rebuild", "Balances"]);
    let done: Vec<_> = status.iter().filter_map(|line| line["what"].as_str()).collect();
    assert_eq!(done, ["begin", "switch", "back", "drop", "dropped"]);
    for wrong in [
        &["rebuild", "Nobody"][..],
        &["rebuild", "Account"],
        &["rebuild", "TransferFunction"],
        &["rebuild", "FeedsProjectorFunction"],
        &["rebuild", "Balances", "--write", "--yes", "--why", "x", "--drop"],
        &["rebuild", "Balances", "--write", "--yes", "--why", "x", "--back"],
        &["rebuild", "Balances", "--write", "--why", "nobody is there to say yes"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
    for wrong in [&["--write", "--yes"][..], &["--parts", "0"], &["--workers", "0"], &["--write-units", "0"]]
    {
        assert_eq!(ledger.run(&[&["rebuild", "Balances"], wrong].concat()).0, 2, "{wrong:?}");
    }
}

/// The number of accounts, of clients that write to them at once, and of commits that each account has at least before its views are made again.
const BUSY: (usize, usize, usize) = (40, 64, 12);

/// While 64 clients write as fast as they are answered, and each second a function is killed in the middle of what it does, four views are made again: of states, of the log, and in
/// one order. Afterwards each is the fold of the log, and no money moved twice.
#[tokio::test]
async fn views_are_made_again_under_load_and_no_transfer_moves_its_money_twice() {
    const KILLED: [&str; 5] = [
        "balances-projector",
        "transactions-projector",
        "transfers-projector",
        "transfer",
        "bookings-subscription",
    ];
    let (accounts, clients, commits) = BUSY;
    let mut bank = LocalStack::start_busy(None).await;
    let ids = join_all((0..accounts).map(|_| bank.account(1_000_000))).await;
    let filled = ids.iter().flat_map(|id| std::iter::repeat_n(id, commits - 2));
    let fill = stream::iter(filled).map(async |id| {
        let credited = bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
        // A command that lost several races is not repeated: it may be one fewer.
        assert!(is_an_answer(credited.status), "{credited:?}");
    });
    fill.buffer_unordered(16).collect::<()>().await;
    let ledger = Ledger::at(&bank);

    // Half of the accounts are not written to any more once the switch is decided. What came to them just before it has to be in the new rows: no later commit fills a gap.
    let (ends, is_decided) = (AtomicBool::new(false), AtomicBool::new(false));
    let write = async |client: usize| {
        let (mut answered, mut turn) = (0, client);
        let (ids, until) = if client.is_multiple_of(2) {
            (&ids[..accounts / 2], &is_decided)
        } else {
            (&ids[accounts / 2..], &ends)
        };
        while !until.load(Ordering::Relaxed) {
            let (from, to) = (&ids[turn % ids.len()], &ids[(turn * 7 + 3) % ids.len()]);
            let answer = match turn % 4 {
                0 => bank.post(&format!("/accounts/{from}/credits"), json!({ "amount": 3 })).await,
                1 | 2 => bank.post(&format!("/accounts/{from}/debits"), json!({ "amount": 2 })).await,
                _ => {
                    // One of nine goes to an account that does not exist, and comes back; one of nine is refused.
                    let nobody = uuid::Uuid::new_v4().to_string();
                    let to = if turn % 9 == 0 || from == to { &nobody } else { to };
                    let amount = if turn % 9 == 1 { 1_000_000_000 } else { 5 };
                    let asked = json!({ "fromAccountId": from, "toAccountId": to, "amount": amount, "currency": "EUR" });
                    bank.post("/transfers", asked).await
                }
            };
            assert!(is_an_answer(answer.status), "{answer:?}");
            answered += usize::from(answer.status.is_success());
            turn += clients + 1;
        }
        answered
    };
    let killed = async {
        for function in KILLED.iter().cycle() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if ends.load(Ordering::Relaxed) {
                return;
            }
            bank.kill_instances(function);
        }
    };
    let rebuild = |view, more: &[&str]| {
        let sure = ["rebuild", view, "--write", "--yes", "--why", "a test"];
        Ledger::end(ledger.start(&[&sure, more].concat()))
    };
    // The ledger of bookings is waited for later: its function may take a minute, for which the tool waits.
    let bookings = tokio::spawn(rebuild("Bookings", &[]));
    let rebuilt = async {
        let views = [
            rebuild("Balances", &[]),
            rebuild("TransactionsProjector", &["--parts", "2"]),
            rebuild("TransfersProjector", &[]),
        ];
        let made = join_all(views).await;
        ends.store(true, Ordering::Relaxed);
        made
    };
    let client = Client::new(&services::sdk_config(&bank.aws_url()));
    let decided = async {
        eventually("the switch is decided", async || {
            let query = client
                .query()
                .table_name(table("TransactionsTable"))
                .key_condition_expression("accountId = :g");
            let found = query.expression_attribute_values(":g", text("$generations")).send().await.unwrap();
            let is_decided = format!("{:?}", found.items()).contains("\"switch\"");
            // A rebuild that ended without a switch says below why.
            (is_decided || ends.load(Ordering::Relaxed)).then_some(())
        })
        .await;
        is_decided.store(true, Ordering::Relaxed);
    };
    let (answered, (), (), made) =
        futures::join!(join_all((0..clients).map(write)), killed, decided, rebuilt);
    bank.quiet_from_now();
    eprintln!("{} commands were answered", answered.iter().sum::<usize>());
    let cut_off: Vec<_> = KILLED.iter().filter(|function| bank.was_cut_off(function)).collect();
    assert!(cut_off.len() >= 3, "some were killed in the middle of their work: {cut_off:?}");

    let units = made.iter().map(|(code, printed)| {
        assert_eq!(*code, 0, "{printed:?}");
        let last = printed.last().unwrap();
        ["commits", "reads", "writes"].map(|unit| last[unit].as_f64().unwrap())
    });
    let [balances, transactions, transfers] = units.collect::<Vec<_>>().try_into().unwrap();
    eprintln!("[commits, reads, writes]: {balances:?}, {transactions:?}, {transfers:?}");
    let rows = accounts as f64;
    // A row and its key in the index are two units; an account that is met in two pages is written once more. The number of commits does not matter.
    assert!(balances[0] >= 10.0 * rows && balances[2] <= 3.0 * rows, "{balances:?}");
    // One for each row, and one for the position of each opening.
    assert!(transactions[2] <= transactions[0], "{transactions:?}");
    assert!(transfers[2] <= transfers[0], "{transfers:?}");

    let ended = bank.money_moved_once().await;
    eprintln!("{ended:?}");
    assert!(["credit", "refund", "refused"].iter().all(|end| ended[end] > 0), "{ended:?}");
    join_all(ids.iter().map(|id| bank.settled(id))).await;
    for commits in bank.whole_log(&["transfer"]).await.chunk_by(|one, next| one.stream == next.stream) {
        let events = commits.iter().flat_map(|commit| &commit.events);
        let events: Vec<_> = events.map(|event| decode::<Transfer>(event).unwrap()).collect();
        let status = json!(Status::of(&fold::<Transfer>(Default::default(), &events)));
        let (id, version) = (commits[0].stream.id(), commits.len());
        let shown = bank.get(&format!("/transfers/{id}?minVersion={version}")).await;
        assert_eq!((&shown.body["status"], shown.version()), (&status, version as u64), "{id}");
    }
    let (code, _) = bookings.await.unwrap();
    assert_eq!(code, 0);
    bank.bookings_add_up().await;
    let lost = bank.logged("\"unflushed values\"").await;
    assert!(lost.is_empty(), "no metric has more values than it has room for: {lost:?}");
    assert_eq!(ledger.run(&["reconcile", "--younger", "0"]).0, 0);
}

/// Whether a command was done or refused: a client that gets one of these answers goes on.
fn is_an_answer(status: StatusCode) -> bool {
    status.is_success() || matches!(status, StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE)
}
