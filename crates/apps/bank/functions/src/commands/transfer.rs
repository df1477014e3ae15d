//! The routes of transfers.

use bank::{
    transfer::{Command, State, Transfer},
    values::{Amount, Currency, Reason, Reference},
    views::transfers::Status,
};
use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, create, update};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body that requests a transfer. Without an id, the transfer gets a new one.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "RequestTransfer")]
struct Request {
    #[serde(default)]
    transfer_id: Option<Id>,
    from_account_id: Id,
    to_account_id: Id,
    amount: Amount,
    currency: Currency,
    #[serde(default)]
    reference: Option<Reference>,
}

impl Request {
    fn command(self) -> (Option<Id>, Command) {
        let Self {
            transfer_id,
            from_account_id: from,
            to_account_id: to,
            amount,
            currency,
            reference,
        } = self;
        (transfer_id, Command::Request { from, to, amount, currency, reference })
    }
}

/// The body that settles a stuck transfer.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "SettleTransfer")]
struct Settlement {
    to_account_id: Id,
    reason: Reason,
}

impl Settlement {
    fn command(self) -> Command {
        Command::Settle { to: self.to_account_id, reason: self.reason }
    }
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<Transfer>> {
    vec![
        create("POST /transfers", Request::command, answer).summary("Request a transfer"),
        update("POST /transfers/{id}/settlements", Settlement::command, answer)
            .summary("Settle a stuck transfer")
            .restrict_to_operators(),
    ]
}

/// The answer to a command of a transfer.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct TransferChanged {
    transfer_id: String,
    status: Option<Status>,
    version: u64,
}

fn answer(stream: &StreamId, state: &State, version: u64) -> TransferChanged {
    TransferChanged {
        transfer_id: stream.id().to_owned(),
        status: Status::from_state(state),
        version,
    }
}
