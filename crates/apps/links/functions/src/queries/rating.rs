//! What can be asked about ratings: all of a link, all of a user, and the feed of the caller.

use std::collections::BTreeMap;

use http::StatusCode;
use ledgerline::StreamId;
use ledgerline_dynamodb::{PageQuery, ReadTable, TableError};
use ledgerline_lambda::{
    Error, config, dynamodb,
    http::{HttpRequest, Problem, Response, Routes},
    queries::{limit, listed, problem},
};
use links::{
    link::{NOT_A_URL, normal_url},
    user::id_of,
    views::{
        feeds,
        feeds::{Entry, Follow, Rating},
        link_ratings,
        link_ratings::{RATINGS, SUMMARY, Summary},
        user_ratings,
    },
};
use serde_json::{Value, json};

/// Rows of those whom somebody follows that are read at once: all of them, mostly.
const FOLLOWING: i32 = 1_000;

/// Pages of a feed that are read for one that is shown.
const MAX_PAGES: usize = 10;

/// The read tables of ratings.
#[derive(Debug)]
pub struct RatingQueries {
    /// All ratings of a link.
    pub links: ReadTable,
    /// All ratings of a user.
    pub users: ReadTable,
    /// The feeds.
    pub feeds: ReadTable,
}

impl RatingQueries {
    /// From `LINK_RATINGS_TABLE`, `USER_RATINGS_TABLE` and `FEEDS_TABLE`.
    ///
    /// # Errors
    /// When a variable is missing.
    pub async fn from_env() -> Result<Self, Error> {
        let names = [
            config::text("LINK_RATINGS_TABLE")?,
            config::text("USER_RATINGS_TABLE")?,
            config::text("FEEDS_TABLE")?,
        ];
        let client = dynamodb().await;
        let [links, users, feeds] = names.map(|name| ReadTable::new(client.clone(), name));
        links.connect(link_ratings::TABLE.partition).await;
        Ok(Self { links, users, feeds })
    }

    async fn of_link(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let url = request.query("url")?.ok_or_else(|| Problem::field("url", "say which link: ?url="))?;
        let url = normal_url(&url).ok_or_else(|| Problem::field("url", NOT_A_URL))?;
        let cursor = request.query("cursor")?;
        let query = PageQuery {
            starts_with: Some(RATINGS),
            ..rows((link_ratings::TABLE.partition, &url), limit(request)?, cursor.as_deref())
        };
        let key = [(link_ratings::TABLE.partition, url.as_str()), (link_ratings::TABLE.sort, SUMMARY)];
        let (summary, page) =
            tokio::join!(self.links.get::<Summary>(&key), self.links.page::<link_ratings::Row>(&query));
        let (summary, page) = (summary.map_err(problem)?.unwrap_or_default(), page.map_err(problem)?);
        let ratings: Vec<_> = page
            .rows
            .iter()
            .map(|row| {
                let link_ratings::Row { user_id, rating, title, image, tags } = row;
                said(json!({ "userId": user_id, "rating": rating, "tags": tags }), title, image)
            })
            .collect();
        let mut body = listed("ratings", json!(ratings), page.cursor);
        body["linkUrl"] = json!(url);
        body["count"] = json!(summary.count);
        // In hundredths, rounded; none of nothing.
        body["average"] = match summary
            .sum
            .saturating_mul(100)
            .saturating_add(summary.count / 2)
            .checked_div(summary.count)
        {
            #[expect(clippy::cast_precision_loss, reason = "an average is from 1 to 5")]
            Some(hundredths) => json!(hundredths as f64 / 100.0),
            None => Value::Null,
        };
        Ok(Response::json(StatusCode::OK, body))
    }

    async fn of_user(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let owner = user_ratings::partition(user(request)?);
        let cursor = request.query("cursor")?;
        let query = rows((user_ratings::TABLE.partition, &owner), limit(request)?, cursor.as_deref());
        let page = self.users.page::<user_ratings::Row>(&query).await.map_err(problem)?;
        let ratings: Vec<_> = page
            .rows
            .iter()
            .map(|row| {
                let user_ratings::Row { entry, link_url, rating, title, image, tags } = row;
                let shown = json!({ "linkId": entry, "linkUrl": link_url, "rating": rating, "tags": tags });
                said(shown, title, image)
            })
            .collect();
        Ok(Response::json(StatusCode::OK, listed("ratings", json!(ratings), page.cursor)))
    }

