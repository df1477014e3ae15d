//! Functions that compress each payload, or put it into a body object, and the tool that reads them.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, haul, install, litres_moved_once, settled, stock_adds_up},
    workspace,
};

use crate::rebuild::hasten;

type Item = HashMap<String, AttributeValue>;

#[tokio::test]
async fn every_subscriber_and_the_tool_read_compressed_payloads() {
    let is_gzip = |value: &AttributeValue| value.as_m().unwrap()["data"].is_b();
    let items = every_reader_reads("COMPRESS_OVER: \"0\"").await;
    for item in &items {
        assert!(item["events"].as_l().unwrap().iter().all(is_gzip), "{item:?}");
    }
    assert!(items.iter().filter_map(|item| item.get("state")).any(is_gzip), "{items:?}");
}

#[tokio::test]
async fn every_subscriber_and_the_tool_read_payloads_in_body_objects() {
    for item in every_reader_reads("BODY_OVER: \"0\"").await {
        // Only the commits of tanks have objects.
        let is_of_tank = item["stream"].as_s().unwrap().starts_with("tank-");
        assert_eq!(item.contains_key("body"), is_of_tank, "{item:?}");
        let events = item["events"].as_l().unwrap().iter();
        let mut payloads = events.filter_map(|event| event.as_m().unwrap().get("data"));
        assert_eq!(payloads.next().is_none(), is_of_tank, "{item:?}");
    }
}

/// Sends commands to functions with this variable, and checks what each reader of the log returns.
/// Returns the items of the log.
async fn every_reader_reads(variable: &str) -> Vec<Item> {
    // Given functions with the variable,
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let (before, after) = template.split_once("        PROBLEM_TYPES:").unwrap();
    let edited = format!("{before}        {variable}\n        PROBLEM_TYPES:{after}");
    std::fs::write(&path, edited).unwrap();
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

    // then all subscribers have applied them.
    let items =
        client.scan().table_name(table("CommitsTable")).send().await.unwrap().items.unwrap();
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
    items
}
