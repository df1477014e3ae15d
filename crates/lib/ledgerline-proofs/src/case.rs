//! A handler that is tried with a crash at each of its calls, and the outcome that can be seen
//! afterwards.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use aws_lambda_events::sqs::SqsMessage;
use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::Commit;
use ledgerline_dynamodb::{DynamoDbStore, LogRows};
use ledgerline_lambda::{
    process_manager::{POSITIONS, ProcessManager, Reaction},
    queue::{Consumer, QueueRunner},
    wire::{Message, details, unknown_state},
};
use ledgerline_testing::table;
use serde_json::Value;

use crate::{pipeline::message, wire::Wire, world::World};

/// The answers to what was done so far: the memory of the caller, which survives the end of the
/// handler.
pub type Done = Rc<RefCell<Vec<String>>>;

/// A handler, its input, and the check of its outcome.
#[expect(missing_debug_implementations, reason = "holds closures")]
pub struct Case {
    pub(crate) name: String,
    /// The commits that are in the log before the first call, by stream.
    pub(crate) log: Vec<Vec<Commit>>,
    /// The call of a cold instance with what is not done yet. Its result says whether all is done.
    pub(crate) call: Box<dyn Fn(Wire, Done) -> LocalBoxFuture<'static, bool>>,
    /// The check of an outcome with a crash, the first argument, against the outcome without one,
    /// the second.
    pub(crate) right: fn(&Outcome, &Outcome) -> bool,
}

/// The outcome: everything that can be seen when all is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub(crate) answers: Vec<String>,
    /// The items of all tables, by table and key, as text.
    pub tables: BTreeMap<String, String>,
    /// The entries on the bus and the states that functions were invoked with: sorted, each once.
    pub(crate) entries: Vec<String>,
    /// The messages in the queues, by URL and body. A repeated message is only at the place of the
    /// first.
    pub(crate) messages: Vec<(String, String)>,
    /// The number of mails that were sent.
    pub mails: u64,
}

pub(crate) fn exactly(found: &Outcome, expected: &Outcome) -> bool {
    found == expected
}

/// Runs those of `all` that are not done yet, until one fails. The result says whether all are
/// done.
pub(crate) async fn each<T>(
    done: &Done,
    all: &[T],
    run: impl AsyncFn(&T) -> Option<String>,
) -> bool {
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
    /// A handler that is called with a wire and a list of answers until it says that all is done.
    /// It adds an answer to the list for each thing that it has done. The commits of `log` are in
    /// the log before. The outcome must be exactly the one without a crash.
    pub fn new(
        name: &str,
        log: Vec<Vec<Commit>>,
        call: impl Fn(Wire, Done) -> LocalBoxFuture<'static, bool> + 'static,
    ) -> Self {
        Self { name: name.into(), log, call: Box::new(call), right: exactly }
    }

    /// The outcome is right if this function says so. It gets the outcome with a crash and the one
    /// without.
    #[must_use]
    pub fn right_if(self, right: fn(&Outcome, &Outcome) -> bool) -> Self {
        Self { right, ..self }
    }

    /// A consumer behind a queue. It gets the commits of every stream without the second, and must
    /// repair this gap. Of a stream of two commits it gets both, because no later commit would show
    /// the gap. All come in one batch, which is delivered again until none of them fails.
    pub fn consumer<C: Consumer + 'static>(
        name: &str,
        streams: Vec<Vec<Commit>>,
        consumer: impl Fn(&Wire) -> C + 'static,
    ) -> Self {
        Self::consumer_of(name, streams, true, consumer)
    }

    /// [`Self::consumer`], which gets all commits if there are no gaps.
    pub(crate) fn consumer_of<C: Consumer + 'static>(
        name: &str,
        streams: Vec<Vec<Commit>>,
        gaps: bool,
        consumer: impl Fn(&Wire) -> C + 'static,
    ) -> Self {
        let log = streams.clone();
        let consumer = Rc::new(consumer);
        let messages: Rc<Vec<SqsMessage>> = Rc::new(
            streams
                .iter()
                .flat_map(|stream| {
                    let is_whole = !gaps || stream.len() == 2;
                    stream.iter().filter(move |commit| is_whole || commit.version != 2)
                })
                .filter_map(|commit| {
                    let id = format!("{}@{}", commit.stream, commit.version);
                    let body =
                        serde_json::to_string(&Message::Commit(Box::new(commit.clone()))).ok()?;
                    Some(message(&id, commit.stream.as_str(), &body, 1))
                })
                .collect(),
        );
        let call = move |wire: Wire, _: Done| {
            let messages = Rc::clone(&messages);
            let consumer = Rc::clone(&consumer);
            async move {
                let runner =
                    QueueRunner { store: World::store_at(&wire), consumer: consumer(&wire) };
                let failed = runner.batch(&messages).await.batch_item_failures;
                failed.is_empty()
            }
            .boxed_local()
        };
        Self::new(name, log, call)
    }
}

impl Case {
    /// A consumer that a rule of the bus wakes. It gets the entries of every stream without those
    /// of the second commit, the last one first, and must read from the log what comes before. Of a
    /// stream of two commits it gets both. All come in one event, which is delivered again until
    /// none of them fails.
    pub fn listener<C: Consumer + 'static>(
        name: &str,
        streams: Vec<Vec<Commit>>,
        consumer: impl Fn(&Wire) -> C + 'static,
    ) -> Self {
        let mut entries: Vec<Value> = Vec::new();
        for stream in &streams {
            let is_whole = stream.len() == 2;
            let named = stream.iter().rev().filter(|commit| is_whole || commit.version != 2);
            let texts = named.filter_map(|commit| details(commit, &unknown_state()).ok()).flatten();
            entries.extend(texts.filter_map(|detail| serde_json::from_str::<Value>(&detail).ok()));
        }
        let entries = Rc::new(entries);
        let consumer = Rc::new(consumer);
        let call = move |wire: Wire, _: Done| {
            let entries = Rc::clone(&entries);
            let consumer = Rc::clone(&consumer);
            async move {
                let runner =
                    QueueRunner { store: World::store_at(&wire), consumer: consumer(&wire) };
                runner.entries(entries.to_vec()).await.is_ok()
            }
            .boxed_local()
        };
        Self::new(name, streams, call)
    }
}

/// An instance of a process manager behind a queue. Its positions are in the table with this
/// logical id.
pub fn manager<R: Reaction>(
    wire: &Wire,
    positions: &str,
    reaction: R,
) -> QueueRunner<DynamoDbStore, ProcessManager<R>> {
    let positions = LogRows::new(wire.dynamodb(), table(positions), POSITIONS);
    QueueRunner { store: World::store_at(wire), consumer: ProcessManager { positions, reaction } }
}
