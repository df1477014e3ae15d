//! Rows that are written from states: each shows the newest state of its aggregate (rule 8).

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::{
    StateTable, StreamId,
    changes::{Fields, Key},
    view_store::{Overwrite, RowStore, StateRowStore, StoredRow, ViewError, state_fields},
};
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::{Row, types::Type};

use crate::{
    database::{Database, Statement},
    log_view::read_fields,
    row_writes::to_json,
    server_error::ServerError,
    tables::{Column, ViewTables},
};

const COLUMNS: &[Column] = &[
    Column { name: "id", definition: r#"text COLLATE "C""#, is_key: true },
    Column { name: "version", definition: "bigint NOT NULL", is_key: false },
    // `NULL` marks the tombstone of a forgotten row. Tombstones are never deleted.
    Column { name: "row", definition: "jsonb", is_key: false },
];

/// The rows of a state view in PostgreSQL. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PostgresStateRows {
    database: Database,
    tables: ViewTables,
    keys: StateTable,
}

impl PostgresStateRows {
    /// Returns the rows of this view. `script` defines its indexes. The script may end with the
    /// definition of the public view, which shows the active generation. In the script,
    /// `{generation}` stands for the schema with the table.
    pub fn new(database: Database, keys: StateTable, script: &'static str) -> Self {
        Self { database, tables: ViewTables::new(keys.variable, COLUMNS, false, script), keys }
    }

    async fn overwrite(
        &self,
        id: &str,
        version: u64,
        row: Option<String>,
    ) -> Result<(Overwrite, f64), ViewError> {
        let rows = self.tables.rows();
        let version = to_i64(version)?;
        let write = format!(
            "INSERT INTO {rows} AS t (id, version, row) VALUES ($1, $2, $3::jsonb) \
             ON CONFLICT (id) DO UPDATE SET version = excluded.version, row = excluded.row \
             WHERE t.version < excluded.version RETURNING version"
        );
        let values =
            &[(&id as _, Type::TEXT), (&version as _, Type::INT8), (&row as _, Type::TEXT)];
        let write = Statement { sql: &write, values };
        let mut written = self.database.run(write).await;
        if written.as_ref().is_err_and(ServerError::is_missing_table) {
            self.prepare().await?;
            written = self.database.run(write).await;
        }
        if !written?.is_empty() {
            return Ok((Overwrite::Written, 0.0));
        }
        let read = format!("SELECT version FROM {rows} WHERE id = $1");
        let found =
            self.database.run(Statement { sql: &read, values: &[(&id, Type::TEXT)] }).await?;
        Ok((Overwrite::Shows(found.first().map_or(Ok(0), |row| read_version(row, 0))?), 0.0))
    }
}

impl RowStore for PostgresStateRows {
    fn at_generation(&self, generation: u32) -> Self {
        Self { tables: self.tables.at_generation(generation), ..self.clone() }
    }

    async fn prepare(&self) -> Result<(), ViewError> {
        self.tables.create(&self.database).await
    }

    fn is_publish_due(&self) -> bool {
        self.tables.is_publish_due()
    }

    async fn publish(&self) -> Result<(), ViewError> {
        self.tables.publish(&self.database).await
    }

    async fn positions(&self, streams: &[StreamId]) -> Result<Vec<u64>, ViewError> {
        let ids: Vec<_> = streams.iter().map(StreamId::id).collect();
        let sql = format!("SELECT id, version FROM {} WHERE id = ANY ($1)", self.tables.rows());
        let values = &[(&ids as _, Type::TEXT_ARRAY)];
        let rows = self.database.read(Statement { sql: &sql, values }).await?;
        let row = |row: &Row| Ok((row.get(0), read_version(row, 1)?));
        let found: BTreeMap<String, u64> =
            rows.iter().map(row).collect::<Result<_, ViewError>>()?;
        Ok(ids.into_iter().map(|id| found.get(id).copied().unwrap_or(0)).collect())
    }

    async fn delete_generation(&self) -> Result<(), ViewError> {
        self.tables.drop(&self.database).await
    }

    async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        let ids: Vec<_> = keys.iter().map(|(id, _)| id.as_str()).collect();
        let sql = format!(
            "SELECT id, version, row::text FROM {} WHERE id = ANY ($1)",
            self.tables.rows()
        );
        let values = &[(&ids as _, Type::TEXT_ARRAY)];
        let rows = self.database.read(Statement { sql: &sql, values }).await?;
        let row = |row: Row| {
            let text: Option<String> = row.get(2);
            let fields = text.map(|text| read_fields(&text)).transpose()?;
            let version = read_version(&row, 1)?;
            Ok(((row.get(0), String::new()), StoredRow { version, fields }))
        };
        rows.into_iter().map(row).collect()
    }
}

impl StateRowStore for PostgresStateRows {
    async fn put_newer(
        &self,
        row: &impl Serialize,
        version: u64,
    ) -> Result<(Overwrite, f64), ViewError> {
        let fields = self.stored_fields(row, version)?;
        let id = fields.get(self.keys.key).and_then(Value::as_str).unwrap_or_default();
        self.overwrite(id, version, Some(to_json(&fields)?)).await
    }

    async fn forget(&self, id: &str, version: u64, _: i64) -> Result<(Overwrite, f64), ViewError> {
        self.overwrite(id, version, None).await
    }

    fn stored_fields(&self, row: &impl Serialize, version: u64) -> Result<Fields, ViewError> {
        state_fields(row, self.keys.key, version)
    }
}

fn to_i64(version: u64) -> Result<i64, ViewError> {
    i64::try_from(version).map_err(|_| ViewError::Row("a version is too high".into()))
}

fn read_version(row: &Row, column: usize) -> Result<u64, ViewError> {
    u64::try_from(row.get::<_, i64>(column))
        .map_err(|_| ViewError::Row("a version is negative".into()))
}
