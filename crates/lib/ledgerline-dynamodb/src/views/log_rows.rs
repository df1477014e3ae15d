//! Rows that are written from the log, together with the position in its stream (rule 9).

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    operation::delete_item::DeleteItemError,
    types::{AttributeValue, ReturnConsumedCapacity},
};
use ledgerline::{
    LogTable, StreamId, Write,
    changes::Key,
    position::{Delivery, check},
    view_store::{
        Applied, CommitBatch, CommitChanges, LogRowStore, RowStore, StoredRow, ViewError,
    },
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Item, MAX_TRANSACTION_ITEMS, RowKey, ViewTable, apply::REBUILD_PAUSE, condition_held,
    stream_position::NewestRow, to_item,
};
use crate::error::table_error;

/// The longest pause between two attempts of a delivery. Deliveries have a short time, and other
/// messages wait for them.
const DELIVERY_PAUSE: Duration = Duration::from_millis(100);

/// The rows of a view that is written from commits, with the position in each stream. Cheap to
/// clone.
///
/// ```no_run
/// use ledgerline::LogTable;
/// use ledgerline_dynamodb::{LogRows, PageQuery};
/// use serde_json::Value;
///
/// const FILLS: LogTable = LogTable { variable: "FILLS_TABLE", partition: "tankId", sort: "entry" };
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = aws_sdk_dynamodb::Client::new(&aws_config::load_from_env().await);
/// let fills = LogRows::new(client, "Fills", FILLS);
/// let (rows, _) = fills.page::<Value>(&PageQuery::new("north", 10, None)).await?.whole()?;
/// println!("{rows:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LogRows {
    pub(super) view: ViewTable,
    pub(super) keys: LogTable,
    pub(super) guard: Guard,
}

/// The way in which rows and the position in their stream are written together (rule 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// In one transaction. Any commit may change any row.
    Transaction,
    /// The position is in the newest row of its stream, because no other commit writes it. Rows are
    /// inserted without a condition, at half the price, and many in one call.
    NewestRow,
}

impl LogRows {
    /// Returns the rows in the table of this name. They are written in transactions.
    pub fn new(client: Client, name: impl Into<String>, keys: LogTable) -> Self {
        Self { view: ViewTable::new(client, name, &keys), keys, guard: Guard::Transaction }
    }

    /// Returns the same rows, of a view that writes them in these ways
    /// ([`LogView::writes`](ledgerline::LogView::writes)). Inserted rows need no transaction.
    #[must_use]
    pub fn with_writes(self, writes: &[Write]) -> Self {
        let inserts = writes.contains(&Write::Insert);
        let guard = if inserts { Guard::NewestRow } else { Guard::Transaction };
        Self { guard, ..self }
    }

    /// Returns the rows in this table.
    pub fn from_table(view: ViewTable, keys: LogTable) -> Self {
        Self { view, keys, guard: Guard::Transaction }
    }

    /// Returns their table.
    pub fn view(&self) -> &ViewTable {
        &self.view
    }

    /// Reads the row with these keys, by an eventually consistent read.
    pub async fn get<T: DeserializeOwned>(&self, key: RowKey<'_>) -> Result<Option<T>, ViewError> {
        self.read_row(key, false).await
    }

    /// Reads the row with these keys, by a strongly consistent read.
    pub async fn read<T: DeserializeOwned>(&self, key: RowKey<'_>) -> Result<Option<T>, ViewError> {
        self.read_row(key, true).await
    }

    async fn read_row<T: DeserializeOwned>(
        &self,
        key: RowKey<'_>,
        strongly: bool,
    ) -> Result<Option<T>, ViewError> {
        let item = self.view.item(self.view.key(key), strongly).await?;
        item.map(|item| self.view.read_row(item, &[self.keys.partition])).transpose()
    }

    /// Writes a row unless a row has its keys already. Returns whether it was written.
    pub async fn put_new(&self, row: &impl Serialize) -> Result<bool, ViewError> {
        let put = self.view.client.put_item().table_name(&self.view.name);
        let result = put
            .set_item(Some(self.row(row)?))
            .condition_expression("attribute_not_exists(#sort)")
            .expression_attribute_names("#sort", self.keys.sort)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        condition_held(result)
    }

    /// Replaces a row if this field of it still has this value. Returns whether it was replaced.
    pub async fn replace_if(
        &self,
        row: &impl Serialize,
        field: &str,
        value: &str,
    ) -> Result<bool, ViewError> {
        let put = self.view.client.put_item().table_name(&self.view.name);
        let result = put
            .set_item(Some(self.row(row)?))
            .condition_expression("#field = :value")
            .expression_attribute_names("#field", field)
            .expression_attribute_values(":value", AttributeValue::S(value.to_owned()))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        condition_held(result)
    }

