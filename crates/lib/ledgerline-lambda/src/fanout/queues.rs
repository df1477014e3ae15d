//! The FIFO queues of whole commits, one for each log projector or process manager. The stream is
//! the message group.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_sqs::{Client, types::SendMessageBatchRequestEntry};
use ledgerline::{Causes, Commit, StreamId};
use sha2::{Digest, Sha256};

use crate::{
    fanout::{
        BatchCommit,
        send::{EntryFailure, LastAccepted, chunks, fail_all, fail_call, send_all},
        send_report::SendReport,
    },
    messages::{Message, Reference},
};

/// The longest message group id and deduplication id that SQS allows, in characters.
const MAX_ID_LENGTH: usize = 128;

/// The codes of messages that SQS will never accept. The field `SenderFault` does not show this,
/// because throttling counts as a fault of the sender too.
const PERMANENT: [&str; 4] = ["InvalidParameterValue", CONTENT[0], CONTENT[1], CONTENT[2]];
/// Those of them that SQS may answer to a whole call. `InvalidParameterValue` may then be about the
/// queue.
const CONTENT: [&str; 3] = ["BatchRequestTooLong", "InvalidMessageContents", "MessageTooLong"];

/// The queues of the log projectors and process managers.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) client: Client,
    /// The queues by their URLs.
    pub(crate) queues: BTreeMap<String, Queue>,
    pub(crate) max_bytes: usize,
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The categories whose commits the queue gets.
    categories: Vec<String>,
    last_accepted: LastAccepted<Outgoing>,
}

impl From<Vec<String>> for Queue {
    fn from(categories: Vec<String>) -> Self {
        Self { categories, last_accepted: LastAccepted::default() }
    }
}

/// A message, and the index of its record.
#[derive(Debug, Clone)]
struct Outgoing {
    index: usize,
    group: String,
    deduplication: String,
    body: String,
}

impl Queues {
    /// Opens the connection with an empty call. SQS refuses the call, but the connection stays open
    /// for the first commit.
    pub(crate) async fn connect(&self) {
        if let Some(url) = self.queues.keys().next() {
            let _ = self
                .client
                .send_message_batch()
                .queue_url(url)
                .set_entries(Some(Vec::new()))
                .send()
                .await;
        }
    }

