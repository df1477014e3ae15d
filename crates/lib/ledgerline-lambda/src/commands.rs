//! The runner of command functions: from a request to a commit, and to the response.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroUsize,
};

use http::{HeaderName, StatusCode, header};
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Cache, Causes, Context, EventStore, ExecuteError, Execution, Id, Idempotency,
    Outcome, Precondition, Refusal, RefusalKind, StreamId, Text, UNKNOWN_STREAM, execute,
    manifest::{Endpoint, Manifest, Scope, Source},
};
use ledgerline_dynamodb::DynamoDbStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use uuid::Uuid;

#[cfg(feature = "schema")]
use crate::route_descriptions::{self, RouteKind};
use crate::{
    body_store, config,
    failure::Error,
    http::{
        COMMIT_TOO_LARGE, CONTENDED, HttpRequest, IDEMPOTENCY_KEY_REUSED, MAX_BODY_BYTES,
        OVERTAKEN, PRECONDITION_FAILED, PRECONDITION_REQUIRED, Problem, ProblemType,
        REQUEST_TIMEOUT, Response, Routes, as_json, parse_etags, parse_weak_etags,
    },
    metrics,
    route_descriptions::Described,
    snapshot_warmup,
    start::{COMPRESS_OVER, configure_writes, sdk_config, store},
    table_grants::{self, REQUESTS},
};

/// The variable with the seconds for which the record of an Idempotency-Key is stored.
const RETENTION: &str = "REQUEST_RETENTION_SECONDS";
const SOURCE_ADDRESSES: &str = "SOURCE_ADDRESSES";

/// The largest body that a route may allow, in bytes.
const MAX_LARGE_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The number of streams whose states a warm instance caches.
const CACHED_STREAMS: NonZeroUsize = NonZeroUsize::new(1_000).expect("is not zero");

/// The function that builds the body of a success from the stream, and the state and the version
/// after the command.
type AnswerOf<A, Body> = fn(&StreamId, &<A as Aggregate>::State, u64) -> Body;

/// The same function, with its body as JSON.
type Answering<A> = Box<dyn Fn(&StreamId, &<A as Aggregate>::State, u64) -> Value + Send + Sync>;

/// The function that reads the id of the aggregate and the command from a request.
type Read<A> = Box<
    dyn Fn(&HttpRequest) -> Result<(String, Option<<A as Aggregate>::Command>), Problem>
        + Send
        + Sync,
>;

/// A route of a function that handles the commands of one aggregate.
///
/// The route defines how a request is read and how a success is answered. The function itself
/// answers refusals and failures. The stream always has the category of the aggregate, so no route
/// can name a stream of another one.
pub struct Route<A: Aggregate> {
    key: &'static str,
    read: Read<A>,
    answer: Answering<A>,
    location: Option<String>,
    if_match_required: bool,
    body_limit: usize,
    scope: Scope,
    described: Described,
}

impl<A: Aggregate> fmt::Debug for Route<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key)
    }
}

