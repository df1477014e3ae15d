//! A widget: a small device that is sold on a website, with a name, a description and a stock. It belongs to who created
//! it. Events as in the article on the AWS event store.

use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind};
use serde::{Deserialize, Serialize};

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `widget-<widget id>`, the id a lower-case UUID.
pub const CATEGORY: &str = "widget";

/// The largest stock.
pub const MAX_STOCK: u32 = 1_000_000_000;

// --- Events -----------------------------------------------------------------------------------------------------

/// What happened to a widget. These types are the storage format: change a shape only together with an upcaster in
/// [`Widget::EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Event {
    /// It exists from now on.
    #[serde(rename_all = "camelCase")]
    WidgetCreated {
        /// Its name.
        name: String,
        /// What it is; may be empty.
        description: String,
        /// How many there are.
        stock: u32,
        /// The subject of the caller, whose it is.
        created_by: Option<String>,
    },
    /// It has another name.
    #[serde(rename_all = "camelCase")]
    WidgetNameChanged {
        /// Its name from now on.
        name: String,
    },
    /// It is described in other words.
    #[serde(rename_all = "camelCase")]
    WidgetDescriptionChanged {
        /// What it is, from now on.
        description: String,
    },
    /// There are more or fewer of it.
    #[serde(rename_all = "camelCase")]
    WidgetStockUpdated {
        /// How many there are from now on.
        stock: u32,
    },
}

// --- State ------------------------------------------------------------------------------------------------------

/// What the rules and the read model need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Whether it was created.
    pub exists: bool,
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: String,
    /// How many there are.
    pub stock: u32,
    /// The subject of who created it, whose it is.
    pub created_by: Option<String>,
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// What a client can ask of a widget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `CreateWidget`.
    Create {
        /// Its name.
        name: String,
        /// What it is.
        description: String,
        /// How many there are, up to [`MAX_STOCK`].
        stock: u32,
    },
    /// `ChangeWidgetName`.
    ChangeName {
        /// Its name from now on.
        name: String,
    },
    /// `ChangeWidgetDescription`.
    ChangeDescription {
        /// What it is, from now on.
        description: String,
    },
    /// `UpdateWidgetStock`.
    UpdateStock {
        /// How many there are from now on, up to [`MAX_STOCK`].
        stock: u32,
    },
}

/// Why the answer is no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is none.
    #[error("there is no such widget")]
    Unknown,
    /// The id is taken.
    #[error("a widget with this id exists already")]
    Exists,
    /// It belongs to somebody else.
    #[error("the widget belongs to somebody else")]
    NotYours,
}

impl Rejection for Refusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown => RejectionKind::NotFound,
            Self::Exists => RejectionKind::AlreadyExists,
            Self::NotYours => RejectionKind::Forbidden,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown-widget",
            Self::Exists => "widget-exists",
            Self::NotYours => "not-your-widget",
        }
    }
}

fn must_be_yours(state: &State, context: &Context) -> Result<(), Refusal> {
    if !state.exists {
        Err(Refusal::Unknown)
    } else if context.actor.is_none() || state.created_by != context.actor {
        // What nobody created is nobody's, also not that of a caller without a name.
        Err(Refusal::NotYours)
    } else {
        Ok(())
    }
}

/// The widget aggregate.
#[derive(Debug)]
pub struct Widget;

impl Aggregate for Widget {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 1;
    const EVENTS: &'static [EventType] = &[
        EventType::new("WidgetCreated"),
        EventType::new("WidgetNameChanged"),
        EventType::new("WidgetDescriptionChanged"),
        EventType::new("WidgetStockUpdated"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State::default()
    }

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::WidgetCreated { name, description, stock, created_by } => State {
                exists: true,
                name: name.clone(),
                description: description.clone(),
                stock: *stock,
                created_by: created_by.clone(),
            },
            Event::WidgetNameChanged { name } => State { name: name.clone(), ..state },
            Event::WidgetDescriptionChanged { description } => {
                State { description: description.clone(), ..state }
            }
            Event::WidgetStockUpdated { stock } => State { stock: *stock, ..state },
        }
    }

    /// What it is like already is no change: nothing is appended.
    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let (event, changes) = match command {
            Command::Create { .. } if state.exists => return Err(Refusal::Exists),
            Command::Create { name, description, stock } => {
                return Ok(vec![Event::WidgetCreated {
                    name: name.clone(),
                    description: description.clone(),
                    stock: *stock,
                    created_by: context.actor.clone(),
                }]);
            }
            Command::ChangeName { name } => {
                (Event::WidgetNameChanged { name: name.clone() }, *name != state.name)
            }
            Command::ChangeDescription { description } => (
                Event::WidgetDescriptionChanged { description: description.clone() },
                *description != state.description,
            ),
            Command::UpdateStock { stock } => {
                (Event::WidgetStockUpdated { stock: *stock }, *stock != state.stock)
            }
        };
        must_be_yours(state, context)?;
        Ok(if changes { vec![event] } else { Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::spec::given;

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
        Command::Create { name: "Sprocket".into(), description: "Round".into(), stock: 5 }
    }

    fn changes() -> [(Command, Event); 3] {
        [
            (Command::ChangeName { name: "Cog".into() }, Event::WidgetNameChanged { name: "Cog".into() }),
            (
                Command::ChangeDescription { description: "Flat".into() },
                Event::WidgetDescriptionChanged { description: "Flat".into() },
            ),
            (Command::UpdateStock { stock: 0 }, Event::WidgetStockUpdated { stock: 0 }),
        ]
    }

    #[test]
    fn it_is_created_once() {
        given::<Widget>([]).when(create(), &by("ada")).then([created()]);
        given::<Widget>([created()]).when(create(), &by("eve")).then_refused(&Refusal::Exists);
    }

    #[test]
    fn who_created_it_changes_it_and_nobody_else() {
        let nobody = Context { actor: None, ..by("ada") };
        for (command, event) in changes() {
            given::<Widget>([created()]).when(command.clone(), &by("ada")).then([event]);
            given::<Widget>([created()]).when(command.clone(), &by("eve")).then_refused(&Refusal::NotYours);
            given::<Widget>([created()]).when(command.clone(), &nobody).then_refused(&Refusal::NotYours);
            given::<Widget>([]).when(command, &by("ada")).then_refused(&Refusal::Unknown);
        }
    }

    #[test]
    fn what_it_is_like_already_changes_nothing() {
        for (command, event) in changes() {
            given::<Widget>([created(), event]).when(command, &by("ada")).then([]);
        }
    }
}
