//! A transfer of money between two accounts, which are written one after the other: requested, debited, credited, or
//! given back when the credit is refused. The process manager `transfer` sends the commands to the accounts, and records
//! their outcomes here.

use ledgerline::{Aggregate, Context, Id, Refusal};
use serde::{Deserialize, Serialize};

use crate::values::{Amount, Currency, Reference};

// --- Events -----------------------------------------------------------------------------------------------------

ledgerline::events! {
    /// What happened to a transfer. A reason is the code of a refusal.
    pub enum Event {
        /// A caller wants money to go from one account to another: an amount in minor units of the currency of both.
        TransferRequested: 1 {
            from_account_id: String, to_account_id: String, amount: i64, currency: String,
            #[serde(default, skip_serializing_if = "Option::is_none")] reference: Option<String>,
            requested_by: Option<String>,
        },
        /// The money left the first account.
        TransferDebited: 1 {},
        /// The first account refused. Nothing moved.
        TransferRefused: 1 { reason: String },
        /// The money arrived at the second account.
        TransferCompleted: 1 {},
        /// The second account refused.
        TransferCreditRefused: 1 { reason: String },
        /// The money is back at the first account.
        TransferRefunded: 1 {},
        /// The first account does not take the money back: a person has to decide where it goes.
        TransferRefundRefused: 1 { reason: String },
    }
}

// --- State ------------------------------------------------------------------------------------------------------

/// The phase of a transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// Nothing happened in this stream yet.
    #[default]
    Unrequested,
    /// The first account is about to be debited.
    Requested(Order),
    /// The first account refused.
    Refused(Order),
    /// The money is on its way to the second account.
    Debited(Order),
    /// The money arrived.
    Completed(Order),
    /// The second account refused, the money is on its way back.
    Returning(Order),
    /// The money is back.
    Refunded(Order),
    /// The money cannot go back by itself.
    Stuck(Order),
}

/// The transfer as it was requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// The account that the money comes from.
    pub from_account_id: String,
    /// The account that it goes to.
    pub to_account_id: String,
    /// The amount in minor units.
    pub amount: i64,
    /// The currency, as an ISO 4217 code.
    pub currency: String,
    /// The payer's note.
    pub reference: Option<String>,
    /// The subject on whose behalf the money moves.
    pub requested_by: Option<String>,
    /// The code of the last refusal.
    pub reason: Option<String>,
}

impl State {
    /// What was requested, if anything was.
    #[must_use]
    pub fn order(&self) -> Option<&Order> {
        match self {
            Self::Unrequested => None,
            Self::Requested(order)
            | Self::Refused(order)
            | Self::Debited(order)
            | Self::Completed(order)
            | Self::Returning(order)
            | Self::Refunded(order)
            | Self::Stuck(order) => Some(order),
        }
    }

    /// The step whose outcome is to be recorded next, unless the transfer has ended.
    #[must_use]
    pub fn awaits(&self) -> Option<Step> {
        match self {
            Self::Requested(_) => Some(Step::Debit),
            Self::Debited(_) => Some(Step::Credit),
            Self::Returning(_) => Some(Step::Refund),
            Self::Unrequested
            | Self::Refused(_)
            | Self::Completed(_)
            | Self::Refunded(_)
            | Self::Stuck(_) => None,
        }
    }

    /// Money that left one account and has not arrived at another, in minor units.
    #[must_use]
    pub fn under_way(&self) -> i64 {
        match self {
            Self::Debited(order) | Self::Returning(order) | Self::Stuck(order) => order.amount,
            Self::Unrequested
            | Self::Requested(_)
            | Self::Refused(_)
            | Self::Completed(_)
            | Self::Refunded(_) => 0,
        }
    }

    /// The same order in another phase.
    fn becomes(self, phase: fn(Order) -> Self, reason: Option<&String>) -> Self {
        let order = self.order().map(|order| Order { reason: reason.cloned(), ..order.clone() });
        order.map_or(Self::Unrequested, phase)
    }
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// A command to a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A client wants money to move.
    Request {
        /// The account that the money comes from.
        from: Id,
        /// The account that it goes to.
        to: Id,
        /// The amount.
        amount: Amount,
        /// The currency of the amount.
        currency: Currency,
        /// The payer's note.
        reference: Option<Reference>,
    },
    /// The process manager records the outcome of a step.
    Record {
        /// The step.
        step: Step,
        /// The outcome: the code of the refusal if the step was refused.
        outcome: Result<(), String>,
    },
}

/// A command to an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Takes the money from the first account.
    Debit,
    /// Gives it to the second.
    Credit,
    /// Gives it back to the first.
    Refund,
}

impl Step {
    /// The step that is due after an event.
    #[must_use]
    pub fn after(event: &Event) -> Option<Self> {
        match event {
            Event::TransferRequested { .. } => Some(Self::Debit),
            Event::TransferDebited {} => Some(Self::Credit),
            Event::TransferCreditRefused { .. } => Some(Self::Refund),
            Event::TransferRefused { .. }
            | Event::TransferCompleted {}
            | Event::TransferRefunded {}
            | Event::TransferRefundRefused { .. } => None,
        }
    }
}

