//! The changes of the log in a Kinesis stream, as DynamoDB itself writes them: in shards by a hash
//! that DynamoDB chooses, repeated and out of order at times. No Kinesis service is emulated.
//!
//! Sources: the developer guide of DynamoDB, "Using Kinesis Data Streams to capture changes", and
//! that of Lambda, "Using Lambda with Kinesis".

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ledgerline_sam::template::REGION;
use serde_json::{Value, json};

use crate::pattern::Filters;

/// One half of the hash keys of a Kinesis stream. Each half begins as one shard. The first half
/// splits into two shards after [`BEFORE_SPLIT`] records.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) number: u64,
    stream: String,
    table: String,
    /// Chooses the records that are repeated and swapped, and the unit of time.
    seed: u64,
    records: AtomicUsize,
}

/// The number of records that the first half gets before it splits.
const BEFORE_SPLIT: usize = 20;

impl Half {
    /// Returns both halves of the Kinesis stream with this ARN, which gets the changes of a table.
    pub(crate) fn both(stream: &str, table: &str) -> [Self; 2] {
        let seed = std::env::var("LEDGERLINE_SEED").ok().and_then(|seed| seed.parse().ok());
        [0, 1].map(|number| Self {
            number,
            stream: stream.to_owned(),
            table: table.to_owned(),
            seed: seed.unwrap_or(0),
            records: AtomicUsize::new(0),
        })
    }

    /// Returns the Kinesis records of the changes in this half that pass the filters: those of each
    /// shard, in the order in which Lambda gets them.
    pub(crate) fn records(&self, changes: &[Value], filters: &Filters) -> Vec<Vec<Value>> {
        let mut shards: [Vec<Value>; 3] = Default::default();
        for change in
            changes.iter().filter(|change| hash(&change["dynamodb"]["Keys"]) % 2 == self.number)
        {
            let is_split = self.records.fetch_add(1, Ordering::Relaxed) >= BEFORE_SPLIT;
            let child = 1 + usize::from(hash(&change["dynamodb"]["Keys"]) % 4 >= 2);
            let shard = if is_split && self.number == 0 { child } else { 0 };
            shards[shard].push(self.table_change(change));
        }
        let first = changes.first().and_then(|it| it["dynamodb"]["SequenceNumber"].as_str());
        let first = first.unwrap_or_default();
        let shards = shards.into_iter().zip([self.number, 2, 3]);
        shards
            .map(|(changes, shard)| self.wrap(self.shuffle(changes, filters), shard, first))
            .collect()
    }

    /// Repeats and swaps some changes.
    fn shuffle(&self, changes: Vec<Value>, filters: &Filters) -> Vec<Value> {
        let mut shuffled: Vec<Value> = Vec::new();
        for change in changes.into_iter().filter(|change| filters.pass(&json!({ "data": change })))
        {
            let chance = hash(&json!([self.seed, change["dynamodb"]["Keys"]])) % 8;
            let repeated = (chance == 0).then(|| change.clone());
            match shuffled.len() {
                place @ 1.. if chance < 2 => shuffled.insert(place - 1, change),
                _ => shuffled.push(change),
            }
            shuffled.extend(repeated);
        }
        shuffled
    }

    /// Returns the change as DynamoDB writes it into Kinesis.
    fn table_change(&self, record: &Value) -> Value {
        let mut change = record["dynamodb"].clone();
        let seconds = change["ApproximateCreationDateTime"].as_i64().unwrap_or_default();
        // On AWS, a setting of the table chooses the unit. Here, the seed does.
        let (unit, factor) = match self.seed % 2 {
            0 => ("MILLISECOND", 1_000),
            _ => ("MICROSECOND", 1_000_000),
        };
        change["ApproximateCreationDateTime"] = json!(seconds * factor);
        encode_again(&mut change["NewImage"]);
        change["ApproximateCreationDateTimePrecision"] = json!(unit);
        let fields = change.as_object_mut().into_iter();
        fields.for_each(|fields| {
            fields.retain(|name, _| name != "SequenceNumber" && name != "StreamViewType");
        });
        json!({
            "awsRegion": REGION, "eventID": record["eventID"], "eventName": record["eventName"],
            "userIdentity": null, "recordFormat": "application/json", "tableName": self.table,
            "dynamodb": change, "eventSource": "aws:dynamodb",
        })
    }

