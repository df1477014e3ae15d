//! Fills the data of a local stack within minutes, so that it holds as much as after a long time.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use dynoxide::{Database, ImportOptions, Item};
use ledgerline_local::{services, template};
use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The folder that the local stack was started with as `--data`. It must not run.
    data: PathBuf,
    /// The least number of commits of accounts that there are afterwards.
    #[arg(long, default_value_t = 1_000_000)]
    commits: usize,
}

/// The number of items that are written at once.
const BATCH: usize = 10_000;

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

/// Copies the accounts that are there, with their commits and all of their rows, under new ids, until there are enough commits, and returns their
/// number. The import writes no records of a table's stream, so that nothing is projected: that is why the rows are copied too.
pub(crate) fn fill(database: &Database, log: &str, tables: &[&str], enough: usize) -> Result<usize> {
    let mut accounts = BTreeMap::<String, Vec<(&str, String)>>::new();
    for item in items(database, log)? {
        if let Some(id) = item["stream"]["S"].as_str().and_then(|stream| stream.strip_prefix("account-")) {
            accounts.entry(id.to_owned()).or_default().push((log, item.to_string()));
        }
    }
    ensure!(!accounts.is_empty(), "there are no accounts to copy: run the load first");
    let mut commits: usize = accounts.values().map(Vec::len).sum();
    // What is in one order over all streams has its places in that order: a copy would take the place of what it is a copy of.
    let is_ordered = |table: &str| table.ends_with("SequenceTable") || table.ends_with("BookingsTable");
    for table in tables.iter().filter(|table| **table != log && !is_ordered(table)) {
        for item in items(database, table)? {
            let text = item.to_string();
            if let Some((_, items)) = accounts.iter_mut().find(|(id, _)| text.contains(id.as_str())) {
                items.push((table, text));
            }
        }
    }

    let import = |table: &str, items: Vec<Item>| {
        let imported = database.import_items(table, items, ImportOptions::default());
        imported.map_err(|error| anyhow!("{table}: {error}"))
    };
    let mut batches = BTreeMap::<&str, Vec<Item>>::new();
    let mut originals = accounts.iter().cycle();
    while commits < enough {
        let (id, items) = originals.next().context("there are accounts")?;
        let copy = Uuid::new_v4().to_string();
        for (table, text) in items {
            commits += usize::from(*table == log);
            let batch = batches.entry(*table).or_default();
            batch.push(serde_json::from_str(&text.replace(id, &copy))?);
            if batch.len() == BATCH {
                import(table, std::mem::take(batch))?;
            }
        }
    }
    for (table, batch) in batches {
        import(table, batch)?;
    }
    Ok(commits)
}

/// All items of a table.
fn items(database: &Database, table: &str) -> Result<Vec<Value>> {
    let (mut all, mut after) = (Vec::new(), Value::Null);
    loop {
        let mut request = json!({ "TableName": table });
        if !after.is_null() {
            request["ExclusiveStartKey"] = after;
        }
        let page =
            database.scan(serde_json::from_value(request)?).map_err(|error| anyhow!("{table}: {error}"))?;
        let mut page = serde_json::to_value(page)?;
        all.extend(page["Items"].as_array_mut().map(std::mem::take).unwrap_or_default());
        after = page["LastEvaluatedKey"].take();
        if after.is_null() {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accounts_are_copied_whole_and_under_ids_of_their_own() {
        let database = ledgerline_testing::database(&["CommitsTable", "BalancesTable"]);
        let (log, balances) =
            (ledgerline_testing::table("CommitsTable"), ledgerline_testing::table("BalancesTable"));
        let put = |table: &str, item: Value| {
            let items = vec![serde_json::from_value(item).unwrap()];
            database.import_items(table, items, ImportOptions::default()).unwrap();
        };
        let id = "163082d2-b005-75d7-8eb6-aa1f83efd55d";
        for version in ["1", "2"] {
            let stream = format!("account-{id}");
            put(&log, json!({ "stream": { "S": stream }, "version": { "N": version }, "data": { "S": id } }));
        }
        put(&log, json!({ "stream": { "S": "todo-1" }, "version": { "N": "1" } }));
        put(&balances, json!({ "accountId": { "S": id }, "balance": { "N": "1" } }));

        assert_eq!(fill(&database, &log, &[&log, &balances], 5).unwrap(), 6);

        let copied = items(&database, &log).unwrap();
        assert_eq!(copied.len(), 7);
        for balance in items(&database, &balances).unwrap() {
            let id = balance["accountId"]["S"].as_str().unwrap();
            let commits = copied.iter().filter(|item| item["stream"]["S"] == format!("account-{id}"));
            assert!(commits.map(|item| item["data"]["S"].as_str().unwrap()).eq([id, id]), "{copied:?}");
        }
        assert_eq!(items(&database, &balances).unwrap().len(), 3);
    }
}
