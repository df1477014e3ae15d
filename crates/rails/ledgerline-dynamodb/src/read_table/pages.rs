//! Pages of rows.

use std::{borrow::Cow, collections::HashMap};

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use ledgerline::StateTable;
use serde::de::DeserializeOwned;

use super::{Item, ReadTable, TOMBSTONE, TableError, cursor, deserialized, generations};
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

/// The rows that are to be read.
#[derive(Debug, Clone, Copy)]
pub struct PageQuery<'a> {
    /// The name of an index; `None` for the table itself.
    pub index: Option<&'a str>,
    /// Name and value of the partition key.
    pub partition: (&'a str, &'a str),
    /// The names of the other keys: the sort key first, then, for an index, those keys of the table
    /// that are not keys of the index.
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

impl ReadTable {
    /// A page of the rows in one partition of the table, or of its index, in the order of the sort
    /// key.
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
    pub(super) fn rows_read<T: DeserializeOwned>(
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

    /// The items of a page. `partitions` are the names of all partition keys of the table and its
    /// indexes: the values of these carry the generation. `key` is that of the table, if the page
    /// is of an index.
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
            // An index cannot be read strongly. The table is read strongly, so that its rows are at
            // least as new as a position that was read before.
            .consistent_read(query.index.is_none())
            .set_exclusive_start_key(start)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(table_error)?;
        Ok((output.items.unwrap_or_default(), output.last_evaluated_key))
    }
}
