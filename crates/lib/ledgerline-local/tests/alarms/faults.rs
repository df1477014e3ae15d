//! Faults that the tests act out on a local stack.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::QueueAttributeName;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{Aggregate, Commit, EventLog, Meta, RecordedEvent, StreamId, testing::tank::Tank};
use ledgerline_testing::{
    LocalStack, eventually, table,
    tank::{fill, haul, install, log, settled},
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use uuid::Uuid;

/// The seconds of an outage that lasts longer than a test, until the stack ends.
const LASTING: u32 = 3_600;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The fanout is killed in the middle of a batch.
    FanoutKilled,
    /// The row of a tank is lost, and no later commit writes it.
    RowLost,
    /// A haul has drawn its litres from a tank that does not accept their return.
    HaulStuck,
    /// A record of the log's stream cannot be read.
    PoisonPill,
    /// The table of a state projector is down.
    StatesWait,
    /// Most requests need a table that is down.
    RequestsFail,
    /// A queue has given up a state after all retries.
    StatesGivenUp,
    /// The retry queue of a state projector is gone.
    RetryQueueGone,
    /// Lambda gives up a record of the fanout, and `FailuresBucket` has an outage.
    FanoutBucketGone,
    /// An administrator removes a commit, and changes another one.
    CommitsChanged,
    /// A caller exceeds its rate limit.
    CallerThrottled,
    /// The tables of the consumers of commits are down.
    CommitsWait,
    /// Queues have given up commits after all deliveries.
    CommitsGivenUp,
    /// The table of `$all` is down: the sequencer cannot write the table, and no subscription can
    /// read it.
    SequencerDown,
    /// Lambda throttles the function of a view, so that the fanout cannot deliver a commit.
    FunctionThrottled,
    /// DynamoDB throttles the log.
    LogThrottled,
}

impl Fault {
    /// Acts the fault out.
    pub(crate) async fn act(self, stack: &LocalStack) {
        let begun = Timestamp::now();
        match self {
            Self::FanoutKilled => fanout_killed(stack).await,
            Self::RowLost => row_lost(stack).await,
            Self::HaulStuck => haul_stuck(stack).await,
            Self::PoisonPill => stack.damage("tank-00000000-0000-4000-8000-000000000000").await,
            Self::StatesWait => {
                redeliver_at_once(stack, "tanks-LevelsRetryQueue").await;
                stack.begin_outage("LevelsTable", "failed", LASTING).await;
                install(stack, 1).await;
            }
            Self::RequestsFail => requests_fail(stack).await,
            Self::StatesGivenUp => give_up(stack, "Levels", "RetryQueue", "").await,
            Self::RetryQueueGone => {
                delete_queue(stack, "tanks-LevelsRetryQueue").await;
                install(stack, 1).await;
            }
            Self::FanoutBucketGone => {
                stack.begin_outage("FailuresBucket", "failed", LASTING).await;
                stack.begin_outage("LevelsProjectorFunction", "failed", LASTING).await;
                install(stack, 0).await;
            }
            Self::CommitsChanged => commits_changed(stack).await,
            Self::CallerThrottled => caller_throttled(stack).await,
            Self::CommitsWait => commits_wait(stack).await,
            Self::CommitsGivenUp => {
                for consumer in CONSUMERS {
                    give_up(stack, consumer, "Queue", ".fifo").await;
                }
            }
            Self::SequencerDown => {
                stack.begin_outage("SequenceTable", "failed", LASTING).await;
                install(stack, 0).await;
                wait_for_failure(stack, "tank-sequencer", begun).await;
                // The subscription notices at its next invocation.
                let answer = stack.invoke("StockSubscriptionFunction", &json!({})).await;
                assert!(!answer["errorType"].is_null(), "{answer}");
            }
            Self::FunctionThrottled => {
                stack.begin_outage("LevelsProjectorFunction", "throttled", LASTING).await;
                install(stack, 0).await;
                wait_for_failure(stack, "tank-fanout", begun).await;
            }
            Self::LogThrottled => {
                stack.begin_outage("CommitsTable", "throttled", LASTING).await;
                let tank = json!({ "site": "North", "liquid": "water" });
                let refused = stack.post("/tanks", tank).await;
                assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
            }
        }
    }
}

/// The consumers of whole commits, as the names of their queues begin.
const CONSUMERS: [&str; 3] = ["Fills", "Haul", "Readings"];

