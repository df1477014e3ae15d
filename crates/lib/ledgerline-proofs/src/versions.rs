//! Two versions of every function at once, as while a deployment replaces or rolls back one
//! function after the other.
//!
//! Commands, fanout and projectors of both versions, in any mixture, must leave the same rows as
//! the remaining version alone, and no dead letter.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use jiff::civil::Date;
use ledgerline::{
    Aggregate, Aggregates, Changes, ChangesError, Commit, Context, EventLog, EventTypes, LogView,
    Refusal, StateView, StreamId, Visitor, Write, decode,
    testing::tank::{self, Command, Tank},
};
use ledgerline_lambda::{
    commands::{Route, action, create, update},
    stream_records::Handler,
};
use ledgerline_tank::{
    commands::Install,
    views::{FILLS, LEVELS, Level, fill, level},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Effort, Runs, Tried,
    application::{Application, Instance},
    counts::Counts,
    files::Files,
    pipeline::{Pipeline, message, records},
    tank_application::{SITES, Sent, Site, site, tanks},
    world::{World, each_seed},
};

// --- The next version ----------------------------------------------------------------------------

/// A tank whose state also counts the fills. Only a fold yields that number, so older states cannot
/// be upcast.
#[derive(Debug, Clone, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    tank: tank::State,
    fills: u32,
}

/// The events of a version, with their conversion from and to the tank's events.
trait Events: std::fmt::Debug + Send + Sync + 'static {
    type Event: EventTypes
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + PartialEq
        + Send
        + Sync;
    fn write(event: tank::Event) -> Self::Event;
    /// Converts to an event of the tank; `None` for an event that changes nothing about the tank.
    fn read(event: &Self::Event) -> Option<tank::Event>;
}

/// The events of the previous version, so that this version can be rolled back.
#[derive(Debug)]
struct AsBefore;

impl Events for AsBefore {
    type Event = tank::Event;

    fn write(event: tank::Event) -> tank::Event {
        event
    }

    fn read(event: &tank::Event) -> Option<tank::Event> {
        Some(event.clone())
    }
}

ledgerline::events! {
    /// Events that the previous version cannot decode: one has a renamed field, and one is new.
    #[allow(clippy::enum_variant_names, reason = "an event names its aggregate")]
    pub enum NewEvent {
        TankInstalled: 2 [|data| data] { site: String, liquid: String, installed_by: Option<String>, on: Date },
        TankFilled: 2 [litres] { litres: i64, level: i64, note: Option<String>, on: Date },
        TankDrawn: 1 { amount: i64, level: i64, note: Option<String>, on: Date },
        TankMoved: 1 { site: String },
        TankScrapped: 1 { on: Date },
        TankEmptied: 1 { on: Date },
    }
}

/// The upcaster of `TankFilled` from schema 1 to 2.
fn litres(mut data: Value) -> Value {
    let amount = data.as_object_mut().and_then(|fields| fields.remove("amount"));
    data["litres"] = amount.unwrap_or_default();
    data
}

#[derive(Debug)]
struct Changed;

impl Events for Changed {
    type Event = NewEvent;

    fn write(event: tank::Event) -> NewEvent {
        match event {
            tank::Event::TankInstalled { site, liquid, installed_by, on } => {
                NewEvent::TankInstalled { site, liquid, installed_by, on }
            }
            tank::Event::TankFilled { amount, level, note, on } => {
                NewEvent::TankFilled { litres: amount, level, note, on }
            }
            tank::Event::TankDrawn { level: 0, amount: _, note: _, on } => {
                NewEvent::TankEmptied { on }
            }
            tank::Event::TankDrawn { amount, level, note, on } => {
                NewEvent::TankDrawn { amount, level, note, on }
            }
            tank::Event::TankMoved { site } => NewEvent::TankMoved { site },
            tank::Event::TankScrapped { on } => NewEvent::TankScrapped { on },
        }
    }

    fn read(event: &NewEvent) -> Option<tank::Event> {
        Some(match event.clone() {
            NewEvent::TankInstalled { site, liquid, installed_by, on } => {
                tank::Event::TankInstalled { site, liquid, installed_by, on }
            }
            NewEvent::TankFilled { litres, level, note, on } => {
                tank::Event::TankFilled { amount: litres, level, note, on }
            }
            NewEvent::TankDrawn { amount, level, note, on } => {
                tank::Event::TankDrawn { amount, level, note, on }
            }
            NewEvent::TankMoved { site } => tank::Event::TankMoved { site },
            NewEvent::TankScrapped { on } => tank::Event::TankScrapped { on },
            // The event has no amount, so that its row in the list of fills has the amount 0.
            NewEvent::TankEmptied { on } => {
                tank::Event::TankDrawn { amount: 0, level: 0, note: None, on }
            }
        })
    }
}

