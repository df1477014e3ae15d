//! The lists of all subscribers: with their tables and generations, and with their lags.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{all::newest, manifest::SubscriberKind};
use ledgerline_dynamodb::{
    Phase,
    reconcile::{Comparison, Looked, ORDER},
};
use serde_json::json;

use crate::{
    Out, Stack,
    deployment::Deployment,
    subscribers::{Subscriber, subscribers},
};

/// The options of `ledger lag`.
#[derive(Debug, Args)]
pub(crate) struct Lag {
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

/// Returns the numbers of waiting messages and of messages in flight in the queue of a subscriber.
async fn waiting(deployment: &Deployment, subscriber: &Subscriber) -> Result<Option<(u64, u64)>> {
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
        .with_context(|| format!("the queue of {}", subscriber.of_log.id))?
        .attributes;
    let [waiting, taken] = names.map(|name| found.as_ref()?.get(&name)?.parse().ok());
    Ok(Some((waiting.unwrap_or(0), taken.unwrap_or(0))))
}

/// Prints every subscriber with its table and its generations.
pub(crate) async fn list(deployment: &Deployment, stack: &Stack, out: Out) -> Result<()> {
    let mut rows = Vec::new();
    for subscriber in subscribers(deployment, stack).await? {
        let table = &subscriber.of_log.table;
        let generations = table.at(0).generations().await?;
        let other = generations.standby.as_ref().map(|other| match other.phase {
            Phase::Building => format!("{} is being built", other.number),
            Phase::Kept => format!("{} is the previous one", other.number),
            Phase::Dropping => format!("{} is being deleted", other.number),
        });
        let described =
            deployment.dynamodb.describe_table().table_name(table.name()).send().await?;
        let items = described.table.and_then(|table| table.item_count);
        rows.push(json!({
            "who": subscriber.of_log.id, "from": kind(subscriber.of_log.kind), "of": subscriber.of_log.of.join(", "), "table": table.name(),
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
    options: &Lag,
    out: Out,
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
    let compared: Vec<_> = subscribers.iter().map(|subscriber| subscriber.of_log.clone()).collect();
    let comparison = Comparison {
        log: &log,
        parts: deployment.parts(),
        order: order.as_ref().map(|(sequence, partitions)| (sequence, *partitions)),
        with_order: true,
        subscribers: &compared,
        since,
        until: now,
        most: usize::MAX,
    };
    let busy = out.busy("comparing the subscribers with the log");
    let found = comparison.run().await?;
    drop(busy);
    // The number of commits that each subscriber lacks, and the time of the oldest one.
    let mut lacks = BTreeMap::<&str, (u64, Option<Timestamp>)>::new();
    let limit = now - SignedDuration::from_secs(options.older.into());
    // A subscriber that is ahead, or cannot read its position, does not recover by itself.
    let mut is_well = found.ahead.is_empty() && found.unreadable.is_empty();
    for missing in &found.missing {
        let (commits, oldest) = lacks.entry(&missing.who).or_default();
        *commits += missing.head - missing.found;
        let at = log.time_of(&missing.stream, missing.found + 1).await?;
        // A commit without a time is a hole, or damaged.
        is_well &= at.is_some_and(|at| at >= limit);
        *oldest = [*oldest, at].into_iter().flatten().min();
    }
    let mut rows = Vec::new();
    for Looked { who, streams, missing, ahead, forgotten: _, unreadable } in &found.looked {
        let subscriber = subscribers.iter().find(|subscriber| subscriber.of_log.id == *who);
        let queue = match subscriber {
            Some(subscriber) => waiting(deployment, subscriber).await?,
            None => None,
        };
        let (commits, oldest) = lacks.get(who.as_str()).copied().unwrap_or_default();
        rows.push(json!({
            "who": who, "streams": streams, "missing": missing, "ahead": ahead, "unreadable": unreadable, "commits": commits, "oldest": oldest,
            "queued": queue.map(|(waiting, _)| waiting), "taken": queue.map(|(_, taken)| taken),
        }));
    }
    let fields = [
        "who",
        "streams",
        "missing",
        "ahead",
        "unreadable",
        "commits",
        "oldest",
        "queued",
        "taken",
    ];
    out.rows(&fields, &rows);
    if let (Some((sequence, partitions)), Some(_)) = (&order, since) {
        let mut entered = None;
        for partition in 0..*partitions {
            let at = newest(sequence, partition).await?.map(|segment| segment.at);
            entered = [entered, at].into_iter().flatten().max();
        }
        out.line_or_note(&json!({ "who": ORDER, "newest": entered }), || {
            let entered =
                entered.map_or_else(|| "it is empty".to_owned(), |at| format!("its newest entry is of {at}"));
            format!(
                "\ncommits that `$all` lacks are not compared; {entered}. --all compares the whole log"
            )
        });
    }
    Ok(is_well)
}
