//! Appending to `$all`.

use std::{collections::HashSet, mem, time::Duration};

use jiff::Timestamp;

use super::{
    CLOCK_SKEW, Candidate, Entry, NamedEntry, Segment, check_contiguous, read_voids, segment,
    time_in_order,
};
use crate::{AppendError, Consistency, EventLog, Pause, Range, StoreError, StreamId};

/// The metric of segments whose number was taken: by another sequencer, or by the segment itself,
/// sent again after a lost reply.
pub const LOST_HEADS: &str = "LostHeads";

/// The most entries of a segment. With the longest names of streams, they use half of the size
/// limit of an item.
const MAX_ENTRIES: usize = 1_000;
/// The number of the newest entries that a sequencer holds at least, once it has seen them. Beyond
/// it, the sequencer begins to forget. An older entry that is delivered again gets a second entry.
const KNOWN_ENTRIES: usize = 50_000;
/// The newest segments that a new sequencer reads, or as many of them as fit in a megabyte. A batch
/// redelivered after a crash is among them, unless the redelivery took long.
const NEWEST_SEGMENTS: u32 = 1_000;
/// How often the table may fail before the append returns an error.
const MAX_FAILURES: u32 = 5;
/// How often one segment is attempted before the append returns an error (rule 11).
const MAX_ATTEMPTS: u32 = 50;

/// The reason why a batch is not in `$all`, or only in part. Any sequencer may retry it at any
/// time.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// Other sequencers appended a segment each time.
    #[error("other sequencers appended first at each attempt")]
    Contended,
    /// The table of `$all` failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The table refused a segment: it keeps failing.
    #[error("the table refused a segment")]
    Refused(#[source] AppendError),
}

/// The reason why an entry was not made void.
#[derive(Debug, thiserror::Error)]
pub enum VoidError {
    /// The segment does not name the entry.
    #[error("the segment of `$all` does not name this commit")]
    NotNamed,
    /// The log has the commit, so that the entry is right.
    #[error("the log has this commit, so its entry is valid")]
    Exists,
    /// The order has as many void entries as one segment lists.
    #[error(
        "`$all` has {MAX_ENTRIES} void entries, the maximum: begin a new `$all` (docs/runbook.md, Restore)"
    )]
    TooMany,
    /// The segment was not appended. The call may be repeated.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}

impl From<StoreError> for VoidError {
    fn from(error: StoreError) -> Self {
        Self::Sequence(error.into())
    }
}

/// What an append did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Appended {
    /// The number of segments of the batch.
    pub segments: usize,
    /// Claimed entries whose commits the log does not have. They were left out.
    pub unconfirmed: Vec<Entry>,
}

/// Appends to `$all`. Several sequencers may append at once, each with a head of its
/// own: one that finds the next number taken reads the segments that it lacks.
///
/// ```
/// use jiff::Timestamp;
/// use ledgerline::{MemoryStore, StreamId, all::{Candidate, Entry, Sequencer}};
///
/// # let done = async {
/// let (sequence, log, mut sequencer) = (MemoryStore::default(), MemoryStore::default(), Sequencer::new(MemoryStore::HOST.pause));
/// let candidate = Candidate::from_record(Entry { stream: StreamId::new("tank", "north")?, version: 1 });
/// let at = Timestamp::UNIX_EPOCH;
/// assert_eq!(sequencer.append(&sequence, &log, "batch-1", vec![candidate.clone()], at).await?.segments, 1);
/// assert_eq!(sequencer.append(&sequence, &log, "batch-2", vec![candidate], at).await?.segments, 0, "it says nothing new");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
#[derive(Debug)]
pub struct Sequencer {
    /// The number of the newest segment that it has seen; `None` before the first read.
    head: Option<u64>,
    /// The time of that segment.
    at: Timestamp,
    known: Known,
    /// The number of the newest void segment that it has seen; 0 if there is none.
    last_void: u64,
    pause: Pause,
}

