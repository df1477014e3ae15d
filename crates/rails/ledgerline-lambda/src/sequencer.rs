//! The sequencer: the second reader of the Commits stream, which gives the commits of all streams one order, `$all` ([`ledgerline::all`]).
//!
//! It reads nothing of a commit but which one it is and which one caused it. So no commit can be one that it never gets through with, and a batch that fails comes again until it is
//! in `$all`: to leave one out would be to lose it for every reader.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_lambda::{
    Client as Lambda,
    primitives::Blob,
    types::InvocationType::{DryRun, Event},
};
use jiff::Timestamp;
use ledgerline::{
    Causes, StreamId,
    all::{Entry, Sequencer, entries, partition_of},
};
use ledgerline_dynamodb::DynamoDbStore;
use tokio::sync::Mutex;

use crate::{
    Error, config,
    fanout::by_category,
    metrics,
    needs::{Needs, Source},
    start::{connected, sdk_config},
    stream::{self, Handler, Record},
};

/// The variable with the name of the table that has the streams of `$all`.
pub(crate) const TABLE: &str = "SEQUENCE_TABLE";
/// The variable with the number of partitions of `$all`. Every function that reads or writes it has it: one that took another number would miss commits without a word.
pub(crate) const PARTITIONS: &str = "SEQUENCE_PARTITIONS";

/// The variable with a line for each subscription: its function, and the categories whose commits it takes.
const SUBSCRIPTIONS: &str = "SUBSCRIPTIONS";

/// The parts of the sequencer.
#[derive(Debug)]
pub struct Sequencing {
    store: DynamoDbStore,
    subscriptions: Option<Subscriptions>,
    /// One for each partition.
    sequencers: Mutex<Vec<Sequencer>>,
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
/// When `SEQUENCE_TABLE` or `SUBSCRIPTIONS` is missing, `SEQUENCE_PARTITIONS` is wrong, or the table cannot be read.
pub async fn run() -> Result<(), Error> {
    let needs = Needs::new(Source::Stream).sequencing();
    let build = async || {
        let functions = by_category(SUBSCRIPTIONS, &config::lines(SUBSCRIPTIONS)?)?;
        let sdk = sdk_config().await;
        let store = DynamoDbStore::new(aws_sdk_dynamodb::Client::new(&sdk), config::text(TABLE)?);
        let sequencing = Sequencing::new(connected(store).await?, partitions()?);
        let subscriptions = Subscriptions { client: Lambda::new(&sdk), functions };
        subscriptions.connect().await;
        Ok(Sequencing { subscriptions: Some(subscriptions), ..sequencing })
    };
    stream::run(needs.call("lambda:InvokeFunction", SUBSCRIPTIONS), build).await
}

/// The functions that follow `$all`.
#[derive(Debug)]
struct Subscriptions {
    client: Lambda,
    /// The categories whose commits a function takes, by its name.
    functions: BTreeMap<String, Vec<String>>,
}

impl Subscriptions {
    /// Opens the connection with a dry run, which invokes nothing.
    async fn connect(&self) {
        if let Some(function) = self.functions.keys().next() {
            let _ = self.client.invoke().function_name(function).invocation_type(DryRun).send().await;
        }
    }

    /// Wakes those that take commits of these categories. A function that could not be woken is woken by its schedule, so that nothing is tried again here.
    async fn wake(&self, categories: &BTreeSet<&str>) {
        let wanting = self
            .functions
            .iter()
            .filter(|(_, wanted)| wanted.iter().any(|category| categories.contains(category.as_str())));
        for (function, _) in wanting {
            let call = self.client.invoke().function_name(function).invocation_type(Event);
            if let Err(error) = call.payload(Blob::new(r#"{"source":"sequencer"}"#)).send().await {
                tracing::warn!(function, error = %Causes(&error), "a subscription was not woken");
            }
        }
    }
}

/// The number of partitions in `SEQUENCE_PARTITIONS`.
pub(crate) fn partitions() -> Result<u16, config::ConfigError> {
    match config::parsed(PARTITIONS)? {
        0 => Err(config::ConfigError::Invalid { name: PARTITIONS, reason: "there is one at least".into() }),
        partitions => Ok(partitions),
    }
}

impl Sequencing {
    /// A sequencer of so many partitions, in the table of this store.
    #[must_use]
    pub fn new(store: DynamoDbStore, partitions: u16) -> Self {
        Self {
            store,
            subscriptions: None,
            sequencers: Mutex::new((0..partitions.max(1)).map(Sequencer::new).collect()),
        }
    }
}

impl Handler for Sequencing {
    async fn handle(&self, records: &[Record]) -> Option<usize> {
        let batch = records.first().map_or("", |record| record.sequence_number.as_str());
        let entries: Vec<_> = records.iter().flat_map(of_record).collect();
        let streams: Vec<_> = entries.iter().map(|entry| entry.stream.clone()).collect();
        let mut sequencers = self.sequencers.lock().await;
        let partitions = u16::try_from(sequencers.len()).unwrap_or(1);
        let mut parts = vec![Vec::new(); sequencers.len()];
        for entry in entries {
            parts[usize::from(partition_of(&entry.stream, partitions))].push(entry);
        }
        let mut segments = 0;
        for (sequencer, part) in sequencers.iter_mut().zip(parts).filter(|(_, part)| !part.is_empty()) {
            let count = part.len();
            match sequencer.append(&self.store, batch, part, Timestamp::now()).await {
                Ok(appended) => segments += appended,
                Err(error) => {
                    // What other partitions have by now says nothing new when the batch comes again.
                    tracing::error!(batch, entries = count, error = %Causes(&error), "not sequenced");
                    return Some(0);
                }
            }
        }
        if let Some(subscriptions) = self.subscriptions.as_ref().filter(|_| segments > 0) {
            subscriptions.wake(&streams.iter().map(StreamId::category).collect()).await;
        }
        let commits = records.iter().filter_map(|record| record.commit.as_ref().ok());
        commits.for_each(|commit| metrics::sequenced(commit.at));
        None
    }
}

/// The entries of a record. Of one that cannot be read as a commit, its keys are enough.
fn of_record(record: &Record) -> Vec<Entry> {
    match &record.commit {
        Ok(commit) => entries([commit]),
        Err(unreadable) => {
            let stream = unreadable.stream.clone().and_then(|stream| StreamId::try_from(stream).ok());
            let entry = stream.zip(unreadable.version).map(|(stream, version)| Entry { stream, version });
            if entry.is_none() {
                tracing::error!(
                    record = unreadable.sequence_number,
                    "it has no key of a commit, and is left out"
                );
            }
            entry.into_iter().collect()
        }
    }
}
