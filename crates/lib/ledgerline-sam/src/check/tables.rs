//! Checks tables with their keys and indexes, and the variables that name them.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::{
    Projection,
    manifest::{Name, Table},
};
use serde_json::Value;

use crate::functions::{Function, Template, join_names, table_id};
use crate::{
    grants::OPERATIONS,
    lookup::{list, resources},
};

/// The variable with the namespace of metrics, which every function must have. Without it, a
/// function uses a default namespace, in which no metric has an alarm.
const METRICS: &str = "METRICS_NAMESPACE";

/// Whether every function may have this variable. Such a variable is one that `ledgerline_lambda`
/// reads without a declaration, or one of Lambda, the SDK, or the libraries of C and Rust.
fn is_everywhere(variable: &str) -> bool {
    ["DEVELOPMENT_USER", "GLIBC_TUNABLES", METRICS, "TZ"].contains(&variable)
        || ["AWS_", "RUST_"].iter().any(|begin| variable.starts_with(begin))
}

/// The variables of the event store's tables, which several functions may write.
const SHARED: [&str; 2] = ["COMMITS_TABLE", "REQUESTS_TABLE"];

/// Finds differences between the variables and tables of the template and those that the functions
/// need.
pub(super) fn problems(template: &Template<'_>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut read = BTreeSet::new();
    // For each table, the functions that write it, and the indexes that functions read.
    let mut writers = BTreeMap::<&str, Vec<&str>>::new();
    let mut indexes = BTreeMap::<&str, BTreeSet<&str>>::new();
    for function in &template.functions {
        problems.extend(variables(template, function));
        read.extend(
            function
                .manifest
                .variables
                .iter()
                .chain(&function.manifest.optional_variables)
                .cloned(),
        );
        for table in &function.manifest.tables {
            let Some(value) = template.variable(function, &table.variable) else { continue };
            match table_of(template, function, table, value) {
                Err(problem) => problems.push(problem),
                Ok(id) => {
                    problems.extend(keys(template, function, table, id));
                    indexes
                        .entry(id)
                        .or_default()
                        .extend(table.indexes.iter().map(|index| &*index.name));
                    if !SHARED.contains(&&*table.variable)
                        && table.actions.keys().any(|action| action.writes())
                    {
                        writers.entry(id).or_default().push(function.id);
                    }
                }
            }
        }
    }
    for (table, writers) in writers.iter().filter(|(_, writers)| writers.len() > 1) {
        let place = template.source.place(&["Resources", table]);
        problems.push(format!(
            "{place}: {table}: more than one function writes it: {}",
            writers.join(", ")
        ));
    }
    let of_functions =
        resources(template.json, &["AWS::DynamoDB::Table"]).filter(|(id, _)| *id != OPERATIONS);
    for (id, table) in of_functions {
        let place = |keys: &[&str]| {
            template.source.place(&[&["Resources", id, "Properties"], keys].concat())
        };
        let Some(read) = indexes.get(id) else {
            problems.push(format!("{}: {id}: no function reads or writes it", place(&[])));
            continue;
        };
        for index in list(&table["Properties"]["GlobalSecondaryIndexes"]) {
            let name = index["IndexName"].as_str().unwrap_or_default();
            if !read.contains(name) {
                let place = place(&["GlobalSecondaryIndexes"]);
                problems.push(format!(
                    "{place}: {id}: no function reads the index {name}, for which every write pays: delete it"
                ));
            }
        }
    }
    let globals = template.json["Globals"]["Function"]["Environment"]["Variables"].as_object();
    for name in globals.into_iter().flat_map(|variables| variables.keys()) {
        if !is_everywhere(name) && !read.contains(name.as_str()) {
            let place =
                template.source.place(&["Globals", "Function", "Environment", "Variables", name]);
            problems.push(format!("{place}: no function reads the variable {name}"));
        }
    }
    problems
}

/// Finds variables that are missing, or that the function does not read.
fn variables<'t>(template: &Template<'t>, function: &Function<'t>) -> Vec<String> {
    let place = ["Environment", "Variables"];
    let own: BTreeSet<Name> = function.properties["Environment"]["Variables"]
        .as_object()
        .into_iter()
        .flat_map(|own| own.keys().map(|name| name.clone().into()))
        .collect();
    let metrics = Name::Borrowed(METRICS);
    let needed = function.manifest.variables.iter().chain([&metrics]);
    let missing: Vec<_> =
        needed.filter(|name| template.variable(function, name).is_none()).collect();
    let is_read = |name: &Name| {
        is_everywhere(name)
            || function.manifest.variables.contains(name)
            || function.manifest.optional_variables.contains(name)
    };
    let unread: Vec<_> = own.iter().filter(|name| !is_read(name)).collect();
    let mut problems = Vec::new();
    if !missing.is_empty() {
        let message = format!("the variable {} is missing", join_names(missing));
        problems.push(template.problem(function.id, &place, &message));
    }
    if !unread.is_empty() {
        let message = format!("it does not read the variable {}", join_names(unread));
        problems.push(template.problem(function.id, &place, &message));
    }
    problems
}

