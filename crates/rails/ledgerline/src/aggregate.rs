//! What an aggregate is (rule 12).

use std::fmt::Display;

use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};

use crate::EventType;

/// A consistency boundary: one stream of events, one state folded from them, and the decisions made on it.
///
/// Rules live in [`decide`](Aggregate::decide) and never in [`evolve`](Aggregate::evolve): a rule that is
/// tightened later must not break the history that an older rule allowed.
///
/// A counter, as small as an aggregate can be; [`crate::tank`] is a whole one.
///
/// ```
/// use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind, fold};
/// use serde::{Deserialize, Serialize};
///
/// struct Counter;
///
/// #[derive(Clone, Serialize, Deserialize)]
/// #[serde(tag = "type", content = "data")]
/// enum Step {
///     Increment,
///     Decrement,
/// }
///
/// #[derive(Debug, Clone, PartialEq, thiserror::Error)]
/// #[error("the counter is at 0")]
/// struct AtZero;
///
/// impl Rejection for AtZero {
///     fn kind(&self) -> RejectionKind {
///         RejectionKind::Refused
///     }
///
///     fn code(&self) -> &'static str {
///         "at-zero"
///     }
/// }
///
/// impl Aggregate for Counter {
///     const CATEGORY: &'static str = "counter";
///     const STATE_SCHEMA: u32 = 1;
///     const EVENTS: &'static [EventType] = &[EventType::new("Increment"), EventType::new("Decrement")];
///
///     type State = u64;
///     type Event = Step;
///     type Command = Step;
///     type Rejection = AtZero;
///
///     fn initial() -> u64 {
///         0
///     }
///
///     fn evolve(counter: u64, step: &Step) -> u64 {
///         match step {
///             Step::Increment => counter + 1,
///             Step::Decrement => counter - 1,
///         }
///     }
///
///     fn decide(counter: &u64, step: &Step, _: &Context) -> Result<Vec<Step>, AtZero> {
///         match step {
///             Step::Decrement if *counter == 0 => Err(AtZero),
///             step => Ok(vec![step.clone()]),
///         }
///     }
/// }
///
/// let events = [Step::Increment, Step::Increment, Step::Increment, Step::Decrement];
/// assert_eq!(fold::<Counter>(Counter::initial(), &events), 2);
/// ```
pub trait Aggregate: Sized + Send + Sync + 'static {
    /// First part of every stream name of this aggregate: `[a-z][a-z0-9]*`.
    const CATEGORY: &'static str;
    /// Number of the state's shape. Raise it whenever `State` or `evolve` changes: states stored under another
    /// number are ignored and folded again (rule 5).
    const STATE_SCHEMA: u32;
    /// A commit embeds the state at least every this many commits, so that a cold load reads at most as many.
    const SNAPSHOT_EVERY: u64 = 8;
    /// Every event type ever stored, with the upcasters that bring its older shapes up to date.
    const EVENTS: &'static [EventType];

    /// What decisions and read models need to know; serialized as a JSON object.
    type State: Clone + std::fmt::Debug + Send + Sync + Serialize + DeserializeOwned;
    /// What happened, in the past tense; serialized adjacently tagged as `type` and `data`.
    type Event: Clone + Send + Sync + Serialize + DeserializeOwned;
    /// What a client asks for, already validated field by field.
    type Command: Send + Sync;
    /// Why the domain says no.
    type Rejection: Rejection;

    /// The state of a stream without events.
    fn initial() -> Self::State;

    /// The state after one more event. Total: it accepts every event that was ever stored.
    fn evolve(state: Self::State, event: &Self::Event) -> Self::State;

    /// The events that the command causes in this state; none when there is nothing to change.
    ///
    /// # Errors
    /// The domain's reason to refuse.
    fn decide(
        state: &Self::State,
        command: &Self::Command,
        context: &Context,
    ) -> Result<Vec<Self::Event>, Self::Rejection>;
}

/// What arrives with every command from outside the core (rule 12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// When the command was received.
    pub at: Timestamp,
    /// Who sent it: the caller's subject, or `None` where callers are not signed in.
    pub actor: Option<String>,
}

/// A domain's refusal, with what the edge needs to answer it.
///
/// ```
/// use ledgerline::{Rejection, RejectionKind, tank::Refusal};
///
/// let refusal = Refusal::TooLittle { level: 5, amount: 6 };
/// assert_eq!((refusal.kind(), refusal.code()), (RejectionKind::Refused, "too-little"));
/// assert_eq!(refusal.to_string(), "the level of 5 does not cover 6");
/// ```
pub trait Rejection: Display + std::fmt::Debug + Clone + PartialEq + Send + Sync + 'static {
    /// Which family of answers it belongs to.
    fn kind(&self) -> RejectionKind;
    /// Stable name in kebab case, for programs: the end of the problem's `type`.
    fn code(&self) -> &'static str;
}

/// The families of refusals. The edge maps them to HTTP in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionKind {
    /// The aggregate does not exist.
    NotFound,
    /// The aggregate exists already.
    AlreadyExists,
    /// The caller may not do this.
    Forbidden,
    /// A rule of the domain says no.
    Refused,
}

/// Folds events over a state.
pub fn fold<'a, A: Aggregate>(state: A::State, events: impl IntoIterator<Item = &'a A::Event>) -> A::State {
    events.into_iter().fold(state, |state, event| A::evolve(state, event))
}

/// Some aggregates, for code that works with all of them without knowing any.
///
/// ```
/// use ledgerline::{Aggregates, Visitor, tank::Tank};
///
/// struct All;
///
/// impl Aggregates for All {
///     fn visit(visitor: &mut impl Visitor) {
///         visitor.visit::<Tank>();
///     }
/// }
/// ```
pub trait Aggregates {
    /// Shows each aggregate to the visitor.
    fn visit(visitor: &mut impl Visitor);
}

/// Is shown aggregates.
///
/// ```
/// use ledgerline::{Aggregate, Aggregates, Visitor};
///
/// /// The categories of some aggregates.
/// fn categories<L: Aggregates>() -> Vec<&'static str> {
///     struct Categories(Vec<&'static str>);
///     impl Visitor for Categories {
///         fn visit<A: Aggregate>(&mut self) {
///             self.0.push(A::CATEGORY);
///         }
///     }
///     let mut categories = Categories(Vec::new());
///     L::visit(&mut categories);
///     categories.0
/// }
/// # use ledgerline::tank::Tank;
/// # struct All;
/// # impl Aggregates for All {
/// #     fn visit(visitor: &mut impl Visitor) {
/// #         visitor.visit::<Tank>();
/// #     }
/// # }
/// assert_eq!(categories::<All>(), ["tank"]);
/// ```
pub trait Visitor {
    /// Called once for each aggregate.
    fn visit<A: Aggregate>(&mut self);
}
