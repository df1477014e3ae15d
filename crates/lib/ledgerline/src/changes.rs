//! The changes that a commit makes in a read model that is written from the log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Commit, DecodeError, LogTable};

/// The reason why the changes of a commit cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// An event of the commit cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A row cannot be written. This is a programming error in its type.
    #[error("a row cannot be written: {0}")]
    NoRow(String),
    /// A change of a kind that the view does not name. This is a programming error in the view.
    #[error("the view does not declare this kind of write: {0:?}")]
    NotNamed(Write),
}

/// A way to write a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Write {
    /// A row of one commit alone, which no commit changes later: [`Changes::insert`]. This is the
    /// cheapest way, and a view that uses it uses no other way.
    Insert,
    /// The whole row: [`Changes::put`].
    Put,
    /// Some fields of the row: [`Changes::set`] and [`Changes::add`].
    Update,
    /// The row is deleted: [`Changes::delete`].
    Delete,
}

/// Partition key and sort key of a row.
pub type Key = (String, String);

/// The fields of a row, its keys among them.
pub type Fields = Map<String, Value>;

/// The change of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// The row has these fields, and no other commit writes it.
    Insert(Fields),
    /// The row has these fields from now on, and loses all others.
    Put(Fields),
    /// Some fields of the row change. A row that does not exist begins with them.
    Update {
        /// Fields and their new values.
        set: Fields,
        /// Fields and the numbers that are added to them. A field that does not exist begins at 0.
        add: BTreeMap<String, i64>,
    },
    /// The row is deleted.
    Delete,
}

/// The changes that a commit makes, in one write with the handler's position (rule 9).
///
/// Each row has at most one change, because a transaction accepts an item only once: several
/// changes of a row are merged into one. If all changes are insertions, the last row is written
/// after the others and contains the position, at a quarter of the price. Writing such a row twice
/// changes nothing.
///
/// ```
/// use ledgerline::{Changes, LogTable};
/// use serde::Serialize;
///
/// #[derive(Serialize)]
/// struct Row {
///     owner: String,
///     entry: String,
/// }
///
/// let mut changes = Changes::new(LogTable { variable: "ENTRIES_TABLE", partition: "owner", sort: "entry" });
/// changes.put(&Row { owner: "ada".into(), entry: "00000000000000000001#0000".into() })?;
/// changes.add("ada", "sum", "count", 1);
/// assert_eq!(changes.len(), 2);
/// # Ok::<_, ledgerline::ChangesError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    table: LogTable,
    rows: BTreeMap<Key, Change>,
}

impl Changes {
    /// Returns a list without changes.
    pub fn new(table: LogTable) -> Self {
        Self { table, rows: BTreeMap::new() }
    }

    /// Returns the changes of these rows, of which none is there twice.
    pub fn from_rows(table: LogTable, rows: impl IntoIterator<Item = (Key, Change)>) -> Self {
        Self { table, rows: rows.into_iter().collect() }
    }

    /// Returns the number of rows that change.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row changes.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the same changes, if all rows are written in one of these ways.
    pub fn only(self, writes: &[Write]) -> Result<Self, ChangesError> {
        let ways = self.rows.values().map(|change| match change {
            Change::Insert(_) => Write::Insert,
            Change::Put(_) => Write::Put,
            Change::Update { .. } => Write::Update,
            Change::Delete => Write::Delete,
        });
        match ways.into_iter().find(|way| !writes.contains(way)) {
            Some(way) => Err(ChangesError::NotNamed(way)),
            None => Ok(self),
        }
    }

