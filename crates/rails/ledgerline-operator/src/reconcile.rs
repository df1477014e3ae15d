//! The heads of all streams against everything that is made of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use aws_sdk_lambda::{primitives::Blob, types::InvocationType};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Commit, EventStore, StreamId,
    all::{Entry, segments},
};
use ledgerline_dynamodb::Head;
use ledgerline_local::wiring::Follows;
use serde_json::{Value, json};

use crate::{
    Out, Stack, Writing,
    deployment::Deployment,
    followers::{Follower, followers, newest},
    records::{self, Record},
};

/// The number of streams that are looked at, or mended, at once.
const AT_ONCE: usize = 32;
/// The most streams of a kind that are printed for people.
const SHOWN: usize = 20;
/// The longest name of a group of a FIFO queue. The fanout gives longer streams a group of another name.
const MAX_GROUP: usize = 128;
/// The name of the order of everything among what follows the log.
const ORDER: &str = "$all";

/// Something that lacks commits of a stream, or has more than the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Logical id of the function, or `$all`.
    who: String,
    kind: Option<Follows>,
    stream: StreamId,
    /// The last version in the log.
    head: u64,
    /// The last one there.
    found: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    missing: Vec<Difference>,
    ahead: Vec<Difference>,
    /// Views that show nothing of old streams: they forgot them, and their tombstones are gone, or they never heard of them.
    forgotten: Vec<Difference>,
    /// Streams with a hole in the log, each with the number of versions that are missing.
    holes: BTreeMap<StreamId, u64>,
    /// The URL of the queue of each function behind one, by its logical id.
    queues: BTreeMap<String, String>,
    /// What `$all` has of the streams that it lacks something of.
    seen: BTreeMap<StreamId, Seen>,
}

impl Found {
    pub(crate) fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.ahead.is_empty() && self.holes.is_empty()
    }
}

/// What is missing to whom, in words.
fn counted(wanted: &[&Difference]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    wanted.iter().for_each(|missing| *counts.entry(&missing.who).or_default() += 1);
    let counts: Vec<_> = counts.iter().map(|(who, count)| format!("{count} to {who}")).collect();
    counts.join(", ")
}

