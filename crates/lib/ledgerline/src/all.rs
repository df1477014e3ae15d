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
//! exception. If records arrive out of order, a commit may be reached early: by the entry of a later
//! version of its stream, or as the cause of another commit. Its own cause is not known then without
//! a read of the log.

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
mod tests {
    use std::collections::BTreeMap;

    use futures::executor::block_on;
    use proptest::prelude::*;

    use super::*;
    use crate::{MemoryStore, contract::commit};

    fn entry(id: &str, version: u64) -> Entry {
        Entry { stream: StreamId::new("tank", id).unwrap(), version }
    }

    fn named_entry(segment: u64, entry: Entry) -> NamedEntry {
        NamedEntry { segment, entry }
    }

    fn read_segments(store: &impl EventLog) -> Vec<Segment> {
        let (mut read, mut after) = (Vec::new(), 0);
        loop {
            let (segments, complete) = block_on(segments(store, after)).unwrap();
            after = segments.last().map_or(after, |last| last.number);
            read.extend(segments);
            if complete {
                return read;
            }
        }
    }

    /// Returns the entries that a reader with these positions applies.
    fn apply_entries(segments: &[Segment], positions: &mut BTreeMap<StreamId, u64>) -> Vec<Entry> {
        let mut applied = Vec::new();
        for Entry { stream, version } in segments.iter().flat_map(|segment| &segment.entries) {
            let position = positions.entry(stream.clone()).or_default();
            while *position < *version {
                *position += 1;
                applied.push(Entry { stream: stream.clone(), version: *position });
            }
        }
        applied
    }

    /// Appends the entries of a batch, and returns the number of new segments.
    fn append(
        store: &MemoryStore,
        sequencer: &mut Sequencer,
        batch: &str,
        entries: Vec<Entry>,
    ) -> usize {
        let candidates = entries.into_iter().map(Candidate::from_record).collect();
        let log = MemoryStore::default();
        block_on(sequencer.append(store, &log, batch, candidates, Timestamp::UNIX_EPOCH))
            .unwrap()
            .segments
    }

    #[test]
    fn redelivered_records_add_no_entry_even_if_they_arrive_out_of_order() {
        let store = MemoryStore::default();
        let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
        assert_eq!(
            append(&store, &mut sequencer, "1", vec![entry("a", 2), entry("b", 1), entry("a", 1)]),
            1
        );
        assert_eq!(append(&store, &mut sequencer, "2", vec![entry("a", 1), entry("b", 1)]), 0);
        // Another instance gets the batch, with other bounds.
        let mut other = Sequencer::new(MemoryStore::HOST.pause);
        assert_eq!(append(&store, &mut other, "3", vec![entry("a", 2), entry("a", 3)]), 1);
        assert_eq!(append(&store, &mut sequencer, "4", vec![entry("a", 3), entry("b", 2)]), 1);
        let entries: Vec<_> =
            read_segments(&store).into_iter().map(|segment| segment.entries).collect();
        let first = vec![entry("a", 2), entry("b", 1), entry("a", 1)];
        assert_eq!(entries, [first, vec![entry("a", 3)], vec![entry("b", 2)]]);
    }

    /// A segment that is far in the future has its time from a wrong clock. Otherwise a segment is
    /// never earlier than the segment before it.
    #[test]
    fn the_time_of_a_segment_is_earlier_than_the_last_only_if_the_last_is_far_in_the_future() {
        let store = MemoryStore::default();
        let (mut first, mut second) =
            (Sequencer::new(MemoryStore::HOST.pause), Sequencer::new(MemoryStore::HOST.pause));
        for (number, seconds) in [(1, 10), (2, 5), (3, 12), (4, 11), (5, 9_999), (6, 13)] {
            let sequencer = if number % 2 == 0 { &mut second } else { &mut first };
            let at = Timestamp::from_second(seconds).unwrap();
            let candidates = vec![Candidate::from_record(entry("a", number))];
            block_on(sequencer.append(&store, &MemoryStore::default(), "b", candidates, at))
                .unwrap();
        }
        let times: Vec<_> =
            read_segments(&store).iter().map(|segment| segment.at.as_second()).collect();
        assert_eq!(times, [10, 10, 12, 12, 9_999, 13]);
    }

