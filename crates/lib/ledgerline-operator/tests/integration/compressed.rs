//! Functions that compress each payload, and the tool that reads them.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, haul, install, litres_moved_once, settled, stock_adds_up},
    workspace,
};

use crate::rebuild::hasten;

#[tokio::test]
async fn every_subscriber_and_the_tool_read_compressed_payloads() {
    // Given functions that compress each payload,
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let (before, after) = template.split_once("        PROBLEM_TYPES:").unwrap();
    let variable = "        COMPRESS_OVER: \"0\"\n        PROBLEM_TYPES:";
    std::fs::write(&path, format!("{before}{variable}{after}")).unwrap();
    let name = "samconfig.toml";
    std::fs::copy(workspace().join(name), folder.path().join(name)).unwrap();
    let stack = LocalStack::start_as(&["--template", path.to_str().unwrap()]).await;

    let client = aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    hasten(&client, &["ReadingsTable"]).await;

    // when commands and a process manager append commits,
    let [from, to] = [install(&stack, 100).await, install(&stack, 1).await];
    fill(&stack, &from, 5).await;
    draw(&stack, &from, 3).await;
    haul(&stack, &from, &to, 10).await;
    litres_moved_once(&stack).await;

    // then the log has gzip, and all subscribers have applied it.
    let items =
        client.scan().table_name(table("CommitsTable")).send().await.unwrap().items.unwrap();
    for item in &items {
        for event in item["events"].as_l().unwrap() {
            assert!(matches!(event.as_m().unwrap()["data"], AttributeValue::B(_)), "{item:?}");
        }
    }
    let is_gzip = |state: &AttributeValue| state.as_m().unwrap()["data"].is_b();
    assert!(items.iter().filter_map(|item| item.get("state")).any(is_gzip), "{items:?}");
    for id in [&from, &to] {
        settled(&stack, id).await;
    }
    stock_adds_up(&stack).await;
    let ledger = Tool::at(&stack);
    let stream = format!("tank-{from}");
    let (_, shown) = ledger.run(&["show", &stream, "--at", "2", "--payloads"]);
    assert_eq!(shown[2]["state"]["level"], 100, "{shown:?}");
    // A redelivery sends whole commits.
    let redelivery = ["redeliver", &stream, "--write", "--yes", "--why", "a test"];
    assert_eq!(ledger.run(&redelivery).0, 0);
    // A rebuild and a comparison fold the log again.
    let switch = ["rebuild", "switch", "Readings", "--write", "--yes", "--why", "a test"];
    assert_eq!(ledger.run(&switch).0, 0);
    for view in ["Levels", "Readings"] {
        let compare = ["reconcile", "--younger", "0", "--values", view, "--all"];
        eventually("each row is what its stream says", async || {
            let compared = Tool::end(ledger.start_as("OperatorPolicy", &compare)).await;
            (compared.0 == 0).then_some(())
        })
        .await;
    }
    assert_eq!(ledger.run(&["dead-letters"]).0, 0);
    // What leaves the log is JSON.
    let listed = stack.get("/events").await.body;
    let drawn =
        listed["commits"].as_array().unwrap().iter().find(|commit| {
            commit["stream"] == stream && commit["events"][0]["type"] == "TankDrawn"
        });
    let drawn = drawn.unwrap();
    assert_eq!(drawn["events"][0]["data"]["amount"], 3, "{drawn}");
    let correlation = drawn["correlationId"].as_str().unwrap();
    let (_, traced) = ledger.run(&["trace", correlation, "--payloads"]);
    assert_eq!(traced[0]["data"][0]["amount"], 3, "{traced:?}");
}
