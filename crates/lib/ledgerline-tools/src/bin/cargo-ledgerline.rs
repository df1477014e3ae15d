//! `cargo ledgerline new shop`: creates a workspace, for users without a clone of this repository.

#![expect(clippy::print_stderr, reason = "this is a program for people")]

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "cargo", bin_name = "cargo")]
enum Cargo {
    /// Event sourcing and CQRS on AWS Lambda.
    #[command(subcommand)]
    Ledgerline(Task),
}

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Create a workspace with a small application.
    New {
        /// The folder, which must be new or empty. Its last part is the name of the application:
        /// lower-case words with dashes.
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let Cargo::Ledgerline(Task::New { folder }) = Cargo::parse();
    match ledgerline_tools::new_workspace(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
