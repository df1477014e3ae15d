//! The fanout with the real SDK clients. DynamoDB is emulated; a fake stands for the bus, the
//! queues and Lambda, and refuses the calls that a test names.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use aws_sdk_dynamodb::config::Builder;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::HeaderMap,
    routing::post,
};
use futures::FutureExt;
use ledgerline::{
    Aggregate, Aggregates, Commit, Context, EventLog, Loaded, Meta, Refusal, StreamId, Visitor,
    encode, encode_state,
    spec::valid,
    testing::tank::{Amount, Command, Tank},
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    fanout::{Fanout, Wiring},
    stream_records::{Handler, Record, records, response},
};
use ledgerline_testing::{MemoryBodies, Wire};
use serde_json::{Value, json};

/// A fake of EventBridge, SQS and Lambda at one port. It accepts every call and entry except those
/// that a test names in [`Taken`].
#[derive(Clone, Default)]
struct Aws(Arc<Mutex<Taken>>);

/// The calls and entries that the fake accepted, and those that it must refuse.
#[derive(Default)]
struct Taken {
    calls: Vec<String>,
    entries: Vec<Value>,
    /// The invoked functions, each with its payload.
    invocations: Vec<(String, Value)>,
    messages: Vec<Value>,
    dead_letters: Vec<Value>,
    /// The texts that mark refused entries, invocations and messages, each with the number of
    /// refusals left.
    refuse: BTreeMap<String, usize>,
    /// The code of refused entries, invocations and messages, if it is not that of throttling.
    code: Option<&'static str>,
    refuse_dead_letters: bool,
    /// The operation that the fake refuses, whatever the entries.
    refuse_calls: Option<&'static str>,
}

impl Taken {
    fn refuses(&mut self, text: &str) -> bool {
        let found = self
            .refuse
            .iter_mut()
            .find(|(marker, left)| **left > 0 && text.contains(marker.as_str()));
        found.is_some_and(|(_, left)| {
            *left -= 1;
            true
        })
    }
}

