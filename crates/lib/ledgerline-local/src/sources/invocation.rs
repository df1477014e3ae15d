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

use aws_sdk_sqs::types::MessageAttributeValue;
use backon::{BackoffBuilder, ExponentialBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use ledgerline_sam::template::{ACCOUNT, DeadLetterConfig, InvokeConfig, REGION, RetryPolicy};

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

/// EventBridge's code of an error: there is no such target.
const NO_RESOURCE: &str = "NO_RESOURCE";

/// A target of a rule: a function or a standard queue. The stack cannot deliver to a target with
/// other fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(crate) struct RuleTarget {
    /// The id, which no other target of the rule has.
    pub(crate) id: String,
    pub(crate) arn: String,
    #[serde(default)]
    pub(crate) retry_policy: RetryPolicy,
    #[serde(default)]
    pub(crate) dead_letter_config: DeadLetterConfig,
}

/// An event for a target of a rule.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The ARN of the rule.
    pub(crate) rule: String,
    pub(crate) target: RuleTarget,
    pub(crate) event: String,
}

/// Invokes functions asynchronously: no caller waits for the answer.
#[derive(Debug)]
pub(crate) struct Invocations {
    /// The targets by the ARN of the function, which are set once the functions are known.
    pub(crate) targets: OnceLock<BTreeMap<String, Arc<AsyncTarget>>>,
    /// The outages. Lambda accepts no event for a function that has one.
    pub(crate) outages: Arc<Outages>,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) hops: TraceLog,
    /// The number of accepted events that are not done yet.
    pub(crate) under_way: Arc<AtomicUsize>,
}

impl Invocations {
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

    /// Delivers an event in the background. As with EventBridge, a delivery that fails is retried
    /// by the policy of its target.
    pub(crate) fn deliver(self: &Arc<Self>, delivery: Delivery) {
        let invocations = Arc::clone(self);
        self.under_way.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            invocations.deliver_or_give_up(&delivery).await;
            invocations.under_way.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Returns the reason why the stack cannot deliver to a target; `None` if it can.
    pub(crate) async fn reject(&self, target: &RuleTarget) -> Option<String> {
        let is_function = self.targets.get()?.contains_key(&target.arn);
        if !is_function && self.queue_url(&target.arn).await.is_none() {
            let arn = &target.arn;
            return Some(format!(
                "`{arn}` is neither a function nor a standard queue of this stack"
            ));
        }
        let queue = target.dead_letter_config.arn.as_ref()?;
        let url = self.queue_url(queue).await;
        url.is_none().then(|| format!("`{queue}` is no standard queue of this stack"))
    }

    /// Returns the URL of the standard queue with this ARN, if the stack has it.
    async fn queue_url(&self, arn: &str) -> Option<String> {
        let name = arn.strip_prefix(&format!("arn:aws:sqs:{REGION}:{ACCOUNT}:"))?;
        if name.ends_with(".fifo") {
            return None;
        }
        self.sqs.get_queue_url().queue_name(name).send().await.ok()?.queue_url
    }

    /// Makes one attempt at a delivery.
    ///
    /// # Errors
    /// EventBridge's code of the error.
    async fn attempt(&self, target: &RuleTarget, event: &str) -> Result<(), &'static str> {
        match self.outages.failure(&target.arn) {
            Some(Failing::Failed) => return Err("ERROR_FROM_TARGET"),
            Some(Failing::Throttled) => return Err("THROTTLING"),
            None if self.begin(&target.arn, event) => return Ok(()),
            None => {}
        }
        let url = self.queue_url(&target.arn).await.ok_or(NO_RESOURCE)?;
        let sent = self.sqs.send_message().queue_url(url).message_body(event).send().await;
        sent.map(|_| ()).map_err(|_| "SDK_CLIENT_ERROR")
    }

    async fn deliver_or_give_up(&self, delivery: &Delivery) {
        let Delivery { target, event, .. } = delivery;
        let RetryPolicy { maximum_retry_attempts, maximum_event_age_in_seconds } =
            target.retry_policy;
        let first = tokio::time::Instant::now();
        let delays = ExponentialBuilder::default()
            .with_min_delay(FIRST_DELAY)
            .with_max_delay(LONGEST_DELAY)
            .without_max_times()
            .build();
        for (retries, delay) in (0..).zip(delays) {
            let Err(error) = self.attempt(target, event).await else { return };
            self.hops.line("rule", &format!("{} accepts no event: {error}", target.arn));
            // An event that would be too old at its retry is not retried. Nor is an event for a
            // target that does not exist.
            let is_old =
                first.elapsed() + delay > Duration::from_secs(maximum_event_age_in_seconds);
            if is_old || error == NO_RESOURCE || retries >= maximum_retry_attempts {
                let exhausted =
                    if is_old { "MaximumEventAgeInSeconds" } else { "MaximumRetryAttempts" };
                self.give_up(delivery, &GivenUp { error, exhausted, retries }).await;
                return;
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Sends the event to the target's dead-letter queue. As with EventBridge, the attributes of
    /// the message contain the reason. Without a queue, the event is lost.
    async fn give_up(&self, delivery: &Delivery, why: &GivenUp) {
        let GivenUp { error, exhausted, retries } = why;
        let Delivery { rule, target, event } = delivery;
        let RuleTarget { arn, .. } = target;
        self.hops.always(
            "rule",
            &format!("{rule} gave up an event for {arn} after {retries} retries: {error}"),
        );
        let Some(queue) = &target.dead_letter_config.arn else { return };
        let Some(queue) = self.queue_url(queue).await else { return };
        let mut send = self.sqs.send_message().queue_url(queue).message_body(event);
        for (name, value) in [
            ("RULE_ARN", rule.as_str()),
            ("TARGET_ARN", arn),
            ("ERROR_CODE", error),
            ("ERROR_MESSAGE", "the target does not accept the event"),
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
