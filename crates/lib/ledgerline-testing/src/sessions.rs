//! The commands in documents: a shell runs them, and a session must print the text that the
//! document shows, except for times and random values. `UPDATE_SESSIONS=1` writes the printed text
//! into the documents. The shell is bash, and the commands need curl.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use ledgerline_sam::build::remove_package_variables;
use serde_json::Value;

use super::{LocalStack, eventually, workspace};

/// Runs the session in the README of the application whose functions the tests are about.
pub async fn session_of_application_is_real() {
    let functions = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    sessions_are_real(&Path::new(&functions).join("../README.md")).await;
}

/// Returns the fenced blocks of a page in their order: the language, and the text.
pub fn blocks(page: &str) -> Vec<(&str, &str)> {
    let fences = page.split("\n```").skip(1).step_by(2);
    fences.filter_map(|fence| fence.split_once('\n')).collect()
}

/// A command of a session, and the text below it.
struct Step {
    command: String,
    printed: String,
}

/// Returns the commands of a session, which begin with `$ `.
fn steps(session: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut open = false;
    for line in session.lines() {
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
    steps
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

/// A shell that runs the commands of a document.
#[derive(Debug)]
pub struct Shell {
    folder: PathBuf,
    replaced: Vec<(String, String)>,
    /// The lines that set the variables of the sessions.
    variables: String,
}

impl Shell {
    /// Creates a shell in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), replaced: Vec::new(), variables: String::new() }
    }

    /// Replaces a text in all later commands, such as the address of the stack.
    pub fn replace(&mut self, from: &str, to: impl Into<String>) {
        self.replaced.retain(|(known, _)| known != from);
        self.replaced.push((from.to_owned(), to.into()));
    }

    /// Runs a script, which must succeed, and returns its output.
    pub fn run(&self, script: &str) -> String {
        let mut script = format!("{}{script}", self.variables);
        for (from, to) in &self.replaced {
            script = script.replace(from, to);
        }
        let mut shell = Command::new("bash");
        shell.current_dir(&self.folder).env("NO_PROXY", "127.0.0.1");
        remove_package_variables(&mut shell);
        let output = shell.args(["-e", "-o", "pipefail", "-c", &script]).output().unwrap();
        let (printed, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script}\n{printed}\n{errors}");
        printed.into_owned()
    }

    /// Runs the commands of a session, and compares what they print. A read is repeated, because
    /// reads are eventually consistent.
    pub async fn session(&mut self, session: &str) {
        for step in steps(session) {
            self.step(&step).await;
        }
    }

    async fn step(&mut self, Step { command, printed }: &Step) {
        if is_assignment(command) {
            writeln!(self.variables, "{command}").unwrap();
            return;
        }
        let expected = comparable(printed);
        if command.contains("-X ") {
            assert_eq!(comparable(&self.run(command)), expected, "$ {command}");
        } else {
            eventually(&format!("$ {command}\n{expected:?}"), async || {
                (comparable(&self.run(command)) == expected).then_some(())
            })
            .await;
        }
    }
}

/// Runs the sessions of a document against a local stack of their own. A session is a block whose
/// commands are all `curl`, or set a variable.
pub async fn sessions_are_real(path: &Path) {
    let document = path.display();
    let mut text = std::fs::read_to_string(path).unwrap();
    let update = std::env::var_os("UPDATE_SESSIONS").is_some();
    let local = LocalStack::start(None).await;
    let mut shell = Shell::new(workspace());
    shell.replace("localhost:3000", local.url());
    shell.replace("localhost:4566", local.aws_url());
    let is_known = |step: &Step| step.command.starts_with("curl ") || is_assignment(&step.command);
    let console = blocks(&text).into_iter().filter(|(language, _)| *language == "console");
    let sessions: Vec<_> = console
        .map(|(_, session)| steps(session))
        .filter(|steps| steps.iter().all(is_known))
        .flatten()
        .collect();
    let commands = sessions.iter().filter(|step| !is_assignment(&step.command)).count();
    assert!(commands > 5, "{document} has {commands} commands");
    // The place up to which the document is up to date.
    let mut written = 0;
    for step in sessions {
        if !update || is_assignment(&step.command) {
            shell.step(&step).await;
            continue;
        }
        // Without the pause, the first answer of an eventually consistent read might be an old one.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let printed = shell.run(&step.command).trim_end().to_owned();
        let old = format!("$ {}\n{}", step.command, step.printed.trim_end());
        let place = written + text[written..].find(&old).expect("the command is where it was");
        let new = format!("$ {}\n{printed}", step.command);
        text.replace_range(place..place + old.len(), &new);
        written = place + new.len();
    }
    if update {
        std::fs::write(path, text).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_a_page_have_a_language_and_a_text() {
        let page = "a\n```sh\nls\n```\nb\n\n```console\n$ x\ny\n```\n";
        assert_eq!(blocks(page), [("sh", "ls"), ("console", "$ x\ny")]);
    }

    #[tokio::test]
    #[should_panic(expected = "$ curl")]
    async fn a_session_that_prints_another_text_is_reported() {
        let mut shell = Shell::new(".");
        shell.replace("curl -X POST", "echo");
        shell.session("$ curl -X POST b\na\n").await;
    }

    #[tokio::test]
    async fn a_session_has_its_variables_and_ignores_random_values() {
        let mut shell = Shell::new(".");
        shell.replace("curl -X POST", "echo");
        shell.session("$ a=1 b=2\n\n$ curl -X POST $a \\\n  $b\n1 2\n").await;
        shell.session("$ curl -X POST '{\"cursor\":\"x\"}'\n{\"cursor\":\"…\"}\n").await;
    }
}
