//! Stock item: created, and renamed by its creator.

use ledgerline::{Aggregate, Context, Refusal, Text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

// --- Values --------------------------------------------------------------------------------------

/// The name of a stock item. A command cannot hold any other text.
pub type StockItemName = Text<200>;

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The stored events. A shape changes only together with its schema number and an upcaster.
    pub enum Event {
        /// A stock item was created. It belongs to the caller.
        StockItemCreated: 1 { name: String, created_by: Option<String> },
        /// The stock item got another name.
        StockItemRenamed: 1 { name: String },
    }
}

// --- State ---------------------------------------------------------------------------------------

/// The state of a stock item.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// The stream has no events.
    #[default]
    Uncreated,
    /// The stock item exists.
    Created(Created),
}

/// The data of an existing stock item that rules and views need.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "StockItem")]
pub struct Created {
    /// The name.
    pub name: String,
    /// The subject of the caller who created the stock item.
    pub created_by: Option<String>,
}

// --- Decisions -----------------------------------------------------------------------------------

/// The commands of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Create the stock item with this name.
    Create(StockItemName),
    /// Give the stock item another name.
    Rename(StockItemName),
}

ledgerline::refusals! {
    /// No stock item has this id.
    UNKNOWN = not_found("unknown-stock-item", "there is no such stock item");
    /// The id is taken.
    EXISTS = already_exists("stock-item-exists", "this id is taken");
    /// The stock item belongs to another caller.
    NOT_YOURS = forbidden("not-your-stock-item", "the stock item belongs to somebody else");
}

/// Returns the stock item if it exists and belongs to the caller.
fn yours<'a>(state: &'a State, context: &Context) -> Result<&'a Created, Refusal> {
    match state {
        State::Uncreated => Err(UNKNOWN),
        State::Created(it) if context.is_owner(it.created_by.as_deref()) => Ok(it),
        State::Created(_) => Err(NOT_YOURS),
    }
}

/// The aggregate. The id of a stock item is a UUID.
#[derive(Debug)]
pub struct StockItem;

impl Aggregate for StockItem {
    const CATEGORY: &'static str = "stockitem";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match (state, event) {
            (_, Event::StockItemCreated { name, created_by }) => {
                State::Created(Created { name: name.clone(), created_by: created_by.clone() })
            }
            (State::Created(it), Event::StockItemRenamed { name }) => {
                State::Created(Created { name: name.clone(), ..it })
            }
            // `decide` never renames a stock item that does not exist.
            (State::Uncreated, Event::StockItemRenamed { .. }) => State::Uncreated,
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Create(_) if *state != State::Uncreated => Err(EXISTS),
            Command::Create(name) => Ok(vec![Event::StockItemCreated {
                name: name.to_string(),
                created_by: context.actor.clone(),
            }]),
            Command::Rename(name) => match yours(state, context)? {
                it if it.name == *name.get() => Ok(Vec::new()),
                _ => Ok(vec![Event::StockItemRenamed { name: name.to_string() }]),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{
        fold,
        spec::{decide_twice, given, valid},
    };

    use super::*;

    fn by(actor: &str) -> Context {
        Context { at: Timestamp::UNIX_EPOCH, actor: Some(actor.into()) }
    }

    fn created() -> Event {
        Event::StockItemCreated { name: "First".into(), created_by: Some("ada".into()) }
    }

    fn create() -> Command {
        Command::Create(valid("First"))
    }

    fn rename(name: &str) -> Command {
        Command::Rename(valid(name))
    }

    #[test]
    fn it_is_created_once() {
        given::<StockItem>([]).when(create(), &by("ada")).then([created()]);
        given::<StockItem>([created()]).when(create(), &by("eve")).then_refused(&EXISTS);
    }

    #[test]
    fn only_its_creator_renames_it() {
        let renamed = Event::StockItemRenamed { name: "Second".into() };
        given::<StockItem>([created()]).when(rename("Second"), &by("ada")).then([renamed]);
        given::<StockItem>([created()]).when(rename("Second"), &by("eve")).then_refused(&NOT_YOURS);
        given::<StockItem>([]).when(rename("Second"), &by("ada")).then_refused(&UNKNOWN);
    }

    #[test]
    fn the_same_name_adds_no_event() {
        given::<StockItem>([created()]).when(rename("First"), &by("ada")).then([]);
    }

    /// A client that gets no response sends its command again.
    #[test]
    fn no_command_does_anything_when_it_is_sent_again() {
        let there = fold::<StockItem>(State::Uncreated, &[created()]);
        for (state, command) in [(State::Uncreated, create()), (there, rename("Second"))] {
            let expected = match command {
                Command::Create(_) => Err(EXISTS),
                Command::Rename(_) => Ok(Vec::new()),
            };
            assert_eq!(decide_twice::<StockItem>(&state, &command, &by("ada")), expected);
        }
    }
}
