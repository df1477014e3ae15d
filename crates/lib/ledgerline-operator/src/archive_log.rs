//! The archive of old commits in body objects.

use std::{
    collections::{BTreeSet, HashSet},
    num::NonZeroU32,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::{Span, Timestamp, tz::TimeZone};
use ledgerline::{
    Consistency, EventLog, Range, StoreError, StreamId,
    manifest::{BODIES_BUCKET, Name},
};
use ledgerline_dynamodb::{Archive, ArchiveCounts, DynamoDbStore, StoredCommit};
use ledgerline_s3::S3Bodies;
use ledgerline_sam::lookup::{binary, resources};
use serde_json::json;

use crate::{
    Output, Stack, WriteArgs,
    deployed::Deployed,
    deployment::Deployment,
    price,
    records::{self, Record},
};

/// The fewest commits of a stream that are worth an object.
const LEAST: usize = 8;
/// The bytes of an object, without compression.
const OBJECT: u64 = 256 * 1024;
/// The attempts to archive a run of commits while the database throttles, and the pause between two.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_secs(10);
const MILLION: f64 = 1e6;
const GIGABYTE: f64 = 1e9;

/// The options of `ledger archive`.
#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// Archive commits of streams of this category.
    #[arg(long)]
    pub(crate) category: String,
    /// Archive commits older than this time: `730d`, `2y` or `36h`.
    #[arg(long, value_name = "TIME")]
    older: Span,
    /// Consume at most this number of write units a second.
    #[arg(long, default_value = "200")]
    write_units: NonZeroU32,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// The commits to archive, and what that costs.
#[derive(Debug, Default)]
struct Plan {
    streams: Vec<(StreamId, Vec<RangeInclusive<u64>>)>,
    commits: u64,
    objects: u64,
    /// The bytes of the items, and the bytes that the log keeps of them.
    bytes: usize,
    stub_bytes: usize,
    /// The read units of the scan and of the archive.
    reads: f64,
    writes: f64,
    /// The keys of the objects that an item names.
    named: HashSet<String>,
}

/// Archives commits, or prints what that would cost. Returns `false` if a stream fails, or the
/// operator declines.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &ArchiveArgs,
    out: Output,
) -> Result<bool> {
    let ArchiveArgs { category, older, write_units, write_args } = options;
    check_readers(deployment, &Deployed::read(deployment, stack).await?, category)?;
    let bucket = deployment.shared_variable(BODIES_BUCKET)?;
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let cutoff = now.checked_sub(*older);
    let cutoff = cutoff.context("`--older` is too long: choose a shorter time")?.timestamp();
    if cutoff > now.timestamp() {
        bail!("`--older` is negative: write a time such as `730d`");
    }
    let log = deployment.log()?;
    let busy = out.busy("reading the log");
    // List keys first: a writer names an object seconds after its PUT.
    let prefix = format!("bodies/{category}-");
    let keys = ledgerline_s3::list_keys(&deployment.sdk, bucket, &prefix).await?;
    let plan = make_plan(&log, category, cutoff).await?;
    let unnamed = keys.iter().filter(|key| !plan.named.contains(*key)).count();
    drop(busy);
    out.rows(
        &[
            "category",
            "cutoff",
            "streams",
            "commits",
            "bytes",
            "objects",
            "cost",
            "savesMonthly",
            "paysAfterMonths",
            "unnamedObjects",
        ],
        &[json!({
            "category": category, "cutoff": cutoff, "streams": plan.streams.len(),
            "commits": plan.commits, "bytes": plan.bytes, "objects": plan.objects,
            "cost": dollars(plan.cost()), "savesMonthly": dollars(plan.monthly_saving()),
            "paysAfterMonths": plan.months(),
            "unnamedObjects": unnamed,
        })],
    );
    if !write_args.write || plan.commits == 0 {
        return Ok(true);
    }
    let what = format!("archive {} commits of {} streams", plan.commits, plan.streams.len());
    if !write_args.confirm(&format!("{what}?"))? {
        return Ok(false);
    }
    let why = write_args.why();
    let detail = json!({ "category": category, "cutoff": cutoff });
    let record = Record { kind: "archive", what, why, detail };
    records::store(deployment, records::table(deployment)?, record).await?;
    let bodies = Arc::new(S3Bodies::new(&deployment.sdk, bucket));
    archive_all(Archive::new(log, bodies, *write_units), &plan, out).await
}

