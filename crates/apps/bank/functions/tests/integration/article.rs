//! The accounts of "Serverless event-sourcing with AWS: State of the art data synchronization", by
//! Kumo. Every test names its section.

use crate::accounts::{assert_transactions, open_account, transactions};
use futures::future::join_all;
use ledgerline_testing::LocalStack;
use reqwest::StatusCode;
use serde_json::json;

/// "First and foremost, in event sourcing, the order of events is essential": with 50 on the
/// account, two purchases of 40 and 25 arrive at once.
#[tokio::test]
async fn two_purchases_at_once_do_not_overdraw_an_account() {
    let local = LocalStack::start(None).await;
    let id = open_account(&local, 50).await;
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
    let id = open_account(&local, 500).await;
    local.post(&format!("/accounts/{id}/debits"), json!({ "amount": 30 })).await;
    assert_transactions(&local, &id, 3).await;
    let before = (local.get(&format!("/accounts/{id}")).await, transactions(&local, &id).await);
    assert_eq!(before.0.body["totalBalance"], 470);

    // The test redelivers the commits like the runbook, but with the newest first.
    let records: Vec<_> =
        local.stream_records(&format!("account-{id}")).await.into_iter().rev().collect();
    assert_eq!(records.len(), 3);
    let answer = local.invoke("FanoutFunction", &json!({ "Records": records })).await;
    assert_eq!(answer, json!({ "batchItemFailures": [] }));
    // One more command shows that commits after a redelivery are still projected.
    local.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
    assert_transactions(&local, &id, 4).await;
    assert_eq!(transactions(&local, &id).await[1..], before.1);
}
