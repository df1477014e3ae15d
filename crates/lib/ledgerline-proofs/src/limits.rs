//! Every limit, tried just within and just beyond it. Within, everything works. Beyond, the request
//! is refused by name or handled in another way, and no data is cut off.

use std::collections::BTreeMap;

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use jiff::Timestamp;
use ledgerline::{
    Aggregate, AppendError, Changes, Commit, Consistency, EventLog, IdempotencyRecord, Meta, Range,
    RecordedEvent, StreamId, load,
    position::Delivery,
    testing::tank::{Tank, Tanks},
};
use ledgerline_dynamodb::{
    CommitChanges, DynamoDbStore, LogRows, MAX_ITEM_BYTES, PageQuery, TableError,
};
use ledgerline_lambda::{
    commands::Commands,
    fanout::{Fanout, Wiring},
    http::{HttpRequest, MAX_BODY_BYTES, Response, Routes, versions_of},
    log_projector::LogProjector,
    queries,
    queue::QueueRunner,
    stream::Handler,
    wire::Message,
};
use ledgerline_tank::views::{FILLS, FILLS_VIEW};
use ledgerline_testing::table;
use serde_json::{Value, json};

use crate::{
    Effort, Finding, Tried,
    application::Application,
    pipeline::record,
    tank::{self, filled},
    wire::Wire,
    world::World,
};

/// The fault at a limit; `None` if there is none.
type Wrong = Option<String>;

/// Tries each limit, within and beyond.
///
/// # Errors
/// When a limit is elsewhere than documented.
pub fn proof(effort: &Effort, _: &Application) -> Result<Tried, Finding> {
    let world = World::new(&tank::application().tables())?;
    let mut limits = Limits::default();
    world.runtime.block_on(async {
        items(&world, &mut limits).await;
        transactions_of_commits(&world, &mut limits).await;
        entries_and_messages(&world.wire, &mut limits).await;
        batches(&world.wire, &mut limits).await;
        ids(&world, &mut limits).await;
        versions(&world, &mut limits).await;
        pages_of_commits(&world, &mut limits).await;
        rows(&world.wire, &mut limits).await;
        gaps(&world, &mut limits).await;
    });
    let Limits { names, wrong } = limits;
    if !wrong.is_empty() {
        return Err(Finding { seed: effort.seed, story: wrong.join("\n  ") });
    }
    Ok(Tried::new(names.len() as u64, "limits, within and beyond", names.join(", ")))
}

#[derive(Debug, Default)]
struct Limits {
    names: Vec<String>,
    wrong: Vec<String>,
}

impl Limits {
    /// Records the name of a limit, and the faults within and beyond it.
    fn note(&mut self, name: &str, within: Wrong, beyond: Wrong) {
        self.names.push(name.to_owned());
        self.wrong.extend(within.map(|wrong| format!("within {name}: {wrong}")));
        self.wrong.extend(beyond.map(|wrong| format!("beyond {name}: {wrong}")));
    }
}

/// The text of `found`; `None` if `right`.
fn unless(right: bool, found: impl std::fmt::Debug) -> Wrong {
    (!right).then(|| format!("{found:?}"))
}

fn stream(id: &str) -> StreamId {
    // Every id in this module is valid.
    StreamId::new("tank", id).unwrap_or_else(|error| unreachable!("{error}"))
}

/// A commit with `data` bytes in its note. Only the size of the commit matters.
fn commit(stream: &StreamId, version: u64, data: usize) -> Commit {
    let event = RecordedEvent {
        event_type: "TankFilled".into(),
        schema: 1,
        data: format!("{{\"note\":\"{}\"}}", "x".repeat(data)),
    };
    Commit {
        stream: stream.clone(),
        version,
        events: vec![event],
        state: None,
        command: "c".into(),
        at: Timestamp::UNIX_EPOCH,
        meta: Meta::default(),
    }
}

/// A commit with this number of bytes in the store.
fn of_size(stream: &StreamId, version: u64, bytes: usize) -> Commit {
    let least = (DynamoDbStore::HOST.stored_bytes)(&commit(stream, version, 0));
    commit(stream, version, bytes - least)
}

