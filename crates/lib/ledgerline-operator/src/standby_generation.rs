//! The build of a view's standby generation: the view's function writes it next to the active one.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use backon::{ConstantBuilder, Retryable};
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use ledgerline::{StreamId, manifest::SubscriberKind, view_store::ViewError};
use ledgerline_dynamodb::{Generations, Phase, Standby, ViewTable};
use ledgerline_lambda::rebuild::{RebuildRequest, RebuildResponse};
use serde_json::json;

use crate::{
    WriteArgs,
    price::{READS, WRITES},
    view_generations::{BuildArgs, MAX_WITHOUT, View, Without},
};

/// The number of retries for a part after failures, such as a killed function.
const MAX_FAILURES: usize = 20;
/// The pause before each of these retries.
const BACKOFF: Duration = Duration::from_millis(500);
/// The pause between two invocations of a subscription, and before streams are compared again.
const LATER: Duration = Duration::from_secs(1);
/// The number of streams that are compared at once.
const AT_ONCE: usize = 32;
/// The number of streams that the function rebuilds in one invocation.
const STREAMS: usize = 20;
/// The number of rounds without progress after which the closing comparison gives up.
const ROUNDS: usize = 10;
/// The number of these rounds, for a generation that may lack any stream: one waits for messages in
/// flight, and one repairs.
const ANYWAY_ROUNDS: usize = 2;
/// The most comparisons of a switch. Each one but the last was followed by a mark.
const COMPARISONS: usize = 5;
/// The most streams that are printed for people.
const NAMED: usize = 10;

/// The version of a stream in the log, and the one in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Versions {
    log: u64,
    view: u64,
}

/// The streams whose version in the view is lower than in the log.
type Missing = BTreeMap<StreamId, Versions>;

/// The result of the closing comparison.
struct Comparison {
    missing: Missing,
    /// The function's reasons for streams that it could not rebuild.
    reasons: BTreeMap<StreamId, String>,
}

