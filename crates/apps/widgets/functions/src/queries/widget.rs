//! What can be asked about widgets: each caller's own.

use http::StatusCode;
use ledgerline_dynamodb::{PageQuery, ReadTable};
use ledgerline_lambda::{
    Error, config, dynamodb,
    http::{HttpRequest, Problem, Response, Routes},
    queries::{Patience, conditional, limit, listed, problem},
};
use serde_json::{Value, json};
use widgets::views::widgets::{BY_CREATOR, Row, TABLE};

/// The read table of widgets.
#[derive(Debug)]
pub struct WidgetQueries {
    table: ReadTable,
    patience: Patience,
}

impl WidgetQueries {
    /// From `WIDGETS_TABLE` and `READ_YOUR_WRITE_TIMEOUT_MS`.
    ///
    /// # Errors
    /// When a variable is missing or wrong.
    pub async fn from_env() -> Result<Self, Error> {
        let (table, patience) = (config::text("WIDGETS_TABLE")?, Patience::from_env()?);
        let table = ReadTable::new(dynamodb().await, table);
        table.connect(TABLE.key).await;
        Ok(Self { table, patience })
    }

    async fn widget(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let (id, actor) = (request.path_uuid("id")?.to_string(), request.actor()?);
        let yours = async || {
            let (version, row) = self.table.shown::<Row>(&TABLE, &id).await?;
            let yours = row.filter(|row| row.created_by.as_deref() == Some(actor));
            Ok((yours.as_ref().map_or(0, |_| version), yours))
        };
        let (version, row) = self.patience.read(request, yours).await?;
        let row = row.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "unknown-widget", "there is no such widget")
        })?;
        conditional(request, version, shown(&row))
    }

    async fn widgets(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let cursor = request.query("cursor")?;
        let query = PageQuery {
            index: Some(BY_CREATOR),
            partition: ("createdBy", request.actor()?),
            keys: &["name", TABLE.key],
            starts_with: None,
            newest_first: false,
            limit: limit(request)?,
            cursor: cursor.as_deref(),
        };
        let page = self.table.page::<Row>(&query).await.map_err(problem)?;
        let rows: Vec<_> = page.rows.iter().map(shown).collect();
        Ok(Response::json(StatusCode::OK, listed("widgets", json!(rows), page.cursor)))
    }
}

impl Routes for WidgetQueries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        match request.route() {
            "GET /widgets/{id}" => self.widget(request).await,
            "GET /widgets" => self.widgets(request).await,
            _ => Err(Problem::no_route()),
        }
    }
}

/// What a client sees of a widget.
fn shown(row: &Row) -> Value {
    let Row { widget_id, created_by: _, name, description, stock, version } = row;
    json!({
        "widgetId": widget_id,
        "name": name,
        "description": description,
        "stock": stock,
        "version": version,
    })
}
