//! The values of metrics, from the output of a local stack.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_sqs::types::QueueAttributeName;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use ledgerline::Commit;
use ledgerline_testing::{LocalStack, tank::whole_log};
use serde_json::{Value, json};

use crate::{
    formula::{self, Metric},
    template::Template,
};

/// The categories of the streams in the log.
const CATEGORIES: [&str; 2] = ["haul", "tank"];

/// The actions that write a table.
const WRITES: [&str; 5] =
    ["BatchWriteItem", "DeleteItem", "PartiQLInsert", "PutItem", "UpdateItem"];

/// A stack, as CloudWatch sees it.
#[derive(Debug)]
pub(crate) struct Observed<'a> {
    pub(crate) stack: &'a LocalStack,
    /// The time that is added to each measured age. A lasting fault reaches the age that its alarm
    /// needs after this time, and no test waits so long.
    pub(crate) later: SignedDuration,
}

impl<'a> Observed<'a> {
    pub(crate) fn new(stack: &'a LocalStack) -> Self {
        Self { stack, later: SignedDuration::ZERO }
    }

    /// Returns the same stack this much later, if nothing changes.
    pub(crate) fn later(self, later: SignedDuration) -> Self {
        Self { later, ..self }
    }

    /// Whether an alarm of a template rings.
    pub(crate) async fn rings(&self, template: &Template, alarm: &str) -> bool {
        let alarm = template.properties(alarm);
        let mut datapoints = BTreeMap::new();
        for (id, metric) in formula::metrics(&alarm) {
            let values = self.values(template, &metric).await;
            datapoints.insert(id, metric.datapoint(&values));
        }
        formula::rings(&alarm, &datapoints)
    }

    /// Returns all alarms of a template that ring.
    pub(crate) async fn ringing(&self, template: &Template) -> BTreeSet<String> {
        let mut ringing = BTreeSet::new();
        for alarm in template.alarms() {
            if self.rings(template, alarm).await {
                ringing.insert(alarm.to_owned());
            }
        }
        ringing
    }

    async fn values(&self, template: &Template, metric: &Metric) -> Vec<f64> {
        match metric.namespace.as_str() {
            "AWS/ApiGateway" => self.api(template, metric).await,
            "AWS/DynamoDB" => self.table(metric),
            "AWS/Lambda" => self.function(metric).await,
            "AWS/SQS" => self.queue(template, metric).await,
            // The local stack is in no account, and has no quota.
            "AWS/Usage" => Vec::new(),
            aws if aws.starts_with("AWS/") => {
                panic!("{aws} has no values here: take them from the stack")
            }
            _ => {
                let mut values = self.filtered(template, metric).await;
                values.extend(self.embedded(metric).await);
                values
            }
        }
    }

    /// Returns the beginning of the period that ends at this moment.
    fn since(metric: &Metric) -> Timestamp {
        Timestamp::now() - SignedDuration::from_secs(metric.period)
    }

