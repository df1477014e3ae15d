//! A bank account: opened for an owner in one currency, credited and debited, closed when it is empty. It belongs to
//! who opened it: nobody else's commands are taken.

use jiff::{civil::Date, tz::TimeZone};
use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `account-<account id>`, the id a lower-case UUID.
pub const CATEGORY: &str = "account";

/// The largest amount and the largest balance, in minor units: 2^53 - 1, what every JSON reader can hold exactly.
pub const MAX_MINOR_UNITS: i64 = 9_007_199_254_740_991;

// --- Events -----------------------------------------------------------------------------------------------------

/// What happened to an account. These types are the storage format: change a shape only together with an upcaster
/// in [`Account::EVENTS`], and keep them plain, so that a tightened rule never stops old events from being read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Event {
    /// The account exists from now on.
    #[serde(rename_all = "camelCase")]
    AccountOpened {
        /// Who owns it.
        owner: String,
        /// ISO 4217 code. Schema 1 had none: every account was in EUR.
        currency: String,
        /// The subject of the caller, whose account it is. Schema 2 had none: those accounts are nobody's.
        opened_by: Option<String>,
        /// The booking date, in UTC.
        booked_on: Date,
    },
    /// Money came in.
    #[serde(rename_all = "camelCase")]
    AccountCredited {
        /// Minor units, above 0.
        amount: i64,
        /// The balance after it, in minor units, so that a list of transactions can be written without a fold.
        balance: i64,
        /// The payer's note.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The booking date, in UTC.
        booked_on: Date,
    },
    /// Money went out.
    #[serde(rename_all = "camelCase")]
    AccountDebited {
        /// Minor units, above 0.
        amount: i64,
        /// The balance after it, in minor units, so that a list of transactions can be written without a fold.
        balance: i64,
        /// The payer's note.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The booking date, in UTC.
        booked_on: Date,
    },
    /// The account takes no more changes.
    #[serde(rename_all = "camelCase")]
    AccountClosed {
        /// The booking date, in UTC.
        booked_on: Date,
    },
}

/// `AccountOpened` from schema 1 to 2: before the currency was recorded, every account was in EUR.
fn opened_in_eur(mut data: Value) -> Value {
    if let Some(fields) = data.as_object_mut() {
        fields.entry("currency").or_insert(json!("EUR"));
    }
    data
}

/// `AccountOpened` from schema 2 to 3: before callers signed in, nobody could be named.
fn opened_by_nobody(mut data: Value) -> Value {
    if let Some(fields) = data.as_object_mut() {
        fields.entry("openedBy").or_insert(Value::Null);
    }
    data
}

// --- State ------------------------------------------------------------------------------------------------------

/// What the rules and both read models need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Where the account is in its life.
    pub status: Status,
    /// Who owns it; empty before it is opened.
    pub owner: String,
    /// ISO 4217 code; empty before it is opened.
    pub currency: String,
    /// The subject of who opened it, whose account it is.
    pub opened_by: Option<String>,
    /// Minor units.
    pub total_balance: i64,
    /// The first day of the calendar month (UTC) of the latest booking of money.
    pub last_month: Option<Date>,
    /// Credits minus debits booked in that month, in minor units.
    pub last_month_balance: i64,
}

/// Where an account is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Nothing happened in this stream yet.
    Unopened,
    /// Takes credits and debits.
    Open,
    /// Takes nothing any more.
    Closed,
}

