//! The rows of a view, as they are stored and as the view's function folds them from the log.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use anyhow::{Error, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use ledgerline::{
    Changes, LogTable, StreamId,
    changes::{Change, Fields, Key},
    manifest::SubscriberKind,
    view_store::StoredRow,
};
use ledgerline_dynamodb::ViewTable;
use ledgerline_lambda::rebuild::{RebuildRequest, StreamRange};

use crate::{deployment::Deployment, subscribers::Subscriber};

/// The answer to an operator who may not invoke the function of a view.
pub(crate) const UNKNOWN: &str = "unknown: needs OperatorPolicy";

/// The number of positions that are read at once.
const AT_ONCE: usize = 32;
/// The most streams of a request.
const STREAMS: usize = 50;

/// The fold of a stream up to a version.
pub(crate) struct Fold {
    version: u64,
    pub(crate) changes: Changes,
}

pub(crate) type Folds = BTreeMap<StreamId, Fold>;
pub(crate) type Versions = BTreeMap<StreamId, u64>;

/// A view that is written from commits alone, at its active generation.
pub(crate) struct ViewFolds<'a> {
    deployment: &'a Deployment,
    pub(crate) subscriber: &'a Subscriber,
    table: &'a ViewTable,
    pub(crate) keys: LogTable,
    /// The read units that the function has used.
    pub(crate) reads: Cell<f64>,
}

impl<'a> ViewFolds<'a> {
    /// Returns the view of this subscriber, or the reason why its rows cannot be folded.
    pub(crate) fn new(
        deployment: &'a Deployment,
        subscriber: &'a Subscriber,
    ) -> Result<Self, &'static str> {
        match subscriber.compared.kind {
            SubscriberKind::Subscription => {
                return Err("a subscription to `$all` writes the view, and reads its own rows");
            }
            SubscriberKind::StateProjector | SubscriberKind::LogProjector
                if subscriber.is_rebuildable => {}
            SubscriberKind::StateProjector
            | SubscriberKind::LogProjector
            | SubscriberKind::ProcessManager => {
                return Err("the function writes no view that can be rebuilt from commits alone");
            }
        }
        let table = &subscriber.compared.table;
        if table.is_in_other_store() {
            return Err("the rows are not in DynamoDB");
        }
        // The names live as long as the program, which compares one view or shows one stream.
        let name = |name: &str| &*name.to_owned().leak();
        let keys = LogTable {
            variable: "",
            partition: name(&table.keys().partition),
            sort: name(table.keys().sort.as_deref().unwrap_or_default()),
        };
        Ok(Self { deployment, subscriber, table, keys, reads: Cell::new(0.0) })
    }

    /// Whether the view has one row for each stream.
    pub(crate) fn is_state_view(&self) -> bool {
        self.subscriber.compared.kind == SubscriberKind::StateProjector
    }

    /// Whether no other stream writes a row that a stream writes.
    pub(crate) fn has_own_rows(&self) -> bool {
        self.is_state_view() || self.subscriber.inserts
    }

    /// Returns an empty fold for each stream.
    pub(crate) fn begin(&self, streams: impl IntoIterator<Item = StreamId>) -> Folds {
        streams.into_iter().map(|stream| (stream, self.empty_fold())).collect()
    }

    fn empty_fold(&self) -> Fold {
        Fold { version: 0, changes: Changes::new(self.keys) }
    }

    /// Reads the versions up to which the view shows these streams, with strong consistency; 0 for
    /// a stream without a row or a position.
    pub(crate) async fn versions(
        &self,
        streams: impl Iterator<Item = &StreamId>,
    ) -> Result<Versions> {
        if self.is_state_view() {
            let streams: Vec<_> = streams.cloned().collect();
            let key = |stream: &StreamId| (stream.id().to_owned(), String::new());
            let rows = self.read_rows(&streams.iter().map(key).collect()).await?;
            let version = |stream| rows.get(&key(stream)).map_or(0, |row| row.version);
            return Ok(streams.iter().map(|stream| (stream.clone(), version(stream))).collect());
        }
        let read = async |stream: StreamId| {
            let position = self.table.consistent_position(&stream).await?;
            Ok::<_, Error>((stream, position))
        };
        stream::iter(streams.cloned()).map(read).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Reads the rows with these keys that exist, with strong consistency.
    pub(crate) async fn read_rows(&self, keys: &BTreeSet<Key>) -> Result<BTreeMap<Key, StoredRow>> {
        Ok(self.table.stored_rows(keys).await?)
    }

    /// Whether reads use another generation than this one.
    pub(crate) async fn is_switched(&self) -> Result<bool> {
        let generations = self.table.generations().await?;
        Ok(generations.active_generation(Timestamp::now()) != self.table.generation())
    }

    /// Makes the function fold these streams up to these versions. Returns the streams that it
    /// cannot fold, with the reasons.
    pub(crate) async fn advance(
        &self,
        folds: &mut Folds,
        versions: &Versions,
    ) -> Result<BTreeMap<StreamId, String>> {
        let mut failed = BTreeMap::new();
        // A late row of states may show an older version than the head of the stream.
        for (stream, fold) in folds.iter_mut() {
            if versions.get(stream).is_some_and(|version| *version < fold.version) {
                *fold = self.empty_fold();
            }
        }
        loop {
            let is_left = |(stream, fold): &(&StreamId, &Fold)| {
                !failed.contains_key(*stream)
                    && versions.get(*stream).is_some_and(|version| *version > fold.version)
            };
            let range = |(stream, fold): (&StreamId, &Fold)| StreamRange {
                stream: stream.clone(),
                after: fold.version,
                up_to: versions[stream],
            };
            let ranges = folds.iter().filter(is_left).map(range).take(STREAMS).collect();
            let request = RebuildRequest {
                generation: self.table.generation(),
                folds: ranges,
                ..RebuildRequest::default()
            };
            if request.folds.is_empty() {
                return Ok(failed);
            }
            let id = &self.subscriber.compared.id;
            let response = self.deployment.invoke_view(id, &request).await?;
            self.reads.set(self.reads.get() + response.reads);
            if response.folds.is_empty() && response.failed.is_empty() {
                bail!("`{id}` folds no stream: deploy a newer version first");
            }
            failed.extend(response.failed.into_iter().map(|failed| (failed.stream, failed.reason)));
            for folded in response.folds {
                let Some(fold) = folds.get_mut(&folded.stream) else { continue };
                fold.version = folded.version;
                fold.changes.extend(Changes::from_rows(self.keys, folded.rows));
            }
        }
    }
}

/// Returns the row after these changes, each the fold of another stream; `None` if their result
/// depends on the order of the streams.
pub(crate) fn fold_row(table: LogTable, key: &Key, changes: &[&Change]) -> Option<Option<Fields>> {
    let mut all = Changes::new(table);
    let (mut set_fields, mut added_fields) = (BTreeSet::new(), BTreeSet::new());
    for change in changes {
        match change {
            Change::Update { set, add } => {
                if !set.keys().all(|field| set_fields.insert(field)) {
                    return None;
                }
                added_fields.extend(add.keys());
            }
            Change::Insert(_) | Change::Put(_) | Change::Delete if changes.len() > 1 => {
                return None;
            }
            Change::Insert(_) | Change::Put(_) | Change::Delete => {}
        }
        all.extend(Changes::from_rows(table, [(key.clone(), (*change).clone())]));
    }
    if changes.len() > 1 && !set_fields.is_disjoint(&added_fields) {
        return None;
    }
    let mut rows = BTreeMap::new();
    all.fold(&mut rows);
    Some(rows.remove(key))
}
