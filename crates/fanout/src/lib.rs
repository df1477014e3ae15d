//! The fanout: every new commit goes to the bus, one entry per event with the state attached, and to one FIFO queue
//! for each log projector.
//!
//! It returns the first record that could not be passed on; that one and all after it come again, so everything here
//! may happen twice. What cannot be passed on at all goes to the dead-letter queue by itself (rule 11).

mod attach;
mod bus;
mod queues;
mod send;

use std::collections::{BTreeMap, HashMap};

use aws_sdk_eventbridge::Client as EventBridge;
use aws_sdk_sqs::Client as Sqs;
use event_store::{Commit, LoadError, StreamId};
use event_store_dynamodb::DynamoDbStore;
use lambda_kit::{
    Error, config,
    stream::{Handler, Record},
};

use crate::{attach::Attach, bus::Bus, queues::Queues};

/// The lower of the limits that EventBridge and SQS had and have: 256 KB.
const DEFAULT_MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// The parts of the fanout.
#[derive(Debug)]
pub struct Fanout {
    store: DynamoDbStore,
    attach: Attach<DynamoDbStore>,
    bus: Bus,
    queues: Queues,
    sqs: Sqs,
    dead_letters: String,
}

/// What the fanout is told by the template.
#[derive(Debug, Clone)]
pub struct Wiring {
    /// Name of the bus.
    pub event_bus: String,
    /// Begins the `source` of every entry; a dot and the category follow.
    pub event_source: String,
    /// URL of each log projector's queue, and the categories whose commits it gets.
    pub log_queues: BTreeMap<String, Vec<String>>,
    /// URL of the queue for what cannot be passed on.
    pub dead_letter_queue: String,
    /// The largest entry and message, in bytes.
    pub max_message_bytes: usize,
}

impl Wiring {
    /// From `EVENT_BUS`, `EVENT_SOURCE`, `LOG_QUEUES`, `DEAD_LETTER_QUEUE` and, optionally, `MAX_MESSAGE_BYTES`.
    ///
    /// # Errors
    /// When a variable is missing or wrong.
    pub fn from_env() -> Result<Self, config::ConfigError> {
        Ok(Self {
            event_bus: config::text("EVENT_BUS")?,
            event_source: config::text("EVENT_SOURCE")?,
            log_queues: config::json("LOG_QUEUES")?,
            dead_letter_queue: config::text("DEAD_LETTER_QUEUE")?,
            max_message_bytes: config::parsed_or("MAX_MESSAGE_BYTES", DEFAULT_MAX_MESSAGE_BYTES)?,
        })
    }
}

impl Fanout {
    /// A fanout of the commits in this store.
    #[must_use]
    pub fn new(store: DynamoDbStore, events: EventBridge, sqs: Sqs, wiring: Wiring) -> Self {
        let Wiring { event_bus, event_source, log_queues, dead_letter_queue, max_message_bytes: max_bytes } =
            wiring;
        Self {
            store,
            attach: Attach::all(),
            bus: Bus { client: events, name: event_bus, source: event_source, max_bytes },
            queues: Queues { client: sqs.clone(), queues: log_queues, max_bytes },
            sqs,
            dead_letters: dead_letter_queue,
        }
    }

    /// From `COMMITS_TABLE` and the [`Wiring`], with its connections opened.
    ///
    /// # Errors
    /// When a variable is missing or wrong, or the log cannot be read.
    pub async fn from_env() -> Result<Self, Error> {
        let wiring = Wiring::from_env()?;
        let sdk = lambda_kit::sdk_config().await;
        let store = lambda_kit::store(aws_sdk_dynamodb::Client::new(&sdk)).await?;
        let fanout = Self::new(store, EventBridge::new(&sdk), Sqs::new(&sdk), wiring);
        tokio::join!(fanout.bus.connect(), fanout.queues.connect());
        Ok(fanout)
    }

    /// Puts something that cannot be passed on where somebody will find it. Whether that worked.
    async fn dead_letter(&self, letter: &impl serde::Serialize) -> bool {
        let body = serde_json::to_string(letter).unwrap_or_default();
        match self.sqs.send_message().queue_url(&self.dead_letters).message_body(body).send().await {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(error = send::describe(&error), "the dead letter was not taken");
                false
            }
        }
    }
}

