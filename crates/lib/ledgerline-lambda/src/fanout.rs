//! The fanout: passes new commits on to state views, queues and the bus.
//!
//! * The function of each state view gets the state of every new commit.
//! * The FIFO queue of each log projector and process manager gets the commit itself.
//! * The bus gets one entry for each event that `BUS_EVENTS` names, with the state attached.
//!
//! The fanout returns the first record that failed. Lambda delivers that record and all after it
//! again, so every step here may happen twice. The fanout itself sends a record that always fails
//! to the dead-letter queue (rule 11).

mod bus;
mod poison_pill;
mod queues;
mod send;
mod send_report;
mod state_resolver;
mod state_views;

pub(crate) use self::state_views::throttle_reason;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use aws_sdk_eventbridge::{Client as EventBridge, types::PutEventsRequestEntry};
use aws_sdk_lambda::Client as Lambda;
use aws_sdk_sqs::Client as Sqs;
use jiff::Timestamp;
use ledgerline::{
    Aggregates, Causes, Commit, RecordedState, StreamId,
    manifest::{Manifest, Source},
};
use ledgerline_dynamodb::DynamoDbStore;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    commit_list::CommitList,
    config,
    failure::Error,
    fanout::{
        bus::Bus,
        poison_pill::{Plan, PoisonPillGuard, is_refused_for_good},
        queues::Queues,
        send::LastAccepted,
        send_report::{FirstFailure, SendReport, UnknownRefusal},
        state_resolver::{StateResolver, Unavailable},
        state_views::{State, Views},
    },
    messages::{PayloadPlace, details, unknown_state},
    metrics, start,
    stream_records::{self, Handler, Record, Unreadable},
    table_grants,
};

/// The largest entry, invocation or message in bytes, if the template sets none: 256 KB. That is
/// the lowest limit that EventBridge or SQS has had.
const DEFAULT_MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// The time for which one invocation folds states. Such a fold, followed by an outage in which no
/// call is answered, must fit into the invocation's thirty seconds. An entry is sent five times, at
/// four seconds each. An invocation that times out would count as an attempt at its first record.
const FOLD_TIME: Duration = Duration::from_secs(6);

/// The parts of the fanout.
#[derive(Debug)]
pub struct Fanout {
    store: DynamoDbStore,
    states: StateResolver<DynamoDbStore>,
    bus: Bus,
    queues: Queues,
    views: Views,
    sqs: Sqs,
    dead_letters: String,
}

/// The configuration that the template gives to the fanout.
#[derive(Debug, Clone)]
pub struct Wiring {
    /// The name of the bus.
    pub event_bus: String,
    /// The first part of the `source` of every entry; a dot and the category follow.
    pub event_source: String,
    /// The types of the events that are put on the bus; `None` for all types.
    pub bus_events: Option<BTreeSet<String>>,
    /// The name of each state view's function, and the categories whose states it gets.
    pub state_views: BTreeMap<String, Vec<String>>,
    /// The URL of the queue of each log projector or process manager, and the categories whose
    /// commits it gets.
    pub log_queues: BTreeMap<String, Vec<String>>,
    /// The URL of the dead-letter queue for records that always fail.
    pub dead_letter_queue: String,
    /// The largest entry, invocation or message, in bytes.
    pub max_message_bytes: usize,
}

