use std::{
    cell::RefCell,
    collections::VecDeque,
    num::NonZeroUsize,
    ops::RangeBounds,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use proptest::prelude::*;

use super::*;
use crate::{
    Context, FoldedCommit, IdempotencyRecord, MemoryStore, Meta, Page, RecordedState,
    SnapshotStore,
    contract::read_all,
    spec::valid,
    testing::tank::{Amount, Command, EXISTS, TOO_LITTLE, Tank},
};

thread_local! {
    /// The calls of this test's store and the pauses between them, in order.
    static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

fn note(call: &'static str) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

const HOST: Host = Host {
    pause: |_| {
        note("pause");
        Box::pin(std::future::ready(()))
    },
};

/// A store that records its calls and fails on demand.
#[derive(Default)]
struct Spy {
    inner: MemoryStore,
    faults: Mutex<VecDeque<Fault>>,
    /// The version with damage in a field that folds do not read; 0 for none.
    damaged: AtomicU64,
}

/// A fault of the next append.
#[derive(Clone, Copy)]
enum Fault {
    /// The store appends the commit. The SDK gets no reply and retries the call.
    AppliedAndSentAgain,
    /// The store appends the commit. Then the connection fails permanently.
    AppliedAndUnavailable,
    /// The store appends the commit. Then the database throttles the SDK's retries.
    AppliedAndThrottled,
    /// Another request with the same command id takes the version with a draw of 7. Then the
    /// connection fails.
    TakenByItsNamesakeAndUnavailable,
    /// The database reports only the taken version, not the idempotency record that exists too.
    ConflictNamesOnlyTheVersion,
    /// The append never reaches the store.
    Unavailable,
    /// Another writer takes the version first and fills in 1.
    LostRace,
    /// Another transaction holds the item.
    Busy,
    /// The commit fits in an item only without its state.
    OnlyWithoutState,
}

impl Spy {
    fn with_faults(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self { faults: Mutex::new(faults.into_iter().collect()), ..Self::default() }
    }

    fn fail_next(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// Returns the error for these versions, if one of them is damaged.
    fn readable(
        &self,
        stream: &StreamId,
        versions: impl RangeBounds<u64>,
    ) -> Result<(), StoreError> {
        let version = self.damaged.load(Ordering::Relaxed);
        if version == 0 || !versions.contains(&version) {
            return Ok(());
        }
        Err(StoreError::Corrupt {
            stream: stream.to_string(),
            version,
            reason: "`meta` is missing".into(),
        })
    }

    /// Returns the calls and pauses since the last call of this function.
    fn calls(&self) -> Vec<&'static str> {
        CALLS.take()
    }
}

impl EventLog for Spy {
    async fn read(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> Result<Page, StoreError> {
        note(match consistency {
            Consistency::Eventual => "read",
            Consistency::Strong => "strong read",
        });
        self.readable(stream, range.after + 1..=range.up_to)?;
        self.inner.read(stream, range, consistency).await
    }

    async fn read_for_fold(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> Result<Page<FoldedCommit>, StoreError> {
        note(match consistency {
            Consistency::Eventual => "read",
            Consistency::Strong => "strong read",
        });
        self.inner.read_for_fold(stream, range, consistency).await
    }

    async fn read_forwards(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> Result<Page, StoreError> {
        self.inner.read_forwards(stream, after, up_to).await
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        note("get");
        self.readable(stream, version..=version)?;
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
        note("append");
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match fault {
            None => self.inner.append(commit, request).await,
            Some(Fault::AppliedAndSentAgain) => {
                self.inner.append(commit, request).await?;
                self.inner.append(commit, request).await
            }
            Some(Fault::AppliedAndUnavailable) => {
                self.inner.append(commit, request).await?;
                Err(StoreError::Unavailable("connection reset".into()).into())
            }
            Some(Fault::AppliedAndThrottled) => {
                self.inner.append(commit, request).await?;
                Err(StoreError::Throttled("a fault".into()).into())
            }
            Some(Fault::TakenByItsNamesakeAndUnavailable) => {
                let namesake = Commit {
                    command: commit.command.clone(),
                    ..a_draw_of_7(&self.inner, commit).await
                };
                self.inner.append(&namesake, None).await?;
                Err(StoreError::Unavailable("connection reset".into()).into())
            }
            Some(Fault::ConflictNamesOnlyTheVersion) => Err(AppendError::VersionTaken),
            Some(Fault::Unavailable) => {
                Err(StoreError::Unavailable("connection refused".into()).into())
            }
            Some(Fault::LostRace) => {
                fill_as_another_instance(&self.inner, &commit.stream, 1).await;
                self.inner.append(commit, request).await
            }
            Some(Fault::Busy) => Err(AppendError::Busy),
            Some(Fault::OnlyWithoutState) if commit.state.is_some() => {
                Err(AppendError::TooLarge { bytes: 500_000, limit: 400_000 })
            }
            Some(Fault::OnlyWithoutState) => self.inner.append(commit, request).await,
        }
    }

    async fn append_all(
        &self,
        commits: &[Commit],
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        note("append all");
        self.inner.append_all(commits, request).await
    }
}

impl SnapshotStore for Spy {
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

impl IdempotencyStore for Spy {
    async fn record_response(&self, request: &IdempotencyRecord) -> Result<(), AppendError> {
        note("remember");
        self.inner.record_response(request).await
    }

    async fn find_response(&self, key: &str) -> Result<Option<IdempotencyRecord>, StoreError> {
        note("recall");
        self.inner.find_response(key).await
    }
}

fn stream() -> StreamId {
    StreamId::new("tank", "1").unwrap()
}

fn cache() -> Cache<Tank> {
    Cache::new(NonZeroUsize::new(10).unwrap())
}

/// Fills the tank as another instance, past the cache of the instance under test.
async fn fill_as_another_instance(store: &impl EventStore, stream: &StreamId, amount: i64) {
    let command = fill(amount);
    let mut loaded = load::<Tank>(store, stream, None, Consistency::Strong).await.unwrap();
    let context = Context { at: jiff::Timestamp::UNIX_EPOCH, actor: Some("ada".into()) };
    let events = Tank::decide(&loaded.state, &command, &context).unwrap();
    loaded.state = crate::fold::<Tank>(loaded.state, &events);
    let commit = Commit {
        version: loaded.version + 1,
        events: events.iter().map(|event| encode::<Tank>(event).unwrap()).collect(),
        command: format!("other-{}", loaded.version + 1),
        ..crate::contract::commit(stream, 1)
    };
    store.append(&commit, None).await.unwrap();
}

/// Returns the commit of another request, which draws 7, at the version of this commit.
async fn a_draw_of_7(store: &impl EventStore, commit: &Commit) -> Commit {
    let loaded = load::<Tank>(store, &commit.stream, None, Consistency::Strong).await.unwrap();
    let context = Context { at: jiff::Timestamp::UNIX_EPOCH, actor: Some("ada".into()) };
    let events = Tank::decide(&loaded.state, &draw(7), &context).unwrap();
    Commit {
        events: events.iter().map(|event| encode::<Tank>(event).unwrap()).collect(),
        ..crate::contract::commit(&commit.stream, commit.version)
    }
}

/// A client and the function instance that serves it.
struct Client<'a> {
    store: &'a Spy,
    cache: Cache<Tank>,
}

#[derive(Default, Clone, Copy)]
struct Request<'a> {
    id: Option<&'a str>,
    precondition: Option<&'a Precondition>,
    key: Option<(&'a str, &'a str)>,
    /// The time of the command, in Unix seconds.
    at: i64,
}

impl<'a> Client<'a> {
    fn new(store: &'a Spy) -> Self {
        Self { store, cache: cache() }
    }

    async fn send(&self, command: Command) -> Result<Outcome<Tank>, ExecuteError> {
        self.send_with(command, Request::default()).await
    }

    async fn send_with(
        &self,
        command: Command,
        options: Request<'_>,
    ) -> Result<Outcome<Tank>, ExecuteError> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let fresh = format!("command-{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let answer = |answer: Result<(&crate::testing::tank::State, u64), &Refusal>| match answer {
            Ok((state, version)) => format!("{version}: {}", state.level()),
            Err(refusal) => refusal.to_string(),
        };
        let idempotency = options.key.map(|(key, fingerprint)| Idempotency {
            key,
            fingerprint,
            retention: 100,
            answer: &answer,
        });
        let at = jiff::Timestamp::from_second(options.at).unwrap();
        let stream = stream();
        let meta = Meta::default();
        let context = Context { at, actor: Some("ada".into()) };
        let id = options.id.unwrap_or(&fresh);
        let execution = Execution {
            precondition: options.precondition,
            creates: matches!(command, Command::Install { .. }),
            idempotency,
            ..Execution::new(&stream, &command, &context, id, &meta)
        };
        execute(self.store, &self.cache, &HOST, &execution).await
    }
}

fn install() -> Command {
    Command::Install { site: valid("North"), liquid: valid("water") }
}

fn fill(amount: i64) -> Command {
    Command::Fill(Amount { amount: valid(amount), note: None })
}

fn draw(amount: i64) -> Command {
    Command::Draw(Amount { amount: valid(amount), note: None })
}

fn expect_commit(result: Result<Outcome<Tank>, ExecuteError>) -> (u64, i64) {
    match result.unwrap() {
        Outcome::Committed(loaded) => (loaded.version, loaded.state.level()),
        other @ (Outcome::Unchanged(_) | Outcome::Repeated(_)) => panic!("{other:?}"),
    }
}

fn expect_answer(result: Result<Outcome<Tank>, ExecuteError>) -> String {
    match result.unwrap() {
        Outcome::Repeated(answer) => answer,
        other @ (Outcome::Unchanged(_) | Outcome::Committed(_)) => panic!("{other:?}"),
    }
}

async fn log(store: &Spy) -> Vec<Commit> {
    read_all(&store.inner, &stream(), Range { after: 0, up_to: u64::MAX, limit: None }).await
}

/// Returns a client with a warm instance and a tank of this level.
async fn warm(store: &Spy, level: i64) -> Client<'_> {
    let client = Client::new(store);
    client.send(install()).await.unwrap();
    client.send(fill(level)).await.unwrap();
    store.calls();
    client
}

#[tokio::test]
async fn a_command_on_a_warm_instance_is_one_append_and_no_read() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    assert_eq!(expect_commit(client.send(draw(40)).await), (3, 60));
    assert_eq!(store.calls(), ["append"]);
}

#[tokio::test]
async fn a_command_on_a_cold_instance_is_one_read_and_one_append_at_any_length() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    for _ in 0..300 {
        client.send(fill(1)).await.unwrap();
    }
    store.calls();
    assert_eq!(expect_commit(Client::new(&store).send(draw(40)).await), (303, 360));
    assert_eq!(store.calls(), ["read", "append"]);
}

#[tokio::test]
async fn a_creation_reads_nothing() {
    let store = Spy::default();
    assert_eq!(expect_commit(Client::new(&store).send(install()).await), (1, 0));
    assert_eq!(store.calls(), ["append"]);
}

#[tokio::test]
async fn an_existing_id_is_refused_after_a_strongly_consistent_read() {
    let store = Spy::default();
    warm(&store, 1).await;
    let later = Request { at: 1, ..Request::default() };
    let refused = Client::new(&store).send_with(install(), later).await;
    assert!(matches!(refused, Err(ExecuteError::Refused(refusal)) if refusal == EXISTS));
    assert_eq!(store.calls(), ["append", "strong read"]);
    assert_eq!(log(&store).await.len(), 2);
}

#[tokio::test]
async fn a_command_that_lost_a_race_is_decided_again_on_the_winning_commit() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    store.fail_next(Fault::LostRace);
    assert_eq!(expect_commit(client.send(draw(100)).await), (4, 1));
    assert_eq!(store.calls(), ["append", "strong read", "pause", "append"]);
}

