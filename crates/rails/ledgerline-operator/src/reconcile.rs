//! The heads of all streams against everything that is made of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IsTerminal, Write},
};

use anyhow::{Context, Result, bail};
use aws_sdk_lambda::{primitives::Blob, types::InvocationType};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Commit, EventStore, LogTable, StateTable, StreamId,
    all::{Entry, segments},
};
use ledgerline_local::{
    permissions::{referred, resources},
    template::Source,
    wiring::{Follows, needs_of},
};
use serde_json::{Value, json};

use crate::{
    Out, Stack,
    deployment::Deployment,
    heads::{self, Head},
};

/// The number of streams that are looked at, or mended, at once.
const AT_ONCE: usize = 32;
/// The most streams of a kind that are printed for people.
const SHOWN: usize = 20;
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
    /// Streams with a hole in the log.
    holes: BTreeMap<StreamId, u64>,
    /// The queue of each function behind one, by logical ids.
    queues: BTreeMap<String, String>,
}

impl Found {
    pub(crate) fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.ahead.is_empty() && self.holes.is_empty()
    }

    /// Whether what is missing may be sent: asks, unless that is answered already.
    pub(crate) fn may_be_mended(&self, yes: bool) -> Result<bool> {
        if self.missing.is_empty() {
            return Ok(false);
        }
        let ask =
            format!("send {} to whom it is missing, one call each, and to nobody else?", self.missing.len());
        if yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() {
            bail!("{ask} Say --yes");
        }
        write!(std::io::stdout(), "{ask} [y/N] ")?;
        std::io::stdout().flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(["y", "yes"].contains(&answer.trim()))
    }
}

/// Something that follows the log: a function with its table.
struct Follower {
    id: String,
    kind: Follows,
    of: Vec<String>,
    table: String,
    partition: &'static str,
    sort: Option<&'static str>,
}

/// Compares, and prints what was found.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    since: Option<Timestamp>,
    younger: u64,
    out: Out,
) -> Result<Found> {
    let (followers, queues) = followers(deployment, stack)?;
    let reached = match deployment.order() {
        Some((sequence, partitions)) => Some(reached(&sequence, partitions, since).await?),
        None if since.is_some() => {
            bail!("--since needs the order of everything, which the stack does not have")
        }
        None => None,
    };
    let mut heads = match (&reached, since) {
        (Some(reached), Some(_)) => heads::of(deployment, reached.keys().cloned().collect()).await?,
        _ => heads::all(deployment).await?,
    };
    let streams = heads.len();
    let young = Timestamp::now() - SignedDuration::from_secs(i64::try_from(younger)?);
    let mut found = Found { queues, ..Found::default() };
    found.holes.extend(heads.iter().filter_map(|(stream, head)| Some((stream.clone(), head.hole?))));
    heads.retain(|_, head| head.at.is_none_or(|at| at <= young));
    let left = streams - heads.len();
    let mut counts = Vec::new();
    for follower in &followers {
        let of_it = heads.iter().filter(|(stream, _)| follower.of.iter().any(|of| of == stream.category()));
        let looked = stream::iter(of_it).map(|(stream, head)| look(deployment, follower, stream, head));
        let looked: Vec<Difference> = looked.buffer_unordered(AT_ONCE).try_collect().await?;
        counts.push(count(&follower.id, &looked));
        found.note(looked);
    }
    // What is not in `$all` since that time is not looked for: the streams were found there.
    if let Some(reached) = reached.as_ref().filter(|_| since.is_none()) {
        let looked = heads.iter().map(|(stream, head)| Difference {
            who: ORDER.to_owned(),
            kind: None,
            stream: stream.clone(),
            head: head.version,
            found: reached.get(stream).copied().unwrap_or_default(),
        });
        let looked: Vec<_> = looked.collect();
        counts.push(count(ORDER, &looked));
        found.note(looked);
    }
    found.print(&counts, left, out);
    Ok(found)
}

