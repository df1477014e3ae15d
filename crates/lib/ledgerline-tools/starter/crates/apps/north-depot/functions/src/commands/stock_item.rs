//! The routes of stock items.

use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, create, update};
use north_depot::stock_item::{Command, State, StockItem, StockItemName};
use serde::Deserialize;
use serde_json::{Value, json};

/// The body of a request that creates a stock item. Without an id, the server chooses one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    #[serde(default)]
    id: Option<Id>,
    name: StockItemName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rename {
    name: StockItemName,
}

/// Returns the routes.
#[must_use]
pub fn routes() -> Vec<Route<StockItem>> {
    vec![
        create("POST /stock-items", |Create { id, name }| (id, Command::Create(name)), changed),
        update("POST /stock-items/{id}/name", |Rename { name }| Command::Rename(name), changed),
    ]
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "id": stream.id(), "version": version })
}
