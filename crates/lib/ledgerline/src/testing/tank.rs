//! The aggregate that the libraries are tested with, and an example of one. A tank is installed at
//! a site, filled, drawn from, moved, and scrapped when it is empty. Only the caller that installed
//! it may change it.

use jiff::{civil::Date, tz::TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Aggregate, Aggregates, Context, LongText, Refusal, Text, Visitor, with_field};

// --- Values --------------------------------------------------------------------------------------

/// The most litres that a tank holds: 2^53 - 1, the largest whole number that every JSON reader
/// holds exactly.
pub(crate) const CAPACITY: i64 = 9_007_199_254_740_991;

crate::value_object! {
    /// An amount in litres, from 1 to 2^53 - 1.
    pub struct Litres(i64),
    |litres| (1..=CAPACITY).contains(&litres).then_some(litres),
    format!("an amount is a whole number of litres from 1 to {CAPACITY}"),
    { "minimum": 1, "maximum": CAPACITY }
}

/// The site where a tank is.
pub type Site = Text<4_000>;

/// The liquid that a tank holds.
pub type Liquid = Text<100>;

/// A free text of the caller, so long that tests can make commits that are too large.
pub(crate) type Note = LongText<200_000>;

/// Every shape of its events and states that a log may have, in the form of an application's
/// `shapes/<category>.json`.
pub const SHAPES: &str = include_str!("../../shapes/tank.json");

// --- Events --------------------------------------------------------------------------------------

crate::events! {
    /// The events of a tank.
    pub enum Event {
        /// The tank exists from now on, and belongs to the caller. In schema 1 every tank was for
        /// water.
        TankInstalled: 2 [for_water] { site: String, liquid: String, installed_by: Option<String>, on: Date },
        /// An amount of litres was filled in. `level` is the level after it.
        TankFilled: 1 {
            amount: i64,
            level: i64,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            note: Option<String>,
            on: Date,
        },
        /// An amount of litres was drawn. `level` is the level after it.
        TankDrawn: 1 {
            amount: i64,
            level: i64,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            note: Option<String>,
            on: Date,
        },
        /// The tank is at another site from now on.
        TankMoved: 1 { site: String },
        /// The tank accepts no more changes.
        TankScrapped: 1 { on: Date },
    }
}

/// Upcasts `TankInstalled` from schema 1 to 2.
fn for_water(data: Value) -> Value {
    with_field(data, "liquid", "water")
}

// --- State ---------------------------------------------------------------------------------------

/// The state of a tank: not installed, installed or scrapped.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum State {
    /// Nothing happened in this stream yet.
    #[default]
    Absent,
    /// The tank can be filled and drawn from.
    Installed(Installed),
    /// The tank accepts no more changes.
    Scrapped(Installed),
}

/// The facts that the rules need about a tank that was installed.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    /// The site.
    pub site: String,
    /// The liquid.
    pub liquid: String,
    /// The subject of the caller that installed the tank and owns it.
    pub installed_by: Option<String>,
    /// The level in litres.
    pub level: i64,
}

impl State {
    /// Returns the facts about the tank; `None` if it was never installed.
    pub fn as_installed(&self) -> Option<&Installed> {
        match self {
            Self::Absent => None,
            Self::Installed(tank) | Self::Scrapped(tank) => Some(tank),
        }
    }

    /// Returns the level in litres; 0 if the tank was never installed.
    pub fn level(&self) -> i64 {
        self.as_installed().map_or(0, |tank| tank.level)
    }

    /// Returns the same state with a change in the facts about the tank.
    fn change(self, change: impl FnOnce(Installed) -> Installed) -> Self {
        match self {
            Self::Absent => Self::Absent,
            Self::Installed(tank) => Self::Installed(change(tank)),
            Self::Scrapped(tank) => Self::Scrapped(change(tank)),
        }
    }
}

// --- Decisions -----------------------------------------------------------------------------------

/// The commands that a client can send to a tank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Install it.
    Install {
        /// The site.
        site: Site,
        /// The liquid.
        liquid: Liquid,
    },
    /// Fill in an amount.
    Fill(Amount),
    /// Draw an amount.
    Draw(Amount),
    /// Move it. A move to its own site causes no event.
    Move(Site),
    /// Scrap it.
    Scrap,
}

