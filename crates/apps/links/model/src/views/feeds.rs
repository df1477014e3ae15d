//! The feed of every user: the ratings of the followed users, newest first, from the commits of two
//! categories.
//!
//! One table holds all rows of the feeds, each kind in partitions of its own:
//!
//! | partition | sort key | what |
//! |---|---|---|
//! | `rating#A` | link | A's rating of a link, once, for any number of readers |
//! | `recent#A` | place | A's links in the order of their first ratings |
//! | `followers#A` | F | F follows A, with the number of the following |
//! | `following#F` | A | the same, from the other side |
//! | `feed#F` | place, following | a link of A in the feed of F |
//!
//! A first rating adds an entry to the feed of each of its author's followers, which takes more
//! than one write. A following, which adds the recent ratings, and its end take more than one write
//! too. Each begins with one write, together with the handler's position (rule 9). It continues
//! with writes that may be repeated, and is done when the position moves.
//!
//! Commits of two streams are handled concurrently: a rating and a following, or its end. Each
//! handler first writes its own row, and then reads the other's rows with a strongly consistent
//! read. So at least one of the two sees the other. A late entry, for a following that has ended,
//! has the number of that following, and is not shown: see [`shown`]. A check of the following in
//! each write would cost four times as much, and ratings of one author would wait for each other.
//!
//! A feed is written at a rating, not collected at a read: a user who follows a thousand users
//! would need a thousand queries. In return, a reader also reads whom they follow, and late entries
//! stay in the table.

use std::collections::BTreeMap;

use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, decode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{link, link::Link, user, user::User};

/// The categories from whose commits the feeds are written.
pub const OF: &[&str] = &[Link::CATEGORY, User::CATEGORY];

/// The table that holds the rows.
pub const TABLE: LogTable = LogTable { variable: "FEEDS_TABLE", partition: "owner", sort: "entry" };

/// The number of an author's ratings that a new follower gets.
pub const RECENT: i32 = 100;

/// The partition with a user's ratings of links.
#[must_use]
pub fn ratings(author: &str) -> String {
    format!("rating#{author}")
}

/// The partition with a user's links in the order of their first ratings.
#[must_use]
pub fn recent(author: &str) -> String {
    format!("recent#{author}")
}

/// The partition with the followers of a user.
#[must_use]
pub fn followers(author: &str) -> String {
    format!("followers#{author}")
}

/// The partition with the users that a user follows.
#[must_use]
pub fn followings_partition(follower: &str) -> String {
    format!("following#{follower}")
}

/// The partition with a user's feed.
#[must_use]
pub fn feed_partition(follower: &str) -> String {
    format!("feed#{follower}")
}

/// An author's rating of a link.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rating {
    /// The link's id.
    pub entry: String,
    /// The author.
    pub user_id: String,
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

/// A link in the order of an author's first ratings.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Recent {
    /// Partition key.
    pub owner: String,
    /// Sort key: the link's place.
    pub entry: String,
    /// The link's id.
    pub link: String,
}

/// One following, from either side.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Follow {
    /// Partition key.
    pub owner: String,
    /// Sort key: the follower, or the followed user.
    pub entry: String,
    /// The number of the following.
    pub following: u64,
    /// The place of the oldest link that the following added, if it did not add all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// The name of the field [`Follow::from`].
pub const FROM: &str = "from";

/// A link in a feed.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Entry {
    /// Partition key.
    pub owner: String,
    /// Sort key: the place, and the number of the following that added the entry.
    pub entry: String,
    /// The author of the rating.
    pub author: String,
    /// The link's id.
    pub link: String,
    /// The number of the following that added the entry.
    pub following: u64,
}

impl Entry {
    /// Returns an author's link in the feed of a follower.
    #[must_use]
    pub fn new(follower: &str, following: u64, author: &str, place: &str, link: &str) -> Self {
        Self {
            owner: feed_partition(follower),
            // A later following of the same author has entries of its own, so a late write for an
            // ended following overwrites none of them.
            entry: format!("{place}#{following:010}"),
            author: author.to_owned(),
            link: link.to_owned(),
            following,
        }
    }
}

/// Whether an entry belongs to the feed, given the users that its owner follows and the numbers of
/// the followings.
#[must_use]
pub fn shown(entry: &Entry, following: &BTreeMap<String, u64>) -> bool {
    following.get(&entry.author) == Some(&entry.following)
}

/// The work that is due after a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The changes of the first write, together with the handler's position.
    pub changes: Changes,
    /// The work that is due after the first write, if any.
    pub then: Option<Then>,
}

