//! Reads the permissions of functions, each with its action and resource, from their roles in a
//! template.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::lookup::{list, logical_id, resources};

/// The logical id of the table that holds the commits.
pub const COMMITS: &str = "CommitsTable";

/// The logical id of the table that holds `$all`.
pub const SEQUENCE: &str = "SequenceTable";

/// The logical id of the table that holds the actions of operators and the messages that they
/// parked. No function reads or writes it.
pub const OPERATIONS: &str = "OperationsTable";

/// A permission to call an action on a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Permission {
    /// The short name of the resource: `CommitsTable`, `CommitsTable.StreamArn`,
    /// `ItemsTable/index/byCreator`, or `CommitsTable (item-*)` if only such partition keys are
    /// allowed.
    pub(crate) resource: String,
    /// The action, as IAM names it.
    pub(crate) action: String,
}

/// The permissions of a role: its own, and those of its managed policies.
pub(crate) fn role_permissions(template: &Value, role: &str) -> BTreeSet<Permission> {
    let properties = &template["Resources"][role]["Properties"];
    let managed = list(&properties["ManagedPolicyArns"])
        .into_iter()
        .filter_map(|policy| Some(&template["Resources"][policy["Ref"].as_str()?]["Properties"]));
    permissions(list(&properties["Policies"]).into_iter().chain(managed))
}

/// The permissions of the policies that a team attaches to a role.
pub(crate) fn policy_permissions(template: &Value, role: &str) -> BTreeSet<Permission> {
    let policies = resources(template, &["AWS::IAM::RolePolicy"]).map(|(_, it)| &it["Properties"]);
    permissions(policies.filter(|policy| logical_id(&policy["RoleName"]) == Some(role)))
}

fn permissions<'t>(policies: impl Iterator<Item = &'t Value>) -> BTreeSet<Permission> {
    let mut permissions = BTreeSet::new();
    let statements = policies.flat_map(|policy| list(&policy["PolicyDocument"]["Statement"]));
    for statement in statements.filter(|statement| statement["Effect"] == "Allow") {
        for action in list(&statement["Action"]).into_iter().filter_map(Value::as_str) {
            for resource in list(&statement["Resource"]) {
                let resource = match leading_keys(statement) {
                    Some(keys) => with_keys(&name(resource), keys.iter().map(String::as_str)),
                    None => name(resource),
                };
                permissions.insert(Permission { resource, action: action.to_owned() });
            }
        }
    }
    permissions
}

/// The short name of a table of which only these partition keys are allowed.
pub(crate) fn with_keys<'k>(table: &str, keys: impl Iterator<Item = &'k str>) -> String {
    format!("{table} ({})", keys.collect::<Vec<_>>().join(", "))
}

/// The partition keys to which a statement is narrowed.
fn leading_keys(statement: &Value) -> Option<BTreeSet<String>> {
    let keys = &statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"];
    let keys: BTreeSet<_> = list(keys).into_iter().map(name).collect();
    (!keys.is_empty()).then_some(keys)
}

/// The short name of a resource: `CommitsTable`, `CommitsTable.StreamArn`,
/// `ItemsTable/index/byCreator`.
fn name(resource: &Value) -> String {
    if let Some(text) = resource.as_str() {
        return text.to_owned();
    }
    let text = match (&resource["Fn::GetAtt"], &resource["Fn::Sub"], &resource["Ref"]) {
        (Value::Array(parts), _, _) => {
            parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(".")
        }
        (Value::String(path), _, _) => path.clone(),
        (_, Value::String(text), _) => text.replace("${", "").replace('}', ""),
        (_, _, Value::String(id)) => id.clone(),
        _ => resource.to_string(),
    };
    text.replace(".Arn", "")
}
