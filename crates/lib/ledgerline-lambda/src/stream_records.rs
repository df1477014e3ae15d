//! The runner of functions behind the Commits table's stream.

use std::{borrow::Cow, sync::Arc};

use aws_lambda_events::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};
use futures::FutureExt;
use lambda_runtime::LambdaEvent;
use ledgerline::{Commit, manifest::Manifest};
use ledgerline_dynamodb::{CommitImage, commit_from_image, is_stub_image};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::{
    config,
    failure::Error,
    messages::field_or_root,
    metrics,
    start::{handler, start},
};

/// The optional variable with the ARN of the role that archives commits.
pub(crate) const ARCHIVE_ROLE: &str = "ARCHIVE_ROLE";

/// The name of the event in the record of a new item.
const INSERT: &str = "INSERT";

/// A batch of raw records. Each record is parsed by itself, because an unreadable record must not
/// fail the others.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Batch {
    pub(crate) records: Vec<Box<RawValue>>,
}

/// A record of an inserted commit.
#[derive(Debug)]
pub struct Record {
    /// The number that names the record in the response.
    pub sequence_number: String,
    /// The time when the record was written, in seconds since 1970; `None` if the record has no
    /// time, as in a redelivery.
    pub created: Option<i64>,
    /// The name of the redelivery that the record belongs to; `None` if it is from the stream. A
    /// redelivered record has `redelivery/` and the name in place of the stream's ARN.
    pub run: Option<String>,
    /// Whether the payloads of the commit are in an object, and are `null` here.
    pub has_body: bool,
    /// The commit, or the readable fields if the record cannot be read as a commit.
    pub commit: Result<Commit, Unreadable>,
}

/// A record that cannot be read, with the fields by which an operator finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreadable {
    /// The reason why the record cannot be read, without its content (rule 14).
    pub reason: String,
    /// The stream's name, if it is readable.
    pub stream: Option<String>,
    /// The version, if it is readable.
    pub version: Option<u64>,
    /// The record's id.
    pub event_id: Option<String>,
    /// The record's place in the stream.
    pub sequence_number: String,
    /// The ARN of the record's DynamoDB stream.
    pub event_source_arn: Option<String>,
}

/// Runs a function behind a stream. The handler returns the index of the first record that failed.
/// Lambda delivers that record and all after it again.
pub(crate) async fn run<Parts: Handler>(
    manifest: Manifest,
    build: impl AsyncFnOnce() -> Result<Parts, Error>,
) -> Result<(), Error> {
    let build = async {
        let parts = Arc::new(build().await?);
        Ok(handler(move |LambdaEvent { payload: batch, .. }: LambdaEvent<Batch>| {
            let parts = Arc::clone(&parts);
            async move {
                let records = records(batch);
                let failed = parts.handle(&records).await;
                Ok(response(&records, failed))
            }
        }))
    };
    start(manifest, build.boxed_local()).await
}

/// The part of a function that handles the records of a stream.
///
/// The only one is the fanout:
///
/// ```no_run
/// use ledgerline::{Aggregates, Visitor, testing::tank::Tank};
/// struct All;
///
/// impl Aggregates for All {
///     fn visit(visitor: &mut impl Visitor) {
///         visitor.visit::<Tank>();
///     }
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::fanout::run::<All>().await
/// }
/// ```
pub trait Handler: 'static {
    /// Handles a batch. Returns the index of the first record that failed.
    fn handle(&self, records: &[Record]) -> impl Future<Output = Option<usize>>;
}

/// Reads the records of the commits that the batch inserted. Reports a changed or removed commit, and
/// returns no record for it: a subscriber would apply it as a new commit.
pub fn records(batch: Batch) -> Vec<Record> {
    batch.records.iter().filter_map(|raw| read_record(raw.get())).collect()
}

/// The fields of a stream record from which a commit is read. The type of `aws_lambda_events` reads
/// all fields, including the keys, which are in the image too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StreamRecord<'a> {
    #[serde(borrow)]
    event_name: Cow<'a, str>,
    #[serde(rename = "eventSourceARN")]
    event_source_arn: Option<String>,
    dynamodb: Change,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Change {
    approximate_creation_date_time: Option<f64>,
    sequence_number: Option<String>,
    new_image: Option<serde_dynamo::Item>,
}

