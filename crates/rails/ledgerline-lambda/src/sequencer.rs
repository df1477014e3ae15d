//! The sequencer: the second reader of the Commits stream, which gives the commits of all streams one order, `$all` ([`ledgerline::all`]).
//!
//! It reads nothing of a commit but which one it is and which one caused it. So no commit can be one that it never gets through with, and a batch that fails comes again until it is
//! in `$all`: to leave one out would be to lose it for every reader.

use jiff::Timestamp;
use ledgerline::{
    Causes, StreamId,
    all::{Entry, Sequencer, entries, partition_of},
};
use ledgerline_dynamodb::DynamoDbStore;
use tokio::sync::Mutex;

use crate::{
    Error, config, metrics,
    needs::{Needs, Source},
    start::{connected, dynamodb},
    stream::{self, Handler, Record},
};

/// The variable with the name of the table that has the streams of `$all`.
pub(crate) const TABLE: &str = "SEQUENCE_TABLE";
/// The variable with the number of partitions of `$all`; 1 if it is missing.
pub(crate) const PARTITIONS: &str = "SEQUENCE_PARTITIONS";

/// The parts of the sequencer.
#[derive(Debug)]
pub struct Sequencing {
    store: DynamoDbStore,
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
/// When `SEQUENCE_TABLE` is missing, `SEQUENCE_PARTITIONS` is wrong, or the table cannot be read.
pub async fn run() -> Result<(), Error> {
    let needs = Needs::new(Source::Stream).sequencing().optional(PARTITIONS);
    let build = async || {
        let store = DynamoDbStore::new(dynamodb().await, config::text(TABLE)?);
        Ok(Sequencing::new(connected(store).await?, partitions()?))
    };
    stream::run(needs, build).await
}

/// The number of partitions in `SEQUENCE_PARTITIONS`.
pub(crate) fn partitions() -> Result<u16, config::ConfigError> {
    match config::parsed_or(PARTITIONS, 1)? {
        0 => Err(config::ConfigError::Invalid { name: PARTITIONS, reason: "there is one at least".into() }),
        partitions => Ok(partitions),
    }
}

impl Sequencing {
    /// A sequencer of so many partitions, in the table of this store.
    #[must_use]
    pub fn new(store: DynamoDbStore, partitions: u16) -> Self {
        Self { store, sequencers: Mutex::new((0..partitions.max(1)).map(Sequencer::new).collect()) }
    }
}

impl Handler for Sequencing {
    async fn handle(&self, records: &[Record]) -> Option<usize> {
        let batch = records.first().map_or("", |record| record.sequence_number.as_str());
        let entries = records.iter().flat_map(of_record);
        let mut sequencers = self.sequencers.lock().await;
        let partitions = u16::try_from(sequencers.len()).unwrap_or(1);
        let mut parts = vec![Vec::new(); sequencers.len()];
        for entry in entries {
            parts[usize::from(partition_of(&entry.stream, partitions))].push(entry);
        }
        for (sequencer, part) in sequencers.iter_mut().zip(parts) {
            let count = part.len();
            if let Err(error) = sequencer.append(&self.store, batch, part, Timestamp::now()).await {
                // What other partitions have by now says nothing new when the batch comes again.
                tracing::error!(batch, entries = count, error = %Causes(&error), "not sequenced");
                return Some(0);
            }
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
