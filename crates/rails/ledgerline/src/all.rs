//! `$all`: one order over the commits of all streams.
//!
//! The log has an order in each stream and none across streams. `$all` is a log of its own, beside it: streams `$all-0`, `$all-1` … whose commits are
//! called *segments*. A segment has entries, each of which says that a stream has *reached* a version. A sequencer appends them, in the order
//! in which it hears of commits, by the same insert as every commit: so rules 1 to 4 hold for `$all`, and its order never changes afterwards.
//!
//! An entry says "reached", and not "here is version v", because records of commits arrive swapped, late, twice, or never (rule 7). Whoever reads an entry applies
//! every version up to it that it has not applied: the order inside a stream is that of its versions, whatever became of single records.
//!
//! What the order is not: it is not the order of clocks, and two commits that have nothing to do with each other may stand in any order. A commit that was made in
//! answer to another one, and names it in `causation_id`, stands after it ([`entries`]), with one exception: if records arrive out of order, a commit may be reached early, by
//! the entry of a later version of its stream, or as the cause of another commit. Its own cause is not known then without reading the log.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AppendError, Commit, EventStore, Meta, RecordedEvent, StoreError, StreamId};

/// The type of the event that a segment has.
const SEGMENT: &str = "Sequenced";
/// The number of its shape.
const SCHEMA: u32 = 1;
/// The most entries of a segment. With the longest names of streams, they are half of what an item may hold.
const MOST: usize = 1_000;
/// The most streams whose last entry a sequencer remembers. What it has forgotten may get an entry that says nothing new.
const REMEMBERED: usize = 100_000;
/// How often one segment is tried before the batch is given back (rule 11).
const TRIES: u32 = 50;

/// "The stream has reached this version."
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The stream.
    pub stream: StreamId,
    /// The version.
    pub version: u64,
}

impl Entry {
    /// The commit that `causation_id` names, if it names one: `<stream>:<version>`, as process managers write it.
    fn of_cause(causation_id: &str) -> Option<Self> {
        let (stream, version) = causation_id.rsplit_once(':')?;
        let version = version.parse().ok().filter(|version| *version > 0)?;
        Some(Self { stream: StreamId::try_from(stream.to_owned()).ok()?, version })
    }
}

/// The entries of commits that arrived in this order. The cause of a commit stands before it, if the commit names it: whoever made the commit has seen
/// its cause in the log, so that the entry is true even if the record of the cause has not arrived yet.
pub fn entries<'a>(commits: impl IntoIterator<Item = &'a Commit>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for commit in commits {
        entries.extend(commit.meta.causation_id.as_deref().and_then(Entry::of_cause));
        entries.push(Entry { stream: commit.stream.clone(), version: commit.version });
    }
    entries
}

/// A segment of `$all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its number: 1, 2, 3 … without holes.
    pub number: u64,
    /// The name of the batch that it was made of. Information only.
    pub batch: String,
    /// When it was made, in UTC. Information only.
    pub at: Timestamp,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
}

impl Segment {
    /// The segment in a commit of `$all`.
    ///
    /// # Errors
    /// When it is none that this program reads.
    pub fn of(commit: &Commit) -> Result<Self, StoreError> {
        let corrupt = |reason: &str| StoreError::Corrupt {
            stream: commit.stream.to_string(),
            version: commit.version,
            reason: reason.to_owned(),
        };
        let [event] = commit.events.as_slice() else { return Err(corrupt("a segment has one event")) };
        if (event.event_type.as_str(), event.schema) != (SEGMENT, SCHEMA) {
            return Err(corrupt("its event is not of a type and schema that this program reads"));
        }
        let entries: Vec<(StreamId, u64)> =
            serde_json::from_str(&event.data).map_err(|_| corrupt("its entries cannot be read"))?;
        let entries = entries.into_iter().map(|(stream, version)| Entry { stream, version }).collect();
        Ok(Self { number: commit.version, batch: commit.command.clone(), at: commit.at, entries })
    }

    fn commit(&self, stream: &StreamId) -> Result<Commit, StoreError> {
        let entries: Vec<_> = self.entries.iter().map(|entry| (&entry.stream, entry.version)).collect();
        let data = serde_json::to_string(&entries).map_err(|error| StoreError::Unavailable(error.into()))?;
        Ok(Commit {
            stream: stream.clone(),
            version: self.number,
            events: vec![RecordedEvent { event_type: SEGMENT.to_owned(), schema: SCHEMA, data }],
            state: None,
            command: self.batch.clone(),
            at: self.at,
            meta: Meta::default(),
        })
    }
}

