//! The applications as their users see them: over HTTP, local or deployed.
//!
//! Without `BASE_URL`, tests run against the program that `cargo run -p local` runs. With it, they
//! run against the deployment at this URL: `BASE_URL=https://… TOKEN=… OTHER_TOKEN=… READ_TOKEN=…
//! cargo test --workspace --test scenario`. The tokens are access tokens of two users who may read
//! and write, and of one user with the scope for reading only.

use std::{env, ops::Deref};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Api, LocalStack, workspace};
use ledgerline_sam::{lookup::scope_prefix, template::Source};

/// The target of a test: a local stack of the test's own, or the deployment at `BASE_URL`.
#[derive(Debug)]
pub enum UnderTest {
    /// A local stack of the test's own.
    Local(Box<LocalStack>),
    /// The deployment at `BASE_URL`.
    There(Api),
}

impl UnderTest {
    /// Starts a local stack, unless there is a `BASE_URL`.
    pub async fn start() -> Self {
        match env::var("BASE_URL") {
            Err(_) => Self::Local(Box::new(LocalStack::start(None).await)),
            Ok(url) => {
                let token = env::var("TOKEN").expect("TOKEN is the access token of a user");
                Self::There(Api::new(url.trim_end_matches('/').to_owned(), Some(token)))
            }
        }
    }

    /// Returns the same API for a user with a token for reading only.
    #[must_use]
    pub async fn reader(&self) -> Api {
        let user = User { name: "reader", groups: "", client: "AppClient" };
        self.signed_in(&user, "read", "READ_TOKEN", "an access token for reading only").await
    }

    /// Returns the same API for a program that reads the events of all users.
    #[must_use]
    pub async fn reader_of_events(&self) -> Api {
        let token = match self {
            Self::Local(_) => {
                let program =
                    [("grant_type", "client_credentials"), ("client_id", "EventsReaderClient")];
                token(&self.url, &program).await
            }
            Self::There(_) => {
                read_variable("EVENTS_TOKEN", "a token of the client EventsReaderClient")
            }
        };
        Api::new(self.url.clone(), Some(token))
    }

    /// Returns a client of the same API that sends the token of an operator. Against a deployed
    /// API, the token is in the variable `OPERATOR_TOKEN`.
    #[must_use]
    pub async fn operator(&self) -> Api {
        let user = User { name: "operator", groups: "operators", client: "OperatorClient" };
        self.signed_in(&user, "operate", "OPERATOR_TOKEN", "the token of an operator").await
    }

    /// Returns the same API for a user outside the group of operators who signed in as operators
    /// do.
    #[must_use]
    pub async fn no_operator(&self) -> Api {
        let user = User { name: "eve", groups: "", client: "OperatorClient" };
        let what = "a token of OperatorClient for a user outside the group operators";
        self.signed_in(&user, "operate", "UNGROUPED_TOKEN", what).await
    }

    /// Returns the same API for a user who signs in for this scope. Elsewhere than on a local
    /// stack, this variable has the user's token.
    async fn signed_in(&self, user: &User, of: &str, variable: &str, what: &str) -> Api {
        let token = match self {
            Self::Local(_) => sign_in(&self.url, user, &format!("openid {}", scope(of))).await,
            Self::There(_) => read_variable(variable, what),
        };
        Api::new(self.url.clone(), Some(token))
    }

    /// Returns the id of the calling user.
    #[must_use]
    pub fn me(&self) -> String {
        subject(self).unwrap_or_else(|| "developer".to_owned())
    }

    /// Returns the same API for another user.
    #[must_use]
    pub fn stranger(&self) -> Api {
        let token = match self {
            Self::Local(_) => "somebody-else".to_owned(),
            Self::There(_) => {
                env::var("OTHER_TOKEN").expect("OTHER_TOKEN is the access token of another user")
            }
        };
        Api::new(self.url.clone(), Some(token))
    }
}

/// A user of a local stack.
struct User {
    name: &'static str,
    groups: &'static str,
    /// The client through which the user signs in.
    client: &'static str,
}

fn read_variable(variable: &str, what: &str) -> String {
    env::var(variable).unwrap_or_else(|_| panic!("{variable} is {what}"))
}

/// Signs a user in at the pages of a local stack, as a browser does. Returns the access token.
async fn sign_in(url: &str, user: &User, scope: &str) -> String {
    const APP: &str = "http://127.0.0.1:3000/app/";
    const VERIFIER: &str = "a-verifier-that-has-at-least-forty-three-characters";
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
    let form = [
        ("user", user.name),
        ("groups", user.groups),
        ("response_type", "code"),
        ("client_id", user.client),
        ("redirect_uri", APP),
        ("scope", scope),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ];
    let response = post_form(&format!("{url}/oauth2/authorize"), &form).await;
    let location = response.headers().get("location").expect("a redirect to the client");
    let location = location.to_str().expect("an address");
    let code = location.split_once("code=").unwrap_or_else(|| panic!("{location}")).1;
    let exchange = [
        ("grant_type", "authorization_code"),
        ("client_id", user.client),
        ("redirect_uri", APP),
        ("code", code.split('&').next().unwrap_or_default()),
        ("code_verifier", VERIFIER),
    ];
    token(url, &exchange).await
}

/// Returns the access token for a request to the local stack's endpoint of tokens.
async fn token(url: &str, form: &[(&str, &str)]) -> String {
    let response = post_form(&format!("{url}/oauth2/token"), form).await;
    let tokens: Value = response.json().await.expect("tokens");
    tokens["access_token"].as_str().unwrap_or_else(|| panic!("{tokens}")).to_owned()
}

async fn post_form(url: &str, form: &[(&str, &str)]) -> reqwest::Response {
    // The address of the app, the redirect of the client, answers nothing here.
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    let request = http.expect("a client").post(url).body(body);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    request.send().await.expect("the local stack answers")
}

/// Returns a scope of the workspace's API.
fn scope(name: &str) -> String {
    let template =
        Source::read(&workspace().join("template.yaml")).expect("the template can be read").json();
    format!("{}/{name}", scope_prefix(&template).expect("a route of the template has a scope"))
}

impl Deref for UnderTest {
    type Target = Api;

    fn deref(&self) -> &Api {
        match self {
            Self::Local(local) => local,
            Self::There(api) => api,
        }
    }
}

/// Returns an id that no earlier run used, because a deployment still has the data of earlier
/// tests.
#[must_use]
pub fn fresh_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Returns the subject of a caller's token; `None` if the token is not a real one.
#[must_use]
pub fn subject(api: &Api) -> Option<String> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(api.token.as_ref()?.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Value>(&claims).ok()?["sub"].as_str().map(ToOwned::to_owned)
}
