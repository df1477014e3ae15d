//! One command from state to commit: load, decide, append, repair.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::{
    Aggregate, AppendError, Cache, Commit, Consistency, Context, EncodeError, EventStore, LoadError, Loaded,
    Meta, Range, RecordedEvent, Refusal, RefusalKind, Request, StoreError, StreamId, encode, encode_state,
    load,
};

/// The number of times that a command is decided again after a lost race, before the client is told to try later (rule 11).
const MAX_REPAIRS: usize = 12;

/// The type of the event by which a commit without events, a [replay](Execution::replay), is known to those who follow states. No aggregate may have an event of this name.
pub const REPLAYED: &str = "Replayed";

/// The name of the counter of lost races.
pub const CONFLICTS: &str = "Conflicts";
/// The name of the counter of tries after the first one.
pub const RETRIES: &str = "Retries";

/// One DynamoDB write unit: the granularity of the snapshot policy.
const WRITE_UNIT_BYTES: usize = 1024;

/// A command, and everything that came with it.
#[expect(missing_debug_implementations, reason = "commands hold payloads, which stay out of logs (rule 14)")]
pub struct Execution<'a, A: Aggregate> {
    /// The stream that it is for.
    pub stream: &'a StreamId,
    /// The command; `None` for a [replay](Self::replay).
    pub command: Option<&'a A::Command>,
    /// The time of the command and its sender.
    pub context: &'a Context,
    /// The id that makes the append idempotent (rule 4): unique to this command, and the same when the command is sent again.
    pub command_id: &'a str,
    /// The origin of the command.
    pub meta: &'a Meta,
    /// The client's condition on the version (If-Match, If-None-Match).
    pub precondition: Option<&'a Precondition>,
    /// Whether the command starts a stream: then nothing is read before the first append.
    pub creates: bool,
    /// The way to remember the answer under the client's Idempotency-Key.
    pub ledger: Option<Ledger<'a, A>>,
}

impl<'a, A: Aggregate> Execution<'a, A> {
    /// A command without a condition and without a key, to a stream that exists. Other values are set in the fields.
    #[must_use]
    pub const fn new(
        stream: &'a StreamId,
        command: &'a A::Command,
        context: &'a Context,
        command_id: &'a str,
        meta: &'a Meta,
    ) -> Self {
        let command = Some(command);
        Self { stream, command, context, command_id, meta, precondition: None, creates: false, ledger: None }
    }

    /// A commit without events. The fold ignores it, and everything that is written from states writes the stream's state once more, under a version that it does not know yet.
    ///
    /// Source: Kumo's "replay" event, which all projectors listen to and the reducer ignores.
    #[must_use]
    pub const fn replay(
        stream: &'a StreamId,
        context: &'a Context,
        command_id: &'a str,
        meta: &'a Meta,
    ) -> Self {
        let command = None;
        Self { stream, command, context, command_id, meta, precondition: None, creates: false, ledger: None }
    }

    /// The time when the command came, in Unix seconds.
    fn now(&self) -> i64 {
        self.context.at.as_second()
    }
}

/// The condition of a request on the version (RFC 9110, 13.1.1 and 13.1.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// `If-Match: *`: the aggregate exists.
    Exists,
    /// `If-Match`: the version is one of these.
    OneOf(Vec<u64>),
    /// `If-None-Match: *`: the aggregate does not exist.
    Absent,
    /// `If-None-Match`: the version is none of these.
    NoneOf(Vec<u64>),
}

impl Precondition {
    fn holds(&self, version: u64) -> bool {
        match self {
            Self::Exists => version > 0,
            Self::OneOf(versions) => version > 0 && versions.contains(&version),
            Self::Absent => version == 0,
            Self::NoneOf(versions) => !versions.contains(&version),
        }
    }
}

