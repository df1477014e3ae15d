//! The runner of state projectors: functions whose read model is one row per aggregate.
//!
//! States come from the fanout, or from a rule of the bus, as an asynchronous invocation that Lambda tries three times within minutes. What it fails at
//! then waits in a queue, from which the same function takes it again, a minute apart, for as long as an outage or a deployment may last.

use std::{panic::AssertUnwindSafe, sync::Arc};

use aws_lambda_events::{eventbridge::EventBridgeEvent, sqs::SqsEvent};
use futures::{FutureExt, future::LocalBoxFuture};
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Causes, Consistency, EventStore, EventTypes, LoadError, StateView, StoreError, StreamId, load,
    upcast,
};
use ledgerline_dynamodb::{DynamoDbStore, Overwrite, ReadTable, TableError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Error, config,
    line::Line,
    metrics,
    needs::{Action, Needs, Source, Table},
    start::{Handle, dynamodb, start},
    wire::{BusEntry, field_or_root},
};

/// For how long a row that was forgotten keeps older events out, in seconds: 30 days. An event may be
/// retried by EventBridge for a day, by Lambda for six hours, and wait in dead-letter queues for 14 days.
const TOMBSTONE_SECONDS: i64 = 30 * 86_400;

/// Runs a state projector: writes the row of every event's state, unless the row is as new already (rule 8).
///
/// ```no_run
/// use ledgerline::{StateTable, StateView, tank::{State, Tank}};
///
/// #[derive(serde::Serialize)]
/// struct Row {
///     id: String,
///     level: i64,
///     version: u64,
/// }
///
/// const LEVELS: StateView<Tank, Row> =
///     StateView { table: StateTable { variable: "LEVELS_TABLE", key: "id" }, row };
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
pub async fn run<A: Aggregate, Row: Serialize + 'static>(view: StateView<A, Row>) -> Result<(), Error> {
    let build = async {
        let client = dynamodb().await;
        let log = DynamoDbStore::new(client.clone(), config::text("COMMITS_TABLE")?);
        let table = ReadTable::new(client, config::text(view.table.variable)?);
        table.connect(view.table.key).await;
        let projector = Arc::new(StateProjector { table, log, view });
        Ok(Box::new(move |event: Value| {
            let projector = Arc::clone(&projector);
            async move { projector.all(details(event)?).await }.boxed_local()
        }) as Handle<_, ()>)
    };
    let events = A::Event::TYPES.iter().map(|known| known.name).collect();
    let source = Source::States { category: A::CATEGORY, events };
    let needs = Needs::new(source).log().table(Table::with(view.table, [Action::PutItem]));
    serve(needs, build.boxed_local()).await
}

/// Compiled once for all state projectors.
fn serve(
    needs: Needs,
    build: LocalBoxFuture<'_, Result<Handle<Value, ()>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(needs, build)
}

/// What the fanout invokes a function of a state view with.
#[derive(Debug, Deserialize)]
struct Invocation {
    /// As the details of entries on the bus.
    states: Vec<Value>,
}

