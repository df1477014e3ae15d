//! The states of commits that do not embed one.

use crate::{
    Aggregate, Commit, Consistency, EventLog, LoadError, SnapshotStore, StoreError, decode_state,
    history,
};

/// Returns the state after each of these commits of one stream, given in ascending order. A state
/// is from the commit itself if it embeds one. Otherwise it is folded from the log, with one
/// history for all of them.
///
/// # Errors
/// When the store fails or an event cannot be read. If all of the commits embed a state, nothing is
/// read and no error is possible.
pub async fn states<A: Aggregate>(
    store: &(impl EventLog + SnapshotStore),
    commits: &[&Commit],
) -> Result<Vec<A::State>, LoadError> {
    let embedded = |commit: &Commit| commit.state.as_ref().and_then(decode_state::<A>);
    let mut missing = commits.iter().filter(|commit| embedded(commit).is_none());
    let Some(first) = missing.next() else {
        return Ok(commits.iter().filter_map(|commit| embedded(commit)).collect());
    };
    let last = missing.next_back().unwrap_or(first);
    let read = history::<A>(
        store,
        &first.stream,
        None,
        first.version - 1,
        last.version,
        Consistency::Strong,
    )
    .await?;
    let mut folded = read.base;
    let mut log = read.steps.iter().peekable();
    let mut states = Vec::with_capacity(commits.len());
    for commit in commits {
        if let Some(state) = embedded(commit) {
            states.push(state);
            continue;
        }
        while let Some(next) = log.next_if(|next| next.version <= commit.version) {
            folded.step(&first.stream, next)?;
        }
        if folded.version != commit.version {
            // The log does not have this commit: the state of another version must not be returned
            // as the state of this one.
            return Err(LoadError::Store(StoreError::Corrupt {
                stream: commit.stream.to_string(),
                version: commit.version,
                reason: format!("the log ends at {}", folded.version),
            }));
        }
        states.push(folded.state.clone());
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Loaded, MemoryStore, StreamId, encode_state,
        spec::valid,
        testing::tank::{Amount, Command, Tank},
    };

    #[tokio::test]
    async fn a_commit_that_is_not_in_the_log_has_no_state() {
        let stream = StreamId::new("tank", "1").unwrap();
        let commit = crate::contract::commit(&stream, 3);
        let states = states::<Tank>(&MemoryStore::default(), &[&commit]).await;
        assert!(
            matches!(states, Err(LoadError::Store(StoreError::Corrupt { version: 3, .. }))),
            "{states:?}"
        );
    }

    proptest! {
        /// The states equal those of the fold, whichever commits a caller requests, and whichever
        /// commits embed a state.
        #[test]
        fn requested_states_equal_those_of_the_fold(
            embeds in prop::collection::vec(any::<bool>(), 2..40),
            asked in prop::collection::vec(any::<bool>(), 40),
        ) {
            let context = crate::Context { at: jiff::Timestamp::UNIX_EPOCH, actor: Some("ada".into()) };
            let stream = StreamId::new("tank", "1").unwrap();
            let store = MemoryStore::default();
            let mut loaded = Loaded::<Tank>::initial();
            let mut log = Vec::new();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for (version, embed) in (1_u64..).zip(&embeds) {
                let command = match version {
                    1 => Command::Install { site: valid("North"), liquid: valid("water") },
                    _ => Command::Fill(Amount { amount: valid(1), note: None }),
                };
                let events = Tank::decide(&loaded.state, &command, &context).unwrap();
                loaded.state = crate::fold::<Tank>(loaded.state, &events);
                let commit = Commit {
                    events: events.iter().map(|event| crate::encode::<Tank>(event).unwrap()).collect(),
                    state: embed.then(|| encode_state::<Tank>(&loaded.state).unwrap()),
                    ..crate::contract::commit(&stream, version)
                };
                runtime.block_on(store.append(&commit, None)).unwrap();
                log.push((commit, loaded.state.clone()));
            }
            let asked: Vec<_> = log.iter().zip(&asked).filter(|(_, asked)| **asked).map(|(entry, _)| entry).collect();
            let commits: Vec<_> = asked.iter().map(|(commit, _)| commit).collect();
            let expected: Vec<_> = asked.iter().map(|(_, state)| state.clone()).collect();
            prop_assert_eq!(runtime.block_on(states::<Tank>(&store, &commits)).unwrap(), expected);
        }
    }
}
