//! The comparison of the heads of all streams with every subscriber. It finds missing commits,
//! subscribers ahead of the log, and holes in the log itself. It writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher, RandomState},
    mem,
};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    EventLog, StoreError, StreamId,
    all::{CLOCK_SKEW, Entry, last_segment_before, segments},
    manifest::SubscriberKind,
    view_store::ViewError,
};

use crate::{DynamoDbStore, Head, Phase, ViewTable};

/// The number of streams that are compared at once.
const AT_ONCE: usize = 32;
/// The age from which a state view that shows nothing of a stream may have forgotten it. Until that
/// age, the view has a tombstone.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(29 * 24);
/// The name of `$all` among the subscribers.
pub const ORDER: &str = "$all";

/// The number of streams that are compared together in a comparison since a time.
const WINDOW: usize = 2_000;
/// The number of streams that are stored as compared: some twenty bytes each.
const REMEMBERED: usize = 1_000_000;

/// A subscriber to the log: a function with its table.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// The function's name: its logical id.
    pub id: String,
    /// Its kind.
    pub kind: SubscriberKind,
    /// The categories whose commits it applies.
    pub of: Vec<String>,
    /// The table, at the generation of its rows that is read.
    pub table: ViewTable,
    /// The table at the other generation, if a rollback or a switch can choose it.
    pub other: Option<ViewTable>,
}

impl Subscriber {
    /// Returns the subscriber at the generations of its view. A generation that is being built is
    /// not compared: its rebuild compares it.
    ///
    /// # Errors
    /// When they have to be read, and the table fails.
    pub async fn at_generations(self) -> Result<Self, ViewError> {
        let generations = self.table.recent_generations().await?;
        let now = Timestamp::now();
        let [active, building] = [
            Some(generations.active_generation(now)),
            generations.generation_in_phase(Phase::Building),
        ];
        let written = generations.generations_to_write(now).into_iter();
        let other = written.map(Some).find(|number| ![active, building].contains(number)).flatten();
        let other = other.map(|number| self.table.at(number));
        Ok(Self { table: self.table.at_active_generation(), other, ..self })
    }

    /// Whether it applies the commits of this stream.
    #[must_use]
    pub fn takes(&self, stream: &StreamId) -> bool {
        self.of.iter().any(|of| of == stream.category())
    }
}

/// A subscriber that lacks commits of a stream, or has more than the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The subscriber, or [`ORDER`].
    pub who: String,
    /// Its kind; `None` for `$all`.
    pub kind: Option<SubscriberKind>,
    /// The stream.
    pub stream: StreamId,
    /// The last version in the log.
    pub head: u64,
    /// The last version of the subscriber.
    pub found: u64,
    /// The generation that has that version, if it is not the active one.
    pub generation: Option<u32>,
    /// The reason why that version cannot be read, if it cannot. It has no value of the row (rule
    /// 14).
    pub unreadable: Option<String>,
}

/// The number of compared streams of one subscriber, by their condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparisonCounts {
    /// The subscriber, or [`ORDER`].
    pub who: String,
    /// All compared streams.
    pub streams: usize,
    /// Those that lack commits.
    pub missing: usize,
    /// Those that are ahead of the log.
    pub ahead: usize,
    /// Those of which the subscriber shows nothing, and that are older than tombstones.
    pub forgotten: usize,
    /// Those whose row or position cannot be read.
    pub unreadable: usize,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Found {
    /// The numbers of compared streams, by subscriber.
    pub looked: Vec<ComparisonCounts>,
    /// The subscribers that lack commits.
    pub missing: Vec<Difference>,
    /// The subscribers that are ahead of the log, as after a restored backup.
    pub ahead: Vec<Difference>,
    /// Views that show nothing of old streams: they forgot them, and their tombstones have expired,
    /// or they never received their commits.
    pub forgotten: Vec<Difference>,
    /// Rows or positions that cannot be read: their writers cannot continue with their streams
    /// either.
    pub unreadable: Vec<Difference>,
    /// Streams with a hole in the log, each with the number of versions that are missing.
    pub holes: BTreeMap<StreamId, u64>,
    /// The number of differences of commits that are too young: they may be in transit.
    pub too_young: usize,
    /// The versions in `$all` of the streams that it lacks commits of.
    pub seen: BTreeMap<StreamId, EntryVersions>,
}

