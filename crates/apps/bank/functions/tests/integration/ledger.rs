//! The operator's tool against a local stack: what it shows, and what it finds and mends.

use std::collections::BTreeSet;

use crate::accounts::{Accounts, Balances};
use crate::operator::Ledger;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::QueueAttributeName as Name;
use bank::transfer::{self, Transfer};
use ledgerline::{Aggregate, Commit, EventStore, Meta, encode};
use ledgerline_local::services;
use ledgerline_testing::{LocalStack, eventually, table, workspace};
use serde_json::{Value, json};

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
    assert_eq!(ledger.run(&["reconcile", "--only", log]).0, 0);
    assert_eq!(ledger.run(&["reconcile"]).0, 2, "what is ahead is not on its way");
    assert_eq!(ledger.run(&["reconcile", "--younger", "0", "--write", "--yes"]).0, 2, "it wants a reason");
    assert_eq!(ledger.run(&["reconcile", "--younger", "0", "--write", "--why", "a test"]).0, 1);
    assert_eq!(ledger.found(&[]), (2, expected));

    // What is ahead is left to somebody, so that it does not end well.
    assert_eq!(ledger.run(&["reconcile", "--younger", "0", "--write", "--yes", "--why", "a test"]).0, 2);
    let records = client.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let kept =
        |name: &str| records.iter().map(|record| record[name].as_s().unwrap().clone()).collect::<Vec<_>>();
    assert_eq!((kept("kind"), kept("why")), (vec!["reconcile".to_owned()], vec!["a test".to_owned()]));
    eventually("what was missing is there, and what is ahead is left to somebody", async || {
        (ledger.found(&[]) == (2, BTreeSet::from([ahead.clone()]))).then_some(())
    })
    .await;
    for account in [0, 1, 2, 4] {
        bank.settled(&accounts[account]).await;
    }
}

