//! The operator's tool against a local stack: what it shows, and what it finds and mends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod accounts;

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use accounts::{Accounts, Balances};
use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_local::{
    build, services,
    testing::{LocalStack, eventually, table, workspace},
};
use serde_json::{Value, json};

/// The tool, at a stack.
struct Ledger {
    program: PathBuf,
    url: String,
}

impl Ledger {
    fn at(bank: &LocalStack) -> Self {
        let program = build::build(&workspace(), &["ledger"]).unwrap().remove("ledger").unwrap();
        Self { program, url: bank.aws_url() }
    }

    /// Runs it. The result is its exit code, and what it printed: a value a line.
    fn run(&self, arguments: &[&str]) -> (i32, Vec<Value>) {
        let mut ledger = Command::new(&self.program);
        ledger.current_dir(workspace()).args([&format!("--local={}", self.url), "--json"]).args(arguments);
        let output = ledger.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        (
            output.status.code().unwrap(),
            printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        )
    }

    /// What a comparison finds: who, stream, version in the log, version there.
    fn found(&self, arguments: &[&str]) -> (i32, BTreeSet<(String, String, String, u64)>) {
        let (code, printed) = self.run(&[&["reconcile", "--younger", "0"], arguments].concat());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let found =
            printed.iter().filter(|line| line["what"] == "missing" || line["what"] == "ahead").map(|line| {
                (
                    text(&line["what"]),
                    text(&line["who"]),
                    text(&line["stream"]),
                    line["there"].as_u64().unwrap(),
                )
            });
        (code, found.collect())
    }
}

#[tokio::test]
async fn what_is_missing_is_found_and_sent_to_whom_it_is_missing_and_to_nobody_else() {
    let bank = LocalStack::start(None).await;
    let mut accounts = Vec::new();
    for _ in 0..5 {
        let id = bank.account(1_000).await;
        for _ in 0..2 {
            bank.post(&format!("/accounts/{id}/debits"), json!({ "amount": 10 })).await;
        }
        bank.settled(&id).await;
        accounts.push(id);
    }
    let ledger = Ledger::at(&bank);
    let stream = |account: usize| format!("account-{}", accounts[account]);
    let clean = eventually("everything has everything", async || {
        let (code, found) = ledger.found(&[]);
        (code == 0).then_some(found)
    });
    assert!(clean.await.is_empty());

    // The row of one account and the newest row of two others are lost, as if their last messages had been; a row shows more than the log has.
    let client = aws_sdk_dynamodb::Client::new(&services::sdk_config(&bank.aws_url()));
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let delete = client.delete_item().table_name(table("BalancesTable")).key("accountId", text(&accounts[0]));
    delete.send().await.unwrap();
    for account in [1, 2] {
        let delete = client.delete_item().table_name(table("TransactionsTable"));
        let delete = delete.key("accountId", text(&accounts[account]));
        delete.key("entry", text("00000000000000000004#0000")).send().await.unwrap();
    }
    let update = client.update_item().table_name(table("BalancesTable")).key("accountId", text(&accounts[3]));
    let update =
        update.update_expression("SET #version = :version").expression_attribute_names("#version", "version");
    update.expression_attribute_values(":version", AttributeValue::N("9".into())).send().await.unwrap();

    let (who, log) = ("BalancesProjectorFunction", "TransactionsProjectorFunction");
    let ahead = ("ahead".to_owned(), who.to_owned(), stream(3), 9);
    let missing = |who: &str, account, there| ("missing".to_owned(), who.to_owned(), stream(account), there);
    let expected =
        BTreeSet::from([missing(who, 0, 0), missing(log, 1, 3), missing(log, 2, 3), ahead.clone()]);
    assert_eq!(ledger.found(&[]), (2, expected.clone()));
    assert_eq!(
        ledger.found(&["--since", "2020-01-01T00:00:00Z"]),
        (2, expected.clone()),
        "by what has changed"
    );
    assert_eq!(ledger.found(&["--since", "2120-01-01T00:00:00Z"]), (0, BTreeSet::new()));
    let only = ledger.found(&["--only", log]);
    assert_eq!(only, (2, BTreeSet::from([missing(log, 1, 3), missing(log, 2, 3)])));
    assert_eq!(ledger.run(&["reconcile", "--only", "Nobody"]).0, 1);
    // What is young is left alone, and without --yes nobody who is not there is asked.
    assert_eq!(ledger.run(&["reconcile"]).0, 0);
    assert_eq!(ledger.run(&["reconcile", "--younger", "0", "--write"]).0, 1);
    assert_eq!(ledger.found(&[]), (2, expected));

    // What is ahead is left to somebody, so that it does not end well.
    assert_eq!(ledger.run(&["reconcile", "--younger", "0", "--write", "--yes"]).0, 2);
    eventually("what was missing is there, and what is ahead is left to somebody", async || {
        (ledger.found(&[]) == (2, BTreeSet::from([ahead.clone()]))).then_some(())
    })
    .await;
    for account in [0, 1, 2, 4] {
        bank.settled(&accounts[account]).await;
    }
}

