//! A transfer of money between two accounts, which are written one after the other. It is
//! requested, debited, and credited, or refunded when the credit is refused. If the refund is
//! refused too, the transfer is stuck until an operator settles it. The process manager `transfer`
//! sends the commands to the accounts, and records their outcomes here.

use ledgerline::{Aggregate, Context, Id, Refusal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{Amount, Currency, Reason, Reference};

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The events of a transfer. A reason is the code of a refusal.
    pub enum Event {
        /// A caller requested a transfer from one account to another: an amount in minor units of
        /// the currency of both.
        TransferRequested: 1 {
            from_account_id: String, to_account_id: String, amount: i64, currency: String,
            #[serde(default, skip_serializing_if = "Option::is_none")] reference: Option<String>,
            requested_by: Option<String>,
        },
        /// The first account was debited.
        TransferDebited: 1 {},
        /// The first account refused, and no money moved.
        TransferRefused: 1 { reason: String },
        /// The second account was credited.
        TransferCompleted: 1 {},
        /// The second account refused.
        TransferCreditRefused: 1 { reason: String },
        /// The first account was refunded.
        TransferRefunded: 1 {},
        /// The first account refused the refund: an operator has to decide where the money goes.
        TransferRefundRefused: 1 { reason: String },
        /// An operator chose another account for the money, with a reason. Decisions are numbered,
        /// from 1.
        TransferSettlementRequested: 1 {
            decision: u64, to_account_id: String, reason: String, requested_by: Option<String>,
        },
        /// The chosen account was credited.
        TransferSettled: 1 {},
        /// The chosen account refused, too.
        TransferSettlementRefused: 1 { reason: String },
    }
}

// --- State ---------------------------------------------------------------------------------------

/// The phase of a transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// The stream has no commits.
    #[default]
    Unrequested,
    /// The debit of the first account is due.
    Requested(Order),
    /// The first account refused.
    Refused(Order),
    /// The credit of the second account is due.
    Debited(Order),
    /// The second account was credited.
    Completed(Order),
    /// The second account refused, and the refund is due.
    Returning(Order),
    /// The first account was refunded.
    Refunded(Order),
    /// The first account refused the refund.
    Stuck(Order),
    /// The credit of the account that an operator chose is due.
    Settling(Order),
    /// The account that an operator chose was credited.
    Settled(Order),
}

/// The transfer as it was requested.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// The account that is debited.
    pub from_account_id: String,
    /// The account that is credited.
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
    /// The last decision of an operator, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<Settlement>,
}

/// An operator's decision about a stuck transfer.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settlement {
    /// The number of the decision: an earlier decision that is delivered again moves no money.
    pub decision: u64,
    /// The account that is credited.
    pub to_account_id: String,
    /// The reason for the decision.
    pub reason: String,
    /// The subject of the operator.
    pub requested_by: Option<String>,
}

impl State {
    /// Returns the request, if there was one.
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
            | Self::Stuck(order)
            | Self::Settling(order)
            | Self::Settled(order) => Some(order),
        }
    }

    /// Returns the step whose outcome is recorded next, unless the transfer has ended.
    #[must_use]
    pub fn awaits(&self) -> Option<Step> {
        match self {
            Self::Requested(_) => Some(Step::Debit),
            Self::Debited(_) => Some(Step::Credit),
            Self::Returning(_) => Some(Step::Refund),
            Self::Settling(order) => {
                order.settlement.as_ref().map(|settlement| Step::Settle(settlement.decision))
            }
            Self::Unrequested
            | Self::Refused(_)
            | Self::Completed(_)
            | Self::Refunded(_)
            | Self::Stuck(_)
            | Self::Settled(_) => None,
        }
    }

    /// Returns the money that left one account and has not arrived at another, in minor units.
    #[must_use]
    pub fn under_way(&self) -> i64 {
        match self {
            Self::Debited(order)
            | Self::Returning(order)
            | Self::Stuck(order)
            | Self::Settling(order) => order.amount,
            Self::Unrequested
            | Self::Requested(_)
            | Self::Refused(_)
            | Self::Completed(_)
            | Self::Refunded(_)
            | Self::Settled(_) => 0,
        }
    }

    /// Moves the order to another phase.
    fn becomes(self, phase: fn(Order) -> Self, reason: Option<&String>) -> Self {
        let order = self.order().map(|order| Order { reason: reason.cloned(), ..order.clone() });
        order.map_or(Self::Unrequested, phase)
    }
}

