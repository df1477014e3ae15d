//! The runner of `GET /events`: the function that returns commits of all streams, in the order of
//! `$all`.
//!
//! * `?after=` is a cursor of an earlier response, `beginning`, `now`, or a time.
//! * `?category=` and `?type=` filter the commits; each may be given several times.
//! * `?limit=` is the largest number of commits in a page.
//! * `?wait=` is the number of seconds that the function waits for a commit before it returns none.

use std::{collections::BTreeSet, time::Duration};

use http::StatusCode;
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Aggregates, Causes, Commit, EventType, EventTypes, RecordedEvent, StoreError,
    StreamId, Visitor,
    all::{Cursor, CursorError, Delivered, Entry, Filter, Page, Subscription, SubscriptionError},
    manifest::{Endpoint, Manifest, Scope, Source},
};
use ledgerline_dynamodb::DynamoDbStore;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

#[cfg(feature = "schema")]
use crate::route_descriptions::{self, Described, RouteKind};
use crate::{
    config,
    failure::Error,
    http::{HttpRequest, MAX_ANSWER_BYTES, Problem, Response, Routes, as_json, encoded_bytes},
    start::sdk_config,
    table_grants,
};

/// The route.
const ROUTE: &str = "GET /events";
/// The number of commits in a page, if the request has no `limit`.
const DEFAULT_LIMIT: usize = 100;
/// The largest number of commits in a page.
const MAX_LIMIT: usize = 1_000;
/// The longest wait, in seconds. The HTTP API waits for a function for thirty seconds at most.
const MAX_WAIT: u64 = 20;
/// The pause between two reads while a request waits for a commit. Each read costs a read unit
/// for each 4 KB of the newest batch.
const POLL_PAUSE: Duration = Duration::from_millis(500);
/// The largest number of values of a filter.
const MAX_VALUES: usize = 50;

/// The parts of the function.
#[derive(Debug)]
pub struct Events {
    sequence: DynamoDbStore,
    log: DynamoDbStore,
    names: Names,
}

/// The names that a filter may have. Without this check, a client would poll a misspelled name for
/// ever.
#[derive(Debug, Default)]
struct Names {
    categories: BTreeSet<&'static str>,
    types: Vec<&'static EventType>,
}

impl Names {
    fn new<L: Aggregates>() -> Self {
        let mut names = Self::default();
        L::visit(&mut names);
        names
    }
}

impl Visitor for Names {
    fn visit<A: Aggregate>(&mut self) {
        self.categories.insert(A::CATEGORY);
        self.types.extend(A::Event::TYPES);
    }
}

/// Runs the function that returns commits.
///
/// ```no_run
/// use ledgerline::{Aggregates, Visitor, testing::tank::Tank};
/// struct All;
///
/// impl Aggregates for All {
///     fn visit(visitor: &mut impl Visitor) {
///         visitor.visit::<Tank>();
///     }
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::events::run::<All>().await
/// }
/// ```
///
/// # Errors
/// When `COMMITS_TABLE` or `SEQUENCE_TABLE` is missing, or the log cannot be read. When a variable
/// of [`http::run`](crate::http::run) is missing or wrong.
pub async fn run<L: Aggregates>() -> Result<(), Error> {
    #[cfg(feature = "schema")]
    if crate::start::operations_requested() {
        let kind = RouteKind::Unconditional;
        return route_descriptions::print([(
            ROUTE,
            Scope::Events,
            kind,
            &describe(&Names::new::<L>()),
        )]);
    }
    let endpoint = Endpoint { route: ROUTE.into(), scope: Scope::Events };
    let manifest = table_grants::reader_of_sequence(Manifest::new(Source::Http(vec![endpoint])));
    crate::http::run(manifest, async || {
        let sdk = sdk_config().await;
        let client = aws_sdk_dynamodb::Client::new(&sdk);
        let sequence =
            DynamoDbStore::new(client.clone(), config::text(table_grants::SEQUENCE_TABLE)?);
        Ok(Events::new::<L>(sequence, crate::start::store(&sdk, client).await?))
    })
    .await
}

