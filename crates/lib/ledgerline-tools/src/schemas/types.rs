//! The types from which a contract is made.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::{
    Aggregate, Aggregates, EventTypes, Visitor,
    api::Operations,
    manifest::{Manifests, Source as Events},
    schemas,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Documents;

/// The types of a workspace, as data. A new workspace is not built, because that takes minutes: its
/// contract is made from the types of the starter.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Types {
    /// The operations of each function behind the HTTP API.
    pub(super) operations: BTreeMap<String, Operations>,
    pub(super) aggregates: Vec<AggregateType>,
    /// The schemas of events and rows.
    pub(super) documents: Documents,
}

/// An aggregate on the bus.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AggregateType {
    pub(super) category: String,
    /// The number of the state's shape.
    pub(super) state_schema: u32,
    /// The schema of the state.
    pub(super) state: Value,
    /// The current number of each event type.
    pub(super) events: BTreeMap<String, u32>,
}

impl Types {
    /// Keeps the types of these functions.
    pub(crate) fn retain(&mut self, manifests: &Manifests) {
        let mut folders = BTreeSet::new();
        for (function, manifest) in manifests {
            match &manifest.source {
                Events::States { category, .. } => _ = folders.insert(format!("events/{category}")),
                Events::Queue(categories) => {
                    folders.extend(categories.iter().map(|category| format!("events/{category}")));
                }
                Events::Http(_)
                | Events::Stream
                | Events::Sequence(_)
                | Events::Schedule
                | Events::SignUp => {}
            }
            let view = function.strip_suffix("-projector").unwrap_or(function).replace('-', "_");
            folders.insert(format!("rows/{view}.json"));
        }
        self.operations.retain(|function, _| manifests.contains_key(function));
        self.aggregates
            .retain(|aggregate| folders.contains(&format!("events/{}", aggregate.category)));
        self.documents.retain(|path, _| folders.iter().any(|folder| path.starts_with(folder)));
    }
}

/// Returns the types of aggregates.
pub(super) fn aggregates<L: Aggregates>() -> Vec<AggregateType> {
    struct Collect(Vec<AggregateType>);
    impl Visitor for Collect {
        fn visit<A: Aggregate>(&mut self) {
            self.0.push(AggregateType {
                category: A::CATEGORY.to_owned(),
                state_schema: A::STATE_SCHEMA,
                state: schemas::state::<A>(),
                events: A::Event::TYPES
                    .iter()
                    .map(|known| (known.name.to_owned(), known.schema))
                    .collect(),
            });
        }
    }
    let mut collect = Collect(Vec::new());
    L::visit(&mut collect);
    collect.0
}
