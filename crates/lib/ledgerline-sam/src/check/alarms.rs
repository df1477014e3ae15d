//! Checks rule 11: every possible failure has an alarm that can go off, and every alarm has an
//! entry in the runbook.

use ledgerline::manifest::Manifests;
use serde_json::Value;

use crate::{
    lookup::{list, resources},
    template::Source,
};

/// Finds metrics without an alarm, and alarms that can never go off or have no entry in the
/// runbook.
pub(super) fn problems(source: &Source, manifests: &Manifests, runbook: &str) -> Vec<String> {
    let entries: Vec<_> = runbook.split("\n## ").skip(1).map(Entry::parse).collect();
    let template = source.json();
    let own = own_namespace(&template);
    let wanted = wanted(&template, manifests, &own);
    let alarms: Vec<_> = resources(&template, &["AWS::CloudWatch::Alarm"]).collect();
    let mut problems = Vec::new();
    if failed_invocations(&template).next().is_none() {
        let place = source.place(&["Globals", "Function", "LoggingConfig"]);
        problems.push(format!(
            "{place}: rule 11: no filter counts failed invocations: add a filter of this log with the FilterPattern {FAILED_INVOCATIONS}"
        ));
    }
    for wanted in &wanted {
        let of = match wanted.dimensions.as_slice() {
            [] => "all functions".to_owned(),
            dimensions => dimensions.join(" "),
        };
        let of_it = alarms.iter().filter(|(_, alarm)| wanted.is_of(&alarm["Properties"]));
        let weak = of_it.map(|(id, alarm)| Some((*id, wanted.weakness(&alarm["Properties"])?)));
        match weak.collect::<Option<Vec<_>>>() {
            Some(weak) if weak.is_empty() => {
                let place = source.place(&["Resources", &wanted.resource]);
                let hint = wanted.hint();
                problems.push(format!(
                    "{place}: rule 11: no alarm monitors {} of {of}{hint}",
                    wanted.metric
                ));
            }
            Some(weak) => problems.extend(weak.into_iter().map(|(id, (key, message))| {
                let place = source.place(&["Resources", id, "Properties", key]);
                format!("{place}: rule 11: {id} cannot go off, or notifies no operator: {message}")
            })),
            // One effective alarm is enough. Other alarms on the same metric may be of any kind.
            None => {}
        }
    }
    for (id, alarm) in alarms {
        let place = |key| source.place(&["Resources", id, "Properties", key]);
        // An alarm may be on any metric that this check does not know.
        let is_known = |metric: &Value, namespace: &Value| {
            wanted.iter().any(|wanted| *metric == wanted.metric.as_str())
                || text_of(namespace) == Some(&own)
        };
        let named = &alarm["Properties"];
        if is_known(&named["MetricName"], &named["Namespace"])
            && !wanted.iter().any(|wanted| wanted.is_of(&alarm["Properties"]))
        {
            let metric = &alarm["Properties"]["MetricName"];
            problems.push(format!(
                "{}: rule 11: {id}: no resource emits {metric} with these dimensions",
                place("MetricName")
            ));
        }
        let description =
            alarm["Properties"]["AlarmDescription"]["Fn::Sub"].as_str().unwrap_or_default();
        match description.split_once("${RunbookUrl}#") {
            Some((_, anchor)) => match entries.iter().find(|entry| entry.anchor == anchor) {
                None => problems.push(format!(
                    "{}: rule 11: {id} links to {anchor}, which is not in the runbook",
                    place("AlarmDescription")
                )),
                Some(entry) if !entry.begins_with_commands => problems.push(format!(
                    "{}: rule 11: {id}: the entry {anchor} of the runbook must begin with commands: ```sh",
                    place("AlarmDescription")
                )),
                Some(_) => {}
            },
            None => problems
                .push(format!("{}: rule 11: {id} does not link to the runbook", place("AlarmDescription"))),
        }
    }
    problems
}

