//! The rebuild of a view: its function writes a standby generation next to the active one.
//!
//! The view's table contains the whole progress of a rebuild: the generations, and the progress of
//! each part of the log. So the tool can be killed at any time, and any operator can resume the
//! rebuild.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use aws_sdk_lambda::primitives::Blob;
use backon::{ConstantBuilder, Retryable};
use clap::{Args, Subcommand, value_parser};
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{StreamId, manifest::SubscriberKind};
use ledgerline_dynamodb::{
    FRESH, Generations, InvalidTransition, Move, Phase, SWITCHING, SegmentProgress, ViewTable,
};
use ledgerline_lambda::rebuild::{RebuildRequest, RebuildResponse};
use serde_json::json;

use crate::{
    Out, Stack, Writing,
    deployment::Deployment,
    subscribers::{Subscriber, named, subscribers},
};

/// Prices of a million read and write units, in US dollars (docs/costs.md).
pub(crate) const READS: f64 = 0.125;
const WRITES: f64 = 0.625;
/// The number of retries for a part after failures, such as a killed function.
const MAX_FAILURES: usize = 20;
/// The pause before each of these retries.
const AGAIN: Duration = Duration::from_millis(500);
/// The pause between two invocations of a subscription, and before streams are compared again.
const LATER: Duration = Duration::from_secs(1);
/// The number of streams that are compared at once.
const AT_ONCE: usize = 32;
/// The number of streams that the function rebuilds in one invocation.
const STREAMS: usize = 20;
/// The number of rounds without progress after which the closing comparison gives up.
const ROUNDS: usize = 10;
/// The most streams that a switch leaves out. The view's history names them, in one item.
const MAX_WITHOUT: usize = 100;
/// The most streams that are printed for people.
const NAMED: usize = 10;

/// The subcommands of `ledger rebuild`.
#[derive(Debug, Subcommand)]
pub(crate) enum Rebuild {
    /// Build the standby generation of a view, or resume it, and leave reads on the active one.
    Start {
        #[command(flatten)]
        view: Of,
        #[command(flatten)]
        build: Build,
    },
    /// Complete the standby generation, compare it with the log, and switch all reads to it.
    ///
    /// Starts the rebuild if there is none. The previous generation stays until `ledger rebuild
    /// drop`.
    Switch {
        #[command(flatten)]
        view: Of,
        #[command(flatten)]
        build: Build,
        /// Switch without this stream, such as one with a damaged commit. The new generation lacks
        /// the stream's missing rows. The view's history names the stream. Repeat the option per
        /// stream.
        #[arg(long, value_name = "STREAM")]
        without: Vec<String>,
    },
    /// Switch all reads back to the previous generation.
    Rollback(Of),
    /// Delete the rows of the standby generation: the previous one, or that of a rebuild that an
    /// operator gives up.
    Drop(Of),
}

impl Rebuild {
    fn view(&self) -> &Of {
        match self {
            Self::Start { view, .. }
            | Self::Switch { view, .. }
            | Self::Rollback(view)
            | Self::Drop(view) => view,
        }
    }

    /// Returns the number of parts, if the command line has it.
    fn parts(&self) -> Option<i32> {
        match self {
            Self::Start { build, .. } | Self::Switch { build, .. } => build.parts,
            Self::Rollback(_) | Self::Drop(_) => None,
        }
    }
}

/// The view, and the reason for the change.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// The logical id of the function that writes the view, or its beginning: Balances.
    view: String,
    #[command(flatten)]
    writing: Writing,
}

/// The options for building a generation.
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// Split the log into this number of parts: 64, or 1 on the local stack, whose database reads
    /// the log fastest as a whole. A rebuild that resumes needs the same number.
    #[arg(long, value_parser = value_parser!(i32).range(1..=1_000_000))]
    parts: Option<i32>,
    /// Build this number of parts at once.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(1..))]
    workers: u16,
    /// Use at most this number of write units a second, so that the table does not throttle other
    /// writers.
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    write_units: Option<u32>,
}

