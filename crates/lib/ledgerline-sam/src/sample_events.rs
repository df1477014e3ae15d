//! The sample events of a workspace, and the answers that its functions must give to them.
//!
//! `events/<function>/<case>.json` is an event, as Lambda hands it to the function.
//! `tests/answers/<function>/<case>.json` has the [`Step`]s that send this event.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::template::{self, Event, Source};

/// The folder with the sample events, in the folder of the template.
pub const EVENTS: &str = "events";
/// The folder with the expected answers, in the folder of the template.
pub const ANSWERS: &str = "tests/answers";

/// A request of one sample event, and the expected answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The place of the request in the order of all requests to its function, from 1.
    pub step: usize,
    /// The request in a few words.
    pub about: String,
    /// The part of the answer that must be there.
    pub answer: Value,
}

/// A sample event with one of its steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Logical id of the function.
    pub function: String,
    /// Path of the event, from `events/`, and of its answers, from `tests/answers/`.
    pub path: String,
    /// The place of the request in the order of all requests to its function.
    pub step: usize,
    /// The request in a few words.
    pub about: String,
    /// The event.
    pub event: Value,
    /// The part of the answer that must be there.
    pub answer: Value,
}

/// The character in an expected text that stands for a part that differs in each run, such as the
/// hash in an entity tag: `"3.…"`.
const VARYING: char = '…';

/// Reads the samples of all functions, in the order in which the events must be sent.
///
/// # Errors
/// When a file cannot be read, or an event and its answers do not match. Also when the steps of a
/// function are not numbered 1, 2, 3 and so on.
pub fn all_samples(root: &Path) -> Result<Vec<Sample>> {
    samples_for(&Source::read(&root.join("template.yaml"))?, root)
}

/// Reads the samples of the functions that a stack has if no parameter has a value, so without those
/// that need a database.
///
/// # Errors
/// As those of [`all_samples`].
pub fn samples(root: &Path) -> Result<Vec<Sample>> {
    let source = Source::read(&root.join("template.yaml"))?;
    let template = template::resolve(&source, &BTreeMap::new(), "http://127.0.0.1")?;
    let functions: BTreeSet<_> = template.functions.iter().map(|function| &*function.id).collect();
    let mut samples = samples_for(&source, root)?;
    samples.retain(|sample| functions.contains(&*sample.function));
    Ok(samples)
}

/// Reads the samples of the functions of this template. `root` is the folder with their events and
/// answers.
///
/// # Errors
/// As those of [`all_samples`].
pub fn samples_for(source: &Source, root: &Path) -> Result<Vec<Sample>> {
    let template = template::resolve_all(source)?;
    let mut functions: Vec<_> = template.functions.iter().collect();
    // The order is commands, the fanout, the functions behind it, queries, so that later events
    // find the writes of earlier ones.
    functions.sort_by_key(|function| {
        let place = |event: &Event| match event {
            Event::HttpApi { method, .. } if method != "GET" => 0,
            Event::Stream(_) => 1,
            Event::Kinesis(_) | Event::Rule { .. } | Event::Queue(_) | Event::Schedule(_) => 2,
            Event::HttpApi { .. } => 3,
        };
        function.events.iter().map(place).min()
    });
    let known: BTreeSet<_> = functions.iter().map(|function| &*function.binary).collect();
    let answered = names(&root.join(ANSWERS))?;
    if let Some(name) = answered.iter().find(|name| !known.contains(&***name)) {
        bail!("`{ANSWERS}/{name}` has answers of no function in the template; delete it");
    }
    let mut samples = Vec::new();
    for function in functions {
        samples.extend(samples_of_function(root, &function.id, &function.binary)?);
    }
    Ok(samples)
}

