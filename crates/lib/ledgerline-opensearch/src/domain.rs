//! The requests to a domain.

use std::time::Duration;

use aws_smithy_runtime::client::orchestrator::operation::Operation;
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, OrchestratorError};
use aws_smithy_types::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use ledgerline::{Causes, view_store::ViewError};
use ledgerline_lambda::{
    config::{self, ConfigError},
    signed_requests::{self, Service, request},
};
use serde_json::Value;

/// The variable with the URL of the domain.
pub(crate) const ENDPOINT: &str = "SEARCH_ENDPOINT";

/// The statuses that are retried: throttling, and failures of the service. Each request has the
/// same effect twice.
const RETRIED: &[u16] = &[429, 500, 502, 503, 504];

/// The type of the error of a request to an index or alias that does not exist.
pub(crate) const NO_INDEX: &str = "index_not_found_exception";

/// The types of errors with status 400 that do not come from a row or a definition.
const OUTAGES: [&str; 2] = ["validation_exception", "snapshot_in_progress_exception"];

/// An OpenSearch domain. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Domain(Operation<Request, Value, Failure>);

#[derive(Debug)]
struct Request {
    method: &'static str,
    path: String,
    content: String,
}

/// The failure of a request, or of one row in it. Its text has no value of a row (rule 14), so it
/// has the type of an error and not the reason, which may quote one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("OpenSearch answers {status} {kind}")]
    Refused { status: u16, kind: String },
    /// There is no valid answer.
    #[error("{0}")]
    Unreachable(String),
}

impl Failure {
    /// Whether the index of the view does not exist.
    pub(crate) fn has_no_index(&self) -> bool {
        matches!(self, Self::Refused { status: 404, kind } if kind == NO_INDEX)
    }
}

impl From<Failure> for ViewError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { status: 429, .. } => Self::Throttled(failure.to_string()),
            // The domain has no room for a further index, or makes a backup of the index.
            Failure::Refused { status: 400, ref kind } if OUTAGES.contains(&kind.as_str()) => {
                Self::Unavailable(Box::new(failure))
            }
            // The row is at fault, or the definition of its index.
            Failure::Refused { status: 400 | 413, .. } => Self::Row(failure.to_string()),
            // Among others a missing right, which all rows lack.
            Failure::Refused { .. } | Failure::Unreachable(_) => {
                Self::Unavailable(Box::new(failure))
            }
        }
    }
}

impl Domain {
    /// Returns the domain that `SEARCH_ENDPOINT` names.
    ///
    /// # Errors
    /// When the variable is missing, or is no URL.
    pub fn from_env(sdk: &SdkConfig) -> Result<Self, ConfigError> {
        let url = config::text(ENDPOINT)?;
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return Err(ConfigError::Invalid {
                name: ENDPOINT.into(),
                reason:
                    "write the URL of the domain, such as `https://search-name.es.amazonaws.com`"
                        .into(),
            });
        }
        Ok(Self::new(sdk, &url))
    }

    /// Returns the domain at this URL. Requests are signed by the credentials of `sdk`.
    #[must_use]
    pub fn new(sdk: &SdkConfig, url: &str) -> Self {
        let sdk = &sdk.to_builder().timeout_config(timeouts()).build();
        let endpoint = url.trim_end_matches('/');
        let service = Service { name: "es", endpoint, retried: RETRIED, budget: "search" };
        let operation = signed_requests::operation::<Failure>(sdk, service);
        let operation =
            operation.operation_name("Request").serializer(|Request { method, path, content }| {
                let kind = match path.ends_with("/_bulk") {
                    true => "application/x-ndjson",
                    false => "application/json",
                };
                let mut request = request(method, &path, content.into_bytes())?;
                request.headers_mut().insert("content-type", kind);
                Ok(request)
            });
        Self(operation.deserializer(read).build())
    }

    /// Sends a request, and returns the JSON of its answer. The path has no parameters: OpenSearch
    /// Service ignores those of a signed POST request.
    ///
    /// Source: the developer guide of OpenSearch Service, "Signing HTTP requests".
    pub(crate) async fn send(
        &self,
        method: &'static str,
        path: String,
        content: String,
    ) -> Result<Value, Failure> {
        let sent = self.0.invoke(Request { method, path, content }).await;
        sent.map_err(|error| match error.as_service_error() {
            Some(failure) => failure.clone(),
            None => Failure::Unreachable(Causes(&error).to_string()),
        })
    }
}

/// The timeouts of requests (rule 11). A bulk request, and the creation of an index, take longer
/// than a request to DynamoDB. A function of states has ten seconds.
fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_secs(3))
        .operation_timeout(Duration::from_secs(5))
        .build()
}

fn read(response: &HttpResponse) -> Result<Value, OrchestratorError<Failure>> {
    let body = response.body().bytes().unwrap_or_default();
    let body = serde_json::from_slice::<Value>(body).ok();
    let failure = match (response.status().as_u16(), body) {
        (200..300, Some(body)) => return Ok(body),
        (200..300, None) => Failure::Unreachable("the answer is no JSON".to_owned()),
        (status, body) => {
            let kind = body.as_ref().and_then(|body| body["error"]["type"].as_str());
            Failure::Refused { status, kind: kind.unwrap_or_default().to_owned() }
        }
    };
    Err(OrchestratorError::operation(failure))
}
