//! Applications under proof: a workspace describes its application, and the proofs try it as they
//! try ledgerline.

use std::{fmt, num::NonZeroUsize, path::PathBuf, rc::Rc, sync::Arc};

use fastrand::Rng;
use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::{
    Aggregate, Aggregates, Cache, Commit, LogView, MemoryStore, RecordedState, StateView,
};
use ledgerline_dynamodb::StateRows;
use ledgerline_lambda::{
    commands::{self, Commands, Route},
    fanout::Fanout,
    http::{HttpRequest, Response, Routes},
    state_projector::{self, StateProjector},
};
use ledgerline_testing::table;
use serde::Serialize;

pub use crate::races::{Histories, History, RETENTION_SECONDS};
use crate::{
    Effort, Finding, Runs,
    case::Case,
    counts::Counts,
    decoding,
    faulty_wire::Wire,
    files::Files,
    pipeline::{LogFunction, MakeFanout, Pipeline, StateFunction, stateful},
    races::Subject,
    role::Role,
    world::World,
};

/// An instance of a command function.
pub(crate) type Instance = Rc<dyn Fn(HttpRequest) -> LocalBoxFuture<'static, Response>>;

/// Plays concurrent histories.
type Play = Box<dyn Fn(&Effort, &Runs) -> Result<Counts, Finding> + Send + Sync>;

/// Creates the commits of a stream.
type Write = Box<dyn Fn(&str, &mut Rng) -> Vec<Commit> + Send + Sync>;

/// Creates a cold instance on the store behind a wire; without a wire, on a store in memory.
type MakeInstance = Arc<dyn Fn(Option<&Wire>) -> Instance + Send + Sync>;

/// An aggregate, with functions that create streams of it.
pub(crate) struct Streams {
    pub(crate) category: &'static str,
    pub(crate) write: Write,
    pub(crate) play: Play,
}

/// A command function.
pub(crate) struct CommandFunction {
    pub(crate) name: &'static str,
    pub(crate) instance: MakeInstance,
}

/// The parts of an application that the proofs run, and the input for them.
///
/// A workspace creates an application in a test of its functions, and passes it to
/// [`application_tests!`](crate::application_tests).
pub struct Application {
    pub(crate) name: &'static str,
    /// Whether this is the application of ledgerline itself.
    pub(crate) is_builtin: bool,
    /// The stored shapes: `<category>.json` for each aggregate.
    shapes: Files,
    /// The sample events: `<function>/<case>.json`.
    pub(crate) events: Files,
    /// The expected answers to the sample events, under the same paths.
    pub(crate) answers: Files,
    pub(crate) fanout: MakeFanout,
    unreadable: fn(&Files) -> Vec<String>,
    pub(crate) read_commit: fn(&Commit),
    pub(crate) read_state: fn(&RecordedState) -> bool,
    pub(crate) streams: Vec<Streams>,
    pub(crate) commands: Vec<CommandFunction>,
    pub(crate) stateful: Vec<StateFunction>,
    pub(crate) logged: Vec<LogFunction>,
    pub(crate) more_tables: Vec<&'static str>,
    pub(crate) reads: Vec<fn(&Commit)>,
    pub(crate) cases: Vec<fn() -> Case>,
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// Decodes all stored shapes of an application. Returns an error for each aggregate that does not
/// decode all of its shapes.
#[must_use]
pub fn unreadable_shapes(application: &Application) -> Vec<String> {
    (application.unreadable)(&application.shapes)
}

impl Application {
    /// An application with stored shapes alone: those in the folder `shapes`, `<category>.json` for
    /// each aggregate. Its sample events are in the folder `events` of the workspace, with the
    /// answers in `tests/answers`. The other methods add further parts.
    #[must_use]
    pub fn new<L: Aggregates>(name: &'static str, shapes: impl Into<PathBuf>) -> Self {
        let workspace = ledgerline_testing::workspace();
        let [events, answers] =
            ["events", "tests/answers"].map(|folder| Files::Folder(workspace.join(folder)));
        Self::from_files::<L>(name, Files::Folder(shapes.into()), events, answers)
    }

    /// Like [`Self::new`], with other files of shapes, sample events and answers.
    pub(crate) fn from_files<L: Aggregates>(
        name: &'static str,
        shapes: Files,
        events: Files,
        answers: Files,
    ) -> Self {
        Self {
            name,
            is_builtin: false,
            shapes,
            events,
            answers,
            fanout: Fanout::new::<L>,
            unreadable: decoding::unreadable::<L>,
            read_commit: decoding::read_commit::<L>,
            read_state: decoding::read_state::<L>,
            streams: Vec::new(),
            commands: Vec::new(),
            stateful: Vec::new(),
            logged: Vec::new(),
            more_tables: Vec::new(),
            reads: Vec::new(),
            cases: Vec::new(),
        }
    }

