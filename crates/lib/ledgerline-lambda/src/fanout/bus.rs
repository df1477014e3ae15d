//! The event bus: gets one entry for each event that it wants, with the state attached.

use std::collections::BTreeSet;

use aws_sdk_eventbridge::{Client, types::PutEventsRequestEntry};
use ledgerline::{Causes, Commit};

use crate::{
    fanout::{
        send::{EntryFailure, LastAccepted, chunks, fail_call, send_all},
        send_report::SendReport,
    },
    messages::published_events,
};

/// The codes of entries that EventBridge will never accept. Source: the API reference of
/// `PutEventsResultEntry`, "Non-retryable errors".
const PERMANENT: [&str; 5] = [
    "InvalidArgument",
    "MalformedDetail",
    "NotAuthorizedForDetailTypeException",
    "NotAuthorizedForSourceException",
    "RedactionFailure",
];

/// An event bus.
#[derive(Debug)]
pub(crate) struct Bus {
    pub(crate) client: Client,
    pub(crate) name: String,
    /// The first part of the `source` of every entry; a dot and the category follow.
    pub(crate) source: String,
    /// The types of the events that are put on the bus; `None` for all types.
    pub(crate) events: Option<BTreeSet<String>>,
    pub(crate) max_bytes: usize,
    pub(crate) last_accepted: LastAccepted<(usize, PutEventsRequestEntry)>,
}

impl Bus {
    /// Opens the connection with an empty call. EventBridge refuses the call, but the connection
    /// stays open for the first event.
    pub(crate) async fn connect(&self) {
        let _ = self.client.put_events().set_entries(Some(Vec::new())).send().await;
    }

    /// Whether an event of the commit is put on the bus.
    pub(crate) fn wants(&self, commit: &Commit) -> bool {
        published_events(commit).iter().any(|event| self.wants_type(&event.event_type))
    }

    fn wants_type(&self, event_type: &str) -> bool {
        self.events.as_ref().is_none_or(|events| events.contains(event_type))
    }

    /// Builds the entries of a commit. `details` has one text for each of its events, and one if
    /// there are none.
    ///
    /// # Errors
    /// When an entry is larger than the limit.
    pub(crate) fn entries(
        &self,
        commit: &Commit,
        details: &[String],
    ) -> Result<Vec<PutEventsRequestEntry>, String> {
        let mut entries = Vec::new();
        for (event, detail) in published_events(commit).iter().zip(details) {
            if !self.wants_type(&event.event_type) {
                continue;
            }
            let entry = PutEventsRequestEntry::builder()
                .event_bus_name(&self.name)
                .source(format!("{}.{}", self.source, commit.stream.category()))
                .detail_type(&event.event_type)
                .detail(detail)
                .build();
            let bytes = size(&entry);
            if bytes > self.max_bytes {
                return Err(format!(
                    "the entry has {bytes} bytes, the limit is {}",
                    self.max_bytes
                ));
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Puts the entries on the bus. Each entry has the index of its record.
    pub(crate) async fn send(&self, entries: Vec<(usize, PutEventsRequestEntry)>) -> SendReport {
        let mut sent = SendReport::default();
        for call in chunks(&entries, self.max_bytes, |(_, entry)| size(entry)) {
            if sent.is_blocked() {
                // An earlier call failed, so Lambda delivers all of these records again. A call for
                // their entries would only cost time, because the bus accepts nothing.
                call.iter().for_each(|(index, _)| sent.failure.note(*index));
                continue;
            }
            let unsent =
                send_all(call, &self.last_accepted, async |entries| self.put(entries).await).await;
            let unsent = unsent.into_iter().map(|((index, _), failure)| (index, failure));
            sent.add_unsent(&self.name, unsent);
        }
        sent
    }

    async fn put(&self, entries: &[(usize, PutEventsRequestEntry)]) -> Vec<(usize, EntryFailure)> {
        let batch = entries.iter().map(|(_, entry)| entry.clone()).collect();
        match self.client.put_events().set_entries(Some(batch)).send().await {
            Ok(answer) => {
                let results = answer.entries();
                let code = |place: usize| {
                    results.get(place).and_then(|result| result.error_code()).unwrap_or_default()
                };
                let failed: Vec<_> = (0..entries.len())
                    .filter(|place| {
                        results.get(*place).is_none_or(|result| result.event_id().is_none())
                    })
                    .map(|place| (place, EntryFailure::from_code(code(place), &PERMANENT)))
                    .collect();
                if let Some((place, _)) = failed.first() {
                    let message = results.get(*place).and_then(|result| result.error_message());
                    let code = code(*place);
                    tracing::warn!(
                        failed = failed.len(),
                        code,
                        message,
                        "the bus did not accept entries"
                    );
                }
                failed
            }
            Err(error) => {
                tracing::warn!(error = %Causes(&error), "the bus did not accept a call");
                // EventBridge reports what is wrong with an entry in the result of the entry.
                fail_call(entries.len(), &error, &[])
            }
        }
    }
}

/// The size of an entry as EventBridge counts it. Source: the user guide, "Calculating PutEvents
/// event entry size".
fn size(entry: &PutEventsRequestEntry) -> usize {
    [entry.source(), entry.detail_type(), entry.detail()].into_iter().flatten().map(str::len).sum()
}
