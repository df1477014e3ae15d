use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use ledgerline::{
    EventLog, MemoryStore,
    spec::valid,
    testing::tank::{self, Tank},
};
use ledgerline_testing::http_event;
use serde_json::json;

use super::*;

const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

fn tanks() -> Commands<Tank, MemoryStore> {
    let install = |_: Value| {
        let id = Some(valid(ID));
        (id, tank::Command::Install { site: valid("North"), liquid: valid("water") })
    };
    let store = MemoryStore::default();
    let cache = Cache::new(CACHED_STREAMS);
    let routes = vec![
        create("POST /tanks", install, |_, _, version| version),
        update("POST /tanks/{id}/fills", tank::Command::Fill, |_, state: &tank::State, _| {
            state.level()
        }),
        action("POST /tanks/{id}/scrap", || tank::Command::Scrap, |_, _, version| version),
    ];
    Commands { store, cache, retention: 60, source_addresses: false, routes }
}

/// Returns the status of the response to a request, and its body or the field of its problem.
async fn send(
    function: &Commands<Tank, MemoryStore>,
    route: &str,
    id: &str,
    headers: Value,
    body: &str,
) -> (u16, Value) {
    let fields = json!({ "headers": headers, "body": body, "pathParameters": { "id": id } });
    answer(function, http_event(route, fields)).await
}

async fn answer(
    function: &Commands<Tank, MemoryStore>,
    event: ApiGatewayV2httpRequest,
) -> (u16, Value) {
    match function.handle(&event.into()).await {
        Ok(answer) => (answer.status.as_u16(), answer.body.unwrap_or_default()),
        Err(problem) => (problem.status.as_u16(), problem.field.into()),
    }
}

/// A commit never changes, so an address in it could not be removed later.
#[tokio::test]
async fn a_commit_stores_the_caller_and_its_address_only_if_the_configuration_asks_for_it() {
    for source_addresses in [false, true] {
        let function = Commands { source_addresses, ..tanks() };
        send(&function, "POST /tanks", ID, Value::default(), "{}").await;
        let commit = function.store.get(&Tank::stream(ID).unwrap(), 1).await.unwrap().unwrap();
        assert_eq!(commit.meta.actor.as_deref(), Some("ada"));
        assert_eq!(
            commit.meta.correlation_id.as_deref(),
            Some("r"),
            "without a header, it is the request's id"
        );
        let kept = commit.meta.source_address.as_deref();
        assert_eq!(kept, source_addresses.then_some("192.0.2.1"));
    }
}

#[tokio::test]
async fn a_request_without_a_caller_is_refused_and_appends_nothing() {
    let function = tanks();
    let fields = json!({ "requestContext": { "authorizer": null }, "body": "{}" });
    let event: ApiGatewayV2httpRequest = http_event("POST /tanks", fields);
    let refusal = function.handle(&event.into()).await.unwrap_err();
    assert_eq!((refusal.status.as_u16(), refusal.code), (401, "unauthenticated"));
    assert!(function.store.get(&Tank::stream(ID).unwrap(), 1).await.unwrap().is_none());
}

#[tokio::test]
async fn a_route_may_allow_a_larger_body_and_the_others_do_not() {
    let padded = |length: usize| format!("{{{}}}", " ".repeat(length - 2));
    let mut function = tanks();
    let route = function.routes.remove(0).allow_request_body(100_000);
    function.routes.insert(0, route);
    for (path, length, status) in [
        ("POST /tanks", 100_000, 201),
        ("POST /tanks", 100_001, 413),
        ("POST /tanks/{id}/scrap", MAX_BODY_BYTES, 200),
        ("POST /tanks/{id}/scrap", MAX_BODY_BYTES + 1, 413),
    ] {
        let answered = send(&function, path, ID, Value::default(), &padded(length)).await;
        assert_eq!(answered.0, status, "{path}, {length} bytes: {answered:?}");
    }
}

#[test]
#[should_panic(expected = "POST /tanks: a body has at most 4 MB")]
fn no_route_allows_a_body_that_lambda_would_refuse() {
    let _ = tanks().routes.remove(0).allow_request_body(MAX_LARGE_BODY_BYTES + 1);
}

/// Clients compare the status and the code, and retry exactly after `Retry-After`
/// (docs/http.md, "Problems").
#[test]
fn a_failed_command_has_the_status_code_field_and_version_of_its_failure() {
    use ExecuteError::{CommandIdReused, Contended, Overtaken, PreconditionFailed, TooLarge};
    let cases = [
        (PreconditionFailed { version: 3 }, 412, "precondition-failed", Some("If-Match"), Some(3)),
        (Overtaken { version: 3 }, 409, "overtaken", Some("If-Match"), Some(3)),
        (Contended, 409, "conflict", None, None),
        (CommandIdReused, 422, "idempotency-key-reused", Some("Idempotency-Key"), None),
        (TooLarge { bytes: 2, limit: 1 }, 413, "commit-too-large", None, None),
    ];
    let retry_after = |problem| {
        let headers = Response::from(problem).headers;
        headers.into_iter().find(|(name, _)| *name == "retry-after").map(|(_, seconds)| seconds)
    };
    for (error, status, code, field, version) in cases {
        let found = problem(&error, None);
        assert_eq!((found.status.as_u16(), found.code), (status, code));
        assert_eq!((found.field.as_deref(), found.version), (field, version), "{code}");
        assert_eq!(retry_after(found).as_deref(), (code == "conflict").then_some("1"), "{code}");
    }
    assert_eq!(retry_after(Problem::unavailable()).as_deref(), Some("1"));
}