    /// Adds an aggregate. Several clients send commands to it at once, and some order of the
    /// commands must explain the text that `shown` returns for its states. The commits of its
    /// histories are delivered, lost and duplicated on the way to the views.
    ///
    /// `shown` must not depend on the time, because each client has another clock.
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
            play: Box::new(move |effort, runs| subject.play_all(effort, runs)),
        });
        self
    }

    /// Adds a command function with these routes. The proofs send its sample events with crashes in
    /// between, and mutate them into bad input.
    #[must_use]
    pub fn commands<A: Aggregate>(
        mut self,
        function: &'static str,
        routes: fn() -> Vec<Route<A>>,
    ) -> Self {
        fn instance<A: Aggregate, S: ledgerline::EventStore + 'static>(
            store: S,
            routes: Vec<Route<A>>,
        ) -> Instance {
            let cache = Cache::new(NonZeroUsize::MIN);
            let retention = RETENTION_SECONDS;
            let function = Rc::new(Commands::<A, _> {
                store,
                cache,
                retention,
                source_addresses: false,
                routes,
            });
            Rc::new(move |request| {
                let function = Rc::clone(&function);
                async move { function.handle(&request).await.unwrap_or_else(Response::from) }
                    .boxed_local()
            })
        }
        let role = Role::new(&commands::manifest(&routes()));
        self.commands.push(CommandFunction {
            name: function,
            instance: Arc::new(move |wire| match wire {
                Some(wire) => instance(World::store_at(&wire.under(&role)), routes()),
                None => instance(MemoryStore::default(), routes()),
            }),
        });
        self
    }

    /// Adds a state projector, which writes the rows of this view into the table with the logical
    /// id `id`.
    #[must_use]
    pub fn state_projector<A: Aggregate, Row: Serialize + 'static>(
        mut self,
        id: &'static str,
        view: StateView<A, Row>,
    ) -> Self {
        let role = Role::new(&state_projector::manifest(&view));
        self.stateful.push(StateFunction {
            table: id,
            category: A::CATEGORY,
            instance: Arc::new(move |wire| {
                let wire = wire.under(&role);
                let table = StateRows::new(wire.dynamodb(), table(id), view.table);
                stateful(id, StateProjector::new(table, World::store_at(&wire), view))
            }),
        });
        self
    }

    /// Adds a log projector, which writes the rows of this view into the table with the logical id
    /// `id`.
    #[must_use]
    pub fn log_projector(mut self, id: &'static str, view: LogView) -> Self {
        self.logged.push(LogFunction::new(id, view));
        self
    }

    /// Adds the decoder of one of the application's own consumers. The decoder gets bad input too.
    #[must_use]
    pub fn reads(mut self, read: fn(&Commit)) -> Self {
        self.reads.push(read);
        self
    }

    /// Adds another case for the proof of crashes, which crashes it at each of its calls. `tables`
    /// are the logical ids of further tables of the case.
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

    /// Marks the application as ledgerline's own.
    pub(crate) fn builtin(self) -> Self {
        Self { is_builtin: true, ..self }
    }

    /// The logical ids of all tables, those of the log first.
    pub(crate) fn tables(&self) -> Vec<&'static str> {
        let views = self
            .stateful
            .iter()
            .map(|view| view.table)
            .chain(self.logged.iter().map(|view| view.table));
        ["CommitsTable", "RequestsTable"]
            .into_iter()
            .chain(views)
            .chain(self.more_tables.iter().copied())
            .collect()
    }

    /// The pipeline of the application, behind this wire.
    pub(crate) fn pipeline_at(&self, wire: &Wire) -> Pipeline {
        Pipeline::new(self.fanout, &self.stateful, &self.logged, wire)
    }

    /// Returns a function that creates the pipeline of the application behind a wire.
    pub(crate) fn pipeline(&self) -> Rc<dyn Fn(&Wire) -> Pipeline> {
        let fanout = self.fanout;
        let stateful = self.stateful.clone();
        let logged = self.logged.clone();
        Rc::new(move |wire| Pipeline::new(fanout, &stateful, &logged, wire))
    }

    /// The commits of a stream of this category.
    pub(crate) fn write(&self, category: &str, name: &str, rng: &mut Rng) -> Vec<Commit> {
        let streams = self.streams.iter().find(|streams| streams.category == category);
        streams.map(|streams| (streams.write)(name, rng)).unwrap_or_default()
    }
}
