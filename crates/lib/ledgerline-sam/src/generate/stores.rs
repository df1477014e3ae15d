//! The stores of views that a stack may lack. The functions of such a store exist only if a
//! parameter of the template names the store.

use std::collections::BTreeSet;

use ledgerline::manifest::{Action, Manifest, VIEWS_TABLE, ViewStore};

use super::part::{self, Names, Part};

/// A store, with its parts of the template.
#[derive(Debug)]
pub(super) struct OptionalStore {
    kind: ViewStore,
    /// The condition of its functions.
    pub(super) condition: &'static str,
    /// The variable of its functions.
    variable: &'static str,
    pub(super) stack: Part,
    pub(super) function: Part,
    /// The part of a stack with a function that also gets records of Kinesis.
    pub(super) kinesis: Option<Part>,
}

/// All of them.
pub(super) static OPTIONAL_STORES: [OptionalStore; 2] = [
    OptionalStore {
        kind: ViewStore::Postgres,
        condition: "HasDatabase",
        variable: "DATABASE_URL",
        stack: part::DATABASE,
        function: part::DATABASE_FUNCTION,
        kinesis: Some(part::DATABASE_KINESIS),
    },
    OptionalStore {
        kind: ViewStore::OpenSearch,
        condition: "HasSearch",
        variable: "SEARCH_ENDPOINT",
        stack: part::SEARCH,
        function: part::SEARCH_FUNCTION,
        kinesis: None,
    },
];

/// The condition of the table with the generations of views in two such stores.
const HAS_OTHER_VIEWS: &str = "HasOtherViews";

/// Returns the conditions that come from optional stores, each with those that imply it.
pub(super) fn conditions() -> Vec<(&'static str, Vec<&'static str>)> {
    let stores: Vec<_> = OPTIONAL_STORES.iter().map(|store| store.condition).collect();
    let each = stores.clone().into_iter().map(|condition| (condition, Vec::new()));
    each.chain([(HAS_OTHER_VIEWS, stores)]).collect()
}

/// Returns the stores that functions with these manifests need.
pub(super) fn needed(manifests: &[&Manifest]) -> Vec<&'static OptionalStore> {
    let is_needed =
        |store: &&OptionalStore| manifests.iter().any(|manifest| store.is_needed(manifest));
    OPTIONAL_STORES.iter().filter(is_needed).collect()
}

/// Returns the condition of the table with the generations of all views in these stores.
pub(super) fn condition(stores: &[&OptionalStore]) -> &'static str {
    match stores {
        [store] => store.condition,
        _ => HAS_OTHER_VIEWS,
    }
}

/// Returns the parts that the needed stores add to a template.
pub(super) fn parts(manifests: &[&Manifest]) -> Vec<Part> {
    let stores = needed(manifests);
    let mut parts: Vec<_> = stores.iter().map(|store| store.stack).collect();
    let has_kinesis = |store: &OptionalStore| {
        manifests.iter().any(|manifest| manifest.kinesis && store.is_needed(manifest))
    };
    let with_kinesis = stores.iter().filter(|store| has_kinesis(store));
    parts.extend(with_kinesis.filter_map(|store| store.kinesis));
    parts.extend((stores.len() > 1).then_some(part::OTHER_VIEWS));
    parts
}

impl OptionalStore {
    /// Returns the store that a function needs, if there is one.
    pub(super) fn find(manifest: &Manifest) -> Option<&'static Self> {
        OPTIONAL_STORES.iter().find(|store| store.is_needed(manifest))
    }

    fn is_needed(&self, manifest: &Manifest) -> bool {
        manifest.variables.contains(self.variable)
    }

    /// Returns the names in the part of a function: the rights in OpenSearch, which are on paths.
    /// A function reads the generations of its views, so its manifest has their names.
    pub(super) fn names(&self, manifest: &Manifest) -> Names {
        if self.kind != ViewStore::OpenSearch {
            return Names::new();
        }
        let keys = manifest.table_of(VIEWS_TABLE.variable.as_ref());
        let keys = keys.and_then(|table| table.actions.get(&Action::GetItem));
        let views = keys.into_iter().flatten().filter_map(|key| self.kind.view_name(key));
        let writes = manifest.subscriber.is_some();
        let paths = views.map(|view| match writes {
            true => format!("{view}-g*"),
            false => format!("{view}-g*/_search"),
        });
        let mut paths: BTreeSet<_> = paths.collect();
        if writes {
            paths.insert("_aliases".to_owned());
        }
        let domain =
            "arn:${AWS::Partition}:es:${AWS::Region}:${AWS::AccountId}:domain/${SearchDomain}";
        let paths: Vec<_> = paths.iter().map(|path| format!(r#"!Sub "{domain}/{path}""#)).collect();
        let actions: Vec<_> = manifest
            .calls
            .iter()
            .filter(|call| call.variable == self.variable)
            .map(|call| call.action.to_string())
            .collect();
        Names::from([("SearchActions", actions.join(", ")), ("SearchPaths", paths.join(", "))])
    }
}
