//! The queries of the view of stock cards.

use ledgerline::Refusal;
use ledgerline_lambda::queries::{Query, VisibleTo, row};
use north_depot::{
    stock_item::StockItem,
    views::stock_cards::{Row, TABLE},
};

/// The refusal for a missing row.
const UNKNOWN: Refusal = Refusal::not_found("unknown-stock-item", "there is no such stock item");

/// Returns the routes. Every signed-in caller sees every row. If a row belongs to one caller, say
/// so with `VisibleTo::Owner`.
#[must_use]
pub fn routes() -> Vec<Query> {
    vec![row::<StockItem, Row, Row>(
        "GET /stock-cards/{id}",
        TABLE,
        UNKNOWN,
        VisibleTo::All,
        |row| row,
    )]
}
