//! The routes of accounts.

use bank::account::{Account, CATEGORY, Command, State};
use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::{Routed, stream},
    fields::{Id, Text, nothing},
    http::{HttpRequest, Problem},
};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fields::{Amount, Currency};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Open {
    #[serde(default)]
    account_id: Option<Id>,
    owner: Text<200>,
    currency: Currency,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Booking {
    amount: Amount,
    #[serde(default)]
    reference: Option<Text<140>>,
}

impl Booking {
    fn parts(self) -> (i64, Option<String>) {
        (self.amount.0, self.reference.map(|reference| reference.0))
    }
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<Account>, Problem> {
    match request.route() {
        "POST /accounts" => {
            let Open { account_id, owner, currency } = request.json()?;
            let id = account_id.map_or_else(Uuid::now_v7, |Id(id)| id);
            Ok(Routed {
                stream: stream(CATEGORY, &id.to_string())?,
                command: Command::Open { owner: owner.0, currency: currency.0 },
                location: Some(format!("/accounts/{id}")),
                if_match_required: false,
                body: opened,
            })
        }
        "POST /accounts/{id}/credits" => {
            let (amount, reference) = request.json::<Booking>()?.parts();
            change(request, Command::Credit { amount, reference })
        }
        "POST /accounts/{id}/debits" => {
            let (amount, reference) = request.json::<Booking>()?.parts();
            change(request, Command::Debit { amount, reference })
        }
        "POST /accounts/{id}/close" => {
            nothing(request)?;
            change(request, Command::Close)
        }
        _ => Err(Problem::no_route()),
    }
}

fn change(request: &HttpRequest, command: Command) -> Result<Routed<Account>, Problem> {
    let id = request.path_uuid("id")?;
    Ok(Routed {
        stream: stream(CATEGORY, &id.to_string())?,
        command,
        location: None,
        if_match_required: false,
        body: changed,
    })
}

fn opened(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "accountId": stream.id(), "version": version })
}

fn changed(_: &StreamId, state: &State, version: u64) -> Value {
    json!({ "version": version, "totalBalance": state.total_balance })
}
