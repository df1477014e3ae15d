//! Runs the tank application on a local stack under load, while processes are killed and services
//! fail for a while. Then it checks that nothing is lost or doubled: `cargo xtask soak`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for people")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use ledgerline_testing::{
    LocalStack, Quiet, SEED, Tool,
    tank::{litres_moved_once, settled, state, stock_adds_up},
    workspace,
};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Kill functions and the stack, let tables, the bus and queues fail, and check that nothing is
/// lost or doubled.
#[derive(Debug, Parser)]
struct SoakArgs {
    /// Run for this number of minutes.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Use this seed for all random choices. The order of concurrent work does not depend on it.
    #[arg(long, env = SEED)]
    seed: Option<u64>,
    /// Run this number of clients at once.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// Move the clock of the stack and its functions too, by up to ten minutes either way, with
    /// this library of libfaketime, such as /usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1.
    #[arg(long)]
    clock: Option<PathBuf>,
    /// Rebuild a state view, a log view and a view of `$all` in a loop, roll back, switch again,
    /// and drop. Kills the tool, loses messages of the log view, and checks that no read shows an
    /// older version.
    #[arg(long)]
    rebuilds: bool,
}

/// The views that are rebuilt: of states, of the log, of `$all`.
const REBUILT: [&str; 3] = ["Levels", "Readings", "Stock"];

/// The longest time for which reads of the stock may be older than before a switch: the lease of a
/// killed instance, the minute until the schedule invokes the next one, and its work.
const STOCK_LAG: Duration = Duration::from_secs(120);