// --- Decisions -----------------------------------------------------------------------------------

/// A command to a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A client requests a transfer.
    Request {
        /// The account that is debited.
        from: Id,
        /// The account that is credited.
        to: Id,
        /// The amount.
        amount: Amount,
        /// The currency of the amount.
        currency: Currency,
        /// The payer's note.
        reference: Option<Reference>,
    },
    /// An operator chooses an account for the money of a stuck transfer.
    Settle {
        /// The chosen account.
        to: Id,
        /// The reason for the decision.
        reason: Reason,
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
    /// Debits the first account.
    Debit,
    /// Credits the second account.
    Credit,
    /// Refunds the first account.
    Refund,
    /// Credits the account that an operator chose in this decision.
    Settle(u64),
}

impl Step {
    /// Returns the step that is due after an event.
    #[must_use]
    pub fn after(event: &Event) -> Option<Self> {
        match event {
            Event::TransferRequested { .. } => Some(Self::Debit),
            Event::TransferDebited {} => Some(Self::Credit),
            Event::TransferCreditRefused { .. } => Some(Self::Refund),
            Event::TransferSettlementRequested { decision, .. } => Some(Self::Settle(*decision)),
            Event::TransferRefused { .. }
            | Event::TransferCompleted {}
            | Event::TransferRefunded {}
            | Event::TransferRefundRefused { .. }
            | Event::TransferSettled {}
            | Event::TransferSettlementRefused { .. } => None,
        }
    }
}

ledgerline::refusals! {
    /// The transfer does not exist.
    UNKNOWN = not_found("unknown-transfer", "there is no such transfer");
    /// The id is taken.
    EXISTS = already_exists("transfer-exists", "a transfer with this id exists already");
    /// The transfer goes from an account to itself.
    SAME_ACCOUNT = refused("same-account", "money does not go from an account to itself");
    /// The transfer is not stuck.
    NOT_STUCK = refused("transfer-not-stuck", "only the money of a transfer that is stuck can be settled");
}

/// Returns the event that records the outcome of a step; `None` if the state does not await this
/// step. Then the step was recorded earlier, or is not due.
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
        (Step::Settle(_), Ok(())) => Event::TransferSettled {},
        (Step::Settle(_), Err(reason)) => Event::TransferSettlementRefused { reason },
    })
}

