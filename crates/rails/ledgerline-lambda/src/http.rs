//! HTTP: requests as functions see them, responses, and problems (RFC 9457).

use std::{
    collections::BTreeSet,
    fmt::Display,
    ops::RangeInclusive,
    panic::AssertUnwindSafe,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use aws_lambda_events::apigw::{
    ApiGatewayRequestAuthorizer, ApiGatewayV2httpRequest, ApiGatewayV2httpResponse,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{FutureExt, future::LocalBoxFuture};
pub use http::StatusCode;
use http::{HeaderName, HeaderValue, header};
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Meta,
    manifest::{Manifest, Scope},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::Instrument;

use crate::{
    Error,
    callers::{self, Limit},
    config::{self, ConfigError},
    function_url::{principal, with_route},
    operators::{self, Operators},
    start::{Handle, start},
    wire::field_of,
};

/// The largest body that a command may have, in bytes.
pub const MAX_BODY_BYTES: usize = 64 * 1024;

/// The most bytes of rows or commits in an answer, as Lambda returns them: 5 MB, which leaves a sixth of its 6 MB for what is around them. Source: the
/// developer guide, "Lambda quotas", "Invocation payload".
pub(crate) const MAX_ANSWER_BYTES: usize = 5_000_000;

/// The bytes that a part of a body has in the answer of the function. The body is a JSON text inside of JSON, so each quote in a value of it becomes four characters.
pub(crate) fn encoded_bytes(part: &Value) -> usize {
    let is_escaped = |byte: &&u8| matches!(byte, b'"' | b'\\');
    let text = part.to_string();
    text.len() + text.as_bytes().iter().filter(is_escaped).count()
}

/// The longest subject that a token may have, in bytes (OpenID Connect Core, 2). It becomes part of keys.
const MAX_SUBJECT: usize = 255;

/// The beginning of the `type` of every problem; the problem's code follows. It is set at start, because it belongs to the product and not
/// to the rails.
static PROBLEM_TYPE_PREFIX: OnceLock<String> = OnceLock::new();

/// A kind of problem. Every problem of the kind has this code and this status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemType {
    /// The stable name in kebab case, which is the end of the problem's `type`.
    pub code: &'static str,
    /// The HTTP status.
    pub status: StatusCode,
}

macro_rules! problem_types {
    ($($(#[$attribute:meta])* $name:ident = $code:literal, $status:ident;)+) => {
        $($(#[$attribute])* pub const $name: ProblemType = ProblemType { code: $code, status: StatusCode::$status };)+

        /// All kinds of problems that are not a refusal by a domain (`Aggregate::REFUSALS`).
        pub const PROBLEM_TYPES: &[ProblemType] = &[$($name),+];
    };
}

problem_types! {
    /// A part of the request is malformed.
    INVALID_REQUEST = "invalid-request", BAD_REQUEST;
    /// The request names no caller.
    UNAUTHENTICATED = "unauthenticated", UNAUTHORIZED;
    /// Only operators may do it.
    NOT_AN_OPERATOR = "not-an-operator", FORBIDDEN;
    /// There is no such route.
    NO_ROUTE = "no-route", NOT_FOUND;
    /// Another writer took the version that `If-Match` names.
    OVERTAKEN = "overtaken", CONFLICT;
    /// The command lost too many races against other writers.
    CONTENDED = "conflict", CONFLICT;
    /// `If-Match` names another version.
    PRECONDITION_FAILED = "precondition-failed", PRECONDITION_FAILED;
    /// The body is larger than it may be.
    BODY_TOO_LARGE = "body-too-large", PAYLOAD_TOO_LARGE;
    /// The commit would be larger than it may be.
    COMMIT_TOO_LARGE = "commit-too-large", PAYLOAD_TOO_LARGE;
    /// The Idempotency-Key was used for another request.
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused", UNPROCESSABLE_ENTITY;
    /// The route wants `If-Match`.
    PRECONDITION_REQUIRED = "precondition-required", PRECONDITION_REQUIRED;
    /// The caller sends too many requests.
    TOO_MANY_REQUESTS = "too-many-requests", TOO_MANY_REQUESTS;
    /// The server failed; its logs say why.
    INTERNAL = "internal", INTERNAL_SERVER_ERROR;
    /// The service is busy, or the database does not answer in time. The client may try again.
    UNAVAILABLE = "unavailable", SERVICE_UNAVAILABLE;
    /// The view does not yet show the version that the request asks for.
    READ_MODEL_BEHIND = "read-model-behind", SERVICE_UNAVAILABLE;
}

/// What is wrong with a request, for programs and for people (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable name in kebab case, which is the end of the problem's `type`.
    pub code: &'static str,
    /// The text that says what is wrong this time.
    pub detail: String,
    /// The field, parameter or header that is wrong.
    pub field: Option<String>,
    /// The version of the aggregate, if another one was expected.
    pub version: Option<u64>,
}

impl Problem {
    /// A problem of this kind.
    #[must_use]
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        Self { status: kind.status, code: kind.code, detail: detail.into(), field: None, version: None }
    }

    /// A part of the request is malformed.
    #[must_use]
    pub fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(INVALID_REQUEST, detail) }
    }

    /// There is no such route, although the API sent the request here.
    #[must_use]
    pub fn no_route() -> Self {
        Self::new(NO_ROUTE, "there is no such route")
    }

    /// The service is busy, or the database does not answer in time. The client may try again.
    #[must_use]
    pub fn unavailable() -> Self {
        Self::new(UNAVAILABLE, "the service is busy, try again")
    }

    /// A failure of the server, which is in its logs.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(INTERNAL, "the request could not be handled")
    }

    /// The body of the problem.
    #[must_use]
    pub fn body(&self) -> Value {
        #[derive(Serialize)]
        struct Body<'a> {
            r#type: String,
            title: String,
            status: u16,
            detail: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            version: Option<u64>,
        }
        let title = self.code.replace('-', " ");
        let types = PROBLEM_TYPE_PREFIX.get().map_or("urn:problem:", String::as_str);
        let body = Body {
            r#type: format!("{types}{}", self.code),
            title: title[..1].to_uppercase() + &title[1..],
            status: self.status.as_u16(),
            detail: &self.detail,
            field: self.field.as_deref(),
            version: self.version,
        };
        serde_json::to_value(body).unwrap_or_default()
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// The HTTP status.
    pub status: StatusCode,
    /// Further headers.
    pub headers: Vec<(HeaderName, String)>,
    /// The JSON body, if there is one.
    pub body: Option<Value>,
}

