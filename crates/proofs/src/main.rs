//! Prints what was tried, how often, with which seed, and what was found.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use comfy_table::{ContentArrangement, Table};
use proofs::{Effort, PROOFS};

/// Tries to lose an event, and to apply one twice.
#[derive(Debug, Parser)]
struct Args {
    /// As much as `cargo test` does, instead of minutes of it.
    #[arg(long)]
    short: bool,
    /// Only the proofs with these numbers.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=PROOFS.len() as i64))]
    only: Vec<u8>,
    /// Where randomness comes from; the runs of a proof have this seed and those after it.
    #[arg(long)]
    seed: Option<u64>,
    /// So many runs, of the proofs that are repeated: 1, 3, 4, 8 and 11.
    #[arg(long)]
    runs: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let effort = Effort { seed, long: !args.short, runs: args.runs };
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["#", "What is tried", "How often", "Seed", "Found", "Took"]);
    let mut stories = Vec::new();
    let began = Instant::now();
    for proof in PROOFS.iter().filter(|proof| args.only.is_empty() || args.only.contains(&proof.number)) {
        let began = Instant::now();
        let result = (proof.run)(&effort);
        let took = seconds(began.elapsed());
        let (often, seed, found) = match &result {
            Ok(tried) => (format!("{} {}", grouped(tried.count), tried.unit), seed, "nothing".to_owned()),
            Err(finding) => ("until then".to_owned(), finding.seed, "see below".to_owned()),
        };
        println!("{:>2} {}: {often}, {took}", proof.number, proof.name);
        match result {
            Ok(tried) if !tried.beside.is_empty() => println!("   {}", tried.beside),
            Ok(_) => {}
            Err(finding) => stories.push(format!(
                "{} {}: {}\n{}",
                proof.number,
                proof.name,
                finding.story,
                proof.again(&finding)
            )),
        }
        table.add_row([
            proof.number.to_string(),
            proof.name.to_owned(),
            often,
            seed.to_string(),
            found,
            took,
        ]);
    }
    println!("\n{table}\n{} in all", seconds(began.elapsed()));
    stories.iter().for_each(|story| println!("\n{story}"));
    if stories.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// With a comma between thousands.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