/// The first append fails because the cached state is stale, so the retry needs no pause. Only a
/// second failure means that another instance writes at the same time.
#[tokio::test]
async fn an_instance_with_a_stale_cache_catches_up_without_a_pause() {
    let store = Spy::default();
    let stale = warm(&store, 100).await;
    let later = Request { at: 4_000_000_000, ..Request::default() };
    fill_as_another_instance(&store.inner, &stream(), 50).await;
    assert_eq!(expect_commit(stale.send_with(draw(40), later).await), (4, 110));
    assert_eq!(store.calls(), ["append", "strong read", "append"]);

    fill_as_another_instance(&store.inner, &stream(), 50).await;
    store.fail_next(Fault::ConflictNamesOnlyTheVersion);
    store.fail_next(Fault::LostRace);
    assert_eq!(expect_commit(stale.send_with(draw(40), later).await), (7, 121));
    let once = ["append", "strong read"];
    let again = ["append", "strong read", "pause", "append"];
    assert_eq!(store.calls(), [&once[..], &again[..]].concat());

    store.fail_next(Fault::ConflictNamesOnlyTheVersion);
    assert_eq!(expect_commit(stale.send_with(draw(1), later).await), (8, 120));
    assert_eq!(store.calls(), again, "no commit has the version that the conflict names");
}

