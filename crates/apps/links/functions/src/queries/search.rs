//! The search in the links of all users, in OpenSearch.

use ledgerline::Text;
use ledgerline_lambda::{
    http::{HttpRequest, Problem},
    queries::{Answer, PageEnd, Query, Views, limit, problem, split_page},
};
use ledgerline_opensearch::SearchReader;
use links::views::link_search;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

/// The words of a search.
type Words = Text<200>;

/// The routes. Every signed-in caller may see all links.
#[must_use]
pub fn routes() -> Vec<Query> {
    let rows = SearchReader::new(link_search::TABLE);
    let reader = rows.clone();
    let answer = async move |_: &Views, request: &HttpRequest| search(&reader, request).await;
    vec![
        Query::new("GET /links", [], answer)
            .read_store(rows)
            .required_parameter::<Words>("q")
            .with_pages()
            .summary("Search links by their titles, tags and URLs"),
    ]
}

/// Returns the links that have all these words in title, tags and URL, the best matches first.
async fn search(rows: &SearchReader, request: &HttpRequest) -> Result<Answer<Links>, Problem> {
    request.actor()?;
    let words = request.query("q")?.ok_or_else(|| Problem::field("q", "say what to find: ?q="))?;
    let words = Words::new(words).map_err(|error| Problem::field("q", error.to_string()))?;
    let limit = limit(request)?;
    let cursor = request.query("cursor")?;
    let query = json!({ "multi_match": {
        "query": words.get(), "type": "cross_fields", "operator": "and",
        "fields": ["title", "tags", "linkUrl"],
    } });
    let page = rows.page::<link_search::Row>(&query, limit, cursor.as_deref()).await;
    let (links, end) = split_page(page.map_err(problem)?, |row| {
        let link_search::Row { link_id, user_id, link_url, rating, title, image, tags, .. } = row;
        FoundLink { link_id, user_id, link_url, rating, title, image, tags }
    });
    Ok(Answer::new(Links { links, end }))
}

/// The found links, the best matches first.
#[derive(JsonSchema, Serialize)]
struct Links {
    links: Vec<FoundLink>,
    #[serde(flatten)]
    end: PageEnd,
}

/// A link of a user.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct FoundLink {
    link_id: String,
    user_id: String,
    link_url: String,
    /// The rating, from 1 to 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    rating: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The URL of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    tags: Vec<String>,
}
