//! Merges `deploy.yaml`, what a team writes by hand, over the generated template.
//!
//! The file has the grammar of a template, but no `Transform`. A resource or parameter with `Type`
//! is the team's own. One without `Type` overrides a generated one.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    template::{Source, TemplateError},
    yaml::{self, Kind, Node},
};

/// The name of the file, beside the template.
pub const FILE: &str = "deploy.yaml";

/// The file of a team.
#[derive(Debug, Clone)]
pub struct Deploy {
    path: PathBuf,
    file: Node,
}

/// A part that a template has only on request, because it costs money or time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OptionalPart {
    /// A dashboard of CloudWatch.
    Dashboard,
    /// The web app: a parameter with which the stack serves it.
    WebApp,
}

impl OptionalPart {
    pub(super) const ALL: [(&str, Self); 2] =
        [("Dashboard", Self::Dashboard), ("WebApp", Self::WebApp)];
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

/// What `Metadata.Ledgerline` of the file may say.
const SETTINGS: [&str; 3] = ["Ids", "Override", "Parts"];

type Located<T> = Result<T, (usize, String)>;

impl Deploy {
    /// Reads the file in this folder. A folder without the file has one that says nothing.
    ///
    /// # Errors
    /// With the line, when the file is no YAML, or has an unknown section or setting.
    pub fn read(folder: &Path) -> Result<Self, TemplateError> {
        let path = folder.join(FILE);
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::parse(&path, ""),
            Err(source) => Err(TemplateError::Unreadable { path, source }),
        }
    }