impl Found {
    /// Whether no subscriber lacks commits or is ahead, and the log has no hole, as far as it was
    /// compared.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        [&self.missing, &self.ahead, &self.unreadable].iter().all(|found| found.is_empty())
            && self.holes.is_empty()
    }

    /// Adds the differences of a subscriber, and keeps at most `most` of each kind.
    fn note(
        &mut self,
        who: &str,
        looked: Vec<Difference>,
        forgotten: Vec<Difference>,
        most: usize,
    ) {
        let streams = looked.len() + forgotten.len();
        let (unreadable, looked): (Vec<_>, Vec<_>) =
            looked.into_iter().partition(|difference| difference.unreadable.is_some());
        let count =
            |is: fn(&Difference) -> bool| looked.iter().filter(|difference| is(difference)).count();
        let (missing, ahead) = (
            count(|difference| difference.found < difference.head),
            count(|difference| difference.found > difference.head),
        );
        let place = self.looked.iter().position(|known| known.who == who).unwrap_or_else(|| {
            self.looked
                .push(ComparisonCounts { who: who.to_owned(), ..ComparisonCounts::default() });
            self.looked.len() - 1
        });
        let sum = &mut self.looked[place];
        sum.streams += streams;
        sum.missing += missing;
        sum.ahead += ahead;
        sum.forgotten += forgotten.len();
        sum.unreadable += unreadable.len();
        self.unreadable.extend(unreadable);
        self.forgotten.extend(forgotten);
        for difference in looked {
            match difference.found.cmp(&difference.head) {
                std::cmp::Ordering::Less => self.missing.push(difference),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => self.ahead.push(difference),
            }
        }
        for differences in
            [&mut self.missing, &mut self.ahead, &mut self.forgotten, &mut self.unreadable]
        {
            differences.truncate(most);
        }
    }
}

/// The reason why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// Only `$all` has the commits since a time.
    #[error("a comparison since a time needs `$all`, and this stack has no sequencer")]
    NoOrder,
    /// The log, or `$all`, cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A table cannot be read.
    #[error(transparent)]
    Table(#[from] ViewError),
}

/// The input of a comparison.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The log.
    pub log: &'a DynamoDbStore,
    /// The number of parts of the log that are read at once.
    pub parts: i32,
    /// `$all`, if there is one.
    pub order: Option<&'a DynamoDbStore>,
    /// Whether `$all` itself is compared with the log.
    pub with_order: bool,
    /// The subscribers to the log.
    pub subscribers: &'a [Subscriber],
    /// Only streams with entries in `$all` since this time, instead of all streams. The cost is
    /// that of the commits since then. It finds no holes, and no stream without an entry in `$all`.
    pub since: Option<Timestamp>,
    /// Leaves out a stream that lacks only [young](is_young) commits: those after this time.
    pub until: Timestamp,
    /// The most differences of each kind that are kept. All of them are counted.
    pub most: usize,
}

