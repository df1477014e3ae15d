//! Merges `deploy.yaml`, what a team writes by hand, over the generated template.
//!
//! The file has the grammar of a template, but no `Transform`. A resource or parameter with `Type`
//! is the team's own. One without `Type` overrides a generated one.

use std::path::Path;

use crate::{
    template::TemplateError,
    yaml::{self, Kind, Node},
};

/// The file of a team.
#[derive(Debug, Clone, Copy)]
pub struct Deploy<'a> {
    /// The path, for messages.
    pub path: &'a Path,
    /// The text.
    pub text: &'a str,
}

/// The sections that merge. Those in which only a name says that an entry overrides another come
/// last.
const SECTIONS: [&str; 9] = [
    "Description",
    "Parameters",
    "Globals",
    "Resources",
    "Metadata",
    "Conditions",
    "Rules",
    "Mappings",
    "Outputs",
];

type Located<T> = Result<T, (usize, String)>;

/// Returns the template with the file merged over it.
///
/// # Errors
/// With the line of the file, when it is no YAML, has a section that does not merge, overrides
/// something that is not generated, or has an entry of its own with a generated name.
pub(super) fn merge(template: Node, deploy: Deploy<'_>) -> Result<Node, TemplateError> {
    let wrong =
        |(line, message)| TemplateError::Wrong { path: deploy.path.to_owned(), line, message };
    // A new workspace has a file of comments alone.
    if deploy.text.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
        return Ok(template);
    }
    let file = yaml::parse_commented(deploy.text).map_err(wrong)?;
    for (name, section) in file.entries() {
        if !SECTIONS.contains(&name.as_str()) {
            let message =
                format!("`{name}` cannot be here; choose one of: {}", SECTIONS.join(", "));
            return Err(wrong((section.line, message)));
        }
        let known = template.get(name).map_or(&[][..], Node::entries);
        section
            .entries()
            .iter()
            .try_for_each(|(key, node)| check_entry(name, key, node, known, &file))
            .map_err(wrong)?;
    }
    let is_whole = |node: &Node| {
        node.descend(&["Metadata", "Ledgerline", "Generated"])
            .is_some_and(|value| value.text().as_deref() == Some("false"))
    };
    let mut template = template;
    if let Some(Kind::Map(resources)) = template.get_mut("Resources").map(|node| &mut node.kind) {
        let own = file.get("Resources");
        resources.retain(|(id, _)| !own.and_then(|own| own.get(id)).is_some_and(is_whole));
    }
    Ok(yaml::merge(template, file))
}

/// Checks that an entry of a section overrides what is generated, or has a name of its own.
fn check_entry(
    section: &str,
    name: &str,
    node: &Node,
    known: &[(String, Node)],
    file: &Node,
) -> Located<()> {
    let wrong = |message: String| Err((node.line, message));
    let is_known = known.iter().any(|(known, _)| known == name);
    if node.is_no_value() && section != "Metadata" && section != "Globals" {
        return wrong(format!("`{name}` cannot be removed: give it a condition that is false"));
    }
    match section {
        "Resources" | "Parameters" => {
            let generated = node.descend(&["Metadata", "Ledgerline", "Generated"]);
            match (is_known, node.get("Type")) {
                (false, None) => wrong(format!(
                    "`{name}` has no `Type`, and nothing generated has this name; near it are: {}",
                    near(name, known)
                )),
                (true, Some(_)) if generated.is_none() => wrong(format!(
                    "`{name}` is generated: delete `Type` to override it, or choose another name"
                )),
                (true, _) | (false, Some(_)) => Ok(()),
            }
        }
        "Conditions" | "Rules" | "Mappings" | "Outputs" if is_known => {
            let overrides = file.descend(&["Metadata", "Ledgerline", "Override"]);
            let overrides = overrides.map_or(&[][..], Node::items);
            match overrides.iter().any(|it| it.as_str() == Some(name)) {
                true => Ok(()),
                false => wrong(format!(
                    "`{name}` is generated: to override it, write \
                     `Metadata: {{ Ledgerline: {{ Override: [{name}] }} }}`"
                )),
            }
        }
        _ => Ok(()),
    }
}

