//! Work of the functions by itself, so that its instructions can be counted: `work <what> <times>`. The test `instructions` does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the report")]

use std::{env, hint::black_box, num::NonZeroUsize};

use bank::account::{Account, Booking, Command, Event};
use futures::executor::block_on;
use jiff::civil::date;
use ledgerline::{
    Aggregate, Cache, Commit, Context, Execution, Loaded, MemoryStore, Meta, decode, encode, execute,
};
use ledgerline_dynamodb::commit_from_image;
use ledgerline_lambda::stream::{Batch, records};
use serde_json::json;

const ACCOUNT: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

fn event(version: u64) -> Event {
    let booked_on = date(2026, 11, 21);
    match version {
        1 => Event::AccountOpened {
            owner: "Ada Lovelace".into(),
            currency: "EUR".into(),
            opened_by: Some("ada".into()),
            booked_on,
        },
        _ => Event::AccountCredited {
            amount: 100,
            balance: 100 * i64::try_from(version).unwrap(),
            booked_on,
            reference: Some("November's rent".into()),
        },
    }
}

fn meta() -> Meta {
    Meta {
        actor: Some("ada".into()),
        correlation_id: Some("0190163d-8694-739b-aea5-966c26f8ad93".into()),
        causation_id: Some("0190163d-8694-739b-aea5-966c26f8ad93".into()),
        source_address: Some("192.0.2.1".into()),
        trace_id: Some("Root=1-5759e988-bd862e3fe1be46a994272793".into()),
    }
}

fn commit(version: u64) -> Commit {
    Commit {
        stream: Account::stream(ACCOUNT).unwrap(),
        version,
        events: vec![encode::<Account>(&event(version)).unwrap()],
        state: None,
        command: format!("0190163d-8694-739b-aea5-{version:012}"),
        at: "2026-11-21T09:30:00.123456Z".parse().unwrap(),
        meta: meta(),
    }
}

/// The images of commits.
fn images(times: u64) -> Vec<serde_dynamo::Item> {
    (1..=times).map(|version| serde_dynamo::to_item(commit(version)).unwrap()).collect()
}

/// Stored items to a state.
fn fold(images: Vec<serde_dynamo::Item>) {
    let mut loaded = Loaded::<Account>::nothing();
    for image in images {
        loaded.apply(&commit_from_image(image).unwrap()).unwrap();
    }
    assert!(loaded.state.opened().is_some());
}

/// A stored event to an event.
fn decoded(times: u64) {
    let recorded = encode::<Account>(&event(2)).unwrap();
    for _ in 0..times {
        black_box(decode::<Account>(black_box(&recorded)).unwrap());
    }
}

/// Commands to a store in memory.
fn commands(times: u64) {
    let (store, cache) = (MemoryStore::default(), Cache::<Account>::new(NonZeroUsize::new(1_000).unwrap()));
    let stream = Account::stream(ACCOUNT).unwrap();
    let context = Context { at: "2026-11-21T09:30:00.123456Z".parse().unwrap(), actor: Some("ada".into()) };
    let meta = meta();
    for n in 0..times {
        let command = if n == 0 {
            Command::Open("Ada Lovelace".parse().unwrap(), "EUR".parse().unwrap())
        } else {
            let reference = Some("November's rent".parse().unwrap());
            Command::Credit(Booking { amount: "100".parse().unwrap(), reference })
        };
        let id = format!("0190163d-8694-739b-aea5-{n:012}");
        let execution =
            Execution { creates: n == 0, ..Execution::new(&stream, &command, &context, &id, &meta) };
        block_on(execute(&store, &cache, &execution)).unwrap();
    }
}

/// What Lambda sends of the table's stream, to commits.
fn stream_records(times: u64) {
    let record = |image| {
        json!({
            "eventID": "c9fbe7d0261a5163fcb6940593e41797",
            "eventName": "INSERT",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "us-east-1",
            "dynamodb": {
                "ApproximateCreationDateTime": 1_795_253_400.0,
                "Keys": { "stream": { "S": format!("account-{ACCOUNT}") }, "version": { "N": "2" } },
                "NewImage": image,
                "SequenceNumber": "4421584500000000017450439091",
                "SizeBytes": 700,
                "StreamViewType": "NEW_IMAGE",
            },
            "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/Commits/stream/2026-11-21T09:30:00.000",
        })
    };
    let batch = json!({ "Records": images(10).into_iter().map(record).collect::<Vec<_>>() }).to_string();
    for _ in 0..times / 10 {
        let read = records(serde_json::from_str::<Batch>(black_box(&batch)).unwrap());
        assert!(read.len() == 10 && read.iter().all(|record| record.commit.is_ok()));
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    let (what, times) = (arguments.next().unwrap(), arguments.next().unwrap().parse().unwrap());
    match what.as_str() {
        "decode" => decoded(times),
        // What `fold` begins with, and is taken away from it.
        "images" => std::mem::forget(images(times)),
        "fold" => fold(images(times)),
        "commands" => commands(times),
        "records" => stream_records(times),
        other => panic!("{other}"),
    }
}
