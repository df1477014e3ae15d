//! Requests to a service of AWS without its SDK: signed, with the connections, the retries and the
//! limits of the SDK.

use std::error::Error;

use aws_runtime::auth::{SigV4OperationSigningConfig, sigv4};
use aws_smithy_runtime::client::{
    orchestrator::operation::{Operation, OperationBuilder},
    retries::{
        RetryPartition, TokenBucket,
        classifiers::{HttpStatusCodeClassifier, TransientErrorClassifier},
    },
};
use aws_smithy_runtime_api::client::{
    auth::{
        AuthSchemeOptionResolverParams, SharedAuthScheme, SharedAuthSchemeOptionResolver,
        static_resolver::StaticAuthSchemeOptionResolver,
    },
    orchestrator::HttpRequest,
    runtime_components::RuntimeComponentsBuilder,
    runtime_plugin::StaticRuntimePlugin,
};
use aws_smithy_types::{body::SdkBody, config_bag::Layer};
use aws_types::{
    SdkConfig, SigningName,
    region::{Region, SigningRegion},
};

/// A service, and the way in which its requests are sent.
#[derive(Debug, Clone, Copy)]
pub struct Service<'s> {
    /// The name in signatures: `s3`.
    pub name: &'static str,
    /// The URL before the paths of requests.
    pub endpoint: &'s str,
    /// The statuses that are retried.
    pub retried: &'static [u16],
    /// The name of the budget of retries. Otherwise all clients of a process would share one.
    pub budget: &'static str,
}

/// Returns the Region of requests.
pub fn region(sdk: &SdkConfig) -> Region {
    sdk.region().cloned().unwrap_or_else(|| Region::from_static("us-east-1"))
}

/// Returns the part that all operations of a service have in common. `Failure` is their error.
///
/// The path of a request is signed as it is sent: percent-encoded once.
pub fn operation<Failure: Error + Send + Sync + 'static>(
    sdk: &SdkConfig,
    service: Service<'_>,
) -> OperationBuilder {
    let Service { name, endpoint, retried, budget } = service;
    let mut signature = SigV4OperationSigningConfig {
        region: Some(SigningRegion::from(region(sdk))),
        name: Some(SigningName::from_static(name)),
        ..SigV4OperationSigningConfig::default()
    };
    // S3 signs the path as it is sent, and wants the hash of the content in a header.
    signature.signing_options.double_uri_encode = false;
    signature.signing_options.normalize_uri_path = false;
    signature.signing_options.content_sha256_header = true;
    let mut layer = Layer::new("signature");
    layer.store_put(AuthSchemeOptionResolverParams::new(()));
    layer.store_put(signature);
    let budget = RetryPartition::custom(budget).token_bucket(TokenBucket::default());
    layer.store_put(budget.build());
    let mut components = RuntimeComponentsBuilder::new("signature");
    let schemes = StaticAuthSchemeOptionResolver::new(vec![sigv4::SCHEME_ID]);
    components.set_auth_scheme_option_resolver(Some(SharedAuthSchemeOptionResolver::new(schemes)));
    components.push_auth_scheme(SharedAuthScheme::new(sigv4::SigV4AuthScheme::new()));
    components.set_identity_cache(sdk.identity_cache());
    if let Some(credentials) = sdk.credentials_provider() {
        components.set_identity_resolver(sigv4::SCHEME_ID, credentials);
    }
    components.set_http_client(sdk.http_client());
    components.set_sleep_impl(sdk.sleep_impl());
    components.set_time_source(sdk.time_source());
    let plugin = StaticRuntimePlugin::new().with_config(layer.freeze());
    let mut operation = Operation::builder()
        .service_name(name)
        .endpoint_url(endpoint)
        .retry_classifier(TransientErrorClassifier::<Failure>::new())
        .retry_classifier(HttpStatusCodeClassifier::new_from_codes(retried))
        .runtime_plugin(plugin.with_runtime_components(components));
    if let Some(retries) = sdk.retry_config() {
        operation = operation.standard_retry(retries);
    }
    if let Some(timeouts) = sdk.timeout_config() {
        operation = operation.timeout_config(timeouts.clone());
    }
    operation
}

/// Returns a request. The path may have a query.
///
/// # Errors
/// When the method or the path is not valid.
pub fn request(
    method: &str,
    path: &str,
    content: Vec<u8>,
) -> Result<HttpRequest, Box<dyn Error + Send + Sync>> {
    let mut request = HttpRequest::new(SdkBody::from(content));
    request.set_method(method)?;
    request.set_uri(path)?;
    Ok(request)
}
