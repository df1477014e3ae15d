//! Generates the function of a manifest, and the resources that belong to it alone.

use anyhow::{Result, bail};
use ledgerline::manifest::{Action, Manifest, Scope, Source, SubscriberKind};

use super::{
    conditions,
    part::{self, Names, Part},
    routes,
    stores::OptionalStore,
    value::reference,
};
use crate::{
    functions::{capitalize, kebab, table_id},
    yaml::Node,
};

/// The metrics whose alarms are in the parts of their functions.
const KNOWN_METRICS: [&str; 2] = ["SubscriptionBehind", "Unreconciled"];

/// The variable of a process manager's own table.
const POSITIONS: &str = "POSITIONS_TABLE";

/// A function, with the names of its resources.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) binary: &'a str,
    pub(super) manifest: &'a Manifest,
    pub(super) kind: Kind,
    /// The name without the suffix `Function`: `LevelsProjector`.
    pub(super) name: String,
}

/// The way in which a function gets its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Fanout,
    Sequencer,
    EventsQueries,
    Reconciler,
    Http,
    States,
    /// States, by a rule of the bus.
    Rule,
    Commits,
    Subscription,
    SignUp,
}

impl Kind {
    fn new(manifest: &Manifest) -> Option<Self> {
        let has = |variable: &str| manifest.table_of(variable).is_some();
        match &manifest.source {
            Source::Stream if has("SEQUENCE_TABLE") => Some(Self::Sequencer),
            Source::Stream => Some(Self::Fanout),
            Source::Schedule if has("SEQUENCE_TABLE") => Some(Self::Reconciler),
            Source::Schedule => None,
            Source::Http(_) if has("SEQUENCE_TABLE") => Some(Self::EventsQueries),
            Source::Http(_) => Some(Self::Http),
            Source::States { bus: true, .. } => Some(Self::Rule),
            Source::States { bus: false, .. } => Some(Self::States),
            Source::Queue(_) => Some(Self::Commits),
            Source::Sequence(_) => Some(Self::Subscription),
            Source::SignUp => Some(Self::SignUp),
        }
    }

    /// Whether a stack has one such function. Its name does not depend on the binary.
    pub(super) fn is_single(self) -> bool {
        self <= Self::Reconciler
    }

    fn parts(self) -> &'static [Part] {
        match self {
            Self::Fanout => &[part::FANOUT],
            Self::Sequencer => &[part::SEQUENCER],
            Self::EventsQueries => &[part::EVENTS_QUERIES],
            Self::Reconciler => &[part::RECONCILER],
            Self::Http => &[],
            Self::States => &[part::STATES],
            Self::Rule => &[part::STATES, part::RULE],
            Self::Commits => &[part::COMMITS],
            Self::Subscription => &[part::SUBSCRIPTION],
            Self::SignUp => &[part::SIGN_UP],
        }
    }
}

impl<'a> Function<'a> {
    /// A function with this manifest.
    pub(super) fn new(binary: &'a str, manifest: &'a Manifest) -> Result<Self> {
        let Some(kind) = Kind::new(manifest) else {
            bail!("`{binary}` has only a schedule: write its function into deploy.yaml");
        };
        let name = match kind.is_single() {
            true => format!("{kind:?}"),
            false => binary.split(['-', '_']).map(capitalize).collect(),
        };
        Ok(Self { binary, manifest, kind, name })
    }

    /// The logical id of the function.
    pub(super) fn id(&self) -> String {
        format!("{}Function", self.name)
    }

    /// The name of what the function maintains: that of `LevelsProjector` is `Levels`.
    fn consumer(&self) -> &str {
        let suffixes = ["Projector", "Subscription"];
        suffixes.iter().find_map(|suffix| self.name.strip_suffix(suffix)).unwrap_or(&self.name)
    }

    /// The logical id of the table that a variable of the function names.
    pub(super) fn table(&self, variable: &str) -> String {
        match variable {
            POSITIONS => format!("{}PositionsTable", self.name),
            _ => table_id(variable),
        }
    }