/// The namespace of the metrics that functions count themselves, in the form of the template.
fn own_namespace(template: &Value) -> String {
    let variables = &template["Globals"]["Function"]["Environment"]["Variables"];
    text_of(&variables["METRICS_NAMESPACE"]).unwrap_or_default().to_owned()
}

/// The text of a value, or of its substitution.
fn text_of(value: &Value) -> Option<&str> {
    value.as_str().or(value["Fn::Sub"].as_str())
}

/// An entry of the runbook.
struct Entry {
    /// The anchor of its heading.
    anchor: String,
    /// Whether it begins with the commands for the on-call engineer.
    begins_with_commands: bool,
}

impl Entry {
    /// Reads an entry, which begins with its heading.
    fn parse(text: &str) -> Self {
        let (heading, body) = text.split_once('\n').unwrap_or((text, ""));
        let anchor = heading.to_lowercase().replace(' ', "-");
        Self { anchor, begins_with_commands: body.trim_start().starts_with("```sh\n") }
    }
}

/// A metric that must have an alarm.
#[derive(Debug, PartialEq)]
struct Watched {
    /// The logical id of the resource that emits it.
    resource: String,
    namespace: String,
    metric: String,
    /// The dimensions as `Name=Value`, in alphabetical order. A value is a logical id or a text.
    dimensions: Vec<String>,
    /// The highest threshold with which the alarm goes off in time.
    most: f64,
}

impl Watched {
    fn new(
        resource: &str,
        namespace: &str,
        metric: &str,
        dimensions: &[(&str, String)],
        most: f64,
    ) -> Self {
        let mut dimensions: Vec<_> =
            dimensions.iter().map(|(name, value)| format!("{name}={value}")).collect();
        dimensions.sort_unstable();
        let resource = resource.to_owned();
        let namespace = namespace.to_owned();
        Self { resource, namespace, metric: metric.to_owned(), dimensions, most }
    }

    /// A metric of a function: a number of failures, or milliseconds.
    fn function(id: &str, metric: &str, most: f64) -> Self {
        Self::new(id, "AWS/Lambda", metric, &[("FunctionName", id.to_owned())], most)
    }

    /// A metric of a queue: a number of messages, or seconds.
    fn queue(id: &str, metric: &str, most: f64) -> Self {
        Self::new(id, "AWS/SQS", metric, &[("QueueName", id.to_owned())], most)
    }

    /// Whether the alarm is on this metric. The alarm of the API is on a ratio, which is a formula
    /// of two metrics.
    fn is_of(&self, alarm: &Value) -> bool {
        let of = |metric: &Value| {
            let mut dimensions: Vec<_> = list(&metric["Dimensions"])
                .into_iter()
                .map(|given| {
                    format!(
                        "{}={}",
                        given["Name"].as_str().unwrap_or_default(),
                        reference(&given["Value"])
                    )
                })
                .collect();
            dimensions.sort_unstable();
            // The application's own namespace is a substitution that contains the name of the
            // stack.
            text_of(&metric["Namespace"]).is_some_and(|namespace| namespace == self.namespace)
                && metric["MetricName"] == self.metric.as_str()
                && dimensions == self.dimensions
        };
        of(alarm) || list(&alarm["Metrics"]).iter().any(|part| of(&part["MetricStat"]["Metric"]))
    }

