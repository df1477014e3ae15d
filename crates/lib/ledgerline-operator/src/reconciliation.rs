//! The comparison of the heads of all streams with every subscriber.

use anyhow::{Result, bail};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use ledgerline::StreamId;
use ledgerline_dynamodb::reconcile::{Comparison, ComparisonCounts, Difference, Found, ORDER};
use serde_json::json;

use crate::{
    Output, Stack,
    deployment::Deployment,
    price::READS,
    repair::{Repair, repair_all},
    subscribers::{Subscriber, subscribers},
};

/// The default age, in seconds, from which a missing commit counts.
pub(crate) const YOUNGER: u64 = 300;
/// The most differences of a kind that are printed for people.
pub(crate) const SHOWN: usize = 20;

/// The options of a comparison.
#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    /// Compare only streams with entries in `$all` since this time. This finds no holes, and no
    /// commit without an entry in `$all`.
    #[arg(long)]
    pub(crate) since: Option<Timestamp>,
    /// Compare only this subscriber: the logical id of a function, or `$all`. Repeat the option per
    /// subscriber.
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// Ignore commits that are younger than this many seconds, and may be in transit. The default
    /// is 300.
    #[arg(long)]
    pub(crate) younger: Option<u64>,
}

/// Compares the subscribers with the log, prints the differences, and repairs them if the operator
/// asks for it. Returns whether none is left.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &ReconcileArgs,
    repair: Option<Repair<'_>>,
    out: Output,
) -> Result<bool> {
    // The clock is read before the log, so all later commits are too young.
    let until = Timestamp::now()
        - SignedDuration::from_secs(i64::try_from(options.younger.unwrap_or(YOUNGER))?);
    let subscribers = subscribers(deployment, stack).await?;
    let is_wanted =
        |who: &str| options.only.is_empty() || options.only.iter().any(|wanted| wanted == who);
    let unknown = |who: &&String| {
        *who != ORDER && subscribers.iter().all(|subscriber| subscriber.compared.id != **who)
    };
    if let Some(unknown) = options.only.iter().find(unknown) {
        let known: Vec<_> =
            subscribers.iter().map(|subscriber| subscriber.compared.id.as_str()).collect();
        bail!("`{unknown}` is not a subscriber; choose one of: {}, {ORDER}", known.join(", "));
    }
    let wanted: Vec<_> =
        subscribers.iter().filter(|subscriber| is_wanted(&subscriber.compared.id)).collect();
    let compared: Vec<_> = wanted.iter().map(|subscriber| subscriber.compared.clone()).collect();
    let log = deployment.log()?;
    let order = deployment.order();
    let comparison = Comparison {
        log: &log,
        parts: deployment.parts(),
        order: order.as_ref(),
        with_order: is_wanted(ORDER),
        subscribers: &compared,
        since: options.since,
        until,
        most: usize::MAX,
    };
    let busy = out.busy("comparing the subscribers with the log");
    let found = comparison.run().await?;
    drop(busy);
    print(&found, options.since.is_some(), out);
    let reads = deployment.units.total();
    out.line_or_note(&json!({ "what": "cost", "reads": reads }), || {
        format!("the comparison took {reads:.0} read units, {:.4} US$", reads * READS / 1e6)
    });
    let repair = repair.filter(|repair| repair.write_args.write);
    if found.is_clean() && (found.forgotten.is_empty() || repair.is_none()) {
        return Ok(true);
    }
    let Some(repair) = repair else { return Ok(false) };
    let queue = |subscriber: &&Subscriber| {
        Some((subscriber.compared.id.clone(), subscriber.queue.clone()?))
    };
    let queues = wanted.iter().filter_map(queue).collect();
    repair_all(deployment, &found, &queues, &repair, out).await
}

fn print(found: &Found, in_part: bool, out: Output) {
    let looked = |ComparisonCounts { who, streams, missing, ahead, forgotten, unreadable }: &ComparisonCounts| {
        json!({
            "what": "compared", "who": who, "streams": streams, "missing": missing, "ahead": ahead, "forgotten": forgotten, "unreadable": unreadable,
        })
    };
    let counts: Vec<_> = found.looked.iter().map(looked).collect();
    out.rows(&["who", "streams", "missing", "ahead", "forgotten", "unreadable"], &counts);
    print_differences("missing", &found.missing, out);
    print_differences("ahead", &found.ahead, out);
    print_differences("unreadable", &found.unreadable, out);
    print_differences("forgotten", &found.forgotten, out);
    let hole = |(stream, missing): (&StreamId, &u64)| json!({ "what": "hole", "stream": stream, "versions": missing });
    let holes: Vec<_> = found.holes.iter().map(hole).collect();
    if !holes.is_empty() {
        out.note("");
        out.rows(&["what", "stream", "versions"], &holes);
    }
    if found.too_young > 0 {
        out.line_or_note(&json!({ "what": "tooYoung", "count": found.too_young }), || {
            format!(
                "\n{} differences are of commits that are too young, and are not listed",
                found.too_young
            )
        });
    }
    explain(found, in_part, out);
}

/// Prints the differences of one kind.
fn print_differences(what: &str, differences: &[Difference], out: Output) {
    if differences.is_empty() {
        return;
    }
    let row = |difference: &Difference| {
        let Difference { who, kind: _, stream, head, found, generation, unreadable } = difference;
        json!({
            "what": what, "who": who, "stream": stream, "log": head, "there": found,
            "generation": generation, "reason": unreadable,
        })
    };
    let shown = if out.json { differences.len() } else { SHOWN };
    let rows: Vec<_> = differences.iter().take(shown).map(row).collect();
    out.note("");
    let fields = ["what", "who", "stream", "log", "there", "generation", "reason"];
    out.rows(if what == "unreadable" { &fields } else { &fields[..6] }, &rows);
    if differences.len() > shown {
        out.note(&format!("and {} more: see them with --json", differences.len() - shown));
    }
}

/// Explains the result to people.
fn explain(found: &Found, in_part: bool, out: Output) {
    if !found.forgotten.is_empty() {
        out.note(
            "\nforgotten: views have no rows of these streams, which are older than tombstones. The views deleted the rows, or the rows are lost: `ledger redeliver --missing --write` sends the commits, and does not harm deleted rows",
        );
    }
    if found.is_clean() {
        out.note(match (in_part, found.forgotten.is_empty()) {
            (true, _) => {
                "\nno commit that `$all` has since then is missing or ahead; holes were not checked"
            }
            (false, true) => "\nnothing is missing, nothing is ahead, and the log has no hole",
            (false, false) => {
                "\napart from forgotten streams, nothing is missing, nothing is ahead, and the log has no hole"
            }
        });
    }
    if [&found.missing, &found.unreadable].into_iter().flatten().any(|one| one.generation.is_some())
    {
        out.note("\na generation is one that reads do not use, and that a rollback can choose");
    }
    if !found.ahead.is_empty() {
        out.note("\nahead of the log: a subscriber applied commits that the log lacks; see the runbook, Restore");
    }
}