impl Client<'_> {
    async fn republish(&self) -> Result<Outcome<Tank>, ExecuteError> {
        let context = Context { at: jiff::Timestamp::UNIX_EPOCH, actor: Some("ops".into()) };
        let stream = stream();
        let meta = Meta::default();
        execute(
            self.store,
            &self.cache,
            &HOST,
            &Execution::republish(&stream, &context, "republish", &meta),
        )
        .await
    }
}

#[tokio::test]
async fn republishing_a_state_appends_a_commit_without_events_and_with_the_state() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    // The command recovers from a lost race and from a lost reply, like every command.
    store.fail_next(Fault::LostRace);
    assert_eq!(expect_commit(client.republish().await), (4, 101));
    let republished = store.inner.get(&stream(), 4).await.unwrap().unwrap();
    assert_eq!((republished.events.len(), republished.command.as_str()), (0, "republish"));
    assert!(republished.state.is_some(), "subscribers to states need it");
    store.fail_next(Fault::AppliedAndUnavailable);
    assert_eq!(expect_commit(client.republish().await), (5, 101));
    // The folded state is unchanged.
    let cold = Client::new(&store);
    assert_eq!(expect_commit(cold.send(draw(1)).await), (6, 100));
}

#[tokio::test]
async fn the_state_of_a_stream_without_commits_cannot_be_republished() {
    let store = Spy::default();
    let refused = Client::new(&store).republish().await;
    assert!(
        matches!(refused, Err(ExecuteError::Refused(refusal)) if refusal.code() == "unknown-stream")
    );
    assert!(store.inner.get(&stream(), 1).await.unwrap().is_none());
}

