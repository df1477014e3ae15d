//! Concurrent histories: several clients send commands to few streams, over a wire that misbehaves, and what they were
//! told must be explainable by some order of their commands, one after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    num::NonZeroUsize,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bank::account::{Account, Command, Refusal, State};
use fastrand::Rng;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Cache, Consistency, Context, EventStore, ExecuteError, Execution, Ledger, LoadError, Meta, Outcome,
    Precondition, Range, StoreError, StreamId, execute, load,
};
use ledgerline_dynamodb::DynamoDbStore;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Effort, Finding, Tried,
    bank::RETENTION_SECONDS,
    planted::{BUGS, Bug, Planted},
    wire::{Plan, Wire},
    world::{World, each_seed},
};

/// As long as a command function waits, before it tells its client that it does not know.
const PATIENCE: Duration = Duration::from_secs(8);
/// Longer than any request can be late.
const SETTLED: Duration = Duration::from_secs(60);

/// How much the clocks of two instances differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// By up to a second.
    Near,
    /// By up to two days: each is a day behind, right, or a day ahead.
    DayOff,
}

/// What a history counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Commands that were sent.
    pub commands: u64,
    /// Commits that they left in the log.
    pub commits: u64,
    /// Commands whose client was told nothing certain.
    pub uncertain: u64,
}

/// Plays histories, every second one on a store that keeps no states.
///
/// # Errors
/// The first history that cannot be explained.
pub fn proof(effort: &Effort) -> Result<Tried, Finding> {
    let runs = effort.runs(10_000, 100_000);
    let (sum, faults) = all(effort.seed, runs, Clocks::Near)?;
    let Tally { commands, commits, uncertain } = sum;
    Ok(Tried::new(
        runs,
        "histories",
        format!(
            "{commands} commands, {commits} commits, {faults} faults, {uncertain} clients left in the dark"
        ),
    ))
}

/// Plays histories whose instances have clocks that are a day off.
///
/// # Errors
/// The first history that cannot be explained.
pub(crate) fn off_by_a_day(seed: u64, runs: u64) -> Result<Tally, Finding> {
    all(seed, runs, Clocks::DayOff).map(|(tally, _)| tally)
}

fn all(seed: u64, runs: u64, clocks: Clocks) -> Result<(Tally, u64), Finding> {
    let (mut sum, mut faults) = (Tally::default(), 0);
    let play = |(world, store): &mut (World, DynamoDbStore), seed: u64| {
        let played = if seed.is_multiple_of(2) {
            world.runtime.block_on(play(store, store, &world.wire, seed, clocks))
        } else {
            let bare = Planted::new(store.clone(), world.wire.dynamodb(), Bug::None);
            world.runtime.block_on(play(&bare, store, &world.wire, seed, clocks))
        };
        played.map(|tally| (tally, world.wire.take_faults()))
    };
    each_seed(seed, runs, world, play, |(tally, happened)| {
        sum.commands += tally.commands;
        sum.commits += tally.commits;
        sum.uncertain += tally.uncertain;
        faults += happened.values().sum::<u64>();
    })?;
    Ok((sum, faults))
}

/// Plays histories on each of the planted stores, until the bug is found.
///
/// # Errors
/// When one is not found.
pub fn honesty(effort: &Effort) -> Result<Tried, Finding> {
    let most = 1_000;
    let mut found = Vec::new();
    for bug in BUGS {
        let play = |(world, store): &mut (World, DynamoDbStore), seed| {
            let planted = Planted::new(store.clone(), world.wire.dynamodb(), bug);
            world.runtime.block_on(play(&planted, store, &world.wire, seed, Clocks::Near))
        };
        match each_seed(effort.seed, most, world, play, |_| ()) {
            Err(finding) => {
                found.push(format!("{bug:?} by history {}", finding.seed.wrapping_sub(effort.seed) + 1))
            }
            Ok(()) => return Err(Finding { seed: effort.seed, story: format!("{bug:?} was not found") }),
        }
    }
    Ok(Tried::new(BUGS.len() as u64, "planted bugs, each found", found.join(", ")))
}

fn world() -> Result<(World, DynamoDbStore), Finding> {
    let world = World::new(&["CommitsTable", "RequestsTable"])?;
    let store = world.store();
    Ok((world, store))
}

/// What a client asks.
#[derive(Debug, Clone, PartialEq)]
enum Asked {
    Open,
    Credit(i64),
    Debit(i64),
    Close,
    /// Reads the state strongly.
    Read,
}

#[derive(Debug, Clone, PartialEq)]
struct Operation {
    asked: Asked,
    precondition: Option<Precondition>,
    /// The command id.
    id: String,
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    /// This is the state, after the command where there was one.
    State { version: u64, balance: i64 },
    /// The domain says no.
    Refused(String),
    /// The version is this one, and not the one that was named.
    OtherVersion(u64),
}

