//! A bank account: opened for an owner in one currency, credited and debited, and closed when it is
//! empty. It belongs to the caller who opened it, and accepts no commands of others. Only transfers
//! of other callers may credit it.

use jiff::{ToSpan, civil::Date, tz::TimeZone};
use ledgerline::{Aggregate, Context, Refusal, with_field};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::values::{Amount, Currency, ListedCurrency, MAX_MINOR_UNITS, Owner, Reference};

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The events of an account. Amounts and balances are in minor units, booking dates in UTC.
    pub enum Event {
        /// The account was opened. Schema 1 has no currency, because every account was in EUR. It is
        /// an example of upcasting.
        AccountOpened: 2 [in_eur] { owner: String, currency: String, opened_by: Option<String>, booked_on: Date },
        // A log projector gets events and no state, so the balance is in the events. The state does
        // not use it.
        /// Money was credited. The event carries the balance after the credit, so that a list of
        /// transactions needs no fold.
        AccountCredited: 1 {
            amount: i64, balance: i64, booked_on: Date,
            #[serde(default, skip_serializing_if = "Option::is_none")] reference: Option<String>,
        },
        /// Money was debited.
        AccountDebited: 1 {
            amount: i64, balance: i64, booked_on: Date,
            #[serde(default, skip_serializing_if = "Option::is_none")] reference: Option<String>,
        },
        /// The account was closed, and accepts no more changes.
        AccountClosed: 1 { booked_on: Date },
    }
}

fn in_eur(data: Value) -> Value {
    with_field(data, "currency", "EUR")
}

// --- State ---------------------------------------------------------------------------------------

/// The state of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// The stream has no commits.
    #[default]
    Unopened,
    /// The account accepts credits and debits.
    Open(Opened),
    /// The account accepts no more changes.
    Closed(Opened),
}

/// The data of an opened account that the rules and the views need.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Opened {
    /// The name of the owner, as the caller wrote it when opening the account.
    pub owner: String,
    /// The currency, as an ISO 4217 code.
    pub currency: String,
    /// The subject of the caller who opened the account, to whom it belongs; `None` if it belongs
    /// to no caller.
    pub opened_by: Option<String>,
    /// The balance in minor units.
    pub total_balance: i64,
    /// The first day of the calendar month (UTC) of the latest booking of money.
    pub last_month: Option<Date>,
    /// The credits minus the debits of that month, in minor units.
    pub last_month_balance: i64,
}

impl Opened {
    /// Books an amount into the total and into its month. The sums saturate, because no stored
    /// event may make `evolve` panic; `decide` enforces the bounds.
    ///
    /// A booking of the month before the last one is late, by a clock that lags, and belongs to a
    /// past month. An even earlier booking shows that a clock was wrong, so its month becomes the
    /// last one. Otherwise a single booking in the year 2099 would hold the month until then.
    fn booked(self, amount: i64, on: Date) -> Self {
        let month = on.first_of_month();
        let total_balance = self.total_balance.saturating_add(amount);
        let (last_month, last_month_balance) = match self.last_month {
            Some(last) if month == last => (last, self.last_month_balance.saturating_add(amount)),
            Some(last) if month == last.saturating_sub(1.month()) => {
                (last, self.last_month_balance)
            }
            Some(_) | None => (month, amount),
        };
        Self { total_balance, last_month: Some(last_month), last_month_balance, ..self }
    }
}

impl State {
    /// Returns the account's data, unless it was never opened.
    #[must_use]
    pub fn opened(&self) -> Option<&Opened> {
        match self {
            Self::Unopened => None,
            Self::Open(account) | Self::Closed(account) => Some(account),
        }
    }

    /// Returns the balance in minor units; 0 if the account was never opened.
    #[must_use]
    pub fn total_balance(&self) -> i64 {
        self.opened().map_or(0, |account| account.total_balance)
    }
}

// --- Decisions -----------------------------------------------------------------------------------

/// A command to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Open it for this owner, in this currency.
    Open(Owner, ListedCurrency),
    /// Put money in.
    Credit(Booking),
    /// Take money out.
    Debit(Booking),
    /// Close it.
    Close,
    /// Take money out, for a transfer in this currency.
    Send(Booking, Currency),
    /// Put money in from a transfer of any sender in this currency.
    Receive(Booking, Currency),
}

