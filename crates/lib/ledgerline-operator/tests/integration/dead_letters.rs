//! Dead letters: counted, shown, redriven and parked with the operator's tool, at a local stack.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::QueueAttributeName as Name;
use base64::{Engine, prelude::BASE64_STANDARD};
use ledgerline_testing::{
    LocalStack, Tool, eventually, table,
    tank::{draw, fill, install, log, settled},
    workspace,
};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Sends a message to a dead-letter queue.
async fn dead_letter(client: &aws_sdk_sqs::Client, to: &str, group: Option<&str>, body: &Value) {
    let fifo = if group.is_some() { ".fifo" } else { "" };
    let url = queue(client, &format!("{to}{fifo}")).await;
    let send = client.send_message().queue_url(url).message_body(body.to_string());
    let id = group.map(|_| uuid::Uuid::new_v4().to_string());
    send.set_message_group_id(group.map(ToOwned::to_owned))
        .set_message_deduplication_id(id)
        .send()
        .await
        .unwrap();
}

/// A redrive sends every kind of dead letter to its source, and so repairs the rows.
#[tokio::test]
async fn dead_letters_are_counted_redriven_and_parked() {
    let stack = LocalStack::start(None).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        let id = install(&stack, 1_000).await;
        draw(&stack, &id, 10).await;
        settled(&stack, &id).await;
        ids.push(id);
    }
    let ledger = Tool::at(&stack);
    assert_eq!(ledger.run(&["dead-letters"]).0, 0, "there are none");

    // The rows of three tanks are deleted, as if their commits had never arrived.
    let dynamodb =
        aws_sdk_dynamodb::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let sqs = aws_sdk_sqs::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let text = |text: &str| AttributeValue::S(text.to_owned());
    for id in &ids[..2] {
        let delete = dynamodb.delete_item().table_name(table("LevelsTable"));
        delete.key("tankId", text(id)).send().await.unwrap();
    }
    for version in 2..=3 {
        let delete =
            dynamodb.delete_item().table_name(table("ReadingsTable")).key("tankId", text(&ids[2]));
        delete.key("entry", text(&format!("{version:020}#0000"))).send().await.unwrap();
    }
    let streams: Vec<_> = ids.iter().map(|id| format!("tank-{id}")).collect();
    // A dead-lettered batch of states in Lambda's envelope; dead-lettered commits of a queue; a
    // commit that the fanout quarantined.
    let state = json!({
        "stream": streams[0], "aggregate": { "lastKnownVersion": 3 }, "aggregateSchema": 0,
        "lastEvent": { "stream": streams[0], "version": 3, "index": 0, "eventType": "TankDrawn", "schema": 1, "payload": null, "at": "2026-11-25T00:00:00Z" },
        "meta": {},
    });
    let given_up = json!({
        "requestContext": { "condition": "RetriesExhausted" }, "requestPayload": { "states": [state] },
        "responsePayload": { "errorType": "Failure", "errorMessage": "the table is unavailable" },
    });
    dead_letter(&sqs, "LevelsDeadLetterQueue", None, &given_up).await;
    for commit in &log(&stack, &ids[2]).await[1..] {
        dead_letter(&sqs, "ReadingsDeadLetterQueue", Some(&streams[2]), &json!(commit)).await;
    }
    let set_aside = json!({ "stream": streams[1], "version": 3, "reason": "it could not be read" });
    dead_letter(&sqs, "FanoutDeadLetterQueue", None, &set_aside).await;

    let (code, counted) = ledger.run(&["dead-letters"]);
    let counts: BTreeSet<_> = counted
        .iter()
        .filter_map(|line| {
            Some((line["queue"].as_str()?, line["messages"].as_u64()?, line["reasons"].as_str()?))
        })
        .collect();
    assert_eq!(code, 2);
    let failed = "every attempt failed";
    assert_eq!(
        counts,
        BTreeSet::from([
            ("LevelsDeadLetterQueue", 1, "1: the table is unavailable"),
            ("FanoutDeadLetterQueue", 1, "1: it could not be read"),
            // The emulated queue delivers one message of a stream at a time.
            ("ReadingsDeadLetterQueue", 2, &*format!("1: {failed}")),
        ])
    );
    let (_, listed) = ledger.run(&["dead-letters", "Readings"]);
    let letters: Vec<_> = listed.iter().filter(|line| line["id"].is_string()).collect();
    let about: Vec<_> = letters.iter().map(|letter| letter["commits"].as_str().unwrap()).collect();
    assert_eq!(about, [format!("{}@2", streams[2])]);
    assert!(letters.iter().all(|letter| letter["body"].is_null()), "rule 14: {letters:?}");
    let (_, with) = ledger.run(&["dead-letters", "Readings", "--payloads"]);
    assert!(format!("{with:?}").contains("TankFilled"), "{with:?}");

    // The messages of a stream are parked, and redriven later.
    let id = letters[0]["id"].as_str().unwrap().to_owned();
    let sure = ["--write", "--yes", "--why", "a test"];
    let act = |arguments: &[&str]| ledger.run(&[&["dead-letters"], arguments, &sure].concat());
    let (code, parked) = act(&["Readings", "--park", "--stream", &streams[2]]);
    assert_eq!((code, &parked[0]["messages"]), (0, &json!(2)));
    let (_, parked) = ledger.run(&["dead-letters", "--parked"]);
    let whys: Vec<_> =
        parked.iter().map(|line| (line["why"].as_str(), line["id"] == *id)).collect();
    assert!(whys.len() == 2 && whys.contains(&(Some("a test"), true)), "{parked:?}");
    assert_eq!(ledger.run(&["dead-letters", "Readings"]).0, 0);

    for (arguments, count) in [
        (&["Readings", "--parked", "--redrive"][..], 2),
        (&["Levels", "--redrive", "--stream", &streams[0]], 1),
        (&["Fanout", "--redrive"], 1),
    ] {
        let (code, done) = act(arguments);
        assert_eq!((code, &done[0]["messages"]), (0, &json!(count)), "{done:?}");
    }
    for id in &ids {
        settled(&stack, id).await;
    }
    assert_eq!(ledger.run(&["dead-letters"]).0, 0);
    assert!(ledger.run(&["dead-letters", "--parked"]).1.is_empty());

    // An operator discards a useless message by its id, and the action is recorded.
    dead_letter(&sqs, "FanoutDeadLetterQueue", None, &json!({ "nothing": "useful" })).await;
    assert_eq!(act(&["Fanout", "--redrive"]).0, 2, "it names no commit, and stays");
    let (_, listed) = ledger.run(&["dead-letters", "Fanout"]);
    let id = listed.iter().find_map(|line| line["id"].as_str()).unwrap();
    assert_eq!(act(&["Fanout", "--discard", "--id", "another"]).0, 2);
    assert_eq!(act(&["Fanout", "--discard", "--id", id]).0, 0);
    let records =
        dynamodb.scan().table_name(table("OperationsTable")).send().await.unwrap().items.unwrap();
    let done: BTreeSet<_> =
        records.iter().map(|record| record["what"].as_s().unwrap().clone()).collect();
    assert!(done.contains(&format!("discard: {id}")) && done.len() == 5, "{done:?}");
    // The fanout quarantines a damaged commit again after a redrive, and the tool reports that.
    stack.damage("tank-damaged").await;
    eventually("the record is quarantined", async || {
        (ledger.run(&["dead-letters", "Fanout"]).0 == 2).then_some(())
    })
    .await;
    let (code, done) = act(&["Fanout", "--redrive"]);
    assert_eq!(
        (code, &done[0]["messages"], &done[0]["cameBack"]),
        (2, &json!(1), &json!(1)),
        "{done:?}"
    );
    for wrong in [
        &["dead-letters", "Nobody"][..],
        &["dead-letters", "Readings", "--write", "--why", "x"],
        &["dead-letters", "Readings", "--park", "--write", "--why", "x", "--yes"],
    ] {
        assert_eq!(ledger.run(wrong).0, 1, "{wrong:?}");
    }
    for wrong in [&["dead-letters", "--redrive"][..], &["dead-letters", "Fanout", "--discard"]] {
        assert_eq!(act(&wrong[1..]).0, 2, "clap refuses {wrong:?}");
    }
}

