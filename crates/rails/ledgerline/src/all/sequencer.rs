//! Appending to `$all`.

use std::{collections::HashSet, mem, time::Duration};

use jiff::Timestamp;

use super::{Entry, Segment, contiguous};
use crate::{AppendError, Consistency, EventStore, Range, StoreError, StreamId};

/// The metric of segments that another sequencer was first with, or that were there already when a lost reply had them sent again.
pub const LOST_HEADS: &str = "LostHeads";

/// The most entries of a segment. With the longest names of streams, they are half of what an item may hold.
const MOST: usize = 1_000;
/// The number of entries after which a sequencer begins to forget. It knows that many of the newest entries at least, once it has seen them. An older one that comes again gets
/// a second entry.
const REMEMBERED: usize = 50_000;
/// The newest segments that a new sequencer reads, or as many of them as are in a megabyte: what comes again after a crash is among them, unless that took long.
const LOOKED_AT: u32 = 1_000;
/// How often the table may fail before the batch is given back.
const FAILURES: u32 = 5;
/// How often one segment is tried before the batch is given back (rule 11).
const TRIES: u32 = 50;

/// Why a batch is not in `$all`, or not all of it. It may be tried again at any time, by whomever.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// Other sequencers appended a segment each time.
    #[error("other sequencers were first each time")]
    Contended,
    /// The table of `$all` failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The table did not take a segment: it fails, again and again.
    #[error("a segment was not taken")]
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
    /// The time of that segment. The next one is not older, whatever the clock says, so that a reader finds its place by a time.
    at: Timestamp,
    known: Known,
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
        if self.newest.len() >= REMEMBERED {
            self.older = mem::take(&mut self.newest);
        }
        self.newest.extend(entries.iter().cloned());
    }
}

impl Sequencer {
    /// A sequencer of `$all-<partition>`. Its store has a table of its own.
    #[must_use]
    pub fn new(partition: u16) -> Self {
        Self {
            stream: StreamId::all(partition),
            head: None,
            at: Timestamp::UNIX_EPOCH,
            known: Known::default(),
        }
    }

    /// Appends what is new in these entries. Returns how many segments that took. `batch` names the batch in its segments, for whoever looks at them.
    ///
    /// A segment of an earlier try, whose reply was lost, is recognised by its entries (rule 4): then nothing is left to be appended.
    ///
    /// When it returns, every entry is in `$all`. When it fails, or its process ends, some may be; the batch is then appended again, by any sequencer, and
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
        let (mut tries, mut failures) = (0, 0);
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
            let segment =
                Segment { number: head + 1, batch: batch.to_owned(), at: at.max(self.at), entries: part };
            match store.append(&segment.commit(&self.stream)?, None).await {
                Ok(()) => {
                    (self.head, self.at) = (Some(segment.number), segment.at);
                    self.known.note(&segment.entries);
                    appended += 1;
                    tries = 0;
                }
                // Taken by another one, or by an earlier try of this very call: what is there is there, whoever appended it.
                Err(AppendError::VersionTaken) => {
                    metrics::counter!(LOST_HEADS).increment(1);
                    self.catch_up(store, head).await?;
                }
                // Whether it was appended is not known: what is there says so.
                Err(
                    error @ (AppendError::Busy
                    | AppendError::Store(StoreError::Unavailable(_) | StoreError::Throttled)),
                ) => {
                    failures += 1;
                    if failures > FAILURES {
                        return Err(SequenceError::Refused(error));
                    }
                    store.pause(Duration::from_millis(25 << failures)).await;
                    self.catch_up(store, head).await?;
                }
                Err(AppendError::Store(error)) => return Err(error.into()),
                Err(
                    error @ (AppendError::RequestTaken
                    | AppendError::TooLarge { .. }
                    | AppendError::TooMany { .. }),
                ) => return Err(SequenceError::Refused(error)),
            }
        }
    }

    /// The entries that are not in `$all` yet, as far as is known here.
    fn fresh(&self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut new = HashSet::new();
        entries.into_iter().filter(|entry| !self.known.has(entry) && new.insert(entry.clone())).collect()
    }

    /// Finds the head, and notes what the newest segments say, so that a batch that comes again after a crash adds nothing.
    async fn look(&mut self, store: &impl EventStore) -> Result<u64, StoreError> {
        let newest = Range { after: 0, up_to: u64::MAX, limit: Some(LOOKED_AT) };
        let page = store.read(&self.stream, newest, Consistency::Strong).await?;
        // Oldest first, so that the newest ones are forgotten last.
        for commit in page.commits.iter().rev() {
            let segment = Segment::of(commit)?;
            self.at = self.at.max(segment.at);
            self.known.note(&segment.entries);
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
                let segment = Segment::of(commit)?;
                self.at = self.at.max(segment.at);
                self.known.note(&segment.entries);
                head = commit.version;
            }
            self.head = Some(head);
            if page.complete {
                return Ok(());
            }
        }
    }
}
