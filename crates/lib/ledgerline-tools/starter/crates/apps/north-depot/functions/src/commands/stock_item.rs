//! The routes of stock items.

use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, create, update};
use north_depot::stock_item::{Command, State, StockItem, StockItemName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of a request that creates a stock item. Without an id, the server chooses one.
#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "StockItemToCreate")]
struct Create {
    #[serde(default)]
    id: Option<Id>,
    name: StockItemName,
}

#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "StockItemToRename")]
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

/// The answer to a change of a stock item.
#[derive(JsonSchema, Serialize)]
struct StockItemChanged {
    id: String,
    version: u64,
}

fn changed(stream: &StreamId, _: &State, version: u64) -> StockItemChanged {
    StockItemChanged { id: stream.id().to_owned(), version }
}
