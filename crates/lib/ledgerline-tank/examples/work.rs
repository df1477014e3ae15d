//! Runs one part of the functions' work alone, so that the test `instructions` can count its
//! instructions: `work <part> <times>`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::{collections::HashMap, env, hint::black_box, num::NonZeroUsize};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_lambda_events::sqs::{SqsEvent, SqsMessage};
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_runtime_api::{
    client::{
        http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
        orchestrator::{HttpRequest, HttpResponse},
    },
    http::StatusCode,
};
use jiff::civil::date;
use ledgerline::{
    Aggregate, Cache, Commit, Consistency, Context, EventStore, Execution, Host, MemoryStore, Meta,
    decode, encode, encode_state, execute, load,
    testing::tank::{Amount, Command, Event, Tank, Tanks},
};
use ledgerline_dynamodb::{DynamoDbStore, StateRows};
use ledgerline_lambda::{
    fanout::{Fanout, Wiring},
    log_projector::LogProjector,
    messages::Message,
    queue::QueueRunner,
    state_projector::StateProjector,
    stream_records::{Batch, Handler, Record, records},
};
use ledgerline_tank::views::{LEVELS_VIEW, READINGS_VIEW};
use serde_json::{Value, json};

const TANK: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

/// The note of a fill.
const NOTE: Option<&str> = Some("November's rain");

fn event(version: u64, note: Option<&str>) -> Event {
    let on = date(2026, 11, 21);
    match version {
        1 => Event::TankInstalled {
            site: "North Harbour".into(),
            liquid: "oil".into(),
            installed_by: Some("ada".into()),
            on,
        },
        _ => Event::TankFilled {
            amount: 100,
            level: 100 * i64::try_from(version).unwrap(),
            on,
            note: note.map(Into::into),
        },
    }
}

fn meta() -> Meta {
    Meta {
        actor: Some("ada".into()),
        correlation_id: Some("0190163d-8694-739b-aea5-966c26f8ad93".into()),
        causation_id: Some("0190163d-8694-739b-aea5-966c26f8ad93".into()),
        source_address: Some("192.0.2.1".into()),
        trace_id: Some("Root=1-5759e988-bd862e3fe1be46a994272793".into()),
    }
}

fn commit(version: u64, note: Option<&str>) -> Commit {
    Commit {
        stream: Tank::stream(TANK).unwrap(),
        version,
        events: vec![encode::<Tank>(&event(version, note)).unwrap()],
        state: None,
        command: format!("0190163d-8694-739b-aea5-{version:012}"),
        at: "2026-11-21T09:30:00.123456Z".parse().unwrap(),
        meta: meta(),
    }
}

/// The images of commits in the records of the table's stream.
fn images(times: u64, note: Option<&str>) -> Vec<serde_dynamo::Item> {
    (1..=times).map(|version| serde_dynamo::to_item(commit(version, note)).unwrap()).collect()
}

/// The answer of the database to a query for commits, newest first, with the attributes that a fold
/// needs.
fn page(times: u64, note: Option<&str>) -> String {
    let asked = |image: serde_dynamo::Item| {
        let attributes = image.into_inner().into_iter();
        attributes
            .filter(|(name, _)| ["version", "events", "state"].contains(&name.as_str()))
            .collect::<HashMap<_, _>>()
    };
    let items: Vec<_> = images(times, note).into_iter().rev().map(asked).collect();
    json!({ "Count": times, "ScannedCount": times, "Items": items }).to_string()
}

/// Loads a tank from the database's answer to a query.
async fn loaded(times: u64, note: Option<&str>) {
    let store = DynamoDbStore::new(
        aws_sdk_dynamodb::Client::new(&sdk(Aws { commits: page(times, note) })),
        "Commits",
    );
    let stream = Tank::stream(TANK).unwrap();
    let loaded = load::<Tank>(&store, &stream, None, Consistency::Eventual).await.unwrap();
    assert!(loaded.version == times && loaded.state.installed().is_some());
}

/// Reads the items of the same answer with the SDK. It does not free them, because that is part of
/// `load`.
async fn items(times: u64, note: Option<&str>) {
    let client = aws_sdk_dynamodb::Client::new(&sdk(Aws { commits: page(times, note) }));
    let query =
        client.query().table_name("Commits").projection_expression("version, events, state");
    let output = query.send().await.unwrap();
    assert!(std::mem::ManuallyDrop::new(output).items().len() as u64 == times);
}

/// Decodes a stored event.
fn decoded(times: u64, note: Option<&str>) {
    let recorded = encode::<Tank>(&event(2, note)).unwrap();
    for _ in 0..times {
        black_box(decode::<Tank>(black_box(&recorded)).unwrap());
    }
}