/// The next version of the tank, with these events.
#[derive(Debug)]
struct Next<E>(std::marker::PhantomData<E>);

impl<E: Events> Aggregate for Next<E> {
    const CATEGORY: &'static str = Tank::CATEGORY;
    const STATE_SCHEMA: u32 = Tank::STATE_SCHEMA + 1;
    const REFUSALS: &'static [Refusal] = Tank::REFUSALS;

    type State = Counted;
    type Event = E::Event;
    type Command = Command;

    fn evolve(state: Counted, event: &E::Event) -> Counted {
        let Some(event) = E::read(event) else { return state };
        let fills = state.fills + u32::from(matches!(event, tank::Event::TankFilled { .. }));
        Counted { tank: Tank::evolve(state.tank, &event), fills }
    }

    fn decide(
        state: &Counted,
        command: &Command,
        context: &Context,
    ) -> Result<Vec<E::Event>, Refusal> {
        Ok(Tank::decide(&state.tank, command, context)?.into_iter().map(E::write).collect())
    }
}

impl<E: Events> Aggregates for Next<E> {
    fn visit(visitor: &mut impl Visitor) {
        visitor.visit::<Self>();
    }
}

fn next_fills<E: Events>(commit: &Commit) -> Result<Changes, ChangesError> {
    let mut changes = Changes::new(FILLS);
    for (place, event) in commit.events.iter().enumerate() {
        if let Some(event) = E::read(&decode::<Next<E>>(event)?) {
            fill(commit, place, &event, &mut changes)?;
        }
    }
    Ok(changes)
}

fn next_routes<E: Events>() -> Vec<Route<Next<E>>> {
    fn answer(_: &StreamId, state: &Counted, version: u64) -> Value {
        json!({ "version": version, "level": state.tank.level(), "fills": state.fills })
    }
    vec![
        create(
            "POST /tanks",
            |Install { tank_id, site, liquid }| (tank_id, Command::Install { site, liquid }),
            answer,
        ),
        update("POST /tanks/{id}/fills", Command::Fill, answer),
        update("POST /tanks/{id}/draws", Command::Draw, answer),
        action("POST /tanks/{id}/scrap", || Command::Scrap, answer),
    ]
}

fn next<E: Events>() -> Application {
    fn next_level(id: &str, version: u64, state: Counted) -> Option<Level> {
        level(id, version, state.tank)
    }
    fn next_site(id: &str, version: u64, state: Counted) -> Option<Site> {
        site(id, version, state.tank)
    }
    let fills = LogView {
        table: FILLS,
        of: &[Tank::CATEGORY],
        writes: &[Write::Put, Write::Update],
        changes: next_fills::<E>,
    };
    let [shapes, events, answers] = [&[], &[], &[]].map(|files| Files::Embedded(files));
    Application::from_files::<Next<E>>("tanks, the next version", shapes, events, answers)
        .commands::<Next<E>>("tank-commands", next_routes::<E>)
        .state_projector("LevelsTable", StateView::<Next<E>, _> { table: LEVELS, row: next_level })
        .state_projector(
            "SitesTable",
            StateView::<Next<E>, _> { table: SITES.table, row: next_site },
        )
        .log_projector("FillsTable", fills)
}

// --- A rollout -----------------------------------------------------------------------------------

/// Which version remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rollout {
    /// The next version remains. The previous version cannot decode its events.
    Forward,
    /// The previous version remains: the next one is rolled back. It has other states, but the same
    /// events.
    Back,
}

const COMMANDS: &str = "commands";
const COMMITS: &str = "commits";
const RETRIES: &str = "retried deliveries";

/// The rollouts of each kind.
const RUNS: Runs = Runs { least: 60, seconds: 4, long: 2_000 };

