//! The aggregate that the rails are tested with, and an example of one: a tank that is installed at a site, filled, drawn
//! from, moved, and scrapped when it is empty. Only who installed it may change it.

use jiff::{civil::Date, tz::TimeZone};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Aggregate, Context, EventType, Rejection, RejectionKind};

// --- Id ---------------------------------------------------------------------------------------------------------

/// Streams are named `tank-<id>`.
pub const CATEGORY: &str = "tank";

/// What a tank holds at most, in litres: 2^53 - 1, what every JSON reader can hold exactly.
pub const CAPACITY: i64 = 9_007_199_254_740_991;

/// Every shape of its events and states that may be in some log, as `shapes/<category>.json` of an application has them.
pub const SHAPES: &str = include_str!("../shapes/tank.json");

// --- Events -----------------------------------------------------------------------------------------------------

/// What happened to a tank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum Event {
    /// The tank is there from now on.
    #[serde(rename_all = "camelCase")]
    TankInstalled {
        /// Where it is.
        site: String,
        /// What it holds. Schema 1 had none: every tank was for water.
        liquid: String,
        /// The subject of the caller, whose tank it is.
        installed_by: Option<String>,
        /// The day, in UTC.
        on: Date,
    },
    /// Something came in.
    TankFilled {
        /// Litres, above 0.
        amount: i64,
        /// What is in it afterwards, in litres.
        level: i64,
        /// Whatever the caller wanted to say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// The day, in UTC.
        on: Date,
    },
    /// Something went out.
    TankDrawn {
        /// Litres, above 0.
        amount: i64,
        /// What is in it afterwards, in litres.
        level: i64,
        /// Whatever the caller wanted to say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// The day, in UTC.
        on: Date,
    },
    /// It stands at another site.
    TankMoved {
        /// Where it is.
        site: String,
    },
    /// The tank takes no more changes.
    TankScrapped {
        /// The day, in UTC.
        on: Date,
    },
}

/// `TankInstalled` from schema 1 to 2: before the liquid was recorded, every tank was for water.
fn installed_for_water(mut data: Value) -> Value {
    if let Some(fields) = data.as_object_mut() {
        fields.entry("liquid").or_insert(json!("water"));
    }
    data
}

// --- State ------------------------------------------------------------------------------------------------------

/// What the rules need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Where the tank is in its life.
    pub status: Status,
    /// Where it is; empty before it is installed.
    pub site: String,
    /// What it holds; empty before it is installed.
    pub liquid: String,
    /// The subject of who installed it, whose tank it is.
    pub installed_by: Option<String>,
    /// Litres.
    pub level: i64,
}

/// Where a tank is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Nothing happened in this stream yet.
    Absent,
    /// It can be filled and drawn from.
    Installed,
    /// It takes nothing any more.
    Scrapped,
}

// --- Decisions --------------------------------------------------------------------------------------------------

/// What a client can ask of a tank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Install it.
    Install {
        /// Where it is.
        site: String,
        /// What it holds.
        liquid: String,
    },
    /// Fill something in.
    Fill {
        /// Litres, from 1 to [`CAPACITY`].
        amount: i64,
        /// Whatever the caller wants to say.
        note: Option<String>,
    },
    /// Take something out.
    Draw {
        /// Litres, from 1 to [`CAPACITY`].
        amount: i64,
        /// Whatever the caller wants to say.
        note: Option<String>,
    },
    /// Move it. Nothing happens where it stands there already.
    Move {
        /// Where to.
        site: String,
    },
    /// Scrap it.
    Scrap,
}

/// Why a command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such tank.
    #[error("there is no such tank")]
    Unknown,
    /// The id is taken.
    #[error("a tank with this id exists already")]
    AlreadyInstalled,
    /// The tank belongs to somebody else.
    #[error("the tank belongs to somebody else")]
    NotYours,
    /// The tank is scrapped.
    #[error("the tank is scrapped")]
    Scrapped,
    /// There is less in it.
    #[error("the level of {level} does not cover {amount}")]
    TooLittle {
        /// What there is, in litres.
        level: i64,
        /// What was asked for, in litres.
        amount: i64,
    },
    /// There is no room for so much.
    #[error("the level would pass {CAPACITY}")]
    Full,
    /// Only an empty tank is scrapped.
    #[error("the level is {level}, a tank is scrapped at 0")]
    NotEmpty {
        /// What there is, in litres.
        level: i64,
    },
}