/// The money of a credit or a debit.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Booking {
    /// The amount in the account's currency.
    pub amount: Amount,
    /// The payer's note.
    #[serde(default)]
    pub reference: Option<Reference>,
}

ledgerline::refusals! {
    /// The account does not exist.
    UNKNOWN = not_found("unknown-account", "there is no such account");
    /// The id is taken.
    EXISTS = already_exists("account-exists", "an account with this id exists already");
    /// The account belongs to another caller.
    NOT_YOURS = forbidden("not-your-account", "the account belongs to somebody else");
    /// The account is closed.
    CLOSED = refused("account-closed", "the account is closed");
    /// The amount exceeds the balance.
    INSUFFICIENT_FUNDS = refused("insufficient-funds", "the balance does not cover the amount");
    /// The balance would leave the range that every JSON reader can hold exactly.
    BALANCE_LIMIT = refused("balance-limit", "the balance would pass 9007199254740991");
    /// The command is in another currency, and money is not exchanged.
    OTHER_CURRENCY = refused("other-currency", "the account is in another currency");
    /// Only an empty account can be closed.
    BALANCE_NOT_ZERO = refused("balance-not-zero", "the balance must be 0 to close the account");
}

/// Returns the account's data, if it accepts bookings.
fn open(state: &State) -> Result<&Opened, Refusal> {
    match state {
        State::Unopened => Err(UNKNOWN),
        State::Open(account) => Ok(account),
        State::Closed(_) => Err(CLOSED),
    }
}

/// Returns the account's data, if it accepts bookings of this caller. Another caller learns only
/// that the account is not theirs. The owner is in the event, because a rule rests only on folded
/// data, and not in the commit's `meta`.
fn yours<'a>(state: &'a State, context: &Context) -> Result<&'a Opened, Refusal> {
    let yours = |account: &Opened| context.is_owner(account.opened_by.as_deref());
    if state.opened().is_some_and(|account| !yours(account)) { Err(NOT_YOURS) } else { open(state) }
}

fn in_currency<'a>(account: &'a Opened, currency: &Currency) -> Result<&'a Opened, Refusal> {
    if account.currency == *currency.get() {
        return Ok(account);
    }
    Err(OTHER_CURRENCY.with_detail(format_args!("the account is in {}", account.currency)))
}

fn credit(account: &Opened, booking: &Booking, booked_on: Date) -> Result<Event, Refusal> {
    let amount = *booking.amount.get();
    let reference = booking.reference.as_ref().map(ToString::to_string);
    if amount > MAX_MINOR_UNITS - account.total_balance {
        return Err(BALANCE_LIMIT);
    }
    Ok(Event::AccountCredited {
        amount,
        balance: account.total_balance + amount,
        reference,
        booked_on,
    })
}

fn debit(account: &Opened, booking: &Booking, booked_on: Date) -> Result<Event, Refusal> {
    let amount = *booking.amount.get();
    let reference = booking.reference.as_ref().map(ToString::to_string);
    let balance = account.total_balance;
    if amount > balance {
        return Err(INSUFFICIENT_FUNDS
            .with_detail(format_args!("the balance of {balance} does not cover {amount}")));
    }
    Ok(Event::AccountDebited { amount, balance: balance - amount, reference, booked_on })
}

/// The account aggregate. The id of an account is a UUID.
#[derive(Debug)]
pub struct Account;

impl Aggregate for Account {
    const CATEGORY: &'static str = "account";
    const STATE_SCHEMA: u32 = 2;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn upcast_state(schema: u32, data: Value) -> Option<Value> {
        (schema == 1).then(|| in_eur(data))
    }

