//! `$all`: four sequencers append to one stream of `$all`, over a wire that misbehaves.
//!
//! Each shard of the log's stream hands its records to any of the sequencers, in batches. A failed
//! batch is redelivered, with the same bounds or with others. Records of a stream are swapped, and
//! some never arrive. Sequencers are killed in the middle of a call, and some restart with an old
//! head. Readers read meanwhile.
//!
//! Some entries name commits that do not exist. A claimed entry without a commit must never be
//! appended. Entries that a faulty program appended become void while sequencers work.
//!
//! In the end the order must be dense and complete. Within a stream it must be that of versions,
//! with causes before their consequences. The segments that any reader saw must be a prefix of the
//! segments that all readers see.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use futures::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use ledgerline::{
    Commit, EventLog, MemoryStore, Meta, StreamId,
    all::{
        Candidate, Cursor, Entry, Filter, NamedEntry, Segment, Sequencer, Subscription, VoidError,
        candidates, segments, void_entries,
    },
};
use ledgerline_dynamodb::DynamoDbStore;
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use crate::{
    Application, Effort, Runs, Tried,
    counts::Counts,
    faulty_wire::{Plan, Wire},
    sequencer_model,
    world::{World, each_seed},
};

/// The number of concurrent sequencers.
const SEQUENCERS: usize = 4;
/// The number of attempts after which the run fails.
const ATTEMPTS: u32 = 200;

const COMMITS: &str = "commits";
const SEGMENTS: &str = "segments";
const FAULTS: &str = "faults";
/// Deliveries that failed or timed out, and were retried.
const RETRIES: &str = "retried deliveries";
/// Records that never arrived.
const LOST: &str = "records lost and found by their heads";
/// Entries without a commit that became void.
const VOID: &str = "void entries";
/// Commits that later took the version of a void entry.
const LATE: &str = "commits at the version of a void entry";

const RUNS: Runs = Runs { least: 200, seconds: 8, long: 100_000 };

/// Plays histories of sequencers. Fails if the order has a hole, lacks a commit, is not that of
/// versions in a stream, or has a consequence before its cause. Also fails if two readers see
/// different orders.
pub(crate) fn proof(effort: &Effort, _: &Application) -> Result<Tried> {
    let (states, without) = sequencer_model::explore(effort)?;
    // A database has one `$all`.
    let play = |(): &mut (), seed| {
        let world = World::new(&["CommitsTable", "RequestsTable"])?;
        let history = History::new(world.wire.clone(), world.store(), seed);
        world.runtime.block_on(history.play())
    };
    let counts = each_seed(effort, &RUNS, || Ok(()), play)?;
    counts.ensure_tried(effort, &RUNS, &[RETRIES, LOST, VOID, LATE, FAULTS])?;
    let beside = format!("{counts}; a model of {states} states, all there are; {without}");
    Ok(Tried::new(counts.runs, "histories", beside))
}

struct History {
    wire: Wire,
    store: DynamoDbStore,
    seed: u64,
    sequencers: Vec<Mutex<Sequencer>>,
    /// The commits of each stream, in the order of their versions.
    log: BTreeMap<StreamId, Vec<Commit>>,
    /// The same commits, in the store in which sequencers look them up.
    stored: MemoryStore,
    /// Entries without a commit in the log, as a faulty program appended them.
    wrong: Vec<Entry>,
}

impl History {
    fn new(wire: Wire, store: DynamoDbStore, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut log = BTreeMap::<StreamId, Vec<Commit>>::new();
        let names: Vec<_> = (0..rng.usize(2..7))
            .filter_map(|n| StreamId::new("tank", &n.to_string()).ok())
            .collect();
        for _ in 0..rng.usize(10..60) {
            let stream = names[rng.usize(0..names.len())].clone();
            // Some commits are caused by the newest commit of another stream, as those of a process
            // manager are.
            let other = &names[rng.usize(0..names.len())];
            let cause = log.get(other).map(|commits| format!("{other}:{}", commits.len()));
            let commits = log.entry(stream.clone()).or_default();
            commits.push(Commit {
                version: commits.len() as u64 + 1,
                events: Vec::new(),
                state: None,
                command: "c".into(),
                at: Timestamp::UNIX_EPOCH,
                meta: Meta { causation_id: cause.filter(|_| rng.bool()), ..Meta::default() },
                stream,
            });
        }
        let sequencers = (0..SEQUENCERS)
            .map(|_| Mutex::new(Sequencer::new(DynamoDbStore::HOST.pause)))
            .collect();
        let wrong = (0..rng.usize(0..4)).map(|_| forged_entry(&log, &mut rng)).collect();
        Self { wire, store, seed, sequencers, log, stored: MemoryStore::default(), wrong }
    }

