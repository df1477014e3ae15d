//! The logs of functions, and the access log of the API.

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use serde_json::{Value, json};

use crate::{Out, deployment::Deployment};

/// The pattern of failures: errors of a function, and crashes and timeouts that Lambda reports.
///
/// Source: the schema reference of Lambda's Telemetry API, `Status`: success, failure, error,
/// timeout.
const FAILURES: &str = concat!(
    r#"{ $.level = "ERROR" || $.record.status = "timeout""#,
    r#" || $.record.status = "error" || $.record.status = "failure" }"#
);

/// The options of `ledger logs`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Show only lines with this phrase, such as a correlation id or a stream. A pattern of
    /// CloudWatch Logs is possible too: { $.level = "WARN" }. Without it, show every line.
    pattern: Option<String>,
    /// Show only failures: errors, crashes and timeouts.
    #[arg(long, conflicts_with = "pattern")]
    failures: bool,
    /// Show the access log of the API, a line for each request, instead of the functions' log. A
    /// pattern: { $.status >= 500 }.
    #[arg(long, conflicts_with = "failures")]
    access: bool,
    /// Show lines up to this age: 15m, 6h, 2d.
    #[arg(long, default_value = "1h")]
    since: String,
}

/// Prints the lines, oldest first, each as the function wrote it.
pub(crate) async fn run(deployment: &Deployment, options: &Options, out: Out) -> Result<()> {
    let since = back(&options.since)?;
    let logs = if options.access { "AccessLogs" } else { "FunctionLogs" };
    let group = deployment.of_type("AWS::Logs::LogGroup").find(|(id, _)| *id == logs);
    let (_, group) = group.with_context(|| format!("the stack has no log group `{logs}`"))?;
    let pattern = match &options.pattern {
        _ if options.failures => Some(FAILURES.to_owned()),
        Some(pattern) if pattern.starts_with(['{', '"', '[']) => Some(pattern.clone()),
        // CloudWatch searches for the words of a phrase, unless the phrase is in quotation marks.
        Some(phrase) => Some(format!("\"{phrase}\"")),
        None => None,
    };
    let from = (Timestamp::now() - since).as_millisecond();
    let filter = deployment.logs.filter_log_events().log_group_name(group).start_time(from);
    let mut pages = filter.set_filter_pattern(pattern).into_paginator().send();
    while let Some(page) = pages.next().await {
        for event in page.context("the logs cannot be read")?.events.unwrap_or_default() {
            let message = event.message.unwrap_or_default();
            let at = event.timestamp.and_then(|at| Timestamp::from_millisecond(at).ok());
            let function = event.log_stream_name.unwrap_or_default();
            if out.json {
                let said = serde_json::from_str(&message).unwrap_or(Value::String(message));
                out.line(&json!({ "at": at, "in": function, "said": said }).to_string());
            } else {
                let at = at.map(|at| at.to_string()).unwrap_or_default();
                out.line(&format!("{at}  {}", message.trim_end()));
            }
        }
    }
    Ok(())
}

/// Parses a duration such as 15m, 6h or 2d.
fn back(text: &str) -> Result<SignedDuration> {
    let span = text.parse::<Span>().ok();
    // A day has 24 hours here, because a change of the clocks hardly matters in a search.
    let time = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    match time {
        Some(time) => Ok(time.abs()),
        None => bail!("--since is a time such as 15m, 6h or 2d, not {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_back_has_minutes_hours_or_days() {
        for (text, minutes) in [("15m", 15), ("6h", 360), ("2d", 2_880), ("1d12h", 2_160)] {
            assert_eq!(back(text).unwrap(), SignedDuration::from_mins(minutes), "{text}");
        }
        for wrong in ["yesterday", "", "2"] {
            assert!(back(wrong).unwrap_err().to_string().contains("--since"), "{wrong}");
        }
    }
}
