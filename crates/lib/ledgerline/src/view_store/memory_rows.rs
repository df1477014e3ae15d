//! Rows in memory: the reference implementation of the port, for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    Applied, CommitBatch, CommitChanges, LogRowStore, Overwrite, RowStore, StateRowStore,
    StoredRow, ViewError, state_fields,
};
use crate::{
    Changes, StateTable, StreamId,
    changes::{Change, Fields, Key},
    position::{Delivery, check},
};

/// The rows of a log view in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryLogRows {
    generation: u32,
    generations: Arc<Mutex<BTreeMap<u32, LogGeneration>>>,
}

#[derive(Debug, Clone, Default)]
struct LogGeneration {
    rows: BTreeMap<Key, Fields>,
    positions: BTreeMap<StreamId, u64>,
}

impl MemoryLogRows {
    /// Returns all rows of this generation.
    pub fn rows(&self) -> BTreeMap<Key, Fields> {
        self.locked().get(&self.generation).map(|found| found.rows.clone()).unwrap_or_default()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u32, LogGeneration>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowStore for MemoryLogRows {
    fn at_generation(&self, generation: u32) -> Self {
        Self { generation, ..self.clone() }
    }

    async fn positions(&self, streams: &[StreamId]) -> Result<Vec<u64>, ViewError> {
        let generations = self.locked();
        let found = generations.get(&self.generation);
        let position = |stream| found.and_then(|found| found.positions.get(stream).copied());
        Ok(streams.iter().map(|stream| position(stream).unwrap_or(0)).collect())
    }

    async fn delete_generation(&self) -> Result<(), ViewError> {
        self.locked().remove(&self.generation);
        Ok(())
    }

    async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        let rows = self.rows().into_iter().filter(|(key, _)| keys.contains(key));
        let stored = |fields| StoredRow { version: 0, fields: Some(fields) };
        Ok(rows.map(|(key, fields)| (key, stored(fields))).collect())
    }
}

impl LogRowStore for MemoryLogRows {
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
        let mut generations = self.locked();
        let LogGeneration { rows, positions } = generations.entry(self.generation).or_default();
        let deliver = |CommitChanges { stream, version, changes }: CommitChanges<'_>| {
            let position = positions.entry(stream.clone()).or_default();
            let delivery = check(*position, version);
            if delivery == Delivery::Next {
                check_sums(&changes, rows)?;
                changes.fold(rows);
                *position = version;
            }
            Ok((delivery, *position))
        };
        commits.into_iter().map(deliver).collect()
    }

    async fn apply(&self, batch: &CommitBatch) -> Result<Applied, ViewError> {
        let mut generations = self.locked();
        let LogGeneration { rows, positions } = generations.entry(self.generation).or_default();
        for (stream, step) in &batch.moves {
            let position = positions.get(stream).copied().unwrap_or(0);
            if position != step.from {
                return Ok(Applied::PositionIs(position));
            }
        }
        check_sums(&batch.changes, rows)?;
        batch.changes.fold(rows);
        positions.extend(batch.moves.iter().map(|(stream, step)| (stream.clone(), step.to)));
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

/// Refuses an addition to a field that is no number, as a database does.
fn check_sums(changes: &Changes, rows: &BTreeMap<Key, Fields>) -> Result<(), ViewError> {
    for (key, change) in changes.iter() {
        let Change::Update { add, .. } = change else { continue };
        let value = |field: &String| rows.get(key).and_then(|row| row.get(field.as_str()));
        if let Some(field) = add.keys().find(|field| value(field).is_some_and(|it| !it.is_i64())) {
            return Err(ViewError::Row(format!("the field {field} is no number")));
        }
    }
    Ok(())
}

/// The rows of a state view in memory.
#[derive(Debug, Clone)]
pub struct MemoryStateRows {
    table: StateTable,
    generation: u32,
    generations: Arc<Mutex<BTreeMap<u32, BTreeMap<Key, StoredRow>>>>,
}

impl MemoryStateRows {
    /// Returns a view without rows.
    pub fn new(table: StateTable) -> Self {
        Self { table, generation: 0, generations: Arc::default() }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u32, BTreeMap<Key, StoredRow>>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overwrite(&self, id: &str, new: StoredRow) -> (Overwrite, f64) {
        let mut generations = self.locked();
        let rows = generations.entry(self.generation).or_default();
        let key = (id.to_owned(), String::new());
        let shown = rows.get(&key).map_or(0, |row| row.version);
        if shown >= new.version {
            return (Overwrite::Shows(shown), 0.0);
        }
        rows.insert(key, new);
        (Overwrite::Written, 0.0)
    }
}

impl RowStore for MemoryStateRows {
    fn at_generation(&self, generation: u32) -> Self {
        Self { generation, ..self.clone() }
    }

    async fn positions(&self, streams: &[StreamId]) -> Result<Vec<u64>, ViewError> {
        let generations = self.locked();
        let rows = generations.get(&self.generation);
        let row = |stream: &StreamId| rows?.get(&(stream.id().to_owned(), String::new()));
        Ok(streams.iter().map(|stream| row(stream).map_or(0, |row| row.version)).collect())
    }

    async fn delete_generation(&self) -> Result<(), ViewError> {
        self.locked().remove(&self.generation);
        Ok(())
    }

    async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        let generations = self.locked();
        let rows = generations.get(&self.generation).into_iter().flatten();
        let found = rows.filter(|(key, _)| keys.contains(*key));
        Ok(found.map(|(key, row)| (key.clone(), row.clone())).collect())
    }
}

impl StateRowStore for MemoryStateRows {
    async fn put_newer(
        &self,
        row: &impl Serialize,
        version: u64,
    ) -> Result<(Overwrite, f64), ViewError> {
        let fields = self.stored_fields(row, version)?;
        let id = fields.get(self.table.key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(self.overwrite(&id, StoredRow { version, fields: Some(fields) }))
    }

    async fn forget(&self, id: &str, version: u64, _: i64) -> Result<(Overwrite, f64), ViewError> {
        Ok(self.overwrite(id, StoredRow { version, fields: None }))
    }

    fn stored_fields(&self, row: &impl Serialize, version: u64) -> Result<Fields, ViewError> {
        state_fields(row, self.table.key, version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::state_row_store::TABLE;

    mod log_rows {
        use super::*;

        crate::log_row_store_tests!(async { MemoryLogRows::default() });
    }

    crate::state_row_store_tests!(async { MemoryStateRows::new(TABLE) });
}
