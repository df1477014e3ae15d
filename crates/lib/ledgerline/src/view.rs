//! Views as data: the table of their rows, the source commits of the rows, and the function that
//! makes the rows.

use crate::{Aggregate, Changes, ChangesError, Commit, Write};

/// The table of a view that is written from states: one row for each aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateTable {
    /// The environment variable that names the table: `LEVELS_TABLE`.
    pub variable: &'static str,
    /// Name of the key, which is the aggregate's id.
    pub key: &'static str,
    /// The indexes of the table. A writer of a row of a later generation needs their partition
    /// keys, because rows of two generations are never in one list.
    pub indexes: &'static [Index],
}

impl StateTable {
    /// Returns the names of all partition keys, those of the table and of its indexes.
    pub fn partitions(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.key].into_iter().chain(self.indexes.iter().map(|index| index.partition))
    }
}

/// The table of a view that is written from the log. The handler's position in each stream is in
/// the same table: in an item next to the rows, or, if the view inserts its rows, in the newest row
/// of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogTable {
    /// The environment variable that names the table: `FILLS_TABLE`.
    pub variable: &'static str,
    /// Name of the partition key. A position next to the rows is in the partition that is named
    /// like the stream. No row may be in that partition, so that queries of rows never find a
    /// position.
    pub partition: &'static str,
    /// Name of the sort key.
    pub sort: &'static str,
}

/// An index of a table of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Index {
    /// The name of the index.
    pub name: &'static str,
    /// The field that is its partition key.
    pub partition: &'static str,
    /// The field that is its sort key.
    pub sort: &'static str,
    /// The part of each row that the index holds.
    pub projection: Projection,
}

/// The part of each row that an index holds: DynamoDB's `ProjectionType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Projection {
    /// The whole row. A page is read from the index alone, and every write of a row is a write of
    /// the index as well.
    #[serde(rename = "ALL")]
    All,
    /// The keys of the table and of the index. A page reads its rows from the table, at half a read
    /// unit each. A write that changes none of these keys costs nothing more. This is for rows that
    /// change with every command and are seldom listed.
    #[serde(rename = "KEYS_ONLY")]
    KeysOnly,
}

/// A view that is written from the states that events carry: one row for each aggregate.
///
/// ```
/// use ledgerline::{StateTable, StateView, testing::tank::{State, Tank}};
///
/// #[derive(serde::Serialize)]
/// struct Row {
///     id: String,
///     level: i64,
///     version: u64,
/// }
///
/// const LEVELS: StateView<Tank, Row> =
///     StateView { table: StateTable { variable: "LEVELS_TABLE", key: "id", indexes: &[] }, row };
///
/// /// `None` would forget the row.
/// fn row(id: &str, version: u64, state: State) -> Option<Row> {
///     Some(Row { id: id.to_owned(), level: state.level(), version })
/// }
/// ```
#[derive(Debug)]
pub struct StateView<A: Aggregate, Row> {
    /// The table of the rows.
    pub table: StateTable,
    /// Makes the row for an id, a version and a state, or returns `None` if the view forgets the
    /// aggregate.
    pub row: fn(&str, u64, A::State) -> Option<Row>,
}

impl<A: Aggregate, Row> Clone for StateView<A, Row> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Aggregate, Row> Copy for StateView<A, Row> {}

/// A view that is written from the log: from every commit of some categories, once and in order.
///
/// ```
/// use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write};
/// use ledgerline::testing::tank::Tank;
///
/// const TABLE: LogTable = LogTable { variable: "COUNTS_TABLE", partition: "owner", sort: "entry" };
/// const COUNTS: LogView =
///     LogView { table: TABLE, of: &[Tank::CATEGORY], writes: &[Write::Update], changes };
///
/// fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
///     let mut changes = Changes::new(TABLE);
///     changes.add(commit.stream.id(), "sum", "commits", 1);
///     Ok(changes)
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LogView {
    /// The table of the rows.
    pub table: LogTable,
    /// The categories whose commits the view applies.
    pub of: &'static [&'static str],
    /// The ways in which its changes write rows. The function's role allows no other way, and the
    /// view refuses a change of another kind.
    pub writes: &'static [Write],
    /// Makes the changes of a commit.
    pub changes: fn(&Commit) -> Result<Changes, ChangesError>,
}