/// Returns the logical id of the table that a variable names, or a problem if it names none.
fn table_of<'t>(
    template: &Template<'_>,
    function: &Function<'_>,
    table: &Table,
    value: &'t Value,
) -> Result<&'t str, String> {
    let place = ["Environment", "Variables", &table.variable];
    let table_id = table_id(&table.variable);
    match value["Ref"].as_str().filter(|id| template.kind(id) == "AWS::DynamoDB::Table") {
        None => {
            let message =
                format!("{} names no table of the template: write !Ref {table_id}", table.variable);
            Err(template.problem(function.id, &place, &message))
        }
        // The id of a table may have more words, such as the owner of the positions in it, or a
        // number for a second table.
        Some(id) if !id.contains(&table_id) => {
            let message =
                format!("{} names {id}: the table must be named {table_id}", table.variable);
            Err(template.problem(function.id, &place, &message))
        }
        Some(id) => Ok(id),
    }
}

/// Finds problems with the keys of a table and of the indexes that the function reads.
fn keys<'t>(
    template: &Template<'t>,
    function: &Function<'t>,
    table: &Table,
    id: &str,
) -> Vec<String> {
    let properties = &template.json["Resources"][id]["Properties"];
    let place =
        |keys: &[&str]| template.source.place(&[&["Resources", id, "Properties"], keys].concat());
    let mut problems = Vec::new();
    let expected = schema(&table.partition, table.sort.as_deref());
    let found = written(&properties["KeySchema"]);
    if found != expected {
        let place = place(&["KeySchema"]);
        problems.push(format!(
            "{place}: {id}: {} expects the keys {expected}, not {found}",
            function.id
        ));
    }
    let indexed = table.indexes.iter().flat_map(|index| [&index.partition, &index.sort]);
    for name in [&table.partition].into_iter().chain(&table.sort).chain(indexed) {
        // The version of a commit, or of a segment of `$all`, is the only key that is a number.
        let expected = if ["COMMITS_TABLE", "SEQUENCE_TABLE"].contains(&&*table.variable)
            && name == "version"
        {
            "N"
        } else {
            "S"
        };
        let attributes = list(&properties["AttributeDefinitions"]);
        let found = attributes.into_iter().find(|attribute| attribute["AttributeName"] == **name);
        if found.is_some_and(|attribute| attribute["AttributeType"] != expected) {
            let place = place(&["AttributeDefinitions"]);
            problems.push(format!("{place}: {id}: {name} must have AttributeType: {expected}"));
        }
    }
    for index in &table.indexes {
        let indexes = list(&properties["GlobalSecondaryIndexes"]);
        let expected = schema(&index.partition, Some(&index.sort));
        match indexes.into_iter().find(|known| known["IndexName"] == *index.name) {
            None => {
                let place = place(&["GlobalSecondaryIndexes"]);
                problems.push(format!(
                    "{place}: {id}: {} reads the index {}, with the keys {expected}, which is missing",
                    function.id, index.name
                ));
            }
            Some(known) => {
                let found = written(&known["KeySchema"]);
                let place = place(&["GlobalSecondaryIndexes"]);
                if found != expected {
                    problems.push(format!(
                        "{place}: {id}: {} expects the keys {expected} of the index {}, not {found}",
                        function.id, index.name
                    ));
                }
                let (projection, reads) = match index.projection {
                    Projection::All => ("ALL", "whole rows"),
                    Projection::KeysOnly => ("KEYS_ONLY", "keys alone"),
                };
                if known["Projection"]["ProjectionType"] != projection {
                    problems.push(format!(
                        "{place}: {id}: {} reads {reads} from the index {}: write ProjectionType: {projection}",
                        function.id, index.name
                    ));
                }
            }
        }
    }
    problems
}

/// The keys of a table as messages name them: `tankId (HASH), entry (RANGE)`.
fn schema(partition: &str, sort: Option<&str>) -> String {
    [Some(format!("{partition} (HASH)")), sort.map(|sort| format!("{sort} (RANGE)"))]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

fn written(schema: &Value) -> String {
    let text = |key: &Value, name: &str| key[name].as_str().unwrap_or("?").to_owned();
    let keys = list(schema)
        .into_iter()
        .map(|key| format!("{} ({})", text(key, "AttributeName"), text(key, "KeyType")));
    keys.collect::<Vec<_>>().join(", ")
}
