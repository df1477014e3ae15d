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
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body that rates a link. A missing field leaves the value unchanged.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "RateLink")]
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
    vec![
        Route::new("POST /users/{id}/ratings", rate, answer)
            .summary("Rate a link")
            .path_parameter::<UserId>("id"),
    ]
}

fn rate(request: &HttpRequest, body: Rate) -> Result<(String, Command), Problem> {
    let user_id = request.path_value::<UserId>("id")?;
    let Rate { link_url, rating, title, image, tags } = body;
    let id = link::id(user_id.get(), link_url.get());
    Ok((id, Command { user_id, link_url, rating, title, image, tags }))
}

/// The answer to a rating.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct LinkRated {
    link_id: String,
    /// The rating, from 1 to 5.
    rating: Option<u8>,
    version: u64,
}

fn answer(stream: &StreamId, state: &State, version: u64) -> LinkRated {
    LinkRated { link_id: stream.id().to_owned(), rating: state.rating, version }
}