/// What a bank account is, said once more and as plainly as possible: one command after the other.
#[derive(Debug, Clone, Default)]
struct Bank {
    version: u64,
    balance: i64,
    open: bool,
}

impl Bank {
    fn answer(&self, operation: &Operation) -> (Self, Told) {
        let told = |told| (self.clone(), told);
        let refused = |refusal: Refusal| told(Told::Refused(refusal.to_string()));
        let state =
            |state: Self| (state.clone(), Told::State { version: state.version, balance: state.balance });
        match operation.asked {
            Asked::Read => return state(self.clone()),
            Asked::Open if self.version > 0 => return refused(Refusal::AlreadyOpened),
            Asked::Open => {}
            Asked::Credit(_) | Asked::Debit(_) | Asked::Close if self.version == 0 => {
                return refused(Refusal::Unknown);
            }
            Asked::Credit(_) | Asked::Debit(_) | Asked::Close => {}
        }
        if let Some(Precondition::OneOf(versions)) = &operation.precondition
            && !versions.contains(&self.version)
        {
            return told(Told::OtherVersion(self.version));
        }
        let (version, balance) = (self.version + 1, self.balance);
        match operation.asked {
            Asked::Open => state(Self { version, balance: 0, open: true }),
            _ if !self.open => refused(Refusal::Closed),
            Asked::Credit(amount) => state(Self { version, balance: balance + amount, open: true }),
            Asked::Debit(amount) if amount > balance => {
                refused(Refusal::InsufficientFunds { balance, amount })
            }
            Asked::Debit(amount) => state(Self { version, balance: balance - amount, open: true }),
            Asked::Close if balance != 0 => refused(Refusal::BalanceNotZero { balance }),
            Asked::Close => state(Self { version, balance, open: false }),
            Asked::Read => state(self.clone()),
        }
    }
}

impl SequentialSpec for Bank {
    type Op = Operation;
    type Ret = Told;

    fn invoke(&mut self, operation: &Operation) -> Told {
        let (state, told) = self.answer(operation);
        *self = state;
        told
    }
}

/// What was asked and told, in the order in which it was.
#[derive(Default)]
struct Record {
    testers: BTreeMap<StreamId, LinearizabilityTester<usize, Bank>>,
    /// Command ids that were told of a version, and those that were told that they changed nothing.
    acknowledged: BTreeMap<String, (StreamId, u64)>,
    declined: BTreeSet<String>,
    lines: Vec<String>,
    tally: Tally,
}

/// One history.
struct History<'a, S> {
    store: &'a S,
    /// The same log, for the check: whatever is wrong with the store, what is in the log is what is in it.
    log: &'a DynamoDbStore,
    wire: &'a Wire,
    seed: u64,
    clocks: Clocks,
    streams: Vec<StreamId>,
    began: Instant,
    record: Mutex<Record>,
}

/// Plays the history of this seed, and checks it.
///
/// # Errors
/// When no order of the commands explains what the clients were told, or the log is not what they were told.
pub async fn play(
    store: &impl EventStore,
    log: &DynamoDbStore,
    wire: &Wire,
    seed: u64,
    clocks: Clocks,
) -> Result<Tally, Finding> {
    let mut rng = Rng::with_seed(seed);
    // The SDK's and our own jitter.
    fastrand::seed(seed);
    let streams = (0..rng.usize(1..=2))
        .filter_map(|number| StreamId::new("account", &format!("{seed}-{number}")).ok())
        .collect();
    // Some histories without faults: races alone must do no harm either.
    wire.follow(Plan::Random([0, 150, 400, 700][rng.usize(0..4)]), rng.u64(..));
    let history =
        History { store, log, wire, seed, clocks, streams, began: Instant::now(), record: Mutex::default() };
    let clients = rng.usize(2..=4);
    let seeds: Vec<_> = (0..clients).map(|_| rng.u64(..)).collect();
    join_all(
        seeds.into_iter().enumerate().map(|(client, seed)| history.client(client, Rng::with_seed(seed))),
    )
    .await;
    sleep(SETTLED).await;
    wire.calm();
    history.check().await
}

