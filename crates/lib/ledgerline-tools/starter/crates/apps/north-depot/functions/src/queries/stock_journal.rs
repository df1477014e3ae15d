//! What can be asked about stock journal.

use ledgerline_lambda::queries::{Query, history};
use north_depot::{
    stock_item::StockItem,
    views::stock_journal::{Row, TABLE},
};
use serde_json::json;

/// The routes. Every signed-in caller sees every row: where the rows are one caller's own, write a
/// `Query::new` that compares their owner with `request.actor()?`, and answers as if there were
/// none.
#[must_use]
pub fn routes() -> Vec<Query> {
    vec![history::<StockItem, Row>("GET /stock-journal/{id}", "rows", TABLE, |row| json!(row))]
}
