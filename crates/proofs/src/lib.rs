//! Tries to lose an event, and to apply one twice. Everything here runs the real code: the store's adapter and the SDK
//! over a wire that misbehaves, the real handlers, the real guards. docs/guarantees.md says what it is good for.

pub mod bank;
pub mod commits;
pub mod crashes;
pub mod delivery;
pub mod dynamics;
pub mod evolution;
pub mod histories;
pub mod inputs;
pub mod limits;
pub mod masks;
pub mod model;
pub mod pipeline;
pub mod planted;
pub mod replies;
pub mod services;
pub mod wire;
pub mod world;

use std::fmt;

/// Something that is tried.
#[derive(Debug)]
pub struct Proof {
    /// Its number in docs/guarantees.md.
    pub number: u8,
    /// What is tried, in a few words.
    pub name: &'static str,
    /// Whether it consists of runs, each with a seed of its own; else it tries everything there is.
    pub seeded: bool,
    /// Tries it.
    pub run: fn(&Effort) -> Result<Tried, Finding>,
}

impl Proof {
    /// How to see the finding again.
    #[must_use]
    pub fn again(&self, finding: &Finding) -> String {
        let command = format!("cargo run --release -p proofs -- --only {}", self.number);
        match self.seeded {
            true => format!("Again: {command} --seed {} --runs 1", finding.seed),
            false => format!("Again: {command}"),
        }
    }
}

/// Everything that is tried.
pub const PROOFS: [Proof; 11] = [
    Proof { number: 1, name: "Concurrent histories are linearizable", seeded: true, run: histories::proof },
    Proof {
        number: 2,
        name: "The check of histories finds planted bugs",
        seeded: false,
        run: histories::honesty,
    },
    Proof { number: 3, name: "A lost answer is given again", seeded: true, run: replies::proof },
    Proof { number: 4, name: "Whatever the delivery, rows are the fold", seeded: true, run: delivery::proof },
    Proof {
        number: 5,
        name: "A crash after any call loses and doubles nothing",
        seeded: false,
        run: crashes::proof,
    },
    Proof { number: 6, name: "Any of ten may fail", seeded: false, run: masks::proof },
    Proof {
        number: 7,
        name: "The model of the pipeline has no wrong state",
        seeded: false,
        run: model::proof,
    },
    Proof { number: 8, name: "Bad input stops nothing", seeded: true, run: inputs::proof },
    Proof { number: 9, name: "Every limit is where it is said to be", seeded: false, run: limits::proof },
    Proof { number: 10, name: "Every shape ever stored is read", seeded: false, run: evolution::proof },
    Proof {
        number: 11,
        name: "Clocks, slowness and long outages do no harm",
        seeded: true,
        run: dynamics::proof,
    },
];

/// How hard to try.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Where randomness comes from: run number n has this seed plus n.
    pub seed: u64,
    /// Minutes rather than seconds.
    pub long: bool,
    /// So often, whatever the proof finds enough.
    pub runs: Option<u64>,
}

impl Effort {
    fn runs(&self, short: u64, long: u64) -> u64 {
        self.runs.unwrap_or(if self.long { long } else { short })
    }
}

/// What was tried, and nothing found.
#[derive(Debug, Clone)]
pub struct Tried {
    /// How often.
    pub count: u64,
    /// Of what.
    pub unit: &'static str,
    /// What else was counted.
    pub beside: String,
}

impl Tried {
    fn new(count: u64, unit: &'static str, beside: impl Into<String>) -> Self {
        Self { count, unit, beside: beside.into() }
    }
}

/// Something that must not be.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Repeats it.
    pub seed: u64,
    /// What happened.
    pub story: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.story)
    }
}
