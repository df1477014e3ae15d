//! Faults that no client can cause: records that cannot be read, functions and a whole stack that are killed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::accounts::{Accounts, Balances};
use crate::operator::Ledger;
use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::join_all;
use ledgerline_local::services;
use ledgerline_testing::{LocalStack, eventually, table};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// API Gateway may change odd paths or refuse them; here they reach the function.
#[tokio::test]
async fn odd_ids_in_paths_are_refused_by_name() {
    let bank = LocalStack::start(None).await;
    for path in ["..%2F..%2Fetc", "%00%ff", "{163082d2-b005-45d7-9eb6-aa1f83efd55d}", "1"] {
        let answer = bank.post(&format!("/accounts/{path}/credits"), json!({ "amount": 1 })).await;
        assert_eq!((answer.status, answer.problem()), (StatusCode::BAD_REQUEST, "invalid-request"), "{path}");
        assert_eq!(answer.body["field"], "id", "{path}");
    }
}

/// The dashboard and the alarms need this: each function writes its metrics when the counted thing happens.
#[tokio::test]
async fn what_happens_is_counted() {
    let bank = LocalStack::start_with_logs().await;
    let id = bank.account(1_000).await;
    let path = format!("/accounts/{id}/debits");
    let debits = (0..24).map(|_| bank.post(&path, json!({ "amount": 1 })));
    assert!(join_all(debits).await.iter().any(|answer| answer.status == StatusCode::OK));
    bank.damage("account-00000000-0000-4000-8000-000000000000").await;
    bank.settled(&id).await;
    for (function, metric, at_least) in [
        ("account-commands", "Commands", 26),
        ("account-commands", "Conflicts", 1),
        ("account-commands", "Retries", 1),
        ("fanout", "FanoutLag", 3),
        ("fanout", "ParkedRecords", 1),
        ("balances-projector", "ProjectionLag", 1),
        ("transactions-projector", "ProjectionLag", 3),
        ("transactions-projector", "PositionLag", 3),
    ] {
        eventually(&format!("{metric} of {function}"), async || {
            (bank.metric(function, metric) >= at_least).then_some(())
        })
        .await;
    }
    assert_eq!(bank.metric("fanout", "ParkedRecords"), 1, "once");
}

/// Rule 11: a record that cannot be read is set aside with its stream and version, and all other streams go on.
#[tokio::test]
async fn a_poisoned_record_goes_to_the_dead_letters_and_blocks_nobody() {
    let bank = LocalStack::start(None).await;
    let id = bank.account(1).await;
    // Nothing in the product can write this; an operator with a console can.
    bank.damage("account-00000000-0000-4000-8000-000000000000").await;
    let credited = bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
    assert_eq!(credited.status, StatusCode::OK);
    bank.settled(&id).await;
    let letter = eventually("the dead letter arrives", async || bank.dead_letter().await).await;
    assert_eq!(letter["stream"], "account-00000000-0000-4000-8000-000000000000");
    assert_eq!(letter["version"], 1);
    assert!(letter["reason"].as_str().is_some_and(|reason| reason.contains("events")), "{letter}");
}

