//! Decoding of stored events and states by the aggregates of an application.

use ledgerline::{
    Aggregate, Aggregates, Commit, RecordedState, Visitor, decode, decode_state, fold, shapes,
};

use crate::files::Files;

/// Decodes the shapes of each aggregate. Returns an error for each aggregate that does not decode
/// all of its shapes.
pub(crate) fn unreadable<L: Aggregates>(files: &Files) -> Vec<String> {
    struct Read<'a>(&'a Files, Vec<String>);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            let corpus = self.0.text(&format!("{}.json", A::CATEGORY));
            let check = |corpus: String| shapes::check::<A>(&corpus).map_err(anyhow::Error::msg);
            let error = corpus.and_then(check).err();
            self.1.extend(error.map(|error| format!("{}: {error:#}", A::CATEGORY)));
        }
    }
    let mut read = Read(files, Vec::new());
    L::visit(&mut read);
    read.1
}

/// Decodes the events as those of each aggregate.
pub(crate) fn read_commit<L: Aggregates>(commit: &Commit) {
    struct Read<'a>(&'a Commit);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            let events: Vec<_> =
                self.0.events.iter().filter_map(|event| decode::<A>(event).ok()).collect();
            let _ = fold::<A>(A::initial(), &events);
        }
    }
    L::visit(&mut Read(commit));
}

/// Decodes a state as that of each aggregate. The result is whether an aggregate accepts it.
pub(crate) fn read_state<L: Aggregates>(state: &RecordedState) -> bool {
    struct Read<'a>(&'a RecordedState, bool);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            self.1 |= decode_state::<A>(self.0).is_some();
        }
    }
    let mut read = Read(state, false);
    L::visit(&mut read);
    read.1
}