/// How often a segment was attempted, and how often the table failed meanwhile.
#[derive(Debug, Default)]
struct Attempts {
    tries: u32,
    failures: u32,
}

/// The newest entries that a sequencer has seen.
#[derive(Debug, Default)]
struct Known {
    newest: HashSet<Entry>,
    older: HashSet<Entry>,
}

impl Known {
    fn has(&self, entry: &Entry) -> bool {
        self.newest.contains(entry) || self.older.contains(entry)
    }

    fn note(&mut self, entries: &[Entry]) {
        if self.newest.len() >= KNOWN_ENTRIES {
            self.older = mem::take(&mut self.newest);
        }
        self.newest.extend(entries.iter().cloned());
    }

    fn forget(&mut self, entry: &Entry) {
        self.newest.remove(entry);
        self.older.remove(entry);
    }
}

impl Sequencer {
    /// Returns a sequencer that has read nothing yet. `pause` waits before the next attempt after a
    /// failure.
    #[must_use]
    pub fn new(pause: Pause) -> Self {
        Self { head: None, at: Timestamp::UNIX_EPOCH, known: Known::default(), last_void: 0, pause }
    }

    /// Appends the new entries of these candidates. `batch` is the name of the batch in its
    /// segments, information only.
    ///
    /// The sequencer looks each claimed entry up in the log, with a strongly consistent read. It
    /// looks up no entry that a record of the batch proves, or that it holds from `$all`.
    ///
    /// If the reply of an earlier attempt was lost, the entries identify its segment (rule 4), and
    /// a retry appends nothing.
    ///
    /// `at` is the time of the batch. For candidates that records prove it is at least the time at
    /// which the database wrote the records. So a clock in the past moves no segment. Also, a time
    /// much earlier than that of the previous segment shows that the previous one was in the
    /// future. The time of any other batch is never earlier than that of the previous segment.
    ///
    /// After success, every confirmed entry is in `$all`. After an error or a kill, some may be.
    /// Any sequencer may append the batch again, divided differently if need be.
    ///
    /// # Errors
    /// When a store fails, or other sequencers take the next number too often.
    pub async fn append(
        &mut self,
        sequence: &impl EventLog,
        log: &impl EventLog,
        batch: &str,
        candidates: Vec<Candidate>,
        at: Timestamp,
    ) -> Result<Appended, SequenceError> {
        let is_of_stream = candidates.iter().any(|candidate| candidate.is_proven);
        self.find_head(sequence).await?;
        let (confirmed, unconfirmed) = self.split_confirmed(log, &candidates).await?;
        let mut appended = Appended { segments: 0, unconfirmed };
        let mut attempts = Attempts::default();
        if self.may_be_void(&candidates) {
            self.catch_up(sequence, self.head.unwrap_or(0)).await?;
        }
        loop {
            // All of them each time: an entry that the sequencer holds may be void since the last
            // attempt.
            let left = self.unseen_entries(&confirmed);
            if left.is_empty() {
                return Ok(appended);
            }
            let entries = left.get(..MAX_ENTRIES.min(left.len())).unwrap_or_default().to_vec();
            let at =
                if is_of_stream { time_in_order(self.at, at, CLOCK_SKEW) } else { at.max(self.at) };
            if self
                .attempt(sequence, self.next_segment(batch, at, entries, Vec::new()), &mut attempts)
                .await?
            {
                appended.segments += 1;
                attempts.tries = 0;
            }
        }
    }

    /// Whether the sequencer must catch up before it drops a record as a duplicate. The entry that
    /// it holds may be void, and the record may be of a later commit with the version.
    fn may_be_void(&self, candidates: &[Candidate]) -> bool {
        candidates.iter().any(|candidate| candidate.is_proven && self.known.has(&candidate.entry))
    }

