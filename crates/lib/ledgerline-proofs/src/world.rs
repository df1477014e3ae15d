//! The world in which a proof runs: a runtime with virtual time, and the services behind the wire.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use anyhow::Result;
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_s3::S3Bodies;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use crate::{
    Effort, Finding, Runs,
    counts::Counts,
    faulty_wire::Wire,
    form::{Form, form, use_form},
};

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
    pub fn new(tables: &[&str]) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        Ok(Self { runtime, wire: Wire::new(ledgerline_testing::database(tables)) })
    }

    /// The event store that the command functions use, over the wire.
    #[must_use]
    pub fn store(&self) -> DynamoDbStore {
        Self::store_at(&self.wire)
    }

    /// The store of the fanout, which reads no body objects.
    pub(crate) fn fanout_store(wire: &Wire) -> DynamoDbStore {
        DynamoDbStore::new(wire.dynamodb(), ledgerline_testing::table("CommitsTable"))
            .with_requests(ledgerline_testing::table("RequestsTable"))
            // Payloads in items have both stored forms.
            .with_compression(30)
    }

    /// The store of functions over another wire, with body objects.
    #[must_use]
    pub fn store_at(wire: &Wire) -> DynamoDbStore {
        Self::fanout_store(wire).with_bodies(
            Arc::new(bodies(wire)),
            if form() == Form::Objects { 0 } else { usize::MAX },
        )
    }
}

/// The body objects at the other end of a wire.
pub(crate) fn bodies(wire: &Wire) -> S3Bodies {
    S3Bodies::new(&wire.sdk_config(), "bodies")
}

/// Runs the seed of the effort and the seeds after it on all cores, each core in worlds of its own.
/// Three successive seeds have the three forms of commits.
/// The result is the sum of all counts. After a finding, no thread begins another share.
///
/// # Errors
/// The finding with the lowest seed.
pub(crate) fn each_seed<W, T: Into<Counts>>(
    effort: &Effort,
    runs: &Runs,
    world: impl Fn() -> Result<W> + Sync,
    run: impl Fn(&mut W, u64) -> Result<T> + Sync,
) -> Result<Counts, Finding> {
    /// The number of runs that a thread plays in one world. The emulated database becomes slower
    /// with each item in it.
    const SHARE: u64 = 10;
    let (least, most, time) = effort.bounds(runs);
    let (next, spent) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let work = || -> Result<Counts, Finding> {
        let mut sum = Counts::default();
        while !stop.load(Ordering::Relaxed) {
            let began = processor_time();
            let first = next.fetch_add(SHARE, Ordering::Relaxed);
            if first >= most || (first >= least && spent.load(Ordering::Relaxed) >= time) {
                break;
            }
            let mut world = world().map_err(|error| Finding::case(effort.seed, &error))?;
            for run_number in first..(first + SHARE).min(most) {
                let seed = effort.seed.wrapping_add(run_number);
                use_form(Form::ALL[usize::try_from(seed % 3).unwrap_or(0)]);
                let counts = run(&mut world, seed).map_err(|error| {
                    stop.store(true, Ordering::Relaxed);
                    Finding::case(seed, &error)
                })?;
                sum.merge(counts.into());
                sum.runs += 1;
            }
            spent.fetch_add(processor_time() - began, Ordering::Relaxed);
        }
        Ok(sum)
    };
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(least)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let (mut sum, mut findings) = (Counts::default(), Vec::new());
    for result in results {
        match result {
            Ok(Ok(counts)) => sum.merge(counts),
            Ok(Err(finding)) => findings.push(finding),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    findings.into_iter().min_by_key(|finding| finding.seed).map_or(Ok(sum), Err)
}

/// The processor time of this thread, in milliseconds. It does not advance while other processes
/// use the core.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec * 1_000 + time.tv_nsec / 1_000_000).cast_unsigned()
}
