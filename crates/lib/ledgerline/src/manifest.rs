//! The manifest of a function: its events, tables, calls, variables and metrics, as data.
//!
//! A runner makes the manifest from the handler that it runs: its routes, or its view. A function
//! prints its manifest with `--manifest`. Manifests determine the template, the
//! local stack and the operator's tool. So no list repeats a declaration of a
//! function (rule 13).

mod body_grants;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde::{Deserialize, Serialize};

pub use self::body_grants::{BODIES_BUCKET, BODY_OVER, BodyGrants};
use crate::{Projection, StreamId, Write, view};

/// A text of a manifest: borrowed in the function that declares it, owned in a program that reads
/// it.
pub type Name = Cow<'static, str>;

/// The manifests of functions, by the names of their binaries.
pub type Manifests = BTreeMap<String, Manifest>;

/// The declarations of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// The source of its events.
    pub source: Source,
    /// Whether the function also gets the records of the log's Kinesis stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kinesis: bool,
    /// Its kind of subscriber, and the table of its progress, if it subscribes to the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber: Option<Subscriber>,
    /// The tables that it reads or writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// The body objects that it reads and writes, if it works with any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bodies: Option<BodyGrants>,
    /// Its calls of other services than those of its tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// The variables that it must have, including those that name its tables.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub variables: BTreeSet<Name>,
    /// The variables that it reads if they are set.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub optional_variables: BTreeSet<Name>,
    /// The metrics of the application that need an alarm.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub metrics: BTreeSet<Name>,
}

/// A text of a manifest that is not valid for its purpose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}")]
pub struct InvalidManifest {
    /// The purpose of the text: a category, a variable, an action.
    pub what: &'static str,
    /// The text, with control characters escaped.
    pub text: String,
}

/// The source of a function's events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// The HTTP API.
    Http(Vec<Endpoint>),
    /// The states of one aggregate.
    States {
        /// The category of the aggregate.
        category: Name,
        /// The types of its events.
        events: BTreeSet<Name>,
        /// Whether a rule of the bus sends the states, as its entries. Otherwise, the fanout does.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bus: bool,
    },
    /// A FIFO queue of commits of these categories.
    Queue(BTreeSet<Name>),
    /// The stream of the Commits table.
    Stream,
    /// The commits of these categories in `$all`. The sequencer invokes the function after each
    /// segment, and a schedule invokes it too.
    Sequence(BTreeSet<Name>),
    /// A schedule alone.
    Schedule,
    /// The user pool, after a person has confirmed a sign-up.
    SignUp,
}

/// A route of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Method and path: `POST /tanks/{id}/fills`.
    pub route: Name,
    /// The scope that a caller's token must have.
    pub scope: Scope,
}

/// The scope that a caller's token must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Queries.
    Read,
    /// Commands.
    Write,
    /// The commits of all streams.
    Events,
    /// Commands that only operators may send.
    Operate,
}

impl Scope {
    /// Returns the name of the scope, as the template has it behind the prefix of the application.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Events => "events",
            Self::Operate => "operate",
        }
    }
}

/// A function that subscribes to the log, with the table of its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subscriber {
    /// The kind of subscriber.
    pub kind: SubscriberKind,
    /// The variable that names the table with its rows, positions or checkpoint. If another store
    /// has the rows, it names the table with the generations ([`VIEWS_TABLE`]).
    pub table: Name,
    /// The view, if another store than DynamoDB has its rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<OtherView>,
}

/// The variable that names the table with the generations of all views whose rows are in other
/// stores than DynamoDB. Its partition key is [`OtherView::key`].
pub const VIEWS_TABLE: Table = Table::new("VIEWS_TABLE", "view", Some("entry"));

/// A view whose rows are in another store than DynamoDB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OtherView {
    /// The kind of store.
    pub store: ViewStore,
    /// The name of the view in the store.
    pub name: Name,
}

/// The stores of views other than DynamoDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ViewStore {
    /// PostgreSQL.
    Postgres,
    /// OpenSearch.
    OpenSearch,
}

impl ViewStore {
    /// The first part of the keys of its views.
    fn prefix(self) -> &'static str {
        match self {
            Self::Postgres => "postgres/",
            Self::OpenSearch => "opensearch/",
        }
    }

    /// Returns the name of the view with this key ([`OtherView::key`]), if the view is in this
    /// store.
    #[must_use]
    pub fn view_name(self, key: &str) -> Option<&str> {
        key.strip_prefix(self.prefix())
    }
}

