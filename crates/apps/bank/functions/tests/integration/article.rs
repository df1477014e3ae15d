//! The accounts of "Serverless event-sourcing with AWS: State of the art data synchronization", by
//! Kumo. Every test names its section.

use crate::accounts::{Accounts, Balances};
use futures::future::join_all;
use ledgerline_testing::LocalStack;
use reqwest::StatusCode;
use serde_json::{Value, json};

/// "First and foremost, in event sourcing, the order of events is essential": with 50 on the
/// account, two purchases of 40 and 25 arrive at once.
#[tokio::test]
async fn two_purchases_at_once_do_not_overdraw_an_account() {
    let local = LocalStack::start(None).await;
    let id = local.account(50).await;
    let path = format!("/accounts/{id}/debits");
    let purchase = |amount: i64| {
        let (local, path) = (&local, &path);
        async move { local.post(path, json!({ "amount": amount })).await.status }
    };
    let mut answers = join_all([40, 25].map(purchase)).await;
    answers.sort();
    assert_eq!(answers, [StatusCode::OK, StatusCode::UNPROCESSABLE_ENTITY]);
}

/// "A trick to make data synchronization and replay easier" and "The job of the projectors become
/// trivial": the row is the state in the event. "The replay is then extremely simple": redelivered
/// commits change no row.
#[tokio::test]
async fn redelivered_commits_change_no_row() {
    let local = LocalStack::start(None).await;
    let id = local.account(500).await;
    local.post(&format!("/accounts/{id}/debits"), json!({ "amount": 30 })).await;
    local.settled(&id).await;
    let before = (local.get(&format!("/accounts/{id}")).await, local.transactions(&id).await);
    assert_eq!(before.0.body["totalBalance"], 470);
    local.shows_its_month(&before.0.body).await;

    // The test redelivers the commits like the runbook, but with the newest first.
    let records: Vec<_> =
        local.stream_records(&format!("account-{id}")).await.into_iter().rev().collect();
    assert_eq!(records.len(), 3);
    let url = format!("{}/2015-03-31/functions/FanoutFunction/invocations", local.aws_url());
    let answer =
        reqwest::Client::new().post(url).json(&json!({ "Records": records })).send().await.unwrap();
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({ "batchItemFailures": [] }));
    // One more command shows that commits after a redelivery are still projected.
    local.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
    local.settled(&id).await;
    assert_eq!(local.transactions(&id).await[1..], before.1);
}
