//! The runner of query functions, and their common parts: versions, conditional reads, pages, and
//! read-your-writes.

mod patience;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    rc::Rc,
};

use aws_sdk_dynamodb::Client;
use futures::{FutureExt, future::LocalBoxFuture};
use http::StatusCode;
use ledgerline::{
    Aggregate, Causes, Id, Index, LogTable, Number, Projection, Refusal, StateTable, StreamId,
    api::Occurs,
    manifest::{Action, Endpoint, Manifest, Name, Scope, Source, Table},
};
use ledgerline_dynamodb::{
    LogRows, Page, PageQuery, StateRows, TableError, UnreadableRow, ViewTable,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use self::patience::TIMEOUT_VARIABLE;
pub use self::patience::{Patience, Visibility};
#[cfg(feature = "schema")]
use crate::route_descriptions::{self, RouteKind};
use crate::{
    config,
    failure::Error,
    http::{
        HttpRequest, MAX_ANSWER_BYTES, PRECONDITION_FAILED, Problem, Response, Routes, as_json,
        encoded_bytes, is_among_tags, parse_etags,
    },
    route_descriptions::Described,
    start::dynamodb,
    table_grants,
};

/// The number of rows in a page, if the request has no `limit`.
const DEFAULT_LIMIT: i32 = 50;
/// The largest number of rows in a page.
const MAX_LIMIT: i32 = 200;

/// A route of a function that answers from views.
pub struct Query {
    key: &'static str,
    tables: Vec<Table>,
    /// The category of the streams for whose versions the route waits.
    waits: Option<&'static str>,
    /// The names of the query's parameters.
    parameters: Vec<&'static str>,
    scope: Scope,
    described: Described,
    handle: Handle,
}

type Handle = Box<
    dyn for<'a> Fn(&'a Views, &'a HttpRequest) -> LocalBoxFuture<'a, Result<Response, Problem>>,
>;

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key)
    }
}

impl Query {
    /// Creates a route that this function answers from these tables. Each table lists the actions
    /// that the function needs on it. `key` is the method and the path, as the template has them:
    /// `GET /tanks/{id}`.
    pub fn new<Body: Serialize + JsonSchema + 'static>(
        key: &'static str,
        tables: impl IntoIterator<Item = Table>,
        answer: impl AsyncFn(&Views, &HttpRequest) -> Result<Answer<Body>, Problem> + 'static,
    ) -> Self {
        let answer = async move |views: &Views, request: &HttpRequest| {
            answer(views, request).await.map(Answer::into_response)
        };
        let query = Self::from_response(key, tables, answer);
        Self { described: query.described.answer::<Body>(), ..query }
    }

    fn from_response(
        key: &'static str,
        tables: impl IntoIterator<Item = Table>,
        answer: impl AsyncFn(&Views, &HttpRequest) -> Result<Response, Problem> + 'static,
    ) -> Self {
        let answer = Rc::new(answer);
        let handle: Handle = Box::new(move |views, request| {
            let answer = Rc::clone(&answer);
            async move { answer(views, request).await }.boxed_local()
        });
        // Each table also has the item that names its active generation.
        let tables = tables.into_iter().map(|table| Table::grant(table, [Action::GetItem]));
        Self {
            key,
            tables: tables.collect(),
            waits: None,
            parameters: Vec::new(),
            scope: Scope::Read,
            described: Described::default(),
            handle,
        }
    }

    /// Lets the route accept `?minVersion=`, and wait for that version of a stream of this
    /// aggregate with [`Views::read`].
    #[must_use]
    pub fn read_your_writes<A: Aggregate>(self) -> Self {
        Self { waits: Some(A::CATEGORY), ..self.parameter::<MinVersion>("minVersion") }
    }

    /// Lets the route accept this query parameter. The function answers any parameter that no route
    /// accepts with `400`. The type is for the contract; the route reads the parameter itself.
    #[must_use]
    pub fn parameter<V: JsonSchema>(self, name: &'static str) -> Self {
        self.add_parameter::<V>(name, Occurs::Optional)
    }

    /// Lets the route accept this query parameter, as [`parameter`](Self::parameter) does. The
    /// contract says that a request must have it.
    #[must_use]
    pub fn required_parameter<V: JsonSchema>(self, name: &'static str) -> Self {
        self.add_parameter::<V>(name, Occurs::Required)
    }

    fn add_parameter<V: JsonSchema>(mut self, name: &'static str, occurs: Occurs) -> Self {
        self.parameters.push(name);
        Self { described: self.described.query::<V>(name, occurs), ..self }
    }

    /// Lets the route accept the parameters of a list: `limit` and `cursor`.
    #[must_use]
    pub fn with_pages(self) -> Self {
        self.parameter::<Limit>("limit").parameter::<String>("cursor")
    }

    /// Sets the summary of the route in the contract, such as "List the accounts".
    #[must_use]
    pub fn summary(self, text: &'static str) -> Self {
        Self { described: self.described.summary(text), ..self }
    }

    /// Declares the type of a parameter in the path, for the contract. A parameter without a
    /// declaration is an [`Id`].
    #[must_use]
    pub fn path_parameter<V: JsonSchema>(self, name: &'static str) -> Self {
        Self { described: self.described.path::<V>(name), ..self }
    }

    /// Declares the refusals that the route answers, for the contract.
    #[must_use]
    pub fn refusals(self, refusals: &[Refusal]) -> Self {
        Self { described: self.described.refusals(refusals), ..self }
    }

    /// Makes the route require this scope instead of `read`: [`Scope::Events`] if it shows data of
    /// every caller.
    #[must_use]
    pub fn scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Returns the method and the path.
    pub fn key(&self) -> &'static str {
        self.key
    }
}

