//! Batch calls whose entries fail one by one (rule 10).

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aws_sdk_lambda::error::{ProvideErrorMetadata, SdkError};
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::future::join_all;

use crate::metrics;

/// The number of resends of failed entries, before their records are reported as failed (rule 11).
const MAX_RESENDS: usize = 4;

/// The codes with which EventBridge, SQS and Lambda report an outage or a limit that is exceeded,
/// beside those that name throttling. Source: the SDK's retry classifiers.
const TRANSIENT: [&str; 12] = [
    "",
    "BandwidthLimitExceeded",
    "InternalError",
    "InternalException",
    "InternalFailure",
    "LimitExceededException",
    "OverLimit",
    "RequestLimitExceeded",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "TooManyRequestsException",
];

/// The reason why a service did not accept an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryFailure {
    /// The service may accept the entry at the next attempt.
    Transient,
    /// The code says nothing about the next attempt.
    Unknown(String),
    /// The service will never accept the entry, for the reason with this code.
    Permanent(String),
}

impl EntryFailure {
    /// Classifies the code of an entry. `permanent` has the codes of entries that the service will
    /// never accept. A code may name a service, as in `AWS.SimpleQueueService.BatchRequestTooLong`
    /// and `KMS.ThrottlingException`.
    pub(crate) fn from_code(code: &str, permanent: &[&str]) -> Self {
        let kind = code.rsplit('.').next().unwrap_or_default();
        if permanent.contains(&kind) {
            Self::Permanent(code.to_owned())
        } else if TRANSIENT.contains(&kind) || kind.contains("Throttl") {
            Self::Transient
        } else {
            Self::Unknown(code.to_owned())
        }
    }
}

/// The result of a call without an answer: every entry failed, and may be accepted at the next
/// attempt.
pub(crate) fn fail_all(entries: usize) -> Vec<(usize, EntryFailure)> {
    (0..entries).map(|place| (place, EntryFailure::Transient)).collect()
}

/// The result of a call that the service refused as a whole. One of several entries may be the
/// cause, so a permanent code counts only against an entry by itself. `permanent` may have no code
/// that a service also answers when it is set up wrongly: that would be an outage.
pub(crate) fn fail_call<E: ProvideErrorMetadata>(
    entries: usize,
    error: &SdkError<E>,
    permanent: &[&str],
) -> Vec<(usize, EntryFailure)> {
    let status = error.raw_response().map(|response| response.status().as_u16());
    let failure = match (status, entries) {
        (Some(429 | 500..), _) => EntryFailure::Transient,
        (_, 1) => EntryFailure::from_code(error.code().unwrap_or_default(), permanent),
        _ => EntryFailure::from_code(error.code().unwrap_or_default(), &[]),
    };
    (0..entries).map(|place| (place, failure.clone())).collect()
}

/// The entry that a target accepted last. While the target refuses other entries with unknown
/// codes, the fanout resends this entry: targets accept duplicates, unless there is an outage.
#[derive(Debug)]
pub(crate) struct LastAccepted<T>(Mutex<Option<T>>);

impl<T> Default for LastAccepted<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> LastAccepted<T> {
    fn get(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, entry: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry);
    }
}

/// Sends a batch, and then resends its failed entries, a bounded number of times. Returns the
/// entries that are left, including those that the service will never accept. A failure is
/// [`EntryFailure::Unknown`] only if the target accepted another entry meanwhile.
///
/// `call` makes one call and returns the places in its argument of the entries that failed. The
/// last resend sends each entry with an unknown code by itself, so that no other entry can be the
/// cause.
pub(crate) async fn send_all<T: Clone>(
    entries: Vec<T>,
    last_accepted: &LastAccepted<T>,
    call: impl AsyncFn(&[T]) -> Vec<(usize, EntryFailure)>,
) -> Vec<(T, EntryFailure)> {
    let mut left = Vec::new();
    let mut accepts = false;
    let mut delays = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_millis(500))
        .with_max_times(MAX_RESENDS)
        .with_jitter()
        .build()
        .enumerate();
    let mut round = make_calls(vec![entries], &call).await;
    loop {
        if let Some(entry) = round.accepted {
            accepts = true;
            last_accepted.set(entry);
        }
        let is_permanent = |(_, failure): &(T, _)| matches!(failure, EntryFailure::Permanent(_));
        let (permanent, retries): (Vec<_>, Vec<_>) =
            round.failed.into_iter().partition(is_permanent);
        left.extend(permanent);
        let Some((resends, delay)) = delays.next().filter(|_| !retries.is_empty()) else {
            let failed = retries.into_iter();
            left.extend(failed.map(|(entry, failure)| match accepts {
                true => (entry, failure),
                false => (entry, EntryFailure::Transient),
            }));
            return left;
        };
        metrics::retries(retries.len());
        tokio::time::sleep(delay).await;
        let is_last = resends + 1 == MAX_RESENDS;
        let (alone, together): (Vec<_>, Vec<_>) = retries
            .into_iter()
            .partition(|(_, failure)| is_last && matches!(failure, EntryFailure::Unknown(_)));
        let probe = last_accepted.get().filter(|_| !alone.is_empty() && !accepts);
        let mut calls: Vec<_> = alone.into_iter().map(|(entry, _)| vec![entry]).collect();
        calls.push(together.into_iter().map(|(entry, _)| entry).collect());
        let probe = probe.map(|entry| vec![entry]).into_iter().collect();
        let (made, probed) = tokio::join!(make_calls(calls, &call), make_calls(probe, &call));
        round = made;
        accepts |= probed.accepted.is_some();
    }
}