impl Events {
    /// Creates the parts for the commits of this log, in the order of this `$all`, which belong to
    /// these aggregates.
    #[must_use]
    pub fn new<L: Aggregates>(sequence: DynamoDbStore, log: DynamoDbStore) -> Self {
        Self { sequence, log, names: Names::new::<L>() }
    }
}

/// The place after which a request wants commits.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Start {
    Now,
    Time(Timestamp),
    Cursor(Cursor),
}

impl Start {
    /// Reads `after` from the request.
    fn from_request(request: &HttpRequest) -> Result<Self, Problem> {
        match request.query("after")?.as_deref() {
            None | Some("beginning") => Ok(Self::Cursor(Cursor::beginning())),
            Some("now") => Ok(Self::Now),
            Some(text) => match text.parse() {
                Ok(time) => Ok(Self::Time(time)),
                Err(_) if is_like_a_time(text) => Err(Problem::field(
                    "after",
                    "the time cannot be read: write it like 2026-11-24T09:30:00Z, and a + as %2B",
                )),
                Err(_) => text.parse().map(Self::Cursor).map_err(|error| cursor_problem(&error)),
            },
        }
    }
}

/// Whether the text begins with a year, a dash and a digit. No cursor begins like that.
fn is_like_a_time(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.by_ref().take(4).filter(u8::is_ascii_digit).count() == 4
        && bytes.next() == Some(b'-')
        && bytes.next().is_some_and(|byte| byte.is_ascii_digit())
}

/// Reads the filter of a request. A type has events under each of its names.
fn filter(request: &HttpRequest, known: &Names) -> Result<Filter, Problem> {
    let values = |name: &str| {
        let values = request.query_values(name)?;
        if values.len() > MAX_VALUES || values.iter().any(String::is_empty) {
            let detail = format!("{name} is a name, and is given at most {MAX_VALUES} times");
            return Err(Problem::field(name, detail));
        }
        Ok(values)
    };
    let unknown = |field: &str, known: Vec<&str>| {
        Problem::field(field, format!("there is no such {field}; there are: {}", known.join(", ")))
    };
    let categories = values("category")?;
    if categories.iter().any(|category| !known.categories.contains(category.as_str())) {
        return Err(unknown("category", known.categories.iter().copied().collect()));
    }
    let mut events = BTreeSet::new();
    for wanted in values("type")? {
        let of_type: Vec<_> =
            known.types.iter().copied().filter(|known| known.has_name(&wanted)).collect();
        if of_type.is_empty() {
            return Err(unknown("type", known.types.iter().map(|known| known.name).collect()));
        }
        events.extend(of_type.into_iter().flat_map(EventType::names).map(ToOwned::to_owned));
    }
    Ok(Filter { categories, events })
}

