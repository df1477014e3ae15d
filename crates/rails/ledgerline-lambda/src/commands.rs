//! The runner of command functions: from a request to a commit, and to the answer.

use std::{num::NonZeroUsize, time::Duration};

use http::{HeaderName, StatusCode, header};
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Cache, Context, EventStore, ExecuteError, Execution, Ledger, LoadError, Outcome, Precondition,
    Rejection, RejectionKind, StoreError, StreamId, execute,
};
use ledgerline_dynamodb::DynamoDbStore;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    Error, config,
    http::{HttpRequest, Problem, Response, Routes, versions_of},
    metrics,
    start::{dynamodb, store},
};

/// Streams that a warm instance remembers.
const CACHED_STREAMS: NonZeroUsize = NonZeroUsize::new(1_000).expect("is not zero");

/// How long a command may take, with all its repairs: less than the function's timeout, so that the client gets an
/// answer (rule 11). What it appended by then is in the log; with an Idempotency-Key, asking again finds it.
const PATIENCE: Duration = Duration::from_secs(8);

/// What a request asks of an aggregate, and how the success is answered.
#[expect(missing_debug_implementations, reason = "commands hold payloads, which stay out of logs (rule 14)")]
pub struct Routed<A: Aggregate> {
    /// The stream.
    pub stream: StreamId,
    /// The command.
    pub command: A::Command,
    /// Where the new resource is: the command starts a stream, and the answer is `201`.
    pub location: Option<String>,
    /// The route is refused with `428` without If-Match.
    pub if_match_required: bool,
    /// The body of the answer.
    pub body: fn(&StreamId, &A::State, u64) -> Value,
}

/// The stream of an aggregate whose id came with a request.
///
/// # Errors
/// When no stream can have this id.
pub fn stream(category: &str, id: &str) -> Result<StreamId, Problem> {
    StreamId::new(category, id).map_err(|error| Problem::field("id", error.to_string()))
}

/// Reads requests of one aggregate's routes.
pub type Route<A> = fn(&HttpRequest) -> Result<Routed<A>, Problem>;

/// Runs the function that takes the commands of an aggregate.
///
/// ```no_run
/// use ledgerline::tank::{Command, Tank};
/// use ledgerline_lambda::{
///     commands::{Routed, stream},
///     http::{HttpRequest, Problem},
/// };
/// use serde_json::json;
///
/// fn route(request: &HttpRequest) -> Result<Routed<Tank>, Problem> {
///     match request.route() {
///         "POST /tanks/{id}/scrap" => Ok(Routed {
///             stream: stream("tank", &request.path_uuid("id")?.to_string())?,
///             command: Command::Scrap,
///             location: None,
///             if_match_required: false,
///             body: |_, state, version| json!({ "version": version, "level": state.level }),
///         }),
///         _ => Err(Problem::no_route()),
///     }
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::commands::run(route).await
/// }
/// ```
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `REQUESTS_TABLE`, `REQUEST_RETENTION_SECONDS`.
pub async fn run<A: Aggregate>(route: Route<A>) -> Result<(), Error> {
    crate::http::run(async || {
        let requests = config::text("REQUESTS_TABLE")?;
        let retention = config::parsed("REQUEST_RETENTION_SECONDS")?;
        let store = store(dynamodb().await).await?.with_requests(requests);
        Ok(Commands::<A, DynamoDbStore> { store, cache: Cache::new(CACHED_STREAMS), retention, route })
    })
    .await
}

/// The parts of a command function.
#[derive(Debug)]
pub struct Commands<A: Aggregate, S> {
    /// Where commits go.
    pub store: S,
    /// What this instance remembers.
    pub cache: Cache<A>,
    /// Seconds for which an Idempotency-Key is remembered.
    pub retention: i64,
    /// Reads the requests.
    pub route: Route<A>,
}

