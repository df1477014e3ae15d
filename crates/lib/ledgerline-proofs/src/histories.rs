//! Concurrent histories of every aggregate, and the check of histories on stores with planted bugs.

use ledgerline::testing::tank::Tank;
use ledgerline_dynamodb::DynamoDbStore;

use crate::{
    Effort, Finding, Tried,
    application::Application,
    planted::{BUGS, Planted},
    races::{Clocks, Subject, Tally, play, world},
    tank,
    world::{World, each_seed},
};

/// Plays histories of all aggregates of an application, equally many of each. Every second history
/// is on a store without states, and the clocks of every eighth one are a day off.
///
/// # Errors
/// The first history that no order of the commands explains.
pub fn proof(effort: &Effort, application: &Application) -> Result<Tried, Finding> {
    // Races depend on the store, which is the same for all aggregates. So most histories are those
    // of ledgerline's own application.
    let runs = match application.is_builtin {
        true => effort.runs(8_000, 100_000),
        false => effort.runs(500, 5_000),
    };
    let mut sum = Tally::default();
    let mut faults = 0;
    let each = runs.div_ceil((application.streams.len() as u64).max(1));
    for streams in &application.streams {
        let (tally, happened) = (streams.play)(effort.seed, each).map_err(|finding| Finding {
            story: format!("{}: {}", streams.category, finding.story),
            ..finding
        })?;
        sum.add(tally);
        faults += happened;
    }
    let Tally { commands, commits, uncertain, repeated } = sum;
    let beside = format!(
        "{commands} commands, {commits} commits, {faults} faults, {uncertain} clients left in the dark, {repeated} commands sent again and answered alike"
    );
    Ok(Tried::new(runs, "histories", beside))
}

/// Plays histories on each of the planted stores until the check finds its bug.
///
/// # Errors
/// When the check does not find a bug.
pub fn finds_planted_bugs(effort: &Effort, _: &Application) -> Result<Tried, Finding> {
    let subject =
        Subject::<Tank> { histories: tank::history, shown: |state| state.level().to_string() };
    let most = 1_000;
    let mut found = Vec::new();
    for bug in BUGS {
        let play = |(world, store): &mut (World, DynamoDbStore), seed| {
            let planted = Planted::new(store.clone(), world.wire.dynamodb(), bug);
            world.runtime.block_on(play(&subject, &planted, store, &world.wire, seed, Clocks::Near))
        };
        match each_seed(effort.seed, most, world, play, |_| ()) {
            Err(finding) => found
                .push(format!("{bug:?} by history {}", finding.seed.wrapping_sub(effort.seed) + 1)),
            Ok(()) => {
                return Err(Finding { seed: effort.seed, story: format!("{bug:?} was not found") });
            }
        }
    }
    Ok(Tried::new(BUGS.len() as u64, "planted bugs, each found", found.join(", ")))
}
