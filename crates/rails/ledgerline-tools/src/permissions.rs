//! Which function may do what on which resource, read off the template and compared with docs/permissions/.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde_json::Value;

/// What changes or removes an item. Nobody may do that to a commit (rule 3).
const CHANGES: [&str; 6] = [
    "dynamodb:BatchWriteItem",
    "dynamodb:DeleteItem",
    "dynamodb:PartiQLDelete",
    "dynamodb:PartiQLUpdate",
    "dynamodb:PutItem",
    "dynamodb:UpdateItem",
];

/// The table of the event store.
const COMMITS: &str = "CommitsTable";

/// One cell of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Permission {
    function: String,
    resource: String,
    action: String,
}

/// What the template grants, and what is wrong with that.
pub(crate) struct Permissions {
    granted: BTreeSet<Permission>,
    problems: Vec<String>,
}

/// Reads the permissions off a template: the source, or the output of SAM.
pub(crate) fn read(template: &Value) -> Permissions {
    let mut granted = BTreeSet::new();
    let mut problems = Vec::new();
    let mut roles = BTreeMap::<&str, &str>::new();
    for (id, function) in functions(template) {
        let properties = &function["Properties"];
        let Some(role) =
            properties["Role"]["Fn::GetAtt"].pointer("/0").or(properties["Role"].get("Fn::GetAtt"))
        else {
            problems.push(format!("{id} has no role of its own in the template"));
            continue;
        };
        let role = role.as_str().unwrap_or_default().trim_end_matches(".Arn");
        if !properties["Policies"].is_null() {
            problems.push(format!("{id} has Policies: SAM ignores them where there is a Role"));
        }
        if let Some(other) = roles.insert(role, id) {
            problems.push(format!("{id} and {other} share the role {role}"));
        }
        for statement in statements(template, role, &mut problems) {
            if statement["Effect"] != "Allow" {
                continue;
            }
            if statement["Action"].is_null() || statement["Resource"].is_null() {
                problems.push(format!("{id} is allowed all but something: name what it may do and on what"));
            }
            for action in list(&statement["Action"]) {
                for resource in list(&statement["Resource"]) {
                    granted.insert(Permission {
                        function: id.to_owned(),
                        resource: name(resource),
                        action: action.as_str().unwrap_or_default().to_owned(),
                    });
                }
            }
        }
    }
    problems.extend(granted.iter().filter_map(too_much));
    problems.extend(elsewhere(template));
    problems.extend(unprotected(template));
    Permissions { granted, problems }
}

/// Why nobody should be allowed this.
fn too_much(permission: &Permission) -> Option<String> {
    let Permission { function, resource, action } = permission;
    // A pattern may be the table, whatever else it is. The stream is written by nobody.
    let commits = resource == COMMITS || resource.contains('*') && !resource.contains("/stream/");
    // IAM does not tell upper from lower case.
    if commits && CHANGES.iter().any(|change| change.eq_ignore_ascii_case(action)) {
        return Some(format!("rule 3: {function} may {action} on {resource}"));
    }
    if action.contains('*') {
        return Some(format!("{function} may {action}: name the actions"));
    }
    if resource == "*" && !action.starts_with("xray:") {
        return Some(format!("{function} may {action} on everything"));
    }
    None
}

/// Permissions that are granted in other ways than by a function's own role.
fn elsewhere(template: &Value) -> Vec<String> {
    let attached =
        ["AWS::IAM::Policy", "AWS::IAM::RolePolicy", "AWS::IAM::UserPolicy", "AWS::IAM::GroupPolicy"];
    let mut problems: Vec<_> = resources(template, &attached)
        .map(|(id, _)| format!("{id} attaches a policy from outside: write it into the role"))
        .collect();
    for (id, policy) in resources(template, &["AWS::IAM::ManagedPolicy"]) {
        let attaches = ["Roles", "Users", "Groups"].iter().any(|to| !policy["Properties"][to].is_null());
        if attaches {
            problems.push(format!("{id} attaches itself: name it in the roles"));
        }
    }
    for (id, table) in resources(template, &["AWS::DynamoDB::Table"]) {
        let statements = list(&table["Properties"]["ResourcePolicy"]["PolicyDocument"]["Statement"]);
        if statements.iter().any(|statement| statement["Effect"] != "Deny") {
            problems.push(format!("the policy of {id} allows something: write it into the roles"));
        }
    }
    problems
}

/// Changes of commits that the table's own policy does not deny to everybody.
fn unprotected(template: &Value) -> Vec<String> {
    let policy = &template["Resources"][COMMITS]["Properties"]["ResourcePolicy"]["PolicyDocument"];
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
    open.map(|action| format!("rule 3: the policy of {COMMITS} does not deny {action}")).collect()
}

fn functions(template: &Value) -> impl Iterator<Item = (&str, &Value)> {
    resources(template, &["AWS::Serverless::Function", "AWS::Lambda::Function"])
}