impl<A: Aggregate> Route<A> {
    /// Creates a route. `read` reads the aggregate's id and the command from a request and its
    /// body. `key` is the method and the path, as the template has them: `POST /tanks/{id}/fills`.
    pub fn new<Body: DeserializeOwned + JsonSchema, Answer: Serialize + JsonSchema + 'static>(
        key: &'static str,
        read: impl Fn(&HttpRequest, Body) -> Result<(String, A::Command), Problem>
        + Send
        + Sync
        + 'static,
        answer: AnswerOf<A, Answer>,
    ) -> Self {
        let read = move |request: &HttpRequest| {
            let (id, command) = read(request, request.json()?)?;
            Ok((id, Some(command)))
        };
        let route = Self::from_reader(key, Box::new(read), answer);
        Self { described: route.described.body::<Body>(), ..route }
    }

    /// Creates a route as [`new`](Self::new) does. A request has no body, or an empty object.
    pub fn without_body<Answer: Serialize + JsonSchema + 'static>(
        key: &'static str,
        read: impl Fn(&HttpRequest) -> Result<(String, A::Command), Problem> + Send + Sync + 'static,
        answer: AnswerOf<A, Answer>,
    ) -> Self {
        let read = move |request: &HttpRequest| {
            request.check_no_body()?;
            let (id, command) = read(request)?;
            Ok((id, Some(command)))
        };
        Self::from_reader(key, Box::new(read), answer)
    }

    fn from_reader<Answer: Serialize + JsonSchema + 'static>(
        key: &'static str,
        read: Read<A>,
        answer: AnswerOf<A, Answer>,
    ) -> Self {
        Self {
            key,
            read,
            answer: Box::new(move |stream, state, version| as_json(answer(stream, state, version))),
            location: None,
            if_match_required: false,
            body_limit: MAX_BODY_BYTES,
            scope: Scope::Write,
            described: Described::default().answer::<Answer>().refusals(A::REFUSALS),
        }
    }

    /// Sets the summary of the route in the contract, such as "Credit an account".
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

    /// Marks the route as one that starts a stream. It answers `201` with this path as the
    /// `Location` header, in which `{id}` is replaced by the aggregate's id.
    #[must_use]
    pub fn starts_stream(self, path: impl Into<String>) -> Self {
        Self { location: Some(path.into()), ..self }
    }

    /// Makes the route answer a request without `If-Match` with `428`.
    #[must_use]
    pub fn require_if_match(self) -> Self {
        Self { if_match_required: true, ..self }
    }

    /// Sets the largest request body, in bytes, at most 4 MB: Lambda takes 6 MB of base64. A commit
    /// that does not fit into an item needs body objects (docs/data.md).
    ///
    /// # Panics
    /// When the number is larger.
    #[must_use]
    pub fn allow_request_body(self, bytes: usize) -> Self {
        assert!(bytes <= MAX_LARGE_BODY_BYTES, "{}: a body has at most 4 MB", self.key);
        Self { body_limit: bytes, described: self.described.body_limit(bytes), ..self }
    }

    /// Allows the route to operators only: its callers need their scope. The commit records the
    /// change and the operator's subject.
    #[must_use]
    pub fn restrict_to_operators(self) -> Self {
        Self { scope: Scope::Operate, ..self }
    }

    /// Returns the method and the path.
    pub fn key(&self) -> &'static str {
        self.key
    }

    /// Reads the stream and the command from a request; the command is `None` if the request
    /// republishes state.
    ///
    /// # Errors
    /// A problem that names the field; the field is `id` if no stream can have the id.
    pub fn read(&self, request: &HttpRequest) -> Result<(StreamId, Option<A::Command>), Problem> {
        request.limit_body(self.body_limit);
        let (id, command) = (self.read)(request)?;
        let stream = A::stream(&id).map_err(|error| Problem::field("id", error.to_string()))?;
        Ok((stream, command))
    }
}

/// Creates a route that starts a stream: `POST /tanks`. `read` splits the body into the id, if the
/// client chose one, and the command. Without an id, the aggregate gets a new one.
pub fn create<A, Body, Answer>(
    key: &'static str,
    read: impl Fn(Body) -> (Option<Id>, A::Command) + Send + Sync + 'static,
    answer: AnswerOf<A, Answer>,
) -> Route<A>
where
    A: Aggregate,
    Body: DeserializeOwned + JsonSchema,
    Answer: Serialize + JsonSchema + 'static,
{
    let read = move |_: &HttpRequest, body| {
        let (id, command) = read(body);
        Ok((id.unwrap_or_else(|| Uuid::now_v7().into()).into_inner(), command))
    };
    let path = key.split_once(' ').map_or(key, |(_, path)| path);
    Route::new(key, read, answer).starts_stream(format!("{path}/{{id}}"))
}

/// Creates a route that changes an aggregate: `POST /tanks/{id}/fills`. `command` builds the
/// command from the body; mostly it is a variant of the command enum.
pub fn update<A, Body, Answer>(
    key: &'static str,
    command: impl Fn(Body) -> A::Command + Send + Sync + 'static,
    answer: AnswerOf<A, Answer>,
) -> Route<A>
where
    A: Aggregate,
    Body: DeserializeOwned + JsonSchema,
    Answer: Serialize + JsonSchema + 'static,
{
    let read = move |request: &HttpRequest, body| {
        Ok((request.path_value::<Id>("id")?.into_inner(), command(body)))
    };
    Route::new(key, read, answer)
}

