//! The route of ratings.

use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::{Routed, stream},
    fields::{Number, Text},
    http::{HttpRequest, Problem},
};
use links::{
    link,
    link::{CATEGORY, Command, Link, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fields::WebUrl;

/// How many tags a link can have.
const MAX_TAGS: usize = 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rate {
    link_url: WebUrl,
    rating: Number<1, 5>,
    #[serde(default)]
    title: Option<Text<200>>,
    #[serde(default)]
    image: Option<WebUrl>,
    #[serde(default)]
    tags: Option<Vec<Text<50>>>,
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<Link>, Problem> {
    match request.route() {
        "POST /users/{id}/ratings" => {
            let user_id = request.path_parameter("id")?.to_owned();
            let Rate { link_url, rating, title, image, tags } = request.json()?;
            let tags = tags.map(|tags| tags.into_iter().map(|tag| tag.0).collect::<Vec<_>>());
            if tags.as_ref().is_some_and(|tags| tags.len() > MAX_TAGS) {
                return Err(Problem::field("tags", format!("a link has up to {MAX_TAGS} tags")));
            }
            Ok(Routed {
                stream: stream(CATEGORY, &link::id(&user_id, &link_url.0))?,
                command: Command {
                    user_id,
                    link_url: link_url.0,
                    rating: u8::try_from(rating.0).unwrap_or(u8::MAX),
                    title: title.map(|title| title.0),
                    image: image.map(|image| image.0),
                    tags,
                },
                location: None,
                if_match_required: false,
                body: rated,
            })
        }
        _ => Err(Problem::no_route()),
    }
}

fn rated(stream: &StreamId, state: &State, version: u64) -> Value {
    json!({ "linkId": stream.id(), "rating": state.rating, "version": version })
}
