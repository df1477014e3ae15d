//! The application that ledgerline is tried with: tanks, which functions and views of its own take to HTTP and to tables.

use std::num::NonZeroUsize;

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use fastrand::Rng;
use ledgerline::{
    Aggregates, Cache, Changes, Commit, DecodeError, LogTable, StateTable, StreamId, Visitor, decode,
    tank::{CATEGORY, Command, Event, State, Status, Tank},
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    commands::{Commands, Routed, stream},
    fields::{Id, Text, nothing},
    http::{HttpRequest, Problem, Response, Routes},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    application::{Application, History, RETENTION_SECONDS},
    files::Files,
};

/// The one aggregate.
#[derive(Debug)]
pub struct Tanks;

impl Aggregates for Tanks {
    fn visit(visitor: &mut impl Visitor) {
        visitor.visit::<Tank>();
    }
}

macro_rules! event {
    ($path:literal) => {
        ($path, include_str!(concat!("../events/", $path)))
    };
}

/// Its sample events.
const EVENTS: [(&str, &str); 10] = [
    event!("fanout/commits.json"),
    event!("fanout/unreadable.json"),
    event!("fills-projector/commits.json"),
    event!("levels-projector/drawn.json"),
    event!("tank-commands/answers.md"),
    event!("tank-commands/draw.json"),
    event!("tank-commands/fill.json"),
    event!("tank-commands/install.json"),
    event!("tank-commands/invalid-amount.json"),
    event!("tank-commands/scrap.json"),
];

/// The application.
#[must_use]
pub fn application() -> Application {
    let shapes = Files::Embedded(&[("tank.json", ledgerline::tank::SHAPES)]);
    Application::of::<Tanks>("tanks", shapes, Files::Embedded(&EVENTS))
        .of_ledgerline()
        .aggregate::<Tank>(history, |state| state.level.to_string())
        .commands::<Tank>("tank-commands", route)
        .state_projector::<Tank, _>("LevelsTable", LEVELS, level)
        .state_projector::<Tank, _>("SitesTable", SITES, site)
        .log_projector("FillsTable", CATEGORY, FILLS, fills)
}

// --- Histories --------------------------------------------------------------------------------------------------

/// A tank that is installed, filled and drawn from, and scrapped if it happens to be empty.
pub(crate) fn history(name: &str, rng: &mut Rng) -> History<Tank> {
    let mut commands = vec![Command::Install { site: "North".into(), liquid: "water".into() }];
    for _ in 0..rng.u32(1..6) {
        let (amount, note) = (rng.i64(1..50), rng.bool().then(|| "rain".to_owned()));
        commands.push(match rng.bool() {
            true => Command::Fill { amount, note },
            false => Command::Draw { amount, note },
        });
    }
    commands.push(Command::Scrap);
    History { id: name.to_owned(), actor: "ada".into(), commands }
}

/// Commits of a tank with this level, each with its state.
#[must_use]
pub fn filled(id: &str, amount: i64) -> Vec<Commit> {
    let commands = vec![
        Command::Install { site: "North".into(), liquid: "water".into() },
        Command::Fill { amount, note: None },
    ];
    History::<Tank> { id: id.to_owned(), actor: "ada".into(), commands }.commits_with_states()
}

// --- The function that takes commands ----------------------------------------------------------------------------

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Install {
    #[serde(default)]
    tank_id: Option<Id>,
    site: Text<200>,
    liquid: Text<100>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Amount {
    amount: i64,
    #[serde(default)]
    note: Option<Text<140>>,
}

impl Amount {
    fn parts(self) -> Result<(i64, Option<String>), Problem> {
        if !(1..=ledgerline::tank::CAPACITY).contains(&self.amount) {
            return Err(Problem::field("amount", "it is a whole number of litres, from 1 to 2^53 - 1"));
        }
        Ok((self.amount, self.note.map(|note| note.0)))
    }
}

/// Reads a request.
///
/// # Errors
/// A problem that names the field.
pub fn route(request: &HttpRequest) -> Result<Routed<Tank>, Problem> {
    match request.route() {
        "POST /tanks" => {
            let Install { tank_id, site, liquid } = request.json()?;
            let id = tank_id.map_or_else(Uuid::now_v7, |Id(id)| id);
            Ok(Routed {
                stream: stream(CATEGORY, &id.to_string())?,
                command: Command::Install { site: site.0, liquid: liquid.0 },
                location: Some(format!("/tanks/{id}")),
                if_match_required: false,
                body: installed,
            })
        }
        "POST /tanks/{id}/fills" => {
            let (amount, note) = request.json::<Amount>()?.parts()?;
            change(request, Command::Fill { amount, note })
        }
        "POST /tanks/{id}/draws" => {
            let (amount, note) = request.json::<Amount>()?.parts()?;
            change(request, Command::Draw { amount, note })
        }
        "POST /tanks/{id}/scrap" => {
            nothing(request)?;
            change(request, Command::Scrap)
        }
        _ => Err(Problem::no_route()),
    }
}

fn change(request: &HttpRequest, command: Command) -> Result<Routed<Tank>, Problem> {
    let id = request.path_uuid("id")?;
    Ok(Routed {
        stream: stream(CATEGORY, &id.to_string())?,
        command,
        location: None,
        if_match_required: false,
        body: changed,
    })
}

fn installed(stream: &StreamId, _: &State, version: u64) -> Value {
    json!({ "tankId": stream.id(), "version": version })
}

fn changed(_: &StreamId, state: &State, version: u64) -> Value {
    json!({ "version": version, "level": state.level })
}

/// An instance of the function, cold.
#[must_use]
pub fn instance(store: &DynamoDbStore) -> Commands<Tank, DynamoDbStore> {
    let cache = Cache::new(NonZeroUsize::MIN.saturating_add(99));
    Commands { store: store.clone(), cache, retention: RETENTION_SECONDS, route }
}

/// What is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Method and path, with `{id}` for the tank.
    pub route: &'static str,
    /// The tank.
    pub tank: String,
    /// JSON.
    pub body: Value,
    /// The Idempotency-Key.
    pub key: Option<String>,
}