/// Rule 11: whoever reads a whole commit stops at one whose `meta` is damaged, and says which. Commands, the state and other streams go on; only bookings stand still, because
/// they are in one order.
#[tokio::test]
async fn a_commit_with_damaged_metadata_stops_its_rows_and_no_command() {
    // Given an account whose second commit is that of another account, without metadata that can be read.
    let bank = LocalStack::start(None).await;
    let (damaged, other) = (bank.account(0).await, bank.account(10).await);
    for id in [&damaged, &other] {
        bank.settled(id).await;
    }
    let dynamodb = aws_sdk_dynamodb::Client::new(&services::sdk_config(&bank.aws_url()));
    let get = dynamodb.get_item().table_name(table("CommitsTable"));
    let get = get.key("stream", AttributeValue::S(format!("account-{other}")));
    let get = get.key("version", AttributeValue::N("2".into())).consistent_read(true);
    let mut commit = get.send().await.unwrap().item.unwrap();
    let stream = format!("account-{damaged}");
    commit.insert("stream".into(), AttributeValue::S(stream.clone()));
    commit.insert("meta".into(), AttributeValue::S("damaged".into()));
    let (names, values): (Vec<_>, Vec<_>) = commit.into_iter().unzip();
    let names: Vec<_> = names.iter().map(|name| format!("'{name}': ?")).collect();
    let insert = format!(r#"INSERT INTO "{}" VALUE {{{}}}"#, table("CommitsTable"), names.join(", "));
    dynamodb.execute_statement().statement(insert).set_parameters(Some(values)).send().await.unwrap();

    // When both go on
    for (id, key) in [(&damaged, "one"), (&other, "another")] {
        let credits = format!("/accounts/{id}/credits");
        let credited = bank.post_with(&credits, &[("Idempotency-Key", key)], json!({ "amount": 1 })).await;
        assert_eq!((credited.status, credited.body["version"].as_u64()), (StatusCode::OK, Some(3)));
    }

    // then one has its state and not its rows, the other has both, and it is said which commit it is.
    bank.settled(&other).await;
    let letter = eventually("the dead letter arrives", async || bank.dead_letter().await).await;
    assert_eq!((letter["stream"].as_str(), letter["version"].as_u64()), (Some(&*stream), Some(2)));
    assert!(letter["reason"].as_str().is_some_and(|reason| reason.contains("meta")), "{letter}");
    eventually("the state is shown", async || {
        let shown = bank.get(&format!("/accounts/{damaged}?minVersion=3")).await;
        (shown.status == StatusCode::OK && shown.body["totalBalance"] == 11).then_some(())
    })
    .await;
    for (why, starts) in [
        ("the log view says why", format!("commit 2 of {stream} is corrupt: ")),
        (
            "the view that has the order of everything says where it stands still",
            format!("version 2 of {stream} cannot be read: "),
        ),
    ] {
        eventually(why, async || {
            let errors = bank.logged(r#"{ $.level = "ERROR" }"#).await;
            let says = |text: &Value| {
                text.as_str().is_some_and(|text| text.starts_with(&starts) && text.contains("meta"))
            };
            errors.iter().any(|line| says(&line["error"]) || says(&line["message"])).then_some(())
        })
        .await;
    }
    let ledger = Ledger::at(&bank);
    let missing =
        |who: &str, id: &str, there| ("missing".to_owned(), who.to_owned(), format!("account-{id}"), there);
    let bookings = "BookingsSubscriptionFunction";
    let expected = [
        missing("TransactionsProjectorFunction", &damaged, 1),
        missing(bookings, &damaged, 1),
        missing(bookings, &other, 2),
    ];
    let expected = (2, expected.into());
    eventually(
        "nothing else is missing, in the order of everything neither, which is a second behind",
        async || (ledger.found(&[]) == expected).then_some(()),
    )
    .await;
}

/// The commands of the runbook ask CloudFormation for names, CloudWatch for what was logged, and Lambda for an alias.
#[tokio::test]
async fn what_the_runbook_asks_aws_for_is_answered_on_a_laptop() {
    const STREAM: &str = "account-00000000-0000-4000-8000-000000000000";
    let bank = LocalStack::start(None).await;
    bank.damage(STREAM).await;
    eventually("the dead letter arrives", async || bank.dead_letter().await).await;
    let (client, aws) = (reqwest::Client::new(), bank.aws_url());
    let name = async |of: &str| {
        let body = format!("Action=DescribeStackResource&StackName=ledgerline&LogicalResourceId={of}");
        let request =
            client.post(&aws).header("content-type", "application/x-www-form-urlencoded").body(body);
        let answer = request.send().await.unwrap().text().await.unwrap();
        let (_, answer) = answer.split_once("<PhysicalResourceId>").expect(&answer);
        answer.split_once("</PhysicalResourceId>").unwrap().0.to_owned()
    };
    assert!(name("FanoutDeadLetterQueue").await.ends_with("/ledgerline-FanoutDeadLetterQueue"));
    assert_eq!(name("CommitsTable").await, "ledgerline-CommitsTable");

    let filter =
        json!({ "logGroupName": name("FunctionLogs").await, "filterPattern": format!("{STREAM:?}") });
    let logs = client.post(&aws).header("x-amz-target", "Logs_20140328.FilterLogEvents").json(&filter);
    let logs: serde_json::Value = logs.send().await.unwrap().json().await.unwrap();
    let found = logs["events"].as_array().unwrap().iter();
    let mut found =
        found.filter(|line| line["logStreamName"] == "fanout").map(|line| line["message"].to_string());
    assert!(found.any(|line| line.contains("set aside")), "{logs}");

    let fanout = format!("{aws}/2015-03-31/functions/{}:live/invocations", name("FanoutFunction").await);
    let answer = client.post(fanout).json(&json!({ "Records": [] })).send().await.unwrap();
    assert_eq!(answer.json::<serde_json::Value>().await.unwrap(), json!({ "batchItemFailures": [] }));
}

/// Each function is killed until an invocation of it was cut off in the middle, while credits go through.
#[tokio::test]
async fn functions_killed_in_the_middle_of_a_batch_lose_nothing_and_double_nothing() {
    let bank = LocalStack::start(None).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bank.account(1).await);
    }
    for function in ["fanout", "balances-projector", "transactions-projector"] {
        let cut_off = AtomicBool::new(false);
        let credits = join_all(ids.iter().map(async |id| {
            while !cut_off.load(Ordering::Relaxed) {
                let answer = bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            }
        }));
        let kill = async {
            let mut line = 0;
            while !bank.was_cut_off(function) {
                eventually("it works", async || bank.worked_since(function, line).then_some(())).await;
                line = bank.kill_instances(function);
                eventually("it is seen to be gone", async || {
                    (bank.was_cut_off(function) || bank.worked_since(function, line)).then_some(())
                })
                .await;
            }
            cut_off.store(true, Ordering::Relaxed);
        };
        tokio::join!(credits, kill);
    }
    for id in &ids {
        bank.settled(id).await;
    }
}

