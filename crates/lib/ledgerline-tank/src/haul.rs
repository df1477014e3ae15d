//! The haul aggregate: a haul of litres from one tank to another. A haul is requested, then drawn,
//! and then completed or returned.

use ledgerline::{
    Aggregate, Context, Id, Invalid, Refusal,
    testing::tank::{self, Amount, Litres},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

ledgerline::events! {
    /// The events of a haul. A reason is the code of a refusal.
    pub enum Event {
        /// A caller requested a haul of litres from one tank to another.
        HaulRequested: 1 { from_tank_id: String, to_tank_id: String, amount: i64, requested_by: Option<String> },
        /// The first tank refused, and no litres moved.
        HaulRefused: 1 { reason: String },
        /// The litres left the first tank.
        HaulDrawn: 1 {},
        /// The litres are in the second tank.
        HaulCompleted: 1 {},
        /// The second tank refused.
        HaulFillRefused: 1 { reason: String },
        /// The litres are back in the first tank.
        HaulReturned: 1 {},
        /// The first tank refused the returned litres. An operator must act.
        HaulReturnRefused: 1 { reason: String },
    }
}

/// The request of a haul.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// The tank that is drawn from.
    pub from_tank_id: String,
    /// The tank that is filled.
    pub to_tank_id: String,
    /// The amount in litres.
    pub amount: i64,
    /// The subject on whose behalf the litres move.
    pub requested_by: Option<String>,
}

/// The state of a haul.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The request; `None` if the stream has no event.
    pub order: Option<Order>,
    /// The phase.
    pub phase: Phase,
}

/// The phase of a haul.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "HaulPhase")]
pub enum Phase {
    /// The next step draws from the first tank.
    #[default]
    Requested,
    /// The first tank refused.
    Refused,
    /// The next step fills the second tank.
    Drawn,
    /// The litres are in the second tank.
    Completed,
    /// The second tank refused. The next step fills the first tank.
    Returning,
    /// The litres are back in the first tank.
    Returned,
    /// The litres are in no tank, and no command will move them.
    Stuck,
}

/// A command to a tank, for a haul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Draw from the first tank.
    Draw,
    /// Fill the second tank.
    Fill,
    /// Fill the first tank again.
    Return,
}

impl Step {
    /// The step that an event makes due.
    #[must_use]
    pub fn after(event: &Event) -> Option<Self> {
        match event {
            Event::HaulRequested { .. } => Some(Self::Draw),
            Event::HaulDrawn {} => Some(Self::Fill),
            Event::HaulFillRefused { .. } => Some(Self::Return),
            Event::HaulRefused { .. }
            | Event::HaulCompleted {}
            | Event::HaulReturned {}
            | Event::HaulReturnRefused { .. } => None,
        }
    }

    /// Returns the command of the step, its tank, and the names of the step and of the record of
    /// its outcome.
    ///
    /// # Errors
    /// When the amount of the order is not valid for a tank.
    pub fn command(self, order: &Order) -> Result<StepCommand<'_>, Invalid> {
        let amount = Amount { amount: Litres::new(order.amount)?, note: None };
        Ok(match self {
            Self::Draw => StepCommand {
                name: "draw",
                record: "record-draw",
                tank: &order.from_tank_id,
                command: tank::Command::Draw(amount),
            },
            Self::Fill => StepCommand {
                name: "fill",
                record: "record-fill",
                tank: &order.to_tank_id,
                command: tank::Command::Fill(amount),
            },
            Self::Return => StepCommand {
                name: "return",
                record: "record-return",
                tank: &order.from_tank_id,
                command: tank::Command::Fill(amount),
            },
        })
    }
}

/// The command of a step, its tank, and the names that make it idempotent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepCommand<'a> {
    /// The name of the step, which makes the command to the tank idempotent.
    pub name: &'static str,
    /// The name of the record of the outcome, which makes the command to the haul idempotent.
    pub record: &'static str,
    /// The id of the tank.
    pub tank: &'a str,
    /// The command to the tank.
    pub command: tank::Command,
}

/// A command to a haul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Requests a haul.
    Request {
        /// The tank that is drawn from.
        from: Id,
        /// The tank that is filled.
        to: Id,
        /// The amount.
        amount: Litres,
    },
    /// Records the outcome of a step, for the process manager. The error is the code of the
    /// refusal.
    Record(Step, Result<(), String>),
}

ledgerline::refusals! {
    /// The haul does not exist.
    UNKNOWN = not_found("unknown-haul", "there is no such haul");
    /// A haul with this id exists already.
    EXISTS = already_exists("haul-exists", "a haul with this id exists already");
    /// Both tanks of the haul are the same.
    SAME_TANK = refused("same-tank", "litres do not go from a tank to itself");
}

