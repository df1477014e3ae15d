//! The routes of users.

use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::Route,
    http::{HttpRequest, Problem},
};
use links::{
    user::{Action, Command, State, User},
    values::{Email, Name, UserId},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    name: Name,
    email: Email,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateEmail {
    email: Email,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<User>> {
    let update_email = |request: &HttpRequest| {
        let UpdateEmail { email } = request.json()?;
        of(request, Action::UpdateEmail(email))
    };
    vec![
        // The location is that of the user's ratings, because no route returns the user.
        Route::new("POST /users", register, changed).creating("/users/{id}/ratings"),
        Route::new("POST /users/{id}/email", update_email, changed),
        Route::new(
            "PUT /users/{id}/follows/{otherId}",
            |request| to(request, Action::Follow),
            changed,
        ),
        Route::new(
            "DELETE /users/{id}/follows/{otherId}",
            |request| to(request, Action::Unfollow),
            changed,
        ),
    ]
}

/// Reads a registration. A caller registers as the subject of the token, and cannot register
/// another user.
fn register(request: &HttpRequest) -> Result<(String, Command), Problem> {
    let Register { name, email } = request.json()?;
    let user_id = UserId::of_subject(request.actor()?).ok_or_else(|| {
        Problem::field("Authorization", "the subject of the token is too long to be a user's id")
    })?;
    Ok((user_id.to_string(), Command { user_id, action: Action::Register(name, email) }))
}

/// Reads a command of the user in the path.
fn of(request: &HttpRequest, action: Action) -> Result<(String, Command), Problem> {
    let user_id = request.path_value::<UserId>("id")?;
    Ok((user_id.to_string(), Command { user_id, action }))
}

/// Reads a command of the user in the path that names another user.
fn to(request: &HttpRequest, action: fn(UserId) -> Action) -> Result<(String, Command), Problem> {
    request.nothing()?;
    of(request, action(request.path_value("otherId")?))
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "userId": stream.id(), "version": version })
}