/// The amount that is filled in or drawn, and a note.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// The amount.
    pub amount: Litres,
    /// A free text of the caller.
    #[serde(default)]
    pub note: Option<Note>,
}

crate::refusals! {
    /// No such tank.
    UNKNOWN = not_found("unknown-tank", "there is no such tank");
    /// The id is taken.
    EXISTS = already_exists("tank-exists", "a tank with this id exists already");
    /// The tank belongs to another caller.
    NOT_YOURS = forbidden("not-your-tank", "the tank belongs to somebody else");
    /// The tank is scrapped.
    SCRAPPED = refused("tank-scrapped", "the tank is scrapped");
    /// The tank has less than the amount.
    TOO_LITTLE = refused("too-little", "the level does not cover the amount");
    /// The tank has no room for the amount.
    FULL = refused("tank-full", "the level would pass 9007199254740991");
    /// Only an empty tank is scrapped.
    NOT_EMPTY = refused("tank-not-empty", "a tank is scrapped at 0");
}

/// Returns the tank, if this caller may change it.
fn yours<'a>(state: &'a State, context: &Context) -> Result<&'a Installed, Refusal> {
    let tank = state.as_installed().ok_or(UNKNOWN)?;
    if !context.is_owner(tank.installed_by.as_deref()) {
        return Err(NOT_YOURS);
    }
    if matches!(state, State::Scrapped(_)) { Err(SCRAPPED) } else { Ok(tank) }
}

/// The tank aggregate.
#[derive(Debug)]
pub struct Tank;

/// The aggregates of an application whose only one is the tank.
#[derive(Debug)]
pub struct Tanks;

impl Aggregates for Tanks {
    fn visit(visitor: &mut impl Visitor) {
        visitor.visit::<Tank>();
    }
}

impl Aggregate for Tank {
    const CATEGORY: &'static str = "tank";
    const STATE_SCHEMA: u32 = 1;
    const REFUSALS: &'static [Refusal] = REFUSALS;

    type State = State;
    type Event = Event;
    type Command = Command;

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::TankInstalled { site, liquid, installed_by, on: _ } => {
                State::Installed(Installed {
                    site: site.clone(),
                    liquid: liquid.clone(),
                    installed_by: installed_by.clone(),
                    level: 0,
                })
            }
            Event::TankFilled { level, amount: _, note: _, on: _ }
            | Event::TankDrawn { level, amount: _, note: _, on: _ } => {
                state.change(|tank| Installed { level: *level, ..tank })
            }
            Event::TankMoved { site } => {
                state.change(|tank| Installed { site: site.clone(), ..tank })
            }
            Event::TankScrapped { on: _ } => match state {
                State::Installed(tank) | State::Scrapped(tank) => State::Scrapped(tank),
                State::Absent => State::Absent,
            },
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let on = context.at.to_zoned(TimeZone::UTC).date();
        let tank = yours(state, context);
        let event = match command {
            Command::Install { .. } if *state != State::Absent => return Err(EXISTS),
            Command::Install { site, liquid } => Event::TankInstalled {
                site: site.to_string(),
                liquid: liquid.to_string(),
                installed_by: context.actor.clone(),
                on,
            },
            Command::Fill(Amount { amount, note }) => {
                let (level, amount, note) =
                    (tank?.level, *amount.get(), note.as_ref().map(ToString::to_string));
                if amount > CAPACITY - level {
                    return Err(FULL);
                }
                Event::TankFilled { amount, level: level + amount, note, on }
            }
            Command::Draw(Amount { amount, note }) => {
                let (level, amount, note) =
                    (tank?.level, *amount.get(), note.as_ref().map(ToString::to_string));
                if amount > level {
                    let detail = format_args!("the level of {level} does not cover {amount}");
                    return Err(TOO_LITTLE.with_detail(detail));
                }
                Event::TankDrawn { amount, level: level - amount, note, on }
            }
            Command::Move(site) => {
                if tank?.site == *site.get() {
                    return Ok(Vec::new());
                }
                Event::TankMoved { site: site.to_string() }
            }
            Command::Scrap => match tank?.level {
                0 => Event::TankScrapped { on },
                level => {
                    return Err(NOT_EMPTY.with_detail(format_args!(
                        "the level is {level}, a tank is scrapped at 0"
                    )));
                }
            },
        };
        Ok(vec![event])
    }
}