/// The clock of the stack, its services and its functions.
struct Clock {
    /// The file from which libfaketime reads the offset of the clock.
    offset: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl Clock {
    fn new(library: Option<&Path>, folder: &Path) -> Result<Self> {
        let offset = folder.join("offset");
        let Some(library) = library else { return Ok(Self { offset, environment: Vec::new() }) };
        ensure!(library.exists(), "there is no {}", library.display());
        let environment = vec![
            ("LD_PRELOAD", library.into()),
            ("FAKETIME_TIMESTAMP_FILE", offset.clone().into()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            // The monotonic clock does not move, so that a timeout of five seconds still takes five
            // seconds.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ];
        let this = Self { offset, environment };
        this.set(0)?;
        Ok(this)
    }

    fn moves(&self) -> bool {
        !self.environment.is_empty()
    }

    /// Sets the clock this number of seconds ahead of the real clock.
    fn set(&self, seconds: i64) -> Result<()> {
        // A rename replaces the file at once: a reader of half a number would have another time.
        let new = self.offset.with_extension("new");
        fs::write(&new, format!("{seconds:+}"))?;
        Ok(fs::rename(new, &self.offset)?)
    }
}

/// The functions that are killed.
const FUNCTIONS: [&str; 10] = [
    "fills-projector",
    "haul",
    "haul-commands",
    "levels-projector",
    "readings-projector",
    "stock-subscription",
    "tank-commands",
    "tank-fanout",
    "tank-queries",
    "tank-sequencer",
];

/// The services that fail for a while: tables, queues and the bus, as `POST /outages` names them.
const SERVICES: [&str; 12] = [
    "CommitsTable",
    "FillsQueue.fifo",
    "FillsTable",
    "HaulPositionsTable",
    "HaulQueue.fifo",
    "LevelsTable",
    "ReadingsQueue.fifo",
    "ReadingsTable",
    "RequestsTable",
    "SequenceTable",
    "StockTable",
    "events",
];

/// The number of tanks.
const TANKS: usize = 20;

/// The limits of the memory and the descriptors of the stack's process at the end: twice the values
/// after an hour.
const MEMORY_KB: u64 = 600_000;
const DESCRIPTORS: usize = 1_000;

/// A fault that the soak injects.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Restart,
    /// A service fails for this number of seconds.
    Outage(&'static str, u32),
    /// The clock is set this number of seconds ahead.
    Clock(i64),
    Kill(&'static str),
    /// The messages that wait for the readings are lost.
    Loss,
}

impl Fault {
    /// Returns one fault of each kind, in any order, so that even a soak of two minutes has them
    /// all.
    fn each(clock: &Clock, rebuilds: bool) -> Vec<Self> {
        let mut faults: Vec<_> = FUNCTIONS.map(Self::Kill).to_vec();
        faults.extend(SERVICES.map(|service| Self::Outage(service, fastrand::u32(5..15))));
        faults.push(Self::Restart);
        faults.extend(rebuilds.then_some(Self::Loss));
        if clock.moves() {
            faults.extend([
                Self::Clock(fastrand::i64(60..600)),
                Self::Clock(-fastrand::i64(60..600)),
            ]);
        }
        fastrand::shuffle(&mut faults);
        faults
    }

    fn random(clock: &Clock, rebuilds: bool) -> Self {
        match fastrand::u32(..60) {
            0 => Self::Restart,
            1..=8 => {
                // One outage in three lasts for one to three minutes.
                let seconds = if fastrand::u32(..3) == 0 {
                    fastrand::u32(60..180)
                } else {
                    fastrand::u32(5..30)
                };
                Self::Outage(SERVICES[fastrand::usize(..SERVICES.len())], seconds)
            }
            9..=10 if clock.moves() => Self::Clock(fastrand::i64(-600..=600)),
            11..=13 if rebuilds => Self::Loss,
            _ => Self::Kill(FUNCTIONS[fastrand::usize(..FUNCTIONS.len())]),
        }
    }

    fn kind(self) -> String {
        match self {
            Self::Restart => "restarts of the stack".to_owned(),
            Self::Outage(service, _) => format!("outages of {service}"),
            Self::Clock(_) => "moves of the clock".to_owned(),
            Self::Kill(function) => format!("kills of {function}"),
            Self::Loss => "losses of messages".to_owned(),
        }
    }

    async fn inject(
        self,
        stack: LocalStack,
        world: &World,
        clock: &Clock,
        data: &Path,
    ) -> Result<LocalStack> {
        match self {
            Self::Restart => {
                stack.kill();
                let stack = LocalStack::start_in(data, &clock.environment).await;
                world.connect_to(&stack);
                return Ok(stack);
            }
            Self::Outage(service, seconds) => stack.begin_outage(service, "failed", seconds).await,
            Self::Clock(seconds) => clock.set(seconds)?,
            Self::Kill(function) => drop(stack.kill_instances(function)),
            Self::Loss => {
                // Messages wait only while their consumer cannot write.
                stack.begin_outage("ReadingsTable", "failed", 10).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
                stack.lose_messages("ReadingsQueue.fifo").await;
            }
        }
        Ok(stack)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match soak(SoakArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The data that the clients share.
struct World {
    http: Client,
    /// The address of the stack, which changes with each restart.
    url: RwLock<String>,
    /// The address of the stack's services.
    aws: RwLock<String>,
    tanks: Vec<String>,
    /// The acknowledged litres: those filled in minus those drawn.
    litres: AtomicI64,
    hauls: AtomicU64,
    commands: AtomicU64,
    /// The number of retries: the response left the outcome open, and the client sent the command
    /// again with its idempotency key.
    retries: AtomicU64,
    ends: AtomicBool,
    /// Whether views are rebuilt and rolled back, and messages are lost.
    rebuilds: bool,
}

impl World {
    fn new(stack: &LocalStack, rebuilds: bool) -> Result<Self> {
        Ok(Self {
            http: Client::builder().no_proxy().timeout(Duration::from_secs(40)).build()?,
            url: RwLock::new(stack.url().to_owned()),
            aws: RwLock::new(stack.aws_url()),
            tanks: (0..TANKS).map(|_| Uuid::new_v4().to_string()).collect(),
            litres: AtomicI64::new(0),
            hauls: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            rebuilds,
        })
    }

    /// Sends a command until its outcome is certain, and returns the status of the response.
    async fn command(&self, path: &str, body: &Value) -> Result<u16> {
        let key = Uuid::new_v4().to_string();
        let mut quiet = Quiet::new(Duration::from_secs(900));
        let mut commands = 0;
        loop {
            let url = self.url.read().unwrap_or_else(PoisonError::into_inner).clone();
            let sent = self
                .http
                .post(format!("{url}{path}"))
                .header("Idempotency-Key", &key)
                .json(body)
                .send();
            match sent.await.map(|answer| answer.status().as_u16()) {
                Ok(status @ (200..=299 | 422)) => {
                    self.commands.fetch_add(1, Ordering::Relaxed);
                    return Ok(status);
                }
                Ok(409 | 429 | 500..=599) | Err(_) => {}
                Ok(status) => bail!("POST {path} is answered {status}"),
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            let done = self.commands.load(Ordering::Relaxed);
            let changed = std::mem::replace(&mut commands, done) != done;
            ensure!(
                !quiet.is_over(changed),
                "no command has a certain outcome within a quarter of an hour, and neither has POST {path}"
            );
            tokio::time::sleep(Duration::from_millis(fastrand::u64(50..500))).await;
        }
    }

    async fn client(self: Arc<Self>) -> Result<()> {
        while !self.ends.load(Ordering::Relaxed) {
            // The load is steady and not high: the machine needs time for the functions that
            // restart, and room for an hour's data.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(50..250))).await;
            let tank = &self.tanks[fastrand::usize(..TANKS)];
            let amount = fastrand::i64(1..100);
            match fastrand::u32(..4) {
                0..=1 => {
                    let path = format!("/tanks/{tank}/fills");
                    let status = self.command(&path, &json!({ "amount": amount })).await?;
                    ensure!(status < 300, "a tank that is far from full refuses {amount} litres");
                    self.litres.fetch_add(amount, Ordering::Relaxed);
                }
                2 => {
                    let path = format!("/tanks/{tank}/draws");
                    if self.command(&path, &json!({ "amount": amount })).await? < 300 {
                        self.litres.fetch_sub(amount, Ordering::Relaxed);
                    }
                }
                _ => {
                    let to = &self.tanks[fastrand::usize(..TANKS)];
                    let id = Uuid::new_v4().to_string();
                    let body = json!({ "haulId": id, "fromTankId": tank, "toTankId": to, "amount": amount });
                    // A haul from a tank to itself is refused.
                    let is_accepted = self.command("/hauls", &body).await? < 300;
                    self.hauls.fetch_add(is_accepted.into(), Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    fn connect_to(&self, stack: &LocalStack) {
        stack.url().clone_into(&mut self.url.write().unwrap_or_else(PoisonError::into_inner));
        stack.aws_url().clone_into(&mut self.aws.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Rebuilds the views in turn, rolls back, switches again, and drops the previous generations.
    /// If the tool fails, as after a kill of the stack, or is killed, it is started again and
    /// resumes.
    async fn rebuild(self: Arc<Self>) -> Result<Rebuilds> {
        let mut rebuilds = Rebuilds::default();
        for view in REBUILT.iter().cycle() {
            for verb in ["switch", "rollback", "switch", "drop"] {
                while !self.run_tool(verb, view, &mut rebuilds).await? {
                    if self.ends.load(Ordering::Relaxed) {
                        return Ok(rebuilds);
                    }
                }
            }
        }
        Ok(rebuilds)
    }

    /// Runs `ledger rebuild`, and kills it once in four times. Returns whether it succeeded.
    async fn run_tool(
        &self,
        verb: &'static str,
        view: &str,
        rebuilds: &mut Rebuilds,
    ) -> Result<bool> {
        let aws = self.aws.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut ledger = tokio::process::Command::from(ledgerline_testing::command("ledger"));
        // The tool reads the name of the stack from samconfig.toml in this folder.
        let ledger = ledger.current_dir(workspace());
        let ledger = ledger.arg(format!("--local={aws}")).args(["rebuild", verb, view]);
        let ledger = ledger.args(["--write", "--yes", "--why", "a soak"]).kill_on_drop(true);
        let seconds = if fastrand::u32(..4) == 0 { fastrand::u64(1..30) } else { 600 };
        let ended = tokio::time::timeout(Duration::from_secs(seconds), ledger.output()).await;
        let Ok(ended) = ended else {
            rebuilds.killed += 1;
            return Ok(false);
        };
        let ended = ended?;
        if ended.status.success() {
            *rebuilds.done.entry(verb).or_default() += 1;
            return Ok(!self.ends.load(Ordering::Relaxed));
        }
        rebuilds.failed += 1;
        rebuilds.last = String::from_utf8_lossy(&ended.stderr).into_owned();
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(false)
    }

    /// Reads the views that are rebuilt until the end. Fails if a read shows an older version than
    /// an earlier one, of the stock for longer than [`STOCK_LAG`].
    async fn reader(self: Arc<Self>) -> Result<()> {
        // The newest version of each path, and the time of the first older read after it.
        let mut newest = BTreeMap::<String, (u64, Option<Instant>)>::new();
        let mut views = BTreeSet::new();
        while !self.ends.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..100))).await;
            let tank = &self.tanks[fastrand::usize(..TANKS)];
            let readings = format!("/tanks/{tank}/readings?limit=1");
            for (path, version, limit) in [
                (format!("/tanks/{tank}"), "/version", Duration::ZERO),
                (readings, "/readings/0/version", Duration::ZERO),
                ("/stock?limit=1".to_owned(), "/stock/number", STOCK_LAG),
            ] {
                // While services fail, a read has no answer.
                let Some(body) = self.read(&path).await else { continue };
                let shown = body.pointer(version).and_then(Value::as_u64).unwrap_or(0);
                if shown > 0 {
                    views.insert(version);
                }
                let (before, older) = newest.entry(path.clone()).or_default();
                if shown >= *before {
                    (*before, *older) = (shown, None);
                    continue;
                }
                let since = older.get_or_insert_with(|| {
                    println!("{path} went back from version {before} to {shown}");
                    Instant::now()
                });
                let lag = since.elapsed();
                ensure!(lag < limit, "{path} is at version {shown} after {before} for {lag:?}");
            }
        }
        ensure!(views.len() == REBUILT.len(), "only these views have versions: {views:?}");
        Ok(())
    }

    async fn read(&self, path: &str) -> Option<Value> {
        let url = self.url.read().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = self.http.get(format!("{url}{path}")).send().await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }
}

/// The work of the operator's tool.
#[derive(Debug, Default)]
struct Rebuilds {
    /// The verbs that succeeded, and how often.
    done: BTreeMap<&'static str, u32>,
    killed: u32,
    failed: u32,
    /// The last error.
    last: String,
}

/// Runs clients against a local stack, and injects a random fault every few seconds, each kind at
/// least once. Then waits until no work is left.
///
/// # Errors
/// When litres are lost or doubled, a view differs from the fold of the log, a dead letter exists,
/// or the stack grows beyond its limits of memory and open files.
async fn soak(options: SoakArgs) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    fastrand::seed(seed);
    let data = tempfile::tempdir()?;
    let folder = tempfile::tempdir()?;
    let clock = Clock::new(options.clock.as_deref(), folder.path())?;
    let stack = LocalStack::start_in(data.path(), &clock.environment).await;
    let world = Arc::new(World::new(&stack, options.rebuilds)?);
    for tank in &world.tanks {
        let body = json!({ "tankId": tank, "site": "Soak", "liquid": "water" });
        ensure!(world.command("/tanks", &body).await? == 201, "the tanks are new");
    }
    println!("seed {seed}, {} minutes, {} clients", options.minutes, options.clients);
    let mut clients = JoinSet::new();
    for _ in 0..options.clients {
        clients.spawn(Arc::clone(&world).client());
    }
    // A clock that moves back shows the generation of the time before a switch.
    if options.rebuilds && !clock.moves() {
        clients.spawn(Arc::clone(&world).reader());
    }
    let rebuilds = options.rebuilds.then(|| tokio::spawn(Arc::clone(&world).rebuild()));
    let length = Duration::from_secs(options.minutes * 60);
    let stack = inject_faults(stack, &world, &mut clients, &clock, data.path(), length);
    let stack = stack.await?;
    world.ends.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    if let Some(rebuilds) = rebuilds {
        let Rebuilds { done, killed, failed, last } = rebuilds.await??;
        println!("{done:?}; the tool was killed {killed} times, and failed {failed} times: {last}");
        for verb in ["switch", "rollback"] {
            ensure!(done.contains_key(verb), "no `ledger rebuild {verb}` succeeded");
        }
    }
    verify(&world, &stack).await?;
    let sizes = Sizes::new(&stack, data.path());
    println!(
        "{}; {sizes}; litres are those acknowledged, rows are the fold, nothing is under way, no dead letters",
        command_counts(&world),
    );
    ensure!(sizes.memory < MEMORY_KB, "the stack has more than {MEMORY_KB} kB of memory");
    ensure!(sizes.descriptors < DESCRIPTORS, "the stack has more than {DESCRIPTORS} descriptors");
    Ok(())
}

/// Injects faults for this time, and each kind at least once. Returns the stack, which restarts may
/// have replaced.
async fn inject_faults(
    mut stack: LocalStack,
    world: &World,
    clients: &mut JoinSet<Result<()>>,
    clock: &Clock,
    data: &Path,
    length: Duration,
) -> Result<LocalStack> {
    let began = Instant::now();
    let mut told = began;
    let mut counts = BTreeMap::<String, u32>::new();
    let mut faults_to_cover = Fault::each(clock, world.rebuilds);
    while began.elapsed() < length || !faults_to_cover.is_empty() {
        tokio::time::sleep(Duration::from_secs(fastrand::u64(2..6))).await;
        let fault = faults_to_cover.pop();
        let fault = fault.unwrap_or_else(|| Fault::random(clock, world.rebuilds));
        *counts.entry(fault.kind()).or_default() += 1;
        stack = fault.inject(stack, world, clock, data).await?;
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            let minutes = began.elapsed().as_secs() / 60;
            println!("{minutes:>3} min: {}, {}", command_counts(world), Sizes::new(&stack, data));
        }
        if let Some(ended) = clients.try_join_next() {
            ended??;
            bail!("a client ended");
        }
    }
    println!("faults: {counts:?}");
    Ok(stack)
}

fn command_counts(world: &World) -> String {
    let hauls = world.hauls.load(Ordering::Relaxed);
    let commands = world.commands.load(Ordering::Relaxed);
    let retries = world.retries.load(Ordering::Relaxed);
    format!("{commands} commands, {hauls} hauls among them, {retries} retries")
}

/// Memory in kB and descriptors of the stack's process, and its data in bytes.
struct Sizes {
    memory: u64,
    descriptors: usize,
    data: u64,
}

impl Sizes {
    fn new(stack: &LocalStack, data: &Path) -> Self {
        let process = format!("/proc/{}", stack.process_id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap_or_default();
        let memory =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let files = fs::read_dir(data).into_iter().flatten().flatten();
        Self {
            memory: memory.and_then(|memory| memory.parse().ok()).unwrap_or(0),
            descriptors: fs::read_dir(format!("{process}/fd")).map_or(0, Iterator::count),
            data: files.filter_map(|file| Some(file.metadata().ok()?.len())).sum(),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, descriptors, data } = self;
        write!(
            f,
            "{memory} kB of memory, {descriptors} descriptors, {} MB of data",
            data / 1_000_000
        )
    }
}

/// Waits until no subscriber lacks a commit and no message is under way. Then compares the rows of
/// every view with the log, and the levels with the acknowledged litres. Fails if the stack makes no
/// progress for twenty minutes.
async fn verify(world: &World, stack: &LocalStack) -> Result<()> {
    let tool = Tool::at(stack);
    let mut quiet = Quiet::new(Duration::from_secs(1_200));
    let mut left = None;
    loop {
        let found = (tool.found(&[]), stack.under_way().await);
        if found.0.0 == 0 && found.1.is_empty() {
            break;
        }
        // A message that was lost was the last one of its stream.
        if world.rebuilds && found.1.is_empty() {
            let _ = tool.repaired(&["--write", "--yes", "--why", "a soak"]);
        }
        let now = format!("{found:?}");
        let changed = left.as_ref() != Some(&now);
        ensure!(!quiet.is_over(changed), "the stack does not settle: {now}");
        left = Some(now);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    for tank in &world.tanks {
        settled(stack, tank).await;
    }
    stock_adds_up(stack).await;
    litres_moved_once(stack).await;
    let mut litres = 0;
    for tank in &world.tanks {
        litres += state(stack, tank).await.1.level();
    }
    let acknowledged = world.litres.load(Ordering::Relaxed);
    ensure!(litres == acknowledged, "{litres} litres are left, and {acknowledged} acknowledged");
    let letters = stack.dead_letters().await;
    ensure!(letters.is_empty(), "there are dead letters: {letters:?}");
    Ok(())
}
