//! Reading `$all`, with the commits that its entries name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;

use super::{
    Cursor, CursorError, Entry, Segment, last_segment_before, newest_segment, segments_up_to,
    void_entries,
};
use crate::{Commit, EventLog, RecordedEvent, StoreError, StreamId};

/// The most entries that one page examines, including those of other categories. So a call ends
/// even if the filter rejects every entry.
const MAX_ENTRIES: usize = 10_000;
/// The most segments that are read at once. With more, the next page would repeat the reads of
/// those after the end of this page.
const MAX_SEGMENTS: u64 = 16;
/// The streams that are read at once.
const CONCURRENT_READS: usize = 16;
/// The bytes of commits after which a page ends, by [`Commit::bytes`]. They are checked after each
/// [`EventLog::read_batch_size`] commits.
const PAGE_BYTES: usize = 4_000_000;

/// The commits that a reader wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// The categories of streams; empty for all of them. Commits of other categories are not even
    /// read.
    pub categories: BTreeSet<String>,
    /// The types of events; empty for all of them. A commit passes, whole, if it has an event of
    /// one of these types.
    pub events: BTreeSet<String>,
}

/// An entry, and the commit that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The stream and the version of the commit.
    pub entry: Entry,
    /// The commit, or the reason why it cannot be read. It is damaged, or it is missing because the
    /// log was restored from a backup that is older than `$all`. The reader decides how to handle
    /// such a commit. It must not skip the commit silently, and one such commit must not block all
    /// others. An entry that an operator made void is not delivered.
    pub commit: Result<Commit, String>,
    /// The time of the segment with the entry.
    pub at: Timestamp,
    /// The cursor of a reader that has read up to this entry.
    pub cursor: Cursor,
}

/// An entry of a page, and its place.
#[derive(Debug)]
struct PlacedEntry {
    entry: Entry,
    at: Timestamp,
    cursor: Cursor,
}

/// A part of `$all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The commits, in order.
    pub delivered: Vec<Delivered>,
    /// The end of the page, after entries that the filter left out.
    pub cursor: Cursor,
    /// Whether nothing followed the page.
    pub complete: bool,
    /// The number of entries that the page examined, including those that the filter left out.
    pub entries: usize,
}

/// The reason why a page could not be read. Nothing is lost: the reader can request the page again.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// No reader can continue from the cursor.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// A table failed, or its content cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads `$all` from a cursor. Past and live commits have the same source, so no handover can miss
/// or repeat a commit.
///
/// The consumer pulls: it requests a page when the last one is done, and so needs no protection. It
/// stores the cursor together with its results of the page, in one transaction if it can. If it
/// cannot, or if no commit may be applied twice, it stores its position in each stream too.
/// [`Subscription::due_commits`] then returns the commits to apply.
///
/// ```
/// use jiff::Timestamp;
/// use ledgerline::{MemoryStore, all::{Cursor, Filter, Sequencer, Subscription, candidates}, contract::commit, EventLog, StreamId};
///
/// # let done = async {
/// let (log, sequence) = (MemoryStore::default(), MemoryStore::default());
/// let first = commit(&StreamId::new("tank", "north")?, 1);
/// log.append(&first, None).await?;
/// Sequencer::new(MemoryStore::HOST.pause).append(&sequence, &log, "batch", candidates([&first]), Timestamp::UNIX_EPOCH).await?;
///
/// let subscription = Subscription { sequence, log, filter: Filter::default(), limit: 100 };
/// let page = subscription.read_page(Cursor::beginning()).await?;
/// assert_eq!(page.delivered[0].commit, Ok(first));
/// assert!(page.complete && subscription.read_page(page.cursor).await?.delivered.is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Subscription<Sequence, Log> {
    /// The store of the table of `$all`.
    pub sequence: Sequence,
    /// The store of the log.
    pub log: Log,
    /// The commits that pass.
    pub filter: Filter,
    /// The most commits of a page.
    pub limit: usize,
}

impl<Sequence: EventLog, Log: EventLog> Subscription<Sequence, Log> {
    /// Returns the cursor after the newest entry, for a reader of future commits only.
    ///
    /// # Errors
    /// When the table of `$all` fails.
    pub async fn cursor_at_end(&self) -> Result<Cursor, StoreError> {
        Ok(newest_segment(&self.sequence)
            .await?
            .map_or_else(Cursor::beginning, |newest| newest.end()))
    }

    /// Returns the cursor before the first entry of this time or later, by the clocks of
    /// sequencers. An entry is later than its commit, by the time that its record took to arrive.
    ///
    /// # Errors
    /// When the table of `$all` fails.
    pub async fn cursor_at(&self, time: Timestamp) -> Result<Cursor, StoreError> {
        let before = last_segment_before(&self.sequence, time).await?;
        Ok(before.map_or_else(Cursor::beginning, |before| before.end()))
    }

