//! The runner that log projectors and process managers share: functions behind a FIFO queue of
//! commits. It handles batches, gaps, and commits that are too large for a message.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_config::SdkConfig;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsMessage};
use futures::{FutureExt, future::LocalBoxFuture};
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Causes, Commit, EventLog, manifest::Manifest, position::Delivery, view_store::ViewError,
};
use ledgerline_dynamodb::{DynamoDbStore, ViewTable};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::Instant;

pub use super::apply_error::ApplyError;
use crate::{
    commit_list::CommitList,
    failure::Error,
    messages::{Message, Reference},
    metrics,
    projection::view_rebuild::{RebuildError, RebuildRequest, RebuildResponse, ViewAnswer},
    start::{Handle, handler, sdk_config, start, store},
    table_grants,
};

/// The receive count from which a message may be a poison pill. An outage of some minutes causes
/// fewer receives, and the queue allows 90.
const SUSPECTED_RECEIVES: usize = 5;

/// The time that an invocation has, if its context has no deadline in the future.
pub(super) const INVOCATION_TIME: Duration = Duration::from_secs(10);
/// The shortest time limit for applying a batch as a whole.
const MIN_BATCH_TIME: Duration = Duration::from_secs(2);
/// The longest time limit for applying a batch as a whole.
const MAX_BATCH_TIME: Duration = Duration::from_secs(600);

/// Applies the commits of a queue, those of each stream one after the other.
///
/// ```
/// use ledgerline::{Commit, position::Delivery};
/// use ledgerline_lambda::queue::{ApplyError, Consumer};
///
/// /// Accepts every commit, and changes nothing.
/// struct Discard;
///
/// impl Consumer for Discard {
///     async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
///         Ok((Delivery::Next, commit.version))
///     }
/// }
/// ```
pub trait Consumer: Sized {
    /// Applies the commit if it is the next one in its stream (rule 7), and does nothing otherwise.
    /// Returns the delivery, and the consumer's position in the stream.
    fn apply(&self, commit: &Commit) -> impl Future<Output = Result<(Delivery, u64), ApplyError>>;

    /// Applies many commits in fewer calls, if the consumer can do that. Returns the delivery and
    /// the position for each commit, or an empty list. The runner gives every commit behind a gap
    /// to [`apply`](Self::apply), and after an error all of them. The runner may drop the future at
    /// any call.
    fn apply_batch(
        &self,
        _: &[&Commit],
    ) -> impl Future<Output = Result<Vec<(Delivery, u64)>, ApplyError>> {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns a consumer for each written generation of the view, the active one last. The list is
    /// empty if the consumer writes no view that can be rebuilt. Then the runner gives commits to
    /// the consumer itself.
    fn generations(&self) -> impl Future<Output = Result<Vec<Self>, ViewError>> {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns the table of the consumer's view, at its generation, if it can be rebuilt.
    fn view_table(&self) -> Option<&ViewTable> {
        None
    }

    /// Rebuilds a generation of the consumer's view from the log.
    fn rebuild(
        &self,
        _: &DynamoDbStore,
        _: &RebuildRequest,
    ) -> impl Future<Output = Result<RebuildResponse, RebuildError>> {
        std::future::ready(Err(RebuildError::NoView))
    }
}

/// An event of a function behind a FIFO queue: messages, or a request of the operator's tool.
#[derive(Debug, Deserialize)]
struct Event<Record> {
    #[serde(rename = "Records", default = "Vec::new")]
    records: Vec<Record>,
    #[serde(default)]
    rebuild: Option<RebuildRequest>,
}

type Answer = ViewAnswer<SqsBatchResponse>;

/// Messages, each with the commit in its body, or the reason why the body is unreadable.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) messages: Vec<SqsMessage>,
    pub(super) bodies: Vec<Result<Message, String>>,
}

impl Batch {
    fn read(messages: Vec<SqsMessage>) -> Self {
        let mut batch = Self::default();
        messages.into_iter().for_each(|message| batch.push(message));
        batch
    }

