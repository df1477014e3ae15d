#![doc = include_str!("../README.md")]

use std::{fmt::Write as _, sync::Arc};

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
    orchestrator::{HttpRequest, HttpResponse, OrchestratorError},
    result::SdkError,
    runtime_components::RuntimeComponentsBuilder,
    runtime_plugin::StaticRuntimePlugin,
};
use aws_smithy_types::{body::SdkBody, config_bag::Layer};
use aws_types::{
    SdkConfig, SigningName,
    region::{Region, SigningRegion},
    service_config::ServiceConfigKey,
};
use futures::future::BoxFuture;
use ledgerline::StoreError;
use ledgerline_dynamodb::{Bodies, DynamoDbStore};

/// The statuses that are retried: throttling, failures of the service, and 409, the answer to a PUT
/// that races with another PUT of the key.
///
/// Source: the user guide of S3, "How to prevent object overwrites with conditional writes".
const RETRIED: &[u16] = &[409, 429, 500, 502, 503, 504];

/// Body objects in a bucket.
#[derive(Debug, Clone)]
pub struct S3Bodies {
    put: Operation<Object, bool, Refusal>,
    get: Operation<Object, Option<Vec<u8>>, Refusal>,
}

/// An object of a request.
#[derive(Debug)]
struct Object {
    path: String,
    content: Vec<u8>,
}

/// An answer of S3 that is an error.
#[derive(Debug, thiserror::Error)]
#[error("S3 answers {status} {code}")]
struct Refusal {
    status: u16,
    code: String,
}

impl S3Bodies {
    /// Returns the objects of this bucket, with the connections, the credentials and the limits of
    /// `sdk`. An endpoint of its own, such as `AWS_ENDPOINT_URL_S3`, has the bucket in its path.
    pub fn new(sdk: &SdkConfig, bucket: &str) -> Self {
        let operation = |name: &'static str| base(sdk, bucket).operation_name(name);
        let put = operation("PutObject").serializer(|Object { path, content }| {
            let mut request = request("PUT", path, content)?;
            request.headers_mut().insert("if-none-match", "*");
            Ok(request)
        });
        let put = put.deserializer(|response| match response.status().as_u16() {
            200 => Ok(true),
            412 => Ok(false),
            _ => Err(refusal(response)),
        });
        let get = operation("GetObject")
            .serializer(|Object { path, content }| request("GET", path, content));
        let get = get.deserializer(|response| match response.status().as_u16() {
            200 => Ok(response.body().bytes().map(<[u8]>::to_vec)),
            404 if code(response) == "NoSuchKey" => Ok(None),
            _ => Err(refusal(response)),
        });
        Self { put: put.build(), get: get.build() }
    }
}

/// Returns the store, with body objects in this bucket for commits whose items would have more than
/// `over` bytes, or do not fit. Pass it to `handlers!` of `ledgerline-lambda`.
pub fn open(store: DynamoDbStore, sdk: &SdkConfig, bucket: &str, over: usize) -> DynamoDbStore {
    store.with_bodies(Arc::new(S3Bodies::new(sdk, bucket)), over)
}

impl Bodies for S3Bodies {
    fn put_new<'a>(
        &'a self,
        key: &'a str,
        content: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let put = self.put.invoke(Object { path: path(key), content }).await;
            put.map_err(|error| store_error(key, error))
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(async move {
            let get = self.get.invoke(Object { path: path(key), content: Vec::new() }).await;
            get.map_err(|error| store_error(key, error))
        })
    }
}

/// Returns the keys of all objects of a bucket that begin with a prefix. The caller needs
/// `s3:ListBucket`.
///
/// # Errors
/// When S3 refuses, throttles or does not answer.
pub async fn list_keys(
    sdk: &SdkConfig,
    bucket: &str,
    prefix: &str,
) -> Result<Vec<String>, StoreError> {
    let list = base(sdk, bucket).operation_name("ListObjectsV2");
    let list = list
        .serializer(|Object { path, content }| request("GET", path, content))
        .deserializer(|response| match response.status().as_u16() {
            200 if body(response).contains("</ListBucketResult>") => Ok(body(response).to_owned()),
            _ => Err(refusal(response)),
        });
    let (list, mut keys, mut token) = (list.build(), Vec::new(), None::<String>);
    loop {
        let mut path = format!("/?list-type=2&prefix={}", encode(prefix, b""));
        if let Some(token) = &token {
            path = format!("{path}&continuation-token={}", encode(token, b""));
        }
        let page = list.invoke(Object { path, content: Vec::new() }).await;
        let page = page.map_err(|error| store_error(prefix, error))?;
        keys.extend(texts(&page, "Key"));
        token = texts(&page, "NextContinuationToken").pop();
        if token.is_none() {
            return Ok(keys);
        }
    }
}

