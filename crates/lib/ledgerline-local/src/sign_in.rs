//! The sign-in pages of the user pool: the authorization code with PKCE, refresh tokens, tokens of
//! programs, and logout. Any name may sign in, because the local stack has no passwords.
//!
//! Source: the Cognito developer guide, "User pool endpoints and managed login reference"; RFC 6749
//! and RFC 7636. Stricter than Cognito: every client must use PKCE, which
//! stands for the secrets that the local stack does not check.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Form, Json, Router,
    extract::{Query, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use jiff::Timestamp;
use ledgerline_sam::template::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::tokens::Tokens;

/// The path of the sign-in form.
const AUTHORIZE: &str = "/oauth2/authorize";
/// How long a code is valid. Source: the Cognito developer guide, "Authorize endpoint".
const CODE: Duration = Duration::from_secs(300);
/// The cookie of a browser's session.
const COOKIE: &str = "ledgerline-session";
/// The path of a web app on this computer. Every client may name the path as its callback and
/// logout address.
const APP: &str = "/app/";
/// The most codes, refresh tokens and sessions that are stored, of each. The oldest is dropped
/// (rule 11).
const MOST: usize = 1_000;

/// The state of the sign-in pages: the signing key, the clients and the grants.
#[derive(Debug)]
pub(crate) struct SignIn {
    tokens: Arc<Tokens>,
    clients: Vec<Client>,
    grants: Mutex<Grants>,
}

/// The codes, refresh tokens and sessions of users, each by a text that cannot be guessed.
#[derive(Debug, Default)]
struct Grants {
    codes: Secrets<Code>,
    refresh: Secrets<Grant>,
    sessions: Secrets<User>,
}

/// Values by secret texts, the newest ones.
#[derive(Debug)]
struct Secrets<Value>(VecDeque<(String, Value)>);

impl<Value> Default for Secrets<Value> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<Value> Secrets<Value> {
    /// Adds a value, and returns its secret. The secret has three parts, so that it is no name of
    /// a user: the API refuses it as a token.
    fn add(&mut self, value: Value) -> String {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        let secret = format!("{}.{}.local", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        self.0.push_back((secret.clone(), value));
        secret
    }

    fn get(&self, secret: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == secret).map(|(_, value)| value)
    }

    fn remove(&mut self, secret: &str) -> Option<Value> {
        let place = self.0.iter().position(|(known, _)| known == secret)?;
        self.0.remove(place).map(|(_, value)| value)
    }
}

#[derive(Debug, Clone)]
struct User {
    name: String,
    groups: Vec<String>,
}

/// The tokens that a client may get.
#[derive(Debug, Clone)]
struct Grant {
    client: String,
    scope: String,
    user: User,
    nonce: Option<String>,
}

#[derive(Debug)]
struct Code {
    grant: Grant,
    redirect_uri: String,
    challenge: String,
    expires: Instant,
}

/// The parameters of a request to sign in.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Asked {
    response_type: String,
    client_id: String,
    redirect_uri: String,
    scope: String,
    state: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
    nonce: Option<String>,
}

