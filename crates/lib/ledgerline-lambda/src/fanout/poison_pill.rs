//! The guard against poison pills: records that end the process of the function, by a crash, by
//! using up its memory or by a timeout. Lambda redelivers such a record without end, and its shard
//! waits meanwhile. The fanout finds the record by counting its unfinished attempts at a batch. The
//! count is in the Requests table, because a process that crashed stores nothing.

use ledgerline::Causes;
use ledgerline_dynamodb::DynamoDbStore;
use uuid::Uuid;

use crate::stream::Record;

/// The age of a record, in seconds, from which its attempts are counted. A record of this age
/// should have been passed on. A younger record is not counted, so a healthy stream pays nothing.
const LATE: i64 = 10;

/// The least number of attempts at a record by itself before it is quarantined.
const ALONE: u64 = 3;

/// The number of seconds for which attempts are stored: the day for which the stream keeps a
/// record, and one more day for clocks that differ.
const REMEMBERED: i64 = 2 * 86_400;

/// The plan for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Passes on this many records, from the first one. The others are delivered again.
    First(usize),
    /// Sends the first record to the dead-letter queue without processing it.
    Quarantine,
}

/// Plans a batch of this many records, after `tries` unfinished attempts that began with the same
/// first record. Each attempt leaves out half of the records. Lambda halves a failed batch as well,
/// but not in every case.
fn plan(records: usize, tries: u64) -> Plan {
    let halvings = u64::from(usize::BITS - records.saturating_sub(1).leading_zeros());
    if tries >= halvings + ALONE {
        return Plan::Quarantine;
    }
    Plan::First((records >> tries.min(63)).max(1))
}

/// The count of the attempts at a late batch.
#[derive(Debug)]
pub(super) struct PoisonPillGuard<'a> {
    store: &'a DynamoDbStore,
    what: String,
    pub(super) plan: Plan,
}

impl<'a> PoisonPillGuard<'a> {
    /// Counts an attempt at a batch; `now` is in seconds since 1970. Returns `None` if the batch is
    /// empty, or not late, or the attempt could not be counted. The fanout then passes all of its
    /// records on.
    pub(super) async fn if_late(
        store: &'a DynamoDbStore,
        records: &[Record],
        now: i64,
    ) -> Option<Self> {
        let first = records.first()?;
        first.created.filter(|created| now.saturating_sub(*created) >= LATE)?;
        let what = format!("fanout/{}", first.sequence_number);
        match store.record_attempt(&what, &Uuid::now_v7().to_string(), now + REMEMBERED).await {
            Ok(tries) => Some(Self { store, what, plan: plan(records.len(), tries) }),
            Err(error) => {
                // The fanout passes the records on uncounted. The outage of the table is certain; a
                // poison pill is only suspected.
                tracing::warn!(error = %Causes(&error), "the attempt at this batch is not counted");
                None
            }
        }
    }

    /// Deletes the count: the process has survived these records, whether or not the fanout passed
    /// them on.
    pub(super) async fn survived(self) {
        if let Err(error) = self.store.clear_attempts(&self.what).await {
            tracing::warn!(error = %Causes(&error), "a finished attempt is still counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_attempt_halves_the_batch_and_one_record_has_three_attempts_by_itself() {
        let plans = |records| {
            (0..)
                .map(move |tries| plan(records, tries))
                .take_while(|plan| *plan != Plan::Quarantine)
        };
        assert_eq!(plans(1).collect::<Vec<_>>(), [Plan::First(1); 3]);
        assert_eq!(plans(10).collect::<Vec<_>>(), [10, 5, 2, 1, 1, 1, 1].map(Plan::First));
    }

    proptest! {
        /// Any record may crash the function, and Lambda may or may not halve a failed batch. The
        /// record is quarantined alone, after a bounded number of invocations. All others are
        /// passed on once.
        #[test]
        fn the_guard_quarantines_only_the_record_that_crashes_the_function(
            count in 1..=100_usize,
            deadly in 0..100_usize,
            halves in any::<bool>(),
        ) {
            let deadly = deadly % count;
            let (mut at, mut end, mut invocations) = (0, count, 0);
            let mut tries = std::collections::HashMap::<usize, u64>::new();
            let mut passed_on = vec![0; count];
            let mut set_aside = Vec::new();
            while at < count {
                invocations += 1;
                prop_assert!(invocations < 3 * 8 * 8, "it does not come to an end");
                let begun = tries.entry(at).or_default();
                match plan(end - at, *begun) {
                    Plan::Quarantine => {
                        set_aside.push(at);
                        at += 1;
                    }
                    Plan::First(first) if (at..at + first).contains(&deadly) => {
                        *begun += 1;
                        if halves && end - at > 1 {
                            end = at + (end - at) / 2;
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
            prop_assert_eq!(set_aside, [deadly]);
            prop_assert!(passed_on.iter().enumerate().all(|(record, times)| *times == usize::from(record != deadly)));
        }
    }
}