    /// A cold sequencer.
    fn sequencer(&self) -> Sequencer {
        Sequencer::new(DynamoDbStore::HOST.pause)
    }

    async fn append(
        &self,
        sequencer: &mut Sequencer,
        name: &str,
        batch: Vec<Candidate>,
    ) -> Result<()> {
        let at = Timestamp::UNIX_EPOCH;
        sequencer.append(&self.store, &self.stored, name, batch, at).await?;
        Ok(())
    }

    async fn void(&self, sequencer: &mut Sequencer, entry: Entry) -> Result<(), VoidError> {
        let named = NamedEntry { segment: 1, entry };
        sequencer.void(&self.store, &self.stored, named, "void", Timestamp::UNIX_EPOCH).await
    }

    /// The records of each shard, in the order in which they arrive, and the number of lost ones.
    /// The streams of a shard are interleaved, each in its own order.
    fn shards(&self, rng: &mut Rng) -> (Vec<Vec<&Commit>>, usize) {
        let mut lost = 0;
        let mut shards = vec![Vec::new(); rng.usize(1..4)];
        for commits in self.log.values() {
            let shard = rng.usize(0..shards.len());
            let mut records: Vec<_> = commits.iter().collect();
            for place in 1..records.len() {
                if rng.u32(0..4) == 0 {
                    records.swap(place - 1, place);
                }
            }
            records.retain(|_| rng.u32(0..12) > 0);
            lost += commits.len() - records.len();
            shards[shard].push(records);
        }
        let interleaved = shards.into_iter().map(|mut streams| {
            let mut mixed = Vec::new();
            streams.retain(|records| !records.is_empty());
            while !streams.is_empty() {
                let place = rng.usize(0..streams.len());
                mixed.push(streams[place].remove(0));
                streams.retain(|records| !records.is_empty());
            }
            mixed
        });
        (interleaved.collect(), lost)
    }

    async fn play(self) -> Result<Counts> {
        let mut rng = Rng::with_seed(self.seed);
        let mut counts = Counts::default();
        let (shards, lost) = self.shards(&mut rng);
        for commit in self.log.values().flatten() {
            self.stored.append(commit, None).await?;
            counts.add(COMMITS, 1);
        }
        let wrong =
            self.wrong.iter().cloned().chain(self.existing_entry()).map(Candidate::from_record);
        self.append(&mut self.sequencer(), "faulty", wrong.collect()).await?;
        self.wire.follow(Plan::Random(rng.u32(0..400)), self.seed);
        let again: Mutex<u64> = Mutex::new(0);
        let work: FuturesUnordered<_> = shards
            .iter()
            .enumerate()
            .map(|(number, shard)| {
                self.deliver(shard, Rng::with_seed(self.seed ^ (number as u64 + 1)), &again)
            })
            .collect();
        let (done, read, voided) = tokio::join!(
            work.collect::<Vec<_>>(),
            self.read_concurrently(Rng::with_seed(!self.seed)),
            self.void_concurrently(Rng::with_seed(self.seed ^ 0xff))
        );
        done.into_iter().collect::<Result<Vec<_>>>()?;
        voided?;
        let late = self.take_void_versions(&mut rng).await?;
        self.wire.calm();
        // The wire applies late requests within this time.
        sleep(Duration::from_secs(120)).await;
        // Comparing the heads of all streams with `$all` finds the commits whose records were lost.
        let heads: Vec<_> = self.log.values().filter_map(|commits| commits.last()).collect();
        self.append(&mut self.sequencer(), "heads", candidates(heads)).await?;
        let whole = self.read().await?;
        self.check(&whole, &read?, &shards.concat())?;
        self.check_voids(&whole, &late).await?;
        counts.add(LOST, lost as u64);
        counts.add(LATE, late.len() as u64);
        counts.add(VOID, self.wrong.iter().collect::<BTreeSet<_>>().len() as u64);
        counts.add(SEGMENTS, whole.len() as u64);
        counts.add(RETRIES, again.into_inner());
        counts.add(FAULTS, self.wire.take_faults().values().sum());
        Ok(counts)
    }

