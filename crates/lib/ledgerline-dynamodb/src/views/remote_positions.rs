//! Positions of a view whose rows are in another store: its function reads them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{channel::oneshot, future::BoxFuture};
use ledgerline::{StreamId, view_store::ViewError};

/// Reads the positions in streams, in their order, at a generation of the view.
pub type ReadPositions =
    Arc<dyn Fn(u32, Vec<StreamId>) -> BoxFuture<'static, Result<Vec<u64>, String>> + Send + Sync>;

/// Reads positions. One call reads all positions that are requested at the same time.
#[derive(Clone)]
pub(super) struct RemotePositions {
    read: ReadPositions,
    requests: Arc<Mutex<BTreeMap<u32, Vec<PositionRequest>>>>,
}

/// A request for the position in a stream, and the way back to the caller.
struct PositionRequest {
    stream: StreamId,
    answer: oneshot::Sender<Result<u64, String>>,
}

impl fmt::Debug for RemotePositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePositions").finish_non_exhaustive()
    }
}

impl RemotePositions {
    pub(super) fn new(read: ReadPositions) -> Self {
        Self { read, requests: Arc::default() }
    }

    pub(super) async fn position(
        &self,
        generation: u32,
        stream: &StreamId,
    ) -> Result<u64, ViewError> {
        let (answer, position) = oneshot::channel();
        let request = PositionRequest { stream: stream.clone(), answer };
        let is_first = {
            let mut all = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            let all = all.entry(generation).or_default();
            all.push(request);
            all.len() == 1
        };
        if is_first {
            let positions = self.clone();
            // The read has its own task, so other requests get their answers even if this future is
            // dropped.
            tokio::spawn(async move { positions.read_requests(generation).await });
        }
        let position = position
            .await
            .unwrap_or_else(|_| Err("the read of positions was cancelled".to_owned()));
        position.map_err(ViewError::Row)
    }

    async fn read_requests(&self, generation: u32) {
        // The task runs after those that ask at the same time.
        tokio::task::yield_now().await;
        let requests = {
            let mut all = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            all.remove(&generation).unwrap_or_default()
        };
        let streams = requests.iter().map(|request| request.stream.clone()).collect();
        let read = (self.read)(generation, streams).await;
        for (place, PositionRequest { answer, .. }) in requests.into_iter().enumerate() {
            let position = read.as_ref().map_err(Clone::clone).and_then(|positions| {
                positions
                    .get(place)
                    .copied()
                    .ok_or_else(|| "the function returned no position of the stream".to_owned())
            });
            // Its reader may be gone.
            _ = answer.send(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn positions_that_are_asked_for_at_once_are_read_in_one_call() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let read: ReadPositions = Arc::new(move |generation, streams: Vec<StreamId>| {
            seen.lock().unwrap().push((generation, streams.len()));
            let numbers = streams.iter().map(|stream| stream.id().parse::<u64>());
            let positions = numbers.collect::<Result<_, _>>().map_err(|_| "no number".to_owned());
            async move { positions }.boxed()
        });
        let positions = RemotePositions::new(read);
        let stream = |id: u64| StreamId::new("tank", &id.to_string()).unwrap();
        let streams: Vec<_> = (1..=20).map(stream).collect();
        let all = streams.iter().map(|stream| positions.position(1, stream));
        let found: Vec<_> = futures::future::try_join_all(all).await.unwrap();
        assert_eq!(found, (1..=20).collect::<Vec<_>>());
        assert_eq!(*calls.lock().unwrap(), [(1, 20)]);
        let other = StreamId::new("tank", "x").unwrap();
        let error = positions.position(2, &other).await.unwrap_err().to_string();
        assert!(error.contains("no number"), "{error}");
    }
}