async fn items(world: &World, limits: &mut Limits) {
    let store = world.store();
    let within = of_size(&stream("size"), 1, MAX_ITEM_BYTES);
    let appended = store.append(&within, None).await;
    let read = store.get(&within.stream, 1).await;
    let within =
        unless(appended.is_ok() && matches!(&read, Ok(Some(read)) if *read == within), appended);
    let calls = world.wire.take_calls();
    let appended = store.append(&of_size(&stream("size"), 2, MAX_ITEM_BYTES + 1), None).await;
    let refused =
        matches!(appended, Err(AppendError::TooLarge { bytes, limit }) if bytes == limit + 1);
    let beyond = unless(refused && world.wire.take_calls() == 0, (appended, calls));
    limits.note("400 KB of an item", within, beyond);
}

async fn transactions_of_commits(world: &World, limits: &mut Limits) {
    let store = world.store();
    let commits = |name: &str, count: usize| -> Vec<_> {
        (0..count).map(|number| commit(&stream(&format!("{name}-{number}")), 1, 0)).collect()
    };
    let request = IdempotencyRecord {
        key: "transaction".into(),
        fingerprint: String::new(),
        answer: String::new(),
        expires: i64::MAX,
    };
    let within = store.append_all(&commits("t100", 100), None).await;
    let beyond = store.append_all(&commits("t101", 101), None).await;
    limits.note(
        "100 items of a transaction",
        unless(within.is_ok(), &within),
        unless(matches!(beyond, Err(AppendError::TooMany { commits: 101, limit: 100 })), &beyond),
    );
    let within = store.append_all(&commits("r99", 99), Some(&request)).await;
    let beyond = store.append_all(&commits("r100", 100), Some(&request)).await;
    limits.note(
        "99 commits beside a request",
        unless(within.is_ok(), &within),
        unless(matches!(beyond, Err(AppendError::TooMany { commits: 100, limit: 99 })), &beyond),
    );
    // Ten items of 400,000 bytes have 4 MB together, the most that DynamoDB accepts in one
    // transaction.
    let sized = |name: &str, last: usize| -> Vec<_> {
        let size = |number| if number == 9 { last } else { 400_000 };
        (0..10)
            .map(|number| of_size(&stream(&format!("{name}-{number}")), 1, size(number)))
            .collect()
    };
    let within = store.append_all(&sized("b", 400_000), None).await;
    let beyond = store.append_all(&sized("c", 400_001), None).await;
    limits.note(
        "4 MB of a transaction",
        unless(within.is_ok(), &within),
        unless(matches!(beyond, Err(AppendError::TooLarge { bytes: 4_000_001, .. })), &beyond),
    );
}

fn fanout(wire: &Wire, max_message_bytes: usize) -> Fanout {
    let store = World::store_at(wire);
    let wiring = Wiring {
        event_bus: "bus".into(),
        event_source: "ledgerline".into(),
        bus_events: None,
        state_views: BTreeMap::new(),
        log_queues: BTreeMap::from([(
            "http://wire.invalid/q.fifo".to_owned(),
            vec!["tank".to_owned()],
        )]),
        dead_letter_queue: "http://wire.invalid/dead-letters".into(),
        max_message_bytes,
    };
    Fanout::new::<Tanks>(store, (wire.events(), wire.lambda(), wire.sqs()), wiring)
}

/// Passes on one commit. The result is the entries on the bus, the messages, and the number of dead
/// letters.
async fn fanned_out(wire: &Wire, commit: &Commit, max: usize) -> (Vec<Value>, Vec<String>, usize) {
    // Without the pause, the queue would drop the same commit as a duplicate.
    tokio::time::sleep(crate::services::DEDUPLICATION * 2).await;
    fanout(wire, max).handle(&[record(0, commit)]).await;
    let services = wire.services();
    let messages = services.take_messages("http://wire.invalid/q.fifo");
    let letters = services.take_messages("http://wire.invalid/dead-letters").len();
    (services.take_entries(), messages.into_iter().map(|message| message.body).collect(), letters)
}

