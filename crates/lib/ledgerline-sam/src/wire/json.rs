//! The text of manifests: `manifest.json`, which people review like a lock file, and the metadata
//! of the template, by which the operator's tool finds them in a deployed stack.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

/// The text of `manifest.json`: each right stands in a line of its own, so that a review sees it.
///
/// # Panics
/// Never: manifests have no keys that are no text.
#[must_use]
#[expect(clippy::expect_used, reason = "manifests have no keys that are no text")]
pub fn text(manifests: &Manifests) -> String {
    serde_json::to_string_pretty(manifests).expect("manifests are JSON") + "\n"
}

/// The names of the functions whose manifests differ.
#[must_use]
pub fn differing(ours: &Manifests, others: &Manifests) -> Vec<String> {
    let names: BTreeSet<_> = ours.keys().chain(others.keys()).collect();
    names.into_iter().filter(|name| ours.get(*name) != others.get(*name)).cloned().collect()
}

/// Reads manifests, and checks each text in them.
///
/// # Errors
/// When the text is no JSON, a manifest has a field that is missing or unknown, or a text cannot be
/// what it stands for.
pub fn read(text: &str) -> Result<Manifests> {
    let manifests: Manifests = serde_json::from_str(text).context("these are no manifests")?;
    manifests.iter().try_for_each(|(name, manifest)| checked(name, manifest))?;
    Ok(manifests)
}

fn checked(name: &str, manifest: &Manifest) -> Result<()> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_of_name) {
        bail!("`{}` is no name of a function", name.escape_debug());
    }
    manifest.validate().with_context(|| format!("the manifest of `{name}`"))
}

/// Reads the manifests in the metadata of a template, which may come from a deployed stack: each
/// text is checked. `None` if the template has none.
///
/// # Errors
/// When a manifest is no text, no manifest, or has a text that cannot be what it stands for.
pub fn in_template(template: &Value) -> Result<Option<Manifests>> {
    let Some(written) = template["Metadata"]["Ledgerline"]["Manifests"].as_object() else {
        return Ok(None);
    };
    let manifest = |(name, text): (&String, &Value)| {
        let of = || format!("the manifest of `{}`", name.escape_debug());
        let manifest: Manifest =
            serde_json::from_str(text.as_str().with_context(of)?).with_context(of)?;
        checked(name, &manifest)?;
        Ok((name.clone(), manifest))
    };
    written.iter().map(manifest).collect::<Result<_>>().map(Some)
}

/// The manifests as metadata of the template: a JSON text for each function. CloudFormation changes
/// the types of values in metadata, and leaves texts alone.
#[expect(clippy::expect_used, reason = "manifests have no keys that are no text")]
pub(super) fn as_metadata(manifests: &Manifests) -> Vec<String> {
    let line = |(name, manifest): (&String, &Manifest)| {
        let text = serde_json::to_string(manifest).expect("a manifest is JSON");
        format!("  {name}: '{}'", text.replace('\'', "''"))
    };
    ["Manifests:".to_owned()].into_iter().chain(manifests.iter().map(line)).collect()
}
