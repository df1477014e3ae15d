//! The process manager of hauls, a saga. An event of a haul makes a command to a tank due, and the
//! outcome of that command is the next event of the haul.

use std::num::NonZeroUsize;

use ledgerline::{
    Aggregate, Cache, Commit, Consistency, EventStore, decode, load, manifest::Manifest,
    testing::tank::Tank,
};
use ledgerline_lambda::{
    metrics,
    process_manager::{Due, Reaction},
    queue::ApplyError,
};

use crate::haul::{Command, Event, Haul, Step};

/// The metric that counts hauls whose litres are in no tank. The alarm of this name notifies an
/// operator.
const STUCK_HAULS: &str = "StuckHauls";

/// The number of tanks, and of hauls, whose states a warm instance caches.
const CACHED_STREAMS: NonZeroUsize = NonZeroUsize::new(1_000).expect("is not zero");

/// Sends the commands that are due, and records their outcomes.
#[derive(Debug)]
pub struct Hauls<S> {
    store: S,
    tanks: Cache<Tank>,
    hauls: Cache<Haul>,
}

impl<S> Hauls<S> {
    /// Creates the process manager of this store, which holds the tanks and the hauls.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, tanks: Cache::new(CACHED_STREAMS), hauls: Cache::new(CACHED_STREAMS) }
    }
}

impl<S: EventStore> Reaction for Hauls<S> {
    const OF: &'static [&'static str] = &[Haul::CATEGORY];

    const COMMANDS: &'static [&'static str] = &[Tank::CATEGORY, Haul::CATEGORY];

    fn manifest(manifest: Manifest) -> Manifest {
        manifest.metric(STUCK_HAULS)
    }

    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for recorded in &commit.events {
            let event =
                decode::<Haul>(recorded).map_err(|source| ApplyError::changes(commit, source))?;
            if let Some(step) = Step::after(&event) {
                self.step(commit, step).await?;
            } else if let Event::HaulReturnRefused { reason } = &event {
                tracing::error!(stream = %commit.stream, version = commit.version, reason, "a haul is stuck");
                metrics::count(STUCK_HAULS);
            }
        }
        Ok(())
    }
}

impl<S: EventStore> Hauls<S> {
    async fn step(&self, commit: &Commit, step: Step) -> Result<(), ApplyError> {
        let haul =
            load::<Haul>(&self.store, &commit.stream, None, Consistency::Strong).await?.state;
        let Some(order) = haul.order.as_ref().filter(|_| haul.awaits() == Some(step)) else {
            // The outcome is recorded, so this commit was redelivered. Without this check, litres
            // would move again after the deletion of positions and idempotency records.
            tracing::info!(stream = %commit.stream, version = commit.version, outcome = "duplicate", "haul");
            return Ok(());
        };
        let effect = |error: &dyn std::fmt::Display| ApplyError::Effect(error.to_string());
        let due = step.command(order).map_err(|invalid| effect(&invalid))?;
        let (tank, actor) = (
            Tank::stream(due.tank).map_err(|error| effect(&error))?,
            order.requested_by.as_deref(),
        );
        let send = Due::<Tank> {
            cause: commit,
            step: due.name,
            stream: &tank,
            command: &due.command,
            actor,
        };
        let command = Command::Record(step, send.send(&self.store, &self.tanks).await?);
        let record = Due::<Haul> {
            cause: commit,
            step: due.record,
            stream: &commit.stream,
            command: &command,
            actor,
        };
        let recorded = record.send(&self.store, &self.hauls).await?;
        recorded.map_err(|code| effect(&format_args!("the haul refused the outcome: {code}")))
    }
}
