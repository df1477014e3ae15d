//! Generations of a view: a rebuild writes rows next to the old ones, in the same table, until all
//! reads switch to them at once.
//!
//! The partition key of a row of generation 2 begins with `$2/`, in the table and in its indexes.
//! Rows of the generation 0, with which every view begins, have no such sign. A text that looks
//! like a sign is escaped, in every generation. So rows of two generations are never in one
//! partition and never in one list.
//!
//! An item next to the rows names the generation that is read, and those that are written. The
//! other items next to the rows, such as positions and checkpoints, belong to a generation too.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use aws_sdk_dynamodb::{
    operation::put_item::PutItemError,
    types::{AttributeValue, ReturnConsumedCapacity},
};
use jiff::{SignedDuration, Timestamp};
use ledgerline::StreamId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    Item, KeyNames, POSITION_ENTRY, RowKey, ViewError, ViewTable, checkpoint::CHECKPOINT,
    from_item, number, to_item,
};
use crate::error::table_error;

/// The partition key of the item that names the generation that is read.
const GENERATIONS: &str = "$generations";
/// The longest time for which a process may use its cached copy of the generations.
const FRESH: SignedDuration = SignedDuration::from_secs(10);
/// The time in which a switch is stored, and by which the clocks of processes may differ.
const STORE_TIME: SignedDuration = SignedDuration::from_secs(5);
/// The most skipped commits of a view: the item that names them has at most 400 KB.
const MAX_SKIPS: usize = 100;
/// The most streams that are named as marked, in the same item.
const MAX_MARKED: usize = 100;
/// The number of attempts to change the marks, which many functions may change at once.
const MARK_ATTEMPTS: usize = 20;
/// The beginning of the names of parts, under which a rebuild saves its progress.
pub(super) const PART: &str = "$part-";
/// The number of stored changes.
const REMEMBERED: usize = 20;

/// The generations of a view: the one that is read, and another one, if there is one. The names of
/// the attributes begin with a sign that no key of a table begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generations {
    /// The generation that queries read, from the end of `previous` on.
    #[serde(default, rename = "$read")]
    pub active: u32,
    /// The generation that queries read until then. All queries know the time of the switch before
    /// it arrives, so all switch at once.
    #[serde(default, rename = "$before", skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
    /// The other generation.
    #[serde(default, rename = "$other", skip_serializing_if = "Option::is_none")]
    pub standby: Option<Standby>,
    /// The highest number of any generation so far.
    #[serde(default, rename = "$last")]
    last: u32,
    /// The number of times that this item was changed.
    #[serde(default, rename = "$moves")]
    moves: u64,
    /// The last changes, the oldest first.
    #[serde(default, rename = "$history", skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Move>,
    /// The commits that a subscription skips if it cannot apply them, in every generation:
    /// `account-1 7`.
    #[serde(default, rename = "$skips", skip_serializing_if = "BTreeSet::is_empty")]
    skips: BTreeSet<String>,
    /// The seconds of [`fresh`](Self::fresh). No change of the generations changes them, and tests
    /// with short waits write them into the empty table.
    #[serde(default, rename = "$fresh", skip_serializing_if = "Option::is_none")]
    fresh: Option<u32>,
    /// The fields of a newer version, which writes of this version keep.
    #[serde(flatten)]
    newer: Map<String, Value>,
}

/// The copy of the generations that a table's clones share.
pub(super) type Known = Arc<Mutex<Option<Seen>>>;

/// A read of the generations.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The time of the read.
    at: Timestamp,
    generations: Generations,
    /// The generation to read, at the last call of
    /// [`recent_generations`](ViewTable::recent_generations).
    read: u32,
}

/// The generation that queries read until a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// The generation.
    #[serde(rename = "read")]
    pub active: u32,
    /// The time.
    pub until: Timestamp,
    #[serde(flatten)]
    newer: Map<String, Value>,
}

/// A generation that is not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standby {
    /// Its number.
    pub number: u32,
    /// Its phase.
    pub phase: Phase,
    /// The beginning of the phase.
    pub since: Timestamp,
    /// The time of the last mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Timestamp>,
    /// The marks since the beginning of the last comparison.
    #[serde(default, skip_serializing_if = "Marks::is_empty")]
    pub marks: Marks,
    #[serde(flatten)]
    newer: Map<String, Value>,
}

