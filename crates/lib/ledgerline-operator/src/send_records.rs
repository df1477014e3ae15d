//! The invocation of a function with the records of commits, as the stream of `CommitsTable` does it.

use anyhow::{Context, Result, bail};
use aws_sdk_lambda::primitives::Blob;
use ledgerline::StreamId;
use serde_json::{Value, json};

use crate::deployment::Deployment;

/// The most records of one invocation.
const RECORDS: usize = 10;
/// The size in bytes from which an invocation gets no more records. Lambda accepts 6 MB, and one
/// more record has half a megabyte at most.
const BYTES: usize = 4_000_000;
/// Invokes the function with the logical id `to` with the records of these commits, as the stream
/// of `CommitsTable` does, in several invocations if needed.
///
/// # Errors
/// At the first invocation that fails, or that reports a failed record. Earlier invocations stay.
pub(crate) async fn send_records(
    deployment: &Deployment,
    to: &str,
    commits: &[(StreamId, u64)],
) -> Result<()> {
    let log = deployment.log()?;
    let name = deployment.name(to)?;
    // A FIFO queue drops a message that it received in the last five minutes. The id of this run
    // makes its messages different.
    let run = uuid::Uuid::new_v4();
    let (mut records, mut bytes) = (Vec::new(), 0);
    for (place, (stream, version)) in commits.iter().enumerate() {
        let record = log.record(stream, *version).await?;
        let mut record = record.with_context(|| format!("`{stream}` has no version {version}"))?;
        record["ApproximateCreationDateTime"] = 0.into();
        record["SequenceNumber"] = (place + 1).to_string().into();
        record["SizeBytes"] = 1.into();
        record["StreamViewType"] = "NEW_IMAGE".into();
        let record = json!({
            "eventID": format!("redelivery-{place}"), "eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb",
            "awsRegion": "redelivery", "eventSourceARN": format!("redelivery/{run}"), "dynamodb": record,
        });
        bytes += record.to_string().len();
        records.push(record);
        if records.len() == RECORDS || bytes > BYTES {
            invoke(deployment, to, &name, std::mem::take(&mut records)).await?;
            bytes = 0;
        }
    }
    if records.is_empty() { Ok(()) } else { invoke(deployment, to, &name, records).await }
}

async fn invoke(deployment: &Deployment, to: &str, name: &str, records: Vec<Value>) -> Result<()> {
    let payload = json!({ "Records": records }).to_string();
    let answer =
        deployment.lambda.invoke().function_name(name).payload(Blob::new(payload)).send().await?;
    let body: Value =
        serde_json::from_slice(answer.payload.as_ref().map_or(&[], |payload| payload.as_ref()))?;
    if answer.function_error.is_some() || body["batchItemFailures"] != json!([]) {
        bail!("`{to}` did not accept the records: {body}");
    }
    Ok(())
}
