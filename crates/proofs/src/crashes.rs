//! A crash after every single call that a handler makes. Somebody calls it again, as whoever called it would, and in the
//! end everything is as if nothing had happened.

use std::{cell::RefCell, collections::BTreeMap, marker::PhantomData, num::NonZeroUsize, path::Path, rc::Rc};

use ::widgets::{views::widgets, widget::Widget};
use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use bank::{
    account::Account,
    transfer::Transfer,
    views::{balances, transactions, transfers},
};
use bank_functions::process_managers::transfer::Transfers;
use fastrand::Rng;
use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::{Aggregate, Cache, Commit, EventStore, LogTable, StateTable};
use ledgerline_dynamodb::{DynamoDbStore, ReadTable};
use ledgerline_lambda::{
    bus::{RowOf, StateProjector},
    commands::{Commands, Route},
    fifo::{ChangesOf, Consumer, Fifo, LogProjector},
    http::{HttpRequest, Response, Routes},
    process_manager::ProcessManager,
    stream::{Handler, Record, Unreadable},
    wire::Message,
};
use links::{
    link::Link,
    user::User,
    views::{link_ratings, user_ratings},
};
use links_functions::{process_managers::welcome_email::WelcomeEmail, projectors::feeds::FeedProjector};
use local::testing::table;
use serde::Serialize;
use serde_json::Value;
use todo::{todo::Todo, views::todos};

use crate::{
    Effort, Finding, Tried,
    bank::{RETENTION_SECONDS, seen},
    commits,
    pipeline::{Pipeline, record},
    wire::{Plan, Wire},
    world::World,
};

const TABLES: [&str; 12] = [
    "CommitsTable",
    "RequestsTable",
    "BalancesTable",
    "TransactionsTable",
    "TodosTable",
    "WidgetsTable",
    "TransfersTable",
    "LinkRatingsTable",
    "UserRatingsTable",
    "FeedsTable",
    "TransferPositionsTable",
    "WelcomeEmailPositionsTable",
];

/// How often somebody calls again, before it counts as never done.
const TRIES: usize = 20;

/// What was done so far, and how it was answered: the caller's memory, which survives the handler's end.
type Done = Rc<RefCell<Vec<String>>>;

/// A handler, and what it is called with.
struct Case {
    name: String,
    /// In the log before.
    log: Vec<Vec<Commit>>,
    /// Calls a cold instance with what is not done yet. Whether all of it is done.
    call: Box<dyn Fn(Wire, Done) -> LocalBoxFuture<'static, bool>>,
    /// Whether what came of it is as it should be, given what comes of it without a crash.
    right: fn(&Outcome, &Outcome) -> bool,
}

/// What can be seen afterwards.
#[derive(Debug, Clone, PartialEq)]
struct Outcome {
    answers: Vec<String>,
    tables: BTreeMap<String, String>,
    /// On the bus, each once.
    entries: Vec<String>,
    /// On the queues, each where it was first.
    messages: Vec<(String, String)>,
    mails: u64,
}

/// Ends every handler after each of its calls.
///
/// # Errors
/// When something came of it that does not without.
pub fn proof(effort: &Effort) -> Result<Tried, Finding> {
    let cases = cases(effort.seed);
    let (mut points, mut calls) = (0, Vec::new());
    for case in &cases {
        let (expected, all) = without(case)?;
        calls.push(format!("{} {all}", case.name));
        for applied in [false, true] {
            for after in 0..all {
                let found = interrupted(case, after, applied)?;
                if !(case.right)(&found, &expected) {
                    return Err(Finding {
                        seed: effort.seed,
                        story: difference(case, after, applied, &found, &expected),
                    });
                }
                points += 1;
            }
        }
    }
    let beside =
        format!("each call lost on its way there and, applied, on its way back; calls: {}", calls.join(", "));
    Ok(Tried::new(points, "crashes, all points", beside))
}

fn without(case: &Case) -> Result<(Outcome, usize), Finding> {
    let world = World::new(&TABLES)?;
    world.runtime.block_on(async {
        prepare(case, &world).await?;
        let done = Done::default();
        let _ = world.wire.take_calls();
        if !(case.call)(world.wire.clone(), Rc::clone(&done)).await {
            return Err(Finding { seed: 0, story: format!("{} does not work at all: {done:?}", case.name) });
        }
        let calls = world.wire.take_calls();
        Ok((observe(&world, done.take()), calls))
    })
}

