//! The statements that write the changes of a batch: one for each kind of write, from arrays.

use ledgerline::{
    Changes, LogTable,
    changes::{Change, Fields, Key},
    view_store::ViewError,
};
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};

/// A statement. Its values are arrays of texts.
pub(crate) struct ArrayStatement<'w> {
    pub(crate) sql: String,
    pub(crate) arrays: Vec<&'w (dyn ToSql + Sync)>,
}

impl<'w> ArrayStatement<'w> {
    /// Returns its arrays, each with its type.
    pub(crate) fn values(&self) -> Vec<(&'w (dyn ToSql + Sync), Type)> {
        self.arrays.iter().map(|array| (*array, Type::TEXT_ARRAY)).collect()
    }
}

/// Keys of rows, in their order, in the form of a statement's values.
#[derive(Default)]
pub(crate) struct Keys<'k> {
    pub(crate) partitions: Vec<&'k str>,
    pub(crate) sorts: Vec<&'k str>,
}

/// The changes of a batch, by the way in which they are written.
#[derive(Default)]
pub(crate) struct RowWrites<'k> {
    /// The keys of the rows to lock.
    locks: Keys<'k>,
    puts: Puts<'k>,
    deletions: Keys<'k>,
    updates: Updates<'k>,
}

#[derive(Default)]
struct Puts<'k> {
    keys: Keys<'k>,
    rows: Vec<String>,
}

#[derive(Default)]
struct Updates<'k> {
    keys: Keys<'k>,
    /// The initial rows of updates, with the keys alone, for rows that do not exist.
    first_rows: Vec<String>,
    fields: Vec<String>,
    sums: Vec<String>,
}

impl<'k> Keys<'k> {
    pub(crate) fn new(keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let mut all = Self::default();
        keys.into_iter().for_each(|key| all.push(key));
        all
    }

    fn push(&mut self, (partition, sort): &'k Key) {
        self.partitions.push(partition);
        self.sorts.push(sort);
    }

    fn arrays(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.partitions, &self.sorts]
    }
}

impl<'k> RowWrites<'k> {
    pub(crate) fn new(changes: &'k Changes, table: LogTable) -> Result<Self, ViewError> {
        let mut all = Self::default();
        for (key, change) in changes.iter() {
            match change {
                Change::Insert(fields) => all.puts.push(key, fields)?,
                Change::Put(fields) => {
                    all.locks.push(key);
                    all.puts.push(key, fields)?;
                }
                Change::Delete => {
                    all.locks.push(key);
                    all.deletions.push(key);
                }
                Change::Update { set, add } => {
                    all.locks.push(key);
                    all.updates.keys.push(key);
                    let keys: Fields = [(table.partition, &key.0), (table.sort, &key.1)]
                        .map(|(name, value)| (name.to_owned(), Value::from(value.as_str())))
                        .into_iter()
                        .collect();
                    all.updates.first_rows.push(to_json(&keys)?);
                    all.updates.fields.push(to_json(set)?);
                    all.updates.sums.push(to_json(add)?);
                }
            }
        }
        Ok(all)
    }

    /// Returns the statements on this table, in their order. Every transaction locks its rows in the
    /// order of their keys, so transactions seldom deadlock.
    pub(crate) fn statements(&self, rows: &str) -> Vec<ArrayStatement<'_>> {
        let Self { locks, puts, deletions, updates } = self;
        let mut statements = Vec::new();
        let mut add = |keys: &Keys<'_>, sql: String, arrays| {
            if !keys.sorts.is_empty() {
                statements.push(ArrayStatement { sql, arrays });
            }
        };
        let lock = format!(
            "SELECT FROM {rows} WHERE (partition, sort) IN (SELECT * FROM unnest($1, $2)) \
             ORDER BY partition, sort FOR UPDATE"
        );
        add(locks, lock, locks.arrays());
        let insert = format!(
            "INSERT INTO {rows} (partition, sort, row) \
             SELECT p, s, r::jsonb FROM unnest($1, $2, $3) AS u (p, s, r) ON CONFLICT (partition, sort)"
        );
        let put = format!("{insert} DO UPDATE SET row = excluded.row");
        add(&puts.keys, put, [puts.keys.arrays(), vec![&puts.rows]].concat());
        let delete =
            format!("DELETE FROM {rows} WHERE (partition, sort) IN (SELECT * FROM unnest($1, $2))");
        add(deletions, delete, deletions.arrays());
        // The row of another transaction is locked, and stays as it is.
        let begin = format!("{insert} DO UPDATE SET row = excluded.row WHERE false");
        add(&updates.keys, begin, [updates.keys.arrays(), vec![&updates.first_rows]].concat());
        let update = format!(
            "UPDATE {rows} AS t SET row = t.row || u.fields::jsonb || ({SUMS}) \
             FROM unnest($1, $2, $3, $4) AS u (p, s, fields, sums) \
             WHERE t.partition = u.p AND t.sort = u.s"
        );
        let arrays = [updates.keys.arrays(), vec![&updates.fields, &updates.sums]].concat();
        add(&updates.keys, update, arrays);
        statements
    }
}

/// The SQL that adds numbers to fields. An existing field that is not a number is an error.
const SUMS: &str = "SELECT coalesce(jsonb_object_agg(\
        a.key, coalesce((t.row -> a.key)::numeric, 0) + a.value::numeric), '{}') \
     FROM jsonb_each_text(u.sums::jsonb) AS a";

impl<'k> Puts<'k> {
    fn push(&mut self, key: &'k Key, fields: &Fields) -> Result<(), ViewError> {
        self.keys.push(key);
        self.rows.push(to_json(fields)?);
        Ok(())
    }
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> Result<String, ViewError> {
    serde_json::to_string(value).map_err(|error| ViewError::Row(error.to_string()))
}
