//! The body objects that a function reads and writes. They follow from its manifest, and from the
//! categories whose commits may have body objects.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Action, Manifest, Name, Source};

/// The variable with the name of the bucket of body objects.
pub const BODIES_BUCKET: &str = "BODIES_BUCKET";

/// The optional variable with the number of bytes beyond which a commit gets a body object, though
/// its item would fit.
pub const BODY_OVER: &str = "BODY_OVER";

/// The variable with the name of the Commits table.
const COMMITS: &str = "COMMITS_TABLE";

/// The categories whose body objects a function reads and writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyGrants {
    /// The categories whose objects it reads, including those that it writes.
    pub reads: BTreeSet<Name>,
    /// The categories whose objects it writes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub writes: BTreeSet<Name>,
}

impl Manifest {
    /// Returns the body objects that the function reads and writes, if commits of these categories
    /// may have some; `None` if it works with no such commit.
    pub fn body_grants(&self, categories: &BTreeSet<Name>) -> Option<BodyGrants> {
        let reads = [Action::BatchGetItem, Action::Query, Action::Scan];
        // The fanout and the sequencer pass on where the payloads are, and the reconciler reads keys.
        if !reads.into_iter().any(|action| self.takes(action, COMMITS))
            || matches!(self.source, Source::Stream | Source::Schedule)
        {
            return None;
        }
        let actions = &self.table_of(COMMITS)?.actions;
        let has = |action: Action, category: &Name| {
            let keys = actions.get(&action);
            keys.is_some_and(|keys| keys.contains(&*format!("{category}-*")))
        };
        let appends = |category: &Name| has(Action::PartiQLInsert, category);
        let consumed = self.categories();
        // The reader of `$all` behind the API shows every category. A query function may read only
        // the streams of some.
        let reads_some = actions.get(&Action::Query).is_some_and(|keys| !keys.is_empty());
        let reads_all =
            consumed.is_empty() && !actions.contains_key(&Action::PartiQLInsert) && !reads_some;
        let reads = |category: &Name| {
            reads_all
                || consumed.contains(&**category)
                || appends(category)
                || has(Action::Query, category)
        };
        let select = |is_meant: &dyn Fn(&Name) -> bool| -> BTreeSet<Name> {
            categories.iter().filter(|category| is_meant(category)).cloned().collect()
        };
        let grants = BodyGrants { reads: select(&reads), writes: select(&appends) };
        (!grants.reads.is_empty()).then_some(grants)
    }

    /// Declares the body objects that the function reads and writes.
    #[must_use]
    pub fn bodies(mut self, grants: BodyGrants) -> Self {
        self = self.variable(BODIES_BUCKET);
        if !grants.writes.is_empty() {
            self = self.optional(BODY_OVER);
        }
        Self { bodies: Some(grants), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Table;

    fn names(names: &[&'static str]) -> BTreeSet<Name> {
        names.iter().copied().map(Name::Borrowed).collect()
    }

    /// The objects that a function with these events and this table reads and writes, if `tank` and
    /// `haul` have some.
    fn grants(source: Source, table: Table) -> Option<BodyGrants> {
        Manifest::new(source).table(table).body_grants(&names(&["tank", "haul"]))
    }

    #[test]
    fn a_function_reads_the_objects_of_its_categories_and_writes_those_that_it_appends_to() {
        let log = || Table::new(COMMITS, "stream", Some("version"));
        let reads = || Table::grant(log(), [Action::GetItem, Action::Query]);
        let commands = |keys| reads().grant_keys([Action::PartiQLInsert], &names(keys));
        let http = || Source::Http(Vec::new());
        let queue = |categories| Source::Queue(names(categories));
        let expected = |reads: &[&'static str], writes: &[&'static str]| {
            Some(BodyGrants { reads: names(reads), writes: names(writes) })
        };
        let all = expected(&["haul", "tank"], &[]);
        assert_eq!(grants(http(), commands(&["tank-*"])), expected(&["tank"], &["tank"]));
        assert_eq!(
            grants(queue(&["haul"]), commands(&["tank-*"])),
            expected(&["haul", "tank"], &["tank"])
        );
        assert_eq!(grants(queue(&["haul", "user"]), reads()), expected(&["haul"], &[]));
        assert_eq!(grants(http(), Table::grant(log(), [Action::BatchGetItem])), all);
        let state = log().grant_keys([Action::GetItem, Action::Query], &names(&["tank-*"]));
        assert_eq!(grants(http(), state), expected(&["tank"], &[]));
        // No payload is read by commands to another category, by read-your-writes, and by
        // functions behind the stream of the table.
        assert_eq!(grants(http(), commands(&["user-*"])), None);
        assert_eq!(grants(queue(&["user"]), reads()), None);
        assert_eq!(grants(http(), log().grant_keys([Action::GetItem], &names(&["tank-*"]))), None);
        assert_eq!(grants(Source::Stream, reads()), None);
        assert_eq!(grants(Source::Schedule, reads()), None);
    }
}
