//! A todo: created, updated, done, reopened, and in the end deleted, by the caller who created it.
//! A deleted todo is answered like one that never existed, except that its id stays taken.

use std::borrow::Cow;

use ledgerline::{Aggregate, Context, LongText, Refusal, Text, ValueObject, values};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

// --- Values --------------------------------------------------------------------------------------

/// A short description of the todo.
pub type Title = Text<200>;

/// A longer description of the todo.
pub type Message = LongText<4_000>;

/// The changes of an update. Missing fields leave their values unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "UpdateTodo")]
pub struct Update {
    /// The new title.
    #[serde(default)]
    pub title: Option<Title>,
    /// The new message.
    #[serde(default)]
    pub message: Option<Message>,
    /// The new status.
    #[serde(default)]
    pub status: Option<Status>,
}

/// Whether a todo is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TodoStatus")]
pub enum Status {
    /// The todo is not done.
    Open,
    /// The todo is done.
    Done,
}

impl ValueObject for Status {
    type Plain = String;

    fn expectation() -> Cow<'static, str> {
        "a status is open or done".into()
    }

    fn read(text: String) -> Option<Self> {
        match text.as_str() {
            "open" => Some(Self::Open),
            "done" => Some(Self::Done),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::deserialize(deserializer)
    }
}

// --- Events --------------------------------------------------------------------------------------

ledgerline::events! {
    /// The events of a todo.
    pub enum Event {
        /// The todo was created, and belongs to the caller. The message may be empty.
        TodoCreated: 1 { title: String, message: String, created_by: Option<String> },
        /// The title or the message was changed.
        TodoUpdated: 1 { title: String, message: String },
        /// The todo was done.
        TodoCompleted: 1 {},
        /// The todo was reopened.
        TodoReopened: 1 {},
        /// The todo was deleted, and cannot be restored.
        TodoDeleted: 1 {},
    }
}

// --- State ---------------------------------------------------------------------------------------

/// The state of a todo.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// The stream has no commits.
    #[default]
    Uncreated,
    /// The todo is not done.
    Open(Created),
    /// The todo is done.
    Done(Created),
    /// The todo is deleted. Its stream stays, so that its id stays taken.
    Deleted(Created),
}

/// The data of a todo that the rules and the view need.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    /// The title.
    pub title: String,
    /// The message.
    pub message: String,
    /// The subject of the caller who created the todo, to whom it belongs.
    pub created_by: Option<String>,
}

impl State {
    /// Returns the todo, unless it was never created.
    fn created(self) -> Option<Created> {
        match self {
            Self::Uncreated => None,
            Self::Open(todo) | Self::Done(todo) | Self::Deleted(todo) => Some(todo),
        }
    }
}

// --- Decisions -----------------------------------------------------------------------------------

/// A command to a todo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Create it.
    Create(Title, Message),
    /// Change the named fields.
    Update(Update),
    /// Delete it.
    Delete,
}

ledgerline::refusals! {
    /// The todo was never created, or is deleted.
    UNKNOWN = not_found("unknown-todo", "there is no such todo");
    /// The id is taken; the id of a deleted todo stays taken.
    EXISTS = already_exists("todo-exists", "a todo with this id exists already");
    /// The todo belongs to another caller.
    NOT_YOURS = forbidden("not-your-todo", "the todo belongs to somebody else");
}

/// Returns the todo and its status, if it exists and belongs to the caller.
fn yours<'a>(state: &'a State, context: &Context) -> Result<(&'a Created, Status), Refusal> {
    let (todo, status) = match state {
        State::Uncreated | State::Deleted(_) => return Err(UNKNOWN),
        State::Open(todo) => (todo, Status::Open),
        State::Done(todo) => (todo, Status::Done),
    };
    if context.is_owner(todo.created_by.as_deref()) { Ok((todo, status)) } else { Err(NOT_YOURS) }
}

fn update((todo, status): (&Created, Status), update: &Update) -> Vec<Event> {
    let title = update.title.as_ref().map_or(&todo.title, Title::get);
    let message = update.message.as_ref().map_or(&todo.message, Message::get);
    let mut events = Vec::new();
    if *title != todo.title || *message != todo.message {
        events.push(Event::TodoUpdated { title: title.clone(), message: message.clone() });
    }
    match (status, update.status) {
        (Status::Open, Some(Status::Done)) => events.push(Event::TodoCompleted {}),
        (Status::Done, Some(Status::Open)) => events.push(Event::TodoReopened {}),
        (Status::Open | Status::Done, _) => {}
    }
    events
}

/// The todo aggregate. The id of a todo is a UUID that the client chooses.
#[derive(Debug)]
pub struct Todo;

