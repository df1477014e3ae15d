//! The runner of state projectors: functions whose read model is one row per aggregate.
//!
//! The fanout, or a rule of the bus, sends states as an asynchronous invocation, which Lambda
//! attempts three times within minutes. An invocation that fails each time waits in a queue. The
//! same function receives it from there, with a minute between retries, for as long as an outage or
//! a deployment may last.

mod state_rebuild;

use std::{panic::AssertUnwindSafe, sync::Arc};

use aws_config::SdkConfig;
use aws_lambda_events::{eventbridge::EventBridgeEvent, sqs::SqsEvent};
use futures::{FutureExt, future::LocalBoxFuture};
use jiff::Timestamp;
use lambda_runtime::LambdaEvent;
use ledgerline::{
    Aggregate, Causes, Consistency, EventLog, EventTypes, LoadError, StateView, StoreError,
    StreamId, load,
    manifest::{Action, Manifest, Name, OtherView, Source, SubscriberKind, Table, ViewStore},
    upcast,
    view_store::{Overwrite, StateRowStore, ViewError},
};
use ledgerline_dynamodb::{DynamoDbStore, StateRows, ViewTable};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    commit_list::CommitList,
    config,
    failure::Error,
    messages::{BusEntry, field_or_root},
    metrics,
    projection::view_rebuild::{
        RebuildError, RebuildRequest, RebuildResponse, ViewAnswer, generation_table, prepare_start,
        publish_active, rebuild,
    },
    start::{Handle, handler, log, sdk_config, start},
    table_grants,
};

/// The time for which the tombstone of a forgotten row keeps older events out, in seconds: 30 days.
/// EventBridge may retry an event for a day, and Lambda for six hours. The event may then wait in
/// dead-letter queues for 14 days.
const TOMBSTONE_SECONDS: i64 = 30 * 86_400;

/// Runs a state projector, which writes the row of every state unless the row in the table is at
/// least as new (rule 8).
///
/// ```no_run
/// use ledgerline::{StateTable, StateView, testing::tank::{State, Tank}};
///
/// #[derive(serde::Serialize)]
/// struct Row {
///     id: String,
///     level: i64,
///     version: u64,
/// }
///
/// const LEVELS: StateView<Tank, Row> =
///     StateView { table: StateTable { variable: "LEVELS_TABLE", key: "id", indexes: &[] }, row };
///
/// /// `None` would forget the row.
/// fn row(id: &str, version: u64, state: State) -> Option<Row> {
///     Some(Row { id: id.to_owned(), level: state.level(), version })
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::state_projector::run(LEVELS).await
/// }
/// ```
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, and the variable of the view's table.
pub async fn run<A: Aggregate, Row: Serialize + 'static>(
    view: StateView<A, Row>,
) -> Result<(), Error> {
    run_with(manifest(&view), view).await
}

/// Like [`run`], for a function that gets its states by a rule of the EventBridge bus. The fanout
/// sends it none.
///
/// # Errors
/// As those of [`run`].
pub async fn run_on_bus<A: Aggregate, Row: Serialize + 'static>(
    view: StateView<A, Row>,
) -> Result<(), Error> {
    run_with(manifest_with_source(&view, true), view).await
}

async fn run_with<A: Aggregate, Row: Serialize + 'static>(
    manifest: Manifest,
    view: StateView<A, Row>,
) -> Result<(), Error> {
    let build = async |sdk: SdkConfig| {
        let client = aws_sdk_dynamodb::Client::new(&sdk);
        let log = log(&sdk, client.clone())?;
        let table = StateRows::new(client, config::text(view.table.variable)?, view.table);
        // This call opens the connection, so that the first state does not wait for it. If the call
        // fails, so will the first state.
        let _ = table.view().recent_generations().await;
        Ok(StateProjector::new(table, log, view))
    };
    serve_projector(manifest, build).await
}

/// Runs a state projector that writes the rows of a view into another store than DynamoDB. `open`
/// opens the store. `manifest` is that of [`manifest_in_store`], with what `open` reads.
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `VIEWS_TABLE`, and what `open` reads.
pub async fn run_in_store<A, Row, S>(
    view: StateView<A, Row>,
    store: ViewStore,
    manifest: Manifest,
    open: impl AsyncFnOnce(&SdkConfig) -> Result<S, Error>,
) -> Result<(), Error>
where
    A: Aggregate,
    Row: Serialize + 'static,
    S: StateRowStore + 'static,
{
    let build = async |sdk: SdkConfig| {
        let rows = open(&sdk).await?;
        let log = log(&sdk, aws_sdk_dynamodb::Client::new(&sdk))?;
        let other = OtherView::new(store, view.table.variable);
        let generations = generation_table(&sdk, &other)?;
        prepare_start(&generations, &rows).await?;
        Ok(StateProjector { rows, generations, log, view })
    };
    serve_projector(manifest, build).await
}

