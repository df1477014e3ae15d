//! Concurrent histories of every aggregate, and the check of histories on stores with planted bugs.

use anyhow::{Result, bail};
use ledgerline::testing::tank::Tank;
use ledgerline_dynamodb::DynamoDbStore;

use crate::{
    Effort, Runs, Tried,
    application::Application,
    counts::Counts,
    planted::{BUGS, Planted},
    races::{Clocks, Subject, play, world},
    tank_application,
    world::{World, each_seed},
};

/// The histories of ledgerline's own aggregate: at least twice those in which the check must find
/// each planted bug.
const LEDGERLINE: Runs = Runs { least: 2_000, seconds: 20, long: 100_000 };
/// The histories of each aggregate of an application. Races depend on the store, which is the same
/// for all aggregates.
const APPLICATION: Runs = Runs { least: 100, seconds: 2, long: 5_000 };

/// Plays histories of all aggregates of an application, equally many of each. Every second history
/// is on a store without states, and the clocks of every eighth one are a day off.
pub(crate) fn proof(effort: &Effort, application: &Application) -> Result<Tried> {
    let runs = if application.is_builtin { LEDGERLINE } else { APPLICATION };
    let mut counts = Counts::default();
    for streams in &application.streams {
        counts.merge((streams.play)(effort, &runs)?);
    }
    Ok(Tried::new(counts.runs, "histories", counts))
}

/// Plays histories on each of the planted stores until the check finds its bug. Fails if half of the
/// least histories do not find a bug.
pub(crate) fn finds_planted_bugs(effort: &Effort, _: &Application) -> Result<Tried> {
    let subject = Subject::<Tank> {
        histories: tank_application::history,
        shown: |state| state.level().to_string(),
    };
    let half = Effort { runs: Some(LEDGERLINE.least / 2), ..*effort };
    let mut found = Vec::new();
    for bug in BUGS {
        let play = |(world, store): &mut (World, DynamoDbStore), seed| {
            let planted = Planted::new(store.clone(), world.wire.dynamodb(), bug);
            world.runtime.block_on(play(&subject, &planted, store, &world.wire, seed, Clocks::Near))
        };
        let Err(finding) = each_seed(&half, &LEDGERLINE, world, play) else {
            bail!("{bug:?} was not found")
        };
        let history = finding.seed.wrapping_sub(effort.seed) + 1;
        found.push(format!("{bug:?} by history {history}"));
    }
    Ok(Tried::new(BUGS.len() as u64, "planted bugs, each found", found.join(", ")))
}
