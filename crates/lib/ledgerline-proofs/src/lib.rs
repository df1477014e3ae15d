#![doc = include_str!("../README.md")]

pub mod application;
pub mod case;
mod counts;
mod crashes;
mod decoding;
mod delivery;
mod emulated_services;
mod exploration;
pub mod faulty_wire;
mod files;
mod form;
mod histories;
mod inputs;
mod masks;
mod pipeline;
mod pipeline_model;
mod planted;
mod program;
mod races;
mod rebuilds;
mod role;
mod sequencer_model;
mod sequencers;
mod subscriptions;
mod tank_application;
mod versions;
pub mod world;

use std::{env, error, fmt};

use anyhow::Result;
use ledgerline_testing::{repeat_command, seed};

use self::world::each_seed;
pub use self::{application::Application, counts::Counts, program::main, tank_application::tanks};

type Run = fn(&Effort, &Application) -> Result<Tried>;

/// A proof: it tries to break guarantees of docs/guarantees.md.
struct Proof {
    /// The number of the proof in docs/guarantees.md.
    number: u8,
    /// The claim of the proof, in a few words.
    name: &'static str,
    run: Run,
}

impl Proof {
    fn run(&self, effort: &Effort, application: &Application) -> Result<Tried, Finding> {
        let tried = (self.run)(effort, application);
        tried.map_err(|error| match error.downcast() {
            Ok(finding) => finding,
            Err(error) => Finding::new(effort.seed, &error),
        })
    }

    /// The command that repeats a finding of this proof for `application`, with the effort that led
    /// to the finding.
    fn repeat_command(
        &self,
        finding: &Finding,
        application: &Application,
        effort: &Effort,
    ) -> String {
        if application.is_builtin {
            let seed = finding.seed;
            let short = if effort.long { "" } else { " --short" };
            let runs = finding.runs.map(|runs| format!(" --runs {runs}")).unwrap_or_default();
            let command =
                format!("cargo run --profile fast -p ledgerline-proofs -- --only {}", self.number);
            return format!("Again: {command} --seed {seed}{runs}{short}");
        }
        // The test of an application has the name of the proof.
        let test = self.name.to_lowercase().replace(',', "").replace(' ', "_");
        effort.repeat_command(finding, &test)
    }
}

const fn proof(number: u8, name: &'static str, run: Run) -> Proof {
    Proof { number, name, run }
}

/// All proofs, in the order of their numbers.
const PROOFS: [Proof; 11] = [
    proof(1, "Concurrent histories are linearizable", histories::proof),
    proof(2, "The check of histories finds planted bugs", histories::finds_planted_bugs),
    proof(3, "Whatever the delivery, rows are the fold", delivery::proof),
    proof(4, "A crash after any call loses and doubles nothing", crashes::proof),
    proof(5, "Any of ten may fail", masks::proof),
    proof(6, "The model of the pipeline has no wrong state", pipeline_model::proof),
    proof(7, "Bad input stops nothing", inputs::proof),
    proof(8, "Two versions at once leave what one would", versions::proof),
    proof(9, "The order of all commits is final", sequencers::proof),
    proof(10, "A subscription applies each commit once", subscriptions::proof),
    proof(11, "A view is rebuilt while it is written", rebuilds::proof),
];

/// Defines the tests of an application: one for each proof of ledgerline that is about
/// applications.
///
/// `cargo test` runs the short form, with the seed of [`Effort::from_environment`]. `PROOFS=long
/// cargo test --profile fast --test proofs` runs the long form.
#[macro_export]
macro_rules! application_tests {
    ($application:expr) => {
        #[test]
        fn concurrent_histories_are_linearizable() {
            $crate::test(1, &$application);
        }

        #[test]
        fn whatever_the_delivery_rows_are_the_fold() {
            $crate::test(3, &$application);
        }

        #[test]
        fn a_crash_after_any_call_loses_and_doubles_nothing() {
            $crate::test(4, &$application);
        }

        #[test]
        fn bad_input_stops_nothing() {
            $crate::test(7, &$application);
        }

        #[test]
        fn every_shape_ever_stored_is_read() {
            let unreadable = $crate::application::unreadable_shapes(&$application);
            assert!(unreadable.is_empty(), "{unreadable:#?}");
        }
    };
}

/// Runs a proof for an application in a test, with the effort that the environment asks for.
///
/// # Panics
/// On a finding. The message has the finding and the command that repeats it.
#[expect(clippy::panic, reason = "in a test a panic is the report")]
pub fn test(number: u8, application: &Application) {
    let Some(proof) = PROOFS.iter().find(|proof| proof.number == number) else {
        panic!("no proof {number}")
    };
    let effort = Effort::from_environment();
    match proof.run(&effort, application) {
        Ok(Tried { count, unit, beside }) => program::report(&format!(
            "{number:>2} {}, {}, seed {}: {count} {unit}; {beside}",
            proof.name, application.name, effort.seed
        )),
        Err(finding) => {
            panic!(
                "{}: {finding}\n{}",
                proof.name,
                proof.repeat_command(&finding, application, &effort)
            )
        }
    }
}

/// Tries the runs of a workspace's own proof in the test `test`, with the effort that the
/// environment asks for.
///
/// # Panics
/// On a finding. The message has the finding and the command that repeats it.
#[expect(clippy::panic, reason = "in a test a panic is the report")]
pub fn test_runs<W, T: Into<Counts>>(
    test: &str,
    runs: &Runs,
    world: impl Fn() -> Result<W> + Sync,
    run: impl Fn(&mut W, u64) -> Result<T> + Sync,
) {
    let effort = Effort::from_environment();
    match each_seed(&effort, runs, world, run) {
        Ok(counts) => {
            let (seed, runs) = (effort.seed, counts.runs);
            program::report(&format!("   {test}, seed {seed}: {runs} runs; {counts}"));
        }
        Err(finding) => panic!("{finding}\n{}", effort.repeat_command(&finding, test)),
    }
}