    /// Reads the file from a text.
    ///
    /// # Errors
    /// As those of [`Deploy::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, TemplateError> {
        // A new workspace has a file of comments alone.
        let is_comment = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
        let file = match text.lines().all(is_comment) {
            true => Ok(Node::map::<&str>([])),
            false => yaml::parse_commented(text),
        };
        let deploy = Self { path: path.to_owned(), file: Node::map::<&str>([]) };
        let file = file.map_err(|wrong| deploy.wrong(wrong))?;
        let sections = file.entries().iter().map(|entry| (entry, &SECTIONS[..]));
        let settings = file.descend(&SETTING).map_or(&[][..], Node::entries).iter();
        for ((name, node), known) in sections.chain(settings.map(|entry| (entry, &SETTINGS[..]))) {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                let message = format!("`{name}` cannot be here; choose one of: {known}");
                return Err(deploy.wrong((node.line, message)));
            }
        }
        let mut file = file;
        if let Kind::Map(sections) = &mut file.kind {
            // The comment at the top is for those who edit the file.
            sections.iter_mut().for_each(|(_, section)| section.comment.clear());
        }
        Ok(Self { file, ..deploy })
    }

    /// The place of a node of the template: in this file if it has as many of the keys, and
    /// otherwise in the template.
    pub(crate) fn place(&self, template: &Source, keys: &[&str]) -> String {
        match self.file.deepest(keys) {
            (depth, node) if depth > 1 && depth >= template.depth(keys) => {
                format!("{}:{}", self.path.display(), node.line)
            }
            _ => template.place(keys),
        }
    }

    pub(super) fn wrong(&self, (line, message): (usize, String)) -> TemplateError {
        TemplateError::Wrong { path: self.path.clone(), line, message }
    }

    /// The content of the file.
    pub(super) fn file(&self) -> &Node {
        &self.file
    }

    fn setting(&self, name: &str) -> Option<&Node> {
        self.file.descend(&SETTING)?.get(name)
    }

    /// The resources of the team's own.
    fn own_resources(&self) -> impl Iterator<Item = &(String, Node)> {
        let resources = self.file.get("Resources").map_or(&[][..], Node::entries).iter();
        resources.filter(|(_, resource)| resource.get("Type").is_some())
    }

    /// Whether a resource is the team's own.
    pub(super) fn has_own(&self, id: &str) -> bool {
        self.own_resources().any(|(own, _)| own == id)
    }

    /// Whether the file has the function of this binary.
    pub(super) fn has_function(&self, binary: &str) -> bool {
        let path = ["Metadata", "BuildProperties", "Binary"];
        self.own_resources().any(|(_, it)| it.descend(&path).and_then(Node::as_str) == Some(binary))
    }

    /// The parts that the file adds.
    pub(super) fn parts(&self) -> Result<BTreeSet<OptionalPart>, TemplateError> {
        let part = |node: &Node| {
            let known = OptionalPart::ALL.iter().find(|(name, _)| node.as_str() == Some(name));
            known.map(|(_, part)| *part).ok_or_else(|| {
                let names = OptionalPart::ALL.map(|(name, _)| name).join(", ");
                self.wrong((node.line, format!("there is no such part; choose one of: {names}")))
            })
        };
        self.setting("Parts").map_or(&[][..], Node::items).iter().map(part).collect()
    }

    /// The ids that the file keeps: by the generated id, the one that it has in the template.
    pub(super) fn ids(&self) -> &[(String, Node)] {
        self.setting("Ids").map_or(&[][..], Node::entries)
    }

    /// Returns the file without the resources that replace generated ones, and their ids.
    pub(super) fn without_replacements(&self) -> (Self, Vec<String>) {
        let mut rest = self.clone();
        let mut replacements = Vec::new();
        if let Some(Kind::Map(resources)) = rest.file.get_mut("Resources").map(|it| &mut it.kind) {
            replacements
                .extend(resources.iter().filter(|(_, it)| it.is_own()).map(|(id, _)| id.clone()));
            resources.retain(|(_, resource)| !resource.is_own());
        }
        (rest, replacements)
    }

    /// Returns the template with the file merged over it.
    ///
    /// # Errors
    /// With the line of the file, when it overrides something that is not generated, or has an
    /// entry of its own with a generated name.
    pub(super) fn merge(&self, template: Node) -> Result<Node, TemplateError> {
        for (name, section) in self.file.entries() {
            let known = template.get(name).map_or(&[][..], Node::entries);
            section
                .entries()
                .iter()
                .try_for_each(|(key, node)| check_entry(name, key, node, known, &self.file))
                .map_err(|wrong| self.wrong(wrong))?;
        }
        let mut template = template;
        if let Some(Kind::Map(resources)) = template.get_mut("Resources").map(|node| &mut node.kind)
        {
            let own = self.file.get("Resources");
            resources.retain(|(id, _)| !own.and_then(|own| own.get(id)).is_some_and(Node::is_own));
        }
        // The settings are for the generator.
        let mut file = self.file.clone();
        if let Some(Kind::Map(entries)) = file.get_mut("Metadata").map(|node| &mut node.kind) {
            entries.retain(|(name, _)| name != SETTING[1]);
        }
        // The local stack may run the template without these.
        let mark = Node::new(0, Kind::Scalar(false.into()));
        let mark = Node::map([("Ledgerline", Node::map([("Generated", mark)]))]);
        let mark = Node::map([("Metadata", mark)]);
        let marks = Node::map(self.own_resources().map(|(id, _)| (id.clone(), mark.clone())));
        let file = yaml::merge(file, Node::map([("Resources", marks)]));
        Ok(yaml::merge(template, file))
    }
}

/// The place of the settings.
const SETTING: [&str; 2] = ["Metadata", "Ledgerline"];

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
                    near(name, known.iter().map(|(name, _)| name.as_str())).join(", ")
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

/// The three names that begin most like this one.
pub(super) fn near<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let common = |other: &str| name.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let mut names: Vec<_> = known.into_iter().collect();
    names.sort_by_key(|other| (std::cmp::Reverse(common(other)), other.len().abs_diff(name.len())));
    names.truncate(3);
    names
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
        let deploy = Deploy::parse(Path::new("deploy.yaml"), text);
        let merged = deploy.and_then(|deploy| deploy.merge(yaml::parse(GENERATED).unwrap()));
        merged.map_err(|error| error.to_string())
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
        let mark = json!({ "Ledgerline": { "Generated": false } });
        let expected = json!({ "Type": "AWS::SNS::Topic", "Metadata": mark });
        assert_eq!(resource(own, "Mine"), expected);
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
