use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    AppendError, IdempotencyRecord, MemoryStore, Page, RecordedEvent, RecordedState,
    contract::commit, testing::tank::Tank,
};

fn scrap(version: u64, state_schema: Option<u32>) -> Commit {
    let stream = StreamId::new("tank", "1").unwrap();
    Commit {
        events: vec![RecordedEvent {
            event_type: "TankScrapped".into(),
            schema: 1,
            data: r#"{"on":"2026-11-21"}"#.into(),
        }],
        state: state_schema.map(|schema| RecordedState { schema, data: "{}".into() }),
        ..commit(&stream, version)
    }
}

#[test]
fn rule_2_a_hole_is_reported() {
    let mut loaded = Loaded::<Tank> { version: 4, ..Loaded::initial() };
    let hole = loaded.apply(&scrap(7, None));
    assert!(
        matches!(hole, Err(LoadError::Store(StoreError::Corrupt { version: 5, .. }))),
        "{hole:?}"
    );
    assert_eq!(loaded.version, 4);
}

#[test]
fn commits_suffice_if_the_stream_begins_with_them_or_one_embeds_a_state() {
    let state = encode_state::<Tank>(&Tank::initial()).unwrap();
    let with_state = |version| Commit { state: Some(state.clone()), ..scrap(version, None) };
    for (commits, expected) in [
        (vec![scrap(1, None), scrap(2, None)], Some(2)),
        (vec![scrap(3, None), with_state(4), scrap(5, None)], Some(5)),
        (vec![scrap(3, None), scrap(4, Some(Tank::STATE_SCHEMA + 1))], None),
        (vec![], None),
    ] {
        let loaded = Loaded::<Tank>::from_commits(&commits).unwrap();
        assert_eq!(loaded.map(|loaded| loaded.version), expected, "{commits:?}");
    }
    assert!(
        Loaded::<Tank>::from_commits(&[scrap(1, None), scrap(3, None)]).is_err(),
        "there is a hole"
    );
}

#[test]
fn rule_5_a_state_counts_as_embedded_only_in_the_readers_schema() {
    let mut loaded = Loaded::<Tank>::initial();
    for (version, schema, embedded) in
        [(1, None, 0), (2, Some(Tank::STATE_SCHEMA), 2), (3, Some(Tank::STATE_SCHEMA + 1), 2)]
    {
        assert!(loaded.apply(&scrap(version, schema)).is_ok());
        assert_eq!(loaded.embedded, embedded, "version {version}");
    }
}

/// A store that removes embedded states, like a change of the schema, and fails after this many
/// pages.
struct Long {
    inner: MemoryStore,
    pages: AtomicUsize,
    /// The most commits of one page.
    most: AtomicUsize,
    /// Whether a page has one commit, and its state.
    are_large: bool,
}

impl Long {
    fn page(&self, page: Page) -> Result<Page, StoreError> {
        let left = self.pages.load(Ordering::Relaxed).checked_sub(1);
        self.pages.store(
            left.ok_or_else(|| StoreError::Throttled("no page is left".into()))?,
            Ordering::Relaxed,
        );
        self.most.fetch_max(page.commits.len(), Ordering::Relaxed);
        if self.are_large {
            let complete = page.complete && page.commits.len() < 2;
            let commits = page.commits.into_iter().take(1).collect();
            return Ok(Page { commits, complete });
        }
        let commits =
            page.commits.into_iter().map(|commit| Commit { state: None, ..commit }).collect();
        Ok(Page { commits, ..page })
    }
}

