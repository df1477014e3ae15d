//! A table's stream as an event source: batches in order, filters, partial batch responses,
//! bisecting, bounded retries, and the on-failure destination.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use dynoxide::Database;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify, watch};

use super::{
    Reported, kinesis_shards,
    on_failure::{FailedBatch, OnFailure},
    read_failures,
};
use ledgerline_sam::template::StreamSource;

use crate::{
    host::Function,
    pattern::Filters,
    stream_records::Stream,
    trace_log::{TraceLog, name},
};

/// The pause after a read of an empty stream. A finished command ends the pause at once.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The pause between two attempts at the same records.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The pause between a batch and the next read. Lambda polls four times a second. Under load,
/// commits gather even in this shorter pause, so that one invocation and all of its calls serve
/// many commits.
const PAUSE: Duration = Duration::from_millis(20);

/// The mapping of one stream to one function.
pub(crate) struct Mapping {
    pub(crate) database: Database,
    pub(crate) stream: Stream,
    pub(crate) source: StreamSource,
    /// The part of a Kinesis stream that gets the records, if the function reads one.
    pub(crate) kinesis: Option<kinesis_shards::Half>,
    pub(crate) filters: Filters,
    pub(crate) function: Arc<Function>,
    /// The client of the queues, and the destination of records that Lambda gives up.
    pub(crate) on_failure: Option<(aws_sdk_sqs::Client, OnFailure)>,
    /// Wakes the poller after a probable write.
    pub(crate) written: Arc<Notify>,
    /// The lock that the mapping holds while it reads and delivers records.
    pub(crate) polling: Arc<Mutex<()>>,
    /// The sequence number up to which every record was delivered; empty at the beginning.
    pub(crate) delivered: watch::Sender<String>,
    pub(crate) hops: TraceLog,
    /// Whether this is the first mapping of its stream. Only the first mapping prints commits, so
    /// that each commit is printed once.
    pub(crate) is_first: bool,
}

