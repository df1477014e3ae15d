//! Acts on the delivery of a commit; repairs a gap before the commit from the log (rule 7).

use ledgerline::{Causes, Commit, EventLog, StreamId, position::Delivery};
use tokio::time::{Instant, timeout_at};

use super::{
    apply_error::ApplyError,
    queue_runner::{Consumer, QueueRunner},
};
use crate::metrics;

/// The number of commits by which a delivery catches up a generation that is being built.
const REPAIR_WINDOW: u64 = 50;

impl<S: EventLog, C: Consumer> QueueRunner<S, C> {
    /// Applies the commit in a generation that is not read. Such a generation never holds up the
    /// active one: if it cannot get the commit, it is marked as behind. An outage fails for both.
    pub(super) async fn apply_to_standby(
        &self,
        other: &C,
        commit: &Commit,
        repair_until: Instant,
    ) -> Result<(), ApplyError> {
        let Err(error) = self.catch_up_standby(other, commit, repair_until).await else {
            return Ok(());
        };
        let table = other.view_table().filter(|_| !error.is_outage());
        let Some(table) = table else { return Err(error) };
        if !table.mark_behind(Some(&commit.stream)).await? {
            return Err(error);
        }
        let (Commit { stream, version, .. }, error) = (commit, Causes(&error));
        tracing::warn!(%stream, version, %error, "a standby generation is behind");
        Ok(())
    }

    /// Applies the commit in a generation that is not read, and repairs a gap before it. In a
    /// generation that is being built, each commit repairs one window, and the rebuild the rest.
    async fn catch_up_standby(
        &self,
        other: &C,
        commit: &Commit,
        repair_until: Instant,
    ) -> Result<(), ApplyError> {
        let (Delivery::Gap, position) = other.apply(commit).await? else { return Ok(()) };
        let Commit { stream, version, .. } = commit;
        let is_building = match other.view_table() {
            Some(table) => table.is_building().await?,
            None => false,
        };
        let up_to = if is_building {
            position.saturating_add(REPAIR_WINDOW).min(*version)
        } else {
            *version
        };
        let repair = self.repair(other, stream, position, up_to);
        match timeout_at(repair_until, repair).await {
            Ok(repaired) if repaired.is_err() || up_to == *version => repaired,
            Ok(_) | Err(_) => Err(ApplyError::Behind { stream: stream.clone(), version: *version }),
        }
    }

    /// Acts on the delivery of a commit: measures, repairs a gap, or detects a log that went
    /// backwards.
    pub(super) async fn act_on(
        &self,
        consumer: &C,
        commit: &Commit,
        delivery: Delivery,
        position: u64,
    ) -> Result<Delivery, ApplyError> {
        let stream = &commit.stream;
        let version = commit.version;
        match delivery {
            Delivery::Next => {
                metrics::position_lag(0);
                metrics::projection_lag(commit.at);
            }
            Delivery::Duplicate => {
                // A duplicate mostly has the version of the position itself. A duplicate of an
                // earlier version is redelivered, or the log went backwards. In the second case,
                // the log does not have the position's version.
                if position > version && self.store.get(stream, position).await?.is_none() {
                    return Err(ApplyError::WentBack { stream: stream.clone(), version, position });
                }
            }
            Delivery::Gap => {
                metrics::position_lag(version - position - 1);
                self.repair(consumer, stream, position, version).await?;
                metrics::gap_repair();
                let correlation_id = commit.meta.correlation_id.as_deref();
                tracing::warn!(%stream, version, correlation_id, position, outcome = "gap repaired", "projection");
            }
        }
        Ok(delivery)
    }

    /// Applies every commit after the position up to the version, from the log (rule 7). It reads
    /// page by page, because a gap may be a whole stream, for example of a new projector. Applied
    /// commits stay applied if the time runs out.
    async fn repair(
        &self,
        consumer: &C,
        stream: &StreamId,
        mut position: u64,
        version: u64,
    ) -> Result<(), ApplyError> {
        let first = position;
        while position < version {
            let page = self.store.read_forwards(stream, position, version).await?;
            let Some(newest) = page.commits.last().map(|commit| commit.version) else {
                return Err(ApplyError::Missing { stream: stream.clone(), version: position + 1 });
            };
            for commit in &page.commits {
                // Another instance may repair the same gap, so commits that it applied are skipped.
                // A gap inside the log cannot be repaired.
                match consumer.apply(commit).await? {
                    // Only the commit that waited longest is measured. A metric has room for a
                    // hundred values at once, and a gap may be a whole stream.
                    (Delivery::Next, applied) if applied == first + 1 => {
                        metrics::projection_lag(commit.at)
                    }
                    (Delivery::Next | Delivery::Duplicate, _) => {}
                    (Delivery::Gap, position) => {
                        return Err(ApplyError::Missing {
                            stream: stream.clone(),
                            version: position + 1,
                        });
                    }
                }
            }
            position = newest;
        }
        Ok(())
    }
}
