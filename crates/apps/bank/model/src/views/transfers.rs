//! The phase of every transfer: one row each, written from the state in an event.

use ledgerline::{StateTable, StateView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::transfer::{Order, State, Transfer};

/// One transfer.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The key of the row.
    pub transfer_id: String,
    /// The subject on whose behalf the money moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The phase of the transfer.
    pub status: Status,
    /// The account that is debited.
    pub from_account_id: String,
    /// The account that is credited.
    pub to_account_id: String,
    /// The amount in minor units.
    pub amount: i64,
    /// The currency, as an ISO 4217 code.
    pub currency: String,
    /// The payer's note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The code of the last refusal; `not-accepted` if the receiver's account refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The account that an operator chose for the money of a stuck transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_to_account_id: Option<String>,
    /// The version that the row shows.
    pub version: u64,
}

/// The phase of a transfer, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TransferStatus")]
pub enum Status {
    /// The debit of the first account is due.
    Requested,
    /// The first account refused.
    Refused,
    /// The credit of the second account is due.
    Debited,
    /// The second account was credited.
    Completed,
    /// The second account refused, and the refund is due.
    Returning,
    /// The first account was refunded.
    Refunded,
    /// The first account refused the refund.
    Stuck,
    /// The credit of the account that an operator chose is due.
    Settling,
    /// The account that an operator chose was credited.
    Settled,
}

impl Status {
    /// Returns the phase of the transfer, if it was requested.
    #[must_use]
    pub fn from_state(state: &State) -> Option<Self> {
        match state {
            State::Unrequested => None,
            State::Requested(_) => Some(Self::Requested),
            State::Refused(_) => Some(Self::Refused),
            State::Debited(_) => Some(Self::Debited),
            State::Completed(_) => Some(Self::Completed),
            State::Returning(_) => Some(Self::Returning),
            State::Refunded(_) => Some(Self::Refunded),
            State::Stuck(_) => Some(Self::Stuck),
            State::Settling(_) => Some(Self::Settling),
            State::Settled(_) => Some(Self::Settled),
        }
    }
}

/// The table that holds the rows.
pub const TABLE: StateTable =
    StateTable { variable: "TRANSFERS_TABLE", key: "transferId", indexes: &[] };

/// The view.
pub const VIEW: StateView<Transfer, Row> = StateView { table: TABLE, row };

/// The row that shows this state.
#[must_use]
pub fn row(transfer_id: &str, version: u64, state: State) -> Option<Row> {
    let status = Status::from_state(&state)?;
    let Order {
        from_account_id,
        to_account_id,
        amount,
        currency,
        reference,
        requested_by,
        reason,
        settlement,
    } = state.order()?.clone();
    // Only the owner of the receiving account may read why it refused. This holds for the account
    // that the payer named and for one that an operator chose. The log has that reason.
    let is_anothers =
        matches!(status, Status::Returning | Status::Refunded) || settlement.is_some();
    let reason = reason.map(|reason| if is_anothers { "not-accepted".to_owned() } else { reason });
    Some(Row {
        transfer_id: transfer_id.to_owned(),
        requested_by,
        status,
        from_account_id,
        to_account_id,
        amount,
        currency,
        reference,
        reason,
        settled_to_account_id: settlement
            .filter(|_| matches!(status, Status::Settling | Status::Settled))
            .map(|settlement| settlement.to_account_id),
        version,
    })
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/transfers.json"));
    }
}
