//! The read tables: rows that are written only under their guard, read back one by one or in pages.

pub(crate) mod batch;
mod checkpoint;
mod cursor;
mod generations;
mod rebuild;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, btree_map::Entry},
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError, transact_write_items::TransactWriteItemsError,
    },
    types::{
        AttributeValue, ConsumedCapacity, Delete, Put, ReturnConsumedCapacity,
        ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update, error::TransactionCanceledException,
    },
};
use backon::{BackoffBuilder, ExponentialBuilder};
pub use checkpoint::{Checkpoint, MAX_CHANGES, NextCheckpoint, OrderedRows, Reached};
pub use cursor::InvalidCursor;
pub use generations::{Before, FRESH, Generations, KeyNames, Move, NotNow, Other, Phase, SWITCHING};
use ledgerline::{
    Changes, LogTable, StateTable, StreamId,
    changes::{Change, Key},
    guard::{Verdict, judge},
};
pub use rebuild::{Cleared, Inserted, Part};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::{self, is_busy, is_throttling, table_error};

type Item = HashMap<String, AttributeValue>;

/// The attribute of a row that was written from a state: the version that the row shows.
const VERSION: &str = "version";
/// The attribute of a handler's position in a stream: the last version that it applied.
const POSITION: &str = "position";
/// The attribute of a row that was forgotten: the time in Unix seconds after which no older version can arrive any more. It is the table's time to
/// live.
const TOMBSTONE: &str = "tombstone";
/// The sort key of the item with a handler's position in a stream. It is also the name of an attribute of rows that were inserted: once the row is
/// written, the rows of all versions of its stream up to this number are there.
const POSITION_ENTRY: &str = "#position";

/// The most items that one transaction takes.
const MAX_TRANSACTION_ITEMS: usize = 100;

/// The number of times that a write is tried again after it met another writer at one of its rows (rule 11).
const MAX_CONFLICTS: usize = 8;

/// A handler's position in a stream.
#[derive(Debug, Serialize, Deserialize)]
struct Position {
    /// The last version that it applied.
    position: u64,
    /// The progress of the handler in the next version, if that takes more than one write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<String>,
}

impl Position {
    fn at(version: u64) -> Self {
        Self { position: version, progress: None }
    }
}

/// A table of a read model. Cheap to clone.
///
/// ```no_run
/// use ledgerline::StateTable;
/// use ledgerline_dynamodb::ReadTable;
/// use serde_json::Value;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = aws_sdk_dynamodb::Client::new(&aws_config::load_from_env().await);
/// let levels = ReadTable::new(client, "Levels");
/// let (version, row) = levels.shown::<Value>(&StateTable { variable: "LEVELS_TABLE", key: "id", indexes: &[] }, "north").await?;
/// println!("{row:?} at version {version}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReadTable {
    client: Client,
    name: String,
    /// The generation of the rows that are read and written ([`Generations`]).
    generation: u32,
    known: generations::Known,
}

/// The reason why a table could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The database asks to slow down, or another writer is busy with the same items.
    #[error("the table is throttled")]
    Throttled,
    /// The database could not be reached or failed.
    #[error("the table is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// This program or the database cannot write or read a row or a key.
    #[error("a row cannot be written or read: {0}")]
    Row(String),
    /// One commit would change more rows than one transaction takes (rule 9).
    #[error("a commit changes {0} rows, one transaction takes {max}", max = MAX_TRANSACTION_ITEMS - 1)]
    TooManyRows(usize),
    /// The client's cursor does not come from a page of this query.
    #[error(transparent)]
    Cursor(#[from] InvalidCursor),
}

/// A commit, and the rows that it inserts.
#[derive(Debug)]
pub struct Insertion<'c> {
    /// The stream.
    pub stream: &'c StreamId,
    /// The version.
    pub version: u64,
    /// The rows.
    pub changes: Changes,
}

/// A step of one stream when rows are inserted.
enum InsertStep<'c> {
    /// A row.
    Row(Item),
    /// The position after a commit without rows: the stream, the version, and the place of the commit.
    Position(&'c StreamId, u64, usize),
}

/// The result of overwriting a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// The row was written.
    Written,
    /// The row was not written: the table shows this version already, which is the same or a newer one.
    Shows(u64),
}

/// A page of rows.
#[derive(Debug)]
pub struct Page<T> {
    /// The rows. Each is a result of its own, because an earlier version of the program may have
    /// written a row that this program cannot read.
    pub rows: Vec<Result<T, UnreadableRow>>,
    /// The place where the next page begins, if there is one.
    pub cursor: Option<String>,
}

