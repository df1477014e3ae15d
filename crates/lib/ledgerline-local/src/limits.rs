//! The size limits of AWS: a larger request fails here as on AWS (docs/data.md, "Size limits").
//!
//! A single message of SQS is smaller here than on AWS: the emulated queues accept 256 KB.

use axum::http::StatusCode;
use serde_json::{Value, json};

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
