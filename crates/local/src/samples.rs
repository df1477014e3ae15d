//! The sample events, and what docs/samples.md says that they are answered with.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Logical id of the function.
    pub function: String,
    /// Path of the event, from `events/`.
    pub path: String,
    /// The event.
    pub event: Value,
    /// What must be in the answer.
    pub answer: Value,
}

/// Reads the table, in its order.
///
/// # Errors
/// When a line cannot be read, or an event has no line.
pub fn samples(repository: &Path) -> Result<Vec<Sample>> {
    let docs = repository.join("docs/samples.md");
    let text = fs::read_to_string(&docs).with_context(|| docs.display().to_string())?;
    let mut samples = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| ") && line.contains(".json |")) {
        samples.push(sample(repository, line).with_context(|| line.to_owned())?);
    }
    let written: BTreeSet<_> = samples.iter().map(|sample| sample.path.as_str()).collect();
    for folder in fs::read_dir(repository.join("events"))? {
        for file in fs::read_dir(folder?.path())? {
            let file = file?.path();
            let path = file.strip_prefix(repository.join("events"))?.to_string_lossy().into_owned();
            if !written.contains(path.as_str()) {
                return Err(anyhow!("docs/samples.md does not say what {path} is answered with"));
            }
        }
    }
    Ok(samples)
}

fn sample(repository: &Path, line: &str) -> Result<Sample> {
    // An answer may have a bar in it; what comes before has none.
    let cells: Vec<_> = line.trim_matches(['|', ' ']).splitn(4, '|').map(str::trim).collect();
    let [function, path, _, answer] = cells.as_slice() else {
        return Err(anyhow!("four columns are needed"));
    };
    let event = fs::read_to_string(repository.join("events").join(path))?;
    Ok(Sample {
        function: (*function).to_owned(),
        path: (*path).to_owned(),
        event: serde_json::from_str(&event)?,
        answer: serde_json::from_str(answer.trim_matches('`'))?,
    })
}

/// Whether an answer has everything that is expected of it. A body that is JSON text is looked into.
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
        _ => answer == expected,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
