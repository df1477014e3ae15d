//! The functions of a template, each with its manifest.

use ledgerline::manifest::{Manifest, Manifests};
use serde_json::Value;

use crate::lookup::{binary, logical_id, resources, variable};

/// A template, and its functions with their manifests.
pub(crate) struct Template<'a> {
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
    pub(crate) fn new(json: &'t Value, manifests: &'t Manifests) -> Self {
        let mut functions = Vec::new();
        for (id, resource) in resources(json, &["AWS::Serverless::Function"]) {
            // A function of the team's own has none.
            let Some(manifest) = manifests.get(binary(resource)) else { continue };
            functions.push(Function { id, properties: &resource["Properties"], manifest });
        }
        Self { json, functions }
    }

    /// The line that declares a subscriber to the reconciler. It has the function, its table as the
    /// template names it, the table's keys, and the categories that it consumes.
    pub(crate) fn subscriber_line(&self, function: &Function<'_>) -> Option<String> {
        let subscriber = function.manifest.subscriber.as_ref().filter(|it| it.view.is_none())?;
        let id = table_of_variable(self, function, &subscriber.table)?;
        let table = function.manifest.table_of(&subscriber.table)?;
        let sort = table.sort.as_deref().unwrap_or("-");
        let of: Vec<_> = function.manifest.categories().into_iter().collect();
        Some(format!("{} ${{{id}}} {} {sort} {}", function.id, table.partition, of.join(" ")))
    }

    /// The line that declares a view in another store to the reconciler: the function, the table of
    /// generations, the key of the view, the function's alias, and the categories.
    pub(crate) fn other_subscriber_line(&self, function: &Function<'_>) -> Option<String> {
        let subscriber = function.manifest.subscriber.as_ref()?;
        let key = subscriber.view.as_ref()?.key();
        let table = table_of_variable(self, function, &subscriber.table)?;
        let id = function.id;
        let of = function.manifest.categories();
        let of = of.into_iter().collect::<Vec<_>>().join(" ");
        Some(format!("{id} ${{{table}}} {key} ${{{id}}}:live {of}"))
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

/// The logical id of the table or bucket that a function's variable names.
pub(crate) fn table_of_variable<'t>(
    template: &Template<'t>,
    function: &Function<'t>,
    variable: &str,
) -> Option<&'t str> {
    logical_id(template.variable(function, variable)?)
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