    /// Makes an entry of this segment void, so that readers pass over it. The log must not have the
    /// entry's commit. `batch` is the name of the batch in the new segment, information only.
    ///
    /// An entry that is void already stays as it is. A commit that takes the version later gets an
    /// entry of its own, at the latest when this call is repeated.
    ///
    /// # Errors
    /// When the segment does not name the entry, the log has the commit, or `$all` has too many
    /// void entries. Also the errors of [`append`](Self::append).
    pub async fn void(
        &mut self,
        sequence: &impl EventLog,
        log: &impl EventLog,
        NamedEntry { segment: number, entry }: NamedEntry,
        batch: &str,
        at: Timestamp,
    ) -> Result<(), VoidError> {
        self.find_head(sequence).await?;
        if number == 0 || number > self.head.unwrap_or(0) {
            self.catch_up(sequence, self.head.unwrap_or(0)).await?;
        }
        let is_named = (1..=self.head.unwrap_or(0)).contains(&number)
            && segment(sequence, number).await?.entries.contains(&entry);
        if !is_named {
            return Err(VoidError::NotNamed);
        }
        let mut attempts = Attempts::default();
        loop {
            let mut voids = read_voids(sequence, self.last_void).await?;
            // This may be the repetition of a call that ended before its last step.
            if voids.contains(&entry) {
                break;
            }
            if !missing_entries(log, std::slice::from_ref(&entry)).await?.contains(&entry) {
                return Err(VoidError::Exists);
            }
            if voids.len() >= MAX_ENTRIES {
                return Err(VoidError::TooMany);
            }
            voids.push(entry.clone());
            let at = at.max(self.at);
            if self
                .attempt(sequence, self.next_segment(batch, at, Vec::new(), voids), &mut attempts)
                .await?
            {
                break;
            }
        }
        // A sequencer may have dropped a commit that took the version meanwhile, as a duplicate of
        // its wrong entry.
        self.append(sequence, log, batch, vec![Candidate::from_claim(entry)], at).await?;
        Ok(())
    }

    /// The segment after the head.
    fn next_segment(
        &self,
        batch: &str,
        at: Timestamp,
        entries: Vec<Entry>,
        voids: Vec<Entry>,
    ) -> Segment {
        Segment {
            number: self.head.unwrap_or(0) + 1,
            batch: batch.to_owned(),
            at,
            entries,
            last_void: if voids.is_empty() { self.last_void } else { 0 },
            voids,
        }
    }

    /// Attempts to append a segment. Returns whether it is in `$all`. If not, the sequencer has
    /// caught up with the segments that took its number.
    async fn attempt(
        &mut self,
        store: &impl EventLog,
        segment: Segment,
        attempts: &mut Attempts,
    ) -> Result<bool, SequenceError> {
        attempts.tries += 1;
        if attempts.tries > MAX_ATTEMPTS {
            return Err(SequenceError::Contended);
        }
        match store.append(&segment.commit()?, None).await {
            Ok(()) => {
                self.head = Some(segment.number);
                self.observe(&segment);
                return Ok(true);
            }
            // Another sequencer, or an earlier attempt of this call, took the number: the sequencer
            // catches up.
            Err(AppendError::VersionTaken) => metrics::counter!(LOST_HEADS).increment(1),
            // The store may have appended the segment: the sequencer catches up to find out.
            Err(
                error @ (AppendError::Busy
                | AppendError::Store(StoreError::Unavailable(_) | StoreError::Throttled(_))),
            ) => {
                attempts.failures += 1;
                if attempts.failures > MAX_FAILURES {
                    return Err(SequenceError::Refused(error));
                }
                (self.pause)(Duration::from_millis(25 << attempts.failures)).await;
            }
            Err(AppendError::Store(error)) => return Err(error.into()),
            Err(
                error @ (AppendError::RequestTaken
                | AppendError::TooLarge { .. }
                | AppendError::TooMany { .. }),
            ) => return Err(SequenceError::Refused(error)),
        }
        self.catch_up(store, segment.number - 1).await?;
        Ok(false)
    }

