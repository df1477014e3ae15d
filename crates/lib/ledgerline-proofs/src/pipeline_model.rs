//! A model of the whole pipeline: one or two streams of three commands, two writers for each
//! stream, and a fault at any step.

use anyhow::Result;
use stateright::{Model, Property};

use crate::{
    Application, Effort, Tried,
    exploration::{Guarded, need_all_guards, visit_all_states},
};

/// The number of commands of a stream: two of the first writer, and one of the second writer.
const COMMANDS: usize = 3;

/// A guard that protects the pipeline. The model can leave one out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Guard {
    /// Rule 2: an append succeeds only at the version after the last.
    AppendCondition,
    /// Rule 4: a writer that finds the version taken checks whether its own command took it.
    OwnCommand,
    /// Rule 6: a writer that is about to refuse repeats the read with strong consistency.
    StrongRefusal,
    /// Rule 7: a version at or below the position is skipped.
    Skip,
    /// Rule 7: the versions between the position and a newer version are read from the log.
    GapRepair,
    /// Rule 8: only a newer version overwrites a row.
    NewerOnly,
    /// Rule 9: one write has both row and position.
    OneWrite,
    /// Rule 9: if a commit inserts rows, the last of them moves the position, and no earlier row
    /// does.
    LastRow,
    /// Rule 10: an entry that failed is sent again, even if the call was answered with success.
    FailedEntries,
    /// Rule 11: a message that exceeds its attempts becomes a dead letter.
    DeadLetters,
}

/// Visits all states of the model, and the model without each guard.
pub(crate) fn proof(effort: &Effort, _: &Application) -> Result<Tried> {
    // Two streams with many faults have more states than a laptop visits in minutes.
    let sizes: &[(usize, u8)] = if effort.long { &[(2, 1), (1, 3)] } else { &[(1, 2)] };
    let models = sizes.iter().map(|(streams, faults)| Pipeline {
        without: None,
        streams: *streams,
        faults: *faults,
    });
    let (mut states, mut visited) = (0, Vec::new());
    for model in models.clone() {
        let (unique, transitions) = visit_all_states(&model)?;
        states += unique;
        let Pipeline { streams, faults, .. } = model;
        visited.push(format!(
            "{streams} of {COMMANDS} commits and up to {faults} faults: {unique} states, {transitions} transitions"
        ));
    }
    let violations =
        models.take(1).map(|model| need_all_guards(&model)).collect::<Result<String>>();
    let beside = format!("streams: {}; {}", visited.join(", "), violations?);
    Ok(Tried::new(states as u64, "states, all there are", beside))
}

#[derive(Clone)]
struct Pipeline {
    without: Option<Guard>,
    streams: usize,
    /// The number of faults that may happen in one run.
    faults: u8,
}

/// One of the two writers of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    /// The remaining commands of the writer, the next one first.
    commands: Vec<u8>,
    /// The head of the stream in the writer's cache.
    believes: u8,
}

/// A stream, and everything behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Stream {
    /// The commands in the log, by version.
    log: Vec<u8>,
    writers: [Writer; 2],
    /// The version with which each command was acknowledged.
    acknowledged: [Option<u8>; COMMANDS],
    refused_wrongly: bool,
    /// The versions whose records the fanout still has to pass on.
    pending: Vec<u8>,
    /// The versions of the entries on the bus.
    entries: Vec<u8>,
    /// The versions of the messages in the queue, in order.
    queue: Vec<u8>,
    /// The versions in the deduplication window of the queue.
    known: Vec<u8>,
    dead: Vec<u8>,
    /// The version in the row of the state projector, and whether an older version ever overwrote
    /// it.
    shown: u8,
    went_back: bool,
    /// The versions that the log projector applied, and its position.
    applied: Vec<u8>,
    position: u8,
    /// The commits with rows of the log projector that inserts rows, and its position.
    inserted: Vec<u8>,
    booked: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    streams: Vec<Stream>,
    faults_left: u8,
}

/// A step of one stream.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    stream: usize,
    action: Action,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    /// A writer decides and appends.
    Append(usize),
    /// The same, but the reply is lost.
    AppendReplyLost(usize),
    /// The fanout passes a record on. It may be any record, because the records of different items
    /// have no order (rule 7).
    PassOn(u8),
    /// The fanout crashes between the bus and the queue.
    PassOnHalf(u8),
    /// The fanout crashes before it acknowledges the record.
    PassOnAgain(u8),
    /// The queue refuses the entry, and the call is answered with success.
    QueueRefuses(u8),
    /// The deduplication window ends.
    Forget,
    /// The bus delivers any one of its entries.
    Project(u8),
    /// The bus delivers an entry, and will redeliver it.
    ProjectAgain(u8),
    /// The queue delivers its first message.
    Consume,
    /// The queue delivers its first message, and will redeliver it.
    ConsumeAgain,
    /// The projector crashes after its first write.
    ConsumeHalf,
    /// The first message exceeds its attempts and leaves the queue.
    GiveUp,
    /// An operator redrives the dead letters.
    Redrive,
}