impl<T> Page<T> {
    /// The rows and the place where the next page begins, for a reader that needs all rows.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn whole(self) -> Result<(Vec<T>, Option<String>), TableError> {
        let rows = self.rows.into_iter().collect::<Result<_, _>>();
        Ok((rows.map_err(|row| TableError::Row(row.reason))?, self.cursor))
    }
}

/// A row that this program cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRow {
    /// Its id in a table of states, its sort key in a table that is written from the log.
    pub key: String,
    /// The reason, without values (rule 14).
    pub reason: String,
}

/// The items of a page.
struct Items {
    items: Vec<Item>,
    cursor: Option<String>,
}

/// The keys of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowKey<'a> {
    /// The value of the partition key.
    pub partition: &'a str,
    /// The value of the sort key.
    pub sort: &'a str,
}

impl<'a> From<&'a Key> for RowKey<'a> {
    fn from((partition, sort): &'a Key) -> Self {
        Self { partition, sort }
    }
}

/// The position in a stream before a commit and after it.
#[derive(Clone, Copy)]
struct Positions {
    before: u64,
    after: u64,
}

/// The item of a position, and the first version that it is moved over: the position must be right before it.
struct NextPosition {
    item: Item,
    version: u64,
}

/// Whether changes and positions were written.
enum Written {
    /// They were, for so many write units.
    Units(f64),
    /// They were not, because a position is here.
    Not { position: u64 },
}

impl Written {
    /// The position that kept them from being written.
    fn found(self) -> Option<u64> {
        match self {
            Self::Units(_) => None,
            Self::Not { position } => Some(position),
        }
    }
}

impl ReadTable {
    /// The table of this name.
    #[must_use]
    pub fn new(client: Client, name: impl Into<String>) -> Self {
        Self { client, name: name.into(), generation: 0, known: generations::Known::default() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    // --- Writing ------------------------------------------------------------------------------------------------

    /// Writes a row made from a state, unless the table shows the same version or a newer one already (rule 8). Returns the write units that it took as well.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn put_newer(
        &self,
        table: &StateTable,
        row: &impl Serialize,
        version: u64,
    ) -> Result<(Overwrite, f64), TableError> {
        self.overwrite(table, to_item(row)?, version).await
    }

    /// Forgets a row, unless the table shows the same version or a newer one already. In its place it leaves a tombstone, which keeps older versions
    /// out (rule 8) until `expires`, in Unix seconds. By then no older version may arrive any more.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn forget(
        &self,
        table: &StateTable,
        id: &str,
        version: u64,
        expires: i64,
    ) -> Result<(Overwrite, f64), TableError> {
        let tombstone = HashMap::from([
            (table.key.to_owned(), AttributeValue::S(id.to_owned())),
            (TOMBSTONE.to_owned(), AttributeValue::N(expires.to_string())),
        ]);
        self.overwrite(table, tombstone, version).await
    }

