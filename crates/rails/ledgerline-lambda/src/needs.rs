//! What a function needs, as data: where its events come from, what it does with which tables, what else it calls, the variables of
//! its environment, and the metrics that somebody has to be told of.
//!
//! A runner makes it of what the function hands over (routes, a view), and the function is held to it: a variable that is not named
//! here cannot be read, a commit of another category is refused, and what its role does not allow is denied. `--needs` prints it, so
//! that a check of the wiring asks the functions themselves.

use std::{collections::BTreeSet, sync::OnceLock};

use ledgerline::{Index, LogTable, StateTable, Write};
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
    /// The partition keys that it touches of a table, where these are not all.
    pub keys: Vec<Keys>,
    /// What it calls besides its tables.
    pub calls: Vec<Call>,
    /// The variables that it reads, those that name its tables among them.
    pub environment: BTreeSet<&'static str>,
    /// The variables that it reads where they are set.
    pub optional: BTreeSet<&'static str>,
    /// Metrics of the application's own whose alarm tells somebody.
    pub metrics: BTreeSet<&'static str>,
}

/// The partition keys that an action of a function touches: what its role has to say in `dynamodb:LeadingKeys`, so that nobody appends to
/// streams of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    /// The variable that names the table.
    pub variable: &'static str,
    /// The action.
    pub action: Action,
    /// Patterns, as IAM has them: `tank-*`.
    pub like: BTreeSet<String>,
}

/// A call of a service that is no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The action, as IAM names it: `events:PutEvents`.
    pub action: &'static str,
    /// The variable that says on what.
    pub variable: &'static str,
}

/// What a function does with a table, as IAM names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Action {
    /// Reads several items by their keys.
    #[serde(rename = "dynamodb:BatchGetItem")]
    BatchGetItem,
    /// Writes or deletes several items.
    #[serde(rename = "dynamodb:BatchWriteItem")]
    BatchWriteItem,
    /// Deletes an item, also in a transaction.
    #[serde(rename = "dynamodb:DeleteItem")]
    DeleteItem,
    /// Reads an item by its key.
    #[serde(rename = "dynamodb:GetItem")]
    GetItem,
    /// Appends: inserts an item that is not there, and can do nothing else (rule 3).
    #[serde(rename = "dynamodb:PartiQLInsert")]
    PartiQLInsert,
    /// Writes an item, also in a transaction.
    #[serde(rename = "dynamodb:PutItem")]
    PutItem,
    /// Reads the items of a partition. For those of an index, name the index.
    #[serde(rename = "dynamodb:Query")]
    Query,
    /// Changes an item, also in a transaction.
    #[serde(rename = "dynamodb:UpdateItem")]
    UpdateItem,
}

impl From<Write> for Action {
    fn from(write: Write) -> Self {
        match write {
            Write::Insert | Write::Put => Self::PutItem,
            Write::Update => Self::UpdateItem,
            Write::Delete => Self::DeleteItem,
        }
    }
}

/// Where a function's events come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The HTTP API.
    Http(Vec<Endpoint>),
    /// The states of one aggregate, of a category: the fanout invokes the function with them, or a rule of the bus does with its entries.
    States {
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

/// A table, with its keys, the indexes that are read, and what is done with it.
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
    /// What is done with the table itself, besides reading its indexes.
    pub actions: BTreeSet<Action>,
}

/// The Commits table.
pub(crate) const COMMITS: Table = Table {
    variable: "COMMITS_TABLE",
    partition: "stream",
    sort: Some("version"),
    indexes: Vec::new(),
    actions: BTreeSet::new(),
};

/// The Requests table.
pub(crate) const REQUESTS: Table = Table {
    variable: "REQUESTS_TABLE",
    partition: "request",
    sort: None,
    indexes: Vec::new(),
    actions: BTreeSet::new(),
};

impl From<StateTable> for Table {
    fn from(table: StateTable) -> Self {
        Self {
            variable: table.variable,
            partition: table.key,
            sort: None,
            indexes: Vec::new(),
            actions: BTreeSet::new(),
        }
    }
}

impl From<LogTable> for Table {
    fn from(table: LogTable) -> Self {
        Self {
            variable: table.variable,
            partition: table.partition,
            sort: Some(table.sort),
            indexes: Vec::new(),
            actions: BTreeSet::new(),
        }
    }
}

impl Table {
    /// This table, with which this is done.
    #[must_use]
    pub fn with(table: impl Into<Self>, actions: impl IntoIterator<Item = Action>) -> Self {
        let mut table = table.into();
        table.actions.extend(actions);
        table
    }

    /// The same, of which this index is read.
    #[must_use]
    pub fn index(mut self, index: Index) -> Self {
        self.indexes.push(index);
        self
    }
}

