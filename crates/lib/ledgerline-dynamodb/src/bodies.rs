//! Commits whose payloads are in body objects: the port to the objects, and the items that have the
//! name of one.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use aws_sdk_dynamodb::types::AttributeValue;
use futures::{StreamExt, TryStreamExt, future::BoxFuture};
use jiff::Timestamp;
use ledgerline::{AppendError, Commit, StoreError, StreamId};

use crate::{
    DynamoDbStore,
    body_object::{self, BodyName},
    item::{self, Item},
    payload,
};

/// The most objects that are read at the same time. Each has up to 4 MB of events, and 4 MB of a
/// state.
const AT_ONCE: usize = 4;
/// The most objects of a page. Otherwise 1 MB of items might name thousands, which no invocation has
/// the time to read.
const MAX_OBJECTS: usize = 32;
/// A page has no further object after this number of bytes of text, so that it fits into the memory
/// of a function.
const PAGE_BYTES: usize = payload::MAX_BYTES;

/// Holds body objects, next to the log. An object is written once, and never changes.
pub trait Bodies: fmt::Debug + Send + Sync {
    /// Stores an object under a new key. Returns false, and changes nothing, if the key is taken.
    ///
    /// # Errors
    /// When the service refuses, throttles or does not answer. Without an answer, the object may be
    /// stored.
    fn put_new<'a>(
        &'a self,
        key: &'a str,
        object: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Reads an object; `None` if there is none, and the caller may know that.
    ///
    /// # Errors
    /// When the service refuses, throttles or does not answer.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>>;
}

/// Puts payloads into objects, and returns items with them. It is behind a pointer, so that a
/// function without objects links none of it.
pub(crate) trait Payloads: fmt::Debug + Send + Sync {
    /// Stores the object of a commit, and returns its name.
    ///
    /// # Errors
    /// When the commit is too large for it, or it is unknown whether it is stored. An object that no
    /// item names harms nothing.
    fn put<'a>(&'a self, commit: &'a Commit) -> BoxFuture<'a, Result<String, AppendError>>;

    /// Takes the first items, as many as a page may have, at least one, and returns them with their
    /// payloads. A damaged object is an error at the places of its commits.
    ///
    /// # Errors
    /// When an object cannot be read now.
    fn read<'a>(
        &'a self,
        items: &'a mut Vec<Item>,
    ) -> BoxFuture<'a, Result<ItemsWithPayloads, StoreError>>;
}

/// Items with their payloads.
pub(crate) type ItemsWithPayloads = Vec<Result<Item, StoreError>>;

/// The payloads in these objects.
pub(crate) fn payloads(bodies: Arc<dyn Bodies>) -> Arc<dyn Payloads> {
    Arc::new(BodyObjects(bodies))
}

#[derive(Debug)]
struct BodyObjects(Arc<dyn Bodies>);

impl Payloads for BodyObjects {
    fn put<'a>(&'a self, commit: &'a Commit) -> BoxFuture<'a, Result<String, AppendError>> {
        Box::pin(async move {
            let Self(bodies) = self;
            body_object::check_size(commit)?;
            let (name, object) = body_object::encode(std::slice::from_ref(commit));
            let key = name.key(&commit.stream);
            let is_new = bodies.put_new(&key, object.clone()).await?;
            if is_new || bodies.get(&key).await? == Some(object) {
                // The key has the hash of the object: an earlier attempt stored it (rule 4).
                return Ok(name.to_string());
            }
            let damage = "another object has its key";
            Err(corrupt(&commit.stream, commit.version, &key, damage).into())
        })
    }

    fn read<'a>(
        &'a self,
        items: &'a mut Vec<Item>,
    ) -> BoxFuture<'a, Result<ItemsWithPayloads, StoreError>> {
        Box::pin(async move {
            let mut known = HashSet::new();
            let outside = items.iter().filter_map(BodyReference::read);
            let named = outside.filter_map(|outside| Some((outside.key()?, outside)));
            let named: Vec<_> = named
                .filter(|(key, _)| known.insert(key.clone()))
                .take(MAX_OBJECTS)
                .map(|(key, outside)| async move {
                    let commits = self.commits(&key, &outside).await?;
                    Ok::<_, StoreError>((key, commits))
                })
                .collect();
            let mut read = futures::stream::iter(named).buffered(AT_ONCE);
            let (mut objects, mut bytes) = (Objects::new(), 0);
            while bytes < PAGE_BYTES
                && let Some((key, commits)) = read.try_next().await?
            {
                bytes += commits.iter().flatten().map(payload::text_bytes).sum::<usize>();
                objects.insert(key, commits);
            }
            let is_ready =
                |outside: BodyReference| outside.key().is_none_or(|key| objects.contains_key(&key));
            let end = items.iter().position(|item| !BodyReference::read(item).is_none_or(is_ready));
            let whole = |item: Item| match BodyReference::read(&item) {
                Some(outside) => outside.item(&objects),
                None => Ok(item),
            };
            Ok(items.drain(..end.unwrap_or(items.len())).map(whole).collect())
        })
    }
}

/// The commits of objects by their keys, or the damage of an object.
type Objects = HashMap<String, Result<Vec<Commit>, &'static str>>;