fn read_record(raw: &str) -> Option<Record> {
    let Ok(record) = serde_json::from_str::<StreamRecord>(raw) else {
        // The record is read a second time to find the name of the field. A reader that always
        // finds the name would make reading a record a third slower.
        let mut read = serde_json::Deserializer::from_str(raw);
        let field = serde_path_to_error::deserialize::<_, StreamRecord>(&mut read);
        let field = field.err().as_ref().map(field_or_root).unwrap_or_default();
        return unreadable_record(raw, format!("the stream record has no valid field {field}"));
    };
    if record.event_name != INSERT {
        report_change(&serde_json::from_str(raw).unwrap_or_default());
        return None;
    }
    let Change { approximate_creation_date_time, sequence_number, new_image } = record.dynamodb;
    match commit_from_image(new_image.unwrap_or_default()) {
        Ok(CommitImage { commit, has_body }) => Some(Record {
            sequence_number: sequence_number.unwrap_or_default(),
            created: approximate_creation_date_time.and_then(whole_seconds),
            run: redelivery(record.event_source_arn.as_deref()),
            has_body,
            commit: Ok(commit),
        }),
        Err(error) => unreadable_record(raw, error.to_string()),
    }
}

/// Returns the record with its readable fields, without a commit; `None` if its event is not an
/// insertion.
fn unreadable_record(raw: &str, reason: String) -> Option<Record> {
    let raw: Value = serde_json::from_str(raw).unwrap_or_default();
    if raw["eventName"] != INSERT {
        report_change(&raw);
        return None;
    }
    let sequence_number = text(&raw["dynamodb"]["SequenceNumber"]).unwrap_or_default();
    let event_source_arn = text(&raw["eventSourceARN"]);
    let run = redelivery(event_source_arn.as_deref());
    let created = raw["dynamodb"]["ApproximateCreationDateTime"].as_f64().and_then(whole_seconds);
    let (stream, version) = keys(&raw);
    let commit = Err(Unreadable {
        reason,
        stream,
        version,
        event_id: text(&raw["eventID"]),
        sequence_number: sequence_number.clone(),
        event_source_arn,
    });
    Some(Record { sequence_number, created, run, has_body: false, commit })
}

/// Reports a commit that was changed or removed (rule 3). Only the role that archives can change one,
/// or an administrator after the removal of the table's policy.
fn report_change(raw: &Value) {
    if is_stub(raw) && config::text(ARCHIVE_ROLE).is_ok() {
        return;
    }
    let (stream, version) = keys(raw);
    let event = raw["eventName"].as_str();
    tracing::error!(stream, version, event, "a commit was changed or removed");
    metrics::changed_commit();
}

/// Whether an archive made the change.
fn is_stub(raw: &Value) -> bool {
    let image = serde_json::from_value(raw["dynamodb"]["NewImage"].clone());
    raw["eventName"] == "MODIFY" && image.is_ok_and(|image| is_stub_image(&image))
}

/// The stream and the version of a record, as far as they are readable.
fn keys(raw: &Value) -> (Option<String>, Option<u64>) {
    let keys = &raw["dynamodb"]["Keys"];
    let version = keys["version"]["N"].as_str().and_then(|version| version.parse().ok());
    (text(&keys["stream"]["S"]), version)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

/// The time of a record, cut to whole seconds. A redelivered record has a 0 here.
#[expect(clippy::cast_possible_truncation, reason = "seconds since 1970 are far below the limit")]
fn whole_seconds(seconds: f64) -> Option<i64> {
    Some(seconds).filter(|seconds| *seconds > 0.0).map(|seconds| seconds as i64)
}

/// The name of the redelivery that a record belongs to, if any.
fn redelivery(event_source_arn: Option<&str>) -> Option<String> {
    event_source_arn?.strip_prefix("redelivery/").map(ToOwned::to_owned)
}

/// Builds the response that names the failed record. Its sequence number, the lowest that failed,
/// becomes the checkpoint. A record without a number cannot be named: an empty identifier fails the
/// whole batch.
pub fn response(records: &[Record], failed: Option<usize>) -> DynamoDbEventResponse {
    let mut response = DynamoDbEventResponse::default();
    if let Some(record) = failed.and_then(|index| records.get(index)) {
        let mut failure = DynamoDbBatchItemFailure::default();
        failure.item_identifier = Some(record.sequence_number.clone());
        response.batch_item_failures.push(failure);
    }
    response
}