fn count(who: &str, looked: &[Difference]) -> Value {
    let missing = looked.iter().filter(|difference| difference.found < difference.head).count();
    let ahead = looked.iter().filter(|difference| difference.found > difference.head).count();
    json!({ "who": who, "streams": looked.len(), "missing": missing, "ahead": ahead })
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

    fn print(&self, counts: &[Value], left: usize, out: Out) {
        out.rows(&["who", "streams", "missing", "ahead"], counts);
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
        for (stream, version) in &self.holes {
            out.rows(
                &["what", "stream", "version"],
                &[json!({ "what": "a hole in the log", "stream": stream, "version": version })],
            );
        }
        if left > 0 {
            out.note(&format!("\n{left} streams were written too recently, and left alone"));
        }
        if self.is_clean() {
            out.note("\nnothing is missing, nothing is ahead, and the log has no hole");
        }
        if !self.ahead.is_empty() {
            out.note("\nahead of the log is what was made of commits that the log does not have any more: see the runbook, Restore");
        }
    }
}

/// What follows the log, by the needs of the functions, with the queues that they take from.
fn followers(deployment: &Deployment, stack: &Stack) -> Result<(Vec<Follower>, BTreeMap<String, String>)> {
    let source = Source::read(&stack.template)?;
    let root = cargo_metadata::MetadataCommand::new().no_deps().exec()?.workspace_root;
    let needs = needs_of(&source, root.as_std_path())?;
    let template = source.json();
    let (mut followers, mut queues) = (Vec::new(), BTreeMap::new());
    for (id, function) in resources(&template, &["AWS::Serverless::Function"]) {
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        let Some(follower) = needs.get(binary).and_then(|needs| needs.follower()) else { continue };
        let (name, environment) = deployment.function(id).with_context(|| format!("{id} is not deployed"))?;
        let table = environment.get(follower.variable);
        let table = table.with_context(|| format!("{name} has no variable {}", follower.variable))?;
        // The names of keys live as long as the program: there are a few.
        let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        followers.push(Follower {
            id: id.to_owned(),
            kind: follower.kind,
            of: follower.of.iter().map(|of| (*of).to_owned()).collect(),
            table: table.clone(),
            partition: leak(follower.partition),
            sort: follower.sort.map(leak),
        });
        let events =
            function["Properties"]["Events"].as_object().into_iter().flat_map(|events| events.values());
        let queue = events
            .filter(|event| event["Type"] == "SQS")
            .find_map(|event| referred(&event["Properties"]["Queue"]));
        queues.extend(queue.map(|queue| (id.to_owned(), queue.to_owned())));
    }
    Ok((followers, queues))
}

/// The last version of each stream that `$all` has an entry of, from its beginning or since a time.
async fn reached(
    sequence: &impl EventStore,
    partitions: u16,
    since: Option<Timestamp>,
) -> Result<BTreeMap<StreamId, u64>> {
    let mut reached = BTreeMap::<StreamId, u64>::new();
    for partition in 0..partitions {
        let mut after = 0;
        loop {
            let (page, complete) = segments(sequence, partition, after).await?;
            after = page.last().map_or(after, |last| last.number);
            for Entry { stream, version } in page
                .into_iter()
                .filter(|segment| since.is_none_or(|since| segment.at >= since))
                .flat_map(|segment| segment.entries)
            {
                let known = reached.entry(stream).or_default();
                *known = (*known).max(version);
            }
            if complete {
                break;
            }
        }
    }
    Ok(reached)
}

/// How far a follower is in a stream.
async fn look(
    deployment: &Deployment,
    follower: &Follower,
    stream: &StreamId,
    head: &Head,
) -> Result<Difference> {
    let table = deployment.table(&follower.table);
    let variable = "";
    let found = match (follower.kind, follower.sort) {
        (Follows::States, _) | (_, None) => {
            let keys = StateTable { variable, key: follower.partition };
            table.shown::<Value>(&keys, stream.id()).await?.0
        }
        (Follows::Log | Follows::Order, Some(sort)) => {
            let keys = LogTable { variable, partition: follower.partition, sort };
            table.position(&keys, stream).await?
        }
    };
    let (who, kind) = (follower.id.clone(), Some(follower.kind));
    Ok(Difference { who, kind, stream: stream.clone(), head: head.version, found })
}

