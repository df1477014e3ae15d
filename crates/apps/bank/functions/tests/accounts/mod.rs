//! Helpers that the tests of accounts and transfers share.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use ledgerline_testing::{Api, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Opens an account, credits it with the balance, and returns its id.
pub(crate) async fn open_account(api: &Api, balance: i64) -> String {
    let opened = api.post("/accounts", json!({ "owner": "Ada", "currency": "EUR" })).await;
    assert_eq!(opened.status, StatusCode::CREATED, "{opened:?}");
    let id = opened.body["accountId"].as_str().unwrap().to_owned();
    if balance > 0 {
        let credits = format!("/accounts/{id}/credits");
        let credited = api.post(&credits, json!({ "amount": balance })).await;
        assert_eq!(credited.status, StatusCode::OK, "{credited:?}");
    }
    id
}

/// Waits until the view shows all transactions up to a version. Checks that they add up to the
/// balance.
pub(crate) async fn assert_transactions(api: &Api, id: &str, version: u64) {
    eventually("all transactions are shown", async || {
        let answer = api.get(&format!("/accounts/{id}/transactions?minVersion={version}")).await;
        (answer.etag_version() == Some(version)).then_some(())
    })
    .await;
    let mut rows = transactions(api, id).await;
    rows.reverse();
    let (mut balance, mut last) = (0, 0);
    for row in &rows {
        let amount = row["amount"].as_i64().unwrap();
        balance += if row["kind"] == "credit" { amount } else { -amount };
        assert_eq!(row["balance"], balance, "{rows:?}");
        assert!(row["version"].as_u64() > Some(last), "{rows:?}");
        last = row["version"].as_u64().unwrap();
    }
    let shown = api.get(&format!("/accounts/{id}?minVersion={version}")).await;
    assert_eq!((shown.version(), &shown.body["totalBalance"]), (version, &json!(balance)));
}

/// Returns all transactions, newest first.
pub(crate) async fn transactions(api: &Api, id: &str) -> Vec<Value> {
    api.list(&format!("/accounts/{id}/transactions?limit=7"), "transactions").await
}

/// Reads all bookings of the bank in their order, in pages of this size.
pub(crate) async fn bookings(api: &Api, limit: usize) -> Vec<Value> {
    let newest = api.get("/bookings?limit=1").await.body["day"].clone();
    let newest: jiff::civil::Date = newest.as_str().unwrap().parse().unwrap();
    let mut all = Vec::new();
    // Midnight may pass during the test. No test takes longer than a day.
    for day in [newest.yesterday().unwrap(), newest] {
        all.extend(api.list(&format!("/bookings?day={day}&limit={limit}"), "bookings").await);
    }
    all
}
