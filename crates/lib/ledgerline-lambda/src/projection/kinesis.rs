//! The records that DynamoDB itself writes into a Kinesis stream, read as messages of a queue.
//!
//! DynamoDB chooses the partition keys, and may repeat and swap records: the commits of one stream
//! may be in two shards. The consumer does not depend on their order (rule 7).
//! Source: the developer guide of DynamoDB, "Using Kinesis Data Streams to capture changes".

use aws_config::SdkConfig;
use aws_lambda_events::sqs::SqsMessage;
use base64::{Engine, prelude::BASE64_STANDARD};
use ledgerline::manifest::Manifest;
use ledgerline_dynamodb::{CommitImage, commit_from_image};
use serde::Deserialize;
use serde_dynamo::AttributeValue;
use serde_json::Value;

use super::queue_runner::{self, Batch, Consumer};
use crate::{
    failure::Error,
    messages::{Message, Reference, field_or_root},
};

/// Runs a consumer of commits behind its queue, and behind the Kinesis stream of the log.
///
/// # Errors
/// Those of [`queue_runner::run`].
pub(crate) async fn run<C: Consumer + 'static>(
    manifest: Manifest,
    build: impl AsyncFnOnce(SdkConfig) -> Result<C, Error>,
) -> Result<(), Error> {
    queue_runner::run_records(manifest.kinesis(), read_batch, build).await
}

