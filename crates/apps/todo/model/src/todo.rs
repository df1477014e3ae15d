//! Something to do: created, updated, done, reopened, and in the end deleted, by who created it. A deleted one is as if
//! it had never been, except that its id stays taken.

use ledgerline::{Aggregate, Context, EventType, Rejection, RejectionKind};
use serde::{Deserialize, Serialize};

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `todo-<id>`, the id a lower-case UUID that the client made.
pub const CATEGORY: &str = "todo";

// --- Events -----------------------------------------------------------------------------------------------------

/// What happened to a todo. These types are the storage format: change a shape only together with an upcaster in
/// [`Todo::EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Event {
    /// It exists from now on.
    #[serde(rename_all = "camelCase")]
    TodoCreated {
        /// In a few words.
        title: String,
        /// In more words; may be empty.
        message: String,
        /// The subject of the caller, whose it is.
        created_by: Option<String>,
    },
    /// It says something else.
    #[serde(rename_all = "camelCase")]
    TodoUpdated {
        /// In a few words, from now on.
        title: String,
        /// In more words, from now on.
        message: String,
    },
    /// It is done.
    TodoCompleted {},
    /// It is not done after all.
    TodoReopened {},
    /// Nobody needs it any more.
    TodoDeleted {},
}

// --- State ------------------------------------------------------------------------------------------------------

/// What the rules and the read model need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Where it is in its life.
    pub status: Status,
    /// In a few words.
    pub title: String,
    /// In more words.
    pub message: String,
    /// The subject of who created it, whose it is.
    pub created_by: Option<String>,
}

/// Where a todo is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Nothing happened in this stream yet.
    Uncreated,
    /// To be done.
    Open,
    /// Done.
    Done,
    /// Deleted. Its stream stays, and its id with it.
    Deleted,
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// What a client can ask of a todo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Create it.
    Create {
        /// In a few words.
        title: String,
        /// In more words.
        message: String,
    },
    /// Change what is named.
    Update {
        /// In a few words.
        title: Option<String>,
        /// In more words.
        message: Option<String>,
        /// Whether it is done.
        done: Option<bool>,
    },
    /// Delete it.
    Delete,
}

/// Why the answer is no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is none, or none any more.
    #[error("there is no such todo")]
    Unknown,
    /// The id is taken, be it by one that was deleted.
    #[error("a todo with this id exists already")]
    Exists,
    /// It belongs to somebody else.
    #[error("the todo belongs to somebody else")]
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
            Self::Unknown => "unknown-todo",
            Self::Exists => "todo-exists",
            Self::NotYours => "not-your-todo",
        }
    }
}

fn must_be_yours(state: &State, context: &Context) -> Result<(), Refusal> {
    match state.status {
        Status::Uncreated | Status::Deleted => Err(Refusal::Unknown),
        // What nobody created is nobody's, also not that of a caller without a name.
        Status::Open | Status::Done if context.actor.is_none() || state.created_by != context.actor => {
            Err(Refusal::NotYours)
        }
        Status::Open | Status::Done => Ok(()),
    }
}

fn update(state: &State, title: Option<&str>, message: Option<&str>, done: Option<bool>) -> Vec<Event> {
    let mut events = Vec::new();
    let (title, message) = (title.unwrap_or(&state.title), message.unwrap_or(&state.message));
    if title != state.title || message != state.message {
        events.push(Event::TodoUpdated { title: title.into(), message: message.into() });
    }
    match (state.status, done) {
        (Status::Open, Some(true)) => events.push(Event::TodoCompleted {}),
        (Status::Done, Some(false)) => events.push(Event::TodoReopened {}),
        (Status::Uncreated | Status::Open | Status::Done | Status::Deleted, _) => {}
    }
    events
}

/// The todo aggregate.
#[derive(Debug)]
pub struct Todo;

