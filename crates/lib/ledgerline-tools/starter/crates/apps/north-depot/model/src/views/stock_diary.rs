//! The stock diary: the events of all stockitem streams, in the order of `$all`.

use jiff::Timestamp;
use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, OrderedView, Write};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stock_item::StockItem;

/// The table of the rows.
pub const TABLE: LogTable =
    LogTable { variable: "STOCK_DIARY_TABLE", partition: "part", sort: "entry" };

/// The view.
pub const VIEW: OrderedView<Last, ()> =
    OrderedView { table: TABLE, of: &[StockItem::CATEGORY], writes: &[Write::Put], changes };

/// The number of rows in a partition.
const PART: u64 = 100_000;

/// The state that passes from one commit to the next: the number of the last row.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Last(pub u64);

/// The row of one event.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "StockDiaryRow")]
pub struct Row {
    /// Partition key: the number in hundred thousands, so that no partition grows for ever.
    pub part: String,
    /// Sort key: the number, so that text order is the order of the rows.
    pub entry: String,
    /// The stream.
    pub stream: String,
    /// The type of the event.
    pub event: String,
    /// The time of the commit.
    pub at: Timestamp,
}

/// Adds a row for each event of a commit.
///
/// # Errors
/// When a row cannot be written. Decode payloads here: `decode::<StockItem>(recorded)?`.
pub fn changes(
    last: &mut Last,
    _: &mut (),
    commit: &Commit,
    changes: &mut Changes,
) -> Result<(), ChangesError> {
    for recorded in &commit.events {
        last.0 += 1;
        changes.put(&Row {
            part: format!("{:020}", last.0 / PART),
            entry: format!("{:020}", last.0),
            stream: commit.stream.to_string(),
            event: recorded.event_type.clone(),
            at: commit.at,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ledgerline::{Meta, RecordedEvent, shapes::check_rows};

    use super::*;

    #[test]
    fn every_event_has_the_next_number() {
        let event =
            |name: &str| RecordedEvent { event_type: name.into(), schema: 1, data: "{}".into() };
        let mut last = Last::default();
        let mut rows = BTreeMap::new();
        for (id, events) in
            [("1", vec![event("First")]), ("2", vec![event("Second"), event("Third")])]
        {
            let commit = Commit {
                stream: StockItem::stream(id).unwrap(),
                version: 1,
                events,
                state: None,
                command: "c".into(),
                at: Timestamp::UNIX_EPOCH,
                meta: Meta::default(),
            };
            let mut made = Changes::new(TABLE);
            changes(&mut last, &mut (), &commit, &mut made).unwrap();
            made.fold(&mut rows);
        }
        let listed: Vec<_> = rows.values().map(|row| row["event"].as_str().unwrap()).collect();
        assert_eq!(listed, ["First", "Second", "Third"]);
        assert_eq!(last, Last(3));
    }

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/stock_diary.json"));
    }
}