/// The operation `Invoke` of Lambda.
async fn invoke(
    State(aws): State<Aws>,
    Path(function): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> (axum::http::StatusCode, [(&'static str, &'static str); 1]) {
    assert_eq!(headers["x-amz-invocation-type"], "Event", "the invocation is asynchronous");
    let mut taken = aws.0.lock().unwrap();
    taken.calls.push("Invoke".into());
    if taken.refuses(std::str::from_utf8(&body).unwrap()) {
        let code = taken.code.unwrap_or("TooManyRequestsException");
        return (axum::http::StatusCode::BAD_REQUEST, [("x-amzn-errortype", code)]);
    }
    taken.invocations.push((function, serde_json::from_slice(&body).unwrap()));
    (axum::http::StatusCode::ACCEPTED, [("x-amzn-requestid", "r")])
}

async fn aws(
    State(aws): State<Aws>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<String, (axum::http::StatusCode, String)> {
    let operation =
        headers["x-amz-target"].to_str().unwrap().rsplit('.').next().unwrap().to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut taken = aws.0.lock().unwrap();
    taken.calls.push(operation.clone());
    let answer = match operation.as_str() {
        refused if taken.refuse_calls == Some(refused) => {
            return Err((
                axum::http::StatusCode::BAD_REQUEST,
                json!({ "__type": taken.code.unwrap_or("AccessDenied") }).to_string(),
            ));
        }
        "PutEvents" => {
            let mut results = Vec::new();
            for entry in body["Entries"].as_array().unwrap() {
                if entry["Detail"].as_str().unwrap().contains("nowhere on the bus") {
                    results.push(json!({ "ErrorCode": "MalformedDetail", "ErrorMessage": "no" }));
                } else if taken.refuses(entry["Detail"].as_str().unwrap()) {
                    let code = taken.code.unwrap_or("ThrottlingException");
                    results.push(json!({ "ErrorCode": code, "ErrorMessage": "slow down" }));
                } else {
                    results.push(json!({ "EventId": "e" }));
                    taken.entries.push(entry.clone());
                }
            }
            json!({ "FailedEntryCount": 0, "Entries": results })
        }
        "SendMessageBatch" => {
            let (mut successful, mut failed) = (Vec::new(), Vec::new());
            for entry in body["Entries"].as_array().unwrap() {
                let body = entry["MessageBody"].as_str().unwrap();
                if body.contains(['\u{fffe}', '\u{ffff}']) || body.contains("never") {
                    let code = "InvalidMessageContents";
                    failed.push(json!({ "Id": entry["Id"], "Code": code, "SenderFault": true }));
                } else if taken.refuses(body) {
                    let code = taken.code.unwrap_or("RequestThrottled");
                    failed.push(json!({ "Id": entry["Id"], "Code": code, "SenderFault": true }));
                } else {
                    successful.push(
                        json!({ "Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "x" }),
                    );
                    taken.messages.push(entry.clone());
                }
            }
            json!({ "Successful": successful, "Failed": failed })
        }
        "SendMessage" if taken.refuse_dead_letters => {
            return Err((
                axum::http::StatusCode::BAD_REQUEST,
                json!({ "__type": "AccessDenied" }).to_string(),
            ));
        }
        "SendMessage" => {
            taken
                .dead_letters
                .push(serde_json::from_str(body["MessageBody"].as_str().unwrap()).unwrap());
            json!({ "MessageId": "m" })
        }
        other => panic!("unexpected {other}"),
    };
    Ok(answer.to_string())
}

/// The aggregates of this fanout.
struct Tanks;

impl Aggregates for Tanks {
    fn visit(visitor: &mut impl Visitor) {
        visitor.visit::<Tank>();
        visitor.visit::<Bomb>();
    }
}

/// An aggregate whose fold crashes the function.
struct Bomb;

ledgerline::events! {
    pub enum BombEvent {
        BombPlanted: 1 {},
    }
}

impl Aggregate for Bomb {
    const CATEGORY: &'static str = "bomb";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = &[];

    type State = Option<()>;
    type Event = BombEvent;
    type Command = ();

    fn evolve(_: Option<()>, _: &BombEvent) -> Option<()> {
        panic!("the function ends")
    }

    fn decide(_: &Option<()>, (): &(), _: &Context) -> Result<Vec<BombEvent>, Refusal> {
        Ok(vec![BombEvent::BombPlanted {}])
    }
}

fn fanout(store: DynamoDbStore, sdk: &aws_config::SdkConfig, wiring: Wiring) -> Fanout {
    let (events, lambda) =
        (aws_sdk_eventbridge::Client::new(sdk), aws_sdk_lambda::Client::new(sdk));
    Fanout::new::<Tanks>(store, events, lambda, aws_sdk_sqs::Client::new(sdk), wiring)
}

struct World {
    fanout: Fanout,
    sdk: aws_config::SdkConfig,
    wiring: Wiring,
    store: DynamoDbStore,
    wire: Wire,
    aws: Aws,
}

impl World {
    async fn new() -> Self {
        Self::with_limit(256 * 1024).await
    }

    async fn with_limit(max_message_bytes: usize) -> Self {
        Self::with_views(max_message_bytes, &[]).await
    }

    async fn with_views(max_message_bytes: usize, views: &[&str]) -> Self {
        let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "RequestsTable"]).await;
        let aws = Aws::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/", post(self::aws))
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            .with_state(aws.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let sdk = dynamodb.sdk_config().into_builder().endpoint_url(&url).build();
        let wire = Wire::default();
        let client = Builder::from(&dynamodb.sdk_config()).interceptor(wire.clone()).build();
        let store = DynamoDbStore::new(
            aws_sdk_dynamodb::Client::from_conf(client),
            ledgerline_testing::table("CommitsTable"),
        )
        .with_requests(ledgerline_testing::table("RequestsTable"));
        let wiring = Wiring {
            event_bus: "bus".into(),
            event_source: "tanks".into(),
            bus_events: None,
            state_views: views
                .iter()
                .map(|view| ((*view).to_owned(), vec!["tank".to_owned()]))
                .collect(),
            log_queues: BTreeMap::from([(
                format!("{url}/000000000000/fills.fifo"),
                vec!["tank".into()],
            )]),
            dead_letter_queue: format!("{url}/000000000000/dead-letters"),
            max_message_bytes,
        };
        let fanout = fanout(store.clone(), &sdk, wiring.clone());
        Self { fanout, sdk, wiring, store, wire, aws }
    }

    /// Replaces the fanout by one with this store and the current wiring.
    fn replace_store(&mut self, store: DynamoDbStore) {
        self.fanout = fanout(store, &self.sdk, self.wiring.clone());
    }

    fn requests(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.aws.0.lock().unwrap()
    }

    fn refuse(&self, marker: &str, times: usize) {
        self.requests().refuse.insert(marker.into(), times);
    }

    /// Returns the streams and versions of the messages on the queue, in the order of arrival.
    fn messages(&self) -> Vec<(String, u64)> {
        let taken = self.requests();
        let bodies = taken.messages.iter().map(|message| message["MessageBody"].as_str().unwrap());
        bodies
            .map(|body| serde_json::from_str::<Value>(body).unwrap())
            .map(|commit| {
                (commit["stream"].as_str().unwrap().to_owned(), commit["version"].as_u64().unwrap())
            })
            .collect()
    }
}

fn stream(id: usize) -> StreamId {
    StreamId::new("tank", &format!("{id:04}")).unwrap()
}

/// Returns the first commits of a tank, with or without embedded states.
fn history(stream: &StreamId, length: u64, embed: bool) -> Vec<Commit> {
    let context =
        Context { at: "2026-11-21T09:30:00Z".parse().unwrap(), actor: Some("ada".into()) };
    let mut loaded = Loaded::<Tank>::initial();
    (1..=length)
        .map(|version| {
            let command = match version {
                1 => Command::Install { site: valid("North"), liquid: valid("water") },
                _ => Command::Fill(Amount { amount: valid(10), note: None }),
            };
            let events = Tank::decide(&loaded.state, &command, &context).unwrap();
            loaded.state = ledgerline::fold::<Tank>(loaded.state.clone(), &events);
            Commit {
                stream: stream.clone(),
                version,
                events: events.iter().map(|event| encode::<Tank>(event).unwrap()).collect(),
                state: embed.then(|| encode_state::<Tank>(&loaded.state).unwrap()),
                command: format!("c-{version}"),
                at: context.at,
                meta: Meta::default(),
            }
        })
        .collect()
}

fn batch(commits: impl IntoIterator<Item = Commit>) -> Vec<Record> {
    let record = |(index, commit)| Record {
        sequence_number: format!("{index:021}"),
        created: None,
        run: None,
        has_body: false,
        commit: Ok(commit),
    };
    commits.into_iter().enumerate().map(record).collect()
}

/// Reads a sample event of the sample application (tanks).
fn file<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = ledgerline_testing::workspace().join(format!("events/{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn sample(name: &str) -> Vec<Record> {
    records(file(name))
}

#[tokio::test]
async fn the_bus_gets_every_event_with_its_state_and_the_queue_every_commit() {
    let world = World::new().await;
    assert_eq!(world.fanout.handle(&sample("tank-fanout/commits")).await, None);

    let taken = world.requests();
    let expected: Value = file("levels-projector/drawn");
    let entry = &taken.entries[2];
    assert_eq!(entry["Source"], expected["source"]);
    assert_eq!(entry["DetailType"], expected["detail-type"]);
    assert_eq!(
        serde_json::from_str::<Value>(entry["Detail"].as_str().unwrap()).unwrap(),
        expected["detail"]
    );

    let expected: Value = file("fills-projector/commits");
    for (message, expected) in taken.messages.iter().zip(expected["Records"].as_array().unwrap()) {
        let body = |value: &Value| serde_json::from_str::<Value>(value.as_str().unwrap()).unwrap();
        assert_eq!(body(&message["MessageBody"]), body(&expected["body"]));
        assert_eq!(message["MessageGroupId"], expected["attributes"]["MessageGroupId"]);
        assert_eq!(
            message["MessageDeduplicationId"],
            expected["attributes"]["MessageDeduplicationId"]
        );
    }
    assert_eq!(taken.messages.len(), 3);
}

/// The budget of a batch (docs/costs.md). For n commits with embedded states, the fanout makes n/10
/// calls to the bus, n/10 calls to each queue, and no read.
#[tokio::test]
async fn a_batch_keeps_its_budget() {
    let world = World::new().await;
    let commits = (0..25).map(|id| history(&stream(id), 1, true).remove(0));
    assert_eq!(world.fanout.handle(&batch(commits)).await, None);
    let count =
        |operation: &str| world.requests().calls.iter().filter(|call| *call == operation).count();
    assert_eq!((count("PutEvents"), count("SendMessageBatch")), (3, 3));
    // A call has ten entries.
    for (commits, calls) in [(10, 4), (11, 6)] {
        let commits = (0..commits).map(|id| history(&stream(id), 1, true).remove(0));
        assert_eq!(world.fanout.handle(&batch(commits)).await, None);
        assert_eq!((count("PutEvents"), count("SendMessageBatch")), (calls, calls));
    }
    assert_eq!(world.wire.operations(), [""; 0]);
}

/// Returns the streams and versions of the states that a function got, grouped by invocation.
fn invocations(taken: &Taken, function: &str) -> Vec<Vec<(String, u64)>> {
    let invocations = taken.invocations.iter().filter(|(invoked, _)| invoked == function);
    let state = |detail: &Value| {
        let version = detail["aggregate"]["lastKnownVersion"].as_u64().unwrap();
        assert_eq!(detail["lastEvent"]["version"], version);
        (detail["stream"].as_str().unwrap().to_owned(), version)
    };
    invocations
        .map(|(_, body)| body["states"].as_array().unwrap().iter().map(state).collect())
        .collect()
}

/// A state view overwrites an older row (rule 8). So the fanout does not send a state that a later
/// record of the same batch overwrites.
#[tokio::test]
async fn a_state_view_gets_the_newest_state_of_each_stream_of_its_categories() {
    let mut world = World::with_views(256 * 1024, &["levels:live"]).await;
    world.wiring.state_views.insert("sites".into(), vec!["site".into()]);
    world.wiring.bus_events = Some(["TankFilled".to_owned()].into());
    world.replace_store(world.store.clone());
    let mut first = history(&stream(1), 3, true);
    let second = history(&stream(2), 2, true);
    first.reverse();
    let batch = batch([first, second].concat());
    assert_eq!(world.fanout.handle(&batch).await, None);
    let taken = world.requests();
    let tank = |id| stream(id).to_string();
    assert_eq!(invocations(&taken, "levels:live"), [[(tank(1), 3), (tank(2), 2)]]);
    assert_eq!(invocations(&taken, "sites"), [[]; 0]);
    let types: Vec<_> =
        taken.entries.iter().map(|entry| entry["DetailType"].as_str().unwrap()).collect();
    assert_eq!(types, ["TankFilled"; 3], "no rule matches the other events");
    assert_eq!(taken.messages.len(), 5);
}

/// A commit that republishes a state has no events. Each state projector gets the state with the
/// new version, the bus gets a `StateRepublished` entry, and each queue gets the commit.
#[tokio::test]
async fn republished_state_reaches_every_state_projector() {
    let mut world = World::with_views(256 * 1024, &["levels:live"]).await;
    let written = history(&stream(1), 2, true);
    let republication = Commit { version: 3, events: Vec::new(), ..written[1].clone() };
    let state: Value = serde_json::from_str(&republication.state.as_ref().unwrap().data).unwrap();
    let all = None;
    let named = Some(BTreeSet::from(["StateRepublished".to_owned()]));
    let none = Some(BTreeSet::new());
    for (wanted, entries) in [(all, 1), (named, 2), (none, 2)] {
        world.wiring.bus_events = wanted;
        world.replace_store(world.store.clone());
        assert_eq!(world.fanout.handle(&batch([republication.clone()])).await, None);
        let taken = world.requests();
        assert_eq!(
            invocations(&taken, "levels:live").last().unwrap(),
            &[(stream(1).to_string(), 3)]
        );
        let shown = &taken.invocations.last().unwrap().1["states"][0];
        assert_eq!(
            (&shown["lastEvent"]["eventType"], &shown["aggregate"]["level"]),
            (&json!("StateRepublished"), &state["level"])
        );
        assert_eq!(
            taken.entries.iter().filter(|entry| entry["DetailType"] == "StateRepublished").count(),
            entries
        );
    }
    assert_eq!(world.messages(), vec![(stream(1).to_string(), 3); 3]);
}

/// The budget of state views (docs/costs.md): n commits cost n/10 invocations of each function. If
/// `BUS_EVENTS` names no event, the bus costs nothing.
#[tokio::test]
async fn state_views_keep_the_budget_of_a_batch() {
    let mut world = World::with_views(256 * 1024, &["levels", "heights"]).await;
    world.wiring.bus_events = Some([].into());
    world.replace_store(world.store.clone());
    let commits = (0..25).map(|id| history(&stream(id), 1, true).remove(0));
    assert_eq!(world.fanout.handle(&batch(commits)).await, None);
    let count =
        |operation: &str| world.requests().calls.iter().filter(|call| *call == operation).count();
    assert_eq!((count("PutEvents"), count("Invoke"), count("SendMessageBatch")), (0, 6, 3));
    assert_eq!(invocations(&world.requests(), "heights").concat().len(), 25);
    assert_eq!(world.wire.operations(), [""; 0]);
}

/// Lambda accepts or refuses an invocation as a whole, so all its records fail together.
#[tokio::test]
async fn a_refused_invocation_fails_the_records_of_its_states() {
    let world = World::with_views(256 * 1024, &["levels"]).await;
    let commits: Vec<_> = (0..25).map(|id| history(&stream(id), 1, true).remove(0)).collect();
    // The bus, the queue and Lambda run at once, so any of them may get these two refusals.
    world.refuse("tank-0013", 2);
    assert_eq!(world.fanout.handle(&batch(commits.clone())).await, None);
    assert_eq!(invocations(&world.requests(), "levels").concat().len(), 25);
    world.refuse("tank-0013\",\"aggregate\"", usize::MAX);
    assert_eq!(
        world.fanout.handle(&batch(commits.clone())).await,
        Some(10),
        "the first of its invocation"
    );
    world.requests().refuse.clear();
    world.requests().invocations.clear();
    assert_eq!(world.fanout.handle(&batch(commits[10..].to_vec())).await, None);
    assert_eq!(invocations(&world.requests(), "levels").concat().len(), 15);
}

#[tokio::test]
async fn an_invocation_is_no_larger_than_the_limit() {
    let world = World::with_views(2_000, &["levels"]).await;
    let commits = (0..9).map(|id| history(&stream(id), 1, true).remove(0));
    assert_eq!(world.fanout.handle(&batch(commits)).await, None);
    let taken = world.requests();
    assert!(taken.invocations.len() > 1);
    assert!(taken.invocations.iter().all(|(_, body)| body.to_string().len() <= 2_000));
    assert_eq!(invocations(&taken, "levels").concat().len(), 9);
}

#[tokio::test]
async fn missing_states_are_folded_once_per_stream_and_batch() {
    let world = World::new().await;
    let long = history(&stream(1), 12, false);
    let short = history(&stream(2), 2, false);
    for commit in long.iter().chain(&short) {
        world.store.append(commit, None).await.unwrap();
    }
    world.wire.take();
    // The records are out of order and have a gap and a duplicate.
    let commits = [&long[11], &long[8], &short[1], &long[8]].map(Clone::clone);
    assert_eq!(world.fanout.handle(&batch(commits)).await, None);
    assert_eq!(
        world.wire.operations(),
        ["Query"; 2 + 1],
        "two pages of one stream, one of the other"
    );
    let taken = world.requests();
    for entry in &taken.entries {
        let detail: Value = serde_json::from_str(entry["Detail"].as_str().unwrap()).unwrap();
        let version = detail["lastEvent"]["version"].as_u64().unwrap();
        assert_eq!(detail["aggregate"]["lastKnownVersion"], version);
        assert_eq!(detail["aggregate"]["level"], (version - 1) * 10);
    }
    assert_eq!(taken.entries.len(), 4);
}

#[tokio::test]
async fn rule_11_only_the_unreadable_record_goes_to_the_dead_letter_queue() {
    let world = World::new().await;
    let records = sample("tank-fanout/unreadable");
    assert_eq!(records.len(), 3, "the MODIFY is no new commit");
    assert_eq!(world.fanout.handle(&records).await, None);
    assert_eq!(world.messages().iter().map(|(_, version)| *version).collect::<Vec<_>>(), [1, 3]);
    let taken = world.requests();
    assert_eq!(taken.entries.len(), 2);
    let [letter] = taken.dead_letters.as_slice() else { panic!("{:?}", taken.dead_letters) };
    assert_eq!(letter["stream"], "tank-163082d2-b005-45d7-9eb6-aa1f83efd55d");
    assert_eq!(letter["version"], 2);
    assert!(!letter.to_string().contains("damaged"), "no payload in it: {letter}");
}

/// A later version of the program may write such commits. Each is quarantined with its stream and
/// version, and holds up no other record.
#[tokio::test]
async fn rule_11_a_commit_of_the_future_is_quarantined_and_holds_up_no_other() {
    let corpus = include_str!("../../ledgerline-dynamodb/tests/commits_of_the_future.json");
    let corpus: Value = serde_json::from_str(corpus).unwrap();
    let items = |kind: &str| -> Vec<Value> {
        corpus[kind].as_array().unwrap().iter().map(|case| case["item"].clone()).collect()
    };
    let (refused, read) = (items("refused"), items("read"));
    let all: Vec<_> = refused.iter().zip(read.iter().cycle()).collect();
    let batch = all.into_iter().flat_map(|(refused, read)| [refused, read]).enumerate();
    let batch = batch.map(|(number, item)| {
        json!({
            "eventID": number.to_string(), "eventName": "INSERT", "eventSourceARN": "arn",
            "dynamodb": {
                "SequenceNumber": format!("{number:021}"), "NewImage": item,
                "Keys": { "stream": item["stream"], "version": item["version"] },
            },
        })
    });
    let batch = json!({ "Records": batch.collect::<Vec<_>>() });
    let world = World::new().await;
    assert_eq!(world.fanout.handle(&records(serde_json::from_value(batch).unwrap())).await, None);
    let taken = world.requests();
    let quarantined: Vec<_> = taken
        .dead_letters
        .iter()
        .map(|letter| (letter["stream"].clone(), letter["version"].clone()))
        .collect();
    let expected: Vec<_> =
        refused.iter().map(|item| (item["stream"]["S"].clone(), json!(2))).collect();
    assert_eq!(quarantined, expected);
    drop(taken);
    let queued: BTreeSet<_> = world.messages().into_iter().collect();
    let expected: BTreeSet<_> =
        read.iter().map(|item| (item["stream"]["S"].as_str().unwrap().to_owned(), 2)).collect();
    assert_eq!(queued, expected);
}

#[tokio::test]
async fn a_refused_dead_letter_fails_its_record() {
    let world = World::new().await;
    world.requests().refuse_dead_letters = true;
    let records = sample("tank-fanout/unreadable");
    assert_eq!(world.fanout.handle(&records).await, Some(1));
    let answer = serde_json::to_value(response(&records, Some(1))).unwrap();
    assert_eq!(
        answer,
        json!({ "batchItemFailures": [{ "itemIdentifier": records[1].sequence_number }] })
    );
}

#[tokio::test]
async fn rule_10_only_refused_entries_are_retried() {
    for mask in [0b1, 0b10_0000_0000, 0b01_0101_0101, 0b11_1111_1111] {
        let world = World::new().await;
        for id in (0..10).filter(|id| mask & (1 << id) != 0) {
            // The bus and the queue each refuse it once, because both get the name of the stream.
            world.refuse(&format!("tank-{id:04}"), 2);
        }
        let commits = (0..10).map(|id| history(&stream(id), 1, true).remove(0));
        assert_eq!(world.fanout.handle(&batch(commits)).await, None, "{mask:b}");
        let queued: HashSet<_> = world.messages().into_iter().collect();
        let taken = world.requests();
        assert_eq!((queued.len(), taken.messages.len(), taken.entries.len()), (10, 10, 10));
    }
}

#[tokio::test]
async fn rule_10_no_message_overtakes_another_of_its_group_and_the_first_failure_is_reported() {
    let world = World::new().await;
    let commits: Vec<_> =
        history(&stream(1), 4, true).into_iter().chain(history(&stream(2), 2, true)).collect();
    // The queue never accepts version 2 of the first stream. The bus accepts it, because an entry
    // spells stream and version differently.
    world.refuse("\"stream\":\"tank-0001\",\"version\":2,\"events\"", usize::MAX);
    assert_eq!(world.fanout.handle(&batch(commits)).await, Some(1));
    let first: Vec<_> =
        world.messages().into_iter().filter(|(stream, _)| stream == "tank-0001").collect();
    assert_eq!(first, [("tank-0001".to_owned(), 1)]);
}

/// A commit in a later call to the queue waits for the failed record of an earlier call. So Lambda
/// must redeliver that commit too, although its record precedes the failed one.
#[tokio::test]
async fn rule_11_a_commit_that_waits_for_a_failed_call_is_redelivered_too() {
    let world = World::new().await;
    let commits: Vec<_> =
        history(&stream(1), 2, true).into_iter().chain(history(&stream(2), 1, true)).collect();
    world.refuse("\"stream\":\"tank-0002\",\"version\":1,\"events\"", usize::MAX);
    assert_eq!(world.fanout.handle(&batch(commits)).await, Some(1));
    assert_eq!(world.messages(), [("tank-0001".to_owned(), 1)]);
}

/// SQS reports throttling as the sender's fault. The fanout must retry a throttled message, not
/// quarantine it.
#[tokio::test]
async fn a_throttled_message_is_retried_and_not_quarantined() {
    let world = World::new().await;
    world.refuse("tank-0001", 2);
    assert_eq!(world.fanout.handle(&batch(history(&stream(1), 1, true))).await, None);
    let taken = world.requests();
    assert_eq!((taken.messages.len(), taken.dead_letters.len()), (1, 0));
}

/// A response without results for the entries means that the service accepted no entry.
#[tokio::test]
async fn rule_10_a_call_that_fails_as_a_whole_fails_its_records() {
    for operation in ["PutEvents", "SendMessageBatch"] {
        let world = World::new().await;
        world.requests().refuse_calls = Some(operation);
        let commits: Vec<_> = (1..=3).map(|id| history(&stream(id), 1, true).remove(0)).collect();
        assert_eq!(world.fanout.handle(&batch(commits)).await, Some(0), "{operation}");
    }
}

#[tokio::test]
async fn an_entry_that_the_bus_always_refuses_is_quarantined_and_the_rest_is_sent() {
    let world = World::new().await;
    let mut commits: Vec<_> = (1..=3).map(|id| history(&stream(id), 1, true).remove(0)).collect();
    commits[1].meta.trace_id = Some("nowhere on the bus".into());
    assert_eq!(world.fanout.handle(&batch(commits)).await, None);
    let taken = world.requests();
    assert_eq!((taken.messages.len(), taken.entries.len(), taken.dead_letters.len()), (3, 2, 1));
    assert_eq!(taken.dead_letters[0]["reason"], "it was refused: MalformedDetail");
}

/// Lambda redelivers the records after the first failure. The fanout writes their dead letters at
/// the redelivery, so each is written once.
#[tokio::test]
async fn records_that_lambda_redelivers_get_no_dead_letter_before_the_redelivery() {
    let world = World::new().await;
    world.refuse("\"version\":1,\"events\"", usize::MAX);
    assert_eq!(world.fanout.handle(&sample("tank-fanout/unreadable")).await, Some(0));
    assert_eq!(world.requests().dead_letters.len(), 0);
}

#[tokio::test]
async fn a_message_that_a_queue_always_refuses_is_quarantined_and_the_rest_is_sent() {
    let world = World::new().await;
    let mut commits: Vec<_> = (1..=3).map(|id| history(&stream(id), 1, true).remove(0)).collect();
    commits[1].command = "never".into();
    assert_eq!(world.fanout.handle(&batch(commits)).await, None);
    let taken = world.requests();
    assert_eq!((taken.messages.len(), taken.entries.len(), taken.dead_letters.len()), (2, 3, 1));
    assert_eq!(taken.dead_letters[0]["stream"], "tank-0002");
    assert_eq!(taken.dead_letters[0]["reason"], "it was refused: InvalidMessageContents");
}

#[tokio::test]
async fn characters_that_sqs_refuses_are_escaped() {
    let world = World::new().await;
    let mut commit = history(&stream(1), 1, true).remove(0);
    commit.events[0].data =
        "{\"site\":\"a\u{ffff}b\u{fffe}\",\"liquid\":\"water\",\"on\":\"2026-11-21\"}".into();
    assert_eq!(world.fanout.handle(&batch([commit.clone()])).await, None);
    let taken = world.requests();
    let body = taken.messages[0]["MessageBody"].as_str().unwrap();
    let received: Commit = serde_json::from_str(body).unwrap();
    assert_eq!(
        received
            .events
            .iter()
            .map(|event| ledgerline::decode::<Tank>(event).unwrap())
            .collect::<Vec<_>>(),
        commit
            .events
            .iter()
            .map(|event| ledgerline::decode::<Tank>(event).unwrap())
            .collect::<Vec<_>>(),
    );
}

/// During a deployment, newer functions commit for an older fanout. The fanout attaches their
/// states unchanged.
#[tokio::test]
async fn a_state_of_a_newer_schema_is_attached_unchanged() {
    let world = World::new().await;
    let mut commit = history(&stream(1), 1, true).remove(0);
    commit.state =
        Some(ledgerline::RecordedState { schema: 99, data: r#"{"shape":"new"}"#.into() });
    assert_eq!(world.fanout.handle(&batch([commit])).await, None);
    let detail: Value =
        serde_json::from_str(world.requests().entries[0]["Detail"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&detail["aggregateSchema"], &detail["aggregate"]["shape"]),
        (&json!(99), &json!("new"))
    );
}

#[tokio::test]
async fn a_commit_that_is_too_large_for_a_message_is_sent_as_a_reference() {
    let world = World::with_limit(200).await;
    let records = batch(history(&stream(1), 1, true));
    assert_eq!(world.fanout.handle(&records).await, None);
    let taken = world.requests();
    let body: Value =
        serde_json::from_str(taken.messages[0]["MessageBody"].as_str().unwrap()).unwrap();
    assert_eq!(body, json!({ "stream": "tank-0001", "version": 1 }));
    // The entry with its state never fits. So the fanout quarantines it, and the log has its
    // content.
    assert_eq!((taken.entries.len(), taken.dead_letters.len()), (0, 1));
    assert_eq!(taken.dead_letters[0]["version"], 1);
}

/// The payloads of the first commit are in an object, which the fanout does not read. The second
/// one has no state, and its fold would need the first.
#[tokio::test]
async fn a_commit_in_a_body_object_is_sent_as_its_place_in_the_log() {
    let world = World::with_views(256 * 1024, &["levels"]).await;
    let commits = history(&stream(1), 2, false);
    let bodies = Arc::<MemoryBodies>::default();
    world.store.clone().with_bodies(bodies, 0).append(&commits[0], None).await.unwrap();
    world.store.append(&commits[1], None).await.unwrap();
    let mut batch = batch(commits);
    batch[0].has_body = true;
    assert_eq!(world.fanout.handle(&batch).await, None);
    let taken = world.requests();
    assert_eq!(taken.dead_letters.len(), 0);
    let body = taken.messages[0]["MessageBody"].as_str().unwrap();
    let reference: Value = serde_json::from_str(body).unwrap();
    assert_eq!(reference, json!({ "stream": "tank-0001", "version": 1 }));
    let details = taken.entries.iter().map(|entry| entry["Detail"].as_str().unwrap());
    let details: Vec<Value> = details.map(|detail| serde_json::from_str(detail).unwrap()).collect();
    let (first, second) = (&details[0]["lastEvent"], &details[1]["lastEvent"]);
    assert_eq!((&first["payload"], &first["payloadIn"]), (&Value::Null, &json!("log")));
    assert!(second["payload"].is_object() && second["payloadIn"].is_null(), "{second}");
    assert!(details.iter().all(|detail| detail["aggregateSchema"] == 0), "{details:?}");
    assert_eq!(taken.invocations[0].1["states"][0]["aggregateSchema"], 0);
}

/// A view gets the place of a state that no invocation can carry.
#[tokio::test]
async fn a_state_that_is_too_large_for_an_invocation_is_sent_as_its_place_in_the_log() {
    let world = World::with_views(1_000, &["levels"]).await;
    let mut commit = history(&stream(1), 1, true).remove(0);
    let data = json!({ "text": "x".repeat(1_000) }).to_string();
    commit.state = Some(ledgerline::RecordedState { schema: 99, data });
    assert_eq!(world.fanout.handle(&batch([commit])).await, None);
    let taken = world.requests();
    assert_eq!((taken.dead_letters.len(), taken.entries.len()), (0, 1));
    assert_eq!(taken.invocations[0].1["states"][0]["aggregateSchema"], 0);
}

/// EventBridge counts the source, the type and the detail of an entry; a queue counts the body.
#[tokio::test]
async fn an_entry_and_a_message_are_sent_up_to_the_exact_limit() {
    let commit = history(&stream(1), 1, true).remove(0);
    let accepted = async |limit: usize| {
        let world = World::with_limit(limit).await;
        assert_eq!(world.fanout.handle(&batch([commit.clone()])).await, None);
        let taken = world.requests();
        (taken.entries.clone(), taken.messages[0]["MessageBody"].as_str().unwrap().to_owned())
    };
    let (entries, whole) = accepted(usize::MAX).await;
    let counted = ["Source", "DetailType", "Detail"].map(|name| entries[0][name].as_str().unwrap());
    let bytes = counted.concat().len();
    assert_eq!(accepted(bytes).await.0.len(), 1);
    let without = accepted(bytes - 1).await.0.remove(0);
    let detail: Value = serde_json::from_str(without["Detail"].as_str().unwrap()).unwrap();
    let event = &detail["lastEvent"];
    assert_eq!((&event["payload"], &event["payloadIn"]), (&Value::Null, &json!("log")));
    assert_eq!(accepted(whole.len()).await.1, whole);
    assert!(accepted(whole.len() - 1).await.1.len() < whole.len(), "it is a reference");
}

/// `tank-` has 5 characters, `:1` has 2. A longer id than 128 characters is replaced by its hash of
/// 64 characters, so that ids stay distinct.
#[tokio::test]
async fn ids_of_messages_have_at_most_128_characters() {
    for (length, group, deduplication) in
        [(121, 126, 128), (122, 127, 64), (123, 128, 64), (124, 64, 64)]
    {
        let world = World::new().await;
        let stream = StreamId::new("tank", &"x".repeat(length)).unwrap();
        assert_eq!(world.fanout.handle(&batch(history(&stream, 1, true))).await, None);
        let message = &world.requests().messages[0];
        let found = ["MessageGroupId", "MessageDeduplicationId"]
            .map(|name| message[name].as_str().unwrap().len());
        assert_eq!(found, [group, deduplication]);
    }
}

/// During a deployment, an older fanout gets events that it cannot fold. It passes them on without
/// a state, and a newer function behind the fanout folds them.
#[tokio::test]
async fn events_of_a_newer_schema_are_passed_on_without_a_state() {
    let world = World::new().await;
    let strange = Commit {
        stream: StreamId::new("stranger", "1").unwrap(),
        ..history(&stream(1), 1, false).remove(0)
    };
    let mut newer = history(&stream(2), 3, false);
    newer[1].events[0].schema = 99;
    newer[2].state = None;
    for commit in &newer {
        world.store.append(commit, None).await.unwrap();
    }
    assert_eq!(world.fanout.handle(&batch([strange].into_iter().chain(newer))).await, None);
    let taken = world.requests();
    assert_eq!((taken.entries.len(), taken.dead_letters.len(), taken.messages.len()), (4, 0, 3));
    for entry in &taken.entries {
        let detail: Value = serde_json::from_str(entry["Detail"].as_str().unwrap()).unwrap();
        let version = &detail["lastEvent"]["version"];
        assert_eq!(
            (&detail["aggregateSchema"], &detail["aggregate"]),
            (&json!(0), &json!({ "lastKnownVersion": version }))
        );
    }
}

// --- A record that crashes the function ----------------------------------------------------------

/// Builds the records of commits that are this many seconds old.
fn late(commits: impl IntoIterator<Item = Commit>, seconds: i64) -> Vec<Record> {
    let created = Some(jiff::Timestamp::now().as_second() - seconds);
    batch(commits).into_iter().map(|record| Record { created, ..record }).collect()
}

/// Returns a commit without a state whose fold crashes the function.
fn bomb() -> Commit {
    let events = vec![encode::<Bomb>(&BombEvent::BombPlanted {}).unwrap()];
    let commit = history(&stream(0), 1, false).remove(0);
    Commit { stream: StreamId::new("bomb", "1").unwrap(), events, ..commit }
}

/// Invokes the function as Lambda does, in the order of the shard. After a crash it halves the
/// batch and delivers it again. Returns the number of invocations until all records are done.
async fn deliver(world: &World, records: &[Record], at_most: usize) -> usize {
    let mut at = 0;
    let mut end = records.len();
    let mut invocations = 0;
    while at < records.len() {
        invocations += 1;
        assert!(
            invocations <= at_most,
            "it does not come to an end: {at} of {} are done",
            records.len()
        );
        // A crashed instance leaves nothing but the attempts in the table.
        match AssertUnwindSafe(world.fanout.handle(&records[at..end])).catch_unwind().await {
            Ok(None) => (at, end) = (end, records.len()),
            Ok(Some(failed)) => (at, end) = (at + failed, records.len()),
            Err(_) if end - at > 1 => end = at + (end - at) / 2,
            Err(_) => {}
        }
    }
    invocations
}

#[tokio::test]
async fn a_poison_pill_is_quarantined_after_a_few_invocations_and_holds_up_no_other_record() {
    let world = World::new().await;
    world.store.append(&bomb(), None).await.unwrap();
    let tanks = (1..100).map(|id| history(&stream(id), 1, true).remove(0));
    let mut commits: Vec<_> = tanks.collect();
    commits.insert(57, bomb());
    let invocations = deliver(&world, &late(commits, 60), 100).await;
    assert!(invocations <= 20, "{invocations}");
    let queued: HashSet<_> = world.messages().into_iter().collect();
    assert_eq!(queued.len(), 99, "all others were passed on");
    let taken = world.requests();
    let entries: HashSet<_> =
        taken.entries.iter().map(|entry| entry["Detail"].to_string()).collect();
    assert_eq!(entries.len(), 99);
    let [letter] = taken.dead_letters.as_slice() else { panic!("{:?}", taken.dead_letters) };
    assert_eq!(letter["stream"], "bomb-1");
    assert_eq!(letter["reason"], "the function crashed on every attempt");
}

/// After an hour without the bus, the queues or Lambda, the fanout has quarantined no record. No
/// operator has to do anything. The codes of such an outage are unknown to the fanout.
#[tokio::test]
async fn an_outage_of_any_length_quarantines_no_record() {
    let all = |taken: &mut Taken| {
        taken.refuse.insert(String::new(), usize::MAX);
    };
    type Outage<'a> = &'a dyn Fn(&mut Taken);
    let bus: Outage<'_> = &|taken| taken.refuse_calls = Some("PutEvents");
    let queue: Outage<'_> = &|taken| taken.refuse_calls = Some("SendMessageBatch");
    let outages: [(&str, &str, Outage<'_>); 6] = [
        ("a bus that fails", "NewException", bus),
        ("a bus that is set up wrongly", "InvalidArgument", bus),
        ("a queue that fails", "NewException", queue),
        ("a queue that is set up wrongly", "InvalidParameterValue", queue),
        ("a queue without its key", "KMS.ThrottlingException", queue),
        ("targets that refuse each entry", "NewException", &all),
    ];
    let cases = outages.map(|(outage, code, begin)| async move {
        let world = World::with_views(256 * 1024, &["levels"]).await;
        let earlier = late([history(&stream(0), 1, true).remove(0)], 3_600);
        assert_eq!(world.fanout.handle(&earlier).await, None);
        let records = late((1..4).map(|id| history(&stream(id), 1, true).remove(0)), 3_600);
        world.requests().code = Some(code);
        begin(&mut world.requests());
        for _ in 0..12 {
            assert_eq!(world.fanout.handle(&records).await, Some(0), "{outage}");
        }
        world.requests().refuse_calls = None;
        world.requests().refuse.clear();
        assert_eq!(world.fanout.handle(&records).await, None);
        let taken = world.requests();
        assert!(taken.dead_letters.is_empty(), "{outage}");
        let entries: HashSet<_> =
            taken.entries.iter().map(|entry| entry["Detail"].to_string()).collect();
        assert_eq!(entries.len(), 4);
    });
    futures::future::join_all(cases).await;
}

/// A target, and the text that marks the entries of the stream 2 there.
struct Target {
    name: &'static str,
    marker: &'static str,
}

const TARGETS: [Target; 3] = [
    Target { name: "bus", marker: "tank-0002\",\"aggregate\"" },
    Target { name: "fills.fifo", marker: "tank-0002\",\"version\":1,\"events\"" },
    Target { name: "levels", marker: "{\"states\":[{\"stream\":\"tank-0002\",\"aggregate\"" },
];

/// One target refuses a record with a code that the fanout does not know. The record is alone in
/// its batch, or has neighbours.
#[tokio::test]
async fn rule_11_an_entry_that_only_its_target_refuses_is_quarantined_after_ten_invocations() {
    let cases = TARGETS.iter().flat_map(|target| [(target, 2..3), (target, 2..5)]);
    let cases = cases.map(|(target, ids)| assert_quarantined(target, ids));
    futures::future::join_all(cases).await;
}

async fn assert_quarantined(target: &Target, ids: std::ops::Range<usize>) {
    let Target { name: target, marker } = *target;
    // Given a target that refuses one stream. The bus and a view get the same text, so a world has
    // one of them.
    let (views, absent): (&[&str], _) = match target {
        "bus" => (&[], "levels"),
        "levels" => (&["levels"], "bus"),
        _ => (&["levels"], ""),
    };
    let mut world = World::with_views(256 * 1024, views).await;
    if target == "levels" {
        world.wiring.bus_events = Some([].into());
        world.replace_store(world.store.clone());
    }
    let commits = |ids: std::ops::Range<usize>| {
        ids.map(|id| history(&stream(id), 1, true).remove(0)).collect::<Vec<_>>()
    };
    assert_eq!(world.fanout.handle(&batch(commits(1..2))).await, None);
    world.requests().code = Some("NewException");
    world.refuse(marker, usize::MAX);
    // When the record is young, then its attempts are not counted.
    for (age, attempts) in [(3, 2), (60, 9)] {
        let records = late(commits(ids.clone()), age);
        for _ in 0..attempts {
            assert_eq!(world.fanout.handle(&records).await, Some(0), "{target}");
        }
    }
    assert_eq!(world.requests().dead_letters, [Value::Null; 0]);
    // When it is late, then it is quarantined at the tenth attempt, and no other record.
    deliver(&world, &late(commits(ids.clone()), 60), 2).await;
    let taken = world.requests();
    let [letter] = &taken.dead_letters[..] else { panic!("{:?}", taken.dead_letters) };
    assert_eq!(letter["stream"], "tank-0002");
    let reason = letter["reason"].as_str().unwrap();
    assert!(reason.contains(target) && reason.contains("NewException"), "{reason}");
    let arrived = [
        ("bus", json!(taken.entries)),
        ("fills.fifo", json!(taken.messages)),
        ("levels", json!(taken.invocations)),
    ];
    for (other, arrived) in arrived.iter().filter(|(name, _)| *name != absent) {
        let arrived = arrived.to_string();
        let reached = ids.clone().filter(|id| arrived.contains(&format!("tank-{id:04}"))).count();
        let expected = ids.len() - usize::from(*other == target);
        assert_eq!(reached, expected, "{target} holds up no record of {other}");
    }
}

/// The fanout cannot know whether another call would be accepted. So it quarantines nothing until
/// the target has accepted an entry.
#[tokio::test]
async fn without_an_accepted_entry_an_unknown_code_counts_as_an_outage() {
    let world = World::new().await;
    world.requests().code = Some("NewException");
    world.refuse(TARGETS[0].marker, usize::MAX);
    let records = late([history(&stream(2), 1, true).remove(0)], 60);
    for _ in 0..11 {
        assert_eq!(world.fanout.handle(&records).await, Some(0));
    }
    assert_eq!(world.requests().dead_letters, [Value::Null; 0]);
}

/// A batch in time costs no extra write, and a late batch costs two. A redelivered commit has no
/// time, so its batch counts as in time.
#[tokio::test]
async fn attempts_are_counted_only_for_late_records() {
    let commits = || (1..4).map(|id| history(&stream(id), 1, true).remove(0));
    for (records, expected) in [
        (late(commits(), 3), vec![]),
        (batch(commits()), vec![]),
        (late(commits(), 60), vec!["UpdateItem", "DeleteItem"]),
    ] {
        let world = World::new().await;
        assert_eq!(world.fanout.handle(&records).await, None);
        assert_eq!(world.wire.operations(), expected);
    }
    // If the table of the attempts is unavailable, the fanout still passes the records on.
    let mut world = World::new().await;
    let elsewhere = world.store.clone().with_requests("nowhere");
    world.replace_store(elsewhere);
    assert_eq!(world.fanout.handle(&late(commits(), 60)).await, None);
    assert_eq!(world.messages().len(), 3);
}

/// A queue drops a message whose deduplication id it accepted in the last five minutes. So a second
/// redelivery in that time needs other ids. A retried call of one redelivery needs the same ids.
#[tokio::test]
async fn each_redelivery_has_its_own_deduplication_ids_and_a_retried_call_the_same_ids() {
    let world = World::new().await;
    let redelivered = |arn: &str| {
        let mut batch: Value = file("tank-fanout/commits");
        for record in batch["Records"].as_array_mut().unwrap() {
            record["eventSourceARN"] = arn.into();
        }
        records(serde_json::from_value(batch).unwrap())
    };
    let mut ids = Vec::new();
    for arn in [
        "arn:aws:dynamodb:…/stream/1",
        "redelivery/1",
        "redelivery/2",
        "redelivery/2",
        "redelivery",
    ] {
        assert_eq!(world.fanout.handle(&redelivered(arn)).await, None);
        let messages = std::mem::take(&mut world.requests().messages);
        let id = |message: &Value| message["MessageDeduplicationId"].as_str().unwrap().to_owned();
        ids.push(messages.iter().map(id).collect::<Vec<_>>());
    }
    let [stream, first, second, repeated, before] = ids.try_into().unwrap();
    assert_eq!(stream[0], "tank-163082d2-b005-45d7-9eb6-aa1f83efd55d:1");
    assert_eq!(first[0], "tank-163082d2-b005-45d7-9eb6-aa1f83efd55d:1:1");
    assert_ne!(first, second);
    assert_eq!(second, repeated, "a call whose answer was lost");
    assert_eq!(before, stream, "a runbook of before this");
}