/// RFC 9110, 13.1.2: a condition that does not hold stops the command, and no condition is
/// dropped.
#[tokio::test]
async fn if_none_match_is_a_condition_of_a_command() {
    let function = tanks();
    let fill = async |headers: Value| {
        send(&function, "POST /tanks/{id}/fills", ID, headers, r#"{"amount":1}"#).await
    };
    let install = async |headers: Value| send(&function, "POST /tanks", ID, headers, "{}").await.0;
    assert_eq!(install(json!({ "if-none-match": "*" })).await, 201, "there was none");
    for tags in ["*", "\"1\"", "W/\"1\"", "\"7\", \"1.9f86d081\""] {
        let refused = (412, "If-None-Match".into());
        assert_eq!(fill(json!({ "if-none-match": tags })).await, refused, "{tags}");
    }
    for malformed in ["1", "", "\"1\" 7"] {
        let refused = (400, "If-None-Match".into());
        assert_eq!(fill(json!({ "if-none-match": malformed })).await, refused, "{malformed}");
    }
    let both = json!({ "if-none-match": "\"7\"", "if-match": "*" });
    assert_eq!(fill(both).await, (400, "If-None-Match".into()));
    assert_eq!(fill(json!({ "if-none-match": "\"7\"" })).await, (200, 1.into()));
}

#[tokio::test]
async fn a_command_has_no_parameters_in_its_query() {
    let function = tanks();
    let fields = json!({ "rawQueryString": "dryRun=1", "body": "{}" });
    let refused = answer(&function, http_event("POST /tanks", fields)).await;
    assert_eq!(refused, (400, "dryRun".into()));
}

#[tokio::test]
async fn an_idempotency_key_has_at_most_128_characters() {
    for (length, expected) in [(0, 400), (128, 201), (129, 400)] {
        let headers = json!({ "idempotency-key": "k".repeat(length) });
        let (status, _) = send(&tanks(), "POST /tanks", ID, headers, "{}").await;
        assert_eq!(status, expected, "{length} characters");
    }
}

/// API Gateway joins two headers with a comma.
#[tokio::test]
async fn two_joined_idempotency_keys_are_refused() {
    let headers = json!({ "idempotency-key": "one,two" });
    let refused = send(&tanks(), "POST /tanks", ID, headers, "{}").await;
    assert_eq!(refused, (400, "Idempotency-Key".into()));
}

#[tokio::test]
async fn the_same_command_in_another_spelling_gets_the_first_response() {
    let function = tanks();
    let key = |key: &str| json!({ "idempotency-key": key });
    send(&function, "POST /tanks", ID, Value::default(), "{}").await;
    let capitals = ID.to_uppercase();
    for (id, body, status) in [
        (ID, r#"{"amount":5}"#, 200),
        (ID, r#"{ "note": null, "amount": 5 }"#, 200),
        (&capitals, r#"{"amount":5}"#, 200),
        (ID, r#"{"amount":6}"#, 422),
        (ID, r#"{"amount":5,"note":"rain"}"#, 422),
    ] {
        let answer = send(&function, "POST /tanks/{id}/fills", id, key("a"), body).await;
        assert_eq!(answer.0, status, "{body}");
        assert!(status == 422 || answer.1 == 5, "{body} is booked once: {answer:?}");
    }
    for (note, status) in [(&*capitals, 200), (ID, 422), (&*capitals, 200)] {
        let body = json!({ "amount": 1, "note": note }).to_string();
        let answer = send(&function, "POST /tanks/{id}/fills", ID, key("c"), &body).await;
        assert_eq!(answer.0, status, "a note is no id: {note}");
    }
    let scrap = async |body| send(&function, "POST /tanks/{id}/scrap", ID, key("b"), body).await;
    assert_eq!(scrap("").await.0, 422, "the tank is not empty");
    assert_eq!(scrap("{}").await.1["title"], "Tank not empty", "and that is the answer again");
}

/// The fingerprint is stored with the response. A change of it refuses every command that is sent
/// again.
#[test]
fn the_stored_fingerprint_keeps_its_form() {
    let fields = json!({
        "body": r#"{"note":"rain","amount":5}"#, "pathParameters": { "id": ID },
    });
    let event: ApiGatewayV2httpRequest = http_event("POST /tanks/{id}/fills", fields);
    let expected = "63964be30f99968119399320b45bfe9f6dda1a009d0798f43d0d14c410b26c29";
    let stream = Tank::stream(ID).unwrap();
    assert_eq!(fingerprint(&event.into(), &stream).unwrap(), expected);
}
