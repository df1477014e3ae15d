//! What can be asked about items.

use ledgerline::Refusal;
use ledgerline_lambda::queries::{Query, VisibleTo, row};
use serde_json::json;
use shop::{
    item::Item,
    views::items::{Row, TABLE},
};

/// What is said where there is no row.
const UNKNOWN: Refusal = Refusal::not_found("unknown-item", "there is no such item");

/// The routes. Whoever is signed in sees every row: where a row is one caller's own, say so with `VisibleTo::Owner`.
#[must_use]
pub fn routes() -> Vec<Query> {
    vec![row::<Item, Row>("GET /items/{id}", TABLE, UNKNOWN, VisibleTo::All, |row| json!(row))]
}