impl Action {
    fn is_fault(&self) -> bool {
        use Action::{Append, Consume, PassOn, Project, Redrive};
        !matches!(self, Append(_) | PassOn(_) | Project(_) | Consume | Redrive)
    }
}

impl Guarded for Pipeline {
    type Guard = Guard;
    const GUARDS: &'static [Guard] = &[
        Guard::AppendCondition,
        Guard::OwnCommand,
        Guard::StrongRefusal,
        Guard::Skip,
        Guard::GapRepair,
        Guard::NewerOnly,
        Guard::OneWrite,
        Guard::LastRow,
        Guard::FailedEntries,
        Guard::DeadLetters,
    ];

    fn leave_out(self, guard: Guard) -> Self {
        Self { without: Some(guard), ..self }
    }

    /// Two states that differ only in the order of the streams count as one.
    fn representative(state: &State) -> State {
        let mut state = state.clone();
        state.streams.sort_unstable();
        state
    }
}

impl Pipeline {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    fn act(&self, stream: &mut Stream, action: Action) {
        match action {
            Action::Append(writer) => self.append(stream, writer, false),
            Action::AppendReplyLost(writer) => self.append(stream, writer, true),
            Action::PassOn(version) => {
                self.send(stream, version);
                remove(&mut stream.pending, version);
            }
            Action::PassOnAgain(version) => self.send(stream, version),
            Action::PassOnHalf(version) => insert(&mut stream.entries, version),
            Action::QueueRefuses(version) => {
                insert(&mut stream.entries, version);
                if !self.has(Guard::FailedEntries) {
                    remove(&mut stream.pending, version);
                }
            }
            Action::Forget => {
                // Any record may be redelivered: the stream retains records for a day, longer than
                // the deduplication window.
                stream.known.clear();
                for version in 1..=stream.log.len() as u8 {
                    insert(&mut stream.pending, version);
                }
            }
            Action::Project(version) => {
                remove(&mut stream.entries, version);
                self.project(stream, version);
            }
            Action::ProjectAgain(version) => self.project(stream, version),
            Action::Consume => {
                let version = stream.queue.remove(0);
                self.consume(stream, version, false);
            }
            Action::ConsumeAgain => self.consume(stream, stream.queue[0], false),
            Action::ConsumeHalf => self.consume(stream, stream.queue[0], true),
            Action::GiveUp => {
                let version = stream.queue.remove(0);
                if self.has(Guard::DeadLetters) {
                    insert(&mut stream.dead, version);
                }
            }
            Action::Redrive => {
                let dead = std::mem::take(&mut stream.dead);
                stream.queue.extend(dead);
            }
        }
    }

    fn append(&self, stream: &mut Stream, number: usize, reply_lost: bool) {
        let len = stream.log.len() as u8;
        let writer = &mut stream.writers[number];
        let Some(command) = writer.commands.first().copied() else { return };
        // The command of the second writer is refused while the writer's cache has an empty stream.
        if number == 1 && writer.believes == 0 {
            if self.has(Guard::StrongRefusal) && len > 0 {
                writer.believes = len;
            } else {
                stream.refused_wrongly |= len > 0;
                writer.commands.remove(0);
            }
            return;
        }
        let version = writer.believes + 1;
        let place = usize::from(writer.believes);
        let done = match stream.log.get(place).copied() {
            Some(_) if !self.has(Guard::AppendCondition) => {
                stream.log[place] = command;
                insert(&mut stream.pending, version);
                true
            }
            Some(taken_by) if taken_by == command && self.has(Guard::OwnCommand) => true,
            Some(_) => {
                // The writer lost the race. It decides again on the newest state.
                writer.believes = len;
                return;
            }
            None => {
                stream.log.push(command);
                insert(&mut stream.pending, version);
                true
            }
        };
        if done && !reply_lost {
            stream.acknowledged[usize::from(command)] = Some(version);
            writer.commands.remove(0);
            writer.believes = version;
        }
    }

    /// Sends a version to the bus and to the queue.
    fn send(&self, stream: &mut Stream, version: u8) {
        insert(&mut stream.entries, version);
        if !stream.known.contains(&version) {
            insert(&mut stream.known, version);
            stream.queue.push(version);
        }
    }

    fn project(&self, stream: &mut Stream, version: u8) {
        if version > stream.shown || !self.has(Guard::NewerOnly) {
            stream.went_back |= version < stream.shown;
            stream.shown = version;
        }
    }

    /// Applies a version. With `half`, a crash separates the row from the position, unless one
    /// write has both.
    fn apply(&self, stream: &mut Stream, version: u8, half: bool) {
        stream.applied.push(version);
        if !half || self.has(Guard::OneWrite) {
            stream.position = version;
        }
    }

    /// Inserts the rows of a version; the last row moves the position. With `half`, a crash follows
    /// the first row.
    fn book(&self, stream: &mut Stream, version: u8, half: bool) {
        if !half || self.has(Guard::LastRow) {
            insert(&mut stream.inserted, version);
        }
        if !half || !self.has(Guard::LastRow) {
            stream.booked = version;
        }
    }

