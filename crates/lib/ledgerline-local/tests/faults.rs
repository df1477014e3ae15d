//! Faults that no client can cause: records that cannot be read, and functions or a whole stack
//! that are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::join_all;
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{fill, haul, install, litres_moved_once, settled, state},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// API Gateway may change or refuse unusual paths. The local stack passes them to the function.
#[tokio::test]
async fn invalid_ids_in_paths_are_refused_with_the_name_of_the_field() {
    let stack = LocalStack::start(None).await;
    for path in ["..%2F..%2Fetc", "%00%ff", "{163082d2-b005-45d7-9eb6-aa1f83efd55d}", "1"] {
        let answer = fill(&stack, path, 1).await;
        assert_eq!(
            (answer.status, answer.problem()),
            (StatusCode::BAD_REQUEST, "invalid-request"),
            "{path}"
        );
        assert_eq!(answer.body["field"], "id", "{path}");
    }
}

/// The dashboard needs these metrics, which the functions write.
#[tokio::test]
async fn functions_measure_commands_conflicts_and_lags() {
    let stack = LocalStack::start_as(&["--logs"]).await;
    let id = install(&stack, 1_000).await;
    let path = format!("/tanks/{id}/draws");
    let draws = (0..24).map(|_| stack.post(&path, json!({ "amount": 1 })));
    assert!(join_all(draws).await.iter().any(|answer| answer.status == StatusCode::OK));
    stack.damage("tank-00000000-0000-4000-8000-000000000000").await;
    settled(&stack, &id).await;
    for (function, name, at_least) in [
        ("tank-commands", "Commands", 26.0),
        ("tank-commands", "Conflicts", 1.0),
        ("tank-commands", "Retries", 1.0),
        ("tank-fanout", "ParkedRecords", 1.0),
    ] {
        eventually(&format!("{name} of {function}"), async || {
            (stack.measured(function, name) >= at_least).then_some(())
        })
        .await;
    }
    // The tank is installed, filled and drawn from one after the other, each in a batch of its own.
    for (function, name) in [
        ("tank-fanout", "FanoutLag"),
        ("levels-projector", "ProjectionLag"),
        ("readings-projector", "ProjectionLag"),
    ] {
        eventually(&format!("lines with {name} of {function}"), async || {
            (stack.measured_lines(function, name) >= 3).then_some(())
        })
        .await;
    }
    assert!((stack.measured("tank-fanout", "ParkedRecords") - 1.0).abs() < f64::EPSILON, "once");
}

/// Rule 11: the fanout quarantines a record that cannot be read, with its stream and version, and
/// delivers all other streams.
#[tokio::test]
async fn a_poison_pill_becomes_a_dead_letter_and_blocks_no_other_stream() {
    let stack = LocalStack::start(None).await;
    let id = install(&stack, 1).await;
    // Nothing in the product can write such a record; an operator with a console can.
    stack.damage("tank-00000000-0000-4000-8000-000000000000").await;
    let filled = fill(&stack, &id, 1).await;
    assert_eq!(filled.status, StatusCode::OK);
    settled(&stack, &id).await;
    let letter = eventually("the dead letter arrives", async || stack.dead_letter().await).await;
    assert_eq!(letter["stream"], "tank-00000000-0000-4000-8000-000000000000");
    assert_eq!(letter["version"], 1);
    assert!(letter["reason"].as_str().is_some_and(|reason| reason.contains("events")), "{letter}");
}