/// The process manager is killed in the same way: every transfer comes to its end, and the balances are those that the ends say.
#[tokio::test]
async fn a_process_manager_killed_in_the_middle_moves_all_the_money_once() {
    let bank = LocalStack::start(None).await;
    let (from, to) = (bank.account(100_000).await, bank.account(0).await);
    let cut_off = AtomicBool::new(false);
    let requests = async {
        let mut ids = Vec::new();
        while !cut_off.load(Ordering::Relaxed) {
            // Of three transfers, one arrives, one goes to an account that does not exist and comes back, and one is refused for its currency.
            let currency = if ids.len() % 3 == 2 { "USD" } else { "EUR" };
            let to = if ids.len() % 3 == 1 { uuid::Uuid::new_v4().to_string() } else { to.clone() };
            let body =
                json!({ "fromAccountId": from, "toAccountId": to, "amount": 10, "currency": currency });
            let requested = bank.post("/transfers", body).await;
            assert_eq!(requested.status, StatusCode::CREATED, "{requested:?}");
            ids.push(requested.body["transferId"].as_str().unwrap().to_owned());
        }
        ids
    };
    let kill = async {
        while !bank.was_cut_off("transfer") {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            bank.kill_instances("transfer");
        }
        cut_off.store(true, Ordering::Relaxed);
    };
    let (ids, ()) = tokio::join!(requests, kill);
    let mut arrived = 0;
    for (place, id) in ids.iter().enumerate() {
        let expected = ["completed", "refunded", "refused"][place % 3];
        eventually(&format!("transfer {place} is {expected}"), async || {
            let status = bank.get(&format!("/transfers/{id}")).await.body["status"].clone();
            (status == expected).then_some(())
        })
        .await;
        arrived += i64::from(expected == "completed") * 10;
    }
    let balance = async |id: &str| bank.state(id).await.1.total_balance();
    assert_eq!((balance(&from).await, balance(&to).await), (100_000 - arrived, arrived));
    bank.settled(&from).await;
}

#[tokio::test]
async fn a_stack_that_was_killed_goes_on_with_its_data() {
    let data = tempfile::tempdir().unwrap();
    let bank = LocalStack::start(Some(data.path())).await;
    let id = bank.account(1).await;
    let path = format!("/accounts/{id}/credits");
    let key = [("idempotency-key", "before-the-cut")];
    let before = bank.post_with(&path, &key, json!({ "amount": 1 })).await;
    for _ in 0..20 {
        assert_eq!(bank.post(&path, json!({ "amount": 1 })).await.status, StatusCode::OK);
    }
    // The stack is killed at once, before most commits have reached the read models.
    bank.kill();

    let bank = LocalStack::start(Some(data.path())).await;
    assert_eq!(bank.state(&id).await.1.total_balance(), 22);
    bank.settled(&id).await;
    let again = bank.post_with(&path, &key, json!({ "amount": 1 })).await;
    assert_eq!((again.etag(), &again.body), (before.etag(), &before.body));
    bank.kill();

    // Everything is settled: a third start has nothing to repair.
    let bank = LocalStack::start(Some(data.path())).await;
    assert_eq!(bank.post(&path, json!({ "amount": 1 })).await.version(), 24);
    bank.settled(&id).await;
}
