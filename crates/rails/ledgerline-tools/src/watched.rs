//! Rule 11: whatever can fail has an alarm, and every alarm has an entry in the runbook. And who may only read may not
//! write: each route wants the scope of its method.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::permissions::{list, resources};

/// What lacks its alarm, and which alarm lacks its entry.
pub(crate) fn problems(template: &Value, runbook: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(runbook).with_context(|| runbook.display().to_string())?;
    let entries: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor).collect();
    let mut problems: Vec<_> = unwatched(template)
        .into_iter()
        .map(|wanted| {
            format!("rule 11: no alarm watches {} of {}", wanted.metric, wanted.dimensions.join(" "))
        })
        .collect();
    problems.extend(wrong_scopes(template));
    for (id, alarm) in resources(template, &["AWS::CloudWatch::Alarm"]) {
        let description = alarm["Properties"]["AlarmDescription"]["Fn::Sub"].as_str().unwrap_or_default();
        match description.split_once("${RunbookUrl}#") {
            Some((_, entry)) if entries.iter().any(|known| known == entry) => {}
            Some((_, entry)) => {
                problems.push(format!("rule 11: {id} links to {entry}, which is not in the runbook"))
            }
            None => problems.push(format!("rule 11: {id} does not link to the runbook")),
        }
    }
    Ok(problems)
}

/// How a heading of Markdown is linked to.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

/// A metric that an alarm should watch.
#[derive(Debug, PartialEq)]
struct Watched {
    namespace: &'static str,
    metric: &'static str,
    /// Names and what they refer to, `Name=Value`, in order.
    dimensions: Vec<String>,
}

impl Watched {
    fn new(namespace: &'static str, metric: &'static str, dimensions: &[(&str, String)]) -> Self {
        let mut dimensions: Vec<_> =
            dimensions.iter().map(|(name, value)| format!("{name}={value}")).collect();
        dimensions.sort_unstable();
        Self { namespace, metric, dimensions }
    }

    fn function(id: &str, metric: &'static str) -> Self {
        Self::new("AWS/Lambda", metric, &[("FunctionName", id.to_owned())])
    }

    fn queue(id: String, metric: &'static str) -> Self {
        Self::new("AWS/SQS", metric, &[("QueueName", id)])
    }

    /// An alarm that goes off when there is more of it, and tells somebody.
    fn by(&self, alarm: &Value) -> bool {
        let mut dimensions: Vec<_> = list(&alarm["Dimensions"])
            .into_iter()
            .map(|given| {
                format!("{}={}", given["Name"].as_str().unwrap_or_default(), reference(&given["Value"]))
            })
            .collect();
        dimensions.sort_unstable();
        alarm["Namespace"] == self.namespace
            && alarm["MetricName"] == self.metric
            && alarm["ComparisonOperator"] == "GreaterThanThreshold"
            && alarm["AlarmActions"].is_array()
            && dimensions == self.dimensions
    }
}

/// What should be watched and is not.
fn unwatched(template: &Value) -> Vec<Watched> {
    let mut wanted = Vec::new();
    for (id, function) in resources(template, &["AWS::Serverless::Function"]) {
        wanted.push(Watched::function(id, "Errors"));
        wanted.push(Watched::function(id, "Throttles"));
        let properties = &function["Properties"];
        let mut destination = !properties["EventInvokeConfig"]["DestinationConfig"].is_null();
        for event in events(function) {
            let properties = &event["Properties"];
            destination |= !properties["DestinationConfig"].is_null();
            match event["Type"].as_str() {
                Some("DynamoDB") => wanted.push(Watched::function(id, "IteratorAge")),
                Some("SQS") => {
                    let queue = reference(&properties["Queue"]);
                    wanted.push(Watched::queue(queue, "ApproximateAgeOfOldestMessage"));
                }
                // Both dimensions: with the rule's alone, the metric is that of the default bus.
                Some("EventBridgeRule") => wanted.push(Watched::new(
                    "AWS/Events",
                    "FailedInvocations",
                    &[
                        ("EventBusName", reference(&properties["EventBusName"])),
                        ("RuleName", reference(&properties["RuleName"])),
                    ],
                )),
                Some(_) | None => {}
            }
        }
        if destination {
            wanted.push(Watched::function(id, "DestinationDeliveryFailures"));
        }
    }
    for (id, _) in resources(template, &["AWS::SQS::Queue"]).filter(|(id, _)| id.ends_with("DeadLetterQueue"))
    {
        wanted.push(Watched::queue(id.to_owned(), "ApproximateNumberOfMessagesVisible"));
    }
    let alarms: Vec<_> =
        resources(template, &["AWS::CloudWatch::Alarm"]).map(|(_, alarm)| &alarm["Properties"]).collect();
    wanted.retain(|wanted| !alarms.iter().any(|alarm| wanted.by(alarm)));
    wanted
}

