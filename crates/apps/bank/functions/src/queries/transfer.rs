//! The query about transfers: a transfer is visible to the caller who requested it.

use bank::{
    transfer::{Transfer, UNKNOWN},
    views::transfers::{Row, TABLE},
};
use ledgerline_lambda::queries::{Query, VisibleTo, row};
use serde_json::{Value, json};

/// The routes.
#[must_use]
pub fn routes() -> Vec<Query> {
    let yours = VisibleTo::Owner(|row: &Row| row.requested_by.as_deref());
    vec![row::<Transfer, _>("GET /transfers/{id}", TABLE, UNKNOWN, yours, shown)]
}

/// Returns the fields of a transfer for clients.
fn shown(row: &Row) -> Value {
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
    let mut shown = json!({
        "transferId": transfer_id,
        "status": status,
        "fromAccountId": from_account_id,
        "toAccountId": to_account_id,
        "amount": amount,
        "currency": currency,
        "version": version,
    });
    let texts = [
        ("reference", reference),
        ("reason", reason),
        ("settledToAccountId", settled_to_account_id),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            shown[name] = json!(text);
        }
    }
    shown
}
