//! The rights that a function needs, from its manifest and from what the template gives it.

use std::collections::BTreeSet;

use ledgerline::manifest::Source;
use serde_json::Value;

use crate::{
    functions::{Function, Template, named, substituted},
    grants::{self, referred},
};

/// The actions of an event source mapping on its queue.
const RECEIVING: [&str; 4] =
    ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"];

/// A right that a function needs: an action, and the resource as people name it. The resource is `None` if its name is not in the template, such as
/// an address that mails come from.
type Right = (String, Option<String>);

/// The rights that a function needs.
pub(crate) fn rights<'t>(template: &Template<'t>, function: &Function<'t>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    let mut add =
        |action: &str, resource: &str| _ = rights.insert((action.to_owned(), Some(resource.to_owned())));
    let globals = &template.json["Globals"]["Function"];
    let property = |name: &str| -> &Value {
        let own = &function.properties[name];
        if own.is_null() { &globals[name] } else { own }
    };
    if let Some(group) = referred(&property("LoggingConfig")["LogGroup"]) {
        ["logs:CreateLogStream", "logs:PutLogEvents"].into_iter().for_each(|action| add(action, group));
    }
    // Any value but `PassThrough` needs the rights, because a parameter may make it `Active`.
    if !property("Tracing").is_null() && property("Tracing") != "PassThrough" {
        // X-Ray has no resources, so the right is for `*`.
        ["xray:PutTelemetryRecords", "xray:PutTraceSegments"].into_iter().for_each(|action| add(action, "*"));
    }
    if let Some(queue) = destination(function.properties.get("EventInvokeConfig")) {
        add("sqs:SendMessage", queue);
    }
    match &function.manifest.source {
        // The queue of a function of states holds those that are tried again.
        Source::Queue(_) | Source::States { .. } => {
            for (_, properties) in function.events("SQS") {
                let queue = referred(&properties["Queue"]).unwrap_or_default();
                RECEIVING.into_iter().for_each(|action| add(action, queue));
            }
        }
        Source::Stream => {
            for (_, properties) in function.events("DynamoDB") {
                let table = referred(&properties["Stream"]).unwrap_or_default();
                let stream = format!("{table}.StreamArn");
                ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
                    .into_iter()
                    .for_each(|action| add(action, &stream));
                add("dynamodb:ListStreams", &format!("{table}/stream/*"));
                if let Some(queue) = destination(Some(properties)) {
                    add("sqs:SendMessage", queue);
                }
            }
        }
        Source::Http(_) | Source::Sequence(_) | Source::Schedule => {}
    }
    for table in &function.manifest.tables {
        let Some(id) = named(template, function, &table.variable) else { continue };
        for (action, keys) in &table.actions {
            let narrowed = || grants::with_keys(id, keys.iter().map(|key| &**key));
            add(action.as_str(), &if keys.is_empty() { id.to_owned() } else { narrowed() });
        }
        table.indexes.iter().for_each(|index| add("dynamodb:Query", &format!("{id}/index/{}", index.name)));
    }
    for call in &function.manifest.calls {
        let Some(value) = template.variable(function, &call.variable) else { continue };
        // An empty text has no lines, so nothing is called.
        if value["Fn::Sub"].as_str().or(value.as_str()).is_some_and(|text| text.trim().is_empty()) {
            continue;
        }
        let named: Vec<_> = referred(value).into_iter().chain(substituted(value)).collect();
        if named.is_empty() {
            // The value is a text, or a condition chooses it, so the resource is not known here.
            rights.insert((call.action.to_string(), None));
        }
        for id in named {
            match template.kind(id) {
                // The value is a parameter, so the resource is not known here.
                "" => _ = rights.insert((call.action.to_string(), None)),
                // A function is called by its alias, so that no other version may be called.
                "AWS::Serverless::Function" => {
                    _ = rights.insert((call.action.to_string(), Some(format!("{id}:live"))));
                }
                _ => _ = rights.insert((call.action.to_string(), Some(id.to_owned()))),
            }
        }
    }
    rights
}

/// The queue for events or records that are given up.
fn destination(properties: Option<&Value>) -> Option<&str> {
    referred(properties?.pointer("/DestinationConfig/OnFailure/Destination")?)
}
