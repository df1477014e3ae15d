//! The widgets: one row for each, written from the state in an event.

use ledgerline::{Index, Projection, StateTable, StateView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::widget::{Created, State, Widget};

/// One widget.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The key of the row.
    pub widget_id: String,
    /// The partition key of the index: the subject of the caller who created the widget. A widget
    /// that belongs to no caller is in no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// The widget's name: the sort key of the index.
    pub name: String,
    /// The widget's description.
    pub description: String,
    /// The number of pieces in stock.
    pub stock: u32,
    /// The version that the row shows.
    pub version: u64,
}

/// The table that holds the rows.
pub const TABLE: StateTable =
    StateTable { variable: "WIDGETS_TABLE", key: "widgetId", indexes: &[BY_CREATOR] };

/// The widgets of the caller who created them, in the order of their names.
pub const BY_CREATOR: Index =
    Index { name: "byCreator", partition: "createdBy", sort: "name", projection: Projection::All };

/// The view.
pub const VIEW: StateView<Widget, Row> = StateView { table: TABLE, row };

/// The row that shows this state.
#[must_use]
pub fn row(widget_id: &str, version: u64, state: State) -> Option<Row> {
    let State::Created(Created { name, description, stock, created_by }) = state else {
        return None;
    };
    Some(Row { widget_id: widget_id.to_owned(), created_by, name, description, stock, version })
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/widgets.json"));
    }
}
