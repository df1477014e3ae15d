//! The measurements of functions, written to the logs after each invocation.
//!
//! A measurement has an alarm if the function's [`Manifest`](ledgerline::manifest::Manifest) names
//! it. It becomes a metric of CloudWatch with the function's name as its dimension (embedded metric
//! format). That costs US$ 0.30 for each month in which it occurs. The other measurements are
//! fields of a line that the dashboard queries. Recording costs nothing if no recorder is
//! installed, as in tests.

use std::{collections::BTreeSet, io::Write};

use jiff::Timestamp;
use ledgerline::{CONFLICTS, RETRIES, all::LOST_HEADS, manifest::Name};
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use metrics_cloudwatch_embedded::{Builder, Collector};
use serde_json::Value;

use crate::{config, failure::Error};

/// The number of commands by outcome, in the label `Outcome`.
const COMMANDS: &str = "Commands";
/// The time from a commit until the views, the bus and the queues accepted it, in milliseconds.
const FANOUT_LAG: &str = "FanoutLag";
/// The time from a commit until a read model or process manager had applied it, in milliseconds.
const PROJECTION_LAG: &str = "ProjectionLag";
/// The number of missing commits of a stream when a later one reaches a log projector or process
/// manager.
const POSITION_LAG: &str = "PositionLag";
/// The number of gaps that were repaired from the log (rule 7).
const GAPS_REPAIRED: &str = "GapsRepaired";
/// The time from a commit until it was in `$all`, in milliseconds.
const SEQUENCE_LAG: &str = "SequenceLag";
/// The number of invocations of a subscription that left a commit of five minutes or more, or
/// failed at one.
pub(crate) const SUBSCRIPTION_BEHIND: &str = "SubscriptionBehind";
const KEPT_BY_SUBSCRIPTION: &str = "KeptBySubscription";
/// The number of streams of which a subscriber lacks commits, or is ahead of the log.
pub(crate) const UNRECONCILED: &str = "Unreconciled";
/// The number of commits that were changed or removed (rule 3).
pub(crate) const CHANGED_COMMITS: &str = "ChangedCommits";
/// The number of records that the fanout itself sent to its dead-letter queue (rule 11).
const PARKED_RECORDS: &str = "ParkedRecords";

/// The measurements of a running function.
pub(crate) struct Metrics {
    collector: &'static Collector,
    /// The names of the measurements with an alarm.
    alarmed: BTreeSet<Name>,
}

/// Installs the recorder. `METRICS_NAMESPACE` is the namespace of the metrics in CloudWatch.
pub(crate) fn init(alarmed: &BTreeSet<Name>) -> Result<Metrics, Error> {
    let collector = builder()?.init()?;
    describe_counter!(COMMANDS, Unit::Count, "commands by outcome");
    describe_counter!(CONFLICTS, Unit::Count, "lost races for a version");
    describe_counter!(RETRIES, Unit::Count, "attempts after the first");
    describe_histogram!(FANOUT_LAG, Unit::Milliseconds, "from a commit until the fanout sent it");
    describe_histogram!(PROJECTION_LAG, Unit::Milliseconds, "from a commit until a view shows it");
    describe_histogram!(POSITION_LAG, Unit::Count, "commits missing at a delivery");
    describe_counter!(GAPS_REPAIRED, Unit::Count, "gaps filled from the log");
    describe_histogram!(SEQUENCE_LAG, Unit::Milliseconds, "from a commit until `$all` has it");
    describe_counter!(
        SUBSCRIPTION_BEHIND,
        Unit::Count,
        "invocations that left an old commit unapplied"
    );
    describe_histogram!(
        KEPT_BY_SUBSCRIPTION,
        Unit::Bytes,
        "a view's state, or its memory of a stream"
    );
    describe_counter!(LOST_HEADS, Unit::Count, "segments that another sequencer appended first");
    describe_counter!(
        UNRECONCILED,
        Unit::Count,
        "streams of which a subscriber lacks commits, or is ahead"
    );
    describe_counter!(CHANGED_COMMITS, Unit::Count, "commits changed or removed");
    describe_counter!(PARKED_RECORDS, Unit::Count, "records quarantined");
    Ok(Metrics { collector, alarmed: alarmed.clone() })
}

