//! What a workspace hands over of an application, to be tried as ledgerline itself is.

use std::{fmt, marker::PhantomData, num::NonZeroUsize, path::PathBuf, rc::Rc, sync::Arc};

use fastrand::Rng;
use futures::{FutureExt, future::LocalBoxFuture};
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Aggregates, Cache, Commit, LogTable, MemoryStore, Meta, RecordedState, StateTable, StreamId,
    encode, encode_state,
};
use ledgerline_dynamodb::{DynamoDbStore, ReadTable};
use ledgerline_lambda::{
    bus::{RowOf, StateProjector},
    commands::{Commands, Route},
    fanout::{Fanout, Wiring},
    fifo::{ChangesOf, Fifo, LogProjector},
    http::{HttpRequest, Response, Routes},
};
use ledgerline_local::testing::table;
use serde::Serialize;

use crate::{
    Finding,
    crashes::Case,
    evolution::{self, Shapes},
    files::Files,
    histories::{Clocks, Subject, Tally},
    inputs,
    pipeline::{Logged, Pipeline, Stateful, of_states},
    tank,
    wire::Wire,
    world::World,
};

/// As long as the template has answers to requests remembered: three days, one of them for clocks that are a day off, and
/// another one for those that are a day off the other way.
pub const RETENTION_SECONDS: i64 = 259_200;

/// The commands of one stream, in an order in which they make sense: the first one starts the stream.
#[derive(Debug)]
pub struct History<A: Aggregate> {
    /// The id of the aggregate.
    pub id: String,
    /// Who sends the commands.
    pub actor: String,
    /// The commands. Some may be refused.
    pub commands: Vec<A::Command>,
}

impl<A: Aggregate> History<A> {
    /// The commits that come of the commands. Whether a commit embeds its state is random.
    #[must_use]
    pub fn commits(&self, rng: &mut Rng) -> Vec<Commit> {
        self.written(|| rng.bool())
    }

    /// The commits that come of the commands, each with its state.
    #[must_use]
    pub fn commits_with_states(&self) -> Vec<Commit> {
        self.written(|| true)
    }

    fn written(&self, mut embed: impl FnMut() -> bool) -> Vec<Commit> {
        let Ok(stream) = StreamId::new(A::CATEGORY, &self.id) else { return Vec::new() };
        let mut state = A::initial();
        let mut commits: Vec<Commit> = Vec::new();
        for command in &self.commands {
            let embed = embed();
            let version = commits.len() as u64 + 1;
            let at = Timestamp::from_second(1_795_253_400 + commits.len() as i64);
            let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
            let context = ledgerline::Context { at, actor: Some(self.actor.clone()) };
            let Ok(events) = A::decide(&state, command, &context) else { continue };
            let recorded: Result<Vec<_>, _> = events.iter().map(encode::<A>).collect();
            let Some(recorded) = recorded.ok().filter(|events| !events.is_empty()) else { continue };
            state = ledgerline::fold::<A>(state, &events);
            commits.push(Commit {
                stream: stream.clone(),
                version,
                events: recorded,
                state: encode_state::<A>(&state).ok().filter(|_| embed),
                command: format!("{stream}:{version}"),
                at,
                meta: Meta::default(),
            });
        }
        commits
    }
}

/// Histories of an aggregate: one for each name, the same for the same name and randomness.
pub type Histories<A> = fn(&str, &mut Rng) -> History<A>;

/// An instance of a function that takes commands.
pub(crate) type Instance = Rc<dyn Fn(HttpRequest) -> LocalBoxFuture<'static, Response>>;

/// The fanout of an application's aggregates.
pub(crate) type MakeFanout =
    fn(DynamoDbStore, aws_sdk_eventbridge::Client, aws_sdk_sqs::Client, Wiring) -> Fanout;

/// Plays so many concurrent histories from a seed on.
type Play = Box<dyn Fn(u64, u64, Clocks) -> Result<(Tally, u64), Finding> + Send + Sync>;

