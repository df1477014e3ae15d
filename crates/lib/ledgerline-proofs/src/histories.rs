//! Concurrent histories of every aggregate, and the check of histories on stores with planted bugs.

use anyhow::{Result, bail};
use ledgerline::testing::tank::Tank;
use ledgerline_dynamodb::DynamoDbStore;

use crate::{
    Effort, Tried,
    application::Application,
    counts::Counts,
    planted::{BUGS, Planted},
    races::{Clocks, Subject, play, world},
    tank_application,
    world::{World, each_seed},
};

/// Plays histories of all aggregates of an application, equally many of each. Every second history
/// is on a store without states, and the clocks of every eighth one are a day off.
pub(crate) fn proof(effort: &Effort, application: &Application) -> Result<Tried> {
    // Races depend on the store, which is the same for all aggregates. So most histories are those
    // of ledgerline's own application.
    let runs = match application.is_builtin {
        true => effort.runs(8_000, 100_000),
        false => effort.runs(500, 5_000),
    };
    let mut counts = Counts::default();
    let each = runs.div_ceil((application.streams.len() as u64).max(1));
    for streams in &application.streams {
        counts.merge((streams.play)(effort.seed, each)?);
    }
    Ok(Tried::new(runs, "histories", counts))
}

/// Plays histories on each of the planted stores until the check finds its bug. Fails if the check
/// does not find a bug.
pub(crate) fn finds_planted_bugs(effort: &Effort, _: &Application) -> Result<Tried> {
    let subject = Subject::<Tank> {
        histories: tank_application::history,
        shown: |state| state.level().to_string(),
    };
    let most = 1_000;
    let mut found = Vec::new();
    for bug in BUGS {
        let play = |(world, store): &mut (World, DynamoDbStore), seed| {
            let planted = Planted::new(store.clone(), world.wire.dynamodb(), bug);
            world.runtime.block_on(play(&subject, &planted, store, &world.wire, seed, Clocks::Near))
        };
        let Err(finding) = each_seed(effort.seed, most, world, play) else {
            bail!("{bug:?} was not found")
        };
        let history = finding.seed.wrapping_sub(effort.seed) + 1;
        found.push(format!("{bug:?} by history {history}"));
    }
    Ok(Tried::new(BUGS.len() as u64, "planted bugs, each found", found.join(", ")))
}
