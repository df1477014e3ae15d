//! The permissions of each function on each resource, read from the template and compared with docs/permissions/.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use ledgerline_local::permissions::{self, Permission, Permissions, Problem};
use serde_json::Value;

/// The permissions that a template grants, as pages.
pub(crate) struct Pages(Permissions);

/// Reads the permissions from a template: the source, or the output of SAM.
pub(crate) fn read(template: &Value) -> Pages {
    Pages(permissions::read(template))
}

impl Pages {
    /// The pages by function, each with a table of what the function may do.
    fn pages(&self) -> BTreeMap<&str, String> {
        let mut rows = BTreeMap::<&str, BTreeMap<&str, Vec<String>>>::new();
        for Permission { function, resource, action } in &self.0.granted {
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

    /// The problems of the permissions, each with the `place` of its resource, and the differences of the pages in `folder`.
    pub(crate) fn compared(
        &self,
        template: &Value,
        folder: &Path,
        place: impl Fn(&str) -> String,
    ) -> Result<Compared> {
        let (written, given) = (files(folder)?, self.pages());
        let lines = |page: Option<&String>| -> BTreeSet<String> {
            page.into_iter().flat_map(|page| page.lines()).map(ToOwned::to_owned).collect()
        };
        let wrong = self.0.problems.iter();
        let mut problems: Vec<_> =
            wrong.map(|Problem { resource, message }| format!("{}: {message}", place(resource))).collect();
        let found = problems.len();
        let mut left_over = Vec::new();
        for (function, page) in &given {
            let (written, given) = (lines(written.get(*function)), lines(Some(page)));
            let file = format!("docs/permissions/{function}.md");
            problems.extend(given.difference(&written).map(|row| format!("{file} does not have: {row}")));
            for row in written.difference(&given) {
                // A row about a resource that is gone is harmless: it allows nothing any more.
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

/// The differences between the pages and the template.
pub(crate) struct Compared {
    /// The problems of the template itself, permissions that are on no page, and rows of pages that the template does not grant.
    pub(crate) problems: Vec<String>,
    /// Rows and pages about functions and resources that are gone.
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

    /// The template of a new workspace.
    fn template() -> Value {
        ledgerline_local::template::tree(&WORKSPACE.join("template.yaml")).unwrap()
    }

    #[test]
    fn what_is_gone_is_left_over_and_what_is_not_written_down_is_a_problem() {
        let mut template = template();
        let folder = tempfile::tempdir().unwrap();
        read(&template).write(folder.path()).unwrap();
        let compared =
            |template: &Value| read(template).compared(template, folder.path(), ToOwned::to_owned).unwrap();
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

    /// Rule 3: every permission that allows changing commits is found, however it is written.
    #[test]
    fn a_way_to_change_a_commit_is_found() {
        let statements = "/Resources/itemCommandsRole/Properties/Policies/0/PolicyDocument/Statement";
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
            let problems = read(&template).0.problems;
            let of_the_role = problems.iter().find(|problem| problem.resource == "itemCommandsRole");
            assert!(
                of_the_role.is_some_and(|found| found.message.contains("ItemCommandsFunction may")),
                "{action}"
            );
        }
        let mut template = template();
        let denied = "/Resources/CommitsTable/Properties/ResourcePolicy/PolicyDocument/Statement/0/Action";
        template.pointer_mut(denied).unwrap().as_array_mut().unwrap().pop();
        let problems = read(&template).0.problems;
        let messages: Vec<_> = problems.iter().map(|problem| &problem.message).collect();
        assert_eq!(messages, ["rule 3: the policy of CommitsTable does not deny dynamodb:PartiQLDelete"]);
        let list = template.pointer_mut(denied).unwrap().as_array_mut().unwrap();
        list.extend([json!("dynamodb:PartiQLDelete"), json!("dynamodb:PartiQLDestroy")]);
        let problems = read(&template).0.problems;
        assert!(problems.len() == 1 && problems[0].message.contains("PartiQLDestroy"), "{problems:?}");
    }

    /// A permission is found too that the role of a function does not list: by another policy, by a table's policy, or by `NotAction`.
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
            assert_eq!(read(&template).0.problems.len(), 1, "{pointer}");
        }
    }

    #[test]
    fn a_role_that_is_shared_or_made_elsewhere_is_found() {
        let mut template = template();
        template["Resources"]["FanoutFunction"]["Properties"]["Role"] =
            json!({ "Fn::GetAtt": ["itemCommandsRole", "Arn"] });
        template["Resources"]["ItemsProjectorFunction"]["Properties"]["Role"] = Value::Null;
        template["Resources"]["ItemsQueriesRole"]["Properties"]["ManagedPolicyArns"] =
            json!(["arn:aws:iam::aws:policy/AdministratorAccess"]);
        let problems = format!("{:?}", read(&template).0.problems);
        for expected in
            ["share the role itemCommandsRole", "ItemsProjectorFunction has no role", "AdministratorAccess"]
        {
            assert!(problems.contains(expected), "{problems}");
        }
    }
}