/// The handler ends after so many calls; then it is called again until all is done, and once more for good measure.
fn interrupted(case: &Case, after: usize, applied: bool) -> Result<Outcome, Finding> {
    let world = World::new(&TABLES)?;
    world.runtime.block_on(async {
        prepare(case, &world).await?;
        let done = Done::default();
        world.wire.follow(Plan::Crash { after, applied }, 0);
        tokio::select! {
            _ = (case.call)(world.wire.clone(), Rc::clone(&done)) => {
                let story = format!("{} does not come to call {after}", case.name);
                return Err(Finding { seed: 0, story });
            }
            () = world.wire.crashed() => {}
        }
        world.wire.calm();
        let again = Done::default();
        for done in [&done, &again] {
            let mut tries = 0;
            while !(case.call)(world.wire.clone(), Rc::clone(done)).await {
                tries += 1;
                if tries == TRIES {
                    let story = format!("{} is never done after a crash at call {after}", case.name);
                    return Err(Finding { seed: 0, story });
                }
            }
        }
        if done != again {
            let story = format!("{}: {:?}\n  and when it is all done again {:?}", case.name, done, again);
            return Err(Finding { seed: 0, story });
        }
        Ok(observe(&world, done.take()))
    })
}

async fn prepare(case: &Case, world: &World) -> Result<(), Finding> {
    for commit in case.log.iter().flatten() {
        let appended = world.store().append(commit, None).await;
        appended.map_err(|error| Finding { seed: 0, story: format!("{}: {error}", case.name) })?;
    }
    Ok(())
}