    /// The resources of the function: its parts, and what follows from the manifest.
    pub(super) fn resources(&self, application: &Names) -> Result<Vec<Node>> {
        let mut names = application.clone();
        let reacts = self.is(SubscriberKind::ProcessManager);
        names.extend([
            ("Binary", self.binary.to_owned()),
            ("Function", self.name.clone()),
            ("Consumer", self.consumer().to_owned()),
            ("BatchSize", if reacts { "1" } else { "10" }.to_owned()),
            ("KinesisBatchSize", if reacts { "1" } else { "100" }.to_owned()),
        ]);
        let prefixes = self.manifest.categories().into_iter();
        let prefixes = prefixes.map(|category| format!(r#"{{"prefix": "{category}-"}}"#));
        names.insert("Prefixes", prefixes.collect::<Vec<_>>().join(", "));
        let mut parts = vec![part::FUNCTION];
        parts.extend(self.kind.parts());
        parts.extend(reacts.then_some(part::PROCESS_MANAGER));
        parts.extend(self.has_url().then_some(part::URL));
        parts.extend(self.manifest.kinesis.then_some(part::KINESIS_FUNCTION));
        if let Some(store) = self.optional_store() {
            names.extend(store.names(self.manifest));
            parts.push(store.function);
            parts.extend((self.kind == Kind::Http).then_some(part::CONDITIONAL_ROUTE));
        }
        let mut nodes: Vec<_> =
            parts.iter().map(|part| part.read(&names)).collect::<Result<_>>()?;
        for metric in &self.manifest.metrics {
            if !KNOWN_METRICS.contains(&&**metric) {
                names.insert("Metric", metric.to_string());
                names.insert("Anchor", kebab(metric));
                nodes.push(part::METRIC.read(&names)?);
            }
        }
        let events = self.events(application)?;
        if !events.entries().is_empty() {
            let function = Node::map([("Properties", Node::map([("Events", events)]))]);
            nodes.push(Node::map([("Resources", Node::map([(self.id(), function)]))]));
        }
        if let Some(store) = self.optional_store() {
            nodes.iter_mut().for_each(|node| conditions::add(node, store.condition));
        }
        Ok(nodes)
    }

    /// Returns the store of views that the function needs and the stack may lack.
    pub(super) fn optional_store(&self) -> Option<&'static OptionalStore> {
        OptionalStore::find(self.manifest)
    }

    fn is(&self, kind: SubscriberKind) -> bool {
        self.manifest.subscriber.as_ref().is_some_and(|subscriber| subscriber.kind == kind)
    }

    /// Whether the function writes tombstones into the table that this variable names.
    pub(super) fn forgets(&self, variable: &str) -> bool {
        self.manifest.subscriber.as_ref().is_some_and(|subscriber| {
            subscriber.kind == SubscriberKind::StateProjector
                && subscriber.table == variable
                && subscriber.view.is_none()
        })
    }

    /// Whether the function has its own URL. A function that shows the commits of all streams has
    /// none, because a URL has no scopes.
    fn has_url(&self) -> bool {
        let endpoints = self.manifest.endpoints();
        !endpoints.is_empty() && endpoints.iter().all(|endpoint| endpoint.scope != Scope::Events)
    }

    /// The events that follow from the manifest: routes, and the pattern of a rule.
    fn events(&self, application: &Names) -> Result<Node> {
        let application = application.get("Application").map_or("", String::as_str);
        match &self.manifest.source {
            Source::Http(endpoints) => {
                // If the condition is false, `AWS::LanguageExtensions` removes each `Ref` of the
                // resource. SAM then looks for an authorizer of an API without a name. It takes the
                // plain id, too, but writes it into the permission of the API
                // (`conditional-route.yaml`).
                let api = match self.optional_store() {
                    Some(_) => "HttpApi".into(),
                    None => reference("HttpApi"),
                };
                routes::nodes(endpoints, application, &self.id(), &api)
            }
            Source::States { category, events, bus: true } => {
                let pattern = routes::pattern_node(application, category, events);
                let properties = Node::map([("Pattern", pattern)]);
                Ok(Node::map([("Changed", Node::map([("Properties", properties)]))]))
            }
            Source::States { .. }
            | Source::Queue(_)
            | Source::Stream
            | Source::Sequence(_)
            | Source::Schedule
            | Source::SignUp => Ok(Node::map::<&str>([])),
        }
    }

    /// The values of the function's variables, except lists, which name resources of other
    /// functions. `deploy.yaml` has the values of variables that nothing here explains.
    pub(super) fn variables(&self, values: &Node) -> Node {
        let value = |variable: &str| match variable.ends_with("_TABLE") {
            true => Some(reference(&self.table(variable))),
            false => values.get(variable).cloned(),
        };
        let variables = &self.manifest.variables;
        Node::map(variables.iter().filter_map(|name| Some((name.to_string(), value(name)?))))
    }

    /// The categories of the aggregate to which the function belongs, in the order of the alphabet.
    pub(super) fn categories(&self) -> Vec<&str> {
        let inserts = self.manifest.table_of("COMMITS_TABLE");
        let inserts = inserts.and_then(|table| table.actions.get(&Action::PartiQLInsert));
        let consumed: Vec<_> = self.manifest.categories().into_iter().collect();
        match consumed.is_empty() {
            true => {
                inserts.into_iter().flatten().filter_map(|key| key.strip_suffix("-*")).collect()
            }
            false => consumed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(text: &str) -> Manifest {
        serde_json::from_str(text).unwrap()
    }

    const VIEW: &str = r#"{ "source": { "states": { "category": "item", "events": ["ItemAdded"] } },
        "subscriber": { "kind": "stateProjector", "table": "ITEMS_TABLE" },
        "tables": [{ "variable": "ITEMS_TABLE", "partition": "id", "actions": {} }] }"#;

    /// The resources of a function whose binary has this name.
    fn ids(binary: &str, text: &str) -> Vec<String> {
        let manifest = manifest(text);
        let function = Function::new(binary, &manifest).unwrap();
        let mut template = Node::map([("Resources", Node::map::<&str>([]))]);
        let tables = super::super::table::tables(std::slice::from_ref(&function)).unwrap();
        for tables in tables.into_values() {
            part::add(&mut template, Node::map([("Resources", Node::map(tables))])).unwrap();
        }
        for node in function.resources(&Names::new()).unwrap() {
            part::add(&mut template, node).unwrap();
        }
        let resources = template.get("Resources").unwrap().entries();
        resources.iter().map(|(id, _)| id.clone()).collect()
    }

    #[test]
    fn a_state_projector_has_a_retry_queue_with_alarms_and_a_rule_only_on_the_bus() {
        let of_fanout = [
            "ItemsTable",
            "ItemsProjectorFunction",
            "ItemsProjectorRole",
            "ItemsRetryQueue",
            "ItemsDeadLetterQueue",
            "ItemsProjectorUndelivered",
            "ItemsRetryQueueNotEmpty",
            "ItemsDeadLetterQueueNotEmpty",
        ];
        assert_eq!(ids("items-projector", VIEW), of_fanout);
        let of_bus = [&of_fanout[..], &["ItemsRetryQueuePolicy", "ItemsRuleFailures"]].concat();
        let view = VIEW.replace("\"events\"", "\"bus\": true, \"events\"");
        assert_eq!(ids("items-projector", &view), of_bus);
    }

    #[test]
    fn a_process_manager_has_its_own_positions_and_an_alarm_for_each_metric() {
        let haul = r#"{ "source": { "queue": ["haul"] }, "metrics": ["StuckHauls"],
            "subscriber": { "kind": "processManager", "table": "POSITIONS_TABLE" },
            "tables": [{ "variable": "POSITIONS_TABLE", "partition": "stream", "actions": {} }] }"#;
        let expected = [
            "HaulPositionsTable",
            "HaulFunction",
            "HaulRole",
            "HaulQueue",
            "HaulDeadLetterQueue",
            "HaulQueueAge",
            "HaulDeadLetterQueueNotEmpty",
            "StuckHauls",
        ];
        assert_eq!(ids("haul", haul), expected);
    }

    #[test]
    fn a_function_that_shows_all_streams_has_no_url() {
        for (scope, has_url) in
            [("read", true), ("write", true), ("operate", true), ("events", false)]
        {
            let text = r#"{ "source": { "http": [{ "route": "GET /items", "scope": "SCOPE" }] } }"#;
            let ids = ids("item-queries", &text.replace("SCOPE", scope));
            assert_eq!(ids.contains(&"ItemQueriesUrl".to_owned()), has_url, "{scope}");
        }
    }

    #[test]
    fn a_function_with_only_a_schedule_is_left_to_the_team() {
        let manifest = manifest(r#"{ "source": "schedule" }"#);
        let error = Function::new("nightly", &manifest).unwrap_err().to_string();
        assert_eq!(error, "`nightly` has only a schedule: write its function into deploy.yaml");
    }
}
