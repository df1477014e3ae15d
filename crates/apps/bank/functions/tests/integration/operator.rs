//! The operator's tool, as the tests run it.

use std::{
    collections::BTreeSet,
    process::{Child, Command, Output, Stdio},
};

use ledgerline_testing::{LocalStack, workspace};
use serde_json::Value;

/// The tool, at a stack.
pub(crate) struct Ledger {
    url: String,
}

impl Ledger {
    pub(crate) fn at(bank: &LocalStack) -> Self {
        Self { url: bank.aws_url() }
    }

    /// The program, for other arguments than those of a stack.
    pub(crate) fn command(&self) -> Command {
        let mut ledger = ledgerline_testing::command("ledger");
        ledger.current_dir(workspace());
        ledger
    }

    /// Starts it.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut ledger = self.command();
        ledger.args([&format!("--local={}", self.url), "--json"]).args(arguments);
        ledger.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits for its end. The result is its exit code, and what it printed: a value a line.
    pub(crate) async fn end(child: Child) -> (i32, Vec<Value>) {
        tokio::task::spawn_blocking(|| printed(child)).await.unwrap()
    }

    /// Compares everything with the log, however young it is.
    pub(crate) fn found(&self, arguments: &[&str]) -> (i32, Differences) {
        let (code, printed) = self.run(&[&["reconcile", "--younger", "0"], arguments].concat());
        (code, differences(&printed))
    }

    /// Runs it.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, Vec<Value>) {
        printed(self.start(arguments))
    }
}

/// What a comparison finds: what it is, who it is of, the stream, and the version there.
pub(crate) type Differences = BTreeSet<(String, String, String, u64)>;

/// What a comparison printed.
pub(crate) fn differences(printed: &[Value]) -> Differences {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = printed.iter().filter(|line| line["what"] == "missing" || line["what"] == "ahead");
    let found = found.map(|line| {
        (text(&line["what"]), text(&line["who"]), text(&line["stream"]), line["there"].as_u64().unwrap())
    });
    found.collect()
}

fn printed(child: Child) -> (i32, Vec<Value>) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let lines = String::from_utf8(stdout).unwrap();
    eprintln!("{lines}{}", String::from_utf8_lossy(&stderr));
    (status.code().unwrap(), lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}
