//! The state that goes along with an event: from the commit, else folded from the log once per stream and batch.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use decider::{Aggregate, DecodeError, RecordedState, Visitor, encode_state};
use event_store::{Commit, EventStore, LoadError, states};
use futures::{FutureExt, future::LocalBoxFuture};

/// Knows the fold of every aggregate of the domain by its category.
pub(crate) struct Attach<S>(BTreeMap<&'static str, StatesOf<S>>);

type StatesOf<S> =
    for<'a> fn(&'a S, Vec<&'a Commit>) -> LocalBoxFuture<'a, Result<Vec<RecordedState>, AttachError>>;

/// Why a commit has no state to go along.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// No aggregate has this category.
    #[error("no aggregate has the category {0:?}")]
    UnknownCategory(String),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Encode(#[from] DecodeError),
}

impl<S: EventStore> Attach<S> {
    /// All aggregates of the domain.
    pub(crate) fn all() -> Self {
        struct Collect<S>(BTreeMap<&'static str, StatesOf<S>>, PhantomData<S>);
        impl<S: EventStore> Visitor for Collect<S> {
            fn visit<A: Aggregate>(&mut self) {
                self.0
                    .insert(A::CATEGORY, |store, commits| recorded_states::<A>(store, commits).boxed_local());
            }
        }
        let mut collect = Collect(BTreeMap::new(), PhantomData);
        domain::visit(&mut collect);
        Self(collect.0)
    }

    /// The states after these commits of one stream, in ascending order.
    pub(crate) async fn states(
        &self,
        store: &S,
        commits: &[(usize, &Commit)],
    ) -> Result<Vec<RecordedState>, AttachError> {
        let commits: Vec<_> = commits.iter().map(|(_, commit)| *commit).collect();
        let Some(first) = commits.first() else { return Ok(Vec::new()) };
        match self.0.get(first.stream.category()) {
            Some(states) => states(store, commits).await,
            None => Err(AttachError::UnknownCategory(first.stream.category().to_owned())),
        }
    }
}

async fn recorded_states<A: Aggregate>(
    store: &impl EventStore,
    commits: Vec<&Commit>,
) -> Result<Vec<RecordedState>, AttachError> {
    let states = states::<A>(store, &commits).await?;
    Ok(states.iter().map(encode_state::<A>).collect::<Result<_, _>>()?)
}

impl<S> fmt::Debug for Attach<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attach").field(&self.0.keys()).finish()
    }
}