    /// Hands the records of a shard to sequencers, one batch at a time, as Lambda does.
    async fn deliver(&self, shard: &[&Commit], mut rng: Rng, again: &Mutex<u64>) -> Result<()> {
        let mut done = 0;
        let mut attempts = 0;
        let mut last = String::new();
        while attempts < ATTEMPTS {
            if done == shard.len() {
                return Ok(());
            }
            let end = (done + rng.usize(1..12)).min(shard.len());
            let mut batch = candidates(shard[done..end].iter().copied());
            // A program or an operator claims a commit that does not exist.
            if rng.u32(0..4) == 0 {
                batch.insert(
                    rng.usize(0..=batch.len()),
                    Candidate::from_claim(forged_entry(&self.log, &mut rng)),
                );
            }
            // An instance processes one batch at a time. It may have paused for long, or be new.
            let mut sequencer = self.sequencers[rng.usize(0..SEQUENCERS)].lock().await;
            if rng.u32(0..8) == 0 {
                *sequencer = self.sequencer();
            }
            if rng.u32(0..16) == 0 {
                sleep(Duration::from_secs(rng.u64(1..60))).await;
            }
            let name = format!("{done}-{end}");
            let append = self.append(&mut sequencer, &name, batch);
            // Some functions time out in the middle of a call, whether the call is applied or not.
            let time = if rng.u32(0..4) == 0 {
                Duration::from_millis(rng.u64(1..200))
            } else {
                Duration::from_secs(30)
            };
            let appended = timeout(time, append).await;
            if let Ok(Ok(_)) = appended {
                (done, attempts) = (end, 0);
            } else {
                attempts += 1;
                last = appended
                    .as_ref()
                    .map_or_else(ToString::to_string, |result| format!("{result:?}"));
                *again.lock().await += 1;
                if appended.is_err() {
                    *sequencer = self.sequencer();
                }
                drop(sequencer);
                sleep(Duration::from_millis(rng.u64(1..500))).await;
            }
            // Some acknowledged records are redelivered, in a batch that begins earlier.
            if rng.u32(0..10) == 0 {
                done = done.saturating_sub(rng.usize(1..6));
            }
        }
        bail!("a batch is never done: {last}")
    }

    /// The entry of a commit that exists, which the faulty program appends with the wrong ones. The
    /// commit has no cause, because the cause would come after it in `$all`.
    fn existing_entry(&self) -> Option<Entry> {
        let mut firsts = self.log.values().filter_map(|commits| commits.first());
        let first = firsts.find(|commit| commit.meta.causation_id.is_none())?;
        Some(Entry { stream: first.stream.clone(), version: first.version })
    }

    /// Voids the wrong entries while sequencers work, and checks that the entry of an existing
    /// commit cannot be voided.
    async fn void_concurrently(&self, mut rng: Rng) -> Result<()> {
        for entry in &self.wrong {
            let mut attempts = 0;
            loop {
                sleep(Duration::from_millis(rng.u64(1..2_000))).await;
                let mut sequencer = self.sequencers[rng.usize(0..SEQUENCERS)].lock().await;
                let void = self.void(&mut sequencer, entry.clone());
                match timeout(Duration::from_secs(30), void).await {
                    Ok(Ok(())) => break,
                    Ok(Err(VoidError::Exists)) => bail!("{entry:?} is said to exist"),
                    Ok(Err(_)) => {}
                    Err(_) => *sequencer = self.sequencer(),
                }
                attempts += 1;
                ensure!(attempts <= ATTEMPTS, "an entry is never void");
            }
        }
        if let Some(first) = self.log.values().flatten().next() {
            let right = Entry { stream: first.stream.clone(), version: first.version };
            let void = self.void(&mut self.sequencer(), right).await;
            ensure!(void.is_err(), "the entry of a commit that exists is void");
        }
        Ok(())
    }

