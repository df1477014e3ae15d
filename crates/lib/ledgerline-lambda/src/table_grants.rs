//! Grants by table: the actions that each engine of this library can take, including those of its
//! rare paths. A runner adds them to the manifest of the function that runs the engine.

use std::collections::BTreeSet;

use ledgerline::manifest::{
    Action::{BatchGetItem, DeleteItem, GetItem, PartiQLInsert, PutItem, Query, Scan, UpdateItem},
    Manifest, Name, Table,
};

/// The variable with the name of the table of `$all`.
pub(crate) const SEQUENCE_TABLE: &str = "SEQUENCE_TABLE";

/// The Commits table.
pub(crate) const COMMITS: Table = Table::new("COMMITS_TABLE", "stream", Some("version"));

/// The table of `$all`, which is a stream like those of commits.
pub(crate) const SEQUENCE: Table = Table::new(SEQUENCE_TABLE, "stream", Some("version"));

/// The Requests table: idempotency records, snapshots of long streams, and attempts of the fanout.
pub(crate) const REQUESTS: Table = Table::new("REQUESTS_TABLE", "request", None);

/// Reads of streams: every subscriber's engine repairs gaps with them.
pub(crate) fn read_streams() -> Table {
    Table::grant(COMMITS, [GetItem, Query])
}

/// Reads of the whole log: rebuilds.
pub(crate) fn scan_log() -> Table {
    Table::grant(COMMITS, [Scan])
}

/// Reads of the commits that `$all` names.
pub(crate) fn read_commits() -> Table {
    Table::grant(COMMITS, [BatchGetItem])
}

/// Checks for commits of these categories, and of no others: read-your-writes.
pub(crate) fn find_commits(categories: &BTreeSet<&'static str>) -> Table {
    COMMITS.grant_keys([GetItem], &streams(categories.iter().copied()))
}

/// Reads of the streams of these categories, and of no others: states from the log.
pub(crate) fn read_category_streams(categories: &BTreeSet<&'static str>) -> Table {
    COMMITS.grant_keys([GetItem, Query], &streams(categories.iter().copied()))
}

/// Reads of `$all`.
pub(crate) fn read_sequence() -> Table {
    Table::grant(SEQUENCE, [GetItem, Query])
}

/// Adds the grants of a reader of `$all` and of its commits.
pub(crate) fn reader_of_sequence(manifest: Manifest) -> Manifest {
    manifest.table(read_sequence()).table(read_streams()).table(read_commits())
}

/// Appends to `$all`.
pub(crate) fn append_to_sequence() -> Table {
    Table::grant(SEQUENCE, [GetItem, PartiQLInsert, Query])
}

/// Commands to aggregates of these categories, and of no others. The grants are appends to their
/// streams, idempotency records with these keys, which never change, and snapshots of long streams.
pub(crate) fn commands(categories: &[&'static str], records: &BTreeSet<Name>) -> [Table; 2] {
    let [commits, requests] = commands_without_keys(categories);
    [commits, requests.grant_keys([PartiQLInsert], records)]
}

/// The same grants, for commands without idempotency records.
pub(crate) fn commands_without_keys(categories: &[&'static str]) -> [Table; 2] {
    let streams = streams(categories.iter().copied());
    let snapshots = streams.iter().map(|streams| format!("state/{streams}").into()).collect();
    [
        read_streams().grant_keys([PartiQLInsert], &streams),
        Table::grant(REQUESTS, [GetItem]).grant_keys([PutItem], &snapshots),
    ]
}

/// The fanout's grants in addition to the log: attempts of poison pills, and snapshots.
pub(crate) fn attempts_and_snapshots() -> Table {
    let keys = ["fanout/*", "state/*"].map(Name::Borrowed).into();
    REQUESTS.grant_keys([GetItem, PutItem, UpdateItem, DeleteItem], &keys)
}

/// The partition keys of the streams of these categories, as patterns of IAM.
pub(crate) fn streams<'a>(categories: impl IntoIterator<Item = &'a str>) -> BTreeSet<Name> {
    categories.into_iter().map(|category| format!("{category}-*").into()).collect()
}
