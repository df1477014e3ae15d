//! Counts of what a proof tried.

use std::{collections::BTreeMap, fmt};

use crate::{Effort, Finding, Runs};

/// The counts of a run or of all runs of a proof, by their units, such as "commits".
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// The number of runs.
    pub(crate) runs: u64,
    pub(crate) units: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Adds to the count of a unit.
    pub fn add(&mut self, unit: &'static str, count: u64) {
        *self.units.entry(unit).or_default() += count;
    }

    /// Adds the counts of another run.
    pub(crate) fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        other.units.into_iter().for_each(|(unit, count)| self.add(unit, count));
    }

    /// The count of a unit.
    pub(crate) fn count(&self, unit: &str) -> u64 {
        self.units.get(unit).copied().unwrap_or_default()
    }

    /// Checks that none of these counts is 0, unless there were fewer runs than the least of the
    /// proof. A proof that did not meet a fault proves nothing about it.
    pub(crate) fn ensure_tried(
        &self,
        effort: &Effort,
        runs: &Runs,
        units: &[&str],
    ) -> Result<(), Finding> {
        let missing: Vec<_> = units.iter().filter(|unit| self.count(unit) == 0).collect();
        if missing.is_empty() || self.runs < runs.least {
            return Ok(());
        }
        let story = format!("{missing:?} were not tried: {self}");
        Err(Finding { seed: effort.seed, runs: Some(self.runs), story })
    }
}

impl From<()> for Counts {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> =
            self.units.iter().map(|(unit, count)| format!("{count} {unit}")).collect();
        f.write_str(&counts.join(", "))
    }
}
