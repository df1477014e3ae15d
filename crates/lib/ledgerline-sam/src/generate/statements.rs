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
    let grants = lines(template, function);
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
    match lines(template, function) {
        grants if grants.is_empty() => {
            Err(format!("`{role}` needs no statement: delete the policy with the block `grants`"))
        }
        grants => Ok(grants),
    }
}

fn lines(template: &Template<'_>, function: &Function<'_>) -> Vec<String> {
    grants(template, function).iter().flat_map(statement).collect()
}

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

fn statement(grant: &Grant) -> Vec<String> {
    let Grant { actions, keys, on } = grant;
    let action = match actions.as_slice() {
        [action] => action.clone(),
        actions => format!("[{}]", actions.join(", ")),
    };
    let mut lines = vec!["- Effect: Allow".to_owned(), format!("  Action: {action}")];
    if lines[1].len() > WIDTH {
        lines[1] = "  Action:".to_owned();
        lines.extend(actions.iter().map(|action| format!("    - {action}")));
    }
    match on.as_slice() {
        [on] => {
            let short = format!("- {{ Effect: Allow, Action: {action}, Resource: {} }}", arn(on));
            if keys.is_empty() && short.len() <= WIDTH {
                return vec![short];
            }
            lines.push(format!("  Resource: {}", arn(on)));
        }
        on => {
            lines.push("  Resource:".to_owned());
            lines.extend(on.iter().map(|on| format!("    - {}", arn(on))));
        }
    }
    if keys.is_empty() {
        return lines;
    }
    let null = if grant.excludes_no_key() { NULL } else { "" };
    let keys = keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>().join(", ");
    let like = format!("\"ForAllValues:StringLike\": {{ dynamodb:LeadingKeys: [{keys}] }}");
    let short = format!("  Condition: {{ {null}{like} }}");
    if short.len() <= WIDTH {
        lines.push(short);
    } else {
        lines.push("  Condition:".to_owned());
        lines.extend(null.strip_suffix(", ").map(|null| format!("    {null}")));
        lines.push(format!("    {like}"));
    }
    lines
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
