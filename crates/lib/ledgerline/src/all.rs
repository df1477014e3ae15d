//! `$all`: one order over the commits of all streams.
//!
//! The log has an order in each stream and none across streams. `$all` is a stream of its own, in
//! another table, whose commits are called *segments*. A segment has entries. Each entry names a
//! commit and states that its stream has *reached* that version. A [`Sequencer`] appends entries in
//! the order in which it receives commits, by the same insert as every commit. So rules 1 to 4 hold
//! for `$all`, and its order never changes afterwards.
//!
//! An entry says "reached", because records of commits arrive swapped, late, twice, or never (rule
//! 7). There are two ways to read it ([`Subscription`]):
//! * A reader with a position in each stream applies, at each entry, every version up to it that it
//!   has not applied yet. It applies each commit once, in the order of its stream, even if single
//!   records are late, duplicate or lost.
//! * A reader without positions takes each entry for the commit that it names. Every commit whose
//!   record arrived has an entry. In rare cases a commit has a second entry, or follows a later
//!   version of its stream because its record was overtaken.
//!
//! An entry is never changed. An entry is *void* once a later segment says so, because the log does
//! not have its commit, and never will. Readers ignore a void entry ([`Sequencer::void`]).
//!
//! The order is not the order of clocks, and two unrelated commits may be in any order. A commit
//! that answers another one, and names it in `causation_id`, follows it ([`candidates`]), with one
//! exception. If records arrive out of order, a commit may be reached early: by the entry of a
//! later version of its stream, or as the cause of another commit. Its own cause is not known then
//! without a read of the log.

mod cursor;
mod sequencer;
mod subscription;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use self::{
    cursor::{Cursor, CursorError},
    sequencer::{Appended, LOST_HEADS, SequenceError, Sequencer, VoidError},
    subscription::{Delivered, Filter, Page, Subscription, SubscriptionError},
};
use crate::{Commit, Consistency, EventLog, Meta, Range, RecordedEvent, StoreError, StreamId};

/// The type of the event of a segment with entries.
const SEQUENCED: &str = "Sequenced";
/// The schema of its data in an order without void entries: a list of entries.
const LIST: u32 = 1;
/// The schema of its data once the order has void entries: [`Sequenced`]. A reader that knows only
/// the first schema fails at it, and so delivers no void entry unknowingly.
const WITH_VOID: u32 = 2;
/// The type of the event of a segment that makes an entry void. Its data is a list of entries.
const VOIDED: &str = "Voided";

/// The most by which two correct clocks differ. A clock that differs more is wrong.
pub const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Returns the time of an item of an order. The previous item has the time `before`, and the clock
/// of the item's writer shows `at`.
///
/// Times in an order do not decrease, unless `before` is later by more than `most`. Then its clock
/// was in the future, and the item has its own time. A wrong clock affects its own items only, and
/// none after them.
///
/// ```
/// use jiff::{SignedDuration, Timestamp};
/// use ledgerline::all::{CLOCK_SKEW, time_in_order};
///
/// let (before, minute) = (Timestamp::UNIX_EPOCH, SignedDuration::from_mins(1));
/// assert_eq!(time_in_order(before, before + minute, CLOCK_SKEW), before + minute);
/// assert_eq!(time_in_order(before, before - minute, CLOCK_SKEW), before);
/// assert_eq!(time_in_order(before, before - 10 * minute, CLOCK_SKEW), before - 10 * minute);
/// ```
#[must_use]
pub fn time_in_order(before: Timestamp, at: Timestamp, most: SignedDuration) -> Timestamp {
    if before > at && before.duration_since(at) <= most { before } else { at }
}

/// "The stream has reached this version."
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The stream.
    pub stream: StreamId,
    /// The version.
    pub version: u64,
}

impl Entry {
    /// Returns the commit that `causation_id` names, if it names one: `<stream>:<version>`, as
    /// process managers write it.
    fn from_causation_id(causation_id: &str) -> Option<Self> {
        let (stream, version) = causation_id.rsplit_once(':')?;
        let version = version.parse().ok().filter(|version| *version > 0)?;
        Some(Self { stream: StreamId::try_from(stream.to_owned()).ok()?, version })
    }
}

/// An entry of `$all`, and the segment that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedEntry {
    /// The number of the segment.
    pub segment: u64,
    /// The entry.
    pub entry: Entry,
}

/// An entry for a [`Sequencer`] to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The entry.
    pub entry: Entry,
    /// Whether a record of the log's stream proves that the commit exists. Without a proof, the
    /// sequencer looks the commit up in the log. An entry is final, and an entry without a commit
    /// stops every subscription.
    pub is_proven: bool,
}

impl Candidate {
    /// Returns an entry whose commit a record of the log's stream carries.
    #[must_use]
    pub fn from_record(entry: Entry) -> Self {
        Self { entry, is_proven: true }
    }

