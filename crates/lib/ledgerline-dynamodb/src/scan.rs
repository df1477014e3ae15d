//! Reads of the whole log, for operators. They cost half a read unit for each 4 KB of the log.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::{
    operation::scan::ScanOutput,
    types::{AttributeValue, ReturnConsumedCapacity},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use ledgerline::{Commit, EventLog, StoreError, StreamId};
use serde_json::{Map, Value, json};

use crate::{
    DynamoDbStore,
    bodies::has_body,
    error,
    item::{self, keys, version},
};

/// The most commits of a page. DynamoDB ends a page after 1 MB in any case. The emulated database
/// reads the whole rest of the table for a page without a limit.
pub(crate) const PAGE: i32 = 2_000;
/// The most stubs whose objects are read together. The stubs of an object follow each other.
const STUBS: usize = 100;
/// The bytes of a payload of a stub beyond which its record has the gzip.
const COMPRESS_OVER: usize = 1_024;
/// The parts of the table that are read at once.
const AT_ONCE: usize = 8;

/// The newest commit of a stream, and the number of its commits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// The version of the newest commit; 0 if there is none.
    pub version: u64,
    /// The number of commits. If it is less than the version, the stream has a hole.
    pub commits: u64,
    /// The time of the newest commit.
    pub at: Option<Timestamp>,
}

impl Head {
    /// Adds the counts of another part of the same stream.
    fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        if other.version > self.version {
            (self.version, self.at) = (other.version, other.at);
        }
    }
}

type Item = HashMap<String, AttributeValue>;

/// One of several parts of the log, which are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPart {
    /// Its number, from 0.
    pub part: i32,
    /// The number of parts.
    pub parts: i32,
}

impl ScanPart {
    /// The whole log.
    pub const WHOLE: Self = Self { part: 0, parts: 1 };
}

/// A page of one part of the log.
#[derive(Debug)]
pub struct Scanned {
    /// Its commits. Those of one stream are in order. Commits that this program cannot read are
    /// left out, so that there is a hole.
    pub commits: Vec<Commit>,
    /// The number of items that are no commit of this program, or whose body object is damaged or
    /// missing.
    pub damaged: u64,
    /// The place where the next page begins, if there is one: the last examined commit.
    pub after: Option<(StreamId, u64)>,
    /// The consumed read units.
    pub units: f64,
}

impl DynamoDbStore {
    /// Reads a page of the commits of these categories, or of all if there are none, in one part of
    /// the log, after this commit. At most `limit` commits are examined.
    pub async fn scan(
        &self,
        part: ScanPart,
        after: Option<&(StreamId, u64)>,
        of: &[&str],
        limit: i32,
    ) -> Result<Scanned, StoreError> {
        let mut after = after.map(|(stream, version)| {
            HashMap::from([
                (item::STREAM.to_owned(), AttributeValue::S(stream.to_string())),
                (item::VERSION.to_owned(), AttributeValue::N(version.to_string())),
            ])
        });
        let mut scanned = Scanned { commits: Vec::new(), damaged: 0, after: None, units: 0.0 };
        loop {
            let page = self.page_of_scan(part, after, of, limit).await?;
            scanned.units +=
                page.consumed_capacity().and_then(|used| used.capacity_units()).unwrap_or(0.0);
            let mut items = page.items.unwrap_or_default();
            let has_bodies = items.iter().any(has_body);
            let places: Vec<_> = items.iter().filter(|_| has_bodies).map(keys).collect();
            while !items.is_empty() {
                for item in self.read_payloads(&mut items).await? {
                    if let Err(error @ StoreError::PayloadElsewhere { .. }) = item {
                        return Err(error);
                    }
                    let commit =
                        |item| keys(&item).and_then(|(stream, _)| item::commit(&stream, item).ok());
                    match item.ok().and_then(commit) {
                        Some(commit) => scanned.commits.push(commit),
                        None => scanned.damaged += 1,
                    }
                }
                // The page has more bodies than one call reads: the next one begins here.
                let last = places.get(..places.len() - items.len()).and_then(<[_]>::last);
                scanned.after = last.filter(|_| !items.is_empty()).cloned().flatten();
                if scanned.after.is_some() {
                    return Ok(scanned);
                }
            }
            let Some(last) = page.last_evaluated_key else { return Ok(scanned) };
            scanned.after = keys(&last);
            if scanned.after.is_some() {
                return Ok(scanned);
            }
            // No caller can name this key as the beginning of the next page.
            after = Some(last);
        }
    }