/// The state of the stale instance has a level of 100. The instance must neither draw too much nor
/// refuse on that state.
#[tokio::test]
async fn rule_6_no_command_is_refused_on_a_stale_state() {
    let store = Spy::default();
    let stale = warm(&store, 100).await;
    fill_as_another_instance(&store.inner, &stream(), 50).await;
    assert_eq!(expect_commit(stale.send(draw(150)).await), (4, 0));
    assert_eq!(store.calls(), ["strong read", "append"]);

    let refused = stale.send(draw(1)).await;
    let too_little = TOO_LITTLE.with_detail("the level of 0 does not cover 1");
    assert!(matches!(refused, Err(ExecuteError::Refused(refusal)) if refusal == too_little));
    assert_eq!(store.calls(), ["strong read"]);
}

#[tokio::test]
async fn an_instance_with_a_very_stale_cache_loads_the_newest_embedded_state() {
    let store = Spy::default();
    let stale = warm(&store, 100).await;
    let other = Client::new(&store);
    for _ in 0..50 {
        other.send(fill(1)).await.unwrap();
    }
    store.calls();
    assert_eq!(expect_commit(stale.send(draw(150)).await), (53, 0));
    assert_eq!(expect_commit(stale.send(fill(1)).await), (54, 1));
    let strong_reads = store.calls().iter().filter(|call| **call == "strong read").count();
    assert!(strong_reads <= 2, "{strong_reads} strong reads");
}

