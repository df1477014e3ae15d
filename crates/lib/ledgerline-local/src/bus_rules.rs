//! The rules of the template's buses, and the functions that they invoke.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, Result};
use aws_sdk_eventbridge::types::Target;

use ledgerline_sam::template::{self, ACCOUNT, Event, REGION, RuleSource, Template};

use crate::{
    host::Function,
    services::{EventBridge, Sqs},
    sources::invocation::{AsyncTarget, Invocations, RuleTarget},
};

/// Creates the buses and rules of a template, and sets the retries and dead-letter queues of
/// invocations. Both an event that the function fails at and an event that Lambda does not accept
/// have retries and a queue.
///
/// # Errors
/// When a bus or rule is wrong, or a queue has no URL.
pub(crate) async fn connect(
    template: &Template,
    functions: &[Arc<Function>],
    invocations: &Invocations,
    sqs: &Sqs,
    events: &EventBridge,
) -> Result<()> {
    let mut targets = BTreeMap::new();
    for bus in &template.buses {
        events
            .client
            .create_event_bus()
            .name(bus)
            .send()
            .await
            .with_context(|| format!("bus {bus}"))?;
    }
    for (definition, function) in template.functions.iter().zip(functions) {
        let destination = definition.invoke_config.destination_config.on_failure.as_ref();
        let on_failure =
            destination.map(|destination| sqs.queue_url(&destination.destination)).transpose()?;
        let target = AsyncTarget {
            function: Arc::clone(function),
            config: definition.invoke_config.clone(),
            on_failure,
        };
        targets.insert(definition.arn.clone(), Arc::new(target));
    }
    let mut rules = BTreeMap::new();
    for Rule { id, name, rule, .. } in rules_of(template) {
        let dead_letters = rule.dead_letter_config.arn.as_ref();
        let target = RuleTarget {
            rule: format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{}/{name}", rule.event_bus_name),
            retries: rule.retry_policy.clone(),
            dead_letters: dead_letters.map(|arn| sqs.queue_url(arn)).transpose()?,
        };
        rules.insert(id, Arc::new(target));
    }
    // The targets are set before any rule, because EventBridge needs them as soon as an event
    // matches.
    let _ = invocations.targets.set(targets);
    let _ = invocations.rules.set(rules);
    for Rule { id, name, rule, function } in rules_of(template) {
        let bus = &rule.event_bus_name;
        let put = events.client.put_rule().name(&name).event_bus_name(bus);
        let put = put.event_pattern(rule.pattern.to_string()).send();
        put.await.with_context(|| format!("rule {name}"))?;
        let target = Target::builder().id(&id).arn(&function.arn).build()?;
        let put = events.client.put_targets().rule(&name).event_bus_name(bus).targets(target);
        put.send()
            .await
            .with_context(|| format!("the targets of rule {name} cannot be created"))?;
    }
    Ok(())
}

/// A rule of a template.
struct Rule<'a> {
    /// The id of the rule's target, which no other rule has.
    id: String,
    name: String,
    rule: &'a RuleSource,
    function: &'a template::Function,
}

fn rules_of(template: &Template) -> impl Iterator<Item = Rule<'_>> {
    let events = template
        .functions
        .iter()
        .flat_map(|function| function.events.iter().map(move |event| (function, event)));
    let rules = events.filter_map(|(function, event)| match event {
        Event::Rule { name, rule } => Some((function, name, rule)),
        Event::HttpApi { .. } | Event::Stream(_) | Event::Queue(_) | Event::Schedule(_) => None,
    });
    rules.enumerate().map(|(place, (function, event, rule))| {
        let name = rule.rule_name.clone().unwrap_or_else(|| format!("{}-{event}", function.id));
        Rule { id: format!("rule-{place}"), name, rule, function }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        sync::{OnceLock, atomic::AtomicUsize},
        time::{Duration, Instant},
    };

    use aws_sdk_eventbridge::types::PutEventsRequestEntry;
    use aws_sdk_sqs::types::Message;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        host::{
            Host,
            tests::{fail, next, respond, waiting_as},
        },
        outages::{Failing, Outage, Outages},
        trace_log::TraceLog,
    };

    const TEMPLATE: &str = "
