//! The operations that the development binary prints.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use ledgerline::{
    api::Operations,
    manifest::{Manifests, Source},
};
use ledgerline_sam::build;

/// The development binary.
const HANDLERS: &str = "handlers";
/// The environment variable with the name of the function that a process runs.
const FUNCTION: &str = "AWS_LAMBDA_FUNCTION_NAME";

/// Builds the development binary of the workspace, and returns the operations of each function
/// behind the HTTP API.
///
/// # Errors
/// When the workspace has no development binary, it does not build, or it prints no operations.
pub(super) fn read(manifests: &Manifests) -> Result<BTreeMap<String, Operations>> {
    let programs = build::build(Path::new("."), &[HANDLERS])?;
    let program = programs.get(HANDLERS).context("cargo built no development binary")?;
    let mut all = BTreeMap::new();
    for (function, manifest) in manifests {
        let Source::Http(endpoints) = &manifest.source else { continue };
        let operations = read_function(program, function)?;
        let described = |route: &str| operations.operations.iter().any(|of| of.route == route);
        if let Some(missing) = endpoints.iter().find(|endpoint| !described(&endpoint.route)) {
            bail!(
                "`{function}` has no description of {}: make the route with `commands::Route` or \
                 `queries::Query`, \
                 and give `ledgerline-lambda` the feature `schema` in crates/local/Cargo.toml",
                missing.route
            );
        }
        all.insert(function.clone(), operations);
    }
    Ok(all)
}

fn read_function(program: &PathBuf, function: &str) -> Result<Operations> {
    let mut command = Command::new(program);
    let output = command
        .arg("--operations")
        .env(FUNCTION, function)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!(
            "`{function}` exited with {}: give `ledgerline-lambda` the feature `schema` in \
                crates/local/Cargo.toml",
            output.status
        );
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`{function}` printed no operations"))
}
