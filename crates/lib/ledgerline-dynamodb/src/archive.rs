//! The archive of old commits: their payloads move from the log into body objects, and each of
//! their items becomes a stub.

use std::{collections::VecDeque, num::NonZeroU32, ops::RangeInclusive, sync::Arc, time::Duration};

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use ledgerline::{Commit, EventLog, StoreError, StreamId};
use tokio::time::Instant;

use crate::{
    Bodies, DynamoDbStore, ScanPart,
    bodies::{corrupt, has_body},
    body_object::{self, BodyName},
    error,
    item::{self, Item},
    scan,
    store::key,
};

/// The updates that are in progress at the same time.
const AT_ONCE: usize = 8;

/// A commit of the log, as an archive examines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCommit {
    /// Its version.
    pub version: u64,
    /// Its time; `None` if it is damaged.
    pub at: Option<Timestamp>,
    /// The bytes of its item, as DynamoDB charges them.
    pub bytes: usize,
    /// The bytes of the stub that an archive makes from the item.
    pub stub_bytes: usize,
    /// Whether the item has a state.
    pub has_state: bool,
    /// The key of its body object, if it has one.
    pub body: Option<String>,
    /// Whether the item is a stub.
    pub is_stub: bool,
    /// Whether this program knows all fields of the item. An archive would lose any other field.
    pub is_known: bool,
}

/// A scan of the streams of a category, one after the other.
#[derive(Debug)]
pub struct Survey<'a> {
    store: &'a DynamoDbStore,
    category: &'a str,
    after: Option<Item>,
    has_ended: bool,
    /// The examined streams. The last one may continue on the next page.
    streams: VecDeque<(StreamId, Vec<StoredCommit>)>,
    /// The consumed read units.
    pub units: f64,
}

impl DynamoDbStore {
    /// Begins a scan of the streams of a category. It costs half a read unit for each 4 KB of the
    /// log, and holds the sizes of one stream.
    pub fn survey<'a>(&'a self, category: &'a str) -> Survey<'a> {
        let streams = VecDeque::new();
        Survey { store: self, category, after: None, has_ended: false, streams, units: 0.0 }
    }
}

impl Survey<'_> {
    /// Reads the commits of the next stream, in order; `None` after the last one.
    ///
    /// # Errors
    /// When the database refuses, throttles or does not answer.
    pub async fn next(&mut self) -> Result<Option<(StreamId, Vec<StoredCommit>)>, StoreError> {
        while self.streams.len() < 2 && !self.has_ended {
            let (part, after) = (ScanPart::WHOLE, self.after.take());
            let page = self.store.page_of_scan(part, after, &[self.category], scan::PAGE).await?;
            let used = page.consumed_capacity().and_then(|used| used.capacity_units());
            self.units += used.unwrap_or(0.0);
            for item in page.items.unwrap_or_default() {
                let Some((stream, version)) = item::keys(&item) else { continue };
                // Versions begin with 1.
                if version == 0 {
                    continue;
                }
                let commit = examine(&stream, version, &item);
                match self.streams.back_mut() {
                    Some((last, commits)) if *last == stream => commits.push(commit),
                    Some(_) | None => self.streams.push_back((stream, vec![commit])),
                }
            }
            self.after = page.last_evaluated_key;
            self.has_ended = self.after.is_none();
        }
        Ok(self.streams.pop_front())
    }
}

fn examine(stream: &StreamId, version: u64, item: &Item) -> StoredCommit {
    let name = item.get(item::BODY).and_then(|name| name.as_s().ok());
    let name = name.and_then(|name| BodyName::parse(name, version));
    let bytes = |is_counted: fn(&str) -> bool| {
        let fields = item.iter().map(|(name, value)| (name.as_str(), value));
        item::bytes(fields.filter(|(name, _)| is_counted(name)))
    };
    let freed = bytes(|name| [item::EVENTS, item::STATE, item::META].contains(&name));
    let all = bytes(|_| true);
    StoredCommit {
        version,
        at: scan::time(item),
        bytes: all,
        stub_bytes: all - freed + item::BODY.len() + BodyName::TEXT_BYTES,
        has_state: item.contains_key(item::STATE),
        body: name.map(|name| name.key(stream)),
        is_stub: item::is_stub(item),
        is_known: !item::has_unknown_field(item),
    }
}

/// Moves the payloads of commits into body objects.
#[derive(Debug)]
pub struct Archive {
    log: DynamoDbStore,
    bodies: Arc<dyn Bodies>,
    write_units: NonZeroU32,
    /// The time from which the next update keeps within the write units.
    next: Instant,
    counts: ArchiveCounts,
}

/// The work of an archive so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ArchiveCounts {
    /// The number of stubs.
    pub commits: u64,
    /// The number of body objects.
    pub objects: u64,
    /// The consumed write units.
    pub write_units: f64,
}

impl Archive {
    /// Returns an archive of the commits of this log in these objects. It consumes at most this
    /// number of write units a second.
    pub fn new(log: DynamoDbStore, bodies: Arc<dyn Bodies>, write_units: NonZeroU32) -> Self {
        let counts = ArchiveCounts::default();
        Self { log, bodies, write_units, next: Instant::now(), counts }
    }

    /// Returns the work so far, also that of calls that failed.
    pub fn counts(&self) -> ArchiveCounts {
        self.counts
    }

