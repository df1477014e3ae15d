//! The routes of commands.

use ledgerline::{
    Id, StreamId,
    testing::tank::{self, Command, Liquid, Litres, Site, Tank},
};
use ledgerline_lambda::commands::{Route, action, create, republish_state, update};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::haul::{self, Haul};

/// The body that installs a tank. Without an id, the tank gets a new one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
        create("POST /tanks", install, installed),
        update("POST /tanks/{id}/fills", Command::Fill, changed),
        update("POST /tanks/{id}/draws", Command::Draw, changed),
        action("POST /tanks/{id}/scrap", || Command::Scrap, changed),
        republish_state("POST /tanks/{id}/replays", changed),
    ]
}

fn installed(stream: &StreamId, _: &tank::State, version: u64) -> Value {
    json!({ "tankId": stream.id(), "version": version })
}

fn changed(_: &StreamId, state: &tank::State, version: u64) -> Value {
    json!({ "version": version, "level": state.level() })
}

/// The body that requests a haul. Without an id, the haul gets a new one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
    vec![create("POST /hauls", request, requested)]
}

fn requested(stream: &StreamId, state: &haul::State, version: u64) -> Value {
    json!({ "haulId": stream.id(), "phase": state.phase, "version": version })
}