/// Lambda gives up a batch during an outage. Its message names an object with the records, by which
/// the operator finds and redrives exactly these commits.
#[tokio::test]
async fn a_batch_that_the_fanout_gave_up_is_redriven_from_its_object() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let attempts = "MaximumRetryAttempts: 10000";
    assert!(template.contains(attempts));
    std::fs::write(&path, template.replace(attempts, "MaximumRetryAttempts: 0")).unwrap();
    let name = "samconfig.toml";
    std::fs::copy(workspace().join(name), folder.path().join(name)).unwrap();
    let stack = LocalStack::start_as(&["--template", path.to_str().unwrap()]).await;
    let early = install(&stack, 1).await;
    settled(&stack, &early).await;
    // The fanout attempts an entry for some seconds, in each of its invocations.
    stack.begin_outage("LevelsProjectorFunction", "failed", 20).await;
    let late = install(&stack, 1).await;
    let ledger = Tool::at(&stack);
    let rows = eventually("a batch is a dead letter", async || {
        let (_, printed) = ledger.run(&["dead-letters", "Fanout"]);
        let rows: Vec<_> = printed.into_iter().filter(|row| row["id"].is_string()).collect();
        (!rows.is_empty()).then_some(rows)
    })
    .await;
    for row in &rows {
        assert_eq!(row["reason"], "RetryAttemptsExhausted of tanks-FanoutFunction", "{row}");
        let commits = row["commits"].as_str().unwrap();
        assert!(commits.split(' ').all(|it| it.starts_with(&format!("tank-{late}@"))), "{row}");
    }
    let redrive = ["dead-letters", "Fanout", "--redrive", "--write", "--yes", "--why", "a test"];
    eventually("the outage is over", async || (ledger.run(&redrive).0 == 0).then_some(())).await;
    settled(&stack, &late).await;
    assert_eq!(ledger.run(&["dead-letters"]).0, 0);
    // A redrive sends only the new commits of a batch. A parked batch outlives its object.
    let record = |event: &str, version: &str| {
        json!({ "eventName": event, "dynamodb": { "Keys": {
            "stream": { "S": format!("tank-{early}") }, "version": { "N": version } } } })
    };
    // A record of Kinesis has the change as text in Base64.
    let data = BASE64_STANDARD.encode(record("INSERT", "1").to_string());
    let kinesis = json!({ "eventName": "aws:kinesis:record", "kinesis": { "data": data } });
    let records = json!({ "Records": [record("INSERT", "2"), record("MODIFY", "1"), kinesis] });
    let object = json!({
        "requestContext": { "condition": "RetryAttemptsExhausted" }, "payload": records.to_string(),
    });
    let kept = format!("{}/tanks-failuresbucket/aws/lambda/tank-fanout/kept", stack.aws_url());
    let put = ledgerline_local::http_client().put(&kept).body(object.to_string());
    assert_eq!(put.send().await.unwrap().status(), StatusCode::OK);
    let message = |key: &str| {
        let detail =
            json!({ "bucket": { "name": "tanks-failuresbucket" }, "object": { "key": key } });
        json!({ "source": "aws.s3", "detail": detail })
    };
    let sqs = aws_sdk_sqs::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let kept_message = message("aws/lambda/tank-fanout/kept");
    dead_letter(&sqs, "FanoutDeadLetterQueue", None, &kept_message).await;
    let (_, printed) = ledger.run(&["dead-letters", "Fanout"]);
    let row = printed.iter().find(|row| row["id"].is_string()).unwrap();
    assert_eq!(row["commits"], format!("tank-{early}@2 tank-{early}@1"), "{row}");
    let reason = "RetryAttemptsExhausted; 1 records of changed or removed commits";
    assert_eq!(row["reason"], reason, "{row}");
    let sure = ["--write", "--yes", "--why", "a test"];
    let act = |words: &[&str]| ledger.run(&[&["dead-letters", "Fanout"], words, &sure].concat());
    assert_eq!(act(&["--park", "--id", row["id"].as_str().unwrap()]).0, 0);
    let deleted = ledgerline_local::http_client().delete(&kept).send().await.unwrap();
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    let (code, redriven) = act(&["--parked", "--redrive"]);
    assert_eq!((code, &redriven[0]["messages"]), (0, &json!(1)), "{redriven:?}");
    // A message whose object is gone names it, and stays.
    let key = "aws/lambda/tank-fanout/shard/2026/11/30/gone";
    dead_letter(&sqs, "FanoutDeadLetterQueue", None, &message(key)).await;
    assert_eq!(ledger.run(&redrive).0, 2);
    let (_, printed) = ledger.run(&["dead-letters", "Fanout"]);
    let reason = printed.iter().find_map(|row| row["id"].as_str().and(row["reason"].as_str()));
    assert!(reason.unwrap().contains(&format!("the object `{key}`")), "{printed:?}");
}

