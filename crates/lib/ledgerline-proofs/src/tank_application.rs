//! The application on which the proofs try ledgerline: tanks, with a command function and with
//! views in tables.

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use fastrand::Rng;
use ledgerline::{
    Commit, StateTable, StateView,
    spec::valid,
    testing::tank::{self, Amount, Command, State, Tank, Tanks},
};
use ledgerline_lambda::http::{HttpRequest, Response};
use ledgerline_tank::{
    ANSWERS, EVENTS, commands,
    views::{FILLS_VIEW, LEVELS_VIEW},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    application::{Application, History},
    files::Files,
    subscriptions,
};

/// The application of tanks, on which the proofs try ledgerline.
#[must_use]
pub fn tanks() -> Application {
    let shapes = Files::Embedded(&[("tank.json", tank::SHAPES)]);
    Application::from_files::<Tanks>(
        "tanks",
        shapes,
        Files::Embedded(&EVENTS),
        Files::Embedded(&ANSWERS),
    )
    .builtin()
    .aggregate::<Tank>(history, |state| state.level().to_string())
    .commands("tank-commands", commands::tanks)
    .state_projector("LevelsTable", LEVELS_VIEW)
    .state_projector("SitesTable", SITES)
    .log_projector("FillsTable", FILLS_VIEW)
    .case(&[], subscriptions::case)
}

// --- Histories -----------------------------------------------------------------------------------

pub(crate) fn install() -> Command {
    Command::Install { site: valid("North"), liquid: valid("water") }
}

/// The commands to a tank that is installed, filled and drawn from. The last one scraps the tank if
/// it happens to be empty.
pub(crate) fn history(name: &str, rng: &mut Rng) -> History<Tank> {
    let mut commands = vec![install()];
    for _ in 0..rng.u32(1..6) {
        let amount =
            Amount { amount: valid(rng.i64(1..50)), note: rng.bool().then(|| valid("rain")) };
        commands.push(if rng.bool() { Command::Fill(amount) } else { Command::Draw(amount) });
    }
    commands.push(Command::Scrap);
    History { id: name.to_owned(), actor: "ada".into(), commands }
}

/// The commits of a tank that is installed and filled to this level, each with its state.
pub(crate) fn filled(id: &str, level: i64) -> Vec<Commit> {
    let commands = vec![install(), Command::Fill(Amount { amount: valid(level), note: None })];
    History::<Tank> { id: id.to_owned(), actor: "ada".into(), commands }.commits_with_states()
}

// --- Requests ------------------------------------------------------------------------------------

/// A request to the command function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sent {
    /// The method and the path, with `{id}` for the tank.
    pub(crate) route: &'static str,
    /// The id of the tank.
    pub(crate) tank: String,
    /// The body, as JSON.
    pub(crate) body: Value,
    /// The Idempotency-Key.
    pub(crate) key: Option<String>,
}

impl Sent {
    pub(crate) fn request(&self) -> HttpRequest {
        let mut headers = serde_json::Map::new();
        headers.extend(self.key.clone().map(|key| ("idempotency-key".to_owned(), key.into())));
        let fields = json!({
            "headers": headers, "pathParameters": { "id": self.tank }, "body": self.body.to_string(),
        });
        HttpRequest::from(ledgerline_testing::http_event::<ApiGatewayV2httpRequest>(
            self.route, fields,
        ))
    }
}

/// The answer as a client reads it, without the header that marks a stored response.
pub(crate) fn client_view(response: &Response) -> String {
    let headers: Vec<_> = response
        .headers
        .iter()
        .filter(|(name, _)| name != "idempotent-replayed")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let body = response.body.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{} {} {body}", response.status.as_u16(), headers.join(", "))
}

// --- Views ---------------------------------------------------------------------------------------

/// A view with the site of each tank.
pub(crate) const SITES: StateView<Tank, Site> = StateView {
    table: StateTable { variable: "SITES_TABLE", key: "tankId", indexes: &[] },
    row: site,
};

/// A row of the view of sites.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Site {
    tank_id: String,
    site: String,
    version: u64,
}

/// The row of a tank. It stays after the tank is scrapped.
pub(crate) fn site(id: &str, version: u64, state: State) -> Option<Site> {
    let site = state.as_installed()?.site.clone();
    Some(Site { tank_id: id.to_owned(), site, version })
}
