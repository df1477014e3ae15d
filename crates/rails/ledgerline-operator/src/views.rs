//! What follows the log: what it is, and how far it is.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use clap::Args;
use jiff::{SignedDuration, Timestamp, Unit};
use ledgerline::EventStore;
use ledgerline_dynamodb::{
    Phase,
    reconcile::{Comparison, Follows},
};
use serde_json::json;

use crate::{
    Out, Stack,
    deployment::Deployment,
    followers::{Follower, followers},
};

/// What is asked about how far views are.
#[derive(Debug, Args)]
pub(crate) struct Lag {
    /// Only streams that came to the order of everything since this time, instead of those of the last hour.
    #[arg(long)]
    since: Option<Timestamp>,
    /// All streams. Scans the whole log.
    #[arg(long, conflicts_with = "since")]
    all: bool,
    /// Ends with 2 if something lacks a commit that is older than so many seconds.
    #[arg(long, default_value_t = 300)]
    older: u32,
}

fn kind(kind: Follows) -> &'static str {
    match kind {
        Follows::States => "states",
        Follows::Log => "log",
        Follows::Order => "order",
        Follows::ToAct => "acts",
    }
}

/// The messages in the queue of a follower: those that wait, and those that are worked on.
async fn waiting(deployment: &Deployment, follower: &Follower) -> Result<Option<(u64, u64)>> {
    let Some(url) = &follower.queue else { return Ok(None) };
    let names = [Attribute::ApproximateNumberOfMessages, Attribute::ApproximateNumberOfMessagesNotVisible];
    let get = deployment.sqs.get_queue_attributes().queue_url(url).set_attribute_names(Some(names.to_vec()));
    let found = get.send().await.with_context(|| format!("the queue of {}", follower.of_log.id))?.attributes;
    let [waiting, taken] = names.map(|name| found.as_ref()?.get(&name)?.parse().ok());
    Ok(Some((waiting.unwrap_or(0), taken.unwrap_or(0))))
}

/// Prints everything that follows the log.
pub(crate) async fn list(deployment: &Deployment, stack: &Stack, out: Out) -> Result<()> {
    let mut rows = Vec::new();
    for follower in followers(deployment, stack).await? {
        let table = &follower.of_log.table;
        let generations = table.at(0).generations(follower.of_log.keys()).await?;
        let other = generations.other.as_ref().map(|other| match other.phase {
            Phase::Building => format!("{} is being made", other.number),
            Phase::Kept => format!("{} is kept", other.number),
            Phase::Leaving => format!("{} is being deleted", other.number),
        });
        let described = deployment.dynamodb.describe_table().table_name(table.name()).send().await?;
        let items = described.table.and_then(|table| table.item_count);
        rows.push(json!({
            "view": follower.of_log.id, "from": kind(follower.of_log.kind), "of": follower.of_log.of.join(", "), "table": table.name(),
            "items": items, "generation": generations.read, "other": other,
            "rebuild": if follower.can_be_made_again { "yes" } else { "no" },
        }));
    }
    out.rows(&["view", "from", "of", "table", "items", "generation", "other", "rebuild"], &rows);
    Ok(())
}

/// Prints how far each follower is. Returns whether nobody lacks an old commit.
pub(crate) async fn lag(deployment: &Deployment, stack: &Stack, options: &Lag, out: Out) -> Result<bool> {
    let now = Timestamp::now();
    let (log, order) = (deployment.log()?, deployment.order());
    let since = match (options.since, options.all) {
        (Some(since), _) => Some(since),
        (None, true) => None,
        (None, false) => {
            order.as_ref().context("without the order of everything, say --all: it scans the whole log")?;
            Some(now - SignedDuration::from_hours(1))
        }
    };
    let followers = followers(deployment, stack).await?;
    let compared: Vec<_> = followers.iter().map(|follower| follower.of_log.clone()).collect();
    let comparison = Comparison {
        log: &log,
        parts: deployment.parts(),
        order: order.as_ref().map(|(sequence, partitions)| (sequence, *partitions)),
        with_order: true,
        followers: &compared,
        since,
        until: now,
    };
    let busy = out.busy("comparing what follows the log with it");
    let found = comparison.run().await?;
    drop(busy);
    // By follower: the commits that it lacks, and the age of the oldest one.
    let mut lacks = BTreeMap::<&str, (u64, Option<Timestamp>)>::new();
    for missing in &found.missing {
        let (commits, oldest) = lacks.entry(&missing.who).or_default();
        *commits += missing.head - missing.found;
        if let Some(commit) = log.get(&missing.stream, missing.found + 1).await? {
            *oldest = Some(oldest.map_or(commit.at, |known| known.min(commit.at)));
        }
    }
    // Who cannot read its position stands still there, and nobody knows since when.
    let mut is_well = found.unreadable.is_empty();
    let mut rows = Vec::new();
    for looked in &found.looked {
        let follower = followers.iter().find(|follower| follower.of_log.id == looked.who);
        let queue = match follower {
            Some(follower) => waiting(deployment, follower).await?,
            None => None,
        };
        let (commits, oldest) = lacks.get(looked.who.as_str()).copied().unwrap_or_default();
        let age = oldest.map(|oldest| now.duration_since(oldest));
        is_well &= age.is_none_or(|age| age.as_secs() <= options.older.into());
        rows.push(json!({
            "view": looked.who, "streams": looked.streams, "behind": looked.missing, "unreadable": looked.unreadable, "commits": commits,
            "oldest": age.and_then(|age| age.round(Unit::Second).ok()).map(|age| age.to_string()),
            "queued": queue.map(|(waiting, _)| waiting), "taken": queue.map(|(_, taken)| taken),
        }));
    }
    out.rows(&["view", "streams", "behind", "unreadable", "commits", "oldest", "queued", "taken"], &rows);
    Ok(is_well)
}
