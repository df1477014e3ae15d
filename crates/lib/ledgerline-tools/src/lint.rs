//! `cargo xtask lint`: runs third-party linters on the template and the dependencies.
//! `.cfn-lint-serverless.yaml`, `.checkov.yaml` and `deny.toml` have the reason for each disabled
//! rule.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, bail};
use ledgerline::Aggregates;

use crate::{check, tools};

/// The script that runs SAM's own transformation, as a deployment does.
const PROCESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/process.py");

/// Fails if an advisory is about a dependency. The database of advisories is on the network. If it
/// cannot be fetched, and no earlier copy exists, the function checks nothing and says so.
fn advisories(deny: &Path) -> Result<()> {
    let output = Command::new(deny).args(["check", "advisories"]).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("no advisory is about a dependency");
    } else if stderr.contains("failed to fetch advisory database") {
        println!(
            "NOT CHECKED: advisories about dependencies. Their database cannot be fetched here:\n{stderr}"
        );
    } else {
        bail!("advisories are about dependencies:\n{stderr}");
    }
    Ok(())
}

/// The template of the libraries' test application. Only ledgerline's own repository has it.
const TANKS: &str = "crates/lib/ledgerline-tank/template.yaml";

pub(crate) fn run<L: Aggregates>() -> Result<()> {
    let sam = tools::sam()?;
    let cfn_lint = tools::cfn_lint()?;
    for template in ["template.yaml", TANKS] {
        if !Path::new(template).exists() {
            continue;
        }
        let mut validate = tools::program(&sam, "sam");
        tools::run_silent(validate.args(["validate", "--lint", "--template", template]))?;
        tools::run_silent(tools::program(&cfn_lint, "cfn-lint").args([
            "--config-file",
            ".cfn-lint-serverless.yaml",
            // Apply the list of rules in the template, too.
            "--merge-configs",
            template,
        ]))?;
    }
    let mut checkov = tools::program(&tools::checkov()?, "checkov");
    let found =
        tools::output(checkov.args(["--config-file", ".checkov.yaml", "--file", "template.yaml"]))?;
    print!("{found}");
    // Checkov exits with success even if it cannot read the template.
    if !found.contains("Passed checks: ") || found.contains("Passed checks: 0") {
        bail!("checkov checked nothing: see its output above");
    }
    let deny = tools::cargo_deny()?.join("cargo-deny");
    tools::run_silent(Command::new(&deny).args(["check", "licenses", "bans", "sources"]))?;
    advisories(&deny)?;

    // Check the permissions again, because SAM adds some.
    let processed = Path::new("target/processed.json");
    let python = tools::output(tools::program(&sam, "python").args([PROCESS, "template.yaml"]))?;
    fs::write(processed, python)?;
    check::<L>(processed)
}