/// A record of either source. All records of one event have the same source.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Record {
    Kinesis { kinesis: KinesisRecord },
    Queue(Box<SqsMessage>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KinesisRecord {
    sequence_number: String,
    data: String,
}

/// The change of an item in the table.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TableChange {
    event_name: String,
    dynamodb: Images,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Images {
    #[serde(default)]
    keys: Value,
    new_image: Option<serde_dynamo::Item>,
}

fn read_batch(records: Vec<Record>) -> Batch {
    let mut batch = Batch::default();
    for record in records {
        match record {
            Record::Queue(message) => batch.push(*message),
            Record::Kinesis { kinesis } => {
                if let Some((message, body)) = read_record(kinesis) {
                    batch.messages.push(message);
                    batch.bodies.push(body);
                }
            }
        }
    }
    batch
}

/// Returns the message of an inserted commit; `None` for any other change. Its id is the sequence
/// number, which names the record in the response. Lambda retries the record with the lowest
/// reported number and all records after it.
fn read_record(record: KinesisRecord) -> Option<(SqsMessage, Result<Message, String>)> {
    let mut message = SqsMessage::default();
    message.message_id = Some(record.sequence_number);
    let change = match read_change(&record.data) {
        Ok(change) => change,
        Err(reason) => return Some((message, Err(reason))),
    };
    if change.event_name != "INSERT" {
        return None;
    }
    if let Some(stream) = change.dynamodb.keys["stream"]["S"].as_str() {
        message.attributes.insert("MessageGroupId".to_owned(), stream.to_owned());
    }
    let mut image = change.dynamodb.new_image.unwrap_or_default();
    image.inner_mut().values_mut().for_each(decode_again);
    let body = match commit_from_image(image) {
        Ok(CommitImage { commit, has_body: false }) => Ok(Message::Commit(Box::new(commit))),
        // The payloads are in a body object. The runner reads the commit from the log.
        Ok(CommitImage { commit, has_body: true }) => {
            Ok(Message::Reference(Reference { stream: commit.stream, version: commit.version }))
        }
        Err(error) => Err(error.to_string()),
    };
    Some((message, body))
}

/// The beginning of every gzip, in Base64.
const GZIP: &[u8] = b"H4sI";

/// Decodes the compressed payloads in a value once more, if they are still in Base64: DynamoDB
/// encodes binary values a second time in the records of Kinesis.
fn decode_again(value: &mut AttributeValue) {
    match value {
        AttributeValue::B(bytes) if bytes.starts_with(GZIP) => {
            if let Ok(gzip) = BASE64_STANDARD.decode(&*bytes) {
                *bytes = gzip;
            }
        }
        AttributeValue::L(values) => values.iter_mut().for_each(decode_again),
        AttributeValue::M(fields) => fields.values_mut().for_each(decode_again),
        AttributeValue::B(_)
        | AttributeValue::S(_)
        | AttributeValue::N(_)
        | AttributeValue::Bool(_)
        | AttributeValue::Null(_)
        | AttributeValue::Ss(_)
        | AttributeValue::Ns(_)
        | AttributeValue::Bs(_) => {}
    }
}

fn read_change(data: &str) -> Result<TableChange, String> {
    let data = BASE64_STANDARD.decode(data).map_err(|_| "the data is not Base64".to_owned())?;
    let mut read = serde_json::Deserializer::from_slice(&data);
    serde_path_to_error::deserialize(&mut read)
        .map_err(|error| format!("the data has no valid field {}", field_or_root(&error)))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Mutex, time::Duration};

    use ledgerline::{
        Changes, Commit, EventLog, MemoryStore, StreamId, contract,
        contract::log_row_store::TABLE,
        position::Delivery,
        view_store::{CommitChanges, LogRowStore, MemoryLogRows, RowStore},
    };
    use ledgerline_testing::seed;
    use serde_json::json;

    use super::*;
    use crate::projection::queue_runner::{ApplyError, QueueRunner};

    /// A consumer that sums up, and fails at some commits.
    struct Sums {
        rows: MemoryLogRows,
        /// Decides which calls fail; `None` if none does.
        outages: Option<Mutex<fastrand::Rng>>,
    }

    fn changes(commit: &Commit) -> CommitChanges<'_> {
        let mut changes = Changes::new(TABLE);
        changes.add("all", "sum", "count", 1);
        changes.set(commit.stream.id(), &commit.entry(0), "event", commit.version);
        CommitChanges { stream: &commit.stream, version: commit.version, changes }
    }

    impl Consumer for Sums {
        async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
            if self.outages.as_ref().is_some_and(|rng| rng.lock().unwrap().u8(..) < 40) {
                return Err(ApplyError::Effect("an outage".to_owned()));
            }
            Ok(self.rows.deliver_all(vec![changes(commit)]).await?[0])
        }
    }

    fn record(commit: &Commit, event_name: &str, number: usize) -> Value {
        let keys = json!({
            "stream": { "S": commit.stream.as_str() },
            "version": { "N": commit.version.to_string() },
        });
        let mut image = keys.clone();
        let events = commit.events.iter().map(|event| {
            json!({ "M": {
                "type": { "S": event.event_type }, "schema": { "N": event.schema.to_string() },
                "data": { "S": event.data },
            } })
        });
        image["events"] = json!({ "L": events.collect::<Vec<_>>() });
        image["command"] = json!({ "S": commit.command });
        image["at"] = json!({ "S": commit.at });
        image["meta"] = json!({ "M": {} });
        let change = json!({
            "eventName": event_name, "tableName": "commits", "eventSource": "aws:dynamodb",
            "dynamodb": { "Keys": keys, "NewImage": image, "ApproximateCreationDateTime": 1_795 },
        });
        let data = BASE64_STANDARD.encode(change.to_string());
        json!({ "kinesis": { "sequenceNumber": number.to_string(), "data": data } })
    }

    fn read(records: &[Value]) -> Batch {
        read_batch(records.iter().map(|it| serde_json::from_value(it.clone()).unwrap()).collect())
    }

    /// The records of a shard, some repeated and swapped, as DynamoDB may write them. Some are
    /// missing.
    fn shard(rng: &mut fastrand::Rng, commits: &[Commit]) -> Vec<Commit> {
        let mut shard: Vec<Commit> = Vec::new();
        for commit in commits {
            // With the next commit of the stream, the consumer reads the gap from the log.
            if commit.version < VERSIONS && rng.u8(..) < 30 {
                continue;
            }
            let place = shard.len() - rng.usize(0..=shard.len().min(3));
            shard.insert(place, commit.clone());
            if rng.bool() {
                shard.push(commit.clone());
            }
        }
        shard
    }

    const VERSIONS: u64 = 8;

    #[tokio::test(start_paused = true)]
    async fn rows_are_the_fold_of_records_that_are_repeated_swapped_lost_and_in_two_shards() {
        let seed = seed();
        let mut rng = fastrand::Rng::with_seed(seed);
        let streams: Vec<_> =
            (0..3).map(|id| StreamId::new("tank", &format!("{id}")).unwrap()).collect();
        let commits: Vec<_> = (1..=VERSIONS)
            .flat_map(|version| streams.iter().map(move |stream| contract::commit(stream, version)))
            .collect();
        let mut expected = BTreeMap::new();
        commits.iter().for_each(|commit| changes(commit).changes.fold(&mut expected));
        for round in 0..200 {
            let store = MemoryStore::default();
            for commit in &commits {
                store.append(commit, None).await.unwrap();
            }
            let outages = Some(Mutex::new(rng.fork()));
            let consumer = Sums { rows: MemoryLogRows::default(), outages };
            let runner = QueueRunner { store, consumer };
            let (left, right): (Vec<_>, Vec<_>) = commits.iter().cloned().partition(|_| rng.bool());
            let mut shards = [shard(&mut rng, &left), shard(&mut rng, &right)];
            // Lambda retries from the lowest failed record on.
            while shards.iter().any(|shard| !shard.is_empty()) {
                let shard = &mut shards[rng.usize(0..2)];
                let size = rng.usize(0..=shard.len().min(6));
                let records = shard[..size].iter().enumerate();
                let records: Vec<_> =
                    records.map(|(number, commit)| record(commit, "INSERT", number)).collect();
                let response = runner.batch_within(read(&records), Duration::from_secs(10)).await;
                let failed = response.batch_item_failures.iter();
                let failed =
                    failed.map(|failure| failure.item_identifier.parse::<usize>().unwrap());
                shard.drain(..failed.min().unwrap_or(size));
            }
            assert_eq!(
                runner.consumer.rows.rows(),
                expected,
                "round {round} of LEDGERLINE_SEED={seed}"
            );
        }
    }

    #[test]
    fn a_compressed_payload_is_read_in_base64_and_twice_in_base64() {
        let once = "H4sIAAAAAAACA6tWylOyMqwFAH47S9QHAAAA";
        let commit = contract::commit(&StreamId::new("tank", "1").unwrap(), 1);
        for data in [once.to_owned(), BASE64_STANDARD.encode(once)] {
            let mut record = record(&commit, "INSERT", 1);
            let change = BASE64_STANDARD.decode(record["kinesis"]["data"].as_str().unwrap());
            let mut change: Value = serde_json::from_slice(&change.unwrap()).unwrap();
            change["dynamodb"]["NewImage"]["events"]["L"][0]["M"]["data"] = json!({ "B": data });
            record["kinesis"]["data"] = BASE64_STANDARD.encode(change.to_string()).into();
            let read = read(&[record]).bodies.remove(0).unwrap().into_commit().unwrap();
            assert_eq!(read.events, commit.events);
        }
    }

    #[tokio::test]
    async fn a_failed_stream_keeps_no_other_stream_from_its_rows_and_only_insertions_count() {
        let [bad, good] = ["bad", "good"].map(|id| StreamId::new("tank", id).unwrap());
        let mut unreadable = record(&contract::commit(&bad, 1), "INSERT", 1);
        let data = json!({ "eventName": "INSERT", "dynamodb": { "Keys": {
            "stream": { "S": bad.as_str() } }, "NewImage": { "secret!": { "S": "x" } } } });
        unreadable["kinesis"]["data"] = BASE64_STANDARD.encode(data.to_string()).into();
        let records = [
            unreadable,
            record(&contract::commit(&bad, 2), "INSERT", 2),
            record(&contract::commit(&good, 1), "INSERT", 3),
            record(&contract::commit(&good, 1), "MODIFY", 4),
            json!({ "kinesis": { "sequenceNumber": "5", "data": "no Base64!" } }),
        ];
        let batch = read(&records);
        let reasons = batch.bodies.iter().filter_map(|body| body.as_ref().err());
        let reasons = reasons.map(String::as_str).collect::<Vec<_>>().join("; ");
        assert!(
            reasons.ends_with("; the data is not Base64") && !reasons.contains("secret!"),
            "{reasons}"
        );
        let consumer = Sums { rows: MemoryLogRows::default(), outages: None };
        let runner = QueueRunner { store: MemoryStore::default(), consumer };
        let response = runner.batch_within(batch, Duration::from_secs(10)).await;
        let failed = response.batch_item_failures.into_iter().map(|it| it.item_identifier);
        assert_eq!(failed.collect::<Vec<_>>(), ["1", "2", "5"]);
        assert_eq!(runner.consumer.rows.positions(&[bad, good]).await.unwrap(), [0, 1]);
    }
}
