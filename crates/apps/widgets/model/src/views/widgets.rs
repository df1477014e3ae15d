//! The widgets: one row for each, written from the state that an event carries.

use ledgerline::{Index, Projection, StateTable, StateView};
use serde::{Deserialize, Serialize};

use crate::widget::{Created, State, Widget};

/// One widget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Key.
    pub widget_id: String,
    /// Partition key of the index: the subject of who created it. A widget that is nobody's is in no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Its name: the sort key of the index.
    pub name: String,
    /// Its description.
    pub description: String,
    /// How many there are.
    pub stock: u32,
    /// The version that the row shows.
    pub version: u64,
}

/// Where the rows are.
pub const TABLE: StateTable = StateTable { variable: "WIDGETS_TABLE", key: "widgetId" };

/// The widgets of who created them, in order of their names.
pub const BY_CREATOR: Index =
    Index { name: "byCreator", partition: "createdBy", sort: "name", projection: Projection::All };

/// The view.
pub const VIEW: StateView<Widget, Row> = StateView { table: TABLE, row };

/// The row that shows this state.
#[must_use]
pub fn row(widget_id: &str, version: u64, state: State) -> Option<Row> {
    let State::Created(Created { name, description, stock, created_by }) = state else { return None };
    Some(Row { widget_id: widget_id.to_owned(), created_by, name, description, stock, version })
}