/// The samples of one function, in the order of their steps.
fn samples_of_function(root: &Path, id: &str, binary: &str) -> Result<Vec<Sample>> {
    let [events, answers] = [EVENTS, ANSWERS].map(|folder| format!("{folder}/{binary}"));
    let cases = names(&root.join(&events))?;
    let answered = names(&root.join(&answers))?;
    for (folder, files) in [(&events, &cases), (&answers, &answered)] {
        if let Some(file) = files.iter().find(|file| !file.ends_with(".json")) {
            bail!("`{folder}/{file}` is not a JSON file; move it elsewhere or delete it");
        }
    }
    if cases.is_empty() {
        bail!(
            "`{events}` has no event; write one for each route, or one if the function has no route"
        );
    }
    if let Some(case) = answered.difference(&cases).next() {
        bail!(
            "`{answers}/{case}` has answers to no event; write `{events}/{case}`, or delete the answers"
        );
    }
    let mut samples = Vec::new();
    for case in &cases {
        let event: Value = read(root, &format!("{events}/{case}"))?;
        let path = format!("{answers}/{case}");
        if !answered.contains(case) {
            bail!(
                "`{path}` is missing; write the steps that send `{events}/{case}`, such as \
                 [{{ \"step\": 1, \"about\": \"…\", \"answer\": null }}]"
            );
        }
        let steps: Vec<Step> = read(root, &path)?;
        if steps.is_empty() {
            bail!("`{path}` has no step; write one, or delete it with `{events}/{case}`");
        }
        samples.extend(steps.into_iter().map(|Step { step, about, answer }| Sample {
            function: id.to_owned(),
            path: format!("{binary}/{case}"),
            step,
            about,
            event: event.clone(),
            answer,
        }));
    }
    samples.sort_by_key(|sample| sample.step);
    for (expected, Sample { path, step, .. }) in (1..).zip(&samples) {
        if *step == expected {
            continue;
        }
        let rule = format!("number the steps of `{binary}` 1, 2, 3 and so on, each once");
        let same: Vec<_> = samples.iter().filter(|other| other.step == *step).collect();
        if same.len() > 1 {
            let files: BTreeSet<_> =
                same.iter().map(|same| format!("`{ANSWERS}/{}`", same.path)).collect();
            let files = Vec::from_iter(files).join(" and ");
            bail!("two requests of `{binary}` are step {step}, in {files}; {rule}");
        }
        bail!("`{ANSWERS}/{path}` has step {step} in place of step {expected}; {rule}");
    }
    Ok(samples)
}

/// The names in a folder, in alphabetical order, without those of hidden files. A folder that does
/// not exist has none.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    if !folder.exists() {
        return Ok(BTreeSet::new());
    }
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names
        .filter(|name| name.as_ref().map_or(true, |name: &String| !name.starts_with('.')))
        .collect()
}

/// Reads a value from a JSON file.
fn read<T: for<'de> Deserialize<'de>>(root: &Path, path: &str) -> Result<T> {
    let text = fs::read_to_string(root.join(path)).with_context(|| format!("`{path}`"))?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let value = serde_path_to_error::deserialize(&mut json).with_context(|| format!("`{path}`"))?;
    json.end().with_context(|| format!("`{path}`"))?;
    Ok(value)
}