    pub(crate) async fn page_of_scan(
        &self,
        ScanPart { part, parts }: ScanPart,
        after: Option<Item>,
        of: &[&str],
        limit: i32,
    ) -> Result<ScanOutput, StoreError> {
        let mut scan = self
            .client
            .scan()
            .table_name(&self.commits)
            // A table that is read as a whole is read in the order of its keys, for which the
            // emulated database has an index.
            .set_segment((parts > 1).then_some(part))
            .set_total_segments((parts > 1).then_some(parts))
            .set_exclusive_start_key(after)
            .limit(limit);
        let mut wanted = Vec::new();
        for (place, category) in of.iter().enumerate() {
            wanted.push(format!("begins_with(#stream, :of{place})"));
            let begin = AttributeValue::S(format!("{category}-"));
            scan = scan.expression_attribute_values(format!(":of{place}"), begin);
        }
        if !of.is_empty() {
            scan = scan.expression_attribute_names("#stream", item::STREAM);
        }
        scan.set_filter_expression((!of.is_empty()).then(|| wanted.join(" OR ")))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(error::store_error)
    }

    /// Reads the heads of all streams, in this number of parts at once. Only keys and times are
    /// sent; the price is that of the whole table.
    pub async fn heads(&self, parts: i32) -> Result<BTreeMap<StreamId, Head>, StoreError> {
        let read = stream::iter(0..parts).map(|part| async move {
            let mut heads = BTreeMap::<StreamId, Head>::new();
            let scan = self
                .client
                .scan()
                .table_name(&self.commits)
                .limit(PAGE)
                .set_segment((parts > 1).then_some(part))
                .set_total_segments((parts > 1).then_some(parts))
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .projection_expression("#stream, #version, #at")
                .expression_attribute_names("#stream", item::STREAM)
                .expression_attribute_names("#version", item::VERSION)
                .expression_attribute_names("#at", item::AT);
            let mut items = scan.into_paginator().items().send();
            // The commits of a stream follow each other, so its name is read once, and the time of
            // the newest one alone.
            let mut run: Option<(StreamId, Head, Item)> = None;
            while let Some(found) = items.next().await {
                let found = found.map_err(error::store_error)?;
                match &mut run {
                    Some((stream, head, newest)) if is_of(&found, stream) => {
                        let Some(version) = version(&found) else { continue };
                        head.commits += 1;
                        if version > head.version {
                            (head.version, *newest) = (version, found);
                        }
                    }
                    Some(_) | None => {
                        let Some((stream, version)) = keys(&found) else { continue };
                        let head = Head { version, commits: 1, at: None };
                        end(&mut heads, run.replace((stream, head, found)));
                    }
                }
            }
            end(&mut heads, run);
            Ok::<_, StoreError>(heads)
        });
        let parts: Vec<_> = read.buffer_unordered(AT_ONCE).try_collect().await?;
        let mut heads = BTreeMap::<StreamId, Head>::new();
        for (stream, head) in parts.into_iter().flatten() {
            heads.entry(stream).or_default().add(&head);
        }
        Ok(heads)
    }

    /// Reads the newest commit of a stream, with strong consistency, without its events. A damaged
    /// commit has a version, and so does not block the comparison of the others (rule 11). The
    /// number of commits is assumed to be the version.
    pub async fn head(&self, stream: &StreamId) -> Result<Head, StoreError> {
        let query = self
            .client
            .query()
            .table_name(&self.commits)
            .consistent_read(true)
            .scan_index_forward(false)
            .limit(1)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .key_condition_expression("#stream = :stream")
            .expression_attribute_values(":stream", AttributeValue::S(stream.to_string()))
            .projection_expression("#stream, #version, #at")
            .expression_attribute_names("#stream", item::STREAM)
            .expression_attribute_names("#version", item::VERSION)
            .expression_attribute_names("#at", item::AT);
        let output = query.send().await.map_err(error::store_error)?;
        let found = output.items().first().and_then(|found| {
            let (_, version) = keys(found)?;
            Some(Head { version, commits: version, at: time(found) })
        });
        Ok(found.unwrap_or_default())
    }

