//! The queries of the view of stock journal.

use ledgerline_lambda::queries::{Query, history};
use north_depot::{
    stock_item::StockItem,
    views::stock_journal::{Row, TABLE},
};

/// Returns the routes. Every signed-in caller sees every row. If rows belong to one caller, write a
/// `Query::new` that compares their owner with `request.actor()?`. For other callers, let it answer
/// as if there were no rows.
#[must_use]
pub fn routes() -> Vec<Query> {
    vec![history::<StockItem, Row, Row>("GET /stock-journal/{id}", "stockJournal", TABLE, |row| {
        row
    })]
}
