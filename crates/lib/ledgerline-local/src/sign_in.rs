//! The sign-in pages of the user pool: the authorization code with PKCE, refresh tokens, tokens of
//! programs, and logout. Any name may sign in, because the local stack has no passwords.
//!
//! Source: the Cognito developer guide, "User pool endpoints and managed login reference"; RFC 6749
//! and RFC 7636. Stricter than Cognito: every client must use PKCE, which
//! stands for the secrets that the local stack does not check.

mod discovery;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Form, Json, Router,
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use ledgerline::Text;
use ledgerline_sam::template::{Client, REGION};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use self::discovery::{CONFIGURATION, KEYS, USER_INFO, configuration, keys, user_info};
use crate::{tokens::Tokens, web_app::APP};

/// The path of the sign-in form.
const AUTHORIZE: &str = "/oauth2/authorize";
/// The form. Hidden fields with the request stand in place of the comment.
const FORM: &str = include_str!("sign_in/page.html");
/// How long a code is valid. Source: the Cognito developer guide, "Authorize endpoint".
const CODE: Duration = Duration::from_secs(300);
/// The paths that pages of allowed origins may request without a token of the API.
pub(crate) const PUBLIC: [&str; 5] = [TOKEN, REVOKE, KEYS, CONFIGURATION, USER_INFO];
const TOKEN: &str = "/oauth2/token";
const REVOKE: &str = "/oauth2/revoke";
const LOGOUT: &str = "/logout";
/// The most codes, refresh tokens, sessions and names of users that are stored, of each. The oldest
/// is dropped (rule 11). A user whose name was dropped signs up again, which changes nothing.
const MOST: usize = 1_000;

/// The state of the sign-in pages: the signing key, the clients and the grants.
pub(crate) struct SignIn {
    tokens: Arc<Tokens>,
    clients: Vec<Client>,
    grants: Mutex<Grants>,
    /// The trigger when a user signs in for the first time, as if the user had signed up.
    sign_up: Option<Trigger>,
    /// The names of the users who have signed up, the newest ones.
    signed_up: Mutex<VecDeque<String>>,
    /// The name of the cookie of a browser's session. It has the port of this stack, because a
    /// browser sends the cookies of all ports to each port (RFC 6265, 8.5).
    cookie: String,
}

/// Invokes the function of a trigger with an event, and waits until it ends.
pub(crate) type Trigger = Box<dyn Fn(Value) -> BoxFuture<'static, ()> + Send + Sync>;

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
struct AuthorizeRequest {
    response_type: String,
    client_id: String,
    redirect_uri: String,
    scope: String,
    state: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
    nonce: Option<String>,
    /// `none` for no form, `login` for a form in spite of a session (OpenID Connect Core, 3.1.2.1).
    prompt: Option<String>,
}

