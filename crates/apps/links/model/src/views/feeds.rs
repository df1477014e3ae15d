//! The feed of every user: the ratings of the users that they follow now, newest first, from the commits of two categories.
//!
//! One table holds what it takes, each kind of row in partitions of its own:
//!
//! | partition | sort key | what |
//! |---|---|---|
//! | `rating#A` | link | what A says about a link, once, however many read it |
//! | `recent#A` | place | A's links in the order of their first ratings |
//! | `followers#A` | F | F follows A, and by which following |
//! | `following#F` | A | the same, from the other side |
//! | `feed#F` | place, following | a link of A in the feed of F |
//!
//! A first rating goes into as many feeds as its author has followers, which is more than one write. So do a following,
//! which brings in the recent ratings, and its end. Each is begun with one write, together with the handler's position
//! (rule 9), goes on with writes that may be repeated, and is done when the position moves.
//!
//! Commits of two streams are handled side by side: a rating and a following, or its end. First the own row is written,
//! then the other's rows are read strongly, so that one of both sees the other. An entry that comes too late, for a
//! following that has ended, is told by its number, and nobody shows it: see [`shown`].

use std::collections::BTreeMap;

use ledgerline::{Aggregate, Changes, ChangesError, Commit, LogTable, decode};
use serde::{Deserialize, Serialize};

use crate::{link, link::Link, user, user::User};

/// The categories that the feeds are made of.
pub const OF: &[&str] = &[Link::CATEGORY, User::CATEGORY];

/// Where the rows are.
pub const TABLE: LogTable = LogTable { variable: "FEEDS_TABLE", partition: "owner", sort: "entry" };

/// How many of an author's ratings a new follower gets.
pub const RECENT: i32 = 100;

/// The partition with what a user says about links.
#[must_use]
pub fn ratings(author: &str) -> String {
    format!("rating#{author}")
}

/// The partition with a user's links in the order of their first ratings.
#[must_use]
pub fn recent(author: &str) -> String {
    format!("recent#{author}")
}

/// The partition with those who follow a user.
#[must_use]
pub fn followers(author: &str) -> String {
    format!("followers#{author}")
}

/// The partition with the users that a user follows.
#[must_use]
pub fn following(follower: &str) -> String {
    format!("following#{follower}")
}

/// The partition with a user's feed.
#[must_use]
pub fn feed(follower: &str) -> String {
    format!("feed#{follower}")
}

/// What an author says about a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rating {
    /// The link's id.
    pub entry: String,
    /// The author.
    pub user_id: String,
    /// The link's URL.
    pub link_url: String,
    /// From 1 to 5.
    pub rating: u8,
    /// The title.
    pub title: Option<String>,
    /// URL of the image.
    pub image: Option<String>,
    /// The tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A link in the order of an author's first ratings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Partition key.
    pub owner: String,
    /// Sort key: its place.
    pub entry: String,
    /// The link's id.
    pub link: String,
}

/// Somebody who follows, or is followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    /// Partition key.
    pub owner: String,
    /// Sort key: who, or whom.
    pub entry: String,
    /// The number of the following.
    pub following: u64,
    /// The place of the oldest link that the following brought in, where it did not bring in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Name of [`Follow::from`].
pub const FROM: &str = "from";

/// A link in a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Partition key.
    pub owner: String,
    /// Sort key: the place, and the following that it came by.
    pub entry: String,
    /// Whose rating it is.
    pub author: String,
    /// The link's id.
    pub link: String,
    /// The number of the following that it came by.
    pub following: u64,
}

impl Entry {
    /// An author's link in the feed of a follower.
    #[must_use]
    pub fn new(follower: &str, following: u64, author: &str, place: &str, link: &str) -> Self {
        Self {
            owner: feed(follower),
            // A later following of the same author has rows of its own: what is late for an ended one overwrites none.
            entry: format!("{place}#{following:010}"),
            author: author.to_owned(),
            link: link.to_owned(),
            following,
        }
    }
}

/// Whether an entry belongs to the feed, given the users that its owner follows now and the numbers of the followings.
#[must_use]
pub fn shown(entry: &Entry, following: &BTreeMap<String, u64>) -> bool {
    following.get(&entry.author) == Some(&entry.following)
}

/// What a commit comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// What is written first, with the handler's position.
    pub changes: Changes,
    /// What has to be done then, if anything.
    pub then: Option<Then>,
}

impl Work {
    /// Something more has to be done. Once for each commit: how far it is, is marked for one thing only.
    fn then(&mut self, then: Then) -> Result<(), ChangesError> {
        match self.then.replace(then) {
            None => Ok(()),
            Some(_) => Err(ChangesError::NoRow("two things for one commit of the feeds".into())),
        }
    }
}

/// What is more than one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// A rating goes to everybody who follows its author.
    Deliver {
        /// The author of the rating.
        author: String,
        /// Its place.
        place: String,
        /// The link's id.
        link: String,
    },
    /// The recent ratings of an author come into a feed.
    BringIn {
        /// The user whose feed changes.
        follower: String,
        /// The author of the ratings.
        author: String,
        /// The number of the following.
        following: u64,
    },
    /// All ratings of an author leave a feed.
    Remove {
        /// The user whose feed changes.
        follower: String,
        /// The author of the ratings.
        author: String,
        /// The number of the following that ended.
        following: u64,
    },
}

/// What a commit of a link or of a user comes to.
///
/// # Errors
/// When an event of it cannot be read.
pub fn work(commit: &Commit) -> Result<Work, ChangesError> {
    match commit.stream.category() {
        User::CATEGORY => of_user(commit),
        _ => of_link(commit),
    }
}

fn of_link(commit: &Commit) -> Result<Work, ChangesError> {
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
                    // Microseconds in a fixed width: text order is the order in time. Rating again changes what is shown,
                    // not where.
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

fn of_user(commit: &Commit) -> Result<Work, ChangesError> {
    let mut work = Work { changes: Changes::new(TABLE), then: None };
    for recorded in &commit.events {
        match decode::<User>(recorded)? {
            user::Event::UserRegistered { .. } | user::Event::UserEmailUpdated { .. } => {}
            user::Event::UserFollowed { user_id, followed_user_id, following: number } => {
                for (owner, entry) in
                    [(followers(&followed_user_id), &user_id), (following(&user_id), &followed_user_id)]
                {
                    work.changes.put(&Follow {
                        owner,
                        entry: entry.clone(),
                        following: number,
                        from: None,
                    })?;
                }
                work.then(Then::BringIn { follower: user_id, author: followed_user_id, following: number })?;
            }
            user::Event::UserUnfollowed { user_id, unfollowed_user_id, following: number } => {
                work.changes.delete(&followers(&unfollowed_user_id), &user_id);
                work.changes.delete(&following(&user_id), &unfollowed_user_id);
                work.then(Then::Remove { follower: user_id, author: unfollowed_user_id, following: number })?;
            }
        }
    }
    Ok(work)
}
