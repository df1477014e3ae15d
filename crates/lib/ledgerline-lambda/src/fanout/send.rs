//! Batch calls whose entries fail one by one (rule 10).

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::metrics;

/// The number of resends of failed entries, before their records are reported as failed (rule 11).
const MAX_RESENDS: usize = 4;

/// The reason why a service did not accept an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryFailure {
    /// The service may accept the entry at the next attempt.
    Transient,
    /// The service will never accept the entry, for the reason with this code.
    Permanent(String),
}

/// The result of a call that failed as a whole: every entry failed, and may be accepted at the next
/// attempt.
pub(crate) fn fail_all(entries: usize) -> Vec<(usize, EntryFailure)> {
    (0..entries).map(|place| (place, EntryFailure::Transient)).collect()
}

/// Sends a batch, and then resends its failed entries, a bounded number of times. Returns the
/// entries that are left, including those that the service will never accept.
///
/// `call` makes one call and returns the places in its argument of the entries that failed.
pub(crate) async fn send_all<T: Clone>(
    mut entries: Vec<T>,
    call: impl AsyncFn(&[T]) -> Vec<(usize, EntryFailure)>,
) -> Vec<(T, EntryFailure)> {
    let mut left = Vec::new();
    let mut delays = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_millis(500))
        .with_max_times(MAX_RESENDS)
        .with_jitter()
        .build();
    loop {
        let mut retries = Vec::new();
        for (place, failure) in call(&entries).await {
            let Some(entry) = entries.get(place).cloned() else { continue };
            match failure {
                EntryFailure::Transient => retries.push(entry),
                EntryFailure::Permanent(_) => left.push((entry, failure)),
            }
        }
        entries = retries;
        match delays.next().filter(|_| !entries.is_empty()) {
            Some(delay) => {
                metrics::retries(entries.len());
                tokio::time::sleep(delay).await;
            }
            None => {
                left.extend(entries.into_iter().map(|entry| (entry, EntryFailure::Transient)));
                return left;
            }
        }
    }
}

/// Divides entries into calls: at most ten in each, and together at most `max_bytes`.
pub(crate) fn chunks<T: Clone>(
    entries: &[T],
    max_bytes: usize,
    size: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    const MAX_ENTRIES: usize = 10;
    let mut calls: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let size = size(entry);
        match calls.last_mut() {
            Some(call) if call.len() < MAX_ENTRIES && bytes + size <= max_bytes => {
                call.push(entry.clone());
                bytes += size;
            }
            Some(_) | None => {
                calls.push(vec![entry.clone()]);
                bytes = size;
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(future)
    }

    /// Rule 10 for every combination of failures among ten entries: the fanout retries a failed
    /// entry once, and a successful entry never.
    #[test]
    fn only_failed_entries_are_retried() {
        for mask in 0..1_024_u32 {
            let sent = RefCell::new(Vec::new());
            let left = block_on(send_all((0..10_usize).collect(), async |entries: &[usize]| {
                sent.borrow_mut().push(entries.to_vec());
                match sent.borrow().len() {
                    1 => (0..10)
                        .filter(|place| mask & (1 << place) != 0)
                        .map(|place| (place, EntryFailure::Transient))
                        .collect(),
                    _ => Vec::new(),
                }
            }));
            assert_eq!(left, []);
            let failed: Vec<_> = (0..10).filter(|place| mask & (1 << place) != 0).collect();
            let expected = if failed.is_empty() {
                vec![(0..10).collect()]
            } else {
                vec![(0..10).collect(), failed]
            };
            assert_eq!(sent.into_inner(), expected);
        }
    }

    #[test]
    fn entries_that_keep_failing_are_returned_after_a_bounded_number_of_calls() {
        let calls = RefCell::new(0);
        let left = block_on(send_all(vec!['a', 'b', 'c'], async |entries: &[char]| {
            *calls.borrow_mut() += 1;
            let place = |entry: char| entries.iter().position(|other| *other == entry);
            let kept = place('a').map(|place| (place, EntryFailure::Transient));
            let never = place('c').map(|place| (place, EntryFailure::Permanent("no".into())));
            kept.into_iter().chain(never).collect()
        }));
        assert_eq!(
            left,
            [('c', EntryFailure::Permanent("no".into())), ('a', EntryFailure::Transient)]
        );
        assert_eq!(calls.into_inner(), 1 + MAX_RESENDS);
    }

    proptest! {
        #[test]
        fn calls_have_every_entry_once_in_order_within_the_limits(sizes in prop::collection::vec(prop_oneof![1..100_usize, 1..5_usize], 0..60)) {
            let cut = chunks(&sizes, 250, |size| *size);
            prop_assert_eq!(cut.concat(), sizes);
            for call in cut {
                prop_assert!(call.len() <= 10 && call.iter().sum::<usize>() <= 250);
            }
        }

        #[test]
        fn a_call_has_at_most_ten_entries(entries in 0..60_usize) {
            let cut = chunks(&vec![(); entries], 250, |()| 1);
            prop_assert_eq!(cut.len(), entries.div_ceil(10));
        }
    }
}