/// A commit of which something cannot be passed on, with what it takes to find it in the log.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct DeadLetter<'a> {
    reason: String,
    stream: &'a StreamId,
    version: u64,
    sequence_number: &'a str,
}

impl Handler for Fanout {
    async fn handle(&self, records: &[Record]) -> Option<usize> {
        let mut failed = Failed::default();
        let mut commits: Vec<(usize, &Commit)> = Vec::new();
        for (index, record) in records.iter().enumerate() {
            match &record.commit {
                Ok(commit) => commits.push((index, commit)),
                Err(unreadable) => {
                    let (stream, version) = (unreadable.stream.as_deref(), unreadable.version);
                    tracing::error!(
                        stream,
                        version,
                        reason = unreadable.reason,
                        "an unreadable record was set aside"
                    );
                    if !self.dead_letter(unreadable).await {
                        failed.note(index);
                    }
                }
            }
        }

        let (entries, queued) = tokio::join!(self.entries(records, &commits), self.queues.send(&commits));
        failed.merge(queued);
        failed.merge(entries);

        for (index, commit) in &commits {
            let outcome = if failed.covers(*index) { "failed" } else { "passed on" };
            let correlation_id = commit.meta.correlation_id.as_deref();
            tracing::info!(stream = %commit.stream, version = commit.version, correlation_id, outcome, "fanout");
        }
        failed.first
    }
}

impl Fanout {
    /// Puts one entry per event on the bus.
    async fn entries(&self, records: &[Record], commits: &[(usize, &Commit)]) -> Failed {
        let mut failed = Failed::default();
        let mut entries = Vec::new();
        let mut streams: HashMap<&StreamId, Vec<(usize, &Commit)>> = HashMap::new();
        for (index, commit) in commits {
            streams.entry(&commit.stream).or_default().push((*index, commit));
        }
        for (stream, mut commits) in streams {
            // A stream's records may arrive swapped (rule 7), and the same one twice.
            commits.sort_by_key(|(_, commit)| commit.version);
            match self.attach.states(&self.store, &commits).await {
                Ok(states) => {
                    for ((index, commit), state) in commits.iter().zip(states) {
                        match self.bus.entries(commit, &state) {
                            Ok(made) => entries.extend(made.into_iter().map(|entry| (*index, entry))),
                            Err(reason) => self.set_aside(&mut failed, records, *index, commit, reason).await,
                        }
                    }
                }
                Err(attach::AttachError::Load(LoadError::Store(error))) => {
                    tracing::error!(%stream, %error, "a state could not be loaded");
                    commits.iter().for_each(|(index, _)| failed.note(*index));
                }
                Err(error) => {
                    for (index, commit) in commits {
                        self.set_aside(&mut failed, records, index, commit, error.to_string()).await;
                    }
                }
            }
        }
        entries.sort_by_key(|(index, _)| *index);
        failed.merge(self.bus.send(entries).await);
        failed
    }

    async fn set_aside(
        &self,
        failed: &mut Failed,
        records: &[Record],
        index: usize,
        commit: &Commit,
        reason: String,
    ) {
        tracing::error!(stream = %commit.stream, version = commit.version, reason, "a commit was not put on the bus");
        let letter = DeadLetter {
            reason,
            stream: &commit.stream,
            version: commit.version,
            sequence_number: &records[index].sequence_number,
        };
        if !self.dead_letter(&letter).await {
            failed.note(index);
        }
    }
}

/// The first record that failed: it and everything after it come again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Failed {
    first: Option<usize>,
}

impl Failed {
    fn note(&mut self, index: usize) {
        self.first = Some(self.first.map_or(index, |first| first.min(index)));
    }

    fn merge(&mut self, other: Self) {
        if let Some(index) = other.first {
            self.note(index);
        }
    }

    fn covers(self, index: usize) -> bool {
        self.first.is_some_and(|first| first <= index)
    }
}
