//! A model of the whole pipeline. It is small enough to visit all of its states: one or two streams
//! of three commands, two writers for each stream, and a fault at any step.
//!
//! The rules are the invariants of the model. Without any one guard, an invariant must be violated.
//! A guard that no invariant needs would show that the model is too weak.

use std::thread;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

use crate::{Application, Effort, Finding, Tried};

/// The number of commands of a stream: two of the first writer, and one of the second writer.
const COMMANDS: usize = 3;

/// A guard that protects the pipeline. The model can leave one out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guard {
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

const GUARDS: [Guard; 10] = [
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

/// Visits all states of the model. Then, for each guard, visits the model without it until an
/// invariant is violated.
///
/// # Errors
/// When an invariant is violated with all guards, or holds without one of them.
pub fn proof(effort: &Effort, _: &Application) -> Result<Tried, Finding> {
    let finding = |story: String| Finding { seed: effort.seed, story };
    // Two streams with many faults have more states than a laptop visits in minutes.
    let sizes: &[(usize, u8)] = if effort.long { &[(2, 1), (1, 3)] } else { &[(1, 2)] };
    let (mut states, mut visited) = (0, Vec::new());
    for (streams, faults) in sizes.iter().copied() {
        let (unique, transitions) =
            exhaust(Pipeline { without: None, streams, faults }).map_err(finding)?;
        states += unique;
        visited.push(format!(
            "{streams} of {COMMANDS} commits and up to {faults} faults: {unique} states, {transitions} transitions"
        ));
    }
    let mut found = Vec::new();
    for guard in GUARDS {
        let (streams, faults) = sizes[0];
        let without = Pipeline { without: Some(guard), streams, faults };
        found.push(
            fall(without)
                .ok_or_else(|| finding(format!("nothing goes wrong without {guard:?}")))?,
        );
    }
    let beside = format!("streams: {}; {}", visited.join(", "), found.join("; "));
    Ok(Tried::new(states as u64, "states, all there are", beside))
}

/// Visits all states. The result is the number of states, and the number of transitions to them.
fn exhaust(whole: Pipeline) -> Result<(usize, usize), String> {
    // Two states that differ only in the order of the streams count as one.
    let either_way = |state: &State| {
        let mut state = state.clone();
        state.streams.sort_unstable();
        state
    };
    let checker = whole.checker().threads(threads()).symmetry_fn(either_way).spawn_dfs().join();
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (Expectation::Sometimes, None) => return Err(format!("never: {}", property.name)),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => return Err(format!("{}: {:?}", property.name, path.into_actions())),
        }
    }
    Ok((checker.unique_state_count(), checker.state_count()))
}

/// The first invariant that is violated without a guard, and the number of steps to the violation;
/// `None` if all hold.
fn fall(without: Pipeline) -> Option<String> {
    let guard = without.without?;
    let checker = without
        .checker()
        .threads(threads())
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    checker.model().properties().iter().find_map(|property| {
        let path = checker
            .discovery(property.name)
            .filter(|_| property.expectation == Expectation::Always)?;
        Some(format!(
            "without {guard:?}: {}, after {} steps",
            property.name,
            path.into_actions().len()
        ))
    })
}

pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

struct Pipeline {
    without: Option<Guard>,
    streams: usize,
    /// The number of faults that may happen in one run.
    faults: u8,
}

/// One of the two writers of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writer {
    /// The remaining commands of the writer, the next one first.
    commands: Vec<u8>,
    /// The head of the stream in the writer's cache.
    believes: u8,
}

