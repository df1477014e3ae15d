//! Generates a role, or the statements of one, from the manifest of its function.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    blocks::resource_around,
    functions::{Function, Template},
    lookup::{binary, logical_id},
    rights::rights,
};

/// The managed policy of every role, which allows the function to write logs and traces.
const LOGS: &str = "LogsAndTraces";

/// The function that has this role.
pub(super) fn function_of<'a, 't>(
    template: &'a Template<'t>,
    role: &str,
) -> Option<&'a Function<'t>> {
    template
        .functions
        .iter()
        .find(|function| logical_id(&function.properties["Role"]) == Some(role))
}

/// The lines of a whole role.
pub(super) fn role(template: &Template<'_>, role: &str, function: &Function<'_>) -> Vec<String> {
    let policy = binary(&template.json["Resources"][function.id]);
    let heads = [
        format!("{role}:"),
        "  Type: AWS::IAM::Role".to_owned(),
        "  Properties:".to_owned(),
        "    AssumeRolePolicyDocument:".to_owned(),
        "      Version: \"2012-10-17\"".to_owned(),
        "      Statement: [{ Effect: Allow, Principal: { Service: lambda.amazonaws.com }, Action: sts:AssumeRole }]".to_owned(),
        format!("    ManagedPolicyArns: [!Ref {LOGS}]"),
    ];
    let grants = grants(template, function);
    let policies = [
        "    Policies:".to_owned(),
        format!("      - PolicyName: {policy}"),
        "        PolicyDocument:".to_owned(),
        "          Version: \"2012-10-17\"".to_owned(),
        "          Statement:".to_owned(),
    ];
    let policies = policies.into_iter().filter(|_| !grants.is_empty());
    heads
        .into_iter()
        .chain(policies)
        .chain(grants.iter().map(|line| format!("            {line}")))
        .collect()
}

/// The statements of the role that contains the last of these lines.
pub(super) fn statements(template: &Template<'_>, before: &[&str]) -> Result<Vec<String>, String> {
    let role = resource_around(before);
    let function = function_of(template, role).ok_or_else(|| {
        format!("the generated block `grants` is in `{role}`, which is the role of no function")
    })?;
    match grants(template, function) {
        grants if grants.is_empty() => {
            Err(format!("`{role}` needs no statement: delete the policy with the block `grants`"))
        }
        grants => Ok(grants),
    }
}

fn grants(template: &Template<'_>, function: &Function<'_>) -> Vec<String> {
    let mut resources = BTreeMap::<String, BTreeSet<String>>::new();
    for (action, resource) in rights(template, function) {
        // A grant on a resource of a parameter is written by hand. The managed policy allows logs
        // and traces.
        let Some(resource) =
            resource.filter(|_| !action.starts_with("logs:") && !action.starts_with("xray:"))
        else {
            continue;
        };
        let id = split_keys(&resource).0.split(['.', '/', ':']).next().unwrap_or_default();
        // A grant on a resource of another type is written by hand, because its ARN has another
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
    grants.into_iter().flat_map(|((actions, keys), on)| statement(&actions, &keys, &on)).collect()
}

/// Splits a short name into a table and the partition keys to which a right on it is narrowed:
/// `CommitsTable (item-*)`.
fn split_keys(resource: &str) -> (&str, Vec<&str>) {
    match resource.strip_suffix(')').and_then(|resource| resource.split_once(" (")) {
        Some((table, keys)) => (table, keys.split(", ").collect()),
        None => (resource, Vec::new()),
    }
}

fn statement(actions: &BTreeSet<String>, keys: &[&str], on: &[&str]) -> Vec<String> {
    let mut actions: Vec<_> = actions.iter().map(String::as_str).collect();
    // An insert by PartiQL has a condition without `Null` (docs/decisions.md, 4).
    if !keys.is_empty() && actions.contains(&INSERT) && actions.len() > 1 {
        actions.retain(|action| *action != INSERT);
        let others = actions.iter().map(|action| (*action).to_owned()).collect();
        return [statement(&[INSERT.to_owned()].into(), keys, on), statement(&others, keys, on)]
            .concat();
    }
    let action = match actions.as_slice() {
        [action] => (*action).to_owned(),
        actions => format!("[{}]", actions.join(", ")),
    };
    let mut heads = vec!["- Effect: Allow".to_owned(), format!("  Action: {action}")];
    if heads[1].len() > WIDTH {
        heads[1] = "  Action:".to_owned();
        heads.extend(actions.iter().map(|action| format!("    - {action}")));
    }
    match (keys, on) {
        ([], [on]) => {
            let short = format!("- {{ Effect: Allow, Action: {action}, Resource: {} }}", arn(on));
            if short.len() <= WIDTH {
                return vec![short];
            }
            heads.into_iter().chain([format!("  Resource: {}", arn(on))]).collect()
        }
        ([], on) => {
            let on = on.iter().map(|on| format!("    - {}", arn(on)));
            heads.into_iter().chain(["  Resource:".to_owned()]).chain(on).collect()
        }
        (keys, on) => on
            .iter()
            .flat_map(|on| {
                let null = if actions == [INSERT] { "" } else { NULL };
                let keys =
                    keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(", ");
                let like =
                    format!("\"ForAllValues:StringLike\": {{ dynamodb:LeadingKeys: [{keys}] }}");
                let short = format!("  Condition: {{ {null}{like} }}");
                let condition = match short.len() <= WIDTH {
                    true => vec![short],
                    false => ["  Condition:".to_owned()]
                        .into_iter()
                        .chain(null.strip_suffix(", ").map(|null| format!("    {null}")))
                        .chain([format!("    {like}")])
                        .collect(),
                };
                let resource = [format!("  Resource: {}", arn(on))];
                heads.clone().into_iter().chain(resource).chain(condition)
            })
            .collect(),
    }
}

/// The most columns of a statement. With its indentation, a statement has at most 120.
const WIDTH: usize = 106;

/// The types of resources that have an attribute `Arn`.
const ARNS: [&str; 5] = [
    "AWS::DynamoDB::Table",
    "AWS::Events::EventBus",
    "AWS::Lambda::Function",
    "AWS::SQS::Queue",
    "AWS::Serverless::Function",
];

const INSERT: &str = "dynamodb:PartiQLInsert";

/// The condition that excludes a request without a key, for which `ForAllValues` is true.
const NULL: &str = "\"Null\": { dynamodb:LeadingKeys: \"false\" }, ";

/// The ARN of a resource, from its short name: `CommitsTable.StreamArn`,
/// `ItemsTable/index/byCreator`, `ItemsProjectorFunction:live`.
fn arn(name: &str) -> String {
    let end = name.find(['/', ':']);
    match end.map(|end| name.split_at(end)) {
        Some((id, rest)) => format!("!Sub \"${{{id}.Arn}}{rest}\""),
        None if name.contains('.') => format!("!GetAtt {name}"),
        None => format!("!GetAtt {name}.Arn"),
    }
}