impl OtherView {
    /// Returns the view of the table or index that this variable names, in this store: that of
    /// `FILLS_TABLE` is named `fills`.
    #[must_use]
    pub fn new(store: ViewStore, variable: &str) -> Self {
        let name = variable.strip_suffix("_TABLE").unwrap_or(variable).to_lowercase();
        Self { store, name: name.into() }
    }

    /// Returns the view with this key ([`key`](Self::key)).
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        [ViewStore::Postgres, ViewStore::OpenSearch]
            .into_iter()
            .find_map(|store| Some(Self { store, name: store.view_name(key)?.to_owned().into() }))
    }

    /// Returns its partition key in the table of generations: `postgres/fills`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}{}", self.store.prefix(), self.name)
    }
}

/// The ways in which a function subscribes to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SubscriberKind {
    /// It writes a row for each aggregate, with the version of its state.
    StateProjector,
    /// It writes rows stream by stream, with a position in each.
    LogProjector,
    /// It writes rows in the order of `$all`, with a checkpoint, and a position in each stream.
    Subscription,
    /// It reacts to commits, and has a position in each stream. It is never rebuilt, because a
    /// rebuild would repeat each reaction.
    ProcessManager,
}

/// A table, with its keys, the indexes that a function reads, and the actions of the function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Table {
    /// The variable that names the table.
    pub variable: Name,
    /// The name of its partition key.
    pub partition: Name,
    /// The name of its sort key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<Name>,
    /// The indexes that the function reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<Index>,
    /// The actions on the table itself, each with the partition keys that it may touch, as patterns
    /// of IAM: `tank-*`. An empty set stands for all keys.
    pub actions: BTreeMap<Action, BTreeSet<Name>>,
}

/// An index of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// The name of the index.
    pub name: Name,
    /// The name of its partition key.
    pub partition: Name,
    /// The name of its sort key.
    pub sort: Name,
    /// The part of each row that the index holds.
    pub projection: Projection,
}

/// An action of a function on a table, as IAM names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// Inserts an item that does not exist, and cannot overwrite: appends use it (rule 3).
    #[serde(rename = "dynamodb:PartiQLInsert")]
    PartiQLInsert,
    /// Writes an item, by itself or in a transaction.
    #[serde(rename = "dynamodb:PutItem")]
    PutItem,
    /// Reads the items of a partition. A read of an index is in [`Table::indexes`] instead.
    #[serde(rename = "dynamodb:Query")]
    Query,
    /// Reads a whole table, page by page.
    #[serde(rename = "dynamodb:Scan")]
    Scan,
    /// Changes an item, by itself or in a transaction.
    #[serde(rename = "dynamodb:UpdateItem")]
    UpdateItem,
}

impl Action {
    /// Returns the name of the action in a policy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BatchGetItem => "dynamodb:BatchGetItem",
            Self::BatchWriteItem => "dynamodb:BatchWriteItem",
            Self::DeleteItem => "dynamodb:DeleteItem",
            Self::GetItem => "dynamodb:GetItem",
            Self::PartiQLInsert => "dynamodb:PartiQLInsert",
            Self::PutItem => "dynamodb:PutItem",
            Self::Query => "dynamodb:Query",
            Self::Scan => "dynamodb:Scan",
            Self::UpdateItem => "dynamodb:UpdateItem",
        }
    }

    /// Whether the action changes the table.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::BatchGetItem | Self::GetItem | Self::Query | Self::Scan => false,
            Self::BatchWriteItem
            | Self::DeleteItem
            | Self::PartiQLInsert
            | Self::PutItem
            | Self::UpdateItem => true,
        }
    }
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

/// A call of a service other than that of the tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The action, as IAM names it: `events:PutEvents`.
    pub action: Name,
    /// The variable that names the target of the call.
    pub variable: Name,
}

impl From<view::Index> for Index {
    fn from(index: view::Index) -> Self {
        let view::Index { name, partition, sort, projection } = index;
        Self { name: name.into(), partition: partition.into(), sort: sort.into(), projection }
    }
}

impl From<view::StateTable> for Table {
    fn from(table: view::StateTable) -> Self {
        Self::new(table.variable, table.key, None)
    }
}

impl From<view::LogTable> for Table {
    fn from(table: view::LogTable) -> Self {
        Self::new(table.variable, table.partition, Some(table.sort))
    }
}

