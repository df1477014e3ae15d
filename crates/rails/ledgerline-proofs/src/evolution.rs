//! Every shape of an event or a state that may be in some log, kept beside its model, in `shapes`: this code reads all of them.
//! And what a newer program wrote stops the aggregate that it is about, by name, and no other.

use ledgerline::{
    Aggregate, Aggregates, Commit, Consistency, EventStore, LoadError, RecordedEvent, RecordedState, Visitor,
    decode, decode_state, encode, encode_state, load, tank::Tank,
};
use ledgerline_lambda::{stream::Handler, wire::Message};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Effort, Finding, Tried,
    application::Application,
    files::Files,
    pipeline::{Pipeline, message, record},
    tank::{self, Sent, filled, instance},
    world::World,
};

/// The shapes of an aggregate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    events: Vec<Event>,
    states: Vec<State>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    #[serde(rename = "type")]
    event_type: String,
    schema: u32,
    data: Value,
    /// What this code makes of it, if that is not the same.
    now: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    schema: u32,
    data: Value,
}

/// What was read of all shapes of an application.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    wrong: Vec<String>,
    events: usize,
    states: usize,
}

/// Reads the shapes of each aggregate.
pub(crate) fn read_all<L: Aggregates>(files: &Files) -> Shapes {
    struct Read<'a>(&'a Files, Shapes);
    impl Visitor for Read<'_> {
        fn visit<A: Aggregate>(&mut self) {
            match read::<A>(self.0) {
                Ok((events, states)) => {
                    self.1.events += events;
                    self.1.states += states;
                }
                Err(wrong) => self.1.wrong.push(format!("{}: {wrong}", A::CATEGORY)),
            }
        }
    }
    let mut read = Read(files, Shapes::default());
    L::visit(&mut read);
    read.1
}

/// Reads all shapes of an application; ledgerline's own then meets newer ones.
///
/// # Errors
/// When a shape cannot be read or is missing from the folder, or a newer one stops more than its aggregate.
pub fn proof(effort: &Effort, application: &Application) -> Result<Tried, Finding> {
    let all = (application.read_shapes)(&application.shapes);
    if !all.wrong.is_empty() {
        return Err(Finding { seed: effort.seed, story: all.wrong.join("\n  ") });
    }
    // What becomes of newer shapes is the business of ledgerline, which knows no aggregates.
    let newer = match application.is_ledgerlines() {
        true => {
            let world = World::new(&application.tables())?;
            world.runtime.block_on(newer(&world)).map_err(|story| Finding { seed: effort.seed, story })?
        }
        false => 0,
    };
    let beside = format!("{} of events, {} of states, {newer} from newer programs", all.events, all.states);
    Ok(Tried::new((all.events + all.states + newer) as u64, "shapes", beside))
}

/// Reads the shapes of one aggregate. How many of events and of states there are.
fn read<A: Aggregate>(files: &Files) -> Result<(usize, usize), String> {
    let text = files.text(&format!("{}.json", A::CATEGORY))?;
    let shapes: Corpus = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for known in A::EVENTS {
        for schema in 1..=known.schema() {
            let of = |event: &&Event| event.event_type == known.name && event.schema == schema;
            if !shapes.events.iter().any(|event| of(&event)) {
                return Err(format!("schema {schema} of {} is not in its file of shapes", known.name));
            }
        }
    }
    let mut events = Vec::new();
    for Event { event_type, schema, data, now } in &shapes.events {
        let stored =
            RecordedEvent { event_type: event_type.clone(), schema: *schema, data: data.to_string() };
        let event = decode::<A>(&stored).map_err(|error| error.to_string())?;
        let again = encode::<A>(&event).map_err(|error| error.to_string())?;
        let (expected, found) =
            (now.as_ref().unwrap_or(data), serde_json::from_str(&again.data).unwrap_or(Value::Null));
        if again.event_type != *event_type || found != *expected {
            return Err(format!("{event_type}, schema {schema}, is read as {found}, not {expected}"));
        }
        if now.is_none() && again.schema != *schema {
            return Err(format!(
                "{event_type}, schema {schema}, is old, and its file does not say what it is now"
            ));
        }
        events.push(event);
    }
    // A fold takes whatever was ever stored, in any order.
    ledgerline::fold::<A>(A::initial(), &events);
    for schema in 1..=A::STATE_SCHEMA {
        if !shapes.states.iter().any(|state| state.schema == schema) {
            return Err(format!("schema {schema} of the state is not in its file of shapes"));
        }
    }
    for State { schema, data } in &shapes.states {
        let stored = RecordedState { schema: *schema, data: data.to_string() };
        match (decode_state::<A>(&stored), *schema == A::STATE_SCHEMA) {
            (None, false) => {}
            (Some(state), true) => {
                let again = encode_state::<A>(&state).map_err(|error| error.to_string())?;
                if serde_json::from_str::<Value>(&again.data).ok().as_ref() != Some(data) {
                    return Err(format!("a state of schema {schema} is read as {}", again.data));
                }
            }
            (_, current) => return Err(format!("a state of schema {schema}, which is current: {current}")),
        }
    }
    Ok((shapes.events.len(), shapes.states.len()))
}

