//! The runners of process managers: functions that react to commits, for example with a mail or a
//! command. Their commits come from a FIFO queue, or a rule of the bus invokes them.

use std::time::Duration;

use aws_config::SdkConfig;
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Cache, Changes, Commit, Context, EventStore, EventTypes, ExecuteError, Execution,
    Idempotency, LogTable, Meta, Outcome, Refusal, StreamId, execute,
    manifest::{Action, Manifest, Name, Source, SubscriberKind, Table},
    position::{Delivery, check},
    view_store::CommitChanges,
};
use ledgerline_dynamodb::{DynamoDbStore, LogRows};
use tokio::time::timeout;

use crate::{
    config,
    failure::Error,
    projection::queue_runner::{self, ApplyError, Consumer},
    projection::{bus_consumer, kinesis},
    start::{self, COMPRESS_OVER},
    table_grants::{self, REQUESTS},
};

/// The table in which a process manager stores its position in each stream.
pub const POSITIONS: LogTable =
    LogTable { variable: "POSITIONS_TABLE", partition: "stream", sort: "entry" };

/// The time for which the idempotency record of a command on behalf of an event is stored, in
/// seconds: ten years. A message lives for weeks. But an operator can redeliver a commit at any
/// time, and a redelivery must not move money again.
const RETENTION_SECONDS: i64 = 3_650 * 86_400;

/// The time that one command may take. It is less than the function's timeout of ten seconds. If a
/// second command is as slow, the function times out. Its message is delivered again, and the first
/// command has an idempotency record.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(8);

/// Reacts to commits: sends commands, or calls another system.
///
/// ```
/// use ledgerline::Commit;
/// use ledgerline_lambda::{queue::ApplyError, process_manager::Reaction};
///
/// struct Greet;
///
/// impl Reaction for Greet {
///     const OF: &'static [&'static str] = &["tank"];
///
///     async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
///         if commit.version == 1 {
///             tracing::info!(stream = %commit.stream, "hello");
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Reaction {
    /// The categories whose commits the process manager reacts to.
    const OF: &'static [&'static str];

    /// The categories of the aggregates to which the process manager sends commands
    /// ([`Due::send`]). With at least one, its store has idempotency records.
    const COMMANDS: &'static [&'static str] = &[];

    /// Adds the declarations of the process manager itself, in addition to its queue, the log, its
    /// positions and its commands.
    ///
    /// ```
    /// use ledgerline::manifest::Manifest;
    ///
    /// fn manifest(manifest: Manifest) -> Manifest {
    ///     manifest.call("ses:SendEmail", "MAIL_SENDER").metric("UnsentMails")
    /// }
    /// ```
    fn manifest(manifest: Manifest) -> Manifest {
        manifest
    }

    /// Does the work that is due after this commit. The commits of a stream arrive in order, and a
    /// commit may be delivered again after a part of the work was done. [On the bus](run_on_bus)
    /// and [with Kinesis](run_with_kinesis), two instances may have the same commit at the same
    /// time. So each action here must be safe to repeat, and to run twice at once.
    fn react(&self, commit: &Commit) -> impl Future<Output = Result<(), ApplyError>>;
}

/// Runs a process manager.
///
/// ```no_run
/// # use ledgerline::Commit;
/// # use ledgerline_lambda::{queue::ApplyError, process_manager::Reaction};
/// # struct Greet;
/// # impl Reaction for Greet {
/// #     const OF: &'static [&'static str] = &["tank"];
/// #     async fn react(&self, _: &Commit) -> Result<(), ApplyError> {
/// #         Ok(())
/// #     }
/// # }
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), ledgerline_lambda::Error> {
///     ledgerline_lambda::process_manager::run(async |_sdk, _store| Ok(Greet)).await
/// }
/// ```
///
/// # Errors
/// When its configuration is wrong: `COMMITS_TABLE`, `POSITIONS_TABLE`, `REQUESTS_TABLE` if
/// [`Reaction::COMMANDS`] names a category, and the variables that `build` reads.
pub async fn run<R: Reaction + 'static>(
    build: impl AsyncFnOnce(SdkConfig, DynamoDbStore) -> Result<R, Error>,
) -> Result<(), Error> {
    queue_runner::run(manifest::<R>(), async |sdk| build_manager(sdk, build).await).await
}

