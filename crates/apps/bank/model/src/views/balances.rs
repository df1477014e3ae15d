//! The balance of every account: one row each, written from the state in an event.

use jiff::civil::Date;
use ledgerline::{Index, Projection, StateTable, StateView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::account::{Account, Opened, State};

/// One account.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The key of the row.
    pub account_id: String,
    /// The partition key of the index: the subject of the caller who opened the account. An account
    /// that belongs to no caller is in no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    /// The sort key of the index: see [`listing`].
    #[serde(default)]
    pub listing: String,
    /// The name of the owner, as the caller wrote it when opening the account.
    pub owner: String,
    /// The currency, as an ISO 4217 code.
    pub currency: String,
    /// The balance in minor units.
    pub total_balance: i64,
    /// The first day of the calendar month (UTC) of the latest booking of money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_month: Option<Date>,
    /// The credits minus the debits of that month, in minor units.
    pub last_month_balance: i64,
    /// Whether the account is open or closed.
    pub status: Status,
    /// The version of the account that the row shows.
    pub version: u64,
}

/// Whether an account accepts bookings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AccountStatus")]
pub enum Status {
    /// The account accepts bookings.
    Open,
    /// The account accepts no bookings.
    Closed,
}

/// The table that holds the rows.
pub const TABLE: StateTable =
    StateTable { variable: "BALANCES_TABLE", key: "accountId", indexes: &[OF_OPENER] };

/// The accounts of the caller who opened them, in the order of the owners' names. The index holds
/// keys alone. Every booking changes a row, and none changes its place in a list, so a booking does
/// not write the index.
pub const OF_OPENER: Index = Index {
    name: "ofOpener",
    partition: "openedBy",
    sort: "listing",
    projection: Projection::KeysOnly,
};

/// The view.
pub const VIEW: StateView<Account, Row> = StateView { table: TABLE, row };

/// The sort key of an account in its opener's list: the owner's name and the account's id. A unit
/// separator ends the name, because no owner's name contains one. So only accounts of "Ada", and
/// none of "Ada Lovelace", have a sort key that begins with `listing("Ada", "")`.
#[must_use]
pub fn listing(owner: &str, account_id: &str) -> String {
    format!("{owner}\u{1f}{account_id}")
}

/// The row that shows this state of the account.
#[must_use]
pub fn row(account_id: &str, version: u64, state: State) -> Option<Row> {
    let (status, account) = match state {
        State::Unopened => return None,
        State::Open(account) => (Status::Open, account),
        State::Closed(account) => (Status::Closed, account),
    };
    let Opened { owner, currency, opened_by, total_balance, last_month, last_month_balance } =
        account;
    Some(Row {
        account_id: account_id.to_owned(),
        opened_by,
        listing: listing(&owner, account_id),
        owner,
        currency,
        total_balance,
        last_month,
        last_month_balance,
        status,
        version,
    })
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    /// DynamoDB writes an index of keys alone only if one of the keys changes. So a booking costs one
    /// write unit, not two. Source: DynamoDB developer guide, "Global secondary indexes", on write
    /// capacity.
    #[test]
    fn a_booking_changes_no_key_of_the_index() {
        let opened = Opened { opened_by: Some("ada".into()), ..Opened::default() };
        let booked = Opened { total_balance: 5, ..opened.clone() };
        let states = [State::Open(opened), State::Open(booked.clone()), State::Closed(booked)];
        let keys = states.map(|state| {
            let row = row("a", 1, state).unwrap();
            (row.account_id, row.opened_by, row.listing)
        });
        assert!(keys.iter().all(|other| *other == keys[0] && other.1.is_some()), "{keys:?}");
        assert_eq!(OF_OPENER.projection, Projection::KeysOnly);
    }

    #[test]
    fn accounts_are_listed_by_owner_and_not_by_the_prefix_of_a_name() {
        assert!(listing("Ada", "1").starts_with(&listing("Ada", "")));
        assert!(!listing("Ada Lovelace", "1").starts_with(&listing("Ada", "")));
    }

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/balances.json"));
    }
}