/// Plays rollouts. Fails if rows are not those of the fold by the remaining version, or if a commit,
/// state or message is never delivered.
pub(crate) fn proof(effort: &Effort, _: &Application) -> Result<Tried> {
    let rollouts = [Rollout::Forward, Rollout::Back].map(|rollout| {
        let (replaced, remaining) = match rollout {
            Rollout::Forward => (tanks(), next::<Changed>()),
            Rollout::Back => (next::<AsBefore>(), tanks()),
        };
        let play = |world: &mut World, seed| {
            let mixture = Mixture::new(world, &replaced, &remaining, seed, rollout);
            world.runtime.block_on(mixture.play()).with_context(|| format!("{rollout:?}"))
        };
        each_seed(effort, &RUNS, || World::new(&tanks().tables()), play)
    });
    let [forward, back] = rollouts;
    let (forward, back) = (forward?, back?);
    forward.ensure_tried(effort, &RUNS, &[COMMITS, RETRIES])?;
    back.ensure_tried(effort, &RUNS, &[COMMITS])?;
    let runs = forward.runs + back.runs;
    Ok(Tried::new(runs, "rollouts", format!("forward {forward}; back {back}")))
}

/// A message in a queue: its group and its body.
type Message = (String, String);

/// Functions of two versions, with the same tables and queues.
struct Mixture<'a> {
    world: &'a World,
    rng: Rng,
    rollout: Rollout,
    /// The instances of the command function: of the replaced version, and of the remaining one.
    instances: [Instance; 2],
    pipelines: [Pipeline; 2],
    tanks: Vec<String>,
    log: BTreeMap<String, Vec<Commit>>,
    pending: Vec<Commit>,
    states: Vec<Value>,
    queue: VecDeque<Message>,
    /// The percentage of choices for the remaining version.
    replaced: u32,
    counts: Counts,
}

impl<'a> Mixture<'a> {
    fn new(
        world: &'a World,
        replaced: &Application,
        remaining: &Application,
        seed: u64,
        rollout: Rollout,
    ) -> Self {
        fastrand::seed(seed);
        let wire = &world.wire;
        let instance = |application: &Application| (application.commands[0].instance)(Some(wire));
        Self {
            world,
            rng: Rng::with_seed(seed),
            // The ids have the form that the API demands.
            tanks: (0..2).map(|number| format!("{number:08}-0000-4000-8000-{seed:012}")).collect(),
            rollout,
            instances: [instance(replaced), instance(remaining)],
            pipelines: [replaced.pipeline_at(wire), remaining.pipeline_at(wire)],
            log: BTreeMap::new(),
            pending: Vec::new(),
            states: Vec::new(),
            queue: VecDeque::new(),
            replaced: 0,
            counts: Counts::default(),
        }
    }

    /// Chooses the version for the next delivery: 0 is the replaced one, 1 the remaining one.
    fn choose_version(&mut self) -> usize {
        usize::from(self.rng.u32(0..100) < self.replaced)
    }

    /// Whether the version may fail on commits of this stream: the replaced version cannot decode
    /// all events of the remaining one. It must not fail on any other stream.
    fn may_fail(&self, version: usize, stream: &str) -> bool {
        let commits = self.log.get(stream.trim_start_matches("tank-")).into_iter().flatten();
        let mut events = commits.flat_map(|commit| &commit.events);
        version == 0
            && self.rollout == Rollout::Forward
            && events.any(|event| decode::<Tank>(event).is_err())
    }

    async fn play(mut self) -> Result<Counts> {
        let steps = self.rng.u32(20..80);
        for step in 0..steps {
            // At first no function is replaced, at the end all are.
            self.replaced = (step * 150 / steps).min(100);
            match self.rng.u32(0..8) {
                0..=2 => self.command().await?,
                3..=4 => self.pass_on().await,
                5..=6 => self.project().await?,
                _ => self.consume().await?,
            }
        }
        self.replaced = 100;
        for _ in 0..100 {
            self.pass_on().await;
            self.project().await?;
            self.consume().await?;
        }
        let letters =
            self.world.wire.services().take_messages("http://wire.invalid/dead-letters").len();
        let commits = self.pending.len();
        let states = self.states.len();
        let queue = self.queue.len();
        ensure!(
            commits + states + queue + letters == 0,
            "{commits} commits, {states} states and {queue} messages do not get through, {letters} dead letters"
        );
        let remaining = &self.pipelines[1];
        let streams: Vec<_> = self.log.values().cloned().collect();
        let expected = remaining.fold(&streams)?;
        let found = remaining.take_rows(&self.world.wire.dynamodb()).await?;
        ensure!(
            found == expected,
            "rows differ from the fold\n  are       {found:?}\n  should be {expected:?}"
        );
        Ok(self.counts)
    }

