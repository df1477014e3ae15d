//! The states that a warm instance caches, of the streams that it worked on.

use std::{
    io::{self, Write},
    num::NonZeroUsize,
    sync::{Mutex, MutexGuard, PoisonError},
};

use lru::LruCache;

use crate::{Aggregate, Loaded, StreamId};

/// The most bytes of states in a cache, counted as encoded JSON. In memory the states use a few
/// times as many, and a function has 128 MB at least.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A writer that counts its bytes.
struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The states that this process saw last, bounded by count and by bytes (rule 11). They may be
/// stale: the append of a decision on a stale state fails, and no command is refused on a cached
/// state alone (rule 6).
pub struct Cache<A: Aggregate>(Mutex<Remembered<A>>);

struct Remembered<A: Aggregate> {
    /// The states, each with its size in bytes.
    streams: LruCache<StreamId, (Loaded<A>, usize)>,
    bytes: usize,
}

impl<A: Aggregate> Cache<A> {
    /// Returns a cache for up to this many streams, and up to 8 MB of their states.
    pub fn new(streams: NonZeroUsize) -> Self {
        Self(Mutex::new(Remembered { streams: LruCache::new(streams), bytes: 0 }))
    }

    pub(crate) fn get(&self, stream: &StreamId) -> Option<Loaded<A>> {
        self.lock().streams.get(stream).map(|(loaded, _)| loaded.clone())
    }

    pub(crate) fn put(&self, stream: &StreamId, loaded: &Loaded<A>) {
        let mut counted = Counted(0);
        let encoded = serde_json::to_writer(&mut counted, &loaded.state);
        let bytes = if encoded.is_ok() { counted.0 } else { MAX_BYTES };
        let mut remembered = self.lock();
        if bytes >= MAX_BYTES {
            // A state of this size would push all others out of the cache, and then itself.
            if let Some((_, bytes)) = remembered.streams.pop(stream) {
                remembered.bytes = remembered.bytes.saturating_sub(bytes);
            }
            return;
        }
        // The entry that the new one replaces: that of this stream, or, if the cache is full, that
        // of the stream that was unused for longest.
        let replaced = remembered.streams.push(stream.clone(), (loaded.clone(), bytes));
        let replaced = replaced.map_or(0, |(_, (_, bytes))| bytes);
        remembered.bytes = (remembered.bytes + bytes).saturating_sub(replaced);
        while remembered.bytes > MAX_BYTES
            && let Some((_, (_, bytes))) = remembered.streams.pop_lru()
        {
            remembered.bytes = remembered.bytes.saturating_sub(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Remembered<A>> {
        // A panic elsewhere leaves only whole entries in the cache, never half of one: the cache
        // stays usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Aggregate> std::fmt::Debug for Cache<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let remembered = self.lock();
        let mut debug = f.debug_struct("Cache");
        debug.field("streams", &remembered.streams.len()).field("bytes", &remembered.bytes);
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tank::{Installed, State, Tank};

    fn tank(site: usize) -> Loaded<Tank> {
        let site = "x".repeat(site);
        let installed = Installed { site, liquid: "water".into(), installed_by: None, level: 0 };
        Loaded { version: 1, state: State::Installed(installed), embedded: 1 }
    }

    fn stream(id: usize) -> StreamId {
        Tank::stream(&id.to_string()).unwrap_or_else(|error| unreachable!("{error}"))
    }

    #[test]
    fn rule_11_large_states_are_evicted_like_many_small_ones() {
        let thousand = NonZeroUsize::MIN.saturating_add(999);
        for (size, streams, expected) in [(0, 1_500, 1_000), (100_000, 150, 83), (MAX_BYTES, 3, 0)]
        {
            let cache = Cache::<Tank>::new(thousand);
            // The test puts each stream twice, because a replaced entry must not count twice.
            for _ in 0..2 {
                (0..streams).for_each(|id| cache.put(&stream(id), &tank(size)));
            }
            let remembered = (0..streams).filter(|id| cache.get(&stream(*id)).is_some()).count();
            assert_eq!(remembered, expected, "states of {size} bytes");
            assert!(cache.lock().bytes <= MAX_BYTES);
        }
        let cache = Cache::<Tank>::new(thousand);
        for _ in 0..20 {
            cache.put(&stream(1), &tank(1_000_000));
        }
        assert!(cache.get(&stream(1)).is_some(), "one stream is one entry");
        cache.put(&stream(2), &tank(MAX_BYTES));
        assert!(
            cache.get(&stream(1)).is_some() && cache.get(&stream(2)).is_none(),
            "a state larger than the cache evicts no other"
        );
    }
}