async fn entries_and_messages(wire: &Wire, limits: &mut Limits) {
    let commit = filled("entries", 5).remove(0);
    let (entries, messages, _) = fanned_out(wire, &commit, usize::MAX).await;
    // EventBridge counts the source, the type and the detail of an entry.
    let detail = entries.first().map_or(0, |entry| entry.to_string().len());
    let entry = "ledgerline.tank".len() + commit.events[0].event_type.len() + detail;
    let within = fanned_out(wire, &commit, entry).await;
    let beyond = fanned_out(wire, &commit, entry - 1).await;
    limits.note(
        "size of an entry",
        unless(within.0.len() == 1 && within.2 == 0, &within),
        unless(beyond.0.is_empty() && beyond.2 == 1, &beyond),
    );
    let message = messages.first().map_or(0, String::len);
    let whole = |body: &str| matches!(Message::read(body), Ok(Message::Commit(_)));
    let within = fanned_out(wire, &commit, message).await.1;
    let beyond = fanned_out(wire, &commit, message - 1).await.1;
    limits.note(
        "size of a message",
        unless(within.len() == 1 && whole(&within[0]), &within),
        unless(
            beyond.len() == 1 && matches!(Message::read(&beyond[0]), Ok(Message::Reference(_))),
            &beyond,
        ),
    );
}

async fn batches(wire: &Wire, limits: &mut Limits) {
    let mut calls = Vec::new();
    for count in [10, 11] {
        let records: Vec<_> = (0..count)
            .map(|place| record(place, &filled(&format!("batch-{count}-{place}"), 1)[0]))
            .collect();
        let _ = wire.take_calls();
        fanout(wire, usize::MAX).handle(&records).await;
        let sent = (
            wire.services().take_entries().len(),
            wire.services().take_messages("http://wire.invalid/q.fifo").len(),
        );
        calls.push((wire.take_calls(), sent));
    }
    limits.note(
        "10 entries of a call",
        unless(calls[0] == (2, (10, 10)), calls[0]),
        unless(calls[1] == (4, (11, 11)), calls[1]),
    );
}

async fn ids(world: &World, limits: &mut Limits) {
    let id = |length: usize| StreamId::new("tank", &"x".repeat(length));
    limits.note(
        "128 characters of an id",
        unless(id(128).is_ok(), id(128)),
        unless(id(129).is_err(), id(129)),
    );
    limits.note(
        "1 character of an id",
        unless(id(1).is_ok(), id(1)),
        unless(id(0).is_err(), id(0)),
    );

    // "tank-" has 5 characters, ":1" has 2. A longer id than 128 characters is replaced by its hash
    // of 64, so that ids stay distinct.
    let mut groups = Vec::new();
    for length in [121, 122, 123, 124] {
        let commit = filled(&"x".repeat(length), 1).remove(0);
        fanout(&world.wire, usize::MAX).handle(&[record(0, &commit)]).await;
        let messages = world.wire.services().take_messages("http://wire.invalid/q.fifo");
        let _ = world.wire.services().take_entries();
        groups.push(
            messages.first().map(|message| (message.group.len(), message.deduplication.len())),
        );
    }
    limits.note(
        "128 characters of a deduplication id",
        unless(groups[0] == Some((126, 128)), groups[0]),
        unless(groups[1] == Some((127, 64)), groups[1]),
    );
    limits.note(
        "128 characters of a group",
        unless(groups[2] == Some((128, 64)), groups[2]),
        unless(groups[3] == Some((64, 64)), groups[3]),
    );

    let store = world.store();
    let mut statuses = Vec::new();
    for (key, body) in [(128, 0), (129, 0), (1, MAX_BODY_BYTES), (1, MAX_BODY_BYTES + 1)] {
        let text = "{\"site\":\"North\",\"liquid\":\"water\"}";
        let padded = format!("{text}{}", " ".repeat(body.saturating_sub(text.len())));
        statuses.push(status(&tank::instance(&store), &"k".repeat(key), &padded).await);
    }
    limits.note(
        "128 characters of an Idempotency-Key",
        unless(statuses[0] == 201, statuses[0]),
        unless(statuses[1] == 400, statuses[1]),
    );
    limits.note(
        "64 KB of a body",
        unless(statuses[2] == 201, statuses[2]),
        unless(statuses[3] == 413, statuses[3]),
    );
}

