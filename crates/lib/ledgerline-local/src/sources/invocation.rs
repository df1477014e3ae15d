//! Asynchronous invocations of functions, by a caller of Lambda or by a rule of the bus. Lambda
//! retries, and then sends the event to the function's on-failure destination.
//!
//! A rule has retries of its own, for events that Lambda does not accept, and a dead-letter queue
//! for events that it gives up. Source: the EventBridge user guide, "How EventBridge retries
//! delivering events" and "Using dead-letter queues to process undelivered events".

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use aws_sdk_sqs::types::MessageAttributeValue;
use backon::{BackoffBuilder, ExponentialBuilder};
use rustack_events_core::delivery::{DeliveryError, Target, TargetDelivery};
use serde_json::{Value, json};

use ledgerline_sam::template::{InvokeConfig, RetryPolicy};

use crate::{
    host::Function,
    outages::{Failing, Outages},
    trace_log::{TraceLog, age, name},
};

/// The delays before the first and the second retry. On AWS, the delays are one minute and two,
/// which is too long on a laptop.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// A function that is invoked asynchronously.
#[derive(Debug)]
pub(crate) struct AsyncTarget {
    pub(crate) function: Arc<Function>,
    pub(crate) config: InvokeConfig,
    /// The URL of the queue for dead-lettered events.
    pub(crate) on_failure: Option<String>,
}

/// The delay before the first retry of a rule's delivery. Each further delay is twice as long, up
/// to [`LONGEST_DELAY`]. On AWS, the retries of a day become rarer in the same way.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay before a retry of a rule's delivery.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The failure handling of a rule, for events that Lambda does not accept.
#[derive(Debug)]
pub(crate) struct RuleTarget {
    /// The ARN of the rule.
    pub(crate) rule: String,
    pub(crate) retries: RetryPolicy,
    /// The URL of the queue for dead-lettered events.
    pub(crate) dead_letters: Option<String>,
}

/// Invokes functions asynchronously: no caller waits for the answer.
#[derive(Debug, Clone)]
pub(crate) struct Invocations {
    /// The targets by the ARN of the function, which are set once the functions are known.
    pub(crate) targets: OnceLock<BTreeMap<String, Arc<AsyncTarget>>>,
    /// The rules by the id of their target, set with the targets.
    pub(crate) rules: OnceLock<BTreeMap<String, Arc<RuleTarget>>>,
    /// The outages. Lambda accepts no event for a function that has one.
    pub(crate) outages: Arc<Outages>,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) hops: TraceLog,
    /// The number of accepted events that are not done yet.
    pub(crate) under_way: Arc<AtomicUsize>,
}

impl Invocations {
    /// Returns the error with which Lambda refuses an event for the function with this ARN; `None`
    /// if Lambda accepts the event.
    fn refusal(&self, arn: &str) -> Option<&'static str> {
        self.outages.failure(arn).map(|answer| match answer {
            Failing::Failed => "ERROR_FROM_TARGET",
            Failing::Throttled => "THROTTLING",
        })
    }

    /// Invokes the function with this ARN, and returns whether the function exists.
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

    /// Retries a delivery whose first attempt failed, until Lambda accepts the event or the rule
    /// gives it up.
    async fn retry(&self, arn: &str, id: &str, event: &str) {
        let Some(rule) = self.rules.get().and_then(|rules| rules.get(id)) else { return };
        let RetryPolicy { maximum_retry_attempts, maximum_event_age_in_seconds } = rule.retries;
        let first = tokio::time::Instant::now();
        let delays = ExponentialBuilder::default()
            .with_min_delay(FIRST_DELAY)
            .with_max_delay(LONGEST_DELAY)
            .without_max_times()
            .build();
        for (retries, delay) in (0..).zip(delays) {
            let Some(error) = self.refusal(arn) else {
                self.begin(arn, event);
                return;
            };
            self.hops.line("rule", &format!("Lambda accepts no event for {arn}: {error}"));
            // An event that would be too old at its retry is not retried.
            let is_old =
                first.elapsed() + delay > Duration::from_secs(maximum_event_age_in_seconds);
            if is_old || retries >= maximum_retry_attempts {
                let exhausted =
                    if is_old { "MaximumEventAgeInSeconds" } else { "MaximumRetryAttempts" };
                self.give_up(rule, arn, event, &GivenUp { error, exhausted, retries }).await;
                return;
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Sends the event to the rule's dead-letter queue. As with EventBridge, the attributes of the
    /// message contain the reason.
    async fn give_up(&self, rule: &RuleTarget, arn: &str, event: &str, why: &GivenUp) {
        let GivenUp { error, exhausted, retries } = why;
        self.hops.line("rule", &format!("gave up an event for {arn} after {retries} retries"));
        let Some(queue) = &rule.dead_letters else { return };
        let mut send = self.sqs.send_message().queue_url(queue).message_body(event);
        for (name, value) in [
            ("RULE_ARN", rule.rule.as_str()),
            ("TARGET_ARN", arn),
            ("ERROR_CODE", error),
            ("ERROR_MESSAGE", "Lambda does not accept the event"),
            ("EXHAUSTED_RETRY_CONDITION", exhausted),
            ("RETRY_ATTEMPTS", &retries.to_string()),
        ] {
            let value =
                MessageAttributeValue::builder().data_type("String").string_value(value).build();
            let Ok(value) = value else { continue };
            send = send.message_attributes(name, value);
        }
        if let Err(error) = send.send().await {
            self.hops.line("rule", &format!("the queue did not accept the dead letter: {error}"));
        }
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
        self.validate(target)?;
        if self.refusal(&target.arn).is_none() {
            self.begin(&target.arn, event);
            return Ok(());
        }
        // The bus delivers its next event after this answer, so the answer does not wait for the
        // retries.
        let (this, arn, id, event) =
            (self.clone(), target.arn.clone(), target.id.clone(), event.to_owned());
        self.under_way.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            this.retry(&arn, &id, &event).await;
            this.under_way.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(())
    }
}

/// The reason why a rule gives up an event.
struct GivenUp {
    /// EventBridge's code of the last error.
    error: &'static str,
    /// The setting that ended the retries.
    exhausted: &'static str,
    retries: u32,
}

/// Returns the last events of the states with which a function is invoked.
fn last_events(event: &Value) -> Vec<&Value> {
    match event["states"].as_array() {
        Some(states) => states.iter().map(|state| &state["lastEvent"]).collect(),
        // The wake-up event of a subscription contains no last event.
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
                    hops.line(
                        "projector",
                        &format!("{} by {by} in {took} ms{}", name(event), age(event)),
                    );
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
        hops.line("invoke", &format!("gave up {} after {attempts} attempts", name(event)));
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
    if let Err(error) =
        sqs.send_message().queue_url(queue).message_body(message.to_string()).send().await
    {
        let function = target.function.name();
        hops.line(
            "invoke",
            &format!("the queue did not accept the dead letter of {function}: {error}"),
        );
    }
}