/// The names that begin most like this one.
fn near(name: &str, known: &[(String, Node)]) -> String {
    let common = |other: &str| name.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let mut names: Vec<_> = known.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_by_key(|other| (std::cmp::Reverse(common(other)), other.len().abs_diff(name.len())));
    names.truncate(3);
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GENERATED: &str = "Conditions: { IsProd: x }\n\
        Parameters: { LogLevel: { Type: String, Default: INFO } }\n\
        Resources:\n  \
          ItemsFunction:\n    \
            Type: AWS::Serverless::Function\n    \
            Properties: { MemorySize: 256, Timeout: 10, Tags: { a: b }, Role: !Ref R }\n  \
          ItemsTable: { Type: AWS::DynamoDB::Table }\n";

    fn merge_text(text: &str) -> Result<Node, String> {
        let deploy = Deploy { path: Path::new("deploy.yaml"), text };
        merge(yaml::parse(GENERATED).unwrap(), deploy).map_err(|error| error.to_string())
    }

    fn resource(text: &str, id: &str) -> serde_json::Value {
        merge_text(text).unwrap().to_json()["Resources"][id].clone()
    }

    #[test]
    fn an_override_changes_one_property_and_keeps_the_others() {
        let text = "Resources:\n  ItemsFunction:\n    Properties:\n      MemorySize: 1024\n      \
            Timeout: !Ref AWS::NoValue\n      Role: !GetAtt S.Arn\n      Tags: { c: d }\n";
        let expected = json!({
            "MemorySize": 1024, "Tags": { "a": "b", "c": "d" }, "Role": { "Fn::GetAtt": "S.Arn" },
        });
        assert_eq!(resource(text, "ItemsFunction")["Properties"], expected);
    }

    #[test]
    fn an_own_resource_and_a_whole_resource_are_as_the_file_has_them() {
        let own = "Resources: { Mine: { Type: AWS::SNS::Topic } }\n";
        assert_eq!(resource(own, "Mine"), json!({ "Type": "AWS::SNS::Topic" }));
        let whole = "Resources:\n  ItemsFunction:\n    Type: AWS::Serverless::Function\n    \
            Metadata: { Ledgerline: { Generated: false } }\n";
        assert!(resource(whole, "ItemsFunction")["Properties"].is_null());
    }

    #[test]
    fn a_file_of_comments_changes_nothing() {
        assert_eq!(merge_text("# Nothing yet.\n\n"), Ok(yaml::parse(GENERATED).unwrap()));
    }

    #[test]
    fn a_wrong_entry_is_an_error_with_its_line() {
        for (text, expected) in [
            (
                "Resources:\n  ItemFunction:\n    Properties: {}\n",
                "deploy.yaml:3: `ItemFunction` has no `Type`, and nothing generated has this name; \
                 near it are: ItemsFunction, ItemsTable",
            ),
            (
                "Resources:\n  ItemsTable: { Type: AWS::DynamoDB::Table }\n",
                "deploy.yaml:2: `ItemsTable` is generated: delete `Type` to override it",
            ),
            ("Transform: X\n", "deploy.yaml:1: `Transform` cannot be here; choose one of: Descr"),
            ("Conditions:\n  IsProd: y\n", "deploy.yaml:2: `IsProd` is generated: to override it"),
            (
                "Resources:\n  ItemsTable: !Ref AWS::NoValue\n",
                "`ItemsTable` cannot be removed: give it a condition that is false",
            ),
            ("Parameters:\n  Loglevel: { Default: WARN }\n", "near it are: LogLevel"),
        ] {
            let error = merge_text(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let named = "Conditions: { IsProd: y }\nMetadata: { Ledgerline: { Override: [IsProd] } }\n";
        assert_eq!(merge_text(named).unwrap().to_json()["Conditions"]["IsProd"], "y");
    }
}
