//! The balance of every account: one row each, written from the state that an event carries.

use jiff::civil::Date;
use ledgerline::{Index, Projection, StateTable, StateView};
use serde::{Deserialize, Serialize};

use crate::account::{Account, Opened, State};

/// One account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Key.
    pub account_id: String,
    /// Partition key of the index: the subject of who opened it. An account that is nobody's is in no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<String>,
    /// Sort key of the index: see [`listing`].
    #[serde(default)]
    pub listing: String,
    /// Who owns it, as the opener wrote it.
    pub owner: String,
    /// ISO 4217 code.
    pub currency: String,
    /// Minor units.
    pub total_balance: i64,
    /// First day of the calendar month (UTC) of the latest booking of money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_month: Option<Date>,
    /// Credits minus debits booked in that month, in minor units.
    pub last_month_balance: i64,
    /// Open or closed.
    pub status: Status,
    /// The version of the account that the row shows.
    pub version: u64,
}

/// Whether an account takes bookings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// It does.
    Open,
    /// It takes nothing any more.
    Closed,
}

/// Where the rows are.
pub const TABLE: StateTable = StateTable { variable: "BALANCES_TABLE", key: "accountId" };

/// The accounts of who opened them, in order of the owner's name. Every booking changes a row, and none changes its place in a list.
pub const OF_OPENER: Index =
    Index { name: "ofOpener", partition: "openedBy", sort: "listing", projection: Projection::KeysOnly };

/// The view.
pub const VIEW: StateView<Account, Row> = StateView { table: TABLE, row };

/// How an account is sorted into its opener's list: by the owner's name. The name ends with a unit separator, which no
/// text that is let in contains, so that the accounts of "Ada" are those whose listing begins with `listing("Ada", "")`
/// and not those of "Ada Lovelace".
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
    let Opened { owner, currency, opened_by, total_balance, last_month, last_month_balance } = account;
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