    /// Archives these commits of a stream, which follow each other. Their object is stored, read
    /// back and compared with the commits, and then each item becomes a stub: it keeps the key, the
    /// command, the time and the name of the object. States are left out, because they are a cache
    /// (rule 5). A repetition is safe, also during another archive (rule 4): an object has the hash
    /// of its content in its key, and an item that has a body does not change.
    ///
    /// # Errors
    /// When a commit or an object is damaged, or a service refuses, throttles or does not answer.
    /// Then some of the commits may be archived.
    pub async fn archive(
        &mut self,
        stream: &StreamId,
        versions: RangeInclusive<u64>,
    ) -> Result<(), StoreError> {
        let mut after = versions.start().saturating_sub(1);
        while after < *versions.end() {
            let page = self.log.read_forwards(stream, after, *versions.end()).await?;
            let mut units: VecDeque<_> = page.commits.iter().map(write_units).collect();
            let commits = page.commits.into_iter().map(|commit| Commit { state: None, ..commit });
            let commits: Vec<_> = commits.collect();
            let Some(last) = commits.last() else { break };
            after = last.version;
            for commits in body_object::split(&commits) {
                let name = self.store(stream, commits).await?;
                self.counts.objects += 1;
                let units: Vec<_> = units.drain(..commits.len()).collect();
                self.replace(commits, &units, &name).await?;
            }
        }
        Ok(())
    }

    /// Stores the object of these commits, and compares what the bucket returns with them. Returns
    /// the name of the object.
    async fn store(&self, stream: &StreamId, commits: &[Commit]) -> Result<String, StoreError> {
        let (name, object) = body_object::encode(commits);
        let key = name.key(stream);
        // An object that is there has the hash of this content: an earlier attempt stored it.
        self.bodies.put_new(&key, object).await?;
        let stored = self.bodies.get(&key).await?;
        let damage = match stored.map(|object| body_object::decode(stream, &name, &object)) {
            Some(Ok(read)) if read == commits => return Ok(name.to_string()),
            Some(Ok(_)) => "it has other commits",
            Some(Err(damage)) => damage,
            None => "it does not exist",
        };
        Err(corrupt(stream, commits.first().map_or(0, |commit| commit.version), &key, damage))
    }

    /// Makes stubs from the items of these commits. The updates in progress consume at most the write
    /// units of one second, unless one commit alone consumes more.
    /// `units` has the write units of each item.
    async fn replace(
        &mut self,
        mut commits: &[Commit],
        mut units: &[f64],
        body: &str,
    ) -> Result<(), StoreError> {
        let limit = f64::from(self.write_units.get());
        while !commits.is_empty() {
            let mut expected = 0.0;
            let fits = |units: &&f64| {
                expected += **units;
                expected <= limit
            };
            let few = units.iter().take(AT_ONCE).take_while(fits).count().max(1);
            let (first, rest) = commits.split_at(few);
            tokio::time::sleep_until(self.next).await;
            let began = Instant::now();
            let updates: Vec<_> =
                first.iter().map(|commit| make_stub(&self.log, commit, body)).collect();
            let updates = futures::stream::iter(updates).buffer_unordered(few);
            let updated: Vec<Option<f64>> = updates.try_collect().await?;
            self.counts.commits += updated.iter().flatten().count() as u64;
            self.counts.write_units += updated.iter().flatten().sum::<f64>();
            // DynamoDB also charges an update whose condition fails.
            let used = units.iter().zip(updated).map(|(units, used)| used.unwrap_or(*units));
            self.next = began + Duration::from_secs_f64(used.sum::<f64>() / limit);
            (commits, units) = (rest, &units[few..]);
        }
        Ok(())
    }
}

/// Returns the write units of the item of a commit, or a little more.
#[expect(clippy::cast_precision_loss, reason = "an item has at most 400 KB")]
fn write_units(commit: &Commit) -> f64 {
    item::commit_bytes(commit, usize::MAX).div_ceil(1_024) as f64
}

/// Makes a stub from the item of a commit. Returns the consumed write units; `None` if another
/// archive has made one.
///
/// # Errors
/// When the item is that of another commit, or the database refuses, throttles or does not answer.
async fn make_stub(
    log: &DynamoDbStore,
    commit: &Commit,
    body: &str,
) -> Result<Option<f64>, StoreError> {
    let Commit { stream, version, command, .. } = commit;
    let mut update = log.client.update_item().table_name(&log.commits);
    for (name, value) in key(stream, *version) {
        update = update.key(name, value);
    }
    for name in [item::BODY, item::EVENTS, item::STATE, item::META, item::COMMAND] {
        update = update.expression_attribute_names(format!("#{name}"), name);
    }
    let update = update
        .update_expression("SET #body = :body REMOVE #events, #state, #meta")
        .condition_expression("attribute_not_exists(#body) AND #command = :command")
        .expression_attribute_values(":body", AttributeValue::S(body.to_owned()))
        .expression_attribute_values(":command", AttributeValue::S(command.clone()))
        .return_consumed_capacity(ReturnConsumedCapacity::Total);
    let error = match update.send().await {
        Ok(output) => {
            let units = output.consumed_capacity.and_then(|used| used.capacity_units);
            return Ok(Some(units.unwrap_or(0.0)));
        }
        Err(error) => error,
    };
    if !error.as_service_error().is_some_and(|error| error.is_conditional_check_failed_exception())
    {
        return Err(error::store_error(error));
    }
    let found = log.item(&log.commits, key(stream, *version)).await?;
    let has_command =
        |item: &Item| item.get(item::COMMAND).and_then(|it| it.as_s().ok()) == Some(command);
    if found.as_ref().is_some_and(|item| has_body(item) && has_command(item)) {
        return Ok(None);
    }
    let (stream, version) = (stream.to_string(), *version);
    let reason =
        "its item changed after the archive read it: see \"Changed commits\" in docs/runbook.md"
            .to_owned();
    Err(StoreError::Corrupt { stream, version, reason })
}
