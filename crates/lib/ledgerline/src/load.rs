//! From commits to states: one reverse query at any length of the stream.

use std::ops::RangeInclusive;

use crate::{
    Aggregate, Commit, Consistency, DecodeError, EventLog, FoldedCommit, Range, RecordedEvent,
    RecordedState, SnapshotStore, StoreError, StreamId, decode, decode_state, encode_state, fold,
};

/// The number of commits without a state after which the load looks for the snapshot. With a
/// smaller number, a few missing states would already cost one more read.
const FEW: usize = 50;

/// About this many commits, or this many pages, are read backwards and held in memory in search of
/// a state. If they have none, the stream is folded forward, page by page.
const NEAR: u32 = 1_000;
const NEAR_PAGES: usize = 4;
/// The most commits that are held in memory for [`Aggregate::SNAPSHOT_EVERY`], however large.
const MAX_LARGE: usize = 64;

/// The number of commits of a forward fold after which its state is saved. The next invocation
/// continues from this snapshot. These commits take some seconds with the least memory that Lambda
/// gives.
const SNAPSHOT_INTERVAL: u64 = 2_000;

/// A state and the version that it shows.
#[derive(Debug)]
pub struct Loaded<A: Aggregate> {
    /// The last version folded into the state; 0 for a stream without commits.
    pub version: u64,
    /// The state after that version.
    pub state: A::State,
    /// The last version known to embed a state; 0 if none. The snapshot policy counts from it.
    pub embedded: u64,
}

impl<A: Aggregate> Clone for Loaded<A> {
    fn clone(&self) -> Self {
        Self { version: self.version, state: self.state.clone(), embedded: self.embedded }
    }
}

impl<A: Aggregate> Loaded<A> {
    /// Returns the state of a stream without commits.
    pub fn initial() -> Self {
        Self { version: 0, state: A::initial(), embedded: 0 }
    }

    /// Returns the state after the last of these commits, if they alone suffice. The commits follow
    /// each other in their stream. They suffice if the stream begins with them, or one of them
    /// embeds a state.
    ///
    /// # Errors
    /// When an event cannot be read, or a commit between them is missing.
    pub fn from_commits(commits: &[Commit]) -> Result<Option<Self>, LoadError> {
        let embedded = |commit: &Commit| commit.state.as_ref().and_then(decode_state::<A>);
        let newest = commits
            .iter()
            .enumerate()
            .rev()
            .find_map(|(place, commit)| Some((place, embedded(commit)?)));
        let (mut loaded, rest) = match newest {
            Some((place, state)) => {
                let version = commits[place].version;
                (Self { version, state, embedded: version }, &commits[place + 1..])
            }
            None if commits.first().is_some_and(|first| first.version == 1) => {
                (Self::initial(), commits)
            }
            None => return Ok(None),
        };
        rest.iter().try_for_each(|commit| loaded.apply(commit))?;
        Ok(Some(loaded))
    }

    /// Folds one more commit.
    ///
    /// # Errors
    /// When the commit is not the next one (rule 2), or an event of it cannot be read.
    pub fn apply(&mut self, commit: &Commit) -> Result<(), LoadError> {
        let Commit { stream, version, events, state, .. } = commit;
        self.fold(stream, *version, events, state.as_ref())
    }

    /// Folds one more commit of this stream.
    pub(crate) fn step(&mut self, stream: &StreamId, step: &FoldedCommit) -> Result<(), LoadError> {
        let FoldedCommit { version, events, state } = step;
        self.fold(stream, *version, events, state.as_ref())
    }