impl Response {
    /// A response with a body.
    #[must_use]
    pub fn json(status: StatusCode, body: Value) -> Self {
        Self { status, headers: Vec::new(), body: Some(body) }
    }

    /// The same response, with the ETag of a version.
    #[must_use]
    pub fn with_version(mut self, version: u64) -> Self {
        self.headers.push((header::ETAG, etag(version)));
        self
    }

    /// The answer of a query that shows this of a version.
    #[must_use]
    pub fn of_version(version: u64, body: Value) -> Self {
        Self::json(StatusCode::OK, body).with_representation(version)
    }

    /// The same response, with the ETag of what it shows of a version. The version alone does not tell two representations of it apart: a view that is
    /// rebuilt may show another one, and each page of a list is one of its own.
    #[must_use]
    pub fn with_representation(mut self, version: u64) -> Self {
        let body = self.body.as_ref().map(Value::to_string).unwrap_or_default();
        let hash = Sha256::digest(body.as_bytes());
        let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        self.headers.push((header::ETAG, format!("\"{version}.{digits}\"")));
        self
    }

    /// Its ETag.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.headers.iter().find(|(name, _)| *name == header::ETAG).map(|(_, tag)| tag.as_str())
    }

    /// The version in its ETag.
    pub(crate) fn version(&self) -> Option<u64> {
        versions_of(self.etag()?)?.first().copied()
    }

    fn into_lambda(self) -> ApiGatewayV2httpResponse {
        let mut response = ApiGatewayV2httpResponse::default();
        response.status_code = i64::from(self.status.as_u16());
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers.insert(name, value);
            }
        }
        if let Some(body) = self.body {
            let json = HeaderValue::from_static("application/json");
            response.headers.entry(header::CONTENT_TYPE).or_insert(json);
            response.body = Some(body.to_string().into());
        }
        response
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        let mut response = Self::json(problem.status, problem.body());
        response.headers.push((header::CONTENT_TYPE, "application/problem+json".into()));
        let again = [UNAVAILABLE.code, READ_MODEL_BEHIND.code, TOO_MANY_REQUESTS.code, CONTENDED.code];
        if again.contains(&problem.code) {
            response.headers.push((header::RETRY_AFTER, "1".into()));
        }
        if problem.status == StatusCode::UNAUTHORIZED {
            response.headers.push((header::WWW_AUTHENTICATE, "Bearer".into()));
        }
        if let Some(version) = problem.version {
            response = response.with_version(version);
        }
        response
    }
}

