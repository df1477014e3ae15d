//! Puts load on a running local stack of tanks, measures it from outside, and then compares its
//! views with the log: `cargo run --profile fast -p ledgerline-testing --example load`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for people")]

mod copy;
mod depot;

use std::{
    net::IpAddr,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use depot::Depot;
use tokio::task::JoinSet;
use url::{Host, Url};

/// Put load on a local stack of tanks, on this machine.
#[derive(Debug, Parser)]
enum Task {
    /// Send commands to a running local stack, and then compare its views with the log.
    Run(RunArgs),
    /// Copy the tanks in the data of a stopped local stack, as if it had run for a long time.
    Copy(copy::CopyArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Run(options) => run(options).await,
        Task::Copy(options) => copy::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The commands to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Fills of random tanks.
    Fills,
    /// Fills of one tank: every command races with all others.
    OneTank,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Send these commands.
    #[arg(default_value = "fills")]
    scenario: Scenario,
    /// Send to this address of the local stack's HTTP API, on this machine.
    #[arg(long, default_value = "http://127.0.0.1:3000")]
    url: Url,
    /// Read the log from this address of the stack's AWS services.
    #[arg(long, default_value = "http://127.0.0.1:4566")]
    aws_url: Url,
    /// Run this number of clients at once. Each sends its next command after the response to the
    /// last one.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    clients: u64,
    /// Send this number of commands a second, with at most `--clients` at once, even if responses
    /// are slow. Without it, each client sends without a pause.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: Option<u64>,
    /// Fill this number of tanks.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    tanks: u64,
    /// Send commands for this number of seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=7_200))]
    seconds: u64,
    /// Print a line of progress for each interval of this number of seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=7_200))]
    interval: u64,
}

/// The pause between two commands whose time to the views is measured.
const LOOK: Duration = Duration::from_millis(250);

async fn run(options: RunArgs) -> Result<()> {
    require_loopback(&options.url)?;
    require_loopback(&options.aws_url)?;
    let tanks = if options.scenario == Scenario::OneTank { 1 } else { options.tanks };
    println!(
        "{} clients, {tanks} tanks, {} s, at {}",
        options.clients, options.seconds, options.url
    );
    let depot =
        Arc::new(Depot::install(&options.url, &options.aws_url, tanks, options.clients).await?);

    let load = Arc::new(Load::default());
    let started = Instant::now();
    let end = started + Duration::from_secs(options.seconds);
    let mut running = JoinSet::new();
    for client in 0..options.clients {
        let pace =
            options.rate.map(|rate| Duration::from_secs_f64(options.clients as f64 / rate as f64));
        let first =
            started + pace.unwrap_or_default().mul_f64(client as f64 / options.clients as f64);
        running.spawn(client_runs(Arc::clone(&depot), Arc::clone(&load), first, pace, end));
    }
    let looks = tokio::spawn(look(Arc::clone(&depot), Arc::clone(&load), end));
    let intervals = progress(&load, started, end, Duration::from_secs(options.interval)).await;
    while let Some(ended) = running.join_next().await {
        ended?;
    }
    looks.await?;
    let sent_for = started.elapsed();
    depot.all_shown().await?;
    let shown_after = started.elapsed();

    let answered = load.answered.load(Ordering::Relaxed);
    let errors = lock(&load.errors).clone();
    let per_second = |duration: Duration| answered as f64 / duration.as_secs_f64();
    println!();
    println!(
        "answered   {answered} commands in {:.1} s: {:.0} a second",
        sent_for.as_secs_f64(),
        per_second(sent_for)
    );
    println!(
        "projected  by both views after {:.1} s: {:.0} a second",
        shown_after.as_secs_f64(),
        per_second(shown_after)
    );
    if let [first, .., last] = &intervals[..] {
        println!("last / first interval: {:.2}", last / first);
    }
    print_hops(&load);
    println!("\nerrors     {}", errors.len());
    errors.iter().take(10).for_each(|error| println!("  {error}"));
    let compared = depot.views_are_the_fold().await?;
    println!("views      {compared}");
    ensure!(errors.is_empty(), "{} commands failed", errors.len());
    Ok(())
}

fn print_hops(load: &Load) {
    println!("\nms from the command to       p50       p90       p99       max     seen");
    for (hop, times) in &mut lock(&load.hops).0 {
        times.sort_unstable();
        let at = |share: f64| {
            let place = (times.len() as f64 * share) as usize;
            times
                .get(place.min(times.len().saturating_sub(1)))
                .map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
        };
        let (p50, p90, p99, max) = (at(0.5), at(0.9), at(0.99), at(1.0));
        println!("  {hop:<20} {p50:>9.1} {p90:>9.1} {p99:>9.1} {max:>9.1} {:>8}", times.len());
    }
}

/// Refuses addresses of other machines, because a mistyped address would send the load to another
/// server.
fn require_loopback(url: &Url) -> Result<()> {
    let loopback = match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if !loopback || url.scheme() != "http" {
        bail!("load goes to this machine only, such as http://127.0.0.1:3000, and not to {url}");
    }
    Ok(())
}

/// The measurements of a run.
#[derive(Debug, Default)]
struct Load {
    answered: AtomicU64,
    errors: Mutex<Vec<String>>,
    hops: Mutex<Hops>,
    stopped: AtomicBool,
}

/// The times from the command to each hop, in the order of the path.
#[derive(Debug)]
struct Hops([(&'static str, Vec<Duration>); 3]);

impl Default for Hops {
    fn default() -> Self {
        Self(["its answer", "the level", "the readings"].map(|hop| (hop, Vec::new())))
    }
}

impl Load {
    fn took(&self, hop: usize, time: Duration) {
        lock(&self.hops).0[hop].1.push(time);
    }

    fn add_error(&self, error: &anyhow::Error) {
        let mut errors = lock(&self.errors);
        errors.push(format!("{error:#}"));
        // A stopped stack fails thousands of times a second.
        if errors.len() >= 1_000 {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    fn runs_until(&self, end: Instant) -> bool {
        Instant::now() < end && !self.stopped.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends the commands of one client. With a pace, the time of a command counts from its due time,
/// so that a stall shows in every command that it delays.
async fn client_runs(
    depot: Arc<Depot>,
    load: Arc<Load>,
    first: Instant,
    pace: Option<Duration>,
    end: Instant,
) {
    let mut due = first;
    while load.runs_until(end) {
        match pace {
            Some(pace) => {
                tokio::time::sleep_until(due.into()).await;
                if !load.runs_until(end) {
                    return;
                }
                send(&depot, &load, due).await;
                due += pace;
            }
            None => send(&depot, &load, Instant::now()).await,
        }
    }
}

async fn send(depot: &Depot, load: &Load, from: Instant) {
    match depot.fill(depot.any_tank()).await {
        Ok(_) => {
            load.took(0, from.elapsed());
            load.answered.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => load.add_error(&error),
    }
}

/// Sends a command from time to time, and measures the times until both views show it.
async fn look(depot: Arc<Depot>, load: Arc<Load>, end: Instant) {
    while load.runs_until(end) {
        let tank = depot.any_tank();
        let sent = Instant::now();
        let looked = async {
            let version = depot.fill(tank).await?;
            load.took(0, sent.elapsed());
            load.answered.fetch_add(1, Ordering::Relaxed);
            let views = [1, 2].map(async |view| {
                depot.shows(tank, view, version).await?;
                load.took(view, sent.elapsed());
                anyhow::Ok(())
            });
            futures::future::try_join_all(views).await
        };
        if let Err(error) = looked.await {
            load.add_error(&error);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Prints the number of answered commands in each interval, and returns the numbers per second.
async fn progress(load: &Load, started: Instant, end: Instant, interval: Duration) -> Vec<f64> {
    let mut rates = Vec::new();
    let (mut from, mut before) = (started, 0);
    while load.runs_until(end) {
        let to = (from + interval).min(end);
        tokio::time::sleep_until(to.into()).await;
        let answered = load.answered.load(Ordering::Relaxed);
        let rate = (answered - before) as f64 / (to - from).as_secs_f64();
        println!(
            "  {:>5} s  {rate:>6.0} commands a second, {answered} in all",
            (to - started).as_secs()
        );
        // A shorter last interval cannot be compared with the others.
        if to - from == interval {
            rates.push(rate);
        }
        (from, before) = (to, answered);
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_goes_to_this_machine_only() {
        for address in [
            "http://127.0.0.1:3000",
            "http://localhost:3000",
            "http://[::1]:3000",
            "http://127.8.8.8/",
        ] {
            assert!(require_loopback(&address.parse().unwrap()).is_ok(), "{address}");
        }
        for address in [
            "https://127.0.0.1:3000",
            "http://10.0.0.1:3000",
            "http://192.168.0.1",
            "http://localhost.example.com",
            "http://example.com",
            "http://127.0.0.1.example.com",
            "http://0.0.0.0:3000",
            "http://172.17.0.1:4566",
        ] {
            let refused = require_loopback(&address.parse().unwrap()).unwrap_err().to_string();
            assert!(refused.contains(address), "{refused}");
        }
    }
}
