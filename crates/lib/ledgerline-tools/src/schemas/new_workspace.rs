//! The contract of a new workspace, made from that of the starter. The functions of a new workspace
//! are not built when it is created, because that takes minutes.

use std::collections::BTreeSet;

use ledgerline::manifest::{Manifests, Source};
use serde_json::{Value, json};

use super::{Documents, asyncapi::COMMIT, openapi};

/// Returns the parts of a contract that belong to these functions. `documents` is the contract of
/// the starter, with the names of the workspace. A test compares the result with the contract that
/// `cargo xtask schemas` writes.
pub(crate) fn of_new_workspace(mut documents: Documents, manifests: &Manifests) -> Documents {
    let mut categories = BTreeSet::new();
    let mut rows = BTreeSet::new();
    let mut routes = BTreeSet::new();
    for (function, manifest) in manifests {
        match &manifest.source {
            Source::Http(endpoints) => {
                routes.extend(endpoints.iter().map(|endpoint| endpoint.route.to_string()));
            }
            Source::States { category, .. } => _ = categories.insert(category.to_string()),
            Source::Queue(of) => categories.extend(of.iter().map(ToString::to_string)),
            Source::Stream | Source::Sequence(_) | Source::Schedule => {}
        }
        rows.extend(function.strip_suffix("-projector").map(|view| view.replace('-', "_")));
    }
    documents.retain(|path, _| {
        let of = |folder: &str, names: &BTreeSet<String>| {
            path.strip_prefix(folder).is_ok_and(|inner| {
                let name = inner.iter().next().and_then(|name| name.to_str()).unwrap_or_default();
                names.contains(name.trim_end_matches(".json"))
            })
        };
        path.components().count() == 1 || of("events", &categories) || of("rows", &rows)
    });
    for (path, document) in &mut documents {
        match path.to_str() {
            Some("openapi.json") => keep_routes(document, &routes),
            Some("asyncapi.json") => keep_messages(document, manifests, &categories),
            _ => {}
        }
    }
    documents
}

fn keep_routes(document: &mut Value, routes: &BTreeSet<String>) {
    let mut tags = BTreeSet::new();
    retain(&mut document["paths"], |path, operations| {
        let mut is_kept = false;
        retain(operations, |method, operation| {
            operation["operationId"] = json!(openapi::operation_id(method, path));
            let is_route = routes.contains(&format!("{} {path}", method.to_uppercase()));
            is_kept |= is_route;
            is_route
        });
        if is_kept {
            tags.insert(openapi::tag(path).to_owned());
        }
        is_kept
    });
    document["tags"] = tags.iter().map(|tag| json!({ "name": tag })).collect();
    // A schema may be referred to by another schema only.
    loop {
        let text = document.to_string();
        let mut removed = false;
        retain(&mut document["components"]["schemas"], |name, _| {
            let is_kept = text.contains(&format!("\"#/components/schemas/{name}\""));
            removed |= !is_kept;
            is_kept
        });
        if !removed {
            break;
        }
    }
}

fn keep_messages(document: &mut Value, manifests: &Manifests, categories: &BTreeSet<String>) {
    let is_kept = |message: &str| {
        let category = message.split('.').next().unwrap_or_default();
        message == COMMIT || categories.contains(category)
    };
    retain(&mut document["channels"], |name, channel| {
        retain(&mut channel["messages"], |message, _| is_kept(message));
        name == "bus" || manifests.contains_key(name)
    });
    let channels = document["channels"].clone();
    retain(&mut document["operations"], |_, operation| {
        let channel = operation["channel"]["$ref"].as_str().unwrap_or_default();
        channels.get(channel.trim_start_matches("#/channels/")).is_some()
    });
    retain(&mut document["components"]["messages"], |message, _| is_kept(message));
    retain(&mut document["components"]["schemas"], |name, _| {
        name == COMMIT || name.strip_suffix("-state").is_some_and(|of| categories.contains(of))
    });
}

/// Keeps the fields of an object for which `keep` returns true.
fn retain(value: &mut Value, mut keep: impl FnMut(&str, &mut Value) -> bool) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, value| keep(name, value));
    }
}
