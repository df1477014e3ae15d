//! The operator's tool at a local stack.

use std::{
    collections::BTreeSet,
    process::{Child, Command, Output, Stdio},
};

use super::{LocalStack, workspace};
use serde_json::Value;

/// The operator's tool at a stack. It has the policies of an operator who may only read, unless its
/// arguments contain `--write`.
#[derive(Debug)]
pub struct Tool {
    url: String,
}

impl Tool {
    /// Returns the tool for this stack.
    #[must_use]
    pub fn at(stack: &LocalStack) -> Self {
        Self { url: stack.aws_url() }
    }

    /// Returns the command that runs the program, without any argument.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut ledger = super::command("ledger");
        ledger.current_dir(workspace());
        ledger
    }

    /// Starts the tool with these arguments, at the stack, with the rights that they need.
    #[must_use]
    pub fn start(&self, arguments: &[&str]) -> Child {
        let policy =
            if arguments.contains(&"--write") { "OperatorPolicy" } else { "OperatorReadPolicy" };
        self.start_as(policy, arguments)
    }

    /// Starts the tool with these arguments, at the stack, with the rights of this policy.
    #[must_use]
    pub fn start_as(&self, policy: &str, arguments: &[&str]) -> Child {
        let mut ledger = self.command();
        ledger.args([&format!("--local={}", self.url), "--json"]).args(arguments);
        ledger.env("AWS_ACCESS_KEY_ID", ledgerline_local::iam::access_key(policy));
        ledger.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the program exits. Returns its exit code and the printed values, one per line.
    pub async fn end(child: Child) -> (i32, Vec<Value>) {
        tokio::task::spawn_blocking(|| wait_for_output(child)).await.unwrap()
    }

    /// Compares every subscriber with the log, including commits of the last minutes. Returns the
    /// exit code and the differences.
    #[must_use]
    pub fn found(&self, arguments: &[&str]) -> (i32, Differences) {
        let (code, printed) = self.run(&[&["reconcile", "--younger", "0"], arguments].concat());
        (code, differences(&printed))
    }

    /// Redelivers the commits that each subscriber lacks, including those of the last minutes.
    /// Returns the exit code and the differences that it found.
    #[must_use]
    pub fn repaired(&self, arguments: &[&str]) -> (i32, Differences) {
        let (code, printed) =
            self.run(&[&["redeliver", "--missing", "--younger", "0"], arguments].concat());
        (code, differences(&printed))
    }

    /// Runs the tool with these arguments. Returns its exit code and the printed values, one per
    /// line.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> (i32, Vec<Value>) {
        wait_for_output(self.start(arguments))
    }
}

/// Differences between subscribers and the log: `missing` or `ahead`, the subscriber, the stream,
/// and the version that the subscriber has.
pub type Differences = BTreeSet<(String, String, String, u64)>;

/// Returns the differences that a comparison printed.
#[must_use]
pub fn differences(printed: &[Value]) -> Differences {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = printed.iter().filter(|line| line["what"] == "missing" || line["what"] == "ahead");
    let found = found.map(|line| {
        (
            text(&line["what"]),
            text(&line["who"]),
            text(&line["stream"]),
            line["there"].as_u64().unwrap(),
        )
    });
    found.collect()
}

fn wait_for_output(child: Child) -> (i32, Vec<Value>) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let lines = String::from_utf8(stdout).unwrap();
    eprintln!("{lines}{}", String::from_utf8_lossy(&stderr));
    (
        status.code().unwrap(),
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    )
}
