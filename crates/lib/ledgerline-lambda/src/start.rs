//! The start of a function: logs, configuration, clients with open connections, then the runtime.

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
#[cfg(feature = "schema")]
use ledgerline::api::Operations;
use ledgerline::{Causes, manifest::Manifest};
use ledgerline_dynamodb::DynamoDbStore;
use serde::{Serialize, de::DeserializeOwned};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    body_store,
    config::{self, ConfigError},
    failure::Error,
    metrics,
};

/// The optional variable with the number of bytes beyond which payloads are compressed.
pub(crate) const COMPRESS_OVER: &str = "COMPRESS_OVER";

/// The handler of a function, from an event and the context of its invocation to its response.
pub(crate) type Handle<Event, Answer> =
    Box<dyn Fn(LambdaEvent<Event>) -> LocalBoxFuture<'static, Result<Answer, Error>>>;

/// Boxes a handler for [`start`].
pub(crate) fn handler<Event, Answer, Answered>(
    handle: impl Fn(LambdaEvent<Event>) -> Answered + 'static,
) -> Handle<Event, Answer>
where
    Answered: Future<Output = Result<Answer, Error>> + 'static,
{
    Box::new(move |event| handle(event).boxed_local())
}

/// Runs a function with this manifest: builds its handler, then handles one event at a time. With
/// the argument `--manifest` it prints the manifest instead, as JSON.
///
/// `build` and the handler are behind pointers, so that the code compiled for a call depends on the
/// kind of events alone. One place of this crate calls this function for each kind. Otherwise every
/// function would compile the runtime and the reading of events once more. That was most of the
/// time for building a function's binary.
pub(crate) fn start<'a, Event, Answer>(
    manifest: Manifest,
    build: LocalBoxFuture<'a, Result<Handle<Event, Answer>, Error>>,
) -> LocalBoxFuture<'a, Result<(), Error>>
where
    Event: DeserializeOwned + 'static,
    Answer: Serialize + 'static,
{
    let manifest = body_store::grant(manifest);
    async move {
        if std::env::args().nth(1).as_deref() == Some("--manifest") {
            // The manifest is written in one piece before any configuration is read, and the
            // process exits: a check of the wiring sets no variables.
            writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&manifest)?)?;
            return Ok(());
        }
        // A function of the development binary that is not behind the HTTP API has no operations.
        #[cfg(feature = "schema")]
        if operations_requested() {
            return print_operations(&Operations { operations: Vec::new(), schemas: [].into() });
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
                // The metrics are written before the response is sent, because the instance may be
                // frozen afterwards.
                metrics::flush(metrics);
                answer.map_err(Failure)
            }
        }))
        .await
    }
    .boxed_local()
}

/// Whether the arguments of the process ask for the operations of its function.
#[cfg(feature = "schema")]
pub(crate) fn operations_requested() -> bool {
    std::env::args().nth(1).as_deref() == Some("--operations")
}

/// Prints the operations of a function, as JSON.
#[cfg(feature = "schema")]
pub(crate) fn print_operations(operations: &Operations) -> Result<(), Error> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(operations)?)?)
}

/// The failure of a handler. The runtime logs its `Debug`, and Lambda passes the diagnostic on.
/// Both name the causes, in the words that operators search for. The `Debug` of the error itself
/// may contain values of a commit (rule 14), and pages of details of a call.
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

/// Installs the logs: JSON lines with `timestamp` and `level`, as Lambda's JSON log format
/// requires. The runtime's own subscriber writes no time. Lambda passes the level of the function's
/// `LoggingConfig` in `AWS_LAMBDA_LOG_LEVEL`.
fn init_logs() {
    let level = config::parse_or("AWS_LAMBDA_LOG_LEVEL", "INFO".to_owned()).unwrap_or_default();
    // Lambda has the level FATAL, above the highest level of tracing.
    let level = if level == "FATAL" {
        LevelFilter::ERROR
    } else {
        level.parse().unwrap_or(LevelFilter::INFO)
    };
    // The runtime and the SDK log whole payloads at their finer levels (rule 14). A target applies
    // to all targets that begin with it: "aws" is every crate of the SDK.
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

/// Returns the configuration of every client: bounded in time and attempts (rule 11), well within a
/// function's own timeout.
///
/// Lambda and emulators put region, credentials and endpoints in the environment. The SDK's own
/// chain also searches files, containers and instances. That chain is a tenth of each function's
/// program, and would run at each start. An operator who runs a function with a profile exports its
/// credentials first (`aws configure export-credentials --format env`).
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
        // Each body has a few MB at most, and the timeout of an attempt covers it. By default, the
        // SDK would measure its throughput as well.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .service_config(ServiceSettings);
    sdk.set_endpoint_url(config::sdk_variable("AWS_ENDPOINT_URL"));
    sdk.build()
}