/// The streams of which a generation lacks a commit that the active generation got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// These streams.
    pub streams: BTreeSet<StreamId>,
    /// Whether any other stream may be one of them.
    pub any: bool,
    #[serde(flatten)]
    newer: Map<String, Value>,
}

impl Marks {
    /// Whether nothing is marked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.newer.is_empty()
    }

    fn len(&self) -> u64 {
        self.streams.len() as u64 + u64::from(self.any)
    }

    /// Adds a stream, or that any stream may be behind. Returns whether the marks changed.
    fn add(&mut self, stream: Option<&StreamId>) -> bool {
        let has_room =
            |stream: &&StreamId| self.streams.len() < MAX_MARKED || self.streams.contains(*stream);
        match stream.filter(has_room) {
            Some(stream) => self.streams.insert(stream.clone()),
            None => !std::mem::replace(&mut self.any, true),
        }
    }
}

/// The phase of a generation that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// A rebuild makes it from the log, and projectors write it as well.
    Building,
    /// It was read before. Projectors write it as well, so that an operator can roll back to it.
    Kept,
    /// No projector writes it, and its rows are deleted.
    #[serde(rename = "leaving")]
    Dropping,
}

/// A change of the generations, with its author.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The time of the change.
    pub at: Timestamp,
    /// The action.
    pub what: String,
    /// The author.
    pub who: String,
    /// The reason.
    pub why: String,
    /// The fields of a newer version.
    #[serde(flatten)]
    pub newer: Map<String, Value>,
}

/// A change that is not possible now. The text has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTransition(&'static str);

impl Generations {
    /// How long a process may use its cached copy. After a change, wait this long plus one function
    /// timeout before assuming that every process has seen it.
    #[must_use]
    pub fn fresh(&self) -> SignedDuration {
        self.fresh.map_or(FRESH, |seconds| SignedDuration::from_secs(seconds.into()).min(FRESH))
    }

    /// The time from a switch until reads use the other generation. By then, every process has seen
    /// the switch.
    #[must_use]
    pub fn switching(&self) -> SignedDuration {
        self.fresh() + STORE_TIME
    }

    /// Returns the number of the generation that queries read at this time.
    #[must_use]
    pub fn active_generation(&self, now: Timestamp) -> u32 {
        let previous = self.previous.as_ref().filter(|previous| now < previous.until);
        previous.map_or(self.active, |previous| previous.active)
    }

    /// Returns the numbers of the generations that projectors write. The one that is read is last.
    /// So, when reads switch to the other one, that one has everything that was ever shown.
    #[must_use]
    pub fn generations_to_write(&self, now: Timestamp) -> Vec<u32> {
        let other = self.standby.as_ref().filter(|other| other.phase != Phase::Dropping);
        let mut numbers: Vec<_> =
            other.map(|other| other.number).into_iter().chain([self.active]).collect();
        numbers.sort_by_key(|number| *number == self.active_generation(now));
        numbers
    }

    /// Returns the number of the other generation, if it is in this phase.
    #[must_use]
    pub fn generation_in_phase(&self, phase: Phase) -> Option<u32> {
        self.standby.as_ref().filter(|other| other.phase == phase).map(|other| other.number)
    }

    /// Begins a new generation, to be built.
    ///
    /// # Errors
    /// When there is another one already.
    pub fn begin_build(&self, now: Timestamp) -> Result<Self, InvalidTransition> {
        if self.standby.is_some() {
            return Err(InvalidTransition(
                "a standby generation exists already: run `ledger rebuild drop` first",
            ));
        }
        let number = self.last.max(self.active) + 1;
        Ok(Self { last: number, ..self.with(number, Phase::Building, now) })
    }