impl Needs {
    /// A function that needs nothing but its events.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            source,
            tables: Vec::new(),
            keys: Vec::new(),
            calls: Vec::new(),
            environment: BTreeSet::new(),
            optional: BTreeSet::new(),
            metrics: BTreeSet::new(),
        }
    }

    /// The same, with a table, and the variable that names it.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.environment.insert(table.variable);
        match self.tables.iter_mut().find(|known| known.variable == table.variable) {
            // Two routes read it, each by an index of its own.
            Some(known) => {
                let new: Vec<_> =
                    table.indexes.into_iter().filter(|index| !known.indexes.contains(index)).collect();
                known.indexes.extend(new);
                known.actions.extend(table.actions);
            }
            None => self.tables.push(table),
        }
        self
    }

    /// The same, with what it takes to send commands to aggregates of these categories, and of no others: to append to the log, to
    /// remember answers, which nobody changes, and to keep states of long streams.
    #[must_use]
    pub fn commands(self, categories: &[&str]) -> Self {
        use Action::{GetItem, PartiQLInsert, PutItem, Query};
        let streams = |category: &&str| format!("{category}-*");
        // The keys of requests: a client's has a space before the caller, that of a process manager begins with the stream that it
        // reacts to.
        let requests = match &self.source {
            Source::Queue(of) => of.iter().map(streams).collect(),
            Source::Http(_) | Source::States { .. } | Source::Stream => BTreeSet::from(["* *".to_owned()]),
        };
        let states = categories.iter().map(|category| format!("state/{}", streams(category))).collect();
        self.table(Table::with(COMMITS, [PartiQLInsert, GetItem, Query]))
            .table(Table::with(REQUESTS, [PartiQLInsert, PutItem, GetItem]))
            .keys(COMMITS.variable, [PartiQLInsert], categories.iter().map(streams).collect())
            .keys(REQUESTS.variable, [PartiQLInsert], requests)
            .keys(REQUESTS.variable, [PutItem], states)
    }

    /// The same, touching only such partition keys of this table by these actions.
    fn keys(
        mut self,
        variable: &'static str,
        actions: impl IntoIterator<Item = Action>,
        like: BTreeSet<String>,
    ) -> Self {
        self.keys.extend(actions.into_iter().map(|action| Keys { variable, action, like: like.clone() }));
        self
    }

    /// The same, with what the fanout has beside the log: tries that are counted, and states that are kept.
    pub(crate) fn beside_the_log(self) -> Self {
        use Action::{DeleteItem, GetItem, PutItem, UpdateItem};
        let actions = [GetItem, PutItem, UpdateItem, DeleteItem];
        let like = ["fanout/*", "state/*"].map(ToOwned::to_owned).into();
        self.table(Table::with(REQUESTS, actions)).keys(REQUESTS.variable, actions, like)
    }

    /// The same, with reading the log.
    pub(crate) fn log(self) -> Self {
        self.table(Table::with(COMMITS, [Action::GetItem, Action::Query]))
    }

    /// The same, with looking for commits of these categories, and of no others.
    pub(crate) fn commits_of(self, categories: &BTreeSet<&str>) -> Self {
        let like = categories.iter().map(|category| format!("{category}-*")).collect();
        self.table(Table::with(COMMITS, [Action::GetItem])).keys(COMMITS.variable, [Action::GetItem], like)
    }

    /// The same, with a variable.
    #[must_use]
    pub fn variable(mut self, variable: &'static str) -> Self {
        self.environment.insert(variable);
        self
    }

    /// The same, with a variable that may be missing.
    #[must_use]
    pub fn optional(mut self, variable: &'static str) -> Self {
        self.optional.insert(variable);
        self
    }

    /// The same, with a call of a service on what this variable says: `("ses:SendEmail", "MAIL_SENDER")`.
    #[must_use]
    pub fn call(mut self, action: &'static str, variable: &'static str) -> Self {
        self.calls.push(Call { action, variable });
        self.variable(variable)
    }

    /// The same, with a metric of the application's own, whose alarm tells somebody.
    #[must_use]
    pub fn metric(mut self, metric: &'static str) -> Self {
        self.metrics.insert(metric);
        self
    }

    /// From now on this process reads no other variables.
    pub(crate) fn declare(&self) {
        // Set once in a process: a second function in it, which only a test has, is not held to anything.
        let _ = DECLARED.set(self.environment.union(&self.optional).copied().collect());
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
    use ledgerline::Projection;

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
            indexes: vec![Index { name, partition: "owner", sort: "name", projection: Projection::All }],
            ..ROWS.into()
        };
        let tables = [Table::with(ROWS, [Action::GetItem]), by("a"), by("b"), by("a")];
        let needs = tables.into_iter().fold(Needs::new(Source::Http(Vec::new())), Needs::table).variable("X");
        assert_eq!(needs.tables.len(), 1);
        assert_eq!(needs.tables[0].actions, BTreeSet::from([Action::GetItem]));
        assert_eq!(needs.tables[0].indexes.iter().map(|index| index.name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(needs.environment, BTreeSet::from(["ROWS_TABLE", "X"]));
    }
}
