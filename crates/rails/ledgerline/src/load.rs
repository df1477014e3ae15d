//! From commits to states: one reverse query at any length of the stream.

use crate::{
    Aggregate, Commit, Consistency, DecodeError, EventStore, Range, StoreError, StreamId, decode,
    decode_state,
};

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
    /// A stream without commits.
    #[must_use]
    pub fn nothing() -> Self {
        Self { version: 0, state: A::initial(), embedded: 0 }
    }

    /// Folds one more commit.
    ///
    /// # Errors
    /// When the commit is not the next one (rule 2), or an event of it cannot be read.
    pub fn apply(&mut self, commit: &Commit) -> Result<(), LoadError> {
        if commit.version != self.version + 1 {
            return Err(LoadError::Store(StoreError::Corrupt {
                stream: commit.stream.to_string(),
                version: self.version + 1,
                reason: format!("it is missing, the next one is {}", commit.version),
            }));
        }
        let mut state = self.state.clone();
        for event in &commit.events {
            let event = decode::<A>(event).map_err(|source| LoadError::Decode {
                stream: commit.stream.clone(),
                version: commit.version,
                source,
            })?;
            state = A::evolve(state, &event);
        }
        self.state = state;
        self.version = commit.version;
        if commit.state.as_ref().is_some_and(|state| state.schema == A::STATE_SCHEMA) {
            self.embedded = commit.version;
        }
        Ok(())
    }
}

/// Why a state could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log was written by a newer program, or damaged.
    #[error("commit {version} of {stream} cannot be read")]
    Decode {
        /// The stream.
        stream: StreamId,
        /// The version.
        version: u64,
        /// What is wrong with the event.
        source: DecodeError,
    },
}

/// A state, and the commits that follow it.
#[derive(Debug)]
pub struct History<A: Aggregate> {
    /// Where the fold starts.
    pub base: Loaded<A>,
    /// The commits after it, oldest first.
    pub commits: Vec<Commit>,
}

impl<A: Aggregate> History<A> {
    /// Folds everything.
    ///
    /// # Errors
    /// When an event cannot be read, or a commit is missing.
    pub fn fold(self) -> Result<Loaded<A>, LoadError> {
        let mut loaded = self.base;
        for commit in &self.commits {
            loaded.apply(commit)?;
        }
        Ok(loaded)
    }
}

/// Loads the state of a stream: from the newest embedded state, or from `known` where that is newer.
///
/// The first page holds as many commits as the snapshot policy lets pass without a state, so that one query is
/// enough at any length of the stream. Only where states are missing (rule 5) are further pages read, all of them.
///
/// ```
/// use ledgerline::{Aggregate, Consistency, MemoryStore, load, tank::Tank};
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
///
/// # Errors
/// When the store fails or an event cannot be read.
pub async fn load<A: Aggregate>(
    store: &impl EventStore,
    stream: &StreamId,
    known: Option<Loaded<A>>,
    consistency: Consistency,
) -> Result<Loaded<A>, LoadError> {
    history(store, stream, known, u64::MAX, u64::MAX, consistency).await?.fold()
}

/// Reads back from version `up_to` until a state is found at or below version `base_at_most`, or until `known`, or
/// the stream's beginning: the states of every version from there to `up_to` can be folded from it.
///
/// # Errors
/// When the store fails.
pub async fn history<A: Aggregate>(
    store: &impl EventStore,
    stream: &StreamId,
    known: Option<Loaded<A>>,
    base_at_most: u64,
    up_to: u64,
    consistency: Consistency,
) -> Result<History<A>, LoadError> {
    let known = known.unwrap_or_else(Loaded::nothing);
    let mut newest_first: Vec<Commit> = Vec::new();
    let mut consistency = consistency;
    let mut range = Range {
        after: known.version,
        up_to,
        limit: Some(u32::try_from(A::SNAPSHOT_EVERY).unwrap_or(u32::MAX)),
    };
    let base = 'search: loop {
        let page = store.read(stream, range, consistency).await?;
        for commit in page.commits {
            let state = commit.state.as_ref().filter(|_| commit.version <= base_at_most);
            if let Some(state) = state.and_then(decode_state::<A>) {
                break 'search Loaded { version: commit.version, state, embedded: commit.version };
            }
            newest_first.push(commit);
        }
        if page.complete {
            break known;
        }
        if let Some(oldest) = newest_first.last() {
            range.up_to = oldest.version - 1;
        }
        // A state is missing where the policy promised one: read on in the largest pages there are, and strongly, because
        // a replica that lags behind the one before would show a hole that the log does not have.
        range.limit = None;
        consistency = Consistency::Strong;
    };
    newest_first.reverse();
    Ok(History { base, commits: newest_first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordedEvent, RecordedState, contract::commit, tank::Tank};

    fn closed(version: u64, state_schema: Option<u32>) -> Commit {
        let stream = StreamId::new("tank", "1").unwrap_or_else(|error| unreachable!("{error}"));
        Commit {
            events: vec![RecordedEvent {
                event_type: "TankScrapped".into(),
                schema: 1,
                data: r#"{"on":"2026-11-21"}"#.into(),
            }],
            state: state_schema.map(|schema| RecordedState { schema, data: "{}".into() }),
            ..commit(&stream, version)
        }
    }

    #[test]
    fn rule_2_a_hole_is_named() {
        let mut loaded = Loaded::<Tank> { version: 4, ..Loaded::nothing() };
        let hole = loaded.apply(&closed(7, None));
        assert!(matches!(hole, Err(LoadError::Store(StoreError::Corrupt { version: 5, .. }))), "{hole:?}");
        assert_eq!(loaded.version, 4);
    }

    #[test]
    fn rule_5_a_state_counts_as_embedded_only_in_the_readers_schema() {
        let mut loaded = Loaded::<Tank>::nothing();
        for (version, schema, embedded) in
            [(1, None, 0), (2, Some(Tank::STATE_SCHEMA), 2), (3, Some(Tank::STATE_SCHEMA + 1), 2)]
        {
            assert!(loaded.apply(&closed(version, schema)).is_ok());
            assert_eq!(loaded.embedded, embedded, "version {version}");
        }
    }
}
