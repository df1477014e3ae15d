//! The HTTP API, local or deployed.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use reqwest::{Method, StatusCode};
use serde_json::Value;

/// The time without progress after which a test fails. It is also the timeout of requests: API
/// Gateway and the local stack respond within 30 seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// The API for one of its users.
#[derive(Debug, Clone)]
pub struct Api {
    /// Its URL, without a slash at the end.
    pub url: String,
    /// The caller's token. Without it, a local stack uses the development user.
    pub token: Option<String>,
    http: reqwest::Client,
}

/// The response to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers, by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body as JSON; null if it is not JSON.
    pub body: Value,
}

impl Answer {
    /// Returns the `ETag` header.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.headers.get("etag").map(String::as_str)
    }

    /// Returns the version in the `ETag` of a response to a query: 3 in `"3.9f86d081"`. Returns
    /// `None` for any other tag.
    #[must_use]
    pub fn etag_version(&self) -> Option<u64> {
        let (version, hash) = self.etag()?.strip_prefix('"')?.strip_suffix('"')?.split_once('.')?;
        let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        version.parse().ok().filter(|_| is_hash)
    }

    /// Returns the version in the body.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.body["version"].as_u64().unwrap_or_else(|| panic!("no version in {self:?}"))
    }

    /// Returns the last part of the problem's type.
    #[must_use]
    pub fn problem(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        self.body["type"].as_str().and_then(|name| name.rsplit(':').next()).unwrap_or_default()
    }
}

impl Api {
    /// Creates the API at this URL, for the user of this token.
    #[must_use]
    pub fn new(url: String, token: Option<String>) -> Self {
        Self { url, token, http: ledgerline_local::http_client() }
    }

    /// Sends a request.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        // A deployment accepts a limited number of requests a second, and refuses others with 429.
        // The client retries these.
        loop {
            let answer = self.call_once(method.clone(), path, headers, body.clone()).await;
            if answer.status != StatusCode::TOO_MANY_REQUESTS {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn call_once(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        let mut request =
            self.http.request(method, format!("{}{path}", self.url)).timeout(PATIENCE);
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

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], String::new()).await
    }

    /// Reads a list page by page, and returns its rows. The path has a `?limit=`.
    pub async fn list(&self, path: &str, name: &str) -> Vec<Value> {
        let (mut rows, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("{path}{cursor}")).await;
            assert_eq!(page.status, StatusCode::OK, "{page:?}");
            rows.extend(page.body[name].as_array().unwrap().iter().cloned());
            match page.body["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return rows,
            }
        }
    }
}

/// The number of lines of progress that the local stacks of this process have printed.
static DONE: AtomicU64 = AtomicU64::new(0);

/// Counts a line that a local stack printed, if it is progress: a hop behind the log finished an
/// event, or gave it up. Requests come from the test itself, and a failing function is invoked
/// repeatedly. If their lines counted, a wait might never end.
pub(super) fn note(line: &str) {
    let mut words = line.split_whitespace();
    let is_time = words.next().is_some_and(|word| word.parse::<jiff::civil::Time>().is_ok());
    let is_progress = match words.next() {
        None | Some("http" | "query" | "command" | "commit" | "denied" | "function") => false,
        Some("mail") => true,
        Some(_) => {
            !line.contains(" failed: ") && (line.contains(" ms") || line.contains(" gave up "))
        }
    };
    if is_time && is_progress {
        DONE.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until a condition holds, and fails if the stacks make no progress.
///
/// The wait fails if no local stack of this process makes progress for two minutes. It has no limit
/// in seconds, because the duration depends on the machine and its load. A writer at the same time
/// makes progress for ever. So the wait also fails after 50,000 checks.
pub async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let mut quiet = Quiet::new(PATIENCE);
    let mut done = None;
    for _ in 0..MOST_LOOKS {
        if let Some(found) = check().await {
            return found;
        }
        let now = DONE.load(Ordering::Relaxed);
        let changed = done.replace(now) != Some(now);
        assert!(!quiet.is_over(changed), "no function has run for {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("events are not processed after {MOST_LOOKS} checks: {what}");
}

/// The most checks of a wait: some twenty minutes on an idle machine.
const MOST_LOOKS: u32 = 50_000;

/// A period without a change.
#[derive(Debug)]
pub struct Quiet {
    since: Instant,
    looks: u32,
    patience: Duration,
}

impl Quiet {
    /// The least number of checks in a quiet period. A check is a request or a program on the same
    /// machine, and load slows it down like all other work.
    const LOOKS: u32 = 100;

    /// Begins a quiet period, which is over after this duration.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { since: Instant::now(), looks: 0, patience }
    }

    /// Counts a check. A change restarts the quiet period. Returns whether the period is over.
    pub fn is_over(&mut self, changed: bool) -> bool {
        if changed {
            *self = Self::new(self.patience);
        }
        self.looks += 1;
        self.looks > Self::LOOKS && self.since.elapsed() > self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hops_behind_the_log_are_progress() {
        for (line, is_progress) in [
            ("12:00:00.000  projector  account-1 v2 by balances-projector in 3 ms", true),
            ("12:00:00.000  fanout     account-1 v2 in 3 ms", true),
            ("12:00:00.000  function   fanout started (pid 7)", false),
            (
                "12:00:00.000  query      GET /accounts answered 200 by account-queries in 3 ms",
                false,
            ),
            ("12:00:00.000  commit     account-1 v2", false),
            ("12:00:00.000  invoke     bookings failed: Unhandled: a commit cannot be read", false),
            ("12:00:00.000  stream     sequencer failed: Unhandled: no table for 10 ms", false),
            ("12:00:00.000  queue      readings-projector failed: Runtime.ExitError", false),
            ("12:00:00.000  queue      http://127.0.0.1/queue.fifo: it does not answer", false),
            ("12:00:00.000  invoke     gave up account-1 v2 after 3 attempts", true),
            ("12:00:00.000  mail       sent: read it at /mailbox", true),
            ("[fanout] {}", false),
            ("Ready at http://127.0.0.1:3000. ", false),
        ] {
            let before = DONE.load(Ordering::Relaxed);
            note(line);
            assert_eq!(DONE.load(Ordering::Relaxed) > before, is_progress, "{line}");
        }
    }

    #[test]
    fn a_quiet_time_begins_again_with_each_change_and_needs_looks() {
        let mut quiet = Quiet::new(Duration::ZERO);
        let looks = |quiet: &mut Quiet| (1..).find(|_| quiet.is_over(false));
        assert_eq!(looks(&mut quiet), Some(101));
        assert!(!quiet.is_over(true));
        assert_eq!(looks(&mut quiet), Some(100));
        let mut patient = Quiet::new(Duration::from_secs(600));
        assert!((0..1_000).all(|_| !patient.is_over(false)));
    }
}
