//! The routes of commands.

use ledgerline::{
    Id, StreamId,
    testing::tank::{self, Command, Liquid, Litres, Site, Tank},
};
use ledgerline_lambda::commands::{Route, action, create, republish_state, update};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::haul::{self, Haul};

/// The body that installs a tank. Without an id, the tank gets a new one.
#[derive(Debug, JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "InstallTank")]
pub struct Install {
    /// The id of the tank.
    #[serde(default)]
    pub tank_id: Option<Id>,
    /// The site.
    pub site: Site,
    /// The liquid.
    pub liquid: Liquid,
}

/// The routes of tanks.
#[must_use]
pub fn tanks() -> Vec<Route<Tank>> {
    let install = |Install { tank_id, site, liquid }| (tank_id, Command::Install { site, liquid });
    vec![
        create("POST /tanks", install, answer_installed),
        update("POST /tanks/{id}/fills", Command::Fill, answer_changed),
        update("POST /tanks/{id}/draws", Command::Draw, answer_changed),
        action("POST /tanks/{id}/scrap", || Command::Scrap, answer_changed),
        republish_state("POST /tanks/{id}/republications", answer_changed),
    ]
}

/// The answer to a request that installs a tank.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct TankInstalled {
    tank_id: String,
    version: u64,
}

/// The answer to a change of a tank.
#[derive(JsonSchema, Serialize)]
struct TankChanged {
    version: u64,
    /// The level after the change, in litres.
    level: i64,
}

fn answer_installed(stream: &StreamId, _: &tank::State, version: u64) -> TankInstalled {
    TankInstalled { tank_id: stream.id().to_owned(), version }
}

fn answer_changed(_: &StreamId, state: &tank::State, version: u64) -> TankChanged {
    TankChanged { version, level: state.level() }
}

/// The body that requests a haul. Without an id, the haul gets a new one.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "RequestHaul")]
struct Request {
    #[serde(default)]
    haul_id: Option<Id>,
    from_tank_id: Id,
    to_tank_id: Id,
    amount: Litres,
}

/// The routes of hauls.
#[must_use]
pub fn hauls() -> Vec<Route<Haul>> {
    let request = |Request { haul_id, from_tank_id: from, to_tank_id: to, amount }| {
        (haul_id, haul::Command::Request { from, to, amount })
    };
    vec![create("POST /hauls", request, answer_requested)]
}

/// The answer to a request for a haul.
#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct HaulRequested {
    haul_id: String,
    phase: haul::Phase,
    version: u64,
}

fn answer_requested(stream: &StreamId, state: &haul::State, version: u64) -> HaulRequested {
    HaulRequested { haul_id: stream.id().to_owned(), phase: state.phase, version }
}
