//! Checks a template as AWS gets it: rules 3 and 11, who may call which function, and quotas. A
//! check reads only the template, so it also finds faults of the generator and of `deploy.yaml`.

mod access;
mod alarms;
mod limits;
mod policies;
mod safeguards;

use std::{collections::BTreeMap, rc::Rc};

use serde_json::{Value, json};

use crate::{
    generate::Deploy,
    lookup::{list, logical_id, object_pattern},
    parameters,
    template::Source,
};

/// Finds missing safeguards, missing or useless alarms, and forbidden rights. Each problem is one
/// sentence with its place and its remedy. `runbook` is the text with an entry for each alarm.
#[must_use]
pub fn problems(source: &Source, runbook: &str) -> Vec<String> {
    let json = source.json();
    let mut rules = Rules::new(source, &json);
    policies::check(&mut rules);
    access::check(&mut rules);
    safeguards::check(&mut rules);
    alarms::check(&mut rules, runbook);
    limits::check(&mut rules);
    rules.problems.extend(parameters::problems(source));
    // The local stack could not run a template that it cannot read.
    let unread = source.template(&BTreeMap::new(), "http://127.0.0.1").err();
    rules.problems.extend(unread.map(|error| error.to_string()));
    rules.problems
}

/// Finds forbidden rights in a template or in the output of SAM.
#[must_use]
pub fn forbidden_rights(source: &Source) -> Vec<String> {
    let json = source.json();
    let mut rules = Rules::new(source, &json);
    policies::check(&mut rules);
    rules.problems
}

/// A logical id and the properties of its resource.
type Resource<'a> = (&'a str, &'a Value);

/// A template, and the problems found in it. A path such as `Events/Commits/Properties` leads to a
/// node below the properties of a resource.
struct Rules<'a> {
    source: &'a Source,
    json: &'a Value,
    /// The file of the team beside the template.
    deploy: Option<Deploy>,
    /// The statements of policies, each with the logical id of its policy.
    statements: Rc<[(String, Value)]>,
    problems: Vec<String>,
}

impl<'a> Rules<'a> {
    fn new(source: &'a Source, json: &'a Value) -> Self {
        let statements = source.statements();
        let problems = statements.as_ref().err().map(|error| error.to_string());
        let statements = statements.unwrap_or_default().into();
        let deploy = source.path().parent().and_then(|folder| Deploy::read(folder).ok());
        Self { source, json, deploy, statements, problems: problems.into_iter().collect() }
    }

    /// Adds a problem with a resource, unless the condition holds. If a key of the path is missing,
    /// the place is the closest node above it.
    fn require(&mut self, holds: bool, id: &str, path: &str, message: impl AsRef<str>) {
        let keys = ["Resources", id, "Properties"].into_iter().chain(path.split('/'));
        let keys: Vec<_> = keys.filter(|key| !key.is_empty()).collect();
        let place = match &self.deploy {
            Some(deploy) => deploy.place(self.source, &keys),
            None => self.source.place(&keys),
        };
        let problem = format!("{place}: {id}: {}", message.as_ref());
        // Two functions or events may have one queue, whose problem is added once.
        if !holds && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Adds a problem for each of these properties that does not have the expected value.
    fn expect(&mut self, id: &str, path: &str, expected: &Value) {
        for (name, value) in expected.as_object().into_iter().flatten() {
            let holds = self.property(id, path)[name] == *value;
            self.require(holds, id, &format!("{path}/{name}"), format!("write {name}: {value}"));
        }
    }

    /// Checks that a bucket blocks all public access.
    fn expect_private(&mut self, bucket: &str) {
        let blocked =
            ["BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"];
        let blocked = blocked.iter().map(|name| ((*name).to_owned(), json!(true))).collect();
        self.expect(bucket, "PublicAccessBlockConfiguration", &Value::Object(blocked));
    }

    fn property(&self, id: &str, path: &str) -> &'a Value {
        let keys = path.split('/').filter(|key| !key.is_empty());
        keys.fold(&self.json["Resources"][id]["Properties"], |node, key| &node[key])
    }

    fn kind(&self, id: &str) -> &'a str {
        self.json["Resources"][id]["Type"].as_str().unwrap_or_default()
    }

    /// The resources of a type, or of all types if it is empty, and their properties.
    fn resources(&self, kind: &'static str) -> impl Iterator<Item = Resource<'a>> + use<'a> {
        let all = self.json["Resources"].as_object().into_iter().flatten();
        all.filter(move |(_, resource)| kind.is_empty() || resource["Type"] == kind)
            .map(|(id, resource)| (id.as_str(), &resource["Properties"]))
    }

    fn functions(&self) -> impl Iterator<Item = Resource<'a>> + use<'a> {
        self.resources("AWS::Serverless::Function").chain(self.resources("AWS::Lambda::Function"))
    }

    /// The dead-letter queue of records or events that Lambda gives up: the destination, or the queue
    /// to which a rule sends the names of the new objects in the destination.
    fn dead_letter_queue(&self, properties: &'a Value) -> Option<&'a str> {
        let id = logical_id(&properties["DestinationConfig"]["OnFailure"]["Destination"])?;
        if self.kind(id) != "AWS::S3::Bucket" {
            return Some(id);
        }
        let notifies = "NotificationConfiguration/EventBridgeConfiguration/EventBridgeEnabled";
        let is_enabled = self.property(id, notifies) == true;
        let (_, rule) = self.object_rule(id)?;
        logical_id(&list(&rule["Targets"]).first()?["Arn"]).filter(|_| is_enabled)
    }

    /// The enabled rule that gets each object that Lambda puts into a bucket.
    fn object_rule(&self, bucket: &str) -> Option<Resource<'a>> {
        let pattern = object_pattern(&json!({ "Ref": bucket }), &json!("aws/lambda/"));
        let gets_all = |rule: &Value| {
            let is_enabled = rule["State"].is_null() || rule["State"] == "ENABLED";
            is_enabled && rule["EventPattern"] == pattern && rule["EventBusName"].is_null()
        };
        self.resources("AWS::Events::Rule").find(|(_, rule)| gets_all(rule))
    }

    /// A function's events of a type: their paths and properties.
    fn events(&self, function: &str, kind: &str) -> Vec<(String, &'a Value)> {
        let events = self.property(function, "Events").as_object().into_iter().flatten();
        let of_kind = events.filter(|(_, event)| event["Type"] == kind);
        let path = |name: &String| format!("Events/{name}/Properties");
        of_kind.map(|(name, event)| (path(name), &event["Properties"])).collect()
    }
}

/// Whether a text names a resource: by its logical id, or by a name that contains the id.
fn names(text: &str, id: &str) -> bool {
    let mut found = text.match_indices(id).map(|(at, _)| (&text[..at], &text[at + id.len()..]));
    found.any(|(before, after)| {
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod recipes;
#[cfg(test)]
mod tests;