impl Aggregate for Todo {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 1;
    const EVENTS: &'static [EventType] = &[
        EventType::new("TodoCreated"),
        EventType::new("TodoUpdated"),
        EventType::new("TodoCompleted"),
        EventType::new("TodoReopened"),
        EventType::new("TodoDeleted"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State { status: Status::Uncreated, title: String::new(), message: String::new(), created_by: None }
    }

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::TodoCreated { title, message, created_by } => State {
                status: Status::Open,
                title: title.clone(),
                message: message.clone(),
                created_by: created_by.clone(),
            },
            Event::TodoUpdated { title, message } => {
                State { title: title.clone(), message: message.clone(), ..state }
            }
            Event::TodoCompleted {} => State { status: Status::Done, ..state },
            Event::TodoReopened {} => State { status: Status::Open, ..state },
            Event::TodoDeleted {} => State { status: Status::Deleted, ..state },
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        match command {
            Command::Create { title, message } => match state.status {
                Status::Uncreated => Ok(vec![Event::TodoCreated {
                    title: title.clone(),
                    message: message.clone(),
                    created_by: context.actor.clone(),
                }]),
                Status::Open | Status::Done | Status::Deleted => Err(Refusal::Exists),
            },
            Command::Update { title, message, done } => must_be_yours(state, context)
                .map(|()| update(state, title.as_deref(), message.as_deref(), *done)),
            Command::Delete => must_be_yours(state, context).map(|()| vec![Event::TodoDeleted {}]),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ledgerline::{decode, encode, spec::given};

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
        Command::Create { title: "TODO".into(), message: "Make coffee".into() }
    }

    fn say(message: &str) -> Command {
        Command::Update { title: None, message: Some(message.into()), done: None }
    }

    fn set_done(done: bool) -> Command {
        Command::Update { title: None, message: None, done: Some(done) }
    }

    #[test]
    fn it_is_created_once_and_its_id_stays_taken() {
        given::<Todo>([]).when(create(), &by("ada")).then([created()]);
        given::<Todo>([created()]).when(create(), &by("ada")).then_refused(&Refusal::Exists);
        given::<Todo>([created(), Event::TodoDeleted {}])
            .when(create(), &by("ada"))
            .then_refused(&Refusal::Exists);
    }

    #[test]
    fn what_is_named_is_changed_in_one_commit() {
        let update =
            Command::Update { title: Some("Now".into()), message: Some("Two".into()), done: Some(true) };
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
        given::<Todo>([created()]).when(set_done(true), &by("ada")).then([Event::TodoCompleted {}]);
        given::<Todo>([created()]).when(set_done(false), &by("ada")).then([]);
        given::<Todo>([created(), Event::TodoCompleted {}])
            .when(set_done(false), &by("ada"))
            .then([Event::TodoReopened {}]);
    }

    #[test]
    fn a_deleted_one_is_as_unknown_as_one_that_never_was() {
        given::<Todo>([created()]).when(Command::Delete, &by("ada")).then([Event::TodoDeleted {}]);
        for history in [vec![], vec![created(), Event::TodoDeleted {}]] {
            for command in [say("Two"), set_done(true), Command::Delete] {
                given::<Todo>(history.clone()).when(command, &by("ada")).then_refused(&Refusal::Unknown);
            }
        }
    }

    #[test]
    fn nobody_else_changes_it() {
        for stranger in [by("eve"), Context { actor: None, ..by("ada") }] {
            for command in [say("Two"), set_done(true), Command::Delete] {
                given::<Todo>([created()]).when(command, &stranger).then_refused(&Refusal::NotYours);
            }
        }
    }

    #[test]
    fn events_without_fields_are_objects() {
        let stored = encode::<Todo>(&Event::TodoDeleted {}).unwrap();
        assert_eq!((stored.event_type.as_str(), stored.data.as_str()), ("TodoDeleted", "{}"));
        assert_eq!(decode::<Todo>(&stored).unwrap(), Event::TodoDeleted {});
    }
}
