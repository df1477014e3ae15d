//! Faults that no client can cause: records that cannot be read, and functions or a whole stack
//! that are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::join_all;
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{install, settled, state},
};
use reqwest::StatusCode;
use serde_json::{Value, json};

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

#[tokio::test]
async fn cloudformation_names_the_resources_of_the_stack() {
    let stack = LocalStack::start(None).await;
    for (id, name) in [
        ("CommitsTable", "tanks-CommitsTable"),
        ("FanoutDeadLetterQueue", "/tanks-FanoutDeadLetterQueue"),
    ] {
        let action = "Action=DescribeStackResource&StackName=tanks&LogicalResourceId=";
        let request = ledgerline_local::http_client().post(stack.aws_url());
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let answer = request.body(format!("{action}{id}")).send().await.unwrap();
        let answer = answer.text().await.unwrap();
        assert!(answer.contains(&format!("{name}</PhysicalResourceId>")), "{answer}");
    }
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

/// Sends a request of the AWS CLI, and returns the answer.
async fn aws(stack: &LocalStack, target: &str, body: Value) -> Value {
    let request =
        ledgerline_local::http_client().post(stack.aws_url()).header("x-amz-target", target);
    request.json(&body).send().await.unwrap().json().await.unwrap()
}

/// Returns the first message of a queue, which stays there.
async fn first_message(stack: &LocalStack, queue: &str) -> Value {
    eventually(&format!("{queue} has a message"), async || {
        let url = format!("{}/000000000000/{queue}", stack.aws_url());
        let receive =
            json!({ "QueueUrl": url, "VisibilityTimeout": 0, "MessageAttributeNames": ["All"] });
        let answer = aws(stack, "AmazonSQS.ReceiveMessage", receive).await;
        answer["Messages"].get(0).cloned()
    })
    .await
}

/// A developer adds a queue to the bus, and deletes the queue. Commits still reach all views.
#[tokio::test]
async fn a_target_that_a_developer_adds_gets_events_and_stops_no_view_when_it_is_gone() {
    let stack = LocalStack::start_as(&["--parameter-overrides", "BusEvents=*"]).await;
    let rule = json!({ "Name": "tap", "EventBusName": "tanks-events", "EventPattern": r#"{"source":["tanks.tank"]}"# });
    assert!(aws(&stack, "AWSEvents.PutRule", rule).await["RuleArn"].is_string());
    let arn = |queue: &str| format!("arn:aws:sqs:us-east-1:000000000000:{queue}");
    let put = async |target: Value| {
        let put = json!({ "Rule": "tap", "EventBusName": "tanks-events", "Targets": [target] });
        aws(&stack, "AWSEvents.PutTargets", put).await
    };
    // PutTargets refuses what the stack cannot deliver to.
    for target in [
        json!({ "Id": "1", "Arn": arn("nothing") }),
        json!({ "Id": "1", "Arn": arn("tanks-FillsQueue.fifo") }),
        json!({ "Id": "1", "Arn": arn("tap"), "InputPath": "$.detail" }),
    ] {
        let answer = put(target.clone()).await;
        assert_eq!(answer["FailedEntryCount"], 1, "{target}: {answer}");
    }
    for queue in ["tap", "lost"] {
        aws(&stack, "AmazonSQS.CreateQueue", json!({ "QueueName": queue })).await;
    }
    let target =
        json!({ "Id": "1", "Arn": arn("tap"), "DeadLetterConfig": { "Arn": arn("lost") } });
    assert_eq!(put(target).await["FailedEntryCount"], 0);
    let id = install(&stack, 0).await;
    let message = first_message(&stack, "tap").await;
    let event: Value = serde_json::from_str(message["Body"].as_str().unwrap()).unwrap();
    assert_eq!(event["detail-type"], "TankInstalled", "{event}");

    let url = format!("{}/000000000000/tap", stack.aws_url());
    aws(&stack, "AmazonSQS.DeleteQueue", json!({ "QueueUrl": url })).await;
    install(&stack, 5).await;
    settled(&stack, &id).await;
    // EventBridge does not retry for a target that does not exist.
    let attributes = &first_message(&stack, "lost").await["MessageAttributes"];
    assert_eq!(attributes["ERROR_CODE"]["StringValue"], "NO_RESOURCE", "{attributes}");
    assert_eq!(attributes["RETRY_ATTEMPTS"]["StringValue"], "0", "{attributes}");
}
