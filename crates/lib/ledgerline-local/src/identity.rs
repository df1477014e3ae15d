//! The caller of a request to the HTTP API: the claims that a JWT authorizer would pass on, without
//! an identity provider.
//!
//! A request without a token comes from the development user, unless a web page of another origin
//! sends it. With `Authorization: Bearer bob`, a request comes from bob, with every scope and as an
//! operator.
//!
//! A token with three parts must be one that this stack signed ([`tokens`](crate::tokens)) and that
//! has not expired. As on AWS, its audience must be one of the template's, and only its groups make
//! the caller an operator.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{cors::is_of_this_origin, tokens::Tokens};

/// The rules by which the API accepts callers.
#[derive(Debug, Clone)]
pub(crate) struct Authorizer {
    /// The user of requests without a token.
    pub(crate) developer: String,
    /// The clients whose tokens the API accepts.
    pub(crate) audience: Vec<String>,
    /// The key that signs the tokens.
    pub(crate) tokens: Arc<Tokens>,
}

/// Returns the `authorizer` of a request's context, for a route that requires one of these scopes.
/// `operators` is the claim in which the route's function looks for the group of operators, if it
/// does.
///
/// # Errors
/// The status and the message with which API Gateway would refuse the request.
pub(crate) fn authorizer(
    Authorizer { developer, audience, tokens }: &Authorizer,
    headers: &HeaderMap,
    scopes: &[String],
    operators: Option<&str>,
) -> Result<Value, (StatusCode, &'static str)> {
    const UNAUTHORIZED: (StatusCode, &str) = (StatusCode::UNAUTHORIZED, "Unauthorized");
    let token = match headers.get(AUTHORIZATION) {
        // A page of another origin must not act for the developer who visits it.
        None if !is_of_this_origin(headers) => return Err(UNAUTHORIZED),
        None => developer,
        Some(header) => {
            let header = header.to_str().map_err(|_| UNAUTHORIZED)?;
            // API Gateway accepts the token with and without the scheme.
            let (scheme, token) = header.split_once(' ').unwrap_or((header, ""));
            if scheme == "Bearer" { token.trim() } else { header.trim() }
        }
    };
    if token.is_empty() {
        return Err(UNAUTHORIZED);
    }
    let claims = if token.split('.').count() == 3 {
        let claims = tokens.claims(token, Timestamp::now()).ok_or(UNAUTHORIZED)?;
        if !is_for(&claims, audience) {
            return Err(UNAUTHORIZED);
        }
        claims.into_iter().map(|(name, value)| (name, as_text(&value))).collect()
    } else {
        named(token, scopes, operators)
    };
    let granted = claims.get("scope").map(String::as_str).unwrap_or_default();
    if !scopes.is_empty()
        && !granted.split(' ').any(|granted| scopes.iter().any(|scope| scope == granted))
    {
        return Err((StatusCode::FORBIDDEN, "Forbidden"));
    }
    Ok(json!({ "jwt": { "claims": claims, "scopes": scopes } }))
}

/// Returns the claims of a user whom a request names without a real token.
fn named(name: &str, scopes: &[String], operators: Option<&str>) -> BTreeMap<String, String> {
    let mut claims = BTreeMap::from([
        ("iss".to_owned(), "local".to_owned()),
        ("scope".to_owned(), scopes.join(" ")),
        ("sub".to_owned(), name.to_owned()),
        ("token_use".to_owned(), "access".to_owned()),
    ]);
    if let Some(claim) = operators {
        claims.insert(claim.to_owned(), "[operators]".to_owned());
    }
    claims
}

/// Whether a token is for one of these clients: by `aud`, or by `client_id` if there is no `aud`.
/// Source: the API Gateway developer guide, "Control access to HTTP APIs with JWT authorizers".
fn is_for(claims: &Map<String, Value>, audience: &[String]) -> bool {
    let named: Vec<_> = match claims.get("aud").or(claims.get("client_id")) {
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        Some(one) => one.as_str().into_iter().collect(),
        None => Vec::new(),
    };
    named.iter().any(|name| audience.iter().any(|known| known == name))
}

