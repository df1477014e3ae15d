//! All ratings of a link by all users, and their count and sum: written from the log.

use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write, decode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::link::{Event, Link};

/// The table that holds the rows. The partition is the link's URL. No stream has a URL as its name,
/// so the partition holds no position.
pub const TABLE: LogTable =
    LogTable { variable: "LINK_RATINGS_TABLE", partition: "linkUrl", sort: "entry" };

/// The view.
pub const VIEW: LogView =
    LogView { table: TABLE, of: &[Link::CATEGORY], writes: &[Write::Update], changes };

/// The prefix of the sort key of every rating; the user's id follows.
pub const RATINGS: &str = "rating#";

/// The sort key of the row with count and sum.
pub const SUMMARY: &str = "summary";

/// One user's rating of the link.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The user who rates.
    pub user_id: String,
    /// The rating, from 1 to 5.
    pub rating: u8,
    /// The user's title of the link.
    pub title: Option<String>,
    /// The URL of the user's image.
    pub image: Option<String>,
    /// The user's tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// The count and the sum of all ratings of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Summary {
    /// The number of users who rate the link.
    pub count: u64,
    /// The sum of their ratings.
    pub sum: u64,
}

/// Returns the changes of a commit. Each rating carries the one before it, so that the sums are
/// updated without reading a row.
///
/// # Errors
/// When an event of the commit cannot be read.
pub fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(TABLE);
    for recorded in &commit.events {
        match decode::<Link>(recorded)? {
            Event::LinkCreated { .. } => {}
            Event::LinkRated { user_id, link_url, rating, previous } => {
                let entry = format!("{RATINGS}{user_id}");
                changes.set(&link_url, &entry, "userId", user_id);
                changes.set(&link_url, &entry, "rating", rating);
                changes.add(&link_url, SUMMARY, "count", i64::from(previous.is_none()));
                changes.add(
                    &link_url,
                    SUMMARY,
                    "sum",
                    i64::from(rating) - i64::from(previous.unwrap_or(0)),
                );
            }
            Event::LinkTagged { user_id, link_url, tags } => {
                changes.set(&link_url, &format!("{RATINGS}{user_id}"), "tags", tags);
            }
            Event::LinkTitleUpdated { user_id, link_url, title } => {
                changes.set(&link_url, &format!("{RATINGS}{user_id}"), "title", title);
            }
            Event::LinkImageUpdated { user_id, link_url, image } => {
                changes.set(&link_url, &format!("{RATINGS}{user_id}"), "image", image);
            }
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/link-ratings.json"));
        check_rows::<Summary>(include_str!("../../shapes/rows/link-summaries.json"));
    }
}