/// Books an amount into the total and into its month. Saturating, because `evolve` is total: the bounds are kept by
/// `decide`, and no stored event may ever panic a reader.
fn book(state: State, amount: i64, booked_on: Date) -> State {
    let month = booked_on.first_of_month();
    let last_month_balance = match state.last_month {
        Some(last) if month < last => state.last_month_balance,
        Some(last) if month == last => state.last_month_balance.saturating_add(amount),
        Some(_) | None => amount,
    };
    State {
        total_balance: state.total_balance.saturating_add(amount),
        last_month: state.last_month.max(Some(month)),
        last_month_balance,
        ..state
    }
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// What a client can ask of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Open it.
    Open {
        /// Who owns it.
        owner: String,
        /// ISO 4217 code.
        currency: String,
    },
    /// Put money in.
    Credit {
        /// Minor units, from 1 to [`MAX_MINOR_UNITS`].
        amount: i64,
        /// The payer's note.
        reference: Option<String>,
    },
    /// Take money out.
    Debit {
        /// Minor units, from 1 to [`MAX_MINOR_UNITS`].
        amount: i64,
        /// The payer's note.
        reference: Option<String>,
    },
    /// Close it.
    Close,
    /// Take money out, for a transfer in this currency.
    Send {
        /// Minor units, from 1 to [`MAX_MINOR_UNITS`].
        amount: i64,
        /// ISO 4217 code.
        currency: String,
        /// The payer's note.
        reference: Option<String>,
    },
    /// Put money in that comes by a transfer in this currency, from whomever.
    Receive {
        /// Minor units, from 1 to [`MAX_MINOR_UNITS`].
        amount: i64,
        /// ISO 4217 code.
        currency: String,
        /// The payer's note.
        reference: Option<String>,
    },
}

/// Why the bank says no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such account.
    #[error("there is no such account")]
    Unknown,
    /// The id is taken.
    #[error("an account with this id exists already")]
    AlreadyOpened,
    /// The account belongs to somebody else.
    #[error("the account belongs to somebody else")]
    NotYours,
    /// The account is closed.
    #[error("the account is closed")]
    Closed,
    /// Nobody overdraws here.
    #[error("the balance of {balance} does not cover {amount}")]
    InsufficientFunds {
        /// What there is, in minor units.
        balance: i64,
        /// What was asked for, in minor units.
        amount: i64,
    },
    /// The balance would leave the range that every JSON reader can hold exactly.
    #[error("the balance would pass {MAX_MINOR_UNITS}")]
    BalanceLimit,
    /// Money is not exchanged here.
    #[error("the account is in {0}")]
    OtherCurrency(String),
    /// Only an empty account is closed.
    #[error("the balance is {balance}, an account is closed at 0")]
    BalanceNotZero {
        /// What there is, in minor units.
        balance: i64,
    },
}

impl Rejection for Refusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown => RejectionKind::NotFound,
            Self::AlreadyOpened => RejectionKind::AlreadyExists,
            Self::NotYours => RejectionKind::Forbidden,
            Self::Closed
            | Self::InsufficientFunds { .. }
            | Self::BalanceLimit
            | Self::OtherCurrency(_)
            | Self::BalanceNotZero { .. } => RejectionKind::Refused,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown-account",
            Self::AlreadyOpened => "account-exists",
            Self::NotYours => "not-your-account",
            Self::Closed => "account-closed",
            Self::InsufficientFunds { .. } => "insufficient-funds",
            Self::BalanceLimit => "balance-limit",
            Self::OtherCurrency(_) => "other-currency",
            Self::BalanceNotZero { .. } => "balance-not-zero",
        }
    }
}

fn open(
    state: &State,
    owner: &str,
    currency: &str,
    opened_by: Option<&str>,
    booked_on: Date,
) -> Result<Vec<Event>, Refusal> {
    match state.status {
        Status::Unopened => Ok(vec![Event::AccountOpened {
            owner: owner.into(),
            currency: currency.into(),
            opened_by: opened_by.map(Into::into),
            booked_on,
        }]),
        Status::Open | Status::Closed => Err(Refusal::AlreadyOpened),
    }
}

fn credit(
    state: &State,
    amount: i64,
    reference: Option<&str>,
    booked_on: Date,
) -> Result<Vec<Event>, Refusal> {
    must_be_open(state)?;
    if amount > MAX_MINOR_UNITS - state.total_balance {
        return Err(Refusal::BalanceLimit);
    }
    let balance = state.total_balance + amount;
    Ok(vec![Event::AccountCredited { amount, balance, reference: reference.map(Into::into), booked_on }])
}