fn observe(world: &World, answers: Vec<String>) -> Outcome {
    let services = world.wire.services();
    let mut tables = BTreeMap::new();
    for name in TABLES {
        let scan = serde_json::json!({ "TableName": table(name), "ConsistentRead": true });
        let answer: Value = serde_json::from_str(&services.call("Scan", &scan).body).unwrap_or_default();
        let items = answer["Items"].as_array().cloned().unwrap_or_default();
        for mut item in items {
            // Times of the clock, and what is made up anew for each try.
            for attribute in ["at", "expires", "tombstone", "claim"] {
                if let Some(value) = item.get_mut(attribute) {
                    *value = Value::Null;
                }
            }
            let key = |attribute: &str| item[attribute].as_object().map(|key| format!("{key:?}"));
            let keys: Vec<_> =
                ["stream", "version", "entry", "request"].into_iter().filter_map(key).collect();
            let keys = if keys.is_empty() { item.to_string() } else { keys.join(" ") };
            tables.insert(format!("{name} {keys}"), item.to_string());
        }
    }
    let mut entries: Vec<_> = services.take_entries().iter().map(Value::to_string).collect();
    entries.sort();
    entries.dedup();
    let mut messages = Vec::new();
    let urls = Pipeline::new(&world.wire).logged.into_iter().map(|logged| logged.url);
    for url in urls.chain(["http://wire.invalid/dead-letters".to_owned()]) {
        for queued in services.take_messages(&url) {
            let message = (url.clone(), queued.body);
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
    }
    Outcome { answers, tables, entries, messages, mails: services.mails() }
}

fn difference(case: &Case, after: usize, applied: bool, found: &Outcome, expected: &Outcome) -> String {
    let applied = if applied { "applied" } else { "not applied" };
    let mut story = format!("{}, ended at call {after}, {applied}", case.name);
    let keys = found.tables.keys().chain(expected.tables.keys());
    for key in keys.filter(|key| found.tables.get(*key) != expected.tables.get(*key)) {
        let (is, should) = (found.tables.get(key), expected.tables.get(key));
        story += &format!("\n  {key}\n    is        {is:?}\n    should be {should:?}");
    }
    let rest = |outcome: &Outcome| {
        let Outcome { answers, tables: _, entries, messages, mails } = outcome;
        format!("{answers:?} {} entries {} messages {mails} mails", entries.len(), messages.len())
    };
    story + &format!("\n  {}\n  should be {}", rest(found), rest(expected))
}

// --- The handlers -------------------------------------------------------------------------------------------------

fn cases(seed: u64) -> Vec<Case> {
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let (account, todo) = (commits::account("a", rng), commits::todo("t", rng));
    let (widget, transfer) = (commits::widget("w", rng), commits::transfer("x", rng));
    let links = vec![
        commits::link("ada", "https://a.example/", rng),
        commits::link("ada", "https://b.example/", rng),
        commits::link("bob", "https://a.example/", rng),
    ];
    // Somebody follows before, between and after the ratings.
    let feeds =
        vec![links[0].clone(), commits::user("bob", "ada"), links[1].clone(), commits::user("cleo", "ada")];
    vec![
        commands::<Account>(
            "account",
            bank_functions::commands::account::route,
            &["open", "credit", "debit", "invalid-amount", "close"],
        ),
        commands::<Todo>(
            "todo",
            todo_functions::commands::todo::route,
            &["create", "update", "update-unconditionally", "delete"],
        ),
        commands::<Widget>(
            "widget",
            widgets_functions::commands::widget::route,
            &["create", "change-name", "change-description", "update-stock"],
        ),
        commands::<Link>(
            "link",
            links_functions::commands::link::route,
            &["rate", "rate-again", "rate-for-another"],
        ),
        commands::<User>(
            "user",
            links_functions::commands::user::route,
            &["register", "update-email", "follow", "unfollow"],
        ),
        commands::<Transfer>(
            "transfer",
            bank_functions::commands::transfer::route,
            &["request", "to-itself"],
        ),
        fanned_out(vec![account.clone(), todo.clone(), links[0].clone()]),
        stateful::<Account, _>("BalancesTable", balances::TABLE, balances::row, account.clone()),
        stateful::<Todo, _>("TodosTable", todos::TABLE, todos::row, todo),
        stateful::<Widget, _>("WidgetsTable", widgets::TABLE, widgets::row, widget),
        stateful::<Transfer, _>("TransfersTable", transfers::TABLE, transfers::row, transfer),
        logged("TransactionsTable", transactions::TABLE, transactions::changes, vec![account]),
        logged("LinkRatingsTable", link_ratings::TABLE, link_ratings::changes, links.clone()),
        logged("UserRatingsTable", user_ratings::TABLE, user_ratings::changes, links),
        consumed("feeds", feeds, |wire| FeedProjector {
            table: ReadTable::new(wire.dynamodb(), table("FeedsTable")),
        }),
        transferred("transfer (arrives)", 30, true),
        transferred("transfer (refused)", 31, true),
        transferred("transfer (given back)", 30, false),
        welcome(),
    ]
}

fn exactly(found: &Outcome, expected: &Outcome) -> bool {
    found == expected
}

/// Does those that are not done yet, until one fails.
async fn each<T>(done: &Done, all: &[T], run: impl AsyncFn(&T) -> Option<String>) -> bool {
    let first = done.borrow().len();
    for one in all.iter().skip(first) {
        match run(one).await {
            Some(answer) => done.borrow_mut().push(answer),
            None => return false,
        }
    }
    true
}

/// The function that takes the commands of an aggregate, with its sample requests, each under a key.
fn commands<A: Aggregate>(name: &str, route: Route<A>, samples: &'static [&str]) -> Case {
    let function = format!("{name}-commands");
    let requests: Vec<Value> = samples.iter().map(|sample| request(&function, sample)).collect();
    let call = move |wire: Wire, done: Done| {
        let requests = requests.clone();
        async move {
            let cache = Cache::new(NonZeroUsize::MIN);
            let function = Commands::<A, _> {
                store: World::store_at(&wire),
                cache,
                retention: RETENTION_SECONDS,
                route,
            };
            each(&done, &requests, async |event| {
                let event: ApiGatewayV2httpRequest = serde_json::from_value(event.clone()).ok()?;
                let response =
                    function.handle(&HttpRequest::from(event)).await.unwrap_or_else(Response::from);
                (!response.status.is_server_error()).then(|| seen(&response))
            })
            .await
        }
        .boxed_local()
    };
    Case { name: function.clone(), log: Vec::new(), call: Box::new(call), right: exactly }
}

fn request(function: &str, sample: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../events/{function}/{sample}.json"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut event: Value = serde_json::from_str(&text).unwrap_or_default();
    event["headers"]["idempotency-key"] = sample.into();
    event
}

fn fanned_out(streams: Vec<Vec<Commit>>) -> Case {
    // Some of them twice, and not one stream after the other.
    let mut batch: Vec<_> = streams.concat();
    batch.sort_by_key(|commit| commit.version);
    batch.extend_from_within(..2);
    let call = move |wire: Wire, done: Done| {
        let batch = batch.clone();
        async move {
            let pipeline = Pipeline::new(&wire);
            let first = done.borrow().len();
            let mut records: Vec<_> =
                batch.iter().skip(first).enumerate().map(|(place, commit)| record(place, commit)).collect();
            if first > batch.len() {
                return true;
            }
            // One that nobody can read, for the dead letters.
            let unreadable = Unreadable {
                reason: "a test".into(),
                stream: None,
                version: None,
                event_id: None,
                sequence_number: "last".into(),
                event_source_arn: None,
            };
            records.push(Record { sequence_number: "last".into(), commit: Err(unreadable) });
            let failed = pipeline.fanout.handle(&records).await;
            done.borrow_mut().extend(vec![String::new(); failed.unwrap_or(records.len())]);
            failed.is_none()
        }
        .boxed_local()
    };
    Case { name: "fanout".into(), log: streams, call: Box::new(call), right: exactly }
}

fn stateful<A: Aggregate, Row: Serialize + 'static>(
    name: &'static str,
    keys: StateTable,
    row: RowOf<A, Row>,
    stream: Vec<Commit>,
) -> Case {
    let log = vec![stream.clone()];
    let call = move |wire: Wire, done: Done| {
        let stream = stream.clone();
        async move {
            let table = ReadTable::new(wire.dynamodb(), table(name));
            let projector = StateProjector::<A, Row> { table, keys, row, aggregate: PhantomData };
            // What the fanout makes of the commits, over a wire of its own.
            let quiet = Wire::new(wire.services().database().clone());
            let records: Vec<_> =
                stream.iter().enumerate().map(|(place, commit)| record(place, commit)).collect();
            Pipeline::new(&quiet).fanout.handle(&records).await;
            let entries = quiet.services().take_entries();
            each(&done, &entries, async |entry| {
                projector.project(entry.clone()).await.ok().map(|()| String::new())
            })
            .await
        }
        .boxed_local()
    };
    Case { name: name.into(), log, call: Box::new(call), right: exactly }
}

