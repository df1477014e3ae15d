//! Groups functions under the names of their applications and aggregates.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::manifest::{Action, OtherView, Table, VIEWS_TABLE};

use super::function::Function;
use crate::yaml::Node;

/// The functions by the heading above them: the folder of their application, and the categories of
/// their aggregates. A function that only reads views has the heading of those that write them.
pub(super) fn groups<'f, 'a>(
    functions: &'f [Function<'a>],
    folders: &BTreeMap<String, String>,
) -> BTreeMap<String, Vec<&'f Function<'a>>> {
    let mut writers = BTreeMap::<String, BTreeSet<&str>>::new();
    for function in functions {
        if let Some(subscriber) = &function.manifest.subscriber {
            let view = subscriber.view.as_ref().map(OtherView::key);
            let view = view.unwrap_or_else(|| function.table(&subscriber.table));
            writers.entry(view).or_default().extend(function.categories());
        }
    }
    let mut groups = BTreeMap::<String, Vec<_>>::new();
    for function in functions.iter().filter(|function| !function.kind.is_single()) {
        let mut categories: BTreeSet<_> = function.categories().into_iter().collect();
        if categories.is_empty() {
            let tables = function.manifest.tables.iter();
            let views = tables.flat_map(|table| views(function, table));
            categories.extend(views.filter_map(|view| writers.get(&view)).flatten());
        }
        let categories = categories.into_iter().collect::<Vec<_>>().join(", ");
        let parts = [folders.get(function.binary).map_or("", String::as_str), &categories];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        groups.entry(parts.join(": ")).or_default().push(function);
    }
    groups
}

/// Returns the views that a function reads by a table. One table has the generations of all views
/// in other stores.
fn views(function: &Function<'_>, table: &Table) -> Vec<String> {
    match table.actions.get(&Action::GetItem) {
        Some(keys) if table.variable == VIEWS_TABLE.variable => {
            keys.iter().map(ToString::to_string).collect()
        }
        Some(_) | None => vec![function.table(&table.variable)],
    }
}

/// The resources, with a heading above the first.
pub(super) fn with_heading(mut fragment: Node, heading: &str) -> Node {
    let heading = match heading {
        "" => "Other functions",
        heading => heading,
    };
    if let Some(first) = fragment.get_mut("Resources").and_then(Node::first_mut) {
        let line = format!("--- {heading} {}", "-".repeat(105_usize.saturating_sub(heading.len())));
        first.comment = [vec![line, String::new()], std::mem::take(&mut first.comment)].concat();
    }
    fragment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{manifests, tests::TANKS};

    #[test]
    fn functions_of_an_application_are_together_under_its_name_and_aggregates() {
        // Given functions of two applications, and one outside of them,
        let manifests = manifests::in_template(&TANKS.json()).unwrap().unwrap();
        let names = ["haul", "haul-commands", "tank-commands", "tank-queries", "levels-projector"];
        let functions: Vec<_> =
            names.map(|name| Function::new(name, &manifests[name]).unwrap()).into();
        let folders = [
            ("haul", "yard"),
            ("tank-commands", "yard"),
            ("levels-projector", "levels"),
            ("tank-queries", "levels"),
        ];
        let folders = folders.map(|(name, folder)| (name.to_owned(), folder.to_owned())).into();
        // when they are grouped,
        let groups = groups(&functions, &folders);
        // then a query is beside the view that it reads.
        let groups: Vec<_> = groups
            .iter()
            .map(|(heading, of)| (&**heading, of.iter().map(|it| it.binary).collect::<Vec<_>>()))
            .collect();
        let expected = [
            ("haul", vec!["haul-commands"]),
            ("levels: tank", vec!["tank-queries", "levels-projector"]),
            ("yard: haul", vec!["haul"]),
            ("yard: tank", vec!["tank-commands"]),
        ];
        assert_eq!(groups, expected);
    }
}