/// The form of the page.
#[derive(Debug, Deserialize)]
struct Entered {
    user: String,
    #[serde(default)]
    groups: String,
    #[serde(flatten)]
    asked: Asked,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenRequest {
    grant_type: String,
    client_id: String,
    code: String,
    redirect_uri: String,
    code_verifier: String,
    refresh_token: String,
    scope: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logout {
    client_id: String,
    logout_uri: String,
}

/// Returns the routes of the pages, for the clients of the template.
pub(crate) fn router(tokens: Arc<Tokens>, clients: Vec<Client>) -> Router {
    let state = Arc::new(SignIn { tokens, clients, grants: Mutex::default() });
    Router::new()
        .route(AUTHORIZE, get(page).post(entered))
        .route("/oauth2/token", post(token))
        .route("/logout", get(logout))
        .route("/.well-known/jwks.json", get(keys))
        .route("/.well-known/openid-configuration", get(configuration))
        .with_state(state)
}

/// Shows the form, or redirects a browser with a session to the client with a code.
async fn page(
    State(sign_in): State<Arc<SignIn>>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    let client = match sign_in.client(&asked) {
        Ok(client) => client,
        Err(refused) => return *refused,
    };
    if let Err(error) = check(client, &asked) {
        return back(&asked, &[("error", error)]);
    }
    let session = session(&headers).and_then(|id| sign_in.grants().sessions.get(id).cloned());
    match session {
        Some(user) => sign_in.granted(client, asked, user),
        None => secured(Html(form(&asked)).into_response()),
    }
}

/// Signs a user in, and redirects the browser to the client with a code.
async fn entered(
    State(sign_in): State<Arc<SignIn>>,
    headers: HeaderMap,
    Form(Entered { user, groups, asked }): Form<Entered>,
) -> Response {
    // A page of another origin must not sign a browser in as a user of its choice.
    if !is_of_this_origin(&headers) {
        return refused(StatusCode::FORBIDDEN, "the form comes from a page of another origin");
    }
    let client = match sign_in.client(&asked) {
        Ok(client) => client,
        Err(refused) => return *refused,
    };
    if let Err(error) = check(client, &asked) {
        return back(&asked, &[("error", error)]);
    }
    let name = user.trim().to_owned();
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return refused(
            StatusCode::BAD_REQUEST,
            "a name has 1 to 128 bytes, and no control characters",
        );
    }
    let groups = groups.split(' ').filter(|group| !group.is_empty()).map(ToOwned::to_owned);
    let user = User { name, groups: groups.collect() };
    let session = sign_in.grants().sessions.add(user.clone());
    let mut response = sign_in.granted(client, asked, user);
    set_cookie(&mut response, &format!("{COOKIE}={session}; Path=/; HttpOnly; SameSite=Lax"));
    response
}

/// Gives tokens for a code, for a refresh token, or to a program.
async fn token(
    State(sign_in): State<Arc<SignIn>>,
    headers: HeaderMap,
    Form(mut request): Form<TokenRequest>,
) -> Response {
    if request.client_id.is_empty() {
        request.client_id = client_of(&headers).unwrap_or_default();
    }
    let mut response = match sign_in.tokens_for(&request) {
        Ok(tokens) => Json(tokens).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // As on Cognito, a page of any origin may read the answer: a code is useless without its
    // verifier.
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

/// Deletes the session of the browser, and redirects the browser to the `logout_uri`.
async fn logout(
    State(sign_in): State<Arc<SignIn>>,
    headers: HeaderMap,
    Query(Logout { client_id, logout_uri }): Query<Logout>,
) -> Response {
    let is_known = sign_in.clients.iter().any(|client| {
        client.id == client_id && (client.logouts.contains(&logout_uri) || is_app(&logout_uri))
    });
    if !is_known {
        let why = "the client has no such logout_uri: add it to LogoutURLs in the template";
        return refused(StatusCode::BAD_REQUEST, why);
    }
    if let Some(id) = session(&headers) {
        sign_in.grants().sessions.remove(id);
    }
    let mut response = Redirect::to(&logout_uri).into_response();
    set_cookie(&mut response, &format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"));
    response
}

async fn keys(State(sign_in): State<Arc<SignIn>>) -> Response {
    readable(Json(sign_in.tokens.key_set()))
}

async fn configuration(State(sign_in): State<Arc<SignIn>>) -> Response {
    let issuer = sign_in.tokens.issuer();
    readable(Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}{AUTHORIZE}"),
        "token_endpoint": format!("{issuer}/oauth2/token"),
        "end_session_endpoint": format!("{issuer}/logout"),
        "jwks_uri": format!("{issuer}/.well-known/jwks.json"),
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "subject_types_supported": ["public"],
    })))
}

impl SignIn {
    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client of a request. An unknown client or address gets an error page, because a
    /// redirect could send the browser to any address.
    fn client(&self, asked: &Asked) -> Result<&Client, Box<Response>> {
        let client = self.clients.iter().find(|client| client.id == asked.client_id);
        let Some(client) = client else {
            let why = "the template has no client with this `client_id`: use the logical id of \
                a user pool client";
            return Err(Box::new(refused(StatusCode::BAD_REQUEST, why)));
        };
        let uri = &asked.redirect_uri;
        if client.callbacks.contains(uri) || is_app(uri) {
            return Ok(client);
        }
        let why = "the client has no such redirect_uri: add it to CallbackURLs in the template";
        Err(Box::new(refused(StatusCode::BAD_REQUEST, why)))
    }

