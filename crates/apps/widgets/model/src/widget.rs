//! A widget: a small device that is sold on a website, with a name, a description and a stock. It
//! belongs to the caller who created it. The events are those of the article on the AWS event
//! store.

use ledgerline::{Aggregate, Context, LongText, Number, Refusal, Text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// --- Values --------------------------------------------------------------------------------------

/// The name of a widget.
pub type Name = Text<200>;

/// The description of a widget.
pub type Description = LongText<2_000>;

/// The number of pieces of a widget that are in stock.
pub type Stock = Number<0, MAX_STOCK>;

/// The most pieces of a widget that may be in stock.
pub const MAX_STOCK: i64 = 1_000_000_000;

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The events of a widget.
    pub enum Event {
        /// The widget was created, and belongs to the caller. The description may be empty.
        WidgetCreated: 1 { name: String, description: String, stock: u32, created_by: Option<String> },
        /// The name was changed.
        WidgetNameChanged: 1 { name: String },
        /// The description was changed.
        WidgetDescriptionChanged: 1 { description: String },
        /// The stock was set to this number.
        WidgetStockUpdated: 1 { stock: u32 },
    }
}

// --- State ---------------------------------------------------------------------------------------

/// The state of a widget.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// The stream has no commits.
    #[default]
    Uncreated,
    /// The widget exists.
    Created(Created),
}

/// The data of a widget that the rules and the view need.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// The widget's name.
    pub name: String,
    /// The widget's description; may be empty.
    pub description: String,
    /// The number of pieces in stock.
    pub stock: u32,
    /// The subject of the caller who created the widget, to whom it belongs.
    pub created_by: Option<String>,
}

impl State {
    fn with(self, change: impl FnOnce(Created) -> Created) -> Self {
        match self {
            Self::Uncreated => Self::Uncreated,
            Self::Created(widget) => Self::Created(change(widget)),
        }
    }
}

// --- Decisions -----------------------------------------------------------------------------------

/// A command to a widget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `CreateWidget`.
    Create(Name, Description, Stock),
    /// `ChangeWidgetName`.
    ChangeName(Name),
    /// `ChangeWidgetDescription`.
    ChangeDescription(Description),
    /// `UpdateWidgetStock`.
    UpdateStock(Stock),
}

ledgerline::refusals! {
    /// The widget does not exist.
    UNKNOWN = not_found("unknown-widget", "there is no such widget");
    /// The id is taken.
    EXISTS = already_exists("widget-exists", "a widget with this id exists already");
    /// The widget belongs to another caller.
    NOT_YOURS = forbidden("not-your-widget", "the widget belongs to somebody else");
}

/// Returns the widget, if it exists and belongs to the caller.
fn yours<'a>(state: &'a State, context: &Context) -> Result<&'a Created, Refusal> {
    match state {
        State::Uncreated => Err(UNKNOWN),
        State::Created(widget) if context.is_owner(widget.created_by.as_deref()) => Ok(widget),
        State::Created(_) => Err(NOT_YOURS),
    }
}

/// The stock as a plain number, which events and states hold.
fn plain(stock: Stock) -> u32 {
    u32::try_from(*stock.get()).unwrap_or_default()
}

/// The widget aggregate. The id of a widget is a UUID.
#[derive(Debug)]
pub struct Widget;

