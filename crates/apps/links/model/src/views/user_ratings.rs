//! All ratings of a user: one row for each link, written from the log.

use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, LogView, Write, decode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::link::{Event, Link};

/// The table that holds the rows.
pub const TABLE: LogTable =
    LogTable { variable: "USER_RATINGS_TABLE", partition: "owner", sort: "entry" };

/// The view.
pub const VIEW: LogView =
    LogView { table: TABLE, of: &[Link::CATEGORY], writes: &[Write::Update], changes };

/// The partition with a user's ratings. For all ids of users, no stream has such a name, so the
/// partition holds no position.
#[must_use]
pub fn partition(user_id: &str) -> String {
    format!("user#{user_id}")
}

/// The user's rating of one link.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Sort key: the id of the link.
    pub entry: String,
    /// The link's URL.
    pub link_url: String,
    /// The rating, from 1 to 5.
    pub rating: u8,
    /// The title.
    pub title: Option<String>,
    /// The URL of the image.
    pub image: Option<String>,
    /// The tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// Returns the changes of a commit.
///
/// # Errors
/// When an event of the commit cannot be read.
pub fn changes(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(TABLE);
    let link = commit.stream.id();
    for recorded in &commit.events {
        match decode::<Link>(recorded)? {
            Event::LinkCreated { .. } => {}
            Event::LinkRated { user_id, link_url, rating, previous: _ } => {
                changes.set(&partition(&user_id), link, "linkUrl", link_url);
                changes.set(&partition(&user_id), link, "rating", rating);
            }
            Event::LinkTagged { user_id, tags, link_url: _ } => {
                changes.set(&partition(&user_id), link, "tags", tags);
            }
            Event::LinkTitleUpdated { user_id, title, link_url: _ } => {
                changes.set(&partition(&user_id), link, "title", title);
            }
            Event::LinkImageUpdated { user_id, image, link_url: _ } => {
                changes.set(&partition(&user_id), link, "image", image);
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
        check_rows::<Row>(include_str!("../../shapes/rows/user-ratings.json"));
    }
}
