//! A function and its services with TLS between them, as on AWS. Almost all other tests do without TLS.
//!
//! `ACCOUNT_COMMANDS` names another build of the function, such as a script that runs that for arm64:
//! `exec qemu-aarch64 -L /usr/aarch64-linux-gnu target/aarch64-unknown-linux-gnu/debug/account-commands`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod secured;

use std::{env, time::Duration};

use ledgerline_local::host::invoked;
use ledgerline_testing::{dynamodb, program};
use serde_json::Value;

use crate::secured::{Slowness, behind_tls, environment, sample};

/// The answer to the sample that opens an account. The instance reaches its tables by TLS only, and trusts the certificate `trusted`, or without one
/// the authority that signed the services' certificate.
async fn opened(slowness: Slowness, trusted: Option<&str>) -> anyhow::Result<Value> {
    let services = dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let tls = behind_tls(&services.url, slowness).await?;
    let environment = environment(&tls, trusted)?;
    let program = match env::var_os("ACCOUNT_COMMANDS") {
        Some(program) => program.into(),
        None => program("account-commands"),
    };
    Ok(invoked(&program, environment, [sample("open")?]).await?.remove(0))
}

const FAST: Duration = Duration::ZERO;

#[tokio::test]
async fn a_command_is_stored_over_tls() {
    let answer = opened((FAST, FAST), None).await.unwrap();
    assert_eq!(answer["statusCode"], 201, "{answer}");
}

/// All tries of the first read fail. The function starts nevertheless, and the command is stored when handshakes end again.
#[tokio::test]
async fn slow_handshakes_end_no_start() {
    let answer = opened((Duration::from_millis(4_500), Duration::from_millis(500)), None).await.unwrap();
    assert_eq!(answer["statusCode"], 201, "{answer}");
}

#[tokio::test]
async fn a_service_that_nobody_vouches_for_gets_nothing() {
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let answer = opened((FAST, FAST), Some(&stranger)).await.unwrap();
    assert_eq!(answer["statusCode"], 503, "{answer}");
}