#[tokio::test]
async fn how_far_views_are_is_shown_and_what_one_lacks_is_sent_again() {
    let bank = LocalStack::start(None).await;
    let id = bank.account(1_000).await;
    bank.settled(&id).await;
    let ledger = Ledger::at(&bank);
    let (code, views) = ledger.run(&["views"]);
    let of = |view: &str| views.iter().find(|row| row["who"] == view).unwrap().clone();
    assert_eq!((code, &of("BalancesProjectorFunction")["of"]), (0, &json!("account")));
    assert_eq!(of("TransferFunction")["from"], "acts");

    let lag = |arguments: &[&str]| {
        let (code, rows) = ledger.run(&[&["lag"], arguments].concat());
        let row = rows.into_iter().find(|row| row["who"] == "BalancesProjectorFunction").unwrap();
        (code, row["missing"].clone(), row["commits"].clone())
    };
    // What `lag` does not find in the order, it does not look at.
    eventually("the order has both commits", async || {
        let events = bank.get("/events").await.body;
        (events["commits"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    assert_eq!(lag(&[]), (0, json!(0), json!(0)));
    // The row is lost. Nothing is old yet.
    let client = aws_sdk_dynamodb::Client::new(&services::sdk_config(&bank.aws_url()));
    let delete = client.delete_item().table_name(table("BalancesTable"));
    delete.key("accountId", AttributeValue::S(id.clone())).send().await.unwrap();
    assert_eq!(lag(&[]), (0, json!(1), json!(2)));
    eventually("it is older than a second", async || {
        (lag(&["--all", "--older", "1"]) == (2, json!(1), json!(2))).then_some(())
    })
    .await;
    assert_eq!(lag(&["--since", "2120-01-01T00:00:00Z"]), (0, json!(0), json!(0)));

    // Without --write, it is said what would be sent.
    let stream = format!("account-{id}");
    for arguments in [&["replay", &stream][..], &["replay", "--since", "2020-01-01T00:00:00Z"]] {
        let (code, said) = ledger.run(arguments);
        assert_eq!((code, &said[0]["commits"], &said[0]["streams"]), (0, &json!(2), &json!(1)));
    }
    let (_, said) = ledger.run(&["replay", &stream, "--from", "2", "--to", "2"]);
    assert_eq!(said[0]["commits"], 1);
    assert_eq!(lag(&[]), (0, json!(1), json!(2)));
    let sure = ["--write", "--yes", "--why", "a row was lost"];
    assert_eq!(ledger.run(&[&["replay", &stream][..], &sure].concat()).0, 0);
    bank.settled(&id).await;
    assert_eq!(ledger.run(&[&["replay", &stream, "--order"][..], &sure].concat()).0, 0);
    let records = client.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let done: BTreeSet<_> = records.iter().map(|record| record["what"].as_s().unwrap().clone()).collect();
    let sent = |to: &str| format!("send 2 commits of 1 streams through {to}");
    assert_eq!(done, BTreeSet::from([sent("FanoutFunction"), sent("SequencerFunction")]));
    for wrong in [
        &["replay", "account-nothing"][..],
        &["replay", &stream, "--from", "3"],
        &["replay", &stream, "--from", "0"],
        &["replay", &stream, "--to", "3"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
    for wrong in [&["replay"][..], &["replay", &stream, "--since", "2020-01-01T00:00:00Z"]] {
        assert_eq!(ledger.run(wrong).0, 2, "clap refuses {wrong:?}");
    }
}

/// What `doctor` finds: of what, which one, and what is wrong.
fn wrong(ledger: &Ledger, arguments: &[&str]) -> (i32, BTreeSet<(String, String)>) {
    let (code, printed) = ledger.run(&[&["doctor"], arguments].concat());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let wrong = printed.iter().filter(|line| line["wrong"].is_string());
    (code, wrong.map(|line| (text(&line["name"]), text(&line["wrong"]))).collect())
}

#[tokio::test]
async fn what_is_deployed_differently_or_was_changed_by_hand_is_found() {
    let bank = LocalStack::start(None).await;
    bank.account(1_000).await;
    let ledger = Ledger::at(&bank);
    assert_eq!(wrong(&ledger, &[]), (0, BTreeSet::new()));

    // Somebody changes things by hand.
    let sdk = services::sdk_config(&bank.aws_url());
    let (dynamodb, sqs) = (aws_sdk_dynamodb::Client::new(&sdk), aws_sdk_sqs::Client::new(&sdk));
    dynamodb.delete_table().table_name(table("WidgetsTable")).send().await.unwrap();
    let queue =
        sqs.get_queue_url().queue_name(format!("{}.fifo", table("TransactionsQueue"))).send().await.unwrap();
    let set = sqs.set_queue_attributes().queue_url(queue.queue_url.unwrap());
    let arn = "arn:aws:sqs:us-east-1:000000000000:ledgerline-TransferDeadLetterQueue.fifo";
    let policy = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 3 }).to_string();
    set.attributes(Name::RedrivePolicy, policy).send().await.unwrap();
    // And a commit comes that this code does not understand.
    bank.damage("account-damaged").await;
    // The workspace has another timeout than what is deployed, one function more, and one variable less.
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let template = template.replacen("      Timeout: 900\n", "      Timeout: 899\n", 1);
    let template = template.replacen("  OperationsTable:\n", "  ExtraOperationsTable:\n", 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    std::fs::write(&path, template).unwrap();
    std::fs::copy(workspace().join("samconfig.toml"), folder.path().join("samconfig.toml")).unwrap();
    let found = eventually("all of it is found", async || {
        let (code, found) = wrong(&ledger, &["--template", path.to_str().unwrap()]);
        (code == 2 && found.iter().any(|(name, _)| name.starts_with("account-"))).then_some(found)
    })
    .await;
    let has = |name: &str, what: &str| {
        assert!(
            found.iter().any(|(of, wrong)| of == name && wrong.contains(what)),
            "{name}: {what}\n{found:#?}"
        );
    };
    has("ReconcilerFunction", "it is deployed differently: Properties.Timeout");
    has("ExtraOperationsTable", "it is not deployed");
    has("OperationsTable", "this workspace does not have it");
    has("WidgetsTable", "ledgerline-WidgetsTable");
    has("TransactionsQueue", "ledgerline-TransferDeadLetterQueue.fifo");
    has("TransactionsQueue", "3");
    has("account-damaged 1", "");
}

#[tokio::test]
async fn a_replay_makes_whoever_follows_states_write_the_row_of_one_stream_again() {
    let bank = LocalStack::start(None).await;
    let (id, other) = (bank.account(1_000).await, bank.account(5).await);
    for id in [&id, &other] {
        bank.settled(id).await;
    }
    let client = aws_sdk_dynamodb::Client::new(&services::sdk_config(&bank.aws_url()));
    let row = async |id: &str| {
        let get = client.get_item().table_name(table("BalancesTable"));
        get.key("accountId", AttributeValue::S(id.to_owned())).send().await.unwrap().item
    };
    let untouched = row(&other).await;
    // The row shows the right version and a wrong balance: nothing that is delivered again changes it.
    let update = client.update_item().table_name(table("BalancesTable"));
    let update = update.key("accountId", AttributeValue::S(id.clone()));
    let update = update.update_expression("SET totalBalance = :wrong");
    update.expression_attribute_values(":wrong", AttributeValue::N("7".into())).send().await.unwrap();
    let (ledger, stream) = (Ledger::at(&bank), format!("account-{id}"));
    let sure = ["--write", "--yes", "--why", "a wrong row"];
    assert_eq!(ledger.run(&[&["replay", &stream][..], &sure].concat()).0, 0);
    assert_eq!(bank.get(&format!("/accounts/{id}")).await.body["totalBalance"], 7);

    let path = format!("/accounts/{id}/replays");
    let replay = ["command", "POST", &path, "--api", bank.url()];
    assert_eq!(ledger.run(&[&replay[..], &sure].concat()).0, 0);
    bank.settled(&id).await;
    let shown = bank.get(&format!("/accounts/{id}?minVersion=3")).await;
    assert_eq!((shown.version(), &shown.body["totalBalance"]), (3, &json!(1_000)));
    bank.shows_its_transactions(&id, 3).await;
    assert_eq!(row(&other).await, untouched);
    // A replay whose state is lost is found and sent, as every other commit.
    let delete = client.delete_item().table_name(table("BalancesTable"));
    delete.key("accountId", AttributeValue::S(id.clone())).send().await.unwrap();
    let reconcile = ["reconcile", "--younger", "0", "--only", "BalancesProjectorFunction"];
    assert_eq!(ledger.run(&[&reconcile[..], &sure].concat()).0, 0);
    bank.settled(&id).await;
    assert_eq!(ledger.run(&["dead-letters"]).0, 0);
    eventually("nobody lacks the replay", async || (ledger.found(&[]) == (0, BTreeSet::new())).then_some(()))
        .await;
    let wrong =
        ["command", "POST", "/accounts/163082d2-b005-45d7-9eb6-aa1f83efd55d/replays", "--api", bank.url()];
    assert_eq!(ledger.run(&[&wrong[..], &sure].concat()).0, 1);
}

/// A transfer whose money neither account takes, as its process manager leaves it.
async fn stuck(bank: &LocalStack, from: &str, to: &str) -> String {
    let refused = || "account-closed".to_owned();
    let events = [
        transfer::Event::TransferRequested {
            from_account_id: from.to_owned(),
            to_account_id: to.to_owned(),
            amount: 30,
            currency: "EUR".to_owned(),
            reference: None,
            requested_by: Some("developer".to_owned()),
        },
        transfer::Event::TransferDebited {},
        transfer::Event::TransferCreditRefused { reason: refused() },
        transfer::Event::TransferRefundRefused { reason: refused() },
    ];
    let id = uuid::Uuid::now_v7().to_string();
    let commit = Commit {
        stream: Transfer::stream(&id).unwrap(),
        version: 1,
        events: events.iter().map(|event| encode::<Transfer>(event).unwrap()).collect(),
        state: None,
        command: id.clone(),
        at: jiff::Timestamp::now(),
        meta: Meta::default(),
    };
    bank.store().append(&commit, None).await.unwrap();
    id
}

#[tokio::test]
async fn an_operator_settles_a_transfer_that_is_stuck_by_a_command_with_a_reason() {
    let bank = LocalStack::start(None).await;
    let (from, to, other) = (bank.account(0).await, bank.account(0).await, bank.account(5).await);
    let id = stuck(&bank, &from, &to).await;
    let status = async |wanted: &str| {
        eventually(wanted, async || {
            let shown = bank.get(&format!("/transfers/{id}")).await.body;
            (shown["status"] == wanted).then_some(shown)
        })
        .await
    };
    status("stuck").await;
    let (ledger, api) = (Ledger::at(&bank), bank.url());
    let (code, commands) = ledger.run(&["command"]);
    let commands: Vec<_> = commands.iter().map(|row| row["command"].as_str().unwrap()).collect();
    assert_eq!(
        (code, &*commands),
        (0, &["POST /accounts/{id}/replays", "POST /transfers/{id}/settlements"][..])
    );

    let (path, body) = (format!("/transfers/{id}/settlements"), json!({ "toAccountId": other }).to_string());
    let command = ["command", "POST", &path, "--body", &body, "--api", api];
    let sure = ["--write", "--yes", "--why", "agreed with the customer"];
    assert_eq!(ledger.run(&command).0, 0, "it says what it would send");
    assert_eq!(bank.get(&format!("/transfers/{id}")).await.body["status"], "stuck");
    assert_eq!(ledger.run(&[&command[..], &sure].concat()).0, 0);
    let shown = status("settled").await;
    assert_eq!(shown["settledToAccountId"], other.as_str());
    assert_eq!(bank.state(&other).await.1.total_balance(), 35);
    bank.settled(&other).await;
    // The log says who decided and why; the record of the tool, too.
    let (_, log) = ledger.run(&["show", &format!("transfer-{id}"), "--payloads"]);
    let decided = log.iter().find(|commit| commit["events"] == "TransferSettlementRequested").unwrap();
    assert_eq!(decided["data"][0]["reason"], "agreed with the customer");
    assert_eq!(decided["data"][0]["requestedBy"], "developer");
    let client = aws_sdk_dynamodb::Client::new(&services::sdk_config(&bank.aws_url()));
    let records = client.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let done: Vec<_> = records.iter().map(|record| record["what"].as_s().unwrap().as_str()).collect();
    assert_eq!(done, [format!("POST {path}")]);

    // What was decided is decided; and nothing else goes this way.
    let elsewhere = json!({ "toAccountId": to }).to_string();
    let again = ["command", "POST", &path, "--body", &elsewhere, "--api", api];
    assert_eq!(ledger.run(&[&again[..], &sure].concat()).0, 1);
    let credits = format!("/accounts/{other}/credits");
    for wrong in [
        &["command", "POST", &credits, "--body", r#"{"amount":1}"#, "--api", api][..],
        &["command", "POST", &path, "--body", "30", "--api", api],
        // It is not known which API belongs to a local stack at another address, and a token is not sent in the clear.
        &["command", "POST", &path, "--body", &elsewhere],
        &["command", "POST", &path, "--body", &elsewhere, "--api", "http://example.com", "--token", "t"],
        &["command", "POST", &path, "--body", "{}", "--api", api],
        &["command", "POST"],
    ] {
        assert_eq!(ledger.run(&[wrong, &sure].concat()).0, 1, "{wrong:?}");
    }
    assert_eq!(bank.state(&other).await.1.total_balance(), 35);
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

    let long = |from: &str| ledger.run(&["streams", "--category", "transfer", "--from", from]).1.len();
    assert_eq!((long("3"), long("4")), (1, 0));
    let (_, names) = ledger.run(&["names", "CommitsTable"]);
    assert_eq!((names.len(), &names[0]["type"]), (1, &json!("AWS::DynamoDB::Table")));
    assert!(
        names[0]["name"].as_str().unwrap().contains("CommitsTable") && ledger.run(&["names"]).1.len() > 100
    );

    let (_, traced) = ledger.run(&["trace", "the-rent"]);
    let events: Vec<_> = traced.iter().map(|commit| commit["events"].as_str().unwrap()).collect();
    assert_eq!(events[0], "TransferRequested");
    assert!(events.contains(&"AccountDebited") && events.contains(&"AccountCredited"), "{events:?}");
    assert!(traced.iter().all(|commit| commit["data"].is_null()), "rule 14: {traced:?}");
    eventually("everything that follows has come to it", async || {
        let (_, traced) = ledger.run(&["trace", "the-rent"]);
        let in_each = |commit: &Value| (commit["in"].as_str().unwrap().to_owned(), commit["notYetIn"] == "");
        let of_transfers = "TransferFunction TransfersProjectorFunction";
        (traced.len() == 5 && in_each(&traced[0]) == (of_transfers.to_owned(), true)).then_some(())
    })
    .await;
    let (_, with) = ledger.run(&["trace", "the-rent", "--payloads"]);
    // A time, or an id, may have the same digits.
    let has_balance = |rows: &[Value]| format!("{rows:?}").contains("Number(970)");
    assert!(!has_balance(&traced) && has_balance(&with), "{with:?}");

    let account = format!("account-{from}");
    let (_, shown) = ledger.run(&["show", &account, "--at", "2", "--payloads"]);
    assert_eq!((shown.len(), &shown[2]["state"]["totalBalance"]), (3, &json!(1_000)));
    // Of the log of functions, everything that has this phrase; and there are no versions of functions here.
    let (code, logged) = ledger.run(&["logs", &format!("transfer-{transfer}"), "--since", "5m"]);
    assert!(code == 0 && logged.iter().any(|line| line["said"]["message"] == "fanout"), "{logged:?}");
    assert_eq!(ledger.run(&["logs", "--failures"]), (0, Vec::new()));
    let (code, shown) = ledger.run(&["show", &account]);
    assert_eq!((code, shown.len(), shown[2]["data"].is_null()), (0, 3, true));
    // The order is later than the log by a second.
    eventually("the tail has the commits of both accounts", async || {
        let (_, tail) = ledger.run(&["tail", "--from", "beginning", "--once", "--category", "account"]);
        (tail.len() == 5).then_some(())
    })
    .await;

    // Without an address, it is the one that the local stack has by default; the subcommand is none.
    let bare = ledger.command().args(["--local", "show", "--help"]).output();
    let help = String::from_utf8(bare.unwrap().stdout).unwrap();
    assert!(help.contains("The version up to which it is shown"), "the help of show: {help}");
    for wrong in [
        &["show", "account-nothing"][..],
        &["show", "nothing"],
        &["show", &account, "--at", "9"],
        &["trace", "x"],
        &["tail", "--from", "yesterday"],
        &["--stack", "other", "streams"],
        &["logs", "--since", "yesterday"],
        &["logs", "--access"],
        &["versions"],
        &["concurrency"],
        &["names", "Nothing"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
}

/// An entry is final, and one without a commit stops every subscription: so what only claims to be a commit gets no entry, and an operator can make an entry void.
#[tokio::test]
async fn a_record_of_a_commit_that_does_not_exist_gets_no_entry_and_a_wrong_entry_can_be_made_void() {
    // Given a log with two bookings,
    let bank = LocalStack::start(None).await;
    let id = bank.account(100).await;
    let ledger = Ledger::at(&bank);
    let invoke = async |function: &str, stream: &str| {
        let key = json!({ "stream": { "S": stream }, "version": { "N": "7" } });
        let record = json!({
            "eventID": "1", "eventName": "INSERT", "eventSourceARN": "arn:aws:dynamodb:us-east-1:000000000000:table/x/stream/1",
            "dynamodb": { "Keys": key, "NewImage": key, "SequenceNumber": "1", "SizeBytes": 1 },
        });
        let url = format!("{}/2015-03-31/functions/{function}/invocations", bank.aws_url());
        let body = json!({ "Records": [record] }).to_string();
        let answer = reqwest::Client::new().post(url).body(body).send().await.unwrap();
        assert_eq!(answer.json::<Value>().await.unwrap(), json!({ "batchItemFailures": [] }));
    };
    let booked = async |last: u64| {
        let what = format!("the ledger has the booking {last}");
        eventually(&what, async || (bank.get("/bookings").await.body["last"] == last).then_some(())).await;
    };
    booked(1).await;
    // when an operator sends a record of a commit that the log does not have, as if the stream did,
    invoke("SequencerFunction", "account-forged").await;
    bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
    // then it gets no entry.
    booked(2).await;
    let clean = async || (ledger.found(&[]) == (0, BTreeSet::new())).then_some(());
    eventually("nothing is missing or ahead", clean).await;

    // When such an entry is there nevertheless, as a faulty program leaves it,
    invoke("SequencerFunction:live", "account-wrong").await;
    bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
    let ahead = (2, BTreeSet::from([("ahead".into(), "$all".into(), "account-wrong".into(), 7)]));
    eventually("the order is ahead of the log, and nothing else is wrong", async || {
        (ledger.found(&["--only", "$all"]) == ahead).then_some(())
    })
    .await;
    assert_eq!(bank.get("/bookings").await.body["last"], 2, "the subscription stands still");
    // then only an entry without a commit can be made void, with a reason,
    let void = |stream: &str, version: &str, sure: &[&str]| {
        ledger.run(&[&["order", "void", stream, version], sure].concat())
    };
    let sure = ["--write", "--yes", "--why", "a faulty program"];
    assert_eq!(void(&format!("account-{id}"), "1", &sure).0, 1);
    assert_eq!(void("account-wrong", "7", &["--write", "--yes"]).0, 2);
    assert_eq!(void("account-wrong", "7", &[]).1[0]["is"], "not in the log: --write makes its entry void");
    assert_eq!(bank.get("/bookings").await.body["last"], 2);
    assert_eq!(void("account-wrong", "7", &sure).1[0]["is"], "void");
    assert_eq!(void("account-wrong", "7", &sure).1[0]["is"], "void already");
    // and every reader goes past it.
    booked(3).await;
    eventually("nothing is missing or ahead", clean).await;
    let events = bank.get("/events?limit=100").await.body;
    assert_eq!(events["commits"].as_array().unwrap().len(), 4);
}
