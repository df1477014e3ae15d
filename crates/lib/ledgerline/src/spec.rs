//! Tests of aggregates: given these events, when this command arrives, then these events follow.

use std::fmt::Debug;

use crate::{
    Aggregate, Context, Refusal, ValueObject, decode, decode_state, encode, encode_state, fold,
    values,
};

/// Starts a test with the earlier events of the stream.
///
/// ```
/// use ledgerline::{Context, spec::given, testing::tank::{Command, Tank, UNKNOWN}};
///
/// let context = Context { at: "2026-11-22T09:30:00Z".parse().unwrap(), actor: Some("ada".into()) };
/// given::<Tank>([]).when(Command::Scrap, &context).then_refused(&UNKNOWN);
/// ```
pub fn given<A: Aggregate>(history: impl IntoIterator<Item = A::Event>) -> Given<A> {
    Given { state: fold::<A>(A::initial(), &history.into_iter().collect::<Vec<_>>()) }
}

/// The folded earlier events of a stream.
#[derive(Debug)]
pub struct Given<A: Aggregate> {
    state: A::State,
}

impl<A: Aggregate> Given<A> {
    /// Decides the command on the earlier events.
    ///
    /// # Panics
    /// When it is refused for a reason that is missing in [`Aggregate::REFUSALS`], so that clients
    /// would not see that reason.
    #[track_caller]
    pub fn when(self, command: A::Command, context: &Context) -> When<A> {
        let result = assert_listed::<A>(A::decide(&self.state, &command, context));
        When { state: self.state, result }
    }
}

/// Returns the decision, after a check that its refusal is in the list that clients see.
#[track_caller]
fn assert_listed<A: Aggregate>(
    result: Result<Vec<A::Event>, Refusal>,
) -> Result<Vec<A::Event>, Refusal> {
    if let Err(refusal) = &result {
        let listed =
            |known: &Refusal| (known.code(), known.kind()) == (refusal.code(), refusal.kind());
        assert!(
            A::REFUSALS.iter().any(listed),
            "REFUSALS of {} lacks {}",
            A::CATEGORY,
            refusal.code()
        );
    }
    result
}

/// Decides these commands one after the other, from the beginning of a stream, and checks
/// statements that hold for every aggregate. It is for a property test over *any* valid commands.
/// Returns the state and the events, so that the test can check the rules of the aggregate itself.
///
/// The statements are:
/// * Every event and every state is read back as it was written.
/// * The fold of the stored events is the state that the decisions were made on.
/// * Every refusal is in the list.
/// * No command panics, and none panics if it is decided twice in a row.
///
/// ```
/// use ledgerline::{Context, spec::live, testing::tank::{Command, Tank}};
///
/// let context = Context { at: "2026-11-22T09:30:00Z".parse().unwrap(), actor: Some("ada".into()) };
/// let (state, events) = live::<Tank>([(Command::Scrap, context)]);
/// assert!(events.is_empty(), "there was no tank");
/// assert_eq!(state.level(), 0);
/// ```
///
/// # Panics
/// When one of these statements is false.
#[track_caller]
pub fn live<A: Aggregate>(
    commands: impl IntoIterator<Item = (A::Command, Context)>,
) -> (A::State, Vec<A::Event>)
where
    A::State: PartialEq,
    A::Event: PartialEq + Debug,
{
    let mut state = A::initial();
    let mut log = Vec::new();
    for (command, context) in commands {
        let Ok(events) = assert_listed::<A>(A::decide(&state, &command, &context)) else {
            continue;
        };
        let _ = assert_listed::<A>(decide_twice::<A>(&state, &command, &context));
        for event in &events {
            let stored = encode::<A>(event).unwrap_or_else(|error| panic!("{event:?}: {error}"));
            let read = decode::<A>(&stored).unwrap_or_else(|error| panic!("{event:?}: {error}"));
            assert_eq!(&read, event, "an event is read as it was written");
        }
        state = fold::<A>(state, &events);
        let stored = encode_state::<A>(&state).unwrap_or_else(|error| panic!("{state:?}: {error}"));
        assert_eq!(
            decode_state::<A>(&stored).as_ref(),
            Some(&state),
            "a state is read as it was written"
        );
        log.extend(events);
    }
    assert_eq!(fold::<A>(A::initial(), &log), state, "the fold of all events is the state");
    (state, log)
}

/// Returns the result of a command that is decided a second time, on the state that it made.
///
/// A client without an answer sends its command again. With an Idempotency-Key it gets its first
/// answer. Without one it gets this result: no event, a refusal with its reason, or the command's
/// effect a second time.
///
/// # Errors
/// The refusal of the first decision or of the second one.
pub fn decide_twice<A: Aggregate>(
    state: &A::State,
    command: &A::Command,
    context: &Context,
) -> Result<Vec<A::Event>, Refusal> {
    let events = A::decide(state, command, context)?;
    A::decide(&fold::<A>(state.clone(), &events), command, context)
}

/// Returns a value object from a literal in a test.
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

/// A decision to check.
#[derive(Debug)]
pub struct When<A: Aggregate> {
    state: A::State,
    result: Result<Vec<A::Event>, Refusal>,
}

impl<A: Aggregate> When<A>
where
    A::Event: PartialEq + Debug,
{
    /// Checks that exactly these events were decided. Returns the state after them.
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

    /// Checks that the command was refused for exactly this reason, in these words.
    ///
    /// # Panics
    /// When it was accepted, or refused for another reason.
    #[track_caller]
    pub fn then_refused(self, expected: &Refusal) {
        match self.result {
            Ok(events) => {
                panic!("expected the refusal {expected:?}, but the command gave {events:?}")
            }
            Err(refusal) => assert_eq!(&refusal, expected),
        }
    }
}
