//! Routes that answer with one row, a state, a page of an index, or a page of a log view.

use http::StatusCode;
use ledgerline::{
    Aggregate, Id, Index, Loaded, LogTable, Projection, Refusal, StateTable, StreamId,
    manifest::{Action, Table},
    view_store::ViewError,
};
use ledgerline_dynamodb::{Page, PageQuery};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Answer, Query, Views, Visibility, limit,
    page_body::{page_body, page_schema},
    problem,
};
use crate::http::{HttpRequest, MAX_ANSWER_BYTES, Problem, Response, as_json, encoded_bytes};

/// The callers that may see a row.
#[derive(Debug)]
pub enum VisibleTo<Row> {
    /// The caller whose subject this function finds in the row. Other callers get the response for
    /// a row that does not exist.
    Owner(fn(&Row) -> Option<&str>),
    /// Every signed-in caller.
    All,
}

impl<Row> VisibleTo<Row> {
    /// Whether this caller may see the row.
    pub fn includes(self, row: &Row, actor: &str) -> bool {
        match self {
            Self::Owner(owner) => owner(row) == Some(actor),
            Self::All => true,
        }
    }
}

impl<Row> Clone for VisibleTo<Row> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Row> Copy for VisibleTo<Row> {}

/// Creates a route that answers with one row of a state view of this aggregate: `GET /tanks/{id}`.
/// `missing` is the response if there is no row, or none that the caller may see. `shown` builds
/// the response from the row.
pub fn row<A, Row, Shown>(
    key: &'static str,
    table: StateTable,
    missing: Refusal,
    visible: VisibleTo<Row>,
    shown: fn(Row) -> Shown,
) -> Query
where
    A: Aggregate,
    Row: DeserializeOwned + 'static,
    Shown: Serialize + JsonSchema + 'static,
{
    let refusals = [missing.clone()];
    let answer = async move |views: &Views, request: &HttpRequest| {
        let (id, actor) = (request.path_value::<Id>("id")?, request.actor()?);
        let stream = stream::<A>(&id)?;
        let read = async || {
            let (version, row) =
                views.state_rows(table)?.find_row::<Row>(id.get()).await.map_err(problem)?;
            Ok(match row {
                Some(row) if visible.includes(&row, actor) => {
                    (Visibility::Version(version), Some(row))
                }
                Some(_) => (Visibility::Hidden, None),
                // The view has forgotten the row. It will never show a version of the row, so a
                // wait would be in vain.
                None if version > 0 => (Visibility::Version(u64::MAX), None),
                None => (Visibility::Version(0), None),
            })
        };
        let (version, row) = views.read(request, &stream, read).await?;
        let row = row.ok_or_else(|| Problem::from(&missing))?;
        Ok(Answer::new(shown(row)).with_version(version))
    };
    let query = Query::new(key, [Table::grant(table, [Action::GetItem])], answer);
    query.read_your_writes::<A>().refusals(&refusals)
}

/// Creates a route that answers with the state of an aggregate, which it reads from the log:
/// `GET /tanks/{id}/state`. The read is strongly consistent, so the response shows every commit
/// whose response a client has. `row` makes a row from the state, as in a
/// [`StateView`](ledgerline::StateView). The other arguments are those of [`row`](row()).
///
/// A read costs one query at any length of the stream, if one of its newest commits embeds a state.
/// A view costs less, and also shows lists and data of other streams.
pub fn state<A, Row, Shown>(
    key: &'static str,
    row: fn(&str, u64, A::State) -> Option<Row>,
    missing: Refusal,
    visible: VisibleTo<Row>,
    shown: fn(Row) -> Shown,
) -> Query
where
    A: Aggregate,
    Row: 'static,
    Shown: Serialize + JsonSchema + 'static,
{
    let refusals = [missing.clone()];
    let answer = async move |views: &Views, request: &HttpRequest| {
        let (id, actor) = (request.path_value::<Id>("id")?, request.actor()?);
        let Loaded { version, state, .. } = views.load::<A>(&stream::<A>(&id)?).await?;
        // A view has no row of a stream without commits, whatever its function returns for the
        // initial state.
        let row = if version == 0 { None } else { row(id.get(), version, state) };
        let row = row.filter(|row| visible.includes(row, actor));
        let row = row.ok_or_else(|| Problem::from(&missing))?;
        Ok(Answer::new(shown(row)).with_version(version))
    };
    Query::new(key, [], answer).read_log::<A>().refusals(&refusals)
}

/// Returns the stream of the aggregate that the path names.
fn stream<A: Aggregate>(id: &Id) -> Result<StreamId, Problem> {
    A::stream(id.get()).map_err(|error| Problem::field("id", error.to_string()))
}

/// The rows of one partition from which a page is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The value of the partition key.
    pub partition: String,
    /// The prefix of the rows' sort keys; `None` for all rows.
    pub starts_with: Option<String>,
}