    pub(super) fn push(&mut self, message: SqsMessage) {
        self.bodies.push(read_body(&message));
        self.messages.push(message);
    }
}

/// Runs a consumer of commits. It applies each commit exactly once and in order (rule 7). An effect
/// outside the write of its position happens at least once. `manifest` names the source, which is a
/// queue with the categories of its commits, and the tables. `run` adds reads of the log.
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, and the variables that `build` reads.
pub async fn run<C: Consumer + 'static>(
    manifest: Manifest,
    build: impl AsyncFnOnce(SdkConfig) -> Result<C, Error>,
) -> Result<(), Error> {
    run_records(manifest, Batch::read, build).await
}

/// Does the same as [`run`], for a function with records of other sources too. `read` converts the
/// records to messages.
pub(super) async fn run_records<Record: DeserializeOwned + 'static, C: Consumer + 'static>(
    manifest: Manifest,
    read: fn(Vec<Record>) -> Batch,
    build: impl AsyncFnOnce(SdkConfig) -> Result<C, Error>,
) -> Result<(), Error> {
    let build = async {
        let sdk = sdk_config().await;
        let store = store(&sdk, aws_sdk_dynamodb::Client::new(&sdk)).await?;
        let runner = Arc::new(QueueRunner { store, consumer: build(sdk).await? });
        Ok(handler(move |LambdaEvent { payload: event, context }: LambdaEvent<Event<Record>>| {
            let runner = Arc::clone(&runner);
            async move {
                let left =
                    context.deadline().duration_since(SystemTime::now()).unwrap_or(INVOCATION_TIME);
                Ok(match event.rebuild {
                    None => {
                        ViewAnswer::Handled(runner.batch_within(read(event.records), left).await)
                    }
                    Some(request) => {
                        ViewAnswer::Rebuilt(runner.consumer.rebuild(&runner.store, &request).await?)
                    }
                })
            }
        }))
    };
    serve(manifest.table(table_grants::read_streams()), build.boxed_local()).await
}

/// Starts the function. The consumer is no type parameter, so this is compiled once for each kind
/// of record.
fn serve<Record: DeserializeOwned + 'static>(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Handle<Event<Record>, Answer>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(manifest, build)
}

/// The parts of a function behind a FIFO queue of commits.
#[derive(Debug)]
pub struct QueueRunner<S, C> {
    /// The log, for gaps and for commits that are too large for a message.
    pub store: S,
    /// The consumer that applies the commits.
    pub consumer: C,
}

impl<S: EventLog, C: Consumer> QueueRunner<S, C> {
    /// Applies a batch, each group in order. After a message of a group failed, the later messages
    /// of the group are reported as failed too, without an attempt: they must not overtake it.
    /// Other groups continue.
    pub async fn batch(&self, messages: &[SqsMessage]) -> SqsBatchResponse {
        self.batch_within(Batch::read(messages.to_vec()), INVOCATION_TIME).await
    }

    /// Does the same as [`batch`](Self::batch), for an invocation that ends after this time.
    ///
    /// A consumer that applies a batch as a whole has two thirds of the time. The rest is for
    /// applying the commits one by one. With a shorter limit, most batches would begin again
    /// halfway while a table is slow, and pay twice.
    pub(super) async fn batch_within(&self, batch: Batch, left: Duration) -> SqsBatchResponse {
        let Batch { messages, bodies } = batch;
        let messages = messages.as_slice();
        let generations = match self.consumer.generations().await {
            Ok(generations) => generations,
            Err(error) => {
                // Nothing is applied: a commit written into one generation alone might never reach
                // the other one.
                tracing::error!(error = %Causes(&error), "the generations cannot be read");
                let mut response = SqsBatchResponse::default();
                messages.iter().for_each(|message| response.add_failure(id(message)));
                return response;
            }
        };
        let repair_until = Instant::now() + left / 2;
        let limit = (left * 2 / 3).clamp(MIN_BATCH_TIME, MAX_BATCH_TIME);
        let outcomes = self.apply_together(messages, &bodies, &generations, limit).await;
        let mut bodies: Vec<_> = bodies.into_iter().map(Some).collect();
        let mut report = BatchReport::default();
        let order = attempt_order(messages);
        for (place, message) in messages.iter().enumerate() {
            if !order.contains(&place) {
                report.response.add_failure(id(message));
            }
        }
        for place in order {
            let message = &messages[place];
            let Some(body) = bodies[place].take() else { continue };
            if is_redelivery(message) {
                metrics::retries(1);
            }
            if report.stopped.contains(group(message)) {
                report.response.add_failure(id(message));
                continue;
            }
            let correlation_id = match &body {
                Ok(Message::Commit(commit)) => commit.meta.correlation_id.clone(),
                Ok(Message::Reference(_)) | Err(_) => None,
            };
            // A panic at one message must not fail the whole batch.
            let applied = self.apply_message(body, outcomes[place], &generations, repair_until);
            match AssertUnwindSafe(applied).catch_unwind().await {
                Ok(Ok((delivery, commit))) => report.add_applied(delivery, &commit),
                Ok(Err(error)) => {
                    report.add_failed(message, correlation_id, &Causes(&error).to_string())
                }
                Err(_) => report.add_failed(message, correlation_id, "panic"),
            }
        }
        report.finish()
    }