impl<S: EventStore> History<'_, S> {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client and the instance that it talks to.
    async fn client(&self, client: usize, mut rng: Rng) {
        let mut cache = cold();
        let mut known: BTreeMap<StreamId, u64> = BTreeMap::new();
        // A thread of the tester has one operation at a time; who was told nothing goes on as another.
        let mut thread = client * 1_000;
        for number in 0..rng.usize(2..=4) {
            sleep(Duration::from_millis(rng.u64(0..60))).await;
            let stream = &self.streams[rng.usize(0..self.streams.len())];
            let asked = match rng.u32(0..10) {
                _ if number == 0 && client == 0 => Asked::Open,
                0 => Asked::Open,
                1..=3 => Asked::Credit(rng.i64(1..50)),
                4..=7 => Asked::Debit(rng.i64(1..50)),
                8 => Asked::Close,
                _ => Asked::Read,
            };
            let precondition = match (&asked, known.get(stream)) {
                (Asked::Open | Asked::Read, _) | (_, None) => None,
                (Asked::Credit(_) | Asked::Debit(_) | Asked::Close, Some(version)) => {
                    (rng.u32(0..4) == 0).then(|| Precondition::OneOf(vec![*version]))
                }
            };
            let operation = Operation { asked, precondition, id: format!("{}-{client}-{number}", self.seed) };
            let keyed = rng.bool();
            self.invoke(thread, stream, &operation);
            let mut told = None;
            for _ in 0..if keyed { 3 } else { 1 } {
                if rng.u32(0..3) == 0 {
                    cache = cold();
                }
                // No two instances have the same time.
                let skew = match self.clocks {
                    Clocks::Near => SignedDuration::from_millis(rng.i64(-500..=500)),
                    Clocks::DayOff => SignedDuration::from_hours(24 * rng.i64(-1..=1)),
                };
                told = self.ask(self.store, &cache, stream, &operation, (keyed, skew)).await;
                if told.is_some() {
                    break;
                }
                sleep(Duration::from_millis(rng.u64(0..12_000))).await;
            }
            match told {
                Some(told) => {
                    if let Told::State { version, .. } | Told::OtherVersion(version) = told {
                        known.insert(stream.clone(), version);
                    }
                    self.tell(thread, stream, &operation, told);
                }
                None => {
                    let mut record = self.record();
                    record.tally.uncertain += 1;
                    record.lines.push(format!("{thread:>5} {stream} {operation:?} was told nothing"));
                    thread += 1;
                }
            }
        }
    }

    /// Sends the command once. `None` when its client is told nothing certain.
    async fn ask(
        &self,
        store: &impl EventStore,
        cache: &Cache<Account>,
        stream: &StreamId,
        operation: &Operation,
        (keyed, skew): (bool, SignedDuration),
    ) -> Option<Told> {
        let command = match operation.asked {
            Asked::Open => Command::Open { owner: "Ada".into(), currency: "EUR".into() },
            Asked::Credit(amount) => Command::Credit { amount, reference: None },
            Asked::Debit(amount) => Command::Debit { amount, reference: None },
            Asked::Close => Command::Close,
            Asked::Read => {
                let loaded = load::<Account>(store, stream, None, Consistency::Strong).await.ok()?;
                return Some(Told::State { version: loaded.version, balance: loaded.state.total_balance });
            }
        };
        let elapsed = SignedDuration::try_from(self.began.elapsed()).ok()?;
        let at = Timestamp::from_second(1_800_000_000).ok()? + elapsed + skew;
        let answer = |answer: Result<(&State, u64), &Refusal>| match answer {
            Ok((state, version)) => format!("{version} {}", state.total_balance),
            Err(refusal) => refusal.to_string(),
        };
        let fingerprint = format!("{:?}", operation.asked);
        let execution = Execution {
            stream,
            command: &command,
            context: &Context { at, actor: Some("ada".into()) },
            command_id: &operation.id,
            meta: &Meta::default(),
            precondition: operation.precondition.as_ref(),
            creates: operation.asked == Asked::Open,
            ledger: keyed.then(|| Ledger {
                key: &operation.id,
                fingerprint: &fingerprint,
                now: at.as_second(),
                expires: at.as_second() + RETENTION_SECONDS,
                answer: &answer,
            }),
        };
        match timeout(PATIENCE, execute(store, cache, &execution)).await.ok()? {
            Ok(Outcome::Committed(loaded) | Outcome::Unchanged(loaded)) => {
                Some(Told::State { version: loaded.version, balance: loaded.state.total_balance })
            }
            Ok(Outcome::Repeated(answer)) => Some(match answer.split_once(' ') {
                Some((version, balance)) if version.parse::<u64>().is_ok() => {
                    Told::State { version: version.parse().ok()?, balance: balance.parse().ok()? }
                }
                Some(_) | None => Told::Refused(answer),
            }),
            Err(ExecuteError::Refused(refusal)) => Some(Told::Refused(refusal.to_string())),
            Err(ExecuteError::PreconditionFailed { version } | ExecuteError::Overtaken { version }) => {
                Some(Told::OtherVersion(version))
            }
            Err(
                // What was on its way for longer than anybody waited may still arrive.
                ExecuteError::Contended
                | ExecuteError::Store(StoreError::Throttled | StoreError::Unavailable(_))
                | ExecuteError::Load(LoadError::Store(StoreError::Throttled | StoreError::Unavailable(_))),
            ) => None,
            // Nothing here may cause these, and no order of commands explains them.
            Err(
                error @ (ExecuteError::CommandIdReused
                | ExecuteError::TooLarge { .. }
                | ExecuteError::Encode(_)
                | ExecuteError::Store(StoreError::Corrupt { .. })
                | ExecuteError::Load(_)),
            ) => Some(Told::Refused(format!("never: {error}"))),
        }
    }

    fn invoke(&self, thread: usize, stream: &StreamId, operation: &Operation) {
        let mut record = self.record();
        record.tally.commands += u64::from(operation.asked != Asked::Read);
        record.lines.push(format!("{thread:>5} {stream} {operation:?}"));
        let tester = record.testers.entry(stream.clone()).or_default();
        // It refuses only what this module never does: a second operation of a thread that has one.
        let _ = tester.on_invoke(thread, operation.clone());
    }

    fn tell(&self, thread: usize, stream: &StreamId, operation: &Operation, told: Told) {
        let mut record = self.record();
        record.lines.push(format!("{thread:>5} {stream} {} is told {told:?}", operation.id));
        if operation.asked != Asked::Read {
            match &told {
                Told::State { version, .. } => {
                    _ = record.acknowledged.insert(operation.id.clone(), (stream.clone(), *version));
                }
                Told::Refused(_) | Told::OtherVersion(_) => {
                    _ = record.declined.insert(operation.id.clone());
                }
            }
        }
        let _ = record.testers.entry(stream.clone()).or_default().on_return(thread, told);
    }

    async fn check(&self) -> Result<Tally, Finding> {
        for stream in &self.streams {
            let last = Operation { asked: Asked::Read, precondition: None, id: "last".into() };
            self.invoke(usize::MAX, stream, &last);
            match self.ask(self.log, &cold(), stream, &last, (false, SignedDuration::ZERO)).await {
                Some(told) => self.tell(usize::MAX, stream, &last, told),
                None => return Err(self.finding("the stream cannot be read any more")),
            }
            if let Some(wrong) = self.wrong_in_log(stream).await {
                return Err(self.finding(&wrong));
            }
        }
        let explainable = self.record().testers.values().all(ConsistencyTester::is_consistent);
        if !explainable {
            return Err(self.finding("no order of the commands explains what the clients were told"));
        }
        Ok(self.record().tally)
    }

    /// What is wrong with the log of the stream: a hole, a command twice, an acknowledged one missing, one that was declined.
    async fn wrong_in_log(&self, stream: &StreamId) -> Option<String> {
        let mut commits = Vec::new();
        let mut range = Range { after: 0, up_to: u64::MAX, limit: None };
        loop {
            let Ok(page) = self.log.read(stream, range, Consistency::Strong).await else {
                return Some("the log cannot be read".into());
            };
            commits.extend(page.commits);
            match commits.last() {
                Some(oldest) if !page.complete => range.up_to = oldest.version - 1,
                Some(_) | None => break,
            }
        }
        commits.reverse();
        let mut record = self.record();
        record.tally.commits += commits.len() as u64;
        let mut ids = BTreeSet::new();
        for (expected, commit) in (1..).zip(&commits) {
            let id = &commit.command;
            if commit.version != expected {
                return Some(format!("version {expected} is missing"));
            }
            if !ids.insert(id) {
                return Some(format!("{id} is in the log twice"));
            }
            if record.declined.contains(id) {
                return Some(format!("{id} was told that nothing changed, and is version {expected}"));
            }
            if record.acknowledged.get(id).is_some_and(|told| *told != (stream.clone(), expected)) {
                return Some(format!("{id} was told of another version than {expected}"));
            }
        }
        let lost = |(id, (told, _)): &(&String, &(StreamId, u64))| told == stream && !ids.contains(id);
        let lost = record.acknowledged.iter().find(lost);
        lost.map(|(id, _)| format!("{id} was acknowledged and is not in the log"))
    }

    fn finding(&self, what: &str) -> Finding {
        let mut story = format!("{what}\n");
        for line in &self.record().lines {
            let _ = writeln!(story, "  {line}");
        }
        let _ = writeln!(story, "  faults: {:?}", self.wire.take_faults());
        Finding { seed: self.seed, story }
    }
}

fn cold() -> Cache<Account> {
    Cache::new(NonZeroUsize::MIN.saturating_add(9))
}
