//! The rights of operators: [`Tool`] has the stack's policies for operators, and nothing else.

use std::{fs, path::Path, process::Output};

use ledgerline_testing::{
    LocalStack, Tool,
    tank::{install, settled},
};

/// Returns the subcommands of the tool, by its help in one page, and whether each can write. The
/// tests of rebuilds write with theirs, and each waits for functions to see its change.
fn subcommands() -> Vec<(String, bool)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/ledger.md");
    let page = fs::read_to_string(path).unwrap();
    let helps = page.split("\n## ledger ").skip(1).map(|help| help.split_once('\n').unwrap());
    let helps = helps.filter(|(_, help)| !help.contains(" <COMMAND>"));
    let writes =
        |name: &str, help: &str| help.contains(" --write\n") && !name.starts_with("rebuild ");
    helps.map(|(name, help)| (name.to_owned(), writes(name, help))).collect()
}

/// Returns the arguments with which a subcommand reads as much as it can; `None` if it only works
/// on AWS. There, `cargo xtask e2e` runs it with the policies.
fn arguments<'a>(subcommand: &str, stream: &'a str, folder: &'a str) -> Option<Vec<&'a str>> {
    Some(match subcommand {
        "streams" | "resources" | "reconcile" | "subscribers" | "command" | "doctor"
        | "dead-letters" => vec![],
        "lag" => vec!["--all"],
        "show" | "redeliver" => vec![stream],
        "tail" => vec!["--once", "--from", "beginning"],
        "trace" => vec!["an-id"],
        "skip" => vec!["Stock", stream, "1"],
        "export" => vec![folder, "--all"],
        // It writes with another policy: the test of archives shows its rights.
        "archive" => vec!["--category", "tank", "--older", "1d"],
        "order void" => vec!["tank-nothing", "1"],
        view if view.starts_with("rebuild ") => vec!["Levels"],
        "login" | "concurrency" | "release list" | "release rollback" | "release promote" => {
            return None;
        }
        unknown => panic!("give this test the arguments of the subcommand `{unknown}`"),
    })
}

#[tokio::test]
async fn the_policies_of_operators_suffice_for_every_subcommand_and_a_reader_cannot_write() {
    let stack = LocalStack::start(None).await;
    let id = install(&stack, 1_000).await;
    settled(&stack, &id).await;
    let (tool, stream) = (Tool::at(&stack), format!("tank-{id}"));
    let stderr = |output: Output| String::from_utf8(output.stderr).unwrap();
    let write = ["--write", "--yes", "--why", "a test"];
    let subcommands = subcommands();
    assert!(subcommands.iter().filter(|(_, writes)| *writes).count() > 6, "{subcommands:?}");
    for (subcommand, writes) in subcommands {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let Some(more) = arguments(&subcommand, &stream, folder) else { continue };
        let words = [subcommand.split(' ').collect(), more].concat();
        let runs = [&[][..], &write];
        for sure in &runs[..=usize::from(writes)] {
            let ran = stderr(tool.start(&[&words, *sure].concat()).wait_with_output().unwrap());
            assert!(!ran.contains("not authorized"), "ledger {subcommand}: {ran}");
        }
    }
    let write = [&["redeliver", &stream][..], &write].concat();
    let reader = ledgerline_local::iam::access_key("OperatorReadPolicy");
    let mut ledger = tool.command();
    ledger.arg(format!("--local={}", stack.aws_url())).args(write);
    let denied = stderr(ledger.env("AWS_ACCESS_KEY_ID", reader).output().unwrap());
    assert!(denied.contains("is not authorized to perform: dynamodb:PutItem"), "{denied}");
}