impl Aggregate for Widget {
    const CATEGORY: &'static str = "widget";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::WidgetCreated { name, description, stock, created_by } => {
                State::Created(Created {
                    name: name.clone(),
                    description: description.clone(),
                    stock: *stock,
                    created_by: created_by.clone(),
                })
            }
            Event::WidgetNameChanged { name } => {
                state.with(|widget| Created { name: name.clone(), ..widget })
            }
            Event::WidgetDescriptionChanged { description } => {
                state.with(|widget| Created { description: description.clone(), ..widget })
            }
            Event::WidgetStockUpdated { stock } => {
                state.with(|widget| Created { stock: *stock, ..widget })
            }
        }
    }

    /// A value that the widget has already is no change: nothing is appended.
    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let (changes, event) = match command {
            Command::Create(..) if *state != State::Uncreated => return Err(EXISTS),
            Command::Create(name, description, stock) => {
                let event = Event::WidgetCreated {
                    name: name.to_string(),
                    description: description.to_string(),
                    stock: plain(*stock),
                    created_by: context.actor.clone(),
                };
                (true, event)
            }
            Command::ChangeName(name) => (
                yours(state, context)?.name != *name.get(),
                Event::WidgetNameChanged { name: name.to_string() },
            ),
            Command::ChangeDescription(text) => {
                let changes = yours(state, context)?.description != *text.get();
                (changes, Event::WidgetDescriptionChanged { description: text.to_string() })
            }
            Command::UpdateStock(stock) => {
                let stock = plain(*stock);
                (yours(state, context)?.stock != stock, Event::WidgetStockUpdated { stock })
            }
        };
        Ok(if changes { vec![event] } else { Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::spec::{given, live, valid};
    use proptest::prelude::*;

    use super::*;

    fn by(actor: &str) -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some(actor.into()) }
    }

    fn created() -> Event {
        Event::WidgetCreated {
            name: "Sprocket".into(),
            description: "Round".into(),
            stock: 5,
            created_by: Some("ada".into()),
        }
    }

    fn create() -> Command {
        Command::Create(valid("Sprocket"), valid("Round"), valid(5))
    }

    fn changes() -> [(Command, Event); 3] {
        [
            (Command::ChangeName(valid("Cog")), Event::WidgetNameChanged { name: "Cog".into() }),
            (
                Command::ChangeDescription(valid("Flat")),
                Event::WidgetDescriptionChanged { description: "Flat".into() },
            ),
            (Command::UpdateStock(valid(0)), Event::WidgetStockUpdated { stock: 0 }),
        ]
    }

    #[test]
    fn it_is_created_once() {
        given::<Widget>([]).when(create(), &by("ada")).then([created()]);
        given::<Widget>([created()]).when(create(), &by("eve")).then_refused(&EXISTS);
    }

    #[test]
    fn only_the_caller_who_created_it_changes_it() {
        let nobody = Context { actor: None, ..by("ada") };
        for (command, event) in changes() {
            given::<Widget>([created()]).when(command.clone(), &by("ada")).then([event]);
            given::<Widget>([created()]).when(command.clone(), &by("eve")).then_refused(&NOT_YOURS);
            given::<Widget>([created()]).when(command.clone(), &nobody).then_refused(&NOT_YOURS);
            given::<Widget>([]).when(command, &by("ada")).then_refused(&UNKNOWN);
        }
    }

    #[test]
    fn a_value_that_it_has_already_changes_nothing() {
        for (command, event) in changes() {
            given::<Widget>([created(), event]).when(command, &by("ada")).then([]);
        }
    }

    /// Returns any command, built from any values: `None` if one of the values is invalid, because
    /// such a command cannot be built.
    fn any_command() -> impl Strategy<Value = Option<Command>> {
        let text = || prop_oneof![3 => "[a-z]{1,3}", 1 => ".*", 1 => Just("x".repeat(2_001))];
        let stock = prop_oneof![2 => 0..3_i64, 1 => any::<i64>(), 1 => Just(MAX_STOCK), 1 => Just(MAX_STOCK + 1)];
        (0..5, text(), text(), stock).prop_map(|(kind, name, description, stock)| {
            let name = Name::new(name);
            let description = Description::new(description);
            let stock = Stock::new(stock);
            Some(match kind {
                0 => Command::Create(name.ok()?, description.ok()?, stock.ok()?),
                1 => Command::ChangeName(name.ok()?),
                2 => Command::ChangeDescription(description.ok()?),
                _ => Command::UpdateStock(stock.ok()?),
            })
        })
    }

    proptest! {
        /// For all commands of all callers in all orders, a widget is created once, and its stock
        /// stays in its range. Every event changes the state.
        #[test]
        fn the_stock_never_leaves_its_range(
            commands in prop::collection::vec((any_command(), any::<bool>()), 1..40),
        ) {
            let commands = commands.into_iter().filter_map(|(command, eve)| {
                Some((command?, by(if eve { "eve" } else { "ada" })))
            });
            let (_, events) = live::<Widget>(commands);
            let mut state = State::Uncreated;
            for (place, event) in events.iter().enumerate() {
                prop_assert_eq!(place == 0, matches!(event, Event::WidgetCreated { .. }));
                if let Event::WidgetCreated { stock, .. } | Event::WidgetStockUpdated { stock } = event {
                    prop_assert!(i64::from(*stock) <= MAX_STOCK);
                }
                let next = Widget::evolve(state.clone(), event);
                prop_assert_ne!(&next, &state);
                state = next;
            }
        }
    }
}
