//! HTTP: a function behind the HTTP API, with its requests, responses, and problems (RFC 9457).

pub(crate) mod problem;
pub(crate) mod request;
pub(crate) mod response;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use aws_lambda_events::apigw::{ApiGatewayRequestAuthorizer, ApiGatewayV2httpRequest};
use futures::{FutureExt, future::LocalBoxFuture};
pub use http::StatusCode;
use lambda_runtime::LambdaEvent;
use ledgerline::manifest::{Manifest, Scope};
use serde_json::json;
use tracing::Instrument;

pub use self::{problem::*, request::*, response::*};
use crate::{
    config::{self, ConfigError},
    failure::Error,
    function_url::find_route,
    operators::{self, Operators},
    rate_limit::{self, Limit},
    start::{handler, start},
};

/// The time that the work of a request may take, including retries. It is less than the function's
/// timeout (rule 11), so that the client gets a response.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

/// Runs a function behind the HTTP API.
///
/// # Errors
/// When the parts cannot be built, or `PROBLEM_TYPES` is missing. When `OPERATORS_CLAIM` is missing
/// and a route is for operators. When `CALLER_REQUESTS_PER_SECOND` or `DEVELOPMENT_USER` is wrong.
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

/// This function has no type parameters, so it is compiled once for all functions behind the HTTP
/// API.
fn serve(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Answers, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    let mut manifest = manifest.variable("PROBLEM_TYPES").optional(rate_limit::LIMIT_VARIABLE);
    let endpoints = manifest.endpoints().to_vec();
    let has_operators = endpoints.iter().any(|endpoint| endpoint.scope == Scope::Operate);
    manifest = match has_operators {
        true => manifest.variable(operators::CLAIM_VARIABLE),
        false => manifest.optional(operators::CLAIM_VARIABLE),
    };
    let build = async {
        let operators = Operators::from_env(&endpoints)?;
        let developer = developer(operators.as_ref().map(Operators::as_claim))?;
        let limit = Limit::from_env()?;
        let answers = build.await?;
        // The prefix can be set once in a process. Only a test runs a second function in a process,
        // and it is of the same product.
        let _ = problem::PROBLEM_TYPE_PREFIX.set(config::text("PROBLEM_TYPES")?);
        Ok(handler(
            move |LambdaEvent { payload: mut request, .. }: LambdaEvent<
                ApiGatewayV2httpRequest,
            >| {
                if request.request_context.authorizer.is_none() {
                    request.request_context.authorizer.clone_from(&developer);
                }
                let found = find_route(&endpoints, request).map(HttpRequest::from);
                let allowed = found.map_err(Problem::from).and_then(|request| {
                    limit.as_ref().map_or(Ok(()), |limit| limit.check(&request))?;
                    operators.as_ref().map_or(Ok(()), |operators| operators.check(&request))?;
                    Ok(request)
                });
                let answer = match allowed {
                    Ok(request) => answers(request),
                    Err(problem) => async { Response::from(problem) }.boxed_local(),
                };
                async move { Ok(answer.await.into_lambda()) }
            },
        ))
    };
    start(manifest, build.boxed_local())
}

/// Reads the caller of requests without an authorizer from `DEVELOPMENT_USER`. The reason is that
/// `sam local start-api` leaves authorizers out. There is no such caller on AWS: a function with a
/// `DEVELOPMENT_USER` and without the endpoint of an emulator does not start. The caller also has
/// this claim, if there is one: that of operators.
fn developer(claim: Option<(&str, &str)>) -> Result<Option<ApiGatewayRequestAuthorizer>, Error> {
    let name = "DEVELOPMENT_USER";
    let user = config::parse_or(name, String::new())?;
    if user.is_empty() {
        return Ok(None);
    }
    if config::text("AWS_ENDPOINT_URL").is_err() {
        let reason =
            "the variable is for emulators only, and AWS_ENDPOINT_URL is not set".to_owned();
        return Err(ConfigError::Invalid { name: name.into(), reason }.into());
    }
    let mut claims = json!({ "sub": user });
    if let Some((name, value)) = claim {
        claims[name] = value.into();
    }
    Ok(Some(serde_json::from_value(json!({ "jwt": { "claims": claims } }))?))
}