/// The result of concurrent calls.
struct Round<T> {
    failed: Vec<(T, EntryFailure)>,
    /// One of the accepted entries.
    accepted: Option<T>,
}

async fn make_calls<T>(
    mut calls: Vec<Vec<T>>,
    call: &impl AsyncFn(&[T]) -> Vec<(usize, EntryFailure)>,
) -> Round<T> {
    calls.retain(|entries| !entries.is_empty());
    let answers = join_all(calls.iter().map(|entries| call(entries))).await;
    let mut round = Round { failed: Vec::new(), accepted: None };
    for (entries, failures) in calls.into_iter().zip(answers) {
        let mut failures: BTreeMap<_, _> = failures.into_iter().collect();
        for (place, entry) in entries.into_iter().enumerate() {
            match failures.remove(&place) {
                Some(failure) => round.failed.push((entry, failure)),
                None => round.accepted = Some(entry),
            }
        }
    }
    round
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
            let left = block_on(send_all(
                (0..10_usize).collect(),
                &LastAccepted::default(),
                async |entries: &[usize]| {
                    sent.borrow_mut().push(entries.to_vec());
                    match sent.borrow().len() {
                        1 => (0..10)
                            .filter(|place| mask & (1 << place) != 0)
                            .map(|place| (place, EntryFailure::Transient))
                            .collect(),
                        _ => Vec::new(),
                    }
                },
            ));
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
        let left = block_on(send_all(
            vec!['a', 'b', 'c'],
            &LastAccepted::default(),
            async |entries: &[char]| {
                *calls.borrow_mut() += 1;
                let place = |entry: char| entries.iter().position(|other| *other == entry);
                let kept = place('a').map(|place| (place, EntryFailure::Transient));
                let never = place('c').map(|place| (place, EntryFailure::Permanent("no".into())));
                kept.into_iter().chain(never).collect()
            },
        ));
        assert_eq!(
            left,
            [('c', EntryFailure::Permanent("no".into())), ('a', EntryFailure::Transient)]
        );
        assert_eq!(calls.into_inner(), 1 + MAX_RESENDS);
    }

    /// A bus that refuses `x` alone, and a whole call that has `y`, each with an unknown code.
    async fn refuse_x_and_calls_with_y(entries: &[char]) -> Vec<(usize, EntryFailure)> {
        let unknown = || EntryFailure::Unknown("New".into());
        match entries.contains(&'y') {
            true => (0..entries.len()).map(|place| (place, unknown())).collect(),
            false => {
                let x = entries.iter().position(|entry| *entry == 'x');
                x.map(|place| (place, unknown())).into_iter().collect()
            }
        }
    }

    #[test]
    fn an_unknown_code_counts_against_an_entry_by_itself_if_the_target_accepts_another() {
        let unknown = |entry| (entry, EntryFailure::Unknown("New".into()));
        for (last, entries, expected) in [
            (None, vec!['a', 'x'], vec![unknown('x')]),
            (None, vec!['a', 'y', 'b'], vec![unknown('y')]),
            (None, vec!['x'], vec![('x', EntryFailure::Transient)]),
            (Some('a'), vec!['x'], vec![unknown('x')]),
            (Some('x'), vec!['x'], vec![('x', EntryFailure::Transient)]),
        ] {
            let last_accepted = LastAccepted(Mutex::new(last));
            let sent = send_all(entries.clone(), &last_accepted, refuse_x_and_calls_with_y);
            assert_eq!(block_on(sent), expected, "{entries:?} after {last:?}");
        }
    }

    #[test]
    fn throttling_is_an_outage_in_each_service_and_a_content_that_is_too_long_is_none() {
        for code in [
            "RequestThrottled",
            "ThrottlingException",
            "KMS.ThrottlingException",
            "KMSThrottlingException",
            "EC2ThrottledException",
            "OverLimit",
            "",
        ] {
            assert_eq!(EntryFailure::from_code(code, &[]), EntryFailure::Transient, "{code}");
        }
        let code = "AWS.SimpleQueueService.BatchRequestTooLong";
        let failure = EntryFailure::from_code(code, &["BatchRequestTooLong"]);
        assert_eq!(failure, EntryFailure::Permanent(code.into()));
        assert_eq!(EntryFailure::from_code("New", &[]), EntryFailure::Unknown("New".into()));
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
