//! The queries about ratings: those of a link, those of a user, and the feed and the followings of
//! the caller.

use ledgerline::view_store::ViewError;
use std::collections::BTreeMap;

use ledgerline::manifest::{Action, Table};
use ledgerline_dynamodb::{LogRows, Page, PageQuery, RowKey};
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{self, Answer, PageEnd, Views, limit, problem, split_page},
};
use links::{
    user::NOT_YOU,
    values::{UserId, WebUrl},
    views::{
        feeds::{self, Entry, Follow, Rating},
        link_ratings::{self, RATINGS, SUMMARY, Summary},
        user_ratings,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

/// The number of rows of followed users that are read at once: usually one page holds all of a
/// user.
const FOLLOWING: i32 = 1_000;

/// The most pages of a feed that are read for one page of the response.
const MAX_PAGES: usize = 10;

/// The routes. Every signed-in caller may see all ratings.
#[must_use]
pub fn routes() -> Vec<queries::Query> {
    use Action::{BatchGetItem, GetItem, Query};
    vec![
        queries::Query::new(
            "GET /links/ratings",
            [Table::grant(link_ratings::TABLE, [GetItem, Query])],
            link_ratings,
        )
        .with_pages()
        .required_parameter::<WebUrl>("url"),
        queries::Query::new(
            "GET /users/{id}/ratings",
            [Table::grant(user_ratings::TABLE, [Query])],
            user_ratings,
        )
        .path_parameter::<UserId>("id")
        .with_pages(),
        queries::Query::new(
            "GET /users/{id}/feed",
            [Table::grant(feeds::TABLE, [BatchGetItem, Query])],
            feed,
        )
        .path_parameter::<UserId>("id")
        .with_pages()
        .refusals(&[NOT_YOU]),
        queries::Query::new(
            "GET /users/{id}/follows",
            [Table::grant(feeds::TABLE, [Query])],
            follows,
        )
        .path_parameter::<UserId>("id")
        .with_pages()
        .refusals(&[NOT_YOU]),
    ]
}

async fn link_ratings(
    views: &Views,
    request: &HttpRequest,
) -> Result<Answer<LinkRatings>, Problem> {
    request.actor()?;
    let table = views.log_rows(link_ratings::TABLE)?;
    let url =
        request.query("url")?.ok_or_else(|| Problem::field("url", "say which link: ?url="))?;
    let url = WebUrl::new(url).map_err(|invalid| Problem::field("url", invalid.to_string()))?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let query = PageQuery::new(url.get(), limit, cursor.as_deref());
    let query = PageQuery { starts_with: Some(RATINGS), ..query };
    let summary = table.get::<Summary>(RowKey { partition: url.get(), sort: SUMMARY });
    let (summary, page) = tokio::join!(summary, table.page::<link_ratings::Row>(&query));
    let summary = summary.map_err(problem)?.unwrap_or_default();
    let page = page.map_err(problem)?;
    let (ratings, end) = split_page(page, |row| {
        let link_ratings::Row { user_id, rating, title, image, tags } = row;
        RatingOfLink { user_id, said: Said { rating, title, image, tags } }
    });
    // The average is rounded to hundredths. A link without ratings has no average.
    let hundredths = summary.sum.saturating_mul(100).saturating_add(summary.count / 2);
    #[expect(clippy::cast_precision_loss, reason = "an average is from 1 to 5")]
    let average = hundredths.checked_div(summary.count).map(|average| average as f64 / 100.0);
    let link_url = url.into_inner();
    Ok(Answer::new(LinkRatings { link_url, count: summary.count, average, ratings, end }))
}

async fn user_ratings(
    views: &Views,
    request: &HttpRequest,
) -> Result<Answer<UserRatings>, Problem> {
    request.actor()?;
    let table = views.log_rows(user_ratings::TABLE)?;
    let owner = user_ratings::partition(request.path_value::<UserId>("id")?.get());
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let query = PageQuery::new(&owner, limit, cursor.as_deref());
    let page = table.page::<user_ratings::Row>(&query).await.map_err(problem)?;
    let (ratings, end) = split_page(page, |row| {
        let user_ratings::Row { entry, link_url, rating, title, image, tags } = row;
        RatingOfUser { link_id: entry, link_url, said: Said { rating, title, image, tags } }
    });
    Ok(Answer::new(UserRatings { ratings, end }))
}

/// Returns the feed of the caller, and of no other user.
async fn feed(views: &Views, request: &HttpRequest) -> Result<Answer<Feed>, Problem> {
    let id = caller(request, "this is another user's feed")?;
    let table = views.log_rows(feeds::TABLE)?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let entries = entries(&table, id.get(), limit, cursor).await.map_err(problem)?;
    let keys = entries.rows.iter().flatten();
    let keys: Vec<_> =
        keys.map(|entry| (feeds::ratings(&entry.author), entry.link.clone())).collect();
    // A link's id is derived from the author and the URL, so the id alone finds the rating.
    let mut found = BTreeMap::new();
    for rating in table.get_all::<Rating>(&keys).await.map_err(problem)? {
        let link = rating.as_ref().map_or_else(|row| &row.key, |rating| &rating.entry);
        found.insert(link.clone(), rating);
    }
    let ratings = entries.rows.into_iter().filter_map(|entry| match entry {
        Ok(entry) => found.remove(&entry.link),
        Err(row) => Some(Err(row)),
    });
    let page = Page { rows: ratings.collect(), cursor: entries.cursor };
    let (feed, end) = split_page(page, |rating| {
        let Rating { entry, user_id, link_url, rating, title, image, tags } = rating;
        RatingInFeed {
            user_id,
            link_id: entry,
            link_url,
            said: Said { rating, title, image, tags },
        }
    });
    Ok(Answer::new(Feed { feed, end }))
}

/// Returns the users whom the caller follows.
async fn follows(views: &Views, request: &HttpRequest) -> Result<Answer<Follows>, Problem> {
    let id = caller(request, "these are another user's followings")?;
    let table = views.log_rows(feeds::TABLE)?;
    let partition = feeds::followings_partition(id.get());
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let query = PageQuery::new(&partition, limit, cursor.as_deref());
    let page = table.page::<Follow>(&query).await.map_err(problem)?;
    let (follows, end) = split_page(page, |follow| Followed { user_id: follow.entry });
    Ok(Answer::new(Follows { follows, end }))
}

/// Returns the user in the path, who must be the caller.
fn caller(request: &HttpRequest, refusal: &str) -> Result<UserId, Problem> {
    let actor = request.actor()?;
    let id = request.path_value::<UserId>("id")?;
    if UserId::from_subject(actor).as_ref() != Some(&id) {
        return Err(Problem::from(&NOT_YOU.with_detail(refusal)));
    }
    Ok(id)
}

/// Reads a page of a feed, newest first, without the entries of ended followings. An entry is
/// hidden if the user no longer follows its author.
async fn entries(
    table: &LogRows,
    id: &str,
    limit: i32,
    mut cursor: Option<String>,
) -> Result<Page<Entry>, ViewError> {
    let followings_partition = feeds::followings_partition(id);
    let feed_partition = feeds::feed_partition(id);
    let mut active_followings = BTreeMap::new();
    let mut next = None;
    loop {
        let query = PageQuery::new(&followings_partition, FOLLOWING, next.as_deref());
        let (follows, after) = table.page::<Follow>(&query).await?.whole()?;
        active_followings
            .extend(follows.into_iter().map(|follow| (follow.entry, follow.following)));
        next = after;
        if next.is_none() {
            break;
        }
    }
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut entries = Vec::new();
    // Hidden entries are rare, and the number of pages read is bounded (rule 11). So a page may be
    // shorter than requested, as any page may.
    for _ in 0..MAX_PAGES {
        if entries.len() >= wanted {
            break;
        }
        let left = i32::try_from(wanted - entries.len()).unwrap_or(limit);
        let query = PageQuery {
            newest_first: true,
            ..PageQuery::new(&feed_partition, left, cursor.as_deref())
        };
        let page = table.page::<Entry>(&query).await?;
        let is_hidden = |row: &Result<Entry, _>| {
            row.as_ref().is_ok_and(|entry| !feeds::shown(entry, &active_followings))
        };
        entries.extend(page.rows.into_iter().filter(|row| !is_hidden(row)));
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(Page { rows: entries, cursor })
}

/// A user's rating, and what the user says about the link.
#[derive(JsonSchema, Serialize)]
struct Said {
    /// The rating, from 1 to 5.
    rating: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The URL of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    tags: Vec<String>,
}

/// The ratings of a link, in the order of the users' ids.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct LinkRatings {
    link_url: String,
    /// The number of users who rate the link.
    count: u64,
    /// The average of all ratings, rounded to hundredths; null without ratings.
    average: Option<f64>,
    ratings: Vec<RatingOfLink>,
    #[serde(flatten)]
    end: PageEnd,
}

/// A rating of a link.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct RatingOfLink {
    user_id: String,
    #[serde(flatten)]
    said: Said,
}

/// The ratings of a user, by link.
#[derive(JsonSchema, Serialize)]
struct UserRatings {
    ratings: Vec<RatingOfUser>,
    #[serde(flatten)]
    end: PageEnd,
}

/// A user's rating.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct RatingOfUser {
    link_id: String,
    link_url: String,
    #[serde(flatten)]
    said: Said,
}

/// The ratings of the users whom the caller follows.
#[derive(JsonSchema, Serialize)]
struct Feed {
    feed: Vec<RatingInFeed>,
    #[serde(flatten)]
    end: PageEnd,
}

/// The users whom the caller follows, by their ids.
#[derive(JsonSchema, Serialize)]
struct Follows {
    follows: Vec<Followed>,
    #[serde(flatten)]
    end: PageEnd,
}

/// A user whom the caller follows.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct Followed {
    user_id: String,
}

/// A rating in a feed.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct RatingInFeed {
    user_id: String,
    link_id: String,
    link_url: String,
    #[serde(flatten)]
    said: Said,
}
