//! The HTTP API: the template's routes, requests in payload format 2.0, and the functions'
//! responses.
//!
//! Source: the API Gateway developer guide, "Create AWS Lambda proxy integrations for HTTP APIs".

use std::{
    collections::BTreeMap,
    error::Error,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use http_body_util::LengthLimitError;
use jiff::{Timestamp, tz::TimeZone};
use ledgerline::url_text::{NoText, decode_path, decode_query};
use ledgerline_sam::template::Cors;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    access_log::{self, AccessLog},
    cors,
    host::Function,
    identity::{self, Authorizer},
    trace_log::TraceLog,
};

/// The largest body that API Gateway accepts.
const MAX_BODY_BYTES: usize = 10 * 1024 * 1024;
/// The environment variable of a function that names the claim with a caller's groups.
const OPERATORS_CLAIM: &str = "OPERATORS_CLAIM";
/// The longest time that API Gateway waits for a function.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A route and the function behind it.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) function: Arc<Function>,
    /// The scopes of which a token must have one; empty if every token is accepted.
    pub(crate) scopes: Vec<String>,
}

impl Route {
    fn key(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Returns the path parameters if the route matches the request with this decoded path.
    fn matches(&self, method: &Method, path: &str) -> Option<BTreeMap<String, String>> {
        if self.method != "ANY" && self.method != method.as_str() {
            return None;
        }
        let mut parameters = BTreeMap::new();
        let mut segments = path.split('/');
        for pattern in self.path.split('/') {
            let segment = segments.next()?;
            match pattern.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                Some(name) if !segment.is_empty() => {
                    parameters.insert(name.to_owned(), segment.to_owned());
                }
                Some(_) => return None,
                None if segment == pattern => {}
                None => return None,
            }
        }
        segments.next().is_none().then_some(parameters)
    }
}

/// The query parameter of a long poll.
const WAIT: &str = "wait";

/// The target of a request, decoded as its function decodes it. Otherwise a request could be a long
/// poll for the function, and none for the gateway.
#[derive(Debug)]
struct RequestTarget {
    /// The path. HTTP APIs decode it before they look for a route.
    path: String,
    raw_query: String,
    /// The parameters. A query that is no text has none here: its function refuses the query.
    query: Vec<(String, String)>,
}

impl RequestTarget {
    fn from_uri(uri: &Uri) -> Result<Self, NoText> {
        let raw_query = uri.query().unwrap_or_default().to_owned();
        let query = decode_query(&raw_query).unwrap_or_default();
        Ok(Self { path: decode_path(uri.path())?, raw_query, query })
    }

    fn is_long_poll(&self) -> bool {
        self.query.iter().any(|(name, seconds)| name == WAIT && seconds != "0")
    }

    fn drop_wait(&mut self) {
        self.query.retain(|(name, _)| name != WAIT);
        let mut query = form_urlencoded::Serializer::new(String::new());
        self.raw_query = query.extend_pairs(&self.query).finish();
    }
}

/// Returns the name of the first parameter of a route's path.
fn first_parameter(path: &str) -> Option<&str> {
    let (_, name) = path.split_once('{')?;
    Some(name.split_once('}')?.0)
}

/// The state that all requests share.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) routes: Arc<Vec<Route>>,
    pub(crate) written: Arc<Notify>,
    pub(crate) hops: TraceLog,
    /// The rules by which the API accepts callers; `None` for an API without an authorizer.
    pub(crate) authorizer: Option<Authorizer>,
    /// The log of requests, if the template has one.
    pub(crate) access: Option<Arc<AccessLog>>,
    /// The web pages of other origins that may call the API; `None` if no page may.
    pub(crate) cors: Option<Arc<Cors>>,
}

impl Api {
    /// Creates the API. As in API Gateway, fixed segments of a path have priority over parameters.
    pub(crate) fn new(
        mut routes: Vec<Route>,
        written: Arc<Notify>,
        hops: TraceLog,
        authorizer: Option<Authorizer>,
        access: Option<Arc<AccessLog>>,
        cors: Option<Arc<Cors>>,
    ) -> Self {
        routes.sort_by_key(|route| route.path.matches('{').count());
        Self { routes: Arc::new(routes), written, hops, authorizer, access, cors }
    }

    pub(crate) fn router(self) -> Router {
        Router::new().fallback(handle).with_state(self)
    }
}

async fn handle(
    State(api): State<Api>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request<Body>,
) -> Response<Body> {
    let started = Instant::now();
    let mut seen = access_log::Request {
        id: Uuid::new_v4().to_string(),
        ip: client.ip().to_string(),
        ..access_log::Request::default()
    };
    let response = answer(&api, client, request, &mut seen).await;
    if let Some(access) = &api.access {
        access.add(&seen, response.status().as_u16(), started.elapsed().as_millis());
    }
    response
}