impl Wiring {
    /// Reads the wiring from `EVENT_BUS`, `EVENT_SOURCE`, `STATE_VIEWS`, `LOG_QUEUES`,
    /// `DEAD_LETTER_QUEUE` and, optionally, `BUS_EVENTS` and `MAX_MESSAGE_BYTES`.
    ///
    /// `LOG_QUEUES` has a line for each queue: its URL, and the categories whose commits it gets,
    /// separated by spaces. `STATE_VIEWS` has the same for each state view: the name of its
    /// function, and the categories whose states it gets. `BUS_EVENTS` has the types of the events
    /// that are put on the bus. `*` stands for all of them, and so does a missing variable.
    fn from_env() -> Result<Self, config::ConfigError> {
        Ok(Self {
            event_bus: config::text("EVENT_BUS")?,
            event_source: config::text("EVENT_SOURCE")?,
            bus_events: parse_bus_events(&config::lines_or("BUS_EVENTS", "*")?),
            state_views: parse_receivers("STATE_VIEWS", &config::lines("STATE_VIEWS")?)?,
            log_queues: parse_receivers("LOG_QUEUES", &config::lines("LOG_QUEUES")?)?,
            dead_letter_queue: config::text("DEAD_LETTER_QUEUE")?,
            max_message_bytes: config::parse_or("MAX_MESSAGE_BYTES", DEFAULT_MAX_MESSAGE_BYTES)?,
        })
    }
}

/// Reads a variable with one line for each receiver: its name or URL, and the categories that it
/// gets.
pub(crate) fn parse_receivers(
    name: &'static str,
    lines: &[String],
) -> Result<BTreeMap<String, Vec<String>>, config::ConfigError> {
    let invalid = |reason| config::ConfigError::Invalid { name: name.into(), reason };
    let mut read = BTreeMap::new();
    for line in lines {
        let mut words = line.split_whitespace().map(ToOwned::to_owned);
        let receiver = words.next().unwrap_or_default();
        let categories: Vec<_> = words.collect();
        if categories.is_empty() {
            return Err(invalid(format!(
                "the line has no categories; write them at its end: {line}"
            )));
        }
        if read.insert(receiver, categories).is_some() {
            return Err(invalid(format!("two lines have the same target: {line}")));
        }
    }
    Ok(read)
}

fn receivers<T: From<Vec<String>>>(wired: BTreeMap<String, Vec<String>>) -> BTreeMap<String, T> {
    wired.into_iter().map(|(receiver, categories)| (receiver, categories.into())).collect()
}

/// Reads the words of `BUS_EVENTS`; `None` for all events if one of the words is `*`.
fn parse_bus_events(lines: &[String]) -> Option<BTreeSet<String>> {
    let events: BTreeSet<_> =
        lines.iter().flat_map(|line| line.split_whitespace()).map(ToOwned::to_owned).collect();
    if events.contains("*") { None } else { Some(events) }
}

/// Runs the fanout for these aggregates.
///
/// # Errors
/// When a variable is missing or wrong, or the log cannot be read.
pub async fn run<L: Aggregates>() -> Result<(), Error> {
    // The variables are those of [`Wiring::from_env`].
    let manifest = Manifest::new(Source::Stream)
        .table(table_grants::read_streams())
        .table(table_grants::attempts_and_snapshots())
        .call("events:PutEvents", "EVENT_BUS")
        .call("lambda:InvokeFunction", "STATE_VIEWS")
        .call("sqs:SendMessage", "LOG_QUEUES")
        .call("sqs:SendMessage", "DEAD_LETTER_QUEUE")
        .variable("EVENT_SOURCE")
        .optional("BUS_EVENTS")
        .optional("MAX_MESSAGE_BYTES")
        .optional(start::COMPRESS_OVER)
        .optional(stream_records::ARCHIVE_ROLE)
        .metric(metrics::CHANGED_COMMITS);
    stream_records::run(manifest, Fanout::from_env::<L>).await
}

impl Fanout {
    /// A fanout of the commits in this store, which belong to these aggregates.
    pub fn new<L: Aggregates>(
        store: DynamoDbStore,
        events: EventBridge,
        lambda: Lambda,
        sqs: Sqs,
        wiring: Wiring,
    ) -> Self {
        let Wiring {
            event_bus,
            event_source,
            bus_events,
            state_views,
            log_queues,
            dead_letter_queue,
            max_message_bytes: max_bytes,
        } = wiring;
        Self {
            store,
            states: StateResolver::new::<L>(),
            bus: Bus {
                client: events,
                name: event_bus,
                source: event_source,
                events: bus_events,
                max_bytes,
                last_accepted: LastAccepted::default(),
            },
            views: Views { client: lambda, functions: receivers(state_views), max_bytes },
            queues: Queues { client: sqs.clone(), queues: receivers(log_queues), max_bytes },
            sqs,
            dead_letters: dead_letter_queue,
        }
    }

