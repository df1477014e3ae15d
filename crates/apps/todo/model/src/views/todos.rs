//! The todos: one row for each, written from the state in an event, and forgotten when the todo is
//! deleted.

use ledgerline::{Index, Projection, StateTable, StateView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::todo::{Created, State, Status, Todo};

/// One todo.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The key of the row.
    pub id: String,
    /// The partition key of the index: the subject of the caller who created the todo. A todo that
    /// belongs to no caller is in no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// The sort key of the index: see [`listing`].
    pub listing: String,
    /// The title.
    pub title: String,
    /// The message.
    pub message: String,
    /// Whether the todo is open or done.
    pub status: Status,
    /// The version that the row shows.
    pub version: u64,
}

/// The table that holds the rows.
pub const TABLE: StateTable =
    StateTable { variable: "TODOS_TABLE", key: "id", indexes: &[BY_CREATOR] };

/// The todos of the caller who created them, in the order of status and id.
pub const BY_CREATOR: Index = Index {
    name: "byCreator",
    partition: "createdBy",
    sort: "listing",
    projection: Projection::All,
};

/// The view.
pub const VIEW: StateView<Todo, Row> = StateView { table: TABLE, row };

/// The sort key of a todo in its creator's list: the status and the id. The sort keys of one status
/// begin with `listing(status, "")`.
#[must_use]
pub fn listing(status: Status, id: &str) -> String {
    let status = match status {
        Status::Open => "open",
        Status::Done => "done",
    };
    format!("{status}#{id}")
}

/// The row that shows this state; a deleted todo has none.
#[must_use]
pub fn row(id: &str, version: u64, state: State) -> Option<Row> {
    let (status, todo) = match state {
        State::Uncreated | State::Deleted(_) => return None,
        State::Open(todo) => (Status::Open, todo),
        State::Done(todo) => (Status::Done, todo),
    };
    let Created { title, message, created_by } = todo;
    Some(Row {
        id: id.to_owned(),
        created_by,
        listing: listing(status, id),
        title,
        message,
        status,
        version,
    })
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/todos.json"));
    }
}
