//! The runner of process managers: functions behind a FIFO queue of commits that do something about them, such as to
//! send a mail or a command.

use std::time::Duration;

use aws_config::SdkConfig;
use jiff::Timestamp;
use ledgerline::{
    Aggregate, Cache, Changes, Commit, Context, EventStore, ExecuteError, Execution, Ledger, LogTable, Meta,
    Outcome, Refusal, StreamId, execute,
    guard::{Verdict, judge},
};
use ledgerline_dynamodb::{DynamoDbStore, ReadTable};
use tokio::time::timeout;

use crate::{
    Error, config,
    fifo::{self, ApplyError, Consumer},
    needs::{Action, Needs, Source, Table},
    start,
};

/// Where a process manager keeps its position in each stream.
pub const POSITIONS: LogTable = LogTable { variable: "POSITIONS_TABLE", partition: "stream", sort: "entry" };

/// For how long it is remembered that a command was sent on behalf of an event, in seconds: ten years. A message lives for
/// weeks, but a commit can be replayed at any time, and then must not move money again.
const REMEMBERED_SECONDS: i64 = 3_650 * 86_400;

/// How long one command may take. Two of them fit into the function's timeout.
const PATIENCE: Duration = Duration::from_secs(8);

/// Reacts to commits: sends commands, or calls another system.
///
/// ```
/// use ledgerline::Commit;
/// use ledgerline_lambda::{fifo::ApplyError, process_manager::Reaction};
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
    /// The categories whose commits it reacts to.
    const OF: &'static [&'static str];

    /// What it needs, of what every process manager needs: its queue, the log, its positions.
    ///
    /// ```
    /// use ledgerline_lambda::needs::Needs;
    ///
    /// fn needs(needs: Needs) -> Needs {
    ///     needs.call("ses:SendEmail", "MAIL_SENDER").metric("UnsentMails")
    /// }
    /// ```
    fn needs(needs: Needs) -> Needs {
        needs
    }

    /// Does what is due after this commit. Every commit comes in the order of its stream, and may come again after
    /// something of it was done: whatever is done here has to take that.
    fn react(&self, commit: &Commit) -> impl Future<Output = Result<(), ApplyError>>;
}

/// Runs a process manager.
///
/// ```no_run
/// # use ledgerline::Commit;
/// # use ledgerline_lambda::{fifo::ApplyError, process_manager::Reaction};
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
/// When its configuration is wrong: `COMMITS_TABLE`, `POSITIONS_TABLE`, and what `build` reads.
pub async fn run<R: Reaction + 'static>(
    build: impl AsyncFnOnce(SdkConfig, DynamoDbStore) -> Result<R, Error>,
) -> Result<(), Error> {
    let positions = Table::with(POSITIONS, [Action::GetItem, Action::PutItem]);
    let needs = R::needs(Needs::new(Source::Queue(R::OF.to_vec())).table(positions));
    fifo::run(needs, async |sdk| {
        let client = aws_sdk_dynamodb::Client::new(&sdk);
        let positions = ReadTable::new(client.clone(), config::text(POSITIONS.variable)?);
        let store = start::store(client).await?;
        Ok(ProcessManager { positions, reaction: build(sdk, store).await? })
    })
    .await
}

/// The parts of a process manager.
#[derive(Debug)]
pub struct ProcessManager<R> {
    /// How far it got in each stream.
    pub positions: ReadTable,
    /// What it does about a commit.
    pub reaction: R,
}

impl<R: Reaction> Consumer for ProcessManager<R> {
    async fn take(&self, commit: &Commit) -> Result<(Verdict, u64), ApplyError> {
        ApplyError::unless_of(R::OF, commit)?;
        let (stream, version) = (commit.stream.as_str(), commit.version);
        let (position, _) = self.positions.progress(&POSITIONS, stream).await?;
        match judge(position, version) {
            Verdict::Apply => {
                self.reaction.react(commit).await?;
                // Afterwards: a crash in between repeats the reaction, and loses nothing.
                Ok(self.positions.apply(&POSITIONS, stream, version, &Changes::new(POSITIONS)).await?)
            }
            verdict @ (Verdict::Skip | Verdict::Gap) => Ok((verdict, position)),
        }
    }
}

/// A command that is due after an event.
#[expect(missing_debug_implementations, reason = "commands hold payloads, which stay out of logs (rule 14)")]
pub struct Due<'a, A: Aggregate> {
    /// The commit that it is due after.
    pub cause: &'a Commit,
    /// Tells it from other commands that are due after the same commit.
    pub step: &'a str,
    /// The stream that it is for.
    pub stream: &'a StreamId,
    /// The command.
    pub command: &'a A::Command,
    /// On whose behalf it is sent.
    pub actor: Option<&'a str>,
}

impl<A: Aggregate> Due<'_, A> {
    /// Sends the command, once: its id is made of the commit and the step, and remembered with the answer, so that a
    /// redelivery gets the first answer and repeats nothing. The inner error is the code of the domain's refusal.
    ///
    /// # Errors
    /// When it could not be found out what became of it: the message has to come again.
    pub async fn send(
        &self,
        store: &impl EventStore,
        cache: &Cache<A>,
    ) -> Result<Result<(), String>, ApplyError> {
        const DONE: &str = "done";
        let Commit { stream, version, meta, .. } = self.cause;
        // No caller's key is like it: those have a space in them.
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
        let ledger =
            Ledger { key: &id, fingerprint: self.step, retention: REMEMBERED_SECONDS, answer: &answer };
        let execution = Execution {
            ledger: Some(ledger),
            ..Execution::new(self.stream, self.command, &context, &id, &meta)
        };
        let outcome = timeout(PATIENCE, execute(store, cache, &execution)).await;
        let answered = match outcome {
            Ok(Ok(Outcome::Committed(_) | Outcome::Unchanged(_))) => Ok(()),
            Ok(Ok(Outcome::Repeated(answer))) if answer == DONE => Ok(()),
            Ok(Ok(Outcome::Repeated(code))) => Err(code),
            Ok(Err(ExecuteError::Refused(refusal))) => Err(refusal.code().to_owned()),
            Ok(Err(source)) => return Err(ApplyError::Command { id, source }),
            Err(_) => return Err(ApplyError::Effect(format!("the command {id} took too long"))),
        };
        let outcome = answered.as_ref().map_or_else(String::as_str, |()| DONE);
        tracing::info!(stream = %self.stream, command = id, outcome, "command on behalf of an event");
        Ok(answered)
    }
}
