//! The text of manifests. Reviewers read `manifest.json` like a lock file. The operator's tool
//! reads the manifests of a deployed stack from the metadata of its template.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

/// The name of the file with the manifests, beside the template.
pub const FILE: &str = "manifest.json";

/// The text of `manifest.json`. Each right has its own line, so that a review shows it.
///
/// # Panics
/// Never, because all keys of manifests are text.
#[must_use]
#[expect(clippy::expect_used, reason = "manifests have no keys that are no text")]
pub fn to_json(manifests: &Manifests) -> String {
    serde_json::to_string_pretty(manifests).expect("manifests are JSON") + "\n"
}

/// The names of the functions whose manifests differ.
#[must_use]
pub fn changed_functions(ours: &Manifests, others: &Manifests) -> Vec<String> {
    let names: BTreeSet<_> = ours.keys().chain(others.keys()).collect();
    names.into_iter().filter(|name| ours.get(*name) != others.get(*name)).cloned().collect()
}

/// Reads the manifests beside a template: `manifest.json`.
///
/// # Errors
/// When the file is missing, or contains no valid manifests.
pub fn read_file(template: &Path) -> Result<Manifests> {
    let path = template.with_file_name(FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        anyhow::anyhow!("cannot read {}: {error}; write it with `cargo xtask wire`", path.display())
    })?;
    read(&text).map_err(|error| anyhow::anyhow!("{}: {error:#}", path.display()))
}

/// Reads manifests, and validates each text in them.
///
/// # Errors
/// When the text is no JSON, or a manifest lacks a field or has an unknown one. Also when a text in
/// a manifest is invalid, such as the name of a variable.
pub fn read(text: &str) -> Result<Manifests> {
    let manifests: Manifests =
        serde_json::from_str(text).context("the text has no valid manifests")?;
    manifests.iter().try_for_each(|(name, manifest)| validate(name, manifest))?;
    Ok(manifests)
}

fn validate(name: &str, manifest: &Manifest) -> Result<()> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_of_name) {
        bail!("`{}` is not a function name", name.escape_debug());
    }
    manifest.validate().with_context(|| format!("the manifest of `{name}`"))
}

/// Reads the manifests in the metadata of a template; `None` if it has none. The template may come
/// from a deployed stack, so each text is validated.
///
/// # Errors
/// When the value for a function is no text or no manifest, or a text in a manifest is invalid.
pub fn in_template(template: &Value) -> Result<Option<Manifests>> {
    let Some(written) = template["Metadata"]["Ledgerline"]["Manifests"].as_object() else {
        return Ok(None);
    };
    let manifest = |(name, text): (&String, &Value)| {
        let place = || format!("the manifest of `{}`", name.escape_debug());
        let manifest: Manifest =
            serde_json::from_str(text.as_str().with_context(place)?).with_context(place)?;
        validate(name, &manifest)?;
        Ok((name.clone(), manifest))
    };
    written.iter().map(manifest).collect::<Result<_>>().map(Some)
}

/// The manifests as metadata of the template: a JSON text for each function. CloudFormation changes
/// the types of values in metadata, but not texts.
#[expect(clippy::expect_used, reason = "manifests have no keys that are no text")]
pub(crate) fn as_metadata(manifests: &Manifests) -> Vec<String> {
    let line = |(name, manifest): (&String, &Manifest)| {
        let text = serde_json::to_string(manifest).expect("a manifest is JSON");
        format!("  {name}: '{}'", text.replace('\'', "''"))
    };
    ["Manifests:".to_owned()].into_iter().chain(manifests.iter().map(line)).collect()
}
