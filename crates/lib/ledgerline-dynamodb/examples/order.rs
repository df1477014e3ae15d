//! How fast `$all` is made and read, against an emulated DynamoDB on this machine:
//!
//! ```sh
//! cargo run --profile fast -p ledgerline-dynamodb --example order -- 1000000
//! ```

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a program for people, that ends at the first failure"
)]

use std::time::Instant;

use jiff::Timestamp;
use ledgerline::{
    EventLog, StreamId,
    all::{Candidate, Cursor, Entry, Filter, Sequencer, Subscription, segments},
    contract::commit,
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_testing::{Wire, client_and_wire};

/// The entries of a batch: that of a busy stream.
const BATCH: usize = 100;
/// The commits that are read with their events.
const COMMITS: usize = 20_000;

/// A log and its `$all`, in a database of their own.
struct Stores {
    sequence: DynamoDbStore,
    log: DynamoDbStore,
    wire: Wire,
}

impl Stores {
    async fn new() -> Self {
        let (client, wire) = client_and_wire(&["CommitsTable", "SequenceTable"]).await;
        Self {
            sequence: DynamoDbStore::new(
                client.clone(),
                ledgerline_testing::table("SequenceTable"),
            ),
            log: DynamoDbStore::new(client, ledgerline_testing::table("CommitsTable")),
            wire,
        }
    }
}

#[tokio::main]
async fn main() {
    let entries: usize =
        std::env::args().nth(1).map_or(100_000, |entries| entries.parse().unwrap());
    let rate = |count: usize, began: Instant| count as f64 / began.elapsed().as_secs_f64();

    // By one sequencer, and by four that are in each other's way.
    for sequencers in [1, 4] {
        let Stores { sequence, log, wire: _ } = Stores::new().await;
        let began = Instant::now();
        let share = entries / 10 / sequencers;
        let work = (0..sequencers).map(|number| {
            let sequence = sequence.clone();
            let log = log.clone();
            tokio::spawn(async move {
                let mut sequencer = Sequencer::new(DynamoDbStore::HOST.pause);
                for batch in batches(share, number) {
                    while sequencer
                        .append(&sequence, &log, "batch", batch.clone(), Timestamp::now())
                        .await
                        .is_err()
                    {}
                }
            })
        });
        for done in futures::future::join_all(work).await {
            done.unwrap();
        }
        println!("{sequencers} at work: {:.0} entries a second", rate(share * sequencers, began));
    }

    // Many entries, which are read without their commits.
    let Stores { sequence, log, wire } = Stores::new().await;
    let mut sequencer = Sequencer::new(DynamoDbStore::HOST.pause);
    for batch in batches(entries, 0) {
        sequencer.append(&sequence, &log, "batch", batch, Timestamp::now()).await.unwrap();
    }
    wire.take();
    let began = Instant::now();
    let mut read = 0;
    let mut after = 0;
    loop {
        let (page, complete) = segments(&sequence, after).await.unwrap();
        read += page.iter().map(|segment| segment.entries.len()).sum::<usize>();
        after = page.last().map_or(after, |last| last.number);
        if complete {
            break;
        }
    }
    let units: f64 = wire.take().iter().map(|call| call.units).sum();
    println!(
        "read {read} entries: {:.0} a second, {units} read units, {} MB resident",
        rate(read, began),
        resident()
    );

    // With their commits, of two hundred streams.
    for stream in 0..200 {
        for version in 1..=COMMITS / 200 {
            log.append(&commit(&tank(stream), version as u64), None).await.unwrap();
        }
    }
    wire.take();
    let subscription = Subscription { sequence, log, filter: Filter::default(), limit: 1_000 };
    let began = Instant::now();
    let mut read = 0;
    let mut cursor = Cursor::beginning();
    while read < COMMITS {
        let page = subscription.read_page(cursor).await.unwrap();
        read += page.delivered.iter().filter(|delivered| delivered.commit.is_ok()).count();
        cursor = page.cursor;
    }
    let units: f64 = wire.take().iter().map(|call| call.units).sum();
    println!(
        "with their commits, {read}: {:.0} a second, {units} read units, {} MB resident",
        rate(read, began),
        resident()
    );
}

/// Batches of entries of two hundred streams, whose versions are those of no other number.
fn batches(entries: usize, number: usize) -> impl Iterator<Item = Vec<Candidate>> {
    let candidate = move |place: usize| {
        let stream = tank(number * 1_000 + place % 200);
        Candidate::from_record(Entry { stream, version: (place / 200) as u64 + 1 })
    };
    (0..entries / BATCH)
        .map(move |batch| (batch * BATCH..(batch + 1) * BATCH).map(candidate).collect())
}

fn tank(number: usize) -> StreamId {
    StreamId::new("tank", &format!("{number:08}-b005-45d7-9eb6-aa1f83efd55d")).unwrap()
}

/// The memory of this process, with that of the emulated database in it.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4_096
        / 1_000_000
}
