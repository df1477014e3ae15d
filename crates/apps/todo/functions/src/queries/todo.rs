//! What can be asked about todos: each caller's own.

use http::StatusCode;
use ledgerline_dynamodb::{PageQuery, ReadTable};
use ledgerline_lambda::{
    Error, config, dynamodb,
    http::{HttpRequest, Problem, Response, Routes},
    queries::{Patience, conditional, limit, listed, problem},
};
use serde_json::{Value, json};
use todo::{
    todo::Status,
    views::todos::{BY_CREATOR, Row, TABLE, listing},
};

/// The read table of todos.
#[derive(Debug)]
pub struct TodoQueries {
    table: ReadTable,
    patience: Patience,
}

impl TodoQueries {
    /// From `TODOS_TABLE` and `READ_YOUR_WRITE_TIMEOUT_MS`.
    ///
    /// # Errors
    /// When a variable is missing or wrong.
    pub async fn from_env() -> Result<Self, Error> {
        let (table, patience) = (config::text("TODOS_TABLE")?, Patience::from_env()?);
        let table = ReadTable::new(dynamodb().await, table);
        table.connect(TABLE.key).await;
        Ok(Self { table, patience })
    }

    async fn todo(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let (id, actor) = (request.path_uuid("id")?.to_string(), request.actor()?);
        let yours = async || {
            let (version, row) = self.table.shown::<Row>(&TABLE, &id).await?;
            Ok(match row {
                Some(row) if row.created_by.as_deref() == Some(actor) => (version, Some(row)),
                // A stranger learns nothing, not even by how long they wait.
                Some(_) => (0, None),
                // Deleted: no version will ever be shown again, so nobody waits for one. That the id is taken, everybody
                // can see who tries to create it.
                None if version > 0 => (u64::MAX, None),
                None => (0, None),
            })
        };
        let (version, row) = self.patience.read(request, yours).await?;
        let row =
            row.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "unknown-todo", "there is no such todo"))?;
        conditional(request, version, shown(&row))
    }

    async fn todos(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let status = match request.query("status")?.as_deref() {
            None => None,
            Some("open") => Some(listing(Status::Open, "")),
            Some("done") => Some(listing(Status::Done, "")),
            Some(_) => return Err(Problem::field("status", "status is open or done")),
        };
        let cursor = request.query("cursor")?;
        let query = PageQuery {
            index: Some(BY_CREATOR),
            partition: ("createdBy", request.actor()?),
            keys: &["listing", TABLE.key],
            starts_with: status.as_deref(),
            newest_first: false,
            limit: limit(request)?,
            cursor: cursor.as_deref(),
        };
        let page = self.table.page::<Row>(&query).await.map_err(problem)?;
        let rows: Vec<_> = page.rows.iter().map(shown).collect();
        Ok(Response::json(StatusCode::OK, listed("todos", json!(rows), page.cursor)))
    }
}

impl Routes for TodoQueries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        match request.route() {
            "GET /todo/{id}" => self.todo(request).await,
            "GET /todo" => self.todos(request).await,
            _ => Err(Problem::no_route()),
        }
    }
}

/// What a client sees of a todo: not how it is listed.
fn shown(row: &Row) -> Value {
    let Row { id, created_by: _, listing: _, title, message, status, version } = row;
    json!({ "id": id, "title": title, "message": message, "status": status, "version": version })
}