async fn serve_projector<A, Row, S>(
    manifest: Manifest,
    build: impl AsyncFnOnce(SdkConfig) -> Result<StateProjector<A, Row, S>, Error>,
) -> Result<(), Error>
where
    A: Aggregate,
    Row: Serialize + 'static,
    S: StateRowStore + 'static,
{
    let build = async {
        let projector = Arc::new(build(sdk_config().await).await?);
        Ok(handler(move |LambdaEvent { payload: mut event, .. }: LambdaEvent<Value>| {
            let projector = Arc::clone(&projector);
            async move {
                if let Some(request) = event.get_mut("rebuild") {
                    let request: RebuildRequest = serde_path_to_error::deserialize(request.take())
                        .map_err(|error| field_error(&error))?;
                    return Ok(ViewAnswer::Rebuilt(projector.rebuild(&request).await?));
                }
                projector.project_all(details(event)?).await.map(ViewAnswer::Handled)
            }
        }))
    };
    serve(manifest, build.boxed_local()).await
}

/// The manifest of the function that writes this view into another store than DynamoDB.
pub fn manifest_in_store<A: Aggregate, Row>(
    view: &StateView<A, Row>,
    store: ViewStore,
) -> Manifest {
    let other = OtherView::new(store, view.table.variable);
    Manifest::new(source::<A>(false))
        .table(table_grants::read_streams())
        .table(table_grants::scan_log())
        .other_view(SubscriberKind::StateProjector, other)
}

/// The manifest of the function of this view.
pub fn manifest<A: Aggregate, Row>(view: &StateView<A, Row>) -> Manifest {
    manifest_with_source(view, false)
}

fn manifest_with_source<A: Aggregate, Row>(view: &StateView<A, Row>, bus: bool) -> Manifest {
    let table = Table::grant(view.table, [Action::GetItem, Action::PutItem]);
    Manifest::new(source::<A>(bus))
        .table(table_grants::read_streams())
        .table(table_grants::scan_log())
        .subscriber(SubscriberKind::StateProjector, table)
}

fn source<A: Aggregate>(bus: bool) -> Source {
    // A redelivered commit has its events under the names that they have in the log.
    let events =
        A::Event::TYPES.iter().flat_map(|known| known.names()).map(Name::Borrowed).collect();
    Source::States { category: A::CATEGORY.into(), events, bus }
}

/// This function has no type parameters, so it is compiled once for all state projectors.
fn serve(
    manifest: Manifest,
    build: LocalBoxFuture<'_, Result<Handle<Value, ViewAnswer<()>>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(manifest, build)
}

/// The payload with which the fanout invokes a function of a state view.
#[derive(Debug, Deserialize)]
struct Invocation {
    /// The states, each in the form of the detail of an entry on the bus.
    states: Vec<Value>,
}

/// Extracts the details of the entries in an event. The event is an invocation by the fanout, an
/// entry from a rule, or messages from the queue of failed invocations. Lambda writes such a
/// message with the event in `requestPayload` (developer guide, "Capturing records of Lambda
/// asynchronous invocations"). EventBridge writes the event itself.
///
/// A redelivered message begins with a different state at each receive. So a state that crashes the
/// function does not keep the others from their rows.
///
/// # Errors
/// When the event is none of these.
pub fn details(event: Value) -> Result<Vec<Value>, Error> {
    let invoked = |event: Value| {
        if event.get("states").is_some() {
            let invocation: Invocation =
                serde_path_to_error::deserialize(event).map_err(|error| field_error(&error))?;
            return Ok::<_, Error>(invocation.states);
        }
        let event: EventBridgeEvent<Value> =
            serde_path_to_error::deserialize(event).map_err(|error| field_error(&error))?;
        Ok(vec![event.detail])
    };
    if event.get("Records").is_none() {
        return invoked(event);
    }
    let messages: SqsEvent =
        serde_path_to_error::deserialize(event).map_err(|error| field_error(&error))?;
    let message_details = |message: aws_lambda_events::sqs::SqsMessage| {
        let mut body: Value = serde_json::from_str(message.body.as_deref().unwrap_or_default())
            .map_err(|_| ProjectError::Malformed("body".to_owned()))?;
        let mut details = invoked(match body.get_mut("requestPayload") {
            Some(event) => event.take(),
            None => body,
        })?;
        let received = message.attributes.get("ApproximateReceiveCount");
        let received: usize = received.and_then(|received| received.parse().ok()).unwrap_or(1);
        let first = received.saturating_sub(1).checked_rem(details.len());
        details.rotate_left(first.unwrap_or(0));
        Ok::<_, Error>(details)
    };
    let details =
        messages.records.into_iter().map(message_details).collect::<Result<Vec<_>, _>>()?;
    Ok(details.into_iter().flatten().collect())
}

