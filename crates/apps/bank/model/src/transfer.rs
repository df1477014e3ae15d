//! A transfer of money between two accounts, which are written one after the other: requested, debited, credited, or
//! given back when the credit is refused. The process manager `transfer` sends the commands to the accounts, and records
//! here what came of them.

use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind};
use serde::{Deserialize, Serialize};

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `transfer-<transfer id>`, the id a lower-case UUID.
pub const CATEGORY: &str = "transfer";

// --- Events -----------------------------------------------------------------------------------------------------

/// What became of a transfer. These types are the storage format: change a shape only together with an upcaster in
/// [`Transfer::EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all_fields = "camelCase")]
pub enum Event {
    /// Somebody wants money to go from one account to another.
    TransferRequested {
        /// Where it comes from.
        from_account_id: String,
        /// Where it goes.
        to_account_id: String,
        /// Minor units, above 0.
        amount: i64,
        /// ISO 4217 code, which both accounts must have.
        currency: String,
        /// The payer's note.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The subject of the caller, on whose behalf the money moves.
        requested_by: Option<String>,
    },
    /// The money left the first account.
    TransferDebited {},
    /// The first account refused. Nothing moved.
    TransferRefused {
        /// The code of the refusal.
        reason: String,
    },
    /// The money arrived at the second account.
    TransferCompleted {},
    /// The second account refused.
    TransferCreditRefused {
        /// The code of the refusal.
        reason: String,
    },
    /// The money is back at the first account.
    TransferRefunded {},
    /// The first account does not take it back: somebody has to look.
    TransferRefundRefused {
        /// The code of the refusal.
        reason: String,
    },
}

// --- State ------------------------------------------------------------------------------------------------------

/// Where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Where it stands.
    pub status: Status,
    /// Where the money comes from.
    pub from_account_id: String,
    /// Where it goes.
    pub to_account_id: String,
    /// Minor units.
    pub amount: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// The payer's note.
    pub reference: Option<String>,
    /// The subject on whose behalf the money moves.
    pub requested_by: Option<String>,
    /// The code of the last refusal.
    pub reason: Option<String>,
}

/// Where a transfer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Nothing happened in this stream yet.
    Unrequested,
    /// The first account is about to be debited.
    Requested,
    /// The first account refused.
    Refused,
    /// The money is on its way to the second account.
    Debited,
    /// It arrived.
    Completed,
    /// The second account refused, the money is on its way back.
    Returning,
    /// It is back.
    Refunded,
    /// It cannot go back by itself.
    Stuck,
}

impl Status {
    /// The step whose outcome is not recorded yet.
    #[must_use]
    pub fn awaits(self) -> Option<Step> {
        match self {
            Self::Requested => Some(Step::Debit),
            Self::Debited => Some(Step::Credit),
            Self::Returning => Some(Step::Refund),
            Self::Unrequested | Self::Refused | Self::Completed | Self::Refunded | Self::Stuck => None,
        }
    }
}

impl State {
    /// Money that left one account and has not arrived at another, in minor units.
    #[must_use]
    pub fn under_way(&self) -> i64 {
        match self.status {
            Status::Debited | Status::Returning | Status::Stuck => self.amount,
            Status::Unrequested
            | Status::Requested
            | Status::Refused
            | Status::Completed
            | Status::Refunded => 0,
        }
    }
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// What can be asked of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A client wants money to move.
    Request {
        /// Where it comes from.
        from_account_id: String,
        /// Where it goes.
        to_account_id: String,
        /// Minor units, above 0.
        amount: i64,
        /// ISO 4217 code.
        currency: String,
        /// The payer's note.
        reference: Option<String>,
    },
    /// The process manager knows what came of a step.
    Record {
        /// Of which.
        step: Step,
        /// What: the code of the refusal where there was one.
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

/// Why the answer is no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is none.
    #[error("there is no such transfer")]
    Unknown,
    /// The id is taken.
    #[error("a transfer with this id exists already")]
    Exists,
    /// From an account to itself.
    #[error("money does not go from an account to itself")]
    SameAccount,
}

impl Rejection for Refusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown => RejectionKind::NotFound,
            Self::Exists => RejectionKind::AlreadyExists,
            Self::SameAccount => RejectionKind::Refused,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown-transfer",
            Self::Exists => "transfer-exists",
            Self::SameAccount => "same-account",
        }
    }
}

