//! The needs of functions, compared with what the template gives them, in both directions. A
//! missing need fails at the first request that uses it. A surplus is a right too many, an event
//! that no function takes, or a table that costs money.
//!
//! Each function prints its own needs with `--needs`, made from what it runs.

mod roles;
mod sources;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ledgerline_dynamodb::reconcile::Follows;
use serde::Deserialize;
use serde_json::Value;

use crate::{permissions::resources, template::Source};

/// The needs that a function prints with `--needs`: `ledgerline_lambda::needs::Needs`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Needs {
    source: Events,
    tables: Vec<Table>,
    keys: Vec<Keys>,
    calls: Vec<Call>,
    environment: BTreeSet<String>,
    optional: BTreeSet<String>,
    /// The application's own metrics, each of which needs an alarm that notifies somebody.
    pub metrics: BTreeSet<String>,
}

impl Needs {
    /// The routes that it answers: method and path.
    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.endpoints().iter().map(|endpoint| endpoint.route.as_str())
    }

    /// The routes of commands that only operators may send.
    pub fn routes_of_operators(&self) -> impl Iterator<Item = &str> {
        let of_operators = self.endpoints().iter().filter(|endpoint| endpoint.scope == "operate");
        of_operators.map(|endpoint| endpoint.route.as_str())
    }

    fn endpoints(&self) -> &[Endpoint] {
        match &self.source {
            Events::Http(endpoints) => endpoints,
            Events::States { .. }
            | Events::Queue(_)
            | Events::Stream
            | Events::Sequence(_)
            | Events::Schedule => &[],
        }
    }

    /// The variables that it must have.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.environment.iter().map(String::as_str)
    }

    /// Whether it reads the whole log when its view is made again.
    #[must_use]
    pub fn scans_the_log(&self) -> bool {
        let is_log = |table: &&Table| table.variable == "COMMITS_TABLE";
        self.tables.iter().find(is_log).is_some_and(|log| log.actions.contains("dynamodb:Scan"))
    }

    /// What it keeps up to date behind the log, if it does.
    #[must_use]
    pub fn follower(&self) -> Option<Follower<'_>> {
        let (kind, of): (_, Vec<_>) = match &self.source {
            Events::States { category, .. } => (Follows::States, vec![category]),
            Events::Queue(categories) => (Follows::Log, categories.iter().collect()),
            Events::Sequence(categories) => (Follows::Order, categories.iter().collect()),
            Events::Http(_) | Events::Stream | Events::Schedule => return None,
        };
        let of_the_log = ["COMMITS_TABLE", "REQUESTS_TABLE", "SEQUENCE_TABLE"];
        let table = self.tables.iter().find(|table| !of_the_log.contains(&table.variable.as_str()))?;
        let kind = if table.variable == "POSITIONS_TABLE" { Follows::ToAct } else { kind };
        Some(Follower {
            kind,
            of: of.into_iter().map(String::as_str).collect(),
            variable: &table.variable,
            partition: &table.partition,
            sort: table.sort.as_deref(),
        })
    }
}

/// What a function keeps up to date behind the log: a view, or the positions of a process manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follower<'a> {
    /// From what.
    pub kind: Follows,
    /// The categories.
    pub of: Vec<&'a str>,
    /// The variable that names its table.
    pub variable: &'a str,
    /// The name of the table's partition key.
    pub partition: &'a str,
    /// The name of its sort key, if it has one.
    pub sort: Option<&'a str>,
}

/// The source of a function's events.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Events {
    Http(Vec<Endpoint>),
    States { category: String, events: BTreeSet<String> },
    Queue(BTreeSet<String>),
    Stream,
    Sequence(BTreeSet<String>),
    Schedule,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    route: String,
    scope: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    variable: String,
    action: String,
    like: BTreeSet<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    variable: String,
    partition: String,
    sort: Option<String>,
    indexes: Vec<Index>,
    actions: BTreeSet<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    name: String,
    partition: String,
    sort: String,
    projection: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    action: String,
    variable: String,
}