    /// Builds the fanout that `COMMITS_TABLE`, `REQUESTS_TABLE` and the [`Wiring`] describe, and
    /// opens its connections.
    async fn from_env<L: Aggregates>() -> Result<Self, Error> {
        let wiring = Wiring::from_env()?;
        let sdk = start::sdk_config().await;
        let store = start::store(&sdk, aws_sdk_dynamodb::Client::new(&sdk)).await?;
        let store = start::configure_writes(store, config::text("REQUESTS_TABLE")?)?;
        let (events, lambda, sqs) = (EventBridge::new(&sdk), Lambda::new(&sdk), Sqs::new(&sdk));
        let fanout = Self::new::<L>(store, events, lambda, sqs, wiring);
        tokio::join!(fanout.bus.connect(), fanout.views.connect(), fanout.queues.connect());
        Ok(fanout)
    }

    /// Quarantines a record: logs it, and sends it to the dead-letter queue, where an operator finds
    /// it. Returns whether the queue accepted it.
    async fn quarantine(&self, record: &Record, reason: String) -> bool {
        let letter = DeadLetter::new(record, reason);
        letter.log();
        let body = serde_json::to_string(&letter).unwrap_or_default();
        match self.sqs.send_message().queue_url(&self.dead_letters).message_body(body).send().await
        {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(error = %Causes(&error), "the queue did not accept the dead letter");
                false
            }
        }
    }
}

/// A commit of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchCommit<'a> {
    /// The index of its record.
    pub(crate) index: usize,
    pub(crate) commit: &'a Commit,
    /// Whether its payloads are in an object, and `null` in the commit.
    pub(crate) has_body: bool,
}

/// A record or commit that always fails, with the fields by which an operator finds it in the log.
#[derive(Debug, serde::Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum DeadLetter<'a> {
    /// A record that holds no commit.
    Record(Unreadable),
    /// A commit that a view, the bus or a queue will never accept, or that can never have a state.
    /// Or a commit that crashed the function at each attempt.
    Commit { reason: String, stream: &'a StreamId, version: u64, sequence_number: &'a str },
}

impl<'a> DeadLetter<'a> {
    fn new(record: &'a Record, reason: String) -> Self {
        match &record.commit {
            Ok(Commit { stream, version, .. }) => {
                let sequence_number = &record.sequence_number;
                Self::Commit { reason, stream, version: *version, sequence_number }
            }
            Err(unreadable) => Self::Record(Unreadable { reason, ..unreadable.clone() }),
        }
    }

    fn log(&self) {
        let (stream, version, reason) = match self {
            Self::Record(record) => (record.stream.as_deref(), record.version, &record.reason),
            Self::Commit { reason, stream, version, .. } => {
                (Some(stream.as_str()), Some(*version), reason)
            }
        };
        tracing::error!(stream, version, reason, "quarantined");
    }
}

impl Handler for Fanout {
    async fn handle(&self, records: &[Record]) -> Option<usize> {
        let guard =
            PoisonPillGuard::for_late_batch(&self.store, records, Timestamp::now().as_second())
                .await;
        let plan = guard.as_ref().map_or(Plan::First(records.len()), |guard| guard.plan);
        let (first_failed, done) = match plan {
            Plan::First(first) => (self.pass_on(&records[..first]).await, first),
            Plan::Quarantine => (self.quarantine_first(records).await, 1),
        };
        if let Some(guard) = guard {
            guard.clear_counts().await;
        }
        // Lambda also delivers the rest of a batch again that was cut short.
        first_failed.or((done < records.len()).then_some(done))
    }
}