/// Answers a request in every case: a panic becomes a 500, like any other failure of the server.
async fn respond(routes: &impl Routes, request: &HttpRequest) -> Response {
    let correlation_id = request.meta().correlation_id.as_deref().unwrap_or_default();
    let span = tracing::info_span!("request", correlation_id, route = request.route());
    let handled =
        AssertUnwindSafe(routes.handle(request).instrument(span.clone())).catch_unwind().await;
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

    fn event(body: &str) -> serde_json::Value {
        json!({
            "version": "2.0",
            "routeKey": "POST /tanks",
            "rawPath": "/tanks",
            "rawQueryString": "owner=Doe%2C+John&limit=5&limit=6",
            "headers": { "content-type": "application/json" },
            "requestContext": { "http": { "method": "POST", "path": "/tanks" }, "requestId": "r-1", "timeEpoch": 0 },
            "body": body,
            "isBase64Encoded": false,
        })
    }

    fn request(body: &str) -> HttpRequest {
        serde_json::from_value::<ApiGatewayV2httpRequest>(event(body)).unwrap().into()
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
    fn a_repeated_parameter_is_refused_even_if_the_route_does_not_read_it() {
        for (query, refused) in [
            ("limit=1&cursor=x", None),
            ("type=a&type=b&limit=1", None),
            ("limit=1&limit=1", Some("`limit` is given twice")),
            ("cursor=&type=a&cursor=", Some("`cursor` is given twice")),
            ("%6Cimit=1&limit=1", Some("`limit` is given twice")),
            ("limit=1&type=%FF", Some("`type=%FF` is not UTF-8 after its percent-encoding")),
            ("%FF=1", Some("`%FF=1` is not UTF-8 after its percent-encoding")),
            ("Limit=1", Some("there is no such parameter; there are: limit, cursor, type")),
        ] {
            let mut event = event("");
            event["rawQueryString"] = query.into();
            let request: ApiGatewayV2httpRequest = serde_json::from_value(event).unwrap();
            let answer =
                HttpRequest::from(request).check_parameters(&["limit", "cursor"], &["type"]);
            assert_eq!(answer.err().map(|problem| problem.detail).as_deref(), refused, "{query}");
        }
    }

    #[test]
    fn a_commit_stores_only_a_well_formed_trace_of_a_tracing_header() {
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
            assert_eq!(request::trace(&header).as_deref(), kept.then_some(root), "{header:.60}");
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
        assert_eq!((problem.status.as_u16(), problem.code), (413, "body-too-large"));
    }

    #[test]
    fn a_query_value_may_have_commas_and_may_not_be_repeated() {
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

    /// A route must not ignore an unreadable idempotency key or condition.
    #[test]
    fn a_header_that_is_not_ascii_text_is_refused() {
        let mut event = event("");
        event["headers"] = json!({ "idempotency-key": "überweisung", "if-match": "\"3\"" });
        let request: HttpRequest =
            serde_json::from_value::<ApiGatewayV2httpRequest>(event).unwrap().into();
        assert_eq!(
            request.header("idempotency-key").unwrap_err().field.as_deref(),
            Some("idempotency-key")
        );
        assert_eq!(request.header("if-match"), Ok(Some("\"3\"")));
        assert_eq!(request.header("if-none-match"), Ok(None));
    }

    #[test]
    fn entity_tags_are_compared_strongly() {
        assert_eq!(parse_etags("\"3\""), Some(vec![3]));
        assert_eq!(parse_etags("\"3.9f86d081\", \"4\""), Some(vec![3, 4]));
        assert_eq!(parse_etags(" \"3\" , \"4\""), Some(vec![3, 4]));
        assert_eq!(parse_etags("\"18446744073709551615\""), Some(vec![u64::MAX]));
        assert_eq!(parse_etags("*"), None);
        for nothing in [
            "\"18446744073709551616\"",
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
            assert_eq!(parse_etags(nothing), Some(vec![]), "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in ".*") {
            let _ = parse_etags(&text);
            let _ = request(&text).json::<Body>();
        }
    }
}