    fn fold(
        &mut self,
        stream: &StreamId,
        version: u64,
        events: &[RecordedEvent],
        state: Option<&RecordedState>,
    ) -> Result<(), LoadError> {
        if version != self.version + 1 {
            return Err(LoadError::Store(StoreError::Corrupt {
                stream: stream.to_string(),
                version: self.version + 1,
                reason: format!("the commit is missing, and the next version is {version}"),
            }));
        }
        // All events are decoded before the first one changes the state: an error must not leave
        // half a commit in it. Most commits have one event, which allocates no memory here.
        let unreadable = |source| LoadError::Decode { stream: stream.clone(), version, source };
        let (one, some);
        let events: &[A::Event] = if let [event] = events {
            one = [decode::<A>(event).map_err(unreadable)?];
            &one
        } else {
            some = events
                .iter()
                .map(decode::<A>)
                .collect::<Result<Vec<_>, _>>()
                .map_err(unreadable)?;
            &some
        };
        let before = std::mem::replace(&mut self.state, A::initial());
        self.state = fold::<A>(before, events);
        self.version = version;
        if state.is_some_and(|state| state.schema == A::STATE_SCHEMA) {
            self.embedded = version;
        }
        Ok(())
    }
}

/// The reason why a state could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The commit was written by a newer program, or it is damaged.
    #[error("commit {version} of {stream} cannot be read")]
    Decode {
        /// The stream.
        stream: StreamId,
        /// The version.
        version: u64,
        /// The error of the event.
        source: DecodeError,
    },
}

/// A state, and the commits that follow it.
#[derive(Debug)]
pub struct History<A: Aggregate> {
    /// The stream.
    pub stream: StreamId,
    /// The state that the fold starts from.
    pub base: Loaded<A>,
    /// The commits after the base, oldest first.
    pub steps: Vec<FoldedCommit>,
}

impl<A: Aggregate> History<A> {
    /// Folds the steps onto the base.
    pub fn fold(self) -> Result<Loaded<A>, LoadError> {
        let mut loaded = self.base;
        for step in &self.steps {
            loaded.step(&self.stream, step)?;
        }
        Ok(loaded)
    }
}

/// Loads the state of a stream: from the newest embedded state, or from `known` if that is newer.
///
/// The first page holds as many commits as the snapshot policy allows without a state. So one query
/// is enough at any length of the stream. Further pages are read only if states are missing (rule
/// 5). A fold of many commits saves its state on the way, and the next load continues from there.
///
/// ```
/// use ledgerline::{Aggregate, Consistency, MemoryStore, load, testing::tank::Tank};
///
/// # let done = async {
/// let store = MemoryStore::default();
/// let stream = Tank::stream("north")?;
/// let loaded = load::<Tank>(&store, &stream, None, Consistency::Strong).await?;
/// assert_eq!((loaded.version, loaded.state.level()), (0, 0), "nothing happened yet");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
pub async fn load<A: Aggregate>(
    store: &(impl EventLog + SnapshotStore),
    stream: &StreamId,
    known: Option<Loaded<A>>,
    consistency: Consistency,
) -> Result<Loaded<A>, LoadError> {
    history(store, stream, known, u64::MAX, u64::MAX, consistency).await?.fold()
}

