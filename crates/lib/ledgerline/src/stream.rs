//! Names of streams.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the stream of `$all`, and its category.
const ALL: &str = "$all";

/// The longest id of an aggregate, in bytes.
const MAX_ID_LENGTH: usize = 128;

/// The name of a stream: `<category>-<id>`.
///
/// The category has no dash, so the first dash ends it: two different pairs of category and id
/// never give one name.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[a-z][a-z0-9]*-[A-Za-z0-9._:-]{1,128}$"))]
pub struct StreamId {
    name: String,
    category_length: usize,
}

/// A name that no stream can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStreamId {
    /// The part before the dash.
    #[error("a category is a lower-case letter, then lower-case letters and digits")]
    Category,
    /// The part after the dash.
    #[error(
        "an id has 1 to {MAX_ID_LENGTH} characters of A-Z a-z 0-9 . _ : -, and is not `.` or `..`"
    )]
    Id,
}

fn check(category: &str, id: &str) -> Result<(), InvalidStreamId> {
    if !category.starts_with(|c: char| c.is_ascii_lowercase())
        || !category.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    {
        return Err(InvalidStreamId::Category);
    }
    let safe = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
    // Clients resolve the path `/users/..` to `/`.
    let is_dots = matches!(id, "." | "..");
    if id.is_empty() || id.len() > MAX_ID_LENGTH || is_dots || !id.bytes().all(safe) {
        return Err(InvalidStreamId::Id);
    }
    Ok(())
}

impl StreamId {
    /// Names the stream of one aggregate.
    ///
    /// # Errors
    /// When the category is not `[a-z][a-z0-9]*`, or the id not 1 to 128 characters of
    /// `[A-Za-z0-9._:-]` or one of `.` and `..`.
    pub fn new(category: &str, id: &str) -> Result<Self, InvalidStreamId> {
        check(category, id)?;
        Ok(Self { name: format!("{category}-{id}"), category_length: category.len() })
    }

    /// Names the stream of `$all`, which is in a table of its own. No aggregate has a category with
    /// `$`.
    #[must_use]
    pub(crate) fn all_stream() -> Self {
        Self { name: ALL.to_owned(), category_length: ALL.len() }
    }

    /// Returns the whole name: the partition key in the Commits table.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns the part before the first dash.
    pub fn category(&self) -> &str {
        &self.name[..self.category_length]
    }

    /// Returns the part after the first dash; none for `$all`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.name.get(self.category_length + 1..).unwrap_or_default()
    }
}

impl TryFrom<String> for StreamId {
    type Error = InvalidStreamId;

    fn try_from(name: String) -> Result<Self, InvalidStreamId> {
        if name == ALL {
            return Ok(Self::all_stream());
        }
        let (category, id) = name.split_once('-').ok_or(InvalidStreamId::Id)?;
        check(category, id)?;
        let category_length = category.len();
        Ok(Self { name, category_length })
    }
}

impl From<StreamId> for String {
    fn from(stream: StreamId) -> Self {
        stream.name
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_outside_the_alphabet_are_refused() {
        for category in ["", "Tank", "1st", "two-parts", "a_b", "é"] {
            assert_eq!(StreamId::new(category, "1"), Err(InvalidStreamId::Category), "{category}");
        }
        for id in ["", "a b", "a/b", "a#b", "ä", "a\n", &"x".repeat(129)] {
            assert_eq!(StreamId::new("tank", id), Err(InvalidStreamId::Id), "{id}");
        }
        assert!(StreamId::new("tank", &"x".repeat(128)).is_ok());
    }

    proptest! {
        #[test]
        fn different_categories_and_ids_give_different_stream_names(
            a in ("[a-z][a-z0-9]{0,3}", "[a-z0-9-]{1,4}"),
            b in ("[a-z][a-z0-9]{0,3}", "[a-z0-9-]{1,4}"),
        ) {
            let left = StreamId::new(&a.0, &a.1).unwrap();
            let right = StreamId::new(&b.0, &b.1).unwrap();
            prop_assert_eq!(left == right, a == b);
            prop_assert_eq!((left.category(), left.id()), (a.0.as_str(), a.1.as_str()));
            prop_assert_eq!(StreamId::try_from(left.to_string()), Ok(left));
        }
    }
}