impl EventLog for Long {
    async fn read(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> Result<Page, StoreError> {
        self.page(self.inner.read(stream, range, consistency).await?)
    }

    async fn read_forwards(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> Result<Page, StoreError> {
        self.page(self.inner.read_forwards(stream, after, up_to).await?)
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        self.inner.get(stream, version).await
    }

    fn stored_bytes(&self, commit: &Commit) -> usize {
        self.inner.stored_bytes(commit)
    }

    async fn append(
        &self,
        commit: &Commit,
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        self.inner.append(commit, request).await
    }

    async fn append_all(
        &self,
        commits: &[Commit],
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        self.inner.append_all(commits, request).await
    }
}

impl SnapshotStore for Long {
    async fn load_snapshot(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> Result<Option<(u64, RecordedState)>, StoreError> {
        self.inner.load_snapshot(stream, schema).await
    }

    async fn save_snapshot(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> Result<(), StoreError> {
        self.inner.save_snapshot(stream, version, state).await
    }
}

/// Returns a store with a stream of this many commits, without readable states.
async fn long(commits: u64) -> (Long, StreamId) {
    let stream = StreamId::new("tank", "1").unwrap();
    let inner = MemoryStore::default();
    for version in 1..=commits {
        let data = match version {
            1 => r#"{"site":"North","liquid":"water","installedBy":null,"on":"2026-11-21"}"#
                .to_owned(),
            _ => format!(r#"{{"amount":1,"level":{version},"on":"2026-11-21"}}"#),
        };
        let (event_type, schema) =
            if version == 1 { ("TankInstalled", 2) } else { ("TankFilled", 1) };
        let event = RecordedEvent { event_type: event_type.into(), schema, data };
        let commit = Commit { events: vec![event], ..commit(&stream, version) };
        inner.append(&commit, None).await.unwrap();
    }
    let (pages, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    (Long { inner, pages, most, are_large: false }, stream)
}

/// Each attempt ends after fifty pages of a hundred commits, like an invocation that times out.
#[tokio::test]
async fn an_unfinished_fold_resumes_where_it_stopped() {
    let (store, stream) = long(12_345).await;
    let (mut tries, mut pages) = (0, 0);
    let loaded = loop {
        tries += 1;
        assert!(tries < 10, "it starts over each time");
        store.pages.store(50, Ordering::Relaxed);
        let loaded = load::<Tank>(&store, &stream, None, Consistency::Eventual).await;
        pages += 50 - store.pages.load(Ordering::Relaxed);
        match loaded {
            Ok(loaded) => break loaded,
            Err(error) => assert!(matches!(error, LoadError::Store(StoreError::Throttled(_)))),
        }
    };
    assert_eq!((loaded.version, loaded.state.level()), (12_345, 12_345));
    assert!(pages < 2 * 124, "{pages} pages of 124 that there are, in {tries} tries");
    assert!(store.most.load(Ordering::Relaxed) <= 100);

    // The next load reads only the newest commits, the snapshot and the commits after the
    // snapshot.
    store.pages.store(12, Ordering::Relaxed);
    let again = load::<Tank>(&store, &stream, None, Consistency::Eventual).await.unwrap();
    assert_eq!(again.state.level(), 12_345);
}

/// Otherwise each load of such a stream would begin at its first commit.
#[tokio::test]
async fn large_commits_are_read_up_to_the_state_that_the_policy_embeds() {
    let (store, stream) = long(20).await;
    let store = Long { are_large: true, ..store };
    let state = load::<Tank>(&store.inner, &stream, None, Consistency::Strong).await.unwrap().state;
    let state = Some(encode_state::<Tank>(&state).unwrap());
    store.inner.append(&Commit { state, ..scrap(21, None) }, None).await.unwrap();
    for version in 22..=28 {
        store.inner.append(&scrap(version, None), None).await.unwrap();
    }
    store.pages.store(8, Ordering::Relaxed);
    let loaded = load::<Tank>(&store, &stream, None, Consistency::Eventual).await.unwrap();
    assert_eq!((loaded.version, loaded.embedded), (28, 21));
}

/// The state of an older commit is the state after that commit, even with a snapshot of a newer
/// commit.
#[tokio::test]
async fn a_snapshot_of_a_newer_commit_is_not_used_for_an_older_one() {
    let (store, stream) = long(3_000).await;
    store.pages.store(1_000, Ordering::Relaxed);
    assert!(load::<Tank>(&store, &stream, None, Consistency::Strong).await.is_ok());
    for (asked, at_most) in [(1_500, 1_499), (3_000, 2_999), (2, 1)] {
        let history = history::<Tank>(&store, &stream, None, at_most, asked, Consistency::Strong)
            .await
            .unwrap();
        assert!(history.base.version <= at_most, "{asked}");
        let level = history.fold().unwrap().state.level();
        assert_eq!(level, i64::try_from(asked).unwrap());
    }
}

/// After a restore of the log from a backup, a snapshot may have a version that the log does
/// not have. A load from that snapshot would leave a hole.
#[tokio::test]
async fn rule_2_a_snapshot_ahead_of_the_log_is_not_used() {
    let (store, stream) = long(100).await;
    let state = encode_state::<Tank>(&Tank::initial()).unwrap();
    store.save_snapshot(&stream, 101, &state).await.unwrap();
    store.pages.store(100, Ordering::Relaxed);
    let loaded = load::<Tank>(&store, &stream, None, Consistency::Eventual).await.unwrap();
    assert_eq!((loaded.version, loaded.state.level()), (100, 100));
}

/// A load ignores a snapshot of another schema and an unreadable snapshot.
#[tokio::test]
async fn rule_5_a_snapshot_is_a_cache() {
    let (store, stream) = long(100).await;
    let kept = |schema, data: &str| RecordedState { schema, data: data.into() };
    for (version, state) in
        [(99, kept(Tank::STATE_SCHEMA + 1, "{}")), (99, kept(Tank::STATE_SCHEMA, "not JSON"))]
    {
        store.save_snapshot(&stream, version, &state).await.unwrap();
        store.pages.store(100, Ordering::Relaxed);
        let loaded = load::<Tank>(&store, &stream, None, Consistency::Strong).await.unwrap();
        assert_eq!(loaded.state.level(), 100);
    }
}
