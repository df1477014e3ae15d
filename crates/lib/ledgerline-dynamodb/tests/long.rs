//! A command on a stream of a million commits, after a change of the schema made every embedded
//! state unreadable.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "in a test a panic is the report")]

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use ledgerline::{
    Cache, Consistency, Context, Execution, Meta, StreamId, execute, load,
    spec::valid,
    testing::tank::{Amount, Command, Tank},
};
use ledgerline_dynamodb::DynamoDbStore;
use serde_json::json;

/// The most time that a command may take.
const COMMAND: Duration = Duration::from_secs(8);

#[tokio::test]
#[ignore = "it writes a million commits: cargo test --profile fast -p ledgerline-dynamodb --test long -- --ignored --nocapture"]
async fn a_stream_of_a_million_commits_without_readable_states_accepts_commands() {
    let commits: u64 =
        std::env::var("COMMITS").map_or(1_000_000, |commits| commits.parse().unwrap());
    let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let client = aws_sdk_dynamodb::Client::new(&dynamodb.sdk_config());
    let table = ledgerline_testing::table("CommitsTable");
    let store = DynamoDbStore::new(client.clone(), &table)
        .with_requests(ledgerline_testing::table("RequestsTable"));
    let stream = StreamId::new("tank", "long").unwrap();

    let began = Instant::now();
    let put = |version: u64| {
        let (event_type, schema, data) = match version {
            1 => (
                "TankInstalled",
                2,
                json!({ "site": "North", "liquid": "water", "installedBy": "ada", "on": "2026-11-21" }),
            ),
            _ => {
                ("TankFilled", 1, json!({ "amount": 1, "level": version - 1, "on": "2026-11-21" }))
            }
        };
        let commit = json!({
            "stream": stream.as_str(), "version": version, "command": format!("c-{version}"),
            "at": "2026-11-21T09:30:00Z", "meta": { "actor": "ada" },
            "events": [{ "type": event_type, "schema": schema, "data": data.to_string() }],
            // The schema of the state is old, as after a change of the schema.
            "state": { "schema": 0, "data": "{}" },
        });
        let item = serde_dynamo::to_item(commit).unwrap();
        let put = PutRequest::builder().set_item(Some(item)).build().unwrap();
        WriteRequest::builder().put_request(put).build()
    };
    for first in (1..=commits).step_by(25) {
        let writes: Vec<_> = (first..=commits.min(first + 24)).map(put).collect();
        client.batch_write_item().request_items(&table, writes).send().await.unwrap();
    }
    eprintln!("{commits} commits written in {:?}", began.elapsed());

    let context =
        Context { at: "2026-11-22T09:30:00Z".parse().unwrap(), actor: Some("ada".into()) };
    let command = Command::Fill(Amount { amount: valid(1), note: None });
    let meta = Meta::default();
    let began = Instant::now();
    for (round, within) in [("not prepared", 60), ("prepared", 1)] {
        let began = Instant::now();
        let mut tries = 0;
        // Each attempt is a cold instance.
        loop {
            tries += 1;
            let cache = Cache::<Tank>::new(std::num::NonZeroUsize::MIN);
            let execution = Execution::new(&stream, &command, &context, round, &meta);
            if let Ok(outcome) = tokio::time::timeout(
                COMMAND,
                execute(&store, &cache, &DynamoDbStore::HOST, &execution),
            )
            .await
            {
                break outcome.map(|_| ()).unwrap();
            }
            eprintln!("try {tries} took too long");
        }
        eprintln!("{round}: a command after {:?}, {tries} tries", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(within));
        // The test removes the state that the command embedded, so that the next load cannot begin
        // from that state.
        let version = newest(&store, &stream).await;
        let key = AttributeValue::S(stream.to_string());
        let update = client.update_item().table_name(&table).key("stream", key);
        let update = update.key("version", AttributeValue::N(version.to_string()));
        update
            .update_expression("REMOVE #s")
            .expression_attribute_names("#s", "state")
            .send()
            .await
            .unwrap();
    }
    let loaded = load::<Tank>(&store, &stream, None, Consistency::Strong).await.unwrap();
    assert_eq!(loaded.version, commits + 2);
    eprintln!("in all {:?}", began.elapsed());
}

async fn newest(store: &DynamoDbStore, stream: &StreamId) -> u64 {
    use ledgerline::{EventLog, Range};
    let newest = Range { after: 0, up_to: u64::MAX, limit: Some(1) };
    store.read(stream, newest, Consistency::Strong).await.unwrap().commits[0].version
}
