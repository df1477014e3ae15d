//! The checkpoint of the local stack.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use aws_sdk_sqs::types::QueueAttributeName;
use tokio::sync::{Mutex, watch};

use crate::services::Sqs;

/// A checkpoint: a position in the stream that survives a restart. The queues and the bus are in
/// memory. So the checkpoint passes a record when all work that follows from the record is done,
/// not when the fanout receives it. After a restart, the stream redelivers all later records to the
/// fanout, also those of events in a dead-letter queue. Consumers skip duplicates.
pub(crate) struct Checkpoint {
    pub(crate) file: PathBuf,
    pub(crate) delivered: watch::Receiver<String>,
    /// The position in the file.
    pub(crate) kept: watch::Sender<String>,
    /// While this lock is held, the mapping reads no records from the stream.
    pub(crate) polling: Arc<Mutex<()>>,
    pub(crate) sqs: Arc<Sqs>,
    pub(crate) queues: Vec<String>,
    pub(crate) under_way: Arc<AtomicUsize>,
}

/// The pause between two checks whether all work is done.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(200);
/// The longest time without a moment at which all work is done. After it, the mapping reads no
/// records for at most [`CHECKPOINT_PATIENCE`]. Otherwise, a steady load would allow no checkpoint,
/// and a restart would redeliver all records of the load.
const CHECKPOINT_OVERDUE: Duration = Duration::from_secs(10);
/// The longest time for which the mapping reads no records. Records whose work then is not done are
/// due for a retry, or are dead letters.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(2);

impl Checkpoint {
    /// Writes the position whenever all work is done.
    pub(crate) async fn run(self) {
        let mut last = Instant::now();
        loop {
            tokio::time::sleep(CHECKPOINT_INTERVAL).await;
            let polling = Arc::clone(&self.polling);
            let held = match last.elapsed() > CHECKPOINT_OVERDUE {
                true => tokio::time::timeout(CHECKPOINT_PATIENCE, polling.lock()).await.ok(),
                false => None,
            };
            // The position is read before the check, so that records that are delivered later do
            // not matter.
            let position = self.delivered.borrow().clone();
            let changed = position != *self.kept.borrow();
            let patience = if held.is_some() { CHECKPOINT_PATIENCE } else { Duration::ZERO };
            if changed && self.all_done_within(patience).await {
                self.keep(position);
            }
            if held.is_some() || !changed || *self.kept.borrow() == *self.delivered.borrow() {
                last = Instant::now();
            }
        }
    }

    fn keep(&self, position: String) {
        let temporary = self.file.with_extension("new");
        let written = std::fs::write(&temporary, &position)
            .and_then(|()| std::fs::rename(&temporary, &self.file));
        if written.is_ok() {
            self.kept.send_replace(position);
        }
    }

    async fn all_done_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            if self.all_done().await.unwrap_or(false) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn all_done(&self) -> Result<bool> {
        if self.under_way.load(Ordering::SeqCst) > 0 {
            return Ok(false);
        }
        for url in &self.queues {
            let attributes = self
                .sqs
                .client
                .get_queue_attributes()
                .queue_url(url)
                .attribute_names(QueueAttributeName::All)
                .send()
                .await?
                .attributes
                .unwrap_or_default();
            for name in [
                QueueAttributeName::ApproximateNumberOfMessages,
                QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
                QueueAttributeName::ApproximateNumberOfMessagesDelayed,
            ] {
                if attributes.get(&name).is_some_and(|count| count != "0") {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
