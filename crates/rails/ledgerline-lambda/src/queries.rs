//! The runner of query functions, and what all of them need: versions, conditional reads, pages, and waiting for one's
//! own write.

use std::time::Duration;

use http::StatusCode;
use ledgerline_dynamodb::TableError;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::{
    config::{self, ConfigError},
    http::{HttpRequest, Problem, Response, versions_of},
};

/// How soon a read model that is behind is looked at again at first; then after twice as long each time, so that who waits
/// for what never comes costs a score of reads and not hundreds.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// The longest pause between two looks: what a reader waits too long at the most.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// Rows in a page, where the client does not say.
const DEFAULT_LIMIT: i32 = 50;
/// Rows in a page, at the most.
const MAX_LIMIT: i32 = 200;

/// How long a read with `minVersion` waits.
#[derive(Debug, Clone, Copy)]
pub struct Patience(Duration);

impl Patience {
    /// This long.
    #[must_use]
    pub fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// From `READ_YOUR_WRITE_TIMEOUT_MS`.
    ///
    /// # Errors
    /// When the variable is missing or no number.
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self(Duration::from_millis(config::parsed("READ_YOUR_WRITE_TIMEOUT_MS")?)))
    }

    /// Reads until the read model shows the version that the request asks for with `minVersion`, or time is up.
    ///
    /// `read` gives the version that is shown, 0 for nothing, and what it read.
    ///
    /// # Errors
    /// `503` when the version is not shown in time; what `read` fails with.
    pub async fn read<T>(
        self,
        request: &HttpRequest,
        read: impl AsyncFn() -> Result<(u64, T), TableError>,
    ) -> Result<(u64, T), Problem> {
        let wanted = match request.query("minVersion")? {
            None => 0,
            Some(text) => text.parse::<u64>().map_err(|_| {
                Problem::field("minVersion", "minVersion is a version, a whole number from 0")
            })?,
        };
        let deadline = Instant::now() + self.0;
        let mut pause = LOOK_AGAIN;
        loop {
            let (version, found) = read().await.map_err(problem)?;
            if version >= wanted {
                return Ok((version, found));
            }
            if Instant::now() >= deadline {
                let detail = format!("version {wanted} is not shown yet, only {version}");
                let behind = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "read-model-behind", detail);
                return Err(Problem { version: Some(version), ..behind });
            }
            sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }
}

/// Answers with a representation of a version, or with `304` when the client has it (RFC 9110, 13.1.2).
///
/// # Errors
/// When If-None-Match cannot be read.
pub fn conditional(request: &HttpRequest, version: u64, body: Value) -> Result<Response, Problem> {
    let known = match request.header("If-None-Match")? {
        None => false,
        // If-None-Match compares weakly: W/"3" is "3" here.
        Some(tags) => versions_of(&tags.replace("W/", "")).is_none_or(|versions| versions.contains(&version)),
    };
    if known {
        let not_modified = Response { status: StatusCode::NOT_MODIFIED, headers: Vec::new(), body: None };
        return Ok(not_modified.with_version(version));
    }
    Ok(Response::json(StatusCode::OK, body).with_version(version))
}

/// The page size that the request asks for with `limit`.
///
/// # Errors
/// When it is no number from 1 to 200.
pub fn limit(request: &HttpRequest) -> Result<i32, Problem> {
    let Some(text) = request.query("limit")? else { return Ok(DEFAULT_LIMIT) };
    text.parse()
        .ok()
        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
        .ok_or_else(|| Problem::field("limit", format!("limit is a whole number from 1 to {MAX_LIMIT}")))
}

/// The body of a page: its rows under their name, and the cursor of the next page if there is one.
#[must_use]
pub fn listed(name: &str, rows: Value, cursor: Option<String>) -> Value {
    let cursor = cursor.map(|cursor| ("cursor".to_owned(), cursor.into()));
    Value::Object([(name.to_owned(), rows)].into_iter().chain(cursor).collect())
}

/// The one place where failures of read tables become HTTP.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "it is mapped over results")]
pub fn problem(error: TableError) -> Problem {
    match error {
        TableError::Cursor(invalid) => Problem::field("cursor", invalid.to_string()),
        TableError::Throttled => Problem::unavailable(),
        TableError::Unavailable(_) => {
            tracing::error!(%error, "query");
            Problem::unavailable()
        }
        TableError::Row(_) | TableError::TooManyRows(_) => {
            tracing::error!(%error, "query");
            Problem::internal()
        }
    }
}
