//! The functions of a template, each with its manifest. The check compares the two, and `wire`
//! writes the generated blocks from the manifests.

use ledgerline::manifest::{Manifest, Manifests, Name};
use serde_json::Value;

use crate::{
    blocks::has_role,
    lookup::{binary, logical_id, resources, variable},
    template::Source,
};

/// A template, and its functions with their manifests.
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
    pub(crate) fn new(source: &'t Source, json: &'t Value, manifests: &'t Manifests) -> Self {
        let mut functions = Vec::new();
        for (id, resource) in resources(json, &["AWS::Serverless::Function"]) {
            // The check reports a missing manifest separately.
            let Some(manifest) = manifests.get(binary(resource)) else { continue };
            functions.push(Function { id, properties: &resource["Properties"], manifest });
        }
        Self { source, json, functions }
    }

    /// Returns a problem with a function: its place, the function and the message. The keys lead to
    /// the place below the function's properties. If a key is missing, the place is the closest
    /// node above it.
    pub(crate) fn problem(&self, function: &str, keys: &[&str], message: &str) -> String {
        let path = [&["Resources", function, "Properties"], keys].concat();
        format!("{}: {function}: {message}", self.source.place(&path))
    }

    /// Whether a resource has its own text in the template, by hand or in a generated block. The
    /// resources of a loop have none.
    pub(crate) fn is_written(&self, id: &str) -> bool {
        self.source.is_written(id) || has_role(self.source.text(), id)
    }

    /// The line that declares a subscriber to the reconciler. It has the function, its table as the
    /// template names it, the table's keys, and the categories that it consumes.
    pub(crate) fn subscriber_line(&self, function: &Function<'_>) -> Option<String> {
        let subscriber = function.manifest.subscriber.as_ref()?;
        let id = table_of_variable(self, function, &subscriber.table)?;
        let table = function.manifest.table_of(&subscriber.table)?;
        let sort = table.sort.as_deref().unwrap_or("-");
        let of: Vec<_> = function.manifest.categories().into_iter().collect();
        Some(format!("{} ${{{id}}} {} {sort} {}", function.id, table.partition, of.join(" ")))
    }

    /// The type of a resource.
    pub(crate) fn kind(&self, id: &str) -> &'t str {
        self.json["Resources"][id]["Type"].as_str().unwrap_or_default()
    }

    /// The value of a function's variable: its own, or the one in `Globals`.
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

/// Joins names with commas, for a message.
pub(crate) fn join_names<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(|name| &**name).collect::<Vec<_>>().join(", ")
}

/// The logical id of the table that a function's variable names. If the variable is missing, the
/// table follows from the variable's name. So one run reports both the missing variable and the
/// missing right.
pub(crate) fn table_of_variable<'t>(
    template: &Template<'t>,
    function: &Function<'t>,
    variable: &str,
) -> Option<&'t str> {
    match template.variable(function, variable) {
        Some(value) => logical_id(value),
        None => {
            let id = table_id(variable);
            let mut tables = resources(template.json, &["AWS::DynamoDB::Table"]);
            tables.find_map(|(known, _)| (known == id).then_some(known))
        }
    }
}

/// The logical id of the table that belongs to a variable's name: `FillsTable` for `FILLS_TABLE`.
pub(crate) fn table_id(variable: &str) -> String {
    variable.split('_').map(capitalize).collect()
}

pub(crate) fn capitalize(word: &str) -> String {
    let mut rest = word.chars();
    rest.next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(rest.flat_map(char::to_lowercase))
        .collect()
}

/// The anchor of a heading: that of `StuckHauls` is `stuck-hauls`.
pub(crate) fn kebab(name: &str) -> String {
    let mut anchor = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !anchor.is_empty() {
            anchor.push('-');
        }
        anchor.extend(c.to_lowercase());
    }
    anchor
}