    /// A hint at the list that lacks a name. The loop over that list would create the alarm.
    fn hint(&self) -> &'static str {
        match self.metric.as_str() {
            "DestinationDeliveryFailures" | "ApproximateNumberOfMessagesNotVisible" => {
                ": add its name to the list of Fn::ForEach::StateViews"
            }
            "ApproximateAgeOfOldestMessage" => ": add its name to the list of Fn::ForEach::Queues",
            _ => "",
        }
    }

    /// The reason why an alarm on this metric is useless: the property, and a message.
    fn weakness(&self, alarm: &Value) -> Option<(&'static str, String)> {
        let number = |key: &str| alarm[key].as_f64();
        let above = ["GreaterThanThreshold", "GreaterThanOrEqualToThreshold"];
        if !alarm["ComparisonOperator"]
            .as_str()
            .is_some_and(|comparison| above.contains(&comparison))
        {
            return Some(("ComparisonOperator", "write GreaterThanThreshold".into()));
        }
        if number("Threshold").is_none_or(|threshold| threshold > self.most) {
            return Some(("Threshold", format!("write a Threshold of at most {}", self.most)));
        }
        let parts = list(&alarm["Metrics"]);
        let of_parts =
            parts.iter().map(|part| &part["MetricStat"]["Stat"]).filter(|stat| !stat.is_null());
        let mut statistics =
            of_parts.chain(alarm["Metrics"].is_null().then_some(&alarm["Statistic"]));
        // A data point of a counter is one event. So the maximum is at most 1 for any number of
        // events.
        let is_level = self.metric.starts_with("Approximate") || self.metric.ends_with("Age");
        let allowed: &[&str] = if is_level { &["Sum", "Maximum"] } else { &["Sum"] };
        if !statistics.all(|statistic| allowed.iter().any(|allowed| *statistic == *allowed)) {
            return Some(("Statistic", format!("write {}", allowed.join(" or "))));
        }
        let of_parts = parts.iter().filter_map(|part| part["MetricStat"]["Period"].as_f64());
        let period = of_parts.chain(number("Period")).fold(60.0, f64::max);
        if period * number("EvaluationPeriods").unwrap_or(1.0) > LONGEST {
            return Some((
                "EvaluationPeriods",
                format!("Period times EvaluationPeriods is more than {LONGEST} s"),
            ));
        }
        // Throttled calls are retried, so their alarm need not wake an on-call engineer. The
        // application decides about its own metrics.
        let can_wait = self.metric == "Throttles" || !self.namespace.starts_with("AWS/");
        let topics: &[&str] =
            if can_wait { &["AlarmTopic", "NoticeTopic"] } else { &["AlarmTopic"] };
        let tells = list(&alarm["AlarmActions"])
            .iter()
            .any(|action| topics.iter().any(|topic| action["Ref"] == *topic));
        if !tells || alarm["ActionsEnabled"] == false {
            return Some((
                "AlarmActions",
                format!("write AlarmActions: [!Ref {}]", topics.join("] or [!Ref ")),
            ));
        }
        None
    }
}

/// The longest time that an alarm may take to go off, in seconds.
const LONGEST: f64 = 900.0;

/// The filter pattern of the lines that Lambda logs about failed and timed-out invocations. If
/// `SystemLogLevel` is `WARN`, Lambda logs no other reports (Lambda Developer Guide, "System log
/// level event mapping").
const FAILED_INVOCATIONS: &str =
    r#"{ $.type = "platform.report" && $.record.status != "success" }"#;

/// The metric filters of the functions' log with the pattern [`FAILED_INVOCATIONS`]: logical id,
/// and namespace and name of the metric.
fn failed_invocations(template: &Value) -> impl Iterator<Item = (&str, &str, &str)> {
    let group = &template["Globals"]["Function"]["LoggingConfig"]["LogGroup"];
    let filters = resources(template, &["AWS::Logs::MetricFilter"]).filter(move |(_, filter)| {
        let properties = &filter["Properties"];
        properties["LogGroupName"] == *group && properties["FilterPattern"] == FAILED_INVOCATIONS
    });
    filters.filter_map(|(id, filter)| {
        let metric = &filter["Properties"]["MetricTransformations"][0];
        Some((id, text_of(&metric["MetricNamespace"])?, metric["MetricName"].as_str()?))
    })
}

