//! The examination of the targets of rules.

use std::collections::BTreeSet;

use anyhow::Result;
use aws_sdk_eventbridge::types::Rule;

use super::Findings;
use crate::deployment::Deployment;

/// Finds the functions and queues that rules have as targets, and that do not exist.
pub(super) async fn check_targets(
    deployment: &Deployment,
    bus: &str,
    rules: impl Iterator<Item = &Rule>,
    findings: &mut Findings,
) -> Result<()> {
    let existing = list_functions_and_queues(deployment).await?;
    for rule in rules {
        let name = rule.name().unwrap_or_default();
        for arn in list_targets(deployment, bus, name).await? {
            if is_missing(&arn, &existing) {
                findings.add("rule", name, format!("its target {arn} does not exist"));
            }
        }
    }
    Ok(())
}

/// Whether a target is a function or a queue of the account and Region of the existing ones, and is
/// none of them.
fn is_missing(arn: &str, existing: &BTreeSet<String>) -> bool {
    // An eighth part is the alias of a function.
    let unqualified = arn.split(':').take(7).collect::<Vec<_>>().join(":");
    let place =
        |arn: &str| arn.split(':').skip(3).take(2).map(ToOwned::to_owned).collect::<Vec<_>>();
    let service = arn.split(':').nth(2).unwrap_or_default();
    let is_here = existing.iter().any(|known| place(known) == place(arn));
    ["lambda", "sqs"].contains(&service) && is_here && !existing.contains(&unqualified)
}

/// Returns the ARNs of all functions and queues of the account.
async fn list_functions_and_queues(deployment: &Deployment) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut functions = deployment.lambda.list_functions().into_paginator().items().send();
    while let Some(function) = functions.next().await {
        found.extend(function?.function_arn);
    }
    let function: Option<&String> = found.first();
    let base = function.and_then(|arn| arn.split_once(":function:")).map(|(base, _)| base);
    let base = base.unwrap_or_default().replacen(":lambda:", ":sqs:", 1);
    let mut queues =
        deployment.sqs.list_queues().max_results(1_000).into_paginator().items().send();
    while let Some(url) = queues.next().await {
        let url = url?;
        found.insert(format!("{base}:{}", url.rsplit('/').next().unwrap_or_default()));
    }
    Ok(found)
}

/// Returns the ARNs of a rule's targets, of which it has five at most.
async fn list_targets(deployment: &Deployment, bus: &str, rule: &str) -> Result<Vec<String>> {
    let list = deployment.events.list_targets_by_rule().event_bus_name(bus).rule(rule);
    let targets = list.send().await?.targets.unwrap_or_default();
    Ok(targets.into_iter().map(|target| target.arn).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_of_this_account_that_does_not_exist_is_missing() {
        let function = "arn:aws:lambda:eu-west-1:1:function:fills";
        let existing =
            BTreeSet::from([function.to_owned(), "arn:aws:sqs:eu-west-1:1:tap".to_owned()]);
        for (arn, expected) in [
            (function, false),
            ("arn:aws:lambda:eu-west-1:1:function:fills:live", false),
            ("arn:aws:sqs:eu-west-1:1:tap", false),
            ("arn:aws:sqs:eu-west-1:1:old-tap", true),
            ("arn:aws:lambda:eu-west-1:1:function:levels:live", true),
            ("arn:aws:sqs:eu-west-1:2:old-tap", false),
            ("arn:aws:sqs:us-east-1:1:old-tap", false),
            ("arn:aws:events:eu-west-1:1:event-bus/other", false),
        ] {
            assert_eq!(is_missing(arn, &existing), expected, "{arn}");
        }
    }
}