impl Work {
    /// Adds the work that is due after the first write. A commit can have only one such work,
    /// because the progress is stored for one.
    fn then(&mut self, then: Then) -> Result<(), ChangesError> {
        match self.then.replace(then) {
            None => Ok(()),
            Some(_) => {
                Err(ChangesError::NoRow("one commit of the feeds has two follow-up writes".into()))
            }
        }
    }
}

/// Work that takes more than one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Adds a rating to the feed of every follower of its author.
    Deliver {
        /// The author of the rating.
        author: String,
        /// The rating's place.
        place: String,
        /// The link's id.
        link: String,
    },
    /// Adds the recent ratings of an author to a feed.
    BringIn {
        /// The user whose feed changes.
        follower: String,
        /// The author of the ratings.
        author: String,
        /// The number of the following.
        following: u64,
    },
    /// Removes all ratings of an author from a feed.
    Remove {
        /// The user whose feed changes.
        follower: String,
        /// The author of the ratings.
        author: String,
        /// The number of the following that ended.
        following: u64,
    },
}

/// Returns the work that is due after a commit of a link or of a user.
///
/// # Errors
/// When an event of the commit cannot be read.
pub fn work(commit: &Commit) -> Result<Work, ChangesError> {
    match commit.stream.category() {
        User::CATEGORY => user_work(commit),
        _ => link_work(commit),
    }
}

fn link_work(commit: &Commit) -> Result<Work, ChangesError> {
    let mut work = Work { changes: Changes::new(TABLE), then: None };
    let link = commit.stream.id();
    for recorded in &commit.events {
        match decode::<Link>(recorded)? {
            link::Event::LinkCreated { .. } => {}
            link::Event::LinkRated { user_id, link_url, rating, previous } => {
                work.changes.set(&ratings(&user_id), link, "userId", &*user_id);
                work.changes.set(&ratings(&user_id), link, "linkUrl", link_url);
                work.changes.set(&ratings(&user_id), link, "rating", rating);
                if previous.is_none() {
                    // The text order of microseconds in a fixed width is the order in time. Another
                    // rating changes the shown rating, and not the place.
                    let place = format!("{:020}#{link}", commit.at.as_microsecond());
                    work.changes.put(&Recent {
                        owner: recent(&user_id),
                        entry: place.clone(),
                        link: link.to_owned(),
                    })?;
                    work.then(Then::Deliver { author: user_id, place, link: link.to_owned() })?;
                }
            }
            link::Event::LinkTagged { user_id, tags, link_url: _ } => {
                work.changes.set(&ratings(&user_id), link, "tags", tags);
            }
            link::Event::LinkTitleUpdated { user_id, title, link_url: _ } => {
                work.changes.set(&ratings(&user_id), link, "title", title);
            }
            link::Event::LinkImageUpdated { user_id, image, link_url: _ } => {
                work.changes.set(&ratings(&user_id), link, "image", image);
            }
        }
    }
    Ok(work)
}

fn user_work(commit: &Commit) -> Result<Work, ChangesError> {
    let mut work = Work { changes: Changes::new(TABLE), then: None };
    for recorded in &commit.events {
        match decode::<User>(recorded)? {
            user::Event::UserRegistered { .. } | user::Event::UserEmailUpdated { .. } => {}
            user::Event::UserFollowed { user_id, followed_user_id, following: number } => {
                for (owner, entry) in [
                    (followers(&followed_user_id), &user_id),
                    (followings_partition(&user_id), &followed_user_id),
                ] {
                    work.changes.put(&Follow {
                        owner,
                        entry: entry.clone(),
                        following: number,
                        from: None,
                    })?;
                }
                work.then(Then::BringIn {
                    follower: user_id,
                    author: followed_user_id,
                    following: number,
                })?;
            }
            user::Event::UserUnfollowed { user_id, unfollowed_user_id, following: number } => {
                work.changes.delete(&followers(&unfollowed_user_id), &user_id);
                work.changes.delete(&followings_partition(&user_id), &unfollowed_user_id);
                work.then(Then::Remove {
                    follower: user_id,
                    author: unfollowed_user_id,
                    following: number,
                })?;
            }
        }
    }
    Ok(work)
}

#[cfg(test)]
mod tests {
    use ledgerline::shapes::check_rows;

    use super::*;

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Rating>(include_str!("../../shapes/rows/feed-ratings.json"));
        check_rows::<Recent>(include_str!("../../shapes/rows/feed-recent.json"));
        check_rows::<Follow>(include_str!("../../shapes/rows/feed-following.json"));
        check_rows::<Entry>(include_str!("../../shapes/rows/feed-entries.json"));
    }
}