/// Compares, and prints what was found.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    (since, only): (Option<Timestamp>, &[String]),
    younger: u64,
    out: Out,
) -> Result<Found> {
    // Before anything is read: what is committed from now on is too young.
    let now = Timestamp::now();
    let (young, old) = (now - SignedDuration::from_secs(i64::try_from(younger)?), now - FORGOTTEN);
    let mut followers = followers(deployment, stack).await?;
    let is_wanted = |who: &str| only.is_empty() || only.iter().any(|wanted| wanted == who);
    let unknown = |who: &&String| *who != ORDER && followers.iter().all(|follower| follower.id != **who);
    if let Some(unknown) = only.iter().find(unknown) {
        let known: Vec<_> = followers.iter().map(|follower| follower.id.as_str()).collect();
        bail!("nothing behind the log is named {unknown}; there are: {}, {ORDER}", known.join(", "));
    }
    followers.retain(|follower| is_wanted(&follower.id));
    let log = deployment.log()?;
    let reached = match deployment.order() {
        Some((sequence, partitions)) => Some(reached(&sequence, partitions, since).await?),
        None if since.is_some() => {
            bail!("--since needs the order of everything, which the stack does not have")
        }
        None => None,
    };
    let known = reached.iter().flat_map(|reached| reached.keys().cloned());
    let mut heads = match since {
        Some(_) => {
            let heads = stream::iter(known).map(|stream| newest(&log, stream)).buffer_unordered(AT_ONCE);
            heads.try_collect::<BTreeMap<_, _>>().await?
        }
        None => {
            let mut heads = log.heads(deployment.parts()).await?;
            // A stream that only the order has is gone from the log.
            known.for_each(|stream| _ = heads.entry(stream).or_default());
            heads
        }
    };
    let streams = heads.len();
    let queues = followers.iter().filter_map(|follower| Some((follower.id.clone(), follower.queue.clone()?)));
    let mut found = Found { queues: queues.collect(), ..Found::default() };
    let hole = |(stream, head): (&StreamId, &Head)| {
        (since.is_none() && head.commits < head.version)
            .then(|| (stream.clone(), head.version - head.commits))
    };
    found.holes.extend(heads.iter().filter_map(hole));
    heads.retain(|_, head| head.at.is_none_or(|at| at <= young));
    let left = streams - heads.len();
    let mut counts = Vec::new();
    for follower in &followers {
        let of_it = heads.iter().filter(|(stream, _)| follower.takes(stream));
        let looked = stream::iter(of_it).map(|(stream, head)| async {
            let difference = look(follower, stream, head.version).await?;
            if difference.found == difference.head {
                return Ok::<_, anyhow::Error>(difference);
            }
            // The log and the view go on while they are looked at: a difference must still be there, in this order.
            let (_, head) = newest(&log, stream.clone()).await?;
            let again = look(follower, stream, difference.head.min(head.version)).await?;
            let (_, head) = newest(&log, stream.clone()).await?;
            // What the view has got to since is no difference, unless the log does not have it.
            Ok(Difference { head: again.head.max(again.found.min(head.version)), ..again })
        });
        let looked: Vec<Difference> = looked.buffer_unordered(AT_ONCE).try_collect().await?;
        let is_forgotten = |looked: &Difference| {
            let head = heads.get(&looked.stream).and_then(|head| head.at);
            looked.kind == Some(Follows::States) && looked.found == 0 && head.is_some_and(|at| at < old)
        };
        let (forgotten, looked): (Vec<_>, Vec<_>) = looked.into_iter().partition(is_forgotten);
        counts.push(count(&follower.id, &looked, &forgotten));
        found.note(looked);
        found.forgotten.extend(forgotten);
    }
    // With a time, the streams were found in `$all`, so that nothing can be missing there.
    if let Some(reached) = reached.as_ref().filter(|_| since.is_none() && is_wanted(ORDER)) {
        let looked = stream::iter(&heads)
            .map(|(stream, head)| async {
                let seen = reached.get(stream).cloned().unwrap_or_default();
                let mut head = head.version;
                // Ahead, if the newest entry is of a version that the log does not have: by a strong read, because the scan may be older than the order.
                if seen.newest() > head {
                    let (_, newest) = newest(&log, stream.clone()).await?;
                    head = newest.version.min(seen.newest());
                }
                let is_ahead = seen.newest() > head;
                let found = if is_ahead { seen.newest() } else { seen.up_to };
                let (who, stream) = (ORDER.to_owned(), stream.clone());
                Ok::<_, anyhow::Error>(Difference { who, kind: None, stream, head, found })
            })
            .buffer_unordered(AT_ONCE);
        let looked: Vec<_> = looked.try_collect().await?;
        counts.push(count(ORDER, &looked, &[]));
        found.note(looked);
        let missing = found.missing.iter().filter(|missing| missing.kind.is_none());
        found.seen = missing
            .filter_map(|missing| Some((missing.stream.clone(), reached.get(&missing.stream)?.clone())))
            .collect();
    }
    found.print(&counts, left, since.is_some(), out);
    Ok(found)
}

/// The age from which a state view that shows nothing of a stream may have forgotten it: until then, it has a tombstone.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(29 * 24);

fn count(who: &str, looked: &[Difference], forgotten: &[Difference]) -> Value {
    let missing = looked.iter().filter(|difference| difference.found < difference.head).count();
    let ahead = looked.iter().filter(|difference| difference.found > difference.head).count();
    let streams = looked.len() + forgotten.len();
    json!({ "who": who, "streams": streams, "missing": missing, "ahead": ahead, "forgotten": forgotten.len() })
}

impl Found {
    fn note(&mut self, looked: Vec<Difference>) {
        for difference in looked {
            match difference.found.cmp(&difference.head) {
                std::cmp::Ordering::Less => self.missing.push(difference),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => self.ahead.push(difference),
            }
        }
    }

