//! The queries about widgets: a widget is visible to the caller who created it.

use ledgerline_lambda::queries::{KeyRange, Query, VisibleTo, page, row};
use schemars::JsonSchema;
use serde::Serialize;
use widgets::{
    views::widgets::{BY_CREATOR, Row, TABLE},
    widget::{UNKNOWN, Widget},
};

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let yours = VisibleTo::Owner(|row: &Row| row.created_by.as_deref());
    vec![
        row::<Widget, _, _>("GET /widgets/{id}", TABLE, UNKNOWN, yours, widget),
        page("GET /widgets", "widgets", TABLE, BY_CREATOR, KeyRange::from_caller, widget),
    ]
}

/// A widget.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Widget")]
struct ShownWidget {
    widget_id: String,
    name: String,
    description: String,
    /// The number of pieces in stock.
    stock: u32,
    version: u64,
}

/// Returns the fields of a widget for clients.
fn widget(row: Row) -> ShownWidget {
    let Row { widget_id, created_by: _, name, description, stock, version } = row;
    ShownWidget { widget_id, name, description, stock, version }
}
