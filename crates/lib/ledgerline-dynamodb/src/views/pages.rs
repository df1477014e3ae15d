//! Pages of rows.

use std::{borrow::Cow, collections::HashMap};

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use ledgerline::{Index, Projection};
use serde::de::DeserializeOwned;

use super::{
    Item, LogRows, StateRows, TOMBSTONE, ViewError, ViewTable, deserialize, generations,
    page_cursor::{self, List},
};
use crate::error::table_error;

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
    /// Returns the rows and the place where the next page begins, for a reader that needs all rows.
    pub fn whole(self) -> Result<(Vec<T>, Option<String>), ViewError> {
        let rows = self.rows.into_iter().collect::<Result<_, _>>();
        Ok((rows.map_err(|row| ViewError::Row(row.reason))?, self.cursor))
    }
}

/// A row that this program cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRow {
    /// Its id in a table of states; its sort key in a table that is written from the log.
    pub key: String,
    /// The reason, without values (rule 14).
    pub reason: String,
}

/// The items of a page.
struct Items {
    items: Vec<Item>,
    cursor: Option<String>,
}

/// The rows to read: those of one partition, in the order of their sort keys.
#[derive(Debug, Clone, Copy)]
pub struct PageQuery<'a> {
    /// The value of the partition key.
    pub partition: &'a str,
    /// The text that the sort key of each row begins with.
    pub starts_with: Option<&'a str>,
    /// Whether the rows are in descending order of the sort key.
    pub newest_first: bool,
    /// The most rows in the page.
    pub limit: i32,
    /// The place where the previous page ended.
    pub cursor: Option<&'a str>,
}

impl<'a> PageQuery<'a> {
    /// Returns a query of all rows of a partition, in ascending order.
    pub fn new(partition: &'a str, limit: i32, cursor: Option<&'a str>) -> Self {
        Self { partition, starts_with: None, newest_first: false, limit, cursor }
    }
}

impl LogRows {
    /// Reads a page of the rows in one partition, in the order of the sort key, with strong
    /// consistency.
    ///
    /// # Errors
    /// When the table fails, or the cursor is not from a page of this query.
    pub async fn page<T: DeserializeOwned>(
        &self,
        query: &PageQuery<'_>,
    ) -> Result<Page<T>, ViewError> {
        let PageQuery { partition, starts_with, newest_first, limit, cursor } = *query;
        let list = List {
            index: None,
            partition: (self.keys.partition, partition),
            keys: &[self.keys.sort],
            partitions: &[self.keys.partition],
            starts_with,
            newest_first,
            limit,
            cursor,
        };
        let Items { items, cursor } = self.view.items(&list).await?;
        Ok(Page { rows: self.view.rows_read(items, self.keys.sort, list.partitions), cursor })
    }
}

impl StateRows {
    /// Reads a page of the rows in one partition of an index, in the order of its sort key.
    ///
    /// If the index holds only keys, the rows are read from the table. A row that was deleted
    /// meanwhile is left out. So is a row with another place in the index: its new partition may
    /// belong to another caller.
    ///
    /// # Errors
    /// When the table fails, or the cursor is not from a page of this query.
    pub async fn page<T: DeserializeOwned>(
        &self,
        index: &Index,
        query: &PageQuery<'_>,
    ) -> Result<Page<T>, ViewError> {
        let PageQuery { partition, starts_with, newest_first, limit, cursor } = *query;
        let partitions: Vec<_> = self.keys.partitions().collect();
        let list = List {
            index: Some(index.name),
            partition: (index.partition, partition),
            keys: &[index.sort, self.keys.key],
            partitions: &partitions,
            starts_with,
            newest_first,
            limit,
            cursor,
        };
        let Items { mut items, cursor } = self.view.items(&list).await?;
        if index.projection == Projection::KeysOnly {
            items = self.rows_at(&list, &items).await?;
        }
        Ok(Page { rows: self.view.rows_read(items, self.keys.key, list.partitions), cursor })
    }

