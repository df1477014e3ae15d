//! The needs of a function, as data: the source of its events, its tables and what it does with them, its other calls, the variables of its
//! environment, and its metrics that need an alarm.
//!
//! A runner makes the needs from what the function gives it (routes, a view), and the function is held to them: a variable that is not
//! named here cannot be read, a commit of another category is refused, and an action that its role does not allow is denied. `--needs`
//! prints the needs, so that a check of the wiring asks the functions themselves.

use std::{collections::BTreeSet, sync::OnceLock};

use ledgerline::{Index, LogTable, StateTable, Write};
use ledgerline_dynamodb::KeyNames;
use serde::Serialize;

use crate::sequencer;

/// The variables that every function may read, beside those that begin with `AWS_`.
const EVERYWHERE: [&str; 3] = ["DEVELOPMENT_USER", "METRICS_NAMESPACE", "WATCHING"];

/// The variables that this process may read. It is set when a runner declares its needs.
static DECLARED: OnceLock<BTreeSet<&'static str>> = OnceLock::new();

/// The needs of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Needs {
    /// The source of its events.
    pub source: Source,
    /// The tables that it reads or writes.
    pub tables: Vec<Table>,
    /// The partition keys of its tables that it touches, if these are not all.
    pub keys: Vec<Keys>,
    /// The calls that it makes besides those of its tables.
    pub calls: Vec<Call>,
    /// The variables that it reads, including those that name its tables.
    pub environment: BTreeSet<&'static str>,
    /// The variables that it reads if they are set.
    pub optional: BTreeSet<&'static str>,
    /// The metrics of the application that need an alarm.
    pub metrics: BTreeSet<&'static str>,
}

/// The partition keys that an action of a function touches. Its role has to name them in `dynamodb:LeadingKeys`, so that no function
/// appends to the streams of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    /// The variable that names the table.
    pub variable: &'static str,
    /// The action.
    pub action: Action,
    /// The patterns of the keys, as IAM has them: `tank-*`.
    pub like: BTreeSet<String>,
}

/// A call of a service other than that of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The action, as IAM names it: `events:PutEvents`.
    pub action: &'static str,
    /// The variable that names what is called.
    pub variable: &'static str,
}

/// An action of a function on a table, as IAM names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Action {
    /// Reads several items by their keys.
    #[serde(rename = "dynamodb:BatchGetItem")]
    BatchGetItem,
    /// Writes or deletes several items.
    #[serde(rename = "dynamodb:BatchWriteItem")]
    BatchWriteItem,
    /// Deletes an item, by itself or in a transaction.
    #[serde(rename = "dynamodb:DeleteItem")]
    DeleteItem,
    /// Reads an item by its key.
    #[serde(rename = "dynamodb:GetItem")]
    GetItem,
    /// Inserts an item that is not there, and can do nothing else: appends are made with it (rule 3).
    #[serde(rename = "dynamodb:PartiQLInsert")]
    PartiQLInsert,
    /// Writes an item, by itself or in a transaction.
    #[serde(rename = "dynamodb:PutItem")]
    PutItem,
    /// Reads the items of a partition. A read of an index names the index in [`Table::indexes`] instead.
    #[serde(rename = "dynamodb:Query")]
    Query,
    /// Reads a whole table, page by page.
    #[serde(rename = "dynamodb:Scan")]
    Scan,
    /// Changes an item, by itself or in a transaction.
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

/// The source of a function's events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The HTTP API.
    Http(Vec<Endpoint>),
    /// The states of one aggregate, in its category. The fanout invokes the function with them, or a rule of the bus does with its entries.
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
    /// `$all`, of which it takes the commits of these categories. The sequencer wakes it, and a schedule does.
    Sequence(Vec<&'static str>),
    /// A schedule, and nothing else.
    Schedule,
}

/// A route of the HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Method and path: `POST /tanks/{id}/fills`.
    pub route: &'static str,
    /// The scope that a caller's token must have.
    pub scope: Scope,
}

/// The scope that a caller's token must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Queries.
    Read,
    /// Commands.
    Write,
    /// The commits of everybody.
    Events,
    /// Commands that only operators may send.
    Operate,
}

/// A table, with its keys, the indexes that are read, and what is done with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// The variable that names the table.
    pub variable: &'static str,
    /// The name of its partition key.
    pub partition: &'static str,
    /// The name of its sort key, if it has one.
    pub sort: Option<&'static str>,
    /// The indexes that are read: name, partition key and sort key.
    pub indexes: Vec<Index>,
    /// The actions on the table itself, besides reading its indexes.
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

/// The table of `$all`, whose streams are like those of commits.
pub(crate) const SEQUENCE: Table = Table {
    variable: sequencer::TABLE,
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

impl From<&Table> for KeyNames<'static> {
    fn from(table: &Table) -> Self {
        Self { partition: table.partition, sort: table.sort }
    }
}

impl Table {
    /// The table, with these actions on it.
    #[must_use]
    pub fn with(table: impl Into<Self>, actions: impl IntoIterator<Item = Action>) -> Self {
        let mut table = table.into();
        table.actions.extend(actions);
        table
    }

    /// The same table, with this index to read.
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

