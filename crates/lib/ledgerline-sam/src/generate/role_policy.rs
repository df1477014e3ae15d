//! Generates the policy of a role from the grants of its function.

use super::{
    statements::Grant,
    value::{attribute, one_or_list, reference, substitution},
};
use crate::{lookup::FAILURES, yaml::Node};

/// The policies of a role with these grants.
pub(super) fn policies(name: &str, grants: &[Grant]) -> Node {
    let document = Node::map([
        ("Version", Node::from("2012-10-17")),
        ("Statement", Node::list(grants.iter().map(statement))),
    ]);
    Node::list([Node::map([("PolicyName", Node::from(name)), ("PolicyDocument", document)])])
}

fn statement(grant: &Grant) -> Node {
    let mut resources: Vec<_> = grant.on.iter().map(|on| arn(on)).collect();
    let resource = match resources.len() {
        1 => resources.remove(0),
        _ => Node::list(resources),
    };
    let mut statement = vec![
        ("Effect", Node::from("Allow")),
        ("Action", one_or_list(grant.actions.iter().map(String::as_str))),
        ("Resource", resource),
    ];
    if !grant.keys.is_empty() {
        let keys = Node::list(grant.keys.iter().map(|key| Node::from(key.as_str())));
        let condition = |value| Node::map([("dynamodb:LeadingKeys", value)]);
        let null = grant.excludes_no_key().then(|| ("Null", condition("false".into())));
        let like = ("ForAllValues:StringLike", condition(keys));
        statement.push(("Condition", Node::map(null.into_iter().chain([like]))));
    }
    // Lambda's developer guide advises it: otherwise, another account that takes the name of a
    // deleted bucket would get the records.
    if grant.on.iter().all(|on| on.split('/').next() == Some(FAILURES)) {
        let account = Node::map([("s3:ResourceAccount", reference("AWS::AccountId"))]);
        statement.push(("Condition", Node::map([("StringEquals", account)])));
    }
    Node::map(statement)
}

/// The ARN of a resource, from its short name: `CommitsTable.StreamArn`,
/// `ItemsTable/index/byCreator`, `ItemsProjectorFunction:live`.
fn arn(name: &str) -> Node {
    let end = name.find(['/', ':']);
    match end.map(|end| name.split_at(end)) {
        Some((id, rest)) => substitution(format!("${{{id}.Arn}}{rest}")),
        None if name.contains('.') => attribute(name),
        None => attribute(&format!("{name}.Arn")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn grant(actions: &[&str], keys: &[&str], on: &[&str]) -> Grant {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Grant { actions: owned(actions), keys: owned(keys), on: owned(on) }
    }

    #[test]
    fn a_grant_on_some_keys_excludes_a_request_without_keys_unless_it_inserts() {
        let keys = json!({ "dynamodb:LeadingKeys": ["item-*"] });
        let put = statement(&grant(&["dynamodb:PutItem"], &["item-*"], &["ItemsTable"])).to_json();
        let no_key = json!({ "dynamodb:LeadingKeys": "false" });
        assert_eq!(put["Condition"], json!({ "Null": no_key, "ForAllValues:StringLike": keys }));
        let insert =
            statement(&grant(&["dynamodb:PartiQLInsert"], &["item-*"], &["ItemsTable"])).to_json();
        assert_eq!(insert["Condition"], json!({ "ForAllValues:StringLike": keys }));
    }

    #[test]
    fn a_resource_of_a_grant_is_an_arn_that_names_nothing_else() {
        let on = ["ItemsTable", "CommitsTable.StreamArn", "ItemsTable/index/byOwner", "F:live"];
        assert_eq!(
            statement(&grant(&["a:B"], &[], &on)).to_json()["Resource"],
            json!([
                { "Fn::GetAtt": "ItemsTable.Arn" },
                { "Fn::GetAtt": "CommitsTable.StreamArn" },
                { "Fn::Sub": "${ItemsTable.Arn}/index/byOwner" },
                { "Fn::Sub": "${F.Arn}:live" },
            ])
        );
    }
}
