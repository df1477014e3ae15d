//! Rows that are written from the log, together with the positions in their streams (rule 9).

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::{
    LogTable, StreamId,
    changes::{Fields, Key},
    position::{Delivery, check},
    view_store::{
        Applied, CommitBatch, CommitChanges, LogRowStore, RowStore, StoredRow, ViewError,
    },
};
use tokio_postgres::{Row, types::Type};

use crate::{
    database::{Database, Statement, Transaction},
    row_writes::{ArrayStatement, Keys, RowWrites},
    server_error::ServerError,
    tables::{Column, ViewTables},
};

const COLUMNS: &[Column] = &[
    Column { name: "partition", definition: r#"text COLLATE "C""#, is_key: true },
    Column { name: "sort", definition: r#"text COLLATE "C""#, is_key: true },
    Column { name: "row", definition: "jsonb NOT NULL", is_key: false },
];

/// The rows of a log view in PostgreSQL. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PostgresLogRows {
    database: Database,
    tables: ViewTables,
    keys: LogTable,
}

impl PostgresLogRows {
    /// Returns the rows of this view. `script` defines its indexes. The script may end with the
    /// definition of the public view, which shows the active generation. In the script,
    /// `{generation}` stands for the schema with the table.
    pub fn new(database: Database, keys: LogTable, script: &'static str) -> Self {
        Self { database, tables: ViewTables::new(keys.variable, COLUMNS, true, script), keys }
    }

    /// Begins a transaction that locks the positions in these streams, and returns the positions.
    /// The locks are in the order of the streams' names, so no two transactions deadlock at
    /// positions. Creates the tables if they are missing.
    async fn lock(
        &self,
        streams: &BTreeSet<&str>,
    ) -> Result<(Transaction<'_>, BTreeMap<String, u64>), ViewError> {
        let names: Vec<_> = streams.iter().copied().collect();
        let values = &[(&names as _, Type::TEXT_ARRAY)];
        let positions = self.tables.positions();
        let insert = format!(
            "INSERT INTO {positions} (stream, version) \
             SELECT stream, 0 FROM unnest($1) AS u (stream) ORDER BY stream ON CONFLICT DO NOTHING"
        );
        let lock = format!(
            "SELECT stream, version FROM {positions} WHERE stream = ANY ($1) \
             ORDER BY stream FOR UPDATE"
        );
        let first = [Statement { sql: &insert, values }, Statement { sql: &lock, values }];
        let mut begun = self.database.begin(&first).await;
        if begun.as_ref().is_err_and(ServerError::is_missing_table) {
            self.prepare().await?;
            begun = self.database.begin(&first).await;
        }
        let (transaction, rows) = begun?;
        let found = read_positions(rows.last().map_or(&[][..], Vec::as_slice))?;
        Ok((transaction, found))
    }

    /// Writes the changes of a batch, moves the positions, and commits.
    async fn write(
        &self,
        transaction: Transaction<'_>,
        batch: &CommitBatch,
    ) -> Result<(), ViewError> {
        let writes = RowWrites::new(&batch.changes, self.keys)?;
        let streams: Vec<_> = batch.moves.keys().map(StreamId::as_str).collect();
        let versions: Vec<_> = batch.moves.values().map(|step| step.to.to_string()).collect();
        let positions = self.tables.positions();
        let move_positions = format!(
            "UPDATE {positions} AS t SET version = u.version::bigint \
             FROM unnest($1, $2) AS u (stream, version) WHERE t.stream = u.stream"
        );
        let mut statements = writes.statements(&self.tables.rows());
        statements.push(ArrayStatement { sql: move_positions, arrays: vec![&streams, &versions] });
        let values: Vec<_> = statements.iter().map(ArrayStatement::values).collect();
        let statements = statements.iter().zip(&values);
        let statements = statements.map(|(it, values)| Statement { sql: &it.sql, values });
        let committed = transaction.commit(&statements.collect::<Vec<_>>()).await;
        if committed.as_ref().is_err_and(ServerError::is_missing_table) {
            self.prepare().await?;
        }
        Ok(committed?)
    }
}

impl RowStore for PostgresLogRows {
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
        let names: Vec<_> = streams.iter().map(StreamId::as_str).collect();
        let positions = self.tables.positions();
        let sql = format!("SELECT stream, version FROM {positions} WHERE stream = ANY ($1)");
        let values = &[(&names as _, Type::TEXT_ARRAY)];
        let rows = self.database.read(Statement { sql: &sql, values }).await?;
        let found = read_positions(&rows)?;
        Ok(names.into_iter().map(|name| found.get(name).copied().unwrap_or(0)).collect())
    }

    async fn delete_generation(&self) -> Result<(), ViewError> {
        self.tables.drop(&self.database).await
    }

    async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        let keys = Keys::new(keys);
        let sql = format!(
            "SELECT partition, sort, row::text FROM {} \
             WHERE (partition, sort) IN (SELECT * FROM unnest($1, $2))",
            self.tables.rows()
        );
        let values =
            &[(&keys.partitions as _, Type::TEXT_ARRAY), (&keys.sorts as _, Type::TEXT_ARRAY)];
        let rows = self.database.read(Statement { sql: &sql, values }).await?;
        let row = |row: Row| {
            let fields = Some(read_fields(&row.get::<_, String>(2))?);
            Ok(((row.get(0), row.get(1)), StoredRow { version: 0, fields }))
        };
        rows.into_iter().map(row).collect()
    }
}

