//! The guard against poison pills: records that end the process of the function, by a crash, by
//! using up its memory or by a timeout. Lambda redelivers such a record without end, and its shard
//! waits meanwhile. The fanout finds the record by counting its unfinished attempts at a batch, and
//! at the first record of the batch by itself. The counts are in the Requests table, whose items
//! expire, because a process that crashed stores nothing. An outage of the bus or of a queue is no
//! attempt: the process survives it.
//!
//! A count is a set of ids, one for each attempt. A number would grow twice if a call whose reply
//! was lost is repeated, and a harmless record would be quarantined.
//!
//! The next commit of the same stream starts with no attempts. So if the fold of a stream crashes
//! the fanout, each of its commits costs the shard these attempts.

use ledgerline::Causes;
use ledgerline_dynamodb::DynamoDbStore;
use uuid::Uuid;

use crate::stream_records::Record;

/// The age of a record, in seconds, from which its attempts are counted. A record of this age
/// should have been passed on. A younger record is not counted, so a healthy stream pays nothing.
const LATE_SECONDS: i64 = 10;

/// The number of unfinished attempts at a record by itself after which it is quarantined.
const MAX_ATTEMPTS_ALONE: u64 = 3;

/// The number of seconds for which attempts are stored: the day for which the stream keeps a
/// record, and one more day for clocks that differ.
const RETENTION_SECONDS: i64 = 2 * 86_400;

/// The plan for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Passes on this many records, from the first one. The others are delivered again.
    First(usize),
    /// Sends the first record to the dead-letter queue without processing it.
    Quarantine,
}

/// Plans a batch of this many records. `unfinished` is the number of unfinished attempts at batches that
/// began with the same first record, and `alone` is the number of those at this record by itself.
///
/// Each attempt leaves out half of the records. Lambda halves a failed batch as well, but not in
/// every case. So only `alone` is evidence against the record: an attempt at more records, or one
/// whose count did not arrive, may have ended at another record.
fn plan(records: usize, unfinished: u64, alone: u64) -> Plan {
    match (records >> unfinished.min(63)).max(1) {
        1 if alone >= MAX_ATTEMPTS_ALONE => Plan::Quarantine,
        first => Plan::First(first),
    }
}

/// The number of invocations in which a target refuses a record with an unknown code, and accepts
/// others, after which the record is quarantined.
const MAX_REFUSALS: u64 = 10;

/// Counts that the target refuses a late record with an unknown code, and accepts others. Returns
/// whether the target will never accept the record. A record that is not late is not counted.
pub(super) async fn is_refused_for_good(
    store: &DynamoDbStore,
    record: &Record,
    target: &str,
    now: i64,
) -> bool {
    if !is_late(record, now) {
        return false;
    }
    let key = format!("fanout/{}/{target}", record.sequence_number);
    let earlier = record_attempt(store, &key, now).await;
    earlier.is_some_and(|earlier| earlier + 1 >= MAX_REFUSALS)
}

fn is_late(record: &Record, now: i64) -> bool {
    record.created.is_some_and(|created| now.saturating_sub(created) >= LATE_SECONDS)
}

/// Counts an attempt, and returns the number of the earlier ones.
async fn record_attempt(store: &DynamoDbStore, key: &str, now: i64) -> Option<u64> {
    let id = Uuid::now_v7().to_string();
    let counted = store.record_attempt(key, &id, now + RETENTION_SECONDS).await;
    // The fanout passes the records on uncounted. The outage of the table is certain; whether
    // a record is a poison pill is not.
    counted
        .inspect_err(|error| tracing::warn!(error = %Causes(error), "the attempt is not counted"))
        .ok()
}

/// The counts of the attempts at a late batch.
#[derive(Debug)]
pub(super) struct PoisonPillGuard<'a> {
    store: &'a DynamoDbStore,
    /// The counts that include the present attempt.
    counts: Vec<String>,
    pub(super) plan: Plan,
}

