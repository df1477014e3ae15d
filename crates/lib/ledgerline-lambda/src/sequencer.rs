//! The sequencer: the second reader of the Commits stream. It appends the commits of all streams to
//! one order, `$all` ([`ledgerline::all`]).
//!
//! It reads only a commit's key and its causation id, so no payload can be a poison pill. A failed
//! batch is retried until it is in `$all`, because every reader would lose a commit without an
//! entry.
//!
//! An entry of `$all` is final. So the sequencer trusts only the stream, which invokes it under the
//! alias `live`. It looks every other commit up in the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use aws_lambda_events::streams::DynamoDbEventResponse;
use aws_sdk_lambda::{
    Client as Lambda,
    primitives::Blob,
    types::InvocationType::{DryRun, Event},
};
use futures::FutureExt;
use jiff::Timestamp;
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Causes, StreamId,
    all::{Candidate, Entry, NamedEntry, Sequencer, VoidError, candidates},
    manifest::{Manifest, Source},
};
use ledgerline_dynamodb::DynamoDbStore;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Mutex;

use crate::{
    config,
    failure::Error,
    fanout::{parse_receivers, throttle_reason},
    metrics,
    start::{connect, handler, sdk_config, start},
    stream_records::{Batch, Record, records, response},
    table_grants,
};

/// The variable with a line for each subscription: its function, and the categories whose commits
/// it applies.
const SUBSCRIPTIONS: &str = "SUBSCRIPTIONS";

/// The end of the ARN under which the stream invokes the sequencer. Only the stream may use this
/// alias; operators invoke the function without it.
const LIVE: &str = ":live";

/// The parts of the sequencer.
#[derive(Debug)]
pub struct Sequencing {
    sequence: DynamoDbStore,
    log: DynamoDbStore,
    subscriptions: Option<Subscriptions>,
    sequencer: Mutex<Sequencer>,
}

/// A request to the sequencer: to append the entries of records, or to make an entry void.
#[derive(Debug, Deserialize)]
struct Request {
    #[serde(rename = "Records", default)]
    records: Vec<Box<RawValue>>,
    void: Option<NamedEntry>,
}

/// The response to an operator's request to make an entry void.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Voided {
    /// The entry is void, and readers skip it.
    Void(Entry),
    /// The reason why the entry is unchanged.
    Refused(String),
}

#[derive(Serialize)]
#[serde(untagged)]
enum SequencerAnswer {
    Records(DynamoDbEventResponse),
    Void(Voided),
}

/// Runs the sequencer.
///
/// ```no_run
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::sequencer::run().await
/// }
/// ```
///
/// # Errors
/// When `COMMITS_TABLE`, `SEQUENCE_TABLE` or `SUBSCRIPTIONS` is missing, or a table cannot be read.
pub async fn run() -> Result<(), Error> {
    // The sequencer looks up commits by their keys if no record of the stream proves them.
    let manifest = Manifest::new(Source::Stream)
        .table(table_grants::append_to_sequence())
        .table(table_grants::read_commits())
        .call("lambda:InvokeFunction", SUBSCRIPTIONS);
    let build = async {
        let functions = parse_receivers(SUBSCRIPTIONS, &config::lines(SUBSCRIPTIONS)?)?;
        let sdk = sdk_config().await;
        let client = aws_sdk_dynamodb::Client::new(&sdk);
        let sequence = connect(DynamoDbStore::new(
            client.clone(),
            config::text(table_grants::SEQUENCE_TABLE)?,
        ))
        .await?;
        let log = DynamoDbStore::new(client, config::text("COMMITS_TABLE")?);
        let subscriptions = Subscriptions { client: Lambda::new(&sdk), functions };
        subscriptions.connect().await;
        let sequencing = Sequencing::new(sequence, log);
        let sequencing = Arc::new(Sequencing { subscriptions: Some(subscriptions), ..sequencing });
        Ok(handler(move |LambdaEvent { payload: request, context }: LambdaEvent<Request>| {
            let sequencing = Arc::clone(&sequencing);
            async move {
                if let Some(void) = request.void {
                    return Ok(SequencerAnswer::Void(sequencing.void(void).await?));
                }
                let records = records(Batch { records: request.records });
                let is_stream = context.invoked_function_arn.ends_with(LIVE);
                let failed = sequencing.sequence(&records, is_stream).await;
                Ok(SequencerAnswer::Records(response(&records, failed)))
            }
        }))
    };
    start(manifest, build.boxed_local()).await
}

/// The functions that read `$all`.
#[derive(Debug)]
struct Subscriptions {
    client: Lambda,
    /// The categories whose commits a function applies, by the function's name.
    functions: BTreeMap<String, Vec<String>>,
}

impl Subscriptions {
    /// Opens the connection with a dry run, which invokes nothing.
    async fn connect(&self) {
        if let Some(function) = self.functions.keys().next() {
            let _ =
                self.client.invoke().function_name(function).invocation_type(DryRun).send().await;
        }
    }

