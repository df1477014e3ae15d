//! Reads the permissions of functions, each with its action and resource, from a template. The
//! template is the source, or the output of SAM.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::lookup::{list, resources};

/// The actions that change or remove an item. No caller may change or remove a commit (rule 3).
const CHANGES: [&str; 6] = [
    "dynamodb:BatchWriteItem",
    "dynamodb:DeleteItem",
    "dynamodb:PartiQLDelete",
    "dynamodb:PartiQLUpdate",
    "dynamodb:PutItem",
    "dynamodb:UpdateItem",
];

/// The actions of DynamoDB that a function may call on the table of commits.
const HARMLESS: [&str; 6] = [
    "dynamodb:BatchGetItem",
    "dynamodb:DescribeTable",
    "dynamodb:GetItem",
    "dynamodb:PartiQLInsert",
    "dynamodb:Query",
    "dynamodb:Scan",
];

/// The logical id of the table that holds the commits.
pub const COMMITS: &str = "CommitsTable";

/// The logical id of the table that holds `$all`.
pub const SEQUENCE: &str = "SequenceTable";

/// The logical id of the table that holds the actions of operators and the messages that they
/// parked. No function reads or writes it.
pub const OPERATIONS: &str = "OperationsTable";

/// A permission of a function to call an action on a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// Logical id of the function.
    pub function: String,
    /// The short name of the resource: `CommitsTable`, `CommitsTable.StreamArn`,
    /// `ItemsTable/index/byCreator`, or `CommitsTable (item-*)` if only such partition keys are
    /// allowed.
    pub resource: String,
    /// The action, as IAM names it.
    pub action: String,
}

/// The permissions that a template grants, and the problems with them.
#[derive(Debug)]
pub struct Permissions {
    /// The permissions of its functions.
    pub granted: BTreeSet<Permission>,
    /// The permissions that no function should have, and those that cannot be read.
    pub problems: Vec<Problem>,
}

/// A problem with a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Logical id of the resource to change.
    pub resource: String,
    /// The description of the problem.
    pub message: String,
}

fn problem(resource: &str, message: String) -> Problem {
    Problem { resource: resource.to_owned(), message }
}

/// Reads the permissions from a template.
#[must_use]
pub fn read(template: &Value) -> Permissions {
    let mut granted = BTreeSet::new();
    let mut problems = Vec::new();
    let mut roles = BTreeMap::<&str, &str>::new();
    for (id, function) in functions(template) {
        let properties = &function["Properties"];
        let Some(role) =
            properties["Role"]["Fn::GetAtt"].pointer("/0").or(properties["Role"].get("Fn::GetAtt"))
        else {
            problems.push(problem(id, format!("{id} has no role of its own in the template")));
            continue;
        };
        let role = role.as_str().unwrap_or_default().trim_end_matches(".Arn");
        if !properties["Policies"].is_null() {
            problems.push(problem(
                id,
                format!("{id} has Policies: SAM ignores them where there is a Role"),
            ));
        }
        if let Some(other) = roles.insert(role, id) {
            problems.push(problem(id, format!("{id} and {other} share the role {role}")));
        }
        for statement in statements(template, role, &mut problems) {
            if statement["Effect"] != "Allow" {
                continue;
            }
            if statement["Action"].is_null() || statement["Resource"].is_null() {
                let message =
                    format!("{id} has NotAction or NotResource: name the actions and resources");
                problems.push(problem(role, message));
            }
            for action in list(&statement["Action"]) {
                for resource in list(&statement["Resource"]) {
                    let mut permission = Permission {
                        function: id.to_owned(),
                        resource: name(resource),
                        action: action.as_str().unwrap_or_default().to_owned(),
                    };
                    let wrong = too_much(&permission);
                    if let Some(keys) = leading_keys(statement) {
                        permission.resource =
                            with_keys(&permission.resource, keys.iter().map(String::as_str));
                    }
                    if granted.insert(permission) {
                        problems.extend(wrong.map(|message| problem(role, message)));
                    }
                }
            }
        }
    }
    problems.extend(elsewhere(template));
    problems.extend(unprotected(template));
    Permissions { granted, problems }
}

/// The reason why no function may have this permission; `None` if a function may have it.
fn too_much(permission: &Permission) -> Option<String> {
    let Permission { function, resource, action } = permission;
    // A pattern may match the table of commits; a pattern for a stream cannot.
    let commits = [COMMITS, SEQUENCE].contains(&resource.as_str())
        || resource.contains('*') && !resource.contains("/stream/");
    // IAM ignores the case of actions. An action outside `HARMLESS` may change an item, or remove a
    // protection of the table: its policy, its backups, the table itself.
    let is_of_dynamodb = action.to_lowercase().starts_with("dynamodb:") || action.contains('*');
    if commits
        && is_of_dynamodb
        && !HARMLESS.iter().any(|harmless| harmless.eq_ignore_ascii_case(action))
    {
        return Some(format!("rule 3: {function} may {action} on {resource}"));
    }
    if action.contains('*') {
        return Some(format!("{function} may {action}: name the actions"));
    }
    if resource == "*" && !action.starts_with("xray:") {
        return Some(format!("{function} may {action} on all resources: name the resources"));
    }
    None
}

