//! The generations of a view: the verbs of `ledger rebuild`, which show and change them.
//!
//! The view's table contains the whole progress of a rebuild: the generations, and the progress of
//! each part of the log. So the tool can be killed at any time, and any operator can resume the
//! rebuild.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand, value_parser};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{StreamId, manifest::SubscriberKind};
use ledgerline_dynamodb::{
    Generations, InvalidTransition, Marks, Move, Phase, Previous, SegmentProgress, Standby,
    ViewTable,
};
use ledgerline_lambda::rebuild::{RebuildRequest, RebuildResponse};
use serde_json::json;

use crate::{
    Output, Stack, WriteArgs,
    deployment::{Deployment, MAX_TIMEOUT},
    price::READS,
    subscribers::{Subscriber, find, subscribers},
};

/// The most streams that a switch leaves out. The view's history names them, in one item.
pub(crate) const MAX_WITHOUT: usize = 100;

/// The subcommands of `ledger rebuild`.
#[derive(Debug, Subcommand)]
pub(crate) enum Rebuild {
    /// Show the generations of a view, the progress of its rebuild, its earlier operations, and the
    /// cost of a rebuild.
    Status {
        /// The logical id of the function that writes the view, or its beginning: Balances.
        view: String,
        /// The number of parts of the rebuild, if it is not the default.
        #[arg(long, value_parser = value_parser!(i32).range(1..=1_000_000))]
        parts: Option<i32>,
    },
    /// Build the standby generation of a view, or resume it, and leave reads on the active one.
    Start {
        #[command(flatten)]
        view: ViewArgs,
        #[command(flatten)]
        build: BuildArgs,
    },
    /// Complete the standby generation, compare it with the log, and switch all reads to it.
    ///
    /// Starts the rebuild if there is none. The previous generation stays until `ledger rebuild
    /// drop`.
    Switch {
        #[command(flatten)]
        view: ViewArgs,
        #[command(flatten)]
        build: BuildArgs,
        /// Switch without this stream, such as one with a damaged commit. The new generation lacks
        /// the stream's missing rows. The view's history names the stream. Repeat the option per
        /// stream.
        #[arg(long, value_name = "STREAM")]
        without: Vec<String>,
    },
    /// Compare the previous generation with the log, repair it, and switch all reads back to it.
    ///
    /// It is always the older one. If it is active already, the command says so, and succeeds.
    Rollback {
        #[command(flatten)]
        view: ViewArgs,
        /// Switch even if streams of the previous generation are behind the log and cannot be
        /// repaired. Reads of these streams go back to older versions. The view's history names
        /// the streams.
        #[arg(long)]
        anyway: bool,
    },
    /// Delete the rows of the standby generation: the previous one, or that of a rebuild that an
    /// operator gives up.
    Drop(ViewArgs),
}

impl Rebuild {
    fn view(&self) -> &str {
        match self {
            Self::Status { view, .. } => view,
            Self::Start { view, .. }
            | Self::Switch { view, .. }
            | Self::Rollback { view, .. }
            | Self::Drop(view) => &view.view,
        }
    }
}

/// The view, and the reason for the change.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// The logical id of the function that writes the view, or its beginning: Balances.
    view: String,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// The options for building a generation.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Split the log into this number of parts: 64, or 1 on the local stack, whose database reads
    /// the log fastest as a whole. A rebuild that resumes needs the same number.
    #[arg(long, value_parser = value_parser!(i32).range(1..=1_000_000))]
    pub(crate) parts: Option<i32>,
    /// Build this number of parts at once.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(1..))]
    pub(crate) workers: u16,
    /// Use at most this number of write units a second, so that the table does not throttle other
    /// writers.
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub(crate) write_units: Option<u32>,
}

/// The streams that a generation may lack when reads switch to it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Without<'a> {
    AnyStream,
    Streams(&'a [String]),
}

impl Without<'_> {
    pub(crate) fn has(&self, stream: &StreamId) -> bool {
        match self {
            Self::AnyStream => true,
            Self::Streams(streams) => streams.iter().any(|name| name == stream.as_str()),
        }
    }

    /// Whether the generation may lack every marked stream.
    pub(crate) fn has_all(&self, marks: &Marks) -> bool {
        match self {
            Self::AnyStream => true,
            Self::Streams(_) => !marks.any && marks.streams.iter().all(|stream| self.has(stream)),
        }
    }
}

/// A view, and the clients and the output for a rebuild.
pub(crate) struct View<'a> {
    pub(crate) deployment: &'a Deployment,
    pub(crate) subscriber: &'a Subscriber,
    pub(crate) table: ViewTable,
    pub(crate) out: Output,
}

