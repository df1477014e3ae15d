//! The queries of the view of stock owners.

use ledgerline::Refusal;
use ledgerline_lambda::{
    http,
    queries::{self, Query, VisibleTo, page, row},
};
use north_depot::{
    stock_item::StockItem,
    views::stock_owners::{BY_CREATED_BY, Row, TABLE},
};

/// The refusal for a missing row.
const UNKNOWN: Refusal = Refusal::not_found("unknown-stock-item", "there is no such stock item");

/// Returns the routes. Every signed-in caller sees every row. If a row belongs to one caller, say
/// so with `VisibleTo::Owner`, and list the caller's own rows with `queries::KeyRange::from_caller`.
#[must_use]
pub fn routes() -> Vec<Query> {
    vec![
        row::<StockItem, Row, Row>(
            "GET /stock-owners/{id}",
            TABLE,
            UNKNOWN,
            VisibleTo::All,
            |row| row,
        ),
        page::<Row, Row>(
            "GET /stock-owners",
            "stockOwners",
            TABLE,
            BY_CREATED_BY,
            by_created_by,
            |row| row,
        )
        .required_parameter::<String>("createdBy"),
    ]
}

/// Returns the range of rows with the parameter's value.
fn by_created_by(request: &http::HttpRequest) -> Result<queries::KeyRange, http::Problem> {
    let value = request.query("createdBy")?.filter(|value| !value.is_empty());
    value
        .map(queries::KeyRange::new)
        .ok_or_else(|| http::Problem::field("createdBy", "give a value: ?createdBy=…"))
}
