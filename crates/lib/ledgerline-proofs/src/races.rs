//! One concurrent history: several clients send commands to one or two streams of one aggregate,
//! over a wire with faults. A sequential order of the commands must explain all answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use ledgerline::{
    Aggregate, Cache, Commit, Consistency, Context, EventLog, EventStore, ExecuteError, Execution,
    Idempotency, LoadError, Loaded, Meta, Outcome, Precondition, Range, Refusal, RefusalKind,
    StoreError, StreamId, decode, encode, encode_state, execute, fold, load,
};
use ledgerline_dynamodb::DynamoDbStore;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Effort, Finding, Runs,
    counts::Counts,
    faulty_wire::{Plan, Wire},
    planted::{Bug, Planted},
    world::{World, each_seed},
};

/// The retention of idempotency records, as in the template: three days. Two of the days allow for
/// one clock a day behind and another a day ahead.
pub const RETENTION_SECONDS: i64 = 259_200;

/// The commands of one stream, in a sensible order. The first one starts the stream.
#[derive(Debug)]
pub struct History<A: Aggregate> {
    /// The id of the aggregate.
    pub id: String,
    /// The actor who sends the commands.
    pub actor: String,
    /// The commands. Some may be refused.
    pub commands: Vec<A::Command>,
}

impl<A: Aggregate> History<A> {
    /// The commits of the commands, with some event-less commits, as operators append them to
    /// republish state. Whether a commit embeds its state is random.
    #[must_use]
    pub fn commits(&self, rng: &mut Rng) -> Vec<Commit> {
        let mut chance = rng.fork();
        self.commits_where(|| rng.bool(), || chance.u8(..8) == 0)
    }

    /// The commits of the commands, each with its state.
    #[must_use]
    pub fn commits_with_states(&self) -> Vec<Commit> {
        self.commits_where(|| true, || false)
    }

    fn commits_where(
        &self,
        mut embed: impl FnMut() -> bool,
        mut republishes: impl FnMut() -> bool,
    ) -> Vec<Commit> {
        let Ok(stream) = StreamId::new(A::CATEGORY, &self.id) else { return Vec::new() };
        let mut state = A::initial();
        let mut commits: Vec<Commit> = Vec::new();
        for command in &self.commands {
            let embed = embed();
            let version = commits.len() as u64 + 1;
            let at = Timestamp::from_second(1_795_253_400 + commits.len() as i64);
            let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
            let context = ledgerline::Context { at, actor: Some(self.actor.clone()) };
            let Ok(events) = A::decide(&state, command, &context) else { continue };
            let recorded: Result<Vec<_>, _> = events.iter().map(encode::<A>).collect();
            let Some(recorded) = recorded.ok().filter(|events| !events.is_empty()) else {
                continue;
            };
            state = fold::<A>(state, &events);
            let commit = Commit {
                stream: stream.clone(),
                version,
                events: recorded,
                state: encode_state::<A>(&state).ok().filter(|_| embed),
                command: format!("{stream}:{version}"),
                at,
                meta: Meta::default(),
            };
            let version = version + 1;
            let command = format!("{stream}:{version}");
            let republished = Commit { version, command, events: Vec::new(), ..commit.clone() };
            commits.push(commit);
            if republishes() {
                let state = encode_state::<A>(&state).ok();
                commits.push(Commit { state, ..republished });
            }
        }
        commits
    }
}

/// Creates the history of a name. The same name and randomness always create the same history.
pub type Histories<A> = fn(&str, &mut Rng) -> History<A>;

/// The timeout of a command function, after which it answers that the result is unknown.
const PATIENCE: Duration = Duration::from_secs(8);
/// A time that is longer than the delay of any late request.
const SETTLED: Duration = Duration::from_secs(60);

/// The difference between the clocks of two instances.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Clocks {
    /// Up to a second.
    Near,
    /// Up to two days: each clock is a day behind, right, or a day ahead.
    DayOff,
}

/// An aggregate whose histories are played.
pub(crate) struct Subject<A: Aggregate> {
    /// The source of the commands.
    pub(crate) histories: Histories<A>,
    /// The text with which a client observes a state.
    pub(crate) shown: fn(&A::State) -> String,
}