/// Why a batch is not in `$all`, or not all of it. It may be tried again at any time, by whomever.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// Other sequencers appended a segment each time.
    #[error("other sequencers were first each time")]
    Contended,
    /// The table of `$all` failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A segment does not fit in an item, which its bound rules out.
    #[error("a segment was refused")]
    Refused(#[source] AppendError),
}

/// Appends to one stream of `$all`. Several may do so at once, each with a head of its own: whoever finds the next number taken reads what it has missed.
///
/// ```
/// use jiff::Timestamp;
/// use ledgerline::{MemoryStore, StreamId, all::{Entry, Sequencer}};
///
/// # let done = async {
/// let (store, mut sequencer) = (MemoryStore::default(), Sequencer::new(0));
/// let entry = Entry { stream: StreamId::new("tank", "north")?, version: 1 };
/// assert_eq!(sequencer.append(&store, "batch-1", vec![entry.clone()], Timestamp::UNIX_EPOCH).await?, 1);
/// assert_eq!(sequencer.append(&store, "batch-2", vec![entry], Timestamp::UNIX_EPOCH).await?, 0, "it says nothing new");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
#[derive(Debug)]
pub struct Sequencer {
    stream: StreamId,
    /// The number of the newest segment that it knows; `None` before it has looked.
    head: Option<u64>,
    reached: Reached,
}

/// The versions that streams have reached in the segments that a sequencer has seen.
#[derive(Debug, Default)]
struct Reached {
    versions: BTreeMap<StreamId, u64>,
}

impl Reached {
    fn covers(&self, entry: &Entry) -> bool {
        self.versions.get(&entry.stream).is_some_and(|version| *version >= entry.version)
    }

    fn note(&mut self, entries: &[Entry]) {
        if self.versions.len() > REMEMBERED {
            // All at once, which is plain and seldom: an entry more for each stream is what it costs.
            self.versions.clear();
        }
        for entry in entries {
            let version = self.versions.entry(entry.stream.clone()).or_default();
            *version = (*version).max(entry.version);
        }
    }
}

impl Sequencer {
    /// A sequencer of `$all-<partition>`. Its store has a table of its own.
    #[must_use]
    pub fn new(partition: u16) -> Self {
        Self { stream: StreamId::all(partition), head: None, reached: Reached::default() }
    }

    /// Appends what is new in these entries. Returns how many segments that took. `batch` names the batch in its segments, for whoever looks at them.
    ///
    /// A segment of an earlier try, whose reply was lost, is recognised by what it covers (rule 4): then nothing is left to be appended.
    ///
    /// When it returns, every entry is covered by `$all`. When it fails, or its process ends, some may be; the batch is then appended again, by any sequencer, and
    /// with other bounds if need be.
    ///
    /// # Errors
    /// When the store fails, or other sequencers are first too often.
    pub async fn append(
        &mut self,
        store: &impl EventStore,
        batch: &str,
        entries: Vec<Entry>,
        at: Timestamp,
    ) -> Result<usize, SequenceError> {
        let mut left = entries;
        let mut appended = 0;
        let mut tries = 0;
        loop {
            let head = match self.head {
                Some(head) => head,
                None => self.look(store).await?,
            };
            left = self.fresh(left);
            if left.is_empty() {
                return Ok(appended);
            }
            tries += 1;
            if tries > TRIES {
                return Err(SequenceError::Contended);
            }
            let part = left.get(..MOST.min(left.len())).unwrap_or_default().to_vec();
            let segment = Segment { number: head + 1, batch: batch.to_owned(), at, entries: part };
            match store.append(&segment.commit(&self.stream)?, None).await {
                Ok(()) => {
                    self.head = Some(segment.number);
                    self.reached.note(&segment.entries);
                    appended += 1;
                    tries = 0;
                }
                // Taken by another one, or by an earlier try of this very call: what is there covers what it covers, whoever appended it.
                Err(
                    AppendError::VersionTaken
                    | AppendError::Busy
                    | AppendError::Store(StoreError::Unavailable(_) | StoreError::Throttled),
                ) => self.catch_up(store, head).await?,
                Err(AppendError::Store(error)) => return Err(error.into()),
                Err(
                    error @ (AppendError::RequestTaken
                    | AppendError::TooLarge { .. }
                    | AppendError::TooMany { .. }),
                ) => return Err(SequenceError::Refused(error)),
            }
        }
    }