    fn evolve(state: State, event: &Event) -> State {
        match (state, event) {
            (_, Event::AccountOpened { owner, currency, opened_by, .. }) => State::Open(Opened {
                owner: owner.clone(),
                currency: currency.clone(),
                opened_by: opened_by.clone(),
                ..Opened::default()
            }),
            (State::Open(account), Event::AccountCredited { amount, booked_on, .. }) => {
                State::Open(account.booked(*amount, *booked_on))
            }
            (State::Open(account), Event::AccountDebited { amount, booked_on, .. }) => {
                State::Open(account.booked(amount.saturating_neg(), *booked_on))
            }
            (State::Open(account), Event::AccountClosed { .. }) => State::Closed(account),
            // No decision leads here, but `evolve` has to handle every event in every state.
            (
                state,
                Event::AccountCredited { .. }
                | Event::AccountDebited { .. }
                | Event::AccountClosed { .. },
            ) => state,
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let on = context.at.to_zoned(TimeZone::UTC).date();
        let event = match command {
            Command::Open(..) if *state != State::Unopened => Err(EXISTS),
            Command::Open(owner, currency) => Ok(Event::AccountOpened {
                owner: owner.to_string(),
                currency: currency.to_string(),
                opened_by: context.actor.clone(),
                booked_on: on,
            }),
            Command::Credit(booking) => credit(yours(state, context)?, booking, on),
            Command::Debit(booking) => debit(yours(state, context)?, booking, on),
            Command::Send(booking, currency) => {
                debit(in_currency(yours(state, context)?, currency)?, booking, on)
            }
            // Any caller may send money to the account, so the owner does not matter.
            Command::Receive(booking, currency) => {
                credit(in_currency(open(state)?, currency)?, booking, on)
            }
            Command::Close => match yours(state, context)?.total_balance {
                0 => Ok(Event::AccountClosed { booked_on: on }),
                balance => Err(BALANCE_NOT_ZERO.with_detail(format_args!(
                    "the balance is {balance} and must be 0 to close the account"
                ))),
            },
        };
        event.map(|event| vec![event])
    }
}

#[cfg(test)]
mod tests {
    use jiff::{Timestamp, civil::date};
    use ledgerline::{
        RecordedEvent, decode, fold,
        spec::{decide_twice, given, live, valid},
    };
    use proptest::prelude::*;

    use super::*;