/// Whether an answer has every expected field and value. A text is parsed as JSON if an object is
/// expected, as for a body.
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
            Some((start, end)) => text
                .strip_prefix(start)
                .is_some_and(|rest| rest.len() > end.len() && rest.ends_with(end)),
            None => text == expected,
        },
        _ => answer == expected,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::TANKS;

    /// Creates a temporary folder with these files.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const FILL: &str = r#"[{ "step": 1, "about": "rain", "answer": null }]"#;
    const DRAW: &str = r#"[
        { "step": 4, "about": "the same again", "answer": { "statusCode": 412 } },
        { "step": 2, "about": "a draw", "answer": { "statusCode": 200 } }
    ]"#;
    const SCRAP: &str = r#"[{ "step": 3, "about": "scrap", "answer": null }]"#;

    /// The files of one function with three sample events, one of which is sent twice.
    const FILES: [(&str, &str); 6] = [
        ("events/tanks/draw.json", r#"{ "amount": 2 }"#),
        ("events/tanks/fill.json", r#"{ "amount": 1 }"#),
        ("events/tanks/scrap.json", "{}"),
        ("tests/answers/tanks/draw.json", DRAW),
        ("tests/answers/tanks/fill.json", FILL),
        ("tests/answers/tanks/scrap.json", SCRAP),
    ];

    #[test]
    fn events_are_sent_in_the_order_of_the_steps_in_all_files() {
        let root = folder(&FILES);
        let samples = samples_of_function(root.path(), "TanksFunction", "tanks").unwrap();
        let sent: Vec<_> = samples.iter().map(|sample| (&*sample.path, &*sample.about)).collect();
        let [draw, fill, scrap] = ["tanks/draw.json", "tanks/fill.json", "tanks/scrap.json"];
        assert_eq!(
            sent,
            [(fill, "rain"), (draw, "a draw"), (scrap, "scrap"), (draw, "the same again")]
        );
        assert_eq!(samples[3].event, json!({ "amount": 2 }));
        assert_eq!(samples[3].answer, json!({ "statusCode": 412 }));
        assert!(samples.iter().all(|sample| sample.function == "TanksFunction"));
    }

    #[test]
    fn an_error_names_the_file_and_the_remedy() {
        let step =
            |text: &str, number: &str| text.replace("\"step\": 3", &format!("\"step\": {number}"));
        let fill = "tests/answers/tanks/fill.json";
        let draw = "tests/answers/tanks/draw.json";
        let scrap = "tests/answers/tanks/scrap.json";
        for (path, text, expected) in [
            (
                scrap,
                &*step(SCRAP, "5"),
                "`tests/answers/tanks/draw.json` has step 4 in place of step 3; number",
            ),
            (
                scrap,
                &*step(SCRAP, "0"),
                "`tests/answers/tanks/scrap.json` has step 0 in place of step 1; number",
            ),
            (
                scrap,
                &*step(SCRAP, "2"),
                "two requests of `tanks` are step 2, in `tests/answers/tanks/draw.json` and `tests/answers/tanks/scrap.json`; number",
            ),
            (
                draw,
                &*DRAW.replace('4', "2"),
                "are step 2, in `tests/answers/tanks/draw.json`; number",
            ),
            (
                "events/tanks/seal.json",
                "{}",
                "`tests/answers/tanks/seal.json` is missing; write the steps",
            ),
            (
                "tests/answers/tanks/seal.json",
                FILL,
                "answers to no event; write `events/tanks/seal.json`",
            ),
            (
                "events/tanks/answers.md",
                "",
                "`events/tanks/answers.md` is not a JSON file; move it",
            ),
            (fill, "[]", "`tests/answers/tanks/fill.json` has no step; write one"),
            (
                fill,
                &FILL.replace("about", "abuot"),
                "`tests/answers/tanks/fill.json`: [0].abuot: unknown field",
            ),
            (fill, &FILL.replace(", \"answer\": null", ""), "missing field `answer`"),
            (fill, &format!("{FILL}]"), "`tests/answers/tanks/fill.json`: trailing characters"),
        ] {
            let changed: BTreeMap<_, _> = FILES.into_iter().chain([(path, text)]).collect();
            let root = folder(&Vec::from_iter(changed));
            let error = samples_of_function(root.path(), "TanksFunction", "tanks").unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{expected}\n{error:#}");
        }
        let nothing = folder(&[]);
        let error = samples_of_function(nothing.path(), "TanksFunction", "tanks").unwrap_err();
        assert!(error.to_string().starts_with("`events/tanks` has no event; write"), "{error:#}");
    }

    #[test]
    fn answers_of_an_unknown_function_are_an_error() {
        let tanks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledgerline-tank");
        assert!(samples_for(&TANKS, &tanks).unwrap().len() > 20);
        let root = folder(&FILES);
        let error = samples_for(&TANKS, root.path()).unwrap_err().to_string();
        assert_eq!(
            error,
            "`tests/answers/tanks` has answers of no function in the template; delete it"
        );
    }

    #[test]
    fn a_part_of_a_text_may_vary_and_the_rest_must_be_there() {
        let tag = json!({ "etag": "\"3.9f86d081\"" });
        assert!(has(&tag, &json!({ "etag": "\"3.…\"" })));
        for other in ["\"2.…\"", "\"3.9f86d081…\"", "\"3.…", "\"3\""] {
            assert_eq!(has(&tag, &json!({ "etag": other })), other == "\"3.…", "{other}");
        }
    }

    #[test]
    fn an_answer_matches_if_it_has_every_expected_field() {
        let answer = json!({ "statusCode": 200, "body": "{\"a\":1,\"b\":[{\"c\":2},{\"c\":3}]}", "failures": [] });
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
