//! Cases for the proof of crashes: handlers that crash at each of their calls, and the outcome that
//! is visible afterwards.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use aws_lambda_events::sqs::SqsMessage;
use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::Commit;
use ledgerline_dynamodb::{DynamoDbStore, LogRows};
use ledgerline_lambda::{
    messages::{details, unknown_state},
    process_manager::{POSITIONS, ProcessManager, Reaction},
    queue::{Consumer, QueueRunner},
};
use ledgerline_testing::table;
use serde_json::Value;

use crate::{faulty_wire::Wire, pipeline::commit_message, world::World};

/// The answers so far, in the memory of the caller. The list survives a crash of the handler.
pub type Done = Rc<RefCell<Vec<String>>>;

/// A handler, its input, and the check of its outcome.
#[expect(missing_debug_implementations, reason = "holds closures")]
pub struct Case {
    pub(crate) name: String,
    /// The commits in the log at the first call, by stream.
    pub(crate) log: Vec<Vec<Commit>>,
    /// Calls a cold instance with the answers so far. The result is `true` when everything is done.
    pub(crate) call: Box<dyn Fn(Wire, Done) -> LocalBoxFuture<'static, bool>>,
    /// Whether the outcome with a crash (first argument) is right, given the outcome without one
    /// (second argument).
    pub(crate) right: fn(&Outcome, &Outcome) -> bool,
}

/// The outcome of a case: everything that is visible when all is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub(crate) answers: Vec<String>,
    /// The items of all tables, by table and key, as text.
    pub tables: BTreeMap<String, String>,
    /// The entries on the bus, and the states with which functions were invoked: sorted, without
    /// duplicates.
    pub(crate) entries: Vec<String>,
    /// The messages in the queues, by URL and body. Of duplicates, only the first counts.
    pub(crate) messages: Vec<(String, String)>,
    /// The number of mails that were sent.
    pub mails: u64,
}

pub(crate) fn exactly(found: &Outcome, expected: &Outcome) -> bool {
    found == expected
}

/// Runs `run` for each item of `all` that has no answer in `done`. It stops at the first failure.
/// The result is `true` when all items have an answer.
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
    /// A case that calls `call` with a wire and the answers so far, until `call` returns `true`.
    /// `call` adds an answer for each thing that it has done. The log has the commits of `log` at
    /// the start. An outcome with a crash must equal the outcome without one.
    pub fn new(
        name: &str,
        log: Vec<Vec<Commit>>,
        call: impl Fn(Wire, Done) -> LocalBoxFuture<'static, bool> + 'static,
    ) -> Self {
        Self { name: name.into(), log, call: Box::new(call), right: exactly }
    }

    /// Replaces the check of the outcome. `right` gets the outcome with a crash, and then the
    /// outcome without one.
    #[must_use]
    pub fn right_if(self, right: fn(&Outcome, &Outcome) -> bool) -> Self {
        Self { right, ..self }
    }

    /// A case of a consumer behind a queue. The consumer gets all commits of a stream but the second
    /// one, and must repair this gap. Of a stream of two commits it gets both, because no later
    /// commit would show the gap. All messages are in one batch, which is redelivered until no
    /// message fails.
    pub fn consumer<C: Consumer + 'static>(
        name: &str,
        streams: Vec<Vec<Commit>>,
        consumer: impl Fn(&Wire) -> C + 'static,
    ) -> Self {
        Self::consumer_with_gaps(name, streams, true, consumer)
    }

    /// Like [`Self::consumer`], but with `gaps` false the consumer gets all commits.
    pub(crate) fn consumer_with_gaps<C: Consumer + 'static>(
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
                .map(|commit| {
                    commit_message(&format!("{}@{}", commit.stream, commit.version), commit)
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

    /// A case of a consumer that a rule of the bus invokes. The consumer gets the entries of every
    /// stream in reverse order, without the entries of the second commit. It must read the earlier
    /// commits from the log. Of a stream of two commits it gets both. All entries are in one event,
    /// which is redelivered until no entry fails.
    pub fn listener<C: Consumer + 'static>(
        name: &str,
        streams: Vec<Vec<Commit>>,
        consumer: impl Fn(&Wire) -> C + 'static,
    ) -> Self {
        let mut entries: Vec<Value> = Vec::new();
        for stream in &streams {
            let is_whole = stream.len() == 2;
            let named = stream.iter().rev().filter(|commit| is_whole || commit.version != 2);
            let texts =
                named.filter_map(|commit| details(commit, &unknown_state(), None).ok()).flatten();
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
                runner.apply_entries(entries.to_vec()).await.is_ok()
            }
            .boxed_local()
        };
        Self::new(name, streams, call)
    }
}

/// An instance of a process manager behind a queue. Its positions are in the table with the logical
/// id `positions`.
pub fn manager<R: Reaction>(
    wire: &Wire,
    positions: &str,
    reaction: R,
) -> QueueRunner<DynamoDbStore, ProcessManager<R>> {
    let positions = LogRows::new(wire.dynamodb(), table(positions), POSITIONS);
    QueueRunner { store: World::store_at(wire), consumer: ProcessManager { positions, reaction } }
}
