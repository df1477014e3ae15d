//! The routes of accounts.

use bank::{
    account::{Account, Command, State},
    values::{ListedCurrency, Owner},
};
use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, action, create, republish_state, update};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body that opens an account. Without an id, the account gets a new one.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "OpenAccount")]
struct Open {
    #[serde(default)]
    account_id: Option<Id>,
    owner: Owner,
    currency: ListedCurrency,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<Account>> {
    let open = |Open { account_id, owner, currency }| (account_id, Command::Open(owner, currency));
    vec![
        create("POST /accounts", open, opening_answer).summary("Open an account"),
        update("POST /accounts/{id}/credits", Command::Credit, change_answer)
            .summary("Credit an account"),
        update("POST /accounts/{id}/debits", Command::Debit, change_answer)
            .summary("Debit an account"),
        action("POST /accounts/{id}/close", || Command::Close, change_answer)
            .summary("Close an account"),
        republish_state("POST /accounts/{id}/republications", change_answer),
    ]
}

/// The answer to a request that opens an account.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountOpened {
    account_id: String,
    version: u64,
}

/// The answer to a change of an account.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountChanged {
    version: u64,
    /// The balance after the change, in minor units.
    total_balance: i64,
}

fn opening_answer(stream: &StreamId, _: &State, version: u64) -> AccountOpened {
    AccountOpened { account_id: stream.id().to_owned(), version }
}

fn change_answer(_: &StreamId, state: &State, version: u64) -> AccountChanged {
    AccountChanged { version, total_balance: state.total_balance() }
}