    /// Writes a row unless a row has its keys already. Returns whether it was written.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn put_new(&self, keys: &LogTable, row: &impl Serialize) -> Result<bool, TableError> {
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(self.row(keys, row)?))
            .condition_expression("attribute_not_exists(#sort)")
            .expression_attribute_names("#sort", keys.sort)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        written(result)
    }

    /// Deletes a row if this field of it still has this value. Returns whether it was deleted. Because of the condition, an earlier try that arrives
    /// late does not delete a row that was written since.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn delete_if(
        &self,
        keys: &LogTable,
        RowKey { partition, sort }: RowKey<'_>,
        field: &str,
        value: &str,
    ) -> Result<bool, TableError> {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let result = self
            .client
            .delete_item()
            .table_name(&self.name)
            .key(keys.partition, self.partition(partition))
            .key(keys.sort, text(sort))
            .condition_expression("#field = :value")
            .expression_attribute_names("#field", field)
            .expression_attribute_values(":value", text(value))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(_)) => Ok(false),
                Some(_) | None => Err(table_error(error)),
            },
        }
    }

    async fn overwrite(
        &self,
        table: &StateTable,
        mut item: Item,
        version: u64,
    ) -> Result<(Overwrite, f64), TableError> {
        item.insert(VERSION.into(), number(version));
        self.name_keys(&mut item, table.partitions());
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
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
                let shows = failed.item().and_then(|row| row.get(VERSION)?.as_n().ok()?.parse().ok());
                // A write that is refused by its condition costs as much as one that is not.
                Ok((Overwrite::Shows(shows.unwrap_or(version)), 1.0))
            }
            Some(_) | None => Err(table_error(error)),
        }
    }

    /// Makes the changes of a commit, and moves the handler's position to its version, if the commit is the next one in its stream: all in one write
    /// (rule 9). Otherwise nothing is written, and the verdict says why (rule 7). The handler's position is returned with the verdict.
    ///
    /// # Errors
    /// When the table fails, or the commit changes more rows than one transaction takes.
    pub async fn apply(
        &self,
        keys: &LogTable,
        stream: &str,
        version: u64,
        changes: &Changes,
    ) -> Result<(Verdict, u64), TableError> {
        self.guarded(keys, stream, version, changes, Position::at(version)).await
    }

    /// The same as [`apply`](Self::apply) for a commit that needs more than one write: the position does not move, so that the commit comes again
    /// until a call of `apply` moves it. All changes until then may be made twice. With [`Verdict::Apply`] the commit's version is returned, not the
    /// position.
    ///
    /// # Errors
    /// When the table fails, or there are more changes than one transaction takes.
    pub async fn begin(
        &self,
        keys: &LogTable,
        stream: &str,
        version: u64,
        changes: &Changes,
        progress: Option<String>,
    ) -> Result<(Verdict, u64), TableError> {
        self.guarded(keys, stream, version, changes, Position { position: version - 1, progress }).await
    }

    async fn guarded(
        &self,
        keys: &LogTable,
        stream: &str,
        version: u64,
        changes: &Changes,
        next: Position,
    ) -> Result<(Verdict, u64), TableError> {
        let position = self.position_item(keys, stream, &next)?;
        let mut delays = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(10))
            .with_max_delay(Duration::from_millis(200))
            .with_max_times(MAX_CONFLICTS)
            .with_jitter()
            .build();
        let found = loop {
            let written = if changes.is_empty() {
                self.put_position(position.clone(), after(version)).await
            } else {
                let next = NextPosition { item: position.clone(), version };
                self.put_changes_and_positions(keys, changes, vec![next]).await.map(Written::found)
            };
            match (written, delays.next()) {
                // Usually another stream changes the same row, such as a sum. Waiting here costs less than a second delivery of the message, for
                // which all of its group would wait.
                (Err(TableError::Throttled), Some(delay)) => tokio::time::sleep(delay).await,
                (written, _) => break written?,
            }
        };
        verdict(found, version)
    }

    /// Inserts the rows of these commits ([`Changes::insert`]), each commit if it is the next one in its stream. Otherwise nothing of it is written, and
    /// its verdict says why (rule 7). The handler's position in the stream is returned with each verdict, in the order of the commits.
    ///
    /// The newest row of a stream contains the position: the last row of a commit contains the commit's version, and its other rows contain the
    /// version before. The rows of a stream are written one after the other, and those of different streams at once. So the table always has all rows
    /// of the commits up to the position, and maybe the first rows of the next one (rule 9). After a crash between two rows, the commit comes again and
    /// writes its rows again. A commit without rows writes the position as an item beside the rows.
    ///
    /// # Errors
    /// When the table fails, or a change is no insertion. Some of the commits may have been applied.
    pub async fn insert(
        &self,
        keys: &LogTable,
        commits: &[Insertion<'_>],
    ) -> Result<Vec<(Verdict, u64)>, TableError> {
        let (mut positions, mut steps) = (BTreeMap::new(), BTreeMap::<_, Vec<InsertStep>>::new());
        let mut verdicts = Vec::new();
        for &Insertion { stream, version, ref changes } in commits {
            let position = match positions.entry(stream) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.position_before(keys, stream, version).await?),
            };
            let verdict = judge(*position, version);
            if verdict == Verdict::Apply {
                let before = *position;
                *position = version;
                let rows = self.rows_of(keys, changes, Positions { before, after: version })?;
                let steps = steps.entry(stream).or_default();
                if rows.is_empty() {
                    steps.push(InsertStep::Position(stream, version, verdicts.len()));
                }
                steps.extend(rows.into_iter().map(InsertStep::Row));
            }
            verdicts.push((verdict, *position));
        }
        // The writes have no condition: if a row is there already, it is the same row, or the row of a commit that is lost because the log was restored
        // from a backup.
        let mut streams: Vec<_> = steps.into_values().map(Vec::into_iter).collect();
        loop {
            let (mut rows, mut is_over) = (Vec::new(), true);
            for step in streams.iter_mut().filter_map(Iterator::next) {
                is_over = false;
                match step {
                    InsertStep::Row(row) => rows.push(row),
                    InsertStep::Position(stream, version, place) => {
                        let position = self.position_item(keys, stream.as_str(), &Position::at(version))?;
                        let found = self.put_position(position, before_or_none(version)).await?;
                        verdicts[place] = verdict(found, version)?;
                    }
                }
            }
            if is_over {
                return Ok(verdicts);
            }
            self.put_items(rows).await?;
        }
    }

    /// The position in a stream, read for a commit of this version.
    async fn position_before(
        &self,
        keys: &LogTable,
        stream: &StreamId,
        version: u64,
    ) -> Result<u64, TableError> {
        let before = version.saturating_sub(1);
        let newest = self.newest(keys, stream, true).await?;
        if newest == before && before > 0 {
            return Ok(newest);
        }
        // The position beside the rows is usually older than the newest row: it is read only if the newest row is not enough for the verdict.
        Ok(newest.max(self.put_beside(keys, stream.as_str(), true).await?.position))
    }

    /// The rows that a commit inserts, with the position in all of them but the last, and that in the last one.
    fn rows_of(
        &self,
        keys: &LogTable,
        changes: &Changes,
        Positions { before, after }: Positions,
    ) -> Result<Vec<Item>, TableError> {
        let last = changes.len().saturating_sub(1);
        let row = |(place, (_, change)): (usize, (_, &Change))| {
            let Change::Insert(fields) = change else {
                return Err(TableError::Row("a view that inserts rows changes none".into()));
            };
            let mut row = self.row(keys, fields)?;
            row.insert(POSITION_ENTRY.into(), number(if place == last { after } else { before }));
            Ok(row)
        };
        changes.iter().enumerate().map(row).collect()
    }

    /// Writes the position under this condition. Returns the position that is there if the condition does not hold.
    async fn put_position(
        &self,
        position: Item,
        (condition, values): Condition,
    ) -> Result<Option<u64>, TableError> {
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(position))
            .condition_expression(condition)
            .expression_attribute_names("#position", POSITION)
            .set_expression_attribute_values(values)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        match result {
            Ok(_) => Ok(None),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Some(number_of(failed.item(), POSITION)))
                }
                Some(_) | None => Err(table_error(error)),
            },
        }
    }

    /// Makes these changes, and moves these positions, in one write (rule 9).
    pub(in crate::read_table) async fn put_changes_and_positions(
        &self,
        keys: &LogTable,
        changes: &Changes,
        positions: Vec<NextPosition>,
    ) -> Result<Written, TableError> {
        if changes.len() + positions.len() > MAX_TRANSACTION_ITEMS {
            return Err(TableError::TooManyRows(changes.len()));
        }
        let mut writes = Vec::new();
        for NextPosition { item, version } in positions {
            let (condition, values) = after(version);
            let guarded = Put::builder()
                .table_name(&self.name)
                .set_item(Some(item))
                .condition_expression(condition)
                .expression_attribute_names("#position", POSITION)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
                .build()
                .map_err(invalid)?;
            writes.push(TransactWriteItem::builder().put(guarded).build());
        }
        for (key, change) in changes.iter() {
            writes.push(self.write(keys, key, change)?);
        }
        let write = self.client.transact_write_items().set_transact_items(Some(writes));
        let error = match write.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await {
            Ok(output) => return Ok(Written::Units(batch::units_of(output.consumed_capacity()))),
            Err(error) => error,
        };
        let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) = error.as_service_error()
        else {
            return Err(table_error(error));
        };
        // Nothing but a position has a condition.
        let mut reasons = cancelled.cancellation_reasons().iter();
        if let Some(guard) = reasons.find(|reason| reason.code() == Some("ConditionalCheckFailed")) {
            return Ok(Written::Not { position: number_of(guard.item(), POSITION) });
        }
        Err(refused(cancelled).unwrap_or_else(|| table_error(error)))
    }

    /// One change, as a part of a transaction.
    fn write(&self, keys: &LogTable, key: &Key, change: &Change) -> Result<TransactWriteItem, TableError> {
        let item = TransactWriteItem::builder();
        let key = self.key(keys, RowKey::from(key));
        Ok(match change {
            Change::Insert(fields) | Change::Put(fields) => {
                let put = Put::builder().table_name(&self.name).set_item(Some(self.row(keys, fields)?));
                item.put(put.build().map_err(invalid)?)
            }
            Change::Delete => {
                let delete = Delete::builder().table_name(&self.name).set_key(Some(key));
                item.delete(delete.build().map_err(invalid)?)
            }
            Change::Update { set, add } => {
                let (mut sets, mut adds) = (Vec::new(), Vec::new());
                let mut update = Update::builder().table_name(&self.name).set_key(Some(key));
                for (place, (field, value)) in set.iter().enumerate() {
                    sets.push(format!("#s{place} = :s{place}"));
                    let value = serde_dynamo::to_attribute_value(value)
                        .map_err(|error| TableError::Row(error.to_string()))?;
                    update = update
                        .expression_attribute_names(format!("#s{place}"), field)
                        .expression_attribute_values(format!(":s{place}"), value);
                }
                for (place, (field, amount)) in add.iter().enumerate() {
                    adds.push(format!("#a{place} :a{place}"));
                    update = update
                        .expression_attribute_names(format!("#a{place}"), field)
                        .expression_attribute_values(
                            format!(":a{place}"),
                            AttributeValue::N(amount.to_string()),
                        );
                }
                let clause = |word: &str, parts: Vec<String>| match parts.is_empty() {
                    true => String::new(),
                    false => format!("{word} {} ", parts.join(", ")),
                };
                let expression = clause("SET", sets) + &clause("ADD", adds);
                item.update(update.update_expression(expression.trim_end()).build().map_err(invalid)?)
            }
        }
        .build())
    }

    // --- Reading ------------------------------------------------------------------------------------------------

    /// The row with these keys.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn get<T: DeserializeOwned>(
        &self,
        keys: &LogTable,
        key: RowKey<'_>,
    ) -> Result<Option<T>, TableError> {
        let item = self.item(self.key(keys, key), false).await?;
        item.map(|item| self.read_row(item, &[keys.partition])).transpose()
    }

    /// The row with these keys, read strongly.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn read<T: DeserializeOwned>(
        &self,
        keys: &LogTable,
        key: RowKey<'_>,
    ) -> Result<Option<T>, TableError> {
        let item = self.item(self.key(keys, key), true).await?;
        item.map(|item| self.read_row(item, &[keys.partition])).transpose()
    }

    /// The row of an aggregate and the version that the table shows of it. A row that was forgotten has a version too; without a row it is 0.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn shown<T: DeserializeOwned>(
        &self,
        table: &StateTable,
        id: &str,
    ) -> Result<(u64, Option<T>), TableError> {
        let key = HashMap::from([(table.key.to_owned(), self.partition(id))]);
        let Some(item) = self.item(key, false).await? else { return Ok((0, None)) };
        let version = number_of(Some(&item), VERSION);
        let row = if item.contains_key(TOMBSTONE) {
            None
        } else {
            Some(self.read_row(item, &table.partitions().collect::<Vec<_>>())?)
        };
        Ok((version, row))
    }

    /// The last version of the stream that the read model shows; 0 for none. The newest row is looked for in the partition that is named like the
    /// stream's id, because rows that were inserted are there.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn position(&self, keys: &LogTable, stream: &StreamId) -> Result<u64, TableError> {
        self.position_read(keys, stream, false).await
    }

    /// The same as [`position`](Self::position), read strongly.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn position_now(&self, keys: &LogTable, stream: &StreamId) -> Result<u64, TableError> {
        self.position_read(keys, stream, true).await
    }

    /// The last version of the stream that a table with these keys has: that of its row, if there is no sort key, or the position in it; 0 for none.
    ///
    /// # Errors
    /// When the table fails, or the row has no version.
    pub async fn reached(&self, keys: KeyNames<'_>, stream: &StreamId) -> Result<u64, TableError> {
        if keys.sort.is_some() {
            return self.position_read(keys, stream, false).await;
        }
        let key = HashMap::from([(keys.partition.to_owned(), self.partition(stream.id()))]);
        match self.item(key, false).await? {
            Some(item) => match number_of(Some(&item), VERSION) {
                0 => Err(TableError::Row(format!("its {VERSION} is missing, or no number"))),
                version => Ok(version),
            },
            None => Ok(0),
        }
    }

    async fn position_read<'k>(
        &self,
        keys: impl Into<KeyNames<'k>>,
        stream: &StreamId,
        strongly: bool,
    ) -> Result<u64, TableError> {
        let keys = keys.into();
        let put = self.put_beside(keys, stream.as_str(), strongly);
        let (put, newest) = futures::try_join!(put, self.newest(keys, stream, strongly))?;
        Ok(put.position.max(newest))
    }

    /// The position in the item beside the rows, read strongly, and the progress in the next commit (see [`begin`](Self::begin)).
    ///
    /// # Errors
    /// When the table fails.
    pub async fn progress(&self, keys: &LogTable, stream: &str) -> Result<(u64, Option<String>), TableError> {
        let put = self.put_beside(keys, stream, true).await?;
        Ok((put.position, put.progress))
    }

    async fn put_beside<'k>(
        &self,
        keys: impl Into<KeyNames<'k>>,
        stream: &str,
        strongly: bool,
    ) -> Result<Position, TableError> {
        let item =
            self.item(self.key(keys, RowKey { partition: stream, sort: POSITION_ENTRY }), strongly).await?;
        item.map_or(Ok(Position::at(0)), from_item)
    }

    /// The position in the newest row; 0 if there is no row, or if the row contains none because it was not inserted, or was written by an earlier
    /// version of the program, which put the position beside the rows.
    async fn newest<'k>(
        &self,
        keys: impl Into<KeyNames<'k>>,
        stream: &StreamId,
        strongly: bool,
    ) -> Result<u64, TableError> {
        let rows = self
            .client
            .query()
            .table_name(&self.name)
            .key_condition_expression("#partition = :partition")
            .expression_attribute_names("#partition", keys.into().partition)
            .expression_attribute_values(":partition", self.partition(stream.id()))
            .projection_expression("#position")
            .expression_attribute_names("#position", POSITION_ENTRY)
            .scan_index_forward(false)
            .limit(1)
            .consistent_read(strongly)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok(number_of(rows.items().first(), POSITION_ENTRY))
    }

    async fn item(&self, key: Item, strongly: bool) -> Result<Option<Item>, TableError> {
        let output = self
            .client
            .get_item()
            .table_name(&self.name)
            .set_key(Some(key))
            .consistent_read(strongly)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok(output.item)
    }

    /// A page of the rows in one partition of the table, or of its index, in the order of the sort key.
    ///
    /// # Errors
    /// When the table fails, or the cursor does not come from a page of this query.
    pub async fn page<T: DeserializeOwned>(&self, query: &PageQuery<'_>) -> Result<Page<T>, TableError> {
        let partitions = [query.partition.0];
        let Items { items, cursor } = self.items(query, &partitions, None).await?;
        let key = query.keys.first().copied().unwrap_or_default();
        Ok(Page { rows: self.rows_read(items, key, &partitions), cursor })
    }

    /// The rows in these items. `key` is the name of the key that names a row.
    fn rows_read<T: DeserializeOwned>(
        &self,
        items: impl IntoIterator<Item = Item>,
        key: &str,
        partitions: &[&str],
    ) -> Vec<Result<T, UnreadableRow>> {
        let read = |mut item: Item| {
            self.bare_keys(&mut item, partitions.iter().copied());
            let key = item.get(key).and_then(|key| key.as_s().ok()).cloned().unwrap_or_default();
            deserialized(item).map_err(|reason| UnreadableRow { key, reason })
        };
        items.into_iter().map(read).collect()
    }

    /// The same as [`page`](Self::page) for an index of a table of states that holds whole rows.
    ///
    /// # Errors
    /// When the table fails, or the cursor does not come from a page of this query.
    pub async fn page_of_states<T: DeserializeOwned>(
        &self,
        table: &StateTable,
        query: &PageQuery<'_>,
    ) -> Result<Page<T>, TableError> {
        let partitions: Vec<_> = table.partitions().collect();
        let Items { items, cursor } = self.items(query, &partitions, Some(table.key)).await?;
        Ok(Page { rows: self.rows_read(items, table.key, &partitions), cursor })
    }

    /// The same as [`page_of_states`](Self::page_of_states) for an index that holds only keys: the
    /// rows are read from the table and returned in the order of the index. A row that was deleted
    /// in between is left out, and so is one that has another place by now: its new partition may
    /// belong to another caller.
    ///
    /// # Errors
    /// When the table fails, or the cursor does not come from a page of this query.
    pub async fn page_of_keys<T: DeserializeOwned>(
        &self,
        table: &StateTable,
        query: &PageQuery<'_>,
    ) -> Result<Page<T>, TableError> {
        let partitions: Vec<_> = table.partitions().collect();
        let Items { items, cursor } = self.items(query, &partitions, Some(table.key)).await?;
        // As the table has them: with the generation.
        let id = |item: &Item| item.get(table.key).and_then(|id| id.as_s().ok()).cloned();
        let ids: Vec<_> = items.iter().filter_map(id).collect();
        let keys =
            ids.iter().map(|id| HashMap::from([(table.key.to_owned(), AttributeValue::S(id.clone()))]));
        let found = self.items_of(keys.collect(), false).await?.into_iter();
        let mut found: HashMap<_, _> = found.filter_map(|item| Some((id(&item)?, item))).collect();
        let rows = ids.iter().filter_map(|id| found.remove(id));
        // As the table has them: the sort key of one index may be the partition key of another.
        let partition = self.partition(query.partition.1);
        let sort = query.keys.first().copied().unwrap_or_default();
        let is_partition = partitions.contains(&sort);
        let prefix = query.starts_with.map(|prefix| {
            if is_partition { self.partition(prefix) } else { AttributeValue::S(prefix.to_owned()) }
        });
        let begins = |item: &Item, prefix: &AttributeValue| match (item.get(sort), prefix) {
            (Some(AttributeValue::S(sort)), AttributeValue::S(prefix)) => sort.starts_with(prefix.as_str()),
            (_, _) => false,
        };
        let is_there = |item: &Item| {
            item.get(query.partition.0) == Some(&partition)
                && prefix.as_ref().is_none_or(|prefix| begins(item, prefix))
        };
        let rows = rows.filter(|item| !item.contains_key(TOMBSTONE) && is_there(item));
        Ok(Page { rows: self.rows_read(rows, table.key, &partitions), cursor })
    }

    /// The items of a page. `partitions` are the names of all partition keys of the table and its indexes: the values of these carry the generation. `key` is that of the table, if
    /// the page is of an index.
    async fn items(
        &self,
        query: &PageQuery<'_>,
        partitions: &[&str],
        key: Option<&str>,
    ) -> Result<Items, TableError> {
        // The sort key of one index may be the partition key of another.
        let is_partition = query.keys.first().is_some_and(|sort| partitions.contains(sort));
        let prefix = query
            .starts_with
            .map(|prefix| if is_partition { generations::escaped(prefix) } else { Cow::Borrowed(prefix) });
        let query = &PageQuery { starts_with: prefix.as_deref(), ..*query };
        let start = query.cursor.map(|cursor| cursor::read(cursor, query)).transpose()?;
        let mut start = start.map(|mut start| {
            self.sign_keys(&mut start, partitions.iter().copied());
            start.insert(query.partition.0.to_owned(), self.partition(query.partition.1));
            start
        });
        let is_of_this_generation = |item: &Item| key.is_none_or(|key| self.is_of_this_generation(item, key));
        let mut rows = Vec::new();
        loop {
            let (found, last) = self.query(query, partitions, start).await?;
            let shown = |item: &Item| !item.contains_key(TOMBSTONE) && is_of_this_generation(item);
            rows.extend(found.into_iter().filter(shown));
            match last {
                // A cursor has no generation, so no page ends at a row of another one.
                Some(last) if !is_of_this_generation(&last) => start = Some(last),
                Some(mut last) => {
                    self.unsign_keys(&mut last, partitions.iter().copied());
                    return Ok(Items { items: rows, cursor: Some(cursor::write(&last, query)?) });
                }
                None => return Ok(Items { items: rows, cursor: None }),
            }
        }
    }

    /// One call for items, after this key. Returns the key where the next one begins as well.
    async fn query(
        &self,
        query: &PageQuery<'_>,
        partitions: &[&str],
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), TableError> {
        let mut request = self.client.query();
        if let Some(prefix) = query.starts_with {
            let sort = query.keys.first().copied().unwrap_or_default();
            let prefix = if partitions.contains(&sort) {
                self.signed(prefix)
            } else {
                AttributeValue::S(prefix.to_owned())
            };
            request = request
                .expression_attribute_names("#sort", sort)
                .expression_attribute_values(":start", prefix);
        }
        let output = request
            .table_name(&self.name)
            .set_index_name(query.index.map(ToOwned::to_owned))
            .key_condition_expression(if query.starts_with.is_some() {
                "#partition = :partition AND begins_with(#sort, :start)"
            } else {
                "#partition = :partition"
            })
            .expression_attribute_names("#partition", query.partition.0)
            .expression_attribute_values(":partition", self.partition(query.partition.1))
            .scan_index_forward(!query.newest_first)
            .limit(query.limit)
            // An index cannot be read strongly. The table is read strongly, so that its rows are at least as new as a position that was read before.
            .consistent_read(query.index.is_none())
            .set_exclusive_start_key(start)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok((output.items.unwrap_or_default(), output.last_evaluated_key))
    }
}