/// Creates a route that changes an aggregate with a body without fields: it is missing or an empty
/// object.
pub fn action<A: Aggregate, Answer: Serialize + JsonSchema + 'static>(
    key: &'static str,
    command: impl Fn() -> A::Command + Send + Sync + 'static,
    answer: AnswerOf<A, Answer>,
) -> Route<A> {
    let read =
        move |request: &HttpRequest| Ok((request.path_value::<Id>("id")?.into_inner(), command()));
    Route::without_body(key, read, answer)
}

/// Creates a route by which an operator republishes the state of one stream to all state views:
/// `POST /tanks/{id}/republications`. It appends a commit without events ([`Execution::republish`]).
/// The body contains the reason.
pub fn republish_state<A: Aggregate, Answer: Serialize + JsonSchema + 'static>(
    key: &'static str,
    answer: AnswerOf<A, Answer>,
) -> Route<A> {
    let read = |request: &HttpRequest| {
        let Republication { reason: _ } = request.json()?;
        Ok((request.path_value::<Id>("id")?.into_inner(), None))
    };
    let route = Route::from_reader(key, Box::new(read), answer)
        .restrict_to_operators()
        .summary("Republish the state of one stream");
    Route {
        described: route.described.body::<Republication>().refusals(&[UNKNOWN_STREAM]),
        ..route
    }
}

/// The body of a request to republish state. The operator's tool stores the reason.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Republication {
    #[expect(dead_code, reason = "the request must have one")]
    reason: Text<500>,
}

/// Runs the function that handles the commands of an aggregate.
///
/// ```no_run
/// use ledgerline::{StreamId, testing::tank::{Command, State, Tank}};
/// use ledgerline_lambda::commands::{Route, action, update};
/// use schemars::JsonSchema;
/// use serde::Serialize;
///
/// fn routes() -> Vec<Route<Tank>> {
///     vec![
///         update("POST /tanks/{id}/fills", Command::Fill, changed),
///         update("POST /tanks/{id}/draws", Command::Draw, changed),
///         action("POST /tanks/{id}/scrap", || Command::Scrap, changed),
///     ]
/// }
///
/// #[derive(Serialize, JsonSchema)]
/// struct Changed {
///     version: u64,
///     level: i64,
/// }
///
/// fn changed(_: &StreamId, state: &State, version: u64) -> Changed {
///     Changed { version, level: state.level() }
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::commands::run(routes()).await
/// }
/// ```
///
/// With the arguments `--build-snapshots account-1 account-2`, the program folds these streams and
/// saves their snapshots. Otherwise the first command after a deployment with another
/// [`STATE_SCHEMA`](Aggregate::STATE_SCHEMA) would have to fold them (docs/runbook.md). The program
/// needs `COMMITS_TABLE` and `REQUESTS_TABLE` for that.
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `REQUESTS_TABLE`, `REQUEST_RETENTION_SECONDS`,
/// the optional `SOURCE_ADDRESSES` and `COMPRESS_OVER`, or a variable of
/// [`http::run`](crate::http::run).
pub async fn run<A: Aggregate>(routes: Vec<Route<A>>) -> Result<(), Error> {
    #[cfg(feature = "schema")]
    if crate::start::operations_requested() {
        return route_descriptions::print(routes.iter().map(|route| {
            let creates = route.location.is_some();
            let kind = RouteKind::Command { creates, if_match_required: route.if_match_required };
            (route.key, route.scope, kind, &route.described)
        }));
    }
    if let Some(streams) = snapshot_warmup::requested_streams(std::env::args()) {
        config::declare(&body_store::grant(manifest(&routes)));
        let store = open_store(config::text(REQUESTS.variable)?).await?;
        return snapshot_warmup::build::<A>(&store, streams).await;
    }
    crate::http::run(manifest(&routes), async || {
        let requests = config::text(REQUESTS.variable)?;
        let retention = config::parse(RETENTION)?;
        let store = open_store(requests).await?;
        let source_addresses = config::parse_or(SOURCE_ADDRESSES, false)?;
        let cache = Cache::new(CACHED_STREAMS);
        Ok(Commands::<A, DynamoDbStore> { store, cache, retention, source_addresses, routes })
    })
    .await
}