    /// Returns the number of the first segment for a reader that begins at this second.
    fn first_from(store: &MemoryStore, second: i64) -> u64 {
        let time = Timestamp::from_second(second).unwrap();
        block_on(last_segment_before(store, time)).unwrap().map_or(1, |before| before.number + 1)
    }

    fn segments_at(seconds: &[i64]) -> MemoryStore {
        let store = MemoryStore::default();
        for (at, number) in seconds.iter().zip(1..) {
            let candidates = vec![Candidate::from_record(entry("a", number))];
            let at = Timestamp::from_second(*at).unwrap();
            block_on(Sequencer::new(MemoryStore::HOST.pause).append(
                &store,
                &MemoryStore::default(),
                "b",
                candidates,
                at,
            ))
            .unwrap();
        }
        store
    }

    #[test]
    fn a_reader_begins_at_a_time_despite_an_earlier_segment_in_the_future() {
        let mut seconds: Vec<_> = (0..50).map(|number| number * 1_000).collect();
        seconds[20] = 4_083_955_200;
        seconds[21] = 4_083_955_210;
        let store = segments_at(&seconds);
        for number in 24..50 {
            assert_eq!(
                first_from(&store, (number - 1) * 1_000 - 500),
                u64::try_from(number).unwrap(),
                "{number}"
            );
        }
    }

    proptest! {
        #[test]
        fn clocks_in_the_future_hide_no_segment_from_a_reader_that_begins_at_a_time(
            ahead in prop::collection::vec(prop::option::weighted(0.2, 0..100_000_i64), 1..30),
            from in 0..30_000_i64,
        ) {
            let right = (0..).step_by(1_000).take(ahead.len());
            let seconds: Vec<i64> = right.clone().zip(&ahead).map(|(at, ahead)| at + ahead.unwrap_or(0)).collect();
            let wanted = right.zip(1..).find(|(at, _)| *at >= from).map_or(ahead.len() as u64 + 1, |(_, number)| number);
            prop_assert!(first_from(&segments_at(&seconds), from) <= wanted);
        }
    }

    #[test]
    fn a_large_batch_is_written_as_several_segments() {
        let store = MemoryStore::default();
        let many: Vec<_> = (1..=2_500).map(|n| entry(&n.to_string(), 1)).collect();
        assert_eq!(
            append(&store, &mut Sequencer::new(MemoryStore::HOST.pause), "1", many.clone()),
            3
        );
        assert_eq!(apply_entries(&read_segments(&store), &mut BTreeMap::new()), many);
    }

    #[test]
    fn a_consequence_follows_its_cause_even_if_its_record_arrives_first() {
        let cause = commit(&entry("a", 1).stream, 7);
        let mut consequence = commit(&entry("b", 1).stream, 1);
        consequence.meta.causation_id = Some("tank-a:7".into());
        let named = Candidate::from_claim(entry("a", 7));
        let caused = Candidate::from_record(entry("b", 1));
        let expected = [named, caused.clone(), Candidate::from_record(entry("a", 7))];
        assert_eq!(candidates([&consequence, &cause]), expected);
        for other in ["request-1", "tank-a:0", "tank-a:", ":7", "tank-a:x", "Tank-a:7"] {
            consequence.meta.causation_id = Some(other.into());
            assert_eq!(candidates([&consequence]), std::slice::from_ref(&caused), "{other}");
        }
    }

