//! Keeps the logical ids of resources with data or an address when names in code change.
//!
//! CloudFormation knows a resource by its id alone: under another id, a table would be a new, empty
//! one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::deploy::{Deploy, near};
use crate::{
    lookup::resources,
    template::TemplateError,
    yaml::{Kind, Node},
};

/// The types of resources that have data or an address outside the stack.
const KEPT: [&str; 13] = [
    "AWS::ApiGatewayV2::Api",
    "AWS::Cognito::UserPool",
    "AWS::Cognito::UserPoolClient",
    "AWS::Cognito::UserPoolDomain",
    "AWS::Cognito::UserPoolResourceServer",
    "AWS::DynamoDB::Table",
    "AWS::Events::EventBus",
    "AWS::KMS::Key",
    "AWS::Kinesis::Stream",
    "AWS::RDS::DBCluster",
    "AWS::S3::Bucket",
    "AWS::SQS::Queue",
    "AWS::Serverless::HttpApi",
];

/// The ids whose loss would lose something, with the type of each. An event of a function has the
/// id that SAM gives to its source.
fn kept_ids(template: &Value) -> BTreeMap<String, String> {
    let kept = resources(template, &KEPT);
    let kept =
        kept.map(|(id, it)| (id.to_owned(), it["Type"].as_str().unwrap_or_default().to_owned()));
    let functions = resources(template, &["AWS::Serverless::Function"]);
    let events = functions.flat_map(|(id, function)| {
        let events = function["Properties"]["Events"].as_object().into_iter().flatten();
        // SAM makes rules, permissions and routes again without a loss.
        let sources = events.filter(|(_, event)| {
            event["Type"]
                .as_str()
                .is_some_and(|kind| ["DynamoDB", "SQS", "Kinesis"].contains(&kind))
        });
        sources.map(move |(event, it)| {
            (format!("{id}{event}"), it["Type"].as_str().unwrap_or_default().to_owned())
        })
    });
    kept.chain(events).collect()
}

/// Returns a sentence for each id of the old template that the new one lacks, with the line for
/// `deploy.yaml` that keeps it. `removed` are the ids that may go.
#[must_use]
pub fn lost_ids(old: &Value, new: &Value, removed: &[String]) -> Vec<String> {
    let (old, new) = (kept_ids(old), kept_ids(new));
    let added: Vec<_> = new.iter().filter(|(id, _)| !old.contains_key(*id)).collect();
    let lost = old.iter().filter(|(id, _)| !new.contains_key(*id) && !removed.contains(id));
    let sentence = |(id, kind): (&String, &String)| {
        let others: Vec<_> =
            added.iter().filter(|(_, other)| *other == kind).map(|(id, _)| id.as_str()).collect();
        let successor = near(id, others.iter().copied()).first().map_or("NEW_ID", |id| id);
        format!(
            "`{id}` ({kind}) would be deleted. If it has another name in the code, keep it by this line in \
             deploy.yaml: Metadata: {{ Ledgerline: {{ Ids: {{ {successor}: {id} }} }} }}. If it may go with its data: \
             cargo xtask wire --remove {id}"
        )
    };
    lost.map(sentence).collect()
}

/// Gives resources and events the ids that they keep, here and where others refer to them.
///
/// # Errors
/// With the line of the file, when nothing is generated with a given id, or the id that it would
/// keep is another resource's.
pub(super) fn keep(mut template: Node, deploy: &Deploy) -> Result<Node, TemplateError> {
    let resources = template.get("Resources").map_or(&[][..], Node::entries);
    let known: BTreeSet<_> = resources.iter().map(|(id, _)| id.clone()).collect();
    for (new, node) in deploy.ids() {
        let wrong = |message| Err(deploy.wrong((node.line, message)));
        let Some(old) = node.as_str() else {
            return wrong(format!("`Ids` gives `{new}` no text: write the id that it keeps"));
        };
        if known.contains(old) {
            return wrong(format!(
                "`Ids` gives `{new}` the id `{old}`, which another resource has"
            ));
        }
        if known.contains(new) {
            rename(&mut template, new, old);
        } else if !rename_event(&mut template, new, old) {
            let near = near(new, known.iter().map(String::as_str)).join(", ");
            return wrong(format!(
                "`Ids` has `{new}`, and nothing generated has this id; near it are: {near}"
            ));
        }
    }
    Ok(template)
}

/// Renames an event, whose id is that of its function and its name. Returns whether there is one.
fn rename_event(template: &mut Node, new: &str, old: &str) -> bool {
    let Some(Kind::Map(resources)) = template.get_mut("Resources").map(|node| &mut node.kind)
    else {
        return false;
    };
    for (id, resource) in resources {
        let (Some(new), Some(old)) = (new.strip_prefix(&**id), old.strip_prefix(&**id)) else {
            continue;
        };
        let events = resource.get_mut("Properties").and_then(|it| it.get_mut("Events"));
        if let Some(Kind::Map(events)) = events.map(|node| &mut node.kind)
            && let Some((name, _)) = events.iter_mut().find(|(name, _)| name == new)
        {
            old.clone_into(name);
            return true;
        }
    }
    false
}

