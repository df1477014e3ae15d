//! Time itself: clocks that are a day off, consumers that are too slow, and an outage that is longer than the stream's 24
//! hours, after which somebody catches up from the log.

use std::time::Duration;

use bank::{
    account::Account,
    transfer::{Status, Transfer},
};
use fastrand::Rng;
use ledgerline::{Consistency, EventStore, StreamId, load};
use ledgerline_lambda::wire::Message;
use tokio::time::sleep;

use crate::{
    Effort, Finding, Tried, commits,
    crashes::manager,
    delivery::{Dynamics, Tally, all},
    histories,
    wire::{Plan, Wire},
    world::{World, each_seed},
};

/// Plays all of it.
///
/// # Errors
/// What goes wrong in one of them.
pub fn proof(effort: &Effort) -> Result<Tried, Finding> {
    let runs = effort.runs(500, 2_000);
    let named = |name: &'static str| {
        move |finding: Finding| Finding { story: format!("{name}: {}", finding.story), ..finding }
    };
    let clocks = histories::off_by_a_day(effort.seed, runs).map_err(named("clocks"))?;
    let slow = all(effort.seed, runs, Dynamics::SlowConsumers).map_err(named("slow consumers"))?;
    let outage = all(effort.seed, runs, Dynamics::Outage).map_err(named("outage"))?;
    each_seed(effort.seed, runs, transfers_world, transfer, |()| ()).map_err(named("slow transfers"))?;
    let Tally { lost, .. } = outage;
    let beside = format!(
        "{runs} histories whose clocks are a day off either way, {} commands; {runs} schedules of slow consumers, {} \
         deliveries; {runs} transfers, each by two instances at once; {runs} outages of more than a day, {lost} records and messages lost in them",
        clocks.commands, slow.deliveries
    );
    Ok(Tried::new(4 * runs, "runs", beside))
}

fn transfers_world() -> Result<World, Finding> {
    World::new(&["CommitsTable", "RequestsTable", "TransferPositionsTable"])
}

/// A transfer whose events go to two instances of its process manager at once. The money moves once, or not at all, and
/// none of it is lost.
fn transfer(world: &mut World, seed: u64) -> Result<(), Finding> {
    world.runtime.block_on(async {
        let finding = |story: String| Finding { seed, story };
        let mut rng = Rng::with_seed(seed);
        fastrand::seed(seed);
        let quiet = Wire::new(world.wire.services().database().clone());
        let store = World::store_at(&quiet);
        let (id, amount, receiver) = (format!("t{seed}"), rng.i64(1..60), rng.u32(0..4) > 0);
        let accounts = [(commits::payer(&id), 40), (commits::receiver(&id), 1)];
        let opened = accounts.iter().filter(|(account, _)| receiver || *account == accounts[0].0);
        let mut log: Vec<_> =
            opened.flat_map(|(account, balance)| commits::balance(account, *balance)).collect();
        log.extend(commits::requested(&id, amount));
        let stream = log[log.len() - 1].stream.clone();
        for commit in &log {
            store.append(commit, None).await.map_err(|error| finding(error.to_string()))?;
        }
        world.wire.follow([Plan::Slow, Plan::Random(200)][rng.usize(0..2)].clone(), rng.u64(..));
        let instances = [manager(&world.wire), manager(&world.wire)];
        for round in 0..6 {
            if round == 3 {
                // What is late arrives, and then all is well again.
                sleep(Duration::from_secs(60)).await;
                world.wire.calm();
            }
            for version in 1.. {
                let Ok(Some(commit)) = store.get(&stream, version).await else { break };
                let body = serde_json::to_string(&Message::Commit(Box::new(commit)));
                let body = body.map_err(|error| finding(error.to_string()))?;
                let pause = Duration::from_millis(rng.u64(0..300));
                let second = async {
                    sleep(pause).await;
                    instances[1].message(&body).await
                };
                // Whichever of them fails, the message comes again.
                let _ = tokio::join!(instances[0].message(&body), second);
            }
        }
        let ended = load::<Transfer>(&store, &stream, None, Consistency::Strong).await;
        let status = ended.map_err(|error| finding(error.to_string()))?.state.status;
        let mut balances = Vec::new();
        for (account, _) in &accounts {
            let stream = StreamId::new("account", account).map_err(|error| finding(error.to_string()))?;
            let loaded = load::<Account>(&store, &stream, None, Consistency::Strong).await;
            balances.push(loaded.map_err(|error| finding(error.to_string()))?.state.total_balance);
        }
        let expected = match (amount <= 40, receiver) {
            (true, true) => (Status::Completed, vec![40 - amount, 1 + amount]),
            (true, false) => (Status::Refunded, vec![40, 0]),
            (false, true) => (Status::Refused, vec![40, 1]),
            (false, false) => (Status::Refused, vec![40, 0]),
        };
        if (status, balances.clone()) != expected {
            return Err(finding(format!("{amount} moved: {status:?}, {balances:?}, not {expected:?}")));
        }
        Ok(())
    })
}
