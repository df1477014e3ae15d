//! Where the rows of read models live.

/// Where the rows of a read model written from states live: one row for each aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateTable {
    /// Name of the key, which is the aggregate's id.
    pub key: &'static str,
}

/// Where the rows of a read model written from the log live, and beside them the handler's position in each stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogTable {
    /// Name of the partition key. The position in a stream is in the partition that is named like the stream, where no
    /// row is, so that queries of rows never meet it.
    pub partition: &'static str,
    /// Name of the sort key.
    pub sort: &'static str,
}
