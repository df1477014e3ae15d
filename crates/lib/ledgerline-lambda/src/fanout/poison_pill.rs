//! A poison pill: a record that ends the process of the function, by a crash, by using up its
//! memory or by taking too long. Lambda delivers such a record again and again, and its shard waits
//! meanwhile. The fanout finds it by counting, in the Requests table, the attempts at a batch that
//! did not end: a process that ended remembers nothing.

use ledgerline::Causes;
use ledgerline_dynamodb::DynamoDbStore;
use uuid::Uuid;

use crate::stream::Record;

/// The age of a record, in seconds, from which its tries are counted. A record of this age should
/// have been passed on. A younger one is not counted, so a stream without trouble pays nothing.
const LATE: i64 = 10;

/// The number of times, at least, that a record is tried by itself before it is set aside.
const ALONE: u64 = 3;

/// The number of seconds for which tries are remembered: the day for which the stream keeps a
/// record, and one more for clocks that differ.
const REMEMBERED: i64 = 2 * 86_400;

/// The decision about a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// This many of its records, from the first one on, are passed on; the others are delivered
    /// again.
    First(usize),
    /// Its first record goes to the dead-letter queue without being processed.
    Quarantine,
}

/// The decision about a batch of this many records, whose first record was the first of `tries`
/// batches that did not end. At each try, half of the records are left out. Lambda halves a failed
/// batch as well, but not in every case.
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
    /// Counts an attempt at a batch; `now` is in seconds since 1970. `None` if the batch is empty,
    /// or not late, or the attempt could not be counted: then all of its records are passed on.
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
                // The records are passed on uncounted. That the table does not answer is certain;
                // that a record ends the function is only suspected.
                tracing::warn!(error = %Causes(&error), "the try of this batch is not counted");
                None
            }
        }
    }

    /// Deletes the count: the process has survived these records, whether or not they were passed
    /// on.
    pub(super) async fn survived(self) {
        if let Err(error) = self.store.clear_attempts(&self.what).await {
            tracing::warn!(error = %Causes(&error), "a try that came to an end is still counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_of_a_batch_is_left_out_at_each_try_and_one_record_has_three_by_itself() {
        let plans = |records| {
            (0..)
                .map(move |tries| plan(records, tries))
                .take_while(|plan| *plan != Plan::Quarantine)
        };
        assert_eq!(plans(1).collect::<Vec<_>>(), [Plan::First(1); 3]);
        assert_eq!(plans(10).collect::<Vec<_>>(), [10, 5, 2, 1, 1, 1, 1].map(Plan::First));
    }

    proptest! {
        /// Whichever record ends the function, and whether or not Lambda halves what failed: it is
        /// set aside alone, after a bounded number of invocations, and all others are passed on
        /// once.
        #[test]
        fn one_record_that_ends_the_function_is_set_aside_and_no_other(
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
