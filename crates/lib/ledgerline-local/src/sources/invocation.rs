//! Asynchronous invocations of functions, by a caller of Lambda or by a rule of the bus: Lambda retries, and then sends the event to the function's
//! on-failure destination.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rustack_events_core::delivery::{DeliveryError, Target, TargetDelivery};
use serde_json::{Value, json};

use ledgerline_sam::template::InvokeConfig;

use crate::{
    host::Function,
    trace_log::{TraceLog, age, name},
};

/// The delays before the first and the second retry. On AWS they are one minute and two, which is too long on a laptop.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// A function that is invoked asynchronously.
#[derive(Debug)]
pub(crate) struct AsyncTarget {
    pub(crate) function: Arc<Function>,
    pub(crate) config: InvokeConfig,
    /// URL of the queue for events that are given up.
    pub(crate) on_failure: Option<String>,
}

/// Invokes functions for whose answer no caller waits.
#[derive(Debug)]
pub(crate) struct Invocations {
    /// The targets by the ARN of the function, which are set once the functions are known.
    pub(crate) targets: OnceLock<BTreeMap<String, Arc<AsyncTarget>>>,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) hops: TraceLog,
    /// The number of events that were taken and are not done yet.
    pub(crate) under_way: Arc<AtomicUsize>,
}

impl Invocations {
    /// Invokes the function with this ARN, if there is one.
    pub(crate) fn begin(&self, arn: &str, event: &str) -> bool {
        let targets = self.targets.get().and_then(|targets| targets.get(arn));
        let Some(target) = targets.map(Arc::clone) else { return false };
        let event = event.to_owned();
        let sqs = self.sqs.clone();
        let hops = self.hops;
        let under_way = Arc::clone(&self.under_way);
        under_way.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            invoke(&target, &event, &sqs, hops).await;
            under_way.fetch_sub(1, Ordering::SeqCst);
        });
        true
    }
}

#[async_trait]
impl TargetDelivery for Invocations {
    fn validate(&self, target: &Target) -> Result<(), DeliveryError> {
        match self.targets.get().is_some_and(|targets| targets.contains_key(&target.arn)) {
            true => Ok(()),
            false => Err(DeliveryError::InvalidArn(target.arn.clone())),
        }
    }

    async fn deliver(&self, target: &Target, event: &str) -> Result<(), DeliveryError> {
        match self.begin(&target.arn, event) {
            true => Ok(()),
            false => Err(DeliveryError::InvalidArn(target.arn.clone())),
        }
    }
}

/// The last events of the states with which a function is invoked.
fn last_events(event: &Value) -> Vec<&Value> {
    match event["states"].as_array() {
        Some(states) => states.iter().map(|state| &state["lastEvent"]).collect(),
        // Whoever wakes a subscription says nothing of an event.
        None => event["detail"].get("lastEvent").into_iter().collect(),
    }
}

async fn invoke(target: &AsyncTarget, event: &str, sqs: &aws_sdk_sqs::Client, hops: TraceLog) {
    let parsed: Value = serde_json::from_str(event).unwrap_or_default();
    let events = last_events(&parsed);
    let accepted = Instant::now();
    let mut attempts = 0;
    let error = loop {
        let started = Instant::now();
        let error = match target.function.invoke(event.as_bytes().to_vec()).await {
            Ok(_) => {
                let took = started.elapsed().as_millis();
                let by = target.function.name();
                for event in events {
                    hops.line("projector", &format!("{} by {by} in {took} ms{}", name(event), age(event)));
                }
                return;
            }
            Err(error) => error,
        };
        hops.line("invoke", &format!("{} failed: {error}", target.function.name()));
        let delay = RETRY_DELAYS.get(attempts);
        attempts += 1;
        let old = accepted.elapsed().as_secs() > target.config.maximum_event_age_in_seconds;
        match delay {
            Some(delay) if attempts <= target.config.maximum_retry_attempts as usize && !old => {
                tokio::time::sleep(*delay).await;
            }
            Some(_) | None => break error,
        }
    };
    for event in events {
        hops.line("invoke", &format!("gave up {} after {attempts} tries", name(event)));
    }
    let Some(queue) = &target.on_failure else { return };
    let message = json!({
        "version": "1.0",
        "timestamp": jiff::Timestamp::now().to_string(),
        "requestContext": {
            "functionArn": target.function.arn(),
            "condition": "RetriesExhausted",
            "approximateInvokeCount": attempts,
        },
        "requestPayload": parsed,
        "responseContext": { "statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled" },
        "responsePayload": { "errorType": error.kind, "errorMessage": error.message },
    });
    if let Err(error) = sqs.send_message().queue_url(queue).message_body(message.to_string()).send().await {
        hops.line("invoke", &format!("the dead letter was not taken: {error}"));
    }
}
