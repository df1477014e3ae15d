//! The redelivery of commits. A subscriber may get a commit twice, so any commit can be redelivered
//! at any time.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use ledgerline::StreamId;
use serde_json::json;

use crate::{
    Output, Stack, WriteArgs,
    deployment::{Deployment, SEQUENCER},
    reconciliation::{self, ReconcileArgs},
    records::{self, Record},
    repair::Repair,
    send_records::send_records,
};

/// The number of streams that are sent at once.
const AT_ONCE: usize = 4;

/// The options of `ledger redeliver`.
#[derive(Debug, Args)]
pub(crate) struct RedeliverArgs {
    /// The stream to redeliver.
    #[arg(required_unless_present_any = ["since", "all", "missing"], conflicts_with_all = ["since", "all", "missing"])]
    stream: Option<String>,
    /// Begin with this version of the stream.
    #[arg(long, default_value_t = 1, requires = "stream")]
    from: u64,
    /// End with this version, instead of the head.
    #[arg(long, requires = "stream")]
    to: Option<u64>,
    /// With --since, redeliver the streams with commits up to this time, instead of one stream.
    #[arg(long, requires = "since", conflicts_with = "missing")]
    until: Option<Timestamp>,
    /// Redeliver every stream from its first version, instead of one stream.
    #[arg(long, conflicts_with_all = ["since", "missing"])]
    all: bool,
    /// Put the commits into `$all`, and send them to no subscriber. Needed for a log that is older
    /// than `$all`.
    #[arg(long, conflicts_with = "missing")]
    order: bool,
    /// Send each subscriber only the commits that it lacks, as `ledger reconcile` finds them. With
    /// --since, compare only streams with entries in `$all` since that time.
    #[arg(long)]
    missing: bool,
    /// With --missing, let process managers act on the commits that they lack. A new process
    /// manager then acts on every commit of the log.
    #[arg(long, requires_all = ["missing", "write"])]
    act: bool,
    #[command(flatten)]
    compared: ReconcileArgs,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// Redelivers commits, or prints their number. Returns `false` if a stream fails, or the operator
/// declines.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &RedeliverArgs,
    out: Output,
) -> Result<bool> {
    if options.missing {
        let repair = Repair { act: options.act, write_args: &options.write_args };
        return reconciliation::run(deployment, stack, &options.compared, Some(repair), out).await;
    }
    if !options.compared.only.is_empty() || options.compared.younger.is_some() {
        bail!("--only and --younger need --missing");
    }
    let busy = out.busy("looking for the streams");
    let streams = options.streams(deployment).await?;
    drop(busy);
    let to = if options.order { SEQUENCER } else { "FanoutFunction" };
    let commits: u64 = streams.values().map(|(first, last)| last + 1 - first).sum();
    let what = format!("send {commits} commits of {} streams through {to}", streams.len());
    if !options.write_args.write || commits == 0 {
        out.rows(
            &["commits", "streams", "through"],
            &[json!({ "commits": commits, "streams": streams.len(), "through": to })],
        );
        return Ok(true);
    }
    if !options.write_args.confirm(&format!("{what}?"))? {
        return Ok(false);
    }
    let why = options.write_args.why();
    let detail = json!({ "stream": options.stream });
    records::store_if_possible(deployment, Record { kind: "redeliver", what, why, detail }).await?;
    let bar =
        out.bar(commits, "{elapsed_precise} {wide_bar} {pos}/{len} commits, {per_sec}, {eta} left");
    let sent = stream::iter(&streams).map(|(stream, (first, last))| {
        let (commits, bar) =
            ((*first..=*last).map(|version| (stream.clone(), version)).collect::<Vec<_>>(), &bar);
        async move {
            let taken = send_records(deployment, to, &commits).await;
            bar.inc(commits.len() as u64);
            (stream, first, taken)
        }
    });
    // `$all` has one head, at which concurrent sequencers would conflict.
    let at_once = if options.order { 1 } else { AT_ONCE };
    let sent: Vec<_> = sent.buffer_unordered(at_once).collect().await;
    bar.finish_and_clear();
    let mut failed = 0;
    for (stream, first, taken) in sent {
        if let Err(error) = taken {
            failed += 1;
            eprintln!("not sent: {stream}, from version {first} on: {error:#}");
        }
    }
    out.rows(
        &["commits", "streams", "failed"],
        &[json!({ "commits": commits, "streams": streams.len(), "failed": failed })],
    );
    Ok(failed == 0)
}

impl RedeliverArgs {
    /// Returns the streams, each with its first and its last version.
    async fn streams(&self, deployment: &Deployment) -> Result<BTreeMap<StreamId, (u64, u64)>> {
        let log = deployment.log()?;
        if let Some(since) = self.compared.since.or(self.all.then_some(Timestamp::UNIX_EPOCH)) {
            return Ok(log.streams_between(since, self.until.unwrap_or(Timestamp::MAX)).await?);
        }
        let stream = self.stream.clone().unwrap_or_default();
        let stream = StreamId::try_from(stream).context("the name of the stream is not valid")?;
        let head = log.head(&stream).await?;
        let to = self.to.unwrap_or(head.version);
        if head.version == 0 {
            bail!("there is no stream `{stream}`");
        }
        if self.from == 0 || self.from > to || to > head.version {
            bail!("`{stream}` has the versions 1 to {}", head.version);
        }
        Ok(BTreeMap::from([(stream, (self.from, to))]))
    }
}