    /// Iterates over the rows that change, and their changes.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Change)> {
        self.rows.iter()
    }

    /// Inserts a row of this commit alone. Its partition key is the stream's id, and its sort key
    /// begins like [`Commit::entry`]. So no other commit of the view's one category has this row.
    /// The newest row of a stream contains the handler's position. So no change and no time to live
    /// may delete rows of such a view.
    ///
    /// # Errors
    /// When the row is not an object with such keys. This is a programming error in its type.
    pub fn insert(&mut self, commit: &Commit, row: &impl Serialize) -> Result<(), ChangesError> {
        let (key, fields) = self.row(row)?;
        if key.0 != commit.stream.id()
            || !key.1.starts_with(commit.entry(0).trim_end_matches("0000"))
        {
            let message = "an inserted row must have the stream's id and a sort key that begins with the version";
            return Err(ChangesError::NoRow(message.into()));
        }
        self.rows.insert(key, Change::Insert(fields));
        Ok(())
    }

    /// Writes a whole row: it has these fields from now on.
    ///
    /// # Errors
    /// When the row is not an object with the table's keys. This is a programming error in its
    /// type.
    pub fn put(&mut self, row: &impl Serialize) -> Result<(), ChangesError> {
        let (key, fields) = self.row(row)?;
        self.rows.insert(key, Change::Put(fields));
        Ok(())
    }

    /// Returns the keys of a row, and its fields.
    fn row(&self, row: &impl Serialize) -> Result<(Key, Fields), ChangesError> {
        let fields = match serde_json::to_value(row) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return Err(ChangesError::NoRow("a row must be a JSON object".into())),
            Err(error) => return Err(ChangesError::NoRow(error.to_string())),
        };
        let key = |name: &str| fields.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
        let (Some(partition), Some(sort)) = (key(self.table.partition), key(self.table.sort))
        else {
            return Err(ChangesError::NoRow(format!(
                "a row must have the keys {} and {}",
                self.table.partition, self.table.sort
            )));
        };
        // `$` is reserved: the library's own items in the table, and the marks of generations,
        // begin with it.
        if partition.starts_with('$') {
            return Err(ChangesError::NoRow(format!(
                "a {} must not begin with $",
                self.table.partition
            )));
        }
        Ok(((partition, sort), fields))
    }

    /// Sets a field of a row, and replaces an earlier [`add`](Self::add) to it. A row that does not
    /// exist, or that these changes delete, begins with its keys and this field.
    pub fn set(&mut self, partition: &str, sort: &str, field: &str, value: impl Into<Value>) {
        match self.change(partition, sort) {
            Change::Insert(fields) | Change::Put(fields) => {
                _ = fields.insert(field.to_owned(), value.into())
            }
            Change::Update { set, add } => {
                add.remove(field);
                set.insert(field.to_owned(), value.into());
            }
            Change::Delete => {}
        }
    }

    /// Adds an amount to a field of a row. A negative amount makes the field smaller.
    pub fn add(&mut self, partition: &str, sort: &str, field: &str, amount: i64) {
        let add_to = |fields: &mut Fields| {
            let before = fields.get(field).and_then(Value::as_i64).unwrap_or(0);
            fields.insert(field.to_owned(), before.saturating_add(amount).into());
        };
        match self.change(partition, sort) {
            Change::Insert(fields) | Change::Put(fields) => add_to(fields),
            Change::Update { set, .. } if set.contains_key(field) => add_to(set),
            Change::Update { add, .. } => {
                let sum = add.entry(field.to_owned()).or_default();
                *sum = sum.saturating_add(amount);
            }
            Change::Delete => {}
        }
    }

    /// Deletes a row.
    pub fn delete(&mut self, partition: &str, sort: &str) {
        self.rows.insert((partition.to_owned(), sort.to_owned()), Change::Delete);
    }

    /// Returns the change of a row, to be extended. A change after a deletion begins a new row.
    fn change(&mut self, partition: &str, sort: &str) -> &mut Change {
        let change = self
            .rows
            .entry((partition.to_owned(), sort.to_owned()))
            .or_insert_with(|| Change::Update { set: Fields::new(), add: BTreeMap::new() });
        if *change == Change::Delete {
            *change = Change::Put(keys(&self.table, partition, sort));
        }
        change
    }

    /// Adds the changes of later commits after these. Each row then has one change, with the effect
    /// of both.
    pub fn extend(&mut self, later: Self) {
        for ((partition, sort), change) in later.rows {
            match change {
                Change::Update { set, add } => {
                    // An update without fields writes a row that does not exist, too.
                    self.change(&partition, &sort);
                    set.into_iter()
                        .for_each(|(field, value)| self.set(&partition, &sort, &field, value));
                    add.into_iter()
                        .for_each(|(field, amount)| self.add(&partition, &sort, &field, amount));
                }
                whole @ (Change::Insert(_) | Change::Put(_) | Change::Delete) => {
                    self.rows.insert((partition, sort), whole);
                }
            }
        }
    }

    /// Returns about the number of bytes of the changes as JSON. A transaction has a limit of
    /// bytes.
    pub fn bytes(&self) -> usize {
        let bytes = |fields: &Fields| serde_json::to_string(fields).map_or(0, |text| text.len());
        let of_row = |change: &Change| match change {
            Change::Insert(fields) | Change::Put(fields) => bytes(fields),
            Change::Update { set, .. } => bytes(set),
            Change::Delete => 0,
        };
        self.rows.values().map(of_row).sum()
    }

    /// Applies the changes to rows in memory, as the read tables do: for comparisons of a table
    /// with the fold of the log.
    pub fn fold(&self, rows: &mut BTreeMap<Key, Fields>) {
        for (key, change) in &self.rows {
            match change {
                Change::Insert(fields) | Change::Put(fields) => {
                    _ = rows.insert(key.clone(), fields.clone())
                }
                Change::Update { set, add } => {
                    let row = rows
                        .entry(key.clone())
                        .or_insert_with(|| keys(&self.table, &key.0, &key.1));
                    row.extend(set.clone());
                    for (field, amount) in add {
                        let before = row.get(field).and_then(Value::as_i64).unwrap_or(0);
                        row.insert(field.clone(), before.saturating_add(*amount).into());
                    }
                }
                Change::Delete => _ = rows.remove(key),
            }
        }
    }
}