impl Fanout {
    /// Quarantines the first record, which crashed the function on every attempt, without processing
    /// it. Returns its index if the dead-letter queue did not accept it.
    async fn quarantine_first(&self, records: &[Record]) -> Option<usize> {
        let reason = "the function crashed on every attempt".to_owned();
        if !self.quarantine(&records[0], reason).await {
            return Some(0);
        }
        metrics::quarantine();
        None
    }

    /// Passes the records on. Returns the index of the first record that failed.
    async fn pass_on(&self, records: &[Record]) -> Option<usize> {
        let mut commits: Vec<BatchCommit<'_>> = Vec::new();
        let mut report = SendReport::default();
        for (index, record) in records.iter().enumerate() {
            match &record.commit {
                Ok(commit) => {
                    commits.push(BatchCommit { index, commit, has_body: record.has_body })
                }
                Err(unreadable) => report.refused.push((index, unreadable.reason.clone())),
            }
        }
        let run = records.first().and_then(|record| record.run.as_deref());
        let (entries, messages) =
            tokio::join!(self.send_entries(&commits), self.queues.send(&commits, run));
        report.merge(entries);
        report.merge(messages);
        self.judge_unknown_codes(records, &mut report).await;
        let quarantined = self.quarantine_refused(records, &mut report).await;
        log_batch(&commits, report.failure, &quarantined);
        report.failure.first
    }

    /// Fails the record of each entry that its target refused with an unknown code while it accepted
    /// others. After a number of attempts, the record is refused for good.
    async fn judge_unknown_codes(&self, records: &[Record], report: &mut SendReport) {
        // A commit has an entry for each of its events.
        report
            .unknown
            .sort_by(|one, other| one.index.cmp(&other.index).then(one.target.cmp(&other.target)));
        report
            .unknown
            .dedup_by(|one, other| one.index == other.index && one.target == other.target);
        for UnknownRefusal { index, target, code } in std::mem::take(&mut report.unknown) {
            let now = Timestamp::now().as_second();
            if report.failure.first.is_some_and(|first| first < index)
                || !is_refused_for_good(&self.store, &records[index], &target, now).await
            {
                report.failure.note(index);
            } else {
                let reason =
                    format!("`{target}` refused the entry with `{code}`, and accepted others");
                report.refused.push((index, reason));
            }
        }
    }

    /// Quarantines the refused records before the first failure, and returns their indices. The
    /// others are delivered again: a dead letter for one of them would be written each time. A
    /// record fails if the dead-letter queue does not accept it.
    async fn quarantine_refused(
        &self,
        records: &[Record],
        report: &mut SendReport,
    ) -> BTreeSet<usize> {
        let mut quarantined = BTreeSet::new();
        report.refused.sort_by_key(|(index, _)| *index);
        for (index, reason) in report.refused.drain(..) {
            if report.failure.covers(index) {
                break;
            }
            if !self.quarantine(&records[index], reason).await {
                report.failure.note(index);
            } else if quarantined.insert(index) {
                metrics::quarantine();
            }
        }
        quarantined
    }

    /// Returns the entries of a commit for the bus, and its last detail for the views. An entry or a
    /// detail that would be too large has neither payload nor state: receivers read the log.
    fn entries(
        &self,
        &BatchCommit { commit, has_body, .. }: &BatchCommit<'_>,
        state: &RecordedState,
    ) -> Result<(Vec<PutEventsRequestEntry>, Option<String>), String> {
        let mut whole = details(commit, state, has_body.then_some(PayloadPlace::Log))?;
        let without = || details(commit, &unknown_state(), Some(PayloadPlace::Log));
        let entries = match self.bus.entries(commit, &whole) {
            Ok(entries) => entries,
            Err(_) => self.bus.entries(commit, &without()?)?,
        };
        let last = match whole.pop().filter(|detail| self.views.accept(detail)) {
            None => without()?.pop(),
            some => some,
        };
        Ok((entries, last))
    }

