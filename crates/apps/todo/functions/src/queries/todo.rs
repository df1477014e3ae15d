//! The queries about todos: a todo is visible to the caller who created it.

use ledgerline::values;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{KeyRange, Query, VisibleTo, page, row},
};
use serde_json::{Value, json};
use todo::{
    todo::{Status, Todo, UNKNOWN},
    views::todos::{BY_CREATOR, Row, TABLE, listing},
};

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let yours = VisibleTo::Owner(|row: &Row| row.created_by.as_deref());
    vec![
        row::<Todo, _>("GET /todo/{id}", TABLE, UNKNOWN, yours, shown),
        page("GET /todo", "todos", (TABLE, BY_CREATOR), listed, shown).parameters(["status"]),
    ]
}

/// Selects the caller's todos, or those of one status among them.
fn listed(request: &HttpRequest) -> Result<KeyRange, Problem> {
    let status = request.query("status")?.map(values::try_new::<Status>).transpose();
    let status = status.map_err(|invalid| Problem::field("status", invalid.to_string()))?;
    Ok(KeyRange {
        starts_with: status.map(|status| listing(status, "")),
        ..KeyRange::own(request)?
    })
}

/// Returns the fields of a todo for clients, without the keys of its list.
fn shown(row: &Row) -> Value {
    let Row { id, created_by: _, listing: _, title, message, status, version } = row;
    json!({ "id": id, "title": title, "message": message, "status": status, "version": version })
}
