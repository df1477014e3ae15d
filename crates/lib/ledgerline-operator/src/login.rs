//! The access token of an operator, by the authorization code flow. A browser signs the operator in
//! at the user pool's pages, and brings a code to this computer (RFC 8252, 7.3; RFC 7636).

use std::{collections::BTreeMap, io::ErrorKind, time::Duration};

use anyhow::{Context, Result, bail};
use axum::{
    Router,
    extract::{Query, State},
    http::StatusCode,
    response::{Html, IntoResponse},
    routing::get,
};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use clap::Args;
use http::Request;
use ledgerline_sam::lookup::list;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};

use crate::{Output, deployed, deployment::Deployment, https};

/// The logical id of the client of the user pool.
const CLIENT: &str = "OperatorClient";
/// The redirect address of the client: `CallbackURLs` in the template. It is `localhost`, because
/// Cognito accepts no other name without HTTPS.
const CALLBACK: &str = "http://localhost:8976/";
/// The addresses of `localhost`.
const LISTEN: [&str; 2] = ["127.0.0.1:8976", "[::1]:8976"];
/// The longest time that a sign-in may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The options of `ledger login`.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// Authenticate with this secret of the client `OperatorClient` (docs/runbook.md, "Operators").
    #[arg(long, env = "LEDGER_CLIENT_SECRET", hide_env_values = true)]
    client_secret: String,
    /// Use the sign-in pages at this URL. The default is the output `SignInUrl` of the stack.
    #[arg(long, env = "LEDGER_SIGN_IN_URL")]
    sign_in_url: Option<String>,
}

/// Signs the operator in, and prints the access token.
pub(crate) async fn run(deployment: &Deployment, options: &LoginArgs, out: Output) -> Result<()> {
    if deployment.is_local {
        bail!("on the local stack, any name is a token: set LEDGER_TOKEN to it");
    }
    let client = deployment.resources().find(|(id, ..)| *id == CLIENT);
    let (_, _, client) = client.with_context(|| {
        format!("the stack has no {CLIENT}: with JwtIssuer, get a token from your own issuer")
    })?;
    let pages = match &options.sign_in_url {
        Some(url) => url.clone(),
        None => deployment.output("SignInUrl").await?,
    };
    let pages = pages.trim_end_matches('/');
    https::require_private(
        &pages.parse().context("the URL of the sign-in pages is not valid: set --sign-in-url")?,
    )?;
    // Each text has 122 random bits. A verifier must have at least 43 characters.
    let random = || uuid::Uuid::new_v4().simple().to_string();
    let state = random();
    let verifier = random() + &random();
    let template = deployed::template(deployment).await?;
    let listeners = listen(&LISTEN).await?;
    let address = format!(
        "{pages}/oauth2/authorize?{}",
        sign_in_query(client, &scopes(&template), &state, &verifier)
    );
    eprintln!("Sign in, within five minutes, at\n{address}");
    let code = timeout(PATIENCE, receive_code(listeners, state))
        .await
        .context("the sign-in took longer than five minutes: run `ledger login` again")??;
    let form = form(&[
        ("grant_type", "authorization_code"),
        ("client_id", client),
        ("code", &code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", &verifier),
    ]);
    let secret = BASE64_STANDARD.encode(format!("{client}:{}", options.client_secret));
    let request = Request::post(format!("{pages}/oauth2/token"))
        .header("authorization", format!("Basic {secret}"))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form)
        .context("the URL of the sign-in pages is not valid: set --sign-in-url")?;
    let (status, response) =
        https::send(request).await.with_context(|| format!("`{pages}` returned no token"))?;
    let Some(token) = response["access_token"].as_str() else {
        bail!("`{pages}` returned no token, but {status}: {}", response["error"]);
    };
    out.line_or_note(&json!({ "token": token }), || token.to_owned());
    Ok(())
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// Returns the scopes that the template's client offers: the user's identity and operators'
/// commands.
fn scopes(template: &Value) -> String {
    let offered = list(&template["Resources"][CLIENT]["Properties"]["AllowedOAuthScopes"]);
    offered.into_iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the query of the sign-in page.
fn sign_in_query(client: &str, scopes: &str, state: &str, verifier: &str) -> String {
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
    form(&[
        ("response_type", "code"),
        ("client_id", client),
        ("redirect_uri", CALLBACK),
        ("scope", scopes),
        ("state", state),
        ("code_challenge_method", "S256"),
        ("code_challenge", &challenge),
    ])
}

/// Listens on the addresses that the computer has. A browser may choose any of them, so another
/// program on one of them would get the code.
async fn listen(addresses: &[&str]) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => listeners.push(listener),
            Err(error) if is_absent(&error) => {
                eprintln!("This computer does not have the address {address}: {error}");
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "cannot listen on `{address}`, to which the browser may bring the code: \
                         stop the program that uses it, such as another `ledger login`"
                    )
                });
            }
        }
    }
    if listeners.is_empty() {
        bail!("this computer has no address for `{CALLBACK}`");
    }
    Ok(listeners)
}