impl Routes for Events {
    async fn handle(&self, request: &HttpRequest) -> Result<Response, Problem> {
        if request.route() != ROUTE {
            return Err(Problem::no_route());
        }
        request.actor()?;
        request.check_parameters(&["after", "limit", "wait"], &["category", "type"])?;
        let limit = request.query_number("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
        let wait = Duration::from_secs(request.query_number("wait", 0..=MAX_WAIT)?.unwrap_or(0));
        let subscription = Subscription {
            sequence: self.sequence.clone(),
            log: self.log.clone(),
            filter: filter(request, &self.names)?,
            limit,
        };
        let mut cursor = match Start::from_request(request)? {
            Start::Cursor(cursor) => cursor,
            Start::Now => {
                let end = subscription.cursor_at_end().await;
                let end = end.map_err(|error| store_problem(&error))?;
                // A page would have the commits that the sequencer adds between the two reads,
                // although they are older than the request.
                if wait.is_zero() {
                    let delivered = Vec::new();
                    return Ok(answer(Page { delivered, cursor: end, complete: true, entries: 0 }));
                }
                end
            }
            Start::Time(time) => {
                subscription.cursor_at(time).await.map_err(|error| store_problem(&error))?
            }
        };
        let deadline = Instant::now() + wait;
        loop {
            let page = subscription
                .read_page(cursor)
                .await
                .map_err(|error| subscription_problem(&error))?;
            let is_over = Instant::now() >= deadline;
            // If the filter left out all entries of a page, the read continues after it. So a wait
            // ends at a new commit.
            if !page.delivered.is_empty() || is_over {
                return Ok(answer(page));
            }
            let pause = if page.complete { POLL_PAUSE } else { Duration::ZERO };
            cursor = page.cursor;
            sleep_until(deadline.min(Instant::now() + pause)).await;
        }
    }
}

fn answer(page: Page) -> Response {
    let Page { delivered, mut cursor, mut complete, entries: _ } = page;
    let (mut commits, mut bytes, mut last) = (Vec::new(), 0, None);
    for Delivered { entry, commit, at: _, cursor: place } in delivered {
        let unreadable = |reason| {
            let Entry { stream, version } = &entry;
            tracing::error!(%stream, version, reason, "a commit cannot be read");
            as_json(Unreadable { stream: stream.clone(), version: *version, unreadable: reason })
        };
        let shown = commit.and_then(|commit| ShownCommit::json(&commit));
        let mut shown = shown.unwrap_or_else(unreadable);
        let mut size = encoded_bytes(&shown);
        if size > MAX_ANSWER_BYTES {
            // Otherwise every later commit would stay behind this one.
            shown = unreadable(format!(
                "its {size} bytes do not fit into an answer of {MAX_ANSWER_BYTES} bytes"
            ));
            size = encoded_bytes(&shown);
        }
        bytes += size;
        if let Some(last) = last.take_if(|_| bytes > MAX_ANSWER_BYTES) {
            (cursor, complete) = (last, false);
            break;
        }
        commits.push(shown);
        last = Some(place);
    }
    let cursor = cursor.to_string();
    let body = serde_json::json!({ "commits": commits, "cursor": cursor, "complete": complete });
    Response::json(StatusCode::OK, body)
}

/// Describes the route for the contract. The names of categories and event types are in its
/// schemas, because the function refuses any other name.
#[cfg(feature = "schema")]
fn describe(names: &Names) -> Described {
    use ledgerline::api::Occurs::{Optional, Several};
    use schemars::{SchemaGenerator, json_schema};

    let categories: Vec<_> = names.categories.iter().copied().collect();
    let types: Vec<_> = names.types.iter().flat_map(|known| known.names()).collect();
    let page = |generator: &mut SchemaGenerator| {
        let (commit, unreadable) =
            (generator.subschema_for::<ShownCommit>(), generator.subschema_for::<Unreadable>());
        json_schema!({
            "type": "object",
            "description": "Commits of all streams, in one order.",
            "properties": {
                "commits": { "type": "array", "items": { "anyOf": [commit, unreadable] } },
                "cursor": { "type": "string", "description": "The `after` of the next request." },
                "complete": {
                    "type": "boolean",
                    "description": "Whether there were no more commits when the function read.",
                },
            },
            "required": ["commits", "cursor", "complete"],
        })
    };
    Described::default()
        .query_by("after", Optional, |_| {
            json_schema!({
                "type": "string",
                "description": "A cursor of an earlier answer, `beginning`, `now`, or a time such as \
                                2026-11-24T09:30:00Z.",
                "examples": ["beginning"],
            })
        })
        .query_by("category", Several, move |_| {
            json_schema!({ "type": "string", "enum": categories })
        })
        .query_by("type", Several, move |_| json_schema!({ "type": "string", "enum": types }))
        .query::<ledgerline::Number<1, { MAX_LIMIT as i64 }>>("limit", Optional)
        .query::<ledgerline::Number<0, { MAX_WAIT as i64 }>>("wait", Optional)
        .answer_by(page)
}

/// A commit that the function cannot show.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Unreadable {
    stream: StreamId,
    version: u64,
    /// The reason, without the content of the commit.
    unreadable: String,
}