    /// Deletes a row if this field of it still has this value. Returns whether it was deleted.
    /// Because of the condition, an earlier attempt that arrives late does not delete a newer row.
    pub async fn delete_if(
        &self,
        key: RowKey<'_>,
        field: &str,
        value: &str,
    ) -> Result<bool, ViewError> {
        let delete = self.view.client.delete_item().table_name(&self.view.name);
        let result = delete
            .set_key(Some(self.view.key(key)))
            .condition_expression("#field = :value")
            .expression_attribute_names("#field", field)
            .expression_attribute_values(":value", AttributeValue::S(value.to_owned()))
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

    /// Applies the changes of a commit, and moves the position to its version, together (rule 9).
    /// Otherwise, if the commit is not the next one in its stream, nothing is written, and the
    /// delivery names the reason (rule 7). Returns the position as well.
    ///
    /// # Errors
    /// When the table fails, or the commit changes more rows than one transaction accepts. Also
    /// when a view that inserts rows changes one.
    pub async fn deliver(&self, commit: CommitChanges<'_>) -> Result<(Delivery, u64), ViewError> {
        match self.guard {
            Guard::Transaction => self.deliver_one(commit).await,
            Guard::NewestRow => Ok(self.insert(vec![commit]).await?[0]),
        }
    }

    async fn deliver_one(&self, commit: CommitChanges<'_>) -> Result<(Delivery, u64), ViewError> {
        let version = commit.version;
        let batch = CommitBatch::from_commit(commit);
        delivery(&self.transact(&batch, DELIVERY_PAUSE).await?, version)
    }

    /// Writes a part of a commit that needs more than one write, like [`deliver`](Self::deliver).
    /// The position does not move, so the commit is delivered again until a call of `deliver` moves
    /// it. Until then, all changes may be applied twice. With [`Delivery::Next`], the commit's
    /// version is returned, not the position.
    ///
    /// # Errors
    /// When the table fails, or there are more changes than one transaction accepts.
    pub async fn begin(
        &self,
        commit: CommitChanges<'_>,
        progress: Option<String>,
    ) -> Result<(Delivery, u64), ViewError> {
        let version = commit.version;
        let batch = CommitBatch::from_first_changes(commit, progress);
        delivery(&self.transact(&batch, DELIVERY_PAUSE).await?, version)
    }

    /// Inserts the rows of these commits. The newest row of a stream contains the position: the
    /// last row of a commit contains the commit's version, and its other rows contain the previous
    /// version.
    ///
    /// The last row is written after the others. So the table always has all rows of the commits up
    /// to the position, and maybe some rows of the next one (rule 9). After a crash between two
    /// calls, the commit is delivered again, and its rows are overwritten with the same content. A
    /// commit without rows, or with later rows, writes the position as an item next to the rows.
    async fn insert(
        &self,
        commits: Vec<CommitChanges<'_>>,
    ) -> Result<Vec<(Delivery, u64)>, ViewError> {
        let mut verdicts = Vec::new();
        let mut positions = BTreeMap::new();
        // The first batch has the first commit of each stream, the second one the second, and so
        // on. So the position of each is written before that of the next one in its stream, and the
        // position never decreases.
        let mut batches = Vec::<InsertBatch>::new();
        // The places of a stream's commits in the list: one in each batch.
        let mut places = BTreeMap::<&StreamId, Vec<usize>>::new();
        for CommitChanges { stream, version, changes } in commits {
            let NewestRow { entry, position } = match positions.entry(stream) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(unknown) => {
                    unknown.insert(self.position_before(stream, version).await?)
                }
            };
            let verdict = check(*position, version);
            if verdict == Delivery::Next {
                *position = version;
                // A crash in a rebuild, between two calls, leaves later rows with an earlier
                // position. The row of this commit is not the newest one then.
                let last = changes.iter().map(|((_, entry), _)| entry).max();
                let has_later_rows = last.is_some_and(|last| entry.as_ref() > Some(last));
                let places = places.entry(stream).or_default();
                if batches.len() == places.len() {
                    batches.push(InsertBatch::new(self.keys));
                }
                let batch = &mut batches[places.len()];
                // A batch of inserted rows has no limit, so each commit has room.
                _ = batch.commits.try_add(CommitChanges { stream, version, changes });
                if has_later_rows {
                    batch.beside.insert(stream.clone());
                }
                places.push(verdicts.len());
            }
            verdicts.push((verdict, *position));
        }
        for (depth, batch) in batches.iter().enumerate() {
            let applied = self.insert_rows(&batch.commits, &batch.beside).await?;
            let Applied::Written { further, .. } = applied else { continue };
            // The position next to the rows was not read if the newest row sufficed.
            for (stream, position) in &further {
                verdicts[places[stream][depth]] = (Delivery::Duplicate, *position);
            }
        }
        Ok(verdicts)
    }

