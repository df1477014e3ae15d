//! The alarms of a template, and the values of their metrics on a local stack.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use aws_sdk_sqs::types::QueueAttributeName;
use jiff::{SignedDuration, Timestamp};
use ledgerline_sam::{lookup::resources, template::Source};
use ledgerline_testing::{LocalStack, category_commits, workspace};
use serde_json::{Map, Value, json};

use crate::{
    faults::queue,
    formula::{self, Datapoints, datapoint},
};

/// The path of the template that the tests run.
pub(crate) fn path() -> PathBuf {
    workspace().join("template.yaml")
}

/// A template.
#[derive(Debug)]
pub(crate) struct Template {
    json: Value,
    stack: String,
    /// The names of resources on the local stack, by logical id. The name of a function is that of
    /// its binary, which is the dimension of its metrics here and the stream of its log.
    names: BTreeMap<String, String>,
}

impl Template {
    /// Reads the template of the workspace, with one text in place of another.
    pub(crate) fn read(from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(path()).unwrap();
        assert!(text.contains(from), "the template does not have {from}");
        let source = Source::parse(&text.replace(from, to), &path()).unwrap();
        let template = source.template(&BTreeMap::new(), "http://sqs").unwrap();
        // The physical id of a queue is its URL, which ends with its name.
        let last = |physical: &str| physical.rsplit('/').next().unwrap_or_default().to_owned();
        let resources = template.resources.into_iter();
        let names = resources.map(|found| (found.id, last(&found.physical)));
        let functions = template.functions.into_iter();
        let names = names.chain(functions.map(|function| (function.id, function.binary))).collect();
        Self { json: source.json(), stack: source.stack().to_owned(), names }
    }

    /// Returns the names of all alarms.
    pub(crate) fn alarms(&self) -> BTreeSet<&str> {
        resources(&self.json, &["AWS::CloudWatch::Alarm"]).map(|(id, _)| id).collect()
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }

    /// Returns a value with names instead of references. The name of a resource also stands for its
    /// ARN.
    fn resolve(&self, value: &Value) -> Value {
        if let Some(text) = value["Fn::Sub"].as_str() {
            return text.replace("${AWS::StackName}", &self.stack).into();
        }
        let attribute = &value["Fn::GetAtt"];
        let id = value["Ref"].as_str().or(attribute[0].as_str()).or(attribute.as_str());
        if let Some(id) = id {
            return self.name(id.split('.').next().unwrap_or_default()).into();
        }
        if let Some(fields) = value.as_object() {
            let fields = fields.iter().map(|(name, value)| (name.clone(), self.resolve(value)));
            return fields.collect::<Map<_, _>>().into();
        }
        let Some(values) = value.as_array() else { return value.clone() };
        values.iter().map(|value| self.resolve(value)).collect()
    }
}

/// A stack, as CloudWatch sees it.
#[derive(Debug)]
pub(crate) struct Observed<'a> {
    pub(crate) stack: &'a LocalStack,
    /// The age of whatever waits. A lasting fault reaches it later, and no test waits so long.
    pub(crate) age: SignedDuration,
}

