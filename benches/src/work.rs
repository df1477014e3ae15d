//! Processor work, counted in instructions: folding stored events to the state of an account, and
//! sending commands to a store in memory.

use std::{hint::black_box, num::NonZeroUsize, process::Command as Program};

use anyhow::{Context as _, Result, bail};
use cqrs_es::{CqrsFramework, EventEnvelope, persist::SerializedEvent};
use ledgerline::{
    Aggregate as _, Cache, Execution, Loaded, MemoryStore, RecordedEvent, decode, encode, execute,
};

use crate::{
    bank::{Account, Command, Event, context, meta, metadata},
    peers::cqrs,
};

/// The counted work: its title in the table, and its names in `run`, for Ledgerline and for
/// cqrs-es.
const WORK: [(&str, [&str; 2]); 2] = [
    ("a stored event to a state", ["ledgerline-events", "cqrs-events"]),
    ("a command to a store in memory, the hundredth of its stream", ["ledgerline-commands", "cqrs-commands"]),
];

/// The instructions of Ledgerline and of cqrs-es for one repetition of each work; `None` without
/// valgrind.
pub type Instructions = Vec<(&'static str, Option<[u64; 2]>)>;

/// Runs each work under valgrind, with few and with many repetitions. The difference excludes the
/// start of the program.
pub fn counted() -> Result<Instructions> {
    let have = Program::new("valgrind").arg("--version").output().is_ok();
    if !have {
        eprintln!("there is no valgrind: no instructions are counted");
    }
    let one = |what: &str| -> Result<u64> {
        let (few, many) = (instructions(what, 100)?, instructions(what, 1_100)?);
        Ok(many.saturating_sub(few) / 1_000)
    };
    let row = |(name, [ours, theirs]): (&'static str, [&str; 2])| {
        Ok((name, if have { Some([one(ours)?, one(theirs)?]) } else { None }))
    };
    WORK.into_iter().map(row).collect()
}

fn instructions(what: &str, times: u32) -> Result<u64> {
    let run = Program::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["work", what, &times.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr);
    if !run.status.success() {
        bail!("{what}: {said}");
    }
    let counted = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, counted) = counted.with_context(|| format!("valgrind counted nothing: {said}"))?;
    Ok(counted.trim().parse()?)
}

/// Repeats one of the works `times` times.
pub async fn run(what: &str, times: u32) -> Result<()> {
    match what {
        "ledgerline-events" => our_events(times),
        "cqrs-events" => their_events(times),
        "ledgerline-commands" => our_commands(times).await,
        "cqrs-commands" => their_commands(times).await,
        _ => bail!("there is no such work: {what}"),
    }
}

fn credited() -> Event {
    let booked_on = jiff::civil::date(2026, 11, 21);
    Event::AccountCredited { amount: 100, balance: 100, booked_on, reference: Some("November's rent".into()) }
}

/// Folds events from the texts of an item, as Ledgerline stores them. `their_events` does the same
/// for cqrs-es.
fn our_events(times: u32) -> Result<()> {
    let stored = encode::<Account>(&credited())?;
    let mut loaded = Loaded::<Account>::initial();
    for _ in 0..times {
        let recorded: RecordedEvent = black_box(&stored).clone();
        loaded.state = Account::evolve(loaded.state, &decode::<Account>(&recorded)?);
    }
    black_box(loaded);
    Ok(())
}

fn their_events(times: u32) -> Result<()> {
    let payload = serde_json::to_vec(&credited())?;
    let metadata = serde_json::to_vec(&metadata())?;
    let mut account = cqrs::Aggregate::default();
    for sequence in 0..times {
        // dynamo-es builds this from an item, and cqrs-es decodes it.
        let stored = SerializedEvent::new(
            "0190163d-8694-739b-aea5-966c26f8ad91".into(),
            usize::try_from(sequence)?,
            "account".into(),
            "AccountCredited".into(),
            "1".into(),
            serde_json::from_slice(black_box(&payload))?,
            serde_json::from_slice(black_box(&metadata))?,
        );
        let event = EventEnvelope::<cqrs::Aggregate>::try_from(stored)?;
        cqrs_es::Aggregate::apply(&mut account, event.payload);
    }
    black_box(account);
    Ok(())
}

/// The number of commits of each stream, the same for both libraries. The state and the number of
/// earlier events determine the cost.
const COMMITS: u32 = 100;

async fn our_commands(times: u32) -> Result<()> {
    let (store, cache) =
        (MemoryStore::default(), Cache::<Account>::new(NonZeroUsize::new(100).context("100")?));
    let meta = meta();
    for n in 0..times {
        let stream = Account::stream(&format!("0190163d-8694-739b-aea5-{:012}", n / COMMITS))?;
        let command = if n % COMMITS == 0 { Command::Open } else { Command::Credit(1) };
        let (context, id) = (context(), uuid::Uuid::now_v7().to_string());
        let execution = Execution {
            creates: n % COMMITS == 0,
            ..Execution::new(&stream, &command, &context, &id, &meta)
        };
        execute(&store, &cache, &MemoryStore::HOST, &execution).await?;
    }
    Ok(())
}

async fn their_commands(times: u32) -> Result<()> {
    let store = cqrs_es::mem_store::MemStore::<cqrs::Aggregate>::default();
    let commands = CqrsFramework::new(store, Vec::new(), ());
    for n in 0..times {
        let account = format!("0190163d-8694-739b-aea5-{:012}", n / COMMITS);
        let command = if n % COMMITS == 0 { Command::Open } else { Command::Credit(1) };
        commands.execute_with_metadata(&account, command, metadata()).await?;
    }
    Ok(())
}