#[tokio::test]
async fn rule_11_damage_in_a_field_that_folds_do_not_read_blocks_no_instance() {
    // Given an instance whose cache lacks one commit, which cannot be read as a whole,
    let behind = async |store: &Spy| {
        fill_as_another_instance(&store.inner, &stream(), 1).await;
        store.damaged.store(3, Ordering::Relaxed);
    };
    let key = Request { key: Some(("ada/1", "draw 100")), ..Request::default() };
    // when a command with an idempotency key arrives, then the instance decides it on the events of
    // that commit.
    let store = Spy::default();
    let client = warm(&store, 100).await;
    behind(&store).await;
    assert_eq!(expect_commit(client.send_with(draw(100), key).await), (4, 1));
    // Without a key, the damaged commit may be that of the command (rule 4), so the command fails.
    // Later commands succeed.
    let store = Spy::default();
    let client = warm(&store, 100).await;
    behind(&store).await;
    let failed = client.send(draw(100)).await;
    assert!(
        matches!(failed, Err(ExecuteError::Store(StoreError::Corrupt { version: 3, .. }))),
        "{failed:?}"
    );
    store.calls();
    assert_eq!(expect_commit(client.send(draw(100)).await), (4, 1));
    assert_eq!(store.calls(), ["append"], "its cache has caught up");
}

#[tokio::test]
async fn an_unknown_event_blocks_no_instance_if_its_commit_embeds_a_state() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let filled = log(&store).await[1].clone();
    assert!(filled.state.is_some());
    let mut painted = Commit { version: 3, command: "another".into(), ..filled };
    painted.events[0].event_type = "TankPainted".into();
    store.inner.append(&painted, None).await.unwrap();
    assert_eq!(expect_commit(client.send(draw(40)).await), (4, 60));
}

#[tokio::test]
async fn rule_4_a_lost_reply_is_a_success_and_one_commit() {
    for fault in
        [Fault::AppliedAndSentAgain, Fault::AppliedAndUnavailable, Fault::AppliedAndThrottled]
    {
        let store = Spy::default();
        let client = warm(&store, 100).await;
        store.fail_next(fault);
        assert_eq!(expect_commit(client.send(draw(40)).await), (3, 60));
        assert_eq!(log(&store).await.len(), 3);
        assert_eq!(expect_commit(client.send(draw(60)).await), (4, 0));
    }
}

#[tokio::test]
async fn rule_4_the_same_id_with_another_command_is_a_conflict() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let same = Request { id: Some("same"), ..Request::default() };
    let elsewhere = Client::new(&store);
    elsewhere.send_with(draw(40), same).await.unwrap();
    let conflict = client.send_with(draw(41), same).await;
    assert!(matches!(conflict, Err(ExecuteError::CommandIdReused)));
    assert_eq!(log(&store).await.len(), 3);
}

/// Two requests have one command id. The request that lost the race must not succeed, and the
/// instance must not cache its state.
#[tokio::test]
async fn rule_4_a_commit_of_another_request_with_the_same_id_is_no_lost_reply() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    store.fail_next(Fault::TakenByItsNamesakeAndUnavailable);
    let same = Request { id: Some("same"), ..Request::default() };
    assert!(matches!(client.send_with(draw(40), same).await, Err(ExecuteError::Store(_))));
    assert_eq!(expect_commit(client.send(fill(1)).await), (4, 94));
}

