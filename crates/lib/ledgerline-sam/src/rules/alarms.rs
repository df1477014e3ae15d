//! Checks rule 11: each failure has an alarm that can go off, and each alarm is on a metric of the
//! template and has an entry in the runbook.
//!
//! A metric is a text: namespace, name, and dimensions as `Name=Value` in alphabetical order. A
//! value is a logical id or a text.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Rules;
use crate::lookup::{list, logical_id};

/// The filter pattern of the lines that Lambda logs about failed and timed-out invocations. If
/// `SystemLogLevel` is `WARN`, Lambda logs no other reports (Lambda Developer Guide, "System log
/// level event mapping").
const FAILED: &str = r#"{ $.type = "platform.report" && $.record.status != "success" }"#;
/// The metrics of AWS with a dimension whose value is a resource of the template: namespace,
/// dimension, type of resource, and names.
const KNOWN: [&str; 5] = [
    "AWS/ApiGateway ApiId AWS::Serverless::HttpApi 4xx 5xx Count IntegrationLatency Latency",
    "AWS/DynamoDB TableName AWS::DynamoDB::Table ConsumedReadCapacityUnits \
        ConsumedWriteCapacityUnits ReadThrottleEvents SystemErrors WriteThrottleEvents",
    "AWS/Events EventBusName AWS::Events::EventBus FailedInvocations Invocations ThrottledRules",
    "AWS/Lambda FunctionName AWS::Serverless::Function AsyncEventAge AsyncEventsDropped Errors \
        ConcurrentExecutions DestinationDeliveryFailures Duration Invocations IteratorAge Throttles",
    "AWS/SQS QueueName AWS::SQS::Queue ApproximateAgeOfOldestMessage NumberOfMessagesSent \
        ApproximateNumberOfMessagesNotVisible ApproximateNumberOfMessagesVisible",
];
/// The highest thresholds. A delay of more than an hour must always raise an alarm.
const FAILURES: f64 = 10.0;
const SECONDS: f64 = 3_600.0;
const MILLISECONDS: f64 = 3_600_000.0;
/// The longest time that an alarm may take to go off, in seconds.
const LONGEST: f64 = 900.0;

pub(super) fn check(rules: &mut Rules<'_>, runbook: &str) {
    check_api_and_log(rules);
    check_functions(rules);
    let entries = runbook.split("\n## ").skip(1).filter_map(|entry| entry.split_once('\n'));
    let entries: Vec<_> =
        entries.map(|(heading, body)| (heading.to_lowercase().replace(' ', "-"), body)).collect();
    for (id, alarm) in rules.resources("AWS::CloudWatch::Alarm") {
        for metric in metrics(alarm) {
            let message = format!(
                "rule 11: nothing in the template emits {metric}: name a metric that exists"
            );
            rules.require(exists(rules, &metric), id, "MetricName", message);
        }
        let link = text(&alarm["AlarmDescription"]).split_once("${RunbookUrl}#");
        let anchor = link.map_or("", |(_, anchor)| anchor);
        let entry = entries.iter().find(|(known, _)| known == anchor);
        rules.require(entry.is_some(), id, "AlarmDescription", format!("rule 11: it links to {anchor}, which is not in the runbook: write `See ${{RunbookUrl}}#<entry>` at its end, and the entry"));
        let commands = entry.is_none_or(|(_, body)| body.trim_start().starts_with("```sh\n"));
        let message =
            format!("rule 11: the entry {anchor} of the runbook must begin with commands: ```sh");
        rules.require(commands, id, "AlarmDescription", message);
    }
}

/// The logical id that a value refers to, or its text, or that of its substitution.
fn text(value: &Value) -> &str {
    logical_id(value).or(value["Fn::Sub"].as_str()).or(value.as_str()).unwrap_or_default()
}

/// The metrics of an alarm: its own, and those of its formula.
fn metrics(alarm: &Value) -> Vec<String> {
    let parts = list(&alarm["Metrics"]).into_iter().map(|part| &part["MetricStat"]["Metric"]);
    let metric = |it: &Value| {
        let dimensions = list(&it["Dimensions"]).into_iter();
        let dimension = |it: &Value| format!("{}={}", text(&it["Name"]), text(&it["Value"]));
        let dimensions: BTreeSet<_> = dimensions.map(dimension).collect();
        let names = [&it["Namespace"], &it["MetricName"]].map(|name| text(name).to_owned());
        names.into_iter().chain(dimensions).collect::<Vec<_>>().join(" ")
    };
    [alarm].into_iter().chain(parts).filter(|it| !it["MetricName"].is_null()).map(metric).collect()
}

