//! One command from state to commit: load, decide, append, repair.

mod execution;

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

pub(crate) use self::execution::Pause;
pub use self::execution::{ExecuteError, Execution, Host, Idempotency, Outcome, Precondition};
use crate::{
    Aggregate, AppendError, Cache, Commit, Consistency, EncodeError, EventLog, EventStore,
    IdempotencyStore, LoadError, Loaded, Range, RecordedEvent, Refusal, RefusalKind, StoreError,
    StreamId, encode, encode_state, load,
};

/// The number of times that a command is decided again after a lost race, before the client gets an
/// error and retries later (rule 11).
const MAX_REPAIRS: usize = 12;

/// The type of the event that stands for a commit without events ([`Execution::republish`])
/// for subscribers to states. No aggregate may have an event of this name.
pub const STATE_REPUBLISHED: &str = "StateRepublished";

/// The name of the counter of lost races.
pub const CONFLICTS: &str = "Conflicts";
/// The name of the counter of retries.
pub const RETRIES: &str = "Retries";

/// One DynamoDB write unit: the granularity of the snapshot policy.
const WRITE_UNIT_BYTES: usize = 1024;

/// Executes a command: decides on the cached or loaded state, appends one commit (rule 1), and
/// repairs lost races and lost replies in between.
///
/// A warm instance appends without reading. A lost race costs one strong query and a new decision,
/// a bounded number of times. The command id identifies a commit whose reply was lost (rule 4).
/// Nothing is refused on a state that may be stale (rule 6).
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use ledgerline::{Aggregate, Cache, Context, Execution, MemoryStore, Meta, Outcome, execute};
/// use ledgerline::testing::tank::{Command, Tank};
///
/// # let done = async {
/// let (store, cache) = (MemoryStore::default(), Cache::<Tank>::new(NonZeroUsize::MIN));
/// let (stream, meta) = (Tank::stream("north")?, Meta::default());
/// let command = Command::Install { site: "North".parse()?, liquid: "water".parse()? };
/// let context = Context { at: "2026-11-22T09:30:00Z".parse()?, actor: Some("ada".into()) };
/// // The id is the same when the command is sent again. Nothing is read before the first append of what starts a stream.
/// let execution = Execution { creates: true, ..Execution::new(&stream, &command, &context, "a request's id", &meta) };
/// let outcome = execute(&store, &cache, &MemoryStore::HOST, &execution).await?;
/// assert!(matches!(outcome, Outcome::Committed(loaded) if loaded.version == 1));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # };
/// # futures::executor::block_on(done).unwrap();
/// ```
pub async fn execute<A: Aggregate, S: EventStore>(
    store: &S,
    cache: &Cache<A>,
    host: &Host,
    execution: &Execution<'_, A>,
) -> Result<Outcome<A>, ExecuteError> {
    let stream = execution.stream;
    let mut loaded = load_stale(store, cache, execution).await?;
    let mut freshness = Freshness::Stale;
    let mut delays = delays();
    loop {
        let events = match decide(execution, &loaded) {
            Ok(events) => events,
            Err(no_append) => match (no_append, freshness) {
                (_, Freshness::Stale) => {
                    loaded = load(store, stream, Some(loaded), Consistency::Strong).await?;
                    freshness = Freshness::Fresh;
                    cache.put(stream, &loaded);
                    continue;
                }
                (NoAppend::PreconditionFailed, Freshness::Overtaken) => {
                    let repeated = find_repeated(store, execution).await?;
                    return repeated.ok_or(ExecuteError::Overtaken { version: loaded.version });
                }
                (no_append, _) => return conclude(store, execution, loaded, no_append).await,
            },
        };
        let may_contend = match append(store, execution, &loaded, &events).await? {
            Appended::Stored(after) => {
                cache.put(stream, &after);
                return Ok(Outcome::Committed(after));
            }
            Appended::VersionTaken(attempt) => {
                let race = Race { store, cache, execution, freshness };
                // On the heap: otherwise a command that loses no race would carry this future.
                match Box::pin(race.resolve_conflict(loaded, attempt)).await? {
                    Resolution::Answered(outcome) => return Ok(outcome),
                    Resolution::Retry { state, freshness: newest, may_contend } => {
                        (loaded, freshness) = (state, newest);
                        may_contend
                    }
                }
            }
            Appended::RequestTaken => match find_repeated(store, execution).await? {
                Some(outcome) => return Ok(outcome),
                None => true,
            },
            Appended::Busy => {
                metrics::counter!(CONFLICTS).increment(1);
                true
            }
        };
        let delay = delays.next().ok_or(ExecuteError::Contended)?;
        metrics::counter!(RETRIES).increment(1);
        if may_contend {
            (host.pause)(delay).await;
        }
    }
}

