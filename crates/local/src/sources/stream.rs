//! A table's stream as an event source: batches in order, filters, partial batch responses, bisecting, bounded
//! retries, and the on-failure destination.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use dynoxide::Database;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::{Reported, reported};
use crate::{
    hops::{Hops, name},
    host::Function,
    pattern::Filters,
    template::{StartingPosition, StreamSource},
};

/// How long an empty stream is left alone. A finished command looks at once.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Between two tries of the same records.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The mapping of one stream to one function.
pub(crate) struct Mapping {
    pub(crate) database: Database,
    pub(crate) table: String,
    pub(crate) source: StreamSource,
    pub(crate) filters: Filters,
    pub(crate) function: Arc<Function>,
    /// Where records go that are given up: the client and the queue's URL.
    pub(crate) on_failure: Option<(aws_sdk_sqs::Client, String)>,
    /// Wakes the poller: something was probably written.
    pub(crate) written: Arc<Notify>,
    /// The sequence number up to which every record was delivered; empty at the beginning.
    pub(crate) delivered: watch::Sender<String>,
    pub(crate) hops: Hops,
}

impl Mapping {
    /// Polls for ever.
    pub(crate) async fn run(self) {
        loop {
            match self.poll().await {
                Ok(true) => {}
                Ok(false) => {
                    let _ = tokio::time::timeout(POLL_INTERVAL, self.written.notified()).await;
                }
                Err(error) => {
                    self.hops.line("stream", &format!("{}: {error}", self.table));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Delivers one batch; whether there was one.
    async fn poll(&self) -> Result<bool> {
        let position = self.delivered.borrow().clone();
        let records = self.records_after(&position)?;
        let Some(last) = records.last() else { return Ok(false) };
        let last = sequence_number(last).to_owned();
        let passed: Vec<_> = records.into_iter().filter(|record| self.filters.pass(record)).collect();
        if !passed.is_empty() {
            for record in &passed {
                self.hops.line("commit", &describe(record));
            }
            self.deliver(passed).await;
        }
        self.delivered.send_replace(last);
        Ok(true)
    }

    fn records_after(&self, position: &str) -> Result<Vec<Value>> {
        let failed = |error: dynoxide::DynoxideError| anyhow!("{error}");
        let table = self.database.describe_table(serde_json::from_value(json!({ "TableName": self.table }))?);
        let arn = table.map_err(failed)?.table.latest_stream_arn;
        let arn = arn.ok_or_else(|| anyhow!("table {} has no stream", self.table))?;
        let mut iterator = json!({ "StreamArn": arn, "ShardId": format!("shardId-00000001-{}", self.table) });
        if position.is_empty() {
            iterator["ShardIteratorType"] = match self.source.starting_position {
                StartingPosition::TrimHorizon => json!("TRIM_HORIZON"),
                StartingPosition::Latest => json!("LATEST"),
            };
        } else {
            iterator["ShardIteratorType"] = json!("AFTER_SEQUENCE_NUMBER");
            iterator["SequenceNumber"] = json!(position);
        }
        let iterator = self.database.get_shard_iterator(serde_json::from_value(iterator)?).map_err(failed)?;
        let request = json!({ "ShardIterator": iterator.shard_iterator, "Limit": self.source.batch_size });
        let read = self.database.get_records(serde_json::from_value(request)?).map_err(failed)?;
        read.records
            .into_iter()
            .map(|record| {
                let mut record = serde_json::to_value(record)?;
                record["eventSourceARN"] = json!(arn);
                // Lambda's JSON has whole seconds.
                let created = record["dynamodb"]["ApproximateCreationDateTime"].as_f64().unwrap_or(0.0);
                record["dynamodb"]["ApproximateCreationDateTime"] = json!(created.trunc() as i64);
                Ok(record)
            })
            .collect()
    }

    /// Invokes the function until every record is done or given up.
    async fn deliver(&self, batch: Vec<Value>) {
        let partial = !self.source.function_response_types.is_empty();
        let mut work = VecDeque::from([(batch, 0_i64)]);
        while let Some((records, attempts)) = work.pop_front() {
            let started = Instant::now();
            let result = self.function.invoke(json!({ "Records": records }).to_string().into_bytes()).await;
            let took = started.elapsed().as_millis();
            let failed_from = match &result {
                Err(error) => {
                    self.hops.line("stream", &format!("{} failed: {error}", self.function.name()));
                    Some(0)
                }
                Ok(_) if !partial => None,
                Ok(answer) => first_failure(answer, &records),
            };
            let done = failed_from.unwrap_or(records.len());
            if done > 0 {
                let what = if done == 1 { describe(&records[0]) } else { format!("{done} commits") };
                self.hops.line("fanout", &format!("{what} by {} in {took} ms", self.function.name()));
            }
            if done == records.len() {
                continue;
            }
            let rest = records[done..].to_vec();
            // What the function reported has a new first record; what failed as a whole has been tried once more.
            let attempts = if done > 0 { 0 } else { attempts };
            let too_many =
                self.source.maximum_retry_attempts >= 0 && attempts >= self.source.maximum_retry_attempts;
            if rest.len() > 1 && self.source.bisect_batch_on_function_error {
                // Splitting is no retry, so it is not counted; the halves stay in order.
                let (first, second) = rest.split_at(rest.len() / 2);
                work.push_front((second.to_vec(), attempts));
                work.push_front((first.to_vec(), attempts));
            } else if too_many || self.too_old(&rest[0]) {
                self.give_up(&rest, attempts + 1).await;
            } else {
                work.push_front((rest, attempts + 1));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    fn too_old(&self, record: &Value) -> bool {
        let limit = self.source.maximum_record_age_in_seconds;
        let created = record["dynamodb"]["ApproximateCreationDateTime"].as_i64().unwrap_or(i64::MAX);
        limit >= 0 && jiff::Timestamp::now().as_second().saturating_sub(created) > limit
    }

    /// Sends where the records are, as Lambda does: metadata only, not the records.
    async fn give_up(&self, records: &[Value], attempts: i64) {
        self.hops.line("stream", &format!("gave up {} after {attempts} tries", describe(&records[0])));
        let Some((sqs, queue)) = &self.on_failure else { return };
        let (first, last) = (&records[0], &records[records.len() - 1]);
        let message = json!({
            "requestContext": {
                "functionArn": self.function.arn(),
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": attempts,
            },
            "version": "1.0",
            "timestamp": jiff::Timestamp::now().to_string(),
            "DDBStreamBatchInfo": {
                "shardId": format!("shardId-00000001-{}", self.table),
                "startSequenceNumber": sequence_number(first),
                "endSequenceNumber": sequence_number(last),
                "batchSize": records.len(),
                "streamArn": first["eventSourceARN"],
            },
        });
        if let Err(error) = sqs.send_message().queue_url(queue).message_body(message.to_string()).send().await
        {
            self.hops.line("stream", &format!("the dead letter was not taken: {error}"));
        }
    }
}

/// The index of the lowest record that failed: it becomes the checkpoint, and all after it come again.
fn first_failure(answer: &[u8], records: &[Value]) -> Option<usize> {
    let sent: HashSet<&str> = records.iter().map(sequence_number).collect();
    match reported(answer, &sent) {
        Reported::None => None,
        Reported::All => Some(0),
        Reported::Some(failed) => records.iter().position(|record| failed.contains(sequence_number(record))),
    }
}

fn sequence_number(record: &Value) -> &str {
    record["dynamodb"]["SequenceNumber"].as_str().unwrap_or_default()
}

fn describe(record: &Value) -> String {
    let image = &record["dynamodb"]["NewImage"];
    let keys = &record["dynamodb"]["Keys"];
    let types: Vec<_> = image["events"]["L"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|event| event["M"]["type"]["S"].as_str())
        .collect();
    let commit = json!({ "stream": keys["stream"]["S"], "version": keys["version"]["N"] });
    format!("{} {}", name(&commit), types.join(", "))
}