    /// The entries that say something new, each stream's versions ascending.
    fn fresh(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut reached = BTreeMap::new();
        let is_new = |entry: &Entry| {
            let known = reached.get(&entry.stream).is_some_and(|version| *version >= entry.version);
            if known || self.reached.covers(entry) {
                return false;
            }
            reached.insert(entry.stream.clone(), entry.version);
            true
        };
        entries.into_iter().filter(is_new).collect()
    }

    /// Finds the head, and notes what the newest segments say, so that a batch that comes again after a crash adds nothing.
    async fn look(&mut self, store: &impl EventStore) -> Result<u64, StoreError> {
        let newest = crate::Range { after: 0, up_to: u64::MAX, limit: Some(100) };
        let page = store.read(&self.stream, newest, crate::Consistency::Strong).await?;
        for commit in &page.commits {
            self.reached.note(&Segment::of(commit)?.entries);
        }
        let head = page.commits.first().map_or(0, |newest| newest.version);
        self.head = Some(head);
        Ok(head)
    }

    /// Reads the segments after this one.
    async fn catch_up(&mut self, store: &impl EventStore, mut head: u64) -> Result<(), StoreError> {
        loop {
            let page = store.forward(&self.stream, head, u64::MAX).await?;
            for commit in &page.commits {
                contiguous(&self.stream, head, commit)?;
                self.reached.note(&Segment::of(commit)?.entries);
                head = commit.version;
            }
            self.head = Some(head);
            if page.complete {
                return Ok(());
            }
        }
    }
}

/// Rule 2 for whoever reads: a hole in `$all` would lose what is in it without a word.
fn contiguous(stream: &StreamId, before: u64, commit: &Commit) -> Result<(), StoreError> {
    if commit.version == before + 1 {
        return Ok(());
    }
    let (stream, version) = (stream.to_string(), before + 1);
    Err(StoreError::Corrupt {
        stream,
        version,
        reason: format!("it is missing, and {} is there", commit.version),
    })
}