/// Makes the commits of a stream.
type Write = Box<dyn Fn(&str, &mut Rng) -> Vec<Commit> + Send + Sync>;

/// Makes a cold instance, on a store at the other end of a wire or in memory.
type MakeInstance = Arc<dyn Fn(Option<&Wire>) -> Instance + Send + Sync>;

/// An aggregate.
pub(crate) struct Streams {
    pub(crate) category: &'static str,
    pub(crate) write: Write,
    pub(crate) play: Play,
}

/// A function that takes commands.
pub(crate) struct CommandFunction {
    pub(crate) name: &'static str,
    pub(crate) instance: MakeInstance,
}

/// A function behind the bus.
#[derive(Clone)]
pub(crate) struct StateView {
    pub(crate) table: &'static str,
    pub(crate) category: &'static str,
    pub(crate) instance: Arc<dyn Fn(&Wire) -> Stateful + Send + Sync>,
}

/// A function behind a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogView {
    pub(crate) table: &'static str,
    pub(crate) category: &'static str,
    keys: LogTable,
    pub(crate) changes: ChangesOf,
}

impl LogView {
    /// The projector at the end of this wire.
    pub(crate) fn consumer(&self, wire: &Wire) -> LogProjector {
        let table = ReadTable::new(wire.dynamodb(), table(self.table));
        LogProjector { table, keys: self.keys, changes: self.changes }
    }

    pub(crate) fn instance(&self, wire: &Wire) -> Logged {
        Logged {
            table: self.table,
            url: format!("http://wire.invalid/{}.fifo", self.table),
            category: self.category,
            fifo: Fifo { store: World::store_at(wire), consumer: self.consumer(wire) },
        }
    }
}

/// An application: what of it is tried, and with what.
///
/// A workspace makes one in a test of the application's functions, and has it tried with [`application_tests!`](crate::application_tests).
pub struct Application {
    pub(crate) name: &'static str,
    /// `<category>.json` for each aggregate.
    pub(crate) shapes: Files,
    /// `<function>/<case>.json`, and `answers.md` beside them.
    pub(crate) events: Files,
    pub(crate) fanout: MakeFanout,
    pub(crate) read_shapes: fn(&Files) -> Shapes,
    pub(crate) read_commit: fn(&Commit),
    pub(crate) read_state: fn(&RecordedState) -> usize,
    pub(crate) streams: Vec<Streams>,
    pub(crate) commands: Vec<CommandFunction>,
    pub(crate) stateful: Vec<StateView>,
    pub(crate) logged: Vec<LogView>,
    pub(crate) more_tables: Vec<&'static str>,
    pub(crate) cases: Vec<fn() -> Case>,
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

impl Application {
    /// An application of which nothing is tried yet but that all shapes in the folder `shapes` are read: `<category>.json`
    /// for each aggregate. Its sample events are in the folder `events` of the workspace.
    #[must_use]
    pub fn new<L: Aggregates>(name: &'static str, shapes: impl Into<PathBuf>) -> Self {
        let events = ledgerline_local::testing::workspace().join("events");
        Self::of::<L>(name, Files::Folder(shapes.into()), Files::Folder(events))
    }

    pub(crate) fn of<L: Aggregates>(name: &'static str, shapes: Files, events: Files) -> Self {
        Self {
            name,
            shapes,
            events,
            fanout: Fanout::new::<L>,
            read_shapes: evolution::read_all::<L>,
            read_commit: inputs::read::<L>,
            read_state: inputs::states::<L>,
            streams: Vec::new(),
            commands: Vec::new(),
            stateful: Vec::new(),
            logged: Vec::new(),
            more_tables: Vec::new(),
            cases: Vec::new(),
        }
    }

