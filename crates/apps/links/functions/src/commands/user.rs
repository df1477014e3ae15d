//! The routes of users.

use ledgerline::{Aggregate, StreamId};
use ledgerline_lambda::{
    Error,
    commands::Route,
    http::{HttpRequest, Problem},
    sign_up::SignUp,
};
use links::{
    user::{Action, Command, State, User},
    values::{Email, Name, UserId},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RegisterUser")]
struct Register {
    name: Name,
    email: Email,
}

#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateEmail {
    email: Email,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<User>> {
    let update_email = |request: &HttpRequest, UpdateEmail { email }| {
        user_command(request, Action::UpdateEmail(email))
    };
    let follow = |request: &HttpRequest| follow_command(request, Action::Follow);
    let unfollow = |request: &HttpRequest| follow_command(request, Action::Unfollow);
    vec![
        // The location is that of the user's ratings, because no route returns the user.
        Route::new("POST /users", register, answer)
            .starts_stream("/users/{id}/ratings")
            .summary("Register the caller"),
        Route::new("POST /users/{id}/email", update_email, answer)
            .summary("Change an email address")
            .path_parameter::<UserId>("id"),
        Route::without_body("PUT /users/{id}/follows/{otherId}", follow, answer)
            .summary("Follow another user")
            .path_parameter::<UserId>("id")
            .path_parameter::<UserId>("otherId"),
        Route::without_body("DELETE /users/{id}/follows/{otherId}", unfollow, answer)
            .summary("Unfollow a user")
            .path_parameter::<UserId>("id")
            .path_parameter::<UserId>("otherId"),
    ]
}

/// Reads a registration. A caller registers as the subject of the token, and cannot register
/// another user.
fn register(
    request: &HttpRequest,
    Register { name, email }: Register,
) -> Result<(String, Command), Problem> {
    let user_id = UserId::from_subject(request.actor()?).ok_or_else(|| {
        Problem::field("Authorization", "the subject of the token is too long to be a user's id")
    })?;
    Ok((user_id.to_string(), Command { user_id, action: Action::Register(name, email) }))
}

/// Makes the registration of a person who has signed up in the user pool. Without a valid name, the
/// user is called by the first part of the address.
///
/// # Errors
/// When the person has no address, or a value is not valid.
pub fn sign_up(person: &SignUp) -> Result<(StreamId, Command), Error> {
    let user_id = UserId::from_subject(&person.subject).ok_or("the subject is too long")?;
    let email = person.email.as_deref().ok_or("the person has no address for mails")?;
    let name = person.name.as_deref().and_then(|name| Name::new(name.trim()).ok());
    let name = match name {
        Some(name) => name,
        None => Name::new(email.split('@').next().unwrap_or_default())?,
    };
    let stream = User::stream(user_id.get())?;
    Ok((stream, Command { user_id, action: Action::Register(name, Email::new(email)?) }))
}

/// Reads a command of the user in the path.
fn user_command(request: &HttpRequest, action: Action) -> Result<(String, Command), Problem> {
    let user_id = request.path_value::<UserId>("id")?;
    Ok((user_id.to_string(), Command { user_id, action }))
}

/// Reads a command of the user in the path that names another user.
fn follow_command(
    request: &HttpRequest,
    action: fn(UserId) -> Action,
) -> Result<(String, Command), Problem> {
    user_command(request, action(request.path_value("otherId")?))
}

/// The answer to a change of a user.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct UserChanged {
    user_id: String,
    version: u64,
}

fn answer(stream: &StreamId, _: &State, version: u64) -> UserChanged {
    UserChanged { user_id: stream.id().to_owned(), version }
}