    /// Appends commits at versions whose entries are void, and sequences their records. Some of the
    /// sequencers have not read the void entries yet.
    async fn take_void_versions(&self, rng: &mut Rng) -> Result<Vec<Commit>> {
        let mut late: Vec<Commit> = Vec::new();
        for Entry { stream, version } in self.wrong.iter().collect::<BTreeSet<_>>() {
            let like = self.log.values().flatten().next();
            let Some(like) = like.filter(|_| rng.bool()) else { continue };
            let (stream, version) = (stream.clone(), *version);
            let commit = Commit { stream, version, meta: Meta::default(), ..like.clone() };
            self.stored.append(&commit, None).await?;
            let mut attempts = 0;
            loop {
                let mut sequencer = self.sequencers[rng.usize(0..SEQUENCERS)].lock().await;
                let append = self.append(&mut sequencer, "late", candidates([&commit]));
                if matches!(timeout(Duration::from_secs(30), append).await, Ok(Ok(_))) {
                    break;
                }
                *sequencer = self.sequencer();
                attempts += 1;
                ensure!(attempts <= ATTEMPTS, "a late commit is never in the order");
                drop(sequencer);
                sleep(Duration::from_millis(rng.u64(1..500))).await;
            }
            late.push(commit);
        }
        Ok(late)
    }

    /// Checks the void entries. No claimed entry without a commit may be in `$all`. Each wrong
    /// entry must be void, once. A reader must skip the void entries and no others.
    async fn check_voids(&self, whole: &[Segment], late: &[Commit]) -> Result<()> {
        let voided_at =
            |entry: &Entry| whole.iter().find(|segment| segment.voids.last() == Some(entry));
        for Commit { stream, version, .. } in late {
            let entry = Entry { stream: stream.clone(), version: *version };
            let after = voided_at(&entry).map_or(0, |segment| segment.number);
            let mut later = whole.iter().filter(|segment| segment.number > after);
            let is_named = later.any(|segment| segment.entries.contains(&entry));
            ensure!(is_named, "{entry:?} took a void version, and has no entry of its own");
        }
        let wrong: BTreeSet<_> = self.wrong.iter().cloned().collect();
        let exists = |entry: &Entry| {
            let is_late =
                |commit: &Commit| commit.stream == entry.stream && commit.version == entry.version;
            if late.iter().any(is_late) {
                return true;
            }
            let commits = self.log.get(&entry.stream);
            commits.is_some_and(|commits| (1..=commits.len() as u64).contains(&entry.version))
        };
        let named = whole.iter().flat_map(|segment| &segment.entries);
        let claimed = named.clone().find(|entry| !exists(entry) && !wrong.contains(entry));
        ensure!(claimed.is_none(), "{claimed:?} was only claimed, and is in the order");
        let newly: Vec<_> = whole.iter().filter_map(|segment| segment.voids.last()).collect();
        let void = void_entries(&self.store).await?;
        ensure!(
            void == wrong && newly.len() == wrong.len(),
            "void are {void:?} by {newly:?}, and should be {wrong:?}"
        );
        let log = MemoryStore::default();
        for commit in self.log.values().flatten().chain(late) {
            log.append(commit, None).await?;
        }
        let sequence = self.store.clone();
        let reader = Subscription { sequence, log, filter: Filter::default(), limit: 10_000 };
        let page = reader.read_page(Cursor::beginning()).await?;
        let read: BTreeSet<_> = page.delivered.iter().map(|delivered| &delivered.entry).collect();
        ensure!(
            page.complete && read == named.filter(|entry| exists(entry)).collect(),
            "a reader passes over something else than the void entries"
        );
        Ok(())
    }