impl LogView {
    /// Refuses a view whose rows could be lost. A view that inserts rows has one category: the keys
    /// of its rows are the id and the version, so rows of two categories could overwrite each
    /// other. It writes rows in no other way: an earlier insertion that arrives late would undo the
    /// other write.
    ///
    /// # Errors
    /// The text describes what is wrong with the view.
    pub fn check(&self) -> Result<(), &'static str> {
        let inserts = self.writes.contains(&Write::Insert);
        match (inserts, self.of.len(), self.writes.len()) {
            (true, 1, 1) | (false, _, _) => Ok(()),
            (true, 1, _) => Err("a view that inserts rows must not write them in another way"),
            (true, _, _) => Err("a view that inserts rows must apply the commits of one category"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_inserts_has_one_category_and_no_other_writes() {
        let table = LogTable { variable: "ROWS_TABLE", partition: "p", sort: "s" };
        let changes = |_: &Commit| {
            Ok(Changes::new(LogTable { variable: "ROWS_TABLE", partition: "p", sort: "s" }))
        };
        let check = |of, writes| LogView { table, of, writes, changes }.check();
        assert_eq!(check(&["a"], &[Write::Insert]), Ok(()));
        assert_eq!(check(&["a", "b"], &[Write::Put, Write::Delete]), Ok(()));
        for (of, writes) in [
            (&["a", "b"][..], &[Write::Insert][..]),
            (&["a"], &[Write::Insert, Write::Delete]),
            (&[], &[Write::Insert]),
        ] {
            assert!(check(of, writes).is_err(), "{of:?} {writes:?}");
        }
    }
}

/// A view that is written from `$all` ([`all`](crate::all)): from every commit of some categories,
/// once, in one order over all streams.
///
/// Next to its rows, it passes a state from one commit to the next, such as a running total or the
/// last row's number. Also, it passes a memory from one commit of a stream to the next one there,
/// such as the currency of an account. Both should be small: they are written with the rows, and
/// have at most 64 KB each, as JSON. A rebuild from the beginning makes the same rows.
///
/// ```
/// use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, OrderedView, Write};
/// use ledgerline::testing::tank::Tank;
/// use serde::{Deserialize, Serialize};
///
/// const TABLE: LogTable = LogTable { variable: "DIARY_TABLE", partition: "diary", sort: "entry" };
/// const DIARY: OrderedView<Last, ()> =
///     OrderedView { table: TABLE, of: &[Tank::CATEGORY], writes: &[Write::Put], changes };
///
/// #[derive(Clone, Default, Serialize, Deserialize)]
/// struct Last(u64);
///
/// #[derive(Serialize)]
/// struct Row {
///     diary: String,
///     entry: String,
///     tank: String,
/// }
///
/// fn changes(last: &mut Last, _: &mut (), commit: &Commit, changes: &mut Changes) -> Result<(), ChangesError> {
///     last.0 += 1;
///     let (diary, entry) = ("all".to_owned(), format!("{:020}", last.0));
///     changes.put(&Row { diary, entry, tank: commit.stream.id().to_owned() })
/// }
/// ```
#[derive(Debug)]
pub struct OrderedView<State, Memory> {
    /// The table of the rows. The checkpoint, and the positions in streams with their memories, are
    /// next to the rows.
    pub table: LogTable,
    /// The categories whose commits the view applies.
    pub of: &'static [&'static str],
    /// The ways in which its changes write rows: all but [`Write::Insert`], because a transaction
    /// writes its rows together with the checkpoint.
    pub writes: &'static [Write],
    /// Adds the changes of a commit to those of the commits before it. The commit's time is at most
    /// [`CLOCK_SKEW`](crate::all::CLOCK_SKEW) after that of its segment of `$all`: the clock of one
    /// command function cannot move a view by more.
    pub changes: fn(&mut State, &mut Memory, &Commit, &mut Changes) -> Result<(), ChangesError>,
}

impl<State, Memory> Clone for OrderedView<State, Memory> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<State, Memory> Copy for OrderedView<State, Memory> {}
