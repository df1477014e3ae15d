//! The applications as their users see them: over HTTP, local or deployed.
//!
//! Without `BASE_URL`, tests run against the program that `cargo run -p local` runs. With it, they
//! run against the deployment at this URL: `BASE_URL=https://… TOKEN=… OTHER_TOKEN=… READ_TOKEN=…
//! cargo test --workspace --test scenario`. The tokens are access tokens of two users who may read
//! and write, and of one user with the scope for reading only.

use std::{env, ops::Deref};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{Api, LocalStack, workspace};
use ledgerline_sam::{grants::scope_prefix, template::Source};

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
    pub fn reader(&self) -> Api {
        let scopes = format!("openid {}", scope("read"));
        let claims = json!({ "sub": "reader", "client_id": "AppClient", "scope": scopes });
        self.with(&claims, "READ_TOKEN", "an access token for reading only")
    }

    /// Returns the same API for a program that reads the events of all users.
    #[must_use]
    pub fn reader_of_events(&self) -> Api {
        let claims = json!({ "sub": "program", "client_id": "EventsReaderClient", "scope": scope("events") });
        self.with(&claims, "EVENTS_TOKEN", "a token of the client EventsReaderClient")
    }

    /// Returns a client of the same API that sends the token of an operator. Against a deployed
    /// API, the token is in the variable `OPERATOR_TOKEN`.
    #[must_use]
    pub fn operator(&self) -> Api {
        let scopes = format!("openid {}", scope("operate"));
        let mut claims =
            json!({ "sub": "operator", "client_id": "OperatorClient", "scope": scopes });
        claims["cognito:groups"] = json!(["operators"]);
        self.with(&claims, "OPERATOR_TOKEN", "the token of an operator")
    }

    /// Returns the same API for a user outside the group of operators who signed in as operators
    /// do.
    #[must_use]
    pub fn no_operator(&self) -> Api {
        let scopes = format!("openid {}", scope("operate"));
        let claims = json!({ "sub": "eve", "client_id": "OperatorClient", "scope": scopes });
        self.with(
            &claims,
            "UNGROUPED_TOKEN",
            "a token of OperatorClient for a user outside the group operators",
        )
    }

    /// Returns the same API for another caller. On a local stack, the caller's token has these
    /// claims. Elsewhere, this variable has the token.
    fn with(&self, claims: &Value, variable: &str, what: &str) -> Api {
        let token = match self {
            // The local stack verifies no signature, so a token of claims alone is enough.
            Self::Local(_) => {
                format!("header.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()))
            }
            Self::There(_) => env::var(variable).unwrap_or_else(|_| panic!("{variable} is {what}")),
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