/// Executes commands on this store.
async fn commands(store: &impl EventStore, host: &Host, times: u64, note: Option<&str>) {
    let cache = Cache::<Tank>::new(NonZeroUsize::new(1_000).unwrap());
    let stream = Tank::stream(TANK).unwrap();
    let context =
        Context { at: "2026-11-21T09:30:00.123456Z".parse().unwrap(), actor: Some("ada".into()) };
    let meta = meta();
    for n in 0..times {
        let command = if n == 0 {
            Command::Install {
                site: "North Harbour".parse().unwrap(),
                liquid: "oil".parse().unwrap(),
            }
        } else {
            let note = note.map(|note| note.parse().unwrap());
            Command::Fill(Amount { amount: "100".parse().unwrap(), note })
        };
        let id = format!("0190163d-8694-739b-aea5-{n:012}");
        let execution = Execution {
            creates: n == 0,
            ..Execution::new(&stream, &command, &context, &id, &meta)
        };
        execute(store, &cache, host, &execution).await.unwrap();
    }
}

/// Reads commits from batches of the table's stream, in the form in which Lambda sends them.
fn stream_records(times: u64) {
    let record = |image| {
        json!({
            "eventID": "c9fbe7d0261a5163fcb6940593e41797",
            "eventName": "INSERT",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "us-east-1",
            "dynamodb": {
                "ApproximateCreationDateTime": 1_795_253_400.0,
                "Keys": { "stream": { "S": format!("tank-{TANK}") }, "version": { "N": "2" } },
                "NewImage": image,
                "SequenceNumber": "4421584500000000017450439091",
                "SizeBytes": 700,
                "StreamViewType": "NEW_IMAGE",
            },
            "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/Commits/stream/2026-11-21T09:30:00.000",
        })
    };
    let batch = json!({ "Records": images(10, NOTE).into_iter().map(record).collect::<Vec<_>>() })
        .to_string();
    for _ in 0..times / 10 {
        let read = records(serde_json::from_str::<Batch>(black_box(&batch)).unwrap());
        assert!(read.len() == 10 && read.iter().all(|record| record.commit.is_ok()));
    }
}

/// A fake of AWS, as far as the work needs it. It answers each operation at once, always with the
/// same response.
#[derive(Debug, Clone, Default)]
struct Aws {
    /// The answer to a query for commits.
    commits: String,
}

impl HttpConnector for Aws {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").unwrap_or_default();
        let (status, answer) = match target.rsplit('.').next().unwrap_or_default() {
            "PutEvents" => (
                200,
                r#"{"FailedEntryCount":0,"Entries":[{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"},{"EventId":"1"}]}"#,
            ),
            "SendMessageBatch" => (
                200,
                r#"{"Failed":[],"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":""},{"Id":"1","MessageId":"m","MD5OfMessageBody":""},{"Id":"2","MessageId":"m","MD5OfMessageBody":""},{"Id":"3","MessageId":"m","MD5OfMessageBody":""},{"Id":"4","MessageId":"m","MD5OfMessageBody":""},{"Id":"5","MessageId":"m","MD5OfMessageBody":""},{"Id":"6","MessageId":"m","MD5OfMessageBody":""},{"Id":"7","MessageId":"m","MD5OfMessageBody":""},{"Id":"8","MessageId":"m","MD5OfMessageBody":""},{"Id":"9","MessageId":"m","MD5OfMessageBody":""}]}"#,
            ),
            "Query" if !self.commits.is_empty() => {
                let body = request.body().bytes().map(String::from_utf8_lossy).unwrap_or_default();
                assert!(body.contains("ProjectionExpression"), "{body}");
                (200, self.commits.as_str())
            }
            "Query" => (200, r##"{"Count":1,"ScannedCount":1,"Items":[{"#position":{"N":"1"}}]}"##),
            "BatchWriteItem" => (
                200,
                r#"{"ConsumedCapacity":[{"TableName":"t","CapacityUnits":10.0}],"UnprocessedItems":{}}"#,
            ),
            "PutItem" => (200, r#"{"ConsumedCapacity":{"TableName":"t","CapacityUnits":1.0}}"#),
            // The invocation of a function.
            _ => (202, ""),
        };
        let status = StatusCode::try_from(status).unwrap();
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, answer.into())))
    }
}

fn sdk(aws: Aws) -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-central-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::for_tests()))
        .endpoint_url("http://aws.invalid")
        .http_client(http_client_fn(move |_, _| SharedHttpConnector::new(aws.clone())))
        .retry_config(ledgerline_lambda::retries())
        .build()
}

/// The second commits of ten tanks, with their states.
fn second_commits() -> Vec<Commit> {
    let fold = |state, version| Tank::evolve(state, &event(version, NOTE));
    let state = (1..=2).fold(Tank::initial(), fold);
    let of = |tank| Commit {
        stream: Tank::stream(&format!("0190163d-8694-739b-aea5-{tank:012}")).unwrap(),
        state: Some(encode_state::<Tank>(&state).unwrap()),
        ..commit(2, NOTE)
    };
    (0..10).map(of).collect()
}