impl<A: Aggregate, S: EventStore + 'static> Routes for Commands<A, S> {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let actor = request.actor()?;
        let routed = (self.route)(request)?;
        let precondition = precondition(request, routed.if_match_required)?;
        let meta = request.meta();
        let now = Timestamp::now();
        // Two callers may choose the same key: it is theirs only together with who they are. A key has no spaces, so the
        // first one ends it, and no two pairs give one text.
        let key = idempotency_key(request)?.map(|key| format!("{key} {actor}"));
        let fingerprint = if key.is_some() { fingerprint(request)? } else { String::new() };
        let answer = |answer: Result<(&A::State, u64), &A::Rejection>| {
            let answer = match answer {
                Ok((state, version)) => Answer::success(&routed, state, version),
                Err(rejection) => Answer::from(&refusal(rejection)),
            };
            serde_json::to_string(&answer).unwrap_or_default()
        };
        let generated = Uuid::now_v7().to_string();
        let execution = Execution {
            stream: &routed.stream,
            command: &routed.command,
            context: &Context { at: now, actor: Some(actor.to_owned()) },
            command_id: key.as_deref().unwrap_or(&generated),
            meta: &meta,
            precondition: precondition.as_ref(),
            creates: routed.location.is_some(),
            ledger: key.as_deref().map(|key| Ledger {
                key,
                fingerprint: &fingerprint,
                now: now.as_second(),
                expires: now.as_second().saturating_add(self.retention),
                answer: &answer,
            }),
        };
        let Ok(outcome) = timeout(PATIENCE, execute(&self.store, &self.cache, &execution)).await else {
            tracing::error!(stream = %routed.stream, outcome = "timed out", "command");
            metrics::command("timed out");
            return Err(Problem::unavailable());
        };
        metrics::command(log(&routed.stream, &outcome));
        match outcome {
            Ok(Outcome::Committed(loaded) | Outcome::Unchanged(loaded)) => {
                Ok(Answer::success(&routed, &loaded.state, loaded.version).response())
            }
            Ok(Outcome::Repeated(answer)) => repeated(&answer),
            Err(error) => Err(problem(&error)),
        }
    }
}

/// An answer as it is remembered under an Idempotency-Key.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    body: Value,
}

impl Answer {
    fn success<A: Aggregate>(routed: &Routed<A>, state: &A::State, version: u64) -> Self {
        let status = if routed.location.is_some() { StatusCode::CREATED } else { StatusCode::OK };
        Self {
            status: status.as_u16(),
            location: routed.location.clone(),
            version: Some(version),
            body: (routed.body)(&routed.stream, state, version),
        }
    }

    fn response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::json(status, self.body);
        response.headers.extend(self.location.map(|location| (header::LOCATION, location)));
        if status.is_client_error() {
            response.headers.push((header::CONTENT_TYPE, "application/problem+json".into()));
        }
        match self.version {
            Some(version) => response.with_version(version),
            None => response,
        }
    }
}

impl From<&Problem> for Answer {
    fn from(problem: &Problem) -> Self {
        Self {
            status: problem.status.as_u16(),
            location: None,
            version: problem.version,
            body: problem.body(),
        }
    }
}

fn repeated(answer: &str) -> Result<Response, Problem> {
    let Ok(answer) = serde_json::from_str::<Answer>(answer) else {
        tracing::error!("a remembered answer cannot be read");
        return Err(Problem::internal());
    };
    let mut response = answer.response();
    response.headers.push((HeaderName::from_static("idempotent-replayed"), "true".into()));
    Ok(response)
}

fn precondition(request: &HttpRequest, required: bool) -> Result<Option<Precondition>, Problem> {
    match request.header("If-Match")? {
        Some(tags) => Ok(Some(versions_of(tags).map_or(Precondition::Exists, Precondition::OneOf))),
        None if required => {
            let detail = "send If-Match with the ETag that you know";
            let problem = Problem::new(StatusCode::PRECONDITION_REQUIRED, "precondition-required", detail);
            Err(Problem { field: Some("If-Match".into()), ..problem })
        }
        None => Ok(None),
    }
}

fn idempotency_key(request: &HttpRequest) -> Result<Option<&str>, Problem> {
    let Some(key) = request.header("Idempotency-Key")? else { return Ok(None) };
    if (1..=128).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(Some(key))
    } else {
        Err(Problem::field("Idempotency-Key", "an Idempotency-Key has 1 to 128 visible ASCII characters"))
    }
}