    /// Returns the entries of candidates whose commits exist, in order, and the claimed entries
    /// whose commits do not.
    async fn split_confirmed(
        &self,
        log: &impl EventLog,
        candidates: &[Candidate],
    ) -> Result<(Vec<Entry>, Vec<Entry>), StoreError> {
        let proven: HashSet<_> = candidates
            .iter()
            .filter(|candidate| candidate.is_proven)
            .map(|candidate| &candidate.entry)
            .collect();
        let mut unproven = HashSet::new();
        let claimed: Vec<_> = candidates
            .iter()
            .map(|candidate| &candidate.entry)
            .filter(|entry| {
                !proven.contains(entry) && !self.known.has(entry) && unproven.insert(*entry)
            })
            .cloned()
            .collect();
        let missing = missing_entries(log, &claimed).await?;
        let unconfirmed = claimed.into_iter().filter(|entry| missing.contains(entry)).collect();
        let entries = candidates.iter().map(|candidate| &candidate.entry);
        Ok((entries.filter(|entry| !missing.contains(entry)).cloned().collect(), unconfirmed))
    }

    /// Returns the entries that are not in `$all` yet, as far as this sequencer has seen.
    fn unseen_entries(&self, entries: &[Entry]) -> Vec<Entry> {
        let mut new = HashSet::new();
        entries
            .iter()
            .filter(|entry| !self.known.has(entry) && new.insert(*entry))
            .cloned()
            .collect()
    }

    /// Finds the head, unless it is known, and notes the entries of the newest segments. So a batch
    /// that is redelivered after a crash adds nothing.
    async fn find_head(&mut self, store: &impl EventLog) -> Result<(), StoreError> {
        if self.head.is_some() {
            return Ok(());
        }
        let newest = Range { after: 0, up_to: u64::MAX, limit: Some(NEWEST_SEGMENTS) };
        let page = store.read(&StreamId::all_stream(), newest, Consistency::Strong).await?;
        // Oldest first, so that the sequencer forgets the newest ones last.
        let mut head = 0;
        for commit in page.commits.iter().rev() {
            self.observe(&Segment::from_commit(commit)?);
            head = commit.version;
        }
        self.head = Some(head);
        Ok(())
    }

    /// Reads the segments after this one.
    async fn catch_up(&mut self, store: &impl EventLog, mut head: u64) -> Result<(), StoreError> {
        loop {
            let page = store.read_forwards(&StreamId::all_stream(), head, u64::MAX).await?;
            for commit in &page.commits {
                check_contiguous(head, commit)?;
                self.observe(&Segment::from_commit(commit)?);
                head = commit.version;
            }
            self.head = Some(head);
            if page.complete {
                return Ok(());
            }
        }
    }

    /// Notes the entries and void entries of a segment of `$all`.
    fn observe(&mut self, segment: &Segment) {
        self.at = segment.at;
        self.known.note(&segment.entries);
        self.last_void = self.last_void.max(segment.newest_void());
        // A commit that takes this version later must have an entry.
        if let Some(void) = segment.voids.last() {
            self.known.forget(void);
        }
    }
}

/// Returns the entries whose commits the log does not have, by strongly consistent reads. A commit
/// that cannot be read counts as present.
async fn missing_entries(
    log: &impl EventLog,
    entries: &[Entry],
) -> Result<HashSet<Entry>, StoreError> {
    if entries.is_empty() {
        return Ok(HashSet::new());
    }
    let names: Vec<_> = entries.iter().map(|entry| (&entry.stream, entry.version)).collect();
    let commits = log.get_all(&names).await?;
    let missing = entries.iter().zip(commits).filter(|(_, commit)| matches!(commit, Ok(None)));
    Ok(missing.map(|(entry, _)| entry.clone()).collect())
}
