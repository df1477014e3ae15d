//! The HTTP API, wherever it runs.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use reqwest::{Method, StatusCode};
use serde_json::Value;

/// A time longer than anything takes, so that a hang ends as a failure.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The API as one of its users.
#[derive(Debug, Clone)]
pub struct Api {
    /// Its URL, without a slash at the end.
    pub url: String,
    /// The caller's token; without it, a local stack takes the development user.
    pub token: Option<String>,
    http: reqwest::Client,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// The headers, by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body as JSON; null if it is not JSON.
    pub body: Value,
}

impl Answer {
    /// The `ETag` header.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.headers.get("etag").map(String::as_str)
    }

    /// The version in the `ETag` of an answer to a query: 3 in `"3.9f86d081"`. `None` for any other
    /// tag.
    #[must_use]
    pub fn etag_version(&self) -> Option<u64> {
        let (version, hash) = self.etag()?.strip_prefix('"')?.strip_suffix('"')?.split_once('.')?;
        let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        version.parse().ok().filter(|_| is_hash)
    }

    /// The version in the body.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.body["version"].as_u64().unwrap_or_else(|| panic!("no version in {self:?}"))
    }

    /// The end of the problem's type.
    #[must_use]
    pub fn problem(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        self.body["type"].as_str().and_then(|name| name.rsplit(':').next()).unwrap_or_default()
    }
}

impl Api {
    /// The API at this URL, as the user of this token.
    #[must_use]
    pub fn new(url: String, token: Option<String>) -> Self {
        Self { url, token, http: ledgerline_local::http_client() }
    }

    /// Sends a request.
    pub async fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
        // A deployment takes a limited number of requests a second, and answers others with 429: they are sent again.
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

    /// Posts JSON.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_with(path, &[], body).await
    }

    /// Posts JSON with these headers.
    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        self.call(Method::POST, path, headers, body.to_string()).await
    }

    /// Reads a path.
    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], String::new()).await
    }
}

/// Waits until a condition holds, and not for a fixed time.
pub async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, check).await
}

/// Waits until a condition holds, and fails if it does not hold within this time.
pub async fn eventually_within<T>(patience: Duration, what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
