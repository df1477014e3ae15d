//! The rebuild of a state view.

use futures::{StreamExt, TryStreamExt, stream};
use ledgerline::{
    Aggregate, Commit, Consistency, Loaded, StreamId,
    changes::Change,
    history, load,
    view_store::{RowStore, StateRowStore, ViewError},
};
use ledgerline_dynamodb::{DynamoDbStore, ViewTable};
use serde::Serialize;
use tokio::time::Instant;

use super::StateProjector;
use crate::projection::view_rebuild::{
    Progress, Rebuild, RebuildError, StreamFold, StreamRange, concurrent_streams, find_hole,
};

impl<A: Aggregate, Row: Serialize, S: StateRowStore> Rebuild for StateProjector<A, Row, S> {
    fn categories(&self) -> Vec<&'static str> {
        vec![A::CATEGORY]
    }

    fn generations(&self) -> &ViewTable {
        &self.generations
    }

    fn rows(&self, generation: u32) -> impl RowStore {
        self.rows.at_generation(generation)
    }

    async fn rebuild_page(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        streams: Vec<Vec<Commit>>,
        until: Instant,
    ) -> Result<Progress, ViewError> {
        let rows = &self.rows.at_generation(generation);
        let rebuild = async |commits: Vec<Commit>| {
            let Some(stream) = commits.first().map(|first| first.stream.clone()) else {
                return Ok(None);
            };
            if Instant::now() >= until {
                return Ok(Some((stream, Err(RebuildError::TimeIsOver { writes: 0.0 }))));
            }
            let loaded = if find_hole(&commits).is_some() {
                Ok(None)
            } else {
                Loaded::<A>::from_commits(&commits)
            };
            let result = match loaded {
                Ok(Some(Loaded { version, state, embedded: _ })) => {
                    let row = (self.view.row)(stream.id(), version, state);
                    let shown = self.write_row(rows, &stream, version, row.as_ref()).await;
                    shown.map(|(_, units)| units).map_err(RebuildError::Table)
                }
                // The commits are not enough for the state, or some are missing.
                Ok(None) => self.rebuild_stream(generation, log, &stream, until).await,
                Err(error) => Err(RebuildError::Load(error)),
            };
            match result {
                // The whole page is retried.
                Err(RebuildError::Table(error)) if error.is_outage() => Err(error),
                result => Ok(Some((stream, result))),
            }
        };
        let result = stream::iter(streams).map(rebuild).buffer_unordered(concurrent_streams(log));
        result
            .try_fold(Progress::default(), async |mut all, one| {
                if let Some((stream, result)) = one {
                    all.add(stream, result);
                }
                Ok(all)
            })
            .await
    }

    async fn rebuild_stream(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        stream: &StreamId,
        _: Instant,
    ) -> Result<f64, RebuildError> {
        let loaded = load::<A>(log, stream, None, Consistency::Strong).await?;
        if loaded.version == 0 {
            return Ok(0.0);
        }
        let row = (self.view.row)(stream.id(), loaded.version, loaded.state);
        Ok(self
            .write_row(&self.rows.at_generation(generation), stream, loaded.version, row.as_ref())
            .await?
            .1)
    }

    async fn fold_range(
        &self,
        generation: u32,
        log: &DynamoDbStore,
        range: &StreamRange,
        _: Instant,
    ) -> Result<StreamFold, RebuildError> {
        let StreamRange { stream, after: _, up_to } = range;
        let history =
            history::<A>(log, stream, None, u64::MAX, *up_to, Consistency::Strong).await?;
        let Loaded { version, state, embedded: _ } = history.fold()?;
        if version < *up_to {
            return Err(RebuildError::Missing(version + 1));
        }
        let row = (self.view.row)(stream.id(), version, state);
        let rows = self.rows.at_generation(generation);
        let change = match row {
            Some(row) => Change::Put(rows.stored_fields(&row, version)?),
            None => Change::Delete,
        };
        let key = (stream.id().to_owned(), String::new());
        Ok(StreamFold { stream: stream.clone(), version, rows: vec![(key, change)] })
    }
}