    /// Sends a command to one of the tanks. A command that is answered with success must be in the
    /// log.
    async fn command(&mut self) -> Result<()> {
        let tank = self.tanks[self.rng.usize(0..self.tanks.len())].clone();
        let amount = json!({ "amount": self.rng.i64(1..20) });
        let (route, body) = match self.rng.u32(0..9) {
            0..=1 => ("POST /tanks", json!({ "tankId": tank, "site": "North", "liquid": "water" })),
            2..=5 => ("POST /tanks/{id}/fills", amount),
            6..=7 => ("POST /tanks/{id}/draws", amount),
            _ => ("POST /tanks/{id}/scrap", json!({})),
        };
        let version = self.choose_version();
        let sent = Sent {
            route,
            tank: tank.clone(),
            body,
            key: self.rng.bool().then(|| self.rng.u64(..).to_string()),
        };
        let request = sent.request();
        let answer = (self.instances[version])(request).await;
        self.counts.add(COMMANDS, 1);
        match answer.status.as_u16() {
            200..300 => {
                let body = answer.body.as_ref().map(ToString::to_string).unwrap_or_default();
                let body: Value = serde_json::from_str(&body).unwrap_or_default();
                let stream = Tank::stream(&tank)?;
                let version = body["version"].as_u64().unwrap_or_default();
                let commits = self.log.entry(tank).or_default();
                if version == commits.len() as u64 {
                    // The command changed nothing.
                    return Ok(());
                }
                let commit = self.world.store().get(&stream, version).await?;
                let commit = commit.filter(|_| version == commits.len() as u64 + 1);
                let commit = commit.with_context(|| {
                    format!("told of version {version} after {}", commits.len())
                })?;
                self.counts.add(COMMITS, 1);
                // Larger commits have no states, so each commit may be delivered without its state.
                let state = commit.state.clone().filter(|_| self.rng.bool());
                self.pending.push(Commit { state, ..commit.clone() });
                commits.push(commit);
                Ok(())
            }
            400..500 => Ok(()),
            503 if self.may_fail(version, &tank) => Ok(()),
            status => bail!("{status} for {sent:?}"),
        }
    }

    async fn pass_on(&mut self) {
        self.rng.shuffle(&mut self.pending);
        let size = self.rng.usize(1..=10).min(self.pending.len());
        let batch = self.pending.split_off(self.pending.len() - size);
        if batch.is_empty() {
            return;
        }
        let records = records(&batch);
        let version = self.choose_version();
        if let Some(failed) = self.pipelines[version].fanout.handle(&records).await {
            self.counts.add(RETRIES, 1);
            self.pending.extend_from_slice(&batch[failed..]);
        }
        let services = self.world.wire.services();
        self.states.extend(services.take_states());
        let url = &self.pipelines[version].logged[0].url;
        self.queue.extend(
            services.take_messages(url).into_iter().map(|queued| (queued.group, queued.body)),
        );
    }

    /// Lambda delivers a state to each function of its category. A failed state is retried.
    async fn project(&mut self) -> Result<()> {
        if self.states.is_empty() {
            return Ok(());
        }
        let entry = self.states.swap_remove(self.rng.usize(0..self.states.len()));
        let stream = entry["stream"].as_str().unwrap_or_default();
        let mut failed = false;
        for view in 0..self.pipelines[0].stateful.len() {
            let version = self.choose_version();
            let projected = self.pipelines[version].stateful[view].project(entry.clone()).await;
            if let Err(error) = projected {
                ensure!(self.may_fail(version, stream), "a state of {stream} fails: {error}");
                failed = true;
            }
        }
        if failed {
            self.counts.add(RETRIES, 1);
            self.states.push(entry);
        }
        Ok(())
    }

    /// A queue delivers a batch. A failed message returns to the head of its group.
    async fn consume(&mut self) -> Result<()> {
        let taken: Vec<_> = self.queue.drain(..self.queue.len().min(10)).collect();
        let messages: Vec<_> = taken
            .iter()
            .enumerate()
            .map(|(place, (group, body))| message(&place.to_string(), group, body, 1))
            .collect();
        let version = self.choose_version();
        let response = self.pipelines[version].logged[0].runner.batch(&messages).await;
        for failure in response.batch_item_failures.iter().rev() {
            self.counts.add(RETRIES, 1);
            let place: usize = failure.item_identifier.parse().unwrap_or_default();
            let (group, body) = &taken[place];
            ensure!(self.may_fail(version, group), "a message of {group} fails: {body}");
            self.queue.push_front(taken[place].clone());
        }
        Ok(())
    }
}
