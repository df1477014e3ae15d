//! The start of a function, in a process of its own.

use std::process::{Command, Output};

use serde_json::{Value, json};

/// Starts a function with this environment and these arguments.
fn start(environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut function = Command::new(env!("CARGO_BIN_EXE_account-queries"));
    function.env_clear().env("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:1");
    function.envs(environment.iter().copied()).args(arguments).output().unwrap()
}

/// On AWS, a development user would admit every caller as one user.
#[test]
fn a_function_with_a_wrong_configuration_names_the_variable_and_exits() {
    let for_emulators = "the environment variable `DEVELOPMENT_USER` is not valid: the variable is for emulators only, and AWS_ENDPOINT_URL is not set";
    for (name, value, error) in [
        ("BALANCES_TABLE", "b", "the environment variable `TRANSACTIONS_TABLE` is not set"),
        ("DEVELOPMENT_USER", "developer", for_emulators),
    ] {
        let output = start(&[(name, value)], &[]);
        assert!(!output.status.success());
        let first = output.stdout.split(|byte| *byte == b'\n').next().unwrap();
        let line: Value = serde_json::from_slice(first).unwrap();
        assert_eq!((&line["level"], &line["error"]), (&json!("ERROR"), &json!(error)));
        let time = line["timestamp"].as_str().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{line}");
    }
}

/// `cargo xtask wire` makes the template from this output.
#[test]
fn a_function_prints_its_manifest() {
    let manifest: Value = serde_json::from_slice(&start(&[], &["--manifest"]).stdout).unwrap();
    let route = json!({ "route": "GET /accounts/{id}/transactions", "scope": "read" });
    assert!(manifest["source"]["http"].as_array().unwrap().contains(&route));
    assert_eq!(manifest["tables"][0]["indexes"][0]["name"], "ofOpener");
}
