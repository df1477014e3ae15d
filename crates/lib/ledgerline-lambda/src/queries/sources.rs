//! The sources of a query function: the tables of its views, and the log.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::Client;
use ledgerline::{
    Aggregate, Causes, Consistency, Loaded, LogTable, StateTable, StreamId,
    manifest::{Name, Table},
    view_store::ViewError,
};
use ledgerline_dynamodb::{DynamoDbStore, LogRows, StateRows, ViewTable};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{Patience, Query, Visibility, VisibleTo, problem};
use crate::{
    config,
    failure::Error,
    http::{HttpRequest, Problem, REQUEST_TIMEOUT},
    start::{self, sdk_config},
};

/// The sources of a query function: the tables of its views, and the log.
#[derive(Debug, Default)]
pub struct Views {
    tables: BTreeMap<Name, ViewTable>,
    patience: Option<Patience>,
    /// The log, if a route reads states from it.
    log: Option<DynamoDbStore>,
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

    /// Adds the log from which [`load`](Self::load) reads.
    #[must_use]
    pub fn with_log(self, log: DynamoDbStore) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Opens the tables that these routes name, and the log if one of them reads it. Reads
    /// `READ_YOUR_WRITE_TIMEOUT_MS` if one of the routes waits.
    pub(super) async fn from_env(routes: &[Query]) -> Result<Self, Error> {
        let mut names = BTreeMap::new();
        for table in routes.iter().flat_map(|query| &query.tables) {
            names.insert(
                table.variable.clone(),
                (config::text(table.variable.clone())?, table.clone()),
            );
        }
        let waits = routes.iter().any(|query| query.waits.is_some());
        let sdk = sdk_config().await;
        let client = Client::new(&sdk);
        let patience = if waits { Some(Patience::from_env(client.clone())?) } else { None };
        // No read opens a connection here: the role allows only streams of some categories.
        let reads_log = routes.iter().any(|query| !query.loads.is_empty());
        let log = if reads_log { Some(start::log(&sdk, client.clone())?) } else { None };
        for store in routes.iter().flat_map(|query| &query.stores) {
            store.open(&sdk).await?;
        }
        let views = Self { tables: BTreeMap::new(), patience, log };
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
    pub(super) async fn refresh_generations(&self, tables: &[Table]) -> Result<(), ViewError> {
        // Two routes may read one table.
        let variables: BTreeSet<_> = tables.iter().map(|table| &table.variable).collect();
        let known = variables.into_iter().filter_map(|variable| self.tables.get(variable));
        let refreshed = known.map(ViewTable::recent_generations);
        futures::future::try_join_all(refreshed).await.map(|_| ())
    }

    /// Returns the rows of a state view, at the active generation.
    ///
    /// # Errors
    /// `500` when no route named its table: a programming error.
    pub fn state_rows(&self, table: StateTable) -> Result<StateRows, Problem> {
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
                (_, Some(row)) if visible.includes(&row, actor) => {
                    Visibility::Version(position.map_err(problem)?)
                }
                (_, Some(_)) => Visibility::Hidden,
                (_, None) => Visibility::Version(0),
            };
            Ok((visibility, ()))
        };
        self.read(request, stream, read).await.map(|(version, ())| version)
    }

    /// Loads the state of an aggregate from the log, by a strongly consistent read.
    ///
    /// # Errors
    /// `503` when the log throttles or does not answer in time, the stream is too long to be folded
    /// in time, or a commit cannot be read. `500` when no route declares that it reads the log: a
    /// programming error.
    pub async fn load<A: Aggregate>(&self, stream: &StreamId) -> Result<Loaded<A>, Problem> {
        let Some(log) = &self.log else {
            tracing::error!("a query reads the log, which its route does not declare");
            return Err(Problem::internal());
        };
        let load = ledgerline::load(log, stream, None, Consistency::Strong);
        let Ok(loaded) = timeout(REQUEST_TIMEOUT, load).await else {
            tracing::error!(%stream, "the load of a state timed out");
            return Err(Problem::unavailable());
        };
        loaded.map_err(|error| {
            tracing::error!(%stream, error = %Causes(&error), "query");
            // As for a command: a newer version of the program may have written a commit that this
            // one cannot read.
            Problem::unavailable()
        })
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
