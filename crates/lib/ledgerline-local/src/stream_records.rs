//! Indexes and deletion for the stream records of the emulated database. Without them, the database
//! finds the records of a stream without an index, and never deletes a record. So each write and
//! each read of a stream would cost more with every record.
//!
//! This module adds, in the database's own file, an index for each of its two queries, and a
//! trigger that deletes records. Only a trigger can reach the data while the database is in memory.
//! A write of the tag [`PASSED`] starts it. The newest record stays, because the next number
//! follows from it. With `--data`, records stay until the checkpoint has passed them: a process
//! that is killed loses its queues.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, anyhow};
use dynoxide::{
    Database,
    actions::get_records::Record,
    streams::{shard_id, table_arn},
};
use rusqlite::Connection;
use serde_json::json;
use tokio::sync::watch;

/// The tag of a table that holds a sequence number. All readers of the table's stream have passed
/// that number.
const PASSED: &str = "ledgerline:stream-passed";

/// The maximum number of records in one deletion, because other requests wait meanwhile.
const BATCH: usize = 2_000;

/// The pause between two deletions of records.
const INTERVAL: Duration = Duration::from_millis(250);

/// Opens the database in this file. A missing file is created.
///
/// # Errors
/// When the file is no database of this kind, or is in use.
pub(crate) fn open(file: &Path) -> Result<Database> {
    let path = file.to_str().ok_or_else(|| anyhow!("{} is not UTF-8", file.display()))?;
    let opened =
        || Database::new(path).map_err(|error| anyhow!("cannot open {}: {error}", file.display()));
    // The first opening creates the database's own tables, or migrates those of an older version.
    drop(opened()?);
    prepare(file)?;
    let database = opened()?;
    // This call sets SQLite's `synchronous = NORMAL`: only a checkpoint waits for the disk, not
    // each write. A process that is killed loses nothing. After a power failure, the last writes
    // may be missing, but no write is torn.
    database
        .disable_bulk_loading()
        .map_err(|error| anyhow!("cannot open {}: {error}", file.display()))?;
    Ok(database)
}

/// Deletes all stream records in this file, as DynamoDB does after a day. Later sequence numbers
/// are larger, because no number is below the clock's microseconds.
///
/// # Errors
/// When the file is no database of this kind, or is in use.
pub(crate) fn forget(file: &Path) -> Result<()> {
    Connection::open(file)?.execute("DELETE FROM _stream_records", [])?;
    Ok(())
}

/// Opens a database in memory.
///
/// # Errors
/// When there is no room for a temporary file.
pub(crate) fn in_memory() -> Result<Database> {
    let failed = |error: dynoxide::DynoxideError| anyhow!("cannot start DynamoDB: {error}");
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let file = folder.path().join("empty.sqlite");
    let path = file.to_str().ok_or_else(|| anyhow!("{} is not UTF-8", file.display()))?;
    drop(Database::new(path).map_err(failed)?);
    prepare(&file)?;
    let database = Database::memory().map_err(failed)?;
    database.restore_from(path).map_err(failed)?;
    Ok(database)
}

/// Adds the indexes and the trigger. The two indexes have exactly the expressions of the database's
/// own queries.
///
/// The trigger fires when the tag is written. It deletes a record when all readers of the stream
/// have passed the record, or after 24 hours, as on AWS. The sequence number shows the age of a
/// record, because it is never below the clock's microseconds.
///
/// The newest record stays at any age. The next sequence number is one more than that of the newest
/// record, even if the clock was set back.
fn prepare(file: &Path) -> Result<()> {
    let schema = format!(
        "CREATE INDEX IF NOT EXISTS ledgerline_newest_record
             ON _stream_records (table_name, CAST(sequence_number AS INTEGER));
         CREATE INDEX IF NOT EXISTS ledgerline_next_records
             ON _stream_records (table_name, shard_id, CAST(sequence_number AS INTEGER));
         CREATE TRIGGER IF NOT EXISTS ledgerline_records_leave AFTER UPDATE OF tags ON _tables BEGIN
             DELETE FROM _stream_records WHERE id IN (
                 SELECT id FROM _stream_records
                 WHERE table_name = NEW.table_name
                   AND CAST(sequence_number AS INTEGER) <= MAX((unixepoch() - 86400) * 1000000, (
                       SELECT COALESCE(MAX(CAST(substr(json_extract(value, '$.Value'), 2) AS INTEGER)), 0)
                       FROM json_each(NEW.tags) WHERE json_extract(value, '$.Key') = '{PASSED}'))
                   AND CAST(sequence_number AS INTEGER) < (
                       SELECT MAX(CAST(sequence_number AS INTEGER)) FROM _stream_records
                       WHERE table_name = NEW.table_name)
                 ORDER BY CAST(sequence_number AS INTEGER) LIMIT {BATCH});
         END;"
    );
    let connection = Connection::open(file)?;
    connection.execute_batch(&schema).with_context(|| format!("cannot prepare {}", file.display()))
}

