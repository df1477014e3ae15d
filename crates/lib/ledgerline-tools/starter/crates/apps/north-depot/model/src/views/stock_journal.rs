//! The stock journal: one row for each event of every stockitem, written from the log.

use jiff::Timestamp;
use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stock_item::StockItem;

/// The table of the rows.
pub const TABLE: LogTable =
    LogTable { variable: "STOCK_JOURNAL_TABLE", partition: "id", sort: "entry" };

/// The view.
pub const VIEW: LogView =
    LogView { table: TABLE, of: &[StockItem::CATEGORY], writes: &[Write::Insert], changes };

/// The row of one event.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "StockJournalRow")]
pub struct Row {
    /// Partition key: the id of the stockitem.
    pub id: String,
    /// Sort key: the version and the place in the commit, so that text order is the order of the
    /// log.
    pub entry: String,
    /// The type of the event.
    pub event: String,
    /// The time of the commit.
    pub at: Timestamp,
}

/// Adds a row for each event of a commit.
///
/// # Errors
/// When a row cannot be written. Decode payloads here: `decode::<StockItem>(recorded)?`.
pub fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(TABLE);
    for (index, recorded) in commit.events.iter().enumerate() {
        let row = Row {
            id: commit.stream.id().to_owned(),
            entry: commit.entry(index),
            event: recorded.event_type.clone(),
            at: commit.at,
        };
        changes.insert(commit, &row)?;
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ledgerline::{Meta, RecordedEvent, shapes::check_rows};

    use super::*;

    #[test]
    fn every_event_is_listed_in_the_order_of_the_log() {
        let event =
            |name: &str| RecordedEvent { event_type: name.into(), schema: 1, data: "{}".into() };
        let mut rows = BTreeMap::new();
        for (version, events) in
            [(1, vec![event("First")]), (2, vec![event("Second"), event("Third")])]
        {
            let commit = Commit {
                stream: StockItem::stream("1").unwrap(),
                version,
                events,
                state: None,
                command: "c".into(),
                at: Timestamp::UNIX_EPOCH,
                meta: Meta::default(),
            };
            changes(&commit).unwrap().fold(&mut rows);
        }
        let listed: Vec<_> = rows.values().map(|row| row["event"].as_str().unwrap()).collect();
        assert_eq!(listed, ["First", "Second", "Third"]);
    }

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/stock_journal.json"));
    }
}
