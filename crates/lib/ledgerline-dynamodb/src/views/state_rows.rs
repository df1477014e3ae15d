//! Rows that are written from states: each shows the newest state of its aggregate (rule 8).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aws_sdk_dynamodb::{
    Client,
    operation::put_item::PutItemError,
    types::{
        AttributeValue, ConsumedCapacity, ReturnConsumedCapacity,
        ReturnValuesOnConditionCheckFailure,
    },
};
use ledgerline::{
    StateTable, StreamId,
    changes::{Fields, Key},
    view_store::{Overwrite, RowStore, StateRowStore, StoredRow, ViewError},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Item, TOMBSTONE, VERSION, ViewTable, from_item, number, number_of, to_item};
use crate::error::table_error;

/// The rows of a view that is written from states. Cheap to clone.
///
/// ```no_run
/// use ledgerline::StateTable;
/// use ledgerline_dynamodb::StateRows;
/// use serde_json::Value;
///
/// const LEVELS: StateTable = StateTable { variable: "LEVELS_TABLE", key: "id", indexes: &[] };
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = aws_sdk_dynamodb::Client::new(&aws_config::load_from_env().await);
/// let levels = StateRows::new(client, "Levels", LEVELS);
/// let (version, row) = levels.find_row::<Value>("north").await?;
/// println!("{row:?} at version {version}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StateRows {
    pub(super) view: ViewTable,
    pub(super) keys: StateTable,
}

impl StateRows {
    /// Returns the rows in the table of this name.
    pub fn new(client: Client, name: impl Into<String>, keys: StateTable) -> Self {
        Self { view: ViewTable::new(client, name, &keys), keys }
    }

    /// Returns the rows in this table.
    pub fn from_table(view: ViewTable, keys: StateTable) -> Self {
        Self { view, keys }
    }

    /// Returns their table.
    pub fn view(&self) -> &ViewTable {
        &self.view
    }

    fn item(&self, row: &impl Serialize, version: u64) -> Result<Item, ViewError> {
        let mut item = to_item(row)?;
        item.insert(VERSION.into(), number(version));
        // DynamoDB refuses a row with a null key of an index. Without the field, the row is in no
        // list of the index.
        for index in self.keys.indexes {
            for key in [index.partition, index.sort] {
                if item.get(key).is_some_and(AttributeValue::is_null) {
                    item.remove(key);
                }
            }
        }
        self.view.name_keys(&mut item, self.keys.partitions());
        Ok(item)
    }

    async fn overwrite(&self, item: Item, version: u64) -> Result<(Overwrite, f64), ViewError> {
        let result = self
            .view
            .client
            .put_item()
            .table_name(&self.view.name)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(#version) OR #version < :version")
            .expression_attribute_names("#version", VERSION)
            .expression_attribute_values(":version", number(version))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        let error = match result {
            Ok(output) => {
                let units = output.consumed_capacity().and_then(ConsumedCapacity::capacity_units);
                return Ok((Overwrite::Written, units.unwrap_or(1.0)));
            }
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                // A write that its condition refuses costs as much as a successful one.
                Ok((Overwrite::Shows(number_of(failed.item(), VERSION)?), 1.0))
            }
            Some(_) | None => Err(table_error(error)),
        }
    }

    /// Reads the row of an aggregate and the version that the table shows of it. A forgotten row
    /// has a version too; without a row the version is 0.
    pub async fn find_row<T: DeserializeOwned>(
        &self,
        id: &str,
    ) -> Result<(u64, Option<T>), ViewError> {
        let key = HashMap::from([(self.keys.key.to_owned(), self.view.partition(id))]);
        let Some(item) = self.view.item(key, false).await? else { return Ok((0, None)) };
        let version = number_of(Some(&item), VERSION)?;
        let row = if item.contains_key(TOMBSTONE) {
            None
        } else {
            Some(self.view.read_row(item, &self.keys.partitions().collect::<Vec<_>>())?)
        };
        Ok((version, row))
    }
}

impl RowStore for StateRows {
    fn at_generation(&self, generation: u32) -> Self {
        Self { view: self.view.at(generation), keys: self.keys }
    }

    async fn positions(&self, streams: &[StreamId]) -> Result<Vec<u64>, ViewError> {
        self.view.applied_versions(streams).await
    }

    async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        self.view.stored_rows(keys).await
    }
}

impl StateRowStore for StateRows {
    async fn put_newer(
        &self,
        row: &impl Serialize,
        version: u64,
    ) -> Result<(Overwrite, f64), ViewError> {
        self.overwrite(self.item(row, version)?, version).await
    }

    async fn forget(
        &self,
        id: &str,
        version: u64,
        expires: i64,
    ) -> Result<(Overwrite, f64), ViewError> {
        let tombstone = HashMap::from([
            (self.keys.key.to_owned(), self.view.partition(id)),
            (VERSION.to_owned(), number(version)),
            (TOMBSTONE.to_owned(), AttributeValue::N(expires.to_string())),
        ]);
        self.overwrite(tombstone, version).await
    }

    fn stored_fields(&self, row: &impl Serialize, version: u64) -> Result<Fields, ViewError> {
        from_item(self.item(row, version)?)
    }
}
