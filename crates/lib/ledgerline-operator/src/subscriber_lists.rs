//! The lists of all subscribers: with their tables and generations, and with their lags.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{all::newest_segment, manifest::SubscriberKind};
use ledgerline_dynamodb::{
    DynamoDbStore, Phase,
    reconcile::{Comparison, ComparisonCounts, Found, ORDER, is_young},
};
use serde_json::{Value, json};

use crate::{
    Output, Stack,
    deployment::Deployment,
    subscribers::{Subscriber, subscribers},
};

/// The printed fields of a subscriber's lag.
const LAG_FIELDS: [&str; 9] =
    ["who", "streams", "missing", "ahead", "unreadable", "commits", "oldest", "queued", "taken"];

/// The options of `ledger lag`.
#[derive(Debug, Args)]
pub(crate) struct LagArgs {
    /// Compare only streams with entries in `$all` since this time, instead of those of the last
    /// hour.
    #[arg(long)]
    since: Option<Timestamp>,
    /// Compare all streams. Scans the whole log.
    #[arg(long, conflicts_with = "since")]
    all: bool,
    /// Exit with 2 if a subscriber lacks a commit that is older than this many seconds.
    #[arg(long, default_value_t = 300)]
    older: u32,
}

fn kind(kind: SubscriberKind) -> &'static str {
    match kind {
        SubscriberKind::StateProjector => "states",
        SubscriberKind::LogProjector => "log",
        SubscriberKind::Subscription => "order",
        SubscriberKind::ProcessManager => "acts",
    }
}

/// The messages in the queue of a subscriber.
#[derive(Debug, Clone, Copy)]
struct QueueCounts {
    waiting: u64,
    in_flight: u64,
}

/// Counts the messages in the queue of a subscriber, if it has one.
async fn queue_counts(
    deployment: &Deployment,
    subscriber: &Subscriber,
) -> Result<Option<QueueCounts>> {
    let Some(url) = &subscriber.queue else { return Ok(None) };
    let names =
        [Attribute::ApproximateNumberOfMessages, Attribute::ApproximateNumberOfMessagesNotVisible];
    let get = deployment
        .sqs
        .get_queue_attributes()
        .queue_url(url)
        .set_attribute_names(Some(names.to_vec()));
    let found = get
        .send()
        .await
        .with_context(|| format!("the queue of {}", subscriber.compared.id))?
        .attributes;
    let [waiting, in_flight] = names.map(|name| found.as_ref()?.get(&name)?.parse().ok());
    Ok(Some(QueueCounts { waiting: waiting.unwrap_or(0), in_flight: in_flight.unwrap_or(0) }))
}

/// Prints every subscriber with its table and its generations.
pub(crate) async fn list(deployment: &Deployment, stack: &Stack, out: Output) -> Result<()> {
    let mut rows = Vec::new();
    for subscriber in subscribers(deployment, stack).await? {
        let table = &subscriber.compared.table;
        let generations = table.at(0).generations().await?;
        let other = generations.standby.as_ref().map(|other| match other.phase {
            Phase::Building => format!("{} is being built", other.number),
            Phase::Kept => format!("{} is the previous one", other.number),
            Phase::Dropping => format!("{} is being deleted", other.number),
        });
        let described =
            deployment.dynamodb.describe_table().table_name(table.name()).send().await?;
        // The items of a table with the generations of many views are no rows.
        let items = described.table.and_then(|table| table.item_count);
        let items = items.filter(|_| !table.is_in_other_store());
        rows.push(json!({
            "who": subscriber.compared.id, "from": kind(subscriber.compared.kind), "of": subscriber.compared.of.join(", "), "table": table.name(),
            "items": items, "generation": generations.active, "other": other,
            "rebuild": if subscriber.is_rebuildable { "yes" } else { "no" },
        }));
    }
    out.rows(&["who", "from", "of", "table", "items", "generation", "other", "rebuild"], &rows);
    Ok(())
}

