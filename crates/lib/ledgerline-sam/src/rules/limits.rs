//! Checks the quotas of CloudFormation, Lambda and IAM that no request can raise, or that would end
//! a deployment halfway.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Rules;
use crate::{
    longest::{MANAGED, longest},
    lookup::{list, logical_id},
};

/// Resources of a stack, and bytes of its template.
const RESOURCES: usize = 500;
const TEMPLATE: usize = 1_000_000;
/// Characters of all variables of a function.
const VARIABLES: usize = 4_096;
/// Characters of all policies in a role, without spaces.
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
        let length = |(name, value): (&String, &Value)| name.len() + longest(rules.json, value);
        let sum: usize = variables.into_iter().map(length).sum();
        let what = format!(
            "its variables may have {sum} characters, and Lambda allows {VARIABLES}: run some state projectors on \
             the bus, and merge log projectors"
        );
        rules.require(sum <= VARIABLES, id, "Environment/Variables", what);
    }
    for (id, policy) in rules.resources("AWS::IAM::ManagedPolicy") {
        let size = longest(rules.json, &policy["PolicyDocument"]);
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
        let size: usize = policies.map(|policy| longest(rules.json, policy)).sum();
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