    fn on(day: &str) -> Context {
        Context {
            at: format!("{day}T12:00:00Z").parse::<Timestamp>().unwrap(),
            actor: Some("ada".into()),
        }
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

    fn open_for(owner: &str, currency: &str) -> Command {
        Command::Open(valid(owner), valid(currency))
    }

    fn booking(amount: i64) -> Booking {
        Booking { amount: valid(amount), reference: None }
    }

    mod when_unopened {
        use super::*;

        #[test]
        fn it_can_be_opened() {
            given::<Account>([]).when(open_for("Ada", "EUR"), &on("2026-10-01")).then([opened()]);
        }

        #[test]
        fn every_other_command_finds_nothing() {
            for command in [Command::Credit(booking(1)), Command::Debit(booking(1)), Command::Close]
            {
                given::<Account>([]).when(command, &on("2026-11-21")).then_refused(&UNKNOWN);
            }
        }
    }

    mod when_open {
        use super::*;

        #[test]
        fn it_is_not_opened_twice() {
            given::<Account>([opened()])
                .when(open_for("Eve", "USD"), &on("2026-11-21"))
                .then_refused(&EXISTS);
        }

        #[test]
        fn a_credit_raises_the_balance() {
            let state = given::<Account>([opened(), credited(5_000, 5_000, TODAY)])
                .when(
                    Command::Credit(Booking { reference: Some(valid("tip")), ..booking(1) }),
                    &on("2026-11-21"),
                )
                .then([Event::AccountCredited {
                    amount: 1,
                    balance: 5_001,
                    reference: Some("tip".into()),
                    booked_on: TODAY,
                }]);
            assert_eq!(state.total_balance(), 5_001);
        }

        #[test]
        fn a_debit_up_to_the_balance_is_booked_and_one_more_is_refused() {
            given::<Account>([opened(), credited(5_000, 5_000, TODAY)])
                .when(Command::Debit(booking(5_000)), &on("2026-11-21"))
                .then([debited(5_000, 0, TODAY)]);
            given::<Account>([opened(), credited(5_000, 5_000, TODAY)])
                .when(Command::Debit(booking(5_001)), &on("2026-11-21"))
                .then_refused(
                    &INSUFFICIENT_FUNDS.with_detail("the balance of 5000 does not cover 5001"),
                );
        }

        #[test]
        fn a_credit_up_to_the_limit_is_booked_and_one_more_is_refused() {
            given::<Account>([opened(), credited(1, 1, TODAY)])
                .when(Command::Credit(booking(MAX_MINOR_UNITS - 1)), &on("2026-11-21"))
                .then([credited(MAX_MINOR_UNITS - 1, MAX_MINOR_UNITS, TODAY)]);
            given::<Account>([opened(), credited(1, 1, TODAY)])
                .when(Command::Credit(booking(MAX_MINOR_UNITS)), &on("2026-11-21"))
                .then_refused(&BALANCE_LIMIT);
        }

        #[test]
        fn it_is_closed_at_zero_only() {
            given::<Account>([opened(), credited(1, 1, TODAY)])
                .when(Command::Close, &on("2026-11-21"))
                .then_refused(
                    &BALANCE_NOT_ZERO
                        .with_detail("the balance is 1 and must be 0 to close the account"),
                );
            given::<Account>([opened(), credited(1, 1, TODAY), debited(1, 0, TODAY)])
                .when(Command::Close, &on("2026-11-21"))
                .then([closed()]);
        }
    }

    mod when_money_is_transferred {
        use super::*;

        fn send(currency: &str) -> Command {
            Command::Send(booking(1), valid(currency))
        }

        fn receive(currency: &str) -> Command {
            Command::Receive(booking(1), valid(currency))
        }

        #[test]
        fn only_the_owner_sends_money_and_every_caller_may_send_money_to_the_account() {
            let eve = Context { actor: Some("eve".into()), ..on("2026-11-21") };
            let history = [opened(), credited(5, 5, TODAY)];
            given::<Account>(history.clone())
                .when(send("EUR"), &on("2026-11-21"))
                .then([debited(1, 4, TODAY)]);
            given::<Account>(history.clone()).when(send("EUR"), &eve).then_refused(&NOT_YOURS);
            given::<Account>(history).when(receive("EUR"), &eve).then([credited(1, 6, TODAY)]);
        }

        #[test]
        fn money_is_not_exchanged_and_reaches_open_accounts_only() {
            for command in [send("USD"), receive("USD")] {
                given::<Account>([opened(), credited(5, 5, TODAY)])
                    .when(command.clone(), &on("2026-11-21"))
                    .then_refused(&OTHER_CURRENCY.with_detail("the account is in EUR"));
            }
            for command in [send("EUR"), receive("EUR")] {
                given::<Account>([])
                    .when(command.clone(), &on("2026-11-21"))
                    .then_refused(&UNKNOWN);
                given::<Account>([opened(), closed()])
                    .when(command, &on("2026-11-21"))
                    .then_refused(&CLOSED);
            }
        }
    }

    mod when_opened_by_somebody_else {
        use super::*;

        #[test]
        fn only_the_caller_who_opened_an_account_credits_debits_or_closes_it() {
            let eve = Context { actor: Some("eve".into()), ..on("2026-11-21") };
            let nobody = Context { actor: None, ..on("2026-11-21") };
            let nobodys = Event::AccountOpened {
                owner: "Ada".into(),
                currency: "EUR".into(),
                opened_by: None,
                booked_on: TODAY,
            };
            for history in [vec![opened()], vec![opened(), closed()], vec![nobodys]] {
                for command in
                    [Command::Credit(booking(1)), Command::Debit(booking(1)), Command::Close]
                {
                    for stranger in [&eve, &nobody] {
                        given::<Account>(history.clone())
                            .when(command.clone(), stranger)
                            .then_refused(&NOT_YOURS);
                    }
                }
            }
        }
    }

    mod when_closed {
        use super::*;

        #[test]
        fn every_change_is_refused() {
            for command in [Command::Credit(booking(1)), Command::Debit(booking(1)), Command::Close]
            {
                given::<Account>([opened(), closed()])
                    .when(command, &on("2026-11-21"))
                    .then_refused(&CLOSED);
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
            // A late booking, from an instance whose clock lags, belongs to a past month.
            credited(7, 757, date(2026, 10, 31)),
        ];
        let state = fold::<Account>(Account::initial(), &history);
        let account = state.opened().unwrap();
        assert_eq!((account.total_balance, account.last_month_balance), (757, -250));
        assert_eq!(account.last_month, Some(date(2026, 11, 1)));
    }

    #[test]
    fn a_booking_by_a_clock_in_the_future_holds_the_last_month_until_the_next_booking() {
        let history = [
            opened(),
            credited(1_000, 1_000, date(2026, 11, 1)),
            credited(5, 1_005, date(2099, 6, 1)),
            credited(7, 1_012, date(2026, 11, 2)),
            credited(8, 1_020, date(2026, 11, 3)),
        ];
        let state = fold::<Account>(Account::initial(), &history);
        let account = state.opened().unwrap();
        assert_eq!((account.last_month, account.last_month_balance), (Some(date(2026, 11, 1)), 15));
    }

    #[test]
    fn an_account_of_schema_1_is_in_eur() {
        let data = r#"{"owner":"Ada","openedBy":"ada","bookedOn":"2026-10-01"}"#;
        let stored =
            RecordedEvent { event_type: "AccountOpened".into(), schema: 1, data: data.into() };
        assert_eq!(decode::<Account>(&stored).unwrap(), opened());
    }

    /// Returns any command, built from any values: `None` if one of the values is invalid, because
    /// such a command cannot be built.
    fn any_command() -> impl Strategy<Value = Option<Command>> {
        let amount = prop_oneof![
            8 => 1..=1_000_i64,
            4 => 1..=MAX_MINOR_UNITS,
            1 => Just(MAX_MINOR_UNITS),
            1 => Just(MAX_MINOR_UNITS + 1),
            4 => any::<i64>(),
        ];
        let currency = prop_oneof![4 => Just("EUR"), 1 => Just("USD"), 1 => Just("euro")];
        (amount, currency, 0..24_u8).prop_map(|(amount, currency, kind)| {
            let listed = ListedCurrency::new(currency);
            let currency = Currency::new(currency);
            let amount = Amount::new(amount);
            let booking = amount.map(|amount| Booking { amount, reference: Some(valid("rent")) });
            Some(match kind {
                0 => Command::Open(valid("Ada"), listed.ok()?),
                1 => Command::Close,
                2..=9 => Command::Credit(booking.ok()?),
                10..=17 => Command::Debit(booking.ok()?),
                18..=20 => Command::Send(booking.ok()?, currency.ok()?),
                _ => Command::Receive(booking.ok()?, currency.ok()?),
            })
        })
    }

    /// Returns the result of a repeated command without an Idempotency-Key, after the first one was
    /// executed.
    fn again(command: &Command) -> Result<&'static str, Refusal> {
        match command {
            Command::Open(..) => Err(EXISTS),
            Command::Close => Err(CLOSED),
            Command::Credit(_) | Command::Debit(_) | Command::Send(..) | Command::Receive(..) => {
                Ok(
                    "a second booking of the same amount may be meant; who repeats one sends its key again",
                )
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// For all commands in all orders, the balance is never negative and never exceeds the
        /// limit. No event books an invalid amount. A repeated command has the result that `again`
        /// returns.
        #[test]
        fn balances_never_leave_their_range(
            commands in prop::collection::vec((any_command(), 0..400_i32), 1..60),
        ) {
            let commands: Vec<_> = commands.into_iter().filter_map(|(command, day)| {
                let day = date(2026, 1, 1).checked_add(jiff::Span::new().days(day)).ok()?;
                Some((command?, on(&day.to_string())))
            }).collect();
            let mut state = Account::initial();
            for (command, context) in &commands {
                let Ok(events) = Account::decide(&state, command, context) else { continue };
                match (decide_twice::<Account>(&state, command, context), again(command)) {
                    (Err(refusal), Err(expected)) => prop_assert_eq!(refusal.code(), expected.code()),
                    // The second booking may be refused too, because the first one changed the
                    // balance.
                    (Ok(_) | Err(_), Ok(_)) => {}
                    (Ok(second), Err(expected)) => prop_assert!(false, "{second:?}, not {expected}"),
                }
                for event in events {
                    state = Account::evolve(state, &event);
                    if let Event::AccountCredited { amount, balance, .. }
                    | Event::AccountDebited { amount, balance, .. } = &event
                    {
                        prop_assert!((1..=MAX_MINOR_UNITS).contains(amount));
                        prop_assert_eq!(*balance, state.total_balance());
                    }
                }
                prop_assert!((0..=MAX_MINOR_UNITS).contains(&state.total_balance()));
            }
            prop_assert_eq!(live::<Account>(commands).0, state);
        }
    }
}