fn debit(
    state: &State,
    amount: i64,
    reference: Option<&str>,
    booked_on: Date,
) -> Result<Vec<Event>, Refusal> {
    must_be_open(state)?;
    if amount > state.total_balance {
        return Err(Refusal::InsufficientFunds { balance: state.total_balance, amount });
    }
    let balance = state.total_balance - amount;
    Ok(vec![Event::AccountDebited { amount, balance, reference: reference.map(Into::into), booked_on }])
}

fn close(state: &State, booked_on: Date) -> Result<Vec<Event>, Refusal> {
    must_be_open(state)?;
    if state.total_balance != 0 {
        return Err(Refusal::BalanceNotZero { balance: state.total_balance });
    }
    Ok(vec![Event::AccountClosed { booked_on }])
}

fn must_be_open(state: &State) -> Result<(), Refusal> {
    match state.status {
        Status::Unopened => Err(Refusal::Unknown),
        Status::Open => Ok(()),
        Status::Closed => Err(Refusal::Closed),
    }
}

fn must_be_in(state: &State, currency: &str) -> Result<(), Refusal> {
    must_be_open(state)?;
    if state.currency == currency { Ok(()) } else { Err(Refusal::OtherCurrency(state.currency.clone())) }
}

/// Before anything else that could be said of the account: a stranger learns no more than that it is not theirs.
fn must_be_yours(state: &State, actor: Option<&str>) -> Result<(), Refusal> {
    match state.status {
        Status::Unopened => Ok(()),
        // What nobody opened is nobody's, also not that of a caller without a name.
        Status::Open | Status::Closed if actor.is_none() || state.opened_by.as_deref() != actor => {
            Err(Refusal::NotYours)
        }
        Status::Open | Status::Closed => Ok(()),
    }
}

/// The account aggregate.
#[derive(Debug)]
pub struct Account;