    /// Returns the commits after this cursor that pass the filter.
    ///
    /// # Errors
    /// When no reader can continue from the cursor, or a table fails.
    pub async fn read_page(&self, mut cursor: Cursor) -> Result<Page, SubscriptionError> {
        let (mut named, mut examined) = (Vec::<PlacedEntry>::new(), 0);
        let is_full =
            |named: &[PlacedEntry], examined| named.len() >= self.limit || examined >= MAX_ENTRIES;
        let complete = 'page: loop {
            let (segments, ended) = self.segments_after(cursor).await?;
            for segment in segments {
                let Segment { number, at, .. } = segment;
                let check = segment.checksum();
                let read = if cursor.segment == number { cursor.entries } else { 0 };
                if segment.entries.is_empty() {
                    // A void segment. The cursor passes it nevertheless; otherwise it would never
                    // pass sixteen of them.
                    cursor = segment.end();
                }
                for (entry, entries) in segment.entries.into_iter().zip(1..).skip(read) {
                    if is_full(&named, examined) {
                        break 'page false;
                    }
                    examined += 1;
                    cursor = Cursor { segment: number, entries, check };
                    let categories = &self.filter.categories;
                    if categories.is_empty() || categories.contains(entry.stream.category()) {
                        named.push(PlacedEntry { entry, at, cursor });
                    }
                }
            }
            if ended || is_full(&named, examined) {
                break ended;
            }
        };
        let mut page = Page { delivered: Vec::new(), cursor, complete, entries: examined };
        self.deliver(&named, &mut page).await?;
        Ok(page)
    }

    /// Fills a page with the commits that these entries name, until it has enough bytes.
    async fn deliver(&self, named: &[PlacedEntry], page: &mut Page) -> Result<(), StoreError> {
        let mut there = HashSet::new();
        let mut bytes = 0;
        let mut voids = None;
        let mut looked_through = None::<&PlacedEntry>;
        for part in named.chunks(self.log.read_batch_size()) {
            // The rest belongs to the next page. This page ends where the last part ended, even if
            // the filter rejected that whole part.
            if let Some(last) = looked_through.take_if(|_| bytes > PAGE_BYTES) {
                (page.cursor, page.complete) = (last.cursor, false);
                return Ok(());
            }
            looked_through = part.last();
            let mut commits = self.commits(part.iter().map(|named| &named.entry)).await?;
            for PlacedEntry { entry, at, cursor } in part {
                // An entry that is in the page twice is delivered once.
                if !there.insert(entry.clone()) {
                    continue;
                }
                let commit = commits.remove(entry).unwrap_or_else(|| Err(MISSING.to_owned()));
                if commit.as_ref().is_err_and(|reason| reason == MISSING) {
                    if voids.is_none() {
                        voids = Some(void_entries(&self.sequence).await?);
                    }
                    if voids.as_ref().is_some_and(|voids| voids.contains(entry)) {
                        continue;
                    }
                }
                let passes = |event: &RecordedEvent| self.filter.events.contains(&event.event_type);
                let is_wanted = self.filter.events.is_empty()
                    || commit.as_ref().is_ok_and(|commit| commit.events.iter().any(passes));
                bytes += commit.as_ref().map_or(0, Commit::bytes);
                // The events of a commit that cannot be read are unknown.
                if is_wanted || commit.is_err() {
                    let entry = entry.clone();
                    page.delivered.push(Delivered { entry, commit, at: *at, cursor: *cursor });
                }
            }
        }
        Ok(())
    }

    /// Returns the commits that a consumer has to apply next, given a delivered commit and the
    /// consumer's position in its stream.
    ///
    /// The position is 0 before the first version. The result is empty if the consumer has applied
    /// the commit, and the commit itself if it is the next one. Otherwise the result has the
    /// versions that the consumer lacks before the commit, as many as one read returns. The
    /// consumer repeats the call with its new position until the result is empty. So it applies a
    /// long stream part by part.
    ///
    /// ```
    /// # use ledgerline::{EventLog, StoreError, Commit, all::Subscription};
    /// # async fn example(subscription: Subscription<impl EventLog, impl EventLog>, commit: Commit, mut position: u64) -> Result<(), StoreError> {
    /// loop {
    ///     let due = subscription.due_commits(&commit, position).await?;
    ///     let Some(last) = due.last().map(|commit| commit.version) else { break };
    ///     // Apply them, and keep the position with what was made of them.
    ///     position = last;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the log fails, or does not have one of the commits.
    pub async fn due_commits(
        &self,
        commit: &Commit,
        position: u64,
    ) -> Result<Vec<Commit>, StoreError> {
        match commit.version.checked_sub(position) {
            None | Some(0) => Ok(Vec::new()),
            Some(1) => Ok(vec![commit.clone()]),
            Some(_) => self.read_part(&commit.stream, position, commit.version - 1).await,
        }
    }

    /// Returns the segments from that of a cursor on, and whether nothing followed them.
    async fn segments_after(
        &self,
        cursor: Cursor,
    ) -> Result<(Vec<Segment>, bool), SubscriptionError> {
        // The read includes the segment of the cursor: the reader may lack the rest of its entries,
        // and the segment must be unchanged.
        let before = cursor.segment.saturating_sub(1);
        let up_to = before.saturating_add(MAX_SEGMENTS);
        let (segments, mut complete) = segments_up_to(&self.sequence, before, up_to).await?;
        complete &= segments.last().is_none_or(|last| last.number < up_to);
        match segments.first() {
            _ if cursor.segment == 0 => {}
            None => return Err(CursorError::Ahead.into()),
            Some(first) if first.checksum() != cursor.check => return Err(CursorError::Lost.into()),
            Some(_) => {}
        }
        Ok((segments, complete))
    }

    /// Returns the commits that these entries name. Consecutive versions of a stream are read
    /// together.
    async fn commits(
        &self,
        entries: impl Iterator<Item = &Entry>,
    ) -> Result<HashMap<Entry, Result<Commit, String>>, StoreError> {
        let mut streams = BTreeMap::<&StreamId, BTreeSet<u64>>::new();
        for Entry { stream, version } in entries {
            streams.entry(stream).or_default().insert(*version);
        }
        let mut ranges = Vec::<(&StreamId, u64, u64)>::new();
        for (stream, versions) in streams {
            for version in versions {
                match ranges.last_mut() {
                    Some((of, _, last)) if *of == stream && *last + 1 == version => *last = version,
                    _ => ranges.push((stream, version, version)),
                }
            }
        }
        // Most streams have one commit in a page.
        let (alone, ranges): (Vec<_>, Vec<_>) =
            ranges.into_iter().partition(|(_, first, last)| first == last);
        let alone: Vec<_> =
            alone.into_iter().map(|(stream, version, _)| (stream, version)).collect();
        let read = stream::iter(ranges)
            .map(|(stream, first, last)| self.read_or_explain(stream, first, last));
        let read: Vec<Vec<_>> = read.buffer_unordered(CONCURRENT_READS).try_collect().await?;
        let alone = if alone.is_empty() { Vec::new() } else { self.read_each(&alone).await? };
        Ok(read.into_iter().flatten().chain(alone).collect())
    }

    /// Returns all versions from `first` to `last`, or for some of them the reason why they cannot
    /// be read.
    async fn read_or_explain(
        &self,
        stream: &StreamId,
        first: u64,
        last: u64,
    ) -> Result<Vec<(Entry, Result<Commit, String>)>, StoreError> {
        match self.read_range(stream, first, last).await {
            Ok(commits) => Ok(commits
                .into_iter()
                .map(|commit| {
                    (Entry { stream: stream.clone(), version: commit.version }, Ok(commit))
                })
                .collect()),
            Err(StoreError::Corrupt { .. }) => {
                let names: Vec<_> = (first..=last).map(|version| (stream, version)).collect();
                self.read_each(&names).await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns these commits, or for some of them the reason why they cannot be read.
    async fn read_each(
        &self,
        names: &[(&StreamId, u64)],
    ) -> Result<Vec<(Entry, Result<Commit, String>)>, StoreError> {
        let mut readable = Vec::new();
        for (&(stream, version), commit) in names.iter().zip(self.log.get_all(names).await?) {
            let commit = match commit {
                Ok(commit) => commit.ok_or_else(|| MISSING.to_owned()),
                Err(StoreError::Corrupt { reason, .. }) => Err(reason),
                Err(error) => return Err(error),
            };
            readable.push((Entry { stream: stream.clone(), version }, commit));
        }
        Ok(readable)
    }

    /// Returns all versions from `first` to `last`.
    async fn read_range(
        &self,
        stream: &StreamId,
        first: u64,
        last: u64,
    ) -> Result<Vec<Commit>, StoreError> {
        let mut commits: Vec<Commit> = Vec::new();
        loop {
            let before = commits.last().map_or(first - 1, |commit| commit.version);
            if before >= last {
                return Ok(commits);
            }
            commits.extend(self.read_part(stream, before, last).await?);
        }
    }

    /// Returns the versions after this one and up to `last` that one read yields: one at least.
    async fn read_part(
        &self,
        stream: &StreamId,
        before: u64,
        last: u64,
    ) -> Result<Vec<Commit>, StoreError> {
        let page = self.log.read_forwards(stream, before, last).await?;
        let expected = before + 1..;
        match expected.zip(&page.commits).find(|(version, commit)| commit.version != *version) {
            Some((version, _)) => Err(missing_commit(stream, version)),
            None if page.commits.is_empty() => Err(missing_commit(stream, before + 1)),
            None => Ok(page.commits),
        }
    }
}

/// The reason given for a commit that `$all` names and the log does not have.
const MISSING: &str = "it is missing, and $all names it";

fn missing_commit(stream: &StreamId, version: u64) -> StoreError {
    StoreError::Corrupt { stream: stream.to_string(), version, reason: MISSING.to_owned() }
}

#[cfg(test)]
mod tests;