/// The haul aggregate. The id of a haul is a UUID.
#[derive(Debug)]
pub struct Haul;

impl Aggregate for Haul {
    const CATEGORY: &'static str = "haul";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        let phase = match event {
            Event::HaulRequested { from_tank_id, to_tank_id, amount, requested_by } => {
                let order = Order {
                    from_tank_id: from_tank_id.clone(),
                    to_tank_id: to_tank_id.clone(),
                    amount: *amount,
                    requested_by: requested_by.clone(),
                };
                return State { order: Some(order), phase: Phase::Requested };
            }
            Event::HaulRefused { reason: _ } => Phase::Refused,
            Event::HaulDrawn {} => Phase::Drawn,
            Event::HaulCompleted {} => Phase::Completed,
            Event::HaulFillRefused { reason: _ } => Phase::Returning,
            Event::HaulReturned {} => Phase::Returned,
            Event::HaulReturnRefused { reason: _ } => Phase::Stuck,
        };
        State { phase, ..state }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Request { .. } if state.order.is_some() => Err(EXISTS),
            Command::Request { from, to, .. } if from == to => Err(SAME_TANK),
            Command::Request { from, to, amount } => Ok(vec![Event::HaulRequested {
                from_tank_id: from.to_string(),
                to_tank_id: to.to_string(),
                amount: *amount.get(),
                requested_by: context.actor.clone(),
            }]),
            Command::Record(..) if state.order.is_none() => Err(UNKNOWN),
            // An outcome that was recorded already, or that is not due, adds no event.
            Command::Record(step, _) if state.awaits() != Some(*step) => Ok(Vec::new()),
            Command::Record(step, outcome) => Ok(vec![recorded(*step, outcome.clone())]),
        }
    }
}

impl State {
    /// The step whose outcome is recorded next, unless the haul has ended.
    #[must_use]
    pub fn awaits(&self) -> Option<Step> {
        self.order.as_ref()?;
        match self.phase {
            Phase::Requested => Some(Step::Draw),
            Phase::Drawn => Some(Step::Fill),
            Phase::Returning => Some(Step::Return),
            Phase::Refused | Phase::Completed | Phase::Returned | Phase::Stuck => None,
        }
    }
}

/// The event that records the outcome of a step.
fn recorded(step: Step, outcome: Result<(), String>) -> Event {
    match (step, outcome) {
        (Step::Draw, Ok(())) => Event::HaulDrawn {},
        (Step::Draw, Err(reason)) => Event::HaulRefused { reason },
        (Step::Fill, Ok(())) => Event::HaulCompleted {},
        (Step::Fill, Err(reason)) => Event::HaulFillRefused { reason },
        (Step::Return, Ok(())) => Event::HaulReturned {},
        (Step::Return, Err(reason)) => Event::HaulReturnRefused { reason },
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::spec::{given, valid};

    use super::*;

    const A: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
    const B: &str = "263082d2-b005-45d7-9eb6-aa1f83efd55d";

    fn ada() -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some("ada".into()) }
    }

    fn request(to: &str) -> Command {
        Command::Request { from: Id::new(A).unwrap(), to: Id::new(to).unwrap(), amount: valid(30) }
    }

    fn requested() -> Event {
        Event::HaulRequested {
            from_tank_id: A.into(),
            to_tank_id: B.into(),
            amount: 30,
            requested_by: Some("ada".into()),
        }
    }

    #[test]
    fn a_haul_is_requested_once_and_between_two_tanks() {
        given::<Haul>([]).when(request(B), &ada()).then([requested()]);
        given::<Haul>([]).when(request(A), &ada()).then_refused(&SAME_TANK);
        given::<Haul>([requested()]).when(request(B), &ada()).then_refused(&EXISTS);
        given::<Haul>([]).when(Command::Record(Step::Draw, Ok(())), &ada()).then_refused(&UNKNOWN);
    }

    #[test]
    fn every_outcome_of_a_due_step_is_recorded_once() {
        let no = || Err("no".to_owned());
        let returning = || {
            vec![requested(), Event::HaulDrawn {}, Event::HaulFillRefused { reason: "no".into() }]
        };
        for (history, step) in [
            (vec![requested()], Step::Draw),
            (vec![requested(), Event::HaulDrawn {}], Step::Fill),
            (returning(), Step::Return),
        ] {
            assert_eq!(Step::after(history.last().unwrap()), Some(step));
            for outcome in [Ok(()), no()] {
                let event = recorded(step, outcome.clone());
                let record = Command::Record(step, outcome);
                given::<Haul>(history.clone()).when(record.clone(), &ada()).then([event.clone()]);
                let history = [history.clone(), vec![event]].concat();
                given::<Haul>(history).when(record, &ada()).then([]);
            }
        }
    }
}
