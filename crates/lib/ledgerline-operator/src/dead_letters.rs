//! Dead letters: messages that their consumer could not process, with their sources. An operator
//! redrives, parks or discards them.
//!
//! The move task of SQS does not serve all of them. The fanout's references came from no queue, and
//! a FIFO queue may drop a redriven message as a duplicate. Here each message is sent first and
//! deleted then, with a deduplication id of its own. So a message may arrive twice, which every
//! subscriber accepts, and it is never lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, MessageSystemAttributeName as Attribute,
    QueueAttributeName,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use futures::{StreamExt, future::join_all, stream};
use jiff::Timestamp;
use ledgerline::StreamId;
use ledgerline_dynamodb::Bodies;
use ledgerline_s3::S3Bodies;
use ledgerline_sam::lookup::{FAILURES, logical_id, resources};
use serde_json::{Value, json};

use crate::{
    Output, WriteArgs, deployed,
    deployment::Deployment,
    records::{self, ParkedMessage, Record},
    send_records::send_records,
};

/// The minimum and the maximum visibility timeout, in seconds, of the messages that one pass reads.
/// The pass ends with this timeout, so that SQS does not deliver a message to it twice.
const LOOKING: RangeInclusive<u64> = 60..=900;
/// The messages that a pass reads in a second, at least.
const RATE: u64 = 50;
/// The visibility timeout, in seconds, of messages that are redriven, parked or discarded. If the
/// tool is killed, other consumers get its messages, and those behind them in their streams, after
/// this time.
const ACTING: i32 = 30;
/// The visibility timeout, in seconds, for a redrive through the fanout: a batch takes minutes.
const THROUGH_THE_FANOUT: i32 = 900;
/// The number of messages that one call receives, the most that SQS returns.
const AT_ONCE: i32 = 10;
/// The number of empty responses in a row after which a queue counts as empty: SQS asks only some
/// of its servers.
const EMPTY: usize = 2;
/// The number of calls at once that make messages visible again.
const CALLS: usize = 8;
/// The most dead letters that are printed for people.
const SHOWN: usize = 50;

