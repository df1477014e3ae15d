//! Requests over HTTPS, or over HTTP to this computer.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustls::crypto::ring::default_provider;
use serde_json::Value;
use tokio::time::timeout;

/// The longest wait for a response. The API itself waits for a function for 30 seconds.
const PATIENCE: Duration = Duration::from_secs(35);

/// Checks that a request to this address does not expose a secret on the way.
///
/// # Errors
/// When the address is neither HTTPS nor this computer.
pub(crate) fn require_private(url: &Uri) -> Result<()> {
    let is_here =
        url.host().is_some_and(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&host));
    if url.scheme_str() != Some("https") && !is_here {
        bail!("`{url}` is not HTTPS and would expose the secret: use an https:// address");
    }
    Ok(())
}

/// Sends a request. Returns the status and the body of the response. If the body is not JSON, it is
/// a text.
pub(crate) async fn send(request: Request<String>) -> Result<(StatusCode, Value)> {
    let https = HttpsConnectorBuilder::new().with_provider_and_native_roots(default_provider());
    let https = https.context(
        "this computer has no root certificates: install them, such as the package ca-certificates",
    )?;
    let client =
        Client::builder(TokioExecutor::new()).build(https.https_or_http().enable_http1().build());
    let answer = timeout(PATIENCE, client.request(request)).await??;
    let status = answer.status();
    let text = answer.into_body().collect().await?.to_bytes();
    let body =
        serde_json::from_slice(&text).unwrap_or_else(|_| String::from_utf8_lossy(&text).into());
    Ok((status, body))
}
