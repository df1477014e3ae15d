//! What others' tools say of the template and of the dependencies. Where they are told to be silent, the reason is in
//! `.cfn-lint-serverless.yaml`, `.checkov.yaml` and `deny.toml`.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{check, tools};

/// SAM's own transformation, as a deployment does it.
const PROCESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/process.py");

/// Whether an advisory is about a dependency. The database of advisories is on the network: where it cannot be fetched and none was before, nothing
/// is checked, and that is said.
fn advisories(deny: &Path) -> Result<()> {
    let output = Command::new(deny).args(["check", "advisories"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("no advisory is about a dependency");
    } else if said.contains("failed to fetch advisory database") {
        println!(
            "NOT CHECKED: advisories about dependencies. Their database cannot be fetched here:\n{said}"
        );
    } else {
        bail!("advisories are about dependencies:\n{said}");
    }
    Ok(())
}

pub(crate) fn run(categories: &[&str]) -> Result<()> {
    let sam = tools::sam()?;
    tools::run(tools::program(&sam, "sam").args(["validate", "--lint"]))?;
    tools::run(tools::program(&tools::cfn_lint()?, "cfn-lint").args([
        "--config-file",
        ".cfn-lint-serverless.yaml",
        // Of the template's own list, too.
        "--merge-configs",
        "template.yaml",
    ]))?;
    // What it sees of a loop is its body alone: it reads the template with its loops written out.
    let expanded = "target/expanded.json";
    let template = ledgerline_local::template::tree(Path::new("template.yaml"))?;
    fs::write(expanded, serde_json::to_string_pretty(&template)?)?;
    let mut checkov = tools::program(&tools::checkov()?, "checkov");
    let found = tools::output(checkov.args(["--config-file", ".checkov.yaml", "--file", expanded]))?;
    print!("{found}");
    // It is content with a template that it cannot read.
    if !found.contains("Passed checks: ") || found.contains("Passed checks: 0") {
        bail!("checkov did not check anything");
    }
    let deny = tools::cargo_deny()?.join("cargo-deny");
    tools::run(Command::new(&deny).args(["check", "licenses", "bans", "sources"]))?;
    advisories(&deny)?;

    // The permissions again, as they are after SAM has added to them.
    let processed = Path::new("target/processed.json");
    let python = tools::output(tools::program(&sam, "python").args([PROCESS, "template.yaml", expanded]))?;
    fs::write(processed, python)?;
    check(processed, categories)
}
