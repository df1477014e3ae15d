//! The transactions of every account: one row for each credit and debit, written from the log.

use jiff::{Timestamp, civil::Date};
use ledgerline::{
    Aggregate, Changes, ChangesError, Commit, DecodeError, LogTable, LogView, Write, decode,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::account::{Account, Event};

/// The table that holds the rows.
pub const TABLE: LogTable =
    LogTable { variable: "TRANSACTIONS_TABLE", partition: "accountId", sort: "entry" };

/// The view.
pub const VIEW: LogView =
    LogView { table: TABLE, of: &[Account::CATEGORY], writes: &[Write::Insert], changes };

/// The indexes of the table in PostgreSQL.
pub const SQL: &str = include_str!("transactions.sql");

/// One credit or debit.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Partition key.
    pub account_id: String,
    /// Sort key: the version and the place in the commit, so that the text order is the order of
    /// the log.
    pub entry: String,
    /// The version of the account after the commit.
    pub version: u64,
    /// Whether the entry is a credit or a debit.
    pub kind: Kind,
    /// The amount in minor units.
    pub amount: i64,
    /// The balance after the entry, in minor units.
    pub balance: i64,
    /// The payer's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The booking date, in UTC.
    pub booked_on: Date,
    /// The time of the commit.
    pub at: Timestamp,
}

/// The kind of an entry: a credit or a debit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BookingKind")]
pub enum Kind {
    /// Money was credited.
    Credit,
    /// Money was debited.
    Debit,
}

/// Returns the changes of a commit: it inserts its rows.
///
/// # Errors
/// When an event of the commit cannot be read.
pub fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(TABLE);
    for row in rows(commit)? {
        changes.insert(commit, &row)?;
    }
    Ok(changes)
}

/// Returns the rows that a commit adds.
///
/// # Errors
/// When an event of the commit cannot be read.
pub fn rows(commit: &Commit) -> Result<Vec<Row>, DecodeError> {
    let mut rows = Vec::new();
    for (index, recorded) in commit.events.iter().enumerate() {
        let (kind, amount, balance, reference, booked_on) = match decode::<Account>(recorded)? {
            Event::AccountCredited { amount, balance, reference, booked_on } => {
                (Kind::Credit, amount, balance, reference, booked_on)
            }
            Event::AccountDebited { amount, balance, reference, booked_on } => {
                (Kind::Debit, amount, balance, reference, booked_on)
            }
            Event::AccountOpened { .. } | Event::AccountClosed { .. } => continue,
        };
        rows.push(Row {
            account_id: commit.stream.id().to_owned(),
            entry: commit.entry(index),
            version: commit.version,
            kind,
            amount,
            balance,
            reference,
            booked_on,
            at: commit.at,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/transactions.json"));
    }
}