    fn print(&self, counts: &[Value], left: usize, in_part: bool, out: Out) {
        out.rows(&["who", "streams", "missing", "ahead", "forgotten"], counts);
        for (what, differences) in [("missing", &self.missing), ("ahead", &self.ahead)] {
            let row = |difference: &Difference| {
                let Difference { who, kind: _, stream, head, found } = difference;
                json!({ "what": what, "who": who, "stream": stream, "log": head, "there": found })
            };
            let shown = if out.json { differences.len() } else { SHOWN };
            let rows: Vec<_> = differences.iter().take(shown).map(row).collect();
            if !rows.is_empty() {
                out.note("");
                out.rows(&["what", "who", "stream", "log", "there"], &rows);
            }
            if differences.len() > shown {
                out.note(&format!("and {} more: see them with --json", differences.len() - shown));
            }
        }
        let hole = |(stream, missing): (&StreamId, &u64)| json!({ "what": "hole", "stream": stream, "versions": missing });
        let holes: Vec<_> = self.holes.iter().map(hole).collect();
        if !holes.is_empty() {
            out.note("");
            out.rows(&["what", "stream", "versions"], &holes);
        }
        if left > 0 {
            out.note(&format!("\n{left} streams were written too recently, and left alone"));
        }
        if !self.forgotten.is_empty() {
            out.note("\nforgotten: views show nothing of these streams, which are older than their tombstones: they forgot them, or never heard of them");
        }
        if self.is_clean() {
            out.note(match in_part {
                true => "\nnothing that came to the order since then is missing or ahead; holes were not looked for",
                false => "\nnothing is missing, nothing is ahead, and the log has no hole",
            });
        }
        if !self.ahead.is_empty() {
            out.note("\nahead of the log is what was made of commits that the log does not have any more: see the runbook, Restore");
        }
    }
}

/// The versions of a stream that `$all` has entries of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    /// All versions up to this one have an entry.
    up_to: u64,
    /// Those beyond it that have one.
    beyond: BTreeSet<u64>,
}

impl Seen {
    fn add(&mut self, version: u64) {
        if version > self.up_to {
            self.beyond.insert(version);
        }
        while self.beyond.remove(&(self.up_to + 1)) {
            self.up_to += 1;
        }
    }

    fn newest(&self) -> u64 {
        self.beyond.last().copied().unwrap_or(self.up_to)
    }
}

/// What `$all` has of each stream, from its beginning or since a time.
async fn reached(
    sequence: &impl EventStore,
    partitions: u16,
    since: Option<Timestamp>,
) -> Result<BTreeMap<StreamId, Seen>> {
    let mut reached = BTreeMap::<StreamId, Seen>::new();
    for partition in 0..partitions {
        let mut after = 0;
        loop {
            let (page, complete) = segments(sequence, partition, after).await?;
            after = page.last().map_or(after, |last| last.number);
            let wanted = page.into_iter().filter(|segment| since.is_none_or(|since| segment.at >= since));
            for Entry { stream, version } in wanted.flat_map(|segment| segment.entries) {
                reached.entry(stream).or_default().add(version);
            }
            if complete {
                break;
            }
        }
    }
    Ok(reached)
}

/// How far a follower is in a stream.
async fn look(follower: &Follower, stream: &StreamId, head: u64) -> Result<Difference> {
    let found = follower.reached(&follower.table, stream).await?;
    Ok(Difference {
        who: follower.id.clone(),
        kind: Some(follower.kind),
        stream: stream.clone(),
        head,
        found,
    })
}

