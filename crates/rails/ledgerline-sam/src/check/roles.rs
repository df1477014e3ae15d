//! The rights of functions, which must be exactly those that they need.

use std::collections::BTreeSet;

use serde_json::Value;

use ledgerline::manifest::Source;

use super::{Function, Template, substituted, tables::named};
use crate::grants::{self, referred, resources};

/// The actions of an event source mapping on its queue.
const RECEIVING: [&str; 4] =
    ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"];

/// A right that a function needs: an action, and the resource as people name it. The resource is `None` if its name is not in the template, such as
/// an address that mails come from.
type Right = (String, Option<String>);

/// Rights that functions need and do not have, and those that they have and do not need.
pub(super) fn problems(template: &Template<'_>) -> Vec<String> {
    let granted = grants::read(template.json).granted;
    let mut problems = of_nobody(template);
    for function in &template.functions {
        let role = referred(&function.properties["Role"]).unwrap_or(function.id);
        let place = template.source.place(&["Resources", role, "Properties", "Policies"]);
        let needed = rights(template, function);
        let granted: BTreeSet<(&str, &str)> = granted
            .iter()
            .filter(|permission| permission.function == function.id)
            .map(|permission| (permission.action.as_str(), permission.resource.as_str()))
            .collect();
        for (action, resource) in &needed {
            let is_granted = granted.iter().any(|(granted, on)| {
                granted.eq_ignore_ascii_case(action)
                    && resource.as_deref().is_none_or(|resource| resource == *on)
            });
            if !is_granted {
                let on = resource.as_deref().unwrap_or("what it calls");
                problems.push(format!("{place}: {role}: {} needs {action} on {on}: allow it", function.id));
            }
        }
        // Rights that no function knows of, such as those for a customer's own key that encrypts a table.
        let besides = &template.json["Resources"][role]["Metadata"]["Ledgerline"]["Besides"];
        for (action, on) in granted {
            if grants::list(besides).iter().any(|besides| besides.as_str() == Some(action)) {
                continue;
            }
            let is_needed = needed.iter().any(|(needed, resource)| {
                needed.eq_ignore_ascii_case(action)
                    && resource.as_deref().is_none_or(|resource| resource == on)
            });
            if !is_needed {
                problems.push(format!(
                    "{place}: {role}: {} does not need {action} on {on}: take it away",
                    function.id
                ));
            }
        }
    }
    problems
}

/// Problems with roles that Lambda may assume and no function has, such as one made by a name that was left in the list of a loop.
fn of_nobody(template: &Template<'_>) -> Vec<String> {
    let functions = template.functions.iter();
    let had: BTreeSet<_> = functions.filter_map(|function| referred(&function.properties["Role"])).collect();
    let nobodys = resources(template.json, &["AWS::IAM::Role"]).filter(|(id, role)| {
        let trusted = &role["Properties"]["AssumeRolePolicyDocument"];
        !had.contains(id) && trusted.to_string().contains("lambda.amazonaws.com")
    });
    let problem = |(id, _)| {
        let place = template.source.place(&["Resources", id]);
        format!("{place}: {id}: no function has this role: take it away, or its name out of the list")
    };
    nobodys.map(problem).collect()
}

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