/// Whether a resource of the template emits a metric. Any other metric of AWS may be there.
fn exists(rules: &Rules<'_>, metric: &str) -> bool {
    let words: Vec<_> = metric.split(' ').collect();
    let value = |name: &str| words.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    let own = &rules.json["Globals"]["Function"]["Environment"]["Variables"]["METRICS_NAMESPACE"];
    for known in KNOWN.map(|known| known.split(' ').collect::<Vec<_>>()) {
        if known[0] == words[0] {
            return known[3..].contains(&words[1])
                && value(known[1]).is_none_or(|id| rules.kind(id) == known[2]);
        }
    }
    if words[0] == text(own) {
        return value("Function").is_some_and(|id| rules.functions().any(|(it, _)| it == id));
    }
    let filters = rules.resources("AWS::Logs::MetricFilter");
    let mut counted = filters.map(|(_, filter)| &filter["MetricTransformations"][0]);
    words[0].starts_with("AWS/")
        || counted.any(|it| [&it["MetricNamespace"], &it["MetricName"]].map(text) == *words)
}

/// Checks that an alarm monitors a metric of a resource. One effective alarm is enough. Others on
/// the same metric may be of any kind.
fn monitored(rules: &mut Rules<'_>, id: &str, metric: &str, most: f64) {
    let alarms = rules.resources("AWS::CloudWatch::Alarm");
    let of_it = alarms.filter(|(_, alarm)| metrics(alarm).iter().any(|it| it == metric));
    let of_it: Vec<_> = of_it.map(|(id, alarm)| (id, weakness(metric, most, alarm))).collect();
    let message = format!("rule 11: no alarm monitors {metric}: add an AWS::CloudWatch::Alarm");
    rules.require(!of_it.is_empty(), id, "", message);
    for (id, weakness) in &of_it {
        let is_one = of_it.iter().any(|(_, weakness)| weakness.is_none());
        let (key, remedy) = weakness.clone().unwrap_or_default();
        let message = format!("rule 11: it cannot go off, or notifies no operator: write {remedy}");
        rules.require(is_one, id, key, message);
    }
}

/// The reason why an alarm on a metric is useless: a property, and its remedy.
fn weakness(metric: &str, most: f64, alarm: &Value) -> Option<(&'static str, String)> {
    let parts: Vec<_> = list(&alarm["Metrics"])
        .iter()
        .map(|part| &part["MetricStat"])
        .filter(|it| !it.is_null())
        .collect();
    let periods = parts.iter().map(|part| &part["Period"]).chain([&alarm["Period"]]);
    let period = periods.filter_map(Value::as_f64).fold(60.0, f64::max);
    let own = alarm["Metrics"].is_null().then_some(&alarm["Statistic"]);
    let mut statistics = parts.iter().map(|part| &part["Stat"]).chain(own);
    // A data point of a counter is one event. So the maximum is at most 1 for any number of events.
    let is_level = metric.contains(" Approximate") || metric.contains("Age ");
    let allowed: &[&str] = if is_level { &["Sum", "Maximum"] } else { &["Sum"] };
    // Throttled calls are retried. The application decides about its own metrics.
    let can_wait = metric.contains("Throttles") || !metric.starts_with("AWS/");
    let topics: &[&str] = if can_wait { &["AlarmTopic", "NoticeTopic"] } else { &["AlarmTopic"] };
    let notifies = |action: &&Value| topics.contains(&text(action));
    if !text(&alarm["ComparisonOperator"]).starts_with("GreaterThan") {
        Some(("ComparisonOperator", "GreaterThanThreshold".to_owned()))
    } else if alarm["Threshold"].as_f64().is_none_or(|threshold| threshold > most) {
        Some(("Threshold", format!("a Threshold of at most {most}")))
    } else if !statistics.all(|statistic| allowed.contains(&text(statistic))) {
        Some(("Statistic", allowed.join(" or ")))
    } else if period * alarm["EvaluationPeriods"].as_f64().unwrap_or(1.0) > LONGEST {
        Some((
            "EvaluationPeriods",
            format!("Period times EvaluationPeriods of at most {LONGEST} s"),
        ))
    } else if !list(&alarm["AlarmActions"]).iter().any(notifies) || alarm["ActionsEnabled"] == false
    {
        Some(("AlarmActions", format!("AlarmActions: [!Ref {}]", topics.join("] or [!Ref "))))
    } else {
        None
    }
}

