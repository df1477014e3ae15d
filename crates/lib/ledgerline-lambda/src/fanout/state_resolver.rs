//! The state attached to an event: embedded in the commit, or folded from the log, once for each
//! stream in a batch.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::{
    Aggregate, Aggregates, Causes, Commit, EventStore, LoadError, RecordedState, StoreError,
    Visitor, decode_state, encode_state, states,
};
use tokio::time::{Instant, timeout_at};

use crate::{fanout::BatchCommit, messages::unknown_state};

/// The fold of every aggregate, by its category.
pub(crate) struct StateResolver<S>(BTreeMap<&'static str, FoldStates<S>>);

type FoldStates<S> = for<'a> fn(
    &'a S,
    &'a [&'a Commit],
    Instant,
) -> LocalBoxFuture<'a, Vec<Result<RecordedState, Unavailable>>>;

/// The reason why a commit has no state to attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The log could not be read, or the fold took too long. Another invocation may succeed.
    Transient,
    /// The commit will never have a state, for this reason.
    Permanent(String),
}

impl<S: EventStore> StateResolver<S> {
    /// The folds of these aggregates.
    pub(crate) fn new<L: Aggregates>() -> Self {
        struct Collect<S>(BTreeMap<&'static str, FoldStates<S>>, PhantomData<S>);
        impl<S: EventStore> Visitor for Collect<S> {
            fn visit<A: Aggregate>(&mut self) {
                self.0.insert(A::CATEGORY, |store, commits, until| {
                    recorded_states::<A>(store, commits, until).boxed_local()
                });
            }
        }
        let mut collect = Collect(BTreeMap::new(), PhantomData);
        L::visit(&mut collect);
        Self(collect.0)
    }

    /// Returns the state after each of these commits, which are of one stream and in ascending
    /// order. If the fold is not finished by `until`, every commit is [`Unavailable::Transient`].
    pub(crate) async fn resolve(
        &self,
        store: &S,
        batch: &[BatchCommit<'_>],
        until: Instant,
    ) -> Vec<Result<RecordedState, Unavailable>> {
        // The fanout reads no objects: receivers fold these states.
        let commits: Vec<_> =
            batch.iter().filter(|commit| !commit.has_body).map(|commit| commit.commit).collect();
        let mut states = self.states(store, &commits, until).await.into_iter();
        let mut next = || states.next().unwrap_or(Err(Unavailable::Transient));
        let state = |commit: &BatchCommit<'_>| {
            if commit.has_body { Ok(unknown_state()) } else { next() }
        };
        batch.iter().map(state).collect()
    }

    async fn states(
        &self,
        store: &S,
        commits: &[&Commit],
        until: Instant,
    ) -> Vec<Result<RecordedState, Unavailable>> {
        let category = commits.first().map(|commit| commit.stream.category()).unwrap_or_default();
        match self.0.get(category) {
            _ if commits.is_empty() => Vec::new(),
            Some(states) => states(store, commits, until).await,
            None => {
                let stream = &commits[0].stream;
                let version = commits[0].version;
                tracing::warn!(%stream, version, "no aggregate has this category: the fanout sends the commit without its state");
                commits.iter().map(|_| Ok(unknown_state())).collect()
            }
        }
    }
}

/// Returns the state of each commit, embedded or folded from the log.
async fn recorded_states<A: Aggregate>(
    store: &impl EventStore,
    commits: &[&Commit],
    until: Instant,
) -> Vec<Result<RecordedState, Unavailable>> {
    // The fanout attaches a readable state of this schema unchanged (rule 5). It also attaches the
    // state of a newer writer unchanged, because an older fanout cannot fold the newer events. A
    // state of an older schema is upcast, or folded from the log.
    let is_readable = |state: &RecordedState| {
        state.schema > A::STATE_SCHEMA
            || state.schema == A::STATE_SCHEMA && decode_state::<A>(state).is_some()
    };
    let embedded = |commit: &Commit| commit.state.clone().filter(is_readable);
    let unembedded: Vec<_> =
        commits.iter().copied().filter(|commit| embedded(commit).is_none()).collect();
    let Ok(folded) = timeout_at(until, states::<A>(store, &unembedded)).await else {
        // The fold saves a snapshot every 2,000 commits, so the next invocation resumes there.
        let stream = &commits[0].stream;
        let version = commits[0].version;
        tracing::warn!(%stream, version, "the fold of a state takes longer than one invocation: the next one resumes it");
        return commits.iter().map(|_| Err(Unavailable::Transient)).collect();
    };
    let mut folded = match folded {
        Ok(states) => states.into_iter(),
        Err(
            error @ (LoadError::Decode { .. }
            | LoadError::Store(StoreError::PayloadElsewhere { .. })),
        ) => {
            let stream = &commits[0].stream;
            let version = commits[0].version;
            let error = Causes(&error).to_string();
            tracing::warn!(%stream, version, error, "a commit cannot be read: the fanout sends it without its state");
            return commits
                .iter()
                .map(|commit| Ok(embedded(commit).unwrap_or_else(unknown_state)))
                .collect();
        }
        Err(error) => {
            let missing = match &error {
                LoadError::Store(StoreError::Corrupt { .. }) => {
                    Unavailable::Permanent(Causes(&error).to_string())
                }
                LoadError::Store(_) | LoadError::Decode { .. } => {
                    tracing::error!(error = %Causes(&error), "a state could not be loaded");
                    Unavailable::Transient
                }
            };
            return commits
                .iter()
                .map(|commit| embedded(commit).ok_or_else(|| missing.clone()))
                .collect();
        }
    };
    let mut next_folded = || match folded.next() {
        Some(state) => encode_state::<A>(&state)
            .map_err(|error| Unavailable::Permanent(Causes(&error).to_string())),
        None => Err(Unavailable::Transient),
    };
    commits.iter().map(|commit| embedded(commit).map_or_else(&mut next_folded, Ok)).collect()
}

impl<S> fmt::Debug for StateResolver<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateResolver").field(&self.0.keys()).finish()
    }
}
