//! The world in which a proof runs: a runtime with virtual time, and the services behind the wire.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use ledgerline_dynamodb::DynamoDbStore;
use tokio::runtime::{Builder, Runtime};

use crate::{Finding, wire::Wire};

/// The world of one thread. It shares nothing with other threads, so that a run does not depend on
/// concurrent runs.
#[expect(missing_debug_implementations, reason = "a runtime has none worth reading")]
pub struct World {
    /// The runtime. Its time stops while a task is ready, and jumps to the next timer when no task
    /// is.
    pub runtime: Runtime,
    /// The wire to the services.
    pub wire: Wire,
}

impl World {
    /// A world with these tables of the template.
    ///
    /// # Errors
    /// When the runtime cannot be built.
    pub fn new(tables: &[&str]) -> Result<Self, Finding> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| Finding { seed: 0, story: error.to_string() })?;
        Ok(Self { runtime, wire: Wire::new(ledgerline_testing::database(tables)) })
    }

    /// The event store that the command functions use, over the wire.
    #[must_use]
    pub fn store(&self) -> DynamoDbStore {
        Self::store_at(&self.wire)
    }

    /// The same store over another wire.
    #[must_use]
    pub fn store_at(wire: &Wire) -> DynamoDbStore {
        DynamoDbStore::new(wire.dynamodb(), ledgerline_testing::table("CommitsTable"))
            .with_requests(ledgerline_testing::table("RequestsTable"))
    }
}

/// Runs the seeds `seed`, `seed` + 1 … on all cores, each core in worlds of its own. Passes the
/// result of each run to `add`. After a finding, no thread begins another share.
///
/// # Errors
/// The finding with the lowest seed.
pub fn each_seed<W, T: Send>(
    seed: u64,
    runs: u64,
    world: impl Fn() -> Result<W, Finding> + Sync,
    run: impl Fn(&mut W, u64) -> Result<T, Finding> + Sync,
    mut add: impl FnMut(T),
) -> Result<(), Finding> {
    /// The number of runs that a thread plays in one world.
    const SHARE: u64 = 50;
    let threads =
        thread::available_parallelism().map_or(1, |cores| cores.get() as u64).min(runs.max(1));
    let next = Mutex::new(0_u64);
    let stop = AtomicBool::new(false);
    let results = thread::scope(|scope| {
        let work = || -> Result<Vec<T>, Finding> {
            let mut counted = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let first = {
                    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                    let first = *next;
                    *next += SHARE;
                    first
                };
                if first >= runs {
                    break;
                }
                // Each share has a new world, because the emulated database becomes slower with
                // each item in it.
                let mut world = world()?;
                for run_number in first..(first + SHARE).min(runs) {
                    match run(&mut world, seed.wrapping_add(run_number)) {
                        Ok(count) => counted.push(count),
                        Err(finding) => {
                            stop.store(true, Ordering::Relaxed);
                            return Err(finding);
                        }
                    }
                }
            }
            Ok(counted)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut findings = Vec::new();
    for result in results {
        match result {
            Ok(Ok(counted)) => counted.into_iter().for_each(&mut add),
            Ok(Err(finding)) => findings.push(finding),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    findings.into_iter().min_by_key(|finding| finding.seed).map_or(Ok(()), Err)
}
