//! The rules of the template's buses, and the functions that they invoke.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, Result, bail};
use serde_json::json;

use ledgerline_sam::template::{self, Event, RetryPolicy, RuleSource, Template};

use crate::{
    event_bus::EventBridge,
    host::Function,
    services::Sqs,
    sources::invocation::{AsyncTarget, Invocations},
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
        let create = json!({ "Name": bus });
        events.call("CreateEventBus", &create).await.with_context(|| format!("bus {bus}"))?;
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
    // The targets are set before any rule, because EventBridge needs them as soon as an event
    // matches.
    let _ = invocations.targets.set(targets);
    for Rule { name, rule, function } in rules_of(template) {
        let bus = &rule.event_bus_name;
        let pattern = rule.pattern.to_string();
        let put = json!({ "Name": name, "EventBusName": bus, "EventPattern": pattern });
        events.call("PutRule", &put).await.with_context(|| format!("rule {name}"))?;
        let RetryPolicy { maximum_retry_attempts, maximum_event_age_in_seconds } =
            &rule.retry_policy;
        let mut target = json!({
            "Id": "function",
            "Arn": function.arn,
            "RetryPolicy": {
                "MaximumRetryAttempts": maximum_retry_attempts,
                "MaximumEventAgeInSeconds": maximum_event_age_in_seconds,
            },
        });
        if let Some(queue) = &rule.dead_letter_config.arn {
            target["DeadLetterConfig"] = json!({ "Arn": queue });
        }
        let put = json!({ "Rule": name, "EventBusName": bus, "Targets": [target] });
        let put = events.call("PutTargets", &put).await?;
        if put["FailedEntryCount"] != 0 {
            bail!("the target of rule `{name}`: {}", put["FailedEntries"][0]["ErrorMessage"]);
        }
    }
    Ok(())
}

/// A rule of a template.
struct Rule<'a> {
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
        Event::HttpApi { .. }
        | Event::Stream(_)
        | Event::Kinesis(_)
        | Event::Queue(_)
        | Event::Schedule(_) => None,
    });
    rules.map(|(function, event, rule)| {
        let name = rule.rule_name.clone().unwrap_or_else(|| format!("{}-{event}", function.id));
        Rule { name, rule, function }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        sync::{OnceLock, atomic::AtomicUsize},
        time::{Duration, Instant},
    };

    use aws_sdk_sqs::types::Message;
    use serde_json::Value;

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
                outages: Arc::clone(&outages),
                sqs: sqs.client.clone(),
                hops: TraceLog { quiet: true },
                under_way: Arc::new(AtomicUsize::new(0)),
            });
            let events = EventBridge::new(Arc::clone(&invocations));
            connect(&template, &[function], &invocations, &sqs, &events).await.unwrap();
            Self { outages, events, sqs, host, _folder: folder }
        }

        /// Makes Lambda refuse every event for the function, for this many seconds.
        fn refuse(&self, seconds: u32, answer: Failing) {
            self.outages.begin(Outage { of: "-Greeter".into(), seconds, answer });
        }

        async fn greet(&self) {
            let entry = json!({
                "EventBusName": "bus", "Source": "test", "DetailType": "Greeted", "Detail": r#"{"who":"ada"}"#,
            });
            let put = self.events.call("PutEvents", &json!({ "Entries": [entry] })).await.unwrap();
            assert_eq!(put["FailedEntryCount"], 0);
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
            ("ERROR_MESSAGE", "the target does not accept the event"),
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

    /// A developer adds a queue as a tap. Events reach it and the function, also while one of them
    /// refuses events, and `PutEvents` succeeds.
    #[tokio::test]
    async fn a_rule_of_a_developer_stops_no_other_rule_and_no_event() {
        let running = Running::start(TEMPLATE).await;
        let rule = json!({ "Name": "tap", "EventBusName": "bus", "EventPattern": "{\"source\":[\"test\"]}" });
        running.events.call("PutRule", &rule).await.unwrap();
        let arn = |queue: &str| format!("arn:aws:sqs:us-east-1:000000000000:{queue}");
        let tap = json!({ "Id": "1", "Arn": arn("ledgerline-Failed") });
        let put = async |targets: Value| {
            let put = json!({ "Rule": "tap", "EventBusName": "bus", "Targets": targets });
            running.events.call("PutTargets", &put).await.unwrap()
        };
        // Given targets of which the stack can deliver to one, then the others are refused.
        let put = put(json!([
            tap,
            { "Id": "2", "Arn": arn("missing") },
            { "Id": "3", "Arn": "arn:aws:sns:us-east-1:000000000000:topic" },
            { "Id": "4", "Arn": tap["Arn"], "InputPath": "$.detail" },
            { "Id": "5", "Arn": tap["Arn"], "DeadLetterConfig": { "Arn": arn("missing") } },
        ]))
        .await;
        let failed: Vec<_> = put["FailedEntries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| &entry["TargetId"])
            .collect();
        assert_eq!(failed, ["2", "3", "4", "5"]);
        // When the function accepts no event, then the queue gets the event.
        running.refuse(1, Failing::Failed);
        running.greet().await;
        let tapped = running.receive("Failed", 20).await.expect("an event");
        let tapped: Value = serde_json::from_str(&tapped.body.unwrap()).unwrap();
        assert_eq!(tapped["detail"], json!({ "who": "ada" }));
        let (id, _) = running.invoked().await;
        respond(&running.host, 1, &id, "null").await;
        // When the queue accepts no message, then the function gets the event.
        let outage =
            Outage { of: "ledgerline-Failed".into(), seconds: 600, answer: Failing::Failed };
        running.outages.begin(outage);
        running.greet().await;
        let (id, _) = running.invoked().await;
        respond(&running.host, 1, &id, "null").await;
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