/// Opens the store of a function of commands.
async fn open_store(requests: String) -> Result<DynamoDbStore, Error> {
    let sdk = sdk_config().await;
    let store = store(&sdk, aws_sdk_dynamodb::Client::new(&sdk)).await?;
    Ok(configure_writes(store, requests)?)
}

/// The manifest of the function of these routes.
pub fn manifest<A: Aggregate>(routes: &[Route<A>]) -> Manifest {
    let endpoint = |route: &Route<A>| Endpoint { route: route.key.into(), scope: route.scope };
    let source = Source::Http(routes.iter().map(endpoint).collect());
    // The key of an idempotency record has a space before the caller.
    let tables = table_grants::commands(&[A::CATEGORY], &BTreeSet::from(["* *".into()]));
    let manifest = tables.into_iter().fold(Manifest::new(source), Manifest::table);
    manifest.variable(RETENTION).optional(SOURCE_ADDRESSES).optional(COMPRESS_OVER)
}

/// The parts of a command function.
#[derive(Debug)]
pub struct Commands<A: Aggregate, S> {
    /// The store to which commits are appended.
    pub store: S,
    /// The states that this instance caches.
    pub cache: Cache<A>,
    /// The seconds for which an idempotency record is stored.
    pub retention: i64,
    /// Whether commits store the addresses of callers. A commit stores its address for ever, and
    /// carries it to the bus and the queues.
    pub source_addresses: bool,
    /// The routes of the function.
    pub routes: Vec<Route<A>>,
}

impl<A: Aggregate, S: EventStore + 'static> Routes for Commands<A, S> {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        let actor = request.actor()?;
        let route = self.routes.iter().find(|route| route.key == request.route());
        let route = route.ok_or_else(Problem::no_route)?;
        request.check_parameters(&[], &[])?;
        let (stream, command) = route.read(request)?;
        let precondition = precondition(request, route.if_match_required)?;
        // Two callers may choose the same key, so the function appends the caller's subject to it.
        // A client's key has no spaces, so the first space ends it. So no two pairs of key and
        // caller give the same text.
        let key = idempotency_key(request)?.map(|key| format!("{key} {actor}"));
        let fingerprint = key.as_ref().map(|_| fingerprint(request, &stream)).transpose()?;
        let fingerprint = fingerprint.unwrap_or_default();
        let answer = |answer: Result<(&A::State, u64), &Refusal>| {
            let answer = match answer {
                Ok((state, version)) => StoredAnswer::success(route, &stream, state, version),
                Err(refusal) => StoredAnswer::from(&Problem::from(refusal)),
            };
            serde_json::to_string(&answer).unwrap_or_default()
        };
        let id = key.clone().unwrap_or_else(|| Uuid::now_v7().to_string());
        let mut meta = request.meta().clone();
        meta.source_address = meta.source_address.filter(|_| self.source_addresses);
        let context = Context { at: Timestamp::now(), actor: Some(actor.to_owned()) };
        let retention = self.retention;
        let execution = Execution {
            precondition: precondition.as_ref(),
            creates: route.location.is_some(),
            idempotency: key.as_deref().map(|key| Idempotency {
                key,
                fingerprint: &fingerprint,
                retention,
                answer: &answer,
            }),
            ..match &command {
                Some(command) => Execution::new(&stream, command, &context, &id, &meta),
                None => Execution::republish(&stream, &context, &id, &meta),
            }
        };
        // The future is on the heap, because it contains those of the SDK. Each surrounding future
        // would copy it, at a fifteenth of a command's instructions.
        let executed =
            Box::pin(execute(&self.store, &self.cache, &DynamoDbStore::HOST, &execution));
        // A commit appended within this time stays in the log. A client that retries with the same
        // Idempotency-Key gets its response.
        let Ok(outcome) = timeout(REQUEST_TIMEOUT, executed).await else {
            tracing::error!(%stream, outcome = "timed out", "command");
            metrics::command("timed out");
            return Err(Problem::unavailable());
        };
        metrics::command(log(&stream, &outcome));
        match outcome {
            Ok(Outcome::Committed(loaded) | Outcome::Unchanged(loaded)) => {
                Ok(StoredAnswer::success(route, &stream, &loaded.state, loaded.version).response())
            }
            Ok(Outcome::Repeated(answer)) => read_stored(&answer),
            Err(error) => Err(problem(&error, precondition.as_ref())),
        }
    }
}