    /// Applies commits of a batch together, if the consumer can do that. Returns the delivery and
    /// the position for each message whose commit needs no further call. The runner applies the
    /// other commits one by one, and all of them after a failure. So the log names the one commit
    /// at fault, and no other group waits for it.
    async fn apply_together(
        &self,
        messages: &[SqsMessage],
        read: &[Result<Message, String>],
        generations: &[C],
        limit: Duration,
    ) -> Vec<Option<(Delivery, u64)>> {
        let mut outcomes = vec![None; messages.len()];
        let consumer = match generations {
            [] => &self.consumer,
            [one] => one,
            // Each generation has a position of its own.
            [..] => return outcomes,
        };
        // One of the commits may have crashed the function, so the commits before it must be
        // applied this time.
        if messages.iter().any(is_redelivery) {
            return outcomes;
        }
        let mut places = Vec::new();
        let mut commits = Vec::new();
        let mut postponed = HashSet::new();
        for (place, (message, read)) in messages.iter().zip(read).enumerate() {
            match read {
                Ok(Message::Commit(commit)) if !postponed.contains(group(message)) => {
                    places.push(place);
                    commits.push(&**commit);
                }
                // A later commit of a group never overtakes one that must be applied alone.
                Ok(Message::Commit(_) | Message::Reference(_)) | Err(_) => {
                    postponed.insert(group(message));
                }
            }
        }
        let all = AssertUnwindSafe(consumer.apply_batch(&commits)).catch_unwind();
        let failure = match tokio::time::timeout(limit, all).await {
            Ok(Ok(Ok(deliveries))) => {
                for (place, (delivery, position)) in places.into_iter().zip(deliveries) {
                    // A commit before the gap may have to be applied alone.
                    outcomes[place] =
                        Some((delivery, position)).filter(|_| delivery != Delivery::Gap);
                }
                return outcomes;
            }
            Ok(Ok(Err(error))) => Causes(&error).to_string(),
            Ok(Err(_)) => "panic".to_owned(),
            Err(_) => "the batch timed out".to_owned(),
        };
        // Commits that were applied before the failure are duplicates, and their lag is not
        // measured.
        tracing::warn!(error = failure, "the commits of a batch are applied one by one");
        outcomes
    }

    /// Applies the commit in one message.
    pub async fn message(&self, body: &str) -> Result<(), ApplyError> {
        let generations = self.consumer.generations().await?;
        let repair_until = Instant::now() + INVOCATION_TIME / 2;
        let applied = self.apply_message(Message::read(body), None, &generations, repair_until);
        applied.await.map(|_| ())
    }

    /// Applies the commit in one message, unless the batch applied it. Returns the delivery, and
    /// the commit. Gaps of generations that are not read are repaired until `repair_until`.
    pub(super) async fn apply_message(
        &self,
        message: Result<Message, String>,
        applied: Option<(Delivery, u64)>,
        generations: &[C],
        repair_until: Instant,
    ) -> Result<(Delivery, Box<Commit>), ApplyError> {
        let commit = match message.map_err(ApplyError::Malformed)? {
            Message::Commit(commit) => commit,
            Message::Reference(Reference { stream, version }) => {
                match self.store.get(&stream, version).await? {
                    Some(commit) => Box::new(commit),
                    None => return Err(ApplyError::Missing { stream, version }),
                }
            }
        };
        // A crash loses the log line of the whole batch. This line, at the level DEBUG, names the
        // commit that the function was processing.
        tracing::debug!(stream = %commit.stream, version = commit.version, "projection begins");
        let (read, others) = match generations.split_last() {
            Some((read, others)) => (read, others),
            None => (&self.consumer, &[][..]),
        };
        for other in others {
            self.apply_to_standby(other, &commit, repair_until).await?;
        }
        let (delivery, position) = match applied {
            Some(applied) => applied,
            None => read.apply(&commit).await?,
        };
        Ok((self.act_on(read, &commit, delivery, position).await?, commit))
    }
}