impl Table {
    /// Returns a table with these keys and no actions yet.
    pub const fn new(
        variable: &'static str,
        partition: &'static str,
        sort: Option<&'static str>,
    ) -> Self {
        Self {
            variable: Name::Borrowed(variable),
            partition: Name::Borrowed(partition),
            sort: match sort {
                Some(sort) => Some(Name::Borrowed(sort)),
                None => None,
            },
            indexes: Vec::new(),
            actions: BTreeMap::new(),
        }
    }

    /// Returns the table, with these actions on all its items.
    pub fn grant(table: impl Into<Self>, actions: impl IntoIterator<Item = Action>) -> Self {
        table.into().grant_keys(actions, &BTreeSet::new())
    }

    /// Returns the table, with these actions on the items with these partition keys, as patterns of
    /// IAM. An empty set stands for all keys.
    #[must_use]
    pub fn grant_keys(
        mut self,
        actions: impl IntoIterator<Item = Action>,
        keys: &BTreeSet<Name>,
    ) -> Self {
        for action in actions {
            self.add_grant(action, keys.clone());
        }
        self
    }

    /// Returns the table, with this index to read.
    #[must_use]
    pub fn index(mut self, index: view::Index) -> Self {
        self.indexes.push(index.into());
        self
    }

    /// Adds an action. One grant of all keys makes every narrower grant of the same action void.
    fn add_grant(&mut self, action: Action, keys: BTreeSet<Name>) {
        match self.actions.get_mut(&action) {
            None => _ = self.actions.insert(action, keys),
            Some(known) if known.is_empty() || keys.is_empty() => known.clear(),
            Some(known) => known.extend(keys),
        }
    }
}