/// Answers a request, and writes into `seen` the fields of its access log line.
async fn answer(
    api: &Api,
    client: SocketAddr,
    request: Request<Body>,
    seen: &mut access_log::Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Ok(mut target) = RequestTarget::from_uri(&parts.uri) else {
        return message(StatusCode::BAD_REQUEST, "Bad Request");
    };
    let found = api
        .routes
        .iter()
        .find_map(|route| Some((route, route.matches(&parts.method, &target.path)?)));
    let Some((route, parameters)) = found else {
        return message(StatusCode::NOT_FOUND, "Not Found");
    };
    seen.route = route.key();
    let body = match axum::body::to_bytes(body, MAX_BODY_BYTES).await {
        Ok(body) => body,
        Err(error) if error.source().is_some_and(|cause| cause.is::<LengthLimitError>()) => {
            return message(StatusCode::PAYLOAD_TOO_LARGE, "Request Entity Too Large");
        }
        Err(_) => return message(StatusCode::BAD_REQUEST, "Bad Request"),
    };
    let operators = route.function.environment().get(OPERATORS_CLAIM).map(String::as_str);
    let authorizer = match &api.authorizer {
        None => None,
        Some(api) => match identity::authorizer(api, &parts.headers, &route.scopes, operators) {
            Ok(authorizer) => Some(authorizer),
            Err((status, reason)) => return refusal(status, reason),
        },
    };
    let long_poll = target.is_long_poll().then(|| route.function.long_poll());
    // Without a permit, the function answers the request at once, like a request without `wait`.
    if matches!(long_poll, Some(None)) {
        target.drop_wait();
    }
    let mut event =
        gateway_event(route, &parameters, &parts.method, &target, &parts.headers, &body, client);
    event["requestContext"]["requestId"] = json!(seen.id);
    if let Some(authorizer) = authorizer {
        seen.sub = authorizer["jwt"]["claims"]["sub"].as_str().unwrap_or_default().to_owned();
        event["requestContext"]["authorizer"] = authorizer;
    }
    // The wait for a rebuild is not part of the gateway's timeout, so that a slow build fails no
    // request.
    route.function.note_request().await;
    let started = Instant::now();
    let subject = first_parameter(&route.path).and_then(|name| parameters.get(name)).cloned();
    let invoked = route.function.invoke_about(subject, event.to_string().into_bytes());
    let invoked = tokio::time::timeout(TIMEOUT, invoked).await;
    let response = match invoked {
        Ok(Ok(answer)) => {
            let mut response = response(&answer);
            if let Some(cors) = &api.cors {
                cors::add_headers(cors, &parts.headers, response.headers_mut());
            }
            response
        }
        Ok(Err(error)) => {
            api.hops.line("http", &format!("{} failed: {error}", route.function.name()));
            seen.integration_error = error.to_string();
            message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
        }
        Err(_) => message(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable"),
    };
    if parts.method != Method::GET {
        api.written.notify_one();
    }
    let hop = if parts.method == Method::GET { "query" } else { "command" };
    let took = started.elapsed().as_millis();
    let by = route.function.name();
    api.hops.line(
        hop,
        &format!(
            "{} {} answered {} by {by} in {took} ms",
            parts.method,
            parts.uri.path(),
            response.status().as_u16()
        ),
    );
    response
}

fn gateway_event(
    route: &Route,
    parameters: &BTreeMap<String, String>,
    method: &Method,
    target: &RequestTarget,
    headers: &HeaderMap,
    body: &Bytes,
    client: SocketAddr,
) -> Value {
    let mut joined = BTreeMap::<&str, String>::new();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        joined
            .entry(name.as_str())
            .and_modify(|all| *all += &format!(",{value}"))
            .or_insert_with(|| value.into());
    }
    let mut query = BTreeMap::<&str, String>::new();
    for (name, value) in &target.query {
        let value = value.clone();
        query.entry(name).and_modify(|all| *all += &format!(",{value}")).or_insert(value);
    }
    let (body, encoded) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (BASE64_STANDARD.encode(body), true),
    };
    let now = Timestamp::now();
    let mut event = json!({
        "version": "2.0",
        "routeKey": route.key(),
        "rawPath": target.path,
        "rawQueryString": target.raw_query,
        "headers": joined,
        "requestContext": {
            "accountId": ledgerline_sam::template::ACCOUNT,
            "apiId": "local",
            "domainName": "127.0.0.1",
            "domainPrefix": "local",
            "http": {
                "method": method.as_str(),
                "path": target.path,
                "protocol": "HTTP/1.1",
                "sourceIp": client.ip().to_string(),
                "userAgent": joined.get("user-agent").cloned().unwrap_or_default(),
            },
            "routeKey": route.key(),
            "stage": "$default",
            "time": now.to_zoned(TimeZone::UTC).strftime("%d/%b/%Y:%H:%M:%S %z").to_string(),
            "timeEpoch": now.as_millisecond(),
        },
        "isBase64Encoded": encoded,
    });
    if !parameters.is_empty() {
        event["pathParameters"] = json!(parameters);
    }
    if !query.is_empty() {
        event["queryStringParameters"] = json!(query);
    }
    if !body.is_empty() {
        event["body"] = json!(body);
    }
    event
}