    /// Reads `$all` at random times while sequencers work, and checks that segments do not change.
    async fn read_concurrently(&self, mut rng: Rng) -> Result<Vec<Segment>> {
        let mut seen: Vec<Segment> = Vec::new();
        for _ in 0..20 {
            sleep(Duration::from_millis(rng.u64(1..2_000))).await;
            let after = rng.u64(0..=seen.len() as u64);
            let Ok((read, _)) = segments(&self.store, after).await else {
                continue;
            };
            for segment in read {
                let place = usize::try_from(segment.number - 1).unwrap_or(usize::MAX);
                match seen.get(place) {
                    Some(known) => {
                        let number = segment.number;
                        ensure!(*known == segment, "segment {number} is another one than before");
                    }
                    None => seen.push(segment),
                }
            }
        }
        Ok(seen)
    }

    async fn read(&self) -> Result<Vec<Segment>> {
        let mut whole = Vec::new();
        loop {
            let after = whole.len() as u64;
            let (read, complete) = segments(&self.store, after).await?;
            whole.extend(read);
            if complete {
                return Ok(whole);
            }
        }
    }

    fn check(&self, whole: &[Segment], read: &[Segment], arrived: &[&Commit]) -> Result<()> {
        ensure!(
            whole.get(..read.len()) == Some(read),
            "the segments that a concurrent reader saw are not the beginning of `$all`"
        );
        let void: BTreeSet<_> = self.wrong.iter().collect();
        let entries: BTreeSet<_> = whole.iter().flat_map(|segment| &segment.entries).collect();
        for Commit { stream, version, .. } in arrived {
            let entry = Entry { stream: stream.clone(), version: *version };
            ensure!(entries.contains(&entry), "{stream} {version} arrived, and no entry names it");
        }
        let named: BTreeSet<_> = self
            .log
            .values()
            .flatten()
            .filter_map(|commit| commit.meta.causation_id.clone())
            .collect();
        let mut positions = BTreeMap::<&StreamId, u64>::new();
        for entry in
            whole.iter().flat_map(|segment| &segment.entries).filter(|entry| !void.contains(entry))
        {
            let commits = self.log.get(&entry.stream);
            let commits = commits.with_context(|| format!("{entry:?} is of no stream"))?;
            let position = positions.get(&entry.stream).copied().unwrap_or_default();
            for commit in commits.iter().skip(usize::try_from(position).unwrap_or_default()) {
                if commit.version > entry.version {
                    break;
                }
                // A commit that was sequenced early, by a later version or as a cause, may precede
                // its own cause.
                let by_its_own_record =
                    commit.version == entry.version && !named.contains(&entry_text(entry));
                let cause =
                    commit.meta.causation_id.as_deref().and_then(|cause| cause.rsplit_once(':'));
                if let Some((stream, version)) = cause.filter(|_| by_its_own_record) {
                    let reached = positions
                        .iter()
                        .find(|(known, _)| known.as_str() == stream)
                        .map_or(0, |(_, at)| *at);
                    ensure!(
                        version.parse().is_ok_and(|version: u64| reached >= version),
                        "{} {} precedes its cause {cause:?}",
                        commit.stream,
                        commit.version
                    );
                }
                positions.insert(&commit.stream, commit.version);
            }
        }
        let complete = self
            .log
            .iter()
            .all(|(stream, commits)| positions.get(stream) == Some(&(commits.len() as u64)));
        ensure!(complete, "not every stream was reached to its end: {positions:?}");
        Ok(())
    }
}

/// An entry without a commit: of a stream that does not exist, or of a version that the stream does
/// not have.
fn forged_entry(log: &BTreeMap<StreamId, Vec<Commit>>, rng: &mut Rng) -> Entry {
    let known = rng.choice(log.iter().collect::<Vec<_>>());
    match known.filter(|_| rng.bool()) {
        Some((stream, commits)) => {
            Entry { stream: stream.clone(), version: commits.len() as u64 + rng.u64(1..4) }
        }
        None => {
            let stream = StreamId::new("tank", &format!("ghost{}", rng.u32(0..3)));
            let stream = stream.unwrap_or_else(|_| unreachable!("the name is in the alphabet"));
            Entry { stream, version: rng.u64(1..4) }
        }
    }
}

/// An entry in the form of a `causation_id`.
fn entry_text(entry: &Entry) -> String {
    format!("{}:{}", entry.stream, entry.version)
}
