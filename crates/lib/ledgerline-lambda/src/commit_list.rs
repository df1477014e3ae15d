//! The commits of a batch in one line of the logs.

use std::fmt::Write;

use ledgerline::{Commit, StreamId};

/// The commits of a batch with the same result, in one field: `account-163…@3 JKJaXmPL,
/// account-164…@1 K8dZ0aX`. One line for each commit would cost three times as much. Each commit
/// has its stream, its version and its correlation id. With these, an operator searches for a
/// missing command.
#[derive(Debug, Default)]
pub(crate) struct CommitList(String);

impl CommitList {
    /// Adds a commit.
    pub(crate) fn add(&mut self, commit: &Commit) {
        self.add_version(&commit.stream, commit.version, commit.meta.correlation_id.as_deref());
    }

    /// Adds a version of a stream.
    pub(crate) fn add_version(
        &mut self,
        stream: &StreamId,
        version: u64,
        correlation_id: Option<&str>,
    ) {
        let comma = if self.0.is_empty() { "" } else { ", " };
        // Writing into a `String` never fails.
        let _ = write!(self.0, "{comma}{stream}@{version} {}", correlation_id.unwrap_or("-"));
    }

    /// The value of the field, or `None` if no commit was added.
    pub(crate) fn as_field(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use ledgerline::{Meta, StreamId, contract};

    use super::*;

    #[test]
    fn commits_are_found_by_stream_and_version_and_by_correlation_id() {
        let mut line = CommitList::default();
        assert_eq!(line.as_field(), None);
        let mut commit = contract::commit(&StreamId::new("tank", "1").unwrap(), 3);
        commit.meta = Meta { correlation_id: Some("JKJa".into()), ..Meta::default() };
        line.add(&commit);
        commit.version = 4;
        commit.meta.correlation_id = None;
        line.add(&commit);
        assert_eq!(line.as_field(), Some("tank-1@3 JKJa, tank-1@4 -"));
    }
}