/// Sends what is missing to whom it is missing.
pub(crate) async fn mend(deployment: &Deployment, found: &Found, out: Out) -> Result<()> {
    let log = deployment.log()?;
    // One call wakes a subscription, whatever it lacks.
    let mut woken = BTreeSet::new();
    let wanted: Vec<_> = found
        .missing
        .iter()
        .filter(|missing| missing.kind != Some(Follows::Order) || woken.insert(missing.who.clone()))
        .collect();
    let log = &log;
    let sent = stream::iter(wanted).map(|missing| async move {
        match missing.kind {
            None => sequence(deployment, missing).await,
            Some(Follows::Order) => invoke(deployment, &missing.who, &json!({ "source": "ledger" })).await,
            Some(Follows::Log) => {
                let queue = found
                    .queues
                    .get(&missing.who)
                    .with_context(|| format!("{} takes from no queue", missing.who))?;
                queue_head(deployment, queue, missing).await
            }
            Some(Follows::States) => {
                let commit = log.get(&missing.stream, missing.head).await?;
                let commit =
                    commit.with_context(|| format!("{} has no version {}", missing.stream, missing.head))?;
                invoke(deployment, &missing.who, &state_of(&commit)).await
            }
        }
        .with_context(|| format!("{} to {}", missing.stream, missing.who))
    });
    let sent: Vec<()> = sent.buffer_unordered(AT_ONCE).try_collect().await?;
    out.note(&format!("\nsent {} calls: look again in a moment, with `ledger reconcile`", sent.len()));
    Ok(())
}

/// Puts the head of a stream into the queue of one consumer, which reads from the log what it lacks before it.
async fn queue_head(deployment: &Deployment, queue: &str, missing: &Difference) -> Result<()> {
    let url = deployment.queue(queue)?;
    let reference = json!({ "stream": missing.stream, "version": missing.head });
    let send = deployment.sqs.send_message().queue_url(url).message_body(reference.to_string());
    // The queue may have seen the commit itself in the last five minutes: this message is another one.
    let send = send.message_deduplication_id(format!("reconcile-{}", uuid::Uuid::new_v4()));
    send.message_group_id(missing.stream.as_str()).send().await?;
    Ok(())
}

/// What makes a state projector fold a stream from the log: a state of a schema that no program reads.
fn state_of(commit: &Commit) -> Value {
    let last = commit.events.last();
    let payload: Value = last.and_then(|event| serde_json::from_str(&event.data).ok()).unwrap_or_default();
    json!({ "states": [{
        "stream": commit.stream,
        "aggregate": { "lastKnownVersion": commit.version },
        "aggregateSchema": 0,
        "lastEvent": {
            "stream": commit.stream, "version": commit.version, "index": commit.events.len().saturating_sub(1),
            "eventType": last.map(|event| &event.event_type), "schema": last.map(|event| event.schema),
            "payload": payload, "at": commit.at,
        },
        "meta": commit.meta,
    }] })
}

/// Hands a record to the sequencer that has the keys of the head alone, which is all that it reads.
async fn sequence(deployment: &Deployment, missing: &Difference) -> Result<()> {
    let keys = json!({ "stream": { "S": missing.stream }, "version": { "N": missing.head.to_string() } });
    let record = json!({
        "eventID": "reconcile", "eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb", "awsRegion": "reconcile",
        "dynamodb": { "Keys": keys, "SequenceNumber": "1", "SizeBytes": 1, "StreamViewType": "NEW_IMAGE" },
    });
    let payload = json!({ "Records": [record] }).to_string();
    let call = deployment.lambda.invoke().function_name(name(deployment, "SequencerFunction")?);
    let answer = call.payload(Blob::new(payload)).send().await?;
    let body: Value =
        serde_json::from_slice(answer.payload.as_ref().map_or(&[], |payload| payload.as_ref()))?;
    if answer.function_error.is_some() || body["batchItemFailures"] != json!([]) {
        bail!("the sequencer did not take it: {body}");
    }
    Ok(())
}

async fn invoke(deployment: &Deployment, id: &str, payload: &Value) -> Result<()> {
    let call = deployment.lambda.invoke().function_name(name(deployment, id)?);
    call.invocation_type(InvocationType::Event).payload(Blob::new(payload.to_string())).send().await?;
    Ok(())
}

/// The name that events come to.
fn name(deployment: &Deployment, id: &str) -> Result<String> {
    let (name, _) = deployment.function(id).with_context(|| format!("{id} is not deployed"))?;
    Ok(format!("{name}:live"))
}
