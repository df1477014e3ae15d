//! The routes of todos, on the paths of the article on the event log and bus. Changes require
//! `If-Match`.

use ledgerline::{Id, StreamId};
use ledgerline_lambda::{
    commands::{Route, action, create},
    http::{HttpRequest, Problem},
};
use serde::Deserialize;
use serde_json::{Value, json};
use todo::todo::{Command, Message, State, Title, Todo, Update};

/// The body that creates a todo.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
        create("POST /todo", new, changed),
        Route::new("POST /todo/{id}", update, changed).if_match_required(),
        action("DELETE /todo/{id}", || Command::Delete, changed).if_match_required(),
    ]
}

/// Reads the command of an update. An update that names no field is a mistake of the client.
fn update(request: &HttpRequest) -> Result<(String, Command), Problem> {
    let update: Update = request.json()?;
    if update == Update::default() {
        return Err(Problem::field("title", "say what changes: title, message or status"));
    }
    Ok((request.path_value::<Id>("id")?.into_inner(), Command::Update(update)))
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "id": stream.id(), "version": version })
}
