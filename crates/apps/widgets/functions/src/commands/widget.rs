//! The routes of widgets.

use ledgerline::StreamId;
use ledgerline_lambda::{
    commands::{Routed, stream},
    fields::{Id, LongText, Number, Text},
    http::{HttpRequest, Problem},
};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;
use widgets::widget::{CATEGORY, Command, MAX_STOCK, State, Widget};

type Stock = Number<0, { MAX_STOCK }>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
    #[serde(default)]
    widget_id: Option<Id>,
    name: Text<200>,
    #[serde(default)]
    description: Option<LongText<2_000>>,
    #[serde(default)]
    stock: Option<Stock>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeName {
    name: Text<200>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeDescription {
    description: LongText<2_000>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateStock {
    stock: Stock,
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<Widget>, Problem> {
    match request.route() {
        "POST /widgets" => {
            let Create { widget_id, name, description, stock } = request.json()?;
            let id = widget_id.map_or_else(Uuid::now_v7, |Id(id)| id);
            Ok(Routed {
                stream: stream(CATEGORY, &id.to_string())?,
                command: Command::Create {
                    name: name.0,
                    description: description.unwrap_or_default().0,
                    stock: stock.unwrap_or_default().0,
                },
                location: Some(format!("/widgets/{id}")),
                if_match_required: false,
                body: changed,
            })
        }
        "POST /widgets/{id}/name" => {
            let ChangeName { name } = request.json()?;
            change(request, Command::ChangeName { name: name.0 })
        }
        "POST /widgets/{id}/description" => {
            let ChangeDescription { description } = request.json()?;
            change(request, Command::ChangeDescription { description: description.0 })
        }
        "POST /widgets/{id}/stock" => {
            let UpdateStock { stock } = request.json()?;
            change(request, Command::UpdateStock { stock: stock.0 })
        }
        _ => Err(Problem::no_route()),
    }
}

fn change(request: &HttpRequest, command: Command) -> Result<Routed<Widget>, Problem> {
    let stream = stream(CATEGORY, &request.path_uuid("id")?.to_string())?;
    Ok(Routed { stream, command, location: None, if_match_required: false, body: changed })
}

fn changed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "widgetId": stream.id(), "version": version })
}
