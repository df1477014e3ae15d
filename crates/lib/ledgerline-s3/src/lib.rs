#![doc = include_str!("../README.md")]

use std::{fmt::Write as _, sync::Arc};

use aws_smithy_runtime::client::orchestrator::operation::{Operation, OperationBuilder};
use aws_smithy_runtime_api::client::{
    orchestrator::{HttpResponse, OrchestratorError},
    result::SdkError,
};
use aws_types::{SdkConfig, region::Region, service_config::ServiceConfigKey};
use futures::future::BoxFuture;
use ledgerline::StoreError;
use ledgerline_dynamodb::{Bodies, DynamoDbStore};
use ledgerline_lambda::signed_requests::{self, Service, request};

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
            let mut request = request("PUT", &path, content)?;
            request.headers_mut().insert("if-none-match", "*");
            Ok(request)
        });
        let put = put.deserializer(|response| match response.status().as_u16() {
            200 => Ok(true),
            412 => Ok(false),
            _ => Err(refusal(response)),
        });
        let get = operation("GetObject")
            .serializer(|Object { path, content }| request("GET", &path, content));
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
        .serializer(|Object { path, content }| request("GET", &path, content))
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
    let endpoint = endpoint(sdk, &signed_requests::region(sdk), bucket);
    let service = Service { name: "s3", endpoint: &endpoint, retried: RETRIED, budget: "bodies" };
    signed_requests::operation::<Refusal>(sdk, service)
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
