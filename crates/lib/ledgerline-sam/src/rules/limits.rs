//! Checks the quotas of CloudFormation, Lambda and IAM that no request can raise, or that would end
//! a deployment halfway. Every name counts with the most characters that it may have: CloudFormation
//! makes it from the name of the stack, the logical id and 14 other characters, and cuts it at the
//! limit of its service.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Rules;
use crate::lookup::{list, logical_id};

/// Resources of a stack, and bytes of its template.
const RESOURCES: usize = 500;
const TEMPLATE: usize = 1_000_000;
/// Characters of all variables of a function.
const VARIABLES: usize = 4_096;
/// Characters of a managed policy, and of all policies in a role, without spaces.
const MANAGED: usize = 6_144;
const INLINE: usize = 10_240;

pub(super) fn check(rules: &mut Rules<'_>) {
    let transformed: usize =
        rules.resources("").map(|(id, it)| made_by_sam(rules.kind(id), it)).sum();
    let place = rules.source.place(&["Resources"]);
    let mut whole = |size: usize, limit: usize, what: &str| {
        if size > limit {
            rules.problems.push(format!(
                "{place}: the stack has {size} {what}, and CloudFormation allows {limit}: move an application \
                 into a workspace of its own"
            ));
        }
    };
    whole(transformed, RESOURCES, "resources after SAM's transformation");
    whole(rules.source.text().len(), TEMPLATE, "bytes of template");
    let globals = &rules.json["Globals"]["Function"]["Environment"]["Variables"];
    for (id, function) in rules.functions() {
        let variables: BTreeMap<_, _> = [globals, &function["Environment"]["Variables"]]
            .into_iter()
            .flat_map(|variables| variables.as_object().into_iter().flatten())
            .collect();
        let length = |(name, value): (&String, &Value)| name.len() + longest(rules, value);
        let sum: usize = variables.into_iter().map(length).sum();
        let what = format!(
            "its variables may have {sum} characters, and Lambda allows {VARIABLES}: run some state projectors on \
             the bus, and merge log projectors"
        );
        rules.require(sum <= VARIABLES, id, "Environment/Variables", what);
    }
    for (id, policy) in rules.resources("AWS::IAM::ManagedPolicy") {
        let size = longest(rules, &policy["PolicyDocument"]);
        let what = format!(
            "the policy may have {size} characters, and IAM allows {MANAGED}: split it into two"
        );
        rules.require(size <= MANAGED, id, "PolicyDocument", what);
    }
    for (id, role) in rules.resources("AWS::IAM::Role") {
        let own = list(&role["Policies"]).into_iter();
        let attached = rules.resources("AWS::IAM::RolePolicy").map(|(_, it)| it);
        let attached = attached.filter(|it| logical_id(&it["RoleName"]) == Some(id));
        let policies = own.chain(attached).map(|policy| &policy["PolicyDocument"]);
        let size: usize = policies.map(|policy| longest(rules, policy)).sum();
        let what = format!(
            "its policies may have {size} characters, and IAM allows {INLINE}: split the function"
        );
        rules.require(size <= INLINE, id, "Policies", what);
    }
}

/// The resources that SAM makes from one. Those of canary deployments count too.
fn made_by_sam(kind: &str, properties: &Value) -> usize {
    match kind {
        // The function, its version, its alias and its deployment group.
        "AWS::Serverless::Function" => {
            let events = properties["Events"].as_object().into_iter().flatten();
            let event = |(_, event): (&String, &Value)| match event["Type"].as_str() {
                // A rule and a permission.
                Some("EventBridgeRule" | "Schedule") => 2,
                _ => 1,
            };
            let invocation = usize::from(!properties["EventInvokeConfig"].is_null());
            4 + invocation + events.map(event).sum::<usize>()
        }
        // The API and its stage.
        "AWS::Serverless::HttpApi" => 2,
        _ => 1,
    }
}

