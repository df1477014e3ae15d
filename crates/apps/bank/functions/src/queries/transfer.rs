//! The query about transfers: a transfer is visible to the caller who requested it.

use bank::{
    transfer::{Transfer, UNKNOWN},
    views::transfers::{Row, Status, TABLE},
};
use ledgerline_lambda::queries::{Query, VisibleTo, row};
use schemars::JsonSchema;
use serde::Serialize;

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let yours = VisibleTo::Owner(|row: &Row| row.requested_by.as_deref());
    vec![row::<Transfer, _, _>("GET /transfers/{id}", TABLE, UNKNOWN, yours, transfer)]
}

/// A transfer.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Transfer")]
struct ShownTransfer {
    transfer_id: String,
    status: Status,
    from_account_id: String,
    to_account_id: String,
    /// The amount in minor units.
    amount: i64,
    /// The currency, as an ISO 4217 code.
    currency: String,
    /// The payer's note.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    /// The code of the last refusal; `not-accepted` if the receiver's account refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The account that an operator chose for the money of a stuck transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_to_account_id: Option<String>,
    version: u64,
}

/// Returns the fields of a transfer for clients.
fn transfer(row: Row) -> ShownTransfer {
    let Row {
        transfer_id,
        requested_by: _,
        status,
        from_account_id,
        to_account_id,
        amount,
        currency,
        reference,
        reason,
        settled_to_account_id,
        version,
    } = row;
    ShownTransfer {
        transfer_id,
        status,
        from_account_id,
        to_account_id,
        amount,
        currency,
        reference,
        reason,
        settled_to_account_id,
        version,
    }
}
