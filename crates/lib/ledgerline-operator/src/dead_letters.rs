//! Dead letters: messages that a consumer gave up, with their sources. An operator redrives, parks
//! or discards them.
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
    ChangeMessageVisibilityBatchRequestEntry, Message, MessageSystemAttributeName as Attribute,
    QueueAttributeName,
};
use clap::Args;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use ledgerline::StreamId;
use ledgerline_sam::grants::{referred, resources};
use serde_json::{Value, json};

use crate::{
    Out, Writing, deployed,
    deployment::Deployment,
    records::{self, ParkedMessage, Record},
    redeliver::hand_over,
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
/// The seconds by which the clocks of writers may differ from the clock of the table's stream.
const AROUND: i64 = 60;

/// The options of `ledger dead-letters`.
#[derive(Debug, Args)]
pub(crate) struct Options {
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
    writing: Writing,
}

/// A dead-letter queue.
#[derive(Debug, Clone)]
struct Queue {
    id: String,
    url: String,
    goes: Goes,
}

/// The source to which the messages of a queue are redriven.
#[derive(Debug, Clone)]
enum Goes {
    /// The queue that they came from.
    ToQueue(String),
    /// The fanout, which gets the records of the commits that the messages name.
    ToFanout,
}

/// A message of a dead-letter queue, or a parked one.
#[derive(Debug, Clone)]
struct Letter {
    id: String,
    body: String,
    group: Option<String>,
    since: Option<Timestamp>,
    /// The handle that deletes it from its queue; `None` if it is parked.
    receipt: Option<String>,
}

/// The facts about a message that a pass read, without its body. A queue may have more messages
/// than fit into memory with their bodies.
struct Looked {
    since: Option<Timestamp>,
    reason: String,
    receipt: Option<String>,
    /// The row to print, if the operator selects the message.
    row: Option<Value>,
}

/// Runs the command. Returns whether no selected message is left; without `--write`, whether there
/// are no dead letters.
pub(crate) async fn run(deployment: &Deployment, options: &Options, out: Out) -> Result<bool> {
    let queues = queues(deployment).await?;
    let wanted: Vec<_> = match &options.queue {
        None => queues,
        Some(name) => {
            let one: Vec<_> =
                queues.iter().filter(|queue| queue.id.starts_with(name.as_str())).collect();
            match one.as_slice() {
                [one] => vec![(*one).clone()],
                _ => {
                    let known: Vec<_> = queues.iter().map(|queue| queue.id.as_str()).collect();
                    bail!("`{name}` is not one queue; choose one of: {}", known.join(", "))
                }
            }
        }
    };
    if let (Some(queue), true) = (wanted.first(), options.writing.write) {
        return act(deployment, queue, options, out).await;
    }
    if options.parked {
        return show_parked(deployment, options, out).await.map(|()| true);
    }
    let mut counts = Vec::new();
    let mut letters = Vec::new();
    for queue in &wanted {
        let count = count(deployment, queue).await?;
        if count == 0 && options.queue.is_none() {
            continue;
        }
        let found = look(deployment, queue, count, options).await?;
        give_back(deployment, queue, found.iter().filter_map(|looked| looked.receipt.clone()))
            .await;
        let mut reasons = BTreeMap::<String, usize>::new();
        found.iter().for_each(|looked| *reasons.entry(looked.reason.clone()).or_default() += 1);
        let reasons: Vec<_> =
            reasons.iter().map(|(reason, count)| format!("{count}: {reason}")).collect();
        let oldest = found.iter().filter_map(|looked| looked.since).min();
        counts.push(json!({
            "queue": queue.id, "messages": count.max(found.len() as u64), "oldest": oldest, "reasons": reasons.join("; "),
        }));
        letters.extend(found.into_iter().filter_map(|looked| looked.row));
    }
    let is_empty = counts.iter().all(|count| count["messages"] == 0);
    if is_empty {
        out.note("there are no dead letters");
    } else {
        out.rows(&["queue", "messages", "oldest", "reasons"], &counts);
    }
    if options.queue.is_some() || out.json {
        out.note("");
        let shown = if out.json { letters.len() } else { SHOWN };
        let fields = ["id", "commits", "since", "reason", "body"];
        let fields = if options.payloads { &fields[..] } else { &fields[..4] };
        out.rows(fields, &letters[..shown.min(letters.len())]);
    }
    Ok(is_empty)
}

/// Redrives, parks or discards messages.
async fn act(deployment: &Deployment, queue: &Queue, options: &Options, out: Out) -> Result<bool> {
    if !options.redrive && !options.park && !options.discard {
        bail!("choose an action: --redrive, --park or --discard");
    }
    if options.park && options.id.is_empty() && options.stream.is_none() {
        bail!("choose the messages to park: --id or --stream");
    }
    // The records of earlier versions have the second text, so those of this one have it too.
    let (action, what) = match (options.redrive, options.park) {
        (true, _) => ("redrive", "send back"),
        (_, true) => ("park", "park"),
        (false, false) => ("discard", "throw away"),
    };
    let which = match (options.id.as_slice(), &options.stream) {
        ([], None) => "all messages".to_owned(),
        ([], Some(stream)) => format!("the messages about {stream}"),
        (ids, _) => format!("{} messages", ids.len()),
    };
    let from =
        if options.parked { format!("those parked of {}", queue.id) } else { queue.id.clone() };
    if !options.writing.is_agreed(&format!("{action} {which} of {from}?"))? {
        return Ok(false);
    }
    // The table comes first: without it, the tool could store no record.
    let kept = records::table(deployment)?;
    // The ids of the finished messages, the failures, and the receipts of all other messages.
    let (mut done, mut failed) = (Vec::new(), Vec::<(String, anyhow::Error)>::new());
    let mut others = Vec::new();
    let mut seen = BTreeSet::new();
    let is_through_the_fanout = options.redrive && matches!(queue.goes, Goes::ToFanout);
    let (mut empty, mut parked) =
        (0, if options.parked { parked(deployment, kept, &queue.id).await? } else { Vec::new() });
    let is_for_some = !options.id.is_empty() || options.stream.is_some();
    let seconds = match (is_through_the_fanout, is_for_some && !options.parked) {
        (true, _) => THROUGH_THE_FANOUT,
        (false, true) => pass(count(deployment, queue).await?),
        (false, false) => ACTING,
    };
    // With `--id` or `--stream`, the pass ends with the visibility timeout: after that, SQS
    // delivers the unselected messages again.
    let until =
        is_for_some.then(|| Instant::now() + Duration::from_secs(seconds.unsigned_abs().into()));
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    let is_found = |seen: &BTreeSet<String>| {
        options.stream.is_none()
            && !options.id.is_empty()
            && options.id.iter().all(|id| seen.contains(id))
    };
    // A message of a stream must not overtake an earlier one that failed.
    let mut stopped = BTreeSet::new();
    // A commit that the fanout quarantines again arrives as a new message. That message stays in
    // the queue: otherwise the loop would not end.
    let mut came_back = 0;
    let mut through_the_fanout = BTreeSet::new();
    let looped: Result<()> = async {
        while empty < EMPTY && !is_over() && !is_found(&seen) {
            let mut page = std::mem::take(&mut parked);
            while !options.parked && empty < EMPTY && !is_over() {
                let received = receive(deployment, queue, seconds).await?;
                // A message that SQS delivers again is a duplicate. It becomes visible again with
                // its last receipt.
                let (new, again): (Vec<_>, Vec<_>) =
                    received.into_iter().partition(|letter| seen.insert(letter.id.clone()));
                others.extend(again.into_iter().filter_map(|letter| letter.receipt));
                empty = if new.is_empty() { empty + 1 } else { 0 };
                page.extend(new);
                // A redrive through the fanout reads all messages first. Some of them name times
                // and not commits, and one read of the log finds the commits of all of them.
                if !is_through_the_fanout {
                    break;
                }
            }
            if options.parked {
                empty = EMPTY;
            } else if is_through_the_fanout && !page.is_empty() {
                // Messages that the fanout quarantines again arrive after this page, so the queue
                // is read again.
                empty = 0;
            }
            let in_the_log = match is_through_the_fanout {
                true => looked_up(deployment, &page).await,
                false => Ok(BTreeMap::new()),
            };
            let in_the_log = match in_the_log {
                Ok(found) => found,
                Err(error) => {
                    others.extend(page.into_iter().filter_map(|letter| letter.receipt));
                    return Err(error);
                }
            };
            let before = done.len();
            for letter in page {
                let is_stopped = letter.group.as_ref().is_some_and(|group| stopped.contains(group));
                if !options.takes(&letter) || is_stopped {
                    others.extend(letter.receipt);
                    continue;
                }
                if is_through_the_fanout {
                    let commits = letter.commits();
                    if commits.iter().any(|commit| through_the_fanout.contains(commit)) {
                        came_back += 1;
                        others.extend(letter.receipt);
                        continue;
                    }
                    through_the_fanout.extend(commits);
                }
                match one(deployment, queue, &letter, options, kept, in_the_log.get(&letter.id))
                    .await
                {
                    Ok(()) => done.push(letter.id),
                    Err(error) => {
                        stopped.extend(letter.group.clone());
                        others.extend(letter.receipt);
                        failed.push((letter.id, error));
                    }
                }
            }
            // A record for each page stays small, and a killed tool leaves the records of its
            // pages. Each discarded message has its own record.
            if !options.discard && done.len() > before {
                let ids = &done[before..];
                let detail = json!({ "queue": queue.id, "ids": ids });
                let why = options.writing.why();
                let what = format!("{what}: {} of {from}", ids.len());
                records::keep(deployment, kept, Record { kind: "dead-letters", what, why, detail })
                    .await?;
            }
        }
        Ok(())
    }
    .await;
    let unseen = match is_over() && !is_found(&seen) {
        true => number(deployment, queue, &[QueueAttributeName::ApproximateNumberOfMessages]).await,
        false => Ok(0),
    };
    // Even after a failure, others need not wait for the visibility timeout of messages that were
    // only read.
    give_back(deployment, queue, others.into_iter()).await;
    looped?;
    let unseen = unseen?;
    for (id, error) in &failed {
        eprintln!("message `{id}` stays in its queue: {error:#}");
    }
    let ids: BTreeSet<_> = done.iter().collect();
    let never: Vec<_> = options.id.iter().filter(|id| !ids.contains(id)).collect();
    // SQS does not deliver messages in flight to another tool, or to a killed one, nor the messages
    // behind them in their streams.
    let held = if options.parked { 0 } else { number(deployment, queue, &[NOT_VISIBLE]).await? };
    let row = json!({ "done": action, "queue": queue.id, "messages": done.len(), "failed": failed.len(), "cameBack": came_back, "notFound": never.len(), "held": held });
    out.rows(&["done", "queue", "messages", "failed", "cameBack", "notFound", "held"], &[row]);
    if held > 0 {
        out.note(&format!(
            "\n{held} messages are in flight to another consumer or a killed tool, for {seconds} seconds at most: run the command again then"
        ));
    }
    if unseen > 0 {
        out.note(&format!(
            "\n{unseen} messages were not read in a pass of {seconds} s: run the command again"
        ));
    }
    Ok(failed.is_empty() && came_back == 0 && never.is_empty() && held == 0 && unseen == 0)
}

/// Returns the seconds that one pass has for this number of messages.
fn pass(messages: u64) -> i32 {
    let seconds = (LOOKING.start() + messages / RATE).min(*LOOKING.end());
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// Returns the commits of the messages that name times: batches that the fanout gave up. It reads
/// the log once for all of them.
async fn looked_up(
    deployment: &Deployment,
    letters: &[Letter],
) -> Result<BTreeMap<String, BTreeMap<StreamId, (u64, u64)>>> {
    let batches: Vec<_> =
        letters.iter().filter_map(|letter| Some((letter.id.clone(), letter.times()?))).collect();
    if batches.is_empty() {
        return Ok(BTreeMap::new());
    }
    let times: Vec<_> = batches.iter().map(|(_, (from, to))| *from..=*to).collect();
    let found = deployment.log()?.between_each(&times).await?;
    Ok(batches.into_iter().map(|(id, _)| id).zip(found).collect())
}

/// Redrives, parks or discards one message, and then deletes it.
async fn one(
    deployment: &Deployment,
    queue: &Queue,
    letter: &Letter,
    options: &Options,
    kept: &str,
    in_the_log: Option<&BTreeMap<StreamId, (u64, u64)>>,
) -> Result<()> {
    let why = options.writing.why();
    if options.redrive {
        redrive(deployment, queue, letter, in_the_log).await?;
    } else if options.park {
        let item = json!({ "queue": queue.id, "id": letter.id, "group": letter.group, "since": letter.since });
        let message =
            ParkedMessage { queue: &queue.id, id: &letter.id, detail: item, body: &letter.body };
        records::park(deployment, kept, message, why).await?;
    } else {
        let detail = json!({ "queue": queue.id, "id": letter.id, "commits": letter.commits(), "reason": letter.reason() });
        let what = format!("throw away: {}", letter.id);
        records::keep(deployment, kept, Record { kind: "dead-letters", what, why, detail }).await?;
    }
    match &letter.receipt {
        Some(receipt) => {
            deployment
                .sqs
                .delete_message()
                .queue_url(&queue.url)
                .receipt_handle(receipt)
                .send()
                .await?;
        }
        None => records::unpark(deployment, kept, &queue.id, &letter.id).await?,
    }
    Ok(())
}

/// Redrives a message. `in_the_log` has its commits, if the message names times.
async fn redrive(
    deployment: &Deployment,
    queue: &Queue,
    letter: &Letter,
    in_the_log: Option<&BTreeMap<StreamId, (u64, u64)>>,
) -> Result<()> {
    match &queue.goes {
        Goes::ToQueue(url) => {
            let send = deployment.sqs.send_message().queue_url(url).message_body(&letter.body);
            // A FIFO queue that received this message in the last five minutes would drop it as a
            // duplicate, and the message would be lost.
            let id = letter.group.as_ref().map(|_| format!("sent-back-{}", uuid::Uuid::new_v4()));
            let send =
                send.set_message_group_id(letter.group.clone()).set_message_deduplication_id(id);
            send.send().await?;
            Ok(())
        }
        Goes::ToFanout => {
            let versions = match in_the_log {
                Some(streams) => {
                    let all = streams.iter();
                    all.flat_map(|(stream, (first, last))| {
                        (*first..=*last).map(|version| (stream.clone(), version))
                    })
                    .collect()
                }
                None => letter.commits(),
            };
            if in_the_log.is_none() && versions.is_empty() {
                bail!("the message names no commit: show it with --payloads");
            }
            hand_over(deployment, "FanoutFunction", &versions).await
        }
    }
}

impl Options {
    /// Whether the operator selects the message.
    fn takes(&self, letter: &Letter) -> bool {
        (self.id.is_empty() || self.id.contains(&letter.id))
            && self
                .stream
                .as_ref()
                .is_none_or(|stream| letter.commits().iter().any(|(of, _)| of.as_str() == stream))
    }
}

impl Letter {
    fn of(message: Message) -> Self {
        let attributes = message.attributes.unwrap_or_default();
        let since = attributes.get(&Attribute::SentTimestamp).and_then(|time| time.parse().ok());
        Self {
            id: message.message_id.unwrap_or_default(),
            body: message.body.unwrap_or_default(),
            group: attributes.get(&Attribute::MessageGroupId).cloned(),
            since: since.and_then(|milliseconds| Timestamp::from_millisecond(milliseconds).ok()),
            receipt: message.receipt_handle,
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// Returns the commits that the message is about.
    fn commits(&self) -> Vec<(StreamId, u64)> {
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

    /// Returns the times of the first and the last record of a batch that the fanout gave up. They
    /// have a margin for the clocks of writers.
    fn times(&self) -> Option<(Timestamp, Timestamp)> {
        let body = self.json();
        let batch = &body["DDBStreamBatchInfo"];
        let time = |name: &str| batch[name].as_str()?.parse::<Timestamp>().ok();
        let around = jiff::SignedDuration::from_secs(AROUND);
        Some((
            time("approximateArrivalOfFirstRecord")? - around,
            time("approximateArrivalOfLastRecord")? + around,
        ))
    }

    /// Returns the reason why the message is a dead letter. It contains no payload: functions leave
    /// values out of their errors (rule 14).
    fn reason(&self) -> String {
        let body = self.json();
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let error = text(&body["responsePayload"]["errorMessage"]);
        let condition = text(&body["requestContext"]["condition"]);
        text(&body["reason"])
            .or(error)
            .or(condition)
            .unwrap_or_else(|| "it failed each time that it was tried".to_owned())
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

/// Returns the dead-letter queues of the deployed template, with the sources of their messages.
async fn queues(deployment: &Deployment) -> Result<Vec<Queue>> {
    let template = deployed::template(deployment).await?;
    let urls = deployment.queues();
    let url = |id: &str| urls.get(id).cloned();
    let mut found = Vec::new();
    let mut sources = BTreeMap::new();
    for (id, queue) in resources(&template, &["AWS::SQS::Queue"]) {
        let target = referred(&queue["Properties"]["RedrivePolicy"]["deadLetterTargetArn"]);
        sources.extend(target.map(|target| (target.to_owned(), id.to_owned())));
    }
    for (id, _) in
        resources(&template, &["AWS::SQS::Queue"]).filter(|(id, _)| id.ends_with("DeadLetterQueue"))
    {
        let Some(url_of_it) = url(id) else {
            eprintln!("`{id}` is not deployed; its messages are not counted");
            continue;
        };
        let goes = match sources.get(id) {
            Some(source) => {
                Goes::ToQueue(url(source).with_context(|| format!("`{source}` is not deployed"))?)
            }
            None => Goes::ToFanout,
        };
        found.push(Queue { id: id.to_owned(), url: url_of_it, goes });
    }
    Ok(found)
}

/// Returns the number of messages, including messages in flight.
async fn count(deployment: &Deployment, queue: &Queue) -> Result<u64> {
    number(deployment, queue, &[QueueAttributeName::ApproximateNumberOfMessages, NOT_VISIBLE]).await
}

/// The attribute with the number of messages in flight.
const NOT_VISIBLE: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;

/// Returns the sum of these numbers of messages.
async fn number(deployment: &Deployment, queue: &Queue, of: &[QueueAttributeName]) -> Result<u64> {
    let get = deployment.sqs.get_queue_attributes().queue_url(&queue.url);
    let attributes =
        get.attribute_names(QueueAttributeName::All).send().await?.attributes.unwrap_or_default();
    Ok(of.iter().filter_map(|name| attributes.get(name)?.parse::<u64>().ok()).sum())
}

async fn receive(deployment: &Deployment, queue: &Queue, seconds: i32) -> Result<Vec<Letter>> {
    let receive =
        deployment.sqs.receive_message().queue_url(&queue.url).visibility_timeout(seconds);
    let receive = receive.max_number_of_messages(AT_ONCE).wait_time_seconds(1);
    let received = receive.message_system_attribute_names(Attribute::All).send().await?;
    Ok(received.messages.unwrap_or_default().into_iter().map(Letter::of).collect())
}

/// Reads all messages that the queue delivers. A FIFO queue delivers at most ten messages of a
/// stream, until the first of them is deleted.
async fn look(
    deployment: &Deployment,
    queue: &Queue,
    messages: u64,
    options: &Options,
) -> Result<Vec<Looked>> {
    let mut found = BTreeMap::new();
    let mut empty = 0;
    let seconds = pass(messages);
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
        found.extend(page.into_iter().map(|letter| {
            let row = options.takes(&letter).then(|| letter.row(&queue.id, options.payloads));
            let looked = Looked {
                since: letter.since,
                reason: letter.reason(),
                receipt: letter.receipt,
                row,
            };
            ((letter.since, letter.id), looked)
        }));
        empty = if found.len() == before { empty + 1 } else { 0 };
    }
    Ok(found.into_values().collect())
}

/// Makes messages visible to others at once. If that fails, SQS delivers them after the visibility
/// timeout.
async fn give_back(deployment: &Deployment, queue: &Queue, receipts: impl Iterator<Item = String>) {
    let entry = |(place, receipt): (usize, String)| {
        let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(place.to_string());
        entry.receipt_handle(receipt).visibility_timeout(0).build().ok()
    };
    let entries: Vec<_> = receipts.enumerate().filter_map(entry).collect();
    let give_back =
        stream::iter(entries.chunks(usize::try_from(AT_ONCE).unwrap_or(10))).map(async |entries| {
            let change = deployment.sqs.change_message_visibility_batch().queue_url(&queue.url);
            let _ = change.set_entries(Some(entries.to_vec())).send().await;
        });
    give_back.buffer_unordered(CALLS).collect::<()>().await;
}

/// Returns the parked messages of a queue.
async fn parked(deployment: &Deployment, kept: &str, queue: &str) -> Result<Vec<Letter>> {
    let text = |item: &Value, name: &str| item[name].as_str().map(ToOwned::to_owned);
    let letter = |item: Value| Letter {
        id: text(&item, "id").unwrap_or_default(),
        body: text(&item, "body").unwrap_or_default(),
        group: text(&item, "group"),
        since: text(&item, "since").and_then(|since| since.parse().ok()),
        receipt: None,
    };
    let items = records::parked(deployment, kept).await?.into_iter().map(|(item, _)| item);
    Ok(items.filter(|item| item["queue"] == queue).map(letter).collect())
}

async fn show_parked(deployment: &Deployment, options: &Options, out: Out) -> Result<()> {
    let kept = records::table(deployment)?;
    let is_wanted = |item: &Value| {
        let queue = item["queue"].as_str().unwrap_or_default();
        options.queue.as_ref().is_none_or(|wanted| queue.starts_with(wanted.as_str()))
    };
    let mut rows = Vec::new();
    for (item, Record { kind: _, what: _, why, detail }) in
        records::parked(deployment, kept).await?
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
        assert_eq!([pass(0), pass(500), pass(33_000), pass(1_000_000)], [60, 70, 720, 900]);
    }
}
