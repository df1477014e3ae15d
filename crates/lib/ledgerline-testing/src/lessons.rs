//! The lessons in `docs/learn`: a shell runs their commands, and each session must print the text
//! that the lesson shows.

use std::{path::PathBuf, process::Command, time::Duration};

/// The number of times that a session repeats a read, a tenth of a second apart: views lag.
const READS: u32 = 300;

/// Returns the fenced blocks of a page in their order: the language, and the text.
pub fn blocks(page: &str) -> Vec<(&str, &str)> {
    let fences = page.split("\n```").skip(1).step_by(2);
    fences.filter_map(|fence| fence.split_once('\n')).collect()
}

/// A shell that runs the commands of a lesson.
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
        let replaced =
            |script: String, (from, to): &(_, String)| script.replace::<&String>(from, to);
        let script = self.replaced.iter().fold(format!("{}{script}", self.variables), replaced);
        let mut shell = Command::new("bash");
        shell.current_dir(&self.folder).args(["-e", "-o", "pipefail", "-c", &script]);
        let output = shell.output().unwrap();
        let (printed, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script}\n{printed}\n{errors}");
        printed.into_owned()
    }

    /// Runs the commands of a session, which begin with `$ `, and compares what they print. A read
    /// is repeated until it prints the expected text.
    pub fn session(&mut self, session: &str) {
        for step in format!("\n{session}").split("\n$ ").skip(1) {
            let lines: Vec<_> = step.trim_end().lines().collect();
            let (command, expected) = lines.split_first().unwrap();
            if !command.starts_with("curl ") {
                self.variables.push_str(&format!("{command}\n"));
                continue;
            }
            let expected = expected.join("\n");
            let reads = if command.contains("-X POST") { 1 } else { READS };
            let mut printed = String::new();
            for _ in 0..reads {
                printed = without_cursor(self.run(command).trim_end());
                if printed == expected {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            assert_eq!(printed, expected, "$ {command}");
        }
    }
}

/// Replaces a cursor, which has random values.
fn without_cursor(printed: &str) -> String {
    match printed.split_once("\"cursor\":\"") {
        Some((before, rest)) => {
            let after = rest.split_once('"').unwrap().1;
            format!("{before}\"cursor\":\"…\"{after}")
        }
        None => printed.to_owned(),
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

    #[test]
    #[should_panic(expected = "$ curl")]
    fn a_session_that_prints_another_text_is_reported() {
        let mut shell = Shell::new(".");
        shell.replace("curl -X POST", "echo");
        shell.session("$ curl -X POST b\na\n");
    }

    #[test]
    fn a_session_has_its_variables() {
        let mut shell = Shell::new(".");
        shell.replace("curl -X POST", "echo");
        shell.session("$ a=1 b=2\n\n$ curl -X POST $a $b\n1 2\n");
        shell.session("$ curl -X POST '{\"cursor\":\"x\"}'\n{\"cursor\":\"…\"}\n");
    }
}