/// Returns the event of an operator's decision; none if the same decision is done or under way.
fn settle(
    state: &State,
    to: &Id,
    reason: &Reason,
    context: &Context,
) -> Result<Vec<Event>, Refusal> {
    let before = state.order().and_then(|order| order.settlement.as_ref());
    let is_same = before
        .is_some_and(|before| before.to_account_id == *to.get() && before.reason == *reason.get());
    match state {
        State::Stuck(_) => Ok(vec![Event::TransferSettlementRequested {
            decision: before.map_or(0, |before| before.decision) + 1,
            to_account_id: to.to_string(),
            reason: reason.to_string(),
            requested_by: context.actor.clone(),
        }]),
        State::Settling(_) | State::Settled(_) if is_same => Ok(Vec::new()),
        State::Unrequested
        | State::Requested(_)
        | State::Refused(_)
        | State::Debited(_)
        | State::Completed(_)
        | State::Returning(_)
        | State::Refunded(_)
        | State::Settling(_)
        | State::Settled(_) => Err(NOT_STUCK),
    }
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
                settlement: None,
            }),
            Event::TransferDebited {} => state.becomes(State::Debited, None),
            Event::TransferRefused { reason } => state.becomes(State::Refused, Some(reason)),
            Event::TransferCompleted {} => state.becomes(State::Completed, None),
            Event::TransferCreditRefused { reason } => {
                state.becomes(State::Returning, Some(reason))
            }
            Event::TransferRefunded {} => {
                // The reason stays: it is why the second account refused the money.
                let reason = state.order().and_then(|order| order.reason.clone());
                state.becomes(State::Refunded, reason.as_ref())
            }
            Event::TransferRefundRefused { reason }
            | Event::TransferSettlementRefused { reason } => {
                state.becomes(State::Stuck, Some(reason))
            }
            Event::TransferSettlementRequested {
                decision,
                to_account_id,
                reason,
                requested_by,
            } => {
                let settlement = Settlement {
                    decision: *decision,
                    to_account_id: to_account_id.clone(),
                    reason: reason.clone(),
                    requested_by: requested_by.clone(),
                };
                let order = state.order().cloned();
                order.map_or(State::Unrequested, |order| {
                    State::Settling(Order { settlement: Some(settlement), ..order })
                })
            }
            Event::TransferSettled {} => {
                let reason = state.order().and_then(|order| order.reason.clone());
                state.becomes(State::Settled, reason.as_ref())
            }
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
            Command::Settle { .. } | Command::Record { .. } if *state == State::Unrequested => {
                Err(UNKNOWN)
            }
            Command::Settle { to, reason } => settle(state, to, reason, context),
            Command::Record { step, outcome } => {
                Ok(record(state, *step, outcome).into_iter().collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{
        fold,
        spec::{given, live, valid},
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

    fn settle(to: &str, reason: &str) -> Command {
        Command::Settle { to: valid(to), reason: valid(reason) }
    }

    /// The events of a transfer whose money neither account accepts.
    fn stuck() -> Vec<Event> {
        let refused = "account-closed".to_owned();
        vec![
            requested(),
            Event::TransferDebited {},
            Event::TransferCreditRefused { reason: refused.clone() },
            Event::TransferRefundRefused { reason: refused },
        ]
    }

    fn settling(decision: u64, to: &str) -> Event {
        let reason = "agreed".into();
        let requested_by = Some("ada".into());
        Event::TransferSettlementRequested {
            decision,
            to_account_id: to.into(),
            reason,
            requested_by,
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
    fn a_transfer_without_a_request_has_no_steps() {
        given::<Transfer>([]).when(record(Step::Debit, Ok(())), &by_ada()).then_refused(&UNKNOWN);
    }

    #[test]
    fn an_operator_settles_a_stuck_transfer_and_settles_it_again_after_a_refusal() {
        let ops = by_ada();
        given::<Transfer>(stuck()).when(settle(B, "agreed"), &ops).then([settling(1, B)]);
        let under_way = [stuck(), vec![settling(1, B)]].concat();
        given::<Transfer>(under_way.clone())
            .when(settle(A, "agreed"), &ops)
            .then_refused(&NOT_STUCK);
        let refused = Event::TransferSettlementRefused { reason: "no".into() };
        let again = [under_way.clone(), vec![refused]].concat();
        given::<Transfer>(again.clone()).when(settle(A, "agreed"), &ops).then([settling(2, A)]);
        // The outcome of an earlier decision is not that of the one under way.
        let second = [again, vec![settling(2, A)]].concat();
        given::<Transfer>(second.clone()).when(record(Step::Settle(1), Ok(())), &ops).then([]);
        given::<Transfer>(second)
            .when(record(Step::Settle(2), Ok(())), &ops)
            .then([Event::TransferSettled {}]);
        let settled = [under_way, vec![Event::TransferSettled {}]].concat();
        given::<Transfer>(settled.clone()).when(settle(B, "agreed"), &ops).then([]);
        given::<Transfer>(settled).when(settle(A, "agreed"), &ops).then_refused(&NOT_STUCK);
        // A transfer that is not stuck needs no decision.
        for length in 0..4 {
            let expected = if length == 0 { &UNKNOWN } else { &NOT_STUCK };
            let history = stuck()[..length].to_vec();
            given::<Transfer>(history).when(settle(B, "agreed"), &ops).then_refused(expected);
        }
    }

    #[test]
    fn every_outcome_of_every_step_leads_to_the_next_phase() {
        let no = || Err("no");
        let refused = |reason: &str| Event::TransferRefused { reason: reason.into() };
        let returning = || Event::TransferCreditRefused { reason: "no".into() };
        let refund_refused = || Event::TransferRefundRefused { reason: "no".into() };
        let settling_now = || [stuck()[1..].to_vec(), vec![settling(1, B)]].concat();
        for (history, step, outcome, expected) in [
            (vec![], Step::Debit, Ok(()), Event::TransferDebited {}),
            (vec![], Step::Debit, no(), refused("no")),
            (vec![Event::TransferDebited {}], Step::Credit, Ok(()), Event::TransferCompleted {}),
            (vec![Event::TransferDebited {}], Step::Credit, no(), returning()),
            (
                vec![Event::TransferDebited {}, returning()],
                Step::Refund,
                Ok(()),
                Event::TransferRefunded {},
            ),
            (vec![Event::TransferDebited {}, returning()], Step::Refund, no(), refund_refused()),
            (settling_now(), Step::Settle(1), Ok(()), Event::TransferSettled {}),
            (
                settling_now(),
                Step::Settle(1),
                no(),
                Event::TransferSettlementRefused { reason: "no".into() },
            ),
        ] {
            let history = [vec![requested()], history].concat();
            assert_eq!(Step::after(history.last().unwrap()), Some(step));
            given::<Transfer>(history.clone())
                .when(record(step, outcome), &by_ada())
                .then([expected.clone()]);
            // A second outcome of the same step is not recorded.
            let history = [history, vec![expected]].concat();
            for outcome in [Ok(()), no()] {
                given::<Transfer>(history.clone()).when(record(step, outcome), &by_ada()).then([]);
            }
        }
    }

    proptest! {
        /// For all outcomes in all orders, money is under way exactly between the debit and the end
        /// of the transfer.
        #[test]
        fn money_is_under_way_between_the_debit_and_the_end(
            outcomes in prop::collection::vec((0..5_usize, any::<bool>()), 0..16),
        ) {
            let mut state = fold::<Transfer>(Transfer::initial(), &[requested()]);
            let (mut first, mut second) = (100, 0);
            for (step, done) in outcomes {
                let command = match [Step::Debit, Step::Credit, Step::Refund, Step::Settle(1)].get(step) {
                    Some(step) => record(*step, if done { Ok(()) } else { Err("no") }),
                    None => settle(B, "agreed"),
                };
                // A settlement is refused unless the transfer is stuck.
                for event in Transfer::decide(&state, &command, &by_ada()).unwrap_or_default() {
                    match &event {
                        Event::TransferDebited {} => first -= 30,
                        Event::TransferCompleted {} | Event::TransferSettled {} => second += 30,
                        Event::TransferRefunded {} => first += 30,
                        Event::TransferRequested { .. }
                        | Event::TransferRefused { .. }
                        | Event::TransferCreditRefused { .. }
                        | Event::TransferRefundRefused { .. }
                        | Event::TransferSettlementRequested { .. }
                        | Event::TransferSettlementRefused { .. } => {}
                    }
                    state = Transfer::evolve(state, &event);
                }
                prop_assert_eq!(first + second + state.under_way(), 100);
            }
        }
    }

    proptest! {
        /// For all commands in all orders, even with amounts and accounts built from invalid
        /// values, a transfer is requested once. Its amount is allowed, and its accounts differ.
        #[test]
        fn a_transfer_is_requested_once(
            asked in prop::collection::vec(
                (0..5_u8, any::<i64>(), 0..4_usize, 0..3_usize, any::<bool>(), ".*"),
                1..30,
            ),
        ) {
            let commands = asked.into_iter().filter_map(|(kind, amount, from, to, good, text)| {
                let account = |place: usize| Id::new([A, B, text.as_str()][place % 3]);
                let command = match kind {
                    0 => Command::Request {
                        from: account(from).ok()?,
                        to: account(to).ok()?,
                        amount: Amount::new(if good { 30 } else { amount }).ok()?,
                        currency: Currency::new(if good { "EUR".to_owned() } else { text.clone() }).ok()?,
                        reference: Reference::new(text.clone()).ok(),
                    },
                    1 => Command::Settle { to: account(to).ok()?, reason: Reason::new(text.clone()).ok()? },
                    _ => {
                        let step = [Step::Debit, Step::Credit, Step::Refund, Step::Settle(1)][from];
                        record(step, if good { Ok(()) } else { Err(&text) })
                    }
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
                    | Event::TransferRefundRefused { .. }
                    | Event::TransferSettlementRequested { .. }
                    | Event::TransferSettled {}
                    | Event::TransferSettlementRefused { .. } => prop_assert!(place > 0),
                }
            }
            prop_assert!(state.under_way() >= 0);
        }
    }
}