/// The status of the answer to the installation of a tank, with this key and body.
async fn status(function: &Commands<Tank, DynamoDbStore>, key: &str, body: &str) -> u16 {
    let event = json!({
        "version": "2.0",
        "routeKey": "POST /tanks",
        "rawPath": "/tanks",
        "headers": { "idempotency-key": key },
        "requestContext": {
            "authorizer": { "jwt": { "claims": { "sub": "ada" } } },
            "http": { "method": "POST", "path": "/tanks" },
            "timeEpoch": 0,
        },
        "body": body,
        "isBase64Encoded": false,
    });
    let Ok(event) = serde_json::from_value::<ApiGatewayV2httpRequest>(event) else { return 0 };
    function.handle(&HttpRequest::from(event)).await.unwrap_or_else(Response::from).status.as_u16()
}

async fn versions(world: &World, limits: &mut Limits) {
    let largest = versions_of("\"18446744073709551615\"");
    let beyond = versions_of("\"18446744073709551616\"");
    limits.note(
        "2^64 - 1 in If-Match",
        unless(largest == Some(vec![u64::MAX]), &largest),
        unless(beyond == Some(vec![]), &beyond),
    );
    // JSON readers that know only doubles are exact up to 2^53. Neither serde_json nor the database
    // has that limit.
    let store = world.store();
    let mut kept = Vec::new();
    for version in [1 << 53, (1 << 53) + 1, u64::MAX - 1] {
        let commit = commit(&stream("versions"), version, 0);
        let appended = store.append(&commit, None).await.is_ok();
        let read = store.get(&commit.stream, version).await.ok().flatten();
        let body =
            serde_json::to_string(&Message::Commit(Box::new(commit.clone()))).unwrap_or_default();
        let through = Message::read(&body).ok().and_then(Message::into_commit);
        kept.push(appended && read.as_ref() == Some(&commit) && through == Some(commit));
    }
    limits.note("2^53 of a version", unless(kept[0], &kept), unless(kept[1] && kept[2], &kept));
    let zero = serde_json::to_string(&Message::Commit(Box::new(commit(&stream("zero"), 0, 0))));
    let one = serde_json::to_string(&Message::Commit(Box::new(commit(&stream("zero"), 1, 0))));
    let zero = Message::read(&zero.unwrap_or_default());
    let one = Message::read(&one.unwrap_or_default());
    limits.note("version 1", unless(one.is_ok(), &one), unless(zero.is_err(), &zero));
    let limit = |limit: &str| {
        let event = json!({
            "rawQueryString": format!("limit={limit}"),
            "requestContext": { "http": { "method": "GET" }, "timeEpoch": 0 },
            "headers": {},
            "isBase64Encoded": false,
        });
        let request =
            serde_json::from_value::<ApiGatewayV2httpRequest>(event).map(HttpRequest::from).ok()?;
        queries::limit(&request).ok()
    };
    limits.note(
        "200 rows of a page",
        unless(limit("200") == Some(200), limit("200")),
        unless(limit("201").is_none(), limit("201")),
    );
    limits.note(
        "1 row of a page",
        unless(limit("1") == Some(1), limit("1")),
        unless(limit("0").is_none(), limit("0")),
    );
}