/// Asks functions for their needs. The keys are the names of the functions, the values the paths of
/// their programs.
///
/// # Errors
/// When one cannot be run, or prints something else.
pub fn needs(programs: &BTreeMap<String, PathBuf>) -> Result<BTreeMap<String, Needs>> {
    let ask = |(name, program): (&String, &PathBuf)| {
        // The development binary is told which function it is, as Lambda tells every function.
        let output = Command::new(program).arg("--needs").env("AWS_LAMBDA_FUNCTION_NAME", name).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            bail!("{name} --needs ended with {}", output.status);
        }
        let needs = serde_json::from_slice(&output.stdout);
        Ok((name.clone(), needs.with_context(|| format!("{name} --needs prints something else"))?))
    };
    programs.iter().map(ask).collect()
}

/// Builds the functions of a template and asks them what they need.
///
/// # Errors
/// When they do not build, or as those of [`needs`].
pub fn needs_of(source: &Source, root: &Path) -> Result<BTreeMap<String, Needs>> {
    let template = source.template(&BTreeMap::new(), "http://127.0.0.1")?;
    let binaries: Vec<_> = template.functions.iter().map(|function| function.binary.as_str()).collect();
    needs(&crate::build::build(root, &binaries)?)
}

/// The differences between functions and template: one sentence each, with its place in the
/// template. The keys of `needs` are the names of the binaries.
#[must_use]
pub fn problems(source: &Source, needs: &BTreeMap<String, Needs>) -> Vec<String> {
    let json = source.json();
    let template = Template::of(source, &json, needs);
    [sources::problems(&template), tables::problems(&template), roles::problems(&template)].concat()
}

/// The lines by which a reconciler knows what follows the log: a function, its table as the
/// template names it, the table's keys, and the categories whose commits it takes.
#[must_use]
pub fn followers(source: &Source, needs: &BTreeMap<String, Needs>) -> BTreeSet<String> {
    sources::follower_lines(&Template::of(source, &source.json(), needs))
}

/// The template, and what its functions need.
struct Template<'a> {
    source: &'a Source,
    json: &'a Value,
    functions: Vec<Function<'a>>,
}

/// A function of the template, and what it needs.
struct Function<'a> {
    /// Logical id.
    id: &'a str,
    properties: &'a Value,
    needs: &'a Needs,
}

impl<'t> Template<'t> {
    fn of(source: &'t Source, json: &'t Value, needs: &'t BTreeMap<String, Needs>) -> Self {
        let mut functions = Vec::new();
        for (id, resource) in resources(json, &["AWS::Serverless::Function"]) {
            let binary = resource["Metadata"]["BuildProperties"]["Binary"].as_str().unwrap_or_default();
            // A missing binary is reported by the build.
            let Some(needs) = needs.get(binary) else { continue };
            functions.push(Function { id, properties: &resource["Properties"], needs });
        }
        Self { source, json, functions }
    }

    /// A problem with a function: its place, which is the closest of these keys below the
    /// function's properties, and what is wrong.
    fn problem(&self, function: &str, keys: &[&str], message: &str) -> String {
        let path = [&["Resources", function, "Properties"], keys].concat();
        format!("{}: {function}: {message}", self.source.place(&path))
    }

    /// The type of a resource.
    fn kind(&self, id: &str) -> &'t str {
        self.json["Resources"][id]["Type"].as_str().unwrap_or_default()
    }

    /// The value of a function's variable: the function's own, or that of all functions.
    fn variable(&self, function: &Function<'t>, name: &str) -> Option<&'t Value> {
        let json: &'t Value = self.json;
        let globals = &json["Globals"]["Function"];
        [function.properties, globals].into_iter().find_map(|node| node["Environment"]["Variables"].get(name))
    }
}

impl<'t> Function<'t> {
    /// The function's events of this type: names and properties.
    fn events(&self, kind: &'static str) -> impl Iterator<Item = (&'t str, &'t Value)> + use<'t> {
        let events = self.properties["Events"].as_object().into_iter().flatten();
        events
            .filter(move |(_, event)| event["Type"] == kind)
            .map(|(name, event)| (name.as_str(), &event["Properties"]))
    }
}

/// The logical ids that an `Fn::Sub` refers to.
fn substituted(value: &Value) -> impl Iterator<Item = &str> {
    let text = value["Fn::Sub"].as_str().unwrap_or_default();
    text.split("${").skip(1).filter_map(|rest| rest.split('}').next())
}

/// Names with commas between them, for a sentence.
fn listed<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