/// The form of the page.
#[derive(Debug, Deserialize)]
struct SignInForm {
    user: String,
    #[serde(default)]
    groups: String,
    #[serde(flatten)]
    request: AuthorizeRequest,
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
struct RevokeRequest {
    token: String,
    client_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logout {
    client_id: String,
    logout_uri: String,
}

/// Returns the routes of the pages, for the clients of the template.
pub(crate) fn router(
    tokens: Arc<Tokens>,
    clients: Vec<Client>,
    sign_up: Option<Trigger>,
) -> Router {
    let port = tokens.issuer().rsplit(':').next().unwrap_or_default();
    let cookie = format!("ledgerline-session-{port}");
    let (grants, signed_up) = Default::default();
    let state = Arc::new(SignIn { tokens, clients, grants, sign_up, signed_up, cookie });
    Router::new()
        .route(AUTHORIZE, get(show_form).post(submit_form))
        .route(TOKEN, post(token))
        .route(REVOKE, post(revoke))
        .route(LOGOUT, get(logout))
        .route(KEYS, get(keys))
        .route(CONFIGURATION, get(configuration))
        .route(USER_INFO, get(user_info).post(user_info))
        .with_state(state)
}

/// Shows the form, or redirects a browser with a session to the client with a code. The request may
/// forbid either.
async fn show_form(
    State(sign_in): State<Arc<SignIn>>,
    headers: HeaderMap,
    Query(request): Query<AuthorizeRequest>,
) -> Response {
    let client = match sign_in.client(&request) {
        Ok(client) => client,
        Err(page) => return *page,
    };
    if let Err(error) = check(client, &request) {
        return redirect(&request, &[("error", error)]);
    }
    let session = sign_in.session(&headers);
    let session = session.and_then(|id| sign_in.grants().sessions.get(id).cloned());
    match (session, request.prompt.as_deref()) {
        (Some(user), None | Some("" | "none")) => sign_in.redirect_with_code(client, request, user),
        (None, Some("none")) => redirect(&request, &[("error", "login_required")]),
        (Some(_) | None, _) => secure(Html(form(&request)).into_response()),
    }
}

/// Signs a user in, and redirects the browser to the client with a code.
async fn submit_form(
    State(sign_in): State<Arc<SignIn>>,
    Form(SignInForm { user, groups, request }): Form<SignInForm>,
) -> Response {
    let client = match sign_in.client(&request) {
        Ok(client) => client,
        Err(page) => return *page,
    };
    if let Err(error) = check(client, &request) {
        return redirect(&request, &[("error", error)]);
    }
    let user = match parse_user(&user, &groups) {
        Ok(user) => user,
        Err(invalid) => return error_page(StatusCode::BAD_REQUEST, invalid),
    };
    sign_in.sign_up(&user.name).await;
    let session = sign_in.grants().sessions.add(user.clone());
    let mut response = sign_in.redirect_with_code(client, request, user);
    sign_in.set_cookie(&mut response, &session, "");
    response
}

/// Returns the user of a form. The names follow the rule of texts, so that no two look like one.
fn parse_user(name: &str, groups: &str) -> Result<User, String> {
    let text = |field: &str, text: &str| {
        let text = Text::<128>::new(text).ok().map(|text| text.get().clone());
        text.filter(|text| text.len() <= 128).ok_or_else(|| {
            format!("{field}: expected 1 to 128 bytes, without control or invisible characters")
        })
    };
    let groups = groups.split(' ').filter(|group| !group.is_empty());
    let groups = groups.map(|group| text("Groups", group)).collect::<Result<_, _>>()?;
    Ok(User { name: text("Name", name.trim())?, groups })
}

/// Revokes a refresh token (RFC 7009). An unknown token is no error.
async fn revoke(
    State(sign_in): State<Arc<SignIn>>,
    Form(RevokeRequest { token, client_id }): Form<RevokeRequest>,
) -> StatusCode {
    let mut grants = sign_in.grants();
    if grants.refresh.get(&token).is_some_and(|grant| grant.client == client_id) {
        grants.refresh.remove(&token);
    }
    StatusCode::OK
}

/// Gives tokens for a code, for a refresh token, or to a program.
async fn token(
    State(sign_in): State<Arc<SignIn>>,
    headers: HeaderMap,
    Form(mut request): Form<TokenRequest>,
) -> Response {
    if request.client_id.is_empty() {
        request.client_id = basic_client(&headers).unwrap_or_default();
    }
    let mut response = match sign_in.tokens(&request) {
        Ok(tokens) => Json(tokens).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response(),
    };
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
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
        return error_page(StatusCode::BAD_REQUEST, why);
    }
    if let Some(id) = sign_in.session(&headers) {
        sign_in.grants().sessions.remove(id);
    }
    let mut response = Redirect::to(&logout_uri).into_response();
    sign_in.set_cookie(&mut response, "", "; Max-Age=0");
    response
}

impl SignIn {
    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Invokes the function after a sign-up, if this user signs in for the first time. A failure
    /// does not block the user.
    ///
    /// Source: the Cognito developer guide, "Post confirmation Lambda trigger".
    async fn sign_up(&self, name: &str) {
        let Some(trigger) = &self.sign_up else { return };
        {
            let mut names = self.signed_up.lock().unwrap_or_else(PoisonError::into_inner);
            if names.iter().any(|known| known == name) {
                return;
            }
            if names.len() >= MOST {
                names.pop_front();
            }
            names.push_back(name.to_owned());
        }
        let event = json!({
            "version": "1", "triggerSource": "PostConfirmation_ConfirmSignUp", "region": REGION,
            "userPoolId": format!("{REGION}_local"), "userName": name,
            "callerContext": { "awsSdkVersion": "local", "clientId": "local" },
            "request": { "userAttributes": {
                "sub": name, "email": format!("{name}@example.com"), "email_verified": "true",
            } },
            "response": {},
        });
        trigger(event).await;
    }