    /// Switches reads to this other generation, after [`switching`](Self::switching): to the one
    /// that was built, or to the one that was kept. The one that was read is kept.
    ///
    /// # Errors
    /// When there is no such other one, or a switch is in progress.
    pub fn switch(&self, to: u32, now: Timestamp) -> Result<Self, InvalidTransition> {
        if self.active_generation(now) != self.active {
            return Err(InvalidTransition(
                "a switch of the reads is in progress: retry in some seconds",
            ));
        }
        let is_written = [Phase::Building, Phase::Kept]
            .into_iter()
            .any(|phase| self.generation_in_phase(phase) == Some(to));
        if !is_written {
            return Err(InvalidTransition("no standby generation has this number"));
        }
        let (until, newer) = (now + self.switching(), Map::new());
        let previous = Some(Previous { active: self.active, until, newer });
        Ok(Self { active: to, previous, ..self.with(self.active, Phase::Kept, now) })
    }

    /// Ends the writes to the other generation, so that its rows can be deleted.
    ///
    /// # Errors
    /// When there is no other one, or it is still read.
    pub fn begin_drop(&self, now: Timestamp) -> Result<Self, InvalidTransition> {
        if self.active_generation(now) != self.active {
            return Err(InvalidTransition(
                "a switch of the reads is in progress: retry in some seconds",
            ));
        }
        let other =
            self.standby.as_ref().ok_or(InvalidTransition("there is no standby generation"))?;
        // The time of the first call: an operator that continues the deletion need not wait a
        // second time.
        let since = if other.phase == Phase::Dropping { other.since } else { now };
        Ok(self.with(other.number, Phase::Dropping, since))
    }

    /// Removes the other generation, after the deletion of its rows.
    #[must_use]
    pub fn end_drop(&self) -> Self {
        Self { standby: None, ..self.clone() }
    }

    /// Whether the subscription skips this commit if it cannot apply it.
    #[must_use]
    pub fn skips(&self, stream: &StreamId, version: u64) -> bool {
        self.skips.contains(&skip(stream, version))
    }

    /// Makes the subscription skip this commit if it cannot apply it.
    ///
    /// # Errors
    /// When it does already, or skips too many.
    pub fn skip_commit(&self, stream: &StreamId, version: u64) -> Result<Self, InvalidTransition> {
        let mut skipping = self.clone();
        if !skipping.skips.insert(skip(stream, version)) {
            return Err(InvalidTransition("the commit is skipped already"));
        }
        if skipping.skips.len() > MAX_SKIPS {
            return Err(InvalidTransition(
                "a hundred commits are skipped already: deploy code that can apply them",
            ));
        }
        Ok(skipping)
    }

    /// Returns the marks of the standby generation, if nothing but marks changed since `earlier`.
    #[must_use]
    pub fn marks_since(&self, earlier: &Self) -> Option<&Marks> {
        let (marks, before) = (&self.standby.as_ref()?.marks, &earlier.standby.as_ref()?.marks);
        // Each mark is one change. Every other change leaves as many marks as before, or fewer.
        (self.moves + before.len() == earlier.moves + marks.len()).then_some(marks)
    }

    fn with(&self, number: u32, phase: Phase, since: Timestamp) -> Self {
        let (marks, newer) = (Marks::default(), Map::new());
        let standby = Standby { number, phase, since, behind: None, marks, newer };
        Self { standby: Some(standby), ..self.clone() }
    }
}

impl ViewTable {
    /// Returns the same table, at the rows of this generation.
    #[must_use]
    pub fn at(&self, generation: u32) -> Self {
        Self { generation, ..self.clone() }
    }

    /// Returns the number of this generation.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Reads the generations of the view, with strong consistency.
    ///
    /// # Errors
    /// When the table fails.
    pub async fn generations(&self) -> Result<Generations, ViewError> {
        let key = self.generations_key();
        let Some(mut item) = self.item(key.clone(), true).await? else {
            return Ok(Generations::default());
        };
        item.retain(|name, _| !key.contains_key(name));
        from_item(item)
    }

    /// Returns the generations of the view, from a [`fresh`](Generations::fresh) copy or the table,
    /// and determines the generation to read. The age is by the clock of the day, because a frozen
    /// instance does not notice the passing of time.
    ///
    /// # Errors
    /// When they have to be read, and the table fails.
    pub async fn recent_generations(&self) -> Result<Generations, ViewError> {
        let now = Timestamp::now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_fresh = |seen: &Seen| (seen.at..seen.at + seen.generations.fresh()).contains(&now);
        let known = match known.filter(is_fresh) {
            Some(Seen { at, generations, read: _ }) => {
                Seen { at, read: generations.active_generation(now), generations }
            }
            None => {
                let generations = self.generations().await?;
                Seen { at: now, read: generations.active_generation(now), generations }
            }
        };
        let generations = known.generations.clone();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(generations)
    }