    /// Commands to this aggregate are sent by several clients at once, and what is `shown` of a state must be explained by
    /// some order of them; and commits of its histories are delivered, lost and repeated on the way to the views.
    ///
    /// What is `shown` must not depend on the time, which is another one for each client.
    #[must_use]
    pub fn aggregate<A: Aggregate>(
        mut self,
        histories: Histories<A>,
        shown: fn(&A::State) -> String,
    ) -> Self {
        let subject = Subject { histories, shown };
        self.streams.push(Streams {
            category: A::CATEGORY,
            write: Box::new(move |name, rng| histories(name, rng).commits(rng)),
            play: Box::new(move |seed, runs, clocks| subject.all(seed, runs, clocks)),
        });
        self
    }

    /// The function of this name takes commands by this route. Its sample events are sent with crashes in between, and
    /// changed into bad input.
    #[must_use]
    pub fn commands<A: Aggregate>(mut self, function: &'static str, route: Route<A>) -> Self {
        fn instance<A: Aggregate, S: ledgerline::EventStore + 'static>(
            store: S,
            route: Route<A>,
        ) -> Instance {
            let cache = Cache::new(NonZeroUsize::MIN);
            let function = Rc::new(Commands::<A, _> { store, cache, retention: RETENTION_SECONDS, route });
            Rc::new(move |request| {
                let function = Rc::clone(&function);
                async move { function.handle(&request).await.unwrap_or_else(Response::from) }.boxed_local()
            })
        }
        self.commands.push(CommandFunction {
            name: function,
            instance: Arc::new(move |wire| match wire {
                Some(wire) => instance(World::store_at(wire), route),
                None => instance(MemoryStore::default(), route),
            }),
        });
        self
    }

    /// A state projector writes these rows into the table with this logical id.
    #[must_use]
    pub fn state_projector<A: Aggregate, Row: Serialize + 'static>(
        mut self,
        id: &'static str,
        keys: StateTable,
        row: RowOf<A, Row>,
    ) -> Self {
        self.stateful.push(StateView {
            table: id,
            category: A::CATEGORY,
            instance: Arc::new(move |wire| {
                let table = ReadTable::new(wire.dynamodb(), table(id));
                of_states(id, StateProjector::<A, Row> { table, keys, row, aggregate: PhantomData })
            }),
        });
        self
    }

    /// A log projector makes these changes of the commits of a category in the table with this logical id.
    #[must_use]
    pub fn log_projector(
        mut self,
        id: &'static str,
        category: &'static str,
        keys: LogTable,
        changes: ChangesOf,
    ) -> Self {
        self.logged.push(LogView { table: id, category, keys, changes });
        self
    }

    /// Something else that a function does, tried with a crash after each of its calls. It uses the tables with these
    /// logical ids besides.
    #[must_use]
    pub fn case(mut self, tables: &[&'static str], case: fn() -> Case) -> Self {
        for table in tables {
            if !self.more_tables.contains(table) {
                self.more_tables.push(table);
            }
        }
        self.cases.push(case);
        self
    }

    /// Whether it is the one of ledgerline itself.
    pub(crate) fn is_ledgerlines(&self) -> bool {
        self.name == tank::NAME
    }

    /// Logical ids of all tables: those of the log first.
    pub(crate) fn tables(&self) -> Vec<&'static str> {
        let views =
            self.stateful.iter().map(|view| view.table).chain(self.logged.iter().map(|view| view.table));
        ["CommitsTable", "RequestsTable"]
            .into_iter()
            .chain(views)
            .chain(self.more_tables.iter().copied())
            .collect()
    }

    /// Makes everything behind the log at the end of a wire.
    pub(crate) fn pipeline(&self) -> Rc<dyn Fn(&Wire) -> Pipeline> {
        let (fanout, stateful, logged) = (self.fanout, self.stateful.clone(), self.logged.clone());
        Rc::new(move |wire| Pipeline::of(fanout, &stateful, &logged, wire))
    }

    /// Commits of a stream of this category.
    pub(crate) fn write(&self, category: &str, name: &str, rng: &mut Rng) -> Vec<Commit> {
        let streams = self.streams.iter().find(|streams| streams.category == category);
        streams.map(|streams| (streams.write)(name, rng)).unwrap_or_default()
    }
}
