//! The rights that a function needs. They follow from its manifest and its properties in the
//! template.

use std::collections::BTreeSet;

use ledgerline::manifest::{BODIES_BUCKET, Source};
use serde_json::Value;

use crate::{
    functions::{Function, Template, table_of_variable},
    lookup::{logical_id, substitutions},
};

/// The actions of an event source mapping on its queue.
const RECEIVING: [&str; 4] = [
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:ReceiveMessage",
];

/// A right that a function needs: an action, and the short name of a resource. The resource is
/// `None` if the template does not name it, such as the sender address of mails.
type Right = (String, Option<String>);

/// The rights that a function needs.
pub(crate) fn rights<'t>(template: &Template<'t>, function: &Function<'t>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    add_platform(template, function, &mut rights);
    add_source(template, function, &mut rights);
    add_tables(template, function, &mut rights);
    add_bodies(template, function, &mut rights);
    add_calls(template, function, &mut rights);
    rights
}

fn add(rights: &mut BTreeSet<Right>, action: &str, resource: &str) {
    rights.insert((action.to_owned(), Some(resource.to_owned())));
}

/// Adds the rights to write logs and traces, and to send to the dead-letter queue of asynchronous
/// invocations.
fn add_platform(template: &Template<'_>, function: &Function<'_>, rights: &mut BTreeSet<Right>) {
    let globals = &template.json["Globals"]["Function"];
    let property = |name: &str| -> &Value {
        let own = &function.properties[name];
        if own.is_null() { &globals[name] } else { own }
    };
    if let Some(group) = logical_id(&property("LoggingConfig")["LogGroup"]) {
        ["logs:CreateLogStream", "logs:PutLogEvents"]
            .into_iter()
            .for_each(|action| add(rights, action, group));
    }
    // Any value but `PassThrough` needs the rights, because a parameter may make it `Active`.
    if !property("Tracing").is_null() && property("Tracing") != "PassThrough" {
        // X-Ray has no resources, so the right is for `*`.
        for action in ["xray:PutTelemetryRecords", "xray:PutTraceSegments"] {
            add(rights, action, "*");
        }
    }
    if let Some(queue) = destination(function.properties.get("EventInvokeConfig")) {
        add(rights, "sqs:SendMessage", queue);
    }
}

/// Adds the rights on the queue or the stream that Lambda reads for the function.
fn add_source<'t>(template: &Template<'t>, function: &Function<'t>, rights: &mut BTreeSet<Right>) {
    match &function.manifest.source {
        // The queue of a state projector contains states to retry.
        Source::Queue(_) | Source::States { .. } => {
            for (_, properties) in function.events("SQS") {
                let queue = logical_id(&properties["Queue"]).unwrap_or_default();
                RECEIVING.into_iter().for_each(|action| add(rights, action, queue));
            }
        }
        Source::Stream => {
            for (_, properties) in function.events("DynamoDB") {
                let table = logical_id(&properties["Stream"]).unwrap_or_default();
                let stream = format!("{table}.StreamArn");
                for action in
                    ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
                {
                    add(rights, action, &stream);
                }
                add(rights, "dynamodb:ListStreams", &format!("{table}/stream/*"));
                match destination(Some(properties)) {
                    Some(bucket) if template.kind(bucket) == "AWS::S3::Bucket" => {
                        add(rights, "s3:ListBucket", bucket);
                        add(rights, "s3:PutObject", &format!("{bucket}/*"));
                    }
                    Some(queue) => add(rights, "sqs:SendMessage", queue),
                    None => {}
                }
            }
        }
        Source::Http(_) | Source::Sequence(_) | Source::Schedule | Source::SignUp => {}
    }
}

/// Adds the rights on tables, narrowed to partition keys, and on their indexes.
fn add_tables<'t>(template: &Template<'t>, function: &Function<'t>, rights: &mut BTreeSet<Right>) {
    for table in &function.manifest.tables {
        let Some(id) = table_of_variable(template, function, &table.variable) else { continue };
        for (action, keys) in &table.actions {
            let narrowed = || with_keys(id, keys.iter().map(|key| &**key));
            add(rights, action.as_str(), &if keys.is_empty() { id.to_owned() } else { narrowed() });
        }
        for index in &table.indexes {
            add(rights, "dynamodb:Query", &format!("{id}/index/{}", index.name));
        }
    }
}

/// Adds the rights on the body objects of the function's categories.
fn add_bodies<'t>(template: &Template<'t>, function: &Function<'t>, rights: &mut BTreeSet<Right>) {
    let Some(bodies) = &function.manifest.bodies else { return };
    let Some(bucket) = table_of_variable(template, function, BODIES_BUCKET) else { return };
    for (action, categories) in [("s3:GetObject", &bodies.reads), ("s3:PutObject", &bodies.writes)]
    {
        for category in categories {
            add(rights, action, &format!("{bucket}/bodies/{category}-*"));
        }
    }
}

/// The short name of a table of which only these partition keys are allowed.
fn with_keys<'k>(table: &str, keys: impl Iterator<Item = &'k str>) -> String {
    format!("{table} ({})", keys.collect::<Vec<_>>().join(", "))
}

/// Adds the rights to make other calls, on the resources that their variables name.
fn add_calls<'t>(template: &Template<'t>, function: &Function<'t>, rights: &mut BTreeSet<Right>) {
    for call in &function.manifest.calls {
        let Some(value) = template.variable(function, &call.variable) else { continue };
        // An empty text has no lines, so the function makes no call.
        if value["Fn::Sub"].as_str().or(value.as_str()).is_some_and(|text| text.trim().is_empty()) {
            continue;
        }
        let named: Vec<_> = logical_id(value).into_iter().chain(substitutions(value)).collect();
        if named.is_empty() {
            // The value is a text, or a condition chooses it, so the resource is not known here.
            rights.insert((call.action.to_string(), None));
        }
        for id in named {
            // A line may name resources of two services.
            let is_other_service = match (&*call.action, template.kind(id)) {
                (action, "AWS::Serverless::Function") => !action.starts_with("lambda:"),
                (action, "AWS::DynamoDB::Table") => !action.starts_with("dynamodb:"),
                (_, _) => false,
            };
            if is_other_service {
                continue;
            }
            let resource = match template.kind(id) {
                // The value is a parameter, so the resource is not known here.
                "" => None,
                // The right is on the alias only, so the caller cannot invoke another version.
                "AWS::Serverless::Function" => Some(format!("{id}:live")),
                _ => Some(id.to_owned()),
            };
            rights.insert((call.action.to_string(), resource));
        }
    }
}

/// The destination of events or records that Lambda gives up: a queue, or a bucket.
fn destination(properties: Option<&Value>) -> Option<&str> {
    logical_id(properties?.pointer("/DestinationConfig/OnFailure/Destination")?)
}
