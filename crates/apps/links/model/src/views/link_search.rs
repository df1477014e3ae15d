//! All links of all users, for searches: one row for each link of a user, written from its state.

use ledgerline::{StateTable, StateView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::link::{Link, State};

/// The table that holds the rows.
pub const TABLE: StateTable =
    StateTable { variable: "LINK_SEARCH_TABLE", key: "linkId", indexes: &[] };

/// The view.
pub const VIEW: StateView<Link, Row> = StateView { table: TABLE, row };

/// The definition of an index in OpenSearch. Its analyzer splits `example.com`, which the standard
/// analyzer keeps as one word.
pub const DEFINITION: &str = include_str!("link_search.json");

/// A link of a user.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The key of the row.
    pub link_id: String,
    /// The user who rates.
    pub user_id: String,
    /// The link's URL.
    pub link_url: String,
    /// The rating, from 1 to 5.
    pub rating: Option<u8>,
    /// The title.
    pub title: Option<String>,
    /// The URL of the image.
    pub image: Option<String>,
    /// The tags.
    pub tags: Vec<String>,
    /// The version of the link that the row shows.
    pub version: u64,
}

/// The row that shows this state of the link.
#[must_use]
pub fn row(link_id: &str, version: u64, state: State) -> Option<Row> {
    let State { created, rating, tags, title, image } = state;
    let (user_id, link_url) = created.map(|created| (created.user_id, created.link_url))?;
    let link_id = link_id.to_owned();
    Some(Row { link_id, user_id, link_url, rating, title, image, tags, version })
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/link-search.json"));
    }
}
