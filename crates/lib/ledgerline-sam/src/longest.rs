//! Counts characters with the longest names. CloudFormation makes a name from the name of the stack,
//! the logical id and 14 other characters, and cuts it at the limit of its service.

use serde_json::Value;

use crate::lookup::list;

/// The most characters of a managed policy, without spaces.
pub(crate) const MANAGED: usize = 6_144;

/// The most characters that a value may have after CloudFormation resolves it, without spaces.
pub(crate) fn longest(template: &Value, value: &Value) -> usize {
    match value {
        Value::Object(entries) => match entries.iter().next() {
            Some((function, argument)) if entries.len() == 1 => match function.as_str() {
                "Ref" => 2 + named(template, argument.as_str().unwrap_or_default()),
                "Fn::GetAtt" => {
                    let path = list(argument).into_iter().filter_map(Value::as_str);
                    2 + named(template, &path.collect::<Vec<_>>().join("."))
                }
                "Fn::Sub" => substituted(template, argument.as_str().unwrap_or_default()),
                "Fn::If" => {
                    let values = list(argument).into_iter().skip(1);
                    values.map(|value| longest(template, value)).max().unwrap_or_default()
                }
                // All parts of a text.
                name if name.starts_with("Fn::") => {
                    list(argument).into_iter().map(|part| longest(template, part)).sum()
                }
                _ => object(template, entries),
            },
            _ => object(template, entries),
        },
        Value::Array(items) => {
            2 + items.iter().map(|item| 1 + longest(template, item)).sum::<usize>()
        }
        Value::String(text) => 2 + text.chars().filter(|c| !c.is_whitespace()).count(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string().len(),
    }
}

fn object(template: &Value, entries: &serde_json::Map<String, Value>) -> usize {
    let entry = |(key, value): (&String, &Value)| key.len() + 4 + longest(template, value);
    2 + entries.iter().map(entry).sum::<usize>()
}

fn substituted(template: &Value, text: &str) -> usize {
    let mut parts = text.split("${");
    let first = parts.next().map_or(0, str::len);
    let part = |part: &str| match part.split_once('}') {
        Some((name, rest)) => named(template, name) + rest.len(),
        None => part.len(),
    };
    2 + first + parts.map(part).sum::<usize>()
}

/// The most characters of what a reference such as `ItemsTable.Arn` stands for: the name of the
/// service's resource, and the beginning of its ARN or URL in the region with the longest name.
fn named(template: &Value, name: &str) -> usize {
    let (id, attribute) = name.split_once('.').unwrap_or((name, ""));
    // `arn:aws-us-gov:lambda:us-gov-west-1:123456789012:function:` has 58.
    let arn = if attribute.ends_with("Arn") { 58 } else { 0 };
    let (name, more) = match template["Resources"][id]["Type"].as_str().unwrap_or_default() {
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
