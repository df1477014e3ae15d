//! The size limits of AWS: a larger request fails here as on AWS (docs/data.md, "Size limits").
//!
//! A single message of SQS is smaller here than on AWS: the emulated queues accept 256 KB.

use axum::{
    body::Body,
    http::{HeaderMap, Response, StatusCode},
};
use serde_json::{Value, json};

use crate::{aws_answer::answer, services::Sqs};

/// The bytes of the entries of one `PutEvents`, of the messages of one `SendMessageBatch`, and of
/// the payload of one asynchronous invocation. Source: "More room to build", AWS Compute Blog,
/// 2026-01-29.
pub(crate) const MAX_BYTES: usize = 1024 * 1024;
/// The bytes of the payload of one synchronous invocation. Source: Lambda quotas.
pub(crate) const MAX_SYNCHRONOUS_BYTES: usize = 6 * 1024 * 1024;

/// Returns the refusal of a request to EventBridge or SQS that is too large.
pub(crate) fn refusal(target: &str, body: &[u8]) -> Option<(StatusCode, Value)> {
    let (list, fields, kind, message): (_, &[&str], _, _) = match target {
        "AWSEvents.PutEvents" => (
            "Entries",
            &["Source", "DetailType", "Detail"],
            "ValidationException",
            "Total size of the entries in the request is over the limit.",
        ),
        "AmazonSQS.SendMessageBatch" => (
            "Entries",
            &["MessageBody"],
            "com.amazonaws.sqs#BatchRequestTooLong",
            "Batch requests cannot be longer than 1048576 bytes.",
        ),
        "AmazonSQS.SendMessage" => {
            let (code, message) = message_refusal(&serde_json::from_slice(body).ok()?)?;
            let kind = format!("com.amazonaws.sqs#{code}");
            return Some((StatusCode::BAD_REQUEST, json!({ "__type": kind, "message": message })));
        }
        _ => return None,
    };
    // A request below the limit as a whole needs no count.
    if body.len() <= MAX_BYTES {
        return None;
    }
    let body: Value = serde_json::from_slice(body).ok()?;
    let entries = body[list].as_array().into_iter().flatten();
    let sizes = entries
        .flat_map(|entry| fields.iter().filter_map(|field| entry[*field].as_str()).map(str::len));
    (sizes.sum::<usize>() > MAX_BYTES)
        .then(|| (StatusCode::BAD_REQUEST, json!({ "__type": kind, "message": message })))
}

/// Returns the code and the message with which SQS refuses a message. Source: the API reference of
/// `SendMessage`.
fn message_refusal(message: &Value) -> Option<(&'static str, String)> {
    let is_id =
        |id: &str| (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    for field in ["MessageGroupId", "MessageDeduplicationId"] {
        if message[field].as_str().is_some_and(|id| !is_id(id)) {
            let reason = "has 1 to 128 letters, digits and punctuation characters of ASCII";
            return Some(("InvalidParameterValue", format!("{field} {reason}.")));
        }
    }
    let is_allowed = |character: char| matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    let body = message["MessageBody"].as_str().unwrap_or_default();
    let reason = "the body has a character that XML does not allow";
    (!body.chars().all(is_allowed)).then(|| ("InvalidMessageContents", reason.to_owned()))
}

/// A `SendMessageBatch`, divided.
pub(crate) struct DividedBatch {
    /// The request with the valid messages.
    valid: Value,
    /// The results of the other messages.
    failed: Vec<Value>,
}

impl DividedBatch {
    /// Divides a request; `None` if all messages are valid.
    pub(crate) fn from_request(body: &[u8]) -> Option<Self> {
        let mut valid: Value = serde_json::from_slice(body).ok()?;
        let mut failed = Vec::new();
        valid["Entries"].as_array_mut()?.retain(|entry| {
            let refusal = message_refusal(entry);
            failed.extend(refusal.iter().map(|(code, message)| {
                json!({ "Id": entry["Id"], "Code": code, "Message": message, "SenderFault": true })
            }));
            refusal.is_none()
        });
        (!failed.is_empty()).then_some(Self { valid, failed })
    }

    /// Sends the valid messages, and answers with the results of all.
    pub(crate) async fn send(self, sqs: &Sqs, headers: &HeaderMap) -> Response<Body> {
        let mut results = json!({ "Successful": [], "Failed": [] });
        if self.valid["Entries"] != json!([]) {
            let answer = sqs.answer(headers, self.valid.to_string().into()).await;
            if answer.status() != StatusCode::OK {
                return answer;
            }
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
            results = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        }
        let failed = results["Failed"].as_array().cloned().unwrap_or_default();
        results["Failed"] = [failed, self.failed].concat().into();
        answer(StatusCode::OK, results)
    }
}
