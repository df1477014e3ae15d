//! Lost answers: a command is applied, and its client gets no answer.
//!
//! The SDK retries. Or the client retries at once, on another instance. Or it retries later with
//! its Idempotency-Key, when the tank has changed. The function uses the wall clock; proof 11 moves
//! clocks and so covers the retention of keys.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use ledgerline::{Consistency, EventLog, Range, StreamId};
use ledgerline_dynamodb::DynamoDbStore;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Effort, Finding, Tried,
    application::Application,
    tank::{Sent, instance, seen},
    wire::{Fault, Plan},
    world::{World, each_seed},
};

/// The faults that lose an answer. All but the last apply the request, `Late` only after a while.
/// So a retry may arrive first.
const LOSSES: [Fault; 6] = [
    Fault::ReplyLost,
    Fault::Hanging,
    Fault::AppliedAndFailed,
    Fault::Repeated,
    Fault::Late,
    Fault::Dropped,
];

/// Loses answers, and compares the answers that arrive.
///
/// # Errors
/// When a retry gets another answer than the first request, or is applied a second time.
pub fn proof(effort: &Effort, _: &Application) -> Result<Tried, Finding> {
    let runs = effort.runs(2_000, 10_000);
    let world = || {
        let world = World::new(&["CommitsTable", "RequestsTable"])?;
        let store = world.store();
        Ok((world, store))
    };
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let play = |(world, store): &mut (World, DynamoDbStore), seed| {
        world.runtime.block_on(play(world, store, seed))
    };
    each_seed(effort.seed, runs, world, play, |(answered, answers)| {
        *sums.entry(answered).or_default() += 1;
        *sums.entry("answers compared").or_default() += answers;
    })?;
    let sums: Vec<_> = sums.iter().map(|(what, count)| format!("{count} {what}")).collect();
    Ok(Tried::new(runs, "commands whose answer was lost", sums.join(", ")))
}

async fn play(
    world: &World,
    store: &DynamoDbStore,
    seed: u64,
) -> Result<(&'static str, u64), Finding> {
    let finding = |story: String| Finding { seed, story };
    let mut rng = Rng::with_seed(seed);
    fastrand::seed(seed);
    let tank = format!("00000000-0000-4000-8000-{:012x}", seed & 0xffff_ffff_ffff);
    let other =
        |route, body: Value, key: Option<String>| Sent { route, tank: tank.clone(), body, key };
    let open = |key| {
        other("POST /tanks", json!({ "tankId": tank, "site": "North", "liquid": "water" }), key)
    };
    let change = |route, amount: i64, key| other(route, json!({ "amount": amount }), key);

    let stream = StreamId::new("tank", &tank).map_err(|error| finding(error.to_string()))?;

    // Given a tank with commits, and a command with a key.
    let warm = instance(store);
    let mut version = 0;
    let choice = rng.u32(0..6);
    if choice != 0 {
        open(None).to(&warm).await;
        version = 1;
        for _ in 0..rng.u64(0..5) {
            change("POST /tanks/{id}/fills", 10, None).to(&warm).await;
            version += 1;
        }
    }
    let key = Some(format!("key-{seed}"));
    let command = match choice {
        0 => open(key),
        // The request has no id: without its key, every retry would create another tank.
        1 => other("POST /tanks", json!({ "site": "North", "liquid": "water" }), key),
        2 => change("POST /tanks/{id}/fills", 7, key),
        3 => change("POST /tanks/{id}/draws", 1_000, key),
        4 => change("POST /tanks/{id}/draws", 10, key),
        _ => other("POST /tanks/{id}/scrap", json!({}), key),
    };

    // When some or all of the answers are lost.
    let losses = (0..rng.usize(1..=8)).map(|_| Some(LOSSES[rng.usize(0..LOSSES.len())])).collect();
    world.wire.follow(Plan::Script(losses), seed);
    let mut answers = Vec::new();
    let first = command.to(&warm).await;
    let mut answered = "by the SDK's retry";
    if first.status.is_server_error() {
        answered = "by the next invocation";
    } else {
        answers.push(seen(&first));
    }
    // The next invocation may begin while requests of the previous one are still in transit.
    for _ in 0..rng.u32(0..3) {
        sleep(Duration::from_millis(rng.u64(0..3_000))).await;
        let cold = instance(store);
        let again = command.to(if rng.bool() { &warm } else { &cold }).await;
        if !again.status.is_server_error() {
            answers.push(seen(&again));
        }
    }
    if answers.is_empty() {
        answered = "later";
    }
    sleep(Duration::from_secs(60)).await;
    world.wire.calm();
    // If the log has the commit at this point, every later answer must agree with it.
    let early = match store.get(&stream, version + 1).await {
        Ok(Some(commit)) if choice != 1 => {
            let body = match choice {
                0 => json!({ "tankId": tank, "version": 1 }),
                _ => {
                    let state: Value = commit
                        .state
                        .as_ref()
                        .and_then(|state| serde_json::from_str(&state.data).ok())
                        .unwrap_or_default();
                    json!({ "version": commit.version, "level": state["level"] })
                }
            };
            let (status, location) = match choice {
                0 => (201, format!("location: /tanks/{tank}, ")),
                _ => (200, String::new()),
            };
            Some(format!("{status} {location}etag: \"{}\" {body}", commit.version))
        }
        Ok(_) | Err(_) => None,
    };
    let elsewhere = instance(store);
    if choice != 0 || rng.bool() {
        for _ in 0..rng.u32(0..4) {
            // The level changes. If the same command were decided again, its answer would differ.
            let route = ["POST /tanks/{id}/fills", "POST /tanks/{id}/draws"][rng.usize(0..2)];
            change(route, rng.i64(1..2_000), None).to(&elsewhere).await;
        }
    }
    for instance in [&warm, &elsewhere, &instance(store)] {
        answers.push(seen(&command.to(instance).await));
    }

    // Then all answers are equal. The log has an accepted command once, and no refused command.
    if let Some(another) = answers.iter().find(|answer| **answer != answers[0]) {
        return Err(finding(format!(
            "{command:?}\n  was answered {}\n  and then {another}",
            answers[0]
        )));
    }
    let stream = answers[0].split_once("/tanks/").and_then(|(_, id)| id.get(..36)).unwrap_or(&tank);
    let stream = StreamId::new("tank", stream).map_err(|error| finding(error.to_string()))?;
    let range = Range { after: 0, up_to: u64::MAX, limit: None };
    let log = store
        .read(&stream, range, Consistency::Strong)
        .await
        .map_err(|error| finding(error.to_string()))?;
    let id = format!("key-{seed} ada");
    let versions: Vec<_> = log
        .commits
        .iter()
        .filter(|commit| commit.command == id)
        .map(|commit| commit.version)
        .collect();
    let success = answers[0].starts_with('2');
    if versions.len() != usize::from(success) {
        return Err(finding(format!(
            "{command:?}\n  was answered {}\n  and is {versions:?}",
            answers[0]
        )));
    }
    if success && !answers[0].contains(&format!("\"{}\"", versions[0])) {
        return Err(finding(format!("version {versions:?} was answered {}", answers[0])));
    }
    if let Some(early) = early.filter(|early| *early != answers[0]) {
        return Err(finding(format!(
            "version {version} + 1 was answered {}, and is {early}",
            answers[0]
        )));
    }
    Ok((answered, answers.len() as u64))
}
