//! The runner of functions behind the Commits table's stream.

use std::sync::Arc;

use aws_lambda_events::{
    dynamodb::EventRecord,
    streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse},
};
use futures::FutureExt;
use ledgerline::Commit;
use ledgerline_dynamodb::{Keys, commit_from_item, keys_from_item};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Error,
    needs::Needs,
    start::{Handle, start},
};

/// A batch whose records are not read yet: one that cannot be read must not fail the others.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Batch {
    records: Vec<Value>,
}

/// A record of a commit that was inserted.
#[derive(Debug)]
pub struct Record {
    /// Names it in the response.
    pub sequence_number: String,
    /// When it was written, in seconds since 1970; `None` where nobody says, as in a replay.
    pub created: Option<i64>,
    /// The replay that it comes from, if it does not come from the stream: what stands after `replay/` where a record of the stream
    /// has the stream's ARN.
    pub run: Option<String>,
    /// The commit, or what is known of a record that cannot be read.
    pub commit: Result<Commit, Unreadable>,
}

/// A record that cannot be read, with what it takes to find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreadable {
    /// Why, without its content (rule 14).
    pub reason: String,
    /// The stream's name, where that could be read.
    pub stream: Option<String>,
    /// The version, where that could be read.
    pub version: Option<u64>,
    /// The record's id.
    pub event_id: Option<String>,
    /// Its place in the stream.
    pub sequence_number: String,
    /// The stream that it came from.
    pub event_source_arn: Option<String>,
}

/// Runs a function behind a stream. The handler returns the index of the first record that failed: it and all after it
/// come again.
///
/// # Errors
/// When the parts cannot be built.
pub async fn run<Parts: Handler>(
    needs: Needs,
    build: impl AsyncFnOnce() -> Result<Parts, Error>,
) -> Result<(), Error> {
    let build = async {
        let parts = Arc::new(build().await?);
        Ok(Box::new(move |batch| {
            let parts = Arc::clone(&parts);
            async move {
                let records = records(batch);
                let failed = parts.handle(&records).await;
                Ok(response(&records, failed))
            }
            .boxed_local()
        }) as Handle<Batch, DynamoDbEventResponse>)
    };
    start(needs, build.boxed_local()).await
}

/// What handles the records of a stream.
///
/// The one there is, is the fanout:
///
/// ```no_run
/// use ledgerline::{Aggregates, Visitor, tank::Tank};
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
    /// Handles a batch; the index of the first record that failed.
    fn handle(&self, records: &[Record]) -> impl Future<Output = Option<usize>>;
}

/// The commits that the batch inserted. The mapping's filter lets nothing else through. Without this
/// check, a mapping that lost its filter would fan expired and changed items out as new.
#[must_use]
pub fn records(batch: Batch) -> Vec<Record> {
    batch.records.into_iter().filter(|record| record["eventName"] == "INSERT").map(record).collect()
}

fn record(raw: Value) -> Record {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let sequence_number = text(&raw["dynamodb"]["SequenceNumber"]).unwrap_or_default();
    let run =
        raw["eventSourceARN"].as_str().and_then(|arn| arn.strip_prefix("replay/")).map(ToOwned::to_owned);
    let created = raw["dynamodb"]["ApproximateCreationDateTime"].as_f64();
    // Whole seconds. A replay says 0.
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970 are far below the limit")]
    let created = created.filter(|created| *created > 0.0).map(|created| created as i64);
    let mut unreadable = Unreadable {
        reason: String::new(),
        stream: text(&raw["dynamodb"]["Keys"]["stream"]["S"]),
        version: raw["dynamodb"]["Keys"]["version"]["N"].as_str().and_then(|version| version.parse().ok()),
        event_id: text(&raw["eventID"]),
        sequence_number: sequence_number.clone(),
        event_source_arn: text(&raw["eventSourceARN"]),
    };
    let commit = match serde_path_to_error::deserialize::<_, EventRecord>(raw) {
        Err(error) => Err(format!("not a stream record: the field {}", error.path())),
        Ok(record) => {
            if let Some(Keys { stream, version }) = keys_from_item(record.change.keys) {
                (unreadable.stream, unreadable.version) = (Some(stream), Some(version));
            }
            commit_from_item(record.change.new_image).map_err(|error| error.to_string())
        }
    };
    let commit = commit.map_err(|reason| Unreadable { reason, ..unreadable });
    Record { sequence_number, created, run, commit }
}

/// The lowest failed sequence number becomes the checkpoint. A record without a number cannot be named: an empty
/// identifier fails the whole batch.
#[must_use]
pub fn response(records: &[Record], failed: Option<usize>) -> DynamoDbEventResponse {
    let mut response = DynamoDbEventResponse::default();
    if let Some(record) = failed.and_then(|index| records.get(index)) {
        let mut failure = DynamoDbBatchItemFailure::default();
        failure.item_identifier = Some(record.sequence_number.clone());
        response.batch_item_failures.push(failure);
    }
    response
}