ledgerline::refusals! {
    /// There is no such transfer.
    UNKNOWN = not_found("unknown-transfer", "there is no such transfer");
    /// The id is taken.
    EXISTS = already_exists("transfer-exists", "a transfer with this id exists already");
    /// The transfer goes from an account to itself.
    SAME_ACCOUNT = refused("same-account", "money does not go from an account to itself");
}

/// The event that records the outcome of a step; none if the state does not await this step, because it was recorded before or is not due.
fn record(state: &State, step: Step, outcome: &Result<(), String>) -> Option<Event> {
    if state.awaits() != Some(step) {
        return None;
    }
    Some(match (step, outcome.clone()) {
        (Step::Debit, Ok(())) => Event::TransferDebited {},
        (Step::Debit, Err(reason)) => Event::TransferRefused { reason },
        (Step::Credit, Ok(())) => Event::TransferCompleted {},
        (Step::Credit, Err(reason)) => Event::TransferCreditRefused { reason },
        (Step::Refund, Ok(())) => Event::TransferRefunded {},
        (Step::Refund, Err(reason)) => Event::TransferRefundRefused { reason },
    })
}

/// The transfer aggregate. The id of a transfer is a UUID.
#[derive(Debug)]
pub struct Transfer;

impl Aggregate for Transfer {
    const CATEGORY: &'static str = "transfer";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::TransferRequested {
                from_account_id,
                to_account_id,
                amount,
                currency,
                reference,
                requested_by,
            } => State::Requested(Order {
                from_account_id: from_account_id.clone(),
                to_account_id: to_account_id.clone(),
                amount: *amount,
                currency: currency.clone(),
                reference: reference.clone(),
                requested_by: requested_by.clone(),
                reason: None,
            }),
            Event::TransferDebited {} => state.becomes(State::Debited, None),
            Event::TransferRefused { reason } => state.becomes(State::Refused, Some(reason)),
            Event::TransferCompleted {} => state.becomes(State::Completed, None),
            Event::TransferCreditRefused { reason } => state.becomes(State::Returning, Some(reason)),
            Event::TransferRefunded {} => {
                // The reason stays: it says why the money came back.
                let reason = state.order().and_then(|order| order.reason.clone());
                state.becomes(State::Refunded, reason.as_ref())
            }
            Event::TransferRefundRefused { reason } => state.becomes(State::Stuck, Some(reason)),
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Request { .. } if *state != State::Unrequested => Err(EXISTS),
            Command::Request { from, to, .. } if from == to => Err(SAME_ACCOUNT),
            Command::Request { from, to, amount, currency, reference } => {
                Ok(vec![Event::TransferRequested {
                    from_account_id: from.to_string(),
                    to_account_id: to.to_string(),
                    amount: *amount.get(),
                    currency: currency.to_string(),
                    reference: reference.as_ref().map(ToString::to_string),
                    requested_by: context.actor.clone(),
                }])
            }
            Command::Record { .. } if *state == State::Unrequested => Err(UNKNOWN),
            Command::Record { step, outcome } => Ok(record(state, *step, outcome).into_iter().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{
        fold,
        spec::{decided_twice, given, live, valid},
    };
    use proptest::prelude::*;

    use super::*;

    fn by_ada() -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some("ada".into()) }
    }

    const A: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
    const B: &str = "5f0c1b1e-3d0a-4a55-8b4e-0a3f8c5f7d21";

    fn request(from: &str, to: &str) -> Command {
        let (from, to) = (valid(from), valid(to));
        Command::Request { from, to, amount: valid(30), currency: valid("EUR"), reference: None }
    }

    fn requested() -> Event {
        Event::TransferRequested {
            from_account_id: A.into(),
            to_account_id: B.into(),
            amount: 30,
            currency: "EUR".into(),
            reference: None,
            requested_by: Some("ada".into()),
        }
    }

    fn record(step: Step, outcome: Result<(), &str>) -> Command {
        Command::Record { step, outcome: outcome.map_err(Into::into) }
    }

    #[test]
    fn it_is_requested_once_and_not_to_the_same_account() {
        given::<Transfer>([]).when(request(A, B), &by_ada()).then([requested()]);
        given::<Transfer>([]).when(request(A, A), &by_ada()).then_refused(&SAME_ACCOUNT);
        given::<Transfer>([requested()]).when(request(A, B), &by_ada()).then_refused(&EXISTS);
    }

    #[test]
    fn a_transfer_that_nobody_requested_has_no_steps() {
        given::<Transfer>([]).when(record(Step::Debit, Ok(())), &by_ada()).then_refused(&UNKNOWN);
    }

    /// The second time, a request is refused, and an outcome that was recorded before adds no event.
    #[test]
    fn no_command_does_anything_when_it_is_sent_again() {
        let requested = fold::<Transfer>(State::Unrequested, &[requested()]);
        for (state, command) in
            [(State::Unrequested, request(A, B)), (requested, record(Step::Debit, Ok(())))]
        {
            let expected = match command {
                Command::Request { .. } => Err(EXISTS),
                Command::Record { .. } => Ok(Vec::new()),
            };
            assert_eq!(decided_twice::<Transfer>(&state, &command, &by_ada()), expected);
        }
    }

    #[test]
    fn every_outcome_of_every_step_leads_on() {
        let no = || Err("no");
        let refused = |reason: &str| Event::TransferRefused { reason: reason.into() };
        let returning = || Event::TransferCreditRefused { reason: "no".into() };
        let stuck = || Event::TransferRefundRefused { reason: "no".into() };
        for (history, step, outcome, expected) in [
            (vec![], Step::Debit, Ok(()), Event::TransferDebited {}),
            (vec![], Step::Debit, no(), refused("no")),
            (vec![Event::TransferDebited {}], Step::Credit, Ok(()), Event::TransferCompleted {}),
            (vec![Event::TransferDebited {}], Step::Credit, no(), returning()),
            (vec![Event::TransferDebited {}, returning()], Step::Refund, Ok(()), Event::TransferRefunded {}),
            (vec![Event::TransferDebited {}, returning()], Step::Refund, no(), stuck()),
        ] {
            let history = [vec![requested()], history].concat();
            assert_eq!(Step::after(history.last().unwrap()), Some(step));
            given::<Transfer>(history.clone())
                .when(record(step, outcome), &by_ada())
                .then([expected.clone()]);
            // A second outcome of the same step is not recorded, whatever it says.
            let history = [history, vec![expected]].concat();
            for outcome in [Ok(()), no()] {
                given::<Transfer>(history.clone()).when(record(step, outcome), &by_ada()).then([]);
            }
        }
    }

    proptest! {
        /// Whatever outcomes are recorded in whatever order, money is under way exactly between the debit and the end of the transfer.
        #[test]
        fn money_is_under_way_between_the_debit_and_the_end(
            outcomes in prop::collection::vec((0..3_usize, any::<bool>()), 0..12),
        ) {
            let mut state = fold::<Transfer>(Transfer::initial(), &[requested()]);
            let (mut first, mut second) = (100, 0);
            for (step, done) in outcomes {
                let step = [Step::Debit, Step::Credit, Step::Refund][step];
                let events = Transfer::decide(&state, &record(step, if done { Ok(()) } else { Err("no") }), &by_ada());
                for event in events.unwrap() {
                    match &event {
                        Event::TransferDebited {} => first -= 30,
                        Event::TransferCompleted {} => second += 30,
                        Event::TransferRefunded {} => first += 30,
                        Event::TransferRequested { .. }
                        | Event::TransferRefused { .. }
                        | Event::TransferCreditRefused { .. }
                        | Event::TransferRefundRefused { .. } => {}
                    }
                    state = Transfer::evolve(state, &event);
                }
                prop_assert_eq!(first + second + state.under_way(), 100);
            }
        }
    }

    proptest! {
        /// Whatever commands come in whatever order, even if amounts and accounts are made of invalid values, a transfer is requested once, for an
        /// amount that is allowed, and between two accounts.
        #[test]
        fn a_transfer_is_requested_once(
            asked in prop::collection::vec(
                (0..4_u8, any::<i64>(), 0..3_usize, 0..3_usize, any::<bool>(), ".*"),
                1..30,
            ),
        ) {
            let commands = asked.into_iter().filter_map(|(kind, amount, from, to, good, text)| {
                let account = |place: usize| Id::new([A, B, text.as_str()][place]);
                let command = match kind {
                    0 => Command::Request {
                        from: account(from).ok()?,
                        to: account(to).ok()?,
                        amount: Amount::new(if good { 30 } else { amount }).ok()?,
                        currency: Currency::new(if good { "EUR".to_owned() } else { text.clone() }).ok()?,
                        reference: Reference::new(text.clone()).ok(),
                    },
                    _ => record([Step::Debit, Step::Credit, Step::Refund][from], if good { Ok(()) } else { Err(&text) }),
                };
                Some((command, by_ada()))
            });
            let (state, events) = live::<Transfer>(commands);
            for (place, event) in events.iter().enumerate() {
                match event {
                    Event::TransferRequested { from_account_id, to_account_id, amount, .. } => {
                        prop_assert!(place == 0 && from_account_id != to_account_id);
                        prop_assert!((1..=crate::values::MAX_MINOR_UNITS).contains(amount));
                    }
                    Event::TransferDebited {}
                    | Event::TransferRefused { .. }
                    | Event::TransferCompleted {}
                    | Event::TransferCreditRefused { .. }
                    | Event::TransferRefunded {}
                    | Event::TransferRefundRefused { .. } => prop_assert!(place > 0),
                }
            }
            prop_assert!(state.under_way() >= 0);
        }
    }
}