/// Runs the subcommand. Returns whether it finished its work.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    rebuild: &Rebuild,
    out: Output,
) -> Result<bool> {
    let all = subscribers(deployment, stack).await?;
    let subscriber = find(&all, rebuild.view())?;
    if !subscriber.is_rebuildable {
        bail!(
            "`{}` is not written from commits alone, and cannot be rebuilt; see docs/rebuild.md",
            subscriber.compared.id
        );
    }
    let view = View { deployment, subscriber, table: subscriber.compared.table.at(0), out };
    let generations = view.table.generations().await?;
    match rebuild {
        Rebuild::Status { parts, .. } => {
            view.print_status(&generations, *parts).await.map(|()| true)
        }
        Rebuild::Start { view: ViewArgs { write_args, .. }, build } => {
            view.start(generations, build, write_args).await
        }
        Rebuild::Switch { without, .. } if without.len() > MAX_WITHOUT => {
            bail!("--without names {} streams; name {MAX_WITHOUT} at most", without.len())
        }
        Rebuild::Switch { view: ViewArgs { write_args, .. }, build, without } => {
            view.switch(generations, build, without, write_args).await
        }
        Rebuild::Rollback { view: ViewArgs { write_args, .. }, anyway } => {
            view.roll_back(&generations, *anyway, write_args).await
        }
        Rebuild::Drop(ViewArgs { write_args, .. }) => {
            view.drop_standby(generations, write_args).await
        }
    }
}

