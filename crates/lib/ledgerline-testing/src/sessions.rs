//! The sessions in the documents. Every command runs against the local stack, and its output must
//! equal the output in the document, except for times and random values. `UPDATE_SESSIONS=1` writes
//! the output into the documents.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use reqwest::Method;
use serde_json::Value;

use super::{LocalStack, eventually};

/// Checks the sessions in the README of the application with the functions under test.
pub async fn session_of_application_is_real() {
    let functions = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    sessions_are_real(&Path::new(&functions).join("../README.md")).await;
}

/// A command, and its output in the document.
struct Step {
    command: String,
    printed: String,
}

/// A `curl` command of a document.
#[derive(Debug, Default)]
struct Curl {
    method: Option<String>,
    url: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    show_headers: bool,
}

impl Curl {
    fn parse(words: &[String]) -> Self {
        let mut curl = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut next = || words.next().expect("an argument").clone();
            match word.as_str() {
                "-X" => curl.method = Some(next()),
                "-d" => curl.body = Some(next()),
                "-H" => {
                    let header = next();
                    let (name, value) = header.split_once(": ").expect("a header");
                    curl.headers.push((name.into(), value.into()));
                }
                "-i" => curl.show_headers = true,
                url => curl.url = url.into(),
            }
        }
        curl
    }

    /// Runs the command against this stack, and returns its output.
    async fn run(&self, local: &LocalStack) -> String {
        let url = self
            .url
            .replace("localhost:3000", &local.url)
            .replace("localhost:4566", &local.aws_url());
        let method =
            self.method.as_deref().unwrap_or(if self.body.is_some() { "POST" } else { "GET" });
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = ledgerline_local::http_client().request(method, url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = request.body(self.body.clone().unwrap_or_default()).send().await.unwrap();
        let mut printed = String::new();
        if self.show_headers {
            writeln!(printed, "HTTP/1.1 {}", response.status()).unwrap();
            for (name, value) in response.headers() {
                writeln!(printed, "{name}: {}", value.to_str().unwrap()).unwrap();
            }
            printed.push('\n');
        }
        printed + &response.text().await.unwrap()
    }
}

/// Returns the blocks of a document that have only `curl` commands and assignments of variables.
fn sessions(text: &str) -> Vec<Vec<Step>> {
    let mut sessions = Vec::new();
    for block in text.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let mut steps: Vec<Step> = Vec::new();
        let mut open = false;
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), printed: String::new() });
            } else if open {
                let step = steps.last_mut().unwrap();
                step.command.push('\n');
                step.command.push_str(line);
            } else if let Some(step) = steps.last_mut() {
                step.printed.push_str(line);
                step.printed.push('\n');
            }
            let command = steps.last().map(|step| step.command.as_str()).unwrap_or_default();
            // A command continues after a backslash, and inside of quotes.
            open = line.ends_with('\\') || command.matches('\'').count() % 2 == 1;
        }
        let known = |step: &Step| step.command.starts_with("curl ") || is_assignment(&step.command);
        if steps.iter().all(known) {
            sessions.push(steps);
        }
    }
    sessions
}

fn is_assignment(command: &str) -> bool {
    command.split(' ').all(|word| {
        word.split_once('=').is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase()))
    })
}

/// Returns the lines of an output without the values that are different each time: times, new ids,
/// and values that depend on these.
fn comparable(printed: &str) -> Vec<String> {
    fn blank(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    const OTHERS: [&str; 8] = [
                        "at",
                        "bookedOn",
                        "correlationId",
                        "cursor",
                        "day",
                        "lastMonth",
                        // A month may end between two commands.
                        "lastMonthBalance",
                        "messageId",
                    ];
                    if OTHERS.contains(&name.as_str()) {
                        *value = "…".into();
                    }
                    blank(value);
                }
            }
            Value::Array(values) => values.iter_mut().for_each(blank),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let lines = printed.trim().lines().filter(|line| !line.starts_with("date: "));
    lines
        .map(|line| match serde_json::from_str::<Value>(line) {
            Ok(mut json) => {
                blank(&mut json);
                json.to_string()
            }
            Err(_) => line.to_owned(),
        })
        .collect()
}

/// Runs the sessions of a document against a local stack of their own, and compares the output with
/// the document.
pub async fn sessions_are_real(path: &Path) {
    let document = path.display();
    let mut text = std::fs::read_to_string(path).unwrap();
    let update = std::env::var_os("UPDATE_SESSIONS").is_some();
    let local = LocalStack::start(None).await;
    let mut variables = BTreeMap::<String, String>::new();
    let mut commands = 0;
    // The end of the updated part of the document.
    let mut written = 0;
    for step in sessions(&text).into_iter().flatten() {
        let mut command = step.command.replace("\\\n", " ");
        for (name, value) in &variables {
            command = command.replace(&format!("${name}"), value);
        }
        let words = shlex::split(&command).expect("quotes are closed");
        if is_assignment(&step.command) {
            for word in words {
                let (name, value) = word.split_once('=').unwrap();
                variables.insert(name.to_owned(), value.to_owned());
            }
            continue;
        }
        commands += 1;
        let curl = Curl::parse(&words[1..]);
        if update {
            // Reads are eventually consistent: without the pause, the first response might be
            // stale.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let printed = curl.run(&local).await.trim_end().to_owned();
            let old = format!("$ {}\n{}", step.command, step.printed);
            let place = written + text[written..].find(&old).expect("the command is where it was");
            let last = text[place + old.len()..].starts_with("```");
            let new = format!("$ {}\n{printed}\n{}", step.command, if last { "" } else { "\n" });
            text.replace_range(place..place + old.len(), &new);
            written = place + new.len();
            continue;
        }
        let expected = comparable(&step.printed);
        if curl.method.is_some() {
            assert_eq!(comparable(&curl.run(&local).await), expected, "{document}: $ {command}");
        } else {
            // Reads are eventually consistent.
            eventually(&format!("{document}: $ {command}\n{expected:?}"), async || {
                (comparable(&curl.run(&local).await) == expected).then_some(())
            })
            .await;
        }
    }
    assert!(commands > 5, "{document} has {commands} commands");
    if update {
        std::fs::write(path, text).unwrap();
    }
}
