//! Copies tanks in the data of a stopped local stack, which then has as much data as after a long
//! time.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use ledgerline::{Aggregate, testing::tank::Tank};
use ledgerline_local::services;
use ledgerline_sam::template;
use ledgerline_testing::{copy_streams, workspace};

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The folder of the local stack's `--data`. The stack must not run.
    data: PathBuf,
    /// Copy until the log has at least this number of commits of tanks.
    #[arg(long, default_value_t = 1_000_000)]
    commits: usize,
}

pub(crate) fn run(options: &CopyArgs) -> Result<()> {
    ensure!(
        options.data.is_dir(),
        "{} is not a folder of a local stack's data",
        options.data.display()
    );
    let database = services::open(&options.data)?;
    let template =
        template::load(&workspace().join("template.yaml"), &BTreeMap::new(), "http://127.0.0.1")?;
    // A copied row of `$all` would have the key of the original.
    let is_ordered =
        |table: &&str| table.ends_with("SequenceTable") || table.ends_with("StockTable");
    let tables = template.tables.iter().map(|table| table.name.as_str());
    let tables: Vec<_> = tables.filter(|table| !is_ordered(table)).collect();
    let started = Instant::now();
    database.enable_bulk_loading().map_err(|error| anyhow!("{error}"))?;
    let commits = copy_streams(&database, Tank::CATEGORY, &tables, options.commits)
        .with_context(|| options.data.display().to_string())?;
    println!("{commits} commits of tanks after {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
