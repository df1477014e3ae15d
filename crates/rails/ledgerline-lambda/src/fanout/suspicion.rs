//! A record that ends the function: by a crash, by using up its memory or by never coming to an end. Lambda brings it again, and
//! its shard waits meanwhile. It is found by counting, outside of the function, how often a batch began that did not end.

use ledgerline::Causes;
use ledgerline_dynamodb::DynamoDbStore;
use uuid::Uuid;

use crate::stream::Record;

/// Seconds after which a record should have been passed on. Below, nothing is counted: an undisturbed stream pays nothing for this.
const LATE: i64 = 10;

/// How often a record is tried by itself.
const ALONE: u64 = 3;

/// Seconds for which tries are remembered: the longest that the stream keeps a record, and a day for the clocks.
const REMEMBERED: i64 = 2 * 86_400;

/// What is done with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// So many of its records are passed on; the others come again.
    First(usize),
    /// Its first record is set aside unseen.
    SetAside,
}

/// A batch of so many records, whose first one began so many batches before that did not end. Each time, half of the records are
/// left out, though Lambda halves them too: it does not in every case.
fn plan(records: usize, tries: u64) -> Plan {
    let halvings = u64::from(usize::BITS - records.saturating_sub(1).leading_zeros());
    if tries >= halvings + ALONE {
        return Plan::SetAside;
    }
    Plan::First((records >> tries.min(63)).max(1))
}

/// A batch whose end is waited for.
#[derive(Debug)]
pub(super) struct Suspected<'a> {
    store: &'a DynamoDbStore,
    what: String,
    pub(super) plan: Plan,
}

impl<'a> Suspected<'a> {
    /// The batch, if its first record is late; `now` is in seconds since 1970.
    pub(super) async fn of(store: &'a DynamoDbStore, records: &[Record], now: i64) -> Option<Self> {
        let first = records.first()?;
        first.created.filter(|created| now.saturating_sub(*created) >= LATE)?;
        let what = format!("fanout/{}", first.sequence_number);
        match store.begins(&what, &Uuid::now_v7().to_string(), now + REMEMBERED).await {
            Ok(tries) => Some(Self { store, what, plan: plan(records.len(), tries) }),
            Err(error) => {
                // The records are passed on as if nothing were wrong with them: what is certain is an outage.
                tracing::warn!(error = %Causes(&error), "tries are not counted");
                None
            }
        }
    }

    /// The function is still there.
    pub(super) async fn ended(self) {
        if let Err(error) = self.store.ended(&self.what).await {
            tracing::warn!(error = %Causes(&error), "a try counts that came to an end");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_of_a_batch_is_left_out_at_each_try_and_one_record_has_three_by_itself() {
        let plans =
            |records| (0..).map(move |tries| plan(records, tries)).take_while(|plan| *plan != Plan::SetAside);
        assert_eq!(plans(1).collect::<Vec<_>>(), [Plan::First(1); 3]);
        assert_eq!(plans(10).collect::<Vec<_>>(), [10, 5, 2, 1, 1, 1, 1].map(Plan::First));
    }

    proptest! {
        /// Whichever record ends the function, and whether or not Lambda halves what failed: it is set aside alone, after a bounded number of
        /// invocations, and all others are passed on once.
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
                    Plan::SetAside => {
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