    /// Returns the rows of these items of an index, in their order, if they still have this place
    /// in it.
    async fn rows_at(&self, list: &List<'_>, items: &[Item]) -> Result<Vec<Item>, ViewError> {
        let key = self.keys.key;
        // The ids are as in the table: with the generation.
        let id = |item: &Item| item.get(key).and_then(|id| id.as_s().ok()).cloned();
        let ids: Vec<_> = items.iter().filter_map(id).collect();
        let keys =
            ids.iter().map(|id| HashMap::from([(key.to_owned(), AttributeValue::S(id.clone()))]));
        let found = self.view.get_items(keys.collect(), false).await?.into_iter();
        let mut found: HashMap<_, _> = found.filter_map(|item| Some((id(&item)?, item))).collect();
        let partition = self.view.partition(list.partition.1);
        let prefix = list.starts_with.map(|prefix| {
            if list.is_sorted_by_partition() {
                self.view.partition(prefix)
            } else {
                AttributeValue::S(prefix.to_owned())
            }
        });
        let begins = |item: &Item, prefix: &AttributeValue| match (item.get(list.sort()), prefix) {
            (Some(AttributeValue::S(sort)), AttributeValue::S(prefix)) => {
                sort.starts_with(prefix.as_str())
            }
            (_, _) => false,
        };
        let is_there = |item: &Item| {
            item.get(list.partition.0) == Some(&partition)
                && prefix.as_ref().is_none_or(|prefix| begins(item, prefix))
        };
        let rows = ids.iter().filter_map(|id| found.remove(id));
        Ok(rows.filter(|item| !item.contains_key(TOMBSTONE) && is_there(item)).collect())
    }
}

impl ViewTable {
    /// Returns the rows in these items. `key` is the name of the key that identifies a row.
    pub(super) fn rows_read<T: DeserializeOwned>(
        &self,
        items: impl IntoIterator<Item = Item>,
        key: &str,
        partitions: &[&str],
    ) -> Vec<Result<T, UnreadableRow>> {
        let read = |mut item: Item| {
            self.strip_keys(&mut item, partitions.iter().copied());
            let key = item.get(key).and_then(|key| key.as_s().ok()).cloned().unwrap_or_default();
            deserialize(item).map_err(|reason| UnreadableRow { key, reason })
        };
        items.into_iter().map(read).collect()
    }

    /// Reads the items of a page.
    async fn items(&self, list: &List<'_>) -> Result<Items, ViewError> {
        let prefix = list.starts_with.map(|prefix| {
            if list.is_sorted_by_partition() {
                generations::escape(prefix)
            } else {
                Cow::Borrowed(prefix)
            }
        });
        let list = &List { starts_with: prefix.as_deref(), ..*list };
        let partitions = list.partitions.iter().copied();
        let start = list.cursor.map(|cursor| page_cursor::read(cursor, list)).transpose()?;
        let start = start.map(|mut start| {
            self.sign_keys(&mut start, partitions.clone());
            start.insert(list.partition.0.to_owned(), self.partition(list.partition.1));
            start
        });
        let (mut items, last) = self.query(list, start).await?;
        items.retain(|item| !item.contains_key(TOMBSTONE));
        let cursor = last.map(|mut last| {
            self.unsign_keys(&mut last, partitions);
            page_cursor::write(&last, list)
        });
        Ok(Items { items, cursor: cursor.transpose()? })
    }

    /// Makes one call for items, after this key. Also returns the key where the next call begins.
    async fn query(
        &self,
        list: &List<'_>,
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), ViewError> {
        let mut request = self.client.query();
        if let Some(prefix) = list.starts_with {
            let prefix = if list.is_sorted_by_partition() {
                self.sign_key(prefix)
            } else {
                AttributeValue::S(prefix.to_owned())
            };
            request = request
                .expression_attribute_names("#sort", list.sort())
                .expression_attribute_values(":start", prefix);
        }
        let output = request
            .table_name(&self.name)
            .set_index_name(list.index.map(ToOwned::to_owned))
            .key_condition_expression(if list.starts_with.is_some() {
                "#partition = :partition AND begins_with(#sort, :start)"
            } else {
                "#partition = :partition"
            })
            .expression_attribute_names("#partition", list.partition.0)
            .expression_attribute_values(":partition", self.partition(list.partition.1))
            .scan_index_forward(!list.newest_first)
            .limit(list.limit)
            // An index has no strongly consistent reads. Reads of the table are strongly
            // consistent, so that its rows are at least as new as a position that was read before.
            .consistent_read(list.index.is_none())
            .set_exclusive_start_key(start)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok((output.items.unwrap_or_default(), output.last_evaluated_key))
    }
}