    /// Reads the time of a commit, with strong consistency, without its events; `None` if the
    /// commit does not exist, or has no time because it is damaged.
    pub async fn commit_time(
        &self,
        stream: &StreamId,
        version: u64,
    ) -> Result<Option<Timestamp>, StoreError> {
        let get = self.client.get_item().table_name(&self.commits).consistent_read(true);
        let get = get.key(item::STREAM, AttributeValue::S(stream.to_string()));
        let get = get.key(item::VERSION, AttributeValue::N(version.to_string()));
        let get = get.projection_expression("#at").expression_attribute_names("#at", item::AT);
        let output = get.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await;
        Ok(output.map_err(error::store_error)?.item.as_ref().and_then(time))
    }

    /// Returns the streams with a commit whose time is between these. Each has the first version of
    /// that time and its last version in the log.
    pub async fn streams_between(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<BTreeMap<StreamId, (u64, u64)>, StoreError> {
        let scan = self
            .client
            .scan()
            .table_name(&self.commits)
            .limit(PAGE)
            .projection_expression("#stream, #version, #at")
            .expression_attribute_names("#stream", item::STREAM)
            .expression_attribute_names("#version", item::VERSION)
            .expression_attribute_names("#at", item::AT);
        let mut items = scan.into_paginator().items().send();
        let mut found = BTreeMap::<StreamId, u64>::new();
        let mut heads = BTreeMap::<StreamId, u64>::new();
        while let Some(item) = items.next().await {
            let item = item.map_err(error::store_error)?;
            let Some((stream, version)) = keys(&item) else { continue };
            if time(&item).is_some_and(|at| (from..=to).contains(&at)) {
                let first = found.entry(stream.clone()).or_insert(version);
                *first = version.min(*first);
            }
            let head = heads.entry(stream).or_default();
            *head = version.max(*head);
        }
        let with_head = |(stream, first): (StreamId, u64)| {
            let last = heads.get(&stream).copied().unwrap_or(first);
            (stream, (first, last))
        };
        Ok(found.into_iter().map(with_head).collect())
    }

    /// Returns the commits with this correlation id, in no order, and the stubs that cannot be read:
    /// their objects may have it.
    pub async fn find_correlated(&self, id: &str) -> Result<Vec<(StreamId, u64)>, StoreError> {
        let scan = self
            .client
            .scan()
            .table_name(&self.commits)
            .limit(PAGE)
            // A stub has no `meta`: its object has it.
            .filter_expression("#meta.#id = :id OR attribute_not_exists(#meta)")
            .projection_expression("#stream, #version, #meta.#id")
            .expression_attribute_names("#meta", item::META)
            .expression_attribute_names("#id", "correlationId")
            .expression_attribute_names("#stream", item::STREAM)
            .expression_attribute_names("#version", item::VERSION)
            .expression_attribute_values(":id", AttributeValue::S(id.to_owned()));
        let mut items = scan.into_paginator().items().send();
        let (mut found, mut stubs) = (Vec::new(), Vec::new());
        while let Some(item) = items.next().await {
            let item = item.map_err(error::store_error)?;
            let list = if item.contains_key(item::META) { &mut found } else { &mut stubs };
            list.extend(keys(&item));
            if stubs.len() == STUBS {
                found.extend(self.correlated_stubs(id, std::mem::take(&mut stubs)).await?);
            }
        }
        found.extend(self.correlated_stubs(id, stubs).await?);
        Ok(found)
    }

    /// Returns those of these stubs whose objects have the correlation id, or cannot be read.
    async fn correlated_stubs(
        &self,
        id: &str,
        stubs: Vec<(StreamId, u64)>,
    ) -> Result<Vec<(StreamId, u64)>, StoreError> {
        let names: Vec<_> = stubs.iter().map(|(stream, version)| (stream, *version)).collect();
        let commits = self.get_all(&names).await?;
        let has_id = |commit: Result<Option<Commit>, StoreError>| match commit {
            Ok(commit) => {
                commit.is_some_and(|commit| commit.meta.correlation_id.as_deref() == Some(id))
            }
            Err(_) => true,
        };
        let found = commits.into_iter().map(has_id).zip(stubs);
        Ok(found.filter_map(|(has_id, stub)| has_id.then_some(stub)).collect())
    }

    /// Returns the item of a commit in the form of a record of the table's stream, `Keys` and
    /// `NewImage`; `None` if it does not exist. The payloads of a body object are not in it, as in the
    /// stream: an invocation would have no room for some of them. For a stub, the
    /// record has the payloads, because they fit into an item.
    pub async fn record(
        &self,
        stream: &StreamId,
        version: u64,
    ) -> Result<Option<Value>, StoreError> {
        let get = self.client.get_item().table_name(&self.commits).consistent_read(true);
        let get = get.key(item::STREAM, AttributeValue::S(stream.to_string()));
        let get = get.key(item::VERSION, AttributeValue::N(version.to_string()));
        let mut found = get.send().await.map_err(error::store_error)?.item;
        if found.as_ref().is_some_and(item::is_stub) {
            // Its item may have been compressed, and the text might not fit into an invocation.
            let commit = self.get(stream, version).await?;
            let whole = commit.map(|commit| item::commit_to_item(&commit, COMPRESS_OVER));
            let owned = |(name, value): (&str, AttributeValue)| (name.to_owned(), value);
            found = whole.map(|fields| fields.into_iter().map(owned).collect());
        }
        let Some(found) = found else { return Ok(None) };
        let key =
            |name: &str| (name.to_owned(), found.get(name).map_or(Value::Null, image_of_record));
        let keys: Map<_, _> = [item::STREAM, item::VERSION].map(key).into_iter().collect();
        let image: Map<_, _> =
            found.iter().map(|(name, value)| (name.clone(), image_of_record(value))).collect();
        Ok(Some(json!({ "Keys": keys, "NewImage": image })))
    }
}

/// Returns the time of a commit, if it has one.
pub(crate) fn time(found: &Item) -> Option<Timestamp> {
    found.get(item::AT).and_then(|at| at.as_s().ok()?.parse().ok())
}

fn is_of(item: &Item, stream: &StreamId) -> bool {
    item.get(item::STREAM)
        .and_then(|name| name.as_s().ok())
        .is_some_and(|name| name == stream.as_str())
}

/// Adds a run of commits of one stream, whose newest one is this.
fn end(heads: &mut BTreeMap<StreamId, Head>, run: Option<(StreamId, Head, Item)>) {
    if let Some((stream, head, newest)) = run {
        heads.entry(stream).or_default().add(&Head { at: time(&newest), ..head });
    }
}

/// Returns a value in DynamoDB's JSON. Commits have no sets.
#[expect(clippy::wildcard_enum_match_arm, reason = "the SDK may know more kinds tomorrow")]
fn image_of_record(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::B(bytes) => json!({ "B": BASE64_STANDARD.encode(bytes) }),
        AttributeValue::Bool(is) => json!({ "BOOL": is }),
        AttributeValue::L(values) => {
            json!({ "L": values.iter().map(image_of_record).collect::<Vec<_>>() })
        }
        AttributeValue::M(fields) => {
            let fields: Map<_, _> =
                fields.iter().map(|(name, value)| (name.clone(), image_of_record(value))).collect();
            json!({ "M": fields })
        }
        _ => json!({ "NULL": true }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_stream_are_added_up_in_any_order() {
        let part = |version, commits| Head { version, commits, at: None };
        let mut head = part(3, 1);
        head.add(&part(5, 2));
        head.add(&part(1, 1));
        assert_eq!((head.version, head.commits), (5, 4), "there is a hole");
    }
}