/// A page of segments of `$all-<partition>` after this number, oldest first, read strongly, and whether nothing followed it. Past and live come from this one
/// source: who has read to the end asks again later, with the number of the last segment that it has.
///
/// # Errors
/// When the store fails, or a segment is missing.
pub async fn segments(
    store: &impl EventStore,
    partition: u16,
    after: u64,
) -> Result<(Vec<Segment>, bool), StoreError> {
    let stream = StreamId::all(partition);
    let page = store.forward(&stream, after, u64::MAX).await?;
    let mut segments = Vec::new();
    let mut before = after;
    for commit in &page.commits {
        contiguous(&stream, before, commit)?;
        before = commit.version;
        segments.push(Segment::of(commit)?);
    }
    Ok((segments, page.complete))
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use proptest::prelude::*;

    use super::*;
    use crate::{MemoryStore, contract::commit};

    fn entry(id: &str, version: u64) -> Entry {
        Entry { stream: StreamId::new("tank", id).unwrap(), version }
    }

    fn all(store: &impl EventStore) -> Vec<Segment> {
        let (mut read, mut after) = (Vec::new(), 0);
        loop {
            let (segments, complete) = block_on(segments(store, 0, after)).unwrap();
            after = segments.last().map_or(after, |last| last.number);
            read.extend(segments);
            if complete {
                return read;
            }
        }
    }

    /// What a reader applies that has these positions.
    fn applied(segments: &[Segment], positions: &mut BTreeMap<StreamId, u64>) -> Vec<Entry> {
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

    fn append(store: &MemoryStore, sequencer: &mut Sequencer, batch: &str, entries: Vec<Entry>) -> usize {
        block_on(sequencer.append(store, batch, entries, Timestamp::UNIX_EPOCH)).unwrap()
    }

    #[test]
    fn what_comes_again_adds_nothing_and_what_was_overtaken_neither() {
        let store = MemoryStore::default();
        let mut sequencer = Sequencer::new(0);
        assert_eq!(append(&store, &mut sequencer, "1", vec![entry("a", 2), entry("b", 1), entry("a", 1)]), 1);
        assert_eq!(append(&store, &mut sequencer, "2", vec![entry("a", 1), entry("b", 1)]), 0);
        // By another instance, and with other bounds.
        let mut other = Sequencer::new(0);
        assert_eq!(append(&store, &mut other, "3", vec![entry("a", 2), entry("a", 3)]), 1);
        assert_eq!(append(&store, &mut sequencer, "4", vec![entry("a", 3), entry("b", 2)]), 1);
        let entries: Vec<_> = all(&store).into_iter().map(|segment| segment.entries).collect();
        assert_eq!(entries, [vec![entry("a", 2), entry("b", 1)], vec![entry("a", 3)], vec![entry("b", 2)]]);
    }

    #[test]
    fn a_large_batch_takes_several_segments() {
        let store = MemoryStore::default();
        let many: Vec<_> = (1..=2_500).map(|n| entry(&n.to_string(), 1)).collect();
        assert_eq!(append(&store, &mut Sequencer::new(0), "1", many.clone()), 3);
        assert_eq!(applied(&all(&store), &mut BTreeMap::new()), many);
    }

    #[test]
    fn a_consequence_stands_after_its_cause_even_if_its_record_comes_first() {
        let (cause, mut consequence) = (commit(&entry("a", 1).stream, 7), commit(&entry("b", 1).stream, 1));
        consequence.meta.causation_id = Some("tank-a:7".into());
        assert_eq!(entries([&consequence, &cause]), [entry("a", 7), entry("b", 1), entry("a", 7)]);
        for other in ["request-1", "tank-a:0", "tank-a:", ":7", "tank-a:x", "Tank-a:7"] {
            consequence.meta.causation_id = Some(other.into());
            assert_eq!(entries([&consequence]), [entry("b", 1)], "{other}");
        }
    }

    #[test]
    fn a_hole_and_a_segment_of_another_program_are_said_and_not_skipped() {
        let store = MemoryStore::default();
        append(&store, &mut Sequencer::new(0), "1", vec![entry("a", 1)]);
        let stream = StreamId::all(0);
        let third = Segment { number: 3, batch: "3".into(), at: Timestamp::UNIX_EPOCH, entries: vec![] };
        block_on(store.append(&third.commit(&stream).unwrap(), None)).unwrap();
        let error = block_on(segments(&store, 0, 0)).unwrap_err().to_string();
        assert!(error.contains("commit 2 of $all-0") && error.contains("missing"), "{error}");

        let other = commit(&StreamId::all(1), 1);
        block_on(store.append(&other, None)).unwrap();
        assert!(block_on(segments(&store, 1, 0)).unwrap_err().to_string().contains("type and schema"));
        assert!(StreamId::new("$all", "0").is_err(), "no aggregate has such a stream");
        assert_eq!(StreamId::try_from("$all-0".to_owned()), Ok(StreamId::all(0)));
        for other in ["$all-", "$all-x", "$all-00", "$all-70000", "$all"] {
            assert!(StreamId::try_from(other.to_owned()).is_err(), "{other}");
        }
    }

    proptest! {
        /// Four sequencers, each of which may be behind, ended, or at work on a batch that another one appended: the order is dense, complete, that of versions in
        /// each stream, and the same for every reader, wherever it begins.
        #[test]
        fn the_order_is_final_complete_and_that_of_versions(
            streams in prop::collection::vec(1..6_u64, 1..6),
            draws in prop::collection::vec(any::<u8>(), 64..128),
        ) {
            let mut draws = draws.into_iter().cycle();
            let mut draw = |below: usize| usize::from(draws.next().unwrap_or(0)) % below;
            let store = MemoryStore::default();
            let mut records: Vec<_> = streams.iter().enumerate()
                .flat_map(|(stream, versions)| (1..=*versions).map(move |version| entry(&stream.to_string(), version)))
                .collect();
            // Swapped within a short distance, as records of different items are.
            for place in 1..records.len() {
                if draw(3) == 0 {
                    records.swap(place - 1, place);
                }
            }
            let mut sequencers: Vec<_> = (0..4).map(|_| Sequencer::new(0)).collect();
            let mut place = 0;
            while place < records.len() {
                let end = records.len().min(place + 1 + draw(4));
                // A batch comes again: with an earlier beginning, or to another instance.
                let begin = place.saturating_sub(draw(3));
                for _ in 0..=draw(2) {
                    let who = draw(4);
                    if draw(4) == 0 {
                        sequencers[who] = Sequencer::new(0);
                    }
                    append(&store, &mut sequencers[who], &format!("{begin}-{end}"), records[begin..end].to_vec());
                }
                place = end;
            }
            let read = all(&store);
            prop_assert!(read.iter().enumerate().all(|(place, segment)| segment.number == place as u64 + 1));
            let whole = applied(&read, &mut BTreeMap::new());
            let mut sorted = records.clone();
            sorted.sort();
            let mut found = whole.clone();
            found.sort();
            prop_assert_eq!(found, sorted, "each version of each stream, once");
            for middle in 0..=read.len() {
                let mut positions = BTreeMap::new();
                let mut parts = applied(&read[..middle], &mut positions);
                parts.extend(applied(&read[middle..], &mut positions));
                prop_assert_eq!(&parts, &whole);
            }
        }
    }
}