impl Aggregate for Account {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 2;
    const EVENTS: &'static [EventType] = &[
        EventType { name: "AccountOpened", upcasters: &[opened_in_eur, opened_by_nobody] },
        EventType::new("AccountCredited"),
        EventType::new("AccountDebited"),
        EventType::new("AccountClosed"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State {
            status: Status::Unopened,
            owner: String::new(),
            currency: String::new(),
            opened_by: None,
            total_balance: 0,
            last_month: None,
            last_month_balance: 0,
        }
    }

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::AccountOpened { owner, currency, opened_by, booked_on: _ } => State {
                status: Status::Open,
                owner: owner.clone(),
                currency: currency.clone(),
                opened_by: opened_by.clone(),
                ..state
            },
            Event::AccountCredited { amount, booked_on, balance: _, reference: _ } => {
                book(state, *amount, *booked_on)
            }
            Event::AccountDebited { amount, booked_on, balance: _, reference: _ } => {
                book(state, amount.saturating_neg(), *booked_on)
            }
            Event::AccountClosed { booked_on: _ } => State { status: Status::Closed, ..state },
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let booked_on = context.at.to_zoned(TimeZone::UTC).date();
        let actor = context.actor.as_deref();
        let if_yours = must_be_yours(state, actor);
        match command {
            Command::Open { owner, currency } => open(state, owner, currency, actor, booked_on),
            Command::Credit { amount, reference } => {
                if_yours.and_then(|()| credit(state, *amount, reference.as_deref(), booked_on))
            }
            Command::Debit { amount, reference } => {
                if_yours.and_then(|()| debit(state, *amount, reference.as_deref(), booked_on))
            }
            Command::Close => if_yours.and_then(|()| close(state, booked_on)),
            Command::Send { amount, currency, reference } => if_yours
                .and_then(|()| must_be_in(state, currency))
                .and_then(|()| debit(state, *amount, reference.as_deref(), booked_on)),
            // Whoever sends it: nobody has to ask before they are given money.
            Command::Receive { amount, currency, reference } => must_be_in(state, currency)
                .and_then(|()| credit(state, *amount, reference.as_deref(), booked_on)),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::{Timestamp, civil::date};
    use ledgerline::{RecordedEvent, decode, decode_state, encode, encode_state, fold, spec::given};
    use proptest::prelude::*;

    use super::*;

    fn on(day: &str) -> Context {
        Context { at: format!("{day}T12:00:00Z").parse::<Timestamp>().unwrap(), actor: Some("ada".into()) }
    }

    fn opened() -> Event {
        Event::AccountOpened {
            owner: "Ada".into(),
            currency: "EUR".into(),
            opened_by: Some("ada".into()),
            booked_on: date(2026, 10, 1),
        }
    }

    fn credited(amount: i64, balance: i64, booked_on: Date) -> Event {
        Event::AccountCredited { amount, balance, reference: None, booked_on }
    }

    fn debited(amount: i64, balance: i64, booked_on: Date) -> Event {
        Event::AccountDebited { amount, balance, reference: None, booked_on }
    }

    fn closed() -> Event {
        Event::AccountClosed { booked_on: date(2026, 11, 21) }
    }

    const TODAY: Date = date(2026, 11, 21);

    mod when_unopened {
        use super::*;

        #[test]
        fn it_can_be_opened() {
            given::<Account>([])
                .when(Command::Open { owner: "Ada".into(), currency: "EUR".into() }, &on("2026-10-01"))
                .then([opened()]);
        }

        #[test]
        fn every_other_command_finds_nothing() {
            for command in [
                Command::Credit { amount: 1, reference: None },
                Command::Debit { amount: 1, reference: None },
                Command::Close,
            ] {
                given::<Account>([]).when(command, &on("2026-11-21")).then_refused(&Refusal::Unknown);
            }
        }
    }

    mod when_open {
        use super::*;

        #[test]
        fn it_is_not_opened_twice() {
            given::<Account>([opened()])
                .when(Command::Open { owner: "Eve".into(), currency: "USD".into() }, &on("2026-11-21"))
                .then_refused(&Refusal::AlreadyOpened);
        }

        #[test]
        fn a_credit_raises_the_balance() {
            let state = given::<Account>([opened(), credited(5_000, 5_000, TODAY)])
                .when(Command::Credit { amount: 1, reference: Some("tip".into()) }, &on("2026-11-21"))
                .then([Event::AccountCredited {
                    amount: 1,
                    balance: 5_001,
                    reference: Some("tip".into()),
                    booked_on: TODAY,
                }]);
            assert_eq!(state.total_balance, 5_001);
        }

        #[test]
        fn a_debit_up_to_the_balance_is_booked_and_one_more_is_refused() {
            given::<Account>([opened(), credited(5_000, 5_000, TODAY)])
                .when(Command::Debit { amount: 5_000, reference: None }, &on("2026-11-21"))
                .then([debited(5_000, 0, TODAY)]);
            given::<Account>([opened(), credited(5_000, 5_000, TODAY)])
                .when(Command::Debit { amount: 5_001, reference: None }, &on("2026-11-21"))
                .then_refused(&Refusal::InsufficientFunds { balance: 5_000, amount: 5_001 });
        }

        #[test]
        fn a_credit_up_to_the_limit_is_booked_and_one_more_is_refused() {
            given::<Account>([opened(), credited(1, 1, TODAY)])
                .when(Command::Credit { amount: MAX_MINOR_UNITS - 1, reference: None }, &on("2026-11-21"))
                .then([credited(MAX_MINOR_UNITS - 1, MAX_MINOR_UNITS, TODAY)]);
            given::<Account>([opened(), credited(1, 1, TODAY)])
                .when(Command::Credit { amount: MAX_MINOR_UNITS, reference: None }, &on("2026-11-21"))
                .then_refused(&Refusal::BalanceLimit);
        }

        #[test]
        fn it_is_closed_at_zero_only() {
            given::<Account>([opened(), credited(1, 1, TODAY)])
                .when(Command::Close, &on("2026-11-21"))
                .then_refused(&Refusal::BalanceNotZero { balance: 1 });
            given::<Account>([opened(), credited(1, 1, TODAY), debited(1, 0, TODAY)])
                .when(Command::Close, &on("2026-11-21"))
                .then([closed()]);
        }
    }

    mod when_money_is_transferred {
        use super::*;

        fn send(currency: &str) -> Command {
            Command::Send { amount: 1, currency: currency.into(), reference: None }
        }

        fn receive(currency: &str) -> Command {
            Command::Receive { amount: 1, currency: currency.into(), reference: None }
        }

        #[test]
        fn it_is_sent_by_its_owner_and_received_from_everybody() {
            let eve = Context { actor: Some("eve".into()), ..on("2026-11-21") };
            let history = [opened(), credited(5, 5, TODAY)];
            given::<Account>(history.clone())
                .when(send("EUR"), &on("2026-11-21"))
                .then([debited(1, 4, TODAY)]);
            given::<Account>(history.clone()).when(send("EUR"), &eve).then_refused(&Refusal::NotYours);
            given::<Account>(history).when(receive("EUR"), &eve).then([credited(1, 6, TODAY)]);
        }

        #[test]
        fn it_is_not_exchanged_and_goes_to_no_account_that_is_not_open() {
            for command in [send("USD"), receive("USD")] {
                given::<Account>([opened(), credited(5, 5, TODAY)])
                    .when(command.clone(), &on("2026-11-21"))
                    .then_refused(&Refusal::OtherCurrency("EUR".into()));
            }
            for command in [send("EUR"), receive("EUR")] {
                given::<Account>([]).when(command.clone(), &on("2026-11-21")).then_refused(&Refusal::Unknown);
                given::<Account>([opened(), closed()])
                    .when(command, &on("2026-11-21"))
                    .then_refused(&Refusal::Closed);
            }
        }
    }

    mod when_opened_by_somebody_else {
        use super::*;

        #[test]
        fn every_change_is_refused_whatever_the_account_is_like() {
            let eve = Context { actor: Some("eve".into()), ..on("2026-11-21") };
            let nobody = Context { actor: None, ..on("2026-11-21") };
            let nobodys = Event::AccountOpened {
                owner: "Ada".into(),
                currency: "EUR".into(),
                opened_by: None,
                booked_on: TODAY,
            };
            for history in [vec![opened()], vec![opened(), closed()], vec![nobodys]] {
                for command in [
                    Command::Credit { amount: 1, reference: None },
                    Command::Debit { amount: 1, reference: None },
                    Command::Close,
                ] {
                    for stranger in [&eve, &nobody] {
                        given::<Account>(history.clone())
                            .when(command.clone(), stranger)
                            .then_refused(&Refusal::NotYours);
                    }
                }
            }
        }
    }

    mod when_closed {
        use super::*;

        #[test]
        fn every_change_is_refused() {
            for command in [
                Command::Credit { amount: 1, reference: None },
                Command::Debit { amount: 1, reference: None },
                Command::Close,
            ] {
                given::<Account>([opened(), closed()])
                    .when(command, &on("2026-11-21"))
                    .then_refused(&Refusal::Closed);
            }
        }
    }

    #[test]
    fn the_last_month_counts_only_the_month_of_the_latest_booking() {
        let history = [
            opened(),
            credited(1_000, 1_000, date(2026, 10, 31)),
            debited(300, 700, date(2026, 11, 1)),
            credited(50, 750, date(2026, 11, 30)),
            // A late booking, from an instance whose clock lags, belongs to a month that is over.
            credited(7, 757, date(2026, 10, 31)),
        ];
        let state = fold::<Account>(Account::initial(), &history);
        assert_eq!(state.total_balance, 757);
        assert_eq!(state.last_month, Some(date(2026, 11, 1)));
        assert_eq!(state.last_month_balance, -250);
    }

    #[test]
    fn the_older_shapes_of_account_opened_are_still_read() {
        let expected = Event::AccountOpened {
            owner: "Ada".into(),
            currency: "EUR".into(),
            opened_by: None,
            booked_on: date(2026, 10, 1),
        };
        for (schema, data) in [
            (1, r#"{"owner":"Ada","bookedOn":"2026-10-01"}"#),
            (2, r#"{"owner":"Ada","currency":"EUR","bookedOn":"2026-10-01"}"#),
        ] {
            let stored = RecordedEvent { event_type: "AccountOpened".into(), schema, data: data.into() };
            assert_eq!(decode::<Account>(&stored).unwrap(), expected, "schema {schema}");
        }
    }

    #[test]
    fn events_from_a_newer_program_are_refused_loudly() {
        let newer = RecordedEvent { schema: 4, ..encode::<Account>(&opened()).unwrap() };
        assert_eq!(
            decode::<Account>(&newer).unwrap_err().to_string(),
            "event AccountOpened has schema 4, this program reads 1 to 3"
        );
        let unknown = RecordedEvent { event_type: "AccountFrozen".into(), schema: 1, data: "{}".into() };
        assert!(decode::<Account>(&unknown).unwrap_err().to_string().contains("AccountFrozen"));
    }

    #[test]
    fn a_state_of_another_schema_is_ignored() {
        let mut stored = encode_state::<Account>(&Account::initial()).unwrap();
        assert_eq!(decode_state::<Account>(&stored), Some(Account::initial()));
        stored.schema += 1;
        assert_eq!(decode_state::<Account>(&stored), None);
    }

    fn any_command() -> impl Strategy<Value = Command> {
        let amount = prop_oneof![1..=1_000_i64, 1..=MAX_MINOR_UNITS, Just(MAX_MINOR_UNITS)];
        prop_oneof![
            1 => Just(Command::Open { owner: "Ada".into(), currency: "EUR".into() }),
            8 => amount.clone().prop_map(|amount| Command::Credit { amount, reference: None }),
            8 => amount.prop_map(|amount| Command::Debit { amount, reference: Some("rent".into()) }),
            1 => Just(Command::Close),
        ]
    }

    proptest! {
        /// Whatever is asked in whatever order, the balance is never negative and never past the limit, every
        /// event reads back as it was written, and folding the stored state or the stored events is the same.
        #[test]
        fn balances_never_leave_their_range(
            commands in prop::collection::vec((any_command(), 0..400_i32), 1..60),
        ) {
            let mut state = Account::initial();
            let mut log = Vec::new();
            for (command, day) in commands {
                let day = date(2026, 1, 1).checked_add(jiff::Span::new().days(day)).unwrap();
                let Ok(events) = Account::decide(&state, &command, &on(&day.to_string())) else { continue };
                for event in events {
                    state = Account::evolve(state, &event);
                    if let Event::AccountCredited { balance, .. } | Event::AccountDebited { balance, .. } = &event {
                        prop_assert_eq!(*balance, state.total_balance);
                    }
                    let stored = encode::<Account>(&event).unwrap();
                    prop_assert_eq!(&decode::<Account>(&stored).unwrap(), &event);
                    log.push(event);
                }
                prop_assert!((0..=MAX_MINOR_UNITS).contains(&state.total_balance));
                prop_assert_eq!(decode_state::<Account>(&encode_state::<Account>(&state).unwrap()), Some(state.clone()));
            }
            prop_assert_eq!(fold::<Account>(Account::initial(), &log), state);
        }
    }
}
