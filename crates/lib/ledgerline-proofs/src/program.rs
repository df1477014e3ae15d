//! The program `proofs`: it prints the number of runs, the seed and the finding of each proof.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::{
    io::{self, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use comfy_table::{ContentArrangement, Table};

use crate::{Effort, PROOFS, tanks};

/// Try to lose an event, and to apply one twice.
#[derive(Debug, Parser)]
struct Args {
    /// Run only the short form of each proof, as `cargo test` does: seconds instead of minutes.
    #[arg(long)]
    short: bool,
    /// Run only the proofs with these numbers.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=PROOFS.len() as i64))]
    only: Vec<u8>,
    /// Use this seed for the first run of each proof; the next runs have the seeds after it.
    #[arg(long)]
    seed: Option<u64>,
    /// Use this number of runs for the proofs that consist of runs: 1, 3 and 7 to 11.
    #[arg(long)]
    runs: Option<u64>,
}

/// Runs the proofs with the tanks. `PROOFS=long cargo test --profile fast --test proofs` runs those
/// of the applications of a workspace.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let effort = Effort { seed, long: !args.short, runs: args.runs };
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["#", "What is tried", "How often", "Seed", "Found", "Took"]);
    let application = tanks();
    let mut stories = Vec::new();
    let began = Instant::now();
    for proof in
        PROOFS.iter().filter(|proof| args.only.is_empty() || args.only.contains(&proof.number))
    {
        let began = Instant::now();
        let result = proof.run(&effort, &application);
        let took = seconds(began.elapsed());
        let (often, seed, found) = match &result {
            Ok(tried) => (
                format!("{} {}", group_digits(tried.count), tried.unit),
                seed,
                "nothing".to_owned(),
            ),
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
                proof.repeat_command(&finding, &application, &effort)
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

/// Prints the result of a proof in a test.
pub(crate) fn report(line: &str) {
    // Past the capture of the test harness, which shows the output of failed tests only.
    let _ = writeln!(io::stderr(), "{line}");
}

/// The number with a comma between thousands.
fn group_digits(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