/// Runs a process manager that also applies the records of the log's Kinesis stream, if the stack
/// has one. As on the bus, two instances may have the same commit at the same time.
///
/// # Errors
/// Those of [`run`].
pub async fn run_with_kinesis<R: Reaction + 'static>(
    build: impl AsyncFnOnce(SdkConfig, DynamoDbStore) -> Result<R, Error>,
) -> Result<(), Error> {
    kinesis::run(manifest::<R>(), async |sdk| build_manager(sdk, build).await).await
}

/// Runs a process manager that a rule of the bus invokes with the events of this aggregate, in
/// place of a FIFO queue. It reacts to the same commits in the same order, because it reads them
/// from the log. It costs one more read for each entry. Any team can add such a process manager
/// without a change of this stack.
pub async fn run_on_bus<R: Reaction + 'static, A: Aggregate>(
    build: impl AsyncFnOnce(SdkConfig, DynamoDbStore) -> Result<R, Error>,
) -> Result<(), Error> {
    bus_consumer::run(manifest_on_bus::<R, A>(), async |sdk| build_manager(sdk, build).await).await
}

async fn build_manager<R: Reaction>(
    sdk: SdkConfig,
    build: impl AsyncFnOnce(SdkConfig, DynamoDbStore) -> Result<R, Error>,
) -> Result<ProcessManager<R>, Error> {
    let client = aws_sdk_dynamodb::Client::new(&sdk);
    let positions = LogRows::new(client.clone(), config::text(POSITIONS.variable)?, POSITIONS);
    let mut store = start::store(&sdk, client).await?;
    if !R::COMMANDS.is_empty() {
        store = start::configure_writes(store, config::text(REQUESTS.variable)?)?;
    }
    Ok(ProcessManager { positions, reaction: build(sdk, store).await? })
}

/// The manifest of the function of this process manager.
pub fn manifest<R: Reaction>() -> Manifest {
    let categories = R::OF.iter().map(|of| Name::Borrowed(*of)).collect();
    manifest_with_source::<R>(Source::Queue(categories))
}

/// The manifest of the function of this process manager, if it runs [on the bus](run_on_bus).
fn manifest_on_bus<R: Reaction, A: Aggregate>() -> Manifest {
    let events =
        A::Event::TYPES.iter().flat_map(|known| known.names()).map(Name::Borrowed).collect();
    manifest_with_source::<R>(Source::States { category: A::CATEGORY.into(), events, bus: true })
}

fn manifest_with_source<R: Reaction>(source: Source) -> Manifest {
    let positions = Table::grant(POSITIONS, [Action::GetItem, Action::PutItem]);
    let manifest = Manifest::new(source).subscriber(SubscriberKind::ProcessManager, positions);
    // The key of an idempotency record begins with the stream of the commit that the process
    // manager reacts to.
    let records = table_grants::streams(R::OF.iter().copied());
    let commands = (!R::COMMANDS.is_empty()).then(|| table_grants::commands(R::COMMANDS, &records));
    let manifest = commands.into_iter().flatten().fold(manifest, Manifest::table);
    R::manifest(if R::COMMANDS.is_empty() { manifest } else { manifest.optional(COMPRESS_OVER) })
}

/// The parts of a process manager.
#[derive(Debug)]
pub struct ProcessManager<R> {
    /// The table with the process manager's position in each stream.
    pub positions: LogRows,
    /// The reaction to a commit.
    pub reaction: R,
}