/// The parts of a state projector.
#[derive(Debug)]
pub struct StateProjector<A: Aggregate, Row, S = StateRows> {
    /// The rows.
    pub rows: S,
    /// The generations of the view.
    pub generations: ViewTable,
    /// The log, for entries whose state this program cannot read.
    pub log: DynamoDbStore,
    /// The view that defines the rows.
    pub view: StateView<A, Row>,
}

/// The reason why an entry was not projected. The entry is delivered again; after the last attempt
/// it goes to the dead-letter queue.
#[derive(Debug, thiserror::Error)]
enum ProjectError {
    #[error("the entry has no valid field {0}")]
    Malformed(String),
    /// The version of the row or of the entry is not in the log: the log was restored to an earlier
    /// time.
    #[error(
        "version {version} of {stream} is not in the log, which was restored to an earlier time"
    )]
    WentBack { stream: StreamId, version: u64 },
    #[error(
        "the state of {stream} has schema {schema}, this program reads {known}, and the fold failed"
    )]
    Load { stream: StreamId, schema: u32, known: u32, source: LoadError },
    #[error("a panic")]
    Panic,
    #[error(transparent)]
    Log(#[from] StoreError),
    #[error(transparent)]
    Table(#[from] ViewError),
}

fn field_error(error: &serde_path_to_error::Error<serde_json::Error>) -> ProjectError {
    ProjectError::Malformed(field_or_root(error))
}

/// The result of a projected entry.
struct Projected {
    stream: StreamId,
    version: u64,
    correlation_id: Option<String>,
    written: bool,
}

impl<A: Aggregate, Row> StateProjector<A, Row> {
    /// Creates a projector that writes the rows of this view into a table.
    pub fn new(rows: StateRows, log: DynamoDbStore, view: StateView<A, Row>) -> Self {
        Self { generations: rows.view().clone(), rows, log, view }
    }
}

impl<A: Aggregate, Row: Serialize, S: StateRowStore> StateProjector<A, Row, S> {
    /// Projects the details of these entries, one after the other. A failed entry does not keep the
    /// others from their rows.
    ///
    /// # Errors
    /// When an entry is malformed, the log went backwards, or a table fails. When the state of an
    /// entry has a schema that this program does not read, and the log cannot be folded. The error
    /// is that of the first such entry.
    pub async fn project_all(&self, details: Vec<Value>) -> Result<(), Error> {
        let mut written = CommitList::default();
        let mut older = CommitList::default();
        let mut failed = Ok(());
        let generations = self.generations.written().await?;
        publish_active(&self.rows, &generations).await;
        for detail in details {
            // An operator who looks for a missing command searches the logs by the stream and the
            // correlation id. Even an unreadable entry may have them.
            let stream = detail["stream"]
                .as_str()
                .and_then(|stream| StreamId::try_from(stream.to_owned()).ok());
            let correlation_id = detail["meta"]["correlationId"].as_str().map(ToOwned::to_owned);
            // A panic at one entry must not keep the others from their rows.
            let projected =
                AssertUnwindSafe(self.project_entry(detail, &generations)).catch_unwind().await;
            match projected.unwrap_or(Err(ProjectError::Panic)) {
                Ok(projected) => {
                    let line = if projected.written { &mut written } else { &mut older };
                    let Projected { stream, version, correlation_id, .. } = &projected;
                    line.add_version(stream, *version, correlation_id.as_deref());
                }
                Err(error) => {
                    let stream = stream.as_ref().map(StreamId::as_str);
                    tracing::error!(stream, correlation_id, error = %Causes(&error), "projection");
                    failed = failed.and(Err(error.into()));
                }
            }
        }
        if written.as_field().or(older.as_field()).is_some() {
            tracing::info!(written = written.as_field(), older = older.as_field(), "projection");
        }
        failed
    }

    /// Rebuilds a generation of the view from the log.
    ///
    /// # Errors
    /// When the generation is neither built nor kept, or the log or the table fails. Written rows
    /// stay.
    pub async fn rebuild(&self, request: &RebuildRequest) -> Result<RebuildResponse, RebuildError> {
        rebuild(self, &self.log, request).await
    }

    /// Projects the detail of one entry.
    pub async fn project(&self, detail: Value) -> Result<(), Error> {
        self.project_all(vec![detail]).await
    }

    async fn project_entry(
        &self,
        detail: Value,
        generations: &[u32],
    ) -> Result<Projected, ProjectError> {
        let entry: BusEntry =
            serde_path_to_error::deserialize(detail).map_err(|error| field_error(&error))?;
        let stream = &entry.stream;
        let version = entry.aggregate.last_known_version;
        let (shown, state) =
            self.read_state(stream, version, entry.aggregate_schema, entry.aggregate.state).await?;
        let row = (self.view.row)(stream.id(), shown, state);
        let mut overwritten = Overwrite::Written;
        for (place, generation) in generations.iter().enumerate() {
            let rows = self.rows.at_generation(*generation);
            // The active generation is the last one, and its result counts.
            let is_read = place + 1 == generations.len();
            match self.write_row(&rows, stream, shown, row.as_ref()).await {
                Ok((result, _)) => overwritten = result,
                Err(error)
                    if !is_read
                        && !error.is_outage()
                        && self.generations.at(*generation).mark_behind(Some(stream)).await? =>
                {
                    let error = Causes(&error);
                    tracing::warn!(%stream, version, %error, "a standby generation is behind");
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Overwrite::Shows(newer) = overwritten
            && newer > shown
            // A newer row is normal if this entry is late. But if the log does not have the row's
            // version, the log went backwards. The row would then stay unchanged until the log has
            // grown past its version.
            && self.log.get(stream, newer).await?.is_none()
        {
            return Err(ProjectError::WentBack { stream: stream.clone(), version: newer });
        }
        let written = overwritten == Overwrite::Written;
        if written {
            metrics::projection_lag(entry.last_event.at);
        }
        Ok(Projected {
            stream: entry.stream,
            version: shown,
            correlation_id: entry.meta.correlation_id,
            written,
        })
    }

    /// Writes a row, or a tombstone, unless the row is at least as new (rule 8). Also returns the
    /// write units.
    async fn write_row(
        &self,
        rows: &S,
        stream: &StreamId,
        version: u64,
        row: Option<&Row>,
    ) -> Result<(Overwrite, f64), ViewError> {
        if let Some(row) = row {
            return rows.put_newer(row, version).await;
        }
        // The time begins at the write, even if this event waited for weeks, because older events
        // may have waited with it.
        let expires = Timestamp::now().as_second().saturating_add(TOMBSTONE_SECONDS);
        rows.forget(stream.id(), version, expires).await
    }

    /// Returns the version and the state that the entry shows. An older or newer fanout may have
    /// written the state in a schema that this program does not read. Then the function folds the
    /// newest version and state from the log. So rows are right during a deployment, in any
    /// order of replacing the functions.
    async fn read_state(
        &self,
        stream: &StreamId,
        version: u64,
        schema: u32,
        state: Map<String, Value>,
    ) -> Result<(u64, A::State), ProjectError> {
        let state = Value::Object(state);
        let readable =
            if schema == A::STATE_SCHEMA { Some(state) } else { upcast::<A>(schema, state) };
        if let Some(state) = readable {
            let state = serde_path_to_error::deserialize(state).map_err(|error| {
                ProjectError::Malformed(format!("aggregate.{}", field_or_root(&error)))
            })?;
            return Ok((version, state));
        }
        let loaded =
            load::<A>(&self.log, stream, None, Consistency::Strong).await.map_err(|source| {
                ProjectError::Load {
                    stream: stream.clone(),
                    schema,
                    known: A::STATE_SCHEMA,
                    source,
                }
            })?;
        if loaded.version < version {
            return Err(ProjectError::WentBack { stream: stream.clone(), version });
        }
        Ok((loaded.version, loaded.state))
    }
}
