//! The comparison of the heads of all streams with every subscriber, and the repair of the
//! differences.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use aws_sdk_lambda::{primitives::Blob, types::InvocationType};
use clap::Args;
use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{Commit, EventLog, RecordedEvent, StreamId, manifest::SubscriberKind};
use ledgerline_dynamodb::reconcile::{Comparison, Difference, Found, Looked, ORDER};
use ledgerline_lambda::messages::{Reference, details, unknown_state};
use serde_json::{Value, json};

use crate::{
    Out, Stack, Writing,
    deployment::{Deployment, SEQUENCER},
    price::READS,
    records::{self, Record},
    redeliver::hand_over,
    subscribers::{Subscriber, subscribers},
};

/// The number of streams that are repaired at once.
const AT_ONCE: usize = 32;
/// The default age, in seconds, from which a missing commit counts.
const YOUNGER: u64 = 300;
/// The most differences of a kind that are printed for people.
const SHOWN: usize = 20;
/// The longest id of a message group in a FIFO queue. The fanout gives longer streams a group with
/// another id.
const MAX_GROUP: usize = 128;

/// The options of a comparison.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Compare only streams with entries in `$all` since this time. This finds no holes, and no
    /// commit without an entry in `$all`.
    #[arg(long)]
    pub(crate) since: Option<Timestamp>,
    /// Compare only this subscriber: the logical id of a function, or `$all`. Repeat the option per
    /// subscriber.
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// Ignore commits that are younger than this many seconds, and may be in transit. The default
    /// is 300.
    #[arg(long)]
    pub(crate) younger: Option<u64>,
}

/// The repair of subscribers that lack commits.
pub(crate) struct Repair<'o> {
    /// Whether process managers get the commits that they lack, and act on them.
    pub(crate) act: bool,
    pub(crate) writing: &'o Writing,
}

/// Compares the subscribers with the log, prints the differences, and repairs them if the operator
/// asks for it. Returns whether none is left.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &Options,
    repair: Option<Repair<'_>>,
    out: Out,
) -> Result<bool> {
    // The clock is read before the log, so all later commits are too young.
    let until = Timestamp::now()
        - SignedDuration::from_secs(i64::try_from(options.younger.unwrap_or(YOUNGER))?);
    let subscribers = subscribers(deployment, stack).await?;
    let is_wanted =
        |who: &str| options.only.is_empty() || options.only.iter().any(|wanted| wanted == who);
    let unknown = |who: &&String| {
        *who != ORDER && subscribers.iter().all(|subscriber| subscriber.of_log.id != **who)
    };
    if let Some(unknown) = options.only.iter().find(unknown) {
        let known: Vec<_> =
            subscribers.iter().map(|subscriber| subscriber.of_log.id.as_str()).collect();
        bail!("`{unknown}` is no subscriber; choose one of: {}, {ORDER}", known.join(", "));
    }
    let wanted: Vec<_> =
        subscribers.iter().filter(|subscriber| is_wanted(&subscriber.of_log.id)).collect();
    let compared: Vec<_> = wanted.iter().map(|subscriber| subscriber.of_log.clone()).collect();
    let log = deployment.log()?;
    let order = deployment.order();
    let comparison = Comparison {
        log: &log,
        parts: deployment.parts(),
        order: order.as_ref().map(|(sequence, partitions)| (sequence, *partitions)),
        with_order: is_wanted(ORDER),
        subscribers: &compared,
        since: options.since,
        until,
        most: usize::MAX,
    };
    let busy = out.busy("comparing the subscribers with the log");
    let found = comparison.run().await?;
    drop(busy);
    print(&found, options.since.is_some(), out);
    let reads = deployment.units.taken();
    out.line_or_note(&json!({ "what": "cost", "reads": reads }), || {
        format!("the comparison took {reads:.0} read units, {:.4} US$", reads * READS / 1e6)
    });
    let repair = repair.filter(|repair| repair.writing.write);
    if found.is_clean() && (found.forgotten.is_empty() || repair.is_none()) {
        return Ok(true);
    }
    let Some(repair) = repair else { return Ok(false) };
    let queue =
        |subscriber: &&Subscriber| Some((subscriber.of_log.id.clone(), subscriber.queue.clone()?));
    let queues = wanted.iter().filter_map(queue).collect();
    repair_all(deployment, &found, &queues, &repair, out).await
}

/// Returns the number of these differences for each subscriber, as text.
fn counted(wanted: &[&Difference]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    wanted.iter().for_each(|missing| *counts.entry(&missing.who).or_default() += 1);
    let counts: Vec<_> = counts.iter().map(|(who, count)| format!("{count} to {who}")).collect();
    counts.join(", ")
}