impl Rejection for Refusal {
    fn kind(&self) -> RejectionKind {
        match self {
            Self::Unknown => RejectionKind::NotFound,
            Self::AlreadyInstalled => RejectionKind::AlreadyExists,
            Self::NotYours => RejectionKind::Forbidden,
            Self::Scrapped | Self::TooLittle { .. } | Self::Full | Self::NotEmpty { .. } => {
                RejectionKind::Refused
            }
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown-tank",
            Self::AlreadyInstalled => "tank-exists",
            Self::NotYours => "not-your-tank",
            Self::Scrapped => "tank-scrapped",
            Self::TooLittle { .. } => "too-little",
            Self::Full => "tank-full",
            Self::NotEmpty { .. } => "tank-not-empty",
        }
    }
}

fn changed(state: &State, command: &Command, actor: Option<&str>, on: Date) -> Result<Vec<Event>, Refusal> {
    match state.status {
        Status::Absent => return Err(Refusal::Unknown),
        // What nobody installed is nobody's, also not that of a caller without a name.
        Status::Installed | Status::Scrapped if actor.is_none() || state.installed_by.as_deref() != actor => {
            return Err(Refusal::NotYours);
        }
        Status::Scrapped => return Err(Refusal::Scrapped),
        Status::Installed => {}
    }
    let level = state.level;
    let event = match command {
        Command::Install { .. } => return Err(Refusal::AlreadyInstalled),
        Command::Fill { amount, .. } if *amount > CAPACITY - level => return Err(Refusal::Full),
        Command::Fill { amount, note } => {
            Event::TankFilled { amount: *amount, level: level + amount, note: note.clone(), on }
        }
        Command::Draw { amount, .. } if *amount > level => {
            return Err(Refusal::TooLittle { level, amount: *amount });
        }
        Command::Draw { amount, note } => {
            Event::TankDrawn { amount: *amount, level: level - amount, note: note.clone(), on }
        }
        Command::Move { site } if *site == state.site => return Ok(Vec::new()),
        Command::Move { site } => Event::TankMoved { site: site.clone() },
        Command::Scrap if level != 0 => return Err(Refusal::NotEmpty { level }),
        Command::Scrap => Event::TankScrapped { on },
    };
    Ok(vec![event])
}

/// The tank aggregate.
#[derive(Debug)]
pub struct Tank;

impl Aggregate for Tank {
    const CATEGORY: &'static str = CATEGORY;
    const STATE_SCHEMA: u32 = 1;
    const EVENTS: &'static [EventType] = &[
        EventType { name: "TankInstalled", upcasters: &[installed_for_water] },
        EventType::new("TankFilled"),
        EventType::new("TankDrawn"),
        EventType::new("TankMoved"),
        EventType::new("TankScrapped"),
    ];

    type State = State;
    type Event = Event;
    type Command = Command;
    type Rejection = Refusal;

    fn initial() -> State {
        State {
            status: Status::Absent,
            site: String::new(),
            liquid: String::new(),
            installed_by: None,
            level: 0,
        }
    }

    fn evolve(state: State, event: &Event) -> State {
        match event {
            Event::TankInstalled { site, liquid, installed_by, on: _ } => State {
                status: Status::Installed,
                site: site.clone(),
                liquid: liquid.clone(),
                installed_by: installed_by.clone(),
                ..state
            },
            Event::TankFilled { level, amount: _, note: _, on: _ }
            | Event::TankDrawn { level, amount: _, note: _, on: _ } => State { level: *level, ..state },
            Event::TankMoved { site } => State { site: site.clone(), ..state },
            Event::TankScrapped { on: _ } => State { status: Status::Scrapped, ..state },
        }
    }

    fn decide(state: &State, command: &Command, context: &Context) -> Result<Vec<Event>, Refusal> {
        let on = context.at.to_zoned(TimeZone::UTC).date();
        let actor = context.actor.as_deref();
        match (command, state.status) {
            (Command::Install { site, liquid }, Status::Absent) => Ok(vec![Event::TankInstalled {
                site: site.clone(),
                liquid: liquid.clone(),
                installed_by: actor.map(Into::into),
                on,
            }]),
            (Command::Install { .. }, Status::Installed | Status::Scrapped) => Err(Refusal::AlreadyInstalled),
            (
                Command::Fill { .. } | Command::Draw { .. } | Command::Move { .. } | Command::Scrap,
                Status::Absent | Status::Installed | Status::Scrapped,
            ) => changed(state, command, actor, on),
        }
    }
}
