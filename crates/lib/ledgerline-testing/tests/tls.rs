//! A function and its services with TLS between them, as on AWS. Almost all other tests run without
//! TLS.
//!
//! `TANK_COMMANDS` names another build of the function, such as a script that runs the build for
//! arm64: `exec qemu-aarch64 -L /usr/aarch64-linux-gnu
//! target/aarch64-unknown-linux-gnu/debug/tank-commands`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod secured;

use std::{env, time::Duration};

use ledgerline_local::host::invoke_program;
use ledgerline_testing::{dynamodb, program};
use serde_json::Value;

use crate::secured::{Slowness, behind_tls, environment, sample};

/// Returns the response to the sample that installs a tank. The instance reaches its tables by TLS
/// only. It trusts the certificate `trusted`, or without one the authority that signed the
/// services' certificate.
async fn install_tank(slowness: Slowness, trusted: Option<&str>) -> anyhow::Result<Value> {
    let services = dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let tls = behind_tls(&services.url, slowness).await?;
    let environment = environment(&tls, trusted)?;
    let program = match env::var_os("TANK_COMMANDS") {
        Some(program) => program.into(),
        None => program("tank-commands"),
    };
    Ok(invoke_program(&program, environment, [sample("install")?]).await?.remove(0))
}

const FAST: Duration = Duration::ZERO;

#[tokio::test]
async fn a_command_is_stored_over_tls() {
    let answer = install_tank((FAST, FAST), None).await.unwrap();
    assert_eq!(answer["statusCode"], 201, "{answer}");
}

/// All attempts of the first read fail. The function starts nevertheless, and stores the command
/// once handshakes complete.
#[tokio::test]
async fn slow_handshakes_fail_no_start() {
    let answer = install_tank((Duration::from_millis(4_500), Duration::from_millis(500)), None)
        .await
        .unwrap();
    assert_eq!(answer["statusCode"], 201, "{answer}");
}

#[tokio::test]
async fn a_service_without_a_trusted_certificate_gets_no_request() {
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let answer = install_tank((FAST, FAST), Some(&stranger)).await.unwrap();
    assert_eq!(answer["statusCode"], 503, "{answer}");
}