fn print(found: &Found, in_part: bool, out: Out) {
    let looked = |Looked { who, streams, missing, ahead, forgotten, unreadable }: &Looked| {
        json!({
            "what": "looked", "who": who, "streams": streams, "missing": missing, "ahead": ahead, "forgotten": forgotten, "unreadable": unreadable,
        })
    };
    let counts: Vec<_> = found.looked.iter().map(looked).collect();
    out.rows(&["who", "streams", "missing", "ahead", "forgotten", "unreadable"], &counts);
    let kinds = [
        ("missing", &found.missing),
        ("ahead", &found.ahead),
        ("unreadable", &found.unreadable),
        ("forgotten", &found.forgotten),
    ];
    for (what, differences) in kinds {
        let row = |difference: &Difference| {
            let Difference { who, kind: _, stream, head, found, unreadable } = difference;
            json!({ "what": what, "who": who, "stream": stream, "log": head, "there": found, "reason": unreadable })
        };
        let shown = if out.json { differences.len() } else { SHOWN };
        let rows: Vec<_> = differences.iter().take(shown).map(row).collect();
        if !rows.is_empty() {
            out.note("");
            let fields = ["what", "who", "stream", "log", "there", "reason"];
            out.rows(if what == "unreadable" { &fields } else { &fields[..5] }, &rows);
        }
        if differences.len() > shown {
            out.note(&format!("and {} more: see them with --json", differences.len() - shown));
        }
    }
    let hole = |(stream, missing): (&StreamId, &u64)| json!({ "what": "hole", "stream": stream, "versions": missing });
    let holes: Vec<_> = found.holes.iter().map(hole).collect();
    if !holes.is_empty() {
        out.note("");
        out.rows(&["what", "stream", "versions"], &holes);
    }
    if found.too_young > 0 {
        out.line_or_note(&json!({ "what": "tooYoung", "count": found.too_young }), || {
            format!(
                "\n{} differences are of commits that are too young, and are not listed",
                found.too_young
            )
        });
    }
    if !found.forgotten.is_empty() {
        out.note(
            "\nforgotten: views have no rows of these streams, which are older than tombstones. The views deleted the rows, or the rows are lost: `ledger redeliver --missing --write` sends the commits, and does not harm deleted rows",
        );
    }
    if found.is_clean() {
        out.note(match (in_part, found.forgotten.is_empty()) {
            (true, _) => {
                "\nno commit that `$all` has since then is missing or ahead; holes were not checked"
            }
            (false, true) => "\nnothing is missing, nothing is ahead, and the log has no hole",
            (false, false) => {
                "\napart from forgotten streams, nothing is missing, nothing is ahead, and the log has no hole"
            }
        });
    }
    if !found.ahead.is_empty() {
        out.note("\nahead of the log: a subscriber applied commits that the log lacks; see the runbook, Restore");
    }
}

/// Sends each subscriber the commits that it lacks. Returns `false` if a subscriber still lacks
/// commits, is ahead or unreadable, or the log has a hole.
async fn repair_all(
    deployment: &Deployment,
    found: &Found,
    queues: &BTreeMap<String, String>,
    &Repair { act, writing }: &Repair<'_>,
    out: Out,
) -> Result<bool> {
    // A subscription needs one invocation for all commits that it lacks.
    let mut woken = BTreeSet::new();
    let is_wanted = |missing: &&Difference| match missing.kind {
        Some(SubscriberKind::ProcessManager) => act,
        Some(SubscriberKind::Subscription) => woken.insert(missing.who.clone()),
        Some(SubscriberKind::StateProjector | SubscriberKind::LogProjector) | None => true,
    };
    // A forgotten stream gets a tombstone again, and a lost row is written again.
    let wanted: Vec<_> = found.missing.iter().chain(&found.forgotten).filter(is_wanted).collect();
    let to_act = found
        .missing
        .iter()
        .filter(|missing| missing.kind == Some(SubscriberKind::ProcessManager))
        .count();
    if to_act > 0 && !act {
        out.note(&format!(
            "\n{to_act} commits are not sent to process managers, which would act on them: give --act"
        ));
    }
    let counts = counted(&wanted);
    if wanted.is_empty()
        || !writing.is_agreed(&format!("send {counts}, and nothing to the others?"))?
    {
        return Ok(false);
    }
    // A stack without the table gets no record. Nothing is lost by that: the commits can be sent
    // again.
    let what = format!("send {counts}");
    let why = writing.why();
    records::keep_if_possible(
        deployment,
        Record { kind: "reconcile", what, why, detail: Value::Null },
    )
    .await?;
    let (ordered, others): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|missing| missing.kind.is_none());
    let sent = stream::iter(others)
        .map(|missing| async move { (missing, send(deployment, queues, missing).await) });
    let mut sent: Vec<_> = sent.buffer_unordered(AT_ONCE).collect().await;
    // `$all` has one head, so these are sent one after the other.
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
        "\nsent {} of {}: run `ledger reconcile` in a moment",
        sent.len() - failed,
        sent.len()
    ));
    let is_left = (!act && to_act > 0)
        || !found.ahead.is_empty()
        || !found.unreadable.is_empty()
        || !found.holes.is_empty();
    Ok(failed == 0 && !is_left)
}