/// The largest `limit`, in the type of the parameter: a whole number from 1 to 200.
type Limit = Number<1, { MAX_LIMIT as i64 }>;

/// The type of `minVersion`: a whole number from 0.
type MinVersion = Number<0, { i64::MAX }>;

/// The answer of a query: a body, and the version of the stream that the body shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<Body> {
    version: Option<u64>,
    body: Body,
}

impl<Body: Serialize> Answer<Body> {
    /// Creates an answer without a version, and so without an `ETag`.
    pub fn new(body: Body) -> Self {
        Self { version: None, body }
    }

    /// Adds the version of the stream that the body shows. Version and body are in the `ETag`.
    #[must_use]
    pub fn with_version(self, version: u64) -> Self {
        Self { version: Some(version), ..self }
    }

    fn into_response(self) -> Response {
        let body = as_json(self.body);
        match self.version {
            Some(version) => Response::from_view(version, body),
            None => Response::json(StatusCode::OK, body),
        }
    }
}

/// The callers that may see a row.
#[derive(Debug)]
pub enum VisibleTo<Row> {
    /// The caller whose subject this function finds in the row. Other callers get the response for
    /// a row that does not exist.
    Owner(fn(&Row) -> Option<&str>),
    /// Every signed-in caller.
    All,
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
                Some(row) if is_visible(&row, visible, actor) => {
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

/// Returns the stream of the aggregate that the path names.
fn stream<A: Aggregate>(id: &Id) -> Result<StreamId, Problem> {
    A::stream(id.get()).map_err(|error| Problem::field("id", error.to_string()))
}

fn is_visible<Row>(row: &Row, visible: VisibleTo<Row>, actor: &str) -> bool {
    match visible {
        VisibleTo::Owner(owner) => owner(row) == Some(actor),
        VisibleTo::All => true,
    }
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
async fn page_that_fits<Row, Shown: Serialize>(
    mut query: PageQuery<'_>,
    read: impl AsyncFn(&PageQuery<'_>) -> Result<Page<Row>, TableError>,
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

/// The tables that a query function answers from.
#[derive(Debug, Default)]
pub struct Views {
    tables: BTreeMap<Name, ViewTable>,
    patience: Option<Patience>,
}

impl Views {
    /// Creates views without tables. Reads with `?minVersion=` wait for the time of this
    /// [`Patience`].
    pub fn new(patience: Patience) -> Self {
        Self { patience: Some(patience), ..Self::default() }
    }

    /// Adds a table of this name.
    #[must_use]
    pub fn with_table(
        mut self,
        table: impl Into<Table>,
        client: Client,
        name: impl Into<String>,
    ) -> Self {
        let table = table.into();
        let view = ViewTable::new(client, name, &table);
        self.tables.insert(table.variable, view);
        self
    }

    /// Opens the tables that these routes name, and reads `READ_YOUR_WRITE_TIMEOUT_MS` if one of
    /// the routes waits.
    async fn from_env(routes: &[Query]) -> Result<Self, Error> {
        let mut names = BTreeMap::new();
        for table in routes.iter().flat_map(|query| &query.tables) {
            names.insert(
                table.variable.clone(),
                (config::text(table.variable.clone())?, table.clone()),
            );
        }
        let waits = routes.iter().any(|query| query.waits.is_some());
        let client = dynamodb().await;
        let patience = if waits { Some(Patience::from_env(client.clone())?) } else { None };
        let views = Self { tables: BTreeMap::new(), patience };
        let tables = names.into_values();
        let views = tables
            .fold(views, |views, (name, table)| views.with_table(table, client.clone(), name));
        // This call opens the connection, so that the first request does not wait for it. If the
        // call fails, so will the first request.
        let all: Vec<_> = routes.iter().flat_map(|query| query.tables.clone()).collect();
        let _ = views.refresh_generations(&all).await;
        Ok(views)
    }

    /// Reads the active generation of these views, if the cached copy is some seconds old. The
    /// active generation stays the same until the next read, which is for the next request.
    async fn refresh_generations(&self, tables: &[Table]) -> Result<(), TableError> {
        // Two routes may read one table.
        let variables: BTreeSet<_> = tables.iter().map(|table| &table.variable).collect();
        let known = variables.into_iter().filter_map(|variable| self.tables.get(variable));
        let refreshed = known.map(ViewTable::recent_generations);
        futures::future::try_join_all(refreshed).await.map(|_| ())
    }

    /// Returns the rows of a state view, at the active generation.
    pub(crate) fn state_rows(&self, table: StateTable) -> Result<StateRows, Problem> {
        Ok(StateRows::from_table(self.table(table.variable)?, table))
    }

    /// Returns the rows of a log view, at the active generation.
    ///
    /// # Errors
    /// `500` when no route named its table: a programming error.
    pub fn log_rows(&self, table: LogTable) -> Result<LogRows, Problem> {
        Ok(LogRows::from_table(self.table(table.variable)?, table))
    }

    fn table(&self, variable: &str) -> Result<ViewTable, Problem> {
        self.tables.get(variable).map(ViewTable::at_active_generation).ok_or_else(|| {
            tracing::error!(variable, "a query reads a table that its route does not name");
            Problem::internal()
        })
    }

    /// Returns the version of a stream that a log view shows to the caller, or 0 if it shows none.
    /// The row of a state view decides whether the caller may see the stream. A request with
    /// `minVersion` waits, as in [`read`](Self::read).
    ///
    /// A page of the log view that is read afterwards shows at least this version, because its read
    /// is strongly consistent.
    ///
    /// # Errors
    /// `503` when the view does not show the version in time, and those of the tables.
    pub async fn visible_version<Row: DeserializeOwned>(
        &self,
        request: &HttpRequest,
        stream: &StreamId,
        log: LogTable,
        state: StateTable,
        visible: VisibleTo<Row>,
    ) -> Result<u64, Problem> {
        let actor = request.actor()?;
        let (log, state) = (self.log_rows(log)?, self.state_rows(state)?);
        let read = async || {
            let (position, row) =
                tokio::join!(log.position(stream), state.find_row::<Row>(stream.id()));
            let visibility = match row.map_err(problem)? {
                (_, Some(row)) if is_visible(&row, visible, actor) => {
                    Visibility::Version(position.map_err(problem)?)
                }
                (_, Some(_)) => Visibility::Hidden,
                (_, None) => Visibility::Version(0),
            };
            Ok((visibility, ()))
        };
        self.read(request, stream, read).await.map(|(version, ())| version)
    }

    /// Reads until the view shows the version of this stream that the request names with
    /// `minVersion`, or time is up. The function does not wait for a version that is not in the
    /// log. Such a version may never appear, and a caller that names such versions would hold an
    /// instance with each request.
    ///
    /// `read` returns the version that the view shows, and the value that it read.
    ///
    /// # Errors
    /// `503` when the view does not show the version in time; and the errors of `read`.
    pub async fn read<T>(
        &self,
        request: &HttpRequest,
        stream: &StreamId,
        read: impl AsyncFn() -> Result<(Visibility, T), Problem>,
    ) -> Result<(u64, T), Problem> {
        match &self.patience {
            Some(patience) => patience.read(request, stream, read).await,
            None => {
                tracing::error!("a query reads with minVersion, which its route does not declare");
                Err(Problem::internal())
            }
        }
    }
}

/// Runs the function that answers from views.
///
/// ```no_run
/// use ledgerline::{StateTable, testing::tank};
/// use ledgerline_lambda::queries::{Query, VisibleTo, row};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// const LEVELS: StateTable = StateTable { variable: "LEVELS_TABLE", key: "id", indexes: &[] };
///
/// #[derive(Serialize, Deserialize, JsonSchema)]
/// struct Level {
///     id: String,
///     level: i64,
///     version: u64,
/// }
///
/// fn routes() -> Vec<Query> {
///     vec![row::<tank::Tank, Level, _>("GET /tanks/{id}", LEVELS, tank::UNKNOWN, VisibleTo::All, |level| level)]
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::queries::run(routes()).await
/// }
/// ```
///
/// # Errors
/// When its configuration is wrong: the variables of its tables, and, if a route waits,
/// `COMMITS_TABLE` and `READ_YOUR_WRITE_TIMEOUT_MS`, or a variable of
/// [`http::run`](crate::http::run).
pub async fn run(routes: Vec<Query>) -> Result<(), Error> {
    #[cfg(feature = "schema")]
    if crate::start::operations_requested() {
        return route_descriptions::print(routes.iter().map(|query| {
            let kind = RouteKind::Query { waits: query.waits.is_some() };
            (query.key, query.scope, kind, &query.described)
        }));
    }
    crate::http::run(manifest(&routes), async || {
        let views = Views::from_env(&routes).await?;
        Ok(Queries { routes, views })
    })
    .await
}

/// The manifest of the function of these routes.
pub fn manifest(routes: &[Query]) -> Manifest {
    let endpoint = |query: &Query| Endpoint { route: query.key.into(), scope: query.scope };
    let source = Source::Http(routes.iter().map(endpoint).collect());
    let tables = routes.iter().flat_map(|query| query.tables.clone());
    let manifest = tables.fold(Manifest::new(source), Manifest::table);
    let waits: BTreeSet<_> = routes.iter().filter_map(|query| query.waits).collect();
    match waits.is_empty() {
        true => manifest,
        false => manifest.table(table_grants::find_commits(&waits)).variable(TIMEOUT_VARIABLE),
    }
}

/// The parts of a query function.
#[derive(Debug)]
pub struct Queries {
    /// The routes of the function.
    pub routes: Vec<Query>,
    /// The tables that the function reads.
    pub views: Views,
}

impl Routes for Queries {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let query = self.routes.iter().find(|query| query.key == request.route());
        let query = query.ok_or_else(Problem::no_route)?;
        request.check_parameters(&query.parameters, &[])?;
        self.views.refresh_generations(&query.tables).await.map_err(problem)?;
        apply_conditions(request, (query.handle)(&self.views, request).await?)
    }
}

/// Applies the conditions of the request to the response (RFC 9110, 13.1.1 and 13.1.2). It is `304`
/// when the client has just this representation, and `412` when it names another version. A version
/// alone, as in the response to a command, is no representation: with If-None-Match it gets `200`.
fn apply_conditions(request: &HttpRequest, shown: Response) -> Result<Response, Problem> {
    if shown.status != StatusCode::OK {
        return Ok(shown);
    }
    if let Some(tags) = request.header("If-Match")?
        && let Some(versions) = parse_etags(tags)
        && !shown.version().is_some_and(|version| versions.contains(&version))
    {
        let detail =
            "the answer has another version than If-Match; read it again and send its ETag";
        let problem = Problem::new(PRECONDITION_FAILED, detail);
        return Err(Problem {
            field: Some("If-Match".into()),
            version: shown.version(),
            ..problem
        });
    }
    let is_known = request.header("If-None-Match")?.is_some_and(|tags| match shown.etag() {
        Some(etag) => is_among_tags(etag, tags),
        None => tags.trim() == "*",
    });
    if is_known {
        return Ok(Response { status: StatusCode::NOT_MODIFIED, body: None, ..shown });
    }
    Ok(shown)
}

/// Reads the page size from `limit`.
///
/// # Errors
/// When it is not a whole number from 1 to 200.
pub fn limit(request: &HttpRequest) -> Result<i32, Problem> {
    Ok(request.query_number("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT))
}

/// The rest of a page's body, next to its rows. Flatten it into the type of the body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PageEnd {
    /// The cursor of the next page. The last page has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The keys of rows that the program cannot read, if there are any. One such row must not keep
    /// the others from the client.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// Splits a page into the rows in the clients' form and the rest of the body. The rest has the
/// cursor of the next page, and the keys of the rows that this program cannot read (rule 11).
pub fn split_page<Row, Shown>(
    page: Page<Row>,
    shown: impl Fn(Row) -> Shown,
) -> (Vec<Shown>, PageEnd) {
    let (mut rows, mut unreadable, mut first) = (Vec::new(), Vec::new(), None);
    for row in page.rows {
        match row {
            Ok(row) => rows.push(shown(row)),
            Err(UnreadableRow { key, reason }) => {
                unreadable.push(key);
                first = first.or(Some(reason));
            }
        }
    }
    if let Some(reason) = first {
        // The keys are in the response. A key may be a caller's text, such as a name, so the log
        // leaves it out (rule 14).
        tracing::error!(
            rows = unreadable.len(),
            reason,
            "rows of an earlier version cannot be read: rebuild the view"
        );
    }
    (rows, PageEnd { cursor: page.cursor, unreadable })
}

/// Builds the body of a page: its rows under their name, and the rest.
fn page_body(name: &str, page: Page<Value>) -> Value {
    let (rows, end) = split_page(page, |row| row);
    let mut body = as_json(end);
    body[name] = rows.into();
    body
}

/// Returns the function that makes the schema of [`page_body`].
fn page_schema<Shown: JsonSchema>(
    name: &'static str,
) -> impl Fn(&mut SchemaGenerator) -> Schema + Send + Sync {
    move |generator| {
        let mut schema = PageEnd::json_schema(generator);
        let rows = generator.subschema_for::<Vec<Shown>>();
        let fields = schema.ensure_object();
        fields["properties"][name] = rows.into();
        fields.insert("required".into(), [name].as_slice().into());
        fields.insert("description".into(), format!("A page of {name}.").into());
        schema
    }
}

/// Maps a failure of a read table to the client's problem. This is the only place where such
/// failures become HTTP.
#[expect(clippy::needless_pass_by_value, reason = "it is mapped over results")]
pub fn problem(error: TableError) -> Problem {
    match error {
        TableError::Cursor(invalid) => Problem::field("cursor", invalid.to_string()),
        TableError::Throttled(_) => {
            tracing::warn!(error = %Causes(&error), "query");
            Problem::unavailable()
        }
        TableError::Unavailable(_) => {
            tracing::error!(error = %Causes(&error), "query");
            Problem::unavailable()
        }
        TableError::Row(_) | TableError::TooManyRows(_) => {
            tracing::error!(error = %Causes(&error), "query");
            Problem::internal()
        }
    }
}

#[cfg(test)]
mod tests;
