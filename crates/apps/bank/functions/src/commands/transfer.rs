//! The route of transfers.

use bank::transfer::{CATEGORY, Command, State, Transfer};
use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::{Routed, stream},
    fields::{Id, Text},
    http::{HttpRequest, Problem},
};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fields::{Amount, Currency};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    #[serde(default)]
    transfer_id: Option<Id>,
    from_account_id: Id,
    to_account_id: Id,
    amount: Amount,
    currency: Currency,
    #[serde(default)]
    reference: Option<Text<140>>,
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<Transfer>, Problem> {
    match request.route() {
        "POST /transfers" => {
            let Request { transfer_id, from_account_id, to_account_id, amount, currency, reference } =
                request.json()?;
            let id = transfer_id.map_or_else(Uuid::now_v7, |Id(id)| id);
            Ok(Routed {
                stream: stream(CATEGORY, &id.to_string())?,
                command: Command::Request {
                    from_account_id: from_account_id.0.to_string(),
                    to_account_id: to_account_id.0.to_string(),
                    amount: amount.0,
                    currency: currency.0,
                    reference: reference.map(|reference| reference.0),
                },
                location: Some(format!("/transfers/{id}")),
                if_match_required: false,
                body: requested,
            })
        }
        _ => Err(Problem::no_route()),
    }
}

fn requested(stream: &StreamId, state: &State, version: u64) -> Value {
    json!({ "transferId": stream.id(), "status": state.status, "version": version })
}