/// A view, and the clients and the output for a rebuild.
struct View<'a> {
    deployment: &'a Deployment,
    subscriber: &'a Subscriber,
    table: ViewTable,
    out: Out,
}

/// Runs the subcommand. Returns whether it finished its work.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    rebuild: &Rebuild,
    out: Out,
) -> Result<bool> {
    let of = rebuild.view();
    let all = subscribers(deployment, stack).await?;
    let subscriber = named(&all, &of.view)?;
    if !subscriber.can_be_made_again {
        bail!(
            "`{}` is not written from commits alone, and cannot be rebuilt; see docs/rebuild.md",
            subscriber.of_log.id
        );
    }
    let view = View { deployment, subscriber, table: subscriber.of_log.table.at(0), out };
    let generations = view.table.generations().await?;
    if !of.writing.write {
        return view.status(&generations, rebuild.parts()).await.map(|()| true);
    }
    match rebuild {
        Rebuild::Start { build, .. } => view.rebuild(generations, build, &of.writing, None).await,
        Rebuild::Switch { without, .. } if without.len() > MAX_WITHOUT => {
            bail!("--without names {} streams; name {MAX_WITHOUT} at most", without.len())
        }
        Rebuild::Switch { build, without, .. } => {
            view.rebuild(generations, build, &of.writing, Some(without)).await
        }
        Rebuild::Rollback(_) => view.roll_back(&generations, &of.writing).await,
        Rebuild::Drop(_) => view.drop(generations, &of.writing).await,
    }
}