/// Tells two requests with the same key apart: by route, path and body. The body counts as JSON, so that white space
/// makes no difference.
fn fingerprint(request: &HttpRequest) -> Result<String, Problem> {
    let body = request.body()?;
    let body = serde_json::from_slice::<Value>(&body).map_or(body, |value| value.to_string().into_bytes());
    let mut hash = Sha256::new();
    for part in [request.route().as_bytes(), request.path().as_bytes(), &body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn refusal<R: Rejection>(rejection: &R) -> Problem {
    let status = match rejection.kind() {
        RejectionKind::NotFound => StatusCode::NOT_FOUND,
        RejectionKind::AlreadyExists => StatusCode::CONFLICT,
        RejectionKind::Forbidden => StatusCode::FORBIDDEN,
        RejectionKind::Refused => StatusCode::UNPROCESSABLE_ENTITY,
    };
    Problem::new(status, rejection.code(), rejection.to_string())
}

/// The one place where failures of commands become HTTP.
fn problem<R: Rejection>(error: &ExecuteError<R>) -> Problem {
    match error {
        ExecuteError::Refused(rejection) => refusal(rejection),
        ExecuteError::PreconditionFailed { version } => Problem {
            version: Some(*version),
            field: Some("If-Match".into()),
            ..Problem::new(
                StatusCode::PRECONDITION_FAILED,
                "precondition-failed",
                format!("the version is {version}, load it and decide again"),
            )
        },
        ExecuteError::Overtaken { version } => Problem {
            version: Some(*version),
            field: Some("If-Match".into()),
            ..Problem::new(
                StatusCode::CONFLICT,
                "overtaken",
                format!("another change was first, the version is {version} now: load it and decide again"),
            )
        },
        ExecuteError::Contended => {
            Problem::new(StatusCode::CONFLICT, "conflict", "others change this at the same time, try again")
        }
        ExecuteError::CommandIdReused => Problem {
            field: Some("Idempotency-Key".into()),
            ..Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "this Idempotency-Key was used for another request",
            )
        },
        ExecuteError::TooLarge { bytes, limit } => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "commit-too-large",
            format!("what this would store has {bytes} bytes, the limit is {limit}"),
        ),
        ExecuteError::Store(error) | ExecuteError::Load(LoadError::Store(error)) => match error {
            StoreError::Throttled | StoreError::Unavailable(_) => Problem::unavailable(),
            StoreError::Corrupt { .. } => Problem::internal(),
        },
        ExecuteError::Load(LoadError::Decode { .. }) | ExecuteError::Encode(_) => Problem::internal(),
    }
}

/// Logs what became of the command: once, here, with stream and version and without its payload (rule 14). The name of
/// what became of it is the metric's label.
fn log<A: Aggregate>(
    stream: &StreamId,
    outcome: &Result<Outcome<A>, ExecuteError<A::Rejection>>,
) -> &'static str {
    let (name, version, code) = match outcome {
        Ok(Outcome::Committed(loaded)) => ("committed", Some(loaded.version), None),
        Ok(Outcome::Unchanged(loaded)) => ("unchanged", Some(loaded.version), None),
        Ok(Outcome::Repeated(_)) => ("repeated", None, None),
        Err(ExecuteError::Refused(rejection)) => ("refused", None, Some(rejection.code())),
        Err(ExecuteError::PreconditionFailed { version }) => ("precondition failed", Some(*version), None),
        Err(ExecuteError::Overtaken { version }) => ("overtaken", Some(*version), None),
        Err(ExecuteError::CommandIdReused | ExecuteError::TooLarge { .. }) => ("invalid", None, None),
        Err(ExecuteError::Contended) => ("contended", None, None),
        Err(error @ (ExecuteError::Load(_) | ExecuteError::Encode(_) | ExecuteError::Store(_))) => {
            tracing::error!(%stream, outcome = "failed", %error, "command");
            return "failed";
        }
    };
    if name == "contended" {
        tracing::warn!(%stream, outcome = name, "command");
    } else {
        tracing::info!(%stream, version, outcome = name, code, "command");
    }
    name
}