/// The entity tag of a version: `"3"`.
#[must_use]
pub fn etag(version: u64) -> String {
    format!("\"{version}\"")
}

/// The versions in a list of entity tags (RFC 9110, 8.8.3): `"3"`, as commands answer, and
/// `"3.9f86d081"`, as reads do. `None` for `*`. The comparison is strong (13.1.1): weak tags, and
/// tags that are not a version, are left out, because they match nothing.
#[must_use]
pub fn versions_of(tags: &str) -> Option<Vec<u64>> {
    if tags.trim() == "*" {
        return None;
    }
    let versions = tags.split(',').filter_map(|tag| {
        let tag = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
        let digits = match tag.split_once('.') {
            Some((digits, hash)) if is_hash(hash) => digits,
            Some(_) => return None,
            None => tag,
        };
        // Each version has one spelling: "3", not "03" or "+3".
        digits.parse::<u64>().ok().filter(|version| version.to_string() == digits)
    });
    Some(versions.collect())
}

/// The same for a comparison that is weak (RFC 9110, 13.1.2): `W/"3"` is the same as `"3"`.
///
/// # Errors
/// When it is no list of entity tags. A condition that cannot be read must not be dropped.
pub fn versions_of_weak(tags: &str) -> Result<Option<Vec<u64>>, Problem> {
    let tags: Vec<_> = tags.split(',').map(|tag| tag.trim().trim_start_matches("W/")).collect();
    let is_tag = |tag: &&str| tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"');
    if tags != ["*"] && !tags.iter().all(is_tag) {
        let detail = "If-None-Match is a list of ETags, such as \"3\", or *";
        return Err(Problem::field("If-None-Match", detail));
    }
    Ok(versions_of(&tags.join(",")))
}

/// Whether this is the hash of a representation.
fn is_hash(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether one of these entity tags is this one, compared weakly (RFC 9110, 13.1.2): `W/"3.9f86d081"` is the same as `"3.9f86d081"`.
pub(crate) fn is_among_tags(etag: &str, tags: &str) -> bool {
    tags.trim() == "*" || tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == etag)
}

/// A request as the HTTP API passes it on.
#[derive(Debug)]
pub struct HttpRequest(ApiGatewayV2httpRequest);

impl From<ApiGatewayV2httpRequest> for HttpRequest {
    fn from(request: ApiGatewayV2httpRequest) -> Self {
        Self(request)
    }
}

impl HttpRequest {
    /// The method and the path of the route, as the template has them: `POST /tanks/{id}/fills`.
    #[must_use]
    pub fn route(&self) -> &str {
        self.0.route_key.as_deref().or(self.0.request_context.route_key.as_deref()).unwrap_or_default()
    }

