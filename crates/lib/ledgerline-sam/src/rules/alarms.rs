//! Checks rule 11: each failure has an alarm that can go off, and each alarm is on a metric of the
//! template and has an entry in the runbook.
//!
//! A metric is a text: namespace, name, and dimensions as `Name=Value` in alphabetical order. A
//! value is a logical id or a text.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Resource, Rules};
use crate::lookup::{COMMITS, list, logical_id};

/// The filter pattern of the lines that Lambda logs about failed and timed-out invocations. If
/// `SystemLogLevel` is `WARN`, Lambda logs no other reports (Lambda Developer Guide, "System log
/// level event mapping").
const FAILED: &str = r#"{ $.type = "platform.report" && $.record.status != "success" }"#;
/// Namespaces of AWS, each with a dimension and the type of the resource that it names.
const EMITTERS: [[&str; 3]; 5] = [
    ["AWS/ApiGateway", "ApiId", "AWS::Serverless::HttpApi"],
    ["AWS/DynamoDB", "TableName", "AWS::DynamoDB::Table"],
    ["AWS/Events", "EventBusName", "AWS::Events::EventBus"],
    ["AWS/Lambda", "FunctionName", "AWS::Serverless::Function"],
    ["AWS/SQS", "QueueName", "AWS::SQS::Queue"],
];

pub(super) fn check(rules: &mut Rules<'_>, runbook: &str) {
    for (id, metric) in vital_metrics(rules) {
        check_metric(rules, id, &metric);
    }
    let entries = runbook.split("\n## ").filter_map(|entry| entry.split_once('\n'));
    let entries = entries.map(|(heading, body)| (heading.to_lowercase().replace(' ', "-"), body));
    let entries: Vec<_> = entries.collect();
    for (id, alarm) in rules.resources("AWS::CloudWatch::Alarm") {
        for metric in metrics(alarm) {
            let message = format!("rule 11: nothing in the template emits {metric}: name another");
            rules.require(exists(rules, &metric), id, "MetricName", message);
        }
        let link = text(&alarm["AlarmDescription"]).split_once("${RunbookUrl}#");
        let anchor = link.map_or("", |(_, anchor)| anchor);
        let entry = entries.iter().find(|(known, _)| known == anchor);
        let is_entry = entry.is_some_and(|(_, body)| body.trim_start().starts_with("```sh\n"));
        let message = format!(
            "rule 11: it links to {anchor}: write `See ${{RunbookUrl}}#<entry>`, and an entry of the runbook that begins with commands: ```sh"
        );
        rules.require(is_entry, id, "AlarmDescription", message);
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
        let dimension = |it: &Value| format!("{}={}", text(&it["Name"]), text(&it["Value"]));
        let dimensions: BTreeSet<_> = list(&it["Dimensions"]).into_iter().map(dimension).collect();
        let names = ["Namespace", "MetricName"].map(|name| text(&it[name]).to_owned());
        names.into_iter().chain(dimensions).collect::<Vec<_>>().join(" ")
    };
    [alarm].into_iter().chain(parts).filter(|it| !it["MetricName"].is_null()).map(metric).collect()
}

/// Whether a resource of the template emits a metric. Any other metric of AWS may be there.
fn exists(rules: &Rules<'_>, metric: &str) -> bool {
    let words: Vec<_> = metric.split(' ').collect();
    let value = |name: &str| words.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    let own = &rules.json["Globals"]["Function"]["Environment"]["Variables"]["METRICS_NAMESPACE"];
    let emitter = EMITTERS.iter().find(|[namespace, ..]| *namespace == words[0]);
    if let Some([_, dimension, kind]) = emitter {
        return value(dimension).is_none_or(|id| rules.kind(id) == *kind);
    } else if words[0] == text(own) {
        return value("Function").is_some_and(|id| rules.functions().any(|(it, _)| it == id));
    }
    words[0].starts_with("AWS/") || filters(rules).any(|(_, it)| filter_metric(it) == metric)
}