#[tokio::test]
async fn an_append_that_never_reached_the_store_is_an_error() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    store.fail_next(Fault::Unavailable);
    assert!(matches!(
        client.send(draw(40)).await,
        Err(ExecuteError::Store(StoreError::Unavailable(_)))
    ));
    assert_eq!(log(&store).await.len(), 2);
}

#[tokio::test]
async fn an_append_to_a_busy_stream_is_retried() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    store.fail_next(Fault::Busy);
    assert_eq!(expect_commit(client.send(draw(40)).await), (3, 60));
}

#[tokio::test]
async fn rule_11_a_command_gives_up_after_a_bounded_number_of_lost_races() {
    let store = Spy::with_faults([]);
    let client = warm(&store, 100).await;
    for _ in 0..100 {
        store.fail_next(Fault::LostRace);
    }
    assert!(matches!(client.send(draw(40)).await, Err(ExecuteError::Contended)));
    let appends = store.calls().iter().filter(|call| **call == "append").count();
    assert_eq!(appends, MAX_REPAIRS + 1);
}

#[tokio::test]
async fn a_precondition_is_checked_against_the_newest_version() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let at = |versions: &[u64]| Precondition::OneOf(versions.to_vec());

    fn options(precondition: &Precondition) -> Request<'_> {
        Request { precondition: Some(precondition), ..Request::default() }
    }
    assert_eq!(expect_commit(client.send_with(draw(1), options(&at(&[2]))).await), (3, 99));
    let stale = client.send_with(draw(1), options(&at(&[1, 2]))).await;
    assert!(matches!(stale, Err(ExecuteError::PreconditionFailed { version: 3 })));

    // The client names version 4, which this instance has not cached yet.
    fill_as_another_instance(&store.inner, &stream(), 1).await;
    assert_eq!(expect_commit(client.send_with(draw(100), options(&at(&[4]))).await), (5, 0));

    // Another instance wins the race between the check and the append. The command must not be
    // decided again.
    store.fail_next(Fault::LostRace);
    let raced = client.send_with(fill(1), options(&at(&[5]))).await;
    assert!(matches!(raced, Err(ExecuteError::Overtaken { version: 6 })));
    assert_eq!(
        expect_commit(client.send_with(fill(1), options(&Precondition::Exists)).await),
        (7, 2)
    );
}

/// A version that was stale when the command arrived gives 412. A race that the command lost
/// afterwards gives 409. A client that names both versions gets neither.
#[tokio::test]
async fn an_overtaken_precondition_is_distinguished_from_a_stale_one() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let winner = crate::contract::commit(&stream(), 1).at.as_second();
    let send = async |at: i64, versions: &[u64]| {
        let precondition = Precondition::OneOf(versions.to_vec());
        client
            .send_with(
                draw(1),
                Request { at, precondition: Some(&precondition), ..Request::default() },
            )
            .await
    };
    // The cache is stale: the version that the client names was stale when the command arrived.
    fill_as_another_instance(&store.inner, &stream(), 1).await;
    assert!(matches!(
        send(winner + 1, &[2]).await,
        Err(ExecuteError::PreconditionFailed { version: 3 })
    ));
    // The version that the client names was still current when the command arrived.
    store.fail_next(Fault::LostRace);
    assert!(matches!(send(winner, &[3]).await, Err(ExecuteError::Overtaken { version: 4 })));
    store.fail_next(Fault::LostRace);
    assert_eq!(expect_commit(send(winner, &[4, 5]).await), (6, 102));
}