/// Finds permissions that do not come from the function's own role.
fn elsewhere(template: &Value) -> Vec<Problem> {
    let attached = [
        "AWS::IAM::Policy",
        "AWS::IAM::RolePolicy",
        "AWS::IAM::UserPolicy",
        "AWS::IAM::GroupPolicy",
    ];
    let mut problems: Vec<_> = resources(template, &attached)
        .map(|(id, _)| {
            problem(id, format!("{id} attaches a policy: write the statements into the role"))
        })
        .collect();
    for (id, policy) in resources(template, &["AWS::IAM::ManagedPolicy"]) {
        let attaches =
            ["Roles", "Users", "Groups"].iter().any(|to| !policy["Properties"][to].is_null());
        if attaches {
            problems.push(problem(
                id,
                format!("{id} attaches itself: name it in ManagedPolicyArns of the roles"),
            ));
        }
    }
    for (id, table) in resources(template, &["AWS::DynamoDB::Table"]) {
        let statements =
            list(&table["Properties"]["ResourcePolicy"]["PolicyDocument"]["Statement"]);
        if statements.iter().any(|statement| statement["Effect"] != "Deny") {
            let message = format!(
                "the policy of {id} has statements that allow actions: write them into the roles"
            );
            problems.push(problem(id, message));
        }
    }
    problems
}

/// Finds actions that change commits or `$all` and that the table's own policy does not deny to
/// every principal.
fn unprotected(template: &Value) -> Vec<Problem> {
    let has_order = !template["Resources"][SEQUENCE].is_null();
    [Some(COMMITS), Some(SEQUENCE).filter(|_| has_order)]
        .into_iter()
        .flatten()
        .flat_map(|table| unprotected_in(template, table))
        .collect()
}

fn unprotected_in(template: &Value, table: &str) -> Vec<Problem> {
    let policy = &template["Resources"][table]["Properties"]["ResourcePolicy"]["PolicyDocument"];
    let denied: BTreeSet<&str> = list(&policy["Statement"])
        .into_iter()
        .filter(|statement| {
            statement["Effect"] == "Deny"
                && statement["Principal"] == "*"
                && statement["Resource"] == "*"
                && statement["Condition"].is_null()
        })
        .flat_map(|statement| list(&statement["Action"]))
        .filter_map(Value::as_str)
        .collect();
    let open = CHANGES.iter().filter(|action| !denied.contains(*action));
    let open = open.map(|action| format!("rule 3: the policy of {table} does not deny {action}"));
    // DynamoDB refuses a table whose policy has an unknown action. Without this check, only the
    // first deployment would show it.
    let unknown = denied.iter().filter(|action| !CHANGES.contains(action));
    let unknown = unknown
        .map(|action| format!("the policy of {table} denies {action}, which changes no item"));
    open.chain(unknown).map(|message| problem(table, message)).collect()
}

fn functions(template: &Value) -> impl Iterator<Item = (&str, &Value)> {
    resources(template, &["AWS::Serverless::Function", "AWS::Lambda::Function"])
}