impl<A: Aggregate> Subject<A> {
    /// Plays histories.
    pub(crate) fn play_all(&self, effort: &Effort, runs: &Runs) -> Result<Counts, Finding> {
        let play = |(world, store): &mut (World, DynamoDbStore), seed: u64| {
            let clocks = if seed % 16 < 2 { Clocks::DayOff } else { Clocks::Near };
            if seed.is_multiple_of(2) {
                return world.runtime.block_on(play(self, store, store, &world.wire, seed, clocks));
            }
            let bare =
                Planted::new(store.clone(), world.wire.dynamodb(), Bug::WithoutEmbeddedState);
            world.runtime.block_on(play(self, &bare, store, &world.wire, seed, clocks))
        };
        each_seed(effort, runs, world, play)
    }
}

pub(crate) fn world() -> Result<(World, DynamoDbStore)> {
    let world = World::new(&["CommitsTable", "RequestsTable"])?;
    let store = world.store();
    Ok((world, store))
}

/// A request of a client: a command or a read.
struct Operation<A: Aggregate> {
    /// The command. `None` is a strongly consistent read.
    command: Option<Arc<A::Command>>,
    /// Whether the command starts a stream.
    creates: bool,
    precondition: Option<Precondition>,
    actor: String,
    /// The command id.
    id: String,
}

impl<A: Aggregate> Clone for Operation<A> {
    fn clone(&self) -> Self {
        Self {
            command: self.command.clone(),
            creates: self.creates,
            precondition: self.precondition.clone(),
            actor: self.actor.clone(),
            id: self.id.clone(),
        }
    }
}

impl<A: Aggregate> PartialEq for Operation<A> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<A: Aggregate> std::fmt::Debug for Operation<A> {
    /// Formats without the command: the seed leads to the command with this id.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.command.is_some() { "command" } else { "read" };
        write!(f, "{what} {} {:?}", self.id, self.precondition)
    }
}

/// The answer that a client gets.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    /// The version, and the text of the state; for a command, after it.
    State { version: u64, shown: String },
    /// The text of the domain's refusal.
    Refused(String),
    /// The version of the stream, which differs from the version in the precondition.
    OtherVersion(u64),
}

/// The aggregate as a sequential specification: one command after the other, without a store. The
/// tester compares the answers with it.
struct Sequential<A: Aggregate> {
    version: u64,
    state: A::State,
    shown: fn(&A::State) -> String,
}

impl<A: Aggregate> Clone for Sequential<A> {
    fn clone(&self) -> Self {
        Self { version: self.version, state: self.state.clone(), shown: self.shown }
    }
}

impl<A: Aggregate> SequentialSpec for Sequential<A> {
    type Op = Operation<A>;
    type Ret = Told;

    fn invoke(&mut self, operation: &Operation<A>) -> Told {
        let told =
            |this: &Self| Told::State { version: this.version, shown: (this.shown)(&this.state) };
        let Some(command) = &operation.command else { return told(self) };
        let context = Context { at: Timestamp::UNIX_EPOCH, actor: Some(operation.actor.clone()) };
        let decided = A::decide(&self.state, command, &context);
        let refused = |refusal: &Refusal| Told::Refused(refusal.to_string());
        match &decided {
            // These refusals precede the precondition (RFC 9110, 13.2.1), whatever its versions.
            Err(refusal) if refusal.kind() != RefusalKind::Refused => return refused(refusal),
            Ok(_) | Err(_) => {}
        }
        // An aggregate without a commit has no version for a precondition.
        if let Some(Precondition::OneOf(versions)) = &operation.precondition
            && (self.version == 0 || !versions.contains(&self.version))
        {
            return Told::OtherVersion(self.version);
        }
        match decided {
            Err(refusal) => refused(&refusal),
            Ok(events) => {
                self.version += u64::from(!events.is_empty());
                self.state = fold::<A>(self.state.clone(), &events);
                told(self)
            }
        }
    }
}