/// The entries in an event: those that the fanout sends, that of a rule, or those of messages in the queue of what is tried again. Such a message is what
/// Lambda puts there, the event in `requestPayload` (developer guide, "Capturing records of Lambda asynchronous invocations"), or what EventBridge puts
/// there, the event itself.
///
/// A message that was received before begins with another of its states each time: one that ends the function does not keep the others from their rows.
///
/// # Errors
/// When it is none of these.
pub fn details(event: Value) -> Result<Vec<Value>, Error> {
    let invoked = |event: Value| {
        if event.get("states").is_some() {
            let invocation: Invocation =
                serde_path_to_error::deserialize(event).map_err(|error| malformed(&error))?;
            return Ok::<_, Error>(invocation.states);
        }
        let event: EventBridgeEvent<Value> =
            serde_path_to_error::deserialize(event).map_err(|error| malformed(&error))?;
        Ok(vec![event.detail])
    };
    if event.get("Records").is_none() {
        return invoked(event);
    }
    let messages: SqsEvent = serde_path_to_error::deserialize(event).map_err(|error| malformed(&error))?;
    let of_message = |message: aws_lambda_events::sqs::SqsMessage| {
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
    let details = messages.records.into_iter().map(of_message).collect::<Result<Vec<_>, _>>()?;
    Ok(details.into_iter().flatten().collect())
}

/// The parts of a state projector.
#[derive(Debug)]
pub struct StateProjector<A: Aggregate, Row> {
    /// Where the rows are.
    pub table: ReadTable,
    /// The log, for entries whose state this program cannot read.
    pub log: DynamoDbStore,
    /// What they are.
    pub view: StateView<A, Row>,
}

/// Why an entry was not projected. It comes again, then it goes to the dead-letter queue.
#[derive(Debug, thiserror::Error)]
enum ProjectError {
    #[error("not an entry of this program: the field {0}")]
    Malformed(String),
    /// The row shows a version, or an entry is about one, that the log does not have: the log was restored to an earlier time.
    #[error("version {version} of {stream} is not in the log: it went backwards")]
    WentBack { stream: StreamId, version: u64 },
    #[error("the state of {stream} has schema {schema}, this program reads {known}, and it cannot be folded")]
    Load { stream: StreamId, schema: u32, known: u32, source: LoadError },
    #[error("a panic")]
    Panic,
    #[error(transparent)]
    Log(#[from] StoreError),
    #[error(transparent)]
    Table(#[from] TableError),
}

fn malformed(error: &serde_path_to_error::Error<serde_json::Error>) -> ProjectError {
    ProjectError::Malformed(field_or_root(error))
}

/// What became of an entry.
struct Projected {
    stream: StreamId,
    version: u64,
    correlation_id: Option<String>,
    written: bool,
}

impl<A: Aggregate, Row: Serialize> StateProjector<A, Row> {
    /// Projects the details of these entries, one after the other. One that fails does not keep the others from their rows.
    ///
    /// # Errors
    /// When one is malformed, its state has a schema that this program does not read and the log cannot be folded, the log went backwards, or a table
    /// fails: that of the first one.
    pub async fn all(&self, details: Vec<Value>) -> Result<(), Error> {
        let (mut written, mut older) = (Line::default(), Line::default());
        let mut failed = Ok(());
        for detail in details {
            // Somebody who looks for a command that is not shown searches by these two. An entry that cannot be read may still have them.
            let stream =
                detail["stream"].as_str().and_then(|stream| StreamId::try_from(stream.to_owned()).ok());
            let correlation_id = detail["meta"]["correlationId"].as_str().map(ToOwned::to_owned);
            // A panic over one of them must not take the others with it.
            let projected = AssertUnwindSafe(self.write(detail)).catch_unwind().await;
            match projected.unwrap_or(Err(ProjectError::Panic)) {
                Ok(projected) => {
                    let line = if projected.written { &mut written } else { &mut older };
                    let Projected { stream, version, correlation_id, .. } = &projected;
                    line.add_version(stream, *version, correlation_id.as_deref());
                }
                Err(error) => {
                    let stream = stream.as_ref().map(StreamId::as_str);
                    tracing::error!(stream, correlation_id, error = %Causes(&error), "projection");
                    // The runtime logs the error as well: without the details of a call, which may be pages.
                    failed = failed.and(Err(Causes(&error).to_string().into()));
                }
            }
        }
        if written.some().or(older.some()).is_some() {
            tracing::info!(written = written.some(), older = older.some(), "projection");
        }
        failed
    }

    /// Projects the detail of one entry.
    ///
    /// # Errors
    /// As those of [`all`](Self::all).
    pub async fn project(&self, detail: Value) -> Result<(), Error> {
        self.all(vec![detail]).await
    }

    async fn write(&self, detail: Value) -> Result<Projected, ProjectError> {
        let entry: BusEntry = serde_path_to_error::deserialize(detail).map_err(|error| malformed(&error))?;
        let (stream, version) = (&entry.stream, entry.aggregate.last_known_version);
        let (shown, state) =
            self.state(stream, version, entry.aggregate_schema, entry.aggregate.state).await?;
        let overwritten = match (self.view.row)(stream.id(), shown, state) {
            Some(row) => self.table.put_newer(&row, shown).await?,
            None => {
                // From now on, also where the event itself waited for weeks: others may have waited with it.
                let expires = Timestamp::now().as_second().saturating_add(TOMBSTONE_SECONDS);
                self.table.forget(&self.view.table, stream.id(), shown, expires).await?
            }
        };
        if let Overwrite::Shows(newer) = overwritten
            && newer > shown
            // Not shown by mistake: an older entry came late. Nothing would overwrite a row that is ahead of the log.
            && self.log.get(stream, newer).await?.is_none()
        {
            return Err(ProjectError::WentBack { stream: stream.clone(), version: newer });
        }
        let written = overwritten == Overwrite::Written;
        if written {
            metrics::projected(entry.last_event.at);
        }
        Ok(Projected {
            stream: entry.stream,
            version: shown,
            correlation_id: entry.meta.correlation_id,
            written,
        })
    }

    /// The state that the entry carries. Where an older or newer fanout wrote it in a shape that this program does not read, the newest one
    /// that the log has, with its version: in a deployment, whichever function is replaced first, rows are right.
    async fn state(
        &self,
        stream: &StreamId,
        version: u64,
        schema: u32,
        state: Map<String, Value>,
    ) -> Result<(u64, A::State), ProjectError> {
        let state = Value::Object(state);
        let carried = if schema == A::STATE_SCHEMA { Some(state) } else { upcast::<A>(schema, state) };
        if let Some(state) = carried {
            let state = serde_path_to_error::deserialize(state)
                .map_err(|error| ProjectError::Malformed(format!("aggregate.{}", field_or_root(&error))))?;
            return Ok((version, state));
        }
        let loaded = load::<A>(&self.log, stream, None, Consistency::Strong).await.map_err(|source| {
            ProjectError::Load { stream: stream.clone(), schema, known: A::STATE_SCHEMA, source }
        })?;
        if loaded.version < version {
            return Err(ProjectError::WentBack { stream: stream.clone(), version });
        }
        Ok((loaded.version, loaded.state))
    }
}
