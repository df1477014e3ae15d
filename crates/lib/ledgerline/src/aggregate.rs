//! The definition of an aggregate (rule 12).

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{EventTypes, InvalidStreamId, Refusal, StreamId};

/// A consistency boundary: one stream of events, one state folded from them, and the decisions made
/// on it.
///
/// Rules live in [`decide`](Aggregate::decide) and never in [`evolve`](Aggregate::evolve): a rule
/// that is tightened later must not break a stream that an older rule allowed.
///
/// The example is a counter, as small as an aggregate can be; [`crate::testing::tank`] is a complete
/// aggregate.
///
/// ```
/// use ledgerline::{Aggregate, Context, Refusal, fold};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// ledgerline::events! {
///     /// What happened to a counter.
///     pub enum Step {
///         /// It counts one more.
///         Increment: 1 {},
///         /// It counts one less.
///         Decrement: 1 {},
///     }
/// }
///
/// #[derive(Debug, Clone, Default, JsonSchema, Serialize, Deserialize)]
/// struct Count {
///     count: u64,
/// }
///
/// const AT_ZERO: Refusal = Refusal::refused("at-zero", "the counter is at 0");
///
/// struct Counter;
///
/// impl Aggregate for Counter {
///     const CATEGORY: &'static str = "counter";
///     const STATE_SCHEMA: u32 = 1;
///     const REFUSALS: &'static [Refusal] = &[AT_ZERO];
///
///     type State = Count;
///     type Event = Step;
///     type Command = Step;
///
///     fn evolve(Count { count }: Count, step: &Step) -> Count {
///         match step {
///             Step::Increment {} => Count { count: count + 1 },
///             Step::Decrement {} => Count { count: count - 1 },
///         }
///     }
///
///     fn decide(state: &Count, step: &Step, _: &Context) -> Result<Vec<Step>, Refusal> {
///         match step {
///             Step::Decrement {} if state.count == 0 => Err(AT_ZERO),
///             step => Ok(vec![step.clone()]),
///         }
///     }
/// }
///
/// let events = [Step::Increment {}, Step::Increment {}, Step::Increment {}, Step::Decrement {}];
/// assert_eq!(fold::<Counter>(Counter::initial(), &events).count, 2);
/// ```
pub trait Aggregate: Sized + Send + Sync + 'static {
    /// The first part of every stream name of this aggregate: `[a-z][a-z0-9]*`.
    const CATEGORY: &'static str;
    /// The number of the state's shape. Raise it whenever `State` or `evolve` changes. States
    /// stored under another number are ignored and folded again (rule 5), unless
    /// [`upcast_state`](Self::upcast_state) upcasts them.
    const STATE_SCHEMA: u32;
    /// At least one of this many commits in a row embeds the state, so that a cold load reads at
    /// most as many. Only a state that does not fit in the commit's item is left out.
    const SNAPSHOT_EVERY: u64 = 8;
    /// Every refusal that [`decide`](Self::decide) returns, each with a code of its own. It is the
    /// list that clients see (docs/http.md is checked against it). A test with
    /// [`spec::given`](crate::spec::given) fails on a refusal that is missing here.
    const REFUSALS: &'static [Refusal];

    /// The facts that decisions and read models need, serialized as a JSON object. The default is
    /// the state of a stream without events.
    type State: Clone
        + Default
        + std::fmt::Debug
        + Send
        + Sync
        + JsonSchema
        + Serialize
        + DeserializeOwned;
    /// The events of the aggregate, named in the past tense and declared with
    /// [`events!`](crate::events).
    type Event: EventTypes + Clone + Send + Sync + Serialize + DeserializeOwned;
    /// The requests of clients, made of [`ValueObject`](crate::ValueObject)s, so that no command
    /// exists whose fields break a rule.
    type Command: Send + Sync;

    /// Returns the state of a stream without events.
    fn initial() -> Self::State {
        Self::State::default()
    }

    /// Upcasts the data of a state that was stored under an older schema; `None` if that is
    /// impossible. Then a load folds events from further back (rule 5), and a state projector
    /// refuses entries of that schema that are still in transit.
    fn upcast_state(_schema: u32, _data: Value) -> Option<Value> {
        None
    }

    /// Returns the name of the stream of the aggregate with this id.
    fn stream(id: &str) -> Result<StreamId, InvalidStreamId> {
        StreamId::new(Self::CATEGORY, id)
    }

    /// Returns the state after one more event. The function is total: it accepts every event that
    /// was ever stored.
    fn evolve(state: Self::State, event: &Self::Event) -> Self::State;

    /// Returns the events that the command causes in this state; no event if there is nothing to
    /// change.
    ///
    /// # Errors
    /// The domain's reason to refuse.
    fn decide(
        state: &Self::State,
        command: &Self::Command,
        context: &Context,
    ) -> Result<Vec<Self::Event>, Refusal>;
}

/// The data that arrives with every command from outside the core (rule 12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The time when the command was received.
    pub at: Timestamp,
    /// The sender of the command: the caller's subject, or `None` if the caller is not signed in.
    pub actor: Option<String>,
}

impl Context {
    /// Returns whether the caller is this owner. A caller without a name owns nothing, and a thing
    /// without an owner belongs to no caller. A plain comparison would give the second to the
    /// first.
    ///
    /// ```
    /// use ledgerline::Context;
    ///
    /// let at = "2026-11-22T09:30:00Z".parse()?;
    /// let ada = Context { at, actor: Some("ada".into()) };
    /// assert!(ada.is_owner(Some("ada")) && !ada.is_owner(Some("eve")) && !ada.is_owner(None));
    /// assert!(!Context { at, actor: None }.is_owner(None));
    /// # Ok::<_, jiff::Error>(())
    /// ```
    pub fn is_owner(&self, owner: Option<&str>) -> bool {
        self.actor.is_some() && self.actor.as_deref() == owner
    }
}

/// Folds events over a state.
pub fn fold<'a, A: Aggregate>(
    state: A::State,
    events: impl IntoIterator<Item = &'a A::Event>,
) -> A::State {
    events.into_iter().fold(state, |state, event| A::evolve(state, event))
}

/// A list of aggregates, for code that does the same with each of them and names none of them.
///
/// ```
/// use ledgerline::{Aggregates, Visitor, testing::tank::Tank};
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

/// Code that visits each aggregate of a list, one after the other, as [`categories`] does with the
/// names of their streams.
pub trait Visitor {
    /// Called once for each aggregate.
    fn visit<A: Aggregate>(&mut self);

    /// Called once for each type of row, with the name of its file in `model/shapes/rows`.
    fn row<Row: JsonSchema>(&mut self, _name: &'static str) {}
}

/// Returns the categories of these aggregates, in their order.
///
/// ```
/// use ledgerline::{Aggregates, Visitor, categories, testing::tank::Tank};
///
/// struct All;
///
/// impl Aggregates for All {
///     fn visit(visitor: &mut impl Visitor) {
///         visitor.visit::<Tank>();
///     }
/// }
/// assert_eq!(categories::<All>(), ["tank"]);
/// ```
pub fn categories<L: Aggregates>() -> Vec<&'static str> {
    struct Categories(Vec<&'static str>);
    impl Visitor for Categories {
        fn visit<A: Aggregate>(&mut self) {
            self.0.push(A::CATEGORY);
        }
    }
    let mut categories = Categories(Vec::new());
    L::visit(&mut categories);
    categories.0
}