    /// Returns the id of the browser's session.
    fn session<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
        cookies.split("; ").find_map(|cookie| cookie.strip_prefix(&self.cookie)?.strip_prefix('='))
    }

    /// Gives the browser a session, with these further attributes of the cookie.
    fn set_cookie(&self, response: &mut Response, session: &str, attributes: &str) {
        let name = &self.cookie;
        let cookie = format!("{name}={session}; Path=/; HttpOnly; SameSite=Lax{attributes}");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
    }

    /// Returns the client of a request. An unknown client or address gets an error page, because a
    /// redirect could send the browser to any address.
    fn client(&self, request: &AuthorizeRequest) -> Result<&Client, Box<Response>> {
        let client = self.clients.iter().find(|client| client.id == request.client_id);
        let Some(client) = client else {
            let why = "the template has no client with this `client_id`: use the logical id of \
                a user pool client";
            return Err(Box::new(error_page(StatusCode::BAD_REQUEST, why)));
        };
        let uri = &request.redirect_uri;
        if client.callbacks.contains(uri) || is_app(uri) {
            return Ok(client);
        }
        let why = "the client has no such redirect_uri: add it to CallbackURLs in the template";
        Err(Box::new(error_page(StatusCode::BAD_REQUEST, why)))
    }

    /// Redirects the browser to the client, with a code for this user.
    fn redirect_with_code(
        &self,
        client: &Client,
        request: AuthorizeRequest,
        user: User,
    ) -> Response {
        let scope =
            if request.scope.is_empty() { client.scopes.join(" ") } else { request.scope.clone() };
        let grant = Grant { client: client.id.clone(), scope, user, nonce: request.nonce.clone() };
        let code = self.grants().codes.add(Code {
            grant,
            redirect_uri: request.redirect_uri.clone(),
            challenge: request.code_challenge.clone().unwrap_or_default(),
            expires: Instant::now() + CODE,
        });
        redirect(&request, &[("code", &code)])
    }

    /// Returns the tokens for a request, or the code of an error (RFC 6749, 5.2).
    fn tokens(&self, request: &TokenRequest) -> Result<Value, &'static str> {
        let client = self.clients.iter().find(|client| client.id == request.client_id);
        let client = client.ok_or("invalid_client")?;
        match request.grant_type.as_str() {
            "authorization_code" => {
                // A code is valid for one attempt, whatever its outcome.
                let code = self.grants().codes.remove(&request.code).ok_or("invalid_grant")?;
                if !is_verifier(&request.code_verifier) {
                    return Err("invalid_request");
                }
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
                let mut tokens = self.user_tokens(client, &code.grant)?;
                tokens["refresh_token"] = json!(refresh);
                Ok(tokens)
            }
            "refresh_token" => {
                let grant = self.grants().refresh.get(&request.refresh_token).cloned();
                let grant = grant.filter(|grant| grant.client == client.id);
                self.user_tokens(client, &grant.ok_or("invalid_grant")?)
            }
            "client_credentials"
                if client.flows.iter().any(|flow| flow == "client_credentials") =>
            {
                let scope = requested_scope(client, &request.scope).ok_or("invalid_scope")?;
                let claims = json!({
                    "sub": client.id, "client_id": client.id, "token_use": "access", "scope": scope,
                });
                self.sign(client, claims)
                    .map(|token| add_type(client, json!({ "access_token": token })))
            }
            _ => Err("unsupported_grant_type"),
        }
    }

    fn user_tokens(&self, client: &Client, grant: &Grant) -> Result<Value, &'static str> {
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
        let access = self.sign(client, access)?;
        let mut tokens = json!({ "access_token": access });
        if scope.split(' ').any(|scope| scope == "openid") {
            tokens["id_token"] = json!(self.sign(client, identity)?);
        }
        Ok(add_type(client, tokens))
    }

    fn sign(&self, client: &Client, claims: Value) -> Result<String, &'static str> {
        self.tokens
            .sign(claims, Timestamp::now(), client.access_seconds)
            .map_err(|_| "server_error")
    }
}

