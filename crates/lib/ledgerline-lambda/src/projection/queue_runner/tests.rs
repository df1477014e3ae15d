use std::sync::Mutex;

use ledgerline::{MemoryStore, StreamId, contract, position::check};

use super::*;

/// A consumer of one stream that only counts the commits that it applied.
struct Counter(Mutex<u64>);

impl Consumer for Counter {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        let mut position = self.0.lock().unwrap();
        let delivery = check(*position, commit.version);
        if delivery == Delivery::Next {
            *position = commit.version;
        }
        Ok((delivery, *position))
    }
}

/// A consumer whose `apply_batch` never returns.
struct Stuck(Counter);

impl Consumer for Stuck {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        self.0.apply(commit).await
    }

    async fn apply_batch(&self, _: &[&Commit]) -> Result<Vec<(Delivery, u64)>, ApplyError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_exceeds_the_time_limit_or_is_redelivered_is_applied_commit_by_commit() {
    let stream = StreamId::new("tank", "1").unwrap();
    let message = |version: u64| {
        let commit = Message::Commit(Box::new(contract::commit(&stream, version)));
        let mut message = SqsMessage::default();
        message.message_id = Some(version.to_string());
        message.body = Some(serde_json::to_string(&commit).unwrap());
        message
    };
    let runner =
        QueueRunner { store: MemoryStore::default(), consumer: Stuck(Counter(Mutex::new(0))) };
    // Without the limit, the test fails here instead of waiting for ever.
    let batch = [message(1), message(2)];
    let response = tokio::time::timeout(INVOCATION_TIME, runner.batch(&batch)).await.unwrap();
    assert_eq!(response.batch_item_failures.len(), 0);
    assert_eq!(*runner.consumer.0.0.lock().unwrap(), 2);
    // One commit of a redelivered batch may have crashed the function.
    let attributes = [("MessageGroupId", "tank-1"), ("ApproximateReceiveCount", "2")];
    let attributes = attributes.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let mut batch = [message(3), message(4)];
    batch.iter_mut().for_each(|message| message.attributes = attributes.clone().into());
    let began = tokio::time::Instant::now();
    assert_eq!(runner.batch(&batch).await.batch_item_failures.len(), 0);
    assert_eq!((began.elapsed(), *runner.consumer.0.0.lock().unwrap()), (Duration::ZERO, 4));
}

/// A consumer that records the groups that it has applied, and times out the function at one of
/// them.
struct Deadly {
    group: String,
    done: Mutex<HashSet<String>>,
}

impl Consumer for Deadly {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        if commit.stream.as_str() == self.group {
            std::future::pending::<()>().await;
        }
        self.done.lock().unwrap().insert(commit.stream.to_string());
        Ok((Delivery::Next, commit.version))
    }
}

/// The queue has ten groups, and each batch holds all messages left in the queue.
#[tokio::test(start_paused = true)]
async fn a_commit_that_times_out_the_function_holds_up_only_its_own_group() {
    let stream = |place: usize| StreamId::new("tank", &place.to_string()).unwrap();
    for deadly in 0..10 {
        let consumer = Deadly { group: stream(deadly).to_string(), done: Mutex::default() };
        let runner = QueueRunner { store: MemoryStore::default(), consumer };
        let mut left: Vec<_> = (0..10).collect();
        let mut receives = [0; 10];
        for _ in 0..90 {
            left.iter().for_each(|place| receives[*place] += 1);
            let message = |place: &usize| {
                let commit = contract::commit(&stream(*place), 1);
                let body = serde_json::to_string(&Message::Commit(Box::new(commit))).unwrap();
                let mut message = SqsMessage::default();
                message.message_id = Some(place.to_string());
                message.body = Some(body);
                let attributes = [
                    ("MessageGroupId".to_owned(), stream(*place).to_string()),
                    ("ApproximateReceiveCount".to_owned(), receives[*place].to_string()),
                ];
                message.attributes = attributes.into();
                message
            };
            let batch: Vec<_> = left.iter().map(message).collect();
            // The function has timed out, so the queue redelivers all messages.
            let answer = tokio::time::timeout(Duration::from_mins(1), runner.batch(&batch)).await;
            let Ok(answer) = answer else { continue };
            let failed = |place: &usize| {
                let id = place.to_string();
                answer.batch_item_failures.iter().any(|failure| failure.item_identifier == id)
            };
            left.retain(failed);
        }
        assert_eq!(left, [deadly], "all others are done, and gone from the queue");
        assert_eq!(runner.consumer.done.lock().unwrap().len(), 9);
        // No other message is a dead letter, or close to becoming one.
        let most =
            (0..10).filter(|place| *place != deadly).map(|place| receives[place]).max().unwrap();
        assert!(most <= 30, "{deadly}: {receives:?}");
    }
}

