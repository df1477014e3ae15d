//! How a function starts: logs, configuration, clients with open connections, then the runtime.

use std::{sync::Arc, time::Duration};

use aws_config::{BehaviorVersion, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use event_store_dynamodb::DynamoDbStore;
use futures::future::LocalBoxFuture;
use lambda_runtime::{LambdaEvent, service_fn};
use serde::{Serialize, de::DeserializeOwned};
use tracing_subscriber::EnvFilter;

use crate::{Error, config, metrics};

/// Runs a function: builds its parts once, then handles one event at a time with them.
///
/// # Errors
/// When the parts cannot be built. It is logged, and the process ends: a misconfigured function must not take events.
pub async fn start<Parts, Event, Answer>(
    build: impl AsyncFnOnce() -> Result<Parts, Error>,
    handle: fn(Arc<Parts>, Event) -> LocalBoxFuture<'static, Result<Answer, Error>>,
) -> Result<(), Error>
where
    Event: DeserializeOwned,
    Answer: Serialize,
{
    init_logs();
    let built = async { Ok((metrics::init()?, Arc::new(build().await?))) };
    let (metrics, parts) = match built.await {
        Ok(parts) => parts,
        Err(error) => {
            tracing::error!(%error, "the function cannot start");
            return Err(error);
        }
    };
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| {
        let handled = handle(Arc::clone(&parts), event.payload);
        async move {
            let answer = handled.await;
            // Before the answer goes out: afterwards the instance may be frozen.
            metrics::flush(metrics);
            answer
        }
    }))
    .await
}

/// JSON lines with `timestamp` and `level`, as Lambda's JSON log format wants them; the runtime's own subscriber
/// writes no time. Lambda passes the level of the function's `LoggingConfig` in `AWS_LAMBDA_LOG_LEVEL`.
fn init_logs() {
    let level = config::parsed_or("AWS_LAMBDA_LOG_LEVEL", "INFO".to_owned()).unwrap_or_default();
    let level = if level == "FATAL" { "ERROR".to_owned() } else { level };
    // The runtime and the SDK log whole payloads at their finer levels (rule 14). A target counts for all that begin
    // with it: "aws" is every crate of the SDK.
    let filter = ["lambda_runtime", "aws", "hyper", "h2", "rustls"].iter().fold(
        EnvFilter::new(level),
        |filter, target| match format!("{target}=warn").parse() {
            Ok(directive) => filter.add_directive(directive),
            Err(_) => filter,
        },
    );
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_target(false)
        .with_env_filter(filter)
        .init();
}

/// The configuration of every client: bounded in time and tries (rule 11), well within a function's own timeout.
pub async fn sdk_config() -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .retry_config(retries())
        .timeout_config(timeouts())
        .load()
        .await
}

/// How often a client sends a request.
#[must_use]
pub fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(3).with_max_backoff(Duration::from_millis(500))
}

/// How long a client waits.
#[must_use]
pub fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_millis(1_200))
        .operation_timeout(Duration::from_secs(4))
        .build()
}

/// A DynamoDB client.
pub async fn dynamodb() -> aws_sdk_dynamodb::Client {
    aws_sdk_dynamodb::Client::new(&sdk_config().await)
}

/// The event store of the table in `COMMITS_TABLE`, with its connection opened.
///
/// # Errors
/// When the variable is missing or the table cannot be read.
pub async fn store(client: aws_sdk_dynamodb::Client) -> Result<DynamoDbStore, Error> {
    let store = DynamoDbStore::new(client, config::text("COMMITS_TABLE")?);
    store.connect().await?;
    Ok(store)
}