/// Checks that the live version of each function that reads the category reads body objects, too.
fn check_readers(deployment: &Deployment, deployed: &Deployed, category: &str) -> Result<()> {
    let categories = BTreeSet::from([Name::from(category.to_owned())]);
    let functions = resources(&deployed.template, &["AWS::Serverless::Function"]);
    let unready = functions.filter(|(id, function)| {
        let Some(manifest) = deployed.manifests.get(binary(function)) else { return false };
        let reads = manifest.bodies.as_ref().is_some_and(|grants| grants.reads.contains(category));
        let is_live = deployment.function(id).is_ok_and(|function| {
            function.is_newest == Ok(true) && function.variables.contains_key(BODIES_BUCKET)
        });
        manifest.body_grants(&categories).is_some() && !(reads && is_live)
    });
    let unready: Vec<_> = unready.map(|(id, _)| id).collect();
    if !unready.is_empty() {
        bail!(
            "no live version reads the body objects of `{category}` in: {}. Write `bodies` into \
             `handlers!` of each package, and deploy (docs/data.md)",
            unready.join(", ")
        );
    }
    Ok(())
}

/// Reads the log, and returns the commits to archive: those before this time, and before the newest
/// state of their stream, so that no cold load reads their objects.
async fn make_plan(log: &DynamoDbStore, category: &str, cutoff: Timestamp) -> Result<Plan> {
    let (mut plan, mut survey) = (Plan::default(), log.survey(category));
    while let Some((stream, commits)) = survey.next().await? {
        plan.named.extend(commits.iter().filter_map(|commit| commit.body.clone()));
        let old = commits.iter().filter(|commit| is_old(commit, cutoff)).count();
        if old < LEAST {
            continue;
        }
        let mut newest = newest_state(&commits);
        // The state of a commit with a body is in its object.
        let has_body = |it: &StoredCommit| it.version > newest && it.body.is_some() && !it.is_stub;
        if commits.iter().any(has_body) {
            newest = match newest_stored_state(log, &stream, newest).await {
                // Fewer commits are archived.
                Err(error @ StoreError::Corrupt { .. }) => {
                    eprintln!("{stream}: {error}");
                    newest
                }
                found => found?,
            };
        }
        let wanted = commits.iter().filter(|it| is_old(it, cutoff) && it.version < newest);
        let wanted: Vec<_> = wanted.collect();
        if wanted.len() >= LEAST {
            plan.add(stream, &wanted);
        }
    }
    plan.reads += survey.units;
    Ok(plan)
}

fn is_old(commit: &StoredCommit, cutoff: Timestamp) -> bool {
    let is_item = commit.body.is_none() && !commit.is_stub && commit.is_known;
    is_item && commit.at.is_some_and(|at| at < cutoff)
}

/// Returns the version of the newest item with a state; 0 if there is none.
fn newest_state(commits: &[StoredCommit]) -> u64 {
    let states = commits.iter().filter(|commit| commit.has_state);
    states.map(|commit| commit.version).max().unwrap_or(0)
}

/// Returns the version of the newest commit with a state, in its item or in its object; this version
/// if none is newer.
async fn newest_stored_state(
    log: &DynamoDbStore,
    stream: &StreamId,
    after: u64,
) -> Result<u64, StoreError> {
    let mut range = Range { after, up_to: u64::MAX, limit: Some(8) };
    loop {
        let page = log.read_for_fold(stream, range, Consistency::Eventual).await?;
        if let Some(newest) = page.commits.iter().find(|commit| commit.state.is_some()) {
            return Ok(newest.version);
        }
        match page.commits.last() {
            Some(last) if !page.complete => range.up_to = last.version - 1,
            Some(_) | None => return Ok(after),
        }
    }
}

impl Plan {
    /// Adds commits of a stream, in order.
    fn add(&mut self, stream: StreamId, commits: &[&StoredCommit]) {
        let mut runs = Vec::<RangeInclusive<u64>>::new();
        for commit in commits {
            match runs.last_mut() {
                Some(run) if run.end() + 1 == commit.version => {
                    *run = *run.start()..=commit.version
                }
                Some(_) | None => runs.push(commit.version..=commit.version),
            }
            self.commits += 1;
            self.bytes += commit.bytes;
            self.stub_bytes += commit.stub_bytes;
            self.reads += units(commit.bytes, 4_096);
            // An update is charged by the larger one of both items.
            self.writes += units(commit.bytes.max(commit.stub_bytes), 1_024);
        }
        let bytes: usize = commits.iter().map(|commit| commit.bytes).sum();
        self.objects += (runs.len() as u64).max((bytes as u64).div_ceil(OBJECT));
        self.streams.push((stream, runs));
    }

    /// Returns the price of the scan and of the archive, in US dollars.
    fn cost(&self) -> f64 {
        let objects = number(self.objects) * (price::PUT + price::GET);
        (self.reads * price::READS + self.writes * price::WRITES + objects) / MILLION
    }

    /// Returns the reduction of the price of storage, in US dollars a month. The objects count as
    /// if they were not compressed.
    fn monthly_saving(&self) -> f64 {
        let log = price::STORAGE + price::BACKUP;
        let kept = number(self.stub_bytes as u64) * log;
        (number(self.bytes as u64) * (log - price::OBJECTS) - kept) / GIGABYTE
    }