impl Aggregate for Todo {
    const CATEGORY: &'static str = "todo";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match (state, event) {
            (_, Event::TodoCreated { title, message, created_by }) => State::Open(Created {
                title: title.clone(),
                message: message.clone(),
                created_by: created_by.clone(),
            }),
            (State::Open(todo), Event::TodoUpdated { title, message }) => {
                State::Open(Created { title: title.clone(), message: message.clone(), ..todo })
            }
            (State::Done(todo), Event::TodoUpdated { title, message }) => {
                State::Done(Created { title: title.clone(), message: message.clone(), ..todo })
            }
            (state, Event::TodoCompleted {}) => {
                state.created().map_or(State::Uncreated, State::Done)
            }
            (state, Event::TodoReopened {}) => {
                state.created().map_or(State::Uncreated, State::Open)
            }
            (state, Event::TodoDeleted {}) => {
                state.created().map_or(State::Uncreated, State::Deleted)
            }
            // No decision leads here, but `evolve` has to handle every event in every state.
            (state @ (State::Uncreated | State::Deleted(_)), Event::TodoUpdated { .. }) => state,
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Create(..) if *state != State::Uncreated => Err(EXISTS),
            Command::Create(title, message) => Ok(vec![Event::TodoCreated {
                title: title.to_string(),
                message: message.to_string(),
                created_by: context.actor.clone(),
            }]),
            Command::Update(changes) => Ok(update(yours(state, context)?, changes)),
            Command::Delete => yours(state, context).map(|_| vec![Event::TodoDeleted {}]),
        }
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
        Event::TodoCreated {
            title: "TODO".into(),
            message: "Make coffee".into(),
            created_by: Some("ada".into()),
        }
    }

    fn create() -> Command {
        Command::Create(valid("TODO"), valid("Make coffee"))
    }

    fn say(message: &str) -> Command {
        Command::Update(Update { message: Some(valid(message)), ..Update::default() })
    }

    fn set(status: Status) -> Command {
        Command::Update(Update { status: Some(status), ..Update::default() })
    }

    #[test]
    fn it_is_created_once_and_its_id_stays_taken() {
        given::<Todo>([]).when(create(), &by("ada")).then([created()]);
        given::<Todo>([created()]).when(create(), &by("ada")).then_refused(&EXISTS);
        given::<Todo>([created(), Event::TodoDeleted {}])
            .when(create(), &by("ada"))
            .then_refused(&EXISTS);
    }

    #[test]
    fn one_commit_changes_all_named_fields() {
        let title = Some(valid("Now"));
        let message = Some(valid("Two"));
        let status = Some(Status::Done);
        let update = Command::Update(Update { title, message, status });
        given::<Todo>([created()]).when(update.clone(), &by("ada")).then([
            Event::TodoUpdated { title: "Now".into(), message: "Two".into() },
            Event::TodoCompleted {},
        ]);
        given::<Todo>([created()])
            .when(say("Two"), &by("ada"))
            .then([Event::TodoUpdated { title: "TODO".into(), message: "Two".into() }]);
        given::<Todo>([created()]).when(say("Make coffee"), &by("ada")).then([]);
    }

    #[test]
    fn it_is_done_and_reopened() {
        given::<Todo>([created()])
            .when(set(Status::Done), &by("ada"))
            .then([Event::TodoCompleted {}]);
        given::<Todo>([created()]).when(set(Status::Open), &by("ada")).then([]);
        given::<Todo>([created(), Event::TodoCompleted {}])
            .when(set(Status::Open), &by("ada"))
            .then([Event::TodoReopened {}]);
    }

    #[test]
    fn a_deleted_todo_is_as_unknown_as_one_that_never_existed() {
        given::<Todo>([created()]).when(Command::Delete, &by("ada")).then([Event::TodoDeleted {}]);
        for history in [vec![], vec![created(), Event::TodoDeleted {}]] {
            for command in [say("Two"), set(Status::Done), Command::Delete] {
                given::<Todo>(history.clone()).when(command, &by("ada")).then_refused(&UNKNOWN);
            }
        }
    }

    #[test]
    fn no_other_caller_changes_it() {
        for stranger in [by("eve"), Context { actor: None, ..by("ada") }] {
            for command in [say("Two"), set(Status::Done), Command::Delete] {
                given::<Todo>([created()]).when(command, &stranger).then_refused(&NOT_YOURS);
            }
        }
    }

    /// Returns any command, built from any values: `None` if one of the values is invalid, because
    /// such a command cannot be built.
    fn any_command() -> impl Strategy<Value = Option<Command>> {
        let text = || prop_oneof![3 => "[a-z]{1,3}", 1 => ".*", 1 => Just("x".repeat(4_001))];
        let status = prop::option::of(prop_oneof![Just(Status::Open), Just(Status::Done)]);
        (0..4, text(), text(), status).prop_map(|(kind, title, message, status)| {
            let title = Title::new(title);
            let message = Message::new(message);
            Some(match kind {
                0 => Command::Create(title.ok()?, message.ok()?),
                1 => Command::Delete,
                _ => Command::Update(Update { title: title.ok(), message: message.ok(), status }),
            })
        })
    }

    proptest! {
        /// For all commands of all callers in all orders, a todo is created once, as its first
        /// event, and no event follows its deletion.
        #[test]
        fn a_todo_begins_once_and_ends_once(
            commands in prop::collection::vec((any_command(), 0..4_u8), 1..40),
        ) {
            let commands = commands.into_iter().filter_map(|(command, who)| {
                let context = if who == 0 { by("eve") } else { by("ada") };
                Some((command?, if who == 1 { Context { actor: None, ..context } } else { context }))
            });
            let (_, events) = live::<Todo>(commands);
            let created: Vec<_> = events.iter().map(|event| matches!(event, Event::TodoCreated { .. })).collect();
            prop_assert!(created.iter().enumerate().all(|(place, created)| *created == (place == 0)));
            let deleted = events.iter().position(|event| matches!(event, Event::TodoDeleted {}));
            prop_assert!(deleted.is_none_or(|place| place + 1 == events.len()));
        }
    }
}