/// Returns the state for the first decision, which may lag behind the log.
async fn load_stale<A: Aggregate>(
    store: &impl EventStore,
    cache: &Cache<A>,
    execution: &Execution<'_, A>,
) -> Result<Loaded<A>, LoadError> {
    match cache.get(execution.stream) {
        Some(cached) => Ok(cached),
        None if execution.creates => Ok(Loaded::initial()),
        // Half the price of a strongly consistent read. A stale state is safe: its append fails.
        None => load(store, execution.stream, None, Consistency::Eventual).await,
    }
}

/// Returns the pauses between attempts, so that other writers finish meanwhile.
fn delays() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(4))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(MAX_REPAIRS)
        .with_jitter()
        .build()
}

/// The freshness of the loaded state. It decides which answers the state allows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// It is from a cache or an eventually consistent read. Nothing is refused on it (rule 6).
    Stale,
    /// It is from a strongly consistent read after the command arrived.
    Fresh,
    /// It is from a strongly consistent read, and the last append lost its version to a commit that
    /// is younger than the command.
    Overtaken,
}

/// An append that found its version taken.
struct Race<'a, A: Aggregate, S> {
    store: &'a S,
    cache: &'a Cache<A>,
    execution: &'a Execution<'a, A>,
    /// The freshness of the state that the append was decided on.
    freshness: Freshness,
}

/// The resolution of a conflict: an append that lost its version to another one.
enum Resolution<A: Aggregate> {
    /// The winner is this command, with this outcome.
    Answered(Outcome<A>),
    /// The command must be decided again.
    Retry {
        /// The newest state.
        state: Loaded<A>,
        /// Its freshness.
        freshness: Freshness,
        /// Whether another writer may be writing to the stream now, and a pause lets it finish.
        may_contend: bool,
    },
}

impl<A: Aggregate, S: EventStore> Race<'_, A, S> {
    /// Reads the stream's newest commits, and determines whose commit won.
    async fn resolve_conflict(
        &self,
        loaded: Loaded<A>,
        attempt: Box<Attempt<A>>,
    ) -> Result<Resolution<A>, ExecuteError> {
        let Self { store, cache, execution, freshness } = *self;
        let (state, winner) = catch_up(store, execution.stream, loaded).await?;
        cache.put(execution.stream, &state);
        let winner = match winner {
            // If the winner is an earlier delivery of this very command, the store reports its
            // record in the next attempt.
            Err(StoreError::Corrupt { .. }) if execution.idempotency.is_some() => None,
            // Without a record, the winner's command is unknown (rule 4). The next command decides
            // on this state.
            winner => winner?,
        };
        if let Some(winner) =
            winner.as_ref().filter(|winner| winner.command == attempt.commit.command)
        {
            if attempt.matches(winner) && attempt.commit.at == winner.at {
                // The winner is our own append, whose reply was lost (rule 4).
                return Ok(Resolution::Answered(Outcome::Committed(attempt.after)));
            }
            // The winner is the same request, executed by another instance or at another time, or
            // another request with our id.
            return match find_repeated(store, execution).await? {
                Some(repeated) => Ok(Resolution::Answered(repeated)),
                None if attempt.matches(winner) => {
                    Ok(Resolution::Answered(Outcome::Committed(attempt.after)))
                }
                None => Err(ExecuteError::CommandIdReused),
            };
        }
        metrics::counter!(CONFLICTS).increment(1);
        // If the winner is younger than the command, the version was still free when the command
        // arrived. A failed precondition is then answered as `Overtaken`. The versions do not show
        // it, because this instance's state may be stale, and a read before each append would
        // double the calls. A wrong clock only changes which of the two errors for a failed
        // precondition is returned.
        let is_overtaken = winner.as_ref().is_some_and(|winner| winner.at >= attempt.commit.at);
        // The state was merely stale, as in the cache of one of several instances. In that case the
        // first commit that it lacked is older than the command.
        let was_stale = freshness == Freshness::Stale && winner.is_some() && !is_overtaken;
        let freshness = if is_overtaken { Freshness::Overtaken } else { Freshness::Fresh };
        Ok(Resolution::Retry { state, freshness, may_contend: !was_stale })
    }
}

