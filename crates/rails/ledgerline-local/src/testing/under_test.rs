//! The applications as their users see them: over HTTP, wherever they run.
//!
//! Without `BASE_URL`, tests run against the program that `cargo run -p local` runs. With it, they run against the deployment at this URL:
//! `BASE_URL=https://… TOKEN=… OTHER_TOKEN=… READ_TOKEN=… cargo test --workspace --test scenario`, with access tokens of two users who may read and
//! write, and one with the scope for reading only.

use std::{env, ops::Deref};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{Api, LocalStack};

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

    /// The same API, for somebody whose token lets them read only.
    #[must_use]
    pub fn reader(&self) -> Api {
        let token = match self {
            // The local stack verifies nothing, so a token of claims alone is enough.
            Self::Local(_) => {
                let claims = json!({ "sub": "reader", "scope": "openid ledgerline/read" }).to_string();
                format!("header.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims))
            }
            Self::There(_) => env::var("READ_TOKEN").expect("READ_TOKEN is an access token for reading only"),
        };
        Api::new(self.url.clone(), Some(token))
    }

    /// The id of the user who calls.
    #[must_use]
    pub fn me(&self) -> String {
        subject(self).unwrap_or_else(|| "developer".to_owned())
    }

    /// The same API, for somebody else.
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

impl Deref for UnderTest {
    type Target = Api;

    fn deref(&self) -> &Api {
        match self {
            Self::Local(local) => local,
            Self::There(api) => api,
        }
    }
}

/// The subject of a caller's token, if it is a real one.
#[must_use]
pub fn subject(api: &Api) -> Option<String> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(api.token.as_ref()?.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Value>(&claims).ok()?["sub"].as_str().map(ToOwned::to_owned)
}
