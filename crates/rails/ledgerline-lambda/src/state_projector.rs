//! The runner of state projectors: functions behind a rule of the bus, whose read model is one row per aggregate.

use std::sync::Arc;

use aws_lambda_events::eventbridge::EventBridgeEvent;
use futures::{FutureExt, future::LocalBoxFuture};
use jiff::Timestamp;
use ledgerline::{Aggregate, Causes, EventTypes, StateView, StreamId, upcast};
use ledgerline_dynamodb::{ReadTable, TableError};
use serde::Serialize;
use serde_json::Value;

use crate::{
    Error, config, metrics,
    needs::{Action, Needs, Source, Table},
    start::{Handle, dynamodb, start},
    wire::BusEntry,
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
/// When its configuration is wrong: the variable of the view's table.
pub async fn run<A: Aggregate, Row: Serialize + 'static>(view: StateView<A, Row>) -> Result<(), Error> {
    let build = async {
        let table = ReadTable::new(dynamodb().await, config::text(view.table.variable)?);
        table.connect(view.table.key).await;
        let projector = Arc::new(StateProjector { table, view });
        Ok(Box::new(move |event: EventBridgeEvent<Value>| {
            let projector = Arc::clone(&projector);
            async move { projector.project(event.detail).await }.boxed_local()
        }) as Handle<_, ()>)
    };
    let events = A::Event::TYPES.iter().map(|known| known.name).collect();
    let source = Source::Bus { category: A::CATEGORY, events };
    let needs = Needs::new(source).table(Table::with(view.table, [Action::PutItem]));
    serve(needs, build.boxed_local()).await
}

/// Compiled once for all functions behind the bus.
fn serve(
    needs: Needs,
    build: LocalBoxFuture<'_, Result<Handle<EventBridgeEvent<Value>, ()>, Error>>,
) -> LocalBoxFuture<'_, Result<(), Error>> {
    start(needs, build)
}

/// The parts of a state projector.
#[derive(Debug)]
pub struct StateProjector<A: Aggregate, Row> {
    /// Where the rows are.
    pub table: ReadTable,
    /// What they are.
    pub view: StateView<A, Row>,
}

/// Why an entry was not projected. Lambda retries it, then it goes to the dead-letter queue.
#[derive(Debug, thiserror::Error)]
enum ProjectError {
    #[error("not an entry of this program: the field {0}")]
    Malformed(String),
    #[error("the state of {stream} has schema {schema}, this program reads {known}")]
    Schema { stream: StreamId, schema: u32, known: u32 },
    #[error(transparent)]
    Table(#[from] TableError),
}

/// What became of an entry.
struct Projected {
    stream: StreamId,
    version: u64,
    correlation_id: Option<String>,
    written: bool,
}

impl<A: Aggregate, Row: Serialize> StateProjector<A, Row> {
    /// Projects the detail of one entry.
    ///
    /// # Errors
    /// When it is malformed, its state has another schema than this program's, or the table fails.
    pub async fn project(&self, detail: Value) -> Result<(), Error> {
        // Somebody who looks for a command that is not shown searches by these two. An entry that cannot be read may still have them.
        let stream = detail["stream"].as_str().and_then(|stream| StreamId::try_from(stream.to_owned()).ok());
        let correlation_id = detail["meta"]["correlationId"].as_str().map(ToOwned::to_owned);
        let result = self.write(detail).await;
        match &result {
            Ok(Projected { stream, version, correlation_id, written }) => {
                let outcome = if *written { "written" } else { "older" };
                tracing::info!(%stream, version, correlation_id, outcome, "projection");
            }
            Err(error) => {
                let stream = stream.as_ref().map(StreamId::as_str);
                tracing::error!(stream, correlation_id, error = %Causes(error), "projection");
            }
        }
        Ok(result.map(|_| ())?)
    }

    async fn write(&self, detail: Value) -> Result<Projected, ProjectError> {
        let entry: BusEntry = serde_path_to_error::deserialize(detail)
            .map_err(|error| ProjectError::Malformed(error.path().to_string()))?;
        let (stream, version) = (entry.stream, entry.aggregate.last_known_version);
        let (schema, state) = (entry.aggregate_schema, Value::Object(entry.aggregate.state));
        // An entry of an older writer may have been under way while this function was replaced.
        let state = if schema == A::STATE_SCHEMA { Some(state) } else { upcast::<A>(schema, state) };
        let Some(state) = state else {
            return Err(ProjectError::Schema { stream, schema, known: A::STATE_SCHEMA });
        };
        let state = serde_path_to_error::deserialize(state)
            .map_err(|error| ProjectError::Malformed(format!("aggregate.{}", error.path())))?;
        let written = match (self.view.row)(stream.id(), version, state) {
            Some(row) => self.table.put_newer(&row, version).await?,
            None => {
                // From now on, also where the event itself waited for weeks: others may have waited with it.
                let expires = Timestamp::now().as_second().saturating_add(TOMBSTONE_SECONDS);
                self.table.forget(&self.view.table, stream.id(), version, expires).await?
            }
        };
        if written {
            metrics::projected(entry.last_event.at);
        }
        Ok(Projected { stream, version, correlation_id: entry.meta.correlation_id, written })
    }
}