    /// The path as it was asked for.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.raw_path.as_deref().unwrap_or_default()
    }

    /// A `{parameter}` of the path, decoded.
    ///
    /// # Errors
    /// When the route has no parameter of this name.
    pub fn path_parameter(&self, name: &str) -> Result<&str, Problem> {
        let parameter = self.0.path_parameters.get(name).map(String::as_str);
        parameter.ok_or_else(|| Problem::field(name, format!("the path has no {name}")))
    }

    /// A `{parameter}` of the path, as a value object.
    ///
    /// # Errors
    /// When the rule of the value does not allow it.
    pub fn path_value<V: FromStr<Err: Display>>(&self, name: &str) -> Result<V, Problem> {
        let value = self.path_parameter(name)?.parse();
        value.map_err(|error: V::Err| Problem::field(name, error.to_string()))
    }

    /// A parameter of the query. It is read from the raw query, because the API joins repeated parameters with commas, which cannot be told
    /// from commas in a value.
    ///
    /// # Errors
    /// When it is there twice.
    pub fn query(&self, name: &str) -> Result<Option<String>, Problem> {
        let raw = self.0.raw_query_string.as_deref().unwrap_or_default();
        let mut values = form_urlencoded::parse(raw.as_bytes()).filter(|(key, _)| key == name);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Problem::field(name, format!("{name} is given twice"))),
            (value, None) => Ok(value.map(|(_, value)| value.into_owned())),
        }
    }

    /// Refuses every parameter of the query but these. A misspelled one, such as `minversion`,
    /// would otherwise do nothing.
    ///
    /// # Errors
    /// When there is another one. The problem names it, and those that there are.
    pub fn only_parameters(&self, known: &[&str]) -> Result<(), Problem> {
        let raw = self.0.raw_query_string.as_deref().unwrap_or_default();
        let unknown = form_urlencoded::parse(raw.as_bytes()).find(|(name, _)| !known.contains(&&**name));
        let Some((name, _)) = unknown else { return Ok(()) };
        let detail = match known {
            [] => "the route has no parameters".to_owned(),
            known => format!("there is no such parameter; there are: {}", known.join(", ")),
        };
        Err(Problem::field(name, detail))
    }

    /// A parameter of the query as a value in its one spelling. `expected` says what it is.
    ///
    /// # Errors
    /// When it is there twice, cannot be read, or is spelled otherwise than the value is written: a
    /// part that the parser drops, such as the offset after a date, would do nothing.
    pub fn query_value<V: FromStr + Display>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<V>, Problem> {
        let Some(text) = self.query(name)? else { return Ok(None) };
        let value = text.parse::<V>().ok().filter(|value| value.to_string() == text);
        value.map(Some).ok_or_else(|| Problem::field(name, expected))
    }

    /// A parameter of the query that is a whole number.
    ///
    /// # Errors
    /// When it is there twice, is no number, or is not in the range.
    pub fn query_number<N: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        range: RangeInclusive<N>,
    ) -> Result<Option<N>, Problem> {
        let expected = format!("{name} is a whole number from {} to {}", range.start(), range.end());
        match self.query_value::<N>(name, &expected)? {
            Some(number) if !range.contains(&number) => Err(Problem::field(name, expected)),
            number => Ok(number),
        }
    }

    /// All values of a parameter of the query, which may be given several times.
    #[must_use]
    pub fn query_values(&self, name: &str) -> BTreeSet<String> {
        let raw = self.0.raw_query_string.as_deref().unwrap_or_default();
        let values = form_urlencoded::parse(raw.as_bytes()).filter(|(key, _)| key == name);
        values.map(|(_, value)| value.into_owned()).collect()
    }

    /// A header, if it is there.
    ///
    /// # Errors
    /// When it is there and is not ASCII text. If it were ignored, the service would do what the client did not ask for: carry out a
    /// command with a key twice, or a command with a condition without it.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Problem> {
        let value = self.0.headers.get(name).map(HeaderValue::to_str).transpose();
        value.map_err(|_| Problem::field(name, format!("the header {name} has characters outside ASCII")))
    }

    /// The body.
    ///
    /// # Errors
    /// When it is larger than [`MAX_BODY_BYTES`], or is said to be base64 and is not.
    pub fn body(&self) -> Result<Vec<u8>, Problem> {
        let text = self.0.body.as_deref().unwrap_or_default();
        let body = match self.0.is_base64_encoded {
            true => BASE64_STANDARD
                .decode(text)
                .map_err(|_| Problem::new(INVALID_REQUEST, "the body is not base64"))?,
            false => text.as_bytes().to_vec(),
        };
        if body.len() > MAX_BODY_BYTES {
            let detail = format!("the body has {} bytes, the limit is {MAX_BODY_BYTES}", body.len());
            return Err(Problem::new(BODY_TOO_LARGE, detail));
        }
        Ok(body)
    }

    /// The body, read as JSON of this shape.
    ///
    /// # Errors
    /// A problem that names the field.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let body = self.body()?;
        let malformed = |detail: String| Problem::new(INVALID_REQUEST, detail);
        if body.is_empty() {
            return Err(malformed("the body is missing: send a JSON object".into()));
        }
        if body.trim_ascii_start().first() != Some(&b'{') {
            // Serde would read the fields of a struct from an array as well, by their place.
            return Err(malformed("the body is not a JSON object".into()));
        }
        let mut reader = serde_json::Deserializer::from_slice(&body);
        let value: T = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let field = field_of(&error);
            let inner = error.into_inner();
            if inner.is_data() {
                // The line and the column are left out: the field's name says where the error is, and people do not count columns.
                let message = inner.to_string();
                let detail = message.rsplit_once(" at line ").map_or(message.as_str(), |(detail, _)| detail);
                Problem { field, ..malformed(detail.to_owned()) }
            } else {
                malformed(format!("the body is not JSON: {inner}"))
            }
        })?;
        reader.end().map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
        Ok(value)
    }

    /// Checks that the request has no fields: the body is missing or an empty object.
    ///
    /// # Errors
    /// A problem that names a field of the body.
    pub fn nothing(&self) -> Result<(), Problem> {
        if self.body()?.is_empty() {
            return Ok(());
        }
        self.json().map(|Nothing {}| ())
    }

    /// The caller: the subject of the token, which the API's authorizer has verified, or the principal that signed a request to a function
    /// URL.
    ///
    /// # Errors
    /// `401` when there is no caller: the API has no authorizer, or the caller's name is missing or very long. An aggregate belongs to its
    /// creator, so it must not be created without a caller.
    pub fn actor(&self) -> Result<&str, Problem> {
        let authorizer = self.0.request_context.authorizer.as_ref();
        let of_iam = authorizer.and_then(|authorizer| authorizer.iam.as_ref()?.user_arn.as_deref());
        self.claim("sub")
            .or_else(|| of_iam.map(principal))
            .filter(|subject| (1..=MAX_SUBJECT).contains(&subject.len()))
            .ok_or_else(|| Problem::new(UNAUTHENTICATED, "sign in: the request names no caller"))
    }

    /// A claim of the caller's token, as text.
    pub(crate) fn claim(&self, name: &str) -> Option<&str> {
        let authorizer = self.0.request_context.authorizer.as_ref()?;
        authorizer.jwt.as_ref()?.claims.get(name).map(String::as_str)
    }

    /// The origin of the request, for the commit that it causes.
    #[must_use]
    pub fn meta(&self) -> Meta {
        let context = &self.0.request_context;
        // The client chooses this header, so its value is used only if it is harmless in a log and in an item.
        let harmless = |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        let header = |name| self.header(name).ok().flatten();
        let given = header("x-correlation-id").filter(harmless).map(ToOwned::to_owned);
        Meta {
            actor: self.actor().ok().map(ToOwned::to_owned),
            correlation_id: given.or_else(|| context.request_id.clone()),
            causation_id: None,
            source_address: context.http.source_ip.clone(),
            trace_id: header("x-amzn-trace-id").and_then(trace),
        }
    }
}