    /// Sends the commits to every queue that wants their category. `run` is the name of the
    /// redelivery from which the commits come, if there is one.
    pub(crate) async fn send(&self, commits: &[BatchCommit<'_>], run: Option<&str>) -> SendReport {
        let queues = futures::future::join_all(self.queues.iter().map(|(url, queue)| {
            let wanted = |commit: &Commit| {
                queue.categories.iter().any(|category| category == commit.stream.category())
            };
            let commits: Vec<_> =
                commits.iter().filter(|commit| wanted(commit.commit)).copied().collect();
            self.send_to(url, &queue.last_accepted, commits, run)
        }));
        let mut sent = SendReport::default();
        queues.await.into_iter().for_each(|queue| sent.merge(queue));
        sent
    }

    async fn send_to(
        &self,
        url: &str,
        last_accepted: &LastAccepted<Outgoing>,
        commits: Vec<BatchCommit<'_>>,
        run: Option<&str>,
    ) -> SendReport {
        let mut sent = SendReport::default();
        for turn in split_into_turns(commits) {
            if sent.is_blocked() {
                // No commit may overtake another one in its group (rule 10). So the later turns
                // wait, and are delivered again with the failed commits.
                turn.iter().for_each(|commit| sent.failure.note(commit.index));
                continue;
            }
            let messages: Vec<_> = turn.iter().map(|commit| self.message(commit, run)).collect();
            for call in chunks(&messages, self.max_bytes, |message| message.body.len()) {
                if sent.is_blocked() {
                    // An earlier call failed, so Lambda delivers all of these records again. A call
                    // for their messages would only cost time, because the queue accepts nothing.
                    call.iter().for_each(|message| sent.failure.note(message.index));
                    continue;
                }
                let send = async |messages: &[Outgoing]| self.send_batch(url, messages).await;
                let unsent = send_all(call, last_accepted, send).await;
                let unsent = unsent.into_iter().map(|(message, failure)| (message.index, failure));
                sent.add_unsent(url, unsent);
            }
        }
        sent
    }

    fn message(
        &self,
        &BatchCommit { index, commit, has_body }: &BatchCommit<'_>,
        run: Option<&str>,
    ) -> Outgoing {
        let whole = Message::Commit(Box::new(Commit { state: None, ..commit.clone() }));
        let mut body =
            serde_json::to_string(&whole).map(|body| escape_for_sqs(&body)).unwrap_or_default();
        if has_body || body.is_empty() || body.len() > self.max_bytes {
            let reference = Reference { stream: commit.stream.clone(), version: commit.version };
            body = serde_json::to_string(&reference).unwrap_or_default();
        }
        Outgoing {
            index,
            group: hash_if_long(commit.stream.to_string()),
            // A queue ignores a message whose id it accepted within the last five minutes. A
            // redelivered commit must not be ignored, so its id contains the run.
            deduplication: hash_if_long(match run {
                Some(run) => format!("{}:{}:{run}", commit.stream, commit.version),
                None => format!("{}:{}", commit.stream, commit.version),
            }),
            body,
        }
    }

    async fn send_batch(&self, url: &str, messages: &[Outgoing]) -> Vec<(usize, EntryFailure)> {
        let mut batch = self.client.send_message_batch().queue_url(url);
        for (place, message) in messages.iter().enumerate() {
            let entry = SendMessageBatchRequestEntry::builder()
                .id(place.to_string())
                .message_group_id(&message.group)
                .message_deduplication_id(&message.deduplication)
                .message_body(&message.body)
                .build();
            match entry {
                Ok(entry) => batch = batch.entries(entry),
                Err(error) => {
                    tracing::error!(%error, "a message could not be built");
                    return fail_all(messages.len());
                }
            }
        }
        match batch.send().await {
            Ok(answer) => {
                let accepted: Vec<_> =
                    answer.successful().iter().map(|entry| entry.id().to_owned()).collect();
                let failure = |place: usize| {
                    let entry =
                        answer.failed().iter().find(|entry| entry.id() == place.to_string());
                    EntryFailure::from_code(entry.map_or("", |entry| entry.code()), &PERMANENT)
                };
                let missing =
                    (0..messages.len()).filter(|place| !accepted.contains(&place.to_string()));
                let failed: Vec<_> = missing.map(|place| (place, failure(place))).collect();
                if !failed.is_empty() {
                    let first = answer.failed().first();
                    let (code, message) =
                        (first.map(|entry| entry.code()), first.and_then(|entry| entry.message()));
                    tracing::warn!(
                        failed = failed.len(),
                        code,
                        message,
                        "the queue did not accept messages"
                    );
                }
                failed
            }
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "the queue did not accept a call");
                fail_call(messages.len(), &error, &CONTENT)
            }
        }
    }
}

/// Divides commits into turns. Each turn has at most one commit of a stream, and a stream's commits
/// are in ascending turns by version. One call holds commits of one turn only. So when an entry of
/// the call fails, the same call cannot have sent a later commit of the same group (rule 10).
/// Consumers would survive that (rule 7), but each time they would read the log, and most often
/// for the busiest stream.
fn split_into_turns(commits: Vec<BatchCommit<'_>>) -> Vec<Vec<BatchCommit<'_>>> {
    let mut sorted = commits;
    sorted.sort_by_key(|commit| commit.commit.version);
    let mut turns_used: HashMap<&StreamId, usize> = HashMap::new();
    let mut turns: Vec<Vec<_>> = Vec::new();
    for commit in sorted {
        let turn = turns_used.entry(&commit.commit.stream).or_default();
        if turns.len() == *turn {
            turns.push(Vec::new());
        }
        turns[*turn].push(commit);
        *turn += 1;
    }
    turns
}

fn hash_if_long(id: String) -> String {
    if id.len() <= MAX_ID_LENGTH {
        return id;
    }
    Sha256::digest(id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Escapes the two characters that JSON text may hold unescaped, and that SQS refuses. A reader of
/// JSON gets the same text. Source: the API reference of SendMessage, "A message can include only
/// XML, JSON, and unformatted text".
fn escape_for_sqs(json: &str) -> String {
    json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}
