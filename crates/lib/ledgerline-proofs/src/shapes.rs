//! Decoding of stored events and states by the aggregates of an application: all shapes that were
//! ever stored, and bad input.

use ledgerline::{
    Aggregate, Aggregates, Commit, RecordedState, Visitor, decode, decode_state,
    shapes::{self, Counts},
};

use crate::files::Files;

/// The result of decoding all shapes of an application.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) wrong: Vec<String>,
    pub(crate) events: usize,
    pub(crate) states: usize,
}

/// Decodes the shapes of each aggregate.
pub(crate) fn read_all<L: Aggregates>(files: &Files) -> Shapes {
    struct Read<'a>(&'a Files, Shapes);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            match read::<A>(self.0) {
                Ok(Counts { events, states }) => {
                    self.1.events += events;
                    self.1.states += states;
                }
                Err(wrong) => self.1.wrong.push(format!("{}: {wrong}", A::CATEGORY)),
            }
        }
    }
    let mut read = Read(files, Shapes::default());
    L::visit(&mut read);
    read.1
}

/// Decodes the shapes of one aggregate.
fn read<A: Aggregate>(files: &Files) -> Result<Counts, String> {
    shapes::check::<A>(&files.text(&format!("{}.json", A::CATEGORY))?)
}

/// Decodes the events as those of each aggregate.
pub(crate) fn read_commit<L: Aggregates>(commit: &Commit) {
    struct Read<'a>(&'a Commit);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            let events: Vec<_> =
                self.0.events.iter().filter_map(|event| decode::<A>(event).ok()).collect();
            let _ = ledgerline::fold::<A>(A::initial(), &events);
        }
    }
    L::visit(&mut Read(commit));
}

/// Decodes a state as that of each aggregate. The result is 1 if an aggregate accepts it, and 0 if
/// none does.
pub(crate) fn read_state<L: Aggregates>(state: &RecordedState) -> usize {
    struct Read<'a>(&'a RecordedState, usize);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            self.1 |= usize::from(decode_state::<A>(self.0).is_some());
        }
    }
    let mut read = Read(state, 0);
    L::visit(&mut read);
    read.1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ledgerline::testing::tank::{SHAPES, Tanks};
    use tempfile::tempdir;

    use super::*;

    /// A stored shape must be readable for ever. Each triple changes a readable shape into an
    /// unreadable one, as an edit of the code would. Its third text must be in the report.
    #[test]
    fn an_unreadable_stored_shape_is_reported() {
        for (text, instead, says) in [
            // A field has another name, or another type.
            (
                r#""amount": 5000"#,
                r#""litres": 5000"#,
                "TankFilled does not have the shape of schema 1",
            ),
            (
                r#""level": 1000, "note""#,
                r#""level": "1000", "note""#,
                "TankDrawn does not have the shape of schema 1",
            ),
            // The decoder drops a stored field.
            (r#""note": "rain""#, r#""remark": "rain""#, "is read as"),
            // An event is missing, or has an unknown schema.
            (
                r#""type": "TankMoved""#,
                r#""type": "TankPushed""#,
                "the event type TankMoved is not in its file of shapes",
            ),
            (
                r#""schema": 2, "data": {"site""#,
                r#""schema": 3, "data": {"site""#,
                "schema 2 of TankInstalled is not in its file of shapes",
            ),
            // An upcaster returns another event.
            (
                r#""liquid": "water", "installedBy": "ada", "on""#,
                r#""liquid": "oil", "installedBy": "ada", "on""#,
                "is read as",
            ),
            // A state of the current schema is unreadable: every stream would be folded from its
            // beginning.
            (
                r#""status": "scrapped""#,
                r#""status": "sold""#,
                "a state of schema 1 cannot be read: unknown variant `sold`",
            ),
        ] {
            let (before, after) =
                SHAPES.split_once(text).unwrap_or_else(|| panic!("there is no {text}"));
            let folder = tempdir().unwrap();
            fs::write(folder.path().join("tank.json"), format!("{before}{instead}{after}"))
                .unwrap();
            let wrong = read_all::<Tanks>(&Files::Folder(folder.path().to_owned())).wrong;
            assert!(wrong.iter().any(|wrong| wrong.contains(says)), "{instead}: {wrong:?}");
        }
    }
}