fn events(function: &Value) -> impl Iterator<Item = &Value> {
    function["Properties"]["Events"].as_object().into_iter().flat_map(|events| events.values())
}

/// Routes that do not want the one scope that their method calls for.
fn wrong_scopes(template: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (id, function) in resources(template, &["AWS::Serverless::Function"]) {
        for event in events(function).filter(|event| event["Type"] == "HttpApi") {
            let properties = &event["Properties"];
            let wanted = if properties["Method"] == "GET" { "/read" } else { "/write" };
            let scopes = list(&properties["Auth"]["AuthorizationScopes"]);
            let right =
                scopes.iter().all(|scope| scope.as_str().is_some_and(|scope| scope.ends_with(wanted)));
            if scopes.is_empty() || !right {
                problems.push(format!(
                    "{id}: {} {} must want a scope …{wanted}",
                    properties["Method"], properties["Path"]
                ));
            }
        }
    }
    problems
}

/// The logical id that a value refers to, or the text of a substitution.
fn reference(value: &Value) -> String {
    let id = value["Ref"].as_str().or(value["Fn::Sub"].as_str());
    let attribute = value["Fn::GetAtt"].as_str().or(value["Fn::GetAtt"][0].as_str());
    let text = id.or(attribute).or(value.as_str()).unwrap_or_default();
    match value["Fn::GetAtt"].is_null() {
        true => text.to_owned(),
        false => text.split('.').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::new::workspace::tests::WORKSPACE;

    /// That of a new workspace.
    fn template() -> Value {
        ledgerline_local::template::tree(&WORKSPACE.join("template.yaml")).unwrap()
    }

    #[test]
    fn whatever_can_fail_is_watched_and_written_up() {
        let runbook = WORKSPACE.join("docs/runbook.md");
        assert_eq!(problems(&template(), &runbook).unwrap(), Vec::<String>::new());
    }

    /// A token for reading must not change anything.
    #[test]
    fn a_route_with_another_methods_scope_is_found() {
        let auth =
            "/Resources/ItemCommandsFunction/Properties/Events/Rename/Properties/Auth/AuthorizationScopes";
        for scopes in [
            json!(["ledgerline/read"]),
            json!(["ledgerline/write", "ledgerline/read"]),
            json!([]),
            json!(null),
        ] {
            let mut template = template();
            *template.pointer_mut(auth).unwrap() = scopes;
            assert_eq!(wrong_scopes(&template).len(), 1, "{template}");
        }
    }

    /// An alarm on a metric that does not exist never goes off.
    #[test]
    fn an_alarm_that_cannot_go_off_is_found() {
        for (alarm, field, value) in [
            ("ItemsRuleFailures", "/Dimensions", json!([{ "Name": "RuleName", "Value": "x" }])),
            ("FanoutErrors", "/Namespace", json!("AWS/SQS")),
            ("FanoutErrors", "/ComparisonOperator", json!("LessThanThreshold")),
            ("FanoutErrors", "/AlarmActions", json!(null)),
        ] {
            let mut template = template();
            *template.pointer_mut(&format!("/Resources/{alarm}/Properties{field}")).unwrap() = value;
            assert_eq!(unwatched(&template).len(), 1, "{alarm}{field}");
        }
    }

    /// In a new workspace, and in the one in which the rails are developed, with all its alarms.
    #[test]
    fn an_alarm_that_is_missing_is_found() {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../template.yaml");
        let ours = ours.exists().then(|| ledgerline_local::template::tree(&ours).unwrap());
        for whole in [Some(template()), ours].into_iter().flatten() {
            let mut missed = 0;
            for (alarm, resource) in resources(&whole, &["AWS::CloudWatch::Alarm"]) {
                let mut template = whole.clone();
                template["Resources"].as_object_mut().unwrap().remove(alarm);
                let found = unwatched(&template);
                // What the whole API answers, and what an application counts by itself, belongs to no resource that could lack it.
                let of_aws =
                    resource["Properties"]["Namespace"].as_str().is_some_and(|name| name.starts_with("AWS/"));
                assert_eq!(found.len(), usize::from(of_aws), "{alarm}: {found:?}");
                missed += found.len();
            }
            assert!(missed >= 18, "{missed}");
        }
    }
}