/// Returns the texts of the elements with this name, which have no other element in them.
fn texts(xml: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&begin)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(&end)?.0))
        .map(|text| text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        .collect()
}

/// Returns the part that all operations have in common.
fn base(sdk: &SdkConfig, bucket: &str) -> OperationBuilder {
    let region = sdk.region().cloned().unwrap_or_else(|| Region::from_static("us-east-1"));
    let mut signature = SigV4OperationSigningConfig {
        region: Some(SigningRegion::from(region.clone())),
        name: Some(SigningName::from_static("s3")),
        ..SigV4OperationSigningConfig::default()
    };
    // S3 signs the path as it is sent, and wants the hash of the content in a header.
    signature.signing_options.double_uri_encode = false;
    signature.signing_options.normalize_uri_path = false;
    signature.signing_options.content_sha256_header = true;
    let mut layer = Layer::new("signature of S3");
    layer.store_put(AuthSchemeOptionResolverParams::new(()));
    layer.store_put(signature);
    // A budget of retries for these objects alone: else all clients of a process would share one.
    let budget = RetryPartition::custom("bodies").token_bucket(TokenBucket::default());
    layer.store_put(budget.build());
    let mut components = RuntimeComponentsBuilder::new("signature of S3");
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
    let mut base = Operation::builder()
        .service_name("s3")
        .endpoint_url(&endpoint(sdk, &region, bucket))
        .retry_classifier(TransientErrorClassifier::<Refusal>::new())
        .retry_classifier(HttpStatusCodeClassifier::new_from_codes(RETRIED))
        .runtime_plugin(plugin.with_runtime_components(components));
    if let Some(retries) = sdk.retry_config() {
        base = base.standard_retry(retries);
    }
    if let Some(timeouts) = sdk.timeout_config() {
        base = base.timeout_config(timeouts.clone());
    }
    base
}

/// Returns the address of the bucket.
fn endpoint(sdk: &SdkConfig, region: &Region, bucket: &str) -> String {
    let key = ServiceConfigKey::builder().service_id("S3").env("AWS_ENDPOINT_URL");
    let key = key.profile("endpoint_url").build().ok();
    let own = key.and_then(|key| sdk.service_config()?.load_config(key));
    if let Some(url) = own.as_deref().or(sdk.endpoint_url()) {
        return format!("{}/{bucket}", url.trim_end_matches('/'));
    }
    let suffix = if region.as_ref().starts_with("cn-") { ".cn" } else { "" };
    format!("https://{bucket}.s3.{region}.amazonaws.com{suffix}")
}

/// Returns the path of an object, percent-encoded as S3 signs it.
fn path(key: &str) -> String {
    format!("/{}", encode(key, b"/"))
}

/// Returns a text, percent-encoded but for these characters and those that no URL encodes.
fn encode(text: &str, unchanged: &[u8]) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || unchanged.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writes into memory have no error.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn request(
    method: &'static str,
    path: String,
    content: Vec<u8>,
) -> Result<HttpRequest, Box<dyn std::error::Error + Send + Sync>> {
    let mut request = HttpRequest::new(SdkBody::from(content));
    request.set_method(method)?;
    request.set_uri(path)?;
    Ok(request)
}

/// Returns the code in the XML of an error.
fn code(response: &HttpResponse) -> String {
    texts(body(response), "Code").pop().unwrap_or_default()
}

fn body(response: &HttpResponse) -> &str {
    let bytes = response.body().bytes();
    bytes.and_then(|body| std::str::from_utf8(body).ok()).unwrap_or_default()
}

fn refusal(response: &HttpResponse) -> OrchestratorError<Refusal> {
    let (status, mut code) = (response.status().as_u16(), code(response));
    if status == 403 {
        // Without the right to list the keys, a missing object is 403 too.
        code.push_str(": the role lacks a right, or there is no such object");
    }
    OrchestratorError::operation(Refusal { status, code })
}

/// Names the object of an error.
fn store_error(key: &str, error: SdkError<Refusal, HttpResponse>) -> StoreError {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot list, read or write `{key}` in S3")]
    struct ObjectError {
        key: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    }
    match error.as_service_error() {
        Some(refusal) if matches!(refusal.status, 429 | 503) => {
            StoreError::Throttled(format!("{refusal}, for the object `{key}`"))
        }
        Some(_) | None => StoreError::Unavailable(Box::new(ObjectError {
            key: key.to_owned(),
            source: error.into(),
        })),
    }
}
