//! The routes of todos, on the paths of the article on the event log and bus. Changes require
//! `If-Match`.

use ledgerline::{Id, StreamId};
use ledgerline_lambda::{
    commands::{Route, action, create},
    http::{HttpRequest, Problem},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use todo::todo::{Command, Message, State, Title, Todo, Update};

/// The body that creates a todo.
#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateTodo")]
struct Create {
    id: Id,
    title: Title,
    #[serde(default)]
    message: Option<Message>,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<Todo>> {
    let new = |Create { id, title, message }| {
        (Some(id), Command::Create(title, message.unwrap_or_default()))
    };
    vec![
        create("POST /todo", new, answer).summary("Create a todo"),
        Route::new("POST /todo/{id}", update, answer).require_if_match().summary("Update a todo"),
        action("DELETE /todo/{id}", || Command::Delete, answer)
            .require_if_match()
            .summary("Delete a todo"),
    ]
}

/// Reads the command of an update. An update that names no field is a mistake of the client.
fn update(request: &HttpRequest, update: Update) -> Result<(String, Command), Problem> {
    if update == Update::default() {
        return Err(Problem::field("title", "say what changes: title, message or status"));
    }
    Ok((request.path_value::<Id>("id")?.into_inner(), Command::Update(update)))
}

/// The answer to a change of a todo.
#[derive(JsonSchema, Serialize)]
struct TodoChanged {
    id: String,
    version: u64,
}

fn answer(stream: &StreamId, _: &State, version: u64) -> TodoChanged {
    TodoChanged { id: stream.id().to_owned(), version }
}