impl BodyObjects {
    /// Reads the commits of an object, or its damage.
    async fn commits(
        &self,
        key: &str,
        outside: &BodyReference,
    ) -> Result<Result<Vec<Commit>, &'static str>, StoreError> {
        let Some(object) = self.0.get(key).await? else { return Ok(Err("it does not exist")) };
        Ok(match &outside.name {
            Some(name) => body_object::decode(&outside.stream, name, &object),
            None => Err("it was not read"),
        })
    }
}

/// Returns the error for a commit whose object is damaged.
pub(crate) fn corrupt(stream: &StreamId, version: u64, key: &str, damage: &str) -> StoreError {
    StoreError::Corrupt {
        stream: stream.to_string(),
        version,
        reason: format!("its body object `{key}` is damaged: {damage}"),
    }
}

/// A commit whose payloads are in an object.
struct BodyReference {
    stream: StreamId,
    version: u64,
    command: Option<AttributeValue>,
    at: Option<AttributeValue>,
    /// The name of the object, unless the attribute is damaged.
    name: Option<BodyName>,
}

impl BodyReference {
    /// Reads an item that has a body.
    fn read(item: &Item) -> Option<Self> {
        let name = item.get(item::BODY)?;
        let (stream, version) = item::keys(item)?;
        let name = name.as_s().ok().and_then(|name| BodyName::parse(name, version));
        let field = |name: &str| item.get(name).cloned();
        Some(Self { stream, version, command: field(item::COMMAND), at: field(item::AT), name })
    }

    fn key(&self) -> Option<String> {
        Some(self.name.as_ref()?.key(&self.stream))
    }

    /// Returns the whole item of the commit, from the commits of its object.
    fn item(&self, objects: &Objects) -> Result<Item, StoreError> {
        let corrupt = |key: &str, damage| corrupt(&self.stream, self.version, key, damage);
        let (Some(name), Some(key)) = (&self.name, self.key()) else {
            let (stream, version) = (self.stream.to_string(), self.version);
            let reason = "its attribute `body` names no object of this version".to_owned();
            return Err(StoreError::Corrupt { stream, version, reason });
        };
        let commits = match objects.get(&key) {
            Some(Ok(commits)) => commits,
            Some(Err(damage)) => return Err(corrupt(&key, damage)),
            None => return Err(corrupt(&key, "it was not read")),
        };
        let place = usize::try_from(self.version - name.first).unwrap_or(usize::MAX);
        let line = commits.get(place).map(|commit| item::commit_to_item(commit, usize::MAX));
        let line = line.into_iter().flatten().map(|(name, value)| (name.to_owned(), value));
        let line: Item = line.collect();
        // IAM cannot protect the command of a stub: only `at` is an attribute that no role can change.
        let time = |at: Option<&AttributeValue>| at?.as_s().ok()?.parse::<Timestamp>().ok();
        let has_time = time(line.get(item::AT)) == time(self.at.as_ref());
        if line.get(item::COMMAND) != self.command.as_ref() || !has_time {
            return Err(corrupt(&key, "its line has another command or time"));
        }
        Ok(line)
    }
}

/// Whether the payloads of an item are in an object.
pub(crate) fn has_body(item: &Item) -> bool {
    item.contains_key(item::BODY)
}

impl DynamoDbStore {
    /// Takes the first items, and returns them with their payloads, as [`Payloads::read`] does.
    /// Without bodies, it takes all. Without a bucket, an item with a body is an error at its place.
    pub(crate) async fn read_payloads(
        &self,
        items: &mut Vec<Item>,
    ) -> Result<ItemsWithPayloads, StoreError> {
        if let Some(bodies) = &self.bodies
            && items.iter().any(has_body)
        {
            return bodies.read(items).await;
        }
        let whole = |item: Item| {
            if !has_body(&item) {
                return Ok(item);
            }
            let (stream, version) = item::keys(&item)
                .map_or_else(Default::default, |(stream, version)| (stream.to_string(), version));
            Err(StoreError::PayloadElsewhere { stream, version })
        };
        Ok(items.drain(..).map(whole).collect())
    }

    /// Returns the items of a page of a stream with their payloads, or as many of the first as a page
    /// may have. If `up_to_state`, the newest item is the first, and the page ends where an item after
    /// a state has a body: a load seldom needs that object.
    pub(crate) async fn page_with_payloads(
        &self,
        stream: &StreamId,
        mut items: Vec<Item>,
        up_to_state: bool,
    ) -> Result<Vec<Item>, StoreError> {
        for item in &mut items {
            item.insert(item::STREAM.to_owned(), AttributeValue::S(stream.to_string()));
        }
        if up_to_state {
            items.truncate(end(&items));
            // The commit of the newest body may have a state, too.
            if let Some(newest) = items.iter_mut().find(|item| has_body(item)) {
                for item in self.read_payloads(&mut vec![newest.clone()]).await? {
                    *newest = item?;
                }
                items.truncate(end(&items));
            }
        }
        self.read_payloads(&mut items).await?.into_iter().collect()
    }
}

/// Returns the place of the first body after a state, or the end.
fn end(items: &[Item]) -> usize {
    let place = |from: usize, name| items[from..].iter().position(|item| item.contains_key(name));
    let body = place(0, item::STATE).and_then(|state| Some(state + place(state, item::BODY)?));
    body.unwrap_or(items.len())
}