/// Sends each what it lacks. Returns whether nothing is left to somebody: nothing was left out, failed, or is ahead, and the log has no hole.
pub(crate) async fn mend(
    deployment: &Deployment,
    found: &Found,
    (act, writing): (bool, &Writing),
    out: Out,
) -> Result<bool> {
    // One call wakes a subscription, whatever it lacks.
    let mut woken = BTreeSet::new();
    let is_wanted = |missing: &&Difference| match missing.kind {
        Some(Follows::ToAct) => act,
        Some(Follows::Order) => woken.insert(missing.who.clone()),
        Some(Follows::States | Follows::Log) | None => true,
    };
    let wanted: Vec<_> = found.missing.iter().filter(is_wanted).collect();
    let to_act = found.missing.iter().filter(|missing| missing.kind == Some(Follows::ToAct)).count();
    if to_act > 0 && !act {
        out.note(&format!("\n{to_act} commits are left to process managers, which would act on them: --act"));
    }
    let counts = counted(&wanted);
    if wanted.is_empty() || !writing.is_agreed(&format!("send {counts}, and nothing to the others?"))? {
        return Ok(false);
    }
    // Nothing that could not be sent again is lost if the stack has no table for it.
    let (what, why) = (format!("send {counts}"), writing.why.clone());
    match records::table(deployment).await {
        Ok(table) => {
            let record = Record { kind: "reconcile", what, why, detail: Value::Null };
            records::keep(deployment, &table, record).await?;
        }
        Err(error) => eprintln!("{error:#}"),
    }
    let (ordered, others): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|missing| missing.kind.is_none());
    let sent =
        stream::iter(others).map(|missing| async move { (missing, send(deployment, found, missing).await) });
    let mut sent: Vec<_> = sent.buffer_unordered(AT_ONCE).collect().await;
    // One after the other, because there is one head.
    for missing in ordered {
        sent.push((missing, sequence(deployment, found, missing).await));
    }
    let mut failed = 0;
    for (missing, result) in &sent {
        if let Err(error) = result {
            failed += 1;
            eprintln!("not sent: {} to {}: {error:#}", missing.stream, missing.who);
        }
    }
    out.note(&format!(
        "\nsent {} of {}: look again in a moment, with `ledger reconcile`",
        sent.len() - failed,
        sent.len()
    ));
    Ok(failed == 0 && (act || to_act == 0) && found.ahead.is_empty() && found.holes.is_empty())
}

/// Sends what is missing to a function.
async fn send(deployment: &Deployment, found: &Found, missing: &Difference) -> Result<()> {
    match missing.kind {
        None => Ok(()),
        Some(Follows::Order) => invoke(deployment, &missing.who, &json!({ "source": "ledger" })).await,
        Some(Follows::Log | Follows::ToAct) => {
            let queue = found.queues.get(&missing.who);
            queue_head(
                deployment,
                queue.with_context(|| format!("{} takes from no queue", missing.who))?,
                missing,
            )
            .await
        }
        Some(Follows::States) => {
            let commit = deployment.log()?.get(&missing.stream, missing.head).await?;
            let commit =
                commit.with_context(|| format!("{} has no version {}", missing.stream, missing.head))?;
            invoke(deployment, &missing.who, &state_of(&commit)).await
        }
    }
}

/// Puts the head of a stream into the queue of one consumer, which reads from the log what it lacks before it.
async fn queue_head(deployment: &Deployment, queue: &str, missing: &Difference) -> Result<()> {
    if missing.stream.as_str().len() > MAX_GROUP {
        bail!("its name is longer than that of a group of the queue: replay it (docs/runbook.md)");
    }
    let reference = json!({ "stream": missing.stream, "version": missing.head });
    let send = deployment.sqs.send_message().queue_url(queue).message_body(reference.to_string());
    // The queue may have seen the commit itself in the last five minutes: this message is another one.
    let send = send.message_deduplication_id(format!("reconcile-{}", uuid::Uuid::new_v4()));
    send.message_group_id(missing.stream.as_str()).send().await?;
    Ok(())
}

/// What makes a state projector fold a stream from the log: a state of a schema that no program reads.
fn state_of(commit: &Commit) -> Value {
    let last = commit.events.last();
    json!({ "states": [{
        "stream": commit.stream,
        "aggregate": { "lastKnownVersion": commit.version },
        "aggregateSchema": 0,
        "lastEvent": {
            "stream": commit.stream, "version": commit.version, "index": commit.events.len().saturating_sub(1),
            "eventType": last.map(|event| &event.event_type), "schema": last.map(|event| event.schema),
            "payload": null, "at": commit.at,
        },
        "meta": commit.meta,
    }] })
}