/// Returns a claim as API Gateway passes it on: as text, and a list as `[first second]`.
fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(as_text).collect::<Vec<_>>().join(" "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::{HOST, ORIGIN};

    use super::*;

    fn scopes() -> Vec<String> {
        vec!["ledgerline/write".to_owned()]
    }

    fn api() -> Authorizer {
        let tokens = Arc::new(Tokens::new("http://127.0.0.1:3000".into()).unwrap());
        let audience = vec!["App".into(), "Tool".into()];
        Authorizer { developer: "developer".into(), audience, tokens }
    }

    fn called(api: &Authorizer, token: Option<&str>) -> Result<Value, (StatusCode, &'static str)> {
        let headers = token.map(|token| (AUTHORIZATION, token.parse().unwrap()));
        authorizer(api, &headers.into_iter().collect(), &scopes(), Some("groups"))
    }

    fn called_with(token: Option<&str>) -> Result<Value, (StatusCode, &'static str)> {
        called(&api(), token)
    }

    /// Calls with a token of these claims, which this stack signed for a minute.
    fn signed(claims: &str) -> Result<Value, (StatusCode, &'static str)> {
        let api = api();
        let claims = serde_json::from_str(claims).unwrap();
        let token = api.tokens.sign(claims, Timestamp::now(), 60).unwrap();
        called(&api, Some(&format!("Bearer {token}")))
    }

    #[test]
    fn the_token_names_the_caller_of_a_request() {
        let carol = r#"{"sub":"carol","client_id":"App","scope":"openid ledgerline/write"}"#;
        for (authorizer, expected) in [
            (called_with(None), "developer"),
            (called_with(Some("Bearer bob")), "bob"),
            (called_with(Some("bob")), "bob"),
            (signed(carol), "carol"),
        ] {
            let authorizer = authorizer.unwrap();
            assert_eq!(authorizer["jwt"]["claims"]["sub"], expected);
            assert!(
                authorizer["jwt"]["claims"]["scope"].as_str().unwrap().contains("ledgerline/write")
            );
        }
    }

    #[test]
    fn a_page_of_another_origin_does_not_act_for_the_developer() {
        for (origin, token, expected) in [
            (None, None, None),
            (Some("http://localhost:3000"), None, None),
            (Some("http://localhost:3001"), None, Some(401)),
            (Some("https://localhost:3000"), None, Some(401)),
            (Some("https://evil.example"), None, Some(401)),
            (Some("null"), None, Some(401)),
            (Some("https://app.example.com"), Some("Bearer bob"), None),
        ] {
            let named = |name, value: Option<&str>| Some((name, value?.parse().unwrap()));
            let headers = [
                named(HOST, Some("localhost:3000")),
                named(ORIGIN, origin),
                named(AUTHORIZATION, token),
            ];
            let headers = headers.into_iter().flatten().collect();
            let called = authorizer(&api(), &headers, &scopes(), None);
            let refused = called.err().map(|(status, _)| status.as_u16());
            assert_eq!(refused, expected, "{origin:?} {token:?}");
        }
    }

    #[test]
    fn a_page_whose_name_resolves_to_this_machine_does_not_act_for_the_developer() {
        let value = |text: &str| text.parse().unwrap();
        let headers =
            [(HOST, value("evil.example:3000")), (ORIGIN, value("http://evil.example:3000"))];
        let called = authorizer(&api(), &headers.into_iter().collect(), &scopes(), None);
        assert_eq!(called.unwrap_err().0, 401);
    }

    #[test]
    fn an_invalid_or_insufficient_token_is_refused_as_by_api_gateway() {
        for token in ["Bearer ", "Bearer", "Bearer a.b.c"] {
            assert_eq!(called_with(Some(token)).unwrap_err().0, 401, "{token}");
        }
        for (claims, expected) in [
            (r#"{"sub":"carol","client_id":"App"}"#, 403),
            (r#"{"sub":"carol","client_id":"App","scope":"ledgerline/read"}"#, 403),
            // A token for a client that is not in the audience, or for no client.
            (r#"{"sub":"carol","scope":"ledgerline/write"}"#, 401),
            (r#"{"sub":"carol","client_id":"Other","scope":"ledgerline/write"}"#, 401),
            (r#"{"sub":"carol","aud":"Other","client_id":"App","scope":"ledgerline/write"}"#, 401),
        ] {
            assert_eq!(signed(claims).unwrap_err().0, expected, "{claims}");
        }
    }

    #[test]
    fn an_expired_token_and_one_of_another_stack_are_refused() {
        let claims = json!({ "sub": "carol", "client_id": "App", "scope": "ledgerline/write" });
        let other = api();
        let api = api();
        let now = Timestamp::now();
        for (token, expected) in [
            (api.tokens.sign(claims.clone(), now, 60), None),
            (api.tokens.sign(claims.clone(), now, 0), Some(401)),
            (other.tokens.sign(claims, now, 60), Some(401)),
        ] {
            let called = called(&api, Some(&format!("Bearer {}", token.unwrap())));
            assert_eq!(called.err().map(|(status, _)| status.as_u16()), expected);
        }
    }

    #[test]
    fn the_audience_and_the_groups_of_a_token_are_read_as_by_api_gateway() {
        let token = r#"{"sub":"carol","aud":["x","Tool"],"scope":"ledgerline/write","groups":["drivers","operators"]}"#;
        let authorizer = signed(token).unwrap();
        assert_eq!(authorizer["jwt"]["claims"]["groups"], "[drivers operators]");
        assert_eq!(called_with(Some("bob")).unwrap()["jwt"]["claims"]["groups"], "[operators]");
        let without = r#"{"sub":"carol","aud":"App","scope":"ledgerline/write"}"#;
        assert!(signed(without).unwrap()["jwt"]["claims"]["groups"].is_null());
    }
}