/// Returns the response for a function's answer. An answer without `statusCode` is the body of a
/// 200.
fn response(answer: &[u8]) -> Response<Body> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        status_code: u16,
        #[serde(default)]
        headers: BTreeMap<String, Value>,
        #[serde(default)]
        cookies: Vec<String>,
        #[serde(default)]
        body: Option<String>,
        #[serde(default)]
        is_base64_encoded: bool,
    }
    let build = || -> Option<Response<Body>> {
        let answer: Value = serde_json::from_slice(answer).ok()?;
        if answer.get("statusCode").is_none() {
            return Some(json_answer(StatusCode::OK, &answer));
        }
        let answer: Answer = serde_json::from_value(answer).ok()?;
        let body = answer.body.unwrap_or_default();
        let body = if answer.is_base64_encoded {
            BASE64_STANDARD.decode(body).ok()?
        } else {
            body.into_bytes()
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(answer.status_code).ok()?;
        for (name, value) in &answer.headers {
            let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            let name = HeaderName::try_from(name.as_str()).ok()?;
            response.headers_mut().insert(name, HeaderValue::try_from(value).ok()?);
        }
        for cookie in answer.cookies {
            response.headers_mut().append("set-cookie", HeaderValue::try_from(cookie).ok()?);
        }
        Some(response)
    };
    build().unwrap_or_else(|| message(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"))
}

/// Returns the refusal of a caller. API Gateway gives no reason.
fn refusal(status: StatusCode, reason: &str) -> Response<Body> {
    json_answer(status, &json!({ "message": status.canonical_reason(), "reason": reason }))
}

fn message(status: StatusCode, message: &str) -> Response<Body> {
    json_answer(status, &json!({ "message": message }))
}

fn json_answer(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str) -> RequestTarget {
        RequestTarget::from_uri(&uri.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_long_poll_without_a_permit_loses_its_wait_parameter() {
        for (query, is_long_poll, without) in [
            ("after=x&wait=20&limit=1", true, "after=x&limit=1"),
            ("%77ait=20", true, ""),
            ("after=a%26b&w%61it=%31", true, "after=a%26b"),
            ("after=wait", false, "after=wait"),
            ("wait=%30", false, ""),
            ("awaits=20", false, "awaits=20"),
        ] {
            let mut target = target(&format!("/events?{query}"));
            assert_eq!(target.is_long_poll(), is_long_poll, "{query}");
            target.drop_wait();
            assert_eq!(target.raw_query, without, "{query}");
        }
    }

    #[test]
    fn a_path_is_decoded_before_its_route_is_found() {
        assert_eq!(target("/acc%6Funts/a%2Db?x=%2D").path, "/accounts/a-b");
        assert_eq!(target("/accounts/a%2Fb").path, "/accounts/a/b");
        assert!(RequestTarget::from_uri(&Uri::from_static("/accounts/%FF")).is_err());
    }

    #[tokio::test]
    async fn an_answer_has_cookies_or_is_the_body_of_a_200() {
        let read = async |answer: &str| {
            let (parts, body) = response(answer.as_bytes()).into_parts();
            let cookies: Vec<_> = parts.headers.get_all("set-cookie").iter().cloned().collect();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            (parts.status.as_u16(), cookies, String::from_utf8(body.to_vec()).unwrap())
        };
        let error = r#"{"message":"Internal Server Error"}"#.to_owned();
        let cookies = ["a=1", "b=2; Secure"].map(HeaderValue::from_static).to_vec();
        assert_eq!(
            read(r#"{"statusCode":201,"cookies":["a=1","b=2; Secure"],"body":"x"}"#).await,
            (201, cookies, "x".to_owned())
        );
        assert_eq!(read(r#"{"a":[1]}"#).await, (200, vec![], r#"{"a":[1]}"#.to_owned()));
        assert_eq!(read(r#"{"statusCode":"x"}"#).await, (500, vec![], error.clone()));
        assert_eq!(read("no JSON").await, (500, vec![], error));
    }

    #[test]
    fn the_first_parameter_is_the_first_in_the_path_and_not_in_the_alphabet() {
        for (path, expected) in [
            ("/accounts", None),
            ("/accounts/{id}/credits", Some("id")),
            ("/shops/{shop}/items/{id}", Some("shop")),
        ] {
            assert_eq!(first_parameter(path), expected, "{path}");
        }
    }
}
