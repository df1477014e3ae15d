//! The runner of query functions, and their common parts: versions, conditional reads, pages, and
//! read-your-writes.

mod page_body;
mod patience;
mod query_routes;
mod sources;

use std::{collections::BTreeSet, fmt, rc::Rc};

use aws_config::SdkConfig;
use futures::{FutureExt, future::LocalBoxFuture};
use http::StatusCode;
use ledgerline::{
    Aggregate, Causes, Number, Refusal,
    api::Occurs,
    manifest::{Action, Endpoint, Manifest, Scope, Source, Table},
    view_store::ViewError,
};
use schemars::JsonSchema;
use serde::Serialize;

use self::patience::TIMEOUT_VARIABLE;
pub use self::{
    page_body::{PageEnd, split_page},
    patience::{Patience, Visibility},
    query_routes::{KeyRange, VisibleTo, history, page, row, state},
    sources::Views,
};
#[cfg(feature = "schema")]
use crate::route_descriptions::{self, RouteKind};
use crate::{
    failure::Error,
    http::{
        HttpRequest, PRECONDITION_FAILED, Problem, Response, Routes, as_json, is_among_tags,
        parse_etags,
    },
    route_descriptions::Described,
    table_grants,
};

/// The number of rows in a page, if the request has no `limit`.
const DEFAULT_LIMIT: i32 = 50;
/// The largest number of rows in a page.
const MAX_LIMIT: i32 = 200;

/// A store that routes read in addition to the log and the tables of their function.
pub trait QueryStore {
    /// Adds the variables and the calls of the store to the manifest of the function.
    fn declare(&self, manifest: Manifest) -> Manifest;

    /// Opens the store.
    fn open<'a>(&'a self, sdk: &'a SdkConfig) -> LocalBoxFuture<'a, Result<(), Error>>;
}

/// A route of a query function.
pub struct Query {
    key: &'static str,
    tables: Vec<Table>,
    /// The category of the streams for whose versions the route waits.
    waits: Option<&'static str>,
    /// The categories of the streams that the route reads from the log.
    loads: Vec<&'static str>,
    /// The stores that the route reads in addition to its tables and the log.
    stores: Vec<Rc<dyn QueryStore>>,
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
            loads: Vec::new(),
            stores: Vec::new(),
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

    /// Lets the route read streams of this aggregate from the log, with [`Views::load`].
    #[must_use]
    pub fn read_log<A: Aggregate>(mut self) -> Self {
        self.loads.push(A::CATEGORY);
        self
    }

    /// Lets the route read this store, which the function opens at its start.
    #[must_use]
    pub fn read_store(mut self, store: Rc<dyn QueryStore>) -> Self {
        self.stores.push(store);
        self
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
    /// declaration is an [`Id`](ledgerline::Id).
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

/// Runs a query function.
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
/// `COMMITS_TABLE` and `READ_YOUR_WRITE_TIMEOUT_MS`. If a route reads the log, `COMMITS_TABLE`, and
/// `BODIES_BUCKET` where its category has body objects. A variable of
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
    let loads: BTreeSet<_> = routes.iter().flat_map(|query| query.loads.iter().copied()).collect();
    let manifest = match loads.is_empty() {
        true => manifest,
        false => manifest.table(table_grants::read_category_streams(&loads)),
    };
    let stores = routes.iter().flat_map(|query| &query.stores);
    let manifest = stores.fold(manifest, |manifest, store| store.declare(manifest));
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

/// Maps a failure of a read table to the client's problem. This is the only place where such
/// failures become HTTP.
#[expect(clippy::needless_pass_by_value, reason = "it is mapped over results")]
pub fn problem(error: ViewError) -> Problem {
    match error {
        ViewError::Cursor(invalid) => Problem::field("cursor", invalid.to_string()),
        ViewError::Throttled(_) => {
            tracing::warn!(error = %Causes(&error), "query");
            Problem::unavailable()
        }
        ViewError::Unavailable(_) => {
            tracing::error!(error = %Causes(&error), "query");
            Problem::unavailable()
        }
        ViewError::Row(_) | ViewError::TooManyRows { .. } => {
            tracing::error!(error = %Causes(&error), "query");
            Problem::internal()
        }
    }
}

#[cfg(test)]
mod tests;