/// Renames a resource, and all references to it.
fn rename(node: &mut Node, new: &str, old: &str) {
    match &mut node.kind {
        Kind::Map(entries) => {
            for (key, value) in entries {
                match (key.as_str(), &mut value.kind) {
                    ("Ref" | "DependsOn", Kind::Scalar(Value::String(text))) if text == new => {
                        old.clone_into(text);
                    }
                    ("Fn::GetAtt", Kind::Scalar(Value::String(text))) => {
                        if let Some(rest) = text.strip_prefix(new).filter(|it| it.starts_with('.'))
                        {
                            *text = format!("{old}{rest}");
                        }
                    }
                    ("DependsOn" | "Fn::GetAtt", Kind::List(items)) => {
                        for item in items.iter_mut().filter(|item| item.as_str() == Some(new)) {
                            item.kind = Kind::Scalar(Value::String(old.to_owned()));
                        }
                    }
                    (name, _) if name == new => old.clone_into(key),
                    _ => {}
                }
                rename(value, new, old);
            }
        }
        Kind::List(items) => items.iter_mut().for_each(|item| rename(item, new, old)),
        Kind::Scalar(Value::String(text)) => *text = in_text(text, new, old),
        Kind::Scalar(_) => {}
    }
}

fn in_text(text: &str, new: &str, old: &str) -> String {
    text.replace(&format!("${{{new}}}"), &format!("${{{old}}}"))
        .replace(&format!("${{{new}."), &format!("${{{old}."))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::yaml;

    /// A file that keeps these ids.
    fn keep_ids(ids: &str) -> Deploy {
        let text = format!("Metadata:\n  Ledgerline: {{ Ids: {{ {ids} }} }}\n");
        Deploy::parse(Path::new("deploy.yaml"), &text).unwrap()
    }

    #[test]
    fn a_kept_id_is_in_every_reference() {
        let text = "Resources:\n  \
            StockTable: { Type: AWS::DynamoDB::Table }\n  \
            F:\n    Type: AWS::Serverless::Function\n    DependsOn: StockTable\n    \
            Properties: { A: !Ref StockTable, B: !GetAtt StockTable.Arn, C: !Sub \"${StockTable}/${StockTable.Arn}\",\
            D: { Fn::GetAtt: [StockTable, Arn] }, Events: { Commits: { Type: SQS } } }\n  \
            G: { Type: X, DependsOn: [F, StockTable] }\n";
        let deploy = keep_ids("StockTable: GoodsTable, FCommits: FMessages");
        let kept = keep(yaml::parse(text).unwrap(), &deploy).unwrap().to_json();
        let properties = &kept["Resources"]["F"]["Properties"];
        assert_eq!(kept["Resources"]["GoodsTable"]["Type"], "AWS::DynamoDB::Table");
        assert_eq!(kept["Resources"]["F"]["DependsOn"], "GoodsTable");
        assert_eq!(kept["Resources"]["G"]["DependsOn"], json!(["F", "GoodsTable"]));
        let expected = json!({
            "A": { "Ref": "GoodsTable" },
            "B": { "Fn::GetAtt": "GoodsTable.Arn" },
            "C": { "Fn::Sub": "${GoodsTable}/${GoodsTable.Arn}" },
            "D": { "Fn::GetAtt": ["GoodsTable", "Arn"] },
            "Events": { "Messages": { "Type": "SQS" } },
        });
        assert_eq!(*properties, expected);
    }

    #[test]
    fn a_lost_table_is_named_with_the_line_that_keeps_it() {
        let with = |id: &str| json!({ "Resources": { id: { "Type": "AWS::DynamoDB::Table" } } });
        let lost = lost_ids(&with("GoodsTable"), &with("StockTable"), &[]).join("\n");
        assert!(lost.contains("`GoodsTable` (AWS::DynamoDB::Table) would be deleted"), "{lost}");
        assert!(lost.contains("{ Ledgerline: { Ids: { StockTable: GoodsTable } } }"), "{lost}");
        let removed = ["GoodsTable".to_owned()];
        assert_eq!(lost_ids(&with("GoodsTable"), &with("StockTable"), &removed), [""; 0]);
    }

    #[test]
    fn an_id_that_nothing_has_or_another_resource_has_is_an_error() {
        let resources = "Resources: { StockTable: { Type: X }, LogTable: { Type: X } }\n";
        for (ids, expected) in [
            ("StokTable: GoodsTable", "near it are: StockTable"),
            (
                "StockTable: LogTable",
                "`Ids` gives `StockTable` the id `LogTable`, which another resource has",
            ),
        ] {
            let error = keep(yaml::parse(resources).unwrap(), &keep_ids(ids)).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("deploy.yaml:2: ") && error.contains(expected), "{error}");
        }
    }
}
