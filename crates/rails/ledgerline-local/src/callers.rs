//! The caller of a request to the HTTP API: the claims that a JWT authorizer would pass on, without an identity provider.
//!
//! A request without a token comes from the development user; `Authorization: Bearer bob` makes it come from bob. The claims of a real token are
//! believed, because nothing is verified on a laptop.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

/// The `authorizer` of a request's context, for a route that wants one of these scopes.
///
/// # Errors
/// The status and the message with which API Gateway would refuse the request.
pub(crate) fn authorizer(
    headers: &HeaderMap,
    developer: &str,
    scopes: &[String],
) -> Result<Value, (StatusCode, &'static str)> {
    const UNAUTHORIZED: (StatusCode, &str) = (StatusCode::UNAUTHORIZED, "Unauthorized");
    let token = match headers.get(AUTHORIZATION) {
        None => developer,
        Some(header) => {
            let header = header.to_str().map_err(|_| UNAUTHORIZED)?;
            // API Gateway takes the token with and without the scheme.
            let (scheme, token) = header.split_once(' ').unwrap_or((header, ""));
            if scheme == "Bearer" { token.trim() } else { header.trim() }
        }
    };
    if token.is_empty() {
        return Err(UNAUTHORIZED);
    }
    let claims = match token.split('.').collect::<Vec<_>>().as_slice() {
        [_, payload, _] => claims(payload).ok_or(UNAUTHORIZED)?,
        _ => BTreeMap::from([
            ("iss".to_owned(), "local".to_owned()),
            ("scope".to_owned(), scopes.join(" ")),
            ("sub".to_owned(), token.to_owned()),
            ("token_use".to_owned(), "access".to_owned()),
        ]),
    };
    let granted = claims.get("scope").map(String::as_str).unwrap_or_default();
    if !scopes.is_empty() && !granted.split(' ').any(|granted| scopes.iter().any(|scope| scope == granted)) {
        return Err((StatusCode::FORBIDDEN, "Forbidden"));
    }
    Ok(json!({ "jwt": { "claims": claims, "scopes": scopes } }))
}

/// The claims of a token, all as text, because API Gateway passes them on as text.
fn claims(payload: &str) -> Option<BTreeMap<String, String>> {
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    let claims: Map<String, Value> = serde_json::from_slice(&payload).ok()?;
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    Some(claims.into_iter().map(|(name, value)| (name, text(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes() -> Vec<String> {
        vec!["ledgerline/write".to_owned()]
    }

    fn called_with(token: Option<&str>) -> Result<Value, (StatusCode, &'static str)> {
        let headers = token.map(|token| (AUTHORIZATION, token.parse().unwrap()));
        authorizer(&headers.into_iter().collect(), "developer", &scopes())
    }

    fn jwt(claims: &str) -> String {
        format!("Bearer h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_request_comes_from_whom_the_token_names() {
        for (token, expected) in [
            (None, "developer"),
            (Some("Bearer bob"), "bob"),
            (Some("bob"), "bob"),
            (Some(jwt(r#"{"sub":"carol","scope":"openid ledgerline/write","exp":1}"#).as_str()), "carol"),
        ] {
            let authorizer = called_with(token).unwrap();
            assert_eq!(authorizer["jwt"]["claims"]["sub"], expected);
            assert!(authorizer["jwt"]["claims"]["scope"].as_str().unwrap().contains("ledgerline/write"));
        }
    }

    #[test]
    fn a_token_that_says_nothing_or_not_enough_is_refused_as_by_the_gateway() {
        for (token, expected) in [
            ("Bearer ".to_owned(), 401),
            ("Bearer".to_owned(), 401),
            ("Bearer a.b.c".to_owned(), 401),
            (jwt(r#"{"sub":"carol"}"#), 403),
            (jwt(r#"{"sub":"carol","scope":"ledgerline/read"}"#), 403),
        ] {
            assert_eq!(called_with(Some(&token)).unwrap_err().0, expected, "{token}");
        }
    }
}
