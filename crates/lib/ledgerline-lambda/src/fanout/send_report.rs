//! What a batch has left unsent, and why.

use super::send::EntryFailure;

/// The result of a batch for one kind of target: the views, the bus or the queues.
#[derive(Debug, Default)]
pub(super) struct SendReport {
    pub(super) failure: FirstFailure,
    /// The records that this kind of target will never accept, each with the reason.
    pub(super) refused: Vec<(usize, String)>,
    pub(super) unknown: Vec<UnknownRefusal>,
}

/// An entry that its target refused with an unknown code, while it accepted others.
#[derive(Debug)]
pub(super) struct UnknownRefusal {
    /// The index of the record.
    pub(super) index: usize,
    pub(super) target: String,
    pub(super) code: String,
}

impl SendReport {
    /// Adds the entries that a call left unsent, each with the index of its record.
    pub(super) fn add_unsent(
        &mut self,
        target: &str,
        unsent: impl IntoIterator<Item = (usize, EntryFailure)>,
    ) {
        for (index, failure) in unsent {
            match failure {
                EntryFailure::Transient => self.failure.note(index),
                EntryFailure::Unknown(code) => {
                    self.unknown.push(UnknownRefusal { index, target: target.to_owned(), code })
                }
                EntryFailure::Permanent(code) => {
                    self.refused.push((index, format!("it was refused: {code}")))
                }
            }
        }
    }

    /// Whether a record fails, unless its target refuses it for good.
    pub(super) fn is_blocked(&self) -> bool {
        self.failure.first.is_some() || !self.unknown.is_empty()
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.failure.merge(other.failure);
        self.refused.extend(other.refused);
        self.unknown.extend(other.unknown);
    }
}

/// The index of the first record that failed. Lambda delivers that record and all after it again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstFailure {
    pub(super) first: Option<usize>,
}

impl FirstFailure {
    pub(super) fn note(&mut self, index: usize) {
        self.first = Some(self.first.map_or(index, |first| first.min(index)));
    }

    pub(super) fn merge(&mut self, other: Self) {
        if let Some(index) = other.first {
            self.note(index);
        }
    }

    pub(super) fn covers(self, index: usize) -> bool {
        self.first.is_some_and(|first| first <= index)
    }
}