    /// Delivers a version to both log projectors. They crash at the same time, so that the same
    /// faults lead to fewer states.
    fn consume(&self, stream: &mut Stream, version: u8, half: bool) {
        if version > stream.booked || !self.has(Guard::Skip) {
            let from =
                if self.has(Guard::GapRepair) { (stream.booked + 1).min(version) } else { version };
            let until = if half { from } else { version };
            (from..=until).for_each(|version| self.book(stream, version, half));
        }
        if version <= stream.position && self.has(Guard::Skip) {
            return;
        }
        let from =
            if self.has(Guard::GapRepair) { (stream.position + 1).min(version) } else { version };
        for version in from..=version {
            self.apply(stream, version, half);
            if half {
                return;
            }
        }
    }
}

impl Stream {
    fn keeps_acknowledged(&self) -> bool {
        let has = |version: u8, command| self.log.get(usize::from(version) - 1) == Some(&command);
        let mut acknowledged = (0..).zip(&self.acknowledged);
        acknowledged.all(|(command, version)| version.is_none_or(|version| has(version, command)))
    }

    /// The actions that are possible next, faults included.
    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, _) in
            self.writers.iter().enumerate().filter(|(_, writer)| !writer.commands.is_empty())
        {
            actions.extend([Action::Append(number), Action::AppendReplyLost(number)]);
        }
        for version in self.pending.iter().copied() {
            actions.extend([Action::PassOn(version), Action::PassOnHalf(version)]);
            actions.extend([Action::PassOnAgain(version), Action::QueueRefuses(version)]);
        }
        for version in self.entries.iter().copied() {
            actions.extend([Action::Project(version), Action::ProjectAgain(version)]);
        }
        if !self.queue.is_empty() {
            actions.extend([Action::Consume, Action::ConsumeAgain]);
            actions.extend([Action::ConsumeHalf, Action::GiveUp]);
        }
        actions.extend((!self.known.is_empty()).then_some(Action::Forget));
        actions.extend((!self.dead.is_empty()).then_some(Action::Redrive));
        actions
    }
}

/// Inserts into a sorted list without duplicates, so that equal sets are equal states.
fn insert(set: &mut Vec<u8>, version: u8) {
    if let Err(place) = set.binary_search(&version) {
        set.insert(place, version);
    }
}

fn remove(set: &mut Vec<u8>, version: u8) {
    set.retain(|other| *other != version);
}

impl Model for Pipeline {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let writers = [vec![0, 1], vec![2]].map(|commands| Writer { commands, believes: 0 });
        let stream = Stream { writers, ..Stream::default() };
        vec![State { streams: vec![stream; self.streams], faults_left: self.faults }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, stream) in state.streams.iter().enumerate() {
            let actions = stream.actions().into_iter();
            let possible = actions.filter(|action| state.faults_left > 0 || !action.is_fault());
            steps.extend(possible.map(|action| Step { stream: number, action }));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        next.faults_left -= u8::from(step.action.is_fault());
        self.act(&mut next.streams[step.stream], step.action);
        Some(next).filter(|next| next != state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        /// A property of each stream.
        macro_rules! every {
            ($kind:ident $name:literal $holds:expr) => {
                Property::$kind($name, |_, state: &State| state.streams.iter().all($holds))
            };
        }
        vec![
            every!(always "rule 2: what was acknowledged stays in the log" Stream::keeps_acknowledged),
            every!(always "rule 4: no command is in the log twice" |stream| {
                let count = |id| stream.log.iter().filter(|command| **command == id).count();
                (0..COMMANDS as u8).all(|id| count(id) <= 1)
            }),
            every!(always "rule 6: nothing is refused that was there" |stream| !stream.refused_wrongly),
            every!(always "rule 7: a log consumer applies each commit once, in order" |stream| {
                stream.applied.iter().copied().eq(1..=stream.applied.len() as u8)
            }),
            every!(always "rule 8: a row never goes back" |stream| !stream.went_back),
            every!(always "rule 9: the position is that of the rows" |stream| {
                usize::from(stream.position) == stream.applied.len()
            }),
            every!(always "rule 9: rows that are inserted are those up to the position, and at most the next one" |stream| {
                let rows = stream.inserted.len() as u8;
                stream.inserted.iter().copied().eq(1..=rows)
                    && (stream.booked..=stream.booked + 1).contains(&rows)
            }),
            every!(always "rule 11: when all is quiet, nothing is lost" |stream| {
                let waiting = [&stream.pending, &stream.entries, &stream.queue, &stream.dead];
                let shown =
                    [usize::from(stream.shown), stream.applied.len(), stream.inserted.len()];
                waiting.iter().any(|list| !list.is_empty()) || shown == [stream.log.len(); 3]
            }),
            // A model that never finishes would violate no invariant, and so would prove nothing.
            every!(sometimes "all is done" |stream| {
                [stream.applied.len(), usize::from(stream.shown)] == [COMMANDS; 2]
            }),
        ]
    }
}