    /// Returns an entry whose commit is only named, by another commit or by an operator.
    #[must_use]
    pub fn from_claim(entry: Entry) -> Self {
        Self { entry, is_proven: false }
    }
}

/// Returns the candidates of commits that records of the log's stream carry, in the order of the
/// records. The cause of a commit precedes it, if the commit names its cause. The record proves the
/// commit, and not its cause: a process manager may name a wrong one.
pub fn candidates<'a>(commits: impl IntoIterator<Item = &'a Commit>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for commit in commits {
        let cause = commit.meta.causation_id.as_deref().and_then(Entry::from_causation_id);
        candidates.extend(cause.map(Candidate::from_claim));
        candidates.push(Candidate::from_record(Entry {
            stream: commit.stream.clone(),
            version: commit.version,
        }));
    }
    candidates
}

/// A segment of `$all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its number: 1, 2, 3 … without holes.
    pub number: u64,
    /// The name of the batch that it holds. Information only.
    pub batch: String,
    /// Its time, in UTC, by the clock of its sequencer: see [`time_in_order`].
    pub at: Timestamp,
    /// Its entries, in order. A segment that makes an entry void has none.
    pub entries: Vec<Entry>,
    /// All void entries of the order so far, if this segment makes an entry void: that entry is the
    /// last one. The segment repeats the others from the previous void segment, so that a reader
    /// learns all of them with one read.
    pub voids: Vec<Entry>,
    /// The number of the newest void segment before this one; 0 if there is none.
    pub last_void: u64,
}

/// The data of a segment with entries, once the order has void entries.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sequenced {
    last_void: u64,
    entries: Vec<(StreamId, u64)>,
}

fn pairs(entries: &[Entry]) -> Vec<(StreamId, u64)> {
    entries.iter().map(|entry| (entry.stream.clone(), entry.version)).collect()
}

impl Segment {
    /// Reads the segment in a commit of `$all`.
    ///
    /// # Errors
    /// When the commit is no segment that this program reads.
    pub fn from_commit(commit: &Commit) -> Result<Self, StoreError> {
        let corrupt = |reason: &str| StoreError::Corrupt {
            stream: commit.stream.to_string(),
            version: commit.version,
            reason: reason.to_owned(),
        };
        let [event] = commit.events.as_slice() else {
            return Err(corrupt("a segment must have one event"));
        };
        let unreadable = |_| corrupt("the entries of the segment cannot be read");
        let list = || serde_json::from_str::<Vec<(StreamId, u64)>>(&event.data).map_err(unreadable);
        let (entries, voids, last_void) = match (event.event_type.as_str(), event.schema) {
            (SEQUENCED, LIST) => (list()?, Vec::new(), 0),
            (SEQUENCED, WITH_VOID) => {
                let Sequenced { entries, last_void } =
                    serde_json::from_str(&event.data).map_err(unreadable)?;
                (entries, Vec::new(), last_void)
            }
            (VOIDED, LIST) => (Vec::new(), list()?, 0),
            _ => {
                return Err(corrupt(
                    "the segment's event has a type or schema that this program does not read",
                ));
            }
        };
        let entry = |(stream, version)| Entry { stream, version };
        Ok(Self {
            number: commit.version,
            batch: commit.command.clone(),
            at: commit.at,
            entries: entries.into_iter().map(entry).collect(),
            voids: voids.into_iter().map(entry).collect(),
            last_void,
        })
    }

    /// Returns the number of the newest void segment, this one included; 0 if there is none.
    fn newest_void(&self) -> u64 {
        if self.voids.is_empty() { self.last_void } else { self.number }
    }

    /// Returns a checksum that distinguishes this segment from another one with its number. Cursors
    /// store it, so it must not change.
    fn checksum(&self) -> u32 {
        let mut text = format!("{} {} {}", self.number, self.batch, self.at);
        for entry in self.entries.iter().chain(&self.voids) {
            text += &format!(" {}:{}", entry.stream, entry.version);
        }
        crc32fast::hash(text.as_bytes())
    }

    fn commit(&self) -> Result<Commit, StoreError> {
        let (event_type, schema, data) = if !self.voids.is_empty() {
            (VOIDED, LIST, serde_json::to_string(&pairs(&self.voids)))
        } else if self.last_void > 0 {
            let data = Sequenced { last_void: self.last_void, entries: pairs(&self.entries) };
            (SEQUENCED, WITH_VOID, serde_json::to_string(&data))
        } else {
            (SEQUENCED, LIST, serde_json::to_string(&pairs(&self.entries)))
        };
        let data = data.map_err(|error| StoreError::Unavailable(error.into()))?;
        Ok(Commit {
            stream: StreamId::all_stream(),
            version: self.number,
            events: vec![RecordedEvent { event_type: event_type.to_owned(), schema, data }],
            state: None,
            command: self.batch.clone(),
            at: self.at,
            meta: Meta::default(),
        })
    }
}

