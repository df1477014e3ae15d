//! How a function starts: logs, configuration, clients with open connections, then the runtime.

use std::{fmt, io::Write, time::Duration};

use aws_config::{
    BehaviorVersion, SdkConfig,
    environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider},
    meta::region::ProvideRegion,
    retry::RetryConfig,
    stalled_stream_protection::StalledStreamProtectionConfig,
    timeout::TimeoutConfig,
};
use aws_sdk_dynamodb::config::SharedCredentialsProvider;
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use aws_types::service_config::{LoadServiceConfig, ServiceConfigKey};
use futures::{FutureExt, future::LocalBoxFuture};
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use ledgerline::{Causes, manifest::Manifest};
use ledgerline_dynamodb::DynamoDbStore;
use serde::{Serialize, de::DeserializeOwned};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{Error, config, metrics};

/// The handler of a function, from an event and the context of its invocation to its answer.
pub type Handle<Event, Answer> =
    Box<dyn Fn(LambdaEvent<Event>) -> LocalBoxFuture<'static, Result<Answer, Error>>>;

/// Puts a handler behind a pointer ([`start`]).
pub(crate) fn handler<Event, Answer, Answered>(
    handle: impl Fn(LambdaEvent<Event>) -> Answered + 'static,
) -> Handle<Event, Answer>
where
    Answered: Future<Output = Result<Answer, Error>> + 'static,
{
    Box::new(move |event| handle(event).boxed_local())
}

/// Runs a function with this manifest: builds what handles its events, then handles one event at a
/// time. With the argument `--manifest` it prints the manifest instead, as JSON.
///
/// `build` and the handler are behind pointers, so that what is compiled for a call of this
/// function depends on the kind of events alone. Each kind is called for in one place of this
/// crate. Otherwise the runtime and the reading of events would be compiled once more for every
/// function, which was most of the time that building a function's binary took.
///
/// # Errors
/// When the handler cannot be built. The error is logged, and the process ends: a misconfigured
/// function must not take events.
pub fn start<'a, Event, Answer>(
    manifest: Manifest,
    build: LocalBoxFuture<'a, Result<Handle<Event, Answer>, Error>>,
) -> LocalBoxFuture<'a, Result<(), Error>>
where
    Event: DeserializeOwned + 'static,
    Answer: Serialize + 'static,
{
    async move {
        if std::env::args().nth(1).as_deref() == Some("--manifest") {
            // The manifest is written in one piece before anything is configured, and the process
            // ends: a check of the wiring sets no variables.
            writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&manifest)?)?;
            return Ok(());
        }
        config::declare(&manifest);
        init_logs();
        let built = async { Ok::<_, Error>((metrics::init(&manifest.metrics)?, build.await?)) };
        let (metrics, handle) = match built.await {
            Ok(built) => built,
            Err(error) => {
                tracing::error!(error = %Causes(&*error), "the function cannot start");
                return Err(error);
            }
        };
        let metrics = &metrics;
        lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| {
            let handled = handle(event);
            async move {
                let answer = handled.await;
                // The metrics are written before the answer goes out, because the instance may be
                // frozen afterwards.
                metrics::flush(metrics);
                answer.map_err(Failure)
            }
        }))
        .await
    }
    .boxed_local()
}

/// Why a handler failed. The runtime logs what `Debug` writes, and Lambda passes the diagnostic on.
/// Both name the causes, in the words that operators look for. The `Debug` of the error itself may
/// have values of a commit in it (rule 14), and pages of details of a call.
struct Failure(Error);

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Causes(&*self.0))
    }
}

impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        Self { error_type: "Failure".to_owned(), error_message: format!("{failure:?}") }
    }
}