impl Comparison<'_> {
    /// Compares the subscribers with the log.
    ///
    /// # Errors
    /// When a table cannot be read, or there is a time and no `$all`.
    pub async fn run(&self) -> Result<Found, CompareError> {
        match (self.order, self.since) {
            (Some(sequence), Some(since)) => self.recent(sequence, since).await,
            (None, Some(_)) => Err(CompareError::NoOrder),
            (order, None) => self.whole(order).await,
        }
    }

    /// Compares the streams with entries in `$all` since a time. It compares some at once, so that
    /// two days of a busy log fit into a function's memory (rule 11).
    async fn recent(
        &self,
        sequence: &DynamoDbStore,
        since: Timestamp,
    ) -> Result<Found, CompareError> {
        let mut found = Found::default();
        let mut window = BTreeSet::new();
        // The hashes of the compared streams, with a random key, so that no caller can choose two
        // ids with one hash. A stream beyond the limit is compared twice.
        let hashes = RandomState::new();
        let mut compared = HashSet::new();
        let mut after =
            last_segment_before(sequence, since).await?.map_or(0, |before| before.number);
        loop {
            let (page, complete) = segments(sequence, after).await?;
            after = page.last().map_or(after, |last| last.number);
            for segment in page {
                // Of the void entries, the last one is new.
                for Entry { stream, .. } in
                    segment.entries.into_iter().chain(segment.voids.last().cloned())
                {
                    if compared.insert(hashes.hash_one(&stream)) {
                        window.insert(stream);
                    }
                }
                if window.len() >= WINDOW {
                    self.compare(self.read_heads(&mem::take(&mut window)).await?, &mut found)
                        .await?;
                }
                if compared.len() >= REMEMBERED {
                    compared.clear();
                }
            }
            if complete {
                break;
            }
        }
        self.compare(self.read_heads(&window).await?, &mut found).await?;
        Ok(found)
    }

    async fn read_heads(
        &self,
        streams: &BTreeSet<StreamId>,
    ) -> Result<BTreeMap<StreamId, Head>, CompareError> {
        let head = async |stream: &StreamId| {
            Ok::<_, StoreError>((stream.clone(), self.log.head(stream).await?))
        };
        let heads = stream::iter(streams).map(head).buffer_unordered(AT_ONCE);
        Ok(heads.try_collect().await?)
    }

    /// Compares all streams, and `$all` if requested.
    async fn whole(&self, order: Option<&DynamoDbStore>) -> Result<Found, CompareError> {
        let reached = match order {
            Some(sequence) => Some(entry_versions(sequence).await?),
            None => None,
        };
        let mut heads = self.log.heads(self.parts).await?;
        // A stream that only `$all` has is gone from the log.
        let known = reached.iter().flat_map(|reached| reached.keys().cloned());
        known.for_each(|stream| _ = heads.entry(stream).or_default());
        let mut found = Found::default();
        let hole = |(stream, head): (&StreamId, &Head)| {
            (head.commits < head.version).then(|| (stream.clone(), head.version - head.commits))
        };
        found.holes.extend(heads.iter().filter_map(hole));
        let heads = self.compare(heads, &mut found).await?;
        if let Some(reached) = reached.as_ref().filter(|_| self.with_order) {
            let looked = stream::iter(&heads)
                .map(|(stream, head)| self.compare_order(reached, stream, head));
            let looked: Vec<_> = looked.buffer_unordered(AT_ONCE).try_collect().await?;
            let looked = self.drop_young(looked, &heads, &mut found).await?;
            found.note(ORDER, looked, Vec::new(), self.most);
            let missing = found.missing.iter().filter(|missing| missing.kind.is_none());
            found.seen = missing
                .filter_map(|missing| {
                    Some((missing.stream.clone(), reached.get(&missing.stream)?.clone()))
                })
                .collect();
        }
        Ok(found)
    }

    /// Compares these streams with every subscriber. Returns them.
    async fn compare(
        &self,
        heads: BTreeMap<StreamId, Head>,
        found: &mut Found,
    ) -> Result<BTreeMap<StreamId, Head>, CompareError> {
        let old = Timestamp::now() - FORGOTTEN;
        for subscriber in self.subscribers {
            let of_it = heads.iter().filter(|(stream, _)| subscriber.takes(stream));
            let looked = stream::iter(of_it)
                .map(|(stream, head)| self.compare_twice(subscriber, stream, head.version));
            let looked: Vec<Difference> = looked.buffer_unordered(AT_ONCE).try_collect().await?;
            let looked = self.drop_young(looked, &heads, found).await?;
            let is_forgotten = |looked: &Difference| {
                let head = heads.get(&looked.stream).and_then(|head| head.at);
                looked.kind == Some(SubscriberKind::StateProjector)
                    && looked.found == 0
                    && looked.unreadable.is_none()
                    && head.is_some_and(|at| at < old)
            };
            let (forgotten, looked): (Vec<_>, Vec<_>) = looked.into_iter().partition(is_forgotten);
            found.note(&subscriber.id, looked, forgotten, self.most);
        }
        Ok(heads)
    }

    /// Leaves out the streams that lack only young commits. The first missing commit counts, not
    /// the newest: otherwise a stream with constant writes would never be compared.
    async fn drop_young(
        &self,
        looked: Vec<Difference>,
        heads: &BTreeMap<StreamId, Head>,
        found: &mut Found,
    ) -> Result<Vec<Difference>, CompareError> {
        let mut left = Vec::new();
        for difference in looked {
            let Difference { stream, head, found: there, unreadable, .. } = &difference;
            let is_missing = there < head && unreadable.is_none();
            // If the newest commit is old, all are.
            let is_new =
                heads.get(stream).and_then(|head| head.at).is_some_and(|at| at > self.until);
            if is_missing && is_new {
                let first = self.log.commit_time(stream, there + 1).await?;
                if first.is_some_and(|at| is_young(at, self.until)) {
                    found.too_young += 1;
                    continue;
                }
            }
            left.push(difference);
        }
        Ok(left)
    }

    /// Returns the version of a subscriber in a stream. The log and the view change during a
    /// comparison. So a difference counts only if a second look, in this order, still finds it.
    async fn compare_twice(
        &self,
        subscriber: &Subscriber,
        stream: &StreamId,
        head: u64,
    ) -> Result<Difference, CompareError> {
        let first = look(subscriber, stream, head).await?;
        if first.found == first.head || first.unreadable.is_some() {
            return Ok(first);
        }
        let head = self.log.head(stream).await?;
        let again = look(subscriber, stream, first.head.min(head.version)).await?;
        let head = self.log.head(stream).await?;
        // Versions that the view has applied meanwhile are no difference, unless the log does not
        // have them.
        Ok(Difference { head: again.head.max(again.found.min(head.version)), ..again })
    }

    async fn compare_order(
        &self,
        reached: &BTreeMap<StreamId, EntryVersions>,
        stream: &StreamId,
        head: &Head,
    ) -> Result<Difference, CompareError> {
        let seen = reached.get(stream).cloned().unwrap_or_default();
        let mut head = head.version;
        // `$all` is ahead, if its newest entry is of a version that the log does not have. The read
        // is strongly consistent, because the scan may be older than `$all`.
        if seen.newest() > head {
            let newest = self.log.head(stream).await?;
            head = newest.version.min(seen.newest());
        }
        let found = if seen.newest() > head { seen.newest() } else { seen.complete_up_to };
        let who = ORDER.to_owned();
        let stream = stream.clone();
        let generation = None;
        Ok(Difference { who, kind: None, stream, head, found, generation, unreadable: None })
    }
}