/// Checks rule 2 for readers: a hole in `$all` would lose its entries silently.
fn check_contiguous(before: u64, commit: &Commit) -> Result<(), StoreError> {
    if commit.version == before + 1 {
        return Ok(());
    }
    Err(StoreError::Corrupt {
        stream: commit.stream.to_string(),
        version: before + 1,
        reason: format!("the commit is missing, but version {} exists", commit.version),
    })
}

/// Returns a page of segments of `$all` after this number, oldest first, and whether nothing
/// followed it. The read is strongly consistent.
///
/// Past and live segments have this one source. A reader at the end calls it later with the number
/// of the last segment that it has.
///
/// # Errors
/// When the store fails, or a segment is missing.
pub async fn segments(
    store: &impl EventLog,
    after: u64,
) -> Result<(Vec<Segment>, bool), StoreError> {
    segments_up_to(store, after, u64::MAX).await
}

/// Returns the newest segment of `$all`, if there is one, by a strongly consistent read.
///
/// # Errors
/// When the store fails.
pub async fn newest_segment(store: &impl EventLog) -> Result<Option<Segment>, StoreError> {
    let newest = Range { after: 0, up_to: u64::MAX, limit: Some(1) };
    let page = store.read(&StreamId::all_stream(), newest, Consistency::Strong).await?;
    page.commits.first().map(Segment::from_commit).transpose()
}

/// Returns the last segment of `$all` that is older than this time, if there is one. With correct
/// clocks, times in segments do not decrease. A binary search finds the segment, in twice as many
/// reads as the number of segments has binary digits.
///
/// A clock in the future leaves segments in the order that are later than those after them. The
/// search may end before such segments. Then it looks beyond them, at doubled distances, for
/// segments that are older than `time`. It may miss some of these. A reader that wants everything
/// from `time` on misses nothing, because no segment is older than the time of its records in the
/// database: see [`Sequencer::append`].
///
/// # Errors
/// When the store fails, or a segment is missing.
pub async fn last_segment_before(
    store: &impl EventLog,
    time: Timestamp,
) -> Result<Option<Segment>, StoreError> {
    let mut found = None;
    let end = newest_segment(store).await?.map_or(1, |newest| newest.number + 1);
    // The segment `before` is older, and the segment `from` is not, or not there.
    let (mut before, mut from) = (0, end);
    loop {
        while from - before > 1 {
            let middle = before + (from - before) / 2;
            let segment = segment(store, middle).await?;
            if segment.at < time {
                before = middle;
                found = Some(segment);
            } else {
                from = middle;
            }
        }
        let mut distance = 1;
        loop {
            let number = from + distance;
            if number >= end {
                return Ok(found);
            }
            let segment = segment(store, number).await?;
            if segment.at < time {
                (before, from) = (number, end);
                found = Some(segment);
                break;
            }
            distance *= 2;
        }
    }
}

/// Returns the void entries of `$all`, by a strongly consistent read. They name commits that the
/// log does not have, and never will.
///
/// # Errors
/// When the store fails.
pub async fn void_entries(store: &impl EventLog) -> Result<BTreeSet<Entry>, StoreError> {
    let newest_void = newest_segment(store).await?.map_or(0, |newest| newest.newest_void());
    Ok(read_voids(store, newest_void).await?.into_iter().collect())
}

/// Returns the void entries that this void segment lists, the newest one last; none for the number
/// 0.
async fn read_voids(store: &impl EventLog, number: u64) -> Result<Vec<Entry>, StoreError> {
    if number == 0 { Ok(Vec::new()) } else { Ok(segment(store, number).await?.voids) }
}

/// Reads one segment.
async fn segment(store: &impl EventLog, number: u64) -> Result<Segment, StoreError> {
    let stream = StreamId::all_stream();
    match store.get(&stream, number).await? {
        Some(commit) => Segment::from_commit(&commit),
        None => Err(StoreError::Corrupt {
            stream: stream.to_string(),
            version: number,
            reason: "the commit is missing, but a later one exists".to_owned(),
        }),
    }
}

/// The same as [`segments`], up to this number.
async fn segments_up_to(
    store: &impl EventLog,
    after: u64,
    up_to: u64,
) -> Result<(Vec<Segment>, bool), StoreError> {
    let page = store.read_forwards(&StreamId::all_stream(), after, up_to).await?;
    let mut segments = Vec::new();
    let mut before = after;
    for commit in &page.commits {
        check_contiguous(before, commit)?;
        before = commit.version;
        segments.push(Segment::from_commit(commit)?);
    }
    Ok((segments, page.complete))
}

#[cfg(test)]
mod tests;
