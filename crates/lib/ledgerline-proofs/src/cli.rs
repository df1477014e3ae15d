//! The program `proofs`: it prints the number of runs, the seed and the finding of each proof.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::{
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use cargo_metadata::MetadataCommand;
use clap::Parser;
use comfy_table::{ContentArrangement, Table};
use ledgerline_testing::SEED;

use crate::{Effort, PROOFS, tank};

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
    /// Use this number of runs for the proofs that consist of runs: 1, 3, 4, 8 and 11 to 15.
    #[arg(long)]
    runs: Option<u64>,
}

/// Runs the proofs of ledgerline, and then those of every application of the workspace that has a
/// test `proofs`. The program `proofs` of a workspace calls this function.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let effort = Effort { seed, long: !args.short, runs: args.runs };
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["#", "What is tried", "How often", "Seed", "Found", "Took"]);
    let application = tank::application();
    let mut stories = Vec::new();
    let began = Instant::now();
    for proof in
        PROOFS.iter().filter(|proof| args.only.is_empty() || args.only.contains(&proof.number))
    {
        let began = Instant::now();
        let result = (proof.run)(&effort, &application);
        let took = seconds(began.elapsed());
        let (often, seed, found) = match &result {
            Ok(tried) => {
                (format!("{} {}", grouped(tried.count), tried.unit), seed, "nothing".to_owned())
            }
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
                proof.again(&finding, &application, &effort)
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
    let applications = applications(&args, seed);
    if let Err(error) = &applications {
        eprintln!("error: {error}");
    }
    if stories.is_empty() && applications.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the tests named `proofs` of the workspace's packages: one for each application.
fn applications(args: &Args, seed: u64) -> Result<(), String> {
    let tests: Vec<_> = PROOFS
        .iter()
        .filter(|proof| {
            !proof.test.is_empty() && (args.only.is_empty() || args.only.contains(&proof.number))
        })
        .map(|proof| proof.test)
        .collect();
    let metadata = MetadataCommand::new().no_deps().exec().map_err(|error| error.to_string())?;
    let packages = metadata.packages.iter().filter(|package| {
        package.targets.iter().any(|target| target.is_test() && target.name == "proofs")
    });
    let mut failed = Vec::new();
    for package in packages.filter(|_| !tests.is_empty()) {
        println!("\nOf {}:", package.name);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "test",
            "--profile",
            "fast",
            "--quiet",
            "--package",
            &package.name,
            "--test",
            "proofs",
            "--",
        ]);
        cargo.args(["--nocapture", "--test-threads=1"]).env(SEED, seed.to_string());
        // Without --only, all tests run, including those that an application adds.
        if !args.only.is_empty() {
            cargo.args(&tests);
        }
        if !args.short {
            cargo.env("PROOFS", "long");
        }
        if let Some(runs) = args.runs {
            cargo.env("PROOFS_RUNS", runs.to_string());
        }
        if !cargo.status().is_ok_and(|status| status.success()) {
            failed.push(package.name.as_str());
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("the proofs of {} failed", failed.join(", ")))
    }
}

/// Prints the result of a proof in a test.
pub(crate) fn report(line: &str) {
    eprintln!("{line}");
}

/// The number with a comma between thousands.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
