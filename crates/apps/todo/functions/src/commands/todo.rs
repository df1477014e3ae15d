//! The routes of todos, on the paths of the article on the event log and bus: changes want `If-Match`.

use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::{Routed, stream},
    fields::{Id, LongText, Text, nothing},
    http::{HttpRequest, Problem},
};
use serde::Deserialize;
use serde_json::{Value, json};
use todo::todo::{CATEGORY, Command, State, Todo};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    id: Id,
    title: Text<200>,
    #[serde(default)]
    message: Option<LongText<4_000>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    #[serde(default)]
    title: Option<Text<200>>,
    #[serde(default)]
    message: Option<LongText<4_000>>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize, PartialEq)]
#[serde(try_from = "Value")]
enum Status {
    Open,
    Done,
}

impl TryFrom<Value> for Status {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value.as_str() {
            Some("open") => Ok(Self::Open),
            Some("done") => Ok(Self::Done),
            Some(_) | None => Err("a status is open or done"),
        }
    }
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<Todo>, Problem> {
    match request.route() {
        "POST /todo" => {
            let Create { id: Id(id), title, message } = request.json()?;
            Ok(Routed {
                stream: stream(CATEGORY, &id.to_string())?,
                command: Command::Create { title: title.0, message: message.unwrap_or_default().0 },
                location: Some(format!("/todo/{id}")),
                if_match_required: false,
                body: changed,
            })
        }
        "POST /todo/{id}" => {
            let Update { title, message, status } = request.json()?;
            if title.is_none() && message.is_none() && status.is_none() {
                return Err(Problem::field("title", "say what changes: title, message or status"));
            }
            let (title, message) = (title.map(|title| title.0), message.map(|message| message.0));
            let done = status.map(|status| status == Status::Done);
            change(request, Command::Update { title, message, done })
        }
        "DELETE /todo/{id}" => {
            nothing(request)?;
            change(request, Command::Delete)
        }
        _ => Err(Problem::no_route()),
    }
}

fn change(request: &HttpRequest, command: Command) -> Result<Routed<Todo>, Problem> {
    let stream = stream(CATEGORY, &request.path_uuid("id")?.to_string())?;
    Ok(Routed { stream, command, location: None, if_match_required: true, body: changed })
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "id": stream.id(), "version": version })
}