impl Mapping {
    /// Polls the stream for ever.
    pub(crate) async fn run(self) {
        loop {
            let polled = {
                let _polling = self.polling.lock().await;
                self.poll().await
            };
            match polled {
                Ok(true) => tokio::time::sleep(PAUSE).await,
                Ok(false) => {
                    let _ = tokio::time::timeout(POLL_INTERVAL, self.written.notified()).await;
                }
                Err(error) => {
                    self.hops.line("stream", &format!("{}: {error}", self.stream.table));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Delivers one batch. Returns whether there was one.
    async fn poll(&self) -> Result<bool> {
        let position = self.delivered.borrow().clone();
        let read = |after: &str, limit| self.records_after(after, limit);
        let records = gather(&self.source, &self.written, position, read).await?;
        let Some(last) = records.last() else { return Ok(false) };
        let last = sequence_number(last).to_owned();
        let passed = match &self.kinesis {
            Some(half) => half.records(&records, &self.filters),
            None => {
                vec![records.into_iter().filter(|record| self.filters.pass(record)).collect()]
            }
        };
        for record in passed.iter().flatten().filter(|_| self.is_first) {
            self.hops.line("commit", &describe(record));
        }
        // Each shard has its own order.
        let shards = passed.into_iter().filter(|batch| !batch.is_empty());
        join_all(shards.map(|batch| self.deliver(batch))).await;
        self.delivered.send_replace(last);
        Ok(true)
    }

    fn records_after(&self, position: &str, limit: usize) -> Result<Vec<Value>> {
        let records = self.stream.records_after(&self.database, position, limit)?;
        records
            .into_iter()
            .map(|record| {
                let mut record = serde_json::to_value(record)?;
                record["eventSourceARN"] = json!(self.stream.arn);
                // Lambda's JSON has whole seconds.
                let created =
                    record["dynamodb"]["ApproximateCreationDateTime"].as_f64().unwrap_or(0.0);
                record["dynamodb"]["ApproximateCreationDateTime"] = json!(created.trunc() as i64);
                Ok(record)
            })
            .collect()
    }

    /// Invokes the function until every record is done or given up.
    async fn deliver(&self, batch: Vec<Value>) {
        let mut work = Work::new(&self.source, batch);
        while let Some(records) = work.next() {
            let outcome = self.invoke(&records).await;
            if let Some((records, attempts)) = work.settle(records, outcome) {
                self.give_up(&records, attempts).await;
            }
            if outcome != Outcome::Done {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    async fn invoke(&self, records: &[Value]) -> Outcome {
        let started = Instant::now();
        let result =
            self.function.invoke(json!({ "Records": records }).to_string().into_bytes()).await;
        let took = started.elapsed().as_millis();
        if let Err(error) = &result {
            self.hops.line("stream", &format!("{} failed: {error}", self.function.name()));
        }
        let outcome = Outcome::from_answer(&self.source, result.as_deref().ok(), records);
        match outcome.done(records.len()) {
            0 => {}
            1 => self
                .hops
                .line(self.function.name(), &format!("{} in {took} ms", describe(&records[0]))),
            done => self.hops.line(self.function.name(), &format!("{done} commits in {took} ms")),
        }
        outcome
    }

    /// Gives up records: sends their place in the stream to the on-failure destination. As with
    /// Lambda, only an object contains the records.
    async fn give_up(&self, records: &[Value], attempts: i64) {
        self.hops.line(
            "stream",
            &format!("gave up {} after {attempts} attempts", describe(&records[0])),
        );
        let Some((sqs, destination)) = &self.on_failure else { return };
        let first = &records[0];
        let last = &records[records.len() - 1];
        let now = jiff::Timestamp::now();
        let function = self.function.name();
        let shard =
            kinesis_shards::shard(first).map_or_else(|| self.stream.shard(), ToOwned::to_owned);
        let batch_info =
            if self.kinesis.is_some() { "KinesisBatchInfo" } else { "DDBStreamBatchInfo" };
        let message = json!({
            "requestContext": {
                "functionArn": self.function.arn(),
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": attempts,
            },
            "version": "1.0",
            "timestamp": now.to_string(),
            batch_info: {
                "shardId": shard,
                "startSequenceNumber": sequence_number(first),
                "endSequenceNumber": sequence_number(last),
                "batchSize": records.len(),
                "streamArn": first["eventSourceARN"],
            },
        });
        let batch = FailedBatch { prefix: format!("{function}/{shard}"), message, records, now };
        if let Err(error) = destination.send_batch(sqs, batch).await {
            self.hops.line(
                "stream",
                &format!("the destination did not accept the dead letter of {function}: {error}"),
            );
        }
    }
}

/// The outcome of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The invocation failed as a whole.
    Failed,
    /// The record at this place is the first that failed, and becomes the checkpoint. Lambda
    /// redelivers this record and all records after it.
    FailedFrom(usize),
}

impl Outcome {
    /// Returns the outcome of the function's answer, which is `None` if the invocation failed.
    fn from_answer(source: &StreamSource, answer: Option<&[u8]>, records: &[Value]) -> Self {
        let Some(answer) = answer else { return Self::Failed };
        if source.function_response_types.is_empty() {
            return Self::Done;
        }
        let sent: HashSet<&str> = records.iter().map(sequence_number).collect();
        match read_failures(answer, &sent) {
            Reported::None => Self::Done,
            Reported::All => Self::Failed,
            Reported::Some(failed) => records
                .iter()
                .position(|record| failed.contains(sequence_number(record)))
                .map_or(Self::Done, Self::FailedFrom),
        }
    }

    fn done(self, records: usize) -> usize {
        match self {
            Self::Done => records,
            Self::Failed => 0,
            Self::FailedFrom(place) => place,
        }
    }
}

/// The remaining work of a batch, until every record is done or given up.
struct Work<'a> {
    source: &'a StreamSource,
    /// The parts of the batch in order, and the number of attempts of each.
    batches: VecDeque<(Vec<Value>, i64)>,
    attempts: i64,
}

impl<'a> Work<'a> {
    fn new(source: &'a StreamSource, batch: Vec<Value>) -> Self {
        Self { source, batches: VecDeque::from([(batch, 0)]), attempts: 0 }
    }

    /// Returns the records of the next invocation.
    fn next(&mut self) -> Option<Vec<Value>> {
        let (records, attempts) = self.batches.pop_front()?;
        self.attempts = attempts;
        Some(records)
    }

    /// Applies the outcome of the last invocation. Returns the records that are given up, and the
    /// number of attempts.
    fn settle(&mut self, records: Vec<Value>, outcome: Outcome) -> Option<(Vec<Value>, i64)> {
        let done = outcome.done(records.len());
        let rest = records[done..].to_vec();
        let first = rest.first()?;
        // If some records are done, another record is first in the rest, so its retries begin.
        let attempts = if done > 0 { 0 } else { self.attempts };
        let limit = self.source.maximum_retry_attempts;
        if rest.len() > 1
            && self.source.bisect_batch_on_function_error
            && outcome == Outcome::Failed
        {
            // A split is no retry, so it is not counted; the halves stay in order. If the function
            // read_failures a part of a batch, the batch is split there and not halved.
            let (first, second) = rest.split_at(rest.len() / 2);
            self.batches.push_front((second.to_vec(), attempts));
            self.batches.push_front((first.to_vec(), attempts));
            None
        } else if (limit >= 0 && attempts >= limit) || too_old(self.source, first) {
            Some((rest, attempts + 1))
        } else {
            self.batches.push_front((rest, attempts + 1));
            None
        }
    }
}

fn too_old(source: &StreamSource, record: &Value) -> bool {
    let limit = source.maximum_record_age_in_seconds;
    let created = match record["kinesis"]["approximateArrivalTimestamp"].as_f64() {
        Some(seconds) => seconds as i64,
        None => record["dynamodb"]["ApproximateCreationDateTime"].as_i64().unwrap_or(i64::MAX),
    };
    limit >= 0 && jiff::Timestamp::now().as_second().saturating_sub(created) > limit
}

fn sequence_number(record: &Value) -> &str {
    let kinesis_number = record["kinesis"]["sequenceNumber"].as_str();
    kinesis_number.or(record["dynamodb"]["SequenceNumber"].as_str()).unwrap_or_default()
}

fn describe(record: &Value) -> String {
    let change = kinesis_shards::read_change(record);
    let record = change.as_ref().unwrap_or(record);
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

/// Reads records after this position until a batch is full or the window since the first read has
/// passed. Returns at once if there are none. Each read begins after the last record. Otherwise, a
/// window under load would read all of its batch again for every command.
async fn gather(
    source: &StreamSource,
    written: &Notify,
    mut position: String,
    read: impl Fn(&str, usize) -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    let until = tokio::time::Instant::now()
        + Duration::from_secs(source.maximum_batching_window_in_seconds);
    let mut records = Vec::new();
    loop {
        records.extend(read(&position, source.batch_size - records.len())?);
        let Some(last) = records.last() else { return Ok(records) };
        if records.len() >= source.batch_size || tokio::time::Instant::now() >= until {
            return Ok(records);
        }
        position.replace_range(.., sequence_number(last));
        let _ = tokio::time::timeout_at(until, written.notified()).await;
        tokio::time::sleep_until(until.min(tokio::time::Instant::now() + PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn source(extra: &str) -> StreamSource {
        let json = format!(
            r#"{{ "Stream": "s", "StartingPosition": "TRIM_HORIZON", "MaximumRetryAttempts": 2 {extra} }}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn records(count: usize) -> Vec<Value> {
        (0..count)
            .map(|number| json!({ "dynamodb": { "SequenceNumber": number.to_string(), "ApproximateCreationDateTime": 0 } }))
            .collect()
    }

    fn numbers(records: &[Value]) -> Vec<usize> {
        records.iter().map(|record| sequence_number(record).parse().unwrap()).collect()
    }

    /// Settles ten records with a function that fails at record 6. Returns the batches of the
    /// invocations, and the dead-lettered batches.
    fn settled(source: &StreamSource, partial: bool) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
        let (mut invoked, mut given_up) = (Vec::new(), Vec::new());
        let mut work = Work::new(source, records(10));
        while let Some(records) = work.next() {
            invoked.push(numbers(&records));
            let outcome = match numbers(&records).iter().position(|number| *number == 6) {
                None => Outcome::Done,
                Some(place) if partial => Outcome::FailedFrom(place),
                Some(_) => Outcome::Failed,
            };
            given_up.extend(work.settle(records, outcome).map(|(records, _)| numbers(&records)));
        }
        (invoked, given_up)
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_gathered_for_the_window_unless_a_batch_is_full() {
        let written = Notify::new();
        for (window, full, expected, waited) in [
            ("", 5, 1, 0),
            (r#", "MaximumBatchingWindowInSeconds": 3"#, 100, 4, 3),
            (r#", "MaximumBatchingWindowInSeconds": 3"#, 2, 2, 1),
        ] {
            let source = source(&format!(r#"{window}, "BatchSize": {full}"#));
            let began = tokio::time::Instant::now();
            let there = Cell::new(1);
            let looked = RefCell::new(Vec::new());
            let writes = async {
                loop {
                    tokio::time::sleep(Duration::from_secs(1) - PAUSE).await;
                    there.set(there.get() + 1);
                    written.notify_one();
                    tokio::time::sleep(PAUSE).await;
                }
            };
            let read = |after: &str, limit| {
                let after = after.parse::<usize>().map_or(0, |last| last + 1);
                let new: Vec<_> =
                    records(there.get()).into_iter().skip(after).take(limit).collect();
                looked.borrow_mut().extend(numbers(&new));
                Ok(new)
            };
            let gathered = tokio::select! {
                biased;
                _ = writes => unreachable!(),
                gathered = gather(&source, &written, String::new(), read) => gathered.unwrap(),
            };
            assert_eq!(
                (gathered.len(), began.elapsed().as_secs()),
                (expected, waited),
                "{window} {full}"
            );
            assert_eq!(looked.into_inner(), numbers(&gathered), "no record is read twice");
        }
        let source = source(r#", "MaximumBatchingWindowInSeconds": 3"#);
        let nothing =
            gather(&source, &written, String::new(), |_, _| Ok(Vec::new())).await.unwrap();
        assert_eq!(nothing.len(), 0);
    }

    #[test]
    fn a_batch_that_fails_as_a_whole_is_given_up_as_a_whole_after_its_retries() {
        let (invoked, given_up) = settled(&source(""), false);
        assert_eq!(invoked, vec![(0..10).collect::<Vec<_>>(); 3]);
        assert_eq!(given_up, [(0..10).collect::<Vec<_>>()]);
    }

    #[test]
    fn bisecting_gives_up_the_poison_pill_alone_and_preserves_the_order() {
        let (invoked, given_up) =
            settled(&source(r#", "BisectBatchOnFunctionError": true"#), false);
        assert_eq!(given_up, [[6]]);
        let done: Vec<_> =
            invoked.into_iter().filter(|batch| !batch.contains(&6)).flatten().collect();
        assert_eq!(done, [0, 1, 2, 3, 4, 5, 7, 8, 9]);
    }

    #[test]
    fn records_before_the_first_reported_failure_are_not_redelivered() {
        let (invoked, given_up) = settled(&source(""), true);
        assert_eq!(invoked[0], (0..10).collect::<Vec<_>>());
        assert!(invoked[1..].iter().all(|batch| batch[0] == 6));
        assert_eq!(given_up, [[6, 7, 8, 9]]);
    }

    #[test]
    fn a_record_that_is_too_old_is_given_up_at_its_first_failure() {
        let (invoked, given_up) = settled(&source(r#", "MaximumRecordAgeInSeconds": 60"#), true);
        assert_eq!((invoked.len(), given_up), (1, vec![vec![6, 7, 8, 9]]));
    }

    #[test]
    fn the_lowest_failure_is_the_checkpoint() {
        let source = source(r#", "FunctionResponseTypes": ["ReportBatchItemFailures"]"#);
        let answer = br#"{"batchItemFailures":[{"itemIdentifier":"3"},{"itemIdentifier":"1"}]}"#;
        assert_eq!(
            Outcome::from_answer(&source, Some(answer), &records(5)),
            Outcome::FailedFrom(1)
        );
        assert_eq!(Outcome::from_answer(&source, Some(b"null"), &records(5)), Outcome::Done);
        assert_eq!(Outcome::from_answer(&source, None, &records(5)), Outcome::Failed);
    }
}
