use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use ledgerline::StoreError;
use ledgerline_dynamodb::Bodies;

/// Body objects in memory.
#[derive(Debug, Default)]
pub struct MemoryBodies(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    objects: BTreeMap<String, Vec<u8>>,
    calls: Vec<&'static str>,
    failures: VecDeque<BodyFailure>,
}

/// The failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFailure {
    /// The call has no effect.
    Lost,
    /// The call has its effect, and its answer is lost.
    AnswerLost,
    /// The caller is throttled.
    Throttled,
}

impl MemoryBodies {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next calls fail, one after the other.
    pub fn fail(&self, failures: &[BodyFailure]) {
        self.content().failures.extend(failures);
    }

    /// Removes and returns the recorded calls, `put` or `get`, the oldest first.
    pub fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.content().calls)
    }

    /// Changes the objects, by their keys.
    pub fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) {
        change(&mut self.content().objects);
    }

    fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T,
    ) -> Result<T, StoreError> {
        let mut content = self.content();
        content.calls.push(name);
        let unavailable = || StoreError::Unavailable("the bucket does not answer".into());
        match content.failures.pop_front() {
            None => Ok(call(&mut content.objects)),
            Some(BodyFailure::Lost) => Err(unavailable()),
            Some(BodyFailure::Throttled) => Err(StoreError::Throttled("slow down".into())),
            Some(BodyFailure::AnswerLost) => {
                call(&mut content.objects);
                Err(unavailable())
            }
        }
    }
}

impl Bodies for MemoryBodies {
    fn put_new<'a>(
        &'a self,
        key: &'a str,
        object: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let put = self.call("put", |objects| {
            let is_new = !objects.contains_key(key);
            objects.entry(key.to_owned()).or_insert(object);
            is_new
        });
        Box::pin(std::future::ready(put))
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(std::future::ready(self.call("get", |objects| objects.get(key).cloned())))
    }
}
