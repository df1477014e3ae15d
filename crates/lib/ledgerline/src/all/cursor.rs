//! A reader's cursor in `$all`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::Segment;

/// The number of the text form of cursors.
const FORM: &str = "1";

/// A reader's place in `$all`: after an entry of a segment, in each partition. Its text form is
/// opaque to clients.
///
/// It has a checksum of the segment of each place. So a reader gets an error when `$all` was lost
/// and begun anew, or restored from a backup. It does not silently continue in another order.
///
/// ```
/// use ledgerline::all::{Cursor, CursorError};
///
/// let beginning = Cursor::beginning(1);
/// assert_eq!(beginning.to_string().parse(), Ok(beginning));
/// assert_eq!("1~0.0".parse::<Cursor>(), Err(CursorError::Malformed));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    pub(super) places: Vec<Place>,
}

/// A place in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// The number of the segment; 0 before the first one.
    pub(super) segment: u64,
    /// How many of its entries the reader has read.
    pub(super) entries: usize,
    /// The checksum of the segment; 0 before the first one.
    pub(super) check: u32,
}

/// The reason why no reader can continue from a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The text was cut, changed, or made by something else.
    #[error("it is no cursor of this log, or it was cut")]
    Malformed,
    /// The text has a form that this program does not read.
    #[error("a later version of the program made it")]
    Later,
    /// `$all` had another number of partitions.
    #[error("it is of an order with another number of partitions")]
    Partitions,
    /// The segment of a place does not exist.
    #[error("it is ahead of the order, which must have been restored from a backup")]
    Ahead,
    /// The segment of a place is another one.
    #[error("the order that it is of was lost, and another one was begun")]
    Lost,
}

impl Cursor {
    /// Returns the cursor before the first entry.
    #[must_use]
    pub fn beginning(partitions: u16) -> Self {
        Self { places: vec![Place::default(); usize::from(partitions.max(1))] }
    }
}

impl Place {
    /// Returns the place after all entries of this segment.
    pub(super) fn after(segment: &Segment) -> Self {
        Self { segment: segment.number, entries: segment.entries.len(), check: segment.checksum() }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = FORM.to_owned();
        for Place { segment, entries, check } in &self.places {
            text += &format!("~{segment}.{entries}.{check:x}");
        }
        write!(f, "{text}~{:08x}", crc32fast::hash(text.as_bytes()))
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let place = |text: &str| {
            let mut parts = text.split('.');
            let segment = parts.next()?;
            let entries = parts.next()?;
            let check = parts.next()?;
            let segment = segment.parse().ok()?;
            let entries = entries.parse().ok()?;
            let check = u32::from_str_radix(check, 16).ok()?;
            parts.next().is_none().then_some(Place { segment, entries, check })
        };
        let (text, sum) = text.rsplit_once('~').ok_or(CursorError::Malformed)?;
        if format!("{:08x}", crc32fast::hash(text.as_bytes())) != sum {
            return Err(CursorError::Malformed);
        }
        let (form, places) = text.split_once('~').ok_or(CursorError::Malformed)?;
        if form != FORM {
            return Err(CursorError::Later);
        }
        let places =
            places.split('~').map(place).collect::<Option<_>>().ok_or(CursorError::Malformed)?;
        Ok(Self { places })
    }
}

impl TryFrom<String> for Cursor {
    type Error = CursorError;

    fn try_from(text: String) -> Result<Self, CursorError> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_of_a_later_form_is_distinguished_from_a_malformed_one() {
        let later = "2~whatever";
        let later = format!("{later}~{:08x}", crc32fast::hash(later.as_bytes()));
        assert_eq!(later.parse::<Cursor>(), Err(CursorError::Later));
        for other in ["", "1", "~", "1~~", "null", "eyJhIjoxfQ==", "2026-11-24T00:00:00Z"] {
            assert_eq!(other.parse::<Cursor>(), Err(CursorError::Malformed), "{other}");
        }
    }

    /// Clients store cursors for years, so the form of a cursor never changes.
    #[test]
    fn a_stored_cursor_is_read() {
        let places = vec![
            Place { segment: 7, entries: 3, check: 0xa1 },
            Place { segment: u64::MAX, entries: 0, check: 0xffff_ffff },
        ];
        let cursor = Cursor { places };
        let text = "1~7.3.a1~18446744073709551615.0.ffffffff~0f135fd4";
        assert_eq!(cursor.to_string(), text);
        assert_eq!(text.parse(), Ok(cursor));
    }

    proptest! {
        #[test]
        fn a_changed_or_shortened_cursor_is_refused(
            places in prop::collection::vec((any::<u64>(), any::<usize>(), any::<u32>()), 1..4),
            at in any::<prop::sample::Index>(),
            other in any::<char>(),
        ) {
            let places = places.into_iter().map(|(segment, entries, check)| Place { segment, entries, check });
            let cursor = Cursor { places: places.collect() };
            let text = cursor.to_string();
            prop_assert_eq!(text.parse(), Ok(cursor));
            let place = at.index(text.len());
            prop_assert!(text[..place].parse::<Cursor>().is_err());
            let changed: String = text.chars().enumerate().map(|(n, c)| if n == place { other } else { c }).collect();
            prop_assert!(changed == text || changed.parse::<Cursor>().is_err());
        }
    }
}