fn redelivered_message(place: usize, receives: usize) -> SqsMessage {
    let mut message = SqsMessage::default();
    message.message_id = Some(place.to_string());
    message.attributes = [("ApproximateReceiveCount".to_owned(), receives.to_string())].into();
    message
}

#[test]
fn a_batch_is_processed_whole_before_its_fifth_receive() {
    let order = |receives: [usize; 3]| {
        let messages: Vec<_> = receives
            .into_iter()
            .enumerate()
            .map(|(place, receives)| redelivered_message(place, receives))
            .collect();
        super::attempt_order(&messages)
    };
    assert_eq!(order([1, 1, 1]), [0, 1, 2]);
    assert_eq!(order([2, 1, 1]), [1, 2, 0]);
    assert_eq!(order([3, 3, 3]), [2, 0, 1]);
    assert_eq!(order([4, 4, 4]), [0, 1, 2]);
}

/// After an outage, every message has had many receives, and no message is a poison pill.
#[test]
fn all_groups_of_a_batch_are_processed_within_three_receives_after_an_outage() {
    for outage in [5, 6, 17, 60, 87] {
        let mut left: Vec<usize> = (0..8).collect();
        for receives in outage..outage + 3 {
            let mut messages: Vec<_> =
                left.iter().map(|place| redelivered_message(*place, receives)).collect();
            messages.extend([redelivered_message(8, 1), redelivered_message(9, 1)]);
            let order = super::attempt_order(&messages);
            let is_attempted = |place: usize| {
                let id = Some(place.to_string());
                order.iter().any(|place| messages[*place].message_id == id)
            };
            assert!(is_attempted(8) && is_attempted(9), "new messages do not wait");
            left.retain(|place| !is_attempted(*place));
        }
        assert_eq!(left, [0; 0], "{outage}");
    }
}

/// A repair reads windows of 50 commits, and a page of the database ends at 1 MB.
#[tokio::test]
async fn a_gap_is_repaired_over_any_number_of_windows_and_pages() {
    let database = ledgerline_testing::dynamodb(&["CommitsTable"]).await;
    let store = ledgerline_dynamodb::DynamoDbStore::new(
        aws_sdk_dynamodb::Client::new(&database.sdk_config()),
        ledgerline_testing::table("CommitsTable"),
    );
    for (length, bytes) in [(50, 0), (51, 0), (50, 18_000), (50, 25_000)] {
        let stream = StreamId::new("tank", &format!("{length}-{bytes}")).unwrap();
        for version in 1..=length {
            let mut commit = contract::commit(&stream, version);
            commit.events[0].data.push_str(&" ".repeat(bytes));
            store.append(&commit, None).await.unwrap();
        }
        let runner = QueueRunner { store: store.clone(), consumer: Counter(Mutex::new(0)) };
        runner.message(&format!(r#"{{"stream":"{stream}","version":{length}}}"#)).await.unwrap();
        assert_eq!(*runner.consumer.0.lock().unwrap(), length);
    }
}

/// The log was restored from a backup that ends before the consumer's position, and has new
/// commits after it.
#[tokio::test]
async fn a_log_that_went_backwards_is_an_error_and_no_commit_is_skipped() {
    let stream = StreamId::new("tank", "1").unwrap();
    let commit = |version| contract::commit(&stream, version);
    let apply = async |runner: &QueueRunner<MemoryStore, Counter>, version| {
        let message = Message::Commit(Box::new(commit(version)));
        runner.apply_message(Ok(message), None, &[], Instant::now()).await
    };
    let runner = QueueRunner { store: MemoryStore::default(), consumer: Counter(Mutex::new(5)) };
    for version in 1..=3 {
        runner.store.append(&commit(version), None).await.unwrap();
    }
    for version in [3, 4] {
        let error = apply(&runner, version).await.unwrap_err();
        assert!(matches!(error, ApplyError::WentBack { position: 5, .. }), "{error}");
        assert!(error.to_string().contains("it was restored"), "{error}");
    }
    // A redelivery of commits that the log has, and a repeated commit, are no error.
    for version in 4..=5 {
        runner.store.append(&commit(version), None).await.unwrap();
    }
    for version in 1..=6 {
        apply(&runner, version).await.unwrap();
    }
    assert_eq!(*runner.consumer.0.lock().unwrap(), 6);
}