/// A stream without commits has no state to republish.
pub const UNKNOWN_STREAM: Refusal =
    Refusal::not_found("unknown-stream", "there is nothing of this name");

/// The reason why there is nothing to append.
enum NoAppend {
    Unchanged,
    Refused(Refusal),
    PreconditionFailed,
}

fn decide<A: Aggregate>(
    execution: &Execution<'_, A>,
    loaded: &Loaded<A>,
) -> Result<Vec<A::Event>, NoAppend> {
    let decision = match execution.command {
        Some(command) => A::decide(&loaded.state, command, execution.context),
        None if loaded.version == 0 => Err(UNKNOWN_STREAM),
        None => Ok(Vec::new()),
    };
    if let Err(refusal) = &decision
        && matches!(
            refusal.kind(),
            RefusalKind::Forbidden | RefusalKind::AlreadyExists | RefusalKind::NotFound
        )
    {
        // These refusals precede the precondition (RFC 9110, 13.2.1): its failure would reveal the
        // version to a stranger.
        return Err(NoAppend::Refused(refusal.clone()));
    }
    if execution.precondition.is_some_and(|precondition| !precondition.holds(loaded.version)) {
        return Err(NoAppend::PreconditionFailed);
    }
    match decision {
        Ok(events) if events.is_empty() && execution.command.is_some() => Err(NoAppend::Unchanged),
        Ok(events) => Ok(events),
        Err(refusal) => Err(NoAppend::Refused(refusal)),
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
    /// Whether the stored commit is the commit of this attempt.
    fn matches(&self, stored: &Commit) -> bool {
        stored.command == self.commit.command && stored.events == self.commit.events
    }
}

async fn append<A: Aggregate>(
    store: &impl EventLog,
    execution: &Execution<'_, A>,
    loaded: &Loaded<A>,
    events: &[A::Event],
) -> Result<Appended<A>, ExecuteError> {
    let mut attempt = prepare(store, execution, loaded, events)?;
    let record = execution.idempotency.as_ref().map(|idempotency| {
        idempotency.record(execution.arrival(), Ok((&attempt.after.state, attempt.after.version)))
    });
    let mut result = store.append(&attempt.commit, record.as_ref()).await;
    if matches!(result, Err(AppendError::TooLarge { .. })) && attempt.commit.state.is_some() {
        // The state is a cache (rule 5): a commit is never refused because its state is too large.
        attempt.commit.state = None;
        attempt.after.embedded = loaded.embedded;
        result = store.append(&attempt.commit, record.as_ref()).await;
    }
    match result {
        Ok(()) => Ok(Appended::Stored(attempt.after)),
        Err(AppendError::VersionTaken) => Ok(Appended::VersionTaken(Box::new(attempt))),
        Err(AppendError::RequestTaken) => Ok(Appended::RequestTaken),
        Err(AppendError::Busy) => Ok(Appended::Busy),
        Err(AppendError::TooLarge { bytes, limit }) => Err(ExecuteError::TooLarge { bytes, limit }),
        Err(AppendError::TooMany { .. }) => Err(ExecuteError::Store(one_is_too_many())),
        Err(AppendError::Store(
            error @ (StoreError::Unavailable(_) | StoreError::Throttled(_)),
        )) => {
            // An attempt before the last one may have stored the commit nevertheless: the log is
            // read before the client gets an error. The events are compared too, because another
            // request under the same client's key has the same command id.
            match store.get(execution.stream, attempt.commit.version).await {
                Ok(Some(stored)) if attempt.matches(&stored) => Ok(Appended::Stored(attempt.after)),
                Ok(_) | Err(_) => Err(error.into()),
            }
        }
        Err(AppendError::Store(error)) => Err(error.into()),
    }
}

fn prepare<A: Aggregate>(
    store: &impl EventLog,
    execution: &Execution<'_, A>,
    loaded: &Loaded<A>,
    events: &[A::Event],
) -> Result<Attempt<A>, ExecuteError> {
    let state = crate::fold::<A>(loaded.state.clone(), events);
    let mut commit = Commit {
        stream: execution.stream.clone(),
        version: loaded.version + 1,
        events: events
            .iter()
            .map(encode::<A>)
            .collect::<Result<Vec<RecordedEvent>, EncodeError>>()?,
        state: None,
        command: execution.command_id.to_owned(),
        at: execution.context.at,
        meta: execution.meta.clone(),
    };
    // The snapshot policy. The state is embedded if it costs no further write unit. It is embedded
    // at the latest when a cold load would otherwise have to read more commits than fit in its
    // first page.
    let due = commit.version - loaded.embedded >= A::SNAPSHOT_EVERY;
    // Subscribers to states need the state of a republication, which has nothing else.
    let needs_state = due || execution.command.is_none();
    let bytes = if needs_state { 0 } else { store.stored_bytes(&commit) };
    commit.state = Some(encode_state::<A>(&state)?);
    let units = |bytes: usize| bytes.div_ceil(WRITE_UNIT_BYTES);
    if !needs_state && units(store.stored_bytes(&commit)) > units(bytes) {
        commit.state = None;
    }
    let embedded = if commit.state.is_some() { commit.version } else { loaded.embedded };
    Ok(Attempt { after: Loaded { version: commit.version, state, embedded }, commit })
}

/// Reads the commits since `loaded`, by a strongly consistent read. Returns the newest state, and
/// the commit that took the version after `loaded`.
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
    // The stream is far ahead of this instance, or a commit cannot be read. The state is loaded
    // from the newest embedded one, as on a cold instance. Perhaps that load needs no damaged
    // commit (rule 11).
    let loaded = load(store, stream, Some(loaded), Consistency::Strong).await?;
    Ok((loaded, store.get(stream, taken).await))
}