fn builder() -> Result<Builder, Error> {
    let namespace = config::parse_or("METRICS_NAMESPACE", "Ledgerline".to_owned())?;
    let function = config::parse_or("AWS_LAMBDA_FUNCTION_NAME", "unknown".to_owned())?;
    Ok(Builder::new().cloudwatch_namespace(namespace).with_dimension("Function", function))
}

/// Writes the measurements since the last flush, one line for each set of labels.
pub(crate) fn flush(metrics: &Metrics) {
    // The lines are written in one piece, so that log lines of other tasks cannot get between their
    // parts.
    let written = lines(metrics).and_then(|lines| std::io::stdout().lock().write_all(&lines));
    if let Err(error) = written {
        tracing::warn!(%error, "metrics were lost");
    }
}

fn lines(Metrics { collector, alarmed }: &Metrics) -> std::io::Result<Vec<u8>> {
    let mut embedded = Vec::new();
    collector.flush(&mut embedded)?;
    let mut lines = Vec::new();
    for line in embedded.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let mut line: Value = serde_json::from_slice(line)?;
        let mut is_metric = false;
        if let Some(metrics) = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array_mut() {
            metrics.retain(|metric| {
                metric["Name"].as_str().is_some_and(|name| alarmed.contains(name))
            });
            is_metric = !metrics.is_empty();
        }
        if let (Some(fields), false) = (line.as_object_mut(), is_metric) {
            fields.remove("_aws");
            fields.insert("message".into(), "measured".into());
        }
        // A query cannot add up the values in a list. Of times and sizes, the largest one counts.
        for (name, value) in line.as_object_mut().into_iter().flatten() {
            if let Some(largest) = largest(value).filter(|_| !alarmed.contains(name.as_str())) {
                *value = largest.into();
            }
        }
        // Lambda treats a line without these two fields as INFO, and drops it at a higher log
        // level.
        line["level"] = if is_metric { "WARN" } else { "INFO" }.into();
        line["timestamp"] = Timestamp::now().to_string().into();
        serde_json::to_writer(&mut lines, &line)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Returns the largest number in a list.
fn largest(values: &Value) -> Option<f64> {
    let values = values.as_array()?;
    Some(values.iter().filter_map(Value::as_f64).fold(0.0, f64::max))
}

/// Counts an answered command.
pub(crate) fn command(outcome: &'static str) {
    counter!(COMMANDS, "Outcome" => outcome).increment(1);
}

/// Counts retries.
pub(crate) fn retries(count: usize) {
    counter!(RETRIES).increment(count as u64);
}

/// Measures the lag of a passed-on commit of this time.
pub(crate) fn fanout_lag(at: Timestamp) {
    histogram!(FANOUT_LAG).record(milliseconds_since(at));
}

/// Measures the lag of an applied commit of this time.
pub(crate) fn projection_lag(at: Timestamp) {
    histogram!(PROJECTION_LAG).record(milliseconds_since(at));
}

/// Counts an invocation of a subscription that left an old commit, or failed at one.
pub(crate) fn subscription_lag() {
    counter!(SUBSCRIPTION_BEHIND).increment(1);
}

/// Measures the lag of a commit of this time that is in `$all`. The number of values is the number
/// of commits.
pub(crate) fn sequence_lag(at: Timestamp) {
    histogram!(SEQUENCE_LAG).record(milliseconds_since(at));
}

/// Measures the number of missing commits before a delivered commit.
pub(crate) fn position_lag(commits: u64) {
    // A histogram takes a float, which is exact up to 2^53 commits.
    #[expect(clippy::cast_precision_loss, reason = "no stream has that many commits")]
    histogram!(POSITION_LAG).record(commits as f64);
}

/// Counts a gap that was repaired from the log.
pub(crate) fn gap_repair() {
    counter!(GAPS_REPAIRED).increment(1);
}

/// Measures the data that a subscription keeps from one commit to the next, in bytes. It does so
/// once an invocation, and only from half of the limit.
pub(crate) fn subscription_data(bytes: usize) {
    #[expect(clippy::cast_precision_loss, reason = "an item has 400 KB at most")]
    histogram!(KEPT_BY_SUBSCRIPTION).record(bytes as f64);
}

/// Counts the streams with missing commits or with subscribers ahead of the log, and forgotten
/// generations. A comparison that found nothing counts zero, so that the metric exists.
pub(crate) fn count_unreconciled(findings: usize) {
    counter!(UNRECONCILED).increment(findings as u64);
}

/// Counts a quarantined record.
pub(crate) fn quarantine() {
    counter!(PARKED_RECORDS).increment(1);
}

/// Counts a commit that was changed or removed.
pub(crate) fn changed_commit() {
    counter!(CHANGED_COMMITS).increment(1);
}

/// Counts under a name that an application chooses, such as a case that an operator has to check.
pub fn count(name: &'static str) {
    describe_counter!(name, Unit::Count, "");
    counter!(name).increment(1);
}

/// Returns the milliseconds since a time of another function's clock. A time in the future counts as
/// 0, and a clock that lags makes the value too large.
fn milliseconds_since(at: Timestamp) -> f64 {
    Timestamp::now().duration_since(at).as_millis_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CloudWatch ignores a metric that does not have the shape of its specification.
    #[test]
    fn a_measurement_with_an_alarm_is_a_metric_and_the_others_are_fields_of_a_line() {
        let metrics = init(&BTreeSet::from(["LeakingTanks".into()])).unwrap();
        command("committed");
        command("committed");
        command("refused");
        count("LeakingTanks");
        fanout_lag(Timestamp::now());
        let written = || String::from_utf8(lines(&metrics).unwrap()).unwrap();
        let lines: Vec<Value> =
            written().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let committed = lines.iter().find(|line| line["Outcome"] == "committed").unwrap();
        assert_eq!(
            (&committed["Commands"], &committed["message"]),
            (&2.into(), &"measured".into())
        );
        assert_eq!((&committed["level"], committed.get("_aws")), (&"INFO".into(), None));
        let leaking = lines.iter().find(|line| line["LeakingTanks"] == 1).unwrap();
        let directive = &leaking["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Namespace"], "Ledgerline");
        assert_eq!(directive["Dimensions"], serde_json::json!([["Function"]]));
        assert_eq!(
            directive["Metrics"],
            serde_json::json!([{ "Name": "LeakingTanks", "Unit": "Count" }])
        );
        assert!(leaking["_aws"]["Timestamp"].is_u64());
        // Lambda must not drop the line of a function that logs only warnings.
        assert_eq!(leaking["level"], "WARN");
        // Other tests of this process record measurements too.
        let again = written();
        for recorded in ["Commands", "Outcome", "FanoutLag", "LeakingTanks"] {
            assert!(!again.contains(recorded), "what was written is not written again: {again}");
        }
    }

    #[test]
    fn a_commit_of_a_clock_in_the_future_has_no_lag() {
        let now = Timestamp::now();
        let hour = jiff::SignedDuration::from_hours(1);
        assert_eq!(milliseconds_since(now + hour), 0.0);
        assert!(milliseconds_since(now - hour) >= 3_600_000.0);
    }

    #[test]
    fn the_largest_of_several_times_is_written() {
        let line = serde_json::json!({ "FanoutLag": [3.0, 12.5, 7.0], "Commands": 2 });
        assert_eq!(largest(&line["FanoutLag"]), Some(12.5));
        assert_eq!(largest(&line["Commands"]), None);
    }
}