/// Whether a commit with this time is later than `until`, and so may be in transit. A commit of a
/// wrong clock, which is in the future, has no known age: it counts at once, and not only when its
/// time comes.
#[must_use]
pub fn is_young(at: Timestamp, until: Timestamp) -> bool {
    at > until && at.duration_since(Timestamp::now()) <= CLOCK_SKEW
}

/// Returns the version of a subscriber in a stream: that of its active generation, unless only the
/// other one lacks commits.
async fn look(
    subscriber: &Subscriber,
    stream: &StreamId,
    head: u64,
) -> Result<Difference, CompareError> {
    let is_behind = |looked: &Difference| looked.unreadable.is_some() || looked.found < head;
    let active = look_at(&subscriber.table, subscriber, stream, head).await?;
    let Some(other) = subscriber.other.as_ref().filter(|_| !is_behind(&active)) else {
        return Ok(active);
    };
    let looked = look_at(other, subscriber, stream, head).await?;
    let generation = Some(other.generation());
    Ok(if is_behind(&looked) { Difference { generation, ..looked } } else { active })
}

async fn look_at(
    table: &ViewTable,
    subscriber: &Subscriber,
    stream: &StreamId,
    head: u64,
) -> Result<Difference, CompareError> {
    let (found, unreadable) = match table.applied_version(stream).await {
        Ok(found) => (found, None),
        // One row must not hide the missing commits of other streams (rule 11).
        Err(error @ ViewError::Row(_)) => (0, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let who = subscriber.id.clone();
    let stream = stream.clone();
    let kind = Some(subscriber.kind);
    Ok(Difference { who, kind, stream, head, found, generation: None, unreadable })
}

/// The versions of a stream that have entries in `$all`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryVersions {
    /// All versions up to this one have an entry.
    complete_up_to: u64,
    /// The versions beyond it that have an entry.
    beyond: BTreeSet<u64>,
}

impl EntryVersions {
    fn add(&mut self, version: u64) {
        if version > self.complete_up_to {
            self.beyond.insert(version);
        }
        while self.beyond.remove(&(self.complete_up_to + 1)) {
            self.complete_up_to += 1;
        }
    }

    /// Removes a void entry: `$all` has no entry of this version, until a commit takes the version.
    fn remove(&mut self, version: u64) {
        if version <= self.complete_up_to {
            self.beyond.extend(version + 1..=self.complete_up_to);
            self.complete_up_to = version.saturating_sub(1);
        }
        self.beyond.remove(&version);
    }

    fn newest(&self) -> u64 {
        self.beyond.last().copied().unwrap_or(self.complete_up_to)
    }

    /// Whether this version has an entry.
    #[must_use]
    pub fn has(&self, version: u64) -> bool {
        version <= self.complete_up_to || self.beyond.contains(&version)
    }
}

/// Returns the versions of each stream that have entries in `$all`.
async fn entry_versions(
    sequence: &impl EventLog,
) -> Result<BTreeMap<StreamId, EntryVersions>, StoreError> {
    let mut versions = BTreeMap::<StreamId, EntryVersions>::new();
    let mut after = 0;
    loop {
        let (page, complete) = segments(sequence, after).await?;
        after = page.last().map_or(after, |last| last.number);
        for segment in page {
            for Entry { stream, version } in segment.entries {
                versions.entry(stream).or_default().add(version);
            }
            if let Some(void) = segment.voids.last() {
                versions.entry(void.stream.clone()).or_default().remove(void.version);
            }
        }
        if complete {
            return Ok(versions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_entry_does_not_hide_a_missing_version() {
        let mut versions = EntryVersions::default();
        // (added version, last version before the first gap, newest version)
        for (version, complete_up_to, newest) in
            [(1, 1, 1), (5, 1, 5), (3, 1, 5), (2, 3, 5), (2, 3, 5), (4, 5, 5)]
        {
            versions.add(version);
            assert_eq!(
                (versions.complete_up_to, versions.newest()),
                (complete_up_to, newest),
                "{version}"
            );
        }
        for (version, complete_up_to, newest) in
            [(5, 4, 4), (7, 4, 4), (2, 1, 4), (4, 1, 3), (1, 0, 3), (3, 0, 0)]
        {
            versions.remove(version);
            assert_eq!(
                (versions.complete_up_to, versions.newest()),
                (complete_up_to, newest),
                "{version} is void"
            );
        }
    }
}
