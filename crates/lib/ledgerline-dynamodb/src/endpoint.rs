//! An endpoint other than that of a region: an emulator, or the local stack.

use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
use aws_types::SdkConfig;
use serde_json::Value;

/// The region of emulated services.
const REGION: &str = "us-east-1";

/// Returns an SDK configuration for an endpoint that checks no credentials. `url` is its address.
pub fn sdk_config(url: &str) -> SdkConfig {
    let credentials = Credentials::new("local", "local", None, None, "local");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(url)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build()
}

/// Returns the capacity units that an answer of DynamoDB reports; 0 if it reports none, as errors
/// do. A transaction reports those of each of its tables.
pub fn capacity_units(answer: &[u8]) -> f64 {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let units = |consumed: &Value| consumed["CapacityUnits"].as_f64().unwrap_or(0.0);
    let consumed = &answer["ConsumedCapacity"];
    consumed.as_array().map_or_else(|| units(consumed), |tables| tables.iter().map(units).sum())
}
