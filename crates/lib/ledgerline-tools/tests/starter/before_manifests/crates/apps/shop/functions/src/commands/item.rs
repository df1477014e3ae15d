//! The routes of items.

use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, changes, creates};
use serde::Deserialize;
use serde_json::{Value, json};
use shop::item::{Command, Item, ItemName, State};

/// What creates one. Without an id, it gets a new one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    #[serde(default)]
    id: Option<Id>,
    name: ItemName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rename {
    name: ItemName,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<Item>> {
    vec![
        creates("POST /items", |Create { id, name }| (id, Command::Create(name)), changed),
        changes("POST /items/{id}/name", |Rename { name }| Command::Rename(name), changed),
    ]
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "id": stream.id(), "version": version })
}
