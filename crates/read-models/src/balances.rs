//! The balance of every account: one row each, written from the state that an event carries.

use domain::account::{State, Status};
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// One account, as `GET /accounts/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Key.
    pub account_id: String,
    /// Key of the index `byOwner`.
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

/// Name of the index by owner.
pub const BY_OWNER: &str = "byOwner";

/// The row that shows this state of the account.
#[must_use]
pub fn row(account_id: &str, version: u64, state: State) -> Row {
    let State { status, owner, currency, total_balance, last_month, last_month_balance } = state;
    Row {
        account_id: account_id.to_owned(),
        owner,
        currency,
        total_balance,
        last_month,
        last_month_balance,
        status,
        version,
    }
}