/// A stream, and everything behind it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// A writer decides and appends.
    Append(usize, usize),
    /// The same, but the reply is lost.
    AppendReplyLost(usize, usize),
    /// The fanout passes a record on. It may be any record, because the records of different items
    /// have no order (rule 7).
    PassOn(usize, u8),
    /// The fanout crashes between the bus and the queue.
    PassOnHalf(usize, u8),
    /// The fanout crashes before it acknowledges the record.
    PassOnAgain(usize, u8),
    /// The queue refuses the entry, and the call is answered with success.
    QueueRefuses(usize, u8),
    /// The deduplication window ends.
    Forget(usize),
    /// The bus delivers any one of its entries.
    Project(usize, u8),
    /// The bus delivers an entry, and will redeliver it.
    ProjectAgain(usize, u8),
    /// The queue delivers its first message.
    Consume(usize),
    /// The queue delivers its first message, and will redeliver it.
    ConsumeAgain(usize),
    /// The projector crashes after its first write.
    ConsumeHalf(usize),
    /// The first message exceeds its attempts and leaves the queue.
    GiveUp(usize),
    /// An operator redrives the dead letters.
    Redrive(usize),
}

impl Pipeline {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
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

    fn send(&self, stream: &mut Stream, version: u8) {
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
        let stream = Stream {
            log: Vec::new(),
            writers: [vec![0, 1], vec![2]].map(|commands| Writer { commands, believes: 0 }),
            acknowledged: [None; COMMANDS],
            refused_wrongly: false,
            pending: Vec::new(),
            entries: Vec::new(),
            queue: Vec::new(),
            known: Vec::new(),
            dead: Vec::new(),
            shown: 0,
            went_back: false,
            applied: Vec::new(),
            position: 0,
            inserted: Vec::new(),
            booked: 0,
        };
        vec![State { streams: vec![stream; self.streams], faults_left: self.faults }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let faults = state.faults_left > 0;
        for (s, stream) in state.streams.iter().enumerate() {
            for (w, _) in
                stream.writers.iter().enumerate().filter(|(_, writer)| !writer.commands.is_empty())
            {
                steps.push(Step::Append(s, w));
                steps.extend(faults.then_some(Step::AppendReplyLost(s, w)));
            }
            for version in stream.pending.iter().copied() {
                steps.push(Step::PassOn(s, version));
                if faults {
                    steps.extend([Step::PassOnHalf(s, version), Step::PassOnAgain(s, version)]);
                    steps.push(Step::QueueRefuses(s, version));
                }
            }
            for version in stream.entries.iter().copied() {
                steps.push(Step::Project(s, version));
                steps.extend(faults.then_some(Step::ProjectAgain(s, version)));
            }
            if !stream.queue.is_empty() {
                steps.push(Step::Consume(s));
                if faults {
                    steps.extend([Step::ConsumeAgain(s), Step::ConsumeHalf(s), Step::GiveUp(s)]);
                }
            }
            steps.extend((faults && !stream.known.is_empty()).then_some(Step::Forget(s)));
            steps.extend((!stream.dead.is_empty()).then_some(Step::Redrive(s)));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        let (fault, s) = match step {
            Step::Append(s, _)
            | Step::PassOn(s, _)
            | Step::Project(s, _)
            | Step::Consume(s)
            | Step::Redrive(s) => (false, s),
            Step::AppendReplyLost(s, _)
            | Step::PassOnHalf(s, _)
            | Step::PassOnAgain(s, _)
            | Step::QueueRefuses(s, _)
            | Step::Forget(s)
            | Step::ProjectAgain(s, _)
            | Step::ConsumeAgain(s)
            | Step::ConsumeHalf(s)
            | Step::GiveUp(s) => (true, s),
        };
        next.faults_left -= u8::from(fault);
        let stream = &mut next.streams[s];
        match step {
            Step::Append(_, writer) => self.append(stream, writer, false),
            Step::AppendReplyLost(_, writer) => self.append(stream, writer, true),
            Step::PassOn(_, version) => {
                insert(&mut stream.entries, version);
                self.send(stream, version);
                remove(&mut stream.pending, version);
            }
            Step::PassOnHalf(_, version) => insert(&mut stream.entries, version),
            Step::PassOnAgain(_, version) => {
                insert(&mut stream.entries, version);
                self.send(stream, version);
            }
            Step::QueueRefuses(_, version) => {
                insert(&mut stream.entries, version);
                if !self.has(Guard::FailedEntries) {
                    remove(&mut stream.pending, version);
                }
            }
            Step::Forget(_) => {
                // Any record may be redelivered: the stream retains records for a day, longer than
                // the deduplication window.
                stream.known.clear();
                for version in 1..=stream.log.len() as u8 {
                    insert(&mut stream.pending, version);
                }
            }
            Step::Project(_, version) => {
                remove(&mut stream.entries, version);
                self.project(stream, version);
            }
            Step::ProjectAgain(_, version) => self.project(stream, version),
            Step::Consume(_) => {
                let version = stream.queue.remove(0);
                self.consume(stream, version, false);
            }
            Step::ConsumeAgain(_) => {
                let version = stream.queue[0];
                self.consume(stream, version, false);
            }
            Step::ConsumeHalf(_) => {
                let version = stream.queue[0];
                self.consume(stream, version, true);
            }
            Step::GiveUp(_) => {
                let version = stream.queue.remove(0);
                if self.has(Guard::DeadLetters) {
                    insert(&mut stream.dead, version);
                }
            }
            Step::Redrive(_) => {
                let dead = std::mem::take(&mut stream.dead);
                stream.queue.extend(dead);
            }
        }
        Some(next).filter(|next| next != state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn every(state: &State, holds: impl Fn(&Stream) -> bool) -> bool {
            state.streams.iter().all(holds)
        }
        vec![
            Property::always(
                "rule 2: what was acknowledged stays in the log",
                |_, state: &State| {
                    every(state, |stream| {
                        let mut acknowledged = (0..).zip(&stream.acknowledged);
                        acknowledged.all(|(command, version)| {
                            version.is_none_or(|version| {
                                stream.log.get(usize::from(version) - 1) == Some(&command)
                            })
                        })
                    })
                },
            ),
            Property::always("rule 4: no command is in the log twice", |_, state: &State| {
                every(state, |stream| {
                    (0..COMMANDS as u8)
                        .all(|id| stream.log.iter().filter(|c| **c == id).count() <= 1)
                })
            }),
            Property::always("rule 6: nothing is refused that was there", |_, state: &State| {
                every(state, |stream| !stream.refused_wrongly)
            }),
            Property::always(
                "rule 7: a log consumer applies each commit once, in order",
                |_, state: &State| {
                    every(state, |stream| {
                        stream.applied.iter().copied().eq(1..=stream.applied.len() as u8)
                    })
                },
            ),
            Property::always("rule 8: a row never goes back", |_, state: &State| {
                every(state, |stream| !stream.went_back)
            }),
            Property::always("rule 9: the position is that of the rows", |_, state: &State| {
                every(state, |stream| usize::from(stream.position) == stream.applied.len())
            }),
            Property::always(
                "rule 9: rows that are inserted are those up to the position, and at most the next one",
                |_, state: &State| {
                    every(state, |stream| {
                        let rows = stream.inserted.len() as u8;
                        stream.inserted.iter().copied().eq(1..=rows)
                            && (stream.booked..=stream.booked + 1).contains(&rows)
                    })
                },
            ),
            Property::always("rule 11: when all is quiet, nothing is lost", |_, state: &State| {
                every(state, |stream| {
                    let len = stream.log.len();
                    let quiet = stream.pending.is_empty()
                        && stream.entries.is_empty()
                        && stream.queue.is_empty()
                        && stream.dead.is_empty();
                    let shown =
                        [usize::from(stream.shown), stream.applied.len(), stream.inserted.len()];
                    !quiet || shown == [len; 3]
                })
            }),
            // A model that never finishes would violate no invariant, and so would prove nothing.
            Property::sometimes("all is done", |_, state: &State| {
                every(state, |stream| {
                    [stream.applied.len(), usize::from(stream.shown)] == [COMMANDS; 2]
                })
            }),
        ]
    }
}