/// Deletes the records of a table's stream that all of its readers have passed. The value of a
/// reader is a sequence number, or empty at the beginning: the reader needs no record up to that
/// number again. The loop ends with the readers.
pub(crate) async fn leave(
    database: Database,
    stream: Stream,
    mut readers: Vec<watch::Receiver<String>>,
) {
    loop {
        let passed = readers.iter_mut().map(|reader| reader.borrow_and_update().clone()).min();
        // The next round retries a failed deletion, because the failure is no reason to stop the
        // stack.
        let _ = stream.pass(&database, passed.as_deref().unwrap_or_default());
        tokio::time::sleep(INTERVAL).await;
        let changes: Vec<_> = readers.iter_mut().map(|reader| Box::pin(reader.changed())).collect();
        // Without a change, the loop continues, for records that have become too old.
        match tokio::time::timeout(Duration::from_secs(600), futures::future::select_all(changes))
            .await
        {
            Ok((Err(_), ..)) => return,
            Ok((Ok(()), ..)) | Err(_) => {}
        }
    }
}

/// The stream of a table. In the emulated database, each stream has one shard.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) table: String,
    pub(crate) arn: String,
}

impl Stream {
    /// Returns the current stream of the table.
    ///
    /// # Errors
    /// When the table has no stream.
    pub(crate) fn find(database: &Database, table: &str) -> Result<Self> {
        // `DescribeTable` would count the table's items, and `ListStreams` does not.
        let streams = database.list_streams(serde_json::from_value(json!({ "TableName": table }))?);
        let streams = streams.map_err(|error| anyhow!("{error}"))?.streams;
        let stream =
            streams.into_iter().next().ok_or_else(|| anyhow!("table {table} has no stream"))?;
        Ok(Self { table: table.to_owned(), arn: stream.stream_arn })
    }

    pub(crate) fn shard(&self) -> String {
        shard_id(&self.table)
    }

    /// Returns the records after this sequence number, or from the oldest record if the number is
    /// empty.
    pub(crate) fn records_after(
        &self,
        database: &Database,
        position: &str,
        limit: usize,
    ) -> Result<Vec<Record>> {
        let failed = |error: dynoxide::DynoxideError| anyhow!("{error}");
        let mut iterator = json!({ "StreamArn": self.arn, "ShardId": self.shard() });
        if position.is_empty() {
            iterator["ShardIteratorType"] = json!("TRIM_HORIZON");
        } else {
            iterator["ShardIteratorType"] = json!("AFTER_SEQUENCE_NUMBER");
            iterator["SequenceNumber"] = json!(position);
        }
        let iterator =
            database.get_shard_iterator(serde_json::from_value(iterator)?).map_err(failed)?;
        let request = json!({ "ShardIterator": iterator.shard_iterator, "Limit": limit });
        Ok(database.get_records(serde_json::from_value(request)?).map_err(failed)?.records)
    }

