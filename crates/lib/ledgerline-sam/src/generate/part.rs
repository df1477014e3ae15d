//! The parts of a template that do not follow from a manifest: files in the grammar of SAM, with
//! names to fill in.
//!
//! A part is the one place of its defaults. `deploy.yaml` has the same grammar, and overrides them.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};

use crate::yaml::{self, Kind, Node};

/// The names that a part refers to as `${Name}`.
pub(super) type Names = BTreeMap<&'static str, String>;

/// A part: the name and the text of its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    name: &'static str,
    text: &'static str,
}

macro_rules! parts {
    ($($constant:ident = $file:literal),* $(,)?) => {
        $(pub(super) const $constant: Part =
            Part { name: $file, text: include_str!(concat!("parts/", $file)) };)*
    };
}

parts! {
    ACCESS = "access.yaml",
    APP = "app.yaml",
    ARCHIVE = "archive.yaml",
    BODIES = "bodies.yaml",
    COMMITS = "commits.yaml",
    CONDITIONAL_ROUTE = "conditional-route.yaml",
    DASHBOARD = "dashboard.yaml",
    DATABASE = "database.yaml",
    DATABASE_FUNCTION = "database-function.yaml",
    DATABASE_KINESIS = "database-kinesis.yaml",
    EVENTS_QUERIES = "events-queries.yaml",
    EVENTS_READER = "events-reader.yaml",
    FANOUT = "fanout.yaml",
    FUNCTION = "function.yaml",
    KINESIS = "kinesis.yaml",
    KINESIS_FUNCTION = "kinesis-function.yaml",
    LOG = "log.yaml",
    METRIC = "metric.yaml",
    MONITORING = "monitoring.yaml",
    OPERATORS = "operators.yaml",
    OPERATOR_CLIENT = "operator-client.yaml",
    OTHER_VIEWS = "other-views.yaml",
    PROCESS_MANAGER = "process-manager.yaml",
    RECONCILER = "reconciler.yaml",
    RULE = "rule.yaml",
    SEARCH = "search.yaml",
    SEARCH_FUNCTION = "search-function.yaml",
    SEQUENCER = "sequencer.yaml",
    SIGN_UP = "sign-up.yaml",
    SIGN_UP_POOL = "sign-up-pool.yaml",
    STATES = "states.yaml",
    SUBSCRIPTION = "subscription.yaml",
    TYPES = "types.yaml",
    URL = "url.yaml",
    VARIABLES = "variables.yaml",
    WEB = "web.yaml",
}

impl Part {
    /// Returns the part, with these names filled in. A comment above a section is for the readers
    /// of the part, and left out.
    pub(super) fn read(self, names: &Names) -> Result<Node> {
        let filled = names.iter().fold(self.text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        });
        let mut node = yaml::parse_commented(&filled)
            .map_err(|(line, message)| anyhow!("{}:{line}: {message}", self.name))?;
        if let Kind::Map(sections) = &mut node.kind {
            sections.iter_mut().for_each(|(_, section)| section.comment.clear());
        }
        Ok(node)
    }
}

/// Adds the sections of a part to a template. A resource without `Type` extends the one that the
/// template has.
pub(super) fn add(template: &mut Node, part: Node) -> Result<()> {
    for (id, resource) in part.get("Resources").map_or(&[][..], Node::entries) {
        let known = template.get("Resources").and_then(|resources| resources.get(id));
        match (known, resource.get("Type")) {
            (Some(_), Some(_)) => {
                bail!("two functions have the resource `{id}`: rename the binary of one of them")
            }
            (None, None) => bail!("a part extends the resource `{id}`, which the template lacks"),
            (Some(_), None) | (None, Some(_)) => {}
        }
    }
    let base = std::mem::replace(template, Node::list([]));
    *template = yaml::merge(base, part);
    Ok(())
}

/// Fills the defaults of its type into each resource.
pub(super) fn fill_types(template: &mut Node) -> Result<()> {
    let types = TYPES.read(&Names::new())?;
    let Some(resources) = template.get_mut("Resources") else { return Ok(()) };
    let resource = |(id, node): &(String, Node)| {
        let defaults = node.get("Type").and_then(Node::as_str).and_then(|kind| types.get(kind));
        let node = node.clone();
        (id.clone(), defaults.map_or(node.clone(), |defaults| yaml::fill(node, defaults)))
    };
    *resources = Node::map(resources.entries().iter().map(resource).collect::<Vec<_>>());
    Ok(())
}
