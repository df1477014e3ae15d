//! The stock owners: one row for each stockitem, written from the state that an event carries.

use ledgerline::{StateTable, StateView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stock_item::{State, StockItem};

/// The row of one stockitem.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "StockOwnersRow")]
pub struct Row {
    /// The partition key: the id of the stockitem.
    pub id: String,
    /// The state.
    #[serde(flatten)]
    pub state: State,
    /// The version that the row shows.
    pub version: u64,
}

/// The table of the rows.
pub const TABLE: StateTable =
    StateTable { variable: "STOCK_OWNERS_TABLE", key: "id", indexes: &[BY_CREATED_BY] };

/// The rows with one value of `createdBy`, in the order of their ids.
pub const BY_CREATED_BY: ledgerline::Index = ledgerline::Index {
    name: "byCreatedBy",
    partition: "createdBy",
    sort: "id",
    projection: ledgerline::Projection::All,
};

/// The view.
pub const VIEW: StateView<StockItem, Row> = StateView { table: TABLE, row };

/// Returns the row that shows this state; `None` deletes the row.
#[must_use]
pub fn row(id: &str, version: u64, state: State) -> Option<Row> {
    Some(Row { id: id.to_owned(), state, version })
}

#[cfg(test)]
mod tests {
    use ledgerline::{Aggregate, shapes::check_rows};

    use super::*;

    #[test]
    fn a_row_shows_the_state_at_its_version() {
        let row = row("1", 3, StockItem::initial()).unwrap();
        assert_eq!((row.id.as_str(), row.version, &row.state), ("1", 3, &StockItem::initial()));
        let stored = serde_json::to_value(&row).unwrap();
        assert_eq!(serde_json::from_value::<Row>(stored).unwrap(), row);
    }

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/stock_owners.json"));
    }
}