/// Fans commits out, in batches of ten, to a state view, a queue and, if `bus` is set, the bus.
async fn fanned_out(times: u64, bus: bool) {
    let sdk = sdk(Aws::default());
    let of_tanks = |name: &str| [(name.to_owned(), vec![Tank::CATEGORY.to_owned()])].into();
    let wiring = Wiring {
        event_bus: "bus".into(),
        event_source: "ledgerline".into(),
        bus_events: (!bus).then(Default::default),
        state_views: of_tanks("levels:live"),
        log_queues: of_tanks("http://aws.invalid/readings.fifo"),
        dead_letter_queue: "http://aws.invalid/dead-letters".into(),
        max_message_bytes: 256 * 1024,
    };
    let store = DynamoDbStore::new(aws_sdk_dynamodb::Client::new(&sdk), "Commits");
    let clients = (
        aws_sdk_eventbridge::Client::new(&sdk),
        aws_sdk_lambda::Client::new(&sdk),
        aws_sdk_sqs::Client::new(&sdk),
    );
    let fanout = Fanout::new::<Tanks>(store, clients, wiring);
    let record = |commit| Record {
        sequence_number: "4421584500000000017450439091".into(),
        created: None,
        run: None,
        commit: Ok(commit),
    };
    let batch: Vec<_> = second_commits().into_iter().map(record).collect();
    for _ in 0..times / 10 {
        assert_eq!(fanout.handle(black_box(&batch)).await, None);
    }
}

/// Writes the rows of a log view, from commits in batches of ten.
async fn logged(times: u64) {
    let client = aws_sdk_dynamodb::Client::new(&sdk(Aws::default()));
    let consumer = LogProjector::new(client.clone(), "Readings", READINGS_VIEW);
    let runner = QueueRunner { store: DynamoDbStore::new(client, "Commits"), consumer };
    let message = |commit: Commit| {
        let mut message = SqsMessage::default();
        message.attributes.insert("MessageGroupId".into(), commit.stream.to_string());
        let commit = Commit { state: None, ..commit };
        message.body = Some(serde_json::to_string(&Message::Commit(Box::new(commit))).unwrap());
        message
    };
    let mut event = SqsEvent::default();
    event.records = second_commits().into_iter().map(message).collect();
    for _ in 0..times / 10 {
        assert!(runner.batch(black_box(&event.records)).await.batch_item_failures.is_empty());
    }
}

/// Writes the rows of a state view, from batches of ten states.
async fn shown(times: u64) {
    let client = aws_sdk_dynamodb::Client::new(&sdk(Aws::default()));
    let table = StateRows::new(client.clone(), "Levels", LEVELS_VIEW.table);
    let projector =
        StateProjector { table, log: DynamoDbStore::new(client, "Commits"), view: LEVELS_VIEW };
    let detail = |commit: Commit| {
        let state = commit.state.unwrap();
        let mut fields: Value = serde_json::from_str(&state.data).unwrap();
        fields["lastKnownVersion"] = commit.version.into();
        let event = &commit.events[0];
        let payload: Value = serde_json::from_str(&event.data).unwrap();
        json!({
            "stream": commit.stream, "aggregate": fields, "aggregateSchema": state.schema, "meta": commit.meta,
            "lastEvent": {
                "stream": commit.stream, "version": commit.version, "index": 0, "eventType": event.event_type,
                "schema": event.schema, "payload": payload, "at": commit.at,
            },
        })
    };
    let states: Vec<_> = second_commits().into_iter().map(detail).collect();
    let invocation = json!({ "states": states }).to_string();
    for _ in 0..times / 10 {
        let event = serde_json::from_str(black_box(&invocation)).unwrap();
        projector
            .project_all(ledgerline_lambda::state_projector::details(event).unwrap())
            .await
            .unwrap();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = env::args().skip(1);
    let what = arguments.next().unwrap();
    let times = arguments.next().unwrap().parse().unwrap();
    let (what, note) = match what.strip_suffix("-without-note") {
        Some(what) => (what, None),
        None => (what.as_str(), NOTE),
    };
    match what {
        "decode" => decoded(times, note),
        // The test subtracts these two from its count for `load`. The database makes the answer,
        // and the SDK parses it.
        "page" => assert!(!black_box(page(times, note)).is_empty()),
        "items" => items(times, note).await,
        "load" => loaded(times, note).await,
        "commands" => commands(&MemoryStore::default(), &MemoryStore::HOST, times, note).await,
        "commands-with-sdk" => {
            let client = aws_sdk_dynamodb::Client::new(&sdk(Aws::default()));
            commands(&DynamoDbStore::new(client, "Commits"), &DynamoDbStore::HOST, times, note)
                .await;
        }
        "fanout" => fanned_out(times, false).await,
        "fanout-with-bus" => fanned_out(times, true).await,
        "logged" => logged(times).await,
        "shown" => shown(times).await,
        "records" => stream_records(times),
        other => panic!("{other}"),
    }
}