fn filters<'a>(rules: &Rules<'a>) -> impl Iterator<Item = Resource<'a>> + use<'a> {
    rules.resources("AWS::Logs::MetricFilter")
}

/// The metric of a filter of a log.
fn filter_metric(filter: &Value) -> String {
    let counted = &filter["MetricTransformations"][0];
    ["MetricNamespace", "MetricName"].map(|name| text(&counted[name])).join(" ")
}

/// Checks that an alarm monitors a metric of a resource. One effective alarm is enough. Others on
/// the same metric may be of any kind.
fn check_metric(rules: &mut Rules<'_>, id: &str, metric: &str) {
    let alarms = rules.resources("AWS::CloudWatch::Alarm");
    let alarms = alarms.filter(|(_, alarm)| metrics(alarm).iter().any(|it| it == metric));
    let alarms: Vec<_> = alarms.map(|(id, alarm)| (id, weakness(metric, alarm))).collect();
    let message = format!("rule 11: no alarm monitors {metric}: add an AWS::CloudWatch::Alarm");
    rules.require(!alarms.is_empty(), id, "", message);
    let is_one = alarms.iter().any(|(_, weakness)| weakness.is_none());
    for (id, weakness) in alarms {
        let (key, remedy) = weakness.unwrap_or_default();
        let message = format!("rule 11: it cannot go off, or notifies no operator: write {remedy}");
        rules.require(is_one, id, key, message);
    }
}

/// The reason why an alarm on a metric is useless: a property, and its remedy.
fn weakness(metric: &str, alarm: &Value) -> Option<(&'static str, String)> {
    let name = metric.split(' ').nth(1).unwrap_or_default();
    // A delay of more than an hour must always raise an alarm.
    let most = match name {
        "5xx" | "Count" => 0.5,
        "ApproximateAgeOfOldestMessage" => 3_600.0,
        "IteratorAge" => 3_600_000.0,
        _ => 10.0,
    };
    // A data point of a counter is one event. So the maximum is at most 1 for any number of events.
    let is_level = name.starts_with("Approximate") || name.ends_with("Age");
    let allowed: &[&str] = if is_level { &["Sum", "Maximum"] } else { &["Sum"] };
    // Failed and throttled calls are retried. The application decides about its own metrics.
    let can_wait = ["Errors", "Throttles"].contains(&name) || !metric.starts_with("AWS/");
    let topics: &[&str] = if can_wait { &["AlarmTopic", "NoticeTopic"] } else { &["AlarmTopic"] };
    let parts = list(&alarm["Metrics"]).into_iter().map(|part| &part["MetricStat"]);
    let parts: Vec<_> = parts.chain([alarm]).collect();
    let periods = parts.iter().filter_map(|part| part["Period"].as_f64());
    let seconds = periods.fold(60.0, f64::max) * alarm["EvaluationPeriods"].as_f64().unwrap_or(1.0);
    let statistics = ["Stat", "Statistic", "ExtendedStatistic"].into_iter();
    let statistics = statistics.flat_map(|key| parts.iter().map(move |part| text(&part[key])));
    let mut others = statistics.filter(|it| !it.is_empty() && !allowed.contains(it));
    let notifies = |action: &&Value| topics.contains(&text(action));
    if !text(&alarm["ComparisonOperator"]).starts_with("GreaterThan") {
        Some(("ComparisonOperator", "GreaterThanThreshold".to_owned()))
    } else if alarm["Threshold"].as_f64().is_none_or(|threshold| threshold > most) {
        Some(("Threshold", format!("a Threshold of at most {most}")))
    } else if others.next().is_some() {
        Some(("Statistic", allowed.join(" or ")))
    } else if seconds > 900.0 {
        let remedy = "a Period and EvaluationPeriods of at most 900 s together";
        Some(("EvaluationPeriods", remedy.to_owned()))
    } else if alarm["ActionsEnabled"] == false || !list(&alarm["AlarmActions"]).iter().any(notifies)
    {
        Some(("AlarmActions", format!("AlarmActions: [!Ref {}]", topics.join("] or [!Ref "))))
    } else {
        None
    }
}