/// Whether the computer does not have the address, such as one of IPv6.
fn is_absent(error: &std::io::Error) -> bool {
    /// `EAFNOSUPPORT` of Linux and of macOS, and `WSAEAFNOSUPPORT` of Windows.
    const FAMILY: [i32; 3] = [97, 47, 10_047];
    error.kind() == ErrorKind::AddrNotAvailable
        || error.raw_os_error().is_some_and(|code| FAMILY.contains(&code))
}

/// The channel for the result of a sign-in: a code, or the reason why there is none.
type CodeSender = mpsc::Sender<Result<String, String>>;

/// Waits for the redirect of the browser, and returns its code.
async fn receive_code(listeners: Vec<TcpListener>, state: String) -> Result<String> {
    let (sender, mut receiver) = mpsc::channel(1);
    let pages = Router::new().route("/", get(handle_redirect)).with_state((state, sender));
    let serving: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let pages = pages.clone();
            tokio::spawn(async move { axum::serve(listener, pages).await })
        })
        .collect();
    let code =
        receiver.recv().await.context("the redirect page stopped: run `ledger login` again")?;
    // The browser needs time to show the page before the server stops.
    tokio::time::sleep(Duration::from_millis(200)).await;
    serving.iter().for_each(tokio::task::JoinHandle::abort);
    code.map_err(|error| anyhow::anyhow!("the user pool refused the sign-in: {error}"))
}

/// Handles the redirect. Another site cannot know the state, so its request is refused and changes
/// nothing.
async fn handle_redirect(
    State((state, sender)): State<(String, CodeSender)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> impl IntoResponse {
    if query.get("state") != Some(&state) {
        return (
            StatusCode::BAD_REQUEST,
            Html("This redirect does not belong to the running `ledger login`: sign in again."),
        );
    }
    let (result, text) = match query.get("code") {
        Some(code) => {
            (Ok(code.clone()), "Signed in. The token is in the terminal: close this page.")
        }
        None => {
            let error = ["error_description", "error"].iter().find_map(|name| query.get(*name));
            let error = error.map_or_else(|| Value::Null.to_string(), ToOwned::to_owned);
            (Err(error), "Not signed in: the terminal shows the reason.")
        }
    };
    let _ = sender.send(result).await;
    (StatusCode::OK, Html(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7636, appendix B.
    #[test]
    fn the_sign_in_request_has_a_challenge_for_this_program_only() {
        let query = sign_in_query(
            "client-1",
            "openid ledgerline/operate",
            "s",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        );
        let expected = "response_type=code&client_id=client-1&redirect_uri=http%3A%2F%2Flocalhost%3A8976%2F&scope=openid+ledgerline%2Foperate&state=s\
                        &code_challenge_method=S256&code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert_eq!(query, expected);
    }

    /// Otherwise, a browser could bring the code to the other program.
    #[tokio::test]
    async fn an_address_of_another_program_is_an_error_and_an_address_of_no_computer_is_not() {
        let program = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = program.local_addr().unwrap().to_string();
        let (free, absent) = ("127.0.0.1:0", "192.0.2.1:0");
        for taken in [[&other, free], [free, &other], [absent, &other]] {
            let error = listen(&taken).await.unwrap_err();
            assert!(format!("{error:#}").contains(&other), "{taken:?}: {error:#}");
        }
        assert_eq!(listen(&[absent, free]).await.unwrap().len(), 1);
        assert_eq!(listen(&[free, "127.0.0.1:0"]).await.unwrap().len(), 2);
        assert!(listen(&[absent]).await.is_err());
    }

    #[tokio::test]
    async fn a_redirect_without_the_state_is_refused() {
        // Given a page at the redirect address,
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let code = tokio::spawn(receive_code(vec![listener], "right".to_owned()));
        // when another site opens it, and then the user pool does,
        let open = |query: &'static str| async move {
            let request =
                Request::get(format!("http://{address}/?{query}")).body(String::new()).unwrap();
            https::send(request).await.unwrap().0
        };
        assert_eq!(open("code=forged&state=wrong").await, StatusCode::BAD_REQUEST);
        assert_eq!(open("code=forged").await, StatusCode::BAD_REQUEST);
        assert_eq!(open("code=4421&state=right").await, StatusCode::OK);
        // then the code is that of the user pool.
        assert_eq!(code.await.unwrap().unwrap(), "4421");
    }

    #[tokio::test]
    async fn the_error_has_the_reason_why_the_user_pool_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let code = tokio::spawn(receive_code(vec![listener], "s".to_owned()));
        let query = "state=s&error=invalid_request&error_description=invalid_scope";
        let request =
            Request::get(format!("http://{address}/?{query}")).body(String::new()).unwrap();
        https::send(request).await.unwrap();
        let error = code.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("invalid_scope"), "{error}");
    }
}