    /// Invokes the functions that apply commits of these categories. The schedule invokes a
    /// function whose invocation failed, so there is no retry.
    async fn wake(&self, categories: &BTreeSet<&str>) {
        let receivers = self.functions.iter().filter(|(_, wanted)| {
            wanted.iter().any(|category| categories.contains(category.as_str()))
        });
        for (function, _) in receivers {
            let call = self.client.invoke().function_name(function).invocation_type(Event);
            if let Err(error) = call.payload(Blob::new(r#"{"source":"sequencer"}"#)).send().await {
                let reason = throttle_reason(&error);
                tracing::warn!(function, error = %Causes(&error), reason, "a subscription was not invoked");
            }
        }
    }
}

impl Sequencing {
    /// Creates a sequencer in the table of the first store, for the log in the second store.
    #[must_use]
    pub fn new(sequence: DynamoDbStore, log: DynamoDbStore) -> Self {
        let sequencer = Mutex::new(Sequencer::new(DynamoDbStore::HOST.pause));
        Self { sequence, log, subscriptions: None, sequencer }
    }

    /// Appends the entries of these records to `$all`. `is_stream` means that the stream itself
    /// invoked the sequencer: this proves the commits of the stream's own records. The sequencer
    /// looks other commits up, and leaves out those that the log does not have.
    ///
    /// Returns the index of the first record that failed.
    pub async fn sequence(&self, records: &[Record], is_stream: bool) -> Option<usize> {
        let batch = records.first().map_or("", |record| record.sequence_number.as_str());
        // The clock of this instance may lag: the database has written the records by now.
        let written = records.iter().filter_map(|record| record.created).max();
        let written = written.and_then(|seconds| Timestamp::from_second(seconds).ok());
        let at = written.map_or_else(Timestamp::now, |written| written.max(Timestamp::now()));
        let candidates: Vec<_> = records
            .iter()
            .flat_map(|record| record_candidates(record, is_stream && record.run.is_none()))
            .collect();
        let streams: Vec<_> =
            candidates.iter().map(|candidate| candidate.entry.stream.clone()).collect();
        if candidates.is_empty() {
            return None;
        }
        let count = candidates.len();
        let mut sequencer = self.sequencer.lock().await;
        match sequencer.append(&self.sequence, &self.log, batch, candidates, at).await {
            Ok(appended) => {
                for Entry { stream, version } in appended.unconfirmed {
                    tracing::error!(%stream, version, "the log lacks the commit of a record, so `$all` gets no entry");
                }
                if appended.segments > 0 {
                    self.wake(&streams.iter().map(StreamId::category).collect()).await;
                }
            }
            Err(error) => {
                tracing::error!(batch, entries = count, error = %Causes(&error), "not sequenced");
                return Some(0);
            }
        }
        let commits = records.iter().filter_map(|record| record.commit.as_ref().ok());
        commits.for_each(|commit| metrics::sequence_lag(commit.at));
        None
    }

    /// Makes an entry void that names a commit which the log does not have, so that readers skip
    /// it.
    ///
    /// # Errors
    /// When a table fails, or other sequencers append at each attempt.
    pub async fn void(&self, named: NamedEntry) -> Result<Voided, Error> {
        let entry = named.entry.clone();
        let mut sequencer = self.sequencer.lock().await;
        match sequencer.void(&self.sequence, &self.log, named, "void", Timestamp::now()).await {
            Ok(()) => {
                tracing::warn!(stream = %entry.stream, version = entry.version, "the entry of `$all` is void");
                self.wake(&BTreeSet::from([entry.stream.category()])).await;
                Ok(Voided::Void(entry))
            }
            Err(refusal @ (VoidError::NotNamed | VoidError::Exists | VoidError::TooMany)) => {
                Ok(Voided::Refused(refusal.to_string()))
            }
            Err(VoidError::Sequence(error)) => Err(error.into()),
        }
    }

    async fn wake(&self, categories: &BTreeSet<&str>) {
        if let Some(subscriptions) = &self.subscriptions {
            subscriptions.wake(categories).await;
        }
    }
}

/// Returns the candidates of a record. The keys suffice if the record cannot be read as a commit.
fn record_candidates(record: &Record, is_proven: bool) -> Vec<Candidate> {
    let candidates = match &record.commit {
        Ok(commit) => candidates([commit]),
        Err(unreadable) => {
            let stream =
                unreadable.stream.clone().and_then(|stream| StreamId::try_from(stream).ok());
            let entry =
                stream.zip(unreadable.version).map(|(stream, version)| Entry { stream, version });
            if entry.is_none() {
                tracing::error!(
                    record = unreadable.sequence_number,
                    "a record has no key of a commit, so `$all` gets no entry"
                );
            }
            entry.map(Candidate::from_record).into_iter().collect()
        }
    };
    let weakened = |candidate: Candidate| Candidate {
        is_proven: candidate.is_proven && is_proven,
        ..candidate
    };
    candidates.into_iter().map(weakened).collect()
}