fn keys(table: &LogTable, partition: &str, sort: &str) -> Fields {
    [(table.partition.to_owned(), partition.into()), (table.sort.to_owned(), sort.into())]
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const TABLE: LogTable = LogTable { variable: "ROWS_TABLE", partition: "p", sort: "s" };

    #[derive(Debug, Clone)]
    enum Step {
        Put(u8, i64),
        Set(u8, i64),
        Add(u8, i64),
        Delete(u8),
    }

    impl Step {
        fn take(&self, changes: &mut Changes) {
            let row = |row: &u8| format!("r{row}");
            match self {
                Self::Put(r, n) => {
                    changes.put(&json!({ "p": "x", "s": row(r), "n": n, "put": true })).unwrap()
                }
                Self::Set(r, n) => changes.set("x", &row(r), "n", *n),
                Self::Add(r, n) => changes.add("x", &row(r), "n", *n),
                Self::Delete(r) => changes.delete("x", &row(r)),
            }
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (0..3_u8, -5..5_i64, 0..4).prop_map(|(row, n, kind)| match kind {
            0 => Step::Put(row, n),
            1 => Step::Set(row, n),
            2 => Step::Add(row, n),
            _ => Step::Delete(row),
        });
        prop::collection::vec(step, 0..12)
    }

    proptest! {
        /// Merging all changes of a row into one change gives the same rows as applying them one
        /// after the other.
        #[test]
        fn merged_changes_of_a_row_have_the_same_effect(before in steps(), steps in steps()) {
            let mut one_by_one = BTreeMap::new();
            for step in &before {
                let mut change = Changes::new(TABLE);
                step.take(&mut change);
                change.fold(&mut one_by_one);
            }
            let mut at_once = one_by_one.clone();
            let mut merged = Changes::new(TABLE);
            for step in &steps {
                let mut change = Changes::new(TABLE);
                step.take(&mut change);
                change.fold(&mut one_by_one);
                step.take(&mut merged);
            }
            merged.fold(&mut at_once);
            prop_assert!(merged.len() <= 3);
            prop_assert_eq!(at_once, one_by_one);
        }

        /// A rebuild writes the combined changes of many commits of a stream.
        #[test]
        fn combined_changes_of_commits_have_the_same_effect(commits in prop::collection::vec(steps(), 0..6)) {
            let mut one_by_one = BTreeMap::new();
            let mut at_once = BTreeMap::new();
            let mut all = Changes::new(TABLE);
            for steps in &commits {
                let mut changes = Changes::new(TABLE);
                steps.iter().for_each(|step| step.take(&mut changes));
                changes.fold(&mut one_by_one);
                all.extend(changes);
            }
            all.fold(&mut at_once);
            prop_assert_eq!(at_once, one_by_one);
        }
    }

    /// An insertion has no condition, so it could overwrite the row of another commit.
    #[test]
    fn a_row_without_a_key_of_its_commit_is_not_inserted() {
        let commit = crate::contract::commit(&crate::StreamId::new("tank", "x").unwrap(), 3);
        let insert = |partition: &str, sort: String| {
            Changes::new(TABLE).insert(&commit, &json!({ "p": partition, "s": sort }))
        };
        insert("x", commit.entry(0)).unwrap();
        insert("x", commit.entry(1)).unwrap();
        let next = crate::contract::commit(&commit.stream, 4);
        for (partition, sort) in [("y", commit.entry(0)), ("x", next.entry(0)), ("x", "r".into())] {
            assert!(insert(partition, sort.clone()).is_err(), "{partition} {sort}");
        }
    }

    #[test]
    fn a_row_without_its_keys_is_refused() {
        for row in [
            json!({ "p": "x" }),
            json!({ "p": 1, "s": "r" }),
            json!({ "p": "$x", "s": "r" }),
            json!("x"),
        ] {
            assert!(Changes::new(TABLE).put(&row).is_err(), "{row}");
        }
    }
}
