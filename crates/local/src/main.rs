//! `cargo run -p local`: the whole of `template.yaml` on a laptop.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for people")]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, anyhow};
use clap::Parser;
use local::stack::{Options, Stack};

/// Runs template.yaml on this machine: DynamoDB, SQS and EventBridge emulated in this process, and the Lambda
/// binaries that SAM ships behind a Lambda Runtime API. Needs no Docker, no account and no network.
#[derive(Debug, Parser)]
#[command(name = "local")]
struct Arguments {
    /// The template to run.
    #[arg(long, default_value = "template.yaml")]
    template: PathBuf,
    /// Port of the HTTP API on 127.0.0.1; 0 takes any free one.
    #[arg(long, default_value_t = 3000)]
    port: u16,
    /// Keep the data in this folder, and go on with what is there. Without it, data lives in memory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Values of the template's parameters, as for `sam deploy`.
    #[arg(long, value_name = "NAME=VALUE", num_args = 1.., value_parser = parameter)]
    parameter_overrides: Vec<(String, String)>,
    /// Show everything that the functions log, not only warnings and errors.
    #[arg(long)]
    logs: bool,
    /// Do not print a line for each hop of an event.
    #[arg(long)]
    quiet: bool,
}

fn parameter(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').ok_or_else(|| anyhow!("write NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let place = match &arguments.data {
        Some(folder) => folder.display().to_string(),
        None => "memory (keep it with --data DIR)".to_owned(),
    };
    let stack = Stack::start(Options {
        template: arguments.template,
        parameters: arguments.parameter_overrides.into_iter().collect(),
        port: arguments.port,
        data: arguments.data,
        logs: arguments.logs,
        quiet: arguments.quiet,
    })
    .await?;
    println!();
    for (route, function) in &stack.routes {
        println!("  {route:<40} {function}");
    }
    println!();
    for (service, url) in &stack.services {
        println!("  {service:<12} {url}");
    }
    println!("  data         {place}");
    for (id, kind) in &stack.ignored {
        println!("  not emulated {id} ({kind})");
    }
    println!("\nReady at {}. Stop with Ctrl-C.\n", stack.url);
    tokio::signal::ctrl_c().await?;
    Ok(())
}
