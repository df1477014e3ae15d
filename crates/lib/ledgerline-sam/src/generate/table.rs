//! Generates the tables of views and process managers from the declarations of all functions.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use ledgerline::manifest::{Index, OtherView, Subscriber, Table};

use super::function::Function;
use crate::yaml::{Kind, Node};

/// The tables of the log, which are parts.
const PARTS: [&str; 3] = ["COMMITS_TABLE", "REQUESTS_TABLE", "SEQUENCE_TABLE"];

/// A table with the indexes that any function reads.
struct Declared<'a> {
    table: &'a Table,
    indexes: BTreeMap<&'a str, &'a Index>,
    /// The function that declares the table first.
    function: &'a str,
    /// Whether rows are tombstones after their aggregates are forgotten.
    has_tombstones: bool,
}

/// Returns the tables of these functions with their logical ids, by the binary that has each: its
/// subscriber, or else the first function that declares it.
///
/// # Errors
/// When two subscribers have one table, or two functions declare other keys of one table, or of one
/// index.
pub(super) fn tables<'a>(
    functions: &[Function<'a>],
) -> Result<BTreeMap<&'a str, Vec<(String, Node)>>> {
    let mut tables = BTreeMap::<String, Declared<'_>>::new();
    let mut owners = BTreeMap::new();
    for function in functions {
        let declared = function.manifest.tables.iter();
        for table in declared.filter(|table| !PARTS.contains(&&*table.variable)) {
            let id = function.table(&table.variable);
            let known = tables.entry(id.clone()).or_insert_with(|| Declared {
                table,
                indexes: BTreeMap::new(),
                function: function.binary,
                has_tombstones: false,
            });
            known.has_tombstones |= function.forgets(&table.variable);
            let differ = |what: &str| {
                format!(
                    "`{}` and `{}` declare different keys of {what}",
                    known.function, function.binary
                )
            };
            if (&known.table.partition, &known.table.sort) != (&table.partition, &table.sort) {
                bail!(differ(&format!("the table `{id}`")));
            }
            for index in &table.indexes {
                if known.indexes.get(&*index.name).is_some_and(|other| *other != index) {
                    bail!(differ(&format!("the index `{}`", index.name)));
                }
                known.indexes.insert(&index.name, index);
            }
            let subscriber = function.manifest.subscriber.as_ref();
            let subscriber = subscriber.filter(|subscriber| subscriber.table == table.variable);
            // Views in other stores have one table for the generations of all.
            let view = |subscriber: &Subscriber| subscriber.view.as_ref().map(OtherView::key);
            let owned = subscriber.map(|subscriber| view(subscriber).unwrap_or(id));
            if let Some(owned) = owned
                && let Some(other) = owners.insert(owned, function.binary)
            {
                bail!(
                    "`{other}` and `{}` write one table: give the table of one of them another \
                    variable than `{}` in the code",
                    function.binary,
                    table.variable
                );
            }
        }
    }
    let mut owned = BTreeMap::<_, Vec<_>>::new();
    for (id, declared) in tables {
        let owner = owners.get(&id).copied().unwrap_or(declared.function);
        owned.entry(owner).or_default().push((id, declared.resource()));
    }
    Ok(owned)
}

impl Declared<'_> {
    fn resource(&self) -> Node {
        let Table { partition, sort, .. } = self.table;
        let mut attributes = vec![&**partition];
        attributes.extend(sort.as_deref());
        for index in self.indexes.values() {
            for key in [&*index.partition, &*index.sort] {
                if !attributes.contains(&key) {
                    attributes.push(key);
                }
            }
        }
        let attribute = |name: &str| {
            Node::map([("AttributeName", Node::from(name)), ("AttributeType", Node::from("S"))])
        };
        let mut properties = vec![
            ("AttributeDefinitions", Node::list(attributes.into_iter().map(attribute))),
            ("KeySchema", keys(partition, sort.as_deref())),
        ];
        if !self.indexes.is_empty() {
            let indexes = Node::list(self.indexes.values().map(|index| self::index(index)));
            properties.push(("GlobalSecondaryIndexes", indexes));
        }
        if self.has_tombstones {
            let enabled = Node::new(0, Kind::Scalar(true.into()));
            let expiry = [("AttributeName", Node::from("tombstone")), ("Enabled", enabled)];
            properties.push(("TimeToLiveSpecification", Node::map(expiry)));
        }
        Node::map([
            ("Type", Node::from("AWS::DynamoDB::Table")),
            ("Properties", Node::map(properties)),
        ])
    }
}

