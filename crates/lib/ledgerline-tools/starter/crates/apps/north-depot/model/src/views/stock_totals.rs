//! The stock totals: the number of events of each type for each stockitem, written from the log.

use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stock_item::StockItem;

/// The table of the rows.
pub const TABLE: LogTable =
    LogTable { variable: "STOCK_TOTALS_TABLE", partition: "id", sort: "entry" };

/// The view.
pub const VIEW: LogView =
    LogView { table: TABLE, of: &[StockItem::CATEGORY], writes: &[Write::Update], changes };

/// The row of one event type.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "StockTotalsRow")]
pub struct Row {
    /// Partition key: the id of the stockitem.
    pub id: String,
    /// Sort key: the type of the events.
    pub entry: String,
    /// The number of these events.
    pub count: i64,
}

/// Adds the events of a commit to the row of their type, without reading that row.
///
/// # Errors
/// When an event cannot be read. To sum amounts, decode payloads here:
/// `decode::<StockItem>(recorded)?`.
pub fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(TABLE);
    for recorded in &commit.events {
        changes.add(commit.stream.id(), &recorded.event_type, "count", 1);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ledgerline::{Meta, RecordedEvent, shapes::check_rows};

    use super::*;

    #[test]
    fn the_events_of_each_type_are_counted() {
        let event =
            |name: &str| RecordedEvent { event_type: name.into(), schema: 1, data: "{}".into() };
        let mut rows = BTreeMap::new();
        for (version, events) in [(1, vec![event("Sent")]), (2, vec![event("Lost"), event("Sent")])]
        {
            let commit = Commit {
                stream: StockItem::stream("1").unwrap(),
                version,
                events,
                state: None,
                command: "c".into(),
                at: jiff::Timestamp::UNIX_EPOCH,
                meta: Meta::default(),
            };
            changes(&commit).unwrap().fold(&mut rows);
        }
        let counts: Vec<_> = rows.values().map(|row| row["count"].as_i64().unwrap()).collect();
        assert_eq!(counts, [1, 2]);
    }

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/stock_totals.json"));
    }
}