    fn wrap(&self, changes: Vec<Value>, shard: u64, first: &str) -> Vec<Value> {
        let shard = format!("shardId-{shard:012}");
        let wrap = |(place, change): (usize, Value)| {
            let number = format!("49{first:0>44}{place:010}");
            let now = jiff::Timestamp::now().as_millisecond() as f64 / 1e3;
            json!({
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": format!("{:X}", hash(&change["dynamodb"]["Keys"])),
                    "sequenceNumber": number,
                    "data": BASE64_STANDARD.encode(change.to_string()),
                    "approximateArrivalTimestamp": now,
                },
                "eventSource": "aws:kinesis", "eventVersion": "1.0", "awsRegion": REGION,
                "eventName": "aws:kinesis:record", "eventID": format!("{shard}:{number}"),
                "eventSourceARN": self.stream,
            })
        };
        changes.into_iter().enumerate().map(wrap).collect()
    }
}

/// Encodes the binary values in an image a second time, as DynamoDB does for Kinesis.
fn encode_again(image: &mut Value) {
    match image {
        Value::Array(values) => values.iter_mut().for_each(encode_again),
        Value::Object(fields) => match fields.get_mut("B") {
            Some(Value::String(binary)) => *binary = BASE64_STANDARD.encode(&*binary),
            _ => fields.values_mut().for_each(encode_again),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the change in a record of Kinesis.
pub(crate) fn read_change(record: &Value) -> Option<Value> {
    let data = BASE64_STANDARD.decode(record["kinesis"]["data"].as_str()?).ok()?;
    serde_json::from_slice(&data).ok()
}

/// Returns the shard of a record of Kinesis.
pub(crate) fn shard(record: &Value) -> Option<&str> {
    Some(record["eventID"].as_str()?.split_once(':')?.0)
}

fn hash(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn changes() -> Vec<Value> {
        let change = |version: u64| {
            let keys =
                json!({ "stream": { "S": "tank-1" }, "version": { "N": version.to_string() } });
            let event = if version == 7 { "MODIFY" } else { "INSERT" };
            json!({ "eventName": event, "eventID": "e", "dynamodb": {
                "Keys": keys, "NewImage": keys, "SequenceNumber": format!("{version:021}"),
                "ApproximateCreationDateTime": 5, "StreamViewType": "NEW_IMAGE", "SizeBytes": 3 } })
        };
        (1..=200).map(change).collect()
    }

    #[test]
    fn commits_of_one_stream_are_in_several_shards_repeated_and_swapped_and_none_is_missing() {
        let insertions = serde_json::from_value(json!({ "Filters": [{ "Pattern":
            "{\"data\": {\"eventName\": [\"INSERT\"], \"tableName\": [\"commits\"]}}" }] }));
        let filters = Filters::parse(&insertions.unwrap()).unwrap();
        let mut shards = BTreeMap::<String, Vec<u64>>::new();
        for half in Half::both("arn:aws:kinesis:r:0:stream/s", "commits") {
            let batches = changes();
            for record in
                batches.chunks(10).flat_map(|batch| half.records(batch, &filters)).flatten()
            {
                let change = read_change(&record).unwrap();
                let version = change["dynamodb"]["NewImage"]["version"]["N"].as_str().unwrap();
                shards
                    .entry(shard(&record).unwrap().to_owned())
                    .or_default()
                    .push(version.parse().unwrap());
                assert!(change["dynamodb"]["SequenceNumber"].is_null());
            }
        }
        // The first shard splits into two.
        assert_eq!(shards.len(), 4, "{shards:?}");
        let all: Vec<_> = shards.values().flatten().copied().collect();
        let different: BTreeSet<_> = all.iter().copied().collect();
        let expected: BTreeSet<_> = (1..=200).filter(|version| *version != 7).collect();
        assert_eq!(different, expected);
        assert!(all.len() > different.len());
        assert!(shards.values().all(|versions| !versions.is_sorted()));
    }
}