fn index(index: &Index) -> Node {
    let projection = serde_json::to_value(index.projection).unwrap_or_default();
    let projection = Node::from(projection.as_str().unwrap_or_default());
    Node::map([
        ("IndexName", Node::from(&*index.name)),
        ("KeySchema", keys(&index.partition, Some(&index.sort))),
        ("Projection", Node::map([("ProjectionType", projection)])),
    ])
}

fn keys(partition: &str, sort: Option<&str>) -> Node {
    let key = |(name, kind): (&str, &str)| {
        Node::map([("AttributeName", Node::from(name)), ("KeyType", Node::from(kind))])
    };
    let keys = [Some((partition, "HASH")), sort.map(|sort| (sort, "RANGE"))];
    Node::list(keys.into_iter().flatten().map(key))
}

#[cfg(test)]
mod tests {
    use ledgerline::manifest::Manifest;
    use serde_json::json;

    use super::*;

    fn manifest(partition: &str, index: &str, sort: &str) -> Manifest {
        let index =
            json!({ "name": index, "partition": "owner", "sort": sort, "projection": "ALL" });
        let table = json!({ "variable": "ITEMS_TABLE", "partition": partition, "indexes": [index],
            "actions": {} });
        serde_json::from_value(json!({ "source": { "http": [] }, "tables": [table] })).unwrap()
    }

    fn merge_declarations(one: &Manifest, other: &Manifest) -> Result<serde_json::Value> {
        let one = Function::new("one-queries", one)?;
        let tables = tables(&[one, Function::new("other-queries", other)?])?;
        Ok(tables["one-queries"][0].1.to_json())
    }

    #[test]
    fn a_table_has_the_indexes_of_all_its_readers() {
        let table =
            merge_declarations(&manifest("id", "byOwner", "id"), &manifest("id", "byName", "name"))
                .unwrap();
        let indexes = table["Properties"]["GlobalSecondaryIndexes"].as_array().unwrap().iter();
        let names: Vec<_> = indexes.map(|index| &index["IndexName"]).collect();
        assert_eq!(names, ["byName", "byOwner"]);
        let attributes = table["Properties"]["AttributeDefinitions"].as_array().unwrap().iter();
        let names: Vec<_> = attributes.map(|attribute| &attribute["AttributeName"]).collect();
        assert_eq!(names, ["id", "owner", "name"]);
    }

    /// Both would move the same positions, each without the rows of the other.
    #[test]
    fn two_functions_that_write_one_view_in_another_store_are_an_error() {
        let manifest = r#"{ "source": { "queue": ["item"] }, "subscriber": { "kind": "logProjector",
            "table": "VIEWS_TABLE", "view": { "store": "postgres", "name": "NAME" } }, "tables":
            [{ "variable": "VIEWS_TABLE", "partition": "view", "sort": "entry", "actions": {} }] }"#;
        let manifest = |name| serde_json::from_str(&manifest.replace("NAME", name)).unwrap();
        let [items, stock]: [Manifest; 2] = [manifest("items"), manifest("stock")];
        let both = |one, other| {
            let one = Function::new("one-projector", one).unwrap();
            tables(&[one, Function::new("other-projector", other).unwrap()])
        };
        assert_eq!(both(&items, &stock).unwrap().len(), 1);
        let error = both(&items, &items).unwrap_err().to_string();
        assert!(error.starts_with("`one-projector` and `other-projector` write one"), "{error}");
    }

    #[test]
    fn two_functions_that_declare_other_keys_are_an_error_with_both_names() {
        let one = manifest("id", "byOwner", "id");
        for (other, declaration) in [
            (manifest("name", "byOwner", "id"), "the table `ItemsTable`"),
            (manifest("id", "byOwner", "name"), "the index `byOwner`"),
        ] {
            let error = merge_declarations(&one, &other).unwrap_err().to_string();
            let expected = format!(
                "`one-queries` and `other-queries` declare different keys of {declaration}"
            );
            assert_eq!(error, expected);
        }
    }
}