    /// Deletes all records up to this sequence number, in batches.
    fn pass(&self, database: &Database, passed: &str) -> Result<()> {
        let tag = json!({ "ResourceArn": table_arn(&self.table), "Tags": [{ "Key": PASSED, "Value": passed }] });
        let mut oldest = None;
        loop {
            database
                .tag_resource(serde_json::from_value(tag.clone())?)
                .map_err(|error| anyhow!("{error}"))?;
            let first = self
                .records_after(database, "", 1)?
                .pop()
                .map(|record| record.dynamodb.sequence_number);
            if first == oldest {
                return Ok(());
            }
            oldest = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a table with a stream in the database.
    fn with_stream(database: Database) -> (Database, Stream) {
        let create = json!({
            "TableName": "commits",
            "KeySchema": [{ "AttributeName": "stream", "KeyType": "HASH" }, { "AttributeName": "version", "KeyType": "RANGE" }],
            "AttributeDefinitions": [
                { "AttributeName": "stream", "AttributeType": "S" }, { "AttributeName": "version", "AttributeType": "N" },
            ],
            "BillingMode": "PAY_PER_REQUEST",
            "StreamSpecification": { "StreamEnabled": true, "StreamViewType": "NEW_IMAGE" },
        });
        database.create_table(serde_json::from_value(create).unwrap()).unwrap();
        let stream = Stream::find(&database, "commits").unwrap();
        (database, stream)
    }

    fn write(database: &Database, versions: std::ops::RangeInclusive<usize>) {
        for version in versions {
            let item = json!({ "stream": { "S": "a-1" }, "version": { "N": version.to_string() } });
            let put = json!({ "TableName": "commits", "Item": item });
            database.put_item(serde_json::from_value(put).unwrap()).unwrap();
        }
    }

    /// Returns the versions of the records after a position, and their sequence numbers.
    fn kept(database: &Database, stream: &Stream, position: &str) -> Vec<(String, String)> {
        let records = stream.records_after(database, position, 1_000).unwrap();
        let version =
            |record: &Record| serde_json::to_value(&record.dynamodb.keys["version"]).unwrap();
        records
            .iter()
            .map(|record| {
                (
                    version(record)["N"].as_str().unwrap().to_owned(),
                    record.dynamodb.sequence_number.clone(),
                )
            })
            .collect()
    }

    #[test]
    fn records_are_deleted_once_all_readers_have_passed_them() {
        let (database, stream) = with_stream(in_memory().unwrap());
        write(&database, 1..=10);
        let records = kept(&database, &stream, "");
        stream.pass(&database, "").unwrap();
        assert_eq!(kept(&database, &stream, ""), records, "no reader has passed a record");

        stream.pass(&database, &records[6].1).unwrap();

        assert_eq!(kept(&database, &stream, ""), records[7..]);
        assert_eq!(
            kept(&database, &stream, &records[6].1),
            records[7..],
            "who is behind sees what is left"
        );
    }

    #[test]
    fn the_newest_record_stays_so_that_sequence_numbers_continue_after_it() {
        let (database, stream) = with_stream(in_memory().unwrap());
        write(&database, 1..=3);
        let newest = kept(&database, &stream, "").pop().unwrap();
        stream.pass(&database, &newest.1).unwrap();
        assert_eq!(kept(&database, &stream, ""), std::slice::from_ref(&newest));

        write(&database, 4..=4);

        let next = kept(&database, &stream, &newest.1);
        assert_eq!((next.len(), next[0].0.as_str()), (1, "4"));
    }

    #[test]
    fn one_pass_deletes_more_than_a_batch() {
        let (database, stream) = with_stream(in_memory().unwrap());
        write(&database, 1..=2 * BATCH + 100);
        let last = database_newest(&database, &stream);
        stream.pass(&database, &last).unwrap();
        assert_eq!(kept(&database, &stream, "").len(), 1);
    }

    fn database_newest(database: &Database, stream: &Stream) -> String {
        let latest = json!({ "StreamArn": stream.arn, "ShardId": stream.shard() });
        let described = database.describe_stream(serde_json::from_value(latest).unwrap()).unwrap();
        let shard = described.stream_description.shards.into_iter().next().unwrap();
        shard.sequence_number_range.ending_sequence_number.unwrap()
    }

    #[test]
    fn records_are_deleted_after_a_day_even_if_they_are_unread() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dynamodb.sqlite");
        let (database, stream) = with_stream(open(&file).unwrap());
        write(&database, 1..=4);
        let connection = Connection::open(&file).unwrap();
        // Two of the four records were written 25 hours ago.
        let age = "UPDATE _stream_records SET sequence_number = sequence_number - 90000000000 WHERE id <= 2";
        assert_eq!(connection.execute(age, []).unwrap(), 2);

        stream.pass(&database, "").unwrap();

        let versions: Vec<_> =
            kept(&database, &stream, "").into_iter().map(|(version, _)| version).collect();
        assert_eq!(versions, ["3", "4"]);
    }

    /// Returns the bytes that this thread reads from files during `work`: the pages that the
    /// database visits and does not have in its cache of 2 MB. The number is the same on every
    /// machine.
    #[cfg(target_os = "linux")]
    fn bytes_read(work: impl FnOnce()) -> u64 {
        let read = || {
            let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            counters
                .lines()
                .find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok())
                .unwrap()
        };
        let before = read();
        work();
        read() - before
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn writes_and_reads_of_a_stream_cost_the_same_at_any_size() {
        const WRITES: usize = 20;
        let folder = tempfile::tempdir().unwrap();
        let (database, stream) = with_stream(open(&folder.path().join("dynamodb.sqlite")).unwrap());
        let store = |ids: std::ops::Range<usize>| {
            let item = |id: usize| {
                let item = json!({ "stream": { "S": format!("a-{id}") }, "version": { "N": "1" }, "data": { "S": "x".repeat(300) } });
                serde_json::from_value(item).unwrap()
            };
            let options = dynoxide::ImportOptions { record_streams: true, set_cached_at: false };
            database.import_items("commits", ids.map(item).collect(), options).unwrap();
        };
        let work = |round: usize| {
            let mut position = database_newest(&database, &stream);
            bytes_read(|| {
                for version in round * 100..round * 100 + WRITES {
                    write(&database, version..=version);
                    position = kept(&database, &stream, &position).pop().unwrap().1;
                    assert_eq!(Stream::find(&database, "commits").unwrap().arn, stream.arn);
                }
            })
        };
        store(0..1_000);
        let few = work(1);
        // No reader has passed these commits, so all of their records are stored: four times the
        // size of the cache.
        store(1_000..10_000);
        let many = work(2);

        // With its indexes, the database reads a few pages of 4 KB; all records are 8 MB.
        let bound = WRITES as u64 * 100_000;
        assert!(
            few < bound && many < bound,
            "{few} bytes were read where 1,000 commits were stored, {many} where 10,000 were"
        );
    }
}
