//! An adapter for Kinesis in front of the engine and a view in memory behind it, written with
//! public items alone.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{cell::RefCell, collections::BTreeMap};

use base64::{Engine, prelude::BASE64_STANDARD};
use ledgerline::{
    Commit, EventLog, LogTable, LogView, MemoryStore, RecordedEvent, StreamId, Write,
    changes::{Changes, ChangesError, Fields, Key},
    contract::commit,
    position::{Delivery, check},
};
use ledgerline_lambda::{
    messages::Message,
    queue::{ApplyError, Consumer, QueueRunner},
};
use serde::Deserialize;

// --- The adapter ---------------------------------------------------------------------------------

/// The event of a Lambda function behind a Kinesis stream.
#[derive(Deserialize)]
struct KinesisEvent {
    #[serde(rename = "Records")]
    records: Vec<KinesisRecord>,
}

#[derive(Deserialize)]
struct KinesisRecord {
    kinesis: KinesisData,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KinesisData {
    sequence_number: String,
    data: String,
}

/// Applies the records of an event in their order. Returns the sequence number of the first failed
/// record for `ReportBatchItemFailures`. Lambda redelivers that record and all records after it.
async fn handle<S: EventLog, C: Consumer>(
    runner: &QueueRunner<S, C>,
    event: KinesisEvent,
) -> Option<String> {
    for KinesisRecord { kinesis } in event.records {
        let body =
            BASE64_STANDARD.decode(kinesis.data).ok().and_then(|data| String::from_utf8(data).ok());
        if runner.message(&body.unwrap_or_default()).await.is_err() {
            return Some(kinesis.sequence_number);
        }
    }
    None
}

// --- The store -----------------------------------------------------------------------------------

/// A view in memory with its position in each stream.
struct InMemory {
    view: LogView,
    rows: RefCell<BTreeMap<Key, Fields>>,
    positions: RefCell<BTreeMap<StreamId, u64>>,
}

impl Consumer for InMemory {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        ApplyError::check_category(self.view.of, commit)?;
        let mut positions = self.positions.borrow_mut();
        let position = positions.entry(commit.stream.clone()).or_default();
        let verdict = check(*position, commit.version);
        if verdict == Delivery::Next {
            let changes =
                (self.view.changes)(commit).map_err(|error| ApplyError::changes(commit, error))?;
            changes.fold(&mut self.rows.borrow_mut());
            *position = commit.version;
        }
        Ok((verdict, *position))
    }
}

// --- The test ------------------------------------------------------------------------------------

const COUNTS: LogTable = LogTable { variable: "COUNTS_TABLE", partition: "owner", sort: "entry" };
const VIEW: LogView =
    LogView { table: COUNTS, of: &["contract"], writes: &[Write::Update], changes: counts };

fn counts(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(COUNTS);
    for RecordedEvent { event_type, .. } in &commit.events {
        changes.add(commit.stream.id(), event_type, "count", 1);
    }
    Ok(changes)
}

/// Builds an event with these commits.
fn event(commits: &[&Commit]) -> KinesisEvent {
    let record = |(place, commit): (usize, &&Commit)| {
        let body = serde_json::to_string(&Message::Commit(Box::new((*commit).clone()))).unwrap();
        let kinesis =
            KinesisData { sequence_number: place.to_string(), data: BASE64_STANDARD.encode(body) };
        KinesisRecord { kinesis }
    };
    KinesisEvent { records: commits.iter().enumerate().map(record).collect() }
}

/// With lost, duplicate and out-of-order records, the rows still equal the fold of the log.
#[tokio::test]
async fn a_kinesis_stream_feeds_a_view_in_memory() {
    let store = MemoryStore::default();
    let stream = StreamId::new("contract", "1").unwrap();
    let commits: Vec<_> = (1..=9).map(|version| commit(&stream, version)).collect();
    for commit in &commits {
        store.append(commit, None).await.unwrap();
    }
    let view = InMemory { view: VIEW, rows: RefCell::default(), positions: RefCell::default() };
    let runner = QueueRunner { store, consumer: view };
    for delivered in [&[0, 1, 1][..], &[5, 3], &[8, 0]] {
        let delivered: Vec<_> = delivered.iter().map(|place| &commits[*place]).collect();
        assert_eq!(handle(&runner, event(&delivered)).await, None);
    }
    let counted = |rows: &BTreeMap<Key, Fields>| -> Vec<_> {
        rows.values().map(|row| row["count"].as_i64().unwrap()).collect()
    };
    assert_eq!(counted(&runner.consumer.rows.borrow()), [9]);

    // An unreadable record fails, so Lambda redelivers it and all records after it.
    let broken =
        KinesisRecord { kinesis: KinesisData { sequence_number: "7".into(), data: "e30=".into() } };
    assert_eq!(handle(&runner, KinesisEvent { records: vec![broken] }).await.as_deref(), Some("7"));
}
