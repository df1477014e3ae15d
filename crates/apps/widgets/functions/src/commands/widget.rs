//! The routes of widgets.

use ledgerline::{Id, StreamId};
use ledgerline_lambda::commands::{Route, create, update};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use widgets::widget::{Command, Description, Name, State, Stock, Widget};

/// The body that creates a widget. Without an id, the widget gets a new one.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "CreateWidget")]
struct Create {
    #[serde(default)]
    widget_id: Option<Id>,
    name: Name,
    #[serde(default)]
    description: Option<Description>,
    #[serde(default)]
    stock: Option<Stock>,
}

#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeName {
    name: Name,
}

#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeDescription {
    description: Description,
}

#[derive(JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateStock {
    stock: Stock,
}

/// The routes.
#[must_use]
pub fn routes() -> Vec<Route<Widget>> {
    let new = |Create { widget_id, name, description, stock }| {
        let description = description.unwrap_or_default();
        let stock = stock.unwrap_or_default();
        (widget_id, Command::Create(name, description, stock))
    };
    let name = |body: ChangeName| Command::ChangeName(body.name);
    let description = |body: ChangeDescription| Command::ChangeDescription(body.description);
    let stock = |body: UpdateStock| Command::UpdateStock(body.stock);
    vec![
        create("POST /widgets", new, answer).summary("Create a widget"),
        update("POST /widgets/{id}/name", name, answer).summary("Rename a widget"),
        update("POST /widgets/{id}/description", description, answer).summary("Describe a widget"),
        update("POST /widgets/{id}/stock", stock, answer).summary("Set the stock of a widget"),
    ]
}

/// The answer to a change of a widget.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct WidgetChanged {
    widget_id: String,
    version: u64,
}

fn answer(stream: &StreamId, _: &State, version: u64) -> WidgetChanged {
    WidgetChanged { widget_id: stream.id().to_owned(), version }
}
