//! A queue as an event source: batches and partial batch responses. For failed messages, the
//! queue's own visibility timeout and redrive policy apply.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustack_sqs_core::provider::RustackSqs;
use rustack_sqs_model::{
    error::SqsError,
    input::{DeleteMessageBatchInput, ReceiveMessageInput},
    types::{DeleteMessageBatchRequestEntry, Message},
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Reported, read_failures};
use ledgerline_sam::template::{QueueSource, REGION};

use crate::{
    host::Function,
    trace_log::{TraceLog, age, name},
};

/// The number of concurrent batches, if the template does not set it.
pub(crate) const CONCURRENCY: usize = 2;

/// The time for which a receive gathers more messages if it has less than a batch. The messages of
/// one call arrive one after the other. Without this time, a waiting receive would get the first of
/// ten messages, and the function would be invoked for that one alone.
const GATHER: Duration = Duration::from_millis(5);

/// The mapping of one queue to one function. Several copies run at once, and the queue keeps the
/// order of its groups.
#[derive(Clone)]
pub(crate) struct Mapping {
    /// The lock of receives: two concurrent receives would split the messages that arrive.
    pub(crate) turn: Arc<Mutex<()>>,
    /// The queues themselves. Over HTTP, receives and deletions were a twelfth of the stack's work
    /// under load.
    pub(crate) queues: Arc<RustackSqs>,
    pub(crate) url: String,
    pub(crate) source: QueueSource,
    pub(crate) function: Arc<Function>,
    pub(crate) hops: TraceLog,
}

impl Mapping {
    /// Polls the queue for ever.
    pub(crate) async fn run(self) {
        loop {
            if let Err(error) = self.poll().await {
                self.hops.line("queue", &format!("{}: {error:#}", self.url));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    async fn poll(&self) -> Result<()> {
        let messages = receive(&self.turn, &self.queues, &self.url, self.source.batch_size).await;
        let messages = messages.context("cannot receive")?;
        if messages.is_empty() {
            return Ok(());
        }
        let records: Vec<_> =
            messages.iter().map(|message| record(message, &self.source.queue)).collect();
        let started = Instant::now();
        let result =
            self.function.invoke(json!({ "Records": records }).to_string().into_bytes()).await;
        let took = started.elapsed().as_millis();
        let failed = match result {
            Err(error) => {
                self.hops.line("queue", &format!("{} failed: {error}", self.function.name()));
                Reported::All
            }
            Ok(_) if self.source.function_response_types.is_empty() => Reported::None,
            Ok(answer) => {
                let sent =
                    messages.iter().filter_map(|message| message.message_id.as_deref()).collect();
                read_failures(&answer, &sent)
            }
        };
        self.delete(messages, &failed, took).await
    }

    /// Deletes the messages that succeeded. The queue itself redelivers a failed message after the
    /// visibility timeout, or moves a message that was received too often to the dead-letter queue.
    async fn delete(&self, messages: Vec<Message>, failed: &Reported, took: u128) -> Result<()> {
        let none = HashSet::new();
        let failed = match failed {
            Reported::All => return Ok(()),
            Reported::None => &none,
            Reported::Some(failed) => failed,
        };
        let mut entries = Vec::new();
        for message in messages {
            if message.message_id.is_some_and(|id| failed.contains(&id)) {
                continue;
            }
            let body: Value = serde_json::from_str(message.body.as_deref().unwrap_or_default())
                .unwrap_or_default();
            // The body is a commit or a dead letter. The dead letter of an asynchronous invocation
            // contains the event, and that of a rule is the event.
            let event = ["/requestPayload/detail/lastEvent", "/detail/lastEvent"];
            let body = event.iter().find_map(|place| body.pointer(place)).unwrap_or(&body);
            let text =
                format!("{} by {} in {took} ms{}", name(body), self.function.name(), age(body));
            self.hops.line("projector", &text);
            entries.push(DeleteMessageBatchRequestEntry {
                id: entries.len().to_string(),
                receipt_handle: message.receipt_handle.unwrap_or_default(),
            });
        }
        if entries.is_empty() {
            return Ok(());
        }
        let delete = DeleteMessageBatchInput { queue_url: self.url.clone(), entries };
        self.queues.delete_message_batch(delete).await.context("cannot delete").map(|_| ())
    }
}

/// Waits for messages, and then for [`GATHER`] for those that arrive with them.
async fn receive(
    turn: &Mutex<()>,
    queues: &RustackSqs,
    url: &str,
    batch_size: i32,
) -> Result<Vec<Message>, SqsError> {
    let receive = async |most, wait| {
        let receive = ReceiveMessageInput {
            queue_url: url.to_owned(),
            max_number_of_messages: Some(most),
            wait_time_seconds: Some(wait),
            message_system_attribute_names: vec!["All".into()],
            message_attribute_names: vec!["All".into()],
            ..ReceiveMessageInput::default()
        };
        queues.receive_message(receive).await.map(|received| received.messages)
    };
    let _turn = turn.lock().await;
    let mut messages = receive(batch_size, 20).await?;
    let missing = batch_size - i32::try_from(messages.len()).unwrap_or_default();
    if !messages.is_empty() && missing > 0 {
        tokio::time::sleep(GATHER).await;
        // After a failed second receive, the next one fails as well and reports the error. The
        // messages of the first need not wait for it.
        messages.extend(receive(missing, 0).await.unwrap_or_default());
    }
    Ok(messages)
}

/// Returns a message in the form in which Lambda passes it on.
fn record(message: &Message, arn: &str) -> Value {
    json!({
        "messageId": message.message_id,
        "receiptHandle": message.receipt_handle,
        "body": message.body,
        "attributes": message.attributes,
        "messageAttributes": {},
        "md5OfBody": message.md5_of_body,
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": REGION,
    })
}

#[cfg(test)]
mod tests {
    use rustack_sqs_core::config::SqsConfig;
    use rustack_sqs_model::{
        input::{CreateQueueInput, SendMessageBatchInput},
        types::SendMessageBatchRequestEntry,
    };

    use super::*;

    /// Sends one message of each of `groups` groups in one call.
    async fn send(queues: &RustackSqs, url: &str, groups: usize) {
        let entry = |group: usize| SendMessageBatchRequestEntry {
            id: group.to_string(),
            message_body: group.to_string(),
            message_group_id: Some(group.to_string()),
            message_deduplication_id: Some(group.to_string()),
            ..SendMessageBatchRequestEntry::default()
        };
        let entries = (0..groups).map(entry).collect();
        queues
            .send_message_batch(SendMessageBatchInput { queue_url: url.to_owned(), entries })
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_arrive_together_are_one_batch_despite_two_receives() {
        let queues = RustackSqs::new(SqsConfig::default());
        let fifo = [("FifoQueue".to_owned(), "true".to_owned())];
        let create = CreateQueueInput {
            queue_name: "fills.fifo".into(),
            attributes: fifo.into(),
            tags: Default::default(),
        };
        let url = queues.create_queue(create).await.unwrap().queue_url.unwrap();
        let turn = Mutex::new(());
        let some = || async { receive(&turn, &queues, &url, 10).await.unwrap().len() };
        // Both receives wait when the messages arrive.
        let (first, second, ()) = tokio::join!(some(), some(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            send(&queues, &url, 7).await;
        });
        assert_eq!([first, second], [7, 0]);
    }
}
