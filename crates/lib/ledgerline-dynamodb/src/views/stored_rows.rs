//! Rows as they are stored, for comparisons with the fold of the log.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline::{
    changes::Key,
    view_store::{StoredRow, ViewError},
};

use super::{Item, RowKey, TOMBSTONE, VERSION, ViewTable, from_item, number_of};

impl ViewTable {
    /// Reads the rows with these keys that exist, with strong consistency. A row without a sort key
    /// has an empty one.
    ///
    /// # Errors
    /// When the table fails, or a row is no JSON.
    pub async fn stored_rows(
        &self,
        keys: &BTreeSet<Key>,
    ) -> Result<BTreeMap<Key, StoredRow>, ViewError> {
        let keys = keys.iter().map(|key| self.key(RowKey::from(key))).collect();
        let found = self.get_items(keys, true).await?;
        found.into_iter().map(|item| self.stored_row(item)).collect()
    }

    fn stored_row(&self, item: Item) -> Result<(Key, StoredRow), ViewError> {
        let mut keys = item.clone();
        self.strip_keys(&mut keys, [&*self.keys.partition]);
        let text = |name: &str| keys.get(name).and_then(|key| key.as_s().ok()).cloned();
        let sort = self.keys.sort.as_deref();
        let key = (
            text(&self.keys.partition).unwrap_or_default(),
            sort.and_then(text).unwrap_or_default(),
        );
        let (version, is_forgotten) = match sort {
            Some(_) => (0, false),
            None => (number_of(Some(&item), VERSION)?, item.contains_key(TOMBSTONE)),
        };
        let fields = if is_forgotten { None } else { Some(from_item(item)?) };
        Ok((key, StoredRow { version, fields }))
    }
}