/// The results of a batch, message by message.
#[derive(Default)]
struct BatchReport<'m> {
    response: SqsBatchResponse,
    /// The groups of failed messages. Their later messages must not overtake the failed one.
    stopped: HashSet<&'m str>,
    applied: CommitList,
    skipped: CommitList,
}

impl<'m> BatchReport<'m> {
    fn add_applied(&mut self, delivery: Delivery, commit: &Commit) {
        match delivery {
            Delivery::Next => self.applied.add(commit),
            Delivery::Duplicate => self.skipped.add(commit),
            // The repair of the gap has its own log line.
            Delivery::Gap => {}
        }
    }

    fn add_failed(&mut self, message: &'m SqsMessage, correlation_id: Option<String>, error: &str) {
        let stream = group(message);
        let message_id = id(message);
        tracing::error!(stream, message_id, correlation_id, error, "projection");
        self.stopped.insert(stream);
        self.response.add_failure(message_id);
    }

    /// Logs the commits in one line, and returns the response.
    fn finish(self) -> SqsBatchResponse {
        let (applied, skipped) = (self.applied.as_field(), self.skipped.as_field());
        if applied.or(skipped).is_some() {
            tracing::info!(applied, skipped, "projection");
        }
        self.response
    }
}

/// Reads the body of a message. A panic at one message must not fail the whole batch.
fn read_body(message: &SqsMessage) -> Result<Message, String> {
    let body = message.body.as_deref().unwrap_or_default();
    std::panic::catch_unwind(|| Message::read(body))
        .unwrap_or_else(|_| Err("the message makes its reader panic".to_owned()))
}

/// The group of a message. A message without a group stands alone.
fn group(message: &SqsMessage) -> &str {
    message.attributes.get("MessageGroupId").map_or(id(message), String::as_str)
}

fn id(message: &SqsMessage) -> &str {
    message.message_id.as_deref().unwrap_or_default()
}

fn is_redelivery(message: &SqsMessage) -> bool {
    receives(message) > 1
}

/// How often the message was received, including this receive.
fn receives(message: &SqsMessage) -> usize {
    let count = message.attributes.get("ApproximateReceiveCount");
    count.and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// Selects the messages to process now, by index, group after group. The caller reports all others
/// as failed, so that SQS delivers them again.
///
/// A poison pill can crash or time out the function, which loses the response for the batch. So
/// each receive of a batch begins with another group. From [`SUSPECTED_RECEIVES`] receives on, the function
/// leaves out half of the suspected groups, by a bit of a hash of the group's name. The next
/// receive leaves out the other half, and the receives after that use another bit. So all groups
/// but that of the poison pill leave the queue within some receives. Without a poison pill, as
/// after an outage, all groups leave the queue within three.
fn attempt_order(messages: &[SqsMessage]) -> Vec<usize> {
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        match groups.iter_mut().find(|(name, _)| *name == group(message)) {
            Some((_, places)) => places.push(place),
            None => groups.push((group(message), vec![place])),
        }
    }
    let receive = messages.iter().map(receives).max().unwrap_or(1);
    let is_suspected = |(_, places): &(&str, Vec<usize>)| {
        places.iter().any(|place| receives(&messages[*place]) >= SUSPECTED_RECEIVES)
    };
    let (suspected, mut others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_suspected);
    let first = (receive - 1).checked_rem(others.len()).unwrap_or(0);
    others.rotate_left(first);
    let bit = (receive / 2) % 16;
    let is_in_this_half = |(name, _): &(&str, Vec<usize>)| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish() >> bit & 1 == receive as u64 & 1
    };
    let (mut half, rest): (Vec<_>, Vec<_>) = suspected.into_iter().partition(is_in_this_half);
    if half.is_empty() && others.is_empty() {
        half = rest;
    }
    others.into_iter().chain(half).flat_map(|(_, places)| places).collect()
}

#[cfg(test)]
mod tests;