    /// The same needs, with a table and the variable that names it.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.environment.insert(table.variable);
        match self.tables.iter_mut().find(|known| known.variable == table.variable) {
            // Two routes may read one table, each by an index of its own.
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

    /// The same needs, with those of sending commands to aggregates of these categories, and of no others: to append to the log, to
    /// remember answers, which are never changed, and to keep states of long streams.
    #[must_use]
    pub fn commands(self, categories: &[&str]) -> Self {
        use Action::{GetItem, PartiQLInsert, PutItem, Query};
        let streams = |category: &&str| format!("{category}-*");
        // The keys of requests: the key of a client's request has a space before the caller, and the key of a process manager's request
        // begins with the stream of the commit that it reacts to.
        let requests = match &self.source {
            Source::Queue(of) => of.iter().map(streams).collect(),
            Source::Http(_)
            | Source::States { .. }
            | Source::Stream
            | Source::Sequence(_)
            | Source::Schedule => BTreeSet::from(["* *".to_owned()]),
        };
        let states = categories.iter().map(|category| format!("state/{}", streams(category))).collect();
        self.table(Table::with(COMMITS, [PartiQLInsert, GetItem, Query]))
            .table(Table::with(REQUESTS, [PartiQLInsert, PutItem, GetItem]))
            .keys(COMMITS.variable, [PartiQLInsert], categories.iter().map(streams).collect())
            .keys(REQUESTS.variable, [PartiQLInsert], requests)
            .keys(REQUESTS.variable, [PutItem], states)
    }

    /// The same needs, with actions that touch only these partition keys of this table.
    fn keys(
        mut self,
        variable: &'static str,
        actions: impl IntoIterator<Item = Action>,
        like: BTreeSet<String>,
    ) -> Self {
        self.keys.extend(actions.into_iter().map(|action| Keys { variable, action, like: like.clone() }));
        self
    }

    /// The same needs, with those of the fanout beside the log: to count tries, and to keep states.
    pub(crate) fn beside_the_log(self) -> Self {
        use Action::{DeleteItem, GetItem, PutItem, UpdateItem};
        let actions = [GetItem, PutItem, UpdateItem, DeleteItem];
        let like = ["fanout/*", "state/*"].map(ToOwned::to_owned).into();
        self.table(Table::with(REQUESTS, actions)).keys(REQUESTS.variable, actions, like)
    }

    /// The same needs, with those of the sequencer: to read `$all` and to append to it, and to look up commits that no record proves.
    pub(crate) fn sequencing(self) -> Self {
        use Action::{BatchGetItem, GetItem, PartiQLInsert, Query};
        self.table(Table::with(SEQUENCE, [GetItem, PartiQLInsert, Query]))
            .table(Table::with(COMMITS, [BatchGetItem]))
            .variable(sequencer::PARTITIONS)
    }

    /// The same needs, with those of a reader of `$all` and of the commits that it names.
    pub(crate) fn following(self) -> Self {
        self.comparing().table(Table::with(COMMITS, [Action::BatchGetItem]))
    }

    /// The same needs, with those of a reader of `$all` and of streams.
    pub(crate) fn comparing(self) -> Self {
        use Action::{GetItem, Query};
        self.table(Table::with(SEQUENCE, [GetItem, Query])).variable(sequencer::PARTITIONS).log()
    }

    /// The same needs, with reading the log.
    pub(crate) fn log(self) -> Self {
        self.table(Table::with(COMMITS, [Action::GetItem, Action::Query]))
    }

    /// The same needs, with reading the whole log, of which a view can be made again.
    pub(crate) fn scanning(self) -> Self {
        self.table(Table::with(COMMITS, [Action::Scan]))
    }

    /// The same needs, with looking for commits of these categories, and of no others.
    pub(crate) fn commits_of(self, categories: &BTreeSet<&str>) -> Self {
        let like = categories.iter().map(|category| format!("{category}-*")).collect();
        self.table(Table::with(COMMITS, [Action::GetItem])).keys(COMMITS.variable, [Action::GetItem], like)
    }

    /// Whether this variable names one of its tables.
    pub(crate) fn has(&self, variable: &str) -> bool {
        self.tables.iter().any(|table| table.variable == variable)
    }

    /// The same needs, with a variable.
    #[must_use]
    pub fn variable(mut self, variable: &'static str) -> Self {
        self.environment.insert(variable);
        self
    }

    /// The same needs, with a variable that may be missing.
    #[must_use]
    pub fn optional(mut self, variable: &'static str) -> Self {
        self.optional.insert(variable);
        self
    }

    /// The same needs, with a call of a service on what this variable names: `("ses:SendEmail", "MAIL_SENDER")`.
    #[must_use]
    pub fn call(mut self, action: &'static str, variable: &'static str) -> Self {
        self.calls.push(Call { action, variable });
        self.variable(variable)
    }

    /// The same needs, with a metric of the application that needs an alarm.
    #[must_use]
    pub fn metric(mut self, metric: &'static str) -> Self {
        self.metrics.insert(metric);
        self
    }

    /// Declares these needs: from now on this process reads no other variables.
    pub(crate) fn declare(&self) {
        // The variables can be declared once in a process. Only a test runs a second function in a process, which is then held to the needs
        // of the first.
        let _ = DECLARED.set(self.environment.union(&self.optional).copied().collect());
    }
}

/// Whether this process may read the variable. It may read any, before a runner has declared its needs.
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
        const ROWS: StateTable = StateTable { variable: "ROWS_TABLE", key: "id", indexes: &[] };
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
