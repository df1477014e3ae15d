//! Prints one line for each hop of an event, so that a newcomer sees the event's path.

use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use crate::output;

/// The printer of hops. It prints no payloads (rule 14).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceLog {
    pub(crate) quiet: bool,
}

impl TraceLog {
    pub(crate) fn line(self, hop: &str, text: &str) {
        if !self.quiet {
            self.always(hop, text);
        }
    }

    /// Prints a line even in quiet mode, because the line is not about one event.
    pub(crate) fn always(self, hop: &str, text: &str) {
        let now = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%H:%M:%S%.3f");
        output::line(format_args!("{now}  {hop:<10} {text}"));
    }
}

/// Returns the stream and version of a commit, a bus entry or a message, as readable text.
pub(crate) fn name(commit: &Value) -> String {
    let text = |name: &str| commit[name].as_str().unwrap_or("?").to_owned();
    // A version is a number in an entry or a message, and text in a record of the table's stream.
    let version =
        commit["version"].as_u64().map_or_else(|| text("version"), |version| version.to_string());
    format!("{} v{version}", text("stream"))
}

/// Returns the milliseconds since a commit was decided, as text.
pub(crate) fn age(commit: &Value) -> String {
    match commit["at"].as_str().and_then(|at| at.parse::<Timestamp>().ok()) {
        Some(at) => {
            format!(", {} ms after the commit", Timestamp::now().duration_since(at).as_millis())
        }
        None => String::new(),
    }
}
