//! A command with its context, and its outcome.

use std::{pin::Pin, time::Duration};

use super::MAX_REPAIRS;
use crate::{
    Aggregate, Context, EncodeError, IdempotencyRecord, LoadError, Loaded, Meta, Refusal,
    StoreError, StreamId,
};

/// What a command needs from the program that runs it. The core has no clock (rule 12).
#[expect(missing_debug_implementations, reason = "holds functions")]
#[derive(Clone, Copy)]
pub struct Host {
    /// Waits before the next attempt, by the clock of the runtime. The proofs stop that clock, so
    /// that a history of hung requests takes no time and can be repeated.
    pub pause: Pause,
}

pub(crate) type Pause = fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A command, with its context and conditions.
#[expect(
    missing_debug_implementations,
    reason = "commands hold payloads, which stay out of logs (rule 14)"
)]
pub struct Execution<'a, A: Aggregate> {
    /// The stream of the command.
    pub stream: &'a StreamId,
    /// The command; `None` for a [republished state](Self::republish).
    pub command: Option<&'a A::Command>,
    /// The time of the command and its sender.
    pub context: &'a Context,
    /// The id that makes the append idempotent (rule 4): unique to this command, and the same when
    /// the command is sent again.
    pub command_id: &'a str,
    /// The origin of the command.
    pub meta: &'a Meta,
    /// The client's condition on the version (If-Match, If-None-Match).
    pub precondition: Option<&'a Precondition>,
    /// Whether the command starts a stream: then nothing is read before the first append.
    pub creates: bool,
    /// The way to store the answer under the client's Idempotency-Key.
    pub idempotency: Option<Idempotency<'a, A>>,
}

impl<'a, A: Aggregate> Execution<'a, A> {
    /// Returns a command without a condition and without a key, to a stream that exists. Other
    /// values are set in the fields.
    pub const fn new(
        stream: &'a StreamId,
        command: &'a A::Command,
        context: &'a Context,
        command_id: &'a str,
        meta: &'a Meta,
    ) -> Self {
        Self { command: Some(command), ..Self::republish(stream, context, command_id, meta) }
    }

    /// Returns a commit without events. The fold ignores it. Every subscriber to states writes the
    /// stream's state once more, under a version that is new to it.
    ///
    /// Source: Kumo's "replay" event, which all projectors listen to and the reducer ignores.
    pub const fn republish(
        stream: &'a StreamId,
        context: &'a Context,
        command_id: &'a str,
        meta: &'a Meta,
    ) -> Self {
        Self {
            stream,
            command: None,
            context,
            command_id,
            meta,
            precondition: None,
            creates: false,
            idempotency: None,
        }
    }

    /// Returns the time when the command arrived, in Unix seconds.
    pub(super) fn arrival(&self) -> i64 {
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
    pub(super) fn holds(&self, version: u64) -> bool {
        match self {
            Self::Exists => version > 0,
            Self::OneOf(versions) => version > 0 && versions.contains(&version),
            Self::Absent => version == 0,
            Self::NoneOf(versions) => !versions.contains(&version),
        }
    }
}

/// The way in which the answer to a request with an Idempotency-Key is stored.
#[expect(missing_debug_implementations, reason = "holds a closure")]
pub struct Idempotency<'a, A: Aggregate> {
    /// The key of the stored answer: the Idempotency-Key together with the caller.
    pub key: &'a str,
    /// The hash of the request.
    pub fingerprint: &'a str,
    /// The number of seconds after [`Context::at`] for which the answer is stored at least.
    pub retention: i64,
    /// Writes the answer for a state and its version, or for a refusal. A repeated request gets the
    /// same answer.
    #[expect(clippy::type_complexity, reason = "named by its only field")]
    pub answer: &'a (dyn Fn(Result<(&A::State, u64), &Refusal>) -> String + Sync),
}

impl<A: Aggregate> Idempotency<'_, A> {
    pub(super) fn record(
        &self,
        now: i64,
        answer: Result<(&A::State, u64), &Refusal>,
    ) -> IdempotencyRecord {
        IdempotencyRecord {
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
    /// The command's events are in the log, from this attempt or an earlier one. The value is the
    /// state and version after them.
    Committed(Loaded<A>),
    /// There was nothing to change.
    Unchanged(Loaded<A>),
    /// The same request was answered before. The value is the first answer.
    Repeated(String),
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The domain refuses the command, on the state of a strongly consistent read (rule 6).
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The condition does not hold for this version, which is from a strongly consistent read.
    #[error("the version is {version}")]
    PreconditionFailed {
        /// The version that the stream has.
        version: u64,
    },
    /// The condition held when the command arrived, but another writer won the race.
    #[error("another writer won the race: the version is {version}")]
    Overtaken {
        /// The newest version of the stream.
        version: u64,
    },
    /// Every repair lost its race too.
    #[error("other writers won the race at each of {MAX_REPAIRS} repetitions")]
    Contended,
    /// The Idempotency-Key, or the command id, belongs to another command.
    #[error("the command id belongs to another command")]
    CommandIdReused,
    /// The commit does not fit in one item, or its payloads have more bytes than a reader accepts.
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