#[tokio::test]
async fn a_retry_with_its_key_gets_the_first_response_and_appends_nothing() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let key = Request { key: Some(("ada/1", "draw 100")), id: Some("ada/1"), ..Request::default() };
    assert_eq!(expect_commit(client.send_with(draw(100), key).await), (3, 0));
    assert_eq!(store.calls(), ["append"]);

    // The client retries at once, although the level would not allow a second draw. Then it retries
    // after another command, and on a cold instance.
    assert_eq!(expect_answer(client.send_with(draw(100), key).await), "3: 0");
    client.send(fill(500)).await.unwrap();
    assert_eq!(expect_answer(client.send_with(draw(100), key).await), "3: 0");
    assert_eq!(expect_answer(Client::new(&store).send_with(draw(100), key).await), "3: 0");
    assert_eq!(log(&store).await.len(), 4);

    let other = Request { key: Some(("ada/1", "draw 7")), id: Some("ada/1"), ..Request::default() };
    assert!(matches!(client.send_with(draw(7), other).await, Err(ExecuteError::CommandIdReused)));
}

/// The same request may have other events if it is decided on another day. It still gets the first
/// response.
#[tokio::test]
async fn a_retry_whose_append_finds_only_a_taken_version_gets_the_first_response() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let key = Request { key: Some(("ada/1", "f")), id: Some("ada/1"), ..Request::default() };
    assert_eq!(expect_commit(client.send_with(draw(40), key).await), (3, 60));

    let stale = Client::new(&store);
    let earlier = log_up_to(&store, 2).await;
    stale
        .cache
        .put(&stream(), &load(&earlier, &stream(), None, Consistency::Strong).await.unwrap());
    store.fail_next(Fault::ConflictNamesOnlyTheVersion);
    assert_eq!(expect_answer(stale.send_with(draw(41), key).await), "3: 60");
    assert_eq!(log(&store).await.len(), 3);
}

/// Returns a store with the log up to a version.
async fn log_up_to(store: &Spy, version: usize) -> MemoryStore {
    let earlier = MemoryStore::default();
    for commit in log(store).await.iter().take(version) {
        earlier.append(commit, None).await.unwrap();
    }
    earlier
}

#[tokio::test]
async fn a_retry_with_a_precondition_gets_the_first_response() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let at_2 = Precondition::OneOf(vec![2]);
    let key = Request {
        key: Some(("ada/1", "f")),
        id: Some("ada/1"),
        precondition: Some(&at_2),
        ..Request::default()
    };
    assert_eq!(expect_commit(client.send_with(draw(1), key).await), (3, 99));
    assert_eq!(expect_answer(client.send_with(draw(1), key).await), "3: 99");
}

#[tokio::test]
async fn a_refusal_is_stored_too() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let key = Request { key: Some(("ada/1", "f")), id: Some("ada/1"), ..Request::default() };
    assert!(matches!(client.send_with(draw(101), key).await, Err(ExecuteError::Refused(_))));
    client.send(fill(500)).await.unwrap();
    assert_eq!(
        expect_answer(client.send_with(draw(101), key).await),
        "the level of 100 does not cover 101"
    );
}

#[tokio::test]
async fn a_commit_that_is_too_large_with_its_state_is_appended_without_it() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    store.fail_next(Fault::OnlyWithoutState);
    assert_eq!(expect_commit(client.send(draw(40)).await), (3, 60));
    assert_eq!(log(&store).await[2].state, None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Rule 5: a load gives the same state with and without embedded states of any size. One of any
    /// `SNAPSHOT_EVERY` commits in a row embeds a state, so the first page suffices for a load.
    #[test]
    fn rule_5_a_load_gives_the_same_state_without_any_embedded_state(
        site_length in 1_usize..3_000,
        amounts in prop::collection::vec((1..1_000_i64, 0_usize..600), 1..40),
    ) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
            let store = Spy::default();
            let client = Client::new(&store);
            client.send(Command::Install { site: valid("x".repeat(site_length)), liquid: valid("water") }).await.unwrap();
            for (amount, note) in amounts {
                let note = Some(valid("r".repeat(note)));
                client.send(Command::Fill(Amount { amount: valid(amount), note })).await.unwrap();
            }
            let with = load::<Tank>(&store, &stream(), None, Consistency::Strong).await.unwrap();

            let log = log(&store).await;
            let stripped = Spy::default();
            for commit in &log {
                stripped.append(&Commit { state: None, ..commit.clone() }, None).await.unwrap();
            }
            let without = load::<Tank>(&stripped, &stream(), None, Consistency::Strong).await.unwrap();
            prop_assert_eq!((with.version, with.state), (without.version, without.state));
            let every = usize::try_from(Tank::SNAPSHOT_EVERY).unwrap();
            for window in log.windows(every) {
                prop_assert!(window.iter().any(|commit| commit.state.is_some()));
            }
            Ok(())
        })?;
    }
}