/// Sends commands, a race, a haul and queries, and waits until no work is left.
pub(crate) async fn traffic(stack: &LocalStack) {
    let (from, to) = tokio::join!(install(stack, 1_000), install(stack, 1));
    let draws = format!("/tanks/{from}/draws");
    join_all((0..4).map(|_| stack.post(&draws, json!({ "amount": 1 })))).await;
    haul(stack, &from, &to, 10).await;
    eventually("the haul arrives", async || (log(stack, &to).await.len() == 3).then_some(())).await;
    for id in [&from, &to] {
        settled(stack, id).await;
    }
    let unknown = stack.get(&format!("/tanks/{}", Uuid::new_v4())).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let reconciled = stack.invoke("ReconcilerFunction", &json!({})).await;
    assert_eq!(reconciled, Value::Null, "the reconciler answers nothing");
}

/// Kills the fanout until one of its invocations was interrupted, while commits are appended.
async fn fanout_killed(stack: &LocalStack) {
    let id = install(stack, 1).await;
    let fill = async || assert_eq!(fill(stack, &id, 1).await.status, StatusCode::OK);
    stack.cut_off_during("tank-fanout", fill).await;
    settled(stack, &id).await;
}

/// Appends the commit of a tank with a time an hour ago, because the reconciler skips young
/// commits, and deletes the tank's row.
async fn row_lost(stack: &LocalStack) {
    let installed = install(stack, 0).await;
    let (id, store) = (Uuid::new_v4().to_string(), stack.store());
    let first = store.get(&Tank::stream(&installed).unwrap(), 1).await.unwrap().unwrap();
    let at = Timestamp::now() - SignedDuration::from_hours(1);
    let old = Commit {
        stream: Tank::stream(&id).unwrap(),
        at,
        command: Uuid::new_v4().to_string(),
        ..first
    };
    store.append(&old, None).await.unwrap();
    settled(stack, &id).await;
    let dynamodb =
        aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let delete = dynamodb.delete_item().table_name(table("LevelsTable"));
    delete.key("tankId", AttributeValue::S(id)).send().await.unwrap();
    // `$all`, by which the reconciler finds the stream, is a second behind the log.
    eventually("the reconciler misses the row", async || {
        stack.invoke("ReconcilerFunction", &json!({})).await;
        let errors = stack.logged(r#"{ $.message = "not reconciled" }"#).await;
        errors.iter().any(|line| line["who"] == "LevelsProjectorFunction").then_some(())
    })
    .await;
}

/// Removes the first commit of a tank, changes the second one, and makes a stub of the third one. No
/// role may archive, so the stub rings the alarm, too.
async fn commits_changed(stack: &LocalStack) {
    let id = install(stack, 1).await;
    fill(stack, &id, 1).await;
    let stream = Tank::stream(&id).unwrap();
    let dynamodb =
        aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let key = |version: u64| {
        let stream = AttributeValue::S(stream.to_string());
        let version = AttributeValue::N(version.to_string());
        HashMap::from([("stream".to_owned(), stream), ("version".to_owned(), version)])
    };
    let delete = dynamodb.delete_item().table_name(table("CommitsTable"));
    delete.set_key(Some(key(1))).send().await.unwrap();
    let update = dynamodb.update_item().table_name(table("CommitsTable")).set_key(Some(key(2)));
    update.update_expression("REMOVE meta").send().await.unwrap();
    let update = dynamodb.update_item().table_name(table("CommitsTable")).set_key(Some(key(3)));
    let stub = update.update_expression("SET body = :body REMOVE events, #state, meta");
    let stub = stub.expression_attribute_names("#state", "state");
    let name = AttributeValue::S("1-3-0123456789abcdef0123456789abcdef".into());
    stub.expression_attribute_values(":body", name).send().await.unwrap();
    for (version, event) in [(1, "REMOVE"), (2, "MODIFY"), (3, "MODIFY")] {
        eventually("the fanout names the commit", async || {
            let lines = stack.logged(r#"{ $.message = "a commit was changed or removed" }"#).await;
            let names =
                |line: &&Value| line["stream"] == stream.to_string() && line["version"] == version;
            lines.iter().find(names).map(|line| assert_eq!(line["event"], event))
        })
        .await;
    }
}

/// Appends a haul whose litres are drawn, between two tanks that are not installed: the litres can
/// neither arrive nor return. Through the API, the tanks would have to be scrapped between two
/// commits of the haul.
async fn haul_stuck(stack: &LocalStack) {
    let event = |kind: &str, data: Value| RecordedEvent {
        event_type: kind.into(),
        schema: 1,
        data: data.to_string(),
    };
    let [from, to, id] = std::array::from_fn(|_| Uuid::new_v4().to_string());
    let requested =
        json!({ "fromTankId": from, "toTankId": to, "amount": 1, "requestedBy": "ada" });
    let commit = Commit {
        stream: StreamId::new("haul", &id).unwrap(),
        version: 1,
        events: vec![event("HaulRequested", requested), event("HaulDrawn", json!({}))],
        state: None,
        command: Uuid::new_v4().to_string(),
        at: Timestamp::now(),
        meta: Meta::default(),
    };
    stack.store().append(&commit, None).await.unwrap();
}

/// Reads a tank whose table is down, once for every ten requests of the last minute.
async fn requests_fail(stack: &LocalStack) {
    let minute_ago = Timestamp::now() - SignedDuration::from_mins(1);
    let others = stack.lines_of("AccessLogs", "{ $.status >= 100 }", minute_ago).await.len();
    let path = format!("/tanks/{}", Uuid::new_v4());
    let answers = join_all((0..=others / 10).map(|_| stack.get(&path))).await;
    assert!(answers.iter().all(|answer| answer.status.is_server_error()), "{:?}", answers[0]);
}

/// Sends concurrent requests until the function has refused more than a hundred. Each instance has
/// its own limit, and there are at most four instances.
async fn caller_throttled(stack: &LocalStack) {
    let client = ledgerline_local::http_client();
    let url = format!("{}/tanks/unknown", stack.url());
    let mut refused = 0;
    for _ in 0..20 {
        let answers = join_all((0..200).map(|_| client.get(&url).send())).await;
        let statuses = answers.into_iter().map(|answer| answer.unwrap().status());
        refused += statuses.filter(|status| *status == StatusCode::TOO_MANY_REQUESTS).count();
        if refused > 100 {
            return;
        }
    }
    panic!("of 4,000 requests at once, {refused} are refused");
}

/// Sends commits to consumers whose tables are down.
async fn commits_wait(stack: &LocalStack) {
    for consumer in CONSUMERS {
        redeliver_at_once(stack, &format!("tanks-{consumer}Queue.fifo")).await;
    }
    for table in ["FillsTable", "HaulPositionsTable", "ReadingsTable"] {
        stack.begin_outage(table, "failed", LASTING).await;
    }
    let begun = Timestamp::now();
    let id = install(stack, 1).await;
    haul(stack, &id, &Uuid::new_v4().to_string(), 1).await;
    for consumer in ["fills-projector", "haul", "readings-projector"] {
        wait_for_failure(stack, consumer, begun).await;
    }
}

/// Makes a queue redeliver messages after a second.
async fn redeliver_at_once(stack: &LocalStack, queue: &str) {
    set(stack, queue, QueueAttributeName::VisibilityTimeout, "1").await;
}

/// Makes a queue of a consumer give up a message after one receive, and not within an hour and a
/// half.
async fn give_up(stack: &LocalStack, consumer: &str, queue: &str, end: &str) {
    let dead_letters =
        format!("arn:aws:sqs:us-east-1:000000000000:tanks-{consumer}DeadLetterQueue{end}");
    let policy = json!({ "deadLetterTargetArn": dead_letters, "maxReceiveCount": 1 }).to_string();
    let queue = format!("tanks-{consumer}{queue}{end}");
    set(stack, &queue, QueueAttributeName::RedrivePolicy, &policy).await;
}

async fn set(stack: &LocalStack, name: &str, attribute: QueueAttributeName, value: &str) {
    let (sqs, url) = queue(stack, name).await.unwrap();
    sqs.set_queue_attributes().queue_url(url).attributes(attribute, value).send().await.unwrap();
}

/// Waits until a function logs a failure. Otherwise, a later measurement might find the age of a
/// commit that the function is about to finish.
async fn wait_for_failure(stack: &LocalStack, function: &str, since: Timestamp) {
    let pattern = r#"{ $.level = "WARN" || $.level = "ERROR" }"#;
    eventually(&format!("{function} fails"), async || {
        let lines = stack.lines_of("FunctionLogs", pattern, since).await;
        // Metrics with an alarm are lines of the level WARN as well.
        let mut of_it =
            lines.iter().filter(|(name, line)| name == function && line["_aws"].is_null());
        of_it.next().map(drop)
    })
    .await;
}

async fn delete_queue(stack: &LocalStack, name: &str) {
    let (sqs, url) = queue(stack, name).await.unwrap();
    sqs.delete_queue().queue_url(url).send().await.unwrap();
}

/// Returns a client of SQS and the URL of a queue; `None` if the queue does not exist.
pub(crate) async fn queue(stack: &LocalStack, name: &str) -> Option<(aws_sdk_sqs::Client, String)> {
    let sqs = aws_sdk_sqs::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let url = sqs.get_queue_url().queue_name(name).send().await.ok()?.queue_url?;
    Some((sqs, url))
}