fn logged(name: &'static str, keys: LogTable, changes: ChangesOf, streams: Vec<Vec<Commit>>) -> Case {
    consumed(name, streams, move |wire| LogProjector {
        table: ReadTable::new(wire.dynamodb(), table(name)),
        keys,
        changes,
    })
}

/// A consumer behind a queue: every stream's commits but the second, which is a gap to be repaired.
fn consumed<C: Consumer + 'static>(
    name: &str,
    streams: Vec<Vec<Commit>>,
    consumer: impl Fn(&Wire) -> C + 'static,
) -> Case {
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
            each(&done, &messages, async |body| fifo.message(body).await.ok().map(|()| String::new())).await
        }
        .boxed_local()
    };
    Case { name: name.into(), log, call: Box::new(call), right: exactly }
}

/// An instance of the process manager of transfers.
pub(crate) fn manager(wire: &Wire) -> Fifo<DynamoDbStore, ProcessManager<Transfers<DynamoDbStore>>> {
    let positions = ReadTable::new(wire.dynamodb(), table("TransferPositionsTable"));
    let consumer = ProcessManager { positions, reaction: Transfers::new(World::store_at(wire)) };
    Fifo { store: World::store_at(wire), consumer }
}

/// The process manager of transfers, from the request to the end: what it writes to the transfer comes back to it.
fn transferred(name: &str, amount: i64, receiver: bool) -> Case {
    let to = if receiver { commits::balance(&commits::receiver("x"), 1) } else { Vec::new() };
    let log = vec![commits::balance(&commits::payer("x"), 30), to, commits::requested("x", amount)];
    let call = move |wire: Wire, done: Done| {
        async move {
            let fifo = manager(&wire);
            let quiet = Wire::new(wire.services().database().clone());
            let stream = commits::requested("x", amount).remove(0).stream;
            loop {
                let version = done.borrow().len() as u64 + 1;
                let Ok(Some(commit)) = World::store_at(&quiet).get(&stream, version).await else {
                    return true;
                };
                let Ok(body) = serde_json::to_string(&Message::Commit(Box::new(commit))) else {
                    return false;
                };
                if fifo.message(&body).await.is_err() {
                    return false;
                }
                done.borrow_mut().push(String::new());
            }
        }
        .boxed_local()
    };
    Case { name: name.into(), log, call: Box::new(call), right: exactly }
}

/// The process manager of mails. Who ends between the mail and the note of it cannot know whether it was sent, and does not
/// send it again: at most one, and the table says so.
fn welcome() -> Case {
    let stream = commits::user("ada", "bob");
    let mut case = consumed("welcome-email", vec![stream], |wire| {
        let mails = ReadTable::new(wire.dynamodb(), table("WelcomeEmailPositionsTable"));
        let sender = Some("hello@example.com".to_owned());
        let reaction = WelcomeEmail { mails: mails.clone(), ses: wire.ses(), sender };
        ProcessManager { positions: mails, reaction }
    });
    case.right = |found, expected| {
        let note = |outcome: &Outcome, status: &str| outcome.tables.values().any(|row| row.contains(status));
        let same_rows = found.tables.keys().eq(expected.tables.keys());
        let honest = found == expected || (found.mails <= 1 && note(found, "unknown"));
        same_rows && honest && !note(found, "sending")
    };
    case
}