/// The rows that are to be read.
#[derive(Debug, Clone, Copy)]
pub struct PageQuery<'a> {
    /// The name of an index; `None` for the table itself.
    pub index: Option<&'a str>,
    /// Name and value of the partition key.
    pub partition: (&'a str, &'a str),
    /// The names of the other keys: the sort key first, then, for an index, those keys of the table that are not keys of the index.
    pub keys: &'a [&'a str],
    /// The text that the sort key of each row begins with.
    pub starts_with: Option<&'a str>,
    /// Whether the rows are in descending order of the sort key.
    pub newest_first: bool,
    /// The most rows in the page.
    pub limit: i32,
    /// The place where the page before ended.
    pub cursor: Option<&'a str>,
}

/// The error in the reasons of a transaction that was cancelled, if they tell more than that.
fn refused(cancelled: &TransactionCanceledException) -> Option<TableError> {
    let reasons = cancelled.cancellation_reasons();
    let busy = |code: &str| is_busy(code) || is_throttling(code);
    if reasons.iter().any(|reason| reason.code().is_some_and(busy)) {
        return Some(TableError::Throttled);
    }
    // A change that can never be written, such as an addition to a text: to say that the table is unavailable would have it tried again.
    let invalid = reasons.iter().find(|reason| reason.code() == Some("ValidationError"))?;
    Some(TableError::Row(invalid.message().unwrap_or("a change is not valid").to_owned()))
}

