//! One request over HTTPS, or over HTTP to this computer.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustls::crypto::ring::default_provider;
use serde_json::Value;
use tokio::time::timeout;

/// The time after which an answer does not come any more: the API waits for a function for thirty seconds.
const PATIENCE: Duration = Duration::from_secs(35);

/// Sends a request. Returns the status and the body of the answer, which is a text if it is no JSON.
pub(crate) async fn send(request: Request<String>) -> Result<(StatusCode, Value)> {
    let https = HttpsConnectorBuilder::new().with_provider_and_native_roots(default_provider());
    let https = https.context("this computer has no certificates to trust")?;
    let client = Client::builder(TokioExecutor::new()).build(https.https_or_http().enable_http1().build());
    let answer = timeout(PATIENCE, client.request(request)).await??;
    let status = answer.status();
    let text = answer.into_body().collect().await?.to_bytes();
    let said = serde_json::from_slice(&text).unwrap_or_else(|_| String::from_utf8_lossy(&text).into());
    Ok((status, said))
}