/// The metrics that must have an alarm, each with the logical id of the resource that emits it.
fn vital_metrics<'a>(rules: &mut Rules<'a>) -> Vec<(&'a str, String)> {
    // An alarm for each function would cost a dollar a month for ten functions. The log names the
    // function. Throttles are not in the log, and concurrency belongs to the account. The errors of
    // the fanout stop a canary deployment.
    let group = &rules.json["Globals"]["Function"]["LoggingConfig"]["LogGroup"];
    let failed = filters(rules)
        .filter(|(_, it)| it["LogGroupName"] == *group && it["FilterPattern"] == FAILED);
    let mut watched: Vec<_> = failed.map(|(id, filter)| (id, filter_metric(filter))).collect();
    let message = format!(
        "rule 11: no filter counts failed invocations: add an AWS::Logs::MetricFilter of this log with the FilterPattern {FAILED}"
    );
    rules.require(!watched.is_empty(), text(group), "", message);
    let mut watch = |id: &'a str, metric: &str| watched.push((id, format!("{metric}{id}")));
    watch("FanoutFunction", "AWS/Lambda Errors FunctionName=");
    watch(COMMITS, "AWS/DynamoDB WriteThrottleEvents TableName=");
    for (id, _) in rules.resources("AWS::Serverless::HttpApi") {
        // The alarm is on the share of 5xx responses.
        watch(id, "AWS/ApiGateway 5xx ApiId=");
        watch(id, "AWS/ApiGateway Count ApiId=");
    }
    let (mut letters, mut rest) = (BTreeSet::new(), Vec::new());
    let queues: Vec<_> = rules.resources("AWS::SQS::Queue").collect();
    letters.extend(
        queues.iter().filter_map(|(_, it)| logical_id(&it["RedrivePolicy"]["deadLetterTargetArn"])),
    );
    for (id, function) in rules.functions() {
        let streams = rules.events(id, "DynamoDB");
        streams.iter().for_each(|_| watch(id, "AWS/Lambda IteratorAge FunctionName="));
        let sources = streams.into_iter().map(|(_, event)| event);
        for source in sources.chain(function.get("EventInvokeConfig")) {
            let queue = rules.dead_letter_queue(source);
            queue
                .iter()
                .for_each(|_| watch(id, "AWS/Lambda DestinationDeliveryFailures FunctionName="));
            letters.extend(queue);
        }
        for (_, event) in rules.events(id, "EventBridgeRule") {
            // With the rule's dimension alone, the metric is that of a rule of the default bus.
            let (bus, rule) = (text(&event["EventBusName"]), text(&event["RuleName"]));
            rest.push((
                id,
                format!("AWS/Events FailedInvocations EventBusName={bus} RuleName={rule}"),
            ));
        }
        for queue in
            rules.events(id, "SQS").into_iter().filter_map(|(_, it)| logical_id(&it["Queue"]))
        {
            letters.remove(queue);
            if *rules.property(queue, "FifoQueue") == true {
                watch(queue, "AWS/SQS ApproximateAgeOfOldestMessage QueueName=");
                continue;
            }
            // The age of the oldest message leaves out messages that were received three times,
            // except in a FIFO queue (Amazon SQS Developer Guide, "Available CloudWatch metrics").
            watch(queue, "AWS/SQS ApproximateNumberOfMessagesNotVisible QueueName=");
            letters.insert(queue);
        }
    }
    for queue in letters {
        watch(queue, "AWS/SQS ApproximateNumberOfMessagesVisible QueueName=");
    }
    rest.push(("FanoutFunction", "AWS/Lambda Throttles".to_owned()));
    [watched, rest].concat()
}