impl KeyRange {
    /// Selects all rows of this partition.
    pub fn new(partition: impl Into<String>) -> Self {
        Self { partition: partition.into(), starts_with: None }
    }

    /// Selects the rows of the caller's own partition.
    pub fn from_caller(request: &HttpRequest) -> Result<Self, Problem> {
        request.actor().map(Self::new)
    }
}

/// Creates a route that answers with a page of an index of a state view: `GET /tanks`. The response
/// has the rows under `name`. `part` selects the rows, and `shown` builds the response for each
/// row. Name each parameter that `part` reads with [`Query::parameter`].
pub fn page<Row: DeserializeOwned + 'static, Shown: Serialize + JsonSchema + 'static>(
    key: &'static str,
    name: &'static str,
    table: StateTable,
    index: Index,
    part: fn(&HttpRequest) -> Result<KeyRange, Problem>,
    shown: fn(Row) -> Shown,
) -> Query {
    // Without the index in the table's list, rows of two generations would be in one page. A
    // function with such a route does not start.
    assert!(
        table.indexes.contains(&index),
        "{} does not name the index {}",
        table.variable,
        index.name
    );
    let answer = async move |views: &Views, request: &HttpRequest| {
        request.actor()?;
        let part = part(request)?;
        let cursor = request.query("cursor")?;
        let query = PageQuery {
            partition: &part.partition,
            starts_with: part.starts_with.as_deref(),
            newest_first: false,
            limit: limit(request)?,
            cursor: cursor.as_deref(),
        };
        let rows = views.state_rows(table)?;
        let read = async |query: &PageQuery<'_>| rows.page::<Row>(&index, query).await;
        let page = page_that_fits(query, read, shown).await?;
        Ok(Response::json(StatusCode::OK, page_body(name, page)))
    };
    let reads = match index.projection {
        Projection::All => None,
        Projection::KeysOnly => Some(Action::BatchGetItem),
    };
    let query =
        Query::from_response(key, [Table::grant(table, reads).index(index)], answer).with_pages();
    Query { described: query.described.answer_by(page_schema::<Shown>(name)), ..query }
}

/// Creates a route that answers with a page of a log view of one stream, the newest rows first:
/// `GET /tanks/{id}/fills`. The rows of a stream are in the partition of the aggregate's id.
pub fn history<A, Row, Shown>(
    key: &'static str,
    name: &'static str,
    table: LogTable,
    shown: fn(Row) -> Shown,
) -> Query
where
    A: Aggregate,
    Row: DeserializeOwned + 'static,
    Shown: Serialize + JsonSchema + 'static,
{
    let answer = async move |views: &Views, request: &HttpRequest| {
        request.actor()?;
        let id = request.path_value::<Id>("id")?;
        let stream = stream::<A>(&id)?;
        let read = async || {
            let position = views.log_rows(table)?.position(&stream).await.map_err(problem)?;
            Ok((Visibility::Version(position), ()))
        };
        // The position is read before the rows, and the rows with a strongly consistent read. So
        // the rows show at least this version.
        let (version, ()) = views.read(request, &stream, read).await?;
        let limit = limit(request)?;
        let cursor = request.query("cursor")?;
        let query =
            PageQuery { newest_first: true, ..PageQuery::new(id.get(), limit, cursor.as_deref()) };
        let rows = views.log_rows(table)?;
        let read = async |query: &PageQuery<'_>| rows.page::<Row>(query).await;
        let page = page_that_fits(query, read, shown).await?;
        Ok(Response::from_view(version, page_body(name, page)))
    };
    let tables = [Table::grant(table, [Action::GetItem, Action::Query])];
    let query = Query::from_response(key, tables, answer).read_your_writes::<A>().with_pages();
    Query { described: query.described.answer_by(page_schema::<Shown>(name)), ..query }
}

/// Reads a page, and returns it with its rows in the clients' form. A page of more than
/// [`MAX_ANSWER_BYTES`] is read again with half as many rows, until it fits. One row always fits.
pub(super) async fn page_that_fits<Row, Shown: Serialize>(
    mut query: PageQuery<'_>,
    read: impl AsyncFn(&PageQuery<'_>) -> Result<Page<Row>, ViewError>,
    shown: fn(Row) -> Shown,
) -> Result<Page<Value>, Problem> {
    loop {
        let Page { rows, cursor } = read(&query).await.map_err(problem)?;
        let rows: Vec<_> = rows.into_iter().map(|row| row.map(|row| as_json(shown(row)))).collect();
        let bytes: usize = rows.iter().flatten().map(encoded_bytes).sum();
        if bytes <= MAX_ANSWER_BYTES || query.limit <= 1 {
            return Ok(Page { rows, cursor });
        }
        let most = i32::try_from(rows.len()).unwrap_or(query.limit);
        query.limit = (most.min(query.limit) / 2).max(1);
    }
}
