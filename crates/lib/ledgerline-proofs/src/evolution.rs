//! Every shape of an event or a state that may be in some log. The shapes are in `shapes` beside
//! the model, and this code decodes all of them.
//!
//! An event of a newer program must stop only its own aggregate, with an error that names it.

use ledgerline::{
    Commit, Consistency, EventLog, LoadError, RecordedState, load, testing::tank::Tank,
};
use ledgerline_lambda::{stream::Handler, wire::Message};
use serde_json::json;

use crate::{
    Effort, Finding, Tried,
    application::Application,
    pipeline::{message, record},
    tank::{self, Sent, filled, instance},
    world::World,
};

/// Decodes all shapes of an application. For ledgerline's own application, it also tries shapes of
/// newer programs.
///
/// # Errors
/// When a shape is unreadable or is not in the folder, or a newer shape stops more than its
/// aggregate.
pub fn proof(effort: &Effort, application: &Application) -> Result<Tried, Finding> {
    let all = (application.read_shapes)(&application.shapes);
    if !all.wrong.is_empty() {
        return Err(Finding { seed: effort.seed, story: all.wrong.join("\n  ") });
    }
    // Ledgerline handles newer shapes in the same way for all aggregates, so one application is
    // enough.
    let newer = match application.is_builtin {
        true => {
            let world = World::new(&application.tables())?;
            world
                .runtime
                .block_on(newer(&world))
                .map_err(|story| Finding { seed: effort.seed, story })?
        }
        false => 0,
    };
    let beside =
        format!("{} of events, {} of states, {newer} from newer programs", all.events, all.states);
    Ok(Tried::new((all.events + all.states + newer) as u64, "shapes", beside))
}

/// Tries shapes of newer programs, each in a tank of its own, and one tank without any. The result
/// is the number of shapes.
async fn newer(world: &World) -> Result<usize, String> {
    let with = |id: &str, change: fn(&mut Commit)| {
        let mut tank = filled(id, 100);
        tank.iter_mut().for_each(|commit| commit.state = None);
        change(&mut tank[1]);
        tank
    };
    // The ids have the form that the API demands.
    let id = |number: u32| format!("00000000-0000-4000-8000-{number:012}");
    let tanks = [
        with(&id(0), |commit| commit.events[0].event_type = "TankFrozen".into()),
        with(&id(1), |commit| commit.events[0].schema = 99),
        with(&id(2), |commit| commit.events[0].data = r#"{"litres":"100"}"#.into()),
        // A state with an unknown schema is ignored, and the stream is folded again. The tank still
        // accepts commands.
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
            Ok(loaded) => loaded.state.level() != 100,
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

    // The fanout passes on a commit that it cannot fold, without a state. It does not fail at the
    // commit or quarantine it, because a newer program behind the bus may decode it.
    let pipeline = tank::application().pipeline_at(&world.wire);
    let all: Vec<_> = tanks.concat();
    let records: Vec<_> =
        all.iter().enumerate().map(|(place, commit)| record(place, commit)).collect();
    let failed = pipeline.fanout.handle(&records).await;
    let entries = world.wire.services().take_entries();
    let letters = world.wire.services().take_messages("http://wire.invalid/dead-letters").len();
    // The first commit of such a tank has no state either, because one read folds both states.
    let without = entries.iter().filter(|entry| entry["aggregateSchema"] == 0).count();
    if failed.is_some()
        || letters != 0
        || entries.len() != 2 * tanks.len()
        || without != 2 * unreadable
    {
        return Err(format!(
            "the fanout: failed {failed:?}, {letters} dead letters, {} entries, {without} without a state",
            entries.len()
        ));
    }

    // A log projector stops at such a commit, but only in its stream.
    let queued = world.wire.services().take_messages(&pipeline.logged[0].url);
    let messages: Vec<_> = queued
        .iter()
        .enumerate()
        .map(|(place, queued)| message(&place.to_string(), &queued.group, &queued.body, 1))
        .collect();
    let mut failed = 0;
    for batch in messages.chunks(10) {
        for failure in pipeline.logged[0].runner.batch(batch).await.batch_item_failures {
            let place: usize = failure.item_identifier.parse().unwrap_or(usize::MAX);
            let commit = queued
                .get(place)
                .and_then(|queued| Message::read(&queued.body).ok()?.into_commit());
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

    // State projectors fold a missing state from the log, and fail if they cannot. They write the
    // rows of the other tanks.
    for entry in entries {
        let projected = pipeline.stateful[0].project(entry.clone()).await;
        if projected.is_ok() == (entry["aggregateSchema"] == 0) {
            return Err(format!(
                "an entry with schema {} is {projected:?}",
                entry["aggregateSchema"]
            ));
        }
    }
    Ok(unreadable + 1)
}
