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
