//! The bank, which is the same for all libraries: an account that is opened and credited. Each
//! library also stores the metadata of a command (actor, cause, source) in the place that it has
//! for metadata.

use std::{collections::HashMap, fmt};

use jiff::{civil::Date, tz::TimeZone};
use ledgerline::{Aggregate, Context, Meta, Refusal};
use serde::{Deserialize, Serialize};

ledgerline::events! {
    /// The events of an account.
    pub enum Event {
        /// The account was opened.
        AccountOpened: 1 { owner: String, currency: String, opened_by: Option<String>, booked_on: Date },
        /// An amount of minor units was credited. The event has the new balance.
        AccountCredited: 1 { amount: i64, balance: i64, booked_on: Date, reference: Option<String> },
    }
}

/// The state of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, schemars::JsonSchema, Serialize, Deserialize)]
pub struct State {
    /// The owner; `None` before the account is opened.
    pub owner: Option<String>,
    /// The currency, as an ISO 4217 code.
    pub currency: Option<String>,
    /// The balance, in minor units.
    pub balance: i64,
}

/// A command to an account.
#[derive(Debug, Clone, Copy)]
pub enum Command {
    /// Open it.
    Open,
    /// Put in an amount of minor units.
    Credit(i64),
}

ledgerline::refusals! {
    /// No such account.
    UNKNOWN = not_found("unknown-account", "there is no such account");
    /// The id is taken.
    EXISTS = already_exists("account-exists", "an account with this id exists already");
}

impl std::error::Error for Refused {}

/// A refusal as an error, for the libraries that need one.
#[derive(Debug)]
pub struct Refused(pub Refusal);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The account.
#[derive(Debug)]
pub struct Account;

impl Aggregate for Account {
    const CATEGORY: &'static str = "account";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::AccountOpened { owner, currency, opened_by: _, booked_on: _ } => {
                State { owner: Some(owner.clone()), currency: Some(currency.clone()), balance: 0 }
            }
            Event::AccountCredited { balance, amount: _, booked_on: _, reference: _ } => {
                State { balance: *balance, ..state }
            }
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let booked_on = context.at.to_zoned(TimeZone::UTC).date();
        Ok(vec![match (command, &state.owner) {
            (Command::Open, Some(_)) => return Err(EXISTS),
            (Command::Credit(_), None) => return Err(UNKNOWN),
            (Command::Open, None) => Event::AccountOpened {
                owner: "Ada Lovelace".into(),
                currency: "EUR".into(),
                opened_by: context.actor.clone(),
                booked_on,
            },
            (Command::Credit(amount), Some(_)) => Event::AccountCredited {
                amount: *amount,
                balance: state.balance + amount,
                booked_on,
                reference: Some("November's rent".into()),
            },
        }])
    }
}

/// The time and the actor of a command.
pub fn context() -> Context {
    Context { at: jiff::Timestamp::now(), actor: meta().actor }
}

/// The metadata of a command.
pub fn meta() -> Meta {
    Meta {
        actor: Some("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10".into()),
        correlation_id: Some("JKJaXmPLvHcESHA=".into()),
        causation_id: None,
        source_address: Some("192.0.2.1".into()),
        trace_id: Some("Root=1-5759e988-bd862e3fe1be46a994272793".into()),
    }
}

/// The same metadata as texts, for the libraries that store texts.
pub fn metadata() -> HashMap<String, String> {
    let meta = meta();
    let fields = [
        ("actor", meta.actor),
        ("correlationId", meta.correlation_id),
        ("sourceAddress", meta.source_address),
        ("traceId", meta.trace_id),
        ("command", Some(uuid::Uuid::now_v7().to_string())),
        ("at", Some(jiff::Timestamp::now().to_string())),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
