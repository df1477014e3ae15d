//! A model of the sequencers: two shards of three records, two sequencers, and a fault at any step.

use anyhow::Result;
use stateright::{Model, Property};

use crate::{
    Effort,
    exploration::{Guarded, need_all_guards, visit_all_states},
};

/// The number of records of a shard.
const RECORDS: u8 = 3;
/// The most records of a batch.
const BATCH: u8 = 2;

/// A guard that protects `$all`. The model can leave one out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Guard {
    /// Rule 2: a segment is appended only at the number after the last.
    AppendCondition,
    /// Rule 4: a sequencer that finds the number taken reads the new segments, and leaves their
    /// records out of its batch.
    LeaveOut,
    /// A new instance reads the existing segments.
    Look,
    /// A batch is acknowledged only when all of its records have entries.
    AcknowledgeLast,
}

/// Visits all states of the model, and the model without each guard. The result is the number of
/// states, and the violations without the guards.
pub(crate) fn explore(effort: &Effort) -> Result<(usize, String)> {
    let model = Order { without: None, faults: if effort.long { 3 } else { 1 } };
    Ok((visit_all_states(&model)?.0, need_all_guards(&model)?))
}

#[derive(Clone)]
struct Order {
    without: Option<Guard>,
    /// The number of faults that may happen in one run.
    faults: u8,
}

impl Guarded for Order {
    type Guard = Guard;
    const GUARDS: &'static [Guard] =
        &[Guard::AppendCondition, Guard::LeaveOut, Guard::Look, Guard::AcknowledgeLast];

    fn leave_out(self, guard: Guard) -> Self {
        Self { without: Some(guard), ..self }
    }
}

/// A record: its shard, and its place in the shard.
type Record = (u8, u8);

/// A sequencer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Sequencer {
    /// The batch of the sequencer, and whether its invocation timed out, so that no caller waits
    /// for it.
    batch: Option<(Vec<Record>, bool)>,
    /// The number of the last segment that the sequencer has read; `None` before the first read.
    head: Option<usize>,
    /// The records that the sequencer has seen in segments.
    known: Vec<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// The segments of `$all`.
    all: Vec<Vec<Record>>,
    sequencers: [Sequencer; 2],
    /// The number of acknowledged records of each shard, and whether the shard waits for a batch.
    shards: [(u8, bool); 2],
    faults: u8,
    /// Whether a segment was overwritten.
    changed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// A sequencer receives a batch of a shard: sequencer, shard, number of records.
    Take(usize, usize, u8),
    Look(usize),
    Append(usize),
    AppendReplyLost(usize),
    Acknowledge(usize),
    /// The invocation times out: the sequencer continues, and the records go to another sequencer.
    GiveUp(usize),
    /// The instance of the sequencer crashes.
    End(usize),
}

impl Order {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// The records that a sequencer still has to append.
    fn unsequenced_records(sequencer: &Sequencer) -> Vec<Record> {
        let batch = sequencer.batch.iter().flat_map(|(batch, _)| batch);
        batch.filter(|record| !sequencer.known.contains(record)).copied().collect()
    }

    fn append(&self, state: &mut State, index: usize, reply_lost: bool) {
        let sequencer = &mut state.sequencers[index];
        let left = Self::unsequenced_records(sequencer);
        let head = sequencer.head.unwrap_or_default();
        if head == state.all.len() {
            state.all.push(left.clone());
        } else if self.has(Guard::AppendCondition) {
            self.catch_up(state, index);
            return;
        } else {
            state.all[head].clone_from(&left);
            state.changed = true;
        }
        if reply_lost {
            self.catch_up(state, index);
        } else {
            sequencer.head = Some(head + 1);
            sequencer.known.extend(left);
        }
    }

    /// Reads the segments after the last one that the sequencer has read.
    fn catch_up(&self, state: &mut State, index: usize) {
        let sequencer = &mut state.sequencers[index];
        let head = sequencer.head.unwrap_or_default();
        if self.has(Guard::LeaveOut) {
            let missed = state.all[head..].iter().flatten().copied();
            sequencer.known.extend(missed);
        }
        sequencer.head = Some(state.all.len());
    }
}

