//! The statements of a role, from the manifest of the function that has it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{functions::Template, grants::referred, rights::rights};

/// The statements of the role that the last of these lines belong to.
pub(super) fn statements(template: &Template<'_>, before: &[&str]) -> Result<Vec<String>, String> {
    let id = |line: &&str| {
        let id = line.strip_prefix("  ")?.split(':').next()?.to_owned();
        (!id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric())).then_some(id)
    };
    let role = &*before.iter().rev().find_map(id).unwrap_or_default();
    let mut functions = template.functions.iter();
    let function = functions.find(|function| referred(&function.properties["Role"]) == Some(role));
    let function = function.ok_or_else(|| {
        format!("the generated block `grants` is in `{role}`, which is the role of no function")
    })?;
    let mut resources = BTreeMap::<String, BTreeSet<String>>::new();
    for (action, resource) in rights(template, function) {
        // What a parameter names is written by hand, and the managed policies have logs and traces.
        let Some(resource) =
            resource.filter(|_| !action.starts_with("logs:") && !action.starts_with("xray:"))
        else {
            continue;
        };
        let id = narrowed(&resource).0.split(['.', '/', ':']).next().unwrap_or_default();
        // The ARN of another type is written in a way of its own, by hand.
        if ARNS.contains(&template.kind(id)) {
            resources.entry(resource).or_default().insert(action);
        }
    }
    if resources.is_empty() {
        return Err(format!("`{role}` needs no statement: delete the policy with the block `grants`"));
    }
    let mut grants = BTreeMap::<(BTreeSet<String>, Vec<&str>), Vec<&str>>::new();
    for (resource, actions) in &resources {
        let (resource, keys) = narrowed(resource);
        grants.entry((actions.clone(), keys)).or_default().push(resource);
    }
    let mut grants: Vec<_> = grants.into_iter().collect();
    grants.sort_by(|one, other| one.1.cmp(&other.1).then_with(|| one.0.cmp(&other.0)));
    Ok(grants.into_iter().flat_map(|((actions, keys), on)| statement(&actions, &keys, &on)).collect())
}

/// A table, and the partition keys to which a right on it is narrowed: `CommitsTable (item-*)`.
fn narrowed(resource: &str) -> (&str, Vec<&str>) {
    match resource.strip_suffix(')').and_then(|resource| resource.split_once(" (")) {
        Some((table, keys)) => (table, keys.split(", ").collect()),
        None => (resource, Vec::new()),
    }
}

fn statement(actions: &BTreeSet<String>, keys: &[&str], on: &[&str]) -> Vec<String> {
    let mut actions: Vec<_> = actions.iter().map(String::as_str).collect();
    // An insert by PartiQL has a condition without `Null` (docs/decisions/0004).
    if !keys.is_empty() && actions.contains(&INSERT) && actions.len() > 1 {
        actions.retain(|action| *action != INSERT);
        let others = actions.iter().map(|action| (*action).to_owned()).collect();
        return [statement(&[INSERT.to_owned()].into(), keys, on), statement(&others, keys, on)].concat();
    }
    let action = match actions.as_slice() {
        [action] => (*action).to_owned(),
        actions => format!("[{}]", actions.join(", ")),
    };
    match (keys, on) {
        ([], [on]) => vec![format!("- {{ Effect: Allow, Action: {action}, Resource: {} }}", arn(on))],
        ([], on) => {
            let heads = ["- Effect: Allow".to_owned(), format!("  Action: {action}"), "  Resource:".to_owned()];
            heads.into_iter().chain(on.iter().map(|on| format!("    - {}", arn(on)))).collect()
        }
        (keys, on) => on
            .iter()
            .flat_map(|on| {
                let null = if actions == [INSERT] { "" } else { NULL };
                let keys = keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(", ");
                [
                    "- Effect: Allow".to_owned(),
                    format!("  Action: {action}"),
                    format!("  Resource: {}", arn(on)),
                    format!(
                        "  Condition: {{ {null}\"ForAllValues:StringLike\": {{ dynamodb:LeadingKeys: [{keys}] }} }}"
                    ),
                ]
            })
            .collect(),
    }
}

/// The types of resources that have an attribute `Arn`.
const ARNS: [&str; 5] = [
    "AWS::DynamoDB::Table",
    "AWS::Events::EventBus",
    "AWS::Lambda::Function",
    "AWS::SQS::Queue",
    "AWS::Serverless::Function",
];

const INSERT: &str = "dynamodb:PartiQLInsert";

/// Denies a request without a key, for which `ForAllValues` is true.
const NULL: &str = "\"Null\": { dynamodb:LeadingKeys: \"false\" }, ";

/// The ARN of a resource that is named as people name it: `CommitsTable.StreamArn`,
/// `ItemsTable/index/byCreator`, `ItemsProjectorFunction:live`.
fn arn(name: &str) -> String {
    let end = name.find(['/', ':']);
    match end.map(|end| name.split_at(end)) {
        Some((id, rest)) => format!("!Sub \"${{{id}.Arn}}{rest}\""),
        None if name.contains('.') => format!("!GetAtt {name}"),
        None => format!("!GetAtt {name}.Arn"),
    }
}