/// Returns the URL of a queue.
async fn queue(client: &aws_sdk_sqs::Client, name: &str) -> String {
    client.get_queue_url().queue_name(table(name)).send().await.unwrap().queue_url.unwrap()
}

/// A subscriber cannot apply a commit, and the later commits of its stream wait. They become dead
/// letters, and other streams continue. The operator repairs the cause and redrives the messages,
/// and the tool is killed during the redrive.
#[tokio::test]
async fn a_poison_pill_and_the_commits_behind_it_are_redriven_in_order_once_the_cause_is_repaired()
{
    const FILLS: i64 = 9;
    let stack = LocalStack::start(None).await;
    let poisoned = install(&stack, 0).await;
    let healthy = install(&stack, 1_000).await;
    for id in [&poisoned, &healthy] {
        settled(&stack, id).await;
    }
    let aws = ledgerline_dynamodb::sdk_config(&stack.aws_url());
    let sqs = aws_sdk_sqs::Client::new(&aws);
    let dynamodb = aws_sdk_dynamodb::Client::new(&aws);
    // Two attempts in two seconds, instead of ninety in an hour and a half.
    let url = queue(&sqs, "ReadingsQueue.fifo").await;
    let get = sqs.get_queue_attributes().queue_url(&url).attribute_names(Name::RedrivePolicy);
    let policy = get.send().await.unwrap().attributes.unwrap()[&Name::RedrivePolicy].clone();
    let mut policy: Value = serde_json::from_str(&policy).unwrap();
    policy["maxReceiveCount"] = json!(2);
    let set = sqs
        .set_queue_attributes()
        .queue_url(&url)
        .attributes(Name::RedrivePolicy, policy.to_string());
    set.attributes(Name::VisibilityTimeout, "1").send().await.unwrap();
    // The position of one tank is changed by hand, so no commit of this tank can be applied.
    let position = async |value: AttributeValue| {
        let update = dynamodb.update_item().table_name(table("ReadingsTable"));
        let update = update.key("tankId", AttributeValue::S(format!("tank-{poisoned}")));
        let update = update.key("entry", AttributeValue::S("#position".into()));
        let update = update.update_expression("SET #position = :position");
        let update = update.expression_attribute_names("#position", "position");
        update.expression_attribute_values(":position", value).send().await.unwrap();
    };
    position(AttributeValue::S("one".into())).await;
    for amount in 1..=FILLS {
        for id in [&poisoned, &healthy] {
            let filled = fill(&stack, id, amount).await;
            assert_eq!(filled.status, StatusCode::OK, "{filled:?}");
        }
    }
    settled(&stack, &healthy).await;

    // The operator finds the queue, the first commit of the stream, the reason in the logs, and the
    // commit itself.
    let ledger = Tool::at(&stack);
    let stream = format!("tank-{poisoned}");
    let listed = eventually("all of them are dead letters", async || {
        // Other tanks are filled meanwhile. Their messages also wake the emulated queue, which does
        // not wake by itself for a retry.
        fill(&stack, &healthy, 1).await;
        let (_, listed) = ledger.run(&["dead-letters", "Readings"]);
        listed.first().is_some_and(|count| count["messages"] == FILLS).then_some(listed)
    })
    .await;
    settled(&stack, &healthy).await;
    assert_eq!(listed[1]["commits"], format!("{stream}@2"));
    let failures = stack.logged(r#"{ $.level = "ERROR" && $.message = "projection" }"#).await;
    assert!(failures.iter().all(|line| line["stream"] == *stream), "of no other one: {failures:?}");
    assert!(failures[0]["error"].as_str().unwrap().contains("row"), "{failures:?}");
    let (_, shown) = ledger.run(&["show", &stream, "--at", "2", "--payloads"]);
    assert_eq!(shown[1]["events"], "TankFilled");
    let unreadable = stack.get(&format!("/tanks/{poisoned}/readings")).await;
    assert_eq!(unreadable.status, StatusCode::INTERNAL_SERVER_ERROR, "of this tank alone");

    // The operator repairs the position, and redrives the messages. The tool is killed when it has
    // redriven the first one.
    position(AttributeValue::N("1".into())).await;
    let redrive = [
        "dead-letters",
        "Readings",
        "--redrive",
        "--write",
        "--yes",
        "--why",
        "the position is repaired",
    ];
    let mut tool = ledger.start(&redrive);
    // The loop has no pause, because the tool has only a few messages to send.
    let records = async || {
        let records = dynamodb.scan().table_name(table("OperationsTable")).send().await.unwrap();
        records.count
    };
    while records().await == 0 {
        assert!(tool.try_wait().unwrap().is_none(), "the tool is still running");
    }
    tool.kill().unwrap();
    tool.wait().unwrap();
    assert_eq!(ledger.run(&["dead-letters"]).0, 2, "it was killed in the middle");
    eventually(
        "the other messages are sent after the visibility timeout of the killed tool's messages",
        async || {
            // While messages are left, the tool does not report success.
            let is_done = ledger.run(&redrive).0 == 0;
            let is_empty = ledger.run(&["dead-letters"]).0 == 0;
            assert!(is_empty || !is_done, "the tool reports success although messages are left");
            is_done.then_some(())
        },
    )
    .await;
    for id in [&poisoned, &healthy] {
        settled(&stack, id).await;
    }
    let after = stack.logged(r#"{ $.level = "ERROR" && $.message = "projection" }"#).await;
    assert_eq!(
        after.len(),
        failures.len(),
        "none failed, and none came before its turn: {after:?}"
    );
    let gaps = stack.logged(r#"{ $.outcome = "gap repaired" }"#).await;
    assert!(gaps.iter().all(|line| line["stream"] != *stream), "none was overtaken: {gaps:?}");
    assert_eq!(ledger.found(&[]), (0, BTreeSet::new()));
}