/// The statements of a role: its own and those of the template's managed policies.
pub(crate) fn statements<'t>(
    template: &'t Value,
    role: &str,
    problems: &mut Vec<Problem>,
) -> Vec<&'t Value> {
    let properties = &template["Resources"][role]["Properties"];
    let mut documents: Vec<_> =
        list(&properties["Policies"]).into_iter().map(|policy| &policy["PolicyDocument"]).collect();
    for policy in list(&properties["ManagedPolicyArns"]) {
        match policy["Ref"].as_str() {
            Some(id) => documents.push(&template["Resources"][id]["Properties"]["PolicyDocument"]),
            None => {
                let message = format!(
                    "{role} has the managed policy {policy}, whose actions are not in the template"
                );
                problems.push(problem(role, message));
            }
        }
    }
    documents.into_iter().flat_map(|document| list(&document["Statement"])).collect()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::TANKS;

    /// The template of the tanks.
    fn template() -> Value {
        TANKS.json()
    }

    /// Rule 3: the check finds every permission to change commits, in any spelling.
    #[test]
    fn a_permission_to_change_a_commit_is_found() {
        let statements =
            "/Resources/tankCommandsRole/Properties/Policies/0/PolicyDocument/Statement";
        let commits = json!({ "Fn::GetAtt": ["CommitsTable", "Arn"] });
        let commits_again = commits.clone();
        for (action, resource) in [
            (json!("dynamodb:PutItem"), commits.clone()),
            (json!(["dynamodb:Query", "dynamodb:PartiQLUpdate"]), commits.clone()),
            (json!("dynamodb:*"), commits.clone()),
            (json!("*"), commits),
            (json!("dynamodb:DeleteItem"), json!("*")),
            (json!("dynamodb:UpdateItem"), json!({ "Fn::GetAtt": "CommitsTable.Arn" })),
            (json!("dynamodb:putitem"), json!({ "Fn::GetAtt": "CommitsTable.Arn" })),
            (json!("dynamodb:PutItem"), json!({ "Fn::Sub": "${CommitsTable.Arn}*" })),
            (json!("dynamodb:PutItem"), json!("arn:aws:dynamodb:*:*:table/*")),
            (json!("dynamodb:DeleteTable"), commits_again.clone()),
            (json!("dynamodb:PutResourcePolicy"), commits_again.clone()),
            (json!("dynamodb:UpdateTimeToLive"), commits_again),
        ] {
            let mut template = template();
            let statement = json!({ "Effect": "Allow", "Action": action, "Resource": resource });
            template.pointer_mut(statements).unwrap().as_array_mut().unwrap().push(statement);
            let problems = read(&template).problems;
            let of_the_role =
                problems.iter().find(|problem| problem.resource == "tankCommandsRole");
            assert!(
                of_the_role.is_some_and(|found| found.message.contains("TankCommandsFunction may")),
                "{action}"
            );
        }
        let mut template = template();
        let denied =
            "/Resources/CommitsTable/Properties/ResourcePolicy/PolicyDocument/Statement/0/Action";
        template.pointer_mut(denied).unwrap().as_array_mut().unwrap().pop();
        let problems = read(&template).problems;
        let messages: Vec<_> = problems.iter().map(|problem| &problem.message).collect();
        assert_eq!(
            messages,
            ["rule 3: the policy of CommitsTable does not deny dynamodb:PartiQLDelete"]
        );
        let list = template.pointer_mut(denied).unwrap().as_array_mut().unwrap();
        list.extend([json!("dynamodb:PartiQLDelete"), json!("dynamodb:PartiQLDestroy")]);
        let problems = read(&template).problems;
        assert!(
            problems.len() == 1 && problems[0].message.contains("PartiQLDestroy"),
            "{problems:?}"
        );
    }

    /// Such a permission comes from another policy, from a table's policy, or from `NotAction`.
    #[test]
    fn a_permission_that_the_role_does_not_list_is_found() {
        let allow = json!({ "Statement": [{ "Effect": "Allow", "Action": "dynamodb:PutItem", "Resource": "*" }] });
        let but =
            json!({ "Statement": { "Effect": "Allow", "NotAction": "s3:*", "Resource": "*" } });
        for (pointer, value) in [
            (
                "/Resources/Outside",
                json!({ "Type": "AWS::IAM::Policy", "Properties": { "PolicyDocument": allow } }),
            ),
            (
                "/Resources/Outside",
                json!({ "Type": "AWS::IAM::ManagedPolicy", "Properties": { "Roles": ["r"] } }),
            ),
            (
                "/Resources/RequestsTable/Properties/ResourcePolicy",
                json!({ "PolicyDocument": allow }),
            ),
            ("/Resources/FanoutRole/Properties/Policies", json!([{ "PolicyDocument": but }])),
        ] {
            let mut template = template();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            template.pointer_mut(parent).unwrap()[name] = value;
            assert_eq!(read(&template).problems.len(), 1, "{pointer}");
        }
    }

    #[test]
    fn a_shared_or_missing_role_and_an_unknown_managed_policy_are_found() {
        let mut template = template();
        template["Resources"]["FanoutFunction"]["Properties"]["Role"] =
            json!({ "Fn::GetAtt": ["tankCommandsRole", "Arn"] });
        template["Resources"]["LevelsProjectorFunction"]["Properties"]["Role"] = Value::Null;
        template["Resources"]["TankQueriesRole"]["Properties"]["ManagedPolicyArns"] =
            json!(["arn:aws:iam::aws:policy/AdministratorAccess"]);
        let problems = format!("{:?}", read(&template).problems);
        for expected in [
            "share the role tankCommandsRole",
            "LevelsProjectorFunction has no role",
            "AdministratorAccess",
        ] {
            assert!(problems.contains(expected), "{problems}");
        }
    }
}
