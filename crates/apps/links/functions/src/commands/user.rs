//! The routes of users.

use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::{Routed, stream},
    fields::{Text, nothing},
    http::{HttpRequest, Problem},
};
use links::user::{Action, CATEGORY, Command, State, User, id_of};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fields::Email;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    name: Text<200>,
    email: Email,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateEmail {
    email: Email,
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<User>, Problem> {
    let id = || request.path_parameter("id").map(ToOwned::to_owned);
    match request.route() {
        "POST /users" => {
            let Register { name, email } = request.json()?;
            // Callers register themselves: there is nobody else whom they could be.
            let id = id_of(request.actor()?).ok_or_else(|| {
                Problem::field("Authorization", "the subject of the token is too long to be a user's id")
            })?;
            // There is nothing of a user to be read but this.
            let location = Some(format!("/users/{id}/ratings"));
            routed(id, Action::Register { name: name.0, email: email.0 }, location)
        }
        "POST /users/{id}/email" => {
            let UpdateEmail { email } = request.json()?;
            routed(id()?, Action::UpdateEmail { email: email.0 }, None)
        }
        "PUT /users/{id}/follows/{otherId}" => {
            nothing(request)?;
            routed(id()?, Action::Follow { other: other(request)? }, None)
        }
        "DELETE /users/{id}/follows/{otherId}" => {
            nothing(request)?;
            routed(id()?, Action::Unfollow { other: other(request)? }, None)
        }
        _ => Err(Problem::no_route()),
    }
}

fn other(request: &HttpRequest) -> Result<String, Problem> {
    let other = request.path_parameter("otherId")?;
    StreamId::new(CATEGORY, other).map_err(|error| Problem::field("otherId", error.to_string()))?;
    Ok(other.to_owned())
}

fn routed(user_id: String, action: Action, location: Option<String>) -> Result<Routed<User>, Problem> {
    Ok(Routed {
        stream: stream(CATEGORY, &user_id)?,
        command: Command { user_id, action },
        location,
        if_match_required: false,
        body: changed,
    })
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "userId": stream.id(), "version": version })
}
