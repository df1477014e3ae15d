//! Clients of the database: for an endpoint other than that of a region, such as the local stack,
//! and clients that count units.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::{
    Client,
    config::{
        BehaviorVersion, ConfigBag, Credentials, Intercept, Region, RuntimeComponents,
        SharedCredentialsProvider, interceptors::AfterDeserializationInterceptorContextRef,
    },
    error::BoxError,
};
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

/// The sum of the units that the responses of the database report.
#[derive(Debug, Clone, Default)]
pub struct Units(Arc<Mutex<f64>>);

impl Units {
    /// Returns a client that adds the units of its calls to this sum as well.
    pub(crate) fn count(&self, client: &Client) -> Client {
        Client::from_conf(client.config().to_builder().interceptor(self.clone()).build())
    }

    /// Returns the sum so far.
    pub fn total(&self) -> f64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for Units {
    fn name(&self) -> &'static str {
        "Units"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let consumed = capacity_units(context.response().body().bytes().unwrap_or_default());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += consumed;
        Ok(())
    }
}
