//! Given these events, when this command comes, then these events follow: how aggregates are tested.

use std::fmt::Debug;

use crate::{Aggregate, Context, Refusal, ValueObject, fold, values};

/// Starts a test with the history of the stream.
///
/// ```
/// use ledgerline::{Context, spec::given, tank::{Command, Tank, UNKNOWN}};
///
/// let context = Context { at: "2026-11-22T09:30:00Z".parse().unwrap(), actor: Some("ada".into()) };
/// given::<Tank>([]).when(Command::Scrap, &context).then_refused(&UNKNOWN);
/// ```
pub fn given<A: Aggregate>(history: impl IntoIterator<Item = A::Event>) -> Given<A> {
    Given { state: fold::<A>(A::initial(), &history.into_iter().collect::<Vec<_>>()) }
}

/// A history, folded.
#[derive(Debug)]
pub struct Given<A: Aggregate> {
    state: A::State,
}

impl<A: Aggregate> Given<A> {
    /// Decides the command on the history.
    ///
    /// # Panics
    /// When it is refused for a reason that is missing in [`Aggregate::REFUSALS`], of which clients were not told.
    #[track_caller]
    pub fn when(self, command: A::Command, context: &Context) -> When<A> {
        let result = A::decide(&self.state, &command, context);
        if let Err(refusal) = &result {
            let listed = |known: &Refusal| (known.code(), known.kind()) == (refusal.code(), refusal.kind());
            assert!(A::REFUSALS.iter().any(listed), "REFUSALS of {} lacks {}", A::CATEGORY, refusal.code());
        }
        When { state: self.state, result }
    }
}

/// What a command comes to when it is decided a second time, on the state that it made.
///
/// A client that was told nothing sends its command again. With an Idempotency-Key it gets its first answer; without one it gets
/// this: nothing happens, or the refusal says why not, or the command happens twice.
///
/// # Errors
/// The refusal of the first decision or of the second one.
pub fn decided_twice<A: Aggregate>(
    state: &A::State,
    command: &A::Command,
    context: &Context,
) -> Result<Vec<A::Event>, Refusal> {
    let events = A::decide(state, command, context)?;
    A::decide(&fold::<A>(state.clone(), &events), command, context)
}

/// A value object of a literal in a test.
///
/// # Panics
/// When its rule does not allow the value.
#[track_caller]
pub fn valid<V: ValueObject>(plain: impl Into<V::Plain>) -> V {
    match values::try_new(plain) {
        Ok(value) => value,
        Err(invalid) => panic!("{invalid}"),
    }
}

/// A decision, to be checked.
#[derive(Debug)]
pub struct When<A: Aggregate> {
    state: A::State,
    result: Result<Vec<A::Event>, Refusal>,
}

impl<A: Aggregate> When<A>
where
    A::Event: PartialEq + Debug,
{
    /// Exactly these events were decided. Returns the state after them.
    ///
    /// # Panics
    /// When the decision was another.
    #[track_caller]
    pub fn then(self, expected: impl IntoIterator<Item = A::Event>) -> A::State {
        let expected: Vec<_> = expected.into_iter().collect();
        match self.result {
            Ok(events) => {
                assert_eq!(events, expected);
                fold::<A>(self.state, &events)
            }
            Err(refusal) => panic!("expected {expected:?}, but the command was refused: {refusal}"),
        }
    }

    /// The command was refused for exactly this reason, in these words.
    ///
    /// # Panics
    /// When it was accepted, or refused for another reason.
    #[track_caller]
    pub fn then_refused(self, expected: &Refusal) {
        match self.result {
            Ok(events) => panic!("expected the refusal {expected:?}, but the command gave {events:?}"),
            Err(refusal) => assert_eq!(&refusal, expected),
        }
    }
}
