//! Rules of a bus as an event source: EventBridge hands the event to Lambda's asynchronous invocation, which retries
//! and then sends it to the function's on-failure destination.

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

use crate::{
    hops::{Hops, age, name},
    host::Function,
    template::InvokeConfig,
};

/// Before the first and the second retry. On AWS it is one minute and two; nobody at a laptop waits for that.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// A function that is invoked asynchronously.
#[derive(Debug)]
pub(crate) struct AsyncTarget {
    pub(crate) function: Arc<Function>,
    pub(crate) config: InvokeConfig,
    /// Where events go that are given up: the queue's URL.
    pub(crate) on_failure: Option<String>,
}

/// Delivers events of the bus to functions.
#[derive(Debug)]
pub(crate) struct Rules {
    /// By the ARN of the function; known once the functions are.
    pub(crate) targets: OnceLock<BTreeMap<String, Arc<AsyncTarget>>>,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) hops: Hops,
    /// Events that were taken and are not done yet.
    pub(crate) under_way: Arc<AtomicUsize>,
}

#[async_trait]
impl TargetDelivery for Rules {
    fn validate(&self, target: &Target) -> Result<(), DeliveryError> {
        match self.targets.get().is_some_and(|targets| targets.contains_key(&target.arn)) {
            true => Ok(()),
            false => Err(DeliveryError::InvalidArn(target.arn.clone())),
        }
    }

    async fn deliver(&self, target: &Target, event: &str) -> Result<(), DeliveryError> {
        let targets = self.targets.get().and_then(|targets| targets.get(&target.arn));
        let target = Arc::clone(targets.ok_or_else(|| DeliveryError::InvalidArn(target.arn.clone()))?);
        let event = event.to_owned();
        let (sqs, hops, under_way) = (self.sqs.clone(), self.hops, Arc::clone(&self.under_way));
        under_way.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            invoke(&target, &event, &sqs, hops).await;
            under_way.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(())
    }
}

async fn invoke(target: &AsyncTarget, event: &str, sqs: &aws_sdk_sqs::Client, hops: Hops) {
    let parsed: Value = serde_json::from_str(event).unwrap_or_default();
    let entry = &parsed["detail"]["lastEvent"];
    let accepted = Instant::now();
    let mut attempts = 0;
    let error = loop {
        let started = Instant::now();
        let error = match target.function.invoke(event.as_bytes().to_vec()).await {
            Ok(_) => {
                let took = started.elapsed().as_millis();
                let by = target.function.name();
                hops.line("projector", &format!("{} by {by} in {took} ms{}", name(entry), age(entry)));
                return;
            }
            Err(error) => error,
        };
        hops.line("bus", &format!("{} failed: {error}", target.function.name()));
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
    hops.line("bus", &format!("gave up {} after {attempts} tries", name(entry)));
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
        hops.line("bus", &format!("the dead letter was not taken: {error}"));
    }
}