/// The options of `ledger dead-letters`.
#[derive(Debug, Args)]
pub(crate) struct DeadLettersArgs {
    /// The logical id of a dead-letter queue, or its beginning: Transactions. Without it, show all
    /// queues.
    queue: Option<String>,
    /// Select the message with this id. Repeat the option per message.
    #[arg(long)]
    id: Vec<String>,
    /// Select the messages about this stream.
    #[arg(long)]
    stream: Option<String>,
    /// Show the payloads of the messages.
    #[arg(long)]
    payloads: bool,
    /// Redrive the messages to their source: the queue, or the fanout.
    #[arg(long, requires_all = ["write", "queue"])]
    redrive: bool,
    /// Park the messages: they leave the queue and its alarm, and are stored with the reason. Needs
    /// --id or --stream.
    #[arg(long, requires_all = ["write", "queue"], conflicts_with = "redrive")]
    park: bool,
    /// Discard the messages with these ids. Stores the operator and the reason.
    #[arg(long, requires_all = ["write", "queue", "id"], conflicts_with_all = ["redrive", "park", "stream"])]
    discard: bool,
    /// Use the parked messages, instead of those in the queues.
    #[arg(long, conflicts_with = "park")]
    parked: bool,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// A dead-letter queue.
#[derive(Debug, Clone)]
struct Queue {
    id: String,
    url: String,
    target: RedriveTarget,
}

/// The source to which the messages of a queue are redriven.
#[derive(Debug, Clone)]
enum RedriveTarget {
    /// The queue that they came from.
    Queue(String),
    /// The fanout, which gets the records of the commits that the messages name.
    Fanout,
}

/// A message of a dead-letter queue, or a parked one.
#[derive(Debug, Clone)]
struct Message {
    id: String,
    body: String,
    group: Option<String>,
    since: Option<Timestamp>,
    /// The handle that deletes it from its queue; `None` if it is parked.
    receipt: Option<String>,
    /// The content of the object that the message names, or the reason why it cannot be read.
    object: Option<Result<FailedBatch, String>>,
}

/// A batch of records that Lambda gave up.
#[derive(Debug, Clone)]
struct FailedBatch {
    commits: Vec<(StreamId, u64)>,
    reason: String,
}

/// The facts about a message that a pass read, without its body. A queue may have more messages
/// than fit into memory with their bodies.
struct Summary {
    since: Option<Timestamp>,
    reason: String,
    receipt: Option<String>,
    /// The row to print, if the operator selects the message.
    row: Option<Value>,
}

/// Runs the command. Returns whether no selected message is left; without `--write`, whether there
/// are no dead letters.
pub(crate) async fn run(
    deployment: &Deployment,
    options: &DeadLettersArgs,
    out: Output,
) -> Result<bool> {
    let wanted = choose_queues(dead_letter_queues(deployment).await?, options.queue.as_deref())?;
    if let (Some(queue), true) = (wanted.first(), options.write_args.write) {
        return act(deployment, queue, options, out).await;
    }
    if options.parked {
        return show_parked(deployment, options, out).await.map(|()| true);
    }
    let mut counts = Vec::new();
    let mut rows = Vec::new();
    for queue in &wanted {
        let count = count_messages(deployment, queue).await?;
        if count == 0 && options.queue.is_none() {
            continue;
        }
        let found = read_all(deployment, queue, count, options).await?;
        make_visible(deployment, queue, found.iter().filter_map(|summary| summary.receipt.clone()))
            .await;
        let mut reasons = BTreeMap::<String, usize>::new();
        found.iter().for_each(|summary| *reasons.entry(summary.reason.clone()).or_default() += 1);
        let reasons: Vec<_> =
            reasons.iter().map(|(reason, count)| format!("{count}: {reason}")).collect();
        let oldest = found.iter().filter_map(|summary| summary.since).min();
        counts.push(json!({
            "queue": queue.id, "messages": count.max(found.len() as u64), "oldest": oldest, "reasons": reasons.join("; "),
        }));
        rows.extend(found.into_iter().filter_map(|summary| summary.row));
    }
    let is_empty = counts.iter().all(|count| count["messages"] == 0);
    if is_empty {
        out.note("there are no dead letters");
    } else {
        out.rows(&["queue", "messages", "oldest", "reasons"], &counts);
    }
    if options.queue.is_some() || out.json {
        out.note("");
        let shown = if out.json { rows.len() } else { SHOWN };
        let fields = ["id", "commits", "since", "reason", "body"];
        let fields = if options.payloads { &fields[..] } else { &fields[..4] };
        out.rows(fields, &rows[..shown.min(rows.len())]);
    }
    Ok(is_empty)
}

/// Returns all queues, or the one whose logical id begins with a name.
fn choose_queues(queues: Vec<Queue>, name: Option<&str>) -> Result<Vec<Queue>> {
    let Some(name) = name else { return Ok(queues) };
    let found: Vec<_> = queues.iter().filter(|queue| queue.id.starts_with(name)).collect();
    match found.as_slice() {
        [queue] => Ok(vec![(*queue).clone()]),
        _ => {
            let known: Vec<_> = queues.iter().map(|queue| queue.id.as_str()).collect();
            bail!("`{name}` is not one queue; choose one of: {}", known.join(", "))
        }
    }
}

/// What an operator does with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Redrive,
    Park,
    Discard,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Park => "park",
            Self::Discard => "discard",
        }
    }
}

/// Redrives, parks or discards messages. Returns whether no selected message is left.
async fn act(
    deployment: &Deployment,
    queue: &Queue,
    options: &DeadLettersArgs,
    out: Output,
) -> Result<bool> {
    let action = options.action()?;
    let source =
        if options.parked { format!("those parked of {}", queue.id) } else { queue.id.clone() };
    let ask = format!("{} {} of {source}?", action.name(), options.selection());
    if !options.write_args.confirm(&ask)? {
        return Ok(false);
    }
    let mut pass = Pass::new(deployment, queue, options, action).await?;
    let result = pass.run(&source).await;
    let unread = pass.count_unread().await;
    // Even after a failure, others need not wait for the visibility timeout of messages that were
    // only read.
    make_visible(deployment, queue, std::mem::take(&mut pass.receipts).into_iter()).await;
    result?;
    pass.print_outcome(unread?, out).await
}