/// The metrics that must have an alarm.
fn wanted(template: &Value, manifests: &Manifests, own: &str) -> Vec<Watched> {
    // The highest thresholds, for failures, seconds and milliseconds. A delay of more than an hour
    // must always raise an alarm.
    const FAILURES: f64 = 10.0;
    const SECONDS: f64 = 3_600.0;
    const MILLISECONDS: f64 = 3_600_000.0;
    let mut wanted = Vec::new();
    for (id, _) in resources(template, &["AWS::Serverless::HttpApi"]) {
        // The alarm is on the ratio of 5xx responses to all requests, so both metrics are parts of
        // its formula.
        for metric in ["5xx", "Count"] {
            wanted.push(Watched::new(
                id,
                "AWS/ApiGateway",
                metric,
                &[("ApiId", id.to_owned())],
                0.5,
            ));
        }
    }
    // These metrics are of all functions together. An alarm for each function would cost a dollar a
    // month for ten functions. The log names the function that failed. Throttles are not in the
    // log, and concurrency belongs to the account.
    wanted.extend(
        failed_invocations(template)
            .map(|(id, namespace, metric)| Watched::new(id, namespace, metric, &[], FAILURES)),
    );
    wanted.push(Watched::new("FanoutFunction", "AWS/Lambda", "Throttles", &[], FAILURES));
    for (id, function) in resources(template, &["AWS::Serverless::Function"]) {
        let properties = &function["Properties"];
        let mut destination = !properties["EventInvokeConfig"]["DestinationConfig"].is_null();
        for event in events(function) {
            let properties = &event["Properties"];
            destination |= !properties["DestinationConfig"].is_null();
            match event["Type"].as_str() {
                Some("DynamoDB") => wanted.push(Watched::function(id, "IteratorAge", MILLISECONDS)),
                Some("SQS") => {
                    let queue = reference(&properties["Queue"]);
                    match template["Resources"][&queue]["Properties"]["FifoQueue"] == true {
                        true => wanted.push(Watched::queue(
                            &queue,
                            "ApproximateAgeOfOldestMessage",
                            SECONDS,
                        )),
                        // The age of the oldest message leaves out messages that were received
                        // three times, except in a FIFO queue (Amazon SQS Developer Guide,
                        // "Available CloudWatch metrics"). So the alarm is on the number of
                        // messages.
                        false => wanted.extend(
                            [
                                "ApproximateNumberOfMessagesVisible",
                                "ApproximateNumberOfMessagesNotVisible",
                            ]
                            .map(|metric| Watched::queue(&queue, metric, FAILURES)),
                        ),
                    }
                }
                // Both dimensions are needed. With the rule's dimension alone, the metric is that
                // of a rule of the default bus.
                Some("EventBridgeRule") => wanted.push(Watched::new(
                    id,
                    "AWS/Events",
                    "FailedInvocations",
                    &[
                        ("EventBusName", reference(&properties["EventBusName"])),
                        ("RuleName", reference(&properties["RuleName"])),
                    ],
                    FAILURES,
                )),
                Some(_) | None => {}
            }
        }
        if destination {
            wanted.push(Watched::function(id, "DestinationDeliveryFailures", FAILURES));
        }
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
        for metric in manifests.get(binary).into_iter().flat_map(|manifest| &manifest.metrics) {
            let dimensions = [("Function", id.to_owned())];
            wanted.push(Watched::new(id, own, metric, &dimensions, FAILURES));
        }
    }
    for (id, _) in
        resources(template, &["AWS::SQS::Queue"]).filter(|(id, _)| id.ends_with("DeadLetterQueue"))
    {
        wanted.push(Watched::queue(id, "ApproximateNumberOfMessagesVisible", FAILURES));
    }
    wanted
}

fn events(function: &Value) -> impl Iterator<Item = &Value> {
    function["Properties"]["Events"].as_object().into_iter().flat_map(|events| events.values())
}

/// The logical id that a value refers to, or the text of a substitution.
fn reference(value: &Value) -> String {
    let id = value["Ref"].as_str().or(value["Fn::Sub"].as_str());
    let attribute = value["Fn::GetAtt"].as_str().or(value["Fn::GetAtt"][0].as_str());
    let text = id.or(attribute).or(value.as_str()).unwrap_or_default();
    match value["Fn::GetAtt"].is_null() {
        true => text.to_owned(),
        false => text.split('.').next().unwrap_or_default().to_owned(),
    }
}