/// Logical ids and resources of these types.
pub(crate) fn resources<'t>(
    template: &'t Value,
    types: &'t [&'t str],
) -> impl Iterator<Item = (&'t str, &'t Value)> {
    let resources = template["Resources"].as_object().into_iter().flatten();
    resources
        .filter(|(_, resource)| resource["Type"].as_str().is_some_and(|kind| types.contains(&kind)))
        .map(|(id, resource)| (id.as_str(), resource))
}

/// The statements of a role: its own and those of the template's managed policies.
fn statements<'t>(template: &'t Value, role: &str, problems: &mut Vec<String>) -> Vec<&'t Value> {
    let properties = &template["Resources"][role]["Properties"];
    let mut documents: Vec<_> =
        list(&properties["Policies"]).into_iter().map(|policy| &policy["PolicyDocument"]).collect();
    for policy in list(&properties["ManagedPolicyArns"]) {
        match policy["Ref"].as_str() {
            Some(id) => documents.push(&template["Resources"][id]["Properties"]["PolicyDocument"]),
            None => problems.push(format!(
                "{role} has the managed policy {policy}, whose actions are not in the template"
            )),
        }
    }
    documents.into_iter().flat_map(|document| list(&document["Statement"])).collect()
}

/// One or many, as policies have it.
pub(crate) fn list(value: &Value) -> Vec<&Value> {
    match value.as_array() {
        Some(values) => values.iter().collect(),
        None if value.is_null() => Vec::new(),
        None => vec![value],
    }
}

/// A resource as people name it: `CommitsTable`, `CommitsTable.StreamArn`, `ItemsTable/index/byCreator`.
fn name(resource: &Value) -> String {
    if let Some(text) = resource.as_str() {
        return text.to_owned();
    }
    let text = match (&resource["Fn::GetAtt"], &resource["Fn::Sub"], &resource["Ref"]) {
        (Value::Array(parts), _, _) => parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("."),
        (Value::String(path), _, _) => path.clone(),
        (_, Value::String(text), _) => text.replace("${", "").replace('}', ""),
        (_, _, Value::String(id)) => id.clone(),
        _ => resource.to_string(),
    };
    text.replace(".Arn", "")
}

impl Permissions {
    /// By function: a page of Markdown with the table of what it may do.
    fn pages(&self) -> BTreeMap<&str, String> {
        let mut rows = BTreeMap::<&str, BTreeMap<&str, Vec<String>>>::new();
        for Permission { function, resource, action } in &self.granted {
            rows.entry(function).or_default().entry(resource).or_default().push(format!("`{action}`"));
        }
        let page = |function: &str, rows: BTreeMap<&str, Vec<String>>| {
            let mut page = format!("# {function}\n\n| resource | actions |\n|---|---|\n");
            for (resource, actions) in rows {
                page += &format!("| {resource} | {} |\n", actions.join(", "));
            }
            page
        };
        rows.into_iter().map(|(function, rows)| (function, page(function, rows))).collect()
    }

    /// Writes the pages into `folder`, and removes those of functions that are gone.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let pages = self.pages();
        for file in files(folder)?.keys().filter(|name| !pages.contains_key(name.as_str())) {
            fs::remove_file(folder.join(file).with_extension("md"))?;
        }
        for (function, page) in pages {
            fs::write(folder.join(function).with_extension("md"), page)?;
        }
        Ok(())
    }

    /// What is wrong with it, and how the pages in `folder` differ from it.
    pub(crate) fn compared(&self, template: &Value, folder: &Path) -> Result<Compared> {
        let (written, given) = (files(folder)?, self.pages());
        let lines = |page: Option<&String>| -> BTreeSet<String> {
            page.into_iter().flat_map(|page| page.lines()).map(ToOwned::to_owned).collect()
        };
        let mut problems = self.problems.clone();
        let found = problems.len();
        let mut left_over = Vec::new();
        for (function, page) in &given {
            let (written, given) = (lines(written.get(*function)), lines(Some(page)));
            let file = format!("docs/permissions/{function}.md");
            problems.extend(given.difference(&written).map(|row| format!("{file} does not have: {row}")));
            for row in written.difference(&given) {
                // What is about a resource that is gone allows nothing any more.
                let what = row.trim_start_matches("| ").split(|c: char| !c.is_alphanumeric()).next();
                let is_gone = what.is_some_and(|id| !id.is_empty() && template["Resources"][id].is_null());
                let list = if is_gone { &mut left_over } else { &mut problems };
                list.push(format!("{file} has too much: {row}"));
            }
        }
        let gone = written.keys().filter(|function| !given.contains_key(function.as_str()));
        left_over.extend(
            gone.map(|function| format!("docs/permissions/{function}.md: there is no such function")),
        );
        if problems.len() > found {
            problems.push("if that is what they should be allowed: cargo xtask permissions".to_owned());
        }
        Ok(Compared { problems, left_over })
    }
}

