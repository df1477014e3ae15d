//! The commands of the runbook that read logs with the AWS CLI.

use std::{collections::BTreeSet, fs, path::Path};

use jiff::Timestamp;
use ledgerline_testing::{LocalStack, Tool, eventually, tank::install};

/// The functions that a shell runs in place of the programs of the runbook. `aws` prints its
/// arguments.
const PROGRAMS: &str = r#"
ledger() { "$LEDGER" "--local=$AWS" "$@"; }
aws() { IFS=$(printf '\t'); echo "$*"; unset IFS; }
"#;

/// Runs the commands of the runbook that read logs. Returns the log group and the filter pattern of
/// each.
fn log_commands(ledger: &Tool, stack: &LocalStack) -> BTreeSet<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/runbook.md");
    let text = fs::read_to_string(path).unwrap();
    let is_command = |line: &&str| {
        ["export FAILURES=", "aws logs "].iter().any(|begin| line.trim_start().starts_with(begin))
    };
    let commands: Vec<_> = text.lines().filter(is_command).collect();
    assert!(commands.len() > 10, "{commands:?}");
    let script = format!("set -eu\n{PROGRAMS}{}", commands.join("\n"));
    let tool = ledger.command();
    let mut shell = std::process::Command::new("sh");
    shell.env("LEDGER", tool.get_program()).env("AWS", stack.aws_url());
    shell.current_dir(tool.get_current_dir().unwrap());
    let done = shell.args(["-c", &script]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let printed = String::from_utf8(done.stdout).unwrap();
    let command = |line: &str| {
        let arguments: Vec<_> = line.split('\t').collect();
        let ["logs", "tail", group, "--filter-pattern", pattern, "--since", since] = *arguments
        else {
            panic!("{arguments:?}")
        };
        let (number, unit) = since.split_at(since.len() - 1);
        assert!(number.parse::<u32>().is_ok() && ["m", "h", "d"].contains(&unit), "{since}");
        (group.to_owned(), pattern.to_owned())
    };
    printed.lines().map(command).collect()
}

#[tokio::test]
async fn the_log_commands_of_the_runbook_name_log_groups_and_find_their_lines() {
    // Given a commit that the fanout quarantines,
    let stack = LocalStack::start(None).await;
    install(&stack, 100).await;
    stack.damage("tank-damaged").await;
    eventually("the dead letter arrives", async || stack.dead_letter().await).await;
    let ledger = Tool::at(&stack);
    let name = |id: &str| {
        let (_, named) = ledger.run(&["resources", id]);
        named[0]["name"].as_str().unwrap().to_owned()
    };
    let (functions, access) = (name("FunctionLogs"), name("AccessLogs"));
    // when a shell runs the commands of the runbook,
    let mut found = BTreeSet::new();
    for (group, pattern) in log_commands(&ledger, &stack) {
        // then CloudWatch Logs understands each pattern,
        let lines = stack.lines_of(&group, &pattern, Timestamp::UNIX_EPOCH).await;
        assert!([&functions, &access].contains(&&group), "{group}");
        if lines.iter().any(|(_, line)| line["stream"] == "tank-damaged") {
            found.insert((group, pattern));
        }
    }
    // and the quarantined commit is among the failures.
    let patterns: Vec<_> = found
        .iter()
        .filter(|(group, _)| *group == functions)
        .map(|(_, pattern)| pattern.split(" || ").next().unwrap())
        .collect();
    assert_eq!(patterns, ["\"quarantined\"", "{ $.level = \"ERROR\""]);
    // The access log has the requests.
    let lines = stack.lines_of(&access, "{ $.status = 201 }", Timestamp::UNIX_EPOCH).await;
    assert!(lines.iter().any(|(_, line)| line["route"] == "POST /tanks"), "{lines:?}");
}
