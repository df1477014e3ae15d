//! Fills the data of a local stack within minutes, so that it holds as much as after a long time.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use dynoxide::Database;
use ledgerline_local::{services, template};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The folder that the local stack was started with as `--data`. It must not run.
    data: PathBuf,
    /// The least number of commits of accounts that there are afterwards.
    #[arg(long, default_value_t = 1_000_000)]
    commits: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.data.is_dir(), "{} is no folder of a local stack's data", options.data.display());
    let database = services::open(&options.data)?;
    let template = template::load("template.yaml".as_ref(), &BTreeMap::new(), "http://127.0.0.1")?;
    let tables: Vec<_> = template.tables.iter().map(|table| table.name.as_str()).collect();
    let started = Instant::now();
    database.enable_bulk_loading().map_err(|error| anyhow!("{error}"))?;
    let commits = fill(&database, &ledgerline_testing::table("CommitsTable"), &tables, options.commits)
        .with_context(|| options.data.display().to_string())?;
    println!("{commits} commits of accounts after {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Copies accounts with their commits and all of their rows until there are enough commits, and returns
/// their number.
pub(crate) fn fill(database: &Database, _: &str, tables: &[&str], enough: usize) -> Result<usize> {
    // A copy of a row of `$all` would have the place of the row itself.
    let is_ordered = |table: &str| table.ends_with("SequenceTable") || table.ends_with("BookingsTable");
    let tables: Vec<_> = tables.iter().copied().filter(|table| !is_ordered(table)).collect();
    ledgerline_testing::copy_streams(database, "account", &tables, enough)
}