/// All requests and answers, in their order.
struct Record<A: Aggregate> {
    testers: BTreeMap<StreamId, LinearizabilityTester<usize, Sequential<A>>>,
    /// The commands that were answered with a version, by id. The flag says whether the version is
    /// certainly that of the command's own commit.
    acknowledged: BTreeMap<String, (StreamId, u64, bool)>,
    /// The ids of the commands that were refused or answered with another version. They must not be
    /// in the log.
    declined: BTreeSet<String>,
    /// The commands with an idempotency key.
    keyed: Vec<Keyed<A>>,
    /// The states that clients were told long after they gave up: the version, and the text of the
    /// state. The tester does not get these answers, because it would try too many orders.
    late: Vec<(StreamId, u64, String)>,
    lines: Vec<String>,
    counts: Counts,
}

impl<A: Aggregate> Record<A> {
    fn new(subject: &Subject<A>, streams: &[StreamId]) -> Self {
        let tester = |stream: &StreamId| {
            let nothing = Sequential { version: 0, state: A::initial(), shown: subject.shown };
            (stream.clone(), LinearizabilityTester::new(nothing))
        };
        Self {
            testers: streams.iter().map(tester).collect(),
            acknowledged: BTreeMap::new(),
            declined: BTreeSet::new(),
            keyed: Vec::new(),
            late: Vec::new(),
            lines: Vec::new(),
            counts: Counts::default(),
        }
    }
}

/// A command with an idempotency key.
struct Keyed<A: Aggregate> {
    stream: StreamId,
    operation: Operation<A>,
    /// The stored answer, if the client got it.
    answer: Option<Told>,
}

/// One history.
struct Played<'a, A: Aggregate, S> {
    subject: &'a Subject<A>,
    store: &'a S,
    /// The real store on the same log. The check reads with it, because the check must not depend
    /// on the bugs of `store`.
    log: &'a DynamoDbStore,
    seed: u64,
    clocks: Clocks,
    streams: Vec<StreamId>,
    began: Instant,
    record: Mutex<Record<A>>,
}

/// Plays the history of this seed, and checks it. Fails if no order of the commands explains the
/// answers, or the log contradicts the answers.
pub(crate) async fn play<A: Aggregate>(
    subject: &Subject<A>,
    store: &impl EventStore,
    log: &DynamoDbStore,
    wire: &Wire,
    seed: u64,
    clocks: Clocks,
) -> Result<Counts> {
    let mut rng = Rng::with_seed(seed);
    // The SDK and ledgerline use this generator for their jitter.
    fastrand::seed(seed);
    let streams: Vec<_> = (0..rng.usize(1..=2))
        .filter_map(|number| StreamId::new(A::CATEGORY, &format!("{seed}-{number}")).ok())
        .collect();
    // Some histories have no faults: races alone must do no harm either.
    wire.follow(Plan::Random([0, 150, 400, 700][rng.usize(0..4)]), rng.u64(..));
    let record = Mutex::new(Record::new(subject, &streams));
    let history =
        Played { subject, store, log, seed, clocks, streams, began: Instant::now(), record };
    let clients = rng.usize(2..=4);
    let seeds: Vec<_> = (0..clients).map(|_| rng.u64(..)).collect();
    join_all(
        seeds
            .into_iter()
            .enumerate()
            .map(|(client, seed)| history.client(client, Rng::with_seed(seed))),
    )
    .await;
    sleep(SETTLED).await;
    wire.calm();
    let checked = match history.repeat_commands(&mut rng).await {
        Ok(()) => history.check().await,
        Err(error) => Err(error),
    };
    let faults = wire.take_faults();
    let Record { lines, mut counts, .. } =
        history.record.into_inner().unwrap_or_else(PoisonError::into_inner);
    checked.with_context(|| format!("{}\n  faults: {faults:?}\n ", lines.join("\n  ")))?;
    counts.add("faults", faults.values().sum());
    Ok(counts)
}