impl<'a> PoisonPillGuard<'a> {
    /// Counts an attempt at a batch; `now` is in seconds since 1970. Returns `None` if the batch is
    /// empty or not late, or an attempt at several records could not be counted. The fanout then
    /// passes all of its records on.
    ///
    /// A batch costs one write, and a second one if halving leaves one record of it.
    pub(super) async fn for_late_batch(
        store: &'a DynamoDbStore,
        records: &[Record],
        now: i64,
    ) -> Option<Self> {
        let first = records.first()?;
        if !is_late(first, now) {
            return None;
        }
        let batch = format!("fanout/{}", first.sequence_number);
        let by_itself = format!("{batch}/alone");
        let mut guard = Self { store, counts: Vec::new(), plan: Plan::First(1) };
        let mut unfinished = 0;
        if records.len() > 1 {
            unfinished = guard.count(batch, now).await?;
            guard.plan = plan(records.len(), unfinished, 0);
        }
        if guard.plan == Plan::First(1) {
            // Without the count, the record is passed on by itself: nothing is known against it.
            let alone = guard.count(by_itself, now).await.unwrap_or_default();
            guard.plan = plan(records.len(), unfinished, alone);
        }
        Some(guard)
    }

    /// Counts this attempt, and returns the number of earlier ones that are not finished.
    async fn count(&mut self, key: String, now: i64) -> Option<u64> {
        let attempts = record_attempt(self.store, &key, now).await?;
        self.counts.push(key);
        Some(attempts)
    }

    /// Deletes the counts: the process has survived these records, whether or not the fanout passed
    /// them on.
    pub(super) async fn clear_counts(self) {
        for key in &self.counts {
            if let Err(error) = self.store.clear_attempts(key).await {
                tracing::warn!(error = %Causes(&error), "a finished attempt is still counted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_attempt_halves_the_batch_and_one_record_has_three_attempts_by_itself() {
        let plans = |records| {
            let (mut unfinished, mut alone) = (0, 0);
            std::iter::from_fn(move || {
                let next = plan(records, unfinished, alone);
                unfinished += 1;
                alone += u64::from(next == Plan::First(1));
                (next != Plan::Quarantine).then_some(next)
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(plans(1), [Plan::First(1); 3]);
        assert_eq!(plans(10), [10, 5, 2, 1, 1, 1].map(Plan::First));
    }

    proptest! {
        /// Any record may crash the function, Lambda may or may not halve a failed batch, and
        /// replies with counts may be lost. The guard quarantines that record alone after a bounded
        /// number of invocations. It passes every other record on once.
        #[test]
        fn the_guard_quarantines_only_the_record_that_crashes_the_function(
            count in 1..=100_usize,
            deadly in 0..100_usize,
            halves in prop::collection::vec(any::<bool>(), 1..20),
            lost in prop::collection::vec(prop::bool::weighted(0.3), 0..20),
        ) {
            let deadly = deadly % count;
            let (mut at, mut end, mut invocations) = (0, count, 0);
            let mut unfinished = HashMap::<usize, u64>::new();
            let mut alone = HashMap::<usize, u64>::new();
            let mut passed_on = vec![0; count];
            let mut quarantined = Vec::new();
            while at < count {
                invocations += 1;
                let limit = 3 * 8 * 8 + 2 * lost.len();
                prop_assert!(invocations < limit, "not done after {limit} invocations");
                let records = end - at;
                let earlier = unfinished.get(&at).copied().unwrap_or_default();
                let by_itself = alone.get(&at).copied().unwrap_or_default();
                if records > 1 {
                    *unfinished.entry(at).or_default() += 1;
                }
                let is_lost = lost.get(invocations).copied().unwrap_or_default();
                let chosen = match plan(records, earlier, 0) {
                    // Without the reply with the count, the guard passes the whole batch on.
                    _ if is_lost && records > 1 => Plan::First(records),
                    Plan::First(1) => {
                        *alone.entry(at).or_default() += 1;
                        plan(records, earlier, if is_lost { 0 } else { by_itself })
                    }
                    plan @ (Plan::First(_) | Plan::Quarantine) => plan,
                };
                match chosen {
                    Plan::Quarantine => {
                        quarantined.push(at);
                        at += 1;
                    }
                    Plan::First(first) if (at..at + first).contains(&deadly) => {
                        if halves[invocations % halves.len()] && records > 1 {
                            end = at + records / 2;
                        }
                        continue;
                    }
                    Plan::First(first) => {
                        passed_on[at..at + first].iter_mut().for_each(|record| *record += 1);
                        at += first;
                    }
                }
                end = count;
            }
            prop_assert_eq!(quarantined, [deadly]);
            let once = (0..count).map(|record| usize::from(record != deadly)).collect::<Vec<_>>();
            prop_assert_eq!(passed_on, once);
        }
    }
}