impl View<'_> {
    /// Prints the generations, the progress of a rebuild, the earlier operations, and the cost of a
    /// rebuild.
    async fn print_status(&self, generations: &Generations, parts: Option<i32>) -> Result<()> {
        self.out.rows(&["generation", "is", "since", "behind"], &generation_rows(generations));
        if let Some(number) = generations.generation_in_phase(Phase::Building)
            && self.subscriber.compared.kind != SubscriberKind::Subscription
        {
            self.print_progress(number, self.parts(parts)).await?;
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

    /// Prints the progress of the rebuild of a generation, over all parts of the log.
    async fn print_progress(&self, number: u32, parts: i32) -> Result<()> {
        let mut sum = RebuildResponse::default();
        let mut done = 0;
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
        let row = json!({
            "parts": parts, "done": done, "commits": sum.commits, "reads": sum.reads, "writes": sum.writes,
        });
        self.out.rows(&["parts", "done", "commits", "reads", "writes"], &[row]);
        Ok(())
    }

    /// Prints what the command would do with `--write`.
    pub(crate) fn print_plan(&self, plan: &str) {
        self.out.line_or_note(&json!({ "would": plan }), || {
            format!("with --write and --why, the command would {plan}")
        });
    }

    /// Returns the number of parts of a rebuild.
    pub(crate) fn parts(&self, parts: Option<i32>) -> i32 {
        parts.unwrap_or(if self.deployment.is_local { 1 } else { 64 })
    }

    /// Returns the cost of a rebuild, as text.
    pub(crate) async fn estimate(&self) -> Result<String> {
        let (commits, bytes) = self.deployment.log_size().await?;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let units = bytes as f64 / 8_192.0;
        Ok(format!(
            "a rebuild reads some {commits} commits, and then their keys again to compare: about {:.0} read units, {:.2} US$; add a write unit for each KB of the rows in the end",
            2.0 * units,
            2.0 * units * READS / 1e6
        ))
    }

    /// Changes the generations, and returns the new ones.
    pub(crate) async fn change(
        &self,
        from: &Generations,
        to: impl FnOnce(Timestamp) -> Result<Generations, InvalidTransition>,
        what: &str,
        why: &str,
    ) -> Result<Generations> {
        self.try_change(from, to, what, why).await?.ok_or_else(|| self.changed())
    }

    /// Changes the generations, and returns the new ones, or `None` if they changed meanwhile.
    pub(crate) async fn try_change(
        &self,
        from: &Generations,
        to: impl FnOnce(Timestamp) -> Result<Generations, InvalidTransition>,
        what: &str,
        why: &str,
    ) -> Result<Option<Generations>> {
        let who = self.deployment.operator().await?;
        // The clock is read after the prompt and after all calls. The time of a switch counts from
        // it, and every process must see the change by then.
        let now = Timestamp::now();
        let to = to(now)?;
        let (what, why) = (what.to_owned(), why.to_owned());
        let by = Move { at: now, what, who, why, ..Move::default() };
        let is_changed = self.table.compare_and_set(from, to, by).await?;
        Ok(if is_changed { Some(self.table.generations().await?) } else { None })
    }

    /// The error for generations that another change came between.
    pub(crate) fn changed(&self) -> anyhow::Error {
        let id = &self.subscriber.compared.id;
        anyhow!("the generations of `{id}` changed meanwhile; run the command again")
    }

    async fn roll_back(
        &self,
        generations: &Generations,
        anyway: bool,
        write_args: &WriteArgs,
    ) -> Result<bool> {
        let id = &self.subscriber.compared.id;
        let active = generations.active;
        let previous = match &generations.standby {
            Some(Standby { number, phase: Phase::Kept, .. }) => *number,
            Some(Standby { phase: Phase::Building, .. }) => bail!(
                "the standby generation was never active: `ledger rebuild switch` resumes its rebuild"
            ),
            Some(Standby { phase: Phase::Dropping, .. }) | None => {
                bail!("`{id}` has no previous generation: all reads stay on generation {active}")
            }
        };
        if previous > active {
            self.report_active(generations).await;
            return Ok(true);
        }
        let plan = format!(
            "switch all reads of {id} from generation {active} back to generation {previous}"
        );
        if !write_args.write {
            self.print_plan(&plan);
            return Ok(true);
        }
        if !write_args.confirm(&format!("{plan}?"))? {
            return Ok(false);
        }
        let without = if anyway { Without::AnyStream } else { Without::Streams(&[]) };
        let done = self.compare_and_switch(generations, "rollback", without, write_args).await?;
        Ok(done.is_some())
    }

    /// Says which generation is active after a change that is done already, and waits until all
    /// reads use it.
    pub(crate) async fn report_active(&self, generations: &Generations) {
        let id = &self.subscriber.compared.id;
        let Generations { active, standby, .. } = generations;
        self.wait_for_switch(generations).await;
        let standby = standby.as_ref().map(|standby| standby.number);
        let row = json!({ "active": active, "standby": standby });
        self.out.line_or_note(&row, || {
            let stays = standby.map_or_else(String::new, |standby| {
                format!("; generation {standby} stays until `ledger rebuild drop`")
            });
            format!("generation {active} of {id} is active already{stays}")
        });
    }

    /// Waits until all reads use the generation to which they switch.
    pub(crate) async fn wait_for_switch(&self, generations: &Generations) {
        let Some(Previous { until, .. }) = &generations.previous else { return };
        // A tool with a clock in the future may have written the time, so the wait has a limit.
        let left = until.duration_since(Timestamp::now()).min(generations.switching());
        if let Ok(left) = Duration::try_from(left) {
            tokio::time::sleep(left).await;
        }
    }

    /// Deletes the rows of the standby generation.
    async fn drop_standby(&self, generations: Generations, write_args: &WriteArgs) -> Result<bool> {
        let Some(Standby { number, phase, .. }) = generations.standby.clone() else {
            self.report_active(&generations).await;
            return Ok(true);
        };
        let plan =
            format!("delete the rows of generation {number} of {}", self.subscriber.compared.id);
        if !write_args.write {
            self.print_plan(&plan);
            return Ok(true);
        }
        if !write_args.confirm(&format!("{plan}?"))? {
            return Ok(false);
        }
        let leaving = match phase {
            Phase::Dropping => generations,
            Phase::Building | Phase::Kept => {
                self.change(
                    &generations,
                    |now| generations.begin_drop(now),
                    "drop",
                    &write_args.why(),
                )
                .await?
            }
        };
        self.wait_for_cached_generations(&leaving).await;
        if self.table.is_in_other_store() {
            let request =
                RebuildRequest { generation: number, delete: true, ..RebuildRequest::default() };
            let id = &self.subscriber.compared.id;
            self.deployment.invoke_view(id, &request).await?;
        }
        let table = self.table.at(number);
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
        self.change(&leaving, |_| Ok(leaving.end_drop()), "dropped", &write_args.why()).await?;
        self.out.rows(&["dropped", "rows"], &[json!({ "dropped": number, "rows": deleted })]);
        Ok(true)
    }

    /// Waits until no function uses a copy of the generations that is older than the change.
    pub(crate) async fn wait_for_cached_generations(&self, generations: &Generations) {
        let Some(standby) = &generations.standby else { return };
        // An invocation that begins while its copy is fresh uses the copy until it times out.
        let invocation = SignedDuration::from_secs(
            i64::try_from(self.subscriber.timeout).unwrap_or(MAX_TIMEOUT.cast_signed()),
        );
        let wait = generations.fresh() + invocation;
        let left = (standby.since + wait).duration_since(Timestamp::now());
        // A tool with a clock in the future may have written `since`, so the wait has a limit.
        if let Ok(left) = Duration::try_from(left.min(wait)) {
            self.out.note(&format!(
                "waiting for {} seconds, until every function has read the change",
                left.as_secs() + 1
            ));
            tokio::time::sleep(left).await;
        }
    }
}

/// Returns a row for the active generation, and for the standby one, if there is one.
fn generation_rows(generations: &Generations) -> Vec<serde_json::Value> {
    let switch = generations.previous.as_ref();
    let switch = switch.filter(|previous| Timestamp::now() < previous.until);
    let active = match switch {
        Some(previous) => {
            json!({ "generation": generations.active, "is": "is active soon, and is written", "since": previous.until })
        }
        None => json!({ "generation": generations.active, "is": "is active, and is written" }),
    };
    let standby =
        generations.standby.as_ref().map(|Standby { number, phase, since, behind, .. }| {
            let is = match phase {
                Phase::Building => "is being built, and is written",
                Phase::Kept => "is the previous one, and is written",
                Phase::Dropping => "is being deleted",
            };
            json!({ "generation": number, "is": is, "since": since, "behind": behind })
        });
    [Some(active), standby].into_iter().flatten().collect()
}