    /// Redirects the browser to the client, with a code for this user.
    fn granted(&self, client: &Client, asked: Asked, user: User) -> Response {
        let scope =
            if asked.scope.is_empty() { client.scopes.join(" ") } else { asked.scope.clone() };
        let grant = Grant { client: client.id.clone(), scope, user, nonce: asked.nonce.clone() };
        let code = self.grants().codes.add(Code {
            grant,
            redirect_uri: asked.redirect_uri.clone(),
            challenge: asked.code_challenge.clone().unwrap_or_default(),
            expires: Instant::now() + CODE,
        });
        back(&asked, &[("code", &code)])
    }

    /// Returns the tokens for a request, or the code of an error (RFC 6749, 5.2).
    fn tokens_for(&self, request: &TokenRequest) -> Result<Value, &'static str> {
        let client = self.clients.iter().find(|client| client.id == request.client_id);
        let client = client.ok_or("invalid_client")?;
        match request.grant_type.as_str() {
            "authorization_code" => {
                // A code is valid for one attempt, whatever its outcome.
                let code = self.grants().codes.remove(&request.code).ok_or("invalid_grant")?;
                let hash = Sha256::digest(&request.code_verifier);
                let is_proven = code.challenge == BASE64_URL_SAFE_NO_PAD.encode(hash);
                let is_valid = is_proven
                    && code.expires > Instant::now()
                    && code.grant.client == client.id
                    && code.redirect_uri == request.redirect_uri;
                if !is_valid {
                    return Err("invalid_grant");
                }
                let refresh = self.grants().refresh.add(code.grant.clone());
                let mut tokens = self.of_user(client, &code.grant)?;
                tokens["refresh_token"] = json!(refresh);
                Ok(tokens)
            }
            "refresh_token" => {
                let grant = self.grants().refresh.get(&request.refresh_token).cloned();
                let grant = grant.filter(|grant| grant.client == client.id);
                self.of_user(client, &grant.ok_or("invalid_grant")?)
            }
            "client_credentials"
                if client.flows.iter().any(|flow| flow == "client_credentials") =>
            {
                let scope = allowed(client, &request.scope).ok_or("invalid_scope")?;
                let claims = json!({
                    "sub": client.id, "client_id": client.id, "token_use": "access", "scope": scope,
                });
                self.signed(client, claims)
                    .map(|token| answer(client, json!({ "access_token": token })))
            }
            _ => Err("unsupported_grant_type"),
        }
    }

    fn of_user(&self, client: &Client, grant: &Grant) -> Result<Value, &'static str> {
        let Grant { scope, user, nonce, .. } = grant;
        let mut access = json!({
            "sub": user.name, "username": user.name, "client_id": client.id,
            "token_use": "access", "scope": scope, "version": 2,
        });
        let mut identity = json!({
            "sub": user.name, "cognito:username": user.name, "aud": client.id, "token_use": "id",
        });
        if !user.groups.is_empty() {
            access["cognito:groups"] = json!(user.groups);
            identity["cognito:groups"] = json!(user.groups);
        }
        if let Some(nonce) = nonce {
            identity["nonce"] = json!(nonce);
        }
        let access = self.signed(client, access)?;
        let mut tokens = json!({ "access_token": access });
        if scope.split(' ').any(|scope| scope == "openid") {
            tokens["id_token"] = json!(self.signed(client, identity)?);
        }
        Ok(answer(client, tokens))
    }

    fn signed(&self, client: &Client, claims: Value) -> Result<String, &'static str> {
        self.tokens
            .sign(claims, Timestamp::now(), client.access_seconds)
            .map_err(|_| "server_error")
    }
}

fn answer(client: &Client, mut tokens: Value) -> Value {
    tokens["token_type"] = json!("Bearer");
    tokens["expires_in"] = json!(client.access_seconds);
    tokens
}

