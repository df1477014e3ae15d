//! The on-failure destination of a stream: it gets the batches that Lambda gives up.

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use ledgerline_sam::template::{ACCOUNT, REGION};

use crate::buckets::Buckets;

/// The destination of batches that Lambda gives up.
#[derive(Debug)]
pub(crate) enum OnFailure {
    /// The URL of a queue, which gets the place of the records in the stream.
    Queue(String),
    /// A bucket, which gets the records, too.
    Bucket {
        buckets: Buckets,
        name: String,
        /// The access key of the function, whose role writes the objects.
        caller: String,
        /// The prefixes of keys, and the URLs of the queues to which rules send the names of new
        /// objects.
        rules: Vec<(String, String)>,
    },
}

/// A batch that Lambda gives up.
pub(crate) struct FailedBatch<'a> {
    /// The part of an object's key that names the function and the shard.
    pub(crate) prefix: String,
    /// The message without the records.
    pub(crate) message: Value,
    pub(crate) records: &'a [Value],
    pub(crate) now: Timestamp,
}

impl OnFailure {
    /// Sends the batch to the destination.
    pub(crate) async fn send_batch(
        &self,
        sqs: &aws_sdk_sqs::Client,
        batch: FailedBatch<'_>,
    ) -> Result<()> {
        let FailedBatch { prefix, mut message, records, now } = batch;
        match self {
            Self::Queue(queue) => send(sqs, queue, &message).await,
            Self::Bucket { buckets, name, caller, rules } => {
                // Source: Lambda's developer guide, "Retaining discarded batches".
                let (day, time) = (now.strftime("%Y/%m/%d"), now.strftime("%Y-%m-%dT%H.%M.%S"));
                let key = format!("aws/lambda/{prefix}/{day}/{time}-{}", Uuid::new_v4());
                message["payload"] = json!({ "Records": records }).to_string().into();
                buckets.store(caller, name, &key, &message.to_string())?;
                let event = make_event(name, &key, now);
                for (_, queue) in rules.iter().filter(|(prefix, _)| key.starts_with(prefix)) {
                    send(sqs, queue, &event).await?;
                }
                Ok(())
            }
        }
    }
}

/// Returns the event of a new object.
///
/// Source: the user guide of S3, "EventBridge event message structure".
fn make_event(bucket: &str, key: &str, now: Timestamp) -> Value {
    json!({
        "version": "0", "id": Uuid::new_v4(), "detail-type": "Object Created",
        "source": "aws.s3", "account": ACCOUNT, "time": now.to_string(), "region": REGION,
        "resources": [format!("arn:aws:s3:::{bucket}")],
        "detail": { "version": "0", "bucket": { "name": bucket }, "object": { "key": key },
            "reason": "PutObject" },
    })
}

async fn send(sqs: &aws_sdk_sqs::Client, queue: &str, message: &Value) -> Result<()> {
    sqs.send_message().queue_url(queue).message_body(message.to_string()).send().await?;
    Ok(())
}