impl View<'_> {
    /// Prints the generations, the progress of a rebuild, and the cost of a new one.
    async fn status(&self, generations: &Generations, parts: Option<i32>) -> Result<()> {
        let phase = |phase| match phase {
            Phase::Building => "is being built, and is written",
            Phase::Kept => "is the previous one, and is written",
            Phase::Dropping => "is being deleted",
        };
        let read = generations.active;
        let mut rows = vec![json!({ "generation": read, "is": "is active, and is written" })];
        if let Some(before) = generations.previous.filter(|before| Timestamp::now() < before.until)
        {
            rows = vec![
                json!({ "generation": read, "is": "is active soon, and is written", "since": before.until }),
            ];
        }
        if let Some(other) = &generations.standby {
            rows.push(json!({ "generation": other.number, "is": phase(other.phase), "since": other.since }));
        }
        self.out.rows(&["generation", "is", "since"], &rows);
        if let Some(number) = generations.in_phase(Phase::Building)
            && self.subscriber.of_log.kind != SubscriberKind::Subscription
        {
            let mut sum = RebuildResponse::default();
            let mut done = 0;
            let parts = self.parts(parts);
            for part in 0..parts {
                let part = self.table.at(number).part(&SegmentProgress::name(part, parts)).await?;
                done += u32::from(part.is_done);
                sum.add(&RebuildResponse {
                    commits: part.commits,
                    reads: part.reads,
                    writes: part.writes,
                    ..RebuildResponse::default()
                });
            }
            self.out.note("");
            let part = json!({
                "parts": parts, "done": done, "commits": sum.commits, "reads": sum.reads, "writes": sum.writes,
            });
            self.out.rows(&["parts", "done", "commits", "reads", "writes"], &[part]);
        }
        if !generations.history.is_empty() {
            self.out.note("");
            let row =
                |by: &Move| json!({ "at": by.at, "what": by.what, "who": by.who, "why": by.why });
            let rows: Vec<_> = generations.history.iter().map(row).collect();
            self.out.rows(&["at", "what", "who", "why"], &rows);
        }
        self.out.note(&format!("\n{}", self.estimate().await?));
        Ok(())
    }

    /// Returns the number of parts of a rebuild.
    fn parts(&self, parts: Option<i32>) -> i32 {
        parts.unwrap_or(if self.deployment.is_local { 1 } else { 64 })
    }

    /// Returns the cost of a rebuild, as text.
    async fn estimate(&self) -> Result<String> {
        let (commits, bytes) = self.deployment.size_of_log().await?;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let units = bytes as f64 / 8_192.0;
        Ok(format!(
            "a rebuild reads some {commits} commits, and then their keys again to compare: about {:.0} read units, {:.2} US$; add a write unit for each KB of the rows in the end",
            2.0 * units,
            2.0 * units * READS / 1e6
        ))
    }

    /// Changes the generations, and returns the new ones.
    async fn change(
        &self,
        from: &Generations,
        to: impl FnOnce(Timestamp) -> Result<Generations, InvalidTransition>,
        what: &str,
        why: &str,
    ) -> Result<Generations> {
        let who = self.deployment.operator().await?;
        // The clock is read after the prompt and after all calls. The time of a switch counts from
        // it, and every process must see the change by then.
        let now = Timestamp::now();
        let to = to(now)?;
        let by = Move { at: now, what: what.to_owned(), who, why: why.to_owned() };
        if !self.table.compare_and_set(from, to, by).await? {
            bail!(
                "another operator changes the generations of `{}`; run the command again",
                self.subscriber.of_log.id
            );
        }
        Ok(self.table.generations().await?)
    }

    async fn roll_back(&self, generations: &Generations, writing: &Writing) -> Result<bool> {
        if generations.in_phase(Phase::Kept).is_none() {
            bail!(
                "the standby generation was never active: `ledger rebuild switch` resumes its rebuild"
            );
        }
        let ask = format!(
            "switch all reads of {} back to the previous generation?",
            self.subscriber.of_log.id
        );
        if !writing.is_agreed(&ask)? {
            return Ok(false);
        }
        let to = self
            .change(generations, |now| generations.switched(now), "back", &writing.why())
            .await?;
        self.out.note(&format!(
            "in {} seconds, all reads are on generation {}",
            SWITCHING.as_secs(),
            to.active
        ));
        tokio::time::sleep(SWITCHING.unsigned_abs()).await;
        Ok(true)
    }

    /// Deletes the rows of the standby generation.
    async fn drop(&self, generations: Generations, writing: &Writing) -> Result<bool> {
        let Some(other) = generations.standby.clone() else {
            bail!("`{}` has no standby generation", self.subscriber.of_log.id)
        };
        let ask = format!(
            "delete the rows of the generation {} of {}?",
            other.number, self.subscriber.of_log.id
        );
        if !writing.is_agreed(&ask)? {
            return Ok(false);
        }
        let leaving = match other.phase {
            Phase::Dropping => generations,
            Phase::Building | Phase::Kept => {
                self.change(&generations, |now| generations.dropping(now), "drop", &writing.why())
                    .await?
            }
        };
        self.until_everybody_knows(&leaving).await;
        let table = self.table.at(other.number);
        let mut after = None;
        let mut deleted = 0;
        let bar = self.out.bar(0, "{spinner} {pos} rows deleted, {per_sec}");
        loop {
            let page = table.clear(after).await?;
            deleted += page.deleted;
            bar.inc(page.deleted as u64);
            after = page.after;
            if after.is_none() {
                break;
            }
        }
        bar.finish_and_clear();
        self.change(&leaving, |_| Ok(leaving.dropped()), "dropped", &writing.why()).await?;
        self.out.rows(&["dropped", "rows"], &[json!({ "dropped": other.number, "rows": deleted })]);
        Ok(true)
    }

    /// Waits until no function uses a copy of the generations that is older than the change.
    async fn until_everybody_knows(&self, generations: &Generations) {
        let Some(other) = &generations.standby else { return };
        // A process may use its copy for `FRESH`. An invocation that begins at the end of that time
        // uses the copy until it times out.
        let invocation =
            SignedDuration::from_secs(i64::try_from(self.subscriber.timeout).unwrap_or(900));
        let left = (other.since + FRESH + invocation).duration_since(Timestamp::now());
        // A tool with a clock in the future may have written `since`, so the wait has a limit.
        if let Ok(left) = Duration::try_from(left.min(FRESH + invocation)) {
            self.out.note(&format!(
                "waiting for {} seconds, until every function has read the change",
                left.as_secs() + 1
            ));
            tokio::time::sleep(left).await;
        }
    }

    /// Builds the standby generation. With a list of streams to leave out, which may be empty, it
    /// also switches reads to this generation.
    async fn rebuild(
        &self,
        generations: Generations,
        build: &Build,
        writing: &Writing,
        switch: Option<&[String]>,
    ) -> Result<bool> {
        let why = &writing.why();
        let building = match generations.standby.as_ref().map(|other| other.phase) {
            Some(Phase::Building) => {
                self.out.note("resuming the rebuild of the standby generation");
                generations
            }
            Some(Phase::Kept) => {
                bail!(
                    "the previous generation still exists: run `ledger rebuild drop` or `ledger rebuild rollback`"
                )
            }
            Some(Phase::Dropping) => {
                bail!("the standby generation is being deleted: finish with `ledger rebuild drop`")
            }
            None => {
                let ask =
                    format!("{}. Rebuild {}?", self.estimate().await?, self.subscriber.of_log.id);
                if !writing.is_agreed(&ask)? {
                    return Ok(false);
                }
                self.change(&generations, |now| generations.begun(now), "begin", why).await?
            }
        };
        let number = building.in_phase(Phase::Building).context("no generation is being built")?;
        let made = match self.subscriber.of_log.kind {
            SubscriberKind::Subscription => self.in_one_order(number).await?,
            SubscriberKind::StateProjector
            | SubscriberKind::LogProjector
            | SubscriberKind::ProcessManager => self.in_parts(number, build).await?,
        };
        // A subscription does not count commits.
        if self.subscriber.of_log.kind != SubscriberKind::Subscription {
            self.out.note(&format!("built from {} commits: {}", made.commits, cost(&made)));
        }
        // A stream that fails twice is printed once.
        let failed: BTreeMap<_, _> =
            made.failed.iter().map(|failed| (&failed.stream, &failed.reason)).collect();
        for (stream, reason) in failed {
            self.out.rows(&["stream", "reason"], &[json!({ "stream": stream, "reason": reason })]);
        }
        self.until_everybody_knows(&building).await;
        let (mut missing, reasons) = self.close(number).await?;
        let without: Vec<_> = missing
            .keys()
            .filter(|stream| {
                switch
                    .is_some_and(|without| without.iter().any(|without| without == stream.as_str()))
            })
            .cloned()
            .collect();
        missing.retain(|stream, _| !without.contains(stream));
        if !missing.is_empty() {
            let row = |(stream, (head, there)): (&StreamId, &(u64, u64))| {
                let reason = reasons.get(stream);
                json!({ "what": "missing", "stream": stream, "log": head, "there": there, "reason": reason })
            };
            let shown = if self.out.json { missing.len() } else { NAMED };
            let rows: Vec<_> = missing.iter().take(shown).map(row).collect();
            let fields = ["what", "stream", "log", "there", "reason"];
            self.out.rows(if reasons.is_empty() { &fields[..4] } else { &fields }, &rows);
            self.out.note(&format!(
                "\n{} streams differ from the log, so all reads stay on the active generation. Repair these streams, or name each with --without",
                missing.len()
            ));
            return Ok(false);
        }
        if switch.is_none() {
            self.out.note("every stream matches the log; all reads stay on the active generation");
            return Ok(true);
        }
        let named: Vec<_> = without.iter().map(StreamId::as_str).collect();
        let (what, of_all) = match named.as_slice() {
            [] => ("switch".to_owned(), String::new()),
            named => (
                format!("switch without {}", named.join(", ")),
                format!(" but {}", named.join(", ")),
            ),
        };
        let switched = self.change(&building, |now| building.switched(now), &what, why).await?;
        self.out.note(&format!(
            "every stream{of_all} matches the log. In {} seconds, all reads are on generation {}. Generation {} stays until `ledger rebuild drop`; `ledger rebuild rollback` returns to it",
            SWITCHING.as_secs(),
            switched.active,
            building.active,
        ));
        tokio::time::sleep(SWITCHING.unsigned_abs()).await;
        let units = json!({ "generation": switched.active, "commits": made.commits, "reads": made.reads, "writes": made.writes });
        if self.out.json {
            self.out.line(&units.to_string());
        }
        Ok(true)
    }

    /// Makes the function rebuild every part of the log, several parts at once.
    async fn in_parts(&self, number: u32, build: &Build) -> Result<RebuildResponse> {
        let (commits, _) = self.deployment.size_of_log().await?;
        let bar = self
            .out
            .bar(commits, "{wide_bar} {pos} of {len} commits, {per_sec}, {eta} left; {msg}");
        // Each worker has the same share of the write units.
        let share = build.write_units.map(|units| f64::from(units) / f64::from(build.workers));
        // The last response for each part.
        let answers = RefCell::new(BTreeMap::<i32, RebuildResponse>::new());
        let sum = || {
            let mut sum = RebuildResponse::default();
            answers.borrow().values().for_each(|answer| sum.add(answer));
            sum
        };
        let parts = self.parts(build.parts);
        let made = stream::iter(0..parts).map(|part| {
            let (bar, answers, sum) = (&bar, &answers, &sum);
            async move {
                let asked = RebuildRequest {
                    generation: number,
                    part,
                    parts,
                    write_units: share,
                    ..RebuildRequest::default()
                };
                let mut failed = Vec::new();
                loop {
                    let mut answer = self.ask_again(&asked, bar).await;
                    let answer = answer.as_mut().map_err(|error| {
                        anyhow!("part {part} of {parts} cannot be built: {error:#}")
                    })?;
                    failed.append(&mut answer.failed);
                    answer.failed.clone_from(&failed);
                    let is_done = answer.is_done;
                    let pause = Duration::from_millis(answer.pause);
                    answers.borrow_mut().insert(part, std::mem::take(answer));
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
        made.buffer_unordered(build.workers.into()).try_collect::<()>().await?;
        bar.finish_and_clear();
        Ok(sum())
    }

    /// Invokes the subscription until the generation contains all of `$all`.
    async fn in_one_order(&self, number: u32) -> Result<RebuildResponse> {
        let bar = self.out.bar(0, "{spinner} {elapsed} in the order of `$all`; {msg}");
        // An invocation is not done if another holder has the checkpoint, or if its time runs out.
        let asked = RebuildRequest { generation: number, ..RebuildRequest::default() };
        while !self.ask_again(&asked, &bar).await?.is_done {
            tokio::time::sleep(LATER).await;
        }
        bar.finish_and_clear();
        Ok(RebuildResponse::default())
    }

    /// Compares every stream with its head in the log, and makes the function write missing
    /// commits. Returns the streams that still lack commits, with their heads in the log and their
    /// versions in the view. Also returns the function's reasons for the streams that it could not
    /// rebuild.
    ///
    /// The heads are read once. Deliveries write later commits into this generation, so each stream
    /// only has to reach its head of that read.
    async fn close(
        &self,
        number: u32,
    ) -> Result<(BTreeMap<StreamId, (u64, u64)>, BTreeMap<StreamId, String>)> {
        let (table, heads) =
            (self.table.at(number), self.deployment.log()?.heads(self.deployment.parts()).await?);
        let of_it = heads.into_iter().filter(|(stream, _)| self.subscriber.of_log.takes(stream));
        let all = of_it.map(|(stream, head)| (stream, (head.version, 0))).collect();
        let mut missing = self.behind(&table, all).await?;
        let mut is_first = true;
        let mut in_vain = 0;
        let mut reasons = BTreeMap::new();
        while !missing.is_empty() && in_vain < ROUNDS {
            if self.subscriber.of_log.kind == SubscriberKind::Subscription {
                self.in_one_order(number).await?;
            } else if !is_first {
                // The first round only waits for messages in flight. Later rounds write the missing
                // commits from the log.
                let streams: Vec<_> = missing.keys().cloned().collect();
                for streams in streams.chunks(STREAMS) {
                    let streams = streams.to_vec();
                    let asked =
                        RebuildRequest { generation: number, streams, ..RebuildRequest::default() };
                    match self.ask(&asked).await {
                        Ok(made) => {
                            let failed = made.failed.into_iter();
                            reasons.extend(failed.map(|failed| (failed.stream, failed.reason)));
                        }
                        // The next comparison finds the streams that the failed invocation did not
                        // write.
                        Err(error) => self.out.note(&format!("{error:#}")),
                    }
                }
            }
            // Eventually consistent reads need some time to return the new rows.
            tokio::time::sleep(LATER).await;
            let left = self.behind(&table, missing.clone()).await?;
            // Versions in the view only grow, and the heads stay the same, so the loop ends.
            in_vain = if left == missing { in_vain + 1 } else { 0 };
            (missing, is_first) = (left, false);
        }
        Ok((missing, reasons))
    }

    /// Returns those of the streams whose version in the view is lower than their head.
    async fn behind(
        &self,
        table: &ViewTable,
        streams: BTreeMap<StreamId, (u64, u64)>,
    ) -> Result<BTreeMap<StreamId, (u64, u64)>> {
        let looked = stream::iter(streams).map(|(stream, (head, before))| async move {
            let there = table.reached(&stream).await?;
            // An eventually consistent read may return an older version after a newer one.
            Ok::<_, anyhow::Error>((stream, (head, there.max(before))))
        });
        let looked = looked.buffer_unordered(AT_ONCE);
        looked.try_filter(|(_, (head, there))| std::future::ready(there < head)).try_collect().await
    }

    /// Invokes the function, and retries after failures.
    async fn ask_again(
        &self,
        asked: &RebuildRequest,
        bar: &ProgressBar,
    ) -> Result<RebuildResponse> {
        let again = ConstantBuilder::default().with_delay(AGAIN).with_max_times(MAX_FAILURES);
        let ask = || self.ask(asked);
        let failed = |error: &anyhow::Error, _| {
            bar.set_message(format!("retrying after a failure: {error:#}"))
        };
        ask.retry(again).sleep(tokio::time::sleep).notify(failed).await
    }

    async fn ask(&self, asked: &RebuildRequest) -> Result<RebuildResponse> {
        let payload = json!({ "rebuild": asked }).to_string();
        let name = self.deployment.name(&self.subscriber.of_log.id)?;
        let call = self.deployment.lambda.invoke().function_name(name).payload(Blob::new(payload));
        let answer = call.send().await?;
        let body = answer.payload.as_ref().map_or(&[][..], |payload| payload.as_ref());
        if answer.function_error.is_some() {
            bail!("{}: {}", self.subscriber.of_log.id, String::from_utf8_lossy(body));
        }
        serde_json::from_slice(body)
            .context("the deployed function cannot rebuild its view: deploy a newer version first")
    }
}

/// Returns the used units and their price, as text.
fn cost(made: &RebuildResponse) -> String {
    let dollars = (made.reads * READS + made.writes * WRITES) / 1e6;
    format!("{:.0} read units, {:.0} write units, {dollars:.4} US$", made.reads, made.writes)
}
