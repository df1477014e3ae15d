//! The routes of transfers.

use bank::{
    transfer::{Command, State, Transfer},
    values::{Amount, Currency, Reason, Reference},
    views::transfers::Status,
};
use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, create, update};
use serde::Deserialize;
use serde_json::{Value, json};

/// The body that requests a transfer. Without an id, the transfer gets a new one.
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
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
        create("POST /transfers", Request::command, shown),
        update("POST /transfers/{id}/settlements", Settlement::command, shown).operators_only(),
    ]
}

fn shown(stream: &StreamId, state: &State, version: u64) -> Value {
    json!({ "transferId": stream.id(), "status": Status::of(state), "version": version })
}
