//! The local stack accepts requests up to the limits of AWS, and refuses larger requests as AWS
//! does (docs/data.md, "Size limits").

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use ledgerline_testing::LocalStack;
use reqwest::StatusCode;
use serde_json::{Value, json};

const MIB: usize = 1024 * 1024;

/// Sends a request in a JSON protocol of AWS. Returns the status and the type of the error.
async fn call(stack: &LocalStack, target: &str, body: &Value) -> (StatusCode, String) {
    let request =
        ledgerline_local::http_client().post(stack.aws_url()).header("x-amz-target", target);
    let answer = request.json(body).send().await.unwrap();
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    (status, body["__type"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_function_is_invoked_by_each_name_that_aws_takes_and_by_no_other() {
    let stack = LocalStack::start(None).await;
    let arn = "arn:aws:lambda:us-east-1:000000000000:function:tanks-FanoutFunction";
    let qualified = format!("{arn}:live");
    for (name, query, kind, expected) in [
        (arn, "", "RequestResponse", (200, "")),
        (&qualified, "", "RequestResponse", (200, "")),
        ("000000000000:function:tanks-FanoutFunction", "", "DryRun", (204, "")),
        ("tanks-FanoutFunction", "?Qualifier=live", "RequestResponse", (200, "")),
        ("tanks-FanoutFunction", "?Qualifier=nope", "DryRun", (404, "ResourceNotFoundException")),
        ("tanks-FanoutFunction:nope", "", "DryRun", (404, "ResourceNotFoundException")),
        (&arn.replace("us-east-1", "eu-west-1"), "", "DryRun", (404, "ResourceNotFoundException")),
        ("tanks-FanoutFunction", "", "Foo", (400, "InvalidParameterValueException")),
    ] {
        let url = format!("{}/2015-03-31/functions/{name}/invocations{query}", stack.aws_url());
        let request =
            ledgerline_local::http_client().post(url).header("x-amz-invocation-type", kind);
        let answer = request.body(r#"{"Records":[]}"#).send().await.unwrap();
        let error = answer.headers().get("x-amzn-errortype").map(|kind| kind.to_str().unwrap());
        let error = error.unwrap_or_default();
        assert_eq!((answer.status().as_u16(), error), expected, "{name}{query} {kind}");
    }
}

/// Messages that SQS refuses, with the code.
fn refused_messages() -> [(Value, &'static str); 4] {
    let id = |id: &str, group: &str| json!({ "MessageBody": "x", "MessageGroupId": group, "MessageDeduplicationId": id });
    [
        (id("1", "a b"), "InvalidParameterValue"),
        (id(&"x".repeat(129), "a"), "InvalidParameterValue"),
        (id("", "a"), "InvalidParameterValue"),
        (json!({ "MessageBody": "a\0b", "MessageGroupId": "a" }), "InvalidMessageContents"),
    ]
}

#[tokio::test]
async fn queues_and_the_bus_refuse_single_entries_as_aws_does() {
    let stack = LocalStack::start(None).await;
    let post = async |target: &str, body: Value| {
        let request =
            ledgerline_local::http_client().post(stack.aws_url()).header("x-amz-target", target);
        request.json(&body).send().await.unwrap().json::<Value>().await.unwrap()
    };
    let queue = format!("{}/000000000000/tanks-FillsQueue.fifo", stack.aws_url());
    for (mut message, code) in refused_messages() {
        message["Id"] = json!("bad");
        let good = json!({ "Id": "good", "MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": message.to_string().len().to_string() });
        for (entries, successful) in [(json!([message, good]), 1), (json!([message]), 0)] {
            let batch = json!({ "QueueUrl": queue, "Entries": entries });
            let answer = post("AmazonSQS.SendMessageBatch", batch).await;
            assert_eq!(answer["Failed"][0]["Id"], "bad", "{answer}");
            assert_eq!(answer["Failed"][0]["Code"], code);
            assert_eq!(answer["Successful"].as_array().unwrap().len(), successful, "{answer}");
        }
        message["QueueUrl"] = json!(queue);
        let answer = post("AmazonSQS.SendMessage", message).await;
        assert_eq!(answer["__type"], format!("com.amazonaws.sqs#{code}"));
    }
    let entry =
        json!({ "Source": "t", "DetailType": "T", "Detail": "{}", "EventBusName": "tanks-events" });
    for (field, value, code) in [
        ("Source", json!(null), "InvalidArgument"),
        ("DetailType", json!(""), "InvalidArgument"),
        ("Source", json!("aws.x"), "NotAuthorizedForSourceException"),
        ("Detail", json!("[1]"), "MalformedDetail"),
        ("Detail", json!("{"), "MalformedDetail"),
    ] {
        let mut refused = entry.clone();
        refused[field] = value;
        let answer = post("AWSEvents.PutEvents", json!({ "Entries": [refused, entry] })).await;
        assert_eq!(answer["FailedEntryCount"], 1);
        assert_eq!(answer["Entries"][0]["ErrorCode"], code);
        assert!(answer["Entries"][1]["EventId"].is_string(), "{answer}");
    }
}

/// Invokes the fanout with a payload of this many bytes and without records. Returns the status and
/// the type of the error.
async fn invoke(stack: &LocalStack, kind: &str, bytes: usize) -> (StatusCode, String) {
    let around = r#"{"Records":[],"x":""}"#.len();
    let payload = format!(r#"{{"Records":[],"x":"{}"}}"#, "x".repeat(bytes - around));
    let url = format!("{}/2015-03-31/functions/FanoutFunction/invocations", stack.aws_url());
    let request = ledgerline_local::http_client().post(url).header("x-amz-invocation-type", kind);
    let answer = request.body(payload).send().await.unwrap();
    let error =
        answer.headers().get("x-amzn-errortype").map(|kind| kind.to_str().unwrap().to_owned());
    (answer.status(), error.unwrap_or_default())
}

#[tokio::test]
async fn requests_are_accepted_up_to_the_limits_of_aws_and_refused_beyond() {
    let stack = LocalStack::start(None).await;
    let refused = |kind: &str| (StatusCode::BAD_REQUEST, kind.to_owned());
    let accepted = (StatusCode::OK, String::new());

    // EventBridge: 1 MB for the entries of a call.
    let entry = |bytes: usize| {
        let text = "x".repeat(bytes - r#"t.tankFilled{"x":""}"#.len());
        let detail = json!({ "x": text }).to_string();
        json!({ "Source": "t.tank", "DetailType": "Filled", "Detail": detail, "EventBusName": "tanks-events" })
    };
    let put = async |bytes| {
        call(&stack, "AWSEvents.PutEvents", &json!({ "Entries": [entry(bytes)] })).await
    };
    assert_eq!(put(MIB).await, accepted);
    assert_eq!(put(MIB + 1).await, refused("ValidationException"));

    // SQS: 1 MB for the messages of a call, and 256 KB for one message. AWS allows 1 MB for one
    // message.
    let queue = format!("{}/000000000000/tanks-FanoutDeadLetterQueue", stack.aws_url());
    let send = async |sizes: &[usize]| {
        let message = |(id, bytes): (usize, &usize)| json!({ "Id": id.to_string(), "MessageBody": "x".repeat(*bytes) });
        let entries: Vec<_> = sizes.iter().enumerate().map(message).collect();
        call(
            &stack,
            "AmazonSQS.SendMessageBatch",
            &json!({ "QueueUrl": queue, "Entries": entries }),
        )
        .await
    };
    assert_eq!(send(&[MIB / 4; 4]).await, accepted);
    assert_eq!(send(&[MIB / 5; 6]).await, refused("com.amazonaws.sqs#BatchRequestTooLong"));
    let message = |bytes: usize| json!({ "QueueUrl": queue, "MessageBody": "x".repeat(bytes) });
    assert_eq!(call(&stack, "AmazonSQS.SendMessage", &message(MIB / 4)).await, accepted);
    let (status, kind) = call(&stack, "AmazonSQS.SendMessage", &message(MIB / 4 + 1)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{kind}");

    // Lambda: 1 MB for an asynchronous invocation, 6 MB for a synchronous one.
    let too_large = (StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeException".to_owned());
    assert_eq!(invoke(&stack, "Event", MIB).await, (StatusCode::ACCEPTED, String::new()));
    assert_eq!(invoke(&stack, "Event", MIB + 1).await, too_large);
    assert_eq!(invoke(&stack, "RequestResponse", 6 * MIB).await, accepted);
    assert_eq!(invoke(&stack, "RequestResponse", 6 * MIB + 1).await, too_large);
}
