//! The proofs of the libraries, with accounts and transfers.

use std::time::Duration;

use anyhow::{Result, ensure};
use bank::{
    All,
    account::{self, Account, Booking},
    transfer::{self, Step, Transfer},
    views::{balances, transactions, transfers},
};
use bank_functions::{commands, process_managers::transfer::Transfers};
use fastrand::Rng;
use futures::FutureExt;
use ledgerline::{Aggregate, Commit, Consistency, EventLog, load, spec::valid};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{messages::Message, process_manager::ProcessManager, queue::QueueRunner};
use ledgerline_proofs::{
    Runs,
    application::{Application, History},
    case::{Case, Done, manager},
    faulty_wire::{Plan, Wire},
    world::World,
};
use tokio::time::sleep;

fn application() -> Application {
    Application::new::<All>("bank", concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"))
        .aggregate::<Account>(bookings, |state| state.total_balance().to_string())
        .aggregate::<Transfer>(refusal_history, |state| {
            format!("{:?}", transfers::Status::from_state(state))
        })
        .commands("account-commands", commands::account::routes)
        .commands("transfer-commands", commands::transfer::routes)
        .state_projector("BalancesTable", balances::VIEW)
        .state_projector("TransfersTable", transfers::VIEW)
        .log_projector("TransactionsTable", transactions::VIEW)
        .case(&["TransferPositionsTable"], || transfer_case("transfer (arrives)", 30, true))
        .case(&["TransferPositionsTable"], || transfer_case("transfer (refused)", 31, true))
        .case(&["TransferPositionsTable"], || transfer_case("transfer (given back)", 30, false))
}

// --- Histories -----------------------------------------------------------------------------------

/// Returns commands that open an account, book on it, and close it. The account refuses to close if
/// it is not empty.
fn bookings(name: &str, rng: &mut Rng) -> History<Account> {
    use account::Command;
    let mut commands = vec![open()];
    for _ in 0..rng.u32(1..6) {
        let reference = rng.bool().then(|| valid("rent"));
        let booking = Booking { amount: valid(rng.i64(1..100)), reference };
        commands.push(if rng.bool() { Command::Credit(booking) } else { Command::Debit(booking) });
    }
    commands.push(Command::Close);
    History { id: name.into(), actor: "ada".into(), commands }
}

fn open() -> account::Command {
    account::Command::Open(valid("Ada"), valid("EUR"))
}

/// Returns the commits of an account with this balance.
fn balance(id: &str, amount: i64) -> Vec<Commit> {
    let booking = Booking { amount: valid(amount), reference: None };
    let commands = vec![open(), account::Command::Credit(booking)];
    History::<Account> { id: id.into(), actor: "ada".into(), commands }.commits_with_states()
}

/// Returns commands that request a transfer and record its refusal.
fn refusal_history(name: &str, _: &mut Rng) -> History<Transfer> {
    let outcome = Err("insufficient-funds".into());
    let record = transfer::Command::Record { step: Step::Debit, outcome };
    History { id: name.into(), actor: "ada".into(), commands: vec![request(name, 30), record] }
}

/// Returns the commit of a requested transfer without further steps.
fn request_commits(id: &str, amount: i64) -> Vec<Commit> {
    let commands = vec![request(id, amount)];
    History::<Transfer> { id: id.into(), actor: "ada".into(), commands }.commits_with_states()
}

/// Returns the request of a transfer from its payer to its receiver.
fn request(id: &str, amount: i64) -> transfer::Command {
    let from = valid(payer(id));
    let to = valid(receiver(id));
    transfer::Command::Request {
        from,
        to,
        amount: valid(amount),
        currency: valid("EUR"),
        reference: None,
    }
}

/// Returns the account that a transfer debits.
fn payer(transfer: &str) -> String {
    account_id(&format!("{transfer}-from"))
}

/// Returns the account that a transfer credits.
fn receiver(transfer: &str) -> String {
    account_id(&format!("{transfer}-to"))
}

/// Returns a UUID that depends only on the name.
fn account_id(name: &str) -> String {
    let mut rng =
        Rng::with_seed(name.bytes().fold(0, |seed, byte| seed.wrapping_mul(257) + u64::from(byte)));
    uuid::Uuid::from_u128(rng.u128(..)).to_string()
}

// --- The process manager -------------------------------------------------------------------------

/// Returns an instance of the process manager.
fn transfers_at(
    wire: &Wire,
) -> QueueRunner<DynamoDbStore, ProcessManager<Transfers<DynamoDbStore>>> {
    manager(wire, "TransferPositionsTable", Transfers::new(World::store_at(wire)))
}

/// Returns the case of the process manager, from the request to the end of the transfer. The
/// process manager gets each commit that it appends to the transfer.
fn transfer_case(name: &str, amount: i64, received: bool) -> Case {
    let to = if received { balance(&receiver("x"), 1) } else { Vec::new() };
    let log = vec![balance(&payer("x"), 30), to, request_commits("x", amount)];
    Case::new(name, log, move |wire: Wire, done: Done| {
        async move {
            let runner = transfers_at(&wire);
            let quiet = wire.fork();
            let stream = request_commits("x", amount).remove(0).stream;
            loop {
                let version = done.borrow().len() as u64 + 1;
                let Ok(Some(commit)) = World::store_at(&quiet).get(&stream, version).await else {
                    return true;
                };
                let Ok(body) = serde_json::to_string(&Message::Commit(Box::new(commit))) else {
                    return false;
                };
                if runner.message(&body).await.is_err() {
                    return false;
                }
                done.borrow_mut().push(String::new());
            }
        }
        .boxed_local()
    })
}

const TRANSFERS: Runs = Runs { least: 100, seconds: 4, long: 2_000 };

#[test]
fn two_instances_at_once_move_the_money_once() {
    let test = "two_instances_at_once_move_the_money_once";
    let world = || World::new(&["CommitsTable", "RequestsTable", "TransferPositionsTable"]);
    ledgerline_proofs::test_runs(test, &TRANSFERS, world, transfer);
}

/// Delivers the commits of a transfer to two instances of its process manager at once. The money
/// moves once, or not at all, and none of it is lost.
fn transfer(world: &mut World, seed: u64) -> Result<()> {
    world.runtime.block_on(async {
        let mut rng = Rng::with_seed(seed);
        fastrand::seed(seed);
        let quiet = world.wire.fork();
        let store = World::store_at(&quiet);
        let id = format!("t{seed}");
        let amount = rng.i64(1..60);
        let received = rng.u32(0..4) > 0;
        let accounts = [(payer(&id), 40), (receiver(&id), 1)];
        let opened = accounts.iter().filter(|(account, _)| received || *account == accounts[0].0);
        let mut log: Vec<_> =
            opened.flat_map(|(account, amount)| balance(account, *amount)).collect();
        log.extend(request_commits(&id, amount));
        let stream = log[log.len() - 1].stream.clone();
        for commit in &log {
            store.append(commit, None).await?;
        }
        world.wire.follow([Plan::Slow, Plan::Random(200)][rng.usize(0..2)].clone(), rng.u64(..));
        let instances = [transfers_at(&world.wire), transfers_at(&world.wire)];
        for round in 0..6 {
            if round == 3 {
                // Late requests arrive during this pause. After the pause, the wire causes no
                // faults.
                sleep(Duration::from_secs(60)).await;
                world.wire.calm();
            }
            for version in 1.. {
                let Ok(Some(commit)) = store.get(&stream, version).await else { break };
                let body = serde_json::to_string(&Message::Commit(Box::new(commit)))?;
                let pause = Duration::from_millis(rng.u64(0..300));
                let second = async {
                    sleep(pause).await;
                    instances[1].message(&body).await
                };
                // If one of them fails, the next round redelivers the message.
                let _ = tokio::join!(instances[0].message(&body), second);
            }
        }
        let ended = load::<Transfer>(&store, &stream, None, Consistency::Strong).await?;
        let status = transfers::Status::from_state(&ended.state);
        let mut balances = Vec::new();
        for (account, _) in &accounts {
            let stream = Account::stream(account)?;
            let loaded = load::<Account>(&store, &stream, None, Consistency::Strong).await?;
            balances.push(loaded.state.total_balance());
        }
        use transfers::Status;
        let expected = match (amount <= 40, received) {
            (true, true) => (Status::Completed, vec![40 - amount, 1 + amount]),
            (true, false) => (Status::Refunded, vec![40, 0]),
            (false, true) => (Status::Refused, vec![40, 1]),
            (false, false) => (Status::Refused, vec![40, 0]),
        };
        ensure!(
            status == Some(expected.0) && balances == expected.1,
            "{amount} moved: {status:?}, {balances:?}, not {expected:?}"
        );
        Ok(())
    })
}

ledgerline_proofs::application_tests!(application());