/// How pages differ from the template.
pub(crate) struct Compared {
    /// What nobody wrote down, or what is written down and not so.
    pub(crate) problems: Vec<String>,
    /// What is said of functions and resources that are gone.
    pub(crate) left_over: Vec<String>,
}

/// The pages in a folder, by function.
fn files(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for file in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = file?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        files.insert(name, fs::read_to_string(&path).with_context(|| path.display().to_string())?);
    }
    Ok(files)
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
    fn what_is_gone_is_left_over_and_what_is_not_written_down_is_a_problem() {
        let mut template = template();
        let folder = tempfile::tempdir().unwrap();
        read(&template).write(folder.path()).unwrap();
        let compared = |template: &Value| read(template).compared(template, folder.path()).unwrap();
        let Compared { problems, left_over } = compared(&template);
        assert_eq!((problems, left_over), (Vec::new(), Vec::new()));

        fs::write(folder.path().join("GoneFunction.md"), "# GoneFunction\n").unwrap();
        let page = folder.path().join("FanoutFunction.md");
        let text = fs::read_to_string(&page).unwrap();
        fs::write(&page, format!("{text}| GoneQueue | sqs:SendMessage |\n")).unwrap();
        let Compared { problems, left_over } = compared(&template);
        assert_eq!((problems, left_over.len()), (Vec::new(), 2));

        fs::write(&page, format!("{text}| EventBus | events:PutRule |\n")).unwrap();
        assert_eq!(compared(&template).problems.len(), 2, "the row, and what to do about it");
        fs::write(&page, text).unwrap();
        let statements = "/Resources/FanoutRole/Properties/Policies/0/PolicyDocument/Statement/3/Action";
        *template.pointer_mut(statements).unwrap() = json!("events:PutRule");
        let problems = compared(&template).problems.join("\n");
        assert!(
            problems.contains("does not have") && problems.contains("cargo xtask permissions"),
            "{problems}"
        );
    }

    /// Rule 3: whichever way somebody comes to change commits, it is found.
    #[test]
    fn a_way_to_change_a_commit_is_found() {
        let statements = "/Resources/ItemCommandsRole/Properties/Policies/0/PolicyDocument/Statement";
        let commits = json!({ "Fn::GetAtt": ["CommitsTable", "Arn"] });
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
        ] {
            let mut template = template();
            let statement = json!({ "Effect": "Allow", "Action": action, "Resource": resource });
            template.pointer_mut(statements).unwrap().as_array_mut().unwrap().push(statement);
            let problems = read(&template).problems;
            assert!(problems.iter().any(|problem| problem.contains("ItemCommandsFunction may")), "{action}");
        }
        let mut template = template();
        let denied = "/Resources/CommitsTable/Properties/ResourcePolicy/PolicyDocument/Statement/0/Action";
        template.pointer_mut(denied).unwrap().as_array_mut().unwrap().pop();
        assert_eq!(
            read(&template).problems,
            ["rule 3: the policy of CommitsTable does not deny dynamodb:PartiQLDelete"]
        );
    }

    /// What no role of a function shows.
    #[test]
    fn a_permission_from_elsewhere_is_found() {
        let allow =
            json!({ "Statement": [{ "Effect": "Allow", "Action": "dynamodb:PutItem", "Resource": "*" }] });
        let but = json!({ "Statement": { "Effect": "Allow", "NotAction": "s3:*", "Resource": "*" } });
        for (pointer, value) in [
            (
                "/Resources/Outside",
                json!({ "Type": "AWS::IAM::Policy", "Properties": { "PolicyDocument": allow } }),
            ),
            (
                "/Resources/Outside",
                json!({ "Type": "AWS::IAM::ManagedPolicy", "Properties": { "Roles": ["r"] } }),
            ),
            ("/Resources/RequestsTable/Properties/ResourcePolicy", json!({ "PolicyDocument": allow })),
            ("/Resources/FanoutRole/Properties/Policies", json!([{ "PolicyDocument": but }])),
        ] {
            let mut template = template();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            template.pointer_mut(parent).unwrap()[name] = value;
            assert_eq!(read(&template).problems.len(), 1, "{pointer}");
        }
    }

    #[test]
    fn a_role_that_is_shared_or_made_elsewhere_is_found() {
        let mut template = template();
        template["Resources"]["FanoutFunction"]["Properties"]["Role"] =
            json!({ "Fn::GetAtt": ["ItemCommandsRole", "Arn"] });
        template["Resources"]["ItemsProjectorFunction"]["Properties"]["Role"] = Value::Null;
        template["Resources"]["ItemsQueriesRole"]["Properties"]["ManagedPolicyArns"] =
            json!(["arn:aws:iam::aws:policy/AdministratorAccess"]);
        let problems = read(&template).problems.join("\n");
        for expected in
            ["share the role ItemCommandsRole", "ItemsProjectorFunction has no role", "AdministratorAccess"]
        {
            assert!(problems.contains(expected), "{problems}");
        }
    }
}