/// The number of runs of a proof. Each run is a case with a seed of its own.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    /// The least runs of the short form: at least twice those in which each planted bug is found,
    /// if there are any.
    pub least: u64,
    /// The processor time, in seconds, after which the short form begins no further run.
    pub seconds: u64,
    /// The number of runs of the long form.
    pub long: u64,
}

impl Runs {
    /// This number of runs, in the short form as in the long one.
    const fn exactly(runs: u64) -> Self {
        Self { least: runs, seconds: 0, long: runs }
    }
}

/// The effort of a proof: its seed, and its number of runs.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The seed of all randomness: run number n, from 0 on, has this seed plus n.
    pub seed: u64,
    /// Whether the proof may take minutes instead of seconds.
    pub long: bool,
    /// The number of runs; `None` for that of the proof's short or long form.
    pub runs: Option<u64>,
}

impl Effort {
    /// The effort of tests: short, with the seed of the commit ([`seed`]). A test that fails on one
    /// machine fails on every machine. `PROOFS=long`, `LEDGERLINE_SEED` and `PROOFS_RUNS` change
    /// the effort.
    #[must_use]
    pub fn from_environment() -> Self {
        let number = |name: &str| env::var(name).ok().and_then(|number| number.parse().ok());
        Self {
            seed: seed(),
            long: env::var("PROOFS").is_ok_and(|effort| effort == "long"),
            runs: number("PROOFS_RUNS"),
        }
    }

    /// Whether a proof also tries what is the same for all applications: the command functions'
    /// runner, the fanout and the guards. The short form tries it with ledgerline's own application
    /// only.
    const fn tries_libraries(&self, application: &Application) -> bool {
        application.is_builtin || self.long
    }

    /// The least and the most runs of a proof, and the milliseconds of processor time after which
    /// no run follows the least.
    fn bounds(&self, runs: &Runs) -> (u64, u64, u64) {
        match (self.runs, self.long) {
            (Some(runs), _) => (runs, runs, 0),
            (None, false) if runs.seconds > 0 => (runs.least, u64::MAX, runs.seconds * 1_000),
            (None, _) => (runs.long, runs.long, 0),
        }
    }

    /// The command that repeats a finding of the test `test`, which is one of the proofs of the
    /// package under test.
    fn repeat_command(&self, finding: &Finding, test: &str) -> String {
        let long = if self.long { " PROOFS=long" } else { "" };
        let runs = finding.runs.map(|runs| format!(" PROOFS_RUNS={runs}")).unwrap_or_default();
        repeat_command(finding.seed, &format!("{runs}{long}"), &format!("--test proofs {test}"))
    }
}

/// The result of a proof without a finding.
struct Tried {
    /// The number of runs, inputs or cases.
    count: u64,
    /// The unit of `count`, such as "histories".
    unit: &'static str,
    /// Other counts, as text.
    beside: String,
}

impl Tried {
    fn new(count: u64, unit: &'static str, beside: impl fmt::Display) -> Self {
        Self { count, unit, beside: beside.to_string() }
    }
}

/// A violated guarantee.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The seed that repeats the finding.
    pub seed: u64,
    /// The number of runs that repeats the finding, one or all together; `None` in a proof without
    /// runs.
    pub runs: Option<u64>,
    /// The events of the run, as text.
    pub story: String,
}

impl Finding {
    fn new(seed: u64, error: &anyhow::Error) -> Self {
        Self { seed, runs: None, story: format!("{error:#}") }
    }

    /// A finding of one run.
    fn case(seed: u64, error: &anyhow::Error) -> Self {
        Self { runs: Some(1), ..Self::new(seed, error) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.story)
    }
}

impl error::Error for Finding {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proofs_are_numbered_from_1_on() {
        assert!(PROOFS.iter().map(|proof| proof.number).eq(1..=11));
    }

    #[test]
    fn one_command_repeats_a_finding() {
        let effort = Effort { seed: 7, long: false, runs: None };
        let finding = Finding::case(9, &anyhow::anyhow!("a commit is lost"));
        let again = PROOFS[8].repeat_command(&finding, &tanks(), &effort);
        let command = "Again: cargo run --profile fast -p ledgerline-proofs -- --only 9 --seed";
        assert_eq!(again, format!("{command} 9 --runs 1 --short"));
        // A finding about all runs together: no run had a fault.
        let runs = Runs { least: 20, seconds: 0, long: 100 };
        let counts = Counts { runs: 20, ..Counts::default() };
        let together = counts.ensure_tried(&effort, &runs, &["faults"]).err().unwrap();
        let again = PROOFS[8].repeat_command(&together, &tanks(), &effort);
        assert_eq!(again, format!("{command} 7 --runs 20 --short"));
        let mut moved = tanks();
        moved.is_builtin = false;
        let again = PROOFS[2].repeat_command(&finding, &moved, &effort);
        assert!(
            again.ends_with("--test proofs whatever_the_delivery_rows_are_the_fold"),
            "{again}"
        );
        let command = "cargo test -p ledgerline-proofs --test proofs moved";
        assert_eq!(
            effort.repeat_command(&finding, "moved"),
            format!("Again: LEDGERLINE_SEED=9 PROOFS_RUNS=1 {command}")
        );
    }
}