/// The trace that a header names: `Root=1-`, the time in 8 hexadecimal digits, `-`, and 24 more digits. Clients write this header as they
/// like, and the trace goes into every commit, so any other form is dropped. Source: the developer guide of X-Ray, "Tracing header".
fn trace(header: &str) -> Option<String> {
    let root = header.split(';').map(str::trim).find(|part| part.starts_with("Root="))?;
    let hexadecimal =
        |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let (time, id) = root.strip_prefix("Root=1-")?.split_once('-')?;
    (hexadecimal(time, 8) && hexadecimal(id, 24)).then(|| root.to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Runs a function behind the HTTP API.
///
/// # Errors
/// When the parts cannot be built, `PROBLEM_TYPES` is missing, `OPERATORS_CLAIM` is missing and a route is for operators, or `CALLER_REQUESTS_PER_SECOND` or `DEVELOPMENT_USER` is wrong.
pub async fn run<Parts: Routes>(
    manifest: Manifest,
    build: impl AsyncFnOnce() -> Result<Parts, Error>,
) -> Result<(), Error> {
    let build = async {
        let routes = Arc::new(build().await?);
        Ok(Box::new(move |request| {
            let routes = Arc::clone(&routes);
            async move { respond(&*routes, &request).await }.boxed_local()
        }) as Answers)
    };
    serve(manifest, build.boxed_local()).await
}

type Answers = Box<dyn Fn(HttpRequest) -> LocalBoxFuture<'static, Response>>;

/// This function has no type parameters, so it is compiled once for all functions behind the HTTP API.
fn serve(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Answers, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    let mut manifest = manifest.variable("PROBLEM_TYPES").optional(callers::LIMIT);
    let endpoints = manifest.endpoints().to_vec();
    let has_operators = endpoints.iter().any(|endpoint| endpoint.scope == Scope::Operate);
    manifest = match has_operators {
        true => manifest.variable(operators::CLAIM),
        false => manifest.optional(operators::CLAIM),
    };
    let build = async {
        let operators = Operators::from_env(&endpoints)?;
        let developer = developer(operators.as_ref().map(Operators::as_claim))?;
        let (limit, answers) = (Limit::from_env()?, build.await?);
        // The prefix can be set once in a process. Only a test runs a second function in a process, and it is of the same product.
        let _ = PROBLEM_TYPE_PREFIX.set(config::text("PROBLEM_TYPES")?);
        Ok(Box::new(move |LambdaEvent { payload: mut request, .. }: LambdaEvent<ApiGatewayV2httpRequest>| {
            if request.request_context.authorizer.is_none() {
                request.request_context.authorizer.clone_from(&developer);
            }
            let request = HttpRequest(with_route(&endpoints, request));
            let taken = limit.as_ref().map_or(Ok(()), |limit| limit.take(&request));
            let may =
                taken.and_then(|()| operators.as_ref().map_or(Ok(()), |operators| operators.check(&request)));
            let answer = match may {
                Ok(()) => answers(request),
                Err(problem) => async { Response::from(problem) }.boxed_local(),
            };
            async move { Ok(answer.await.into_lambda()) }.boxed_local()
        }) as Handle<_, ApiGatewayV2httpResponse>)
    };
    start(manifest, build.boxed_local())
}

/// The caller of requests without an authorizer, from `DEVELOPMENT_USER`, because `sam local start-api` leaves authorizers out. There is no
/// such caller on AWS: a function with a `DEVELOPMENT_USER` and without the endpoint of an emulator does not start. The caller has this claim too, if there is one: that of
/// operators.
fn developer(claim: Option<(&str, &str)>) -> Result<Option<ApiGatewayRequestAuthorizer>, Error> {
    let name = "DEVELOPMENT_USER";
    let user = config::parsed_or(name, String::new())?;
    if user.is_empty() {
        return Ok(None);
    }
    if config::text("AWS_ENDPOINT_URL").is_err() {
        let reason = "it is for emulators only, and there is no AWS_ENDPOINT_URL".to_owned();
        return Err(ConfigError::Invalid { name: name.into(), reason }.into());
    }
    let mut claims = json!({ "sub": user });
    if let Some((name, value)) = claim {
        claims[name] = value.into();
    }
    Ok(Some(serde_json::from_value(json!({ "jwt": { "claims": claims } }))?))
}

/// Answers a request in every case: a panic is answered with 500, like any other failure of the server.
async fn respond(routes: &impl Routes, request: &HttpRequest) -> Response {
    let correlation_id = request.meta().correlation_id.unwrap_or_default();
    let span = tracing::info_span!("request", correlation_id, route = request.route());
    let handled = AssertUnwindSafe(routes.handle(request).instrument(span.clone())).catch_unwind().await;
    let result = handled.unwrap_or_else(|_| {
        span.in_scope(|| tracing::error!("the handler panicked"));
        Err(Problem::internal())
    });
    result.unwrap_or_else(Response::from)
}

/// The part of a function that answers its requests.
///
/// ```no_run
/// use http::StatusCode;
/// use ledgerline_lambda::{
///     http::{HttpRequest, Problem, Response, Routes},
/// };
/// use ledgerline::manifest::{Endpoint, Manifest, Scope, Source};
/// use serde_json::json;
///
/// struct Queries;
///
/// impl Routes for Queries {
///     async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
///         match request.route() {
///             "GET /hello" => Ok(Response::json(StatusCode::OK, json!({ "hello": request.actor()? }))),
///             _ => Err(Problem::no_route()),
///         }
///     }
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     let endpoint = Endpoint { route: "GET /hello".into(), scope: Scope::Read };
///     let manifest = Manifest::new(Source::Http(vec![endpoint]));
///     ledgerline_lambda::http::run(manifest, async || Ok(Queries)).await
/// }
/// ```
pub trait Routes: 'static {
    /// Answers a request.
    fn handle(&self, request: &HttpRequest) -> impl Future<Output = Result<Response, Problem>>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    fn request(body: &str) -> HttpRequest {
        let event = json!({
            "version": "2.0",
            "routeKey": "POST /tanks",
            "rawPath": "/tanks",
            "rawQueryString": "owner=Doe%2C+John&limit=5&limit=6",
            "headers": { "content-type": "application/json" },
            "requestContext": { "http": { "method": "POST", "path": "/tanks" }, "requestId": "r-1", "timeEpoch": 0 },
            "body": body,
            "isBase64Encoded": false,
        });
        serde_json::from_value::<ApiGatewayV2httpRequest>(event).unwrap().into()
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Body {
        amount: u32,
        #[serde(default)]
        nested: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        name: String,
    }

    #[test]
    fn of_a_tracing_header_only_the_trace_is_kept_and_only_in_its_form() {
        let root = "Root=1-5759e988-bd862e3fe1be46a994272793";
        for (header, kept) in [
            (root.to_owned(), true),
            (format!("Self=1-2;{root}; Parent=53995c3f42cd8ad8;Sampled=1"), true),
            (format!("{root};{}", "x".repeat(8_000)), true),
            ("x".repeat(8_000), false),
            (format!("Root=1-5759e988-{}", "b".repeat(8_000)), false),
            ("Root=1-5759e988-bd862e3fe1be46a99427279\u{7f}".into(), false),
            (String::new(), false),
        ] {
            assert_eq!(trace(&header).as_deref(), kept.then_some(root), "{header:.60}");
        }
    }

    #[test]
    fn a_malformed_body_is_answered_with_the_name_of_the_field() {
        for (body, field) in [
            (r#"{}"#, Some("amount")),
            (r#"{"amount":"1"}"#, Some("amount")),
            (r#"{"amount":1.5}"#, Some("amount")),
            (r#"{"amount":-1}"#, Some("amount")),
            (r#"{"amount":1,"amount":2}"#, Some("amount")),
            (r#"{"amount":1,"colour":"red"}"#, Some("colour")),
            (r#"{"amount":1,"nested":[{"name":"a"},{"name":2}]}"#, Some("nested[1].name")),
            ("{\"amount\":1", None),
            ("{\"amount\":1} x", None),
            ("amount=1", None),
            ("", None),
            ("[1]", None),
        ] {
            let problem = request(body).json::<Body>().unwrap_err();
            assert_eq!(problem.status, StatusCode::BAD_REQUEST, "{body}");
            assert_eq!(problem.field.as_deref(), field, "{body}: {}", problem.detail);
        }
    }

    #[test]
    fn a_body_is_read_up_to_the_limit() {
        let padded = |length: usize| format!("{{\"amount\":1{}}}", " ".repeat(length - 12));
        assert!(request(&padded(MAX_BODY_BYTES)).json::<Body>().is_ok());
        let problem = request(&padded(MAX_BODY_BYTES + 1)).json::<Body>().unwrap_err();
        assert_eq!(problem.status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn a_query_value_may_have_commas_and_may_not_come_twice() {
        assert_eq!(request("").query("owner").unwrap().as_deref(), Some("Doe, John"));
        assert_eq!(request("").query("limit").unwrap_err().field.as_deref(), Some("limit"));
        assert_eq!(request("").query("cursor").unwrap(), None);
    }

    #[tokio::test]
    async fn a_panic_is_answered_like_any_other_failure() {
        struct Buggy;
        impl Routes for Buggy {
            async fn handle(&self, _: &HttpRequest) -> Result<Response, Problem> {
                panic!("a bug")
            }
        }
        let response = respond(&Buggy, &request("")).await;
        assert_eq!(response.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.body.unwrap()["type"], "urn:problem:internal");
    }

    /// A key or a condition that cannot be read must not be ignored.
    #[test]
    fn a_header_that_is_no_ascii_text_is_refused() {
        let mut event = serde_json::to_value(&request("").0).unwrap();
        event["headers"] = json!({ "idempotency-key": "überweisung", "if-match": "\"3\"" });
        let request: HttpRequest = serde_json::from_value::<ApiGatewayV2httpRequest>(event).unwrap().into();
        assert_eq!(request.header("idempotency-key").unwrap_err().field.as_deref(), Some("idempotency-key"));
        assert_eq!(request.header("if-match"), Ok(Some("\"3\"")));
        assert_eq!(request.header("if-none-match"), Ok(None));
    }

    #[test]
    fn entity_tags_are_compared_strongly() {
        assert_eq!(versions_of("\"3\""), Some(vec![3]));
        assert_eq!(versions_of("\"3.9f86d081\", \"4\""), Some(vec![3, 4]));
        assert_eq!(versions_of(" \"3\" , \"4\""), Some(vec![3, 4]));
        assert_eq!(versions_of("*"), None);
        for nothing in [
            "W/\"3\"",
            "\"3.\"",
            "\"3.9F86D081\"",
            "\".9f86d081\"",
            "\"3.9f86d081.\"",
            "3",
            "\"03\"",
            "\"+3\"",
            "\"x\"",
            "",
            "\"-1\"",
        ] {
            assert_eq!(versions_of(nothing), Some(vec![]), "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(text in ".*") {
            let _ = versions_of(&text);
            let _ = request(&text).json::<Body>();
        }
    }
}