/// The way in which the answer to a request with an Idempotency-Key is remembered.
#[expect(missing_debug_implementations, reason = "holds a closure")]
pub struct Ledger<'a, A: Aggregate> {
    /// The key under which the answer is remembered: the Idempotency-Key together with the caller.
    pub key: &'a str,
    /// The hash of what is asked.
    pub fingerprint: &'a str,
    /// Another hash of the same request, under which an earlier version may have stored its answer.
    pub older_fingerprint: Option<&'a str>,
    /// The number of seconds after [`Context::at`] for which the key is remembered at least.
    pub retention: i64,
    /// The function that writes the answer for a state and its version, or for a refusal. The same answer is given when the request is repeated.
    #[expect(clippy::type_complexity, reason = "named by its only field")]
    pub answer: &'a (dyn Fn(Result<(&A::State, u64), &Refusal>) -> String + Sync),
}

impl<A: Aggregate> Ledger<'_, A> {
    /// Whether this is the stored answer of the same request.
    fn is_of(&self, request: &Request) -> bool {
        [Some(self.fingerprint), self.older_fingerprint].contains(&Some(request.fingerprint.as_str()))
    }

    fn request(&self, now: i64, answer: Result<(&A::State, u64), &Refusal>) -> Request {
        Request {
            key: self.key.to_owned(),
            fingerprint: self.fingerprint.to_owned(),
            answer: (self.answer)(answer),
            expires: now.saturating_add(self.retention),
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub enum Outcome<A: Aggregate> {
    /// The command's events are in the log, from now or from an earlier try. The value is the state and version after them.
    Committed(Loaded<A>),
    /// There was nothing to change.
    Unchanged(Loaded<A>),
    /// The same request was answered before. The value is the first answer.
    Repeated(String),
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The domain refuses the command, on a state that was read strongly (rule 6).
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The condition does not hold for this version, which was read strongly.
    #[error("the version is {version}")]
    PreconditionFailed {
        /// The version that the stream has.
        version: u64,
    },
    /// The condition held when the command arrived; another writer won the race in between.
    #[error("another writer was first, the version is {version}")]
    Overtaken {
        /// The version that the stream has now.
        version: u64,
    },
    /// Every repair lost its race again.
    #[error("other writers were first each time, {MAX_REPAIRS} repetitions included")]
    Contended,
    /// The Idempotency-Key, or the command id, belongs to another command.
    #[error("the command id belongs to another command")]
    CommandIdReused,
    /// The commit does not fit in one item.
    #[error("the commit has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The largest size in bytes.
        limit: usize,
    },
    /// The state could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An event of the decision cannot be written: a programming error in the aggregate.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Executes a command: decides on the cached or loaded state, appends one commit (rule 1), and repairs lost races and lost replies in between.
///
/// A warm instance appends without reading. A lost race costs one strong query and a new decision, a bounded number
/// of times. A reply that was lost is recognised by the command id (rule 4). Nothing is refused on a state that may
/// be stale (rule 6).
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use ledgerline::{Aggregate, Cache, Context, Execution, MemoryStore, Meta, Outcome, execute};
/// use ledgerline::tank::{Command, Tank};
///
/// # let done = async {
/// let (store, cache) = (MemoryStore::default(), Cache::<Tank>::new(NonZeroUsize::MIN));
/// let (stream, meta) = (Tank::stream("north")?, Meta::default());
/// let command = Command::Install { site: "North".parse()?, liquid: "water".parse()? };
/// let context = Context { at: "2026-11-22T09:30:00Z".parse()?, actor: Some("ada".into()) };
/// // The id is the same when the command is sent again. Nothing is read before the first append of what starts a stream.
/// let execution = Execution { creates: true, ..Execution::new(&stream, &command, &context, "a request's id", &meta) };
/// let outcome = execute(&store, &cache, &execution).await?;
/// assert!(matches!(outcome, Outcome::Committed(loaded) if loaded.version == 1));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
///
/// # Errors
/// See [`ExecuteError`].
pub async fn execute<A: Aggregate, S: EventStore>(
    store: &S,
    cache: &Cache<A>,
    execution: &Execution<'_, A>,
) -> Result<Outcome<A>, ExecuteError> {
    let stream = execution.stream;
    let mut loaded = match cache.get(stream) {
        Some(cached) => cached,
        None if execution.creates => Loaded::nothing(),
        None => load(store, stream, None, Consistency::Eventual).await?,
    };
    // Whether `loaded` was read strongly after the command arrived.
    let mut fresh = false;
    // Whether the last append lost its version to a commit that is younger than the command.
    let mut overtaken = false;
    let mut delays = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(4))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(MAX_REPAIRS)
        .with_jitter()
        .build();
    loop {
        // Whether somebody else may be writing to the stream now, and a pause lets them finish.
        let mut contended = true;
        match decide(execution, &loaded) {
            Ok(events) => match append(store, execution, &loaded, &events).await? {
                Appended::Stored(after) => {
                    cache.put(stream, &after);
                    return Ok(Outcome::Committed(after));
                }
                Appended::VersionTaken(attempt) => {
                    let (caught_up, winner) = catch_up(store, stream, loaded).await?;
                    loaded = caught_up;
                    let was_fresh = std::mem::replace(&mut fresh, true);
                    cache.put(stream, &loaded);
                    let winner = match winner {
                        // If it is this very command, which was sent before, the store names its request next time.
                        Err(StoreError::Corrupt { .. }) if execution.ledger.is_some() => None,
                        // Without a request, nobody can tell (rule 4). The next command goes on from here.
                        winner => winner?,
                    };
                    // If the winner is younger than the command, the version was still free when the command came: a failed precondition is then
                    // answered as `Overtaken`. A wrong clock only changes which of the two errors for a failed precondition is returned.
                    overtaken = winner.as_ref().is_some_and(|winner| winner.at >= attempt.commit.at);
                    // The state was merely old, as in the cache of one of several instances, if the first commit that it lacked is older than the command.
                    let was_old = !was_fresh && winner.is_some() && !overtaken;
                    if let Some(winner) = winner.filter(|winner| winner.command == attempt.commit.command) {
                        if attempt.is(&winner) && attempt.commit.at == winner.at {
                            // The winner is our own append, whose reply was lost (rule 4).
                            return Ok(Outcome::Committed(attempt.after));
                        }
                        // The winner is the same request, carried out by another instance or at another time, or another request with our id.
                        return match repeat(store, execution).await? {
                            Some(repeated) => Ok(repeated),
                            None if attempt.is(&winner) => Ok(Outcome::Committed(attempt.after)),
                            None => Err(ExecuteError::CommandIdReused),
                        };
                    }
                    contended = !was_old;
                    metrics::counter!(CONFLICTS).increment(1);
                }
                Appended::RequestTaken => {
                    if let Some(outcome) = repeat(store, execution).await? {
                        return Ok(outcome);
                    }
                }
                Appended::Busy => metrics::counter!(CONFLICTS).increment(1),
            },
            Err(Idle::PreconditionFailed) if overtaken => {
                return match repeat(store, execution).await? {
                    Some(repeated) => Ok(repeated),
                    None => Err(ExecuteError::Overtaken { version: loaded.version }),
                };
            }
            Err(idle) if fresh => return conclude(store, execution, loaded, idle).await,
            Err(_) => {
                loaded = load(store, stream, Some(loaded), Consistency::Strong).await?;
                fresh = true;
                cache.put(stream, &loaded);
                continue;
            }
        }
        match delays.next() {
            Some(delay) => {
                metrics::counter!(RETRIES).increment(1);
                if contended {
                    store.pause(delay).await;
                }
            }
            None => return Err(ExecuteError::Contended),
        }
    }
}

/// A stream that has no commit has no state that anybody could write again.
const NOTHING_TO_REPLAY: Refusal = Refusal::not_found("unknown-stream", "there is nothing of this name");

/// The reason why there is nothing to append.
enum Idle {
    Unchanged,
    Refused(Refusal),
    PreconditionFailed,
}

fn decide<A: Aggregate>(execution: &Execution<'_, A>, loaded: &Loaded<A>) -> Result<Vec<A::Event>, Idle> {
    let decision = match execution.command {
        Some(command) => A::decide(&loaded.state, command, execution.context),
        None if loaded.version == 0 => Err(NOTHING_TO_REPLAY),
        None => Ok(Vec::new()),
    };
    if let Err(refusal) = &decision
        && matches!(
            refusal.kind(),
            RefusalKind::Forbidden | RefusalKind::AlreadyExists | RefusalKind::NotFound
        )
    {
        // These refusals come before the precondition (RFC 9110, 13.2.1): its failure would tell a stranger the version.
        return Err(Idle::Refused(refusal.clone()));
    }
    if execution.precondition.is_some_and(|precondition| !precondition.holds(loaded.version)) {
        return Err(Idle::PreconditionFailed);
    }
    match decision {
        Ok(events) if events.is_empty() && execution.command.is_some() => Err(Idle::Unchanged),
        Ok(events) => Ok(events),
        Err(refusal) => Err(Idle::Refused(refusal)),
    }
}

/// The result of an append.
enum Appended<A: Aggregate> {
    Stored(Loaded<A>),
    VersionTaken(Box<Attempt<A>>),
    RequestTaken,
    Busy,
}

/// A commit, and the state that would follow it.
struct Attempt<A: Aggregate> {
    commit: Commit,
    after: Loaded<A>,
}

impl<A: Aggregate> Attempt<A> {
    /// Whether the stored commit is this one.
    fn is(&self, stored: &Commit) -> bool {
        stored.command == self.commit.command && stored.events == self.commit.events
    }
}

async fn append<A: Aggregate>(
    store: &impl EventStore,
    execution: &Execution<'_, A>,
    loaded: &Loaded<A>,
    events: &[A::Event],
) -> Result<Appended<A>, ExecuteError> {
    let mut attempt = prepare(store, execution, loaded, events)?;
    let request = execution
        .ledger
        .as_ref()
        .map(|ledger| ledger.request(execution.now(), Ok((&attempt.after.state, attempt.after.version))));
    let mut result = store.append(&attempt.commit, request.as_ref()).await;
    if matches!(result, Err(AppendError::TooLarge { .. })) && attempt.commit.state.is_some() {
        // The state is a cache (rule 5): a commit is never refused because its state is too large.
        attempt.commit.state = None;
        attempt.after.embedded = loaded.embedded;
        result = store.append(&attempt.commit, request.as_ref()).await;
    }
    match result {
        Ok(()) => Ok(Appended::Stored(attempt.after)),
        Err(AppendError::VersionTaken) => Ok(Appended::VersionTaken(Box::new(attempt))),
        Err(AppendError::RequestTaken) => Ok(Appended::RequestTaken),
        Err(AppendError::Busy) => Ok(Appended::Busy),
        Err(AppendError::TooLarge { bytes, limit }) => Err(ExecuteError::TooLarge { bytes, limit }),
        Err(AppendError::TooMany { .. }) => Err(ExecuteError::Store(one_is_too_many())),
        Err(AppendError::Store(error @ (StoreError::Unavailable(_) | StoreError::Throttled))) => {
            // The commit may have been stored all the same, by a try before the last one: the log is read before the client is told to try again. The
            // events are compared too, because another request under the same client's key has the same command id.
            match store.get(execution.stream, attempt.commit.version).await {
                Ok(Some(stored)) if attempt.is(&stored) => Ok(Appended::Stored(attempt.after)),
                Ok(_) | Err(_) => Err(error.into()),
            }
        }
        Err(AppendError::Store(error)) => Err(error.into()),
    }
}

fn prepare<A: Aggregate>(
    store: &impl EventStore,
    execution: &Execution<'_, A>,
    loaded: &Loaded<A>,
    events: &[A::Event],
) -> Result<Attempt<A>, ExecuteError> {
    let state = crate::fold::<A>(loaded.state.clone(), events);
    let mut commit = Commit {
        stream: execution.stream.clone(),
        version: loaded.version + 1,
        events: events.iter().map(encode::<A>).collect::<Result<Vec<RecordedEvent>, EncodeError>>()?,
        state: None,
        command: execution.command_id.to_owned(),
        at: execution.context.at,
        meta: execution.meta.clone(),
    };
    // The snapshot policy: the state is embedded if it costs no further write unit, and at the latest when a cold load would otherwise have to read
    // more commits than fit in its first page.
    let bytes = store.stored_bytes(&commit);
    commit.state = Some(encode_state::<A>(&state)?);
    let free = store.stored_bytes(&commit).div_ceil(WRITE_UNIT_BYTES) <= bytes.div_ceil(WRITE_UNIT_BYTES);
    let due = commit.version - loaded.embedded >= A::SNAPSHOT_EVERY;
    // Whoever follows states needs the state of a replay, which has nothing else.
    if !free && !due && execution.command.is_some() {
        commit.state = None;
    }
    let embedded = if commit.state.is_some() { commit.version } else { loaded.embedded };
    Ok(Attempt { after: Loaded { version: commit.version, state, embedded }, commit })
}

/// Reads the commits since `loaded`, strongly. Returns the newest state, and the commit that took the version after `loaded`.
async fn catch_up<A: Aggregate>(
    store: &impl EventStore,
    stream: &StreamId,
    mut loaded: Loaded<A>,
) -> Result<(Loaded<A>, Result<Option<Commit>, StoreError>), ExecuteError> {
    let taken = loaded.version + 1;
    let limit = u32::try_from(A::SNAPSHOT_EVERY).ok();
    let range = Range { after: loaded.version, up_to: u64::MAX, limit };
    match store.read(stream, range, Consistency::Strong).await {
        Ok(page) if page.complete => {
            match page.commits.iter().rev().try_for_each(|commit| loaded.apply(commit)) {
                Ok(()) => {
                    let winner = page.commits.into_iter().find(|commit| commit.version == taken);
                    return Ok((loaded, Ok(winner)));
                }
                Err(LoadError::Decode { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(_) | Err(StoreError::Corrupt { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    // The stream is far ahead of this instance, or a commit cannot be read: the state is loaded from the newest embedded one, as a cold instance does. It may need
    // nothing that is damaged (rule 11).
    let loaded = load(store, stream, Some(loaded), Consistency::Strong).await?;
    Ok((loaded, store.get(stream, taken).await))
}

/// Answers a command that appends nothing, from a state that was read strongly (rule 6).
async fn conclude<A: Aggregate>(
    store: &impl EventStore,
    execution: &Execution<'_, A>,
    loaded: Loaded<A>,
    idle: Idle,
) -> Result<Outcome<A>, ExecuteError> {
    if let Some(ledger) = &execution.ledger {
        let request = |answer| ledger.request(execution.now(), answer);
        // A request that succeeded and is sent again may be refused because of its own success: its first answer is returned instead.
        let remembered = match &idle {
            Idle::Unchanged => store.remember(&request(Ok((&loaded.state, loaded.version)))).await,
            Idle::Refused(refusal) => store.remember(&request(Err(refusal))).await,
            // A failed precondition is not remembered, because it does not answer what was asked: the client may use the same key again with the
            // right version.
            Idle::PreconditionFailed => Err(AppendError::RequestTaken),
        };
        match remembered {
            Ok(()) => {}
            Err(AppendError::RequestTaken) => {
                if let Some(outcome) = repeat(store, execution).await? {
                    return Ok(outcome);
                }
            }
            Err(AppendError::Store(error)) => return Err(error.into()),
            Err(AppendError::Busy | AppendError::VersionTaken) => return Err(ExecuteError::Contended),
            Err(AppendError::TooLarge { bytes, limit }) => {
                return Err(ExecuteError::TooLarge { bytes, limit });
            }
            Err(AppendError::TooMany { .. }) => return Err(ExecuteError::Store(one_is_too_many())),
        }
    }
    match idle {
        Idle::Unchanged => Ok(Outcome::Unchanged(loaded)),
        Idle::Refused(refusal) => Err(ExecuteError::Refused(refusal)),
        Idle::PreconditionFailed => Err(ExecuteError::PreconditionFailed { version: loaded.version }),
    }
}

/// The error for a store that finds one commit, or one request, too many. No store does so.
fn one_is_too_many() -> StoreError {
    StoreError::Unavailable("the store calls one commit too many".into())
}

/// The answer that the same request got before, if there is one.
async fn repeat<A: Aggregate>(
    store: &impl EventStore,
    execution: &Execution<'_, A>,
) -> Result<Option<Outcome<A>>, ExecuteError> {
    let Some(ledger) = &execution.ledger else { return Ok(None) };
    match store.recall(ledger.key).await? {
        Some(request) if ledger.is_of(&request) => Ok(Some(Outcome::Repeated(request.answer))),
        Some(_) => Err(ExecuteError::CommandIdReused),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