/// The append of the retry is refused, and the store names only the taken version as the reason,
/// not the existing idempotency record. The retry must get the first response nevertheless.
#[tokio::test]
async fn a_retry_on_an_instance_with_a_stale_cache_gets_the_first_response() {
    let store = Spy::default();
    let first = Client::new(&store);
    let behind = Client::new(&store);
    first.send(install()).await.unwrap();
    behind.send(fill(100)).await.unwrap();
    let keyed =
        |at| Request { id: Some("k"), key: Some(("k", "draw 7")), at, ..Request::default() };
    let answer = first.send_with(draw(7), keyed(1)).await.unwrap();
    assert!(matches!(answer, Outcome::Committed(ref loaded) if loaded.version == 3));
    store.faults.lock().unwrap().push_back(Fault::ConflictNamesOnlyTheVersion);
    let again = behind.send_with(draw(7), keyed(2)).await.unwrap();
    assert!(matches!(again, Outcome::Repeated(ref answer) if answer == "3: 93"), "{again:?}");
}

/// Without an idempotency key the store has no response, so the command id in the commit identifies
/// the command.
#[tokio::test]
async fn rule_4_the_same_command_at_another_time_is_one_commit() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let same = |at| Request { id: Some("same"), at, ..Request::default() };
    assert_eq!(expect_commit(Client::new(&store).send_with(draw(40), same(1)).await), (3, 60));
    assert_eq!(expect_commit(client.send_with(draw(40), same(2)).await), (3, 60));
    assert_eq!(log(&store).await.len(), 3);
}

#[tokio::test]
async fn a_command_that_changes_nothing_appends_nothing() {
    let store = Spy::default();
    let client = warm(&store, 100).await;
    let there = Command::Move(valid("North"));
    assert!(
        matches!(client.send(there).await.unwrap(), Outcome::Unchanged(loaded) if loaded.version == 2)
    );
    assert_eq!(
        store.calls(),
        ["strong read"],
        "the command is decided on the newest state (rule 6)"
    );
}

/// A commit embeds a state if the state costs no further write unit, or if a load would otherwise
/// need a second page.
#[tokio::test]
async fn states_are_embedded_when_they_are_free_and_when_they_are_due() {
    for (site, expected) in
        [("North".to_owned(), (1..=20).collect()), ("x".repeat(1_200), vec![8, 16])]
    {
        let store = Spy::default();
        let client = Client::new(&store);
        client.send(Command::Install { site: valid(site), liquid: valid("water") }).await.unwrap();
        for _ in 2..=20 {
            client.send(fill(1)).await.unwrap();
        }
        let embedded = log(&store).await.into_iter().filter(|commit| commit.state.is_some());
        assert_eq!(embedded.map(|commit| commit.version).collect::<Vec<_>>(), expected);
    }
}

/// RFC 9110, 13.1.1: `*` requires an existing aggregate, and no commit has version 0.
#[tokio::test]
async fn no_precondition_holds_for_an_aggregate_that_does_not_exist() {
    for precondition in
        [Precondition::Exists, Precondition::OneOf(vec![0]), Precondition::OneOf(vec![1])]
    {
        let store = Spy::default();
        let options = Request { precondition: Some(&precondition), ..Request::default() };
        let failed = Client::new(&store).send_with(install(), options).await;
        assert!(
            matches!(failed, Err(ExecuteError::PreconditionFailed { version: 0 })),
            "{failed:?}"
        );
        assert_eq!(log(&store).await.len(), 0);
    }
}