/// The most characters that a value may have after CloudFormation resolves it, without spaces.
fn longest(rules: &Rules<'_>, value: &Value) -> usize {
    match value {
        Value::Object(entries) => match entries.iter().next() {
            Some((function, argument)) if entries.len() == 1 => match function.as_str() {
                "Ref" => named(rules, argument.as_str().unwrap_or_default()),
                "Fn::GetAtt" => {
                    let path = list(argument).into_iter().filter_map(Value::as_str);
                    named(rules, &path.collect::<Vec<_>>().join("."))
                }
                "Fn::Sub" => substituted(rules, argument.as_str().unwrap_or_default()),
                // Both values of a condition, or all parts of a text.
                name if name.starts_with("Fn::") => {
                    list(argument).into_iter().map(|part| longest(rules, part)).sum()
                }
                _ => object(rules, entries),
            },
            _ => object(rules, entries),
        },
        Value::Array(items) => 2 + items.iter().map(|item| 1 + longest(rules, item)).sum::<usize>(),
        Value::String(text) => 2 + text.chars().filter(|c| !c.is_whitespace()).count(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string().len(),
    }
}

fn object(rules: &Rules<'_>, entries: &serde_json::Map<String, Value>) -> usize {
    let entry = |(key, value): (&String, &Value)| key.len() + 4 + longest(rules, value);
    2 + entries.iter().map(entry).sum::<usize>()
}

fn substituted(rules: &Rules<'_>, text: &str) -> usize {
    let mut parts = text.split("${");
    let first = parts.next().map_or(0, str::len);
    let part = |part: &str| match part.split_once('}') {
        Some((name, rest)) => named(rules, name) + rest.len(),
        None => part.len(),
    };
    2 + first + parts.map(part).sum::<usize>()
}

/// The most characters of what a reference such as `ItemsTable.Arn` stands for: the name of the
/// service's resource, and the beginning of its ARN or URL in the region with the longest name.
fn named(rules: &Rules<'_>, name: &str) -> usize {
    let (id, attribute) = name.split_once('.').unwrap_or((name, ""));
    // `arn:aws-us-gov:dynamodb:us-gov-west-1:123456789012:table/` has 57.
    let arn = if attribute.ends_with("Arn") { 57 } else { 0 };
    let (name, more) = match rules.kind(id) {
        "AWS::Serverless::Function" | "AWS::Lambda::Function" | "AWS::IAM::Role" => (64, 0),
        // The stream's time, and the URL of a queue.
        "AWS::DynamoDB::Table" => (255, if attribute == "StreamArn" { 31 } else { 0 }),
        "AWS::SQS::Queue" => (80, if attribute.is_empty() { 57 } else { 0 }),
        "AWS::Events::EventBus" => (256, 0),
        "AWS::Logs::LogGroup" => (512, 0),
        _ => (pseudo(id), 0),
    };
    // The name of a stack has up to 128.
    name.min(128 + id.len() + 14) + arn + more
}

/// The most characters of a pseudo parameter, and the usual ones of a parameter.
fn pseudo(name: &str) -> usize {
    match name {
        "AWS::AccountId" => 12,
        "AWS::Partition" => 10,
        "AWS::Region" => 14,
        "AWS::URLSuffix" => 16,
        "AWS::NoValue" => 0,
        _ => 128,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use crate::{rules::problems, template::Source};

    /// The problems of limits in a template with these resources.
    fn found(resources: &str) -> Vec<String> {
        let text = format!("Resources:\n{resources}");
        let source = Source::parse(&text, std::path::Path::new("nowhere/t.yaml")).unwrap();
        problems(&source, "").into_iter().filter(|it| it.contains("allows")).collect()
    }

    fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
        let mut text = String::new();
        (0..count).for_each(|number| writeln!(text, "{}", line(number)).unwrap());
        text
    }

    #[test]
    fn a_limit_that_is_passed_is_a_problem_with_a_remedy() {
        let table =
            |number| format!("  T{number}: {{ Type: AWS::DynamoDB::Table, Properties: {{}} }}");
        assert_eq!(found(&lines(500, table)), [""; 0]);
        let resources = found(&lines(501, table)).join("\n");
        assert!(resources.contains("the stack has 501 resources"), "{resources}");
        assert!(resources.ends_with("move an application into a workspace of its own"));

        let queue = |number| format!("  Q{number}: {{ Type: AWS::SQS::Queue, Properties: {{}} }}");
        let value: String = (0..30).map(|number| format!("${{Q{number}}} tank\\n")).collect();
        let function = format!(
            "  F:\n    Type: AWS::Serverless::Function\n    \
             Properties: {{ Environment: {{ Variables: {{ LOG_QUEUES: !Sub \"{value}\" }} }} }}\n"
        );
        let variables = found(&(lines(30, queue) + &function)).join("\n");
        assert!(variables.contains(": F: its variables may have 4"), "{variables}");

        let arns: String = (0..40).map(|number| format!("!GetAtt T{number}.Arn, ")).collect();
        let statement = format!("{{ Effect: Allow, Action: dynamodb:Query, Resource: [{arns}] }}");
        let policy = format!(
            "  P:\n    Type: AWS::IAM::ManagedPolicy\n    \
             Properties: {{ PolicyDocument: {{ Statement: [{statement}] }} }}\n"
        );
        let managed = found(&(lines(40, table) + &policy)).join("\n");
        assert!(managed.contains(": P: the policy may have 8"), "{managed}");
    }
}