/// Checks the request of a known client and address, and returns the code of an error (RFC 6749,
/// 4.1.2.1).
fn check(client: &Client, asked: &Asked) -> Result<(), &'static str> {
    if asked.response_type != "code" || !client.flows.iter().any(|flow| flow == "code") {
        return Err("unsupported_response_type");
    }
    let is_hash = |challenge: &String| challenge.len() == 43;
    match (&asked.code_challenge, asked.code_challenge_method.as_deref()) {
        (Some(challenge), Some("S256")) if is_hash(challenge) => {}
        (Some(_) | None, _) => return Err("invalid_request"),
    }
    allowed(client, &asked.scope).map(|_| ()).ok_or("invalid_scope")
}

/// Returns the scopes that a client gets: those that it asks for, or all that it may have. Returns
/// `None` if it asks for another one.
fn allowed(client: &Client, scope: &str) -> Option<String> {
    if scope.is_empty() {
        return Some(client.scopes.join(" "));
    }
    let is_allowed = |scope: &str| client.scopes.iter().any(|allowed| allowed == scope);
    scope.split(' ').all(is_allowed).then(|| scope.to_owned())
}

/// Whether an address is that of the web app on this computer, on any port (RFC 8252, 7.3).
fn is_app(uri: &str) -> bool {
    let rest =
        ["http://127.0.0.1:", "http://localhost:"].iter().find_map(|host| uri.strip_prefix(host));
    rest.and_then(|rest| rest.strip_suffix(APP))
        .is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Redirects the browser to the client, with these parameters and the client's state.
fn back(asked: &Asked, parameters: &[(&str, &str)]) -> Response {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters);
    if let Some(state) = &asked.state {
        query.append_pair("state", state);
    }
    let separator = if asked.redirect_uri.contains('?') { '&' } else { '?' };
    Redirect::to(&format!("{}{separator}{}", asked.redirect_uri, query.finish())).into_response()
}