/// The settings of one service in the environment, such as `AWS_ENDPOINT_URL_DYNAMODB`.
#[derive(Debug)]
struct ServiceSettings;

impl LoadServiceConfig for ServiceSettings {
    fn load_config(&self, key: ServiceConfigKey<'_>) -> Option<String> {
        let service = key.service_id().to_ascii_uppercase().replace(' ', "_");
        config::sdk_variable(&format!("{}_{service}", key.env()))
    }
}

/// The number of attempts of a client at a request, and the pauses between them (rule 11).
pub fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(3).with_max_backoff(Duration::from_millis(500))
}

/// The timeouts of a client (rule 11).
pub fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_millis(1_200))
        .operation_timeout(Duration::from_secs(4))
        .build()
}

/// Creates a DynamoDB client.
pub async fn dynamodb() -> aws_sdk_dynamodb::Client {
    aws_sdk_dynamodb::Client::new(&sdk_config().await)
}

/// Opens the event store of the table in `COMMITS_TABLE`, and its connection. The function starts
/// even if the connection fails for a moment, by a timeout or a throttle. Otherwise it would
/// restart without end while its first event waits.
///
/// # Errors
/// When a variable is missing, or the table does not exist or may not be read.
pub async fn store(
    sdk: &SdkConfig,
    client: aws_sdk_dynamodb::Client,
) -> Result<DynamoDbStore, Error> {
    connect(log(sdk, client)?).await
}

/// Returns the event store of the table in `COMMITS_TABLE`, with the body objects that the manifest
/// declares.
///
/// # Errors
/// When a variable is missing or not valid. The error names it.
pub(crate) fn log(
    sdk: &SdkConfig,
    client: aws_sdk_dynamodb::Client,
) -> Result<DynamoDbStore, ConfigError> {
    body_store::open(DynamoDbStore::new(client, config::text("COMMITS_TABLE")?), sdk)
}

/// Returns the store with this Requests table, for functions that append commits. It compresses
/// payloads by `COMPRESS_OVER`.
///
/// # Errors
/// When the variable is not a number. The error names the variable.
pub(crate) fn configure_writes(
    store: DynamoDbStore,
    requests: String,
) -> Result<DynamoDbStore, ConfigError> {
    let over = config::parse_or(COMPRESS_OVER, usize::MAX)?;
    Ok(store.with_requests(requests).with_compression(over))
}

/// Opens the store's connection, if the table can be read.
///
/// # Errors
/// When the table does not exist or may not be read.
pub(crate) async fn connect(store: DynamoDbStore) -> Result<DynamoDbStore, Error> {
    if let Some(error) = store.connect().await? {
        tracing::warn!(error = %Causes(&error), "a table cannot be read yet");
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use ledgerline::StoreError;

    use super::*;

    /// An error that contains a response of a service.
    #[derive(Debug, thiserror::Error)]
    #[error("the answer cannot be read")]
    struct Unexpected(#[allow(dead_code, reason = "only `Debug` reads it")] &'static str);

    #[test]
    fn a_failure_is_logged_with_its_causes_and_without_their_values() {
        // Given an error whose cause contains values of a commit
        let error = StoreError::Unavailable(Box::new(Unexpected(r#"{"balance":4000}"#)));
        assert!(format!("{error:?}").contains("4000"));
        let failure = Failure(error.into());
        // when the runtime logs it, and passes it to Lambda,
        let logged = format!("{failure:?}");
        let diagnostic = Diagnostic::from(failure).error_message;
        // then both are the failure and its causes.
        let expected = "the store is unavailable: the answer cannot be read";
        assert_eq!((&*logged, &*diagnostic), (expected, expected));
    }
}
