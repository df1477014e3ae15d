//! Stock notices: performs the effects that are due after the events of a stockitem.

use ledgerline::{Aggregate, Commit};
use ledgerline_lambda::{process_manager::Reaction, queue::ApplyError};
use north_depot::stock_item::StockItem;

/// Returns the effects that are due after a commit. This function is pure, so tests need no
/// effects. Decode payloads here: `decode::<StockItem>(recorded)`.
#[must_use]
pub fn due(commit: &Commit) -> Vec<&str> {
    commit.events.iter().map(|recorded| recorded.event_type.as_str()).collect()
}

/// The process manager: performs the effects.
#[derive(Debug)]
pub struct StockNotices;

impl Reaction for StockNotices {
    const OF: &'static [&'static str] = &[StockItem::CATEGORY];

    /// A commit may be redelivered, so the effect must be idempotent.
    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for due in due(commit) {
            tracing::info!(stream = %commit.stream, version = commit.version, due, "stock notices");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ledgerline::{Meta, RecordedEvent, StreamId};

    use super::*;

    #[test]
    fn every_event_causes_an_effect() {
        let event =
            |name: &str| RecordedEvent { event_type: name.into(), schema: 1, data: "{}".into() };
        let commit = Commit {
            stream: StreamId::new("stockitem", "1").unwrap(),
            version: 1,
            events: vec![event("First"), event("Second")],
            state: None,
            command: "c".into(),
            at: jiff::Timestamp::UNIX_EPOCH,
            meta: Meta::default(),
        };
        assert_eq!(due(&commit), ["First", "Second"]);
    }
}