/// Returns the form, with the request in hidden fields.
fn form(asked: &Asked) -> String {
    let fields = [
        ("response_type", Some(&asked.response_type)),
        ("client_id", Some(&asked.client_id)),
        ("redirect_uri", Some(&asked.redirect_uri)),
        ("scope", Some(&asked.scope)),
        ("state", asked.state.as_ref()),
        ("code_challenge", asked.code_challenge.as_ref()),
        ("code_challenge_method", asked.code_challenge_method.as_ref()),
        ("nonce", asked.nonce.as_ref()),
    ];
    let hidden: String = fields
        .into_iter()
        .filter_map(|(name, value)| {
            let value = escaped(value?);
            Some(format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">\n"))
        })
        .collect();
    format!(
        "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>Sign in to the local stack</title>
<style>body {{ font: 1rem/1.5 system-ui; max-width: 22rem; margin: 4rem auto; padding: 0 1rem; color-scheme: light dark }}
label, input, button {{ display: block; width: 100%; box-sizing: border-box; font: inherit }}
input, button {{ padding: .5rem; margin-bottom: 1rem }}</style>
<h1>Sign in</h1>
<p>The local stack has no passwords: any name is a user.</p>
<form method=\"post\" action=\"{AUTHORIZE}\">
{hidden}<label for=\"user\">Name</label>
<input id=\"user\" name=\"user\" required maxlength=\"128\" autocomplete=\"username\" autofocus>
<label for=\"groups\">Groups, such as operators</label>
<input id=\"groups\" name=\"groups\">
<button>Sign in</button>
</form>
"
    )
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Adds the headers of a page that runs no script and that no page may frame.
fn secured(mut response: Response) -> Response {
    const POLICY: &str =
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // With `no-referrer`, browsers would send the form with `Origin: null`.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

fn refused(status: StatusCode, why: &'static str) -> Response {
    secured((status, why).into_response())
}

fn readable(body: Json<Value>) -> Response {
    let any = [(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"))];
    (any, body).into_response()
}

/// Returns the id of a client that names itself by HTTP Basic. The local stack checks no secret.
fn client_of(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()?;
    text.split_once(':').map(|(id, _)| id.to_owned())
}

/// Returns the id of the browser's session.
fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
    cookies.split("; ").find_map(|cookie| cookie.strip_prefix(COOKIE)?.strip_prefix('='))
}

fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

/// Whether a form was sent by a page of this server. Browsers send `Origin` with every form; a
/// program need not.
fn is_of_this_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(header::ORIGIN), text(header::HOST)) {
        (None, _) => true,
        (Some(origin), Some(host)) => origin == format!("http://{host}"),
        (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use reqwest::redirect::Policy;

    use super::*;

    const VERIFIER: &str = "a-verifier-that-has-at-least-forty-three-characters";
    const CALLBACK: &str = "http://localhost:3000/callback";

    fn client(id: &str) -> Client {
        Client {
            id: id.into(),
            callbacks: vec![CALLBACK.into()],
            logouts: vec![CALLBACK.into()],
            scopes: vec!["openid".into(), "water/read".into(), "water/write".into()],
            flows: vec!["code".into()],
            access_seconds: 60,
        }
    }

    struct Pages {
        url: String,
        tokens: Arc<Tokens>,
        http: reqwest::Client,
    }

    /// Starts the pages of a client for users, and of one for a program.
    async fn pages() -> Pages {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tokens = Arc::new(Tokens::new(url.clone()).unwrap());
        let program = Client {
            flows: vec!["client_credentials".into()],
            scopes: vec!["water/events".into()],
            ..client("Program")
        };
        let router = router(Arc::clone(&tokens), vec![client("App"), program]);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let http = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        Pages { url, tokens, http }
    }

    type Fields = BTreeMap<&'static str, String>;

    /// Returns the fields of a valid request to sign in, with some changed.
    fn asked(changed: &[(&'static str, &str)]) -> Fields {
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
        let fields = [
            ("response_type", "code"),
            ("client_id", "App"),
            ("redirect_uri", CALLBACK),
            ("scope", "openid water/read"),
            ("state", "s&<\"'>"),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        let fields = fields.iter().chain(changed);
        fields.map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    fn encoded(fields: &Fields) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
    }

    impl Pages {
        async fn open(&self, fields: &Fields, cookie: &str) -> reqwest::Response {
            let url = format!("{}{AUTHORIZE}?{}", self.url, encoded(fields));
            self.http.get(url).header("cookie", cookie).send().await.unwrap()
        }

        async fn post(
            &self,
            path: &str,
            fields: &Fields,
            origin: Option<&str>,
        ) -> reqwest::Response {
            let request = self.http.post(format!("{}{path}", self.url));
            let request = request.header("content-type", "application/x-www-form-urlencoded");
            let request = match origin {
                Some(origin) => request.header("origin", origin),
                None => request,
            };
            request.body(encoded(fields)).send().await.unwrap()
        }

        /// Signs ada in, and returns the code.
        async fn code(&self, changed: &[(&'static str, &str)]) -> String {
            let mut fields = asked(changed);
            fields.insert("user", "ada".into());
            fields.insert("groups", "operators drivers".into());
            let response = self.post(AUTHORIZE, &fields, Some(&self.url)).await;
            let location = location(&response);
            let (_, query) = location.split_once('?').unwrap();
            form_urlencoded::parse(query.as_bytes())
                .find(|(name, _)| name == "code")
                .unwrap()
                .1
                .into()
        }

        async fn exchange(&self, changed: &[(&'static str, &str)]) -> (u16, Value) {
            let fields = [
                ("grant_type", "authorization_code"),
                ("client_id", "App"),
                ("redirect_uri", CALLBACK),
                ("code_verifier", VERIFIER),
            ];
            let fields = fields.iter().chain(changed);
            let fields = fields.map(|(name, value)| (*name, (*value).to_owned())).collect();
            let response = self.post("/oauth2/token", &fields, None).await;
            assert_eq!(response.headers()["access-control-allow-origin"], "*");
            (response.status().as_u16(), response.json().await.unwrap())
        }

        fn claims(&self, token: &Value) -> serde_json::Map<String, Value> {
            self.tokens.claims(token.as_str().unwrap(), Timestamp::now()).unwrap()
        }
    }

    fn location(response: &reqwest::Response) -> String {
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        response.headers()["location"].to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn a_user_signs_in_and_the_client_gets_signed_tokens() {
        let pages = pages().await;
        let code = pages.code(&[("nonce", "n")]).await;
        let (status, tokens) = pages.exchange(&[("code", &code)]).await;
        assert_eq!((status, &tokens["expires_in"]), (200, &json!(60)), "{tokens}");
        let access = pages.claims(&tokens["access_token"]);
        assert_eq!(access["sub"], "ada");
        assert_eq!(
            (&access["client_id"], &access["scope"]),
            (&json!("App"), &json!("openid water/read"))
        );
        assert_eq!(access["cognito:groups"], json!(["operators", "drivers"]));
        let identity = pages.claims(&tokens["id_token"]);
        assert_eq!((&identity["aud"], &identity["nonce"]), (&json!("App"), &json!("n")));
        let refresh = tokens["refresh_token"].as_str().unwrap();
        // The API takes a text of three parts for a token, and not for the name of a user.
        assert_eq!((refresh.split('.').count(), code.split('.').count()), (3, 3));
        let again = [("grant_type", "refresh_token"), ("refresh_token", refresh)];
        let (status, tokens) = pages.exchange(&again).await;
        assert_eq!(status, 200);
        assert_eq!(pages.claims(&tokens["access_token"])["sub"], "ada");
        let other = [again[0], again[1], ("client_id", "Program")];
        assert_eq!(pages.exchange(&other).await.1["error"], "invalid_grant");
    }

    #[tokio::test]
    async fn a_code_is_valid_once_for_its_client_its_address_and_its_verifier() {
        let pages = pages().await;
        for wrong in [
            ("code_verifier", "another-verifier-that-has-forty-three-characters"),
            ("code_verifier", ""),
            ("redirect_uri", "http://localhost:3000/app/"),
            ("client_id", "Program"),
            ("code", "x"),
        ] {
            let code = pages.code(&[]).await;
            let (status, refused) = pages.exchange(&[("code", &code), wrong]).await;
            assert_eq!((status, &refused["error"]), (400, &json!("invalid_grant")), "{wrong:?}");
            if wrong.0 != "code" {
                // The wrong attempt used the code up.
                assert_eq!(pages.exchange(&[("code", &code)]).await.0, 400, "{wrong:?}");
            }
        }
        let code = pages.code(&[]).await;
        assert_eq!(pages.exchange(&[("code", &code)]).await.0, 200);
        assert_eq!(pages.exchange(&[("code", &code)]).await.0, 400, "twice");
    }

    #[tokio::test]
    async fn a_browser_is_sent_only_to_addresses_of_the_client() {
        let pages = pages().await;
        for uri in [
            "https://evil.example.com/",
            "http://localhost:3000/callback/",
            "http://localhost:3000/callback?x",
            "http://127.0.0.1:3000@evil.example.com/app/",
            "http://127.0.0.1:3000/app/../x",
            "http://127.0.0.1.evil.example.com:1/app/",
            "//evil.example.com/app/",
            "javascript:alert(1)",
            "",
        ] {
            let fields = asked(&[("redirect_uri", uri)]);
            let shown = pages.open(&fields, "").await;
            assert_eq!(shown.status(), StatusCode::BAD_REQUEST, "{uri}");
            let posted = pages.post(AUTHORIZE, &fields, None).await;
            assert!(posted.status().is_client_error(), "{uri}");
            let logout = format!("{}/logout?client_id=App&logout_uri={uri}", pages.url);
            let logout = pages.http.get(logout).send().await.unwrap();
            assert_eq!(logout.status(), StatusCode::BAD_REQUEST, "{uri}");
        }
        for uri in [CALLBACK, "http://127.0.0.1:5173/app/", "http://localhost:3000/app/"] {
            assert_eq!(
                pages.open(&asked(&[("redirect_uri", uri)]), "").await.status(),
                StatusCode::OK
            );
        }
    }

    #[tokio::test]
    async fn a_client_needs_pkce_and_gets_only_its_scopes() {
        let pages = pages().await;
        for (changed, error) in [
            (("code_challenge_method", "plain"), "invalid_request"),
            (("code_challenge", "short"), "invalid_request"),
            (("scope", "openid water/operate"), "invalid_scope"),
            (("response_type", "token"), "unsupported_response_type"),
        ] {
            let location = location(&pages.open(&asked(&[changed]), "").await);
            assert!(
                location.starts_with(&format!("{CALLBACK}?error={error}&state=s%26")),
                "{location}"
            );
        }
        let mut without = asked(&[]);
        without.remove("code_challenge");
        without.remove("code_challenge_method");
        let location = location(&pages.open(&without, "").await);
        assert!(location.contains("error=invalid_request"), "{location}");
    }

    #[tokio::test]
    async fn the_page_runs_no_script_and_a_form_of_another_origin_opens_no_session() {
        let pages = pages().await;
        let script = "\"><script>alert(1)</script>";
        let page = pages.open(&asked(&[("state", script), ("nonce", script)]), "").await;
        let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert_eq!(page.headers()["referrer-policy"], "same-origin", "or browsers send no origin");
        let page = page.text().await.unwrap();
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"), "{page}");
        let mut fields = asked(&[]);
        fields.insert("user", "mallory".into());
        let posted = pages.post(AUTHORIZE, &fields, Some("https://evil.example.com")).await;
        assert_eq!(posted.status(), StatusCode::FORBIDDEN);
        assert!(posted.headers().get("set-cookie").is_none());
    }

    #[tokio::test]
    async fn a_session_signs_in_again_until_the_logout() {
        let pages = pages().await;
        let mut fields = asked(&[]);
        fields.insert("user", "ada".into());
        let signed_in = pages.post(AUTHORIZE, &fields, Some(&pages.url)).await;
        let cookie = signed_in.headers()["set-cookie"].to_str().unwrap().to_owned();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap();
        assert!(location(&pages.open(&asked(&[]), cookie).await).contains("code="));
        let logout = format!("{}/logout?client_id=App&logout_uri={CALLBACK}", pages.url);
        let logout = pages.http.get(logout).header("cookie", cookie).send().await.unwrap();
        assert_eq!(location(&logout), CALLBACK);
        assert_eq!(
            pages.open(&asked(&[]), cookie).await.status(),
            StatusCode::OK,
            "the page again"
        );
    }

    #[test]
    fn only_the_newest_secrets_are_stored() {
        let mut secrets = Secrets::default();
        let first = secrets.add(0);
        let others: Vec<_> = (1..=MOST).map(|number| secrets.add(number)).collect();
        assert_eq!((secrets.get(&first), secrets.0.len()), (None, MOST));
        assert_eq!(secrets.get(others.last().unwrap()), Some(&MOST));
    }

    #[tokio::test]
    async fn a_program_gets_a_token_of_its_own_and_users_do_not() {
        let pages = pages().await;
        let program = [("grant_type", "client_credentials"), ("client_id", "Program")];
        let (status, tokens) = pages.exchange(&program).await;
        assert_eq!(status, 200, "{tokens}");
        let claims = pages.claims(&tokens["access_token"]);
        assert_eq!((&claims["sub"], &claims["scope"]), (&json!("Program"), &json!("water/events")));
        // As `curl --user` sends the id of the client.
        let basic = BASE64_STANDARD.encode("Program:secret");
        let request = pages.http.post(format!("{}/oauth2/token", pages.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let request = request.header("authorization", format!("Basic {basic}"));
        let response = request.body("grant_type=client_credentials").send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let app = [("grant_type", "client_credentials"), ("client_id", "App")];
        assert_eq!(pages.exchange(&app).await.1["error"], "unsupported_grant_type");
        let other = [program[0], program[1], ("scope", "water/write")];
        assert_eq!(pages.exchange(&other).await.1["error"], "invalid_scope");
        assert_eq!(pages.exchange(&[("client_id", "Unknown")]).await.1["error"], "invalid_client");
    }
}
