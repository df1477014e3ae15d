//! The repair of subscribers: each gets the commits that it lacks.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use aws_sdk_lambda::{primitives::Blob, types::InvocationType};
use futures::{StreamExt, stream};
use ledgerline::{Commit, EventLog, manifest::SubscriberKind};
use ledgerline_dynamodb::reconcile::{Difference, Found};
use ledgerline_lambda::messages::{PayloadPlace, Reference, details, unknown_state};
use serde_json::{Value, json};

use crate::{
    Output, WriteArgs,
    deployment::{Deployment, SEQUENCER},
    records::{self, Record},
    send_records::send_records,
};

/// The number of streams that are repaired at once.
const AT_ONCE: usize = 32;
/// The longest id of a message group in a FIFO queue. The fanout gives longer streams a group with
/// another id.
const MAX_GROUP: usize = 128;

/// The repair of subscribers that lack commits.
pub(crate) struct Repair<'o> {
    /// Whether process managers get the commits that they lack, and act on them.
    pub(crate) act: bool,
    pub(crate) write_args: &'o WriteArgs,
}

/// Returns the number of these differences for each subscriber, as text.
fn count_by_subscriber(wanted: &[&Difference]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    wanted.iter().for_each(|missing| *counts.entry(&missing.who).or_default() += 1);
    let counts: Vec<_> = counts.iter().map(|(who, count)| format!("{count} to {who}")).collect();
    counts.join(", ")
}

/// Sends each subscriber the commits that it lacks. Returns `false` if a subscriber still lacks
/// commits, is ahead or unreadable, or the log has a hole.
pub(crate) async fn repair_all(
    deployment: &Deployment,
    found: &Found,
    queues: &BTreeMap<String, String>,
    &Repair { act, write_args }: &Repair<'_>,
    out: Output,
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
    let counts = count_by_subscriber(&wanted);
    if wanted.is_empty()
        || !write_args.confirm(&format!("send {counts}, and nothing to the others?"))?
    {
        return Ok(false);
    }
    // A stack without the table gets no record. Nothing is lost by that: the commits can be sent
    // again.
    let what = format!("send {counts}");
    let why = write_args.why();
    records::store_if_possible(
        deployment,
        Record { kind: "reconcile", what, why, detail: Value::Null },
    )
    .await?;
    let all = wanted.len();
    let failed = send_all(deployment, found, queues, wanted).await;
    out.note(&format!("\nsent {} of {all}: run `ledger reconcile` in a moment", all - failed));
    let is_left = (!act && to_act > 0)
        || !found.ahead.is_empty()
        || !found.unreadable.is_empty()
        || !found.holes.is_empty();
    Ok(failed == 0 && !is_left)
}

/// Sends all missing commits. Returns the number of failures, which it prints.
async fn send_all(
    deployment: &Deployment,
    found: &Found,
    queues: &BTreeMap<String, String>,
    wanted: Vec<&Difference>,
) -> usize {
    let (ordered, others): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|missing| missing.kind.is_none());
    let sent = stream::iter(others)
        .map(|missing| async move { (missing, send(deployment, queues, missing).await) });
    let mut sent: Vec<_> = sent.buffer_unordered(AT_ONCE).collect().await;
    // `$all` has one head, so these are sent one after the other.
    for missing in ordered {
        sent.push((missing, send_to_sequencer(deployment, found, missing).await));
    }
    let mut failed = 0;
    for (missing, result) in &sent {
        if let Err(error) = result {
            failed += 1;
            eprintln!("not sent: {} to {}: {error:#}", missing.stream, missing.who);
        }
    }
    failed
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
            match queues.get(&missing.who) {
                Some(queue) if queue.ends_with(".fifo") => {
                    send_head(deployment, queue, missing).await
                }
                // A subscriber behind a rule of the bus retries from its queue. No operator may
                // invoke a process manager.
                Some(queue) => {
                    let body = head_event(deployment, missing).await?.to_string();
                    let send = deployment.sqs.send_message().queue_url(queue);
                    send.message_body(body).send().await?;
                    Ok(())
                }
                None => bail!("it has no queue: run `ledger redeliver {}`", missing.stream),
            }
        }
        Some(SubscriberKind::StateProjector) => {
            invoke(deployment, &missing.who, &head_event(deployment, missing).await?).await
        }
    }
}

/// Returns the event of a stream's head, as the fanout sends it.
async fn head_event(deployment: &Deployment, missing: &Difference) -> Result<Value> {
    let commit = deployment.log()?.get(&missing.stream, missing.head).await?;
    let commit =
        commit.with_context(|| format!("`{}` has no version {}", missing.stream, missing.head))?;
    state_event(&commit)
}

/// Puts the head of a stream into the queue of a subscriber. The subscriber reads the earlier
/// commits that it lacks from the log.
async fn send_head(deployment: &Deployment, queue: &str, missing: &Difference) -> Result<()> {
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
fn state_event(commit: &Commit) -> Result<Value> {
    let details = details(commit, &unknown_state(), Some(PayloadPlace::Log));
    let details = details.map_err(|error| anyhow!(error))?;
    let last: Value = serde_json::from_str(details.last().context("a commit has a detail")?)?;
    Ok(json!({ "states": [last] }))
}

/// Invokes the sequencer with the records of the versions without an entry in `$all`, as the
/// table's stream would.
async fn send_to_sequencer(
    deployment: &Deployment,
    found: &Found,
    missing: &Difference,
) -> Result<()> {
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
    send_records(deployment, SEQUENCER, &commits).await
}

async fn invoke(deployment: &Deployment, id: &str, payload: &Value) -> Result<()> {
    let call = deployment.lambda.invoke().function_name(deployment.name(id)?);
    call.invocation_type(InvocationType::Event)
        .payload(Blob::new(payload.to_string()))
        .send()
        .await?;
    Ok(())
}