impl<A: Aggregate, S: EventStore> Played<'_, A, S> {
    fn record(&self) -> MutexGuard<'_, Record<A>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request of a client. The first request of the first client starts a stream. A
    /// client that knows a version may send it as a precondition.
    fn operation(
        &self,
        client: usize,
        number: usize,
        known: Option<u64>,
        rng: &mut Rng,
    ) -> Operation<A> {
        let mut history = (self.subject.histories)(&format!("{}-0", self.seed), rng);
        let id = format!("{}-{client}-{number}", self.seed);
        let place = match rng.u32(0..10) {
            _ if number == 0 && client == 0 => Some(0),
            0 => Some(0),
            9 => None,
            _ => Some(rng.usize(0..history.commands.len())),
        };
        let creates = place == Some(0);
        let precondition = known.filter(|_| place.is_some() && !creates && rng.u32(0..4) == 0);
        Operation {
            command: place.map(|place| Arc::new(history.commands.swap_remove(place))),
            creates,
            precondition: precondition.map(|version| Precondition::OneOf(vec![version])),
            actor: history.actor,
            id,
        }
    }

    /// Plays a client and the instance that serves it.
    async fn client(&self, client: usize, mut rng: Rng) {
        let mut cache = cold();
        let mut known: BTreeMap<StreamId, u64> = BTreeMap::new();
        // A thread of the tester has one operation at a time. A client whose operation got no
        // answer continues as another thread.
        let mut thread = client * 1_000;
        for number in 0..rng.usize(2..=4) {
            sleep(Duration::from_millis(rng.u64(0..60))).await;
            let stream = &self.streams[rng.usize(0..self.streams.len())];
            let operation = self.operation(client, number, known.get(stream).copied(), &mut rng);
            let keyed = rng.bool();
            self.record_invocation(thread, stream, &operation);
            let mut told = None;
            for _ in 0..if keyed { 3 } else { 1 } {
                if rng.u32(0..3) == 0 {
                    cache = cold();
                }
                let skew = self.skew(&mut rng);
                told = self.ask(self.store, &cache, stream, &operation, keyed, skew).await;
                if told.is_some() {
                    break;
                }
                sleep(Duration::from_millis(rng.u64(0..12_000))).await;
            }
            if keyed && operation.command.is_some() {
                let answer = told.as_ref().map(|(told, _)| told.clone());
                let (stream, operation) = (stream.clone(), operation.clone());
                self.record().keyed.push(Keyed { stream, operation, answer });
            }
            match told {
                Some((told, committed)) => {
                    if let Told::State { version, .. } | Told::OtherVersion(version) = told {
                        known.insert(stream.clone(), version);
                    }
                    self.tell(thread, stream, &operation, told, committed);
                }
                None => {
                    let mut record = self.record();
                    record.counts.add("clients without a certain answer", 1);
                    record
                        .lines
                        .push(format!("{thread:>5} {stream} {operation:?} was told nothing"));
                    thread += 1;
                }
            }
        }
    }

    /// The error of the clock of an instance. Each instance has a clock of its own.
    fn skew(&self, rng: &mut Rng) -> SignedDuration {
        match self.clocks {
            Clocks::Near => SignedDuration::from_millis(rng.i64(-500..=500)),
            Clocks::DayOff => SignedDuration::from_hours(24 * rng.i64(-1..=1)),
        }
    }

    /// Sends each command with a key again, when later commands have changed its stream. Checks that
    /// its answers are equal. A client that got no answer learns the outcome here.
    async fn repeat_commands(&self, rng: &mut Rng) -> Result<()> {
        let keyed = std::mem::take(&mut self.record().keyed);
        for Keyed { stream, operation, mut answer } in keyed {
            // The answer to a failed precondition is not stored.
            while !matches!(answer, Some(Told::OtherVersion(_))) {
                let cache = cold();
                let skew = self.skew(rng);
                let repeated = self.ask(self.store, &cache, &stream, &operation, true, skew);
                let (told, committed) =
                    repeated.await.with_context(|| format!("{operation:?} is never answered"))?;
                let Some(first) = answer else {
                    self.note_answer(&stream, &operation, &told, committed);
                    if let Told::State { version, shown } = &told {
                        self.record().late.push((stream.clone(), *version, shown.clone()));
                    }
                    answer = Some(told);
                    continue;
                };
                ensure!(first == told, "{operation:?} is told {first:?}, and then {told:?}");
                self.record().counts.add("repeated commands with the first answer", 1);
                break;
            }
        }
        Ok(())
    }

    /// Sends the command once. The result is the answer, and whether its version is certainly that
    /// of the command's own commit. `None` is an uncertain answer.
    async fn ask(
        &self,
        store: &impl EventStore,
        cache: &Cache<A>,
        stream: &StreamId,
        operation: &Operation<A>,
        keyed: bool,
        skew: SignedDuration,
    ) -> Option<(Told, bool)> {
        let Some(command) = &operation.command else {
            let loaded = load::<A>(store, stream, None, Consistency::Strong).await.ok()?;
            return Some((self.show(&loaded), false));
        };
        let elapsed = SignedDuration::try_from(self.began.elapsed()).ok()?;
        let at = Timestamp::from_second(1_800_000_000).ok()? + elapsed + skew;
        // A success begins with its version and a refusal with "no:", so that the text identifies
        // both.
        let answer = |answer: Result<(&A::State, u64), &Refusal>| match answer {
            Ok((state, version)) => format!("{version} {}", (self.subject.shown)(state)),
            Err(refusal) => format!("no: {refusal}"),
        };
        let context = Context { at, actor: Some(operation.actor.clone()) };
        let meta = Meta::default();
        let id = operation.id.as_str();
        let execution = Execution {
            precondition: operation.precondition.as_ref(),
            creates: operation.creates,
            idempotency: keyed.then_some(Idempotency {
                key: id,
                fingerprint: id,
                retention: RETENTION_SECONDS,
                answer: &answer,
            }),
            ..Execution::new(stream, command.as_ref(), &context, id, &meta)
        };
        let executed = execute(store, cache, &DynamoDbStore::HOST, &execution);
        self.read_outcome(timeout(PATIENCE, executed).await.ok()?)
    }

    fn show(&self, loaded: &Loaded<A>) -> Told {
        Told::State { version: loaded.version, shown: (self.subject.shown)(&loaded.state) }
    }

    /// The answer of a function to a command, as [`Self::ask`] returns it.
    fn read_outcome(&self, outcome: Result<Outcome<A>, ExecuteError>) -> Option<(Told, bool)> {
        let refused = |why: String| Some((Told::Refused(why), false));
        match outcome {
            Ok(Outcome::Committed(loaded)) => Some((self.show(&loaded), true)),
            Ok(Outcome::Unchanged(loaded)) => Some((self.show(&loaded), false)),
            Ok(Outcome::Repeated(answer)) => match answer.split_once(' ') {
                Some(("no:", refusal)) => refused(refusal.to_owned()),
                Some((version, shown)) => {
                    // The first request may have changed nothing: then this version is that of
                    // another commit.
                    Some((
                        Told::State { version: version.parse().ok()?, shown: shown.to_owned() },
                        false,
                    ))
                }
                None => refused(format!("never: {answer}")),
            },
            Err(ExecuteError::Refused(refusal)) => refused(refusal.to_string()),
            Err(
                ExecuteError::PreconditionFailed { version } | ExecuteError::Overtaken { version },
            ) => Some((Told::OtherVersion(version), false)),
            Err(
                // A request in transit may still arrive after its caller gave up.
                ExecuteError::Contended
                | ExecuteError::Store(StoreError::Throttled(_) | StoreError::Unavailable(_))
                | ExecuteError::Load(LoadError::Store(
                    StoreError::Throttled(_) | StoreError::Unavailable(_),
                )),
            ) => None,
            // These errors must not happen here. No order of commands explains the text that they
            // become.
            Err(
                error @ (ExecuteError::CommandIdReused
                | ExecuteError::TooLarge { .. }
                | ExecuteError::Encode(_)
                | ExecuteError::Store(
                    StoreError::Corrupt { .. } | StoreError::PayloadElsewhere { .. },
                )
                | ExecuteError::Load(_)),
            ) => refused(format!("never: {error}")),
        }
    }

    fn record_invocation(&self, thread: usize, stream: &StreamId, operation: &Operation<A>) {
        let mut record = self.record();
        record.counts.add("commands", operation.command.is_some().into());
        record.lines.push(format!("{thread:>5} {stream} {operation:?}"));
        if let Some(tester) = record.testers.get_mut(stream) {
            // The tester refuses only a second operation of a busy thread, which this module never
            // sends.
            let _ = tester.on_invoke(thread, operation.clone());
        }
    }

    fn tell(
        &self,
        thread: usize,
        stream: &StreamId,
        operation: &Operation<A>,
        told: Told,
        committed: bool,
    ) {
        let mut record = self.record();
        record.lines.push(format!("{thread:>5} {stream} {} is told {told:?}", operation.id));
        drop(record);
        self.note_answer(stream, operation, &told, committed);
        if let Some(tester) = self.record().testers.get_mut(stream) {
            let _ = tester.on_return(thread, told);
        }
    }

    /// Notes the answer for the comparison with the log.
    fn note_answer(
        &self,
        stream: &StreamId,
        operation: &Operation<A>,
        told: &Told,
        committed: bool,
    ) {
        let mut record = self.record();
        let id = operation.id.clone();
        match told {
            _ if operation.command.is_none() => {}
            Told::State { version, .. } => {
                record.acknowledged.insert(id, (stream.clone(), *version, committed));
            }
            Told::Refused(_) | Told::OtherVersion(_) => _ = record.declined.insert(id),
        }
    }

    async fn check(&self) -> Result<()> {
        for stream in &self.streams {
            let last = Operation {
                command: None,
                creates: false,
                precondition: None,
                actor: String::new(),
                id: "last".into(),
            };
            self.record_invocation(usize::MAX, stream, &last);
            let cache = cold();
            let read = self.ask(self.log, &cache, stream, &last, false, SignedDuration::ZERO);
            let (told, _) = read.await.context("the stream cannot be read any more")?;
            self.tell(usize::MAX, stream, &last, told, false);
            self.check_log(stream).await?;
        }
        let explainable = self.record().testers.values().all(ConsistencyTester::is_consistent);
        ensure!(explainable, "no order of the commands explains what the clients were told");
        Ok(())
    }

    /// Checks that the log of the stream has no hole, no command twice, every acknowledged command
    /// and no declined command.
    async fn check_log(&self, stream: &StreamId) -> Result<()> {
        let mut commits = Vec::new();
        let mut range = Range { after: 0, up_to: u64::MAX, limit: None };
        loop {
            let page = self.log.read(stream, range, Consistency::Strong).await?;
            commits.extend(page.commits);
            match commits.last() {
                Some(oldest) if !page.complete => range.up_to = oldest.version - 1,
                Some(_) | None => break,
            }
        }
        commits.reverse();
        let mut record = self.record();
        record.counts.add("commits", commits.len() as u64);
        let mut ids = BTreeSet::new();
        let mut state = A::initial();
        for (expected, commit) in (1..).zip(&commits) {
            let id = &commit.command;
            ensure!(commit.version == expected, "version {expected} is missing");
            ensure!(ids.insert(id), "{id} is in the log twice");
            let is_declined = record.declined.contains(id);
            ensure!(!is_declined, "{id} was told that nothing changed, and is version {expected}");
            if let Some((told, version, _)) = record.acknowledged.get(id) {
                ensure!((told, *version) == (stream, expected), "{id} was told of {version}");
            }
            let events = commit.events.iter().map(decode::<A>).collect::<Result<Vec<_>, _>>()?;
            state = fold::<A>(state, &events);
            let shown = (self.subject.shown)(&state);
            for (_, _, told) in record
                .late
                .iter()
                .filter(|(other, version, _)| (other, *version) == (stream, expected))
            {
                ensure!(*told == shown, "version {expected} was told as {told}, and is {shown}");
            }
        }
        let mut acknowledged = record.acknowledged.iter();
        let lost = acknowledged
            .find(|(id, (told, _, committed))| *committed && told == stream && !ids.contains(id));
        ensure!(lost.is_none(), "{lost:?} was acknowledged and is not in the log");
        Ok(())
    }
}

fn cold<A: Aggregate>() -> Cache<A> {
    Cache::new(NonZeroUsize::MIN.saturating_add(9))
}
