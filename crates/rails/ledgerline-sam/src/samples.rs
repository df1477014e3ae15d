//! The sample events, and the answers to them that the tables beside them list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::template::{self, Event, Source};

/// One line of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Logical id of the function.
    pub function: String,
    /// Path of the event, from `events/`.
    pub path: String,
    /// The event.
    pub event: Value,
    /// The part of the answer that must be there.
    pub answer: Value,
}

/// The part of an expected text that differs in each run, such as the hash in an entity tag:
/// `"3.…"`.
const VARYING: char = '…';

/// The table beside the events of a function.
const ANSWERS: &str = "answers.md";

/// Reads the tables of all functions, in the order in which the events must be sent.
///
/// # Errors
/// When a line cannot be read, or an event has no line.
pub fn samples(repository: &Path) -> Result<Vec<Sample>> {
    of(&Source::read(&repository.join("template.yaml"))?, &repository.join("events"))
}

/// The same, for the functions of this template, with their events in this folder.
///
/// # Errors
/// As those of [`samples`].
pub fn of(source: &Source, events: &Path) -> Result<Vec<Sample>> {
    let template = template::of(source, &BTreeMap::new(), "http://127.0.0.1")?;
    let mut functions: Vec<_> = template.functions.iter().collect();
    // The order is commands, the fanout, the functions behind it, queries, so that later events find what earlier ones wrote.
    functions.sort_by_key(|function| {
        let place = |event: &Event| match event {
            Event::HttpApi { method, .. } if method != "GET" => 0,
            Event::Stream(_) => 1,
            Event::Rule { .. } | Event::Queue(_) | Event::Schedule(_) => 2,
            Event::HttpApi { .. } => 3,
        };
        function.events.iter().map(place).min()
    });
    let mut samples = Vec::new();
    for function in functions {
        let folder = events.join(&function.binary);
        let table = folder.join(ANSWERS);
        let text = fs::read_to_string(&table).with_context(|| table.display().to_string())?;
        let lines: Vec<_> = text.lines().filter(|line| line.contains(".json |")).collect();
        let mut told = BTreeSet::from([ANSWERS.to_owned()]);
        for line in lines {
            // The answer is the last cell, because only an answer may contain a bar.
            let cells: Vec<_> = line.trim_matches(['|', ' ']).splitn(3, '|').map(str::trim).collect();
            let [case, _, answer] = cells.as_slice() else {
                return Err(anyhow!("{}: three columns are needed: {line}", table.display()));
            };
            let event = folder.join(case);
            let event = fs::read_to_string(&event).with_context(|| event.display().to_string())?;
            told.insert((*case).to_owned());
            samples.push(Sample {
                function: function.id.clone(),
                path: format!("{}/{case}", function.binary),
                event: serde_json::from_str(&event).with_context(|| line.to_owned())?,
                answer: serde_json::from_str(answer.trim_matches('`')).with_context(|| line.to_owned())?,
            });
        }
        for file in fs::read_dir(&folder)? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if !told.contains(&name) {
                return Err(anyhow!("{} does not say what {name} is answered with", table.display()));
            }
        }
    }
    Ok(samples)
}

/// Whether an answer has every expected field and value. A text is parsed as JSON if an object is expected, as for a body.
#[must_use]
pub fn has(answer: &Value, expected: &Value) -> bool {
    match (answer, expected) {
        (Value::String(text), Value::Object(_)) => {
            serde_json::from_str::<Value>(text).is_ok_and(|answer| has(&answer, expected))
        }
        (Value::Object(fields), Value::Object(expected)) => expected
            .iter()
            .all(|(name, expected)| fields.get(name).is_some_and(|answer| has(answer, expected))),
        (Value::Array(answers), Value::Array(expected)) => {
            expected.is_empty() == answers.is_empty()
                && expected.iter().zip(answers).all(|(expected, answer)| has(answer, expected))
                && expected.len() <= answers.len()
        }
        (Value::String(text), Value::String(expected)) => match expected.split_once(VARYING) {
            Some((start, end)) => {
                text.strip_prefix(start).is_some_and(|rest| rest.len() > end.len() && rest.ends_with(end))
            }
            None => text == expected,
        },
        _ => answer == expected,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_of_a_text_may_vary_and_the_rest_must_be_there() {
        let tag = json!({ "etag": "\"3.9f86d081\"" });
        assert!(has(&tag, &json!({ "etag": "\"3.…\"" })));
        for other in ["\"2.…\"", "\"3.9f86d081…\"", "\"3.…", "\"3\""] {
            assert_eq!(has(&tag, &json!({ "etag": other })), other == "\"3.…", "{other}");
        }
    }

    #[test]
    fn an_answer_has_what_is_expected_or_not() {
        let answer =
            json!({ "statusCode": 200, "body": "{\"a\":1,\"b\":[{\"c\":2},{\"c\":3}]}", "failures": [] });
        for (expected, holds) in [
            (json!({ "statusCode": 200 }), true),
            (json!({ "body": { "a": 1 } }), true),
            (json!({ "body": { "b": [{ "c": 2 }] } }), true),
            (json!({ "failures": [] }), true),
            (json!({ "statusCode": 201 }), false),
            (json!({ "body": { "a": 2 } }), false),
            (json!({ "body": { "b": [] } }), false),
            (json!({ "body": { "b": [{ "c": 3 }] } }), false),
            (json!({ "failures": [{}] }), false),
            (json!({ "other": null }), false),
            (json!(null), false),
        ] {
            assert_eq!(has(&answer, &expected), holds, "{expected}");
        }
    }
}