/// A commit in a response. It leaves out the state, which is a cache, and the origin of the
/// command.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Commit"))]
#[serde(rename_all = "camelCase")]
struct ShownCommit {
    stream: StreamId,
    version: u64,
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    causation_id: Option<String>,
    events: Vec<ShownEvent>,
}

/// An event in its stored form.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CommitEvent"))]
struct ShownEvent {
    r#type: String,
    schema: u32,
    data: Value,
}

impl ShownCommit {
    /// Returns the commit, or the reason why it cannot be shown, without its content (rule 14).
    fn json(commit: &Commit) -> Result<Value, String> {
        let event = |RecordedEvent { event_type, schema, data }: &RecordedEvent| {
            let data = serde_json::from_str(data).map_err(|_| "an event is not JSON".to_owned())?;
            let shown =
                ShownEvent { r#type: event_type.clone(), schema: *schema, data: Value::Null };
            let mut shown = serde_json::to_value(shown).map_err(|error| error.to_string())?;
            shown["data"] = data;
            Ok::<_, String>(shown)
        };
        let shown = Self {
            stream: commit.stream.clone(),
            version: commit.version,
            at: commit.at,
            actor: commit.meta.actor.clone(),
            correlation_id: commit.meta.correlation_id.clone(),
            causation_id: commit.meta.causation_id.clone(),
            events: Vec::new(),
        };
        let mut shown = serde_json::to_value(shown).map_err(|error| error.to_string())?;
        // Each payload is moved: a second tree of a large one would take the memory of the function.
        shown["events"] = commit.events.iter().map(event).collect::<Result<_, _>>()?;
        Ok(shown)
    }
}

fn cursor_problem(error: &CursorError) -> Problem {
    Problem::field("after", error.to_string())
}

fn subscription_problem(error: &SubscriptionError) -> Problem {
    match error {
        SubscriptionError::Cursor(error) => cursor_problem(error),
        SubscriptionError::Store(error) => store_problem(error),
    }
}

fn store_problem(error: &StoreError) -> Problem {
    match error {
        StoreError::Throttled(_) => Problem::unavailable(),
        StoreError::Unavailable(_) => {
            tracing::error!(error = %Causes(error), "events");
            Problem::unavailable()
        }
        StoreError::Corrupt { .. } | StoreError::PayloadElsewhere { .. } => {
            tracing::error!(error = %Causes(error), "events");
            Problem::internal()
        }
    }
}

#[cfg(test)]
mod tests {
    use ledgerline::{all::Cursor, contract::commit};

    use super::*;

    #[test]
    fn a_commit_that_is_too_large_for_an_answer_is_named_and_blocks_no_other() {
        let delivered = (1..=3).map(|version| {
            let mut commit = commit(&StreamId::new("tank", "north").unwrap(), version);
            if version == 2 {
                // Each quote has four characters in the answer.
                commit.events[0].data = format!("[{}0]", r#""","#.repeat(1_100_000));
            }
            let entry = Entry { stream: commit.stream.clone(), version };
            let (at, cursor) = (commit.at, Cursor::beginning());
            Delivered { entry, commit: Ok(commit), at, cursor }
        });
        let (delivered, cursor) = (delivered.collect(), Cursor::beginning());
        let body = answer(Page { delivered, cursor, complete: true, entries: 3 }).body.unwrap();
        let [first, second, third] = [0, 1, 2].map(|place| &body["commits"][place]);
        assert_eq!((&first["version"], &third["version"]), (&1.into(), &3.into()));
        let reason = second["unreadable"].as_str().unwrap();
        assert!(second["version"] == 2 && reason.contains("do not fit into an answer"), "{reason}");
        assert_eq!(body["complete"], true);
    }
}