/// Loads streams without states: one as long as the first page of a load, and one longer.
async fn pages_of_commits(world: &World, limits: &mut Limits) {
    let store = world.store();
    let mut loads = Vec::new();
    for length in [Tank::SNAPSHOT_EVERY, Tank::SNAPSHOT_EVERY + 1] {
        let id = format!("pages-{length}");
        let [first, other] = [0, 1].map(|place| filled(&id, 5)[place].clone());
        for version in 1..=length {
            let mut commit = if version == 1 { first.clone() } else { other.clone() };
            (commit.version, commit.state) = (version, None);
            let _ = store.append(&commit, None).await;
        }
        let _ = world.wire.take_calls();
        let loaded = load::<Tank>(&store, &stream(&id), None, Consistency::Strong).await;
        loads.push((loaded.map(|loaded| loaded.version).ok(), world.wire.take_calls()));
        // A page that ends exactly where the stream begins is complete.
        let up_to = Range { after: 0, up_to: u64::MAX, limit: u32::try_from(length).ok() };
        let short = Range { limit: u32::try_from(length - 1).ok(), ..up_to };
        let complete = async |range| {
            store
                .read(&stream(&id), range, Consistency::Strong)
                .await
                .map(|page| page.complete)
                .ok()
        };
        let found = (complete(up_to).await, complete(short).await);
        limits.note(
            &format!("page of {length} commits"),
            unless(found.0 == Some(true), found),
            unless(found.1 == Some(false), found),
        );
    }
    let every = Tank::SNAPSHOT_EVERY;
    limits.note(
        "first page of a load",
        unless(loads[0] == (Some(every), 1), loads[0]),
        unless(loads[1] == (Some(every + 1), 2), loads[1]),
    );
}

async fn rows(wire: &Wire, limits: &mut Limits) {
    let keys = FILLS;
    let fills = LogRows::new(wire.dynamodb(), table("FillsTable"), keys);
    let apply = async |stream: &str, count: usize| {
        let mut changes = Changes::new(keys);
        for row in 0..count {
            changes.set("rows", &format!("{row:03}"), "n", 1);
        }
        let stream = &StreamId::new("tank", stream).ok()?;
        Some(fills.deliver(CommitChanges { stream, version: 1, changes }).await)
    };
    // The position is an item of the transaction too.
    let within = apply("99", 99).await;
    let beyond = apply("100", 100).await;
    limits.note(
        "99 rows of a commit",
        unless(matches!(within, Some(Ok((Delivery::Next, 1)))), &within),
        unless(matches!(beyond, Some(Err(TableError::TooManyRows(100)))), &beyond),
    );
    let rows = async |limit, cursor: Option<String>| {
        let query = PageQuery::of("rows", limit, cursor.as_deref());
        fills.page::<Value>(&query).await.ok()
    };
    let whole = rows(100, None).await.map(|page| (page.rows.len(), page.cursor.is_some()));
    let mut seen = Vec::new();
    let mut cursor = None;
    while let Some(page) = rows(98, cursor).await {
        seen.push(page.rows.len());
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    limits.note(
        "end of a page of rows",
        unless(whole == Some((99, false)), whole),
        unless(seen == [98, 1], &seen),
    );
}

/// Repairs gaps: one as large as the window of a repair, and one larger. Within a window, it
/// repairs less than the 1 MB of a page of the log, and more.
async fn gaps(world: &World, limits: &mut Limits) {
    let store = world.store();
    let mut found = Vec::new();
    for (length, bytes) in [(50, 0), (51, 0), (50, 18_000), (50, 25_000)] {
        let id = format!("gap-{length}-{bytes}");
        let [first, other] = [0, 1].map(|place| filled(&id, 5)[place].clone());
        for version in 1..=length {
            let mut commit = if version == 1 { first.clone() } else { other.clone() };
            commit.version = version;
            if version > 1 {
                let mut data: Value =
                    serde_json::from_str(&commit.events[0].data).unwrap_or_default();
                data["note"] = "x".repeat(bytes).into();
                commit.events[0].data = data.to_string();
            }
            let _ = store.append(&commit, None).await;
        }
        let consumer = LogProjector::new(world.wire.dynamodb(), table("FillsTable"), FILLS_VIEW);
        let runner = QueueRunner { store: store.clone(), consumer };
        let body = json!({ "stream": format!("tank-{id}"), "version": length }).to_string();
        let applied = runner.message(&body).await.is_ok();
        let position = runner.consumer.table.position(&first.stream).await.ok();
        found.push((applied, position));
    }
    limits.note(
        "50 commits of a repair",
        unless(found[0] == (true, Some(50)), found[0]),
        unless(found[1] == (true, Some(51)), found[1]),
    );
    limits.note(
        "1 MB of a repair",
        unless(found[2] == (true, Some(50)), found[2]),
        unless(found[3] == (true, Some(50)), found[3]),
    );
}
