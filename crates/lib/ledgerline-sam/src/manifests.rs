//! The manifests of functions in the metadata of a template, where the operator's tool reads those
//! of a deployed stack.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

use crate::{lookup, template::Source};

/// The names of the functions whose manifests differ.
#[must_use]
pub fn changed_functions(ours: &Manifests, others: &Manifests) -> Vec<String> {
    let names: BTreeSet<_> = ours.keys().chain(others.keys()).collect();
    names.into_iter().filter(|name| ours.get(*name) != others.get(*name)).cloned().collect()
}

/// Finds functions whose manifests are not those from which the template was made. A template
/// without manifests was made by hand. A function with a condition need not be among the printed
/// ones.
///
/// # Errors
/// When the manifests of the template cannot be read.
pub fn stale_functions(template: &Source, printed: &Manifests) -> Result<Vec<String>> {
    let json = template.json();
    let Some(mut written) = in_template(&json)? else { return Ok(Vec::new()) };
    for (_, function) in lookup::resources(&json, &["AWS::Serverless::Function"]) {
        let name = lookup::binary(function);
        if !function["Condition"].is_null() && !printed.contains_key(name) {
            written.remove(name);
        }
    }
    let stale = changed_functions(&written, printed).into_iter();
    let problem = |name| {
        format!("the template was made from another manifest of `{name}`: run `cargo xtask wire`")
    };
    Ok(stale.map(problem).collect())
}

/// Reads the manifests of the functions of a template from its metadata.
///
/// # Errors
/// When the template cannot be read, or contains no valid manifests.
pub fn read_file(template: &Path) -> Result<Manifests> {
    let place = || template.display().to_string();
    let manifests = in_template(&Source::read(template)?.json()).with_context(place)?;
    manifests.with_context(|| format!("{} has no manifests: run `cargo xtask wire`", place()))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Every principal that may deploy to the account can write the template of a stack.
    #[test]
    fn manifests_of_a_stack_are_checked() {
        let with =
            |manifests: Value| json!({ "Metadata": { "Ledgerline": { "Manifests": manifests } } });
        assert_eq!(in_template(&json!({})).unwrap(), None);
        let schedule = r#"{"source":"schedule","variables":["X"]}"#;
        assert!(in_template(&with(json!({ "x": schedule }))).unwrap().is_some());
        for (name, text, expected) in [
            ("x", "{", "the manifest of `x`"),
            (
                "x",
                &schedule.replace("\"X\"", "\"x;y\""),
                "the manifest of `x`: `x;y` is not a valid variable",
            ),
            (
                "x",
                &schedule.replace("source", "sauce"),
                "the manifest of `x`: unknown field `sauce`",
            ),
            ("\u{1b}[2J", schedule, "is not a function name"),
        ] {
            let error = in_template(&with(json!({ name: text }))).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}