fn add_type(client: &Client, mut tokens: Value) -> Value {
    tokens["token_type"] = json!("Bearer");
    tokens["expires_in"] = json!(client.access_seconds);
    tokens
}

/// Checks the request of a known client and address, and returns the code of an error (RFC 6749,
/// 4.1.2.1).
fn check(client: &Client, request: &AuthorizeRequest) -> Result<(), &'static str> {
    if request.response_type != "code" || !client.flows.iter().any(|flow| flow == "code") {
        return Err("unsupported_response_type");
    }
    let is_sha256 = request.code_challenge_method.as_deref() == Some("S256");
    if !is_sha256 || !request.code_challenge.as_deref().is_some_and(is_sha256_text) {
        return Err("invalid_request");
    }
    requested_scope(client, &request.scope).map(|_| ()).ok_or("invalid_scope")
}

/// Whether a text may be a verifier: 43 to 128 unreserved characters (RFC 7636, 4.1). Without
/// this check, a client with another one would work here, and fail on AWS.
fn is_verifier(text: &str) -> bool {
    let is_unreserved = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    (43..=128).contains(&text.len()) && text.bytes().all(is_unreserved)
}

/// Whether a text is a SHA-256 in base64url (RFC 7636, 4.2).
fn is_sha256_text(text: &str) -> bool {
    BASE64_URL_SAFE_NO_PAD.decode(text).is_ok_and(|hash| hash.len() == 32)
}

/// Returns the scopes that a client gets: those that it asks for, or all that it may have. Returns
/// `None` if it asks for another one.
fn requested_scope(client: &Client, scope: &str) -> Option<String> {
    if scope.is_empty() {
        return Some(client.scopes.join(" "));
    }
    let is_allowed = |scope: &str| client.scopes.iter().any(|allowed| allowed == scope);
    scope.split(' ').all(is_allowed).then(|| scope.to_owned())
}

/// Whether an address is that of the web app on this computer, on any port (RFC 8252, 7.3). Every
/// client may name the address as its callback and logout address.
fn is_app(uri: &str) -> bool {
    let rest =
        ["http://127.0.0.1:", "http://localhost:"].iter().find_map(|host| uri.strip_prefix(host));
    rest.and_then(|rest| rest.strip_suffix(APP))
        .is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Redirects the browser to the client, with these parameters and the client's state.
fn redirect(request: &AuthorizeRequest, parameters: &[(&str, &str)]) -> Response {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters);
    if let Some(state) = &request.state {
        query.append_pair("state", state);
    }
    let separator = if request.redirect_uri.contains('?') { '&' } else { '?' };
    Redirect::to(&format!("{}{separator}{}", request.redirect_uri, query.finish())).into_response()
}

/// Returns the form, with the request in hidden fields.
fn form(request: &AuthorizeRequest) -> String {
    let fields = [
        ("response_type", Some(&request.response_type)),
        ("client_id", Some(&request.client_id)),
        ("redirect_uri", Some(&request.redirect_uri)),
        ("scope", Some(&request.scope)),
        ("state", request.state.as_ref()),
        ("code_challenge", request.code_challenge.as_ref()),
        ("code_challenge_method", request.code_challenge_method.as_ref()),
        ("nonce", request.nonce.as_ref()),
    ];
    let hidden: String = fields
        .into_iter()
        .filter_map(|(name, value)| {
            let value = escape(value?);
            Some(format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">\n"))
        })
        .collect();
    FORM.replace("<!-- request -->", &hidden)
}

fn escape(text: &str) -> String {
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
fn secure(mut response: Response) -> Response {
    const POLICY: &str =
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // With `no-referrer`, browsers would send the form with `Origin: null`.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

fn error_page(status: StatusCode, why: impl Into<String>) -> Response {
    secure((status, why.into()).into_response())
}

/// Returns the id of a client that names itself by HTTP Basic. The local stack checks no secret.
fn basic_client(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()?;
    text.split_once(':').map(|(id, _)| id.to_owned())
}

#[cfg(test)]
mod tests;
