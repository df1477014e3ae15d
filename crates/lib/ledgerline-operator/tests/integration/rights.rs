//! The rights of operators: [`Tool`] has the stack's policies for operators, and nothing else.

use std::{fs, path::Path, process::Output};

use ledgerline_testing::{
    LocalStack, Tool,
    tank::{install, settled},
};

/// Returns the subcommands of the tool that have none of their own, by its help in one page.
fn subcommands() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/ledger.md");
    let page = fs::read_to_string(path).unwrap();
    let headings: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("## ledger ")).collect();
    let has_more = |name: &str| headings.iter().any(|other| other.starts_with(&format!("{name} ")));
    headings.iter().filter(|name| !has_more(name)).map(|name| (*name).to_owned()).collect()
}

/// Returns the arguments with which a subcommand reads as much as it can; `None` if it only works
/// on AWS. There, `cargo xtask e2e` runs it with the policies.
fn arguments<'a>(subcommand: &str, stream: &'a str) -> Option<Vec<&'a str>> {
    Some(match subcommand {
        "streams" | "resources" | "reconcile" | "subscribers" | "command" | "doctor"
        | "dead-letters" => vec![],
        "lag" => vec!["--all"],
        "show" | "redeliver" => vec![stream],
        "tail" => vec!["--once", "--from", "beginning"],
        "trace" => vec!["an-id"],
        "skip" => vec!["Stock", stream, "1"],
        "order void" => vec!["tank-nothing", "1"],
        view if view.starts_with("rebuild ") => vec!["Levels"],
        "login" | "concurrency" | "release list" | "release rollback" | "release promote" => {
            return None;
        }
        unknown => panic!("give the subcommand `{unknown}` the arguments with which it reads"),
    })
}

#[tokio::test]
async fn an_operator_who_may_only_read_can_run_every_subcommand_and_writes_nothing() {
    let stack = LocalStack::start(None).await;
    let id = install(&stack, 1_000).await;
    settled(&stack, &id).await;
    let (tool, stream) = (Tool::at(&stack), format!("tank-{id}"));
    let said = |output: Output| String::from_utf8(output.stderr).unwrap();
    for subcommand in subcommands() {
        let Some(more) = arguments(&subcommand, &stream) else { continue };
        let words = subcommand.split(' ').collect::<Vec<_>>();
        let ran = said(tool.start(&[words, more].concat()).wait_with_output().unwrap());
        assert!(!ran.contains("not authorized"), "ledger {subcommand}: {ran}");
    }
    let write = ["redeliver", &stream, "--write", "--yes", "--why", "a test"];
    let reader = ledgerline_local::iam::access_key("OperatorReadPolicy");
    let mut ledger = tool.command();
    ledger.arg(format!("--local={}", stack.aws_url())).args(write);
    let denied = said(ledger.env("AWS_ACCESS_KEY_ID", reader).output().unwrap());
    assert!(denied.contains("is not authorized to perform: dynamodb:PutItem"), "{denied}");
}