/// Hands the records of the versions that `$all` has no entry of to the sequencer, as the table's stream would.
async fn sequence(deployment: &Deployment, found: &Found, missing: &Difference) -> Result<()> {
    let has_entry =
        |version: &u64| found.seen.get(&missing.stream).is_some_and(|seen| seen.beyond.contains(version));
    let versions: Vec<_> = (missing.found + 1..=missing.head).filter(|version| !has_entry(version)).collect();
    let (log, mut commits) = (deployment.log()?, Vec::new());
    for version in versions {
        // A version that the log does not have is a hole, which is said elsewhere.
        if log.has(&missing.stream, version).await? {
            commits.push((missing.stream.clone(), version));
        }
    }
    hand_over(deployment, "SequencerFunction", &commits).await
}

/// Hands the records of these commits to a reader of the table's stream, as the stream would, in as many invocations as it takes.
pub(crate) async fn hand_over(deployment: &Deployment, to: &str, commits: &[(StreamId, u64)]) -> Result<()> {
    let (log, name) = (deployment.log()?, name(deployment, to)?);
    // A queue takes the same message only once in five minutes: each time has a number of its own, so that its messages are not the same.
    let run = uuid::Uuid::new_v4();
    let (mut records, mut bytes) = (Vec::new(), 0);
    for (place, (stream, version)) in commits.iter().enumerate() {
        let record = log.record(stream, *version).await?;
        let mut record = record.with_context(|| format!("{stream} has no version {version}"))?;
        record["ApproximateCreationDateTime"] = 0.into();
        record["SequenceNumber"] = (place + 1).to_string().into();
        record["SizeBytes"] = 1.into();
        record["StreamViewType"] = "NEW_IMAGE".into();
        let record = json!({
            "eventID": format!("replay-{place}"), "eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb",
            "awsRegion": "replay", "eventSourceARN": format!("replay/{run}"), "dynamodb": record,
        });
        bytes += record.to_string().len();
        records.push(record);
        if records.len() == RECORDS || bytes > BYTES {
            hand(deployment, (to, &name), std::mem::take(&mut records)).await?;
            bytes = 0;
        }
    }
    if records.is_empty() { Ok(()) } else { hand(deployment, (to, &name), records).await }
}

async fn hand(deployment: &Deployment, (to, name): (&str, &str), records: Vec<Value>) -> Result<()> {
    let payload = json!({ "Records": records }).to_string();
    let answer = deployment.lambda.invoke().function_name(name).payload(Blob::new(payload)).send().await?;
    let body: Value =
        serde_json::from_slice(answer.payload.as_ref().map_or(&[], |payload| payload.as_ref()))?;
    if answer.function_error.is_some() || body["batchItemFailures"] != json!([]) {
        bail!("{to} did not take them: {body}");
    }
    Ok(())
}

/// The most records of one invocation.
const RECORDS: usize = 10;
/// The bytes after which an invocation has enough: it may have 6 MB, and one more record has half a megabyte at most.
const BYTES: usize = 4_000_000;

async fn invoke(deployment: &Deployment, id: &str, payload: &Value) -> Result<()> {
    let call = deployment.lambda.invoke().function_name(name(deployment, id)?);
    call.invocation_type(InvocationType::Event).payload(Blob::new(payload.to_string())).send().await?;
    Ok(())
}

/// The name that events come to.
pub(crate) fn name(deployment: &Deployment, id: &str) -> Result<String> {
    let (name, _) = deployment.function(id).with_context(|| format!("{id} is not deployed"))?;
    Ok(format!("{name}:live"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_without_an_entry_is_not_hidden_by_a_later_one() {
        let mut seen = Seen::default();
        for (version, up_to, newest) in [(1, 1, 1), (5, 1, 5), (3, 1, 5), (2, 3, 5), (2, 3, 5), (4, 5, 5)] {
            seen.add(version);
            assert_eq!((seen.up_to, seen.newest()), (up_to, newest), "{version}");
        }
    }
}
