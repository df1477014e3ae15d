//! The alarms and the metric filters of a template, with the names of the local stack.

use std::{collections::BTreeMap, path::PathBuf};

use ledgerline_sam::{lookup::resources, template::Source};
use ledgerline_testing::workspace;
use serde_json::{Map, Value};

/// Returns the path of the template that the tests run.
pub(crate) fn path() -> PathBuf {
    workspace().join("template.yaml")
}

/// A template with expanded loops.
#[derive(Debug)]
pub(crate) struct Template {
    json: Value,
    stack: String,
    /// The names of resources on the local stack, by logical id. The name of a function is that of
    /// its binary, which is the dimension of its metrics here and the stream of its log.
    names: BTreeMap<String, String>,
}

impl Template {
    /// Reads the template of the workspace.
    pub(crate) fn read() -> Self {
        Self::parse(&std::fs::read_to_string(path()).unwrap())
    }

    /// Returns a copy of the template in which one text is replaced.
    pub(crate) fn changed(from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(path()).unwrap();
        assert!(text.contains(from), "the template does not have {from}");
        Self::parse(&text.replace(from, to))
    }

    fn parse(text: &str) -> Self {
        let source = Source::parse(text, &path()).unwrap();
        let template = source.template(&BTreeMap::new(), "http://sqs").unwrap();
        let resources = template.resources.into_iter();
        // The physical id of a queue is its URL, which ends with its name.
        let last = |physical: &str| physical.rsplit('/').next().unwrap_or_default().to_owned();
        let mut names: BTreeMap<_, _> =
            resources.map(|found| (found.id, last(&found.physical))).collect();
        names.extend(template.functions.into_iter().map(|function| (function.id, function.binary)));
        Self { json: source.json(), stack: source.stack().to_owned(), names }
    }

    /// Returns the names of all alarms.
    pub(crate) fn alarms(&self) -> Vec<&str> {
        resources(&self.json, &["AWS::CloudWatch::Alarm"]).map(|(id, _)| id).collect()
    }

    /// Returns the properties of a resource, with names instead of references.
    pub(crate) fn properties(&self, id: &str) -> Value {
        let resource = &self.json["Resources"][id];
        assert!(resource.is_object(), "the template has no {id}");
        self.resolved(&resource["Properties"])
    }

    /// Returns the properties of all metric filters.
    pub(crate) fn filters(&self) -> Vec<Value> {
        let filters = resources(&self.json, &["AWS::Logs::MetricFilter"]);
        filters.map(|(_, filter)| self.resolved(&filter["Properties"])).collect()
    }

    /// Returns the name of a resource on the local stack.
    pub(crate) fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }

    /// Returns the binary of the function that consumes the queue of this name, and the categories
    /// whose commits the fanout sends to the queue.
    pub(crate) fn consumer(&self, queue: &str) -> (String, Vec<String>) {
        let (id, _) = self.names.iter().find(|(_, name)| *name == queue).unwrap();
        let consumes = |function: &Value| {
            let events = function["Properties"]["Events"].as_object().into_iter().flatten();
            events
                .into_iter()
                .any(|(_, event)| self.resolved(&event["Properties"]["Queue"]) == queue)
        };
        let mut functions = resources(&self.json, &["AWS::Serverless::Function"]);
        let (function, _) = functions.find(|(_, function)| consumes(function)).unwrap();
        let variables =
            &self.json["Resources"]["FanoutFunction"]["Properties"]["Environment"]["Variables"];
        let queues = variables["LOG_QUEUES"]["Fn::Sub"].as_str().unwrap();
        let line = queues.lines().find_map(|line| line.trim().strip_prefix(&format!("${{{id}}} ")));
        let categories = line.unwrap().split_whitespace().map(ToOwned::to_owned);
        (self.name(function).to_owned(), categories.collect())
    }

    fn resolved(&self, value: &Value) -> Value {
        if let Some(text) = value["Fn::Sub"].as_str() {
            return text.replace("${AWS::StackName}", &self.stack).into();
        }
        if !value["Ref"].is_null() {
            return self.name(self.resolved(&value["Ref"]).as_str().unwrap()).into();
        }
        match (value, &value["Fn::GetAtt"]) {
            // The attribute is a name or an ARN, and the name stands for both.
            (_, Value::String(path)) => {
                self.name(path.split('.').next().unwrap_or_default()).into()
            }
            (_, Value::Array(parts)) => {
                self.name(self.resolved(&parts[0]).as_str().unwrap()).into()
            }
            (Value::Object(fields), _) => {
                let fields =
                    fields.iter().map(|(name, value)| (name.clone(), self.resolved(value)));
                fields.collect::<Map<_, _>>().into()
            }
            (Value::Array(values), _) => values.iter().map(|value| self.resolved(value)).collect(),
            (other, _) => other.clone(),
        }
    }
}