#[tokio::test]
async fn streams_commits_and_what_a_request_caused_are_shown_without_what_is_in_them() {
    let bank = LocalStack::start(None).await;
    let (from, to) = (bank.account(1_000).await, bank.account(0).await);
    let asked = json!({ "fromAccountId": from, "toAccountId": to, "amount": 30, "currency": "EUR" });
    let headers = [("x-correlation-id", "the-rent")];
    let transfer =
        bank.post_with("/transfers", &headers, asked).await.body["transferId"].as_str().unwrap().to_owned();
    eventually("the transfer is completed", async || {
        (bank.get(&format!("/transfers/{transfer}")).await.body["status"] == "completed").then_some(())
    })
    .await;
    let ledger = Ledger::at(&bank);
    let (code, streams) = ledger.run(&["streams", "--category", "transfer"]);
    assert_eq!((code, streams.len(), &streams[0]["version"]), (0, 1, &json!(3)));

    let (_, traced) = ledger.run(&["trace", "the-rent"]);
    let events: Vec<_> = traced.iter().map(|commit| commit["events"].as_str().unwrap()).collect();
    assert_eq!(events[0], "TransferRequested");
    assert!(events.contains(&"AccountDebited") && events.contains(&"AccountCredited"), "{events:?}");
    assert!(traced.iter().all(|commit| commit["data"].is_null()), "rule 14: {traced:?}");
    let (_, with) = ledger.run(&["trace", "the-rent", "--payloads"]);
    assert!(!format!("{traced:?}").contains("970") && format!("{with:?}").contains("970"), "{with:?}");

    let account = format!("account-{from}");
    let (_, shown) = ledger.run(&["show", &account, "--at", "2", "--payloads"]);
    assert_eq!((shown.len(), &shown[2]["state"]["totalBalance"]), (3, &json!(1_000)));
    let (code, shown) = ledger.run(&["show", &account]);
    assert_eq!((code, shown.len(), shown[2]["data"].is_null()), (0, 3, true));
    // The order is later than the log by a second.
    eventually("the tail has the commits of both accounts", async || {
        let (_, tail) = ledger.run(&["tail", "--from", "beginning", "--once", "--category", "account"]);
        (tail.len() == 5).then_some(())
    })
    .await;

    // Without an address, it is the one that the local stack has by default; the subcommand is none.
    let bare =
        Command::new(&ledger.program).current_dir(workspace()).args(["--local", "show", "--help"]).output();
    let help = String::from_utf8(bare.unwrap().stdout).unwrap();
    assert!(help.contains("The version up to which it is shown"), "the help of show: {help}");
    for wrong in [
        &["show", "account-nothing"][..],
        &["show", "nothing"],
        &["show", &account, "--at", "9"],
        &["trace", "x"],
        &["tail", "--from", "yesterday"],
        &["--stack", "other", "streams"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
}
