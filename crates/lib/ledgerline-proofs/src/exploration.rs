//! Exploration of a model that is small enough to visit all of its states.
//!
//! The rules are the invariants of a model. Without any one guard, an invariant must be violated. A
//! guard that no invariant needs would show that the model is too weak.

use std::{fmt::Debug, hash::Hash, thread};

use anyhow::{Context, Result, bail, ensure};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// A model of a part of ledgerline that can leave out one of its guards.
pub(crate) trait Guarded: Clone + Sized + Send + Sync + 'static
where
    Self: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq,
        >,
{
    type Guard: Copy + Debug + 'static;
    const GUARDS: &'static [Self::Guard];

    fn leave_out(self, guard: Self::Guard) -> Self;

    /// Two states with one representative count as one.
    fn representative(state: &Self::State) -> Self::State {
        state.clone()
    }
}

/// Visits all states. The result is the number of states, and the number of transitions to them.
pub(crate) fn visit_all_states<M: Guarded>(model: &M) -> Result<(usize, usize)> {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let checker = model.clone().checker().threads(threads);
    let checker = checker.symmetry_fn(M::representative).spawn_dfs().join();
    for property in checker.model().properties() {
        match (property.expectation, checker.discovery(property.name)) {
            (Expectation::Sometimes, found) => ensure!(found.is_some(), "never: {}", property.name),
            (_, Some(path)) => bail!("{}: {:?}", property.name, path.into_actions()),
            (_, None) => {}
        }
    }
    Ok((checker.unique_state_count(), checker.state_count()))
}

/// Visits the model without each of its guards until an invariant is violated. The result is the
/// violations, each with the number of steps to it.
pub(crate) fn need_all_guards<M: Guarded>(model: &M) -> Result<String> {
    let violations = M::GUARDS.iter().map(|guard| {
        let violation = violation(model.clone().leave_out(*guard))
            .with_context(|| format!("nothing goes wrong without {guard:?}"))?;
        Ok(format!("without {guard:?}: {violation}"))
    });
    Ok(violations.collect::<Result<Vec<_>>>()?.join("; "))
}

fn violation<M: Guarded>(model: M) -> Option<String> {
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.model().properties().into_iter().find_map(|property| {
        let path = checker
            .discovery(property.name)
            .filter(|_| property.expectation == Expectation::Always)?;
        Some(format!("{}, after {} steps", property.name, path.into_actions().len()))
    })
}