fn check_api_and_log(rules: &mut Rules<'_>) {
    for (id, _) in rules.resources("AWS::Serverless::HttpApi") {
        // The alarm is on the share of 5xx responses.
        for name in ["5xx", "Count"] {
            monitored(rules, id, &format!("AWS/ApiGateway {name} ApiId={id}"), 0.5);
        }
    }
    // An alarm for each function would cost a dollar a month for ten functions. The log names the
    // function. Throttles are not in the log, and concurrency belongs to the account.
    let group = &rules.json["Globals"]["Function"]["LoggingConfig"]["LogGroup"];
    let is_of_failures = |(_, filter): &(&str, &Value)| {
        filter["LogGroupName"] == *group && filter["FilterPattern"] == FAILED
    };
    let filters = rules.resources("AWS::Logs::MetricFilter").filter(is_of_failures);
    let filters: Vec<_> = filters.collect();
    rules.require(!filters.is_empty(), text(group), "", format!("rule 11: no filter counts failed invocations: add an AWS::Logs::MetricFilter of this log with the FilterPattern {FAILED}"));
    for (id, filter) in filters {
        let counted = &filter["MetricTransformations"][0];
        let metric = [&counted["MetricNamespace"], &counted["MetricName"]].map(text).join(" ");
        monitored(rules, id, &metric, FAILURES);
    }
    monitored(rules, "FanoutFunction", "AWS/Lambda Throttles", FAILURES);
}

fn check_functions(rules: &mut Rules<'_>) {
    let (mut letters, mut read) = (BTreeSet::new(), BTreeSet::new());
    for (id, function) in rules.functions() {
        let streams = rules.events(id, "DynamoDB");
        for (_, event) in rules.events(id, "SQS") {
            let queue = text(&event["Queue"]);
            read.insert(queue);
            let age = format!("AWS/SQS ApproximateAgeOfOldestMessage QueueName={queue}");
            match *rules.property(queue, "FifoQueue") == true {
                true => monitored(rules, queue, &age, SECONDS),
                // The age of the oldest message leaves out messages that were received three times,
                // except in a FIFO queue (Amazon SQS Developer Guide, "Available CloudWatch
                // metrics").
                false => ["Visible", "NotVisible"].iter().for_each(|kind| {
                    let number =
                        format!("AWS/SQS ApproximateNumberOfMessages{kind} QueueName={queue}");
                    monitored(rules, queue, &number, FAILURES);
                }),
            }
        }
        for (_, event) in rules.events(id, "EventBridgeRule") {
            // With the rule's dimension alone, the metric is that of a rule of the default bus.
            let (bus, rule) = (text(&event["EventBusName"]), text(&event["RuleName"]));
            let failures =
                format!("AWS/Events FailedInvocations EventBusName={bus} RuleName={rule}");
            monitored(rules, id, &failures, FAILURES);
        }
        for _ in &streams {
            monitored(
                rules,
                id,
                &format!("AWS/Lambda IteratorAge FunctionName={id}"),
                MILLISECONDS,
            );
        }
        let sources = streams.into_iter().map(|(_, event)| event);
        let destinations = sources.chain(function.get("EventInvokeConfig"));
        let destinations =
            destinations.map(|it| &it["DestinationConfig"]["OnFailure"]["Destination"]);
        for queue in destinations.filter_map(logical_id) {
            letters.insert(queue);
            let failures = format!("AWS/Lambda DestinationDeliveryFailures FunctionName={id}");
            monitored(rules, id, &failures, FAILURES);
        }
    }
    let queues = rules.resources("AWS::SQS::Queue").map(|(_, it)| &it["RedrivePolicy"]);
    letters.extend(queues.filter_map(|redrive| logical_id(&redrive["deadLetterTargetArn"])));
    for queue in letters.difference(&read) {
        let number = format!("AWS/SQS ApproximateNumberOfMessagesVisible QueueName={queue}");
        monitored(rules, queue, &number, FAILURES);
    }
}