    /// Returns the same table, at the generation that was to be read at the last call of
    /// [`recent_generations`](Self::recent_generations). It stays the same until the next call.
    #[must_use]
    pub fn at_active_generation(&self) -> Self {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.at(known.as_ref().map_or(self.generation, |known| known.read))
    }

    /// Returns the generations whose rows a projector writes, by [`Generations::generations_to_write`]: one,
    /// unless a rebuild runs or its predecessor is kept.
    ///
    /// # Errors
    /// When they have to be read, and the table fails. The projector must not write then: a row
    /// written into one generation alone might never be written into the other one.
    pub async fn written(&self) -> Result<Vec<u32>, ViewError> {
        Ok(self.recent_generations().await?.generations_to_write(Timestamp::now()))
    }

    /// Whether this generation is being built, by a [`fresh`](Generations::fresh) copy.
    ///
    /// # Errors
    /// When the generations have to be read, and the table fails.
    pub async fn is_building(&self) -> Result<bool, ViewError> {
        let generations = self.recent_generations().await?;
        Ok(generations.generation_in_phase(Phase::Building) == Some(self.generation))
    }

    /// Changes the generations, unless they were changed after they were read. Returns whether they
    /// were changed.
    ///
    /// # Errors
    /// When the table fails. The outcome is then unknown.
    pub async fn compare_and_set(
        &self,
        from: &Generations,
        mut to: Generations,
        by: Move,
    ) -> Result<bool, ViewError> {
        to.history.push(by);
        let forgotten = to.history.len().saturating_sub(REMEMBERED);
        to.history.drain(..forgotten);
        self.put_generations(from, to).await
    }

    /// Marks this stream of this generation as behind, or any stream, unless reads use the
    /// generation, or are about to. Returns whether it may lack the commit that its caller could not
    /// write. A mark that is there is not written again. Each new mark is a change of the
    /// generations. So a switch to this generation fails if the mark came after its comparison.
    ///
    /// # Errors
    /// When the table fails, or others change the generations at each attempt.
    pub async fn mark_behind(&self, stream: Option<&StreamId>) -> Result<bool, ViewError> {
        let now = Timestamp::now();
        let is_read =
            |generations: &Generations| generations.active_generation(now) != generations.active;
        let marked = self.change_marks(|generations| {
            let is_read = is_read(generations);
            let standby = generations.standby.as_mut();
            let standby = standby.filter(|standby| {
                standby.number == self.generation && standby.phase != Phase::Dropping && !is_read
            });
            standby.is_some_and(|standby| {
                let is_new = standby.marks.add(stream);
                standby.behind = if is_new { Some(now) } else { standby.behind };
                is_new
            })
        });
        let marked = marked.await?;
        let standby = marked.standby.as_ref().filter(|standby| standby.number == self.generation);
        Ok(standby.is_some_and(|standby| standby.phase == Phase::Dropping || !is_read(&marked)))
    }

    /// Removes all marks, so that the next mark of any stream is a change. A comparison begins with
    /// it, and finds what the removed marks mean.
    ///
    /// # Errors
    /// As those of [`mark_behind`](Self::mark_behind).
    pub async fn remove_marks(&self) -> Result<Generations, ViewError> {
        self.change_marks(|generations| {
            let marks = generations.standby.as_mut().map(|standby| &mut standby.marks);
            marks.is_some_and(|marks| !std::mem::take(marks).is_empty())
        })
        .await
    }

    /// Changes the generations until no other change comes between, unless `change` returns that
    /// there is nothing to change. Returns the generations afterwards.
    async fn change_marks(
        &self,
        change: impl Fn(&mut Generations) -> bool,
    ) -> Result<Generations, ViewError> {
        for _ in 0..MARK_ATTEMPTS {
            let from = self.generations().await?;
            let mut to = Generations { moves: from.moves + 1, ..from.clone() };
            if !change(&mut to) {
                return Ok(from);
            }
            if self.put_generations(&from, to.clone()).await? {
                return Ok(to);
            }
        }
        Err(ViewError::Throttled("other functions change the generations".into()))
    }

