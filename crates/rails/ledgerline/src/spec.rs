//! Given these events, when this command comes, then these events follow: how aggregates are tested.

use std::fmt::Debug;

use crate::{Aggregate, Context, fold};

/// Starts a test with the history of the stream.
///
/// ```
/// use ledgerline::{Context, spec::given, tank::{Command, Refusal, Tank}};
///
/// let context = Context { at: "2026-11-22T09:30:00Z".parse().unwrap(), actor: Some("ada".into()) };
/// given::<Tank>([]).when(Command::Scrap, &context).then_refused(&Refusal::Unknown);
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
    pub fn when(self, command: A::Command, context: &Context) -> When<A> {
        let result = A::decide(&self.state, &command, context);
        When { state: self.state, result }
    }
}

/// A decision, to be checked.
#[derive(Debug)]
pub struct When<A: Aggregate> {
    state: A::State,
    result: Result<Vec<A::Event>, A::Rejection>,
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
            Err(rejection) => panic!("expected {expected:?}, but the command was refused: {rejection}"),
        }
    }

    /// The command was refused for exactly this reason.
    ///
    /// # Panics
    /// When it was accepted, or refused for another reason.
    #[track_caller]
    pub fn then_refused(self, expected: &A::Rejection) {
        match self.result {
            Ok(events) => panic!("expected the refusal {expected:?}, but the command gave {events:?}"),
            Err(rejection) => assert_eq!(&rejection, expected),
        }
    }
}
