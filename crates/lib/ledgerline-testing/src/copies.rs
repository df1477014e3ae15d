//! Copies of streams in the data of a stopped stack, which then has as much data as after a long
//! time.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use dynoxide::{Database, ImportOptions, Item};
use serde_json::{Value, json};
use uuid::Uuid;

use super::table;

/// The number of items that are written at once.
const BATCH: usize = 10_000;

/// Copies the streams of a category under new ids until the log has this many commits of the
/// category, and returns their number.
///
/// The items of these tables (by their names) that contain the id of a stream are copied with it.
/// The import writes no records of a table's stream, so no projector would write the rows of a
/// copy. A view of `$all` must not be among the tables, because a copied row would have the key of
/// the original.
///
/// # Errors
/// When the log has no stream of the category, or the database fails.
pub fn copy_streams(
    database: &Database,
    category: &str,
    tables: &[&str],
    enough: usize,
) -> Result<usize> {
    let log = table("CommitsTable");
    let prefix = format!("{category}-");
    let mut streams = BTreeMap::<String, Vec<(&str, String)>>::new();
    for item in items(database, &log)? {
        if let Some(id) =
            item["stream"]["S"].as_str().and_then(|stream| stream.strip_prefix(&prefix))
        {
            streams.entry(id.to_owned()).or_default().push((&log, item.to_string()));
        }
    }
    ensure!(!streams.is_empty(), "`{log}` has no stream of the category `{category}` to copy");
    let mut commits: usize = streams.values().map(Vec::len).sum();
    for table in tables.iter().filter(|table| **table != log) {
        for item in items(database, table)? {
            let text = item.to_string();
            if let Some((_, items)) = streams.iter_mut().find(|(id, _)| text.contains(id.as_str()))
            {
                items.push((table, text));
            }
        }
    }

    let import = |table: &str, items: Vec<Item>| {
        let imported = database.import_items(table, items, ImportOptions::default());
        imported.map_err(|error| anyhow!("`{table}`: {error}"))
    };
    let mut batches = BTreeMap::<&str, Vec<Item>>::new();
    let mut originals = streams.iter().cycle();
    while commits < enough {
        let (id, items) = originals.next().context("there is no stream to copy")?;
        let copy = Uuid::new_v4().to_string();
        for (table, text) in items {
            // The id is also in payloads, where a gzip hides it.
            ensure!(
                !text.contains(r#""B":"#),
                "`{table}` has compressed payloads: write them without COMPRESS_OVER"
            );
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

/// Returns all items of a table.
fn items(database: &Database, table: &str) -> Result<Vec<Value>> {
    let (mut all, mut after) = (Vec::new(), Value::Null);
    loop {
        let mut request = json!({ "TableName": table });
        if !after.is_null() {
            request["ExclusiveStartKey"] = after;
        }
        let page = database.scan(serde_json::from_value(request)?);
        let page = page.map_err(|error| anyhow!("`{table}`: {error}"))?;
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

    #[test]
    fn streams_are_copied_whole_and_under_ids_of_their_own() {
        let database = crate::database(&["CommitsTable", "LevelsTable"]);
        let log = table("CommitsTable");
        let levels = table("LevelsTable");
        let put = |table: &str, item: Value| {
            let items = vec![serde_json::from_value(item).unwrap()];
            database.import_items(table, items, ImportOptions::default()).unwrap();
        };
        let id = "163082d2-b005-75d7-8eb6-aa1f83efd55d";
        for version in ["1", "2"] {
            let stream = format!("tank-{id}");
            put(
                &log,
                json!({ "stream": { "S": stream }, "version": { "N": version }, "data": { "S": id } }),
            );
        }
        put(&log, json!({ "stream": { "S": "haul-1" }, "version": { "N": "1" } }));
        put(&levels, json!({ "tankId": { "S": id }, "level": { "N": "1" } }));

        assert_eq!(copy_streams(&database, "tank", &[&log, &levels], 5).unwrap(), 6);

        let copied = items(&database, &log).unwrap();
        assert_eq!(copied.len(), 7);
        for level in items(&database, &levels).unwrap() {
            let id = level["tankId"]["S"].as_str().unwrap();
            let commits = copied.iter().filter(|item| item["stream"]["S"] == format!("tank-{id}"));
            assert!(
                commits.map(|item| item["data"]["S"].as_str().unwrap()).eq([id, id]),
                "{copied:?}"
            );
        }
        assert_eq!(items(&database, &levels).unwrap().len(), 3);
    }

    #[test]
    fn compressed_payloads_are_not_copied() {
        let database = crate::database(&["CommitsTable"]);
        let log = table("CommitsTable");
        let item = json!({ "stream": { "S": "tank-163082d2-b005-75d7-8eb6-aa1f83efd55d" }, "version": { "N": "1" }, "data": { "B": "H4s=" } });
        let items = vec![serde_json::from_value(item).unwrap()];
        database.import_items(&log, items, ImportOptions::default()).unwrap();
        let refused = copy_streams(&database, "tank", &[&log], 5).unwrap_err();
        assert!(refused.to_string().contains("COMPRESS_OVER"), "{refused}");
    }

    #[test]
    fn a_log_without_a_stream_of_the_category_has_nothing_to_copy() {
        let refused =
            copy_streams(&crate::database(&["CommitsTable"]), "tank", &[], 5).unwrap_err();
        assert!(refused.to_string().contains("no stream of the category `tank`"), "{refused}");
    }
}