    /// Reads the position in a stream, for a commit of this version, and the newest row.
    async fn position_before(
        &self,
        stream: &StreamId,
        version: u64,
    ) -> Result<NewestRow, ViewError> {
        let before = version.saturating_sub(1);
        let NewestRow { entry, position } = self.view.newest_row(stream, true).await?;
        if position == before && before > 0 {
            return Ok(NewestRow { entry, position });
        }
        // The position next to the rows is usually older than the newest row. It is read only if
        // the newest row does not suffice to determine the delivery.
        let beside = self.view.position_beside(stream, true).await?;
        Ok(NewestRow { entry, position: position.max(beside.position) })
    }

    /// Returns a row of this generation as an item.
    pub(super) fn row(&self, row: &impl Serialize) -> Result<Item, ViewError> {
        let mut item = to_item(row)?;
        self.view.name_keys(&mut item, [self.keys.partition]);
        Ok(item)
    }
}

/// Commits of different streams that insert rows in the same calls.
struct InsertBatch {
    commits: CommitBatch,
    /// The streams whose position is written next to the rows, although rows have it.
    beside: BTreeSet<StreamId>,
}

impl InsertBatch {
    fn new(keys: LogTable) -> Self {
        Self { commits: CommitBatch::new(keys, None), beside: BTreeSet::new() }
    }
}

impl RowStore for LogRows {
    fn at_generation(&self, generation: u32) -> Self {
        Self { view: self.view.at(generation), ..self.clone() }
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

impl LogRowStore for LogRows {
    fn writes_many(&self) -> bool {
        self.guard == Guard::NewestRow
    }

    fn max_items(&self) -> Option<usize> {
        match self.guard {
            Guard::Transaction => Some(MAX_TRANSACTION_ITEMS),
            // Inserted rows need no transaction.
            Guard::NewestRow => None,
        }
    }

    /// Applies many commits. A view that inserts rows writes those of different streams in the same
    /// calls.
    async fn deliver_all(
        &self,
        commits: Vec<CommitChanges<'_>>,
    ) -> Result<Vec<(Delivery, u64)>, ViewError> {
        if self.guard == Guard::NewestRow {
            return self.insert(commits).await;
        }
        let mut verdicts = Vec::new();
        for commit in commits {
            verdicts.push(self.deliver_one(commit).await?);
        }
        Ok(verdicts)
    }

    /// Applies the changes of these commits, and moves the positions in their streams (rule 9).
    ///
    /// In a view that inserts rows, no write has a condition: the caller has compared the positions
    /// with the beginning of the batch. The last row of a stream contains its own commit's version,
    /// and the other rows contain the position before the first of the commits. The last row is
    /// written after all others. So every row up to the position in the newest row exists.
    async fn apply(&self, batch: &CommitBatch) -> Result<Applied, ViewError> {
        match self.guard {
            Guard::Transaction => self.transact(batch, REBUILD_PAUSE).await,
            Guard::NewestRow => self.insert_rows(batch, &BTreeSet::new()).await,
        }
    }

    /// Inserted rows have no condition that would compare the position with the version.
    async fn can_begin_at(&self, stream: &StreamId, version: u64) -> Result<bool, ViewError> {
        if self.guard == Guard::Transaction || version == 1 {
            return Ok(true);
        }
        Ok(self.consistent_position(stream).await? == version.saturating_sub(1))
    }

    /// Only a view that inserts rows has the position in the newest row; the roles of all others
    /// allow no query.
    async fn resume_position(&self, stream: &StreamId) -> Result<u64, ViewError> {
        match self.guard {
            Guard::NewestRow => self.consistent_position(stream).await,
            Guard::Transaction => Ok(self.progress(stream).await?.0),
        }
    }
}

/// Returns the delivery of a commit of this version, and the position.
fn delivery(applied: &Applied, version: u64) -> Result<(Delivery, u64), ViewError> {
    match applied {
        Applied::Written { .. } => Ok((Delivery::Next, version)),
        &Applied::PositionIs(position) => match check(position, version) {
            // The position moved between the failed condition and its answer, because another
            // instance applies commits of this stream.
            Delivery::Next => {
                Err(ViewError::Throttled("another instance applies commits of the stream".into()))
            }
            verdict @ (Delivery::Duplicate | Delivery::Gap) => Ok((verdict, position)),
        },
    }
}
