//! What a warm instance remembers of the streams that it worked on.

use std::{num::NonZeroUsize, sync::Mutex};

use lru::LruCache;

use crate::{Aggregate, Loaded, StreamId};

/// The states that this process saw last, bounded by count (rule 11). They may be stale: decisions on them are
/// caught by the append, and refusals are never given on them alone (rule 6).
pub struct Cache<A: Aggregate>(Mutex<LruCache<StreamId, Loaded<A>>>);

impl<A: Aggregate> Cache<A> {
    /// Remembers up to this many streams.
    #[must_use]
    pub fn new(streams: NonZeroUsize) -> Self {
        Self(Mutex::new(LruCache::new(streams)))
    }

    pub(crate) fn get(&self, stream: &StreamId) -> Option<Loaded<A>> {
        self.lock().get(stream).cloned()
    }

    pub(crate) fn put(&self, stream: &StreamId, loaded: &Loaded<A>) {
        self.lock().put(stream.clone(), loaded.clone());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<StreamId, Loaded<A>>> {
        // A panic elsewhere leaves whole entries behind, never half of one: the cache stays usable.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<A: Aggregate> std::fmt::Debug for Cache<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("streams", &self.lock().len()).finish_non_exhaustive()
    }
}