/// What is recorded of a step in this state; nothing where it was recorded before.
fn record(status: Status, step: Step, outcome: &Result<(), String>) -> Option<Event> {
    if status.awaits() != Some(step) {
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

/// The transfer aggregate.
#[derive(Debug)]
pub struct Transfer;

impl Aggregate for Transfer {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 1;
    const EVENTS: &'static [EventType] = &[
        EventType::new("TransferRequested"),
        EventType::new("TransferDebited"),
        EventType::new("TransferRefused"),
        EventType::new("TransferCompleted"),
        EventType::new("TransferCreditRefused"),
        EventType::new("TransferRefunded"),
        EventType::new("TransferRefundRefused"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State {
            status: Status::Unrequested,
            from_account_id: String::new(),
            to_account_id: String::new(),
            amount: 0,
            currency: String::new(),
            reference: None,
            requested_by: None,
            reason: None,
        }
    }

    fn evolve(state: State, event: &Event) -> State {
        let refused = |status: Status, reason: &String| (status, Some(reason.clone()));
        let (status, reason) = match event {
            Event::TransferRequested {
                from_account_id,
                to_account_id,
                amount,
                currency,
                reference,
                requested_by,
            } => {
                return State {
                    status: Status::Requested,
                    from_account_id: from_account_id.clone(),
                    to_account_id: to_account_id.clone(),
                    amount: *amount,
                    currency: currency.clone(),
                    reference: reference.clone(),
                    requested_by: requested_by.clone(),
                    reason: None,
                };
            }
            Event::TransferDebited {} => (Status::Debited, None),
            Event::TransferRefused { reason } => refused(Status::Refused, reason),
            Event::TransferCompleted {} => (Status::Completed, None),
            Event::TransferCreditRefused { reason } => refused(Status::Returning, reason),
            // Why it came back stays known.
            Event::TransferRefunded {} => (Status::Refunded, state.reason.clone()),
            Event::TransferRefundRefused { reason } => refused(Status::Stuck, reason),
        };
        State { status, reason, ..state }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Request { .. } if state.status != Status::Unrequested => Err(Refusal::Exists),
            Command::Request { from_account_id, to_account_id, .. } if from_account_id == to_account_id => {
                Err(Refusal::SameAccount)
            }
            Command::Request { from_account_id, to_account_id, amount, currency, reference } => {
                Ok(vec![Event::TransferRequested {
                    from_account_id: from_account_id.clone(),
                    to_account_id: to_account_id.clone(),
                    amount: *amount,
                    currency: currency.clone(),
                    reference: reference.clone(),
                    requested_by: context.actor.clone(),
                }])
            }
            Command::Record { .. } if state.status == Status::Unrequested => Err(Refusal::Unknown),
            Command::Record { step, outcome } => {
                Ok(record(state.status, *step, outcome).into_iter().collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{fold, spec::given};
    use proptest::prelude::*;

    use super::*;

    fn by_ada() -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some("ada".into()) }
    }

    fn request(from: &str, to: &str) -> Command {
        Command::Request {
            from_account_id: from.into(),
            to_account_id: to.into(),
            amount: 30,
            currency: "EUR".into(),
            reference: None,
        }
    }

    fn requested() -> Event {
        Event::TransferRequested {
            from_account_id: "a".into(),
            to_account_id: "b".into(),
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
        given::<Transfer>([]).when(request("a", "b"), &by_ada()).then([requested()]);
        given::<Transfer>([]).when(request("a", "a"), &by_ada()).then_refused(&Refusal::SameAccount);
        given::<Transfer>([requested()]).when(request("a", "b"), &by_ada()).then_refused(&Refusal::Exists);
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
            // Said again, whatever is said, it is not recorded again.
            let history = [history, vec![expected]].concat();
            for outcome in [Ok(()), no()] {
                given::<Transfer>(history.clone()).when(record(step, outcome), &by_ada()).then([]);
            }
        }
    }

    proptest! {
        /// Whatever is recorded in whatever order, money is under way exactly between the debit and where it ends.
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
}
