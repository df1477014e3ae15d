//! Derives the statements of a role from the manifest of its function.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    functions::{Function, Template},
    rights::rights,
};

/// A statement: actions on one resource or several, narrowed to partition keys if there are any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) actions: Vec<String>,
    pub(super) keys: Vec<String>,
    /// Short names, such as `CommitsTable.StreamArn`.
    pub(super) on: Vec<String>,
}

impl Grant {
    /// Whether the condition excludes a request without a key. An insert by PartiQL has a condition
    /// without `Null` (docs/decisions.md, 4).
    pub(super) fn excludes_no_key(&self) -> bool {
        self.actions != [INSERT]
    }
}

/// The statements of a function, for resources that the template names.
pub(super) fn grants(template: &Template<'_>, function: &Function<'_>) -> Vec<Grant> {
    let mut resources = BTreeMap::<String, BTreeSet<String>>::new();
    for (action, resource) in rights(template, function) {
        // deploy.yaml grants what is on a resource of a parameter. The managed policy allows logs
        // and traces.
        let Some(resource) =
            resource.filter(|_| !action.starts_with("logs:") && !action.starts_with("xray:"))
        else {
            continue;
        };
        let id = split_keys(&resource).0.split(['.', '/', ':']).next().unwrap_or_default();
        // deploy.yaml grants what is on a resource of another type, because its ARN has another
        // form.
        if ARNS.contains(&template.kind(id)) {
            resources.entry(resource).or_default().insert(action);
        }
    }
    let mut grants = BTreeMap::<(BTreeSet<String>, Vec<&str>), Vec<&str>>::new();
    for (resource, actions) in &resources {
        let (resource, keys) = split_keys(resource);
        grants.entry((actions.clone(), keys)).or_default().push(resource);
    }
    let mut grants: Vec<_> = grants.into_iter().collect();
    grants.sort_by(|one, other| one.1.cmp(&other.1).then_with(|| one.0.cmp(&other.0)));
    let mut split = Vec::new();
    for ((actions, keys), on) in grants {
        let (inserts, others): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|action| action == INSERT && !keys.is_empty());
        let groups: Vec<Vec<&str>> =
            if keys.is_empty() { vec![on] } else { on.into_iter().map(|on| vec![on]).collect() };
        for on in groups {
            for actions in [&inserts, &others].into_iter().filter(|actions| !actions.is_empty()) {
                split.push(Grant {
                    actions: actions.clone(),
                    keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                    on: on.iter().map(|on| (*on).to_owned()).collect(),
                });
            }
        }
    }
    split
}

/// Splits a short name into a table and the partition keys to which a right on it is narrowed:
/// `CommitsTable (item-*)`.
fn split_keys(resource: &str) -> (&str, Vec<&str>) {
    match resource.strip_suffix(')').and_then(|resource| resource.split_once(" (")) {
        Some((table, keys)) => (table, keys.split(", ").collect()),
        None => (resource, Vec::new()),
    }
}

/// The types of resources that have an attribute `Arn`.
const ARNS: [&str; 6] = [
    "AWS::DynamoDB::Table",
    "AWS::Events::EventBus",
    "AWS::Lambda::Function",
    "AWS::S3::Bucket",
    "AWS::SQS::Queue",
    "AWS::Serverless::Function",
];

const INSERT: &str = "dynamodb:PartiQLInsert";
