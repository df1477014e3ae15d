//! The list that a query reads, for its page and for its cursor.

/// A query with the names of the keys of its table or index.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    /// The name of the index; `None` for the table itself.
    pub(super) index: Option<&'a str>,
    /// Name and value of the partition key.
    pub(super) partition: (&'a str, &'a str),
    /// The names of the other keys. The sort key is first. For an index, the table's key that is no
    /// key of the index follows.
    pub(super) keys: &'a [&'a str],
    /// The names of all partition keys of the table and its indexes: their values carry the
    /// generation.
    pub(super) partitions: &'a [&'a str],
    pub(super) starts_with: Option<&'a str>,
    pub(super) newest_first: bool,
    pub(super) limit: i32,
    pub(super) cursor: Option<&'a str>,
}

impl List<'_> {
    pub(super) fn sort(&self) -> &str {
        self.keys.first().copied().unwrap_or_default()
    }

    /// Whether its sort key is the partition key of another index.
    pub(super) fn is_sorted_by_partition(&self) -> bool {
        self.partitions.contains(&self.sort())
    }
}
