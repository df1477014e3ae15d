//! A reader's cursor in `$all`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::Segment;

/// The number of the text form of cursors.
const FORM: &str = "1";

/// A reader's place in `$all`: after an entry of a segment. Its text form is opaque to clients.
///
/// It has a checksum of the segment. So a reader gets an error when `$all` was lost and begun anew,
/// or restored from a backup. It does not silently continue in another order.
///
/// ```
/// use ledgerline::all::{Cursor, CursorError};
///
/// let beginning = Cursor::beginning();
/// assert_eq!(beginning.to_string().parse(), Ok(beginning));
/// assert_eq!("1~0.0".parse::<Cursor>(), Err(CursorError::Malformed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
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
    #[error(
        "the cursor is invalid or truncated: send that of an earlier answer, beginning, now, or a time"
    )]
    Malformed,
    /// The text has a form that this program does not read.
    #[error("a later version of the program made this cursor: use that version")]
    Later,
    /// The segment does not exist.
    #[error(
        "this cursor is ahead of `$all`, which was restored from a backup: read from `beginning`"
    )]
    Ahead,
    /// The segment is another one: `$all` was lost, and a new one was begun.
    #[error("this cursor is older than the current `$all`: read from `beginning`")]
    Lost,
}

impl Cursor {
    /// Returns the cursor before the first entry.
    #[must_use]
    pub fn beginning() -> Self {
        Self { segment: 0, entries: 0, check: 0 }
    }
}

impl Segment {
    /// Returns the cursor after all entries of this segment.
    pub(super) fn end(&self) -> Cursor {
        Cursor { segment: self.number, entries: self.entries.len(), check: self.checksum() }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, entries, check } = self;
        let text = format!("{FORM}~{segment}.{entries}.{check:x}");
        write!(f, "{text}~{:08x}", crc32fast::hash(text.as_bytes()))
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (text, sum) = text.rsplit_once('~').ok_or(CursorError::Malformed)?;
        if format!("{:08x}", crc32fast::hash(text.as_bytes())) != sum {
            return Err(CursorError::Malformed);
        }
        let (form, place) = text.split_once('~').ok_or(CursorError::Malformed)?;
        if form != FORM {
            return Err(CursorError::Later);
        }
        parse_place(place).ok_or(CursorError::Malformed)
    }
}

fn parse_place(text: &str) -> Option<Cursor> {
    let (segment, rest) = text.split_once('.')?;
    let (entries, check) = rest.split_once('.')?;
    Some(Cursor {
        segment: segment.parse().ok()?,
        entries: entries.parse().ok()?,
        check: u32::from_str_radix(check, 16).ok()?,
    })
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
        let cursor = Cursor { segment: 7, entries: 3, check: 0xa1 };
        let text = "1~7.3.a1~0ae9e7f5";
        assert_eq!(cursor.to_string(), text);
        assert_eq!(text.parse(), Ok(cursor));
    }

    proptest! {
        #[test]
        fn a_changed_or_shortened_cursor_is_refused(
            segment: u64,
            entries: usize,
            check: u32,
            at in any::<prop::sample::Index>(),
            other in any::<char>(),
        ) {
            let cursor = Cursor { segment, entries, check };
            let text = cursor.to_string();
            prop_assert_eq!(text.parse(), Ok(cursor));
            let place = at.index(text.len());
            prop_assert!(text[..place].parse::<Cursor>().is_err());
            let changed: String = text.chars().enumerate().map(|(n, c)| if n == place { other } else { c }).collect();
            prop_assert!(changed == text || changed.parse::<Cursor>().is_err());
        }
    }
}