Resources:
  Bus: { Type: AWS::Events::EventBus, Properties: { Name: bus } }
  Undelivered: { Type: AWS::SQS::Queue, Properties: { MessageRetentionPeriod: 1209600 } }
  Failed: { Type: AWS::SQS::Queue, Properties: { MessageRetentionPeriod: 1209600 } }
  Greeter:
    Type: AWS::Serverless::Function
    Metadata: { BuildProperties: { Binary: f } }
    Properties:
      Timeout: 3
      EventInvokeConfig:
        MaximumRetryAttempts: 1
        DestinationConfig: { OnFailure: { Type: SQS, Destination: !GetAtt Failed.Arn } }
      Events:
        Greeted:
          Type: EventBridgeRule
          Properties:
            EventBusName: !Ref Bus
            Pattern: { detail-type: [Greeted] }
            RetryPolicy: { MaximumRetryAttempts: 10, MaximumEventAgeInSeconds: 86400 }
            DeadLetterConfig: { Arn: !GetAtt Undelivered.Arn }
";

    /// The services and the function of a template.
    struct Running {
        outages: Arc<Outages>,
        events: EventBridge,
        sqs: Arc<Sqs>,
        host: Arc<Host>,
        _folder: tempfile::TempDir,
    }

    impl Running {
        async fn start(template: &str) -> Self {
            let source = template::Source::parse(template, Path::new("template.yaml")).unwrap();
            let sqs = Arc::new(Sqs::start().await.unwrap());
            let template = source.template(&BTreeMap::new(), &sqs.url).unwrap();
            sqs.create_queues(&template.queues).await.unwrap();
            let arn = &template.functions[0].arn;
            let (host, function, folder) = waiting_as(arn, Duration::from_secs(60)).await;
            let outages = Arc::<Outages>::default();
            let invocations = Arc::new(Invocations {
                targets: OnceLock::new(),
                rules: OnceLock::new(),
                outages: Arc::clone(&outages),
                sqs: sqs.client.clone(),
                hops: TraceLog { quiet: true },
                under_way: Arc::new(AtomicUsize::new(0)),
            });
            let events = EventBridge::start(Arc::clone(&invocations) as _).await.unwrap();
            connect(&template, &[function], &invocations, &sqs, &events).await.unwrap();
            Self { outages, events, sqs, host, _folder: folder }
        }

        /// Makes Lambda refuse every event for the function, for this many seconds.
        fn refuse(&self, seconds: u32, answer: Failing) {
            self.outages.begin(Outage { of: "-Greeter".into(), seconds, answer });
        }

        async fn greet(&self) {
            let entry = PutEventsRequestEntry::builder().event_bus_name("bus").source("test");
            let entry = entry.detail_type("Greeted").detail(r#"{"who":"ada"}"#).build();
            let put = self.events.client.put_events().entries(entry).send().await.unwrap();
            assert_eq!(put.failed_entry_count(), 0);
        }

        /// Waits for an invocation in place of the function's instance. Returns the id and the
        /// event of the invocation.
        async fn invoked(&self) -> (String, Value) {
            // The process starts with the first invocation, and is unknown until then.
            for _ in 0..2_000 {
                if let Some((id, event)) = next(&self.host, 1).await.unwrap() {
                    return (id, serde_json::from_slice(&event).unwrap());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("the function is not invoked");
        }

        async fn receive(&self, queue: &str, wait: i32) -> Option<Message> {
            let url = self.sqs.client.get_queue_url().queue_name(format!("ledgerline-{queue}"));
            let url = url.send().await.unwrap().queue_url.unwrap();
            let receive = self.sqs.client.receive_message().queue_url(url).wait_time_seconds(wait);
            receive.message_attribute_names("All").send().await.unwrap().messages?.pop()
        }

        /// Returns the attributes that EventBridge gives to the dead letter, and the event.
        async fn undelivered(&self) -> (BTreeMap<String, String>, Value) {
            let letter = self.receive("Undelivered", 20).await.expect("a dead letter");
            let attributes = letter.message_attributes.unwrap().into_iter();
            let attributes = attributes.map(|(name, value)| (name, value.string_value.unwrap()));
            (attributes.collect(), serde_json::from_str(&letter.body.unwrap()).unwrap())
        }
    }

    #[tokio::test]
    async fn a_delivery_that_lambda_refuses_is_retried_until_it_succeeds() {
        // Given a function for which Lambda accepts no event for a second,
        let running = Running::start(TEMPLATE).await;
        let begun = Instant::now();
        running.refuse(1, Failing::Failed);
        // when an event matches the rule,
        running.greet().await;
        // then the function gets the event after that second, and the dead-letter queue does not.
        let (id, event) = running.invoked().await;
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(event["detail"], json!({ "who": "ada" }));
        respond(&running.host, 1, &id, "null").await;
        assert!(running.receive("Undelivered", 0).await.is_none());
    }

    #[tokio::test]
    async fn a_delivery_is_given_up_into_the_dead_letter_queue_after_the_attempts_of_its_rule() {
        let template = TEMPLATE.replace("MaximumRetryAttempts: 10", "MaximumRetryAttempts: 2");
        let running = Running::start(&template).await;
        running.refuse(600, Failing::Throttled);
        running.greet().await;
        let (attributes, event) = running.undelivered().await;
        let expected = [
            ("ERROR_CODE", "THROTTLING"),
            ("ERROR_MESSAGE", "Lambda does not accept the event"),
            ("EXHAUSTED_RETRY_CONDITION", "MaximumRetryAttempts"),
            ("RETRY_ATTEMPTS", "2"),
            ("RULE_ARN", "arn:aws:events:us-east-1:000000000000:rule/bus/Greeter-Greeted"),
            ("TARGET_ARN", "arn:aws:lambda:us-east-1:000000000000:function:ledgerline-Greeter"),
        ];
        assert_eq!(
            attributes,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        );
        assert_eq!(
            (&event["detail-type"], &event["detail"]["who"]),
            (&json!("Greeted"), &json!("ada"))
        );
    }

    #[tokio::test]
    async fn a_delivery_is_given_up_into_the_dead_letter_queue_at_the_age_of_its_rule() {
        let template =
            TEMPLATE.replace("MaximumEventAgeInSeconds: 86400", "MaximumEventAgeInSeconds: 1");
        let running = Running::start(&template).await;
        running.refuse(600, Failing::Failed);
        running.greet().await;
        let (attributes, _) = running.undelivered().await;
        assert_eq!(attributes["EXHAUSTED_RETRY_CONDITION"], "MaximumEventAgeInSeconds");
        assert_eq!(attributes["ERROR_CODE"], "ERROR_FROM_TARGET");
        assert!((1..10).contains(&attributes["RETRY_ATTEMPTS"].parse().unwrap()), "{attributes:?}");
    }

    /// For EventBridge, an event is delivered as soon as Lambda accepts it. Lambda retries an event
    /// that the function fails at, and then sends it to the function's own queue.
    #[tokio::test]
    async fn an_event_that_the_function_fails_at_is_retried_by_lambda_and_not_by_the_rule() {
        // Given a function that fails at an event once, when Lambda retries, then the function
        // succeeds.
        let running = Running::start(TEMPLATE).await;
        running.greet().await;
        let (id, event) = running.invoked().await;
        fail(&running.host, 1, &id).await;
        let (id, again) = running.invoked().await;
        assert_eq!(event, again);
        respond(&running.host, 1, &id, "null").await;

        // Given a function that always fails, when the retry of `EventInvokeConfig` is over, then
        // the event is in the queue of the function.
        running.greet().await;
        for _ in 0..2 {
            let (id, _) = running.invoked().await;
            fail(&running.host, 1, &id).await;
        }
        let letter = running.receive("Failed", 20).await.expect("a dead letter");
        let letter: Value = serde_json::from_str(&letter.body.unwrap()).unwrap();
        assert_eq!(letter["requestContext"]["approximateInvokeCount"], 2);
        assert_eq!(letter["requestPayload"]["detail"]["who"], "ada");
        for queue in ["Failed", "Undelivered"] {
            assert!(running.receive(queue, 0).await.is_none(), "{queue} has another dead letter");
        }
    }
}