    /// Returns one value for each log line that a metric filter of the template counts for the
    /// metric.
    async fn filtered(&self, template: &Template, metric: &Metric) -> Vec<f64> {
        let mut values = Vec::new();
        for filter in template.filters() {
            let counted = &filter["MetricTransformations"][0];
            let is_of_it = counted["MetricNamespace"] == metric.namespace.as_str()
                && counted["MetricName"] == metric.name.as_str()
                && metric.dimensions.is_empty();
            if !is_of_it {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (group, pattern) = (text(&filter["LogGroupName"]), text(&filter["FilterPattern"]));
            let lines = self.stack.lines_of(&group, &pattern, Self::since(metric)).await;
            let value: f64 = text(&counted["MetricValue"]).parse().unwrap();
            values.extend(lines.iter().map(|_| value));
        }
        values
    }

    /// Returns the values that functions logged in the embedded metric format.
    async fn embedded(&self, metric: &Metric) -> Vec<f64> {
        let lines = self.stack.lines_of("FunctionLogs", "\"_aws\"", Self::since(metric)).await;
        let names: BTreeSet<_> = metric.dimensions.keys().map(String::as_str).collect();
        let is_of_it = |line: &Value| {
            let directives = line["_aws"]["CloudWatchMetrics"].as_array().into_iter().flatten();
            let mut of_it = directives.filter(|directive| {
                let named = directive["Metrics"].as_array().into_iter().flatten();
                let sets = directive["Dimensions"].as_array().into_iter().flatten();
                let mut sets =
                    sets.map(|set| set.as_array().into_iter().flatten().filter_map(Value::as_str));
                directive["Namespace"] == metric.namespace.as_str()
                    && named.into_iter().any(|one| one["Name"] == metric.name.as_str())
                    && sets.any(|set| set.collect::<BTreeSet<_>>() == names)
            });
            of_it.next().is_some()
                && metric.dimensions.iter().all(|(name, value)| line[name] == value.as_str())
        };
        let values = lines.iter().filter(|(_, line)| is_of_it(line)).flat_map(|(_, line)| {
            let value = &line[&metric.name];
            value.as_array().cloned().unwrap_or_else(|| vec![value.clone()])
        });
        values.filter_map(|value| value.as_f64()).collect()
    }

    /// Returns the values of `AWS/ApiGateway`, which counts requests and server errors: the lines
    /// of the access log.
    async fn api(&self, template: &Template, metric: &Metric) -> Vec<f64> {
        assert_eq!(
            metric.dimensions,
            [("ApiId".to_owned(), template.name("HttpApi").to_owned())].into()
        );
        let pattern = match metric.name.as_str() {
            "Count" => "{ $.status >= 100 }",
            "5xx" => "{ $.status >= 500 }",
            other => panic!("the API does not emit {other}"),
        };
        let lines = self.stack.lines_of("AccessLogs", pattern, Self::since(metric)).await;
        // Without a request, both are 0, and the share has no datapoint.
        std::iter::once(0.0).chain(lines.iter().map(|_| 1.0)).collect()
    }

    /// Returns the values of `AWS/DynamoDB`, which counts the throttled events of a write. The
    /// stack prints each such event.
    fn table(&self, metric: &Metric) -> Vec<f64> {
        assert_eq!(metric.name, "WriteThrottleEvents");
        let table = format!(":table/{}", metric.dimensions["TableName"]);
        let is_write =
            |action: &str| WRITES.iter().any(|write| action == format!("dynamodb:{write}"));
        self.counted(metric, "throttled", |text| {
            text.split_once(" on ")
                .is_some_and(|(action, on)| is_write(action) && on.ends_with(&table))
        })
    }

    /// Returns the values of `AWS/Lambda`. Failures are the reports of a function. The stack prints
    /// throttles, and dead letters that the queue did not accept. The iterator age is the age of
    /// the oldest commit that the function has not finished: Lambda reads the stream in order, and
    /// so does the local stack.
    async fn function(&self, metric: &Metric) -> Vec<f64> {
        let function = metric.dimensions.get("FunctionName");
        match (metric.name.as_str(), function) {
            ("Throttles", None) => self
                .counted(metric, "throttled", |text| text.starts_with("lambda:InvokeFunction on ")),
            ("Errors", Some(function)) => {
                let reports = r#"{ $.type = "platform.report" && $.record.status != "success" }"#;
                let lines = self.stack.lines_of("FunctionLogs", reports, Self::since(metric)).await;
                lines.iter().filter(|(stream, _)| stream == function).map(|_| 1.0).collect()
            }
            ("DestinationDeliveryFailures", Some(function)) => {
                let lost = format!("the queue did not accept the dead letter of {function}: ");
                let of = |hop| self.counted(metric, hop, |text| text.starts_with(&lost));
                [of("invoke"), of("stream")].concat()
            }
            ("IteratorAge", Some(function)) => {
                let log = self.log(&CATEGORIES.map(ToOwned::to_owned)).await;
                let oldest = log.get(self.finished(function));
                oldest.map(|commit| self.age(commit).as_millis_f64()).into_iter().collect()
            }
            (other, _) => panic!("Lambda's {other} has no values here: take them from the stack"),
        }
    }

    /// Returns the number of commits of the stream that a function has finished.
    fn finished(&self, function: &str) -> usize {
        let hops = self.stack.hops().into_iter().filter(|(_, hop, _)| hop == function);
        // The stack prints one line for each batch: with the name of a single commit, or with the
        // number of several.
        let commits = hops.map(|(_, _, text)| {
            text.split_once(" commits in ").and_then(|(number, _)| number.parse().ok()).unwrap_or(1)
        });
        commits.sum()
    }

    /// Returns the values of `AWS/SQS`. Numbers of messages are attributes of the queue. If the
    /// queue has messages, the age of the oldest one is that of the oldest commit that the consumer
    /// has not applied.
    async fn queue(&self, template: &Template, metric: &Metric) -> Vec<f64> {
        let queue = &metric.dimensions["QueueName"];
        let Some((visible, hidden)) = self.messages(queue).await else { return Vec::new() };
        match metric.name.as_str() {
            "ApproximateNumberOfMessagesVisible" => vec![visible],
            "ApproximateNumberOfMessagesNotVisible" => vec![hidden],
            "ApproximateAgeOfOldestMessage" if visible + hidden > 0.0 => {
                let (consumer, categories) = template.consumer(queue);
                let by = format!(" by {consumer} in ");
                let hops = self.stack.hops();
                let is_applied = |commit: &Commit| {
                    let applied = format!("{} v{}{by}", commit.stream, commit.version);
                    hops.iter()
                        .any(|(_, hop, text)| hop == "projector" && text.starts_with(&applied))
                };
                let log = self.log(&categories).await;
                let oldest = log.iter().find(|commit| !is_applied(commit));
                oldest.map(|commit| self.age(commit).as_secs_f64()).into_iter().collect()
            }
            "ApproximateAgeOfOldestMessage" => vec![0.0],
            other => panic!("a queue does not emit {other}"),
        }
    }

    /// Returns the number of messages in a queue that wait, and the number in progress; `None` if
    /// the queue does not exist.
    async fn messages(&self, queue: &str) -> Option<(f64, f64)> {
        let sqs = aws_sdk_sqs::Client::new(&ledgerline_dynamodb::sdk_config(&self.stack.aws_url()));
        let url = sqs.get_queue_url().queue_name(queue).send().await.ok()?.queue_url?;
        let get =
            sqs.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
        let attributes = get.send().await.ok()?.attributes?;
        let number = |name| attributes[&name].parse::<f64>().unwrap();
        Some((
            number(QueueAttributeName::ApproximateNumberOfMessages),
            number(QueueAttributeName::ApproximateNumberOfMessagesNotVisible),
        ))
    }

    /// Returns the commits of these categories, the oldest first.
    async fn log(&self, categories: &[String]) -> Vec<Commit> {
        let mut commits = Vec::new();
        for category in categories {
            commits.extend(whole_log(self.stack, category).await);
        }
        commits.sort_by_key(|commit| commit.at);
        commits
    }

    fn age(&self, commit: &Commit) -> SignedDuration {
        Timestamp::now().duration_since(commit.at) + self.later
    }

    /// Returns a 1 for each hop of this name in the last period whose text is of the metric.
    fn counted(&self, metric: &Metric, hop: &str, is_of_it: impl Fn(&str) -> bool) -> Vec<f64> {
        let now = Timestamp::now().to_zoned(TimeZone::UTC).time();
        let is_of_period = |time| {
            let ago = now.duration_since(time).as_secs();
            // A hop has no date: at midnight, the last minute is of another day.
            ago.rem_euclid(86_400) <= metric.period
        };
        let hops = self.stack.hops().into_iter();
        let counted =
            hops.filter(|(time, name, text)| name == hop && is_of_period(*time) && is_of_it(text));
        counted.map(|_| 1.0).collect()
    }
}

/// Sets an attribute of a queue. With it, the queue redelivers a message, or gives the message up,
/// within seconds and not within an hour and a half.
pub(crate) async fn set_queue(
    stack: &LocalStack,
    queue: &str,
    name: QueueAttributeName,
    value: &Value,
) {
    let sqs = aws_sdk_sqs::Client::new(&ledgerline_dynamodb::sdk_config(&stack.aws_url()));
    let url = sqs.get_queue_url().queue_name(queue).send().await.unwrap().queue_url.unwrap();
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    sqs.set_queue_attributes().queue_url(url).attributes(name, text).send().await.unwrap();
}

/// Returns the redrive policy with which a queue gives up a message after one receive.
pub(crate) fn gives_up_into(dead_letter_queue: &str) -> Value {
    let arn = format!("arn:aws:sqs:us-east-1:000000000000:{dead_letter_queue}");
    json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 1 })
}
