//! The route of ratings.

use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::Route,
    http::{HttpRequest, Problem},
};
use links::{
    link::{self, Command, Link, State},
    values::{Rating, Tags, Title, UserId, WebUrl},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The body that rates a link. A missing field leaves the value unchanged.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rate {
    link_url: WebUrl,
    rating: Rating,
    #[serde(default)]
    title: Option<Title>,
    #[serde(default)]
    image: Option<WebUrl>,
    #[serde(default)]
    tags: Option<Tags>,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<Link>> {
    vec![Route::new("POST /users/{id}/ratings", rate, rated)]
}

fn rate(request: &HttpRequest) -> Result<(String, Command), Problem> {
    let user_id = request.path_value::<UserId>("id")?;
    let Rate { link_url, rating, title, image, tags } = request.json()?;
    let id = link::id(user_id.get(), link_url.get());
    Ok((id, Command { user_id, link_url, rating, title, image, tags }))
}

fn rated(stream: &StreamId, state: &State, version: u64) -> Value {
    json!({ "linkId": stream.id(), "rating": state.rating, "version": version })
}
