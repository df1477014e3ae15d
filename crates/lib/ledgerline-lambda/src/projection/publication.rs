//! The last attempt of a process to publish a view.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The pause after a failed attempt.
const PAUSE: Duration = Duration::from_secs(60);

/// The last attempt of this process to publish a view
/// ([`RowStore::publish`](ledgerline::view_store::RowStore::publish)). All clones share it.
#[derive(Debug, Clone, Default)]
pub struct Publication(Arc<Mutex<Option<Attempt>>>);

#[derive(Debug)]
struct Attempt {
    generation: u32,
    retry_at: Option<Instant>,
}

impl Publication {
    /// Whether this process has not published this generation, and has not failed to within the
    /// last minute.
    #[must_use]
    pub fn is_due(&self, generation: u32) -> bool {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !last.as_ref().is_some_and(|last| {
            last.generation == generation && last.retry_at.is_none_or(|time| Instant::now() < time)
        })
    }

    /// Remembers an attempt to publish this generation.
    pub fn remember(&self, generation: u32, is_published: bool) {
        let retry_at = (!is_published).then(|| Instant::now() + PAUSE);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Attempt { generation, retry_at });
    }
}
