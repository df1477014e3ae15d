//! The bank over HTTP, wherever it runs.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Longer than anything takes, so that a hang ends as a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The API as one of its users.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) url: String,
    /// Who calls; without it, a local stack has a development user.
    pub(crate) token: Option<String>,
    http: reqwest::Client,
}

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn etag(&self) -> Option<&str> {
        self.headers.get("etag").map(String::as_str)
    }

    pub(crate) fn version(&self) -> u64 {
        self.body["version"].as_u64().unwrap_or_else(|| panic!("no version in {self:?}"))
    }

    /// The end of the problem's type.
    pub(crate) fn problem(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        self.body["type"].as_str().and_then(|name| name.rsplit(':').next()).unwrap_or_default()
    }
}

impl Api {
    pub(crate) fn new(url: String, token: Option<String>) -> Self {
        Self { url, token, http: reqwest::Client::new() }
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        // A deployment takes only so many requests a second, and asks everybody else to come back.
        loop {
            let answer = self.call_once(method.clone(), path, headers, body.clone()).await;
            if answer.status != StatusCode::TOO_MANY_REQUESTS {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn call_once(&self, method: Method, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).timeout(PATIENCE);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.body(body).send().await.unwrap();
        let status = response.status();
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        let text = response.text().await.unwrap();
        Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::Null) }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    pub(crate) async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        self.call(Method::POST, path, headers, body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], String::new()).await
    }

    /// An open account with a balance, and its id.
    pub(crate) async fn account(&self, balance: i64) -> String {
        let opened = self.post("/accounts", json!({ "owner": "Ada", "currency": "EUR" })).await;
        assert_eq!(opened.status, StatusCode::CREATED, "{opened:?}");
        let id = opened.body["accountId"].as_str().unwrap().to_owned();
        if balance > 0 {
            let credited = self.post(&format!("/accounts/{id}/credits"), json!({ "amount": balance })).await;
            assert_eq!(credited.status, StatusCode::OK, "{credited:?}");
        }
        id
    }

    /// Waits until all transactions up to a version are shown, and checks that they add up to the balance.
    pub(crate) async fn shows_its_transactions(&self, id: &str, version: u64) {
        eventually("all transactions are shown", async || {
            let answer = self.get(&format!("/accounts/{id}/transactions?minVersion={version}")).await;
            (answer.etag() == Some(&format!("\"{version}\""))).then_some(())
        })
        .await;
        let mut rows = self.transactions(id).await;
        rows.reverse();
        let (mut balance, mut last) = (0, 0);
        for row in &rows {
            let amount = row["amount"].as_i64().unwrap();
            balance += if row["kind"] == "credit" { amount } else { -amount };
            assert_eq!(row["balance"], balance, "{rows:?}");
            assert!(row["version"].as_u64() > Some(last), "{rows:?}");
            last = row["version"].as_u64().unwrap();
        }
        let shown = self.get(&format!("/accounts/{id}?minVersion={version}")).await;
        assert_eq!((shown.version(), &shown.body["totalBalance"]), (version, &json!(balance)));
    }

    /// All transactions, newest first, page by page.
    pub(crate) async fn transactions(&self, id: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/accounts/{id}/transactions?limit=7{cursor}")).await;
            assert_eq!(page.status, StatusCode::OK, "{page:?}");
            all.extend(page.body["transactions"].as_array().unwrap().iter().cloned());
            match page.body["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }
}

/// Waits for a condition, never for a time.
pub(crate) async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, check).await
}

pub(crate) async fn eventually_within<T>(
    patience: Duration,
    what: &str,
    check: impl AsyncFn() -> Option<T>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