impl<R: Reaction> Consumer for ProcessManager<R> {
    async fn apply(&self, commit: &Commit) -> Result<(Delivery, u64), ApplyError> {
        ApplyError::check_category(R::OF, commit)?;
        let (position, _) = self.positions.progress(&commit.stream).await?;
        match check(position, commit.version) {
            Delivery::Next => {
                self.reaction.react(commit).await?;
                // The position is written after the reaction. A crash between the two repeats the
                // reaction, and loses nothing.
                let changes = Changes::new(POSITIONS);
                let changes =
                    CommitChanges { stream: &commit.stream, version: commit.version, changes };
                Ok(self.positions.deliver(changes).await?)
            }
            delivery @ (Delivery::Duplicate | Delivery::Gap) => Ok((delivery, position)),
        }
    }
}

/// A command that is due after an event.
#[expect(
    missing_debug_implementations,
    reason = "commands hold payloads, which stay out of logs (rule 14)"
)]
pub struct Due<'a, A: Aggregate> {
    /// The commit after which the command is due.
    pub cause: &'a Commit,
    /// The name that distinguishes the command from other commands due after the same commit.
    pub step: &'a str,
    /// The stream to which the command is sent.
    pub stream: &'a StreamId,
    /// The command.
    pub command: &'a A::Command,
    /// The caller on whose behalf the command is sent.
    pub actor: Option<&'a str>,
}

impl<A: Aggregate> Due<'_, A> {
    /// Sends the command once. Its id consists of the commit and the step, and its idempotency
    /// record stores the response. So a redelivery gets the first response and repeats nothing. The
    /// inner error is the code of the domain's refusal.
    ///
    /// # Errors
    /// When the command failed, or its outcome is unknown: the message must be delivered again.
    pub async fn send(
        &self,
        store: &impl EventStore,
        cache: &Cache<A>,
    ) -> Result<Result<(), String>, ApplyError> {
        const DONE: &str = "done";
        let Commit { stream, version, meta, .. } = self.cause;
        // No client's key equals this id: a client's key has a space before the caller.
        let id = format!("{stream}:{version}:{}", self.step);
        let answer = |answer: Result<(&A::State, u64), &Refusal>| {
            answer.map_or_else(|refusal| refusal.code().to_owned(), |_| DONE.to_owned())
        };
        let actor = self.actor.map(ToOwned::to_owned);
        let meta = Meta {
            actor: actor.clone(),
            correlation_id: meta.correlation_id.clone(),
            causation_id: Some(format!("{stream}:{version}")),
            source_address: None,
            trace_id: meta.trace_id.clone(),
        };
        let context = Context { at: Timestamp::now(), actor };
        let idempotency = Idempotency {
            key: &id,
            fingerprint: self.step,
            retention: RETENTION_SECONDS,
            answer: &answer,
        };
        let execution = Execution {
            idempotency: Some(idempotency),
            ..Execution::new(self.stream, self.command, &context, &id, &meta)
        };
        // The future is on the heap, for the reason in the runner of commands.
        let outcome = timeout(
            COMMAND_TIMEOUT,
            Box::pin(execute(store, cache, &DynamoDbStore::HOST, &execution)),
        )
        .await;
        let answered = match outcome {
            Ok(Ok(Outcome::Committed(_) | Outcome::Unchanged(_))) => Ok(()),
            Ok(Ok(Outcome::Repeated(answer))) if answer == DONE => Ok(()),
            Ok(Ok(Outcome::Repeated(code))) => Err(code),
            Ok(Err(ExecuteError::Refused(refusal))) => Err(refusal.code().to_owned()),
            Ok(Err(source)) => return Err(ApplyError::Command { id, source }),
            Err(_) => return Err(ApplyError::Effect(format!("the command `{id}` timed out"))),
        };
        let outcome = answered.as_ref().map_or_else(String::as_str, |()| DONE);
        tracing::info!(stream = %self.stream, command = id, outcome, "command on behalf of an event");
        Ok(answered)
    }
}
