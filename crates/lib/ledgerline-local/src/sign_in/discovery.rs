//! The documents and the endpoint that OIDC libraries read by themselves.
//!
//! Source: the Cognito developer guide, "User pool OIDC discovery", and "userInfo endpoint".

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{AUTHORIZE, LOGOUT, REVOKE, SignIn, TOKEN};

pub(super) const KEYS: &str = "/.well-known/jwks.json";
pub(super) const CONFIGURATION: &str = "/.well-known/openid-configuration";
pub(super) const USER_INFO: &str = "/oauth2/userInfo";

pub(super) async fn keys(State(sign_in): State<Arc<SignIn>>) -> Json<Value> {
    Json(sign_in.tokens.key_set())
}

pub(super) async fn configuration(State(sign_in): State<Arc<SignIn>>) -> Json<Value> {
    let issuer = sign_in.tokens.issuer();
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}{AUTHORIZE}"),
        "token_endpoint": format!("{issuer}{TOKEN}"),
        "revocation_endpoint": format!("{issuer}{REVOKE}"),
        "userinfo_endpoint": format!("{issuer}{USER_INFO}"),
        "end_session_endpoint": format!("{issuer}{LOGOUT}"),
        "jwks_uri": format!("{issuer}{KEYS}"),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
        "token_endpoint_auth_methods_supported":
            ["none", "client_secret_basic", "client_secret_post"],
        "code_challenge_methods_supported": ["S256"],
        "prompt_values_supported": ["none", "login"],
        "scopes_supported": ["openid"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "subject_types_supported": ["public"],
    }))
}

/// Returns the claims about the user of an access token with the scope `openid`.
pub(super) async fn user_info(State(sign_in): State<Arc<SignIn>>, headers: HeaderMap) -> Response {
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer "));
    let claims = token.and_then(|token| sign_in.tokens.claims(token, Timestamp::now()));
    let is_for_users = |scope: &Value| {
        scope.as_str().is_some_and(|scopes| scopes.split(' ').any(|scope| scope == "openid"))
    };
    match claims.filter(|claims| claims.get("scope").is_some_and(is_for_users)) {
        Some(claims) => {
            let user = json!({ "sub": claims["sub"], "username": claims["username"] });
            ([(header::CACHE_CONTROL, "no-store")], Json(user)).into_response()
        }
        None => {
            let refusal = [(header::WWW_AUTHENTICATE, "Bearer error=\"invalid_token\"")];
            (StatusCode::UNAUTHORIZED, refusal).into_response()
        }
    }
}
