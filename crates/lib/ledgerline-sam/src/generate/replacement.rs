//! Compares the resources that a team keeps as a whole with those that would be generated, so that
//! a team sees what a change in code would have changed there.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use ledgerline::manifest::Manifests;
use serde_json::Value;

use super::{application_name::Application, assembly::template, deploy::Deploy};
use crate::template::Source;

/// Returns a line for each value of a resource with `Generated: false` that differs from what would
/// be generated: the resource, the path, and both values.
///
/// # Errors
/// As those of [`template`].
pub fn replacement_differences(
    application: &Application,
    manifests: &Manifests,
    deploy: &Deploy,
) -> Result<Vec<String>> {
    let (rest, replacements) = deploy.without_replacements();
    if replacements.is_empty() {
        return Ok(Vec::new());
    }
    let read = |deploy: &Deploy| {
        let text = template(application, manifests, deploy)?;
        Ok::<_, anyhow::Error>(Source::parse(&text, Path::new("template.yaml"))?.json())
    };
    let (ours, generated) = (read(deploy)?, read(&rest)?);
    let mut lines = Vec::new();
    for id in replacements {
        let leaves = |template: &Value| {
            let mut leaves = BTreeMap::new();
            add_leaves(&template["Resources"][&id], &id, &mut leaves);
            leaves
        };
        let (ours, generated) = (leaves(&ours), leaves(&generated));
        let paths = ours.keys().chain(generated.keys().filter(|path| !ours.contains_key(*path)));
        for path in paths.filter(|path| ours.get(*path) != generated.get(*path)) {
            let text = |leaves: &BTreeMap<String, String>| {
                leaves.get(path).map_or("nothing", String::as_str).to_owned()
            };
            lines.push(format!("{path}: {}; generated: {}", text(&ours), text(&generated)));
        }
    }
    Ok(lines)
}

fn add_leaves(value: &Value, path: &str, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(entries) => {
            // The settings of the generator are no part of the resource.
            for (key, value) in entries.iter().filter(|(key, _)| *key != "Ledgerline") {
                add_leaves(value, &format!("{path}.{key}"), leaves);
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                add_leaves(item, &format!("{path}.{place}"), leaves);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            leaves.insert(path.to_owned(), value.to_string());
        }
    }
}
