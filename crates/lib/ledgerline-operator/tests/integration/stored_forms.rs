//! Functions that compress each payload, or put it into a body object, an archive, and the tool that
//! reads them.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    config::{Credentials, SharedCredentialsProvider},
    types::AttributeValue,
};
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, haul, install, litres_moved_once, settled, stock_adds_up},
    workspace,
};
use serde_json::json;

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

/// The parameter that lets the holder of `ArchivePolicy` archive.
pub(crate) const ARCHIVE_ROLE: &str = "ArchiveRole=arn:aws:iam::000000000000:role/ArchivePolicy";

#[tokio::test]
async fn an_archived_stream_is_read_through_stubs_and_only_one_role_archives() {
    let stack = LocalStack::start_as(&["--parameter-overrides", ARCHIVE_ROLE]).await;
    let [from, to] = append(&stack).await;
    let ledger = Tool::at(&stack);
    let archive = ["archive", "--category", "tank", "--older", "0s"];
    let write = [&archive[..], &["--write", "--yes", "--why", "a test"]].concat();
    // The plan changes nothing.
    let (code, plan) = ledger.run(&archive);
    assert_eq!((code, &plan[0]["streams"], &plan[0]["unnamedObjects"]), (0, &json!(1), &json!(0)));
    let planned = plan[0]["commits"].as_u64().unwrap();
    assert!(planned >= 8, "{plan:?}");
    // An operator who may write other things may not archive, and neither may an administrator.
    for key in [&*ledgerline_local::iam::access_key("OperatorPolicy"), "local"] {
        let mut denied = ledger.command();
        denied.env("AWS_ACCESS_KEY_ID", key).arg(format!("--local={}", stack.aws_url()));
        let denied = denied.args(&write).output().unwrap();
        let reason = String::from_utf8(denied.stderr).unwrap();
        let expected = "is not authorized to perform: dynamodb:UpdateItem";
        let other = "S3 answers 403 AccessDenied";
        assert!(reason.contains(expected) || reason.contains(other), "{reason}");
    }
    let (_, plan) = ledger.run(&archive);
    assert_eq!((&plan[0]["commits"], &plan[0]["unnamedObjects"]), (&json!(planned), &json!(1)));
    // The role archives once, and then has nothing to do.
    let archived = async || Tool::end(ledger.start_as("ArchivePolicy", &write)).await;
    let (code, printed) = archived().await;
    assert_eq!((code, &printed[1]["archived"]), (0, &json!(planned)), "{printed:?}");
    let (code, printed) = archived().await;
    assert_eq!((code, printed.len(), &printed[0]["commits"]), (0, 1, &json!(0)), "{printed:?}");
    assert_eq!(printed[0]["unnamedObjects"], 0, "{printed:?}");
    let stubs = items(&stack).await.into_iter().filter(|item| !item.contains_key("events"));
    assert_eq!(stubs.count() as u64, planned);
    // It may change no other attribute, and its stubs are no changed commits.
    let archivist = client(&stack, "ArchivePolicy");
    let change = archivist.update_item().table_name(table("CommitsTable"));
    let change = change.key("stream", AttributeValue::S(format!("tank-{from}")));
    let change = change.key("version", AttributeValue::N("1".into()));
    let denied = change.update_expression("REMOVE #at").expression_attribute_names("#at", "at");
    let denied = format!("{:?}", denied.send().await.unwrap_err());
    assert!(denied.contains("is not authorized to perform: dynamodb:UpdateItem"), "{denied}");
    // Every reader reads through the stubs, and the tank continues.
    read_all(&stack, &from, &to).await;
    draw(&stack, &from, 1).await;
    settled(&stack, &from).await;
    let changed = stack.logged(r#"{ $.message = "a commit was changed or removed" }"#).await;
    assert!(changed.is_empty(), "{changed:?}");
}

/// A stub that a function cannot read would stop it.
#[tokio::test]
async fn a_category_is_archived_only_if_all_its_readers_read_objects() {
    let stack = LocalStack::start(None).await;
    let mut ledger = Tool::at(&stack).command();
    ledger.arg(format!("--local={}", stack.aws_url()));
    let refused = ledger.args(["archive", "--category", "haul", "--older", "1d"]).output().unwrap();
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    let expected = "no live version reads the body objects of `haul` in: EventsQueries";
    assert!(reason.contains(expected), "{reason}");
}

fn client(stack: &LocalStack, caller: &str) -> aws_sdk_dynamodb::Client {
    let config = ledgerline_dynamodb::sdk_config(&stack.aws_url()).into_builder();
    let key = ledgerline_local::iam::access_key(caller);
    let key = Credentials::new(key, "local", None, None, "test");
    let key = SharedCredentialsProvider::new(key);
    aws_sdk_dynamodb::Client::new(&config.credentials_provider(key).build())
}

async fn items(stack: &LocalStack) -> Vec<Item> {
    let client = client(stack, "administrator");
    client.scan().table_name(table("CommitsTable")).send().await.unwrap().items.unwrap()
}

/// Sends commands to functions with this variable, and checks what each reader of the log returns.
/// Returns the items of the log.
async fn every_reader_reads(variable: &str) -> Vec<Item> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let (before, after) = template.split_once("        PROBLEM_TYPES:").unwrap();
    let edited = format!("{before}        {variable}\n        PROBLEM_TYPES:{after}");
    std::fs::write(&path, edited).unwrap();
    let name = "samconfig.toml";
    std::fs::copy(workspace().join(name), folder.path().join(name)).unwrap();
    let stack = LocalStack::start_as(&["--template", path.to_str().unwrap()]).await;
    let [from, to] = append(&stack).await;
    let items = items(&stack).await;
    read_all(&stack, &from, &to).await;
    items
}

/// Makes commands and a process manager append commits, until all subscribers have applied them.
/// Returns the tanks.
async fn append(stack: &LocalStack) -> [String; 2] {
    hasten(&client(stack, "administrator"), &["ReadingsTable"]).await;
    let [from, to] = [install(stack, 100).await, install(stack, 1).await];
    fill(stack, &from, 5).await;
    draw(stack, &from, 3).await;
    for _ in 0..8 {
        fill(stack, &from, 1).await;
    }
    haul(stack, &from, &to, 10).await;
    litres_moved_once(stack).await;
    for id in [&from, &to] {
        settled(stack, id).await;
    }
    [from, to]
}

/// Checks what each reader of the log returns.
async fn read_all(stack: &LocalStack, from: &str, to: &str) {
    for id in [from, to] {
        settled(stack, id).await;
    }
    stock_adds_up(stack).await;
    let ledger = Tool::at(stack);
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