/// Logs are JSON lines with `timestamp` and `level`, as Lambda's JSON log format wants them; the
/// runtime's own subscriber writes no time. Lambda passes the level of the function's
/// `LoggingConfig` in `AWS_LAMBDA_LOG_LEVEL`.
fn init_logs() {
    let level = config::parsed_or("AWS_LAMBDA_LOG_LEVEL", "INFO".to_owned()).unwrap_or_default();
    // Lambda has the level FATAL, above the highest level of tracing.
    let level = if level == "FATAL" {
        LevelFilter::ERROR
    } else {
        level.parse().unwrap_or(LevelFilter::INFO)
    };
    // The runtime and the SDK log whole payloads at their finer levels (rule 14). A target counts
    // for all targets that begin with it: "aws" is every crate of the SDK.
    let quiet = ["lambda_runtime", "aws", "hyper", "h2", "rustls"]
        .map(|target| (target, level.min(LevelFilter::WARN)));
    let levels = Targets::new().with_default(level).with_targets(quiet);
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_target(false)
        .with_max_level(level)
        .finish()
        .with(levels)
        .init();
}

/// The configuration of every client: bounded in time and tries (rule 11), well within a function's
/// own timeout.
///
/// Region, credentials and endpoints come from the environment, where Lambda and emulators put
/// them. The SDK's own chain looks for them in files, containers and instances as well. That chain
/// was a tenth of each function's program, and is read at each start. An operator who runs a
/// function with a profile exports its credentials first (`aws configure export-credentials
/// --format env`).
pub async fn sdk_config() -> SdkConfig {
    let provider = tls::Provider::Rustls(CryptoMode::Ring);
    let mut sdk = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(EnvironmentVariableRegionProvider::new().region().await)
        .credentials_provider(SharedCredentialsProvider::new(
            EnvironmentVariableCredentialsProvider::new(),
        ))
        .http_client(aws_smithy_http_client::Builder::new().tls_provider(provider).build_https())
        .retry_config(retries())
        .timeout_config(timeouts())
        // Each body has a few MB at most, and the time for an attempt covers it. By default, the
        // SDK would measure its throughput as well.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .service_config(OfTheService);
    sdk.set_endpoint_url(config::of_the_sdk("AWS_ENDPOINT_URL"));
    sdk.build()
}

/// The settings of one service in the environment, such as `AWS_ENDPOINT_URL_DYNAMODB`.
#[derive(Debug)]
struct OfTheService;

impl LoadServiceConfig for OfTheService {
    fn load_config(&self, key: ServiceConfigKey<'_>) -> Option<String> {
        let service = key.service_id().to_ascii_uppercase().replace(' ', "_");
        config::of_the_sdk(&format!("{}_{service}", key.env()))
    }
}

/// The number of times that a client sends a request, and the pauses in between (rule 11).
#[must_use]
pub fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(3).with_max_backoff(Duration::from_millis(500))
}

/// The time that a client waits (rule 11).
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

/// The event store of the table in `COMMITS_TABLE`, with its connection opened. The function starts
/// even if that fails for the moment, by a timeout or a throttle: otherwise it would be started
/// again and again, while its first event waits.
///
/// # Errors
/// When the variable is missing, or the table is not there or may not be read.
pub async fn store(client: aws_sdk_dynamodb::Client) -> Result<DynamoDbStore, Error> {
    connected(DynamoDbStore::new(client, config::text("COMMITS_TABLE")?)).await
}

/// The store, with its connection opened, if the table can be read now.
///
/// # Errors
/// When the table is not there or may not be read.
pub(crate) async fn connected(store: DynamoDbStore) -> Result<DynamoDbStore, Error> {
    if let Some(error) = store.connect().await? {
        tracing::warn!(error = %Causes(&error), "the table cannot be read yet");
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use ledgerline::StoreError;

    use super::*;

    /// An error that keeps an answer of a service.
    #[derive(Debug, thiserror::Error)]
    #[error("the answer cannot be read")]
    struct Unexpected(#[allow(dead_code, reason = "only `Debug` reads it")] &'static str);

    #[test]
    fn a_failure_is_told_with_its_causes_and_without_what_they_keep() {
        // Given an error whose cause keeps what a commit has in it
        let error = StoreError::Unavailable(Box::new(Unexpected(r#"{"balance":4000}"#)));
        assert!(format!("{error:?}").contains("4000"));
        let failure = Failure(error.into());
        // when the runtime logs it, and tells Lambda,
        let logged = format!("{failure:?}");
        let told = Diagnostic::from(failure).error_message;
        // then both are what failed, and why.
        let expected = "the store is unavailable: the answer cannot be read";
        assert_eq!((&*logged, &*told), (expected, expected));
    }
}