impl Observed<'_> {
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

    /// Whether an alarm of a template rings.
    pub(crate) async fn rings(&self, template: &Template, alarm: &str) -> bool {
        let alarm = template.resolve(&template.json["Resources"][alarm]["Properties"]);
        let parts = alarm["Metrics"].as_array().cloned().unwrap_or_else(|| {
            let stat =
                json!({ "Metric": alarm, "Stat": alarm["Statistic"], "Period": alarm["Period"] });
            vec![json!({ "Id": "", "MetricStat": stat })]
        });
        let mut datapoints = Datapoints::new();
        for part in parts.iter().filter(|part| part["MetricStat"].is_object()) {
            let stat = &part["MetricStat"];
            let since =
                Timestamp::now() - SignedDuration::from_secs(stat["Period"].as_i64().unwrap());
            let values = self.values(template, &stat["Metric"], since).await;
            datapoints.insert(text(&part["Id"]), datapoint(&text(&stat["Stat"]), &values));
        }
        let mut returned = parts.iter().filter(|part| part["ReturnData"] != false);
        let one = returned.next().unwrap();
        assert_eq!(returned.next(), None, "an alarm is on one value");
        formula::rings(&alarm, one, &datapoints)
    }

    /// Returns the values of a metric.
    async fn values(&self, template: &Template, metric: &Value, since: Timestamp) -> Vec<f64> {
        let (namespace, name) = (text(&metric["Namespace"]), text(&metric["MetricName"]));
        let dimension = &metric["Dimensions"][0];
        let of = dimension["Value"].as_str().unwrap_or_default();
        let lines = async |group, pattern| self.stack.lines_of(group, pattern, since).await;
        match (&*namespace, &*name, dimension["Name"].as_str()) {
            // Without a request, both are 0, and the share has no datapoint.
            ("AWS/ApiGateway", "Count", Some("ApiId")) if of == template.name("HttpApi") => {
                vec![lines("AccessLogs", "{ $.status >= 100 }").await.len() as f64]
            }
            ("AWS/ApiGateway", "5xx", Some("ApiId")) if of == template.name("HttpApi") => {
                vec![lines("AccessLogs", "{ $.status >= 500 }").await.len() as f64]
            }
            ("AWS/DynamoDB", "WriteThrottleEvents", Some("TableName")) => self.hops(|_, text| {
                text.split_once(" on ").is_some_and(|(action, on)| {
                    WRITES.contains(&action) && on.ends_with(&format!(":table/{of}"))
                })
            }),
            ("AWS/Lambda", "Throttles", None) => self.hops(|hop, text| {
                hop == "throttled" && text.starts_with("lambda:InvokeFunction on ")
            }),
            ("AWS/Lambda", "Errors", Some("FunctionName")) => {
                let reports = r#"{ $.type = "platform.report" && $.record.status != "success" }"#;
                let lines = lines("FunctionLogs", reports).await;
                lines.iter().filter(|(function, _)| function == of).map(|_| 1.0).collect()
            }
            ("AWS/Lambda", "DestinationDeliveryFailures", Some("FunctionName")) => {
                let lost = format!(" did not accept the dead letter of {of}: ");
                self.hops(|_, text| text.contains(&lost))
            }
            ("AWS/Lambda", "IteratorAge", Some("FunctionName")) => {
                let waits = self.has_unread_commits(of).await;
                waits.then(|| self.age.as_millis_f64()).into_iter().collect()
            }
            ("AWS/SQS", "ApproximateNumberOfMessagesVisible", Some("QueueName")) => {
                self.messages(of).await.map(|(visible, _)| visible).into_iter().collect()
            }
            ("AWS/SQS", "ApproximateNumberOfMessagesNotVisible", Some("QueueName")) => {
                self.messages(of).await.map(|(_, hidden)| hidden).into_iter().collect()
            }
            ("AWS/SQS", "ApproximateAgeOfOldestMessage", Some("QueueName")) => {
                let waits =
                    self.messages(of).await.is_some_and(|(visible, hidden)| visible + hidden > 0.0);
                waits.then(|| self.age.as_secs_f64()).into_iter().collect()
            }
            // The local stack is in no account, and has no quota.
            ("AWS/Usage", ..) => Vec::new(),
            ("AWS/ApiGateway" | "AWS/DynamoDB" | "AWS/Lambda" | "AWS/SQS", ..) => {
                panic!("the stack has no values of {metric}")
            }
            _ => [self.filtered(template, metric, since).await, self.embedded(metric, since).await]
                .concat(),
        }
    }

    /// Returns one value for each log line that a metric filter of the template counts for the
    /// metric.
    async fn filtered(&self, template: &Template, metric: &Value, since: Timestamp) -> Vec<f64> {
        let mut values = Vec::new();
        for (_, filter) in resources(&template.json, &["AWS::Logs::MetricFilter"]) {
            let filter = template.resolve(&filter["Properties"]);
            let counted = &filter["MetricTransformations"][0];
            let is_counted = counted["MetricNamespace"] == metric["Namespace"]
                && counted["MetricName"] == metric["MetricName"]
                && metric["Dimensions"].is_null();
            if is_counted {
                let (group, pattern) =
                    (text(&filter["LogGroupName"]), text(&filter["FilterPattern"]));
                let lines = self.stack.lines_of(&group, &pattern, since).await;
                let value: f64 = text(&counted["MetricValue"]).parse().unwrap();
                values.extend(lines.iter().map(|_| value));
            }
        }
        values
    }

    /// Returns the values that functions logged in the embedded metric format.
    async fn embedded(&self, metric: &Value, since: Timestamp) -> Vec<f64> {
        let dimensions: BTreeMap<_, _> = list(&metric["Dimensions"])
            .map(|dimension| (text(&dimension["Name"]), &dimension["Value"]))
            .collect();
        let name = text(&metric["MetricName"]);
        let is_measured = |line: &Value| {
            let is_declared = |directive: &Value| {
                directive["Namespace"] == metric["Namespace"]
                    && list(&directive["Metrics"]).any(|one| one["Name"] == *name)
                    && list(&directive["Dimensions"])
                        .any(|set| list(set).map(text).eq(dimensions.keys().cloned()))
            };
            list(&line["_aws"]["CloudWatchMetrics"]).any(is_declared)
                && dimensions.iter().all(|(name, value)| line[name] == **value)
        };
        let lines = self.stack.lines_of("FunctionLogs", "\"_aws\"", since).await;
        let lines = lines.iter().filter(|(_, line)| is_measured(line));
        let values = lines.map(|(_, line)| &line[&name]);
        values
            .flat_map(|value| value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice))
            .filter_map(Value::as_f64)
            .collect()
    }

    /// Returns a 1 for each hop that the stack printed with such a name and text.
    fn hops(&self, is_counted: impl Fn(&str, &str) -> bool) -> Vec<f64> {
        let hops = self.stack.hops().into_iter();
        hops.filter(|(_, name, text)| is_counted(name, text)).map(|_| 1.0).collect()
    }

    /// Whether the log has commits that this reader of its stream has not finished.
    async fn has_unread_commits(&self, function: &str) -> bool {
        let hops = self.stack.hops().into_iter().filter(|(_, hop, _)| hop == function);
        // The stack prints one line for each batch: with the name of a single commit, or with the
        // number of several.
        let finished = hops.map(|(_, _, text)| {
            text.split_once(" commits in ").and_then(|(number, _)| number.parse().ok()).unwrap_or(1)
        });
        let finished: usize = finished.sum();
        let [hauls, tanks] =
            ["haul", "tank"].map(|category| category_commits(self.stack, category));
        finished < hauls.await.len() + tanks.await.len()
    }

    /// Returns the number of messages in a queue that wait, and the number in progress; `None` if
    /// the queue does not exist.
    async fn messages(&self, name: &str) -> Option<(f64, f64)> {
        let (sqs, url) = queue(self.stack, name).await?;
        let get = sqs.get_queue_attributes().queue_url(url);
        let get = get.attribute_names(QueueAttributeName::All).send().await;
        let attributes = get.ok()?.attributes?;
        let number = |name| attributes[&name].parse().unwrap();
        Some((
            number(QueueAttributeName::ApproximateNumberOfMessages),
            number(QueueAttributeName::ApproximateNumberOfMessagesNotVisible),
        ))
    }
}

/// The actions that write a table.
const WRITES: [&str; 5] = [
    "dynamodb:BatchWriteItem",
    "dynamodb:DeleteItem",
    "dynamodb:PartiQLInsert",
    "dynamodb:PutItem",
    "dynamodb:UpdateItem",
];

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
