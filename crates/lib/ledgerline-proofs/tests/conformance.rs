//! Checks that the services behind the wire of the proofs behave like AWS, as far as the proofs need
//! it. The same checks run against the emulated services and against a real endpoint:
//!
//! ```sh
//! CONFORMANCE_COMMITS_TABLE=… CONFORMANCE_REQUESTS_TABLE=… CONFORMANCE_QUEUE_URL=….fifo CONFORMANCE_EVENT_BUS=… \
//!   cargo test -p ledgerline-proofs --test conformance -- --ignored
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use std::collections::VecDeque;

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use ledgerline::{
    AppendError, Commit, Consistency, EventLog, Range, StoreError, StreamId, contract::commit,
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_proofs::{
    faulty_wire::{Fault, Plan, Wire},
    world::World,
};

fn wire() -> Wire {
    Wire::new(ledgerline_testing::database(&["CommitsTable", "RequestsTable"]))
}

mod behind_the_wire {
    use super::*;

    ledgerline::contract_tests!(async {
        // The wire takes time for each call.
        tokio::time::pause();
        World::store_at(&wire())
    });

    #[tokio::test]
    async fn the_queue_preserves_order_and_drops_duplicates() {
        let wire = wire();
        let url = "http://wire.invalid/q.fifo";
        send(&wire.sqs(), url, "x").await;
        let queued = wire.services().take_messages(url);
        let received = queued.into_iter().map(|queued| (queued.group, queued.body)).collect();
        assert_order_without_duplicates(received, "x");
    }

    #[tokio::test]
    async fn the_bus_answers_entry_by_entry() {
        assert_the_bus_names_the_refused_entry(&wire().events(), "bus").await;
    }
}

/// The adapter understands the answers that the emulator never gives, in the words of AWS. The test
/// of a real endpoint below shows whether AWS answers in this way, because its races are real.
#[tokio::test(start_paused = true)]
async fn the_store_understands_every_injected_fault() {
    let stream = StreamId::new("injected", "1").unwrap();
    let request = ledgerline::IdempotencyRecord {
        key: "k".into(),
        fingerprint: String::new(),
        answer: String::new(),
        expires: 1,
    };
    for request in [None, Some(&request)] {
        let wire = wire();
        let store = World::store_at(&wire);
        let append = async |fault| {
            wire.follow(Plan::Script(VecDeque::from([Some(fault); 3])), 0);
            store.append(&commit(&stream, 1), request).await
        };
        assert!(matches!(append(Fault::Conflict).await, Err(AppendError::Busy)));
        let throttled = append(Fault::Throttled).await;
        let Err(AppendError::Store(StoreError::Throttled(reason))) = throttled else {
            panic!("{throttled:?}");
        };
        assert!(
            reason.contains("hroughputExceeded") || reason.contains("ThrottlingError: The level"),
            "{reason}"
        );
        for fault in [Fault::Failed, Fault::Dropped] {
            let appended = append(fault).await;
            assert!(
                matches!(appended, Err(AppendError::Store(StoreError::Unavailable(_)))),
                "{appended:?}"
            );
        }
        wire.calm();
        assert_eq!(store.get(&stream, 1).await.unwrap(), None, "none of them was applied");
        assert!(append(Fault::ReplyLost).await.is_err());
        wire.calm();
        assert!(store.get(&stream, 1).await.unwrap().is_some(), "it was applied");
    }
}

/// A lagging replica returns a prefix of the stream, but only to eventually consistent reads.
#[tokio::test(start_paused = true)]
async fn a_stale_page_is_a_prefix_of_the_stream() {
    let wire = wire();
    let store = World::store_at(&wire);
    let stream = StreamId::new("stale", "1").unwrap();
    for version in 1..=6 {
        store.append(&commit(&stream, version), None).await.unwrap();
    }
    let mut shortest = 6;
    for seed in 0..50 {
        for (consistency, fault) in [
            (Consistency::Eventual, Fault::Stale),
            (Consistency::Strong, Fault::Stale),
            (Consistency::Strong, Fault::ShortPage),
        ] {
            wire.follow(Plan::Script(VecDeque::from([Some(fault)])), seed);
            let (newest, complete) = page_without_holes(&store, &stream, consistency).await;
            assert!(newest == 6 || (consistency, fault) == (Consistency::Eventual, Fault::Stale));
            assert_eq!(complete, fault == Fault::Stale);
            shortest = shortest.min(newest);
        }
    }
    assert!(shortest < 5, "some of it lagged behind");
}

#[tokio::test]
#[ignore = "needs an endpoint: see above"]
async fn a_real_endpoint_answers_like_the_emulated_services() {
    let variable =
        |name: &str| std::env::var(format!("CONFORMANCE_{name}")).expect("the variable is set");
    let sdk = ledgerline_lambda::sdk_config().await;
    let store = DynamoDbStore::new(aws_sdk_dynamodb::Client::new(&sdk), variable("COMMITS_TABLE"))
        .with_requests(variable("REQUESTS_TABLE"));
    let run = fastrand::u64(..);

    // Races over one stream, with and without a transaction. The store must understand every answer
    // of AWS.
    let stream = StreamId::new("conformance", &run.to_string()).unwrap();
    let mut busy = 0;
    for version in 1..=20 {
        let race = (0..20).map(|racer| {
            let store = store.clone();
            let commit = commit(&stream, version);
            async move {
                let commit = Commit { command: format!("{racer}"), ..commit };
                if racer % 2 == 0 {
                    store.append(&commit, None).await
                } else {
                    store.append_all(&[commit], None).await
                }
            }
        });
        let mut won = 0;
        for appended in futures::future::join_all(race).await {
            match appended {
                Ok(()) => won += 1,
                Err(AppendError::Busy) => busy += 1,
                Err(AppendError::VersionTaken) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(won <= 1, "{won} appends at version {version}");
        if won == 0 {
            store.append(&commit(&stream, version), None).await.unwrap();
        }
        for consistency in [Consistency::Eventual, Consistency::Strong] {
            let (newest, _) = page_without_holes(&store, &stream, consistency).await;
            assert!(newest == version || consistency == Consistency::Eventual);
        }
    }
    eprintln!("{busy} of 400 appends met another transaction");

    let sqs = aws_sdk_sqs::Client::new(&sdk);
    let url = variable("QUEUE_URL");
    let text = run.to_string();
    send(&sqs, &url, &text).await;
    let mut received = Vec::new();
    while received.len() < 3 {
        let messages = sqs
            .receive_message()
            .queue_url(&url)
            .max_number_of_messages(10)
            .wait_time_seconds(5)
            .message_system_attribute_names(
                aws_sdk_sqs::types::MessageSystemAttributeName::MessageGroupId,
            )
            .send()
            .await
            .unwrap();
        assert!(!messages.messages().is_empty(), "only {received:?} came");
        for message in messages.messages() {
            let attributes = message.attributes().unwrap();
            let group =
                attributes[&aws_sdk_sqs::types::MessageSystemAttributeName::MessageGroupId].clone();
            received.push((group, message.body().unwrap().to_owned()));
            let delete = sqs
                .delete_message()
                .queue_url(&url)
                .receipt_handle(message.receipt_handle().unwrap());
            delete.send().await.unwrap();
        }
    }
    assert_order_without_duplicates(received, &text);

    let events = aws_sdk_eventbridge::Client::new(&sdk);
    assert_the_bus_names_the_refused_entry(&events, &variable("EVENT_BUS")).await;
}

/// The newest version of the page, and whether the page claims to be complete. Asserts that its
/// versions have no holes.
async fn page_without_holes(
    store: &DynamoDbStore,
    stream: &StreamId,
    consistency: Consistency,
) -> (u64, bool) {
    let range = Range { after: 0, up_to: u64::MAX, limit: None };
    let page = store.read(stream, range, consistency).await.unwrap();
    let versions: Vec<_> = page.commits.iter().map(|commit| commit.version).collect();
    let newest = versions.first().copied().unwrap_or(0);
    let oldest = if page.complete { 1 } else { versions.last().copied().unwrap_or(0) };
    assert!(versions.iter().rev().copied().eq(oldest..=newest), "{versions:?}");
    (newest, page.complete)
}

/// Sends two messages of a group and one of another, and then all of them again.
async fn send(sqs: &aws_sdk_sqs::Client, url: &str, text: &str) {
    for (call, sent) in [[("a", "1"), ("a", "2"), ("b", "3")], [("a", "1"), ("b", "3"), ("a", "2")]]
        .iter()
        .enumerate()
    {
        let entries = sent.iter().enumerate().map(|(place, (group, id))| {
            SendMessageBatchRequestEntry::builder()
                .id(place.to_string())
                .message_group_id(format!("{group}{text}"))
                .message_deduplication_id(format!("{id}{text}"))
                .message_body(format!("{id} in call {call}"))
                .build()
                .unwrap()
        });
        let answer = sqs
            .send_message_batch()
            .queue_url(url)
            .set_entries(Some(entries.collect()))
            .send()
            .await
            .unwrap();
        // A duplicate is answered with success, like a new message.
        assert_eq!((answer.successful().len(), answer.failed().len()), (3, 0));
    }
}

fn assert_order_without_duplicates(received: Vec<(String, String)>, text: &str) {
    let bodies = |group: &str| -> Vec<_> {
        let group = format!("{group}{text}");
        let received = received.iter().filter(|(other, _)| *other == group);
        received.map(|(_, body)| body.as_str()).collect()
    };
    assert_eq!(bodies("a"), ["1 in call 0", "2 in call 0"]);
    assert_eq!(bodies("b"), ["3 in call 0"]);
}

/// Asserts that the call is answered with 200, and that the answer names the failed entry by its
/// index.
async fn assert_the_bus_names_the_refused_entry(events: &aws_sdk_eventbridge::Client, bus: &str) {
    let entry = |detail: &str| {
        aws_sdk_eventbridge::types::PutEventsRequestEntry::builder()
            .event_bus_name(bus)
            .source("ledgerline.conformance")
            .detail_type("Happened")
            .detail(detail)
            .build()
    };
    let sent = vec![entry("{}"), entry("{"), entry("{}")];
    let answer = events.put_events().set_entries(Some(sent)).send().await.unwrap();
    assert_eq!(answer.failed_entry_count(), 1);
    let codes: Vec<_> = answer
        .entries()
        .iter()
        .map(|entry| (entry.event_id().is_some(), entry.error_code()))
        .collect();
    assert_eq!(codes, [(true, None), (false, Some("MalformedDetail")), (true, None)]);
}
