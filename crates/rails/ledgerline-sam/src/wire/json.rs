//! The text of manifests: `manifest.json`, which people review like a lock file, and the metadata of
//! the template, by which the operator's tool finds them in a deployed stack.

use anyhow::{Context, Result, bail};
use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

/// The widest line of `manifest.json`, in characters.
const WIDTH: usize = 110;

/// The text of `manifest.json`: JSON in which a value stands in one line if it fits.
///
/// # Panics
/// Never: manifests have no keys that are no text.
#[must_use]
#[expect(clippy::expect_used, reason = "manifests have no keys that are no text")]
pub fn text(manifests: &Manifests) -> String {
    let mut text = String::new();
    // Each function begins a line, however short its manifest is.
    text.push('{');
    for (place, (name, manifest)) in manifests.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        text.push_str(&format!("{comma}\n  {}: ", Value::from(name.as_str())));
        let manifest = serde_json::to_value(manifest).expect("a manifest is JSON");
        write(&manifest, 2, name.len() + 6, &mut text);
    }
    text.push_str("\n}\n");
    text
}

/// Writes a value that begins at column `column`, in a line that is indented by `indent`.
fn write(value: &Value, indent: usize, column: usize, text: &mut String) {
    let line = inline(value);
    let (open, entries, close): (_, Vec<_>, _) = match value {
        Value::Array(values) => ("[", values.iter().map(|value| (String::new(), value)).collect(), "]"),
        Value::Object(entries) => {
            let named = |(name, value)| (format!("{}: ", Value::from(String::clone(name))), value);
            ("{", entries.iter().map(named).collect(), "}")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return text.push_str(&line),
    };
    // Room for a comma.
    if column + line.chars().count() < WIDTH {
        return text.push_str(&line);
    }
    text.push_str(open);
    for (place, (name, value)) in entries.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        text.push_str(&format!("{comma}\n{:1$}{name}", "", indent + 2));
        write(value, indent + 2, indent + 2 + name.chars().count(), text);
    }
    text.push_str(&format!("\n{:1$}{close}", "", indent));
}

/// A value in one line, with spaces where people write them.
fn inline(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) if entries.is_empty() => "{}".to_owned(),
        Value::Object(entries) => {
            let entry = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), inline(value))
            };
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Reads manifests, and checks each text in them.
///
/// # Errors
/// When the text is no JSON, a manifest has a field that is missing or unknown, or a text cannot be what
/// it stands for.
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

/// Reads the manifests in the metadata of a template, which may come from a deployed stack: each text is
/// checked. `None` if the template has none.
///
/// # Errors
/// When a manifest is no text, no manifest, or has a text that cannot be what it stands for.
pub fn in_template(template: &Value) -> Result<Option<Manifests>> {
    let Some(written) = template["Metadata"]["Ledgerline"]["Manifests"].as_object() else {
        return Ok(None);
    };
    let manifest = |(name, text): (&String, &Value)| {
        let of = || format!("the manifest of `{}`", name.escape_debug());
        let manifest: Manifest = serde_json::from_str(text.as_str().with_context(of)?).with_context(of)?;
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
