//! The routes of accounts.

use bank::{
    account::{Account, Command, State},
    values::{ListedCurrency, Owner},
};
use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, action, create, republish_state, update};
use serde::Deserialize;
use serde_json::{Value, json};

/// The body that opens an account. Without an id, the account gets a new one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
        create("POST /accounts", open, opened),
        update("POST /accounts/{id}/credits", Command::Credit, changed),
        update("POST /accounts/{id}/debits", Command::Debit, changed),
        action("POST /accounts/{id}/close", || Command::Close, changed),
        republish_state("POST /accounts/{id}/replays", changed),
    ]
}

fn opened(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "accountId": stream.id(), "version": version })
}

fn changed(_: &StreamId, state: &State, version: u64) -> Value {
    json!({ "version": version, "totalBalance": state.total_balance() })
}