/// Rule 11: a subscriber that reads whole commits stops at a commit whose `meta` is damaged, and
/// names the commit. Commands, the state and other streams continue. Only the stock stops for all
/// streams, because its rows follow the order of `$all`.
#[tokio::test]
async fn a_commit_with_damaged_metadata_stops_its_rows_and_no_command() {
    // Given a tank whose second commit is that of another tank, with metadata that cannot be read,
    let stack = LocalStack::start(None).await;
    let damaged = install(&stack, 0).await;
    let other = install(&stack, 10).await;
    for id in [&damaged, &other] {
        settled(&stack, id).await;
    }
    let dynamodb =
        aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let get = dynamodb.get_item().table_name(table("CommitsTable"));
    let get = get.key("stream", AttributeValue::S(format!("tank-{other}")));
    let get = get.key("version", AttributeValue::N("2".into())).consistent_read(true);
    let mut commit = get.send().await.unwrap().item.unwrap();
    let stream = format!("tank-{damaged}");
    commit.insert("stream".into(), AttributeValue::S(stream.clone()));
    commit.insert("meta".into(), AttributeValue::S("damaged".into()));
    let (names, values): (Vec<_>, Vec<_>) = commit.into_iter().unzip();
    let names: Vec<_> = names.iter().map(|name| format!("'{name}': ?")).collect();
    let insert =
        format!(r#"INSERT INTO "{}" VALUE {{{}}}"#, table("CommitsTable"), names.join(", "));
    dynamodb
        .execute_statement()
        .statement(insert)
        .set_parameters(Some(values))
        .send()
        .await
        .unwrap();

    // when both tanks get another commit,
    for (id, key) in [(&damaged, "one"), (&other, "another")] {
        let fills = format!("/tanks/{id}/fills");
        let filled =
            stack.post_with(&fills, &[("Idempotency-Key", key)], json!({ "amount": 1 })).await;
        assert_eq!((filled.status, filled.body["version"].as_u64()), (StatusCode::OK, Some(3)));
    }

    // then the damaged tank has its state and not its rows, and the other tank has both. The errors
    // name the damaged commit.
    settled(&stack, &other).await;
    let letter = eventually("the dead letter arrives", async || stack.dead_letter().await).await;
    assert_eq!((letter["stream"].as_str(), letter["version"].as_u64()), (Some(&*stream), Some(2)));
    assert!(letter["reason"].as_str().is_some_and(|reason| reason.contains("meta")), "{letter}");
    eventually("the state is shown", async || {
        let shown = stack.get(&format!("/tanks/{damaged}?minVersion=3")).await;
        (shown.status == StatusCode::OK && shown.body["level"] == 11).then_some(())
    })
    .await;
    for (why, starts) in [
        ("the log view says why", format!("commit 2 of {stream} is corrupt: ")),
        (
            "the view in the order of `$all` shows where it stops",
            format!("version 2 of {stream} cannot be read: "),
        ),
    ] {
        eventually(why, async || {
            let errors = stack.logged(r#"{ $.level = "ERROR" }"#).await;
            let says = |text: &Value| {
                text.as_str().is_some_and(|text| text.starts_with(&starts) && text.contains("meta"))
            };
            errors.iter().any(|line| says(&line["error"]) || says(&line["message"])).then_some(())
        })
        .await;
    }
    let ledger = Tool::at(&stack);
    let missing = |who: &str, id: &str, there| {
        ("missing".to_owned(), who.to_owned(), format!("tank-{id}"), there)
    };
    let stock = "StockSubscriptionFunction";
    let expected = [
        missing("FillsProjectorFunction", &damaged, 1),
        missing("ReadingsProjectorFunction", &damaged, 1),
        missing(stock, &damaged, 1),
        missing(stock, &other, 2),
    ];
    let expected = (2, expected.into());
    eventually(
        "nothing else is missing, not even in `$all`, which is a second behind",
        async || (ledger.found(&[]) == expected).then_some(()),
    )
    .await;
}

/// The commands of the runbook read physical names from CloudFormation, search log lines in
/// CloudWatch Logs, and invoke a function by its alias `live`.
#[tokio::test]
async fn the_local_stack_answers_the_calls_of_the_runbook() {
    const STREAM: &str = "tank-00000000-0000-4000-8000-000000000000";
    let stack = LocalStack::start(None).await;
    stack.damage(STREAM).await;
    eventually("the dead letter arrives", async || stack.dead_letter().await).await;
    let client = reqwest::Client::new();
    let aws = stack.aws_url();
    let name = async |of: &str| {
        let body = format!("Action=DescribeStackResource&StackName=tanks&LogicalResourceId={of}");
        let request = client
            .post(&aws)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        let answer = request.send().await.unwrap().text().await.unwrap();
        let (_, answer) = answer.split_once("<PhysicalResourceId>").expect(&answer);
        answer.split_once("</PhysicalResourceId>").unwrap().0.to_owned()
    };
    assert!(name("FanoutDeadLetterQueue").await.ends_with("/tanks-FanoutDeadLetterQueue"));
    assert_eq!(name("CommitsTable").await, "tanks-CommitsTable");

    let filter = json!({ "logGroupName": name("FunctionLogs").await, "filterPattern": format!("{STREAM:?}") });
    let logs =
        client.post(&aws).header("x-amz-target", "Logs_20140328.FilterLogEvents").json(&filter);
    let logs: serde_json::Value = logs.send().await.unwrap().json().await.unwrap();
    let found = logs["events"].as_array().unwrap().iter();
    let mut found = found
        .filter(|line| line["logStreamName"] == "tank-fanout")
        .map(|line| line["message"].to_string());
    assert!(found.any(|line| line.contains("quarantined")), "{logs}");

    let fanout =
        format!("{aws}/2015-03-31/functions/{}:live/invocations", name("FanoutFunction").await);
    let answer = client.post(fanout).json(&json!({ "Records": [] })).send().await.unwrap();
    assert_eq!(
        answer.json::<serde_json::Value>().await.unwrap(),
        json!({ "batchItemFailures": [] })
    );
}

/// Each function is killed until one of its invocations was interrupted, while fills continue.
#[tokio::test]
async fn functions_killed_in_the_middle_of_a_batch_lose_and_duplicate_no_commit() {
    let stack = LocalStack::start(None).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(install(&stack, 1).await);
    }
    for function in ["tank-fanout", "levels-projector", "readings-projector"] {
        let fills = async || {
            for answer in join_all(ids.iter().map(|id| fill(&stack, id, 1))).await {
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            }
        };
        stack.cut_off_during(function, fills).await;
    }
    for id in &ids {
        settled(&stack, id).await;
    }
}

/// The process manager is killed in the same way. Every haul ends, and the levels of the tanks
/// match the ends of the hauls.
#[tokio::test]
async fn a_process_manager_killed_in_the_middle_moves_every_litre_once() {
    let stack = LocalStack::start(None).await;
    let from = install(&stack, 100_000).await;
    let to = install(&stack, 0).await;
    let mut requested = 0_usize;
    let request = async || {
        // Of three hauls, one completes, and one returns from a tank that does not exist. One is
        // refused, because it needs more than the tank contains.
        let unknown = uuid::Uuid::new_v4().to_string();
        let (to, amount) = match requested % 3 {
            0 => (&to, 10),
            1 => (&unknown, 10),
            _ => (&to, 1_000_000),
        };
        haul(&stack, &from, to, amount).await;
        requested += 1;
    };
    stack.cut_off_during("haul", request).await;
    let ended = litres_moved_once(&stack).await;
    let number = |phase: &str| ended.get(phase).copied().unwrap_or_default();
    let expected = [requested.div_ceil(3), (requested + 1) / 3, requested / 3];
    assert_eq!(["completed", "returned", "refused"].map(number), expected, "{ended:?}");
    let arrived = i64::try_from(expected[0]).unwrap() * 10;
    let level = async |id: &str| state(&stack, id).await.1.level();
    assert_eq!((level(&from).await, level(&to).await), (100_000 - arrived, arrived));
    settled(&stack, &from).await;
}

#[tokio::test]
async fn a_killed_stack_resumes_with_its_data() {
    let data = tempfile::tempdir().unwrap();
    let stack = LocalStack::start(Some(data.path())).await;
    let id = install(&stack, 1).await;
    let path = format!("/tanks/{id}/fills");
    let key = [("idempotency-key", "before-the-cut")];
    let before = stack.post_with(&path, &key, json!({ "amount": 1 })).await;
    for _ in 0..20 {
        assert_eq!(stack.post(&path, json!({ "amount": 1 })).await.status, StatusCode::OK);
    }
    // The stack is killed at once, before most commits have reached the read models.
    stack.kill();

    let stack = LocalStack::start(Some(data.path())).await;
    assert_eq!(state(&stack, &id).await.1.level(), 22);
    settled(&stack, &id).await;
    let again = stack.post_with(&path, &key, json!({ "amount": 1 })).await;
    assert_eq!((again.etag(), &again.body), (before.etag(), &before.body));
    stack.kill();

    // Everything is settled: a third start has nothing to repair.
    let stack = LocalStack::start(Some(data.path())).await;
    assert_eq!(stack.post(&path, json!({ "amount": 1 })).await.version(), 24);
    settled(&stack, &id).await;
}
