//! Stock labels: sends a command to a price tag after the first commit of a stockitem.

use std::num::NonZeroUsize;

use ledgerline::{Aggregate, Cache, Commit, EventStore, Invalid};
use ledgerline_lambda::{
    process_manager::{Due, Reaction},
    queue::ApplyError,
};
use north_depot::{
    price_tag::{Command, PriceTag, PriceTagName},
    stock_item::StockItem,
};

/// The size of a warm instance's cache, in price tags.
const CACHED_STREAMS: NonZeroUsize = NonZeroUsize::new(1_000).expect("is not zero");

/// Returns the command that is due after a commit: one command after the first commit of a stream.
/// This function is pure, so tests send no command. Decode payloads here:
/// `decode::<StockItem>(recorded)`.
///
/// # Errors
/// When the command cannot have such a value.
pub fn due(commit: &Commit) -> Result<Option<Command>, Invalid> {
    if commit.version > 1 {
        return Ok(None);
    }
    Ok(Some(Command::Create(PriceTagName::new(commit.stream.id())?)))
}

/// The process manager: sends the commands.
#[derive(Debug)]
pub struct StockLabels<S> {
    store: S,
    cache: Cache<PriceTag>,
}

impl<S> StockLabels<S> {
    /// Returns the process manager, for the streams of this store.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, cache: Cache::new(CACHED_STREAMS) }
    }
}

impl<S: EventStore> Reaction for StockLabels<S> {
    const OF: &'static [&'static str] = &[StockItem::CATEGORY];

    const COMMANDS: &'static [&'static str] = &[PriceTag::CATEGORY];

    /// A redelivered commit sends the command only once: the id of the command is made of the
    /// commit and the step.
    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        let Some(command) =
            due(commit).map_err(|invalid| ApplyError::Effect(invalid.to_string()))?
        else {
            return Ok(());
        };
        // Each stream has its own price tag, with the same id.
        let stream = PriceTag::stream(commit.stream.id());
        let stream = stream.map_err(|invalid| ApplyError::Effect(invalid.to_string()))?;
        let actor = commit.meta.actor.as_deref();
        let due = Due::<PriceTag> {
            cause: commit,
            step: "create",
            stream: &stream,
            command: &command,
            actor,
        };
        if let Err(code) = due.send(&self.store, &self.cache).await? {
            // A redelivery would get the same answer.
            tracing::warn!(stream = %commit.stream, version = commit.version, code, "stock labels");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ledgerline::{Meta, RecordedEvent, StreamId, spec::valid};

    use super::*;

    #[test]
    fn a_command_is_due_after_the_first_commit_of_a_stream() {
        let commit = |version| Commit {
            stream: StreamId::new("stockitem", "1").unwrap(),
            version,
            events: vec![RecordedEvent {
                event_type: "First".into(),
                schema: 1,
                data: "{}".into(),
            }],
            state: None,
            command: "c".into(),
            at: jiff::Timestamp::UNIX_EPOCH,
            meta: Meta::default(),
        };
        assert_eq!(due(&commit(1)).unwrap(), Some(Command::Create(valid("1"))));
        assert_eq!(due(&commit(2)).unwrap(), None);
    }
}