/// A pass over a dead-letter queue, or over its parked messages, that acts on the selected ones.
struct Pass<'a> {
    deployment: &'a Deployment,
    queue: &'a Queue,
    options: &'a DeadLettersArgs,
    action: Action,
    /// The table of the records and of the parked messages.
    table: &'a str,
    /// The visibility timeout of the messages that the pass reads, in seconds.
    seconds: i32,
    /// The end of a pass with `--id` or `--stream`: after the visibility timeout, SQS delivers the
    /// unselected messages again.
    end: Option<Instant>,
    /// The messages that the pass has read, by their ids.
    seen: BTreeSet<String>,
    /// The ids of the finished messages.
    done: Vec<String>,
    failed: Vec<(String, anyhow::Error)>,
    /// The receipts of all other messages, which become visible again.
    receipts: Vec<String>,
    /// The groups with a failed message: a message of a stream must not overtake an earlier one.
    stopped_groups: BTreeSet<String>,
    /// The commits that the pass has redriven through the fanout.
    redriven: BTreeSet<(StreamId, u64)>,
    /// The number of messages about commits that the fanout quarantined again.
    came_back: usize,
    /// The number of empty responses of the queue in a row.
    empty: usize,
}

impl<'a> Pass<'a> {
    async fn new(
        deployment: &'a Deployment,
        queue: &'a Queue,
        options: &'a DeadLettersArgs,
        action: Action,
    ) -> Result<Self> {
        // The table comes first: without it, the tool could store no record.
        let table = records::table(deployment)?;
        let has_selection = !options.id.is_empty() || options.stream.is_some();
        let seconds = match queue.target {
            RedriveTarget::Fanout if action == Action::Redrive => THROUGH_THE_FANOUT,
            _ if has_selection && !options.parked => {
                pass_seconds(count_messages(deployment, queue).await?)
            }
            RedriveTarget::Queue(_) | RedriveTarget::Fanout => ACTING,
        };
        let length = Duration::from_secs(seconds.unsigned_abs().into());
        Ok(Self {
            deployment,
            queue,
            options,
            action,
            table,
            seconds,
            end: has_selection.then(|| Instant::now() + length),
            seen: BTreeSet::new(),
            done: Vec::new(),
            failed: Vec::new(),
            receipts: Vec::new(),
            stopped_groups: BTreeSet::new(),
            redriven: BTreeSet::new(),
            came_back: 0,
            empty: 0,
        })
    }