/// Whether the condition of a write held.
fn written<T>(result: Result<T, SdkError<PutItemError>>) -> Result<bool, TableError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) => match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(_)) => Ok(false),
            Some(_) | None => Err(table_error(error)),
        },
    }
}

/// A condition on a position, and its values.
type Condition = (&'static str, Option<Item>);

/// The condition that the position is just before this version.
fn after(version: u64) -> Condition {
    let values = HashMap::from([(":before".to_owned(), number(version.saturating_sub(1)))]);
    match version {
        // A first commit that was begun and is not done has left the position 0.
        0 | 1 => ("attribute_not_exists(#position) OR #position = :before", Some(values)),
        _ => ("#position = :before", Some(values)),
    }
}

/// The condition that the position is anywhere before this version.
fn before_or_none(version: u64) -> Condition {
    let values = HashMap::from([(":version".to_owned(), number(version))]);
    ("attribute_not_exists(#position) OR #position < :version", Some(values))
}

/// The verdict on a write, and the position: `found` is the position that a failed condition found, or `None` if the write was made.
fn verdict(found: Option<u64>, version: u64) -> Result<(Verdict, u64), TableError> {
    match found {
        None => Ok((Verdict::Apply, version)),
        Some(found) => match judge(found, version) {
            // The position moved between the failed condition and its answer, because another instance works on this stream.
            Verdict::Apply => Err(TableError::Throttled),
            verdict @ (Verdict::Skip | Verdict::Gap) => Ok((verdict, found)),
        },
    }
}

fn invalid(error: aws_sdk_dynamodb::error::BuildError) -> TableError {
    TableError::Row(error.to_string())
}

fn number_of(item: Option<&Item>, attribute: &str) -> u64 {
    let number = item.and_then(|item| item.get(attribute)).and_then(|number| number.as_n().ok());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn to_item(row: &impl Serialize) -> Result<Item, TableError> {
    serde_dynamo::to_item(row).map_err(|error| TableError::Row(error.to_string()))
}

fn from_item<T: DeserializeOwned>(item: Item) -> Result<T, TableError> {
    deserialized(item).map_err(TableError::Row)
}

/// What is in an item, or why it cannot be read, without values (rule 14).
fn deserialized<T: DeserializeOwned>(mut item: Item) -> Result<T, String> {
    item.remove(POSITION_ENTRY);
    serde_dynamo::from_item(item).map_err(|error| error::without_values(&error))
}