/// Reads the commits up to version `up_to`, and a state to fold them onto, the base.
///
/// The base is the newest of these: a state that a commit embeds, or a snapshot, at or below
/// version `base_at_most`; `known`, which is not above it; the beginning of the stream. If memory
/// would have to hold more commits than `NEAR`, the older ones are folded into the base, oldest
/// first.
pub async fn history<A: Aggregate>(
    store: &(impl EventLog + SnapshotStore),
    stream: &StreamId,
    known: Option<Loaded<A>>,
    base_at_most: u64,
    up_to: u64,
    consistency: Consistency,
) -> Result<History<A>, LoadError> {
    let mut known = known.unwrap_or_else(Loaded::initial);
    let mut newest_first: Vec<FoldedCommit> = Vec::new();
    let mut consistency = consistency;
    let mut range = Range {
        after: known.version,
        up_to,
        limit: Some(u32::try_from(A::SNAPSHOT_EVERY).unwrap_or(u32::MAX)),
    };
    let (mut pages, mut may_have_snapshot) = (0, true);
    let base = 'search: loop {
        pages += 1;
        let page = store.read_for_fold(stream, range, consistency).await?;
        for step in page.commits {
            let state = step.state.as_ref().filter(|_| step.version <= base_at_most);
            if let Some(state) = state.and_then(decode_state::<A>) {
                break 'search Loaded { version: step.version, state, embedded: step.version };
            }
            newest_first.push(step);
        }
        if page.complete {
            break known;
        }
        if let Some(oldest) = newest_first.last() {
            range.up_to = oldest.version - 1;
        }
        // The commits that the policy allows without a state have none. The next pages are large,
        // and their reads are strongly consistent. Otherwise a replica that lags behind the one of
        // the first page would show a hole that the log does not have.
        range.limit = Some(NEAR);
        consistency = Consistency::Strong;
        if newest_first.len() >= FEW
            && std::mem::take(&mut may_have_snapshot)
            && let Some(newest) = newest_first.first().map(|step| step.version)
            && let Some(snapshot) =
                snapshot::<A>(store, stream, known.version + 1..=base_at_most.min(newest)).await?
        {
            newest_first.retain(|step| step.version > snapshot.version);
            range.after = snapshot.version;
            known = snapshot;
            if range.after >= range.up_to {
                break known;
            }
        }
        // A page has few commits if they are large. By the policy, one of so many has a state.
        let policy = usize::try_from(A::SNAPSHOT_EVERY).unwrap_or(usize::MAX).min(MAX_LARGE);
        if (newest_first.len() >= NEAR as usize
            || pages >= NEAR_PAGES && newest_first.len() >= policy)
            && range.up_to <= base_at_most
        {
            break fold_forward(store, stream, known, range.up_to).await?;
        }
    };
    newest_first.reverse();
    Ok(History { stream: stream.clone(), base, steps: newest_first })
}

/// Loads the snapshot of the stream, if it shows one of these versions. A snapshot that this code
/// cannot read is ignored (rule 5). So is a snapshot that is ahead of the log: a log that was
/// restored from a backup has lost its newest commits.
async fn snapshot<A: Aggregate>(
    store: &impl SnapshotStore,
    stream: &StreamId,
    versions: RangeInclusive<u64>,
) -> Result<Option<Loaded<A>>, StoreError> {
    let kept = store.load_snapshot(stream, A::STATE_SCHEMA).await?;
    let kept = kept.filter(|(version, _)| versions.contains(version));
    Ok(kept.and_then(|(version, state)| {
        // `embedded` is 0 because no commit of the log is known to embed a state.
        Some(Loaded { version, state: decode_state::<A>(&state)?, embedded: 0 })
    }))
}

/// Folds from `loaded` to version `up_to`, with one page in memory at a time, and saves snapshots
/// on the way.
async fn fold_forward<A: Aggregate>(
    store: &(impl EventLog + SnapshotStore),
    stream: &StreamId,
    mut loaded: Loaded<A>,
    up_to: u64,
) -> Result<Loaded<A>, LoadError> {
    let mut kept = loaded.version;
    while loaded.version < up_to {
        let page = store.read_forwards_for_fold(stream, loaded.version, up_to).await?;
        for step in &page.commits {
            loaded.step(stream, step)?;
        }
        if page.complete && loaded.version < up_to {
            let version = loaded.version + 1;
            let stream = stream.to_string();
            let reason = format!("the commit is missing, but version {up_to} exists");
            return Err(StoreError::Corrupt { stream, version, reason }.into());
        }
        if loaded.version - kept >= SNAPSHOT_INTERVAL || loaded.version == up_to {
            // A state that cannot be encoded is not saved, and the load continues. The error occurs
            // when a commit has to embed such a state.
            if let Ok(state) = encode_state::<A>(&loaded.state) {
                store.save_snapshot(stream, loaded.version, &state).await?;
            }
            kept = loaded.version;
        }
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests;
