//! Each verb that writes is killed and run again, and then run once more. The name of the file puts
//! the long test early.

use std::{collections::BTreeSet, time::Duration};

use aws_sdk_dynamodb::Client;
use ledgerline_testing::{
    LocalStack, Tool,
    tank::{fill, install, settled},
    workspace,
};
use serde_json::json;

use crate::{rebuild::hasten, stored_forms::ARCHIVE_ROLE};

/// The verbs that the local stack cannot carry out: it has no versions, aliases and reservations.
/// `cargo xtask e2e` kills them and runs them again.
const ON_AWS: [&str; 3] = ["release rollback", "release promote", "concurrency"];

/// The verbs with `--write`, by the help of the tool. A test of the tool compares this page with
/// the definitions.
fn verbs_with_write() -> BTreeSet<String> {
    let page = std::fs::read_to_string(workspace().join("../../../docs/reference/ledger.md"));
    let page = page.unwrap();
    let verbs =
        page.split("\n## ledger ").skip(1).filter(|verb| verb.contains("\n      --write\n"));
    verbs.map(|verb| verb.lines().next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_verb_that_writes_succeeds_when_it_is_killed_and_run_again() {
    // Given a tank, and an entry of `$all` without a commit,
    let stack = LocalStack::start_as(&["--parameter-overrides", ARCHIVE_ROLE]).await;
    let client = Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    hasten(&client, &["LevelsTable"]).await;
    let id = install(&stack, 1_000).await;
    for _ in 0..10 {
        fill(&stack, &id, 1).await;
    }
    settled(&stack, &id).await;
    let stream = format!("tank-{id}");
    let key = json!({ "stream": { "S": "tank-wrong" }, "version": { "N": "7" } });
    let record = json!({
        "eventID": "1", "eventName": "INSERT",
        "eventSourceARN": "arn:aws:dynamodb:us-east-1:000000000000:table/x/stream/1",
        "dynamodb": { "Keys": key, "NewImage": key, "SequenceNumber": "1", "SizeBytes": 1 },
    });
    stack.invoke("SequencerFunction:live", &json!({ "Records": [record] })).await;
    let republish = format!("/tanks/{id}/republications");
    let arguments = [
        ("rebuild start", vec!["Levels"]),
        ("rebuild switch", vec!["Levels"]),
        ("rebuild rollback", vec!["Levels"]),
        ("rebuild drop", vec!["Levels"]),
        ("archive", vec!["--category", "tank", "--older", "0s", "--write-units", "9"]),
        ("redeliver", vec![&*stream]),
        ("order void", vec!["tank-wrong", "7"]),
        ("skip", vec!["Stock", &stream, "1"]),
        ("command", vec!["POST", &republish, "--api", stack.url()]),
        ("dead-letters", vec!["Readings", "--redrive"]),
    ];
    let tried = arguments.iter().map(|(verb, _)| *verb).chain(ON_AWS);
    assert_eq!(tried.map(ToOwned::to_owned).collect::<BTreeSet<_>>(), verbs_with_write());
    let ledger = Tool::at(&stack);
    for (verb, arguments) in &arguments {
        let sure = ["--write", "--yes", "--why", "a test"];
        let words: Vec<_> = verb.split(' ').chain(arguments.iter().copied()).chain(sure).collect();
        let policy = if *verb == "archive" { "ArchivePolicy" } else { "OperatorPolicy" };
        // when an operator kills it at its beginning or later,
        for pause in [50, 400, 1_500] {
            let mut killed = ledger.start_as(policy, &words);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            killed.kill().unwrap();
            killed.wait().unwrap();
        }
        // then it succeeds once and again.
        for _ in 0..2 {
            let (code, printed) = Tool::end(ledger.start_as(policy, &words)).await;
            assert_eq!(code, 0, "{verb}: {printed:?}");
        }
    }
}