    /// Returns the months after which the saving is larger than the cost; `None` if it never is.
    fn months(&self) -> Option<f64> {
        let saving = self.monthly_saving();
        (saving > 0.0).then(|| (self.cost() / saving).ceil())
    }
}

fn units(bytes: usize, unit: usize) -> f64 {
    number(bytes.div_ceil(unit) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a price needs no more than 53 bits")]
fn number(number: u64) -> f64 {
    number as f64
}

/// Returns a price with four places after the point.
fn dollars(price: f64) -> f64 {
    (price * 10_000.0).round() / 10_000.0
}

/// Archives the commits of the plan. A stream with a damaged commit does not stop the others.
async fn archive_all(mut archive: Archive, plan: &Plan, out: Output) -> Result<bool> {
    let bar = out.bar(
        plan.commits,
        "{elapsed_precise} {wide_bar} {pos}/{len} commits, {per_sec}, {eta} left",
    );
    let mut failed = 0;
    for (stream, run) in
        plan.streams.iter().flat_map(|(it, runs)| runs.iter().map(move |run| (it, run)))
    {
        let (mut from, mut to, mut throttled) = (*run.start(), *run.end(), 0);
        while from <= *run.end() {
            match archive.archive(stream, from..=to).await {
                // The next version is damaged, or behind the run.
                Ok(()) => (from, to) = (to + 2, *run.end()),
                // The commits on both sides of a damaged one are archived.
                Err(StoreError::Corrupt { version, reason, .. }) => {
                    failed += 1;
                    eprintln!("version {version} of `{stream}` is not archived: {reason}");
                    match (from..=to).contains(&version) && version > from {
                        true => to = version - 1,
                        false => (from, to) = (from + 1, *run.end()),
                    }
                }
                Err(StoreError::Throttled(_)) if throttled < ATTEMPTS => {
                    throttled += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    let advice = "the archive stopped: run the command again, and it resumes";
                    return Err(anyhow::Error::from(error).context(advice));
                }
            }
        }
        bar.inc(run.end() - run.start() + 1);
    }
    bar.finish_and_clear();
    let ArchiveCounts { commits, objects, write_units } = archive.counts();
    let row = json!({
        "archived": commits, "objects": objects, "writeUnits": write_units, "failed": failed,
    });
    out.rows(&["archived", "objects", "writeUnits", "failed"], &[row]);
    Ok(failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(version: u64, bytes: usize) -> StoredCommit {
        let at = Some(Timestamp::UNIX_EPOCH);
        let (body, stub_bytes) = (None, 150);
        let (has_state, is_stub, is_known) = (false, false, true);
        StoredCommit { version, at, bytes, stub_bytes, has_state, body, is_stub, is_known }
    }

    #[test]
    fn a_plan_has_a_run_for_commits_that_follow_each_other() {
        let commits: Vec<_> = [1, 2, 3, 5, 6, 9].map(|version| stored(version, 1_100)).into();
        let mut plan = Plan::default();
        let stream = StreamId::new("tank", "north").unwrap();
        plan.add(stream.clone(), &commits.iter().collect::<Vec<_>>());
        assert_eq!(plan.streams, [(stream, vec![1..=3, 5..=6, 9..=9])]);
        assert_eq!((plan.commits, plan.objects, plan.bytes), (6, 3, 6_600));
        assert_eq!((plan.reads, plan.writes), (6.0, 12.0));
    }

    /// A million commits of 1 KB in objects of a hundred: writes 0.625, reads 0.125, objects 0.054.
    #[test]
    fn the_cost_and_the_saving_are_those_of_the_price_list() {
        let plan = Plan {
            commits: 1_000_000,
            objects: 10_000,
            bytes: 1_000_000_000,
            stub_bytes: 150_000_000,
            reads: 1_000_000.0,
            writes: 1_000_000.0,
            ..Plan::default()
        };
        assert!((plan.cost() - 0.804).abs() < 1e-9, "{}", plan.cost());
        // 1 GB at 0.25 + 0.20, less 1 GB at 0.023 and 0.15 GB at 0.45.
        assert!((plan.monthly_saving() - 0.3595).abs() < 1e-9, "{}", plan.monthly_saving());
    }

    #[test]
    fn an_archived_damaged_young_large_or_unknown_commit_is_not_archived() {
        let young = Timestamp::UNIX_EPOCH;
        let old = young + Span::new().seconds(1);
        let stub = StoredCommit { is_stub: true, body: Some("key".into()), ..stored(1, 9) };
        let large = StoredCommit { is_stub: false, ..stub.clone() };
        assert!(is_old(&stored(1, 9), old));
        for (commit, cutoff) in [
            (stub, old),
            (large, old),
            (StoredCommit { at: None, ..stored(1, 9) }, old),
            (StoredCommit { is_known: false, ..stored(1, 9) }, old),
            (stored(1, 9), young),
        ] {
            assert!(!is_old(&commit, cutoff), "{commit:?}");
        }
    }
}
