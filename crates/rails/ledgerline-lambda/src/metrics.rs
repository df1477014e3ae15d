//! What is counted and measured, written to the logs after each invocation in CloudWatch's embedded metric format.
//!
//! Every metric carries the function's name. Recording is free where no recorder is installed, as in tests.

use std::io::Write;

use jiff::Timestamp;
use ledgerline::{CONFLICTS, RETRIES};
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use metrics_cloudwatch_embedded::{Builder, Collector};

use crate::{Error, config};

/// Commands, by what became of them: the label `Outcome`.
const COMMANDS: &str = "Commands";
/// From a commit until the bus and the queues had it.
const FANOUT_LAG: &str = "FanoutLag";
/// From a commit until a read model had it.
const PROJECTION_LAG: &str = "ProjectionLag";
/// Commits of a stream that a log projector had not seen when the next one came.
const POSITION_LAG: &str = "PositionLag";
/// Gaps that were filled from the log (rule 7).
const GAPS_REPAIRED: &str = "GapsRepaired";
/// What was set aside into a dead-letter queue by the fanout itself (rule 11).
const PARKED_RECORDS: &str = "ParkedRecords";

/// Installs the recorder. `METRICS_NAMESPACE` names the metrics' place in CloudWatch.
pub(crate) fn init() -> Result<&'static Collector, Error> {
    let collector = builder()?.init()?;
    describe_counter!(COMMANDS, Unit::Count, "commands by outcome");
    describe_counter!(CONFLICTS, Unit::Count, "lost races for a version");
    describe_counter!(RETRIES, Unit::Count, "tries after the first");
    describe_histogram!(FANOUT_LAG, Unit::Milliseconds, "from a commit until it was passed on");
    describe_histogram!(PROJECTION_LAG, Unit::Milliseconds, "from a commit until it was shown");
    describe_histogram!(POSITION_LAG, Unit::Count, "commits missing when one came");
    describe_counter!(GAPS_REPAIRED, Unit::Count, "gaps filled from the log");
    describe_counter!(PARKED_RECORDS, Unit::Count, "records set aside");
    Ok(collector)
}

fn builder() -> Result<Builder, Error> {
    let namespace = config::parsed_or("METRICS_NAMESPACE", "Ledgerline".to_owned())?;
    let function = config::parsed_or("AWS_LAMBDA_FUNCTION_NAME", "unknown".to_owned())?;
    Ok(Builder::new().cloudwatch_namespace(namespace).with_dimension("Function", function))
}

/// Writes what was recorded since the last time, a line for each set of labels.
pub(crate) fn flush(collector: &Collector) {
    // In one piece: the logs of other tasks must not get between the parts of a line.
    let mut lines = Vec::new();
    let written = collector.flush(&mut lines).and_then(|()| std::io::stdout().lock().write_all(&lines));
    if let Err(error) = written {
        tracing::warn!(%error, "metrics were lost");
    }
}

/// A command was answered.
pub(crate) fn command(outcome: &'static str) {
    counter!(COMMANDS, "Outcome" => outcome).increment(1);
}

/// Something is tried again.
pub fn retries(count: usize) {
    counter!(RETRIES).increment(count as u64);
}

/// A commit of this time was passed on.
pub fn passed_on(at: Timestamp) {
    histogram!(FANOUT_LAG).record(milliseconds_since(at));
}

/// A commit of this time is shown by a read model.
pub(crate) fn projected(at: Timestamp) {
    histogram!(PROJECTION_LAG).record(milliseconds_since(at));
}

/// A commit came to a log projector that had not seen this many before it.
pub(crate) fn position_lag(commits: u64) {
    // A histogram takes a float: exact up to 2^53 commits.
    #[expect(clippy::cast_precision_loss, reason = "no stream has that many commits")]
    histogram!(POSITION_LAG).record(commits as f64);
}

/// A gap was filled from the log.
pub(crate) fn gap_repaired() {
    counter!(GAPS_REPAIRED).increment(1);
}

/// A record was set aside.
pub fn parked() {
    counter!(PARKED_RECORDS).increment(1);
}

/// Counts something that an application names, such as what somebody has to look at.
pub fn count(name: &'static str) {
    describe_counter!(name, Unit::Count, "");
    counter!(name).increment(1);
}

fn milliseconds_since(at: Timestamp) -> f64 {
    Timestamp::now().duration_since(at).as_millis_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// CloudWatch ignores a line that does not have the shape of its specification.
    #[test]
    fn what_is_recorded_is_written_once_in_the_embedded_metric_format() {
        let collector = init().unwrap();
        command("committed");
        command("committed");
        command("refused");
        count("LeakingTanks");
        passed_on(Timestamp::now());
        let written = || {
            let mut lines = Vec::new();
            collector.flush(&mut lines).unwrap();
            String::from_utf8(lines).unwrap()
        };
        let lines: Vec<Value> = written().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let committed = lines.iter().find(|line| line["Outcome"] == "committed").unwrap();
        assert_eq!(committed["Commands"], 2);
        let directive = &committed["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Namespace"], "Ledgerline");
        assert_eq!(directive["Dimensions"], serde_json::json!([["Function", "Outcome"]]));
        assert_eq!(directive["Metrics"], serde_json::json!([{ "Name": "Commands", "Unit": "Count" }]));
        assert!(committed["_aws"]["Timestamp"].is_u64());
        let unit = |name: &str| {
            let metrics =
                lines.iter().flat_map(|line| line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array());
            let metric = metrics.flatten().find(|metric| metric["Name"] == name);
            metric.map(|metric| metric["Unit"].clone())
        };
        assert_eq!(unit("FanoutLag"), Some("Milliseconds".into()));
        assert_eq!(unit("LeakingTanks"), Some("Count".into()));
        assert_eq!(written(), "", "what was written is not written again");
    }
}
