//! The scenarios for each library, and the check of the account after each of them.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures::future::try_join_all;

use crate::{
    meter::{Counts, Meter},
    peers::{Failed, Instance, Peer},
};

/// The number of commands that are measured in a row, so that their mean includes due snapshots.
const COMMANDS: u32 = 50;
/// The number of concurrent writers of one account, and the number of commands of each.
const WRITERS: u32 = 8;
const COMMANDS_OF_EACH: u32 = 25;
/// The number of attempts after which a caller that always loses the race gives up.
const TRIES: u32 = 1_000;

/// The results of one library.
#[derive(Debug)]
pub struct Measured {
    /// The title of the library in the tables.
    pub name: String,
    /// The results at each length of the stream.
    pub lengths: Vec<Length>,
    /// A command with an Idempotency-Key, by a warm instance.
    pub keyed: Option<Counts>,
    /// A command while other writers write the same account, and whether every command was booked
    /// once.
    pub contended: (Counts, bool),
    /// The amount that one request booked, which was sent to two instances. 1 is right.
    pub sent_twice: i64,
}

/// The results at one length of the stream.
#[derive(Debug)]
pub struct Length {
    /// The requested length. The account may be longer by the commands of earlier measurements.
    pub commits: u64,
    /// A command of a warm instance; `None` if a command failed.
    pub warm: Option<Counts>,
    /// A command of a cold instance.
    pub cold: Option<Counts>,
    /// Whether every command succeeded and the balance is the sum of the commands.
    pub right: bool,
}

/// Measures one library.
pub async fn measure(peer: &dyn Peer, meter: &Meter, lengths: &[u64]) -> Result<Measured> {
    let mut at = Vec::new();
    let mut written = 0;
    for commits in lengths {
        eprintln!("  {commits} commits");
        let length = length(peer, meter, &mut written, *commits).await;
        at.push(length.with_context(|| format!("{} at {commits} commits", peer.name()))?);
    }

    let keyed = if peer.takes_keys() { Some(keyed(peer, meter).await?) } else { None };
    Ok(Measured {
        name: peer.name(),
        lengths: at,
        keyed,
        contended: contended(peer, meter).await.with_context(|| format!("{} contended", peer.name()))?,
        sent_twice: sent_twice(peer).await?,
    })
}

async fn length(peer: &dyn Peer, meter: &Meter, written: &mut u64, commits: u64) -> Result<Length> {
    const ACCOUNT: &str = "0190163d-8694-739b-aea5-966c26f8ad91";
    // The stream may be longer already, from an earlier measurement. The difference is negligible.
    if *written < commits {
        peer.fill(ACCOUNT, *written, commits).await?;
        *written = commits;
    }
    let mut expected = i64::try_from(*written)? - 1;

    let known = peer.instance().await?;
    let mut right = known.balance(ACCOUNT).await? == expected;
    // The first command warms the instance.
    let mut failed = known.credit(ACCOUNT, None).await.is_err();
    meter.take();
    let mut warm = Counts::default();
    let mut cold = Counts::default();
    if !failed {
        expected += 1;
        *written += 1;
        for _ in 0..COMMANDS {
            failed |= known.credit(ACCOUNT, None).await.is_err();
        }
        warm = meter.take();
        for _ in 0..COMMANDS {
            failed |= peer.instance().await?.credit(ACCOUNT, None).await.is_err();
        }
        cold = meter.take();
        expected += i64::from(2 * COMMANDS);
        *written += u64::from(2 * COMMANDS);
        right &= peer.instance().await?.balance(ACCOUNT).await? == expected;
    }
    let each = |counts: Counts| (!failed).then(|| counts.each(COMMANDS.into()));
    Ok(Length { commits, warm: each(warm), cold: each(cold), right: right && !failed })
}

async fn keyed(peer: &dyn Peer, meter: &Meter) -> Result<Counts> {
    const ACCOUNT: &str = "0190163d-8694-739b-aea5-966c26f8ad92";
    peer.fill(ACCOUNT, 0, 1).await?;
    let instance = peer.instance().await?;
    instance.credit(ACCOUNT, Some("the first")).await?;
    meter.take();
    for command in 0..COMMANDS {
        instance.credit(ACCOUNT, Some(&format!("request {command}"))).await?;
    }
    Ok(meter.take().each(COMMANDS.into()))
}

async fn contended(peer: &dyn Peer, meter: &Meter) -> Result<(Counts, bool)> {
    const ACCOUNT: &str = "0190163d-8694-739b-aea5-966c26f8ad93";
    peer.fill(ACCOUNT, 0, 1).await?;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(Arc::<dyn Instance>::from(peer.instance().await?));
    }
    meter.take();
    let writing = writers.into_iter().map(|writer| {
        tokio::spawn(async move {
            for _ in 0..COMMANDS_OF_EACH {
                until_it_is_done(writer.as_ref(), ACCOUNT).await?;
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    for written in try_join_all(writing).await? {
        written?;
    }
    let commands = WRITERS * COMMANDS_OF_EACH;
    let counts = meter.take().each(commands.into());
    let balance = peer.instance().await?.balance(ACCOUNT).await?;
    Ok((counts, balance == i64::from(commands)))
}

/// Sends a command like a caller that retries after a lost race.
async fn until_it_is_done(instance: &dyn Instance, account: &str) -> Result<()> {
    for _ in 0..TRIES {
        match instance.credit(account, None).await {
            Ok(()) => return Ok(()),
            Err(Failed::Conflict) => {}
            Err(Failed::Other(error)) => return Err(error),
        }
    }
    anyhow::bail!("lost {TRIES} races in a row")
}

/// Sends the same request to two instances, as if the first one crashed between its write and its
/// answer.
async fn sent_twice(peer: &dyn Peer) -> Result<i64> {
    const ACCOUNT: &str = "0190163d-8694-739b-aea5-966c26f8ad94";
    peer.fill(ACCOUNT, 0, 1).await?;
    for _ in 0..2 {
        peer.instance().await?.credit(ACCOUNT, Some("the only request")).await?;
    }
    peer.instance().await?.balance(ACCOUNT).await
}