/// What a newer program wrote, each in an tank of its own, with another tank beside it. How many there are.
async fn newer(world: &World) -> Result<usize, String> {
    let with = |id: &str, change: fn(&mut Commit)| {
        let mut tank = filled(id, 100);
        tank.iter_mut().for_each(|commit| commit.state = None);
        change(&mut tank[1]);
        tank
    };
    // Ids as the API has them.
    let id = |number: u32| format!("00000000-0000-4000-8000-{number:012}");
    let tanks = [
        with(&id(0), |commit| commit.events[0].event_type = "TankFrozen".into()),
        with(&id(1), |commit| commit.events[0].schema = 99),
        with(&id(2), |commit| commit.events[0].data = r#"{"litres":"100"}"#.into()),
        // A state that is not known is folded again: the tank goes on.
        with(&id(3), |commit| commit.state = Some(RecordedState { schema: 99, data: "{}".into() })),
        with(&id(4), |_| ()),
    ];
    let unreadable = 3;
    let store = world.store();
    for commit in tanks.iter().flatten() {
        store.append(commit, None).await.map_err(|error| error.to_string())?;
    }

    for (number, tank) in tanks.iter().enumerate() {
        let loaded = load::<Tank>(&store, &tank[0].stream, None, Consistency::Strong).await;
        let loud = match &loaded {
            Err(LoadError::Decode { stream, version: 2, .. }) => *stream == tank[0].stream,
            Ok(loaded) => loaded.state.level != 100,
            Err(_) => false,
        };
        if loud != (number < unreadable) {
            return Err(format!("tank {number} is loaded as {loaded:?}"));
        }
        let command = Sent {
            route: "POST /tanks/{id}/draws",
            tank: tank[0].stream.id().to_owned(),
            body: json!({ "amount": 1 }),
            key: None,
        };
        let status = command.to(&instance(&store)).await.status.as_u16();
        if status != if number < unreadable { 500 } else { 200 } {
            return Err(format!("a command to tank {number} is answered with {status}"));
        }
    }

    // The fanout sets aside what it cannot attach a state to, and passes on everything else: it fails for none.
    let pipeline = Pipeline::new(&tank::application(), &world.wire);
    let all: Vec<_> = tanks.concat();
    let records: Vec<_> = all.iter().enumerate().map(|(place, commit)| record(place, commit)).collect();
    let failed = pipeline.fanout.handle(&records).await;
    let entries = world.wire.services().take_entries();
    let letters = world.wire.services().take_messages("http://wire.invalid/dead-letters").len();
    // The first commit of such an tank goes with it: both states are folded by one read. It is in the log, and on the
    // queue.
    if failed.is_some() || letters != 2 * unreadable || entries.len() != 2 * (tanks.len() - unreadable) {
        return Err(format!(
            "the fanout: failed {failed:?}, {letters} dead letters, {} entries",
            entries.len()
        ));
    }

    // Log projectors stop at it, each stream for itself.
    let queued = world.wire.services().take_messages(&pipeline.logged[0].url);
    let messages: Vec<_> = queued
        .iter()
        .enumerate()
        .map(|(place, queued)| message(&place.to_string(), &queued.group, &queued.body, 1))
        .collect();
    let mut failed = 0;
    for batch in messages.chunks(10) {
        for failure in pipeline.logged[0].fifo.batch(batch).await.batch_item_failures {
            let place: usize = failure.item_identifier.parse().unwrap_or(usize::MAX);
            let commit = queued.get(place).and_then(|queued| Message::read(&queued.body).ok()?.into_commit());
            let expected = tanks[..unreadable]
                .iter()
                .any(|tank| Some(&tank[1].events) == commit.as_ref().map(|commit| &commit.events));
            if !expected {
                return Err(format!("the projector fails at {commit:?}"));
            }
            failed += 1;
        }
    }
    if failed != unreadable {
        return Err(format!("the projector fails at {failed} commits, not {unreadable}"));
    }

    // State projectors refuse the state that they do not know, and write the others.
    for entry in entries {
        let projected = pipeline.stateful[0].project(entry.clone()).await;
        let newer = entry["aggregateSchema"] == 99;
        if projected.is_ok() == newer {
            return Err(format!("an entry with schema {} is {projected:?}", entry["aggregateSchema"]));
        }
    }
    Ok(unreadable + 1)
}
