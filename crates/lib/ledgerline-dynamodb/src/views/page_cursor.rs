//! Cursors: the place where a page ended, as opaque text. A cursor never holds the partition, so no
//! cursor can lead into the rows of another user. It has a checksum of its list: in another list it
//! would silently leave rows out.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ledgerline::view_store::{InvalidCursor, ViewError};
use serde::{Serialize, de::DeserializeOwned};

use super::Item;

/// A query with the names of the keys of its table or index.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    /// The name of the index; `None` for the table itself.
    pub(super) index: Option<&'a str>,
    /// Name and value of the partition key.
    pub(super) partition: (&'a str, &'a str),
    /// The names of the other keys. The sort key is first. For an index, the table's key that is no
    /// key of the index follows.
    pub(super) keys: &'a [&'a str],
    /// The names of all partition keys of the table and its indexes: their values carry the
    /// generation.
    pub(super) partitions: &'a [&'a str],
    pub(super) starts_with: Option<&'a str>,
    pub(super) newest_first: bool,
    pub(super) limit: i32,
    pub(super) cursor: Option<&'a str>,
}

impl List<'_> {
    pub(super) fn sort(&self) -> &str {
        self.keys.first().copied().unwrap_or_default()
    }

    /// Whether its sort key is the partition key of another index.
    pub(super) fn is_sorted_by_partition(&self) -> bool {
        self.partitions.contains(&self.sort())
    }
}

pub(crate) fn write(key: &Item, query: &List<'_>) -> Result<String, ViewError> {
    let mut rest = BTreeMap::new();
    for (name, value) in key.iter().filter(|(name, _)| *name != query.partition.0) {
        rest.insert(
            name,
            value.as_s().map_err(|_| ViewError::Row(format!("the key {name} is not a text")))?,
        );
    }
    let name = LIST.to_owned();
    let list = checksum(query);
    rest.insert(&name, &list);
    let json = serde_json::to_vec(&rest).map_err(|error| ViewError::Row(error.to_string()))?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(json))
}

/// The name of the checksum in a cursor. No key of a table has it.
const LIST: &str = "$list";

/// Returns a checksum of the list of a query. The limit, and the generation of the table, are not
/// in it: a reader may change the limit, and a rebuild the generation.
fn checksum(query: &List<'_>) -> String {
    let List { index, partition, starts_with, newest_first, .. } = query;
    hash(&format!("{index:?} {partition:?} {starts_with:?} {newest_first}"))
}

fn hash(list: &str) -> String {
    format!("{:08x}", crc32fast::hash(list.as_bytes()))
}

/// Returns a cursor of a list in another store: the place where the page ended. `list` is the text
/// of the query. Each page applies the query again, so a forged cursor reads no excluded row.
pub fn write_cursor(place: &impl Serialize, list: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::json!([place, hash(list)]).to_string())
}

/// Returns the place in a cursor of this list.
///
/// # Errors
/// When no page of this list ended with the cursor.
pub fn read_cursor<Place: DeserializeOwned>(
    cursor: &str,
    list: &str,
) -> Result<Place, InvalidCursor> {
    let json = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
    let read: (Place, String) = serde_json::from_slice(&json).map_err(|_| InvalidCursor)?;
    match read {
        (place, known) if known == hash(list) => Ok(place),
        _ => Err(InvalidCursor),
    }
}

/// The most bytes of a sort key in DynamoDB. The partition keys of rows are not longer here either.
const MAX_KEY_BYTES: usize = 1024;