/// Prints the lag of each subscriber. Returns `false` if a subscriber lacks an old commit, is ahead
/// or is unreadable.
pub(crate) async fn lag(
    deployment: &Deployment,
    stack: &Stack,
    options: &LagArgs,
    out: Output,
) -> Result<bool> {
    let now = Timestamp::now();
    let log = deployment.log()?;
    let order = deployment.order();
    let since = match (options.since, options.all) {
        (Some(since), _) => Some(since),
        (None, true) => None,
        (None, false) => {
            order
                .as_ref()
                .context("the stack has no `$all`: give --all, which scans the whole log")?;
            Some(now - SignedDuration::from_hours(1))
        }
    };
    let subscribers = subscribers(deployment, stack).await?;
    let compared: Vec<_> =
        subscribers.iter().map(|subscriber| subscriber.compared.clone()).collect();
    let comparison = Comparison {
        log: &log,
        parts: deployment.parts(),
        order: order.as_ref(),
        with_order: true,
        subscribers: &compared,
        since,
        until: now,
        most: usize::MAX,
    };
    let busy = out.busy("comparing the subscribers with the log");
    let found = comparison.run().await?;
    drop(busy);
    let limit = now - SignedDuration::from_secs(options.older.into());
    let backlogs = backlogs(&log, &found, limit).await?;
    let mut rows = Vec::new();
    for counts in &found.looked {
        let subscriber = subscribers.iter().find(|subscriber| subscriber.compared.id == counts.who);
        let backlog = backlogs.get(counts.who.as_str()).copied().unwrap_or_default();
        rows.push(lag_row(deployment, subscriber, counts, backlog).await?);
    }
    out.rows(&LAG_FIELDS, &rows);
    if let (Some(sequence), Some(_)) = (&order, since) {
        print_newest_entry(sequence, out).await?;
    }
    // A subscriber that is ahead, or cannot read its position, does not recover by itself.
    Ok(found.ahead.is_empty()
        && found.unreadable.is_empty()
        && !backlogs.values().any(|backlog| backlog.is_late))
}

/// The commits that a subscriber lacks.
#[derive(Debug, Clone, Copy, Default)]
struct Backlog {
    commits: u64,
    oldest: Option<Timestamp>,
    /// Whether one of the commits is older than the operator allows.
    is_late: bool,
}

/// Returns the backlogs of the subscribers that lack commits, by their ids.
async fn backlogs<'f>(
    log: &DynamoDbStore,
    found: &'f Found,
    limit: Timestamp,
) -> Result<BTreeMap<&'f str, Backlog>> {
    let mut backlogs = BTreeMap::<&str, Backlog>::new();
    for missing in &found.missing {
        let at = log.commit_time(&missing.stream, missing.found + 1).await?;
        let backlog = backlogs.entry(&missing.who).or_default();
        backlog.commits += missing.head - missing.found;
        backlog.oldest = [backlog.oldest, at].into_iter().flatten().min();
        // A commit without a time is a hole, or damaged.
        backlog.is_late |= at.is_none_or(|at| !is_young(at, limit));
    }
    Ok(backlogs)
}

/// Returns the row of a subscriber, or of `$all`, which is none.
async fn lag_row(
    deployment: &Deployment,
    subscriber: Option<&Subscriber>,
    counts: &ComparisonCounts,
    Backlog { commits, oldest, is_late: _ }: Backlog,
) -> Result<Value> {
    let ComparisonCounts { who, streams, missing, ahead, forgotten: _, unreadable } = counts;
    let queue = match subscriber {
        Some(subscriber) => queue_counts(deployment, subscriber).await?,
        None => None,
    };
    Ok(json!({
        "who": who, "streams": streams, "missing": missing, "ahead": ahead, "unreadable": unreadable, "commits": commits, "oldest": oldest,
        "queued": queue.map(|queue| queue.waiting), "taken": queue.map(|queue| queue.in_flight),
    }))
}

/// Prints the time of the newest entry of `$all`.
async fn print_newest_entry(sequence: &DynamoDbStore, out: Output) -> Result<()> {
    let entered = newest_segment(sequence).await?.map(|segment| segment.at);
    out.line_or_note(&json!({ "who": ORDER, "newest": entered }), || {
        let entered = entered
            .map_or_else(|| "it is empty".to_owned(), |at| format!("its newest entry is of {at}"));
        format!(
            "\ncommits that `$all` lacks are not compared; {entered}. --all compares the whole log"
        )
    });
    Ok(())
}