/// Answers a command that appends nothing, from the state of a strongly consistent read (rule 6).
async fn conclude<A: Aggregate>(
    store: &impl IdempotencyStore,
    execution: &Execution<'_, A>,
    loaded: Loaded<A>,
    no_append: NoAppend,
) -> Result<Outcome<A>, ExecuteError> {
    if let Some(idempotency) = &execution.idempotency {
        let record = |answer| idempotency.record(execution.arrival(), answer);
        // A repeated request may be refused because of its own earlier success: its first answer is
        // returned instead.
        let remembered = match &no_append {
            NoAppend::Unchanged => {
                store.record_response(&record(Ok((&loaded.state, loaded.version)))).await
            }
            NoAppend::Refused(refusal) => store.record_response(&record(Err(refusal))).await,
            // The answer to a failed precondition is not stored, because it does not answer the
            // request: the client may use the same key again with the right version.
            NoAppend::PreconditionFailed => Err(AppendError::RequestTaken),
        };
        match remembered {
            Ok(()) => {}
            Err(AppendError::RequestTaken) => {
                if let Some(outcome) = find_repeated(store, execution).await? {
                    return Ok(outcome);
                }
            }
            Err(AppendError::Store(error)) => return Err(error.into()),
            Err(AppendError::Busy | AppendError::VersionTaken) => {
                return Err(ExecuteError::Contended);
            }
            Err(AppendError::TooLarge { bytes, limit }) => {
                return Err(ExecuteError::TooLarge { bytes, limit });
            }
            Err(AppendError::TooMany { .. }) => return Err(ExecuteError::Store(one_is_too_many())),
        }
    }
    match no_append {
        NoAppend::Unchanged => Ok(Outcome::Unchanged(loaded)),
        NoAppend::Refused(refusal) => Err(ExecuteError::Refused(refusal)),
        NoAppend::PreconditionFailed => {
            Err(ExecuteError::PreconditionFailed { version: loaded.version })
        }
    }
}

/// Returns the error for a store that counts one commit, or one request, as too many. No store does
/// so.
fn one_is_too_many() -> StoreError {
    StoreError::Unavailable("the store calls one commit too many".into())
}

/// Returns the stored answer to the same request, if there is one.
async fn find_repeated<A: Aggregate>(
    store: &impl IdempotencyStore,
    execution: &Execution<'_, A>,
) -> Result<Option<Outcome<A>>, ExecuteError> {
    let Some(idempotency) = &execution.idempotency else { return Ok(None) };
    match store.find_response(idempotency.key).await? {
        Some(record) if record.fingerprint == idempotency.fingerprint => {
            Ok(Some(Outcome::Repeated(record.answer)))
        }
        Some(_) => Err(ExecuteError::CommandIdReused),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
