//! What a function needs, as data: where its events come from, its tables, and the variables of its environment.
//!
//! A runner makes it of what the function hands over (routes, a view), and the function is held to it: a variable that is not named
//! here cannot be read, a commit of another category is refused. `--needs` prints it, so that a check of the wiring asks the
//! functions themselves.

use std::{collections::BTreeSet, sync::OnceLock};

use ledgerline::{Index, LogTable, StateTable};
use serde::Serialize;

/// Variables of every function: those of Lambda, and those that begin with `AWS_`.
const EVERYWHERE: [&str; 2] = ["DEVELOPMENT_USER", "METRICS_NAMESPACE"];

/// The variables that this process may read, once a runner has said so.
static DECLARED: OnceLock<BTreeSet<&'static str>> = OnceLock::new();

/// What a function needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Needs {
    /// Where its events come from.
    pub source: Source,
    /// The tables that it reads or writes.
    pub tables: Vec<Table>,
    /// The variables that it reads, those that name its tables among them.
    pub environment: BTreeSet<&'static str>,
}

/// Where a function's events come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The HTTP API.
    Http(Vec<Endpoint>),
    /// A rule of the bus: entries of a category, with the states of one aggregate.
    Bus {
        /// The category.
        category: &'static str,
        /// The types of events that the aggregate has.
        events: Vec<&'static str>,
    },
    /// A FIFO queue of commits of these categories.
    Queue(Vec<&'static str>),
    /// The stream of the Commits table.
    Stream,
}

/// A route of the HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Method and path: `POST /tanks/{id}/fills`.
    pub route: &'static str,
    /// What a caller's token must allow.
    pub scope: Scope,
}

/// What a caller's token must allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Queries.
    Read,
    /// Commands.
    Write,
}

/// A table, with its keys and the indexes that are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// The variable that names it.
    pub variable: &'static str,
    /// Name of its partition key.
    pub partition: &'static str,
    /// Name of its sort key, if it has one.
    pub sort: Option<&'static str>,
    /// The indexes that are read: name, partition key and sort key.
    pub indexes: Vec<Index>,
}

/// The Commits table.
pub(crate) const COMMITS: Table =
    Table { variable: "COMMITS_TABLE", partition: "stream", sort: Some("version"), indexes: Vec::new() };

/// The Requests table.
pub(crate) const REQUESTS: Table =
    Table { variable: "REQUESTS_TABLE", partition: "request", sort: None, indexes: Vec::new() };

impl From<StateTable> for Table {
    fn from(table: StateTable) -> Self {
        Self { variable: table.variable, partition: table.key, sort: None, indexes: Vec::new() }
    }
}

impl From<LogTable> for Table {
    fn from(table: LogTable) -> Self {
        Self {
            variable: table.variable,
            partition: table.partition,
            sort: Some(table.sort),
            indexes: Vec::new(),
        }
    }
}

impl Needs {
    /// A function with this source, these tables, and these variables besides those that name the tables.
    #[must_use]
    pub fn new(
        source: Source,
        tables: impl IntoIterator<Item = Table>,
        environment: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let mut needs = Self { source, tables: Vec::new(), environment: environment.into_iter().collect() };
        for table in tables {
            needs.environment.insert(table.variable);
            match needs.tables.iter_mut().find(|known| known.variable == table.variable) {
                // Two routes read it, each by an index of its own.
                Some(known) => {
                    let new: Vec<_> =
                        table.indexes.into_iter().filter(|index| !known.indexes.contains(index)).collect();
                    known.indexes.extend(new);
                }
                None => needs.tables.push(table),
            }
        }
        needs
    }

    /// From now on this process reads no other variables.
    pub(crate) fn declare(&self) {
        // Set once in a process: a second function in it, which only a test has, is not held to anything.
        let _ = DECLARED.set(self.environment.clone());
    }
}

/// Whether this process may read the variable: any, before a runner has said which ones.
pub(crate) fn may_read(variable: &str) -> bool {
    DECLARED.get().is_none_or(|declared| is_among(declared, variable))
}

fn is_among(declared: &BTreeSet<&str>, variable: &str) -> bool {
    variable.starts_with("AWS_") || EVERYWHERE.contains(&variable) || declared.contains(variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_reads_what_it_declares_and_what_every_function_has() {
        let declared = BTreeSet::from(["COMMITS_TABLE"]);
        for (variable, may) in [
            ("COMMITS_TABLE", true),
            ("AWS_LAMBDA_LOG_LEVEL", true),
            ("METRICS_NAMESPACE", true),
            ("REQUESTS_TABLE", false),
        ] {
            assert_eq!(is_among(&declared, variable), may, "{variable}");
        }
    }

    #[test]
    fn tables_of_two_routes_are_one_table_with_the_indexes_of_both() {
        const ROWS: StateTable = StateTable { variable: "ROWS_TABLE", key: "id" };
        let by = |name: &'static str| Table {
            indexes: vec![Index { name, partition: "owner", sort: "name" }],
            ..ROWS.into()
        };
        let needs = Needs::new(Source::Http(Vec::new()), [ROWS.into(), by("a"), by("b"), by("a")], ["X"]);
        assert_eq!(needs.tables.len(), 1);
        assert_eq!(needs.tables[0].indexes.iter().map(|index| index.name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(needs.environment, BTreeSet::from(["ROWS_TABLE", "X"]));
    }
}
