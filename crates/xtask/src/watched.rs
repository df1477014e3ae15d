//! Rule 11: whatever can fail has an alarm, and every alarm has an entry in the runbook.

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
        .map(|(metric, dimension, id)| format!("rule 11: no alarm watches {metric} of {dimension} {id}"))
        .collect();
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

/// Metric, dimension and logical id of what should be watched and is not.
fn unwatched(template: &Value) -> Vec<(&'static str, &'static str, String)> {
    let mut wanted = Vec::new();
    for (id, function) in resources(template, &["AWS::Serverless::Function"]) {
        wanted.push(("Errors", "FunctionName", id.to_owned()));
        wanted.push(("Throttles", "FunctionName", id.to_owned()));
        for event in
            function["Properties"]["Events"].as_object().into_iter().flat_map(|events| events.values())
        {
            let properties = &event["Properties"];
            match event["Type"].as_str() {
                Some("DynamoDB") => wanted.push(("IteratorAge", "FunctionName", id.to_owned())),
                Some("SQS") => {
                    let queue = reference(&properties["Queue"]);
                    wanted.push(("ApproximateAgeOfOldestMessage", "QueueName", queue));
                }
                Some("EventBridgeRule") => {
                    wanted.push(("FailedInvocations", "RuleName", reference(&properties["RuleName"])));
                }
                Some(_) | None => {}
            }
        }
    }
    for (id, _) in resources(template, &["AWS::SQS::Queue"]).filter(|(id, _)| id.ends_with("DeadLetterQueue"))
    {
        wanted.push(("ApproximateNumberOfMessagesVisible", "QueueName", id.to_owned()));
    }
    let alarms: Vec<_> =
        resources(template, &["AWS::CloudWatch::Alarm"]).map(|(_, alarm)| &alarm["Properties"]).collect();
    wanted.retain(|(metric, dimension, id)| {
        !alarms.iter().any(|alarm| {
            let dimensions = list(&alarm["Dimensions"]);
            let mut dimensions = dimensions.iter().filter(|given| given["Name"] == *dimension);
            alarm["MetricName"] == *metric
                && alarm["AlarmActions"].is_array()
                && dimensions.any(|given| reference(&given["Value"]) == *id)
        })
    });
    wanted
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
    use super::*;

    fn template() -> Value {
        local::template::tree(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../template.yaml"))).unwrap()
    }

    #[test]
    fn whatever_can_fail_is_watched_and_written_up() {
        let runbook = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runbook.md"));
        assert_eq!(problems(&template(), runbook).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_alarm_that_is_missing_is_found() {
        let alarms: Vec<_> =
            resources(&template(), &["AWS::CloudWatch::Alarm"]).map(|(id, _)| id.to_owned()).collect();
        let mut missed = 0;
        for alarm in &alarms {
            let mut template = template();
            template["Resources"].as_object_mut().unwrap().remove(alarm);
            let found = unwatched(&template);
            // What the whole API answers belongs to no resource that could lack it.
            if alarm == "ApiFailures" {
                assert_eq!(found, []);
            } else {
                assert_eq!(found.len(), 1, "{alarm}: {found:?}");
                missed += 1;
            }
        }
        assert!(missed >= 16, "{missed}");
    }
}
