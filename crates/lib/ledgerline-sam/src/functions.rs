//! The functions of a template, each with its manifest: what a check compares, and what generated
//! blocks are written from.

use ledgerline::manifest::{Manifest, Manifests, Name};
use serde_json::Value;

use crate::{
    grants::{referred, resources},
    template::Source,
    wire,
};

/// The template, and the manifests of its functions.
pub(crate) struct Template<'a> {
    pub(crate) source: &'a Source,
    pub(crate) json: &'a Value,
    pub(crate) functions: Vec<Function<'a>>,
}

/// A function of the template, and its manifest.
pub(crate) struct Function<'a> {
    /// Logical id.
    pub(crate) id: &'a str,
    pub(crate) properties: &'a Value,
    pub(crate) manifest: &'a Manifest,
}

impl<'t> Template<'t> {
    pub(crate) fn of(source: &'t Source, json: &'t Value, manifests: &'t Manifests) -> Self {
        let mut functions = Vec::new();
        for (id, resource) in resources(json, &["AWS::Serverless::Function"]) {
            // A missing manifest is a problem of its own.
            let Some(manifest) = manifests.get(binary(resource)) else { continue };
            functions.push(Function { id, properties: &resource["Properties"], manifest });
        }
        Self { source, json, functions }
    }

    /// A problem with a function: its place, which is the closest of these keys below the
    /// function's properties, and what is wrong.
    pub(crate) fn problem(&self, function: &str, keys: &[&str], message: &str) -> String {
        let path = [&["Resources", function, "Properties"], keys].concat();
        format!("{}: {function}: {message}", self.source.place(&path))
    }

    /// Whether a resource is written out, by hand or by a generated block, and not made by a loop.
    pub(crate) fn is_written(&self, id: &str) -> bool {
        self.source.is_written(id) || wire::has_role(self.source.text(), id)
    }

    /// The line by which the reconciler knows a subscriber: the function, its table as the template
    /// names it, the table's keys, and the categories whose commits it takes.
    pub(crate) fn subscriber_line(&self, function: &Function<'_>) -> Option<String> {
        let subscriber = function.manifest.subscriber.as_ref()?;
        let id = named(self, function, &subscriber.table)?;
        let table = function.manifest.table_of(&subscriber.table)?;
        let sort = table.sort.as_deref().unwrap_or("-");
        let of: Vec<_> = function.manifest.categories().into_iter().collect();
        Some(format!("{} ${{{id}}} {} {sort} {}", function.id, table.partition, of.join(" ")))
    }

    /// The type of a resource.
    pub(crate) fn kind(&self, id: &str) -> &'t str {
        self.json["Resources"][id]["Type"].as_str().unwrap_or_default()
    }

    /// The value of a function's variable: the function's own, or that of all functions.
    pub(crate) fn variable(&self, function: &Function<'t>, name: &str) -> Option<&'t Value> {
        variable(self.json, function.properties, name)
    }
}

impl<'t> Function<'t> {
    /// The function's events of this type: names and properties.
    pub(crate) fn events(
        &self,
        kind: &'static str,
    ) -> impl Iterator<Item = (&'t str, &'t Value)> + use<'t> {
        let events = self.properties["Events"].as_object().into_iter().flatten();
        events
            .filter(move |(_, event)| event["Type"] == kind)
            .map(|(name, event)| (name.as_str(), &event["Properties"]))
    }
}

/// The value of a variable of a function with these properties, or of all functions.
pub(crate) fn variable<'t>(
    template: &'t Value,
    function: &'t Value,
    name: &str,
) -> Option<&'t Value> {
    [function, &template["Globals"]["Function"]]
        .into_iter()
        .find_map(|node| node["Environment"]["Variables"].get(name))
}

/// The logical ids that an `Fn::Sub` refers to.
pub(crate) fn substituted(value: &Value) -> impl Iterator<Item = &str> {
    let text = value["Fn::Sub"].as_str().unwrap_or_default();
    text.split("${").skip(1).filter_map(|rest| rest.split('}').next())
}

/// Names with commas between them, for a sentence.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(|name| &**name).collect::<Vec<_>>().join(", ")
}

/// The name of a function's binary.
pub(crate) fn binary(function: &Value) -> &str {
    function["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default()
}

/// The table that a function's variable names. A variable that is missing is a problem of its own:
/// its table is then the one of its name, so that a missing right is named in the same run.
pub(crate) fn named<'t>(
    template: &Template<'t>,
    function: &Function<'t>,
    variable: &str,
) -> Option<&'t str> {
    match template.variable(function, variable) {
        Some(value) => referred(value),
        None => {
            let id = camel(variable);
            let mut tables = resources(template.json, &["AWS::DynamoDB::Table"]);
            tables.find_map(|(known, _)| (known == id).then_some(known))
        }
    }
}

/// The logical id of the table that a variable of this name names: that of `FILLS_TABLE` is
/// `FillsTable`.
pub(crate) fn camel(variable: &str) -> String {
    variable.split('_').map(capital).collect()
}

pub(crate) fn capital(word: &str) -> String {
    let mut rest = word.chars();
    rest.next().into_iter().chain(rest.flat_map(char::to_lowercase)).collect()
}
