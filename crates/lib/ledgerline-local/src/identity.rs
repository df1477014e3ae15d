//! The caller of a request to the HTTP API: the claims that a JWT authorizer would pass on, without
//! an identity provider.
//!
//! A request without a token comes from the development user. With `Authorization: Bearer bob`, a
//! request comes from bob, with every scope and as an operator. The [door](crate::door) lets no web
//! page of another origin send a request without a token.
//!
//! A token with three parts must be one that this stack signed ([`tokens`](crate::tokens)) and that
//! has not expired. As on AWS, its audience must be one of the template's, and only its groups make
//! the caller an operator.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::tokens::Tokens;

/// The scheme of a token.
const SCHEME: &str = "Bearer";
/// The texts that programs send in place of a token that they do not have.
const SLIPS: [&str; 6] = [SCHEME, "undefined", "null", "none", "nil", "nan"];
const NO_NAME: &str = "the name of a user in place of a token has 1 to 128 letters of ASCII, \
    digits, `-`, `_`, `@`, `+` and `:`, and is not `undefined` or the like";
const NOT_SIGNED: &str =
    "the token has expired, or another stack or no stack signed it: sign in again";

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
/// The status with which API Gateway would refuse the request, and the reason.
pub(crate) fn authorizer(
    Authorizer { developer, audience, tokens }: &Authorizer,
    headers: &HeaderMap,
    scopes: &[String],
    operators: Option<&str>,
) -> Result<Value, (StatusCode, &'static str)> {
    let unauthorized = |reason| (StatusCode::UNAUTHORIZED, reason);
    let claims = match token(headers).map_err(unauthorized)? {
        Some(token) if token.contains('.') => {
            let claims = tokens.claims(token, Timestamp::now()).ok_or(unauthorized(NOT_SIGNED))?;
            if !is_for(&claims, audience) {
                return Err(unauthorized("the token is for no client of the template"));
            }
            claims.into_iter().map(|(name, value)| (name, as_text(&value))).collect()
        }
        name => claims_by_name(name.unwrap_or(developer), scopes, operators),
    };
    let granted = claims.get("scope").map(String::as_str).unwrap_or_default();
    if !scopes.is_empty()
        && !granted.split(' ').any(|granted| scopes.iter().any(|scope| scope == granted))
    {
        return Err((StatusCode::FORBIDDEN, "the token has no scope of the route"));
    }
    Ok(json!({ "jwt": { "claims": claims, "scopes": scopes } }))
}

/// Returns the token of a request: a signed one, which has dots, or the name of a user. Returns
/// `None` for a request without a token.
///
/// # Errors
/// The reason why the header has no token.
fn token(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("the request has several `Authorization` headers: send one");
    }
    let header = header.to_str().map_err(|_| NO_NAME)?.trim();
    // API Gateway accepts the token with and without the scheme.
    let token = match header.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token.trim(),
        Some(_) => {
            return Err(
                "`Authorization` has another scheme or several tokens: send `Bearer TOKEN`",
            );
        }
        None => header,
    };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_@+:".contains(&byte);
    let is_name = (1..=128).contains(&token.len()) && token.bytes().all(is_of_name);
    let is_slip = SLIPS.iter().any(|slip| slip.eq_ignore_ascii_case(token));
    match token.split('.').count() {
        3 => Ok(Some(token)),
        1 if is_name && !is_slip => Ok(Some(token)),
        1 => Err(NO_NAME),
        _ => Err("a signed token has three parts between dots, and the name of a user has no dot"),
    }
}