    /// The feed of the caller, and of nobody else.
    async fn feed(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let id = user(request)?;
        if id_of(request.actor()?).as_deref() != Some(id) {
            return Err(Problem::new(StatusCode::FORBIDDEN, "not-you", "this is another user's feed"));
        }
        let (limit, cursor) = (limit(request)?, request.query("cursor")?);
        let (entries, cursor) = self.entries(id, limit, cursor).await.map_err(problem)?;
        let keys: Vec<_> =
            entries.iter().map(|entry| (feeds::ratings(&entry.author), entry.link.clone())).collect();
        let found = self.feeds.get_all::<Rating>(&feeds::TABLE, &keys).await.map_err(problem)?;
        let found: BTreeMap<_, _> = found.iter().map(|rating| (&rating.entry, rating)).collect();
        let shown: Vec<_> = entries
            .iter()
            // A link's id is made of its author too, so that it alone says which.
            .filter_map(|entry| found.get(&entry.link))
            .map(|rating| {
                let Rating { entry, user_id, link_url, rating, title, image, tags } = rating;
                let shown = json!({
                    "userId": user_id,
                    "linkId": entry,
                    "linkUrl": link_url,
                    "rating": rating,
                    "tags": tags,
                });
                said(shown, title, image)
            })
            .collect();
        Ok(Response::json(StatusCode::OK, listed("feed", json!(shown), cursor)))
    }

    /// A page of a feed, newest first, without what is left of followings that have ended.
    async fn entries(
        &self,
        id: &str,
        limit: i32,
        mut cursor: Option<String>,
    ) -> Result<(Vec<Entry>, Option<String>), TableError> {
        let (owner, feed) = (feeds::following(id), feeds::feed(id));
        let mut following = BTreeMap::new();
        let mut next = None;
        loop {
            let query = rows((feeds::TABLE.partition, &owner), FOLLOWING, next.as_deref());
            let page = self.feeds.page::<Follow>(&query).await?;
            following.extend(page.rows.into_iter().map(|follow| (follow.entry, follow.following)));
            next = page.cursor;
            if next.is_none() {
                break;
            }
        }
        let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        // What is hidden is rare, and here bounded (rule 11): a page may be shorter than asked for, as any page may.
        for _ in 0..MAX_PAGES {
            if entries.len() >= wanted {
                break;
            }
            let left = i32::try_from(wanted - entries.len()).unwrap_or(limit);
            let query = PageQuery {
                newest_first: true,
                ..rows((feeds::TABLE.partition, &feed), left, cursor.as_deref())
            };
            let page = self.feeds.page::<Entry>(&query).await?;
            entries.extend(page.rows.into_iter().filter(|entry| feeds::shown(entry, &following)));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok((entries, cursor))
    }
}

impl Routes for RatingQueries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        // Whoever is signed in may see who rates what.
        request.actor()?;
        match request.route() {
            "GET /links/ratings" => self.of_link(request).await,
            "GET /users/{id}/ratings" => self.of_user(request).await,
            "GET /users/{id}/feed" => self.feed(request).await,
            _ => Err(Problem::no_route()),
        }
    }
}

fn user(request: &HttpRequest) -> Result<&str, Problem> {
    let id = request.path_parameter("id")?;
    StreamId::new(links::user::CATEGORY, id).map_err(|error| Problem::field("id", error.to_string()))?;
    Ok(id)
}

fn rows<'a>(partition: (&'a str, &'a str), limit: i32, cursor: Option<&'a str>) -> PageQuery<'a> {
    PageQuery {
        index: None,
        partition,
        // All of these tables have the same name for it.
        keys: &[feeds::TABLE.sort],
        starts_with: None,
        newest_first: false,
        limit,
        cursor,
    }
}

/// What was said about a link, with the title and the image where there are any.
fn said(mut shown: Value, title: &Option<String>, image: &Option<String>) -> Value {
    for (name, text) in [("title", title), ("image", image)] {
        if let Some(text) = text {
            shown[name] = json!(text);
        }
    }
    shown
}