    async fn put_generations(
        &self,
        from: &Generations,
        mut to: Generations,
    ) -> Result<bool, ViewError> {
        to.moves = from.moves + 1;
        let mut item = to_item(&to)?;
        item.extend(self.generations_key());
        let result = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(item))
            .condition_expression(
                "#moves = :moves OR (attribute_not_exists(#moves) AND :moves = :none)",
            )
            .expression_attribute_names("#moves", "$moves")
            .expression_attribute_values(":moves", number(from.moves))
            .expression_attribute_values(":none", number(0))
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        let Err(error) = result else { return Ok(true) };
        match error.as_service_error() {
            // Perhaps an earlier attempt of this very call, whose reply was lost, changed them.
            Some(PutItemError::ConditionalCheckFailedException(_)) => {
                Ok(self.generations().await? == to)
            }
            Some(_) | None => Err(table_error(error)),
        }
    }

    /// Returns the value of a partition key of a row in this generation.
    pub(super) fn partition(&self, key: &str) -> AttributeValue {
        self.sign_key(&escape(key))
    }

    /// Returns a partition key with the sign of this generation.
    pub(super) fn sign_key(&self, key: &str) -> AttributeValue {
        AttributeValue::S(match self.generation {
            0 => key.to_owned(),
            generation => format!("{}{key}", sign(generation)),
        })
    }

    fn generations_key(&self) -> Item {
        self.unsigned_key(GENERATIONS)
    }

    /// Returns the key of an item that is no row, and belongs to no generation. If another store
    /// has the rows, the item is in the partition of the view.
    fn unsigned_key(&self, name: &str) -> Item {
        let mut key = item_key(&self.keys, name);
        if let (Some(view), Some(sort)) = (&self.view, &self.keys.sort) {
            key.insert(self.keys.partition.to_string(), AttributeValue::S(view.clone()));
            key.insert(sort.to_string(), AttributeValue::S(name.to_owned()));
        }
        key
    }

    /// Whether a key is that of a row of this generation, or of an item next to its rows.
    pub(super) fn has_key(&self, key: &Item) -> bool {
        let text = |name: &str| key.get(name).and_then(|key| key.as_s().ok());
        let signed = match (&self.view, &self.keys.sort) {
            (Some(view), Some(sort)) if text(&self.keys.partition) == Some(view) => text(sort),
            (Some(_), _) => None,
            (None, _) => text(&self.keys.partition),
        };
        signed.is_some_and(|key| generation_of(key) == Some(self.generation))
    }

    /// Returns the key of an item next to the rows of this generation.
    pub(super) fn item_key(&self, name: &str) -> Item {
        let mut key = self.unsigned_key(name);
        let signed = match (&self.view, &self.keys.sort) {
            (Some(_), Some(sort)) => sort,
            (_, _) => &self.keys.partition,
        };
        key.insert(signed.to_string(), self.sign_key(name));
        key
    }

    /// Returns the key of a row in this generation.
    pub(super) fn key(&self, RowKey { partition, sort }: RowKey<'_>) -> Item {
        let mut key = HashMap::from([(self.keys.partition.to_string(), self.partition(partition))]);
        let name = self.keys.sort.as_ref();
        key.extend(name.map(|name| (name.to_string(), AttributeValue::S(sort.to_owned()))));
        key
    }

    /// Puts the sign of this generation before these partition keys.
    pub(super) fn name_keys<'n>(
        &self,
        item: &mut Item,
        partitions: impl IntoIterator<Item = &'n str>,
    ) {
        for name in partitions {
            if let Some(AttributeValue::S(key)) = item.get(name) {
                let key = self.partition(key);
                item.insert(name.to_owned(), key);
            }
        }
    }

    /// Puts the sign of this generation before the keys of a cursor, which has texts as they are
    /// stored.
    pub(super) fn sign_keys<'n>(
        &self,
        item: &mut Item,
        partitions: impl IntoIterator<Item = &'n str>,
    ) {
        for name in partitions {
            if let Some(AttributeValue::S(key)) = item.get(name) {
                let key = self.sign_key(key);
                item.insert(name.to_owned(), key);
            }
        }
    }

    /// Removes the sign of this generation from the keys of a cursor. A text stays escaped, as the
    /// prefix of a query is.
    pub(super) fn unsign_keys<'n>(
        &self,
        item: &mut Item,
        partitions: impl IntoIterator<Item = &'n str>,
    ) {
        for name in partitions {
            if let Some(AttributeValue::S(key)) = item.get_mut(name) {
                *key = self.strip_sign(key).to_owned();
            }
        }
    }

    fn strip_sign<'k>(&self, key: &'k str) -> &'k str {
        let sign = (self.generation > 0).then(|| sign(self.generation));
        sign.and_then(|sign| key.strip_prefix(&sign)).unwrap_or(key)
    }

    /// Removes the sign of this generation, and the escape of a text, from these partition keys.
    pub(super) fn strip_keys<'n>(
        &self,
        item: &mut Item,
        partitions: impl IntoIterator<Item = &'n str>,
    ) {
        for name in partitions {
            if let Some(AttributeValue::S(key)) = item.get_mut(name) {
                *key = unescape(self.strip_sign(key)).to_owned();
            }
        }
    }

    /// Reads the content of a row, its keys without the sign of the generation.
    pub(super) fn read_row<T: DeserializeOwned>(
        &self,
        mut item: Item,
        partitions: &[&str],
    ) -> Result<T, ViewError> {
        self.strip_keys(&mut item, partitions.iter().copied());
        from_item(item)
    }
}