/// Returns the claims of a user whom a request names without a real token.
fn claims_by_name(
    name: &str,
    scopes: &[String],
    operators: Option<&str>,
) -> BTreeMap<String, String> {
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
    use super::*;

    fn scopes() -> Vec<String> {
        vec!["ledgerline/write".to_owned()]
    }

    fn api() -> Authorizer {
        let tokens = Arc::new(Tokens::new("http://127.0.0.1:3000".into()).unwrap());
        let audience = vec!["App".into(), "Tool".into()];
        Authorizer { developer: "developer".into(), audience, tokens }
    }

    fn authorize(
        api: &Authorizer,
        token: Option<&str>,
    ) -> Result<Value, (StatusCode, &'static str)> {
        let headers = token.map(|token| (AUTHORIZATION, token.parse().unwrap()));
        authorizer(api, &headers.into_iter().collect(), &scopes(), Some("groups"))
    }

    fn called_with(token: Option<&str>) -> Result<Value, (StatusCode, &'static str)> {
        authorize(&api(), token)
    }

    /// Calls with a token of these claims, which this stack signed for a minute.
    fn authorize_claims(claims: &str) -> Result<Value, (StatusCode, &'static str)> {
        let api = api();
        let claims = serde_json::from_str(claims).unwrap();
        let token = api.tokens.sign(claims, Timestamp::now(), 60).unwrap();
        authorize(&api, Some(&format!("Bearer {token}")))
    }

    #[test]
    fn the_token_names_the_caller_of_a_request() {
        let carol = r#"{"sub":"carol","client_id":"App","scope":"openid ledgerline/write"}"#;
        for (authorizer, expected) in [
            (called_with(None), "developer"),
            (called_with(Some("Bearer bob")), "bob"),
            (called_with(Some("bob")), "bob"),
            (called_with(Some("bearer  bob")), "bob"),
            (called_with(Some("Bearer ada-1_x@example+t:o")), "ada-1_x@example+t:o"),
            (authorize_claims(carol), "carol"),
        ] {
            let authorizer = authorizer.unwrap();
            assert_eq!(authorizer["jwt"]["claims"]["sub"], expected);
            assert!(
                authorizer["jwt"]["claims"]["scope"].as_str().unwrap().contains("ledgerline/write")
            );
        }
    }

    #[test]
    fn a_header_without_a_token_is_refused_with_the_reason() {
        for (header, reason) in [
            ("Bearer undefined", NO_NAME),
            ("Bearer null", NO_NAME),
            ("Bearer NaN", NO_NAME),
            ("Bearer", NO_NAME),
            ("Bearer ", NO_NAME),
            ("", NO_NAME),
            ("Bearer ${TOKEN}", NO_NAME),
            ("Bearer <token>", NO_NAME),
            ("Bearer \"bob\"", NO_NAME),
            ("Bearer bob,eve", NO_NAME),
            ("Basic YWRhOnB3", "scheme"),
            ("DPoP bob", "scheme"),
            ("Bearer bob, Bearer eve", NO_NAME),
            ("Bearer bob eve", NO_NAME),
            ("Bearer Bearer bob", NO_NAME),
            ("Bearer a.b", "three parts"),
            ("Bearer a.b.c.d.e", "three parts"),
            ("Bearer a.b.c", NOT_SIGNED),
            ("Bearer ..", NOT_SIGNED),
        ] {
            let (status, given) = called_with(Some(header)).unwrap_err();
            assert_eq!(status, 401, "{header}");
            assert!(given.contains(reason), "{header}: {given}");
        }
        let long = format!("Bearer {}", "x".repeat(129));
        assert_eq!(called_with(Some(&long)).unwrap_err(), (StatusCode::UNAUTHORIZED, NO_NAME));
        let two = ["Bearer bob", "Bearer eve"].map(|value| (AUTHORIZATION, value.parse().unwrap()));
        let mut headers = HeaderMap::new();
        for (name, value) in two {
            headers.append(name, value);
        }
        let (status, reason) = authorizer(&api(), &headers, &scopes(), None).unwrap_err();
        assert_eq!(status, 401);
        assert!(reason.contains("several"), "{reason}");
    }

    #[test]
    fn an_insufficient_token_is_refused_as_by_api_gateway() {
        for (claims, expected) in [
            (r#"{"sub":"carol","client_id":"App"}"#, 403),
            (r#"{"sub":"carol","client_id":"App","scope":"ledgerline/read"}"#, 403),
            // A token for a client that is not in the audience, or for no client.
            (r#"{"sub":"carol","scope":"ledgerline/write"}"#, 401),
            (r#"{"sub":"carol","client_id":"Other","scope":"ledgerline/write"}"#, 401),
            (r#"{"sub":"carol","aud":"Other","client_id":"App","scope":"ledgerline/write"}"#, 401),
        ] {
            assert_eq!(authorize_claims(claims).unwrap_err().0, expected, "{claims}");
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
            let called = authorize(&api, Some(&format!("Bearer {}", token.unwrap())));
            assert_eq!(called.err().map(|(status, _)| status.as_u16()), expected);
        }
    }

    #[test]
    fn the_audience_and_the_groups_of_a_token_are_read_as_by_api_gateway() {
        let token = r#"{"sub":"carol","aud":["x","Tool"],"scope":"ledgerline/write","groups":["drivers","operators"]}"#;
        let authorizer = authorize_claims(token).unwrap();
        assert_eq!(authorizer["jwt"]["claims"]["groups"], "[drivers operators]");
        assert_eq!(called_with(Some("bob")).unwrap()["jwt"]["claims"]["groups"], "[operators]");
        let without = r#"{"sub":"carol","aud":"App","scope":"ledgerline/write"}"#;
        assert!(authorize_claims(without).unwrap()["jwt"]["claims"]["groups"].is_null());
    }
}