impl LogRowStore for PostgresLogRows {
    fn writes_many(&self) -> bool {
        true
    }

    fn max_items(&self) -> Option<usize> {
        None
    }

    async fn deliver_all(
        &self,
        commits: Vec<CommitChanges<'_>>,
    ) -> Result<Vec<(Delivery, u64)>, ViewError> {
        let streams = commits.iter().map(|commit| commit.stream.as_str()).collect();
        let (transaction, mut positions) = self.lock(&streams).await?;
        let mut batch = CommitBatch::new(self.keys, self.max_items());
        let mut deliveries = Vec::new();
        for commit in commits {
            let position = positions.entry(commit.stream.as_str().to_owned()).or_default();
            let delivery = check(*position, commit.version);
            if delivery == Delivery::Next {
                *position = commit.version;
                // A batch of this store has no limit, so each commit has room.
                _ = batch.try_add(commit);
            }
            deliveries.push((delivery, *position));
        }
        match batch.is_empty() {
            true => transaction.roll_back().await?,
            false => self.write(transaction, &batch).await?,
        }
        Ok(deliveries)
    }

    async fn apply(&self, batch: &CommitBatch) -> Result<Applied, ViewError> {
        let streams = batch.moves.keys().map(StreamId::as_str).collect();
        let (transaction, positions) = self.lock(&streams).await?;
        for (stream, step) in &batch.moves {
            let position = positions.get(stream.as_str()).copied().unwrap_or(0);
            if position != step.from {
                transaction.roll_back().await?;
                return Ok(Applied::PositionIs(position));
            }
        }
        self.write(transaction, batch).await?;
        Ok(Applied::Written { units: 0.0, further: BTreeMap::new() })
    }

    async fn can_begin_at(&self, _: &StreamId, _: u64) -> Result<bool, ViewError> {
        Ok(true)
    }

    async fn resume_position(&self, stream: &StreamId) -> Result<u64, ViewError> {
        let positions = self.positions(std::slice::from_ref(stream)).await?;
        Ok(positions.first().copied().unwrap_or(0))
    }
}

fn read_positions(rows: &[Row]) -> Result<BTreeMap<String, u64>, ViewError> {
    let position = |row: &Row| {
        let version = u64::try_from(row.get::<_, i64>(1));
        let version = version.map_err(|_| ViewError::Row("a position is negative".into()))?;
        Ok((row.get(0), version))
    };
    rows.iter().map(position).collect()
}

pub(crate) fn read_fields(text: &str) -> Result<Fields, ViewError> {
    // The message of a syntax error may quote a value.
    serde_json::from_str(text).map_err(|_| ViewError::Row("a row is no JSON object".into()))
}