    fn uses_fanout(&self) -> bool {
        self.action == Action::Redrive && matches!(self.queue.target, RedriveTarget::Fanout)
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Whether the pass has read every message that the operator names.
    fn has_all_ids(&self) -> bool {
        self.options.stream.is_none()
            && !self.options.id.is_empty()
            && self.options.id.iter().all(|id| self.seen.contains(id))
    }

    /// Acts on the messages, page by page.
    async fn run(&mut self, source: &str) -> Result<()> {
        if self.options.parked {
            let page = parked_messages(self.deployment, self.table, &self.queue.id).await?;
            return self.act_on_page(page, source).await;
        }
        while self.empty < EMPTY && !self.is_over() && !self.has_all_ids() {
            let page = self.receive_page().await?;
            if self.uses_fanout() && !page.is_empty() {
                // Messages that the fanout quarantines again arrive after this page, so the queue
                // is read again.
                self.empty = 0;
            }
            self.act_on_page(page, source).await?;
        }
        Ok(())
    }

    /// Receives messages that the pass has not read.
    async fn receive_page(&mut self) -> Result<Vec<Message>> {
        let received = receive(self.deployment, self.queue, self.seconds).await?;
        // A message that SQS delivers again is a duplicate. It becomes visible again with its last
        // receipt.
        let (new, duplicates): (Vec<_>, Vec<_>) =
            received.into_iter().partition(|message| self.seen.insert(message.id.clone()));
        self.receipts.extend(duplicates.into_iter().filter_map(|message| message.receipt));
        self.empty = if new.is_empty() { self.empty + 1 } else { 0 };
        Ok(new)
    }

    /// Acts on the selected messages of a page, and stores a record of them.
    async fn act_on_page(&mut self, page: Vec<Message>, source: &str) -> Result<()> {
        let before = self.done.len();
        for message in page {
            self.act_on_message(message).await;
        }
        // A record for each page stays small, and a killed tool leaves the records of its pages.
        // Each discarded message has its own record.
        let ids = &self.done[before..];
        if self.action == Action::Discard || ids.is_empty() {
            return Ok(());
        }
        let detail = json!({ "queue": self.queue.id, "ids": ids });
        let what = format!("{}: {} of {source}", self.action.name(), ids.len());
        let why = self.options.write_args.why();
        records::store(
            self.deployment,
            self.table,
            Record { kind: "dead-letters", what, why, detail },
        )
        .await
    }

    /// Acts on a message if the operator selects it.
    async fn act_on_message(&mut self, message: Message) {
        let group = message.group.as_ref();
        if !self.options.selects(&message)
            || group.is_some_and(|group| self.stopped_groups.contains(group))
        {
            self.receipts.extend(message.receipt);
            return;
        }
        if self.uses_fanout() {
            // A commit that the fanout quarantines again arrives as a new message. That message
            // stays in the queue: otherwise the pass would not end.
            let commits = message.commits();
            if commits.iter().any(|commit| self.redriven.contains(commit)) {
                self.came_back += 1;
                self.receipts.extend(message.receipt);
                return;
            }
            self.redriven.extend(commits);
        }
        let result = match self.action {
            Action::Redrive => redrive(self.deployment, self.queue, &message).await,
            Action::Park => self.park(&message).await,
            Action::Discard => self.record_discard(&message).await,
        };
        let result = match result {
            Ok(()) => self.delete(&message).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => self.done.push(message.id),
            Err(error) => {
                self.stopped_groups.extend(message.group);
                self.receipts.extend(message.receipt);
                self.failed.push((message.id, error));
            }
        }
    }

    async fn park(&self, message: &Message) -> Result<()> {
        let Message { id, body, group, since, receipt: _, object: _ } = message;
        let queue = &self.queue.id;
        // The object of a batch expires.
        let commits = message.commits();
        let detail = json!({
            "queue": queue, "id": id, "group": group, "since": since, "commits": commits,
        });
        let parked = ParkedMessage { queue, id, detail, body };
        records::park(self.deployment, self.table, parked, self.options.write_args.why()).await
    }

    /// Stores a record of a message that the pass deletes.
    async fn record_discard(&self, message: &Message) -> Result<()> {
        let detail = json!({ "queue": self.queue.id, "id": message.id, "commits": message.commits(), "reason": message.reason() });
        let what = format!("{}: {}", self.action.name(), message.id);
        let why = self.options.write_args.why();
        records::store(
            self.deployment,
            self.table,
            Record { kind: "dead-letters", what, why, detail },
        )
        .await
    }

    /// Deletes a message from its queue, or from the parked ones.
    async fn delete(&self, message: &Message) -> Result<()> {
        let Some(receipt) = &message.receipt else {
            return records::unpark(self.deployment, self.table, &self.queue.id, &message.id).await;
        };
        let delete = self.deployment.sqs.delete_message().queue_url(&self.queue.url);
        delete.receipt_handle(receipt).send().await?;
        Ok(())
    }

    /// Returns the number of messages that the pass had no time to read.
    async fn count_unread(&self) -> Result<u64> {
        match self.is_over() && !self.has_all_ids() {
            true => sum_of_attributes(self.deployment, self.queue, &[VISIBLE]).await,
            false => Ok(0),
        }
    }

    /// Prints the outcome. Returns whether no selected message is left.
    async fn print_outcome(&self, unread: u64, out: Output) -> Result<bool> {
        for (id, error) in &self.failed {
            eprintln!("message `{id}` stays in its queue: {error:#}");
        }
        let not_found = self.options.id.iter().filter(|id| !self.done.contains(id)).count();
        // SQS does not deliver messages in flight to another tool, or to a killed one, nor the
        // messages behind them in their streams.
        let held = match self.options.parked {
            true => 0,
            false => sum_of_attributes(self.deployment, self.queue, &[NOT_VISIBLE]).await?,
        };
        let (failed, came_back) = (self.failed.len(), self.came_back);
        let row = json!({
            "done": self.action.name(), "queue": self.queue.id, "messages": self.done.len(), "failed": failed,
            "cameBack": came_back, "notFound": not_found, "held": held,
        });
        let fields = ["done", "queue", "messages", "failed", "cameBack", "notFound", "held"];
        out.rows(&fields, &[row]);
        let seconds = self.seconds;
        if held > 0 {
            out.note(&format!(
                "\n{held} messages are in flight to another consumer or a killed tool, for {seconds} seconds at most: run the command again then"
            ));
        }
        if unread > 0 {
            out.note(&format!(
                "\n{unread} messages were not read in a pass of {seconds} s: run the command again"
            ));
        }
        Ok(failed == 0 && came_back == 0 && not_found == 0 && held == 0 && unread == 0)
    }
}

/// Returns the seconds that one pass has for this number of messages.
fn pass_seconds(messages: u64) -> i32 {
    let seconds = (LOOKING.start() + messages / RATE).min(*LOOKING.end());
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// Redrives a message.
async fn redrive(deployment: &Deployment, queue: &Queue, message: &Message) -> Result<()> {
    match &queue.target {
        RedriveTarget::Queue(url) => {
            let send = deployment.sqs.send_message().queue_url(url).message_body(&message.body);
            // A FIFO queue that received this message in the last five minutes would drop it as a
            // duplicate, and the message would be lost.
            let id = message.group.as_ref().map(|_| format!("redrive-{}", uuid::Uuid::new_v4()));
            let send =
                send.set_message_group_id(message.group.clone()).set_message_deduplication_id(id);
            send.send().await?;
            Ok(())
        }
        RedriveTarget::Fanout => {
            let commits = message.commits();
            match &message.object {
                Some(Err(reason)) => bail!("{reason}"),
                Some(Ok(_)) | None if commits.is_empty() => {
                    bail!("the message names no commit: show it with --payloads")
                }
                Some(Ok(_)) | None => {}
            }
            send_records(deployment, "FanoutFunction", &commits).await
        }
    }
}

impl DeadLettersArgs {
    /// Returns the action that the operator chooses.
    ///
    /// # Errors
    /// When the operator chooses no action, or parks all messages of a queue.
    fn action(&self) -> Result<Action> {
        match (self.redrive, self.park, self.discard) {
            (true, _, _) => Ok(Action::Redrive),
            (_, true, _) if self.id.is_empty() && self.stream.is_none() => {
                bail!("choose the messages to park: --id or --stream")
            }
            (_, true, _) => Ok(Action::Park),
            (_, _, true) => Ok(Action::Discard),
            (false, false, false) => bail!("choose an action: --redrive, --park or --discard"),
        }
    }

    /// Returns the selected messages, as text.
    fn selection(&self) -> String {
        match (self.id.as_slice(), &self.stream) {
            ([], None) => "all messages".to_owned(),
            ([], Some(stream)) => format!("the messages about {stream}"),
            (ids, _) => format!("{} messages", ids.len()),
        }
    }

    /// Whether the operator selects the message.
    fn selects(&self, message: &Message) -> bool {
        (self.id.is_empty() || self.id.contains(&message.id))
            && self.stream.as_ref().is_none_or(|stream| {
                message.commits().iter().any(|(named, _)| named.as_str() == stream)
            })
    }
}

impl Message {
    fn from_sqs(message: aws_sdk_sqs::types::Message) -> Self {
        let attributes = message.attributes.unwrap_or_default();
        let since = attributes.get(&Attribute::SentTimestamp).and_then(|time| time.parse().ok());
        Self {
            id: message.message_id.unwrap_or_default(),
            body: message.body.unwrap_or_default(),
            group: attributes.get(&Attribute::MessageGroupId).cloned(),
            since: since.and_then(|milliseconds| Timestamp::from_millisecond(milliseconds).ok()),
            receipt: message.receipt_handle,
            object: None,
        }
    }

    /// Reads the object that the message names, if it names one.
    async fn with_object(mut self, deployment: &Deployment) -> Self {
        let body = self.json();
        let detail = &body["detail"];
        let named = (detail["bucket"]["name"].as_str(), detail["object"]["key"].as_str());
        let mut buckets = deployment.resources_of_type("AWS::S3::Bucket");
        let mut is_own = |bucket| buckets.any(|it| it == (FAILURES, bucket));
        if let (Some(bucket), Some(key)) = named
            && body["source"] == "aws.s3"
            && is_own(bucket)
        {
            let read = read_batch(deployment, bucket, key).await;
            let reason =
                |error| format!("the object `{key}` of `{bucket}` cannot be read: {error:#}");
            self.object = Some(read.map_err(reason));
        }
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// Returns the commits that the message is about.
    fn commits(&self) -> Vec<(StreamId, u64)> {
        if let Some(object) = &self.object {
            return object.as_ref().map_or(Vec::new(), |batch| batch.commits.clone());
        }
        let body = self.json();
        let place = |stream: &Value, version: &Value| {
            let stream = StreamId::try_from(stream.as_str()?.to_owned()).ok()?;
            Some((stream, version.as_u64()?))
        };
        let state =
            |entry: &Value| place(&entry["stream"], &entry["aggregate"]["lastKnownVersion"]);
        let invoked =
            if body["requestPayload"].is_null() { &body } else { &body["requestPayload"] };
        let states = invoked["states"].as_array().into_iter().flatten().chain([&invoked["detail"]]);
        place(&body["stream"], &body["version"])
            .into_iter()
            .chain(states.filter_map(state))
            .collect()
    }

    /// Returns the reason why the message is a dead letter. It contains no payload: functions leave
    /// values out of their errors (rule 14).
    fn reason(&self) -> String {
        match &self.object {
            Some(Ok(batch)) => return batch.reason.clone(),
            Some(Err(reason)) => return reason.clone(),
            None => {}
        }
        let body = self.json();
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let error = text(&body["responsePayload"]["errorMessage"]);
        let condition = text(&body["requestContext"]["condition"]);
        text(&body["reason"])
            .or(error)
            .or(condition)
            .unwrap_or_else(|| "every attempt failed".to_owned())
    }

    fn row(&self, queue: &str, payloads: bool) -> Value {
        let commits = self.commits();
        let commits: Vec<_> =
            commits.iter().map(|(stream, version)| format!("{stream}@{version}")).collect();
        let body = if payloads { self.json() } else { Value::Null };
        json!({
            "queue": queue, "id": self.id, "commits": commits.join(" "), "since": self.since, "reason": self.reason(), "body": body,
        })
    }
}

/// Reads a batch of records that Lambda gave up from its object.
///
/// Source: Lambda's developer guide, "Retaining discarded batches".
async fn read_batch(deployment: &Deployment, bucket: &str, key: &str) -> Result<FailedBatch> {
    let object = S3Bodies::new(&deployment.sdk, bucket).get(key).await?;
    let object: Value = serde_json::from_slice(&object.context("it does not exist")?)?;
    let payload: Value = serde_json::from_str(object["payload"].as_str().unwrap_or_default())?;
    let records = payload["Records"].as_array().context("it has no records")?.iter();
    let records = records.map(|record| match record["kinesis"]["data"].as_str() {
        Some(data) => Ok(serde_json::from_slice(&BASE64_STANDARD.decode(data)?)?),
        None => Ok(record.clone()),
    });
    let records: Vec<Value> = records.collect::<Result<_>>()?;
    // A changed or removed commit is no new one, and an archive changes many.
    let (inserted, changed): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| record["eventName"] == "INSERT");
    let commit = |record: &Value| {
        let keys = &record["dynamodb"]["Keys"];
        let stream = StreamId::try_from(keys["stream"]["S"].as_str()?.to_owned()).ok()?;
        Some((stream, keys["version"]["N"].as_str()?.parse().ok()?))
    };
    let commits: Option<Vec<_>> = inserted.into_iter().map(commit).collect();
    let commits = commits.context("a record names no commit: run `ledger redeliver --since`")?;
    let request = &object["requestContext"];
    let function = request["functionArn"].as_str().and_then(|arn| arn.split(':').nth(6));
    let function = function.map(|name| format!(" of {name}")).unwrap_or_default();
    let reason = request["condition"].as_str().unwrap_or("every attempt failed");
    let others = match changed.len() {
        0 => String::new(),
        changed => format!("; {changed} records of changed or removed commits"),
    };
    Ok(FailedBatch { commits, reason: format!("{reason}{function}{others}") })
}

/// Returns the dead-letter queues of the deployed template, with the sources of their messages.
async fn dead_letter_queues(deployment: &Deployment) -> Result<Vec<Queue>> {
    let template = deployed::template(deployment).await?;
    let urls = deployment.queues();
    let mut found = Vec::new();
    let mut sources = BTreeMap::new();
    for (id, queue) in resources(&template, &["AWS::SQS::Queue"]) {
        let target = logical_id(&queue["Properties"]["RedrivePolicy"]["deadLetterTargetArn"]);
        sources.extend(target.map(|target| (target.to_owned(), id.to_owned())));
    }
    for (id, _) in
        resources(&template, &["AWS::SQS::Queue"]).filter(|(id, _)| id.ends_with("DeadLetterQueue"))
    {
        let Some(url) = urls.get(id).cloned() else {
            eprintln!("`{id}` is not deployed; its messages are not counted");
            continue;
        };
        let target = match sources.get(id) {
            Some(source) => RedriveTarget::Queue(
                urls.get(source).cloned().with_context(|| format!("`{source}` is not deployed"))?,
            ),
            None => RedriveTarget::Fanout,
        };
        found.push(Queue { id: id.to_owned(), url, target });
    }
    Ok(found)
}

/// Returns the number of messages, including messages in flight.
async fn count_messages(deployment: &Deployment, queue: &Queue) -> Result<u64> {
    sum_of_attributes(deployment, queue, &[VISIBLE, NOT_VISIBLE]).await
}

/// The attribute with the number of messages that SQS can deliver.
const VISIBLE: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessages;
/// The attribute with the number of messages in flight.
const NOT_VISIBLE: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;

/// Returns the sum of these numbers of messages.
async fn sum_of_attributes(
    deployment: &Deployment,
    queue: &Queue,
    names: &[QueueAttributeName],
) -> Result<u64> {
    let get = deployment.sqs.get_queue_attributes().queue_url(&queue.url);
    let attributes =
        get.attribute_names(QueueAttributeName::All).send().await?.attributes.unwrap_or_default();
    Ok(names.iter().filter_map(|name| attributes.get(name)?.parse::<u64>().ok()).sum())
}

async fn receive(deployment: &Deployment, queue: &Queue, seconds: i32) -> Result<Vec<Message>> {
    let receive =
        deployment.sqs.receive_message().queue_url(&queue.url).visibility_timeout(seconds);
    let receive = receive.max_number_of_messages(AT_ONCE).wait_time_seconds(1);
    let received = receive.message_system_attribute_names(Attribute::All).send().await?;
    let messages = received.messages.unwrap_or_default().into_iter().map(Message::from_sqs);
    Ok(join_all(messages.map(|message| message.with_object(deployment))).await)
}

/// Reads all messages that the queue delivers. A FIFO queue delivers at most ten messages of a
/// stream, until the first of them is deleted.
async fn read_all(
    deployment: &Deployment,
    queue: &Queue,
    messages: u64,
    options: &DeadLettersArgs,
) -> Result<Vec<Summary>> {
    let mut found = BTreeMap::new();
    let mut empty = 0;
    let seconds = pass_seconds(messages);
    let until = Instant::now() + Duration::from_secs(seconds.unsigned_abs().into());
    while empty < EMPTY {
        if Instant::now() >= until {
            eprintln!(
                "{}: {} of some {messages} messages were read in {seconds} seconds",
                queue.id,
                found.len()
            );
            break;
        }
        let page = receive(deployment, queue, seconds).await?;
        let before = found.len();
        found.extend(page.into_iter().map(|message| {
            let row = options.selects(&message).then(|| message.row(&queue.id, options.payloads));
            let summary = Summary {
                since: message.since,
                reason: message.reason(),
                receipt: message.receipt,
                row,
            };
            ((message.since, message.id), summary)
        }));
        empty = if found.len() == before { empty + 1 } else { 0 };
    }
    Ok(found.into_values().collect())
}

/// Makes messages visible to others at once. If that fails, SQS delivers them after the visibility
/// timeout.
async fn make_visible(
    deployment: &Deployment,
    queue: &Queue,
    receipts: impl Iterator<Item = String>,
) {
    let entry = |(place, receipt): (usize, String)| {
        let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(place.to_string());
        entry.receipt_handle(receipt).visibility_timeout(0).build().ok()
    };
    let entries: Vec<_> = receipts.enumerate().filter_map(entry).collect();
    let changes =
        stream::iter(entries.chunks(usize::try_from(AT_ONCE).unwrap_or(10))).map(async |entries| {
            let change = deployment.sqs.change_message_visibility_batch().queue_url(&queue.url);
            let _ = change.set_entries(Some(entries.to_vec())).send().await;
        });
    changes.buffer_unordered(CALLS).collect::<()>().await;
}

/// Returns the parked messages of a queue.
async fn parked_messages(
    deployment: &Deployment,
    table: &str,
    queue: &str,
) -> Result<Vec<Message>> {
    let text = |item: &Value, name: &str| item[name].as_str().map(ToOwned::to_owned);
    let message = |item: Value| Message {
        id: text(&item, "id").unwrap_or_default(),
        body: text(&item, "body").unwrap_or_default(),
        group: text(&item, "group"),
        since: text(&item, "since").and_then(|since| since.parse().ok()),
        receipt: None,
        object: None,
    };
    let items =
        records::parked_messages(deployment, table).await?.into_iter().map(|(item, _)| item);
    let messages = items.filter(|item| item["queue"] == queue).map(async |item| {
        let commits = serde_json::from_value(item["commits"].clone()).unwrap_or_default();
        let mut message = message(item).with_object(deployment).await;
        if let Some(Err(reason)) = message.object {
            message.object = Some(Ok(FailedBatch { commits, reason }));
        }
        message
    });
    Ok(stream::iter(messages).buffered(CALLS).collect().await)
}

async fn show_parked(
    deployment: &Deployment,
    options: &DeadLettersArgs,
    out: Output,
) -> Result<()> {
    let table = records::table(deployment)?;
    let is_wanted = |item: &Value| {
        let queue = item["queue"].as_str().unwrap_or_default();
        options.queue.as_ref().is_none_or(|wanted| queue.starts_with(wanted.as_str()))
    };
    let mut rows = Vec::new();
    for (item, Record { kind: _, what: _, why, detail }) in
        records::parked_messages(deployment, table).await?
    {
        if is_wanted(&item) {
            let body = if options.payloads { item["body"].clone() } else { Value::Null };
            rows.push(json!({
                "queue": item["queue"], "id": item["id"], "at": detail["at"], "who": detail["who"], "why": why, "body": body,
            }));
        }
    }
    let fields = ["queue", "id", "at", "who", "why", "body"];
    out.rows(if options.payloads { &fields[..] } else { &fields[..5] }, &rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_lasts_longer_for_more_messages_and_900_seconds_at_most() {
        assert_eq!([0, 500, 33_000, 1_000_000].map(pass_seconds), [60, 70, 720, 900]);
    }
}