/// The prefix of a text that looks like a key of this program. It is the sign of the generation 0,
/// which otherwise has none.
const ESCAPE: &str = "$0/";

/// Whether a text looks like a key of this program: the sign of a generation, or the name of an
/// item next to the rows.
fn is_taken_for_ours(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('$') else { return false };
    let is_sign = rest.split_once('/').is_some_and(|(digits, _)| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_sign || [GENERATIONS, CHECKPOINT].contains(&text) || text.starts_with(PART)
}

/// Returns a text of a row, as a part of a key. Only a text that looks like a key of this program
/// is changed.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if is_taken_for_ours(text) { format!("{ESCAPE}{text}").into() } else { text.into() }
}

/// Removes the escape.
fn unescape(key: &str) -> &str {
    key.strip_prefix(ESCAPE).unwrap_or(key)
}

/// Returns the form in which the item names a skipped commit.
fn skip(stream: &StreamId, version: u64) -> String {
    format!("{stream} {version}")
}

/// Returns the sign of a generation.
fn sign(generation: u32) -> String {
    format!("${generation}/")
}

/// Returns the generation that a partition key belongs to; `None` for the item that names the
/// generation that is read.
fn generation_of(key: &str) -> Option<u32> {
    if key == GENERATIONS {
        return None;
    }
    let digits = key.strip_prefix('$').and_then(|rest| Some(rest.split_once('/')?.0));
    // A sign has digits alone: `parse` would also accept `+5`.
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    Some(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0))
}