impl Manifest {
    /// Returns the manifest of a function that declares only its events.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            kinesis: false,
            subscriber: None,
            tables: Vec::new(),
            bodies: None,
            calls: Vec::new(),
            variables: BTreeSet::new(),
            optional_variables: BTreeSet::new(),
            metrics: BTreeSet::new(),
        }
    }

    /// Adds a table, and the variable that names it.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.variables.insert(table.variable.clone());
        match self.tables.iter_mut().find(|known| known.variable == table.variable) {
            // Two routes may read one table, each by an index of its own.
            Some(known) => {
                for index in table.indexes {
                    if !known.indexes.contains(&index) {
                        known.indexes.push(index);
                    }
                }
                table.actions.into_iter().for_each(|(action, keys)| known.add_grant(action, keys));
            }
            None => self.tables.push(table),
        }
        self
    }

    /// Declares the kind of subscriber of the function, with the table of its progress.
    #[must_use]
    pub fn subscriber(mut self, kind: SubscriberKind, table: Table) -> Self {
        self.subscriber = Some(Subscriber { kind, table: table.variable.clone(), view: None });
        self.table(table)
    }

    /// Declares the kind of subscriber of a function that writes the rows of this view into another
    /// store. Its generations are in a table of DynamoDB.
    #[must_use]
    pub fn other_view(mut self, kind: SubscriberKind, view: OtherView) -> Self {
        let keys = BTreeSet::from([view.key().into()]);
        let table = VIEWS_TABLE.grant_keys([Action::GetItem, Action::PutItem], &keys);
        self.subscriber =
            Some(Subscriber { kind, table: table.variable.clone(), view: Some(view) });
        self.table(table)
    }

    /// Adds the Kinesis stream of the log as a source, beside the queue.
    #[must_use]
    pub fn kinesis(mut self) -> Self {
        self.kinesis = true;
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn variable(mut self, variable: &'static str) -> Self {
        self.variables.insert(variable.into());
        self
    }

    /// Adds a variable that may be missing.
    #[must_use]
    pub fn optional(mut self, variable: &'static str) -> Self {
        self.optional_variables.insert(variable.into());
        self
    }

    /// Adds a call of a service, on the target that this variable names:
    /// `("ses:SendEmail", "MAIL_SENDER")`.
    #[must_use]
    pub fn call(mut self, action: &'static str, variable: &'static str) -> Self {
        self.calls.push(Call { action: action.into(), variable: variable.into() });
        self.variable(variable)
    }

    /// Adds a metric of the application that needs an alarm.
    #[must_use]
    pub fn metric(mut self, metric: &'static str) -> Self {
        self.metrics.insert(metric.into());
        self
    }

    /// Checks the texts of a manifest from outside, such as a deployed stack. They become names of
    /// tables, streams and resources, and parts of messages.
    ///
    /// # Errors
    /// The first text that is not valid for its purpose.
    pub fn validate(&self) -> Result<(), InvalidManifest> {
        let variables = self.variables.iter().chain(&self.optional_variables);
        let of_tables = self.tables.iter().map(|table| &table.variable);
        let of_calls = self.calls.iter().map(|call| &call.variable);
        let of_subscriber = self.subscriber.iter().map(|subscriber| &subscriber.table);
        let variables = variables.chain(of_tables).chain(of_calls).chain(of_subscriber);
        let is_upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        check_texts("variable", variables, |text| text.chars().all(is_upper))?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let of_indexes = self.tables.iter().flat_map(|table| &table.indexes);
        let of_view = self.subscriber.iter().filter_map(|subscriber| subscriber.view.as_ref());
        check_texts("name of a view", of_view.map(|view| &view.name), |text| {
            text.chars().all(is_word)
        })?;
        let of_indexes = of_indexes.flat_map(|index| [&index.name, &index.partition, &index.sort]);
        let keys =
            self.tables.iter().flat_map(|table| [Some(&table.partition), table.sort.as_ref()]);
        check_texts("name of a key or index", keys.flatten().chain(of_indexes), |text| {
            text.chars().all(is_word)
        })?;
        let actions = self.calls.iter().map(|call| &call.action);
        let is_of_action = |c: char| is_word(c) || c == ':';
        check_texts("action", actions, |text| text.chars().all(is_of_action))?;
        let categories: Vec<_> =
            self.categories().into_iter().map(|of| of.to_owned().into()).collect();
        let of_bodies = self.bodies.iter().flat_map(|bodies| bodies.reads.union(&bodies.writes));
        check_texts("category", categories.iter().chain(of_bodies), |text| {
            StreamId::new(text, "1").is_ok()
        })?;
        let events = match &self.source {
            Source::States { events, .. } => Some(events),
            Source::Http(_)
            | Source::Queue(_)
            | Source::Stream
            | Source::Sequence(_)
            | Source::Schedule
            | Source::SignUp => None,
        };
        let events = events.into_iter().flatten();
        check_texts("name of an event or metric", events.chain(&self.metrics), |text| {
            text.chars().all(is_word)
        })?;
        // A list of keys is a text with commas between them, and `*` alone would stand for every
        // key.
        let patterns = self.tables.iter().flat_map(|table| table.actions.values().flatten());
        let is_of_pattern = |c: char| is_word(c) || "*/ ".contains(c);
        check_texts("pattern of keys", patterns, |text| {
            text != "*" && text.chars().all(is_of_pattern)
        })?;
        let routes = self.endpoints().iter().map(|endpoint| &endpoint.route);
        let is_of_route = |c: char| c == ' ' || c.is_ascii_graphic() && !"\"'\\".contains(c);
        check_texts("route", routes, |text| text.chars().all(is_of_route))
    }

    /// Returns the routes that the function answers; none unless it is behind the HTTP API.
    pub fn endpoints(&self) -> &[Endpoint] {
        match &self.source {
            Source::Http(endpoints) => endpoints,
            Source::States { .. }
            | Source::Queue(_)
            | Source::Stream
            | Source::Sequence(_)
            | Source::Schedule
            | Source::SignUp => &[],
        }
    }

    /// Returns the categories of commits or states that the function receives.
    pub fn categories(&self) -> BTreeSet<&str> {
        match &self.source {
            Source::States { category, .. } => BTreeSet::from([&**category]),
            Source::Queue(of) | Source::Sequence(of) => of.iter().map(|of| &**of).collect(),
            Source::Http(_) | Source::Stream | Source::Schedule | Source::SignUp => BTreeSet::new(),
        }
    }

    /// Returns the table that this variable names, if it is one of the function's.
    pub fn table_of(&self, variable: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.variable == variable)
    }

    /// Whether the function may perform this action on the table that this variable names.
    pub fn takes(&self, action: Action, variable: &str) -> bool {
        self.table_of(variable).is_some_and(|table| table.actions.contains_key(&action))
    }
}

/// Checks texts for this purpose.
fn check_texts<'n>(
    what: &'static str,
    texts: impl IntoIterator<Item = &'n Name>,
    is_one: impl Fn(&str) -> bool,
) -> Result<(), InvalidManifest> {
    match texts.into_iter().find(|text| text.is_empty() || text.len() > LONGEST || !is_one(text)) {
        Some(text) => Err(InvalidManifest {
            what,
            text: text.chars().take(80).flat_map(char::escape_debug).collect(),
        }),
        None => Ok(()),
    }
}

/// The longest text of a manifest, in bytes.
const LONGEST: usize = 255;

#[cfg(test)]
mod tests;