    /// Stored formats are permanent. A stored segment stays readable. Its checksum stays the same,
    /// because cursors store it.
    #[test]
    fn a_stored_segment_is_read() {
        let mut written = commit(&StreamId::all_stream(), 7);
        let data = r#"[["tank-a",2],["user-b-c",18446744073709551615]]"#.to_owned();
        written.events = vec![RecordedEvent { event_type: "Sequenced".into(), schema: 1, data }];
        written.command = "4421".into();
        let segment = Segment::from_commit(&written).unwrap();
        let second = Entry { stream: StreamId::new("user", "b-c").unwrap(), version: u64::MAX };
        assert_eq!((segment.number, segment.batch.as_str()), (7, "4421"));
        assert_eq!(segment.entries, [entry("a", 2), second]);
        assert_eq!(segment.checksum(), 0x458f_387b);
        assert_eq!(segment.commit().unwrap().events, written.events);
        for (event_type, schema, data, voids, last_void) in [
            ("Voided", 1, r#"[["tank-a",2]]"#, vec![entry("a", 2)], 0),
            ("Sequenced", 2, r#"{"lastVoid":6,"entries":[["tank-a",2]]}"#, vec![], 6),
        ] {
            written.events =
                vec![RecordedEvent { event_type: event_type.into(), schema, data: data.into() }];
            let segment = Segment::from_commit(&written).unwrap();
            assert_eq!((&segment.voids, segment.last_void), (&voids, last_void));
            assert_eq!(segment.entries.len() + segment.voids.len(), 1);
            assert_eq!(segment.commit().unwrap().events, written.events);
        }
    }

    #[test]
    fn a_hole_and_a_segment_of_another_program_are_reported_and_not_skipped() {
        let store = MemoryStore::default();
        append(&store, &mut Sequencer::new(MemoryStore::HOST.pause), "1", vec![entry("a", 1)]);
        let third = Segment {
            number: 3,
            batch: "3".into(),
            at: Timestamp::UNIX_EPOCH,
            entries: vec![],
            voids: vec![],
            last_void: 0,
        };
        block_on(store.append(&third.commit().unwrap(), None)).unwrap();
        let error = block_on(segments(&store, 0)).unwrap_err().to_string();
        assert!(error.contains("commit 2 of $all") && error.contains("missing"), "{error}");

        let other = MemoryStore::default();
        block_on(other.append(&commit(&StreamId::all_stream(), 1), None)).unwrap();
        let error = block_on(segments(&other, 0)).unwrap_err().to_string();
        assert!(error.contains("type or schema"), "{error}");
        assert!(StreamId::new("$all", "0").is_err(), "no aggregate has such a stream");
        assert_eq!(StreamId::try_from("$all".to_owned()), Ok(StreamId::all_stream()));
        assert!(StreamId::try_from("$all-0".to_owned()).is_err());
    }

    #[test]
    fn a_claimed_entry_is_appended_only_if_the_log_has_its_commit() {
        // Given a log with one commit
        let sequence = MemoryStore::default();
        let log = MemoryStore::default();
        block_on(log.append(&commit(&entry("a", 1).stream, 1), None)).unwrap();
        let mut sequencer = Sequencer::new(MemoryStore::HOST.pause);
        // when a batch claims entries, and a record proves one of them,
        let claimed =
            [entry("a", 1), entry("a", 2), entry("b", 7), entry("c", 1)].map(Candidate::from_claim);
        let candidates = [&claimed[..], &[Candidate::from_record(entry("c", 1))]].concat();
        let appended =
            block_on(sequencer.append(&sequence, &log, "1", candidates, Timestamp::UNIX_EPOCH))
                .unwrap();
        // then only existing commits have an entry,
        assert_eq!(
            appended,
            Appended { segments: 1, unconfirmed: vec![entry("a", 2), entry("b", 7)] }
        );
        let segments = read_segments(&sequence);
        assert_eq!(segments[0].entries, [entry("a", 1), entry("c", 1)]);
        // and the sequencer does not look up an entry that `$all` has.
        let again = vec![Candidate::from_claim(entry("c", 1))];
        let appended =
            block_on(sequencer.append(&sequence, &log, "2", again, Timestamp::UNIX_EPOCH));
        assert_eq!(appended.unwrap(), Appended::default());
    }

    #[test]
    fn an_entry_is_voided_only_without_its_commit_and_a_later_commit_gets_a_new_entry() {
        let sequence = MemoryStore::default();
        let log = MemoryStore::default();
        let (mut first, mut other) =
            (Sequencer::new(MemoryStore::HOST.pause), Sequencer::new(MemoryStore::HOST.pause));
        let at = Timestamp::UNIX_EPOCH;
        // Given entries of which the log has only the first,
        block_on(log.append(&commit(&entry("a", 1).stream, 1), None)).unwrap();
        let mut stale = Sequencer::new(MemoryStore::HOST.pause);
        append(&sequence, &mut stale, "1", vec![entry("a", 1), entry("a", 2), entry("b", 1)]);
        // when an operator voids them at two sequencers,
        let refused = block_on(first.void(&sequence, &log, named_entry(1, entry("a", 1)), "v", at));
        assert!(matches!(refused, Err(VoidError::Exists)), "{refused:?}");
        block_on(first.void(&sequence, &log, named_entry(1, entry("a", 2)), "v", at)).unwrap();
        block_on(other.void(&sequence, &log, named_entry(1, entry("b", 1)), "v", at)).unwrap();
        block_on(first.void(&sequence, &log, named_entry(1, entry("b", 1)), "v", at)).unwrap();
        for (number, other) in
            [(1, entry("b", 2)), (0, entry("b", 1)), (2, entry("b", 1)), (9, entry("b", 1))]
        {
            let refused =
                block_on(first.void(&sequence, &log, named_entry(number, other), "v", at));
            assert!(matches!(refused, Err(VoidError::NotNamed)), "{refused:?}");
        }
        // then each is void once, and later segments name the segment of void entries,
        append(&sequence, &mut first, "2", vec![entry("c", 1)]);
        let segments = read_segments(&sequence);
        assert_eq!(segments.len(), 4);
        assert_eq!(segments[2].voids, [entry("a", 2), entry("b", 1)]);
        assert_eq!((segments[3].entries.len(), segments[3].last_void), (1, 3));
        assert_eq!(
            block_on(void_entries(&sequence)).unwrap(),
            [entry("a", 2), entry("b", 1)].into()
        );
        // and a later commit with the version of a void entry gets a new entry, even from a
        // sequencer with a stale cache.
        assert_eq!(append(&sequence, &mut stale, "3", vec![entry("a", 2), entry("a", 1)]), 1);
        assert_eq!(append(&sequence, &mut first, "4", vec![entry("a", 2), entry("c", 1)]), 0);
        assert_eq!(
            append(
                &sequence,
                &mut Sequencer::new(MemoryStore::HOST.pause),
                "5",
                vec![entry("a", 2), entry("b", 1)]
            ),
            1
        );
        let entries: Vec<_> = read_segments(&sequence)
            .into_iter()
            .skip(4)
            .flat_map(|segment| segment.entries)
            .collect();
        assert_eq!(entries, [entry("a", 2), entry("b", 1)]);
    }

    proptest! {
        /// Each of four sequencers may lag, crash, or get a batch that another one has appended.
        /// `$all` is dense and complete, and each stream in it is in the order of versions. Every
        /// reader gets the same order, from any beginning.
        #[test]
        fn all_is_final_and_complete_and_in_the_order_of_versions(
            streams in prop::collection::vec(1..6_u64, 1..6),
            draws in prop::collection::vec(any::<u8>(), 64..128),
        ) {
            let mut draws = draws.into_iter().cycle();
            let mut draw = |below: usize| usize::from(draws.next().unwrap_or(0)) % below;
            let store = MemoryStore::default();
            let mut records: Vec<_> = streams.iter().enumerate()
                .flat_map(|(stream, versions)| (1..=*versions).map(move |version| entry(&stream.to_string(), version)))
                .collect();
            // Records of different items may be swapped within a short distance.
            for place in 1..records.len() {
                if draw(3) == 0 {
                    records.swap(place - 1, place);
                }
            }
            let mut sequencers: Vec<_> = (0..4).map(|_| Sequencer::new(MemoryStore::HOST.pause)).collect();
            let mut place = 0;
            while place < records.len() {
                let end = records.len().min(place + 1 + draw(4));
                // Lambda redelivers a batch with an earlier beginning, or to another instance.
                let begin = place.saturating_sub(draw(3));
                for _ in 0..=draw(2) {
                    let who = draw(4);
                    if draw(4) == 0 {
                        sequencers[who] = Sequencer::new(MemoryStore::HOST.pause);
                    }
                    append(&store, &mut sequencers[who], &format!("{begin}-{end}"), records[begin..end].to_vec());
                }
                place = end;
            }
            let read = read_segments(&store);
            prop_assert!(read.iter().enumerate().all(|(place, segment)| segment.number == place as u64 + 1));
            let whole = apply_entries(&read, &mut BTreeMap::new());
            let named: BTreeSet<_> = read.iter().flat_map(|segment| &segment.entries).collect();
            prop_assert_eq!(named, records.iter().collect(), "each record has an entry of its own");
            let mut sorted = records.clone();
            sorted.sort();
            let mut found = whole.clone();
            found.sort();
            prop_assert_eq!(found, sorted, "each version of each stream, once");
            for middle in 0..=read.len() {
                let mut positions = BTreeMap::new();
                let mut parts = apply_entries(&read[..middle], &mut positions);
                parts.extend(apply_entries(&read[middle..], &mut positions));
                prop_assert_eq!(&parts, &whole);
            }
        }
    }
}