/// A response in the form in which an idempotency record stores it.
#[derive(Debug, Serialize, Deserialize)]
struct StoredAnswer {
    status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    body: Value,
}

impl StoredAnswer {
    fn success<A: Aggregate>(
        route: &Route<A>,
        stream: &StreamId,
        state: &A::State,
        version: u64,
    ) -> Self {
        let status = if route.location.is_some() { StatusCode::CREATED } else { StatusCode::OK };
        Self {
            status: status.as_u16(),
            location: route.location.as_ref().map(|path| path.replace("{id}", stream.id())),
            version: Some(version),
            body: (route.answer)(stream, state, version),
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

impl From<&Problem> for StoredAnswer {
    fn from(problem: &Problem) -> Self {
        Self {
            status: problem.status.as_u16(),
            location: None,
            version: problem.version,
            body: problem.body(),
        }
    }
}

fn read_stored(answer: &str) -> Result<Response, Problem> {
    let Ok(answer) = serde_json::from_str::<StoredAnswer>(answer) else {
        tracing::error!("a stored response cannot be read");
        return Err(Problem::internal());
    };
    let mut response = answer.response();
    response.headers.push((HeaderName::from_static("idempotent-replayed"), "true".into()));
    Ok(response)
}

fn precondition(request: &HttpRequest, required: bool) -> Result<Option<Precondition>, Problem> {
    match (request.header("If-Match")?, request.header("If-None-Match")?) {
        (Some(_), Some(_)) => {
            Err(Problem::field("If-None-Match", "send If-Match or If-None-Match, and not both"))
        }
        (Some(tags), None) => {
            Ok(Some(parse_etags(tags).map_or(Precondition::Exists, Precondition::OneOf)))
        }
        (None, _) if required => {
            let detail = "send If-Match with the ETag that you know";
            let problem = Problem::new(PRECONDITION_REQUIRED, detail);
            Err(Problem { field: Some("If-Match".into()), ..problem })
        }
        (None, Some(tags)) => {
            Ok(Some(parse_weak_etags(tags)?.map_or(Precondition::Absent, Precondition::NoneOf)))
        }
        (None, None) => Ok(None),
    }
}

fn idempotency_key(request: &HttpRequest) -> Result<Option<&str>, Problem> {
    let Some(key) = request.header("Idempotency-Key")? else { return Ok(None) };
    // API Gateway joins two headers of the same name with a comma. The two must not become one key.
    if (1..=128).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic() && b != b',') {
        return Ok(Some(key));
    }
    let detail = "an Idempotency-Key has 1 to 128 visible ASCII characters, and no comma; send one";
    Err(Problem::field("Idempotency-Key", detail))
}

/// Returns the hash that distinguishes two requests with the same key: of the route, the decoded
/// parameters of the path, and the body without null fields. An empty object equals a missing body.
///
/// The hash uses the id of the stream in its one spelling. It uses other texts as they are sent,
/// because any text may look like an id: two references of payments that differ in capitals are
/// two commands.
fn fingerprint(request: &HttpRequest, stream: &StreamId) -> Result<String, Problem> {
    let body = request.body()?;
    // The JSON of a larger body would take the memory of the function.
    let is_small = body.len() <= MAX_BODY_BYTES;
    let json = is_small.then(|| serde_json::from_slice::<Value>(body).map(drop_null_fields));
    let command = match json.transpose() {
        Ok(Some(Value::Object(fields))) if fields.is_empty() => Vec::new(),
        Ok(Some(json)) => json.to_string().into_bytes(),
        Ok(None) | Err(_) => body.to_vec(),
    };
    let is_id = |text: &str| text.parse().is_ok_and(|id: Id| id.get() == stream.id());
    let parameters = request
        .path_parameters()
        .iter()
        .map(|(name, text)| (name, if is_id(text) { stream.id() } else { text.as_str() }));
    let path = as_json(parameters.collect::<BTreeMap<_, _>>()).to_string();
    Ok(hash([request.route().as_bytes(), path.as_bytes(), &command]))
}

fn drop_null_fields(json: Value) -> Value {
    match json {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name, drop_null_fields(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(drop_null_fields).collect(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

fn hash(parts: [&[u8]; 3]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let status = match refusal.kind() {
            RefusalKind::NotFound => StatusCode::NOT_FOUND,
            RefusalKind::AlreadyExists => StatusCode::CONFLICT,
            RefusalKind::Forbidden => StatusCode::FORBIDDEN,
            RefusalKind::Refused => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(ProblemType { code: refusal.code(), status }, refusal.detail())
    }
}

/// Maps a failed command to the client's problem. This is the only place where such failures become
/// HTTP.
fn problem(error: &ExecuteError, precondition: Option<&Precondition>) -> Problem {
    let condition = match precondition {
        Some(Precondition::Absent | Precondition::NoneOf(_)) => "If-None-Match",
        Some(Precondition::Exists | Precondition::OneOf(_)) | None => "If-Match",
    };
    match error {
        ExecuteError::Refused(refusal) => refusal.into(),
        ExecuteError::PreconditionFailed { version } => Problem {
            version: Some(*version),
            field: Some(condition.into()),
            ..Problem::new(
                PRECONDITION_FAILED,
                format!("the version is {version}, load it and decide again"),
            )
        },
        ExecuteError::Overtaken { version } => Problem {
            version: Some(*version),
            field: Some(condition.into()),
            ..Problem::new(
                OVERTAKEN,
                format!(
                    "another change was first, the version is {version} now: load it and decide again"
                ),
            )
        },
        ExecuteError::Contended => {
            Problem::new(CONTENDED, "other requests change this at the same time: retry")
        }
        ExecuteError::CommandIdReused => Problem {
            field: Some("Idempotency-Key".into()),
            ..Problem::new(
                IDEMPOTENCY_KEY_REUSED,
                "this Idempotency-Key was used for another request",
            )
        },
        ExecuteError::TooLarge { bytes, limit } => Problem::new(
            COMMIT_TOO_LARGE,
            format!("what this would store has {bytes} bytes, the limit is {limit}"),
        ),
        // A newer version of the program may have written a commit that this one cannot read. The
        // client retries, and reaches a newer instance once the deployment is complete.
        ExecuteError::Store(_) | ExecuteError::Load(_) => Problem::unavailable(),
        ExecuteError::Encode(_) => Problem::internal(),
    }
}

/// Logs the outcome of a command once, with stream and version and without its payload (rule 14).
/// The caller of this function logs a command that timed out. Returns the name of the outcome,
/// which is the label of the metric.
fn log<A: Aggregate>(
    stream: &StreamId,
    outcome: &Result<Outcome<A>, ExecuteError>,
) -> &'static str {
    let (name, version, code) = match outcome {
        Ok(Outcome::Committed(loaded)) => ("committed", Some(loaded.version), None),
        Ok(Outcome::Unchanged(loaded)) => ("unchanged", Some(loaded.version), None),
        Ok(Outcome::Repeated(_)) => ("repeated", None, None),
        Err(ExecuteError::Refused(refusal)) => ("refused", None, Some(refusal.code())),
        Err(ExecuteError::PreconditionFailed { version }) => {
            ("precondition failed", Some(*version), None)
        }
        Err(ExecuteError::Overtaken { version }) => ("overtaken", Some(*version), None),
        Err(ExecuteError::CommandIdReused | ExecuteError::TooLarge { .. }) => {
            ("invalid", None, None)
        }
        Err(ExecuteError::Contended) => ("contended", None, None),
        Err(error @ (ExecuteError::Load(_) | ExecuteError::Encode(_) | ExecuteError::Store(_))) => {
            tracing::error!(%stream, outcome = "failed", error = %Causes(error), "command");
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

#[cfg(test)]
mod tests;
