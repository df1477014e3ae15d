//! A handler that is tried with a crash after each of its calls, and what can be seen afterwards.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::Commit;
use ledgerline_dynamodb::{DynamoDbStore, ReadTable};
use ledgerline_lambda::{
    fifo::{Consumer, Fifo},
    process_manager::{ProcessManager, Reaction},
    wire::Message,
};
use ledgerline_local::testing::table;

use crate::{wire::Wire, world::World};

/// What was done so far, and how it was answered: the caller's memory, which survives the handler's end.
pub type Done = Rc<RefCell<Vec<String>>>;

/// A handler, and what it is called with.
#[expect(missing_debug_implementations, reason = "holds closures")]
pub struct Case {
    pub(crate) name: String,
    /// In the log before.
    pub(crate) log: Vec<Vec<Commit>>,
    /// Calls a cold instance with what is not done yet. Whether all of it is done.
    pub(crate) call: Box<dyn Fn(Wire, Done) -> LocalBoxFuture<'static, bool>>,
    /// Whether what came of it is as it should be, given what comes of it without a crash.
    pub(crate) right: fn(&Outcome, &Outcome) -> bool,
}

/// What can be seen afterwards.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub(crate) answers: Vec<String>,
    /// The items of all tables, by table and key, as text.
    pub tables: BTreeMap<String, String>,
    /// On the bus, each once.
    pub(crate) entries: Vec<String>,
    /// On the queues, each where it was first.
    pub(crate) messages: Vec<(String, String)>,
    /// How many mails were sent.
    pub mails: u64,
}

pub(crate) fn exactly(found: &Outcome, expected: &Outcome) -> bool {
    found == expected
}

/// Does those that are not done yet, until one fails.
pub(crate) async fn each<T>(done: &Done, all: &[T], run: impl AsyncFn(&T) -> Option<String>) -> bool {
    let first = done.borrow().len();
    for one in all.iter().skip(first) {
        match run(one).await {
            Some(answer) => done.borrow_mut().push(answer),
            None => return false,
        }
    }
    true
}

impl Case {
    /// A handler that is called with a wire and what is `done`, until it says that all is done: it notes there what it has
    /// done and how it was answered. `log` is in the log before. Afterwards everything is exactly as without a crash.
    pub fn new(
        name: &str,
        log: Vec<Vec<Commit>>,
        call: impl Fn(Wire, Done) -> LocalBoxFuture<'static, bool> + 'static,
    ) -> Self {
        Self { name: name.into(), log, call: Box::new(call), right: exactly }
    }

    /// What came of it is right if this says so, given what comes of it without a crash.
    #[must_use]
    pub fn right_if(self, right: fn(&Outcome, &Outcome) -> bool) -> Self {
        Self { right, ..self }
    }

    /// A consumer behind a queue: every stream's commits but the second, which is a gap to be repaired.
    pub fn consumer<C: Consumer + 'static>(
        name: &str,
        streams: Vec<Vec<Commit>>,
        consumer: impl Fn(&Wire) -> C + 'static,
    ) -> Self {
        let log = streams.clone();
        let consumer = Rc::new(consumer);
        let messages: Rc<Vec<String>> = Rc::new(
            streams
                .iter()
                .flat_map(|stream| stream.iter().filter(|commit| commit.version != 2 || stream.len() == 2))
                .filter_map(|commit| serde_json::to_string(&Message::Commit(Box::new(commit.clone()))).ok())
                .collect(),
        );
        let call = move |wire: Wire, done: Done| {
            let (messages, consumer) = (Rc::clone(&messages), Rc::clone(&consumer));
            async move {
                let fifo = Fifo { store: World::store_at(&wire), consumer: consumer(&wire) };
                each(&done, &messages, async |body| fifo.message(body).await.ok().map(|()| String::new()))
                    .await
            }
            .boxed_local()
        };
        Self::new(name, log, call)
    }
}

/// An instance of a process manager behind a queue, whose positions are in the table with this logical id.
pub fn manager<R: Reaction>(
    wire: &Wire,
    positions: &str,
    reaction: R,
) -> Fifo<DynamoDbStore, ProcessManager<R>> {
    let positions = ReadTable::new(wire.dynamodb(), table(positions));
    Fifo { store: World::store_at(wire), consumer: ProcessManager { positions, reaction } }
}
