//! Faults of time.
//!
//! * Clocks are a day off.
//! * Consumers are too slow.
//! * An outage is longer than the stream's 24 hours. Then an operator redelivers the commits of the
//!   log.
//! * An operator restores the log to an earlier time.
//! * Records kill the fanout whenever it passes them on.

use crate::{
    Effort, Finding, Tried,
    application::Application,
    delivery::{self, Dynamics, Tally},
    histories,
    races::Clocks,
};

/// Plays all of these faults.
///
/// # Errors
/// The first finding.
pub fn proof(effort: &Effort, application: &Application) -> Result<Tried, Finding> {
    let runs = effort.runs(150, 1_000);
    let named = |name: &'static str| {
        move |finding: Finding| Finding { story: format!("{name}: {}", finding.story), ..finding }
    };
    let deliveries = |dynamics| delivery::all(effort.seed, runs, dynamics, application);
    let (clocks, _) =
        histories::all(effort.seed, runs, Clocks::DayOff, application).map_err(named("clocks"))?;
    let slow = deliveries(Dynamics::SlowConsumers).map_err(named("slow consumers"))?;
    let outage = deliveries(Dynamics::Outage).map_err(named("outage"))?;
    let restored = deliveries(Dynamics::Restored).map_err(named("restored"))?;
    let deadly = deliveries(Dynamics::Deadly).map_err(named("deadly records"))?;
    if runs >= 150
        && !application.streams.is_empty()
        && (deadly.deaths == 0 || deadly.set_aside == 0)
    {
        return Err(Finding {
            seed: effort.seed,
            story: format!("nothing was deadly: {deadly:?}"),
        });
    }
    let Tally { lost, .. } = outage;
    let beside = format!(
        "{runs} histories whose clocks are a day off either way, {} commands; {runs} schedules of slow consumers, {} \
         deliveries; {runs} outages of more than a day, {lost} records and messages lost in them; {runs} \
         restored logs, which {} commits were gone from; {runs} streams that end the fanout, {} times, until {} records \
         are quarantined",
        clocks.commands, slow.deliveries, restored.lost, deadly.deaths, deadly.set_aside
    );
    Ok(Tried::new(5 * runs, "runs", beside))
}