pub(crate) fn read(cursor: &str, query: &List<'_>) -> Result<Item, InvalidCursor> {
    let json = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
    let mut rest: BTreeMap<String, String> =
        serde_json::from_slice(&json).map_err(|_| InvalidCursor)?;
    if rest.remove(LIST) != Some(checksum(query)) {
        return Err(InvalidCursor);
    }
    let mut names = query.keys.to_vec();
    names.sort_unstable();
    // An index may be sorted by the key of its table.
    names.dedup();
    if rest.keys().map(String::as_str).ne(names)
        || !rest.values().all(|key| (1..=MAX_KEY_BYTES).contains(&key.len()))
        || !begins(&rest, query)
    {
        return Err(InvalidCursor);
    }
    let mut key: Item =
        rest.into_iter().map(|(name, value)| (name, AttributeValue::S(value))).collect();
    key.insert(query.partition.0.to_owned(), AttributeValue::S(query.partition.1.to_owned()));
    Ok(key)
}

/// Whether the cursor is within the requested list: DynamoDB refuses any other start.
fn begins(keys: &BTreeMap<String, String>, query: &List<'_>) -> bool {
    let sort = query.keys.first().and_then(|sort| keys.get(*sort));
    query.starts_with.is_none_or(|start| sort.is_some_and(|sort| sort.starts_with(start)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUERY: List<'_> = List {
        index: None,
        partition: ("tankId", "mine"),
        keys: &["entry"],
        partitions: &["tankId"],
        starts_with: None,
        newest_first: true,
        limit: 10,
        cursor: None,
    };

    #[test]
    fn a_cursor_is_valid_for_one_list_alone() {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let key = Item::from([("tankId".into(), text("mine")), ("entry".into(), text("7"))]);
        let cursor = write(&key, &QUERY).unwrap();
        assert!(read(&cursor, &List { limit: 99, ..QUERY }).is_ok());
        for other in [
            List { partition: ("tankId", "theirs"), ..QUERY },
            List { newest_first: false, ..QUERY },
            List { starts_with: Some("7"), ..QUERY },
            List { index: Some("byEntry"), ..QUERY },
        ] {
            assert_eq!(read(&cursor, &other), Err(InvalidCursor), "{other:?}");
        }
        let without_checksum = BASE64_URL_SAFE_NO_PAD.encode(r#"{"entry":"7"}"#);
        assert_eq!(read(&without_checksum, &QUERY), Err(InvalidCursor));
    }

    #[test]
    fn a_cursor_into_an_index_has_the_keys_of_both() {
        let query =
            List { partition: ("installedBy", "me"), keys: &["listing", "tankId"], ..QUERY };
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let key = Item::from([
            ("installedBy".into(), text("me")),
            ("listing".into(), text("North")),
            ("tankId".into(), text("1")),
        ]);
        let cursor = write(&key, &query).unwrap();
        assert_eq!(read(&cursor, &query), Ok(key));
        assert_eq!(read(&cursor, &QUERY), Err(InvalidCursor));
    }

    #[test]
    fn a_cursor_into_an_index_that_is_sorted_by_the_key_of_its_table_is_read() {
        let query = List { partition: ("installedBy", "me"), keys: &["tankId", "tankId"], ..QUERY };
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let key = Item::from([("installedBy".into(), text("me")), ("tankId".into(), text("1"))]);
        assert_eq!(read(&write(&key, &query).unwrap(), &query), Ok(key));
    }

    proptest! {
        #[test]
        fn a_cursor_leads_back_to_where_the_page_ended(entry in ".{1,40}") {
            let text = |text: &str| AttributeValue::S(text.to_owned());
            let key = Item::from([("tankId".into(), text("mine")), ("entry".into(), text(&entry))]);
            prop_assert_eq!(read(&write(&key, &QUERY).unwrap(), &QUERY), Ok(key));
        }

        #[test]
        fn any_other_text_is_refused(cursor in ".*") {
            prop_assert_eq!(read(&cursor, &QUERY), Err(InvalidCursor));
        }
    }

    #[test]
    fn a_cursor_never_leads_into_another_partition() {
        let forged = BASE64_URL_SAFE_NO_PAD.encode(r#"{"tankId":"theirs","entry":"1"}"#);
        assert_eq!(read(&forged, &QUERY), Err(InvalidCursor));
    }
}
