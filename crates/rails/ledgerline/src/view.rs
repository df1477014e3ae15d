//! Views as data: where their rows are, which commits they are made of, and how.

use crate::{Aggregate, Changes, ChangesError, Commit, Write};

/// The table of a view that is written from states: one row for each aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateTable {
    /// The environment variable that names the table: `LEVELS_TABLE`.
    pub variable: &'static str,
    /// Name of the key, which is the aggregate's id.
    pub key: &'static str,
}

/// The table of a view that is written from the log. Beside the rows it has the handler's position in each stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogTable {
    /// The environment variable that names the table: `FILLS_TABLE`.
    pub variable: &'static str,
    /// Name of the partition key. The position in a stream is in the partition that is named like the stream, where no
    /// row is, so that queries of rows never meet it.
    pub partition: &'static str,
    /// Name of the sort key.
    pub sort: &'static str,
}

/// An index of a table of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Index {
    /// Its name.
    pub name: &'static str,
    /// The field that is its partition key.
    pub partition: &'static str,
    /// The field that is its sort key.
    pub sort: &'static str,
    /// What it holds of each row.
    pub projection: Projection,
}

/// What an index holds of each row, as DynamoDB's `ProjectionType` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Projection {
    /// The whole row. A page is read from the index alone, and every write of a row is a write of the index as well.
    #[serde(rename = "ALL")]
    All,
    /// The keys of the table and of the index. A page reads its rows from the table, at half a read unit each, and a write that changes none of
    /// these keys costs nothing more: for rows that change with every command, and are seldom listed.
    #[serde(rename = "KEYS_ONLY")]
    KeysOnly,
}

/// The row that shows a state at a version, or none where the view forgets the aggregate.
pub type RowOf<A, Row> = fn(&str, u64, <A as Aggregate>::State) -> Option<Row>;

/// A view that is written from the states that events carry: one row for each aggregate.
///
/// ```
/// use ledgerline::{StateTable, StateView, tank::{State, Tank}};
///
/// #[derive(serde::Serialize)]
/// struct Row {
///     id: String,
///     level: i64,
///     version: u64,
/// }
///
/// const LEVELS: StateView<Tank, Row> =
///     StateView { table: StateTable { variable: "LEVELS_TABLE", key: "id" }, row };
///
/// /// `None` would forget the row.
/// fn row(id: &str, version: u64, state: State) -> Option<Row> {
///     Some(Row { id: id.to_owned(), level: state.level(), version })
/// }
/// ```
#[derive(Debug)]
pub struct StateView<A: Aggregate, Row> {
    /// Where the rows are.
    pub table: StateTable,
    /// Makes them.
    pub row: RowOf<A, Row>,
}

impl<A: Aggregate, Row> Clone for StateView<A, Row> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Aggregate, Row> Copy for StateView<A, Row> {}

/// What a commit changes.
pub type ChangesOf = fn(&Commit) -> Result<Changes, ChangesError>;

/// A view that is written from the log: from every commit of some categories, once and in order.
///
/// ```
/// use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write, tank::Tank};
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
    /// Where the rows are.
    pub table: LogTable,
    /// The categories whose commits it takes.
    pub of: &'static [&'static str],
    /// How its changes write rows. The function's role allows nothing else, and a change of another kind is refused.
    pub writes: &'static [Write],
    /// Makes the changes of a commit.
    pub changes: ChangesOf,
}

impl LogView {
    /// Refuses a view whose rows could be lost: one that inserts rows, which are found by their version alone, of several categories, or that writes
    /// them in another way as well, which a slow insertion of before would undo.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), &'static str> {
        let inserts = self.writes.contains(&Write::Insert);
        match (inserts, self.of.len(), self.writes.len()) {
            (true, 1, 1) | (false, _, _) => Ok(()),
            (true, 1, _) => Err("a view that inserts rows writes them in no other way"),
            (true, _, _) => Err("a view that inserts rows takes the commits of one category"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_inserts_is_of_one_category_and_does_nothing_else() {
        let table = LogTable { variable: "ROWS_TABLE", partition: "p", sort: "s" };
        let changes: ChangesOf =
            |_| Ok(Changes::new(LogTable { variable: "ROWS_TABLE", partition: "p", sort: "s" }));
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