impl View<'_> {
    /// Builds the standby generation, and leaves reads on the active one.
    pub(crate) async fn start(
        &self,
        generations: Generations,
        build: &BuildArgs,
        write_args: &WriteArgs,
    ) -> Result<bool> {
        let plan = format!("{}, and leave reads on the active one", self.plan(&generations)?);
        if !write_args.write {
            self.print_plan(&format!("{plan}; {}", self.estimate().await?));
            return Ok(true);
        }
        let Some(building) = self.begin(generations, &plan, write_args).await? else {
            return Ok(false);
        };
        self.build(&building, build).await?;
        let number = building.generation_in_phase(Phase::Building).unwrap_or_default();
        let without = Without::Streams(&[]);
        if !self.is_complete(&self.compare(number, without).await?, "start", without) {
            return Ok(false);
        }
        self.out.note("every stream matches the log; all reads stay on the active generation");
        Ok(true)
    }

    /// Completes the standby generation, compares it with the log, and switches reads to it.
    /// `without` has the streams that it may lack.
    pub(crate) async fn switch(
        &self,
        generations: Generations,
        build: &BuildArgs,
        without: &[String],
        write_args: &WriteArgs,
    ) -> Result<bool> {
        let kept = generations.generation_in_phase(Phase::Kept);
        if kept.is_some_and(|kept| kept < generations.active) {
            self.report_active(&generations).await;
            return Ok(true);
        }
        // After a rollback, the newer generation needs no build.
        let plan = match kept {
            Some(kept) => format!("return to generation {kept} of {}", self.subscriber.compared.id),
            None => self.plan(&generations)?,
        };
        let plan = format!("{plan}, compare it with the log, and switch all reads to it");
        if !write_args.write {
            self.print_plan(&format!("{plan}; {}", self.estimate().await?));
            return Ok(true);
        }
        let Some(from) = self.begin(generations, &plan, write_args).await? else {
            return Ok(false);
        };
        let built = match kept {
            Some(_) => RebuildResponse::default(),
            None => self.build(&from, build).await?,
        };
        let without = Without::Streams(without);
        let Some(active) = self.compare_and_switch(&from, "switch", without, write_args).await?
        else {
            return Ok(false);
        };
        let RebuildResponse { commits, reads, writes, .. } = built;
        if self.out.json {
            let units = json!({
                "generation": active, "commits": commits, "reads": reads, "writes": writes,
            });
            self.out.line(&units.to_string());
        }
        Ok(true)
    }

    /// Compares the standby generation with the log, repairs it, and switches reads to it, unless
    /// it lacks other streams than those that it may lack. Returns the new active generation.
    pub(crate) async fn compare_and_switch(
        &self,
        from: &Generations,
        verb: &str,
        without: Without<'_>,
        write_args: &WriteArgs,
    ) -> Result<Option<u32>> {
        let to = from.standby.as_ref().context("there is no standby generation")?.number;
        self.wait_for_switch(from).await;
        for _ in 0..COMPARISONS {
            // Each later mark is a change, so that the switch finds it.
            let mut from = self.table.remove_marks().await?;
            let comparison = self.compare(to, without).await?;
            if !self.is_complete(&comparison, verb, without) {
                return Ok(None);
            }
            let mut left_out: BTreeSet<_> = comparison.missing.into_keys().collect();
            loop {
                let (what, but) = name_switch(verb, &left_out);
                let switch = |now| from.switch(to, now);
                if let Some(switched) =
                    self.try_change(&from, switch, &what, &write_args.why()).await?
                {
                    self.report_switch(&switched, &but).await;
                    return Ok(Some(to));
                }
                let now = self.table.generations().await?;
                let marks = now.marks_since(&from).ok_or_else(|| self.changed())?;
                if !without.has_all(marks) {
                    break;
                }
                left_out.extend(marks.streams.iter().cloned());
                from = now;
            }
        }
        bail!(
            "functions marked streams of generation {to} as behind after each of {COMPARISONS} comparisons; run the command again"
        )
    }

    /// Prints that reads switch, and waits until they have switched.
    async fn report_switch(&self, switched: &Generations, but: &str) {
        let to = switched.active;
        if let Some(Standby { number, .. }) = &switched.standby {
            let back = if to > *number { "rollback" } else { "switch" };
            self.out.note(&format!(
                "every stream{but} matches the log. In {} seconds, all reads are on generation {to}. Generation {number} stays until `ledger rebuild drop`; `ledger rebuild {back}` returns to it",
                switched.switching().as_secs(),
            ));
        }
        self.wait_for_switch(switched).await;
    }

    /// Returns the first step of a build, as text.
    ///
    /// # Errors
    /// When the previous generation still exists.
    fn plan(&self, generations: &Generations) -> Result<String> {
        let id = &self.subscriber.compared.id;
        match generations.standby.as_ref().map(|standby| standby.phase) {
            None => Ok(format!("build a standby generation of {id}")),
            Some(Phase::Building) => Ok(format!("resume the standby generation of {id}")),
            Some(Phase::Kept) => bail!(
                "the previous generation still exists: run `ledger rebuild drop` or `ledger rebuild rollback`"
            ),
            Some(Phase::Dropping) => {
                bail!("the standby generation is being deleted: finish with `ledger rebuild drop`")
            }
        }
    }

    /// Begins the standby generation, unless there is one to resume. Returns `None` if the operator
    /// declines.
    async fn begin(
        &self,
        generations: Generations,
        plan: &str,
        write_args: &WriteArgs,
    ) -> Result<Option<Generations>> {
        if generations.generation_in_phase(Phase::Building).is_some() {
            self.out.note("resuming the rebuild of the standby generation");
            return Ok(Some(generations));
        }
        if !write_args.confirm(&format!("{}.\n{plan}?", self.estimate().await?))? {
            return Ok(None);
        }
        if generations.standby.is_some() {
            return Ok(Some(generations));
        }
        let begun = self
            .change(&generations, |now| generations.begin_build(now), "begin", &write_args.why())
            .await?;
        Ok(Some(begun))
    }

    /// Builds the standby generation, until every function writes it. Prints the used units, and
    /// the streams that the function could not build.
    async fn build(&self, building: &Generations, build: &BuildArgs) -> Result<RebuildResponse> {
        let number = building
            .generation_in_phase(Phase::Building)
            .context("no generation is being built")?;
        let built = match self.subscriber.compared.kind {
            SubscriberKind::Subscription => self.build_in_order(number, MAX_FAILURES).await?,
            SubscriberKind::StateProjector
            | SubscriberKind::LogProjector
            | SubscriberKind::ProcessManager => {
                let built = self.build_parts(number, build).await?;
                self.out.note(&format!("built from {} commits: {}", built.commits, cost(&built)));
                built
            }
        };
        // A stream that fails twice is printed once.
        let failed: BTreeMap<_, _> =
            built.failed.iter().map(|failed| (&failed.stream, &failed.reason)).collect();
        for (stream, reason) in failed {
            self.out.rows(&["stream", "reason"], &[json!({ "stream": stream, "reason": reason })]);
        }
        self.wait_for_cached_generations(building).await;
        Ok(built)
    }

    /// Whether the standby generation lacks no other streams than those that it may lack. Prints
    /// all streams that it lacks.
    fn is_complete(
        &self,
        Comparison { missing, reasons }: &Comparison,
        verb: &str,
        without: Without<'_>,
    ) -> bool {
        if missing.is_empty() {
            return true;
        }
        let row = |(stream, Versions { log, view }): (&StreamId, &Versions)| {
            let reason = reasons.get(stream);
            json!({ "what": "missing", "stream": stream, "log": log, "there": view, "reason": reason })
        };
        let shown = if self.out.json { missing.len() } else { NAMED };
        let rows: Vec<_> = missing.iter().take(shown).map(row).collect();
        let fields = ["what", "stream", "log", "there", "reason"];
        self.out.rows(if reasons.is_empty() { &fields[..4] } else { &fields }, &rows);
        let left = missing.keys().filter(|stream| !without.has(stream)).count();
        if left > 0 {
            let advice = match verb {
                "rollback" => "roll back with --anyway",
                _ => "name each with `ledger rebuild switch --without`",
            };
            self.out.note(&format!(
                "\n{left} streams differ from the log, so all reads stay on the active generation. Repair these streams, or {advice}"
            ));
        }
        left == 0
    }

    /// Makes the function rebuild every part of the log, several parts at once.
    async fn build_parts(&self, number: u32, build: &BuildArgs) -> Result<RebuildResponse> {
        let (commits, _) = self.deployment.log_size().await?;
        let bar = self
            .out
            .bar(commits, "{wide_bar} {pos} of {len} commits, {per_sec}, {eta} left; {msg}");
        // Each worker has the same share of the write units.
        let share = build.write_units.map(|units| f64::from(units) / f64::from(build.workers));
        // The last response for each part.
        let responses = RefCell::new(BTreeMap::<i32, RebuildResponse>::new());
        let sum = || {
            let mut sum = RebuildResponse::default();
            responses.borrow().values().for_each(|response| sum.add(response));
            sum
        };
        let parts = self.parts(build.parts);
        let build_all = stream::iter(0..parts).map(|part| {
            let (bar, responses, sum) = (&bar, &responses, &sum);
            async move {
                let request = RebuildRequest {
                    generation: number,
                    part,
                    parts,
                    write_units: share,
                    ..RebuildRequest::default()
                };
                let mut failed = Vec::new();
                loop {
                    let mut response = self.retry(&request, bar, MAX_FAILURES).await;
                    let response = response.as_mut().map_err(|error| {
                        anyhow!("part {part} of {parts} cannot be built: {error:#}")
                    })?;
                    failed.append(&mut response.failed);
                    response.failed.clone_from(&failed);
                    let is_done = response.is_done;
                    let pause = Duration::from_millis(response.pause);
                    responses.borrow_mut().insert(part, std::mem::take(response));
                    let sum = sum();
                    bar.set_position(sum.commits);
                    bar.set_message(cost(&sum));
                    if is_done {
                        return Ok::<_, anyhow::Error>(());
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        });
        build_all.buffer_unordered(build.workers.into()).try_collect::<()>().await?;
        bar.finish_and_clear();
        Ok(sum())
    }

    /// Invokes the subscription until the generation contains all of `$all`.
    async fn build_in_order(&self, number: u32, failures: usize) -> Result<RebuildResponse> {
        let bar = self.out.bar(0, "{spinner} {elapsed} in the order of `$all`; {msg}");
        // An invocation is not done if another holder has the checkpoint, or if its time runs out.
        let request = RebuildRequest { generation: number, ..RebuildRequest::default() };
        while !self.retry(&request, &bar, failures).await?.is_done {
            tokio::time::sleep(LATER).await;
        }
        bar.finish_and_clear();
        Ok(RebuildResponse::default())
    }

    /// Compares every stream with its head in the log, and makes the function write missing
    /// commits.
    ///
    /// The heads are read once. Deliveries write later commits into this generation, so each stream
    /// only has to reach its head of that read. If the generation may lack any stream, a failed
    /// invocation ends the repair.
    async fn compare(&self, number: u32, without: Without<'_>) -> Result<Comparison> {
        let is_short = matches!(without, Without::AnyStream);
        let (rounds, failures) = if is_short { (ANYWAY_ROUNDS, 0) } else { (ROUNDS, MAX_FAILURES) };
        let table = self.table.at(number);
        let heads = self.deployment.log()?.heads(self.deployment.parts()).await?;
        let streams =
            heads.into_iter().filter(|(stream, _)| self.subscriber.compared.takes(stream));
        let all = streams
            .map(|(stream, head)| (stream, Versions { log: head.version, view: 0 }))
            .collect();
        let mut missing = self.find_missing(&table, all).await?;
        let mut is_first = true;
        let mut in_vain = 0;
        let mut reasons = BTreeMap::new();
        let mut is_failed = false;
        while !missing.is_empty() && in_vain < rounds && !(is_failed && is_short) {
            if self.subscriber.compared.kind == SubscriberKind::Subscription {
                if let Err(error) = self.build_in_order(number, failures).await {
                    let reason = format!("{error:#}");
                    reasons.extend(missing.keys().map(|stream| (stream.clone(), reason.clone())));
                    break;
                }
            } else if !is_first {
                // The first round only waits for messages in flight. Later rounds write the missing
                // commits from the log.
                for streams in missing.keys().cloned().collect::<Vec<_>>().chunks(STREAMS) {
                    let built = self.build_streams(number, streams.to_vec()).await;
                    is_failed = built.is_err();
                    match built {
                        Ok(failed) => reasons.extend(failed),
                        // The next comparison finds the streams that were not written.
                        Err(error) => self.out.note(&format!("{error:#}")),
                    }
                    if is_failed && is_short {
                        break;
                    }
                }
            }
            // Eventually consistent reads need some time to return the new rows.
            tokio::time::sleep(LATER).await;
            let left = self.find_missing(&table, missing.clone()).await?;
            // Versions in the view only grow, and the heads stay the same, so the loop ends.
            in_vain = if left == missing { in_vain + 1 } else { 0 };
            (missing, is_first) = (left, false);
        }
        Ok(Comparison { missing, reasons })
    }

    /// Makes the function write missing commits. Returns its reasons for the streams that it could
    /// not rebuild.
    async fn build_streams(
        &self,
        number: u32,
        streams: Vec<StreamId>,
    ) -> Result<impl Iterator<Item = (StreamId, String)>> {
        let request = RebuildRequest { generation: number, streams, ..RebuildRequest::default() };
        let built = self.invoke(&request).await?;
        Ok(built.failed.into_iter().map(|failed| (failed.stream, failed.reason)))
    }

    /// Returns those of the streams whose version in the view is lower than in the log.
    async fn find_missing(&self, table: &ViewTable, streams: Missing) -> Result<Missing> {
        let compared = stream::iter(streams).map(|(stream, Versions { log, view })| async move {
            let read = match table.applied_version(&stream).await {
                // The function has the reason for which it cannot repair the stream.
                Err(ViewError::Row(_)) => 0,
                read => read?,
            };
            // An eventually consistent read may return an older version after a newer one.
            Ok::<_, anyhow::Error>((stream, Versions { log, view: read.max(view) }))
        });
        let compared = compared.buffer_unordered(AT_ONCE);
        compared
            .try_filter(|(_, Versions { log, view })| std::future::ready(view < log))
            .try_collect()
            .await
    }

    /// Invokes the function, and retries after this number of failures.
    async fn retry(
        &self,
        request: &RebuildRequest,
        bar: &ProgressBar,
        failures: usize,
    ) -> Result<RebuildResponse> {
        let often = ConstantBuilder::default().with_delay(BACKOFF).with_max_times(failures);
        let invoke = || self.invoke(request);
        let failed = |error: &anyhow::Error, _| {
            bar.set_message(format!("retrying after a failure: {error:#}"))
        };
        invoke.retry(often).sleep(tokio::time::sleep).notify(failed).await
    }

    async fn invoke(&self, request: &RebuildRequest) -> Result<RebuildResponse> {
        self.deployment.invoke_view(&self.subscriber.compared.id, request).await
    }
}

/// Returns the name of a switch in the history, and the streams that do not match the log, as text.
fn name_switch(verb: &str, left_out: &BTreeSet<StreamId>) -> (String, String) {
    let streams = match left_out.len() {
        0 => return (verb.to_owned(), String::new()),
        1..=MAX_WITHOUT => left_out.iter().map(StreamId::as_str).collect::<Vec<_>>().join(", "),
        number => format!("{number} streams"),
    };
    (format!("{verb} without {streams}"), format!(" but {streams}"))
}

/// Returns the used units and their price, as text.
fn cost(built: &RebuildResponse) -> String {
    let dollars = (built.reads * READS + built.writes * WRITES) / 1e6;
    format!("{:.0} read units, {:.0} write units, {dollars:.4} US$", built.reads, built.writes)
}
