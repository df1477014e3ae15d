//! The queries about todos: a todo is visible to the caller who created it.

use ledgerline::values;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{KeyRange, Query, VisibleTo, page, row, state},
};
use schemars::JsonSchema;
use serde::Serialize;
use todo::{
    todo::{Status, Todo, UNKNOWN},
    views::todos::{self, BY_CREATOR, Row, TABLE, listing},
};

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let yours = VisibleTo::Owner(|row: &Row| row.created_by.as_deref());
    vec![
        row::<Todo, _, _>("GET /todo/{id}", TABLE, UNKNOWN, yours, todo),
        state::<Todo, _, _>("GET /todo/{id}/state", todos::row, UNKNOWN, yours, todo),
        page("GET /todo", "todos", TABLE, BY_CREATOR, own_todos, todo)
            .parameter::<Status>("status"),
    ]
}

/// Selects the caller's todos, or those of one status among them.
fn own_todos(request: &HttpRequest) -> Result<KeyRange, Problem> {
    let status = request.query("status")?.map(values::try_new::<Status>).transpose();
    let status = status.map_err(|invalid| Problem::field("status", invalid.to_string()))?;
    Ok(KeyRange {
        starts_with: status.map(|status| listing(status, "")),
        ..KeyRange::from_caller(request)?
    })
}

/// A todo.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Todo")]
struct ShownTodo {
    id: String,
    title: String,
    message: String,
    status: Status,
    version: u64,
}

/// Returns the fields of a todo for clients, without the keys of its list.
fn todo(row: Row) -> ShownTodo {
    let Row { id, created_by: _, listing: _, title, message, status, version } = row;
    ShownTodo { id, title, message, status, version }
}