    /// Sends the newest state of each stream to the views, and puts one entry on the bus for each
    /// event that the bus wants.
    async fn send_entries(&self, commits: &[BatchCommit<'_>]) -> SendReport {
        let mut sent = SendReport::default();
        let until = Instant::now() + FOLD_TIME;
        let (mut entries, mut newest) = (Vec::new(), Vec::new());
        let mut streams: BTreeMap<&StreamId, Vec<BatchCommit<'_>>> = BTreeMap::new();
        for commit in commits {
            streams.entry(&commit.commit.stream).or_default().push(*commit);
        }
        for (stream, mut commits) in streams {
            let shown = self.views.wants(stream.category());
            if !shown && !commits.iter().any(|commit| self.bus.wants(commit.commit)) {
                continue;
            }
            // The records of a stream may arrive out of order (rule 7), and a record may arrive
            // twice.
            commits.sort_by_key(|commit| commit.commit.version);
            let states = self.states.resolve(&self.store, &commits, until).await;
            let mut state_of_stream = None;
            for (commit, state) in commits.into_iter().zip(states) {
                let index = commit.index;
                let built = state.and_then(|state| {
                    self.entries(&commit, &state).map_err(Unavailable::Permanent)
                });
                match built {
                    Ok((built, detail)) => {
                        entries.extend(built.into_iter().map(|entry| (index, entry)));
                        // A view overwrites an older row (rule 8), so it needs only the newest
                        // state of a stream.
                        let category = stream.category().to_owned();
                        let detail = detail.and_then(|detail| RawValue::from_string(detail).ok());
                        state_of_stream = detail.map(|detail| State { index, category, detail });
                    }
                    Err(Unavailable::Transient) => sent.failure.note(index),
                    Err(Unavailable::Permanent(reason)) => sent.refused.push((index, reason)),
                }
            }
            newest.extend(state_of_stream.filter(|_| shown));
        }
        entries.sort_by_key(|(index, _)| *index);
        newest.sort_by_key(|state: &State| state.index);
        let (bus, views) = tokio::join!(self.bus.send(entries), self.views.send(&newest));
        sent.merge(bus);
        sent.merge(views);
        sent
    }
}

/// Logs the commits of a batch in one line, and measures those that were passed on.
fn log_batch(commits: &[BatchCommit<'_>], failure: FirstFailure, quarantined: &BTreeSet<usize>) {
    if commits.is_empty() {
        return;
    }
    let mut passed_on = CommitList::default();
    let mut refused = CommitList::default();
    let mut failed = CommitList::default();
    for BatchCommit { index, commit, .. } in commits {
        if failure.covers(*index) {
            failed.add(commit);
        } else if quarantined.contains(index) {
            refused.add(commit);
        } else {
            metrics::fanout_lag(commit.at);
            passed_on.add(commit);
        }
    }
    tracing::info!(
        passed_on = passed_on.as_field(),
        quarantined = refused.as_field(),
        failed = failed.as_field(),
        "fanout"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn each_line_names_a_queue_and_its_categories() {
        let read = |text: &str| parse_receivers("LOG_QUEUES", &lines(text));
        let queues = read("https://sqs/1.fifo tank\nhttps://sqs/2.fifo tank  site").unwrap();
        assert_eq!(queues["https://sqs/1.fifo"], ["tank"]);
        assert_eq!(queues["https://sqs/2.fifo"], ["tank", "site"]);
        assert_eq!(read(""), Ok(BTreeMap::new()), "a stack without log projectors is valid");
        for (wrong, expected) in
            [("https://sqs/1.fifo", "categories"), ("q tank\nq site", "two lines")]
        {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("LOG_QUEUES"), "{error}");
        }
    }

    #[test]
    fn the_bus_gets_all_events_or_the_named_ones() {
        let read = |text: &str| parse_bus_events(&lines(text));
        assert_eq!(read("*"), None);
        assert_eq!(read(""), Some(BTreeSet::new()));
        assert_eq!(read("Filled Drained\nOpened").unwrap().len(), 3);
        // The parameter is `*`, and a rule of the template names one event too.
        assert_eq!(read("*\nFilled"), None);
    }
}