impl Sent {
    fn request(&self) -> Result<HttpRequest, serde_json::Error> {
        let path = self.route.split_once(' ').map_or("", |(_, path)| path).replace("{id}", &self.tank);
        let mut headers = serde_json::Map::new();
        headers.extend(self.key.clone().map(|key| ("idempotency-key".to_owned(), key.into())));
        let event = json!({
            "version": "2.0",
            "routeKey": self.route,
            "rawPath": path,
            "rawQueryString": "",
            "headers": headers,
            "pathParameters": { "id": self.tank },
            "requestContext": {
                "authorizer": { "jwt": { "claims": { "sub": "ada" } } },
                "http": { "method": "POST", "path": path },
                "requestId": "r",
                "timeEpoch": 0,
            },
            "body": self.body.to_string(),
            "isBase64Encoded": false,
        });
        serde_json::from_value::<ApiGatewayV2httpRequest>(event).map(HttpRequest::from)
    }

    /// Sends it to this instance.
    pub async fn to(&self, instance: &Commands<Tank, DynamoDbStore>) -> Response {
        match self.request() {
            Ok(request) => instance.handle(&request).await.unwrap_or_else(Response::from),
            Err(error) => Response::json(http::StatusCode::BAD_REQUEST, error.to_string().into()),
        }
    }
}

/// What a client sees of an answer, but for the note that it was given before.
#[must_use]
pub fn seen(response: &Response) -> String {
    let headers: Vec<_> = response
        .headers
        .iter()
        .filter(|(name, _)| name != "idempotent-replayed")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let body = response.body.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{} {} {body}", response.status.as_u16(), headers.join(", "))
}

// --- Views ------------------------------------------------------------------------------------------------------

/// Where the levels are.
pub const LEVELS: StateTable = StateTable { key: "tankId" };

/// What is in a tank.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Level {
    tank_id: String,
    site: String,
    level: i64,
    version: u64,
}

/// The row of a tank. One that was scrapped is shown no longer.
#[must_use]
pub fn level(id: &str, version: u64, state: State) -> Option<Level> {
    let State { status, site, level, liquid: _, installed_by: _ } = state;
    (status != Status::Scrapped).then(|| Level { tank_id: id.to_owned(), site, level, version })
}

/// Where the sites are.
pub const SITES: StateTable = StateTable { key: "tankId" };

/// Where a tank is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Site {
    tank_id: String,
    site: String,
    version: u64,
}

/// The row of a tank, which stays when it is scrapped.
#[must_use]
pub fn site(id: &str, version: u64, state: State) -> Option<Site> {
    Some(Site { tank_id: id.to_owned(), site: state.site, version })
}

/// Where the fills are.
pub const FILLS: LogTable = LogTable { partition: "tankId", sort: "entry" };

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fill {
    tank_id: String,
    entry: String,
    amount: i64,
}

/// What a commit adds to the list of what came in and went out, and to the sum of what came in.
///
/// # Errors
/// When an event of it cannot be read.
pub fn fills(commit: &Commit) -> Result<Changes, DecodeError> {
    let mut changes = Changes::new(FILLS);
    let id = commit.stream.id();
    for (place, event) in commit.events.iter().enumerate() {
        let amount = match decode::<Tank>(event)? {
            Event::TankFilled { amount, level: _, note: _, on: _ } => amount,
            Event::TankDrawn { amount, level: _, note: _, on: _ } => -amount,
            Event::TankInstalled { .. } | Event::TankMoved { .. } | Event::TankScrapped { .. } => continue,
        };
        let entry = format!("{:020}#{place:04}", commit.version);
        changes.put(&Fill { tank_id: id.to_owned(), entry, amount })?;
        if amount > 0 {
            changes.add(id, "sum", "filled", amount);
        }
    }
    Ok(changes)
}
