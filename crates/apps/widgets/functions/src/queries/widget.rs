//! The queries about widgets: a widget is visible to the caller who created it.

use ledgerline_lambda::queries::{KeyRange, Query, VisibleTo, page, row};
use serde_json::{Value, json};
use widgets::{
    views::widgets::{BY_CREATOR, Row, TABLE},
    widget::{UNKNOWN, Widget},
};

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let yours = VisibleTo::Owner(|row: &Row| row.created_by.as_deref());
    vec![
        row::<Widget, _>("GET /widgets/{id}", TABLE, UNKNOWN, yours, shown),
        page("GET /widgets", "widgets", (TABLE, BY_CREATOR), KeyRange::own, shown),
    ]
}

/// Returns the fields of a widget for clients.
fn shown(row: &Row) -> Value {
    let Row { widget_id, created_by: _, name, description, stock, version } = row;
    json!({
        "widgetId": widget_id,
        "name": name,
        "description": description,
        "stock": stock,
        "version": version,
    })
}
