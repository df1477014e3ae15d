//! Read-your-writes: a read with `minVersion` waits until the view shows that version.

use std::time::Duration;

use ledgerline::{Causes, StreamId};
use ledgerline_dynamodb::DynamoDbStore;
use tokio::time::{Instant, sleep_until};

use crate::{
    config::{self, ConfigError},
    http::{HttpRequest, Problem, READ_MODEL_BEHIND},
    rate_limit::RecentTimeouts,
    table_grants::COMMITS,
};

/// The variable with the milliseconds for which a read with `minVersion` waits.
pub(super) const TIMEOUT_VARIABLE: &str = "READ_YOUR_WRITE_TIMEOUT_MS";

/// The first pause before a view that lags is read again. Each pause is twice as long as the one
/// before. So a wait costs twenty reads and not hundreds while a projector does not work.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// The longest pause between two reads: a reader waits at most this much longer than necessary.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The version that a view shows to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The view shows this version; 0 if it shows nothing.
    Version(u64),
    /// The row belongs to another caller. The response is that for a row that does not exist,
    /// without a wait: a longer wait would reveal that the row exists.
    Hidden,
}

/// The time that a read with `minVersion` waits, and the log that shows whether the version exists.
#[derive(Debug)]
pub struct Patience {
    duration: Duration,
    log: DynamoDbStore,
    timeouts: RecentTimeouts,
}

impl Patience {
    /// Creates a wait of this duration, for versions that are in this log.
    pub fn new(duration: Duration, log: DynamoDbStore) -> Self {
        Self { duration, log, timeouts: RecentTimeouts::default() }
    }

    /// Reads the wait from `READ_YOUR_WRITE_TIMEOUT_MS` and `COMMITS_TABLE`. No read opens the
    /// log's connection here: the role allows only streams of the function's own categories.
    pub(super) fn from_env(client: aws_sdk_dynamodb::Client) -> Result<Self, ConfigError> {
        let duration = Duration::from_millis(config::parse(TIMEOUT_VARIABLE)?);
        Ok(Self::new(duration, DynamoDbStore::new(client, config::text(COMMITS.variable)?)))
    }

    /// Whether the version is in the log. If the log does not answer, the read does not wait; the
    /// next request reads the log again.
    async fn is_in_log(&self, stream: &StreamId, version: u64) -> bool {
        self.log.has(stream, version).await.unwrap_or_else(|error| {
            tracing::warn!(%stream, version, error = %Causes(&error), "the log does not show whether the version exists");
            false
        })
    }

    pub(super) async fn read<T>(
        &self,
        request: &HttpRequest,
        stream: &StreamId,
        read: impl AsyncFn() -> Result<(Visibility, T), Problem>,
    ) -> Result<(u64, T), Problem> {
        let wanted = request.query_number("minVersion", 0..=u64::MAX)?.unwrap_or(0);
        let caller = request.actor().unwrap_or_default();
        let duration = if self.timeouts.contains(caller) { Duration::ZERO } else { self.duration };
        let deadline = Instant::now() + duration;
        let mut pause = FIRST_PAUSE;
        let mut known = None;
        loop {
            let (shown, found) = read().await?;
            let version = if let Visibility::Version(version) = shown { version } else { 0 };
            if version >= wanted {
                return Ok((version, found));
            }
            // The log is read for other callers as well. Otherwise the response time would reveal
            // to them that the row exists.
            let is_in_log = match known {
                None => *known.insert(self.is_in_log(stream, wanted).await),
                Some(is_in_log) => is_in_log,
            };
            let is_over = Instant::now() >= deadline;
            if !is_in_log || is_over || shown == Visibility::Hidden {
                if is_in_log && is_over {
                    self.timeouts.add(caller);
                }
                let detail = format!("version {wanted} is not shown yet, only {version}");
                let behind = Problem::new(READ_MODEL_BEHIND, detail);
                return Err(Problem { version: Some(version), ..behind });
            }
            sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }
}