impl Model for Order {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            all: Vec::new(),
            sequencers: Default::default(),
            shards: [(0, false); 2],
            faults: 0,
            changed: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (index, sequencer) in state.sequencers.iter().enumerate() {
            match (&sequencer.batch, sequencer.head) {
                (None, _) => {
                    for (shard, (done, waits)) in state.shards.iter().enumerate() {
                        let most = BATCH.min(RECORDS - done);
                        let sizes = 1..=if *waits { 0 } else { most };
                        steps.extend(sizes.map(|size| Step::Take(index, shard, size)));
                    }
                }
                (Some(_), None) => steps.push(Step::Look(index)),
                (Some(_), Some(_)) if Self::unsequenced_records(sequencer).is_empty() => {
                    steps.push(Step::Acknowledge(index))
                }
                (Some(_), Some(_)) => {
                    steps.push(Step::Append(index));
                    if !self.has(Guard::AcknowledgeLast) {
                        steps.push(Step::Acknowledge(index));
                    }
                }
            }
            if state.faults < self.faults && sequencer.batch.is_some() {
                steps.extend([Step::AppendReplyLost(index), Step::GiveUp(index), Step::End(index)]);
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Take(index, shard, size) => {
                let (done, waits) = &mut state.shards[shard];
                *waits = true;
                let batch = (*done..*done + size).map(|place| (shard as u8, place)).collect();
                state.sequencers[index].batch = Some((batch, false));
            }
            Step::Look(index) => {
                let known = if self.has(Guard::Look) { state.all.concat() } else { Vec::new() };
                let sequencer = &mut state.sequencers[index];
                (sequencer.head, sequencer.known) = (Some(state.all.len()), known);
            }
            Step::Append(index) => self.append(&mut state, index, false),
            Step::AppendReplyLost(index) => {
                if state.sequencers[index].head.is_none()
                    || Self::unsequenced_records(&state.sequencers[index]).is_empty()
                {
                    return None;
                }
                state.faults += 1;
                self.append(&mut state, index, true);
            }
            Step::Acknowledge(index) => {
                let (batch, given_up) = state.sequencers[index].batch.take()?;
                let (shard, last) = *batch.last()?;
                if !given_up {
                    state.shards[usize::from(shard)] = (last + 1, false);
                }
            }
            Step::GiveUp(index) | Step::End(index) => {
                state.faults += 1;
                let (batch, given_up) = state.sequencers[index].batch.as_mut()?;
                let shard = usize::from(batch.first()?.0);
                if !*given_up {
                    state.shards[shard].1 = false;
                }
                *given_up = true;
                if matches!(step, Step::End(_)) {
                    state.sequencers[index] = Sequencer::default();
                }
            }
        }
        // Two sequencers with the same knowledge are equal, in whichever order they learned it.
        for sequencer in &mut state.sequencers {
            sequencer.known.sort_unstable();
            sequencer.known.dedup();
        }
        Some(state).filter(|state| state != before)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a segment stays what it is", |_, state: &State| !state.changed),
            Property::always("no record has two entries", |_, state: &State| {
                let mut entries = state.all.concat();
                let all = entries.len();
                entries.sort_unstable();
                entries.dedup();
                entries.len() == all
            }),
            Property::always("what was acknowledged has its entry", |_, state: &State| {
                let entries = state.all.concat();
                (0..).zip(&state.shards).all(|(shard, (done, _))| {
                    (0..*done).all(|place| entries.contains(&(shard, place)))
                })
            }),
            Property::always("each shard is in its order", |_, state: &State| {
                let entries = state.all.concat();
                (0..2).all(|shard| entries.iter().filter(|entry| entry.0 == shard).is_sorted())
            }),
            Property::sometimes("all is done", |_, state: &State| {
                state.shards.iter().all(|(done, _)| *done == RECORDS)
            }),
        ]
    }
}