/// Returns the key of an item that is no row.
fn item_key(keys: &KeyNames, name: &str) -> Item {
    let partition = (keys.partition.to_string(), AttributeValue::S(name.to_owned()));
    let sort = keys
        .sort
        .as_ref()
        .map(|sort| (sort.to_string(), AttributeValue::S(POSITION_ENTRY.to_owned())));
    [partition].into_iter().chain(sort).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_switch_and_roll_back_and_no_number_is_used_twice() {
        let now = Timestamp::UNIX_EPOCH;
        let none = Generations::default();
        let soon = now + FRESH;
        let later = now + none.switching();
        assert_eq!(none.generations_to_write(now), [0]);
        assert!(none.switch(0, now).is_err() && none.begin_drop(now).is_err());
        let building = none.begin_build(now).unwrap();
        assert_eq!(
            (building.active_generation(now), building.generations_to_write(now)),
            (0, vec![1, 0])
        );
        assert!(building.begin_build(now).is_err());

        // Until every process has seen the switch, reads use the old generation, and writers write
        // it last.
        assert!(building.switch(0, now).is_err() && building.switch(2, now).is_err());
        let switched = building.switch(1, now).unwrap();
        assert_eq!(
            (switched.active_generation(soon), switched.generations_to_write(soon)),
            (0, vec![1, 0])
        );
        assert!(switched.switch(0, soon).is_err() && switched.begin_drop(soon).is_err());
        assert_eq!(
            (switched.active_generation(later), switched.generations_to_write(later)),
            (1, vec![0, 1])
        );

        let back = switched.switch(0, later).unwrap();
        assert_eq!(
            (back.active_generation(later), back.active_generation(later + none.switching())),
            (1, 0)
        );
        let now = later + none.switching();
        let leaving = back.begin_drop(now).unwrap();
        assert_eq!(
            (leaving.active_generation(now), leaving.generations_to_write(now)),
            (0, vec![0])
        );
        assert!(leaving.switch(1, now).is_err(), "it is not whole any more");
        assert_eq!(leaving.end_drop().begin_build(now).unwrap().generations_to_write(now), [2, 0]);
    }

    #[test]
    fn stored_generations_keep_their_form() {
        let stored = serde_json::json!({
            "$read": 2,
            "$before": { "read": 1, "until": "2026-11-24T09:30:15Z", "for": "ada" },
            "$other": {
                "number": 1, "phase": "leaving", "since": "2026-11-24T09:30:00Z",
                "behind": "2026-11-24T09:31:00Z",
                "marks": { "streams": ["tank-1"], "any": true, "of": 1 },
                "cost": 1.5,
            },
            "$last": 2,
            "$moves": 5,
            "$history": [{ "at": "2026-11-24T09:30:00Z", "what": "drop", "who": "ada", "why": "done", "with": [] }],
            "$skips": ["tank-1 7"],
            "$fresh": 1,
            "$new": { "of": ["a newer version"], "is": null },
        });
        let read: Generations = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(read.standby.as_ref().unwrap().phase, Phase::Dropping);
        assert_eq!([&read, &Generations::default()].map(|it| it.fresh().as_secs()), [1, 10]);
        assert_eq!(serde_json::to_value(&read).unwrap(), stored);
    }

    proptest! {
        /// The table stores and returns a client's text unchanged. The text's key never equals the
        /// key of another text, of another generation, or of an item that is no row.
        #[test]
        fn a_text_is_stored_and_shown_as_sent_in_every_generation(
            texts in prop::collection::vec("(\\$[+]?[0-9]{0,2}/?){0,3}(generations|checkpoint|part-0-of-1|Zed)?", 2),
            generations in prop::collection::vec(0_u32..12, 2),
        ) {
            let config = aws_sdk_dynamodb::Config::builder().behavior_version_latest().build();
            let keys = KeyNames { partition: "owner".into(), sort: None };
            let table = ViewTable::new(aws_sdk_dynamodb::Client::from_conf(config), "rows", keys.clone());
            let stored = |place: usize| {
                let mut row = Item::from([("owner".to_owned(), AttributeValue::S(texts[place].clone()))]);
                table.at(generations[place]).name_keys(&mut row, ["owner"]);
                row
            };
            let mut first = stored(0);
            let is_the_same = texts[0] == texts[1] && generations[0] == generations[1];
            prop_assert_eq!(first == stored(1), is_the_same);
            let key = first["owner"].as_s().unwrap().clone();
            prop_assert_eq!(generation_of(&key), Some(generations[0]));
            for name in [CHECKPOINT, "$part-0-of-1"] {
                prop_assert_ne!(&table.at(generations[1]).item_key(name)["owner"], &first["owner"]);
            }
            prop_assert_ne!(&item_key(&keys, GENERATIONS)["owner"], &first["owner"]);
            table.at(generations[0]).strip_keys(&mut first, ["owner"]);
            prop_assert_eq!(first["owner"].as_s().unwrap(), &texts[0]);
        }
    }

    #[test]
    fn a_key_names_its_generation() {
        for (key, generation) in [
            ("ada", Some(0)),
            ("$checkpoint", Some(0)),
            ("$0/$2/ada", Some(0)),
            ("$2/ada", Some(2)),
            ("$12/$checkpoint", Some(12)),
        ] {
            assert_eq!(generation_of(key), generation, "{key}");
        }
        assert_eq!(generation_of(GENERATIONS), None);
    }
}
