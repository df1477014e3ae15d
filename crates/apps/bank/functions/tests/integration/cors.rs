//! The API for web pages of other origins.

use ledgerline_testing::{Answer, LocalStack, fresh_id};
use reqwest::{Method, StatusCode};
use serde_json::json;

const APP: &str = "https://app.example.com";

fn header<'a>(answer: &'a Answer, header: &str) -> Option<&'a str> {
    answer.headers.get(header).map(String::as_str)
}

/// A browser sends the preflight request without a token, and the request itself only after it.
#[tokio::test]
async fn a_page_of_an_allowed_origin_calls_the_api() {
    let origins = format!("AllowedOrigins={APP},https://*");
    let stack = LocalStack::start_as(&["--parameter-overrides", &origins]).await;
    let preflight = [
        ("origin", APP),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,idempotency-key"),
    ];
    // No token of this form is accepted.
    let stranger = ledgerline_testing::Api::new(stack.url().to_owned(), Some("a.b.c".into()));
    let allowed = stranger.call(Method::OPTIONS, "/accounts", &preflight, String::new()).await;
    assert_eq!(allowed.status, StatusCode::NO_CONTENT);
    assert_eq!(header(&allowed, "access-control-allow-origin"), Some(APP));
    let headers = header(&allowed, "access-control-allow-headers").unwrap();
    for name in ["authorization", "idempotency-key", "if-match"] {
        assert!(headers.split(',').any(|header| header == name), "{headers}");
    }

    let body = json!({ "accountId": fresh_id(), "owner": "Ada", "currency": "EUR" }).to_string();
    // A page has only the rights of its token. Without one, it does not act for the developer.
    let origin = [("origin", APP)];
    let refused = stack.call(Method::POST, "/accounts", &origin, body.clone()).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    let ada = ledgerline_testing::Api::new(stack.url().to_owned(), Some("ada".into()));
    let opened = ada.call(Method::POST, "/accounts", &origin, body).await;
    assert_eq!(opened.status, StatusCode::CREATED);
    assert_eq!(header(&opened, "access-control-allow-origin"), Some(APP));
    let exposed = header(&opened, "access-control-expose-headers").unwrap();
    assert!(exposed.contains("etag") && exposed.contains("location"), "{exposed}");

    // The sign-in needs no token for the requests of a page, and takes no form of one.
    let kind = ("content-type", "application/x-www-form-urlencoded");
    for (method, path) in [
        (Method::POST, "/oauth2/token"),
        (Method::POST, "/oauth2/revoke"),
        (Method::GET, "/.well-known/openid-configuration"),
    ] {
        let answer = stack.call(method, path, &[origin[0], kind], String::new()).await;
        assert_eq!(header(&answer, "access-control-allow-origin"), Some(APP), "{path}");
    }
    let form = stack.call(Method::POST, "/oauth2/authorize", &origin, String::new()).await;
    assert_eq!(form.status, StatusCode::UNAUTHORIZED);
    refuses(&stack, "http://evil.example.com").await;
}

async fn refuses(stack: &LocalStack, origin: &str) {
    let foreign = [("origin", origin), ("access-control-request-method", "POST")];
    for method in [Method::OPTIONS, Method::GET] {
        let answer = stack.call(method, "/accounts", &foreign, String::new()).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{answer:?}");
        assert_eq!(header(&answer, "access-control-allow-origin"), None, "{answer:?}");
    }
}

/// Without the parameter, the template has no `CorsConfiguration`.
#[tokio::test]
async fn without_allowed_origins_no_page_calls_the_api() {
    refuses(&LocalStack::start(None).await, APP).await;
}