/// Sends a subscriber the commits of a stream that it lacks.
async fn send(
    deployment: &Deployment,
    queues: &BTreeMap<String, String>,
    missing: &Difference,
) -> Result<()> {
    match missing.kind {
        None => Ok(()),
        Some(SubscriberKind::Subscription) => {
            invoke(deployment, &missing.who, &json!({ "source": "ledger" })).await
        }
        Some(SubscriberKind::LogProjector | SubscriberKind::ProcessManager) => {
            // A subscriber behind a rule of the bus has a queue for its failures, which is no FIFO
            // queue.
            match queues.get(&missing.who).filter(|queue| queue.ends_with(".fifo")) {
                Some(queue) => queue_head(deployment, queue, missing).await,
                None => hand_over_state(deployment, missing).await,
            }
        }
        Some(SubscriberKind::StateProjector) => hand_over_state(deployment, missing).await,
    }
}

/// Invokes a subscriber with the head of a stream, as the fanout or a rule of the bus does.
async fn hand_over_state(deployment: &Deployment, missing: &Difference) -> Result<()> {
    let commit = deployment.log()?.get(&missing.stream, missing.head).await?;
    let commit =
        commit.with_context(|| format!("`{}` has no version {}", missing.stream, missing.head))?;
    invoke(deployment, &missing.who, &state_of(&commit)?).await
}

/// Puts the head of a stream into the queue of a subscriber. The subscriber reads the earlier
/// commits that it lacks from the log.
async fn queue_head(deployment: &Deployment, queue: &str, missing: &Difference) -> Result<()> {
    if missing.stream.as_str().len() > MAX_GROUP {
        bail!(
            "the name is too long for a message group: run `ledger redeliver {}`",
            missing.stream
        );
    }
    let reference = Reference { stream: missing.stream.clone(), version: missing.head };
    let body = serde_json::to_string(&reference)?;
    let send = deployment.sqs.send_message().queue_url(queue).message_body(body);
    // The queue may have received this commit in the last five minutes, so this message has another
    // deduplication id.
    let send = send.message_deduplication_id(format!("reconcile-{}", uuid::Uuid::new_v4()));
    send.message_group_id(missing.stream.as_str()).send().await?;
    Ok(())
}

/// Returns an event that makes a state projector fold a stream from the log: the stream's newest
/// commit, without payloads and without a state.
fn state_of(commit: &Commit) -> Result<Value> {
    let without =
        |event: &RecordedEvent| RecordedEvent { data: "null".to_owned(), ..event.clone() };
    let commit = Commit { events: commit.events.iter().map(without).collect(), ..commit.clone() };
    let details = details(&commit, &unknown_state()).map_err(|error| anyhow!(error))?;
    let last: Value = serde_json::from_str(details.last().context("a commit has a detail")?)?;
    Ok(json!({ "states": [last] }))
}

/// Invokes the sequencer with the records of the versions without an entry in `$all`, as the
/// table's stream would.
async fn sequence(deployment: &Deployment, found: &Found, missing: &Difference) -> Result<()> {
    let has_entry =
        |version: &u64| found.seen.get(&missing.stream).is_some_and(|seen| seen.has(*version));
    let versions: Vec<_> =
        (missing.found + 1..=missing.head).filter(|version| !has_entry(version)).collect();
    let log = deployment.log()?;
    let mut commits = Vec::new();
    for version in versions {
        // A version that the log lacks is a hole, which the comparison reports.
        if log.has(&missing.stream, version).await? {
            commits.push((missing.stream.clone(), version));
        }
    }
    hand_over(deployment, SEQUENCER, &commits).await
}

async fn invoke(deployment: &Deployment, id: &str, payload: &Value) -> Result<()> {
    let call = deployment.lambda.invoke().function_name(deployment.name(id)?);
    call.invocation_type(InvocationType::Event)
        .payload(Blob::new(payload.to_string()))
        .send()
        .await?;
    Ok(())
}
