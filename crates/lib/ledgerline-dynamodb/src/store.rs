//! The event store on DynamoDB: the `Commits` table and the `Requests` table. Only this module and
//! `item` know the attribute names of commits and requests, in items and in the images of the
//! table's stream.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, ReturnConsumedCapacity},
};
use futures::{StreamExt, TryStreamExt};
use ledgerline::{
    AppendError, Commit, Consistency, EventLog, FoldedCommit, Host, IdempotencyRecord,
    IdempotencyStore, Page, Range, RecordedState, SnapshotStore, StoreError, StreamId,
};

use crate::{
    Bodies, Units,
    bodies::{self, Payloads, has_body},
    error,
    item::{self, MAX_ITEM_BYTES},
    payload,
    views::batch::get_items,
};

/// The most commits in a forward page. DynamoDB returns at most 1 MB at once, which may be many
/// more small commits. With this limit a page is folded within a second, even with the least memory
/// of a function.
const FORWARD: u32 = 1_000;
/// The most commits that one call reads: 4 MB, which arrive within the timeout of an attempt.
const AT_ONCE: usize = 10;
/// The most such calls in progress at the same time.
const CALLS: usize = 4;
/// The most items of one transaction.
const MAX_TRANSACTION_ITEMS: usize = 100;
/// The most bytes of commits in one transaction, items and expressions. It is a little less than
/// DynamoDB's limit, so that the request has room too.
const MAX_TRANSACTION_BYTES: usize = 4_000_000;

/// The attributes that a page requests, none for all, and the function that reads an item with
/// them.
type Part<C> = (&'static [&'static str], fn(&StreamId, item::Item) -> Result<C, StoreError>);

const COMMIT: Part<Commit> = (&[], item::commit);
/// The price is the same, because the database counts whole items. This part saves two thirds of
/// the instructions that read an item (docs/sizes.md).
const STEP: Part<FoldedCommit> = (&[item::VERSION, item::EVENTS, item::STATE], item::step);
/// Also the name of the body object, and the command and the time that its line must have.
const STEP_OR_BODY: Part<FoldedCommit> =
    (&[item::VERSION, item::EVENTS, item::STATE, item::BODY, item::COMMAND, item::AT], item::step);

/// Returns the key of a commit.
pub(crate) fn key(stream: &StreamId, version: u64) -> [(&'static str, AttributeValue); 2] {
    [
        (item::STREAM, AttributeValue::S(stream.to_string())),
        (item::VERSION, AttributeValue::N(version.to_string())),
    ]
}

/// Returns the commit as an item, if it fits in one.
fn item_within_limit(commit: &Commit, compress_over: usize) -> Result<item::Fields, AppendError> {
    if compress_over < usize::MAX {
        let bytes = payload::text_bytes(commit);
        if bytes > payload::MAX_BYTES {
            return Err(AppendError::TooLarge { bytes, limit: payload::MAX_BYTES });
        }
    }
    let item = item::commit_to_item(commit, compress_over);
    let bytes = item::bytes_of(&item);
    if bytes > MAX_ITEM_BYTES {
        return Err(AppendError::TooLarge { bytes, limit: MAX_ITEM_BYTES });
    }
    Ok(item)
}

/// The implementation of the ports on two tables. It is cheap to clone.
///
/// ```no_run
/// use ledgerline::{Aggregate, Consistency, load, testing::tank::Tank};
/// use ledgerline_dynamodb::DynamoDbStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = aws_sdk_dynamodb::Client::new(&aws_config::load_from_env().await);
/// let store = DynamoDbStore::new(client, "Commits").with_requests("Requests");
/// let loaded = load::<Tank>(&store, &Tank::stream("north")?, None, Consistency::Eventual).await?;
/// println!("{} litres", loaded.state.level());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DynamoDbStore {
    pub(crate) client: Client,
    pub(crate) commits: String,
    pub(crate) requests: Option<String>,
    pub(crate) compress_over: usize,
    pub(crate) bodies: Option<Arc<dyn Payloads>>,
    body_over: usize,
    body_categories: Option<&'static [&'static str]>,
}

impl DynamoDbStore {
    /// The host of commands on DynamoDB. It waits by the clock of tokio.
    pub const HOST: Host = Host { pause: |duration| Box::pin(tokio::time::sleep(duration)) };

    /// Returns a store on the Commits table of this name, for functions that only read the log.
    pub fn new(client: Client, commits: impl Into<String>) -> Self {
        Self {
            client,
            commits: commits.into(),
            requests: None,
            compress_over: usize::MAX,
            bodies: None,
            body_over: usize::MAX,
            body_categories: None,
        }
    }

    /// Returns the same store, whose calls add their units to this sum.
    #[must_use]
    pub fn with_units(&self, units: &Units) -> Self {
        Self { client: units.count(&self.client), ..self.clone() }
    }

    /// Returns the same store, with idempotency records and snapshots in the table of this name.
    #[must_use]
    pub fn with_requests(self, requests: impl Into<String>) -> Self {
        Self { requests: Some(requests.into()), ..self }
    }

    /// Returns the same store, which writes the gzip of payloads with more than this number of
    /// bytes. Every store reads both forms.
    #[must_use]
    pub fn with_compression(self, over: usize) -> Self {
        Self { compress_over: over, ..self }
    }

    /// Returns the same store, which reads the payloads of commits from these objects, too. It
    /// writes them there if their item would have more than `over` bytes, or does not fit.
    #[must_use]
    pub fn with_bodies(self, bodies: Arc<dyn Bodies>, over: usize) -> Self {
        Self { bodies: Some(bodies::payloads(bodies)), body_over: over, ..self }
    }

    /// Whether the store reads payloads from body objects.
    pub fn has_bodies(&self) -> bool {
        self.bodies.is_some()
    }

    /// Returns the same store, which writes objects for commits of these categories alone.
    #[must_use]
    pub fn with_body_categories(self, categories: &'static [&'static str]) -> Self {
        Self { body_categories: Some(categories), ..self }
    }

    /// Returns the item of a commit, and stores its body object first if it needs one.
    async fn item_of_commit(
        &self,
        bodies: &dyn Payloads,
        commit: &Commit,
    ) -> Result<item::Fields, AppendError> {
        let whole = item_within_limit(commit, self.compress_over);
        let fits = match &whole {
            Ok(item) => item::bytes_of(item) <= self.body_over,
            Err(error) => !matches!(error, AppendError::TooLarge { .. }),
        };
        let category = commit.stream.category();
        if fits || self.body_categories.is_some_and(|known| !known.contains(&category)) {
            return whole;
        }
        let item = item::item_with_body(commit, bodies.put(commit).await?);
        let bytes = item::bytes_of(&item);
        if bytes > MAX_ITEM_BYTES {
            return Err(AppendError::TooLarge { bytes, limit: MAX_ITEM_BYTES });
        }
        Ok(item)
    }

    pub(crate) fn requests(&self) -> Result<&str, StoreError> {
        self.requests
            .as_deref()
            .ok_or_else(|| StoreError::Unavailable("no Requests table is configured".into()))
    }

    /// Opens a connection, so that the first command does not wait for it, by a read of a commit
    /// that cannot exist. Returns a transient error, if there was one: a connection that took too
    /// long, a database that throttles.
    ///
    /// # Errors
    /// When the database refuses: the table does not exist, or may not be read.
    pub async fn connect(&self) -> Result<Option<StoreError>, StoreError> {
        let get = self.client.get_item().table_name(&self.commits).consistent_read(true);
        let get = get.key(item::STREAM, AttributeValue::S("connect-0".into()));
        let Err(error) = get.key(item::VERSION, AttributeValue::N("0".into())).send().await else {
            return Ok(None);
        };
        let is_refusal =
            error.raw_response().is_some_and(|response| response.status().is_client_error());
        let error = error::store_error(error);
        if is_refusal && !matches!(error, StoreError::Throttled(_)) {
            Err(error)
        } else {
            Ok(Some(error))
        }
    }

    /// Whether the log has the commit, by a strongly consistent read. Only its version is sent, but
    /// the price is that of the whole commit: one read unit for each 4 KB.
    pub async fn has(&self, stream: &StreamId, version: u64) -> Result<bool, StoreError> {
        let get = self.client.get_item().table_name(&self.commits).consistent_read(true);
        let get = get.key(item::STREAM, AttributeValue::S(stream.to_string()));
        let get = get.key(item::VERSION, AttributeValue::N(version.to_string()));
        let get = get
            .projection_expression("#version")
            .expression_attribute_names("#version", item::VERSION);
        let output = get.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await;
        Ok(output.map_err(error::store_error)?.item.is_some())
    }

    /// Reads the items of a page of a range, each with these attributes only, or with all of them.
    async fn page<C>(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
        oldest_first: bool,
        (attributes, read): Part<C>,
    ) -> Result<Page<C>, StoreError> {
        let lowest = range.after.saturating_add(1);
        if lowest > range.up_to {
            return Ok(Page { commits: Vec::new(), complete: true });
        }
        let end = if oldest_first { range.up_to } else { lowest };
        let mut query = self.client.query();
        for name in attributes {
            query = query.expression_attribute_names(format!("#{name}"), *name);
        }
        let projection =
            attributes.iter().map(|name| format!("#{name}")).collect::<Vec<_>>().join(", ");
        let output = query
            .set_projection_expression(Some(projection).filter(|projection| !projection.is_empty()))
            .table_name(&self.commits)
            .key_condition_expression("#stream = :stream AND #version BETWEEN :lowest AND :highest")
            .expression_attribute_names("#stream", item::STREAM)
            .expression_attribute_names("#version", item::VERSION)
            .expression_attribute_values(":stream", AttributeValue::S(stream.to_string()))
            .expression_attribute_values(":lowest", AttributeValue::N(lowest.to_string()))
            .expression_attribute_values(":highest", AttributeValue::N(range.up_to.to_string()))
            .scan_index_forward(oldest_first)
            .set_limit(range.limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX)))
            .consistent_read(consistency == Consistency::Strong)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(error::store_error)?;
        let mut items = output.items.unwrap_or_default();
        // A page that ends at its limit has a key to continue from, even if nothing follows. So the
        // page is also complete if its last commit is the end of the range.
        let last = items.last().and_then(|item| item.get(item::VERSION)?.as_n().ok()?.parse().ok());
        let complete = output.last_evaluated_key.is_none() || last == Some(end);
        let found = items.len();
        // Without body objects, a fold does not request the name of one.
        let may_have_bodies = self.bodies.is_some() || attributes.is_empty();
        if may_have_bodies && items.iter().any(has_body) {
            // A load asks for more than a few commits only if the first page was not enough.
            let few = range.limit.is_some_and(|limit| limit < FORWARD);
            let up_to_state = few && !attributes.is_empty() && !oldest_first;
            items = self.page_with_payloads(stream, items, up_to_state).await?;
        }
        let mut complete = complete && items.len() == found;
        let states = items.iter().position(|item| item.contains_key(item::STATE));
        let mut commits: Vec<_> = items.into_iter().map(|item| read(stream, item)).collect();
        // A load that has a state needs no older commit, which may be a stub that a store without
        // body objects cannot read.
        if let (Some(state), Some(failed)) = (states, commits.iter().position(Result::is_err))
            && state < failed
            && !oldest_first
            && !attributes.is_empty()
        {
            commits.truncate(failed);
            complete = false;
        }
        let commits = commits.into_iter().collect();
        match commits {
            Err(StoreError::Corrupt { version, .. }) if !may_have_bodies => {
                // The page did not request `body`. For a commit that has one, this read returns the
                // error that names `BODIES_BUCKET`.
                Box::pin(self.get(stream, version)).await?;
                commits.map(|commits| Page { commits, complete })
            }
            commits => Ok(Page { commits: commits?, complete }),
        }
    }

    /// Returns the part of a commit that a fold needs.
    fn step(&self) -> Part<FoldedCommit> {
        if self.bodies.is_some() { STEP_OR_BODY } else { STEP }
    }

    /// Reads an item, with strong consistency.
    pub(crate) async fn item<const N: usize>(
        &self,
        table: &str,
        key: [(&str, AttributeValue); N],
    ) -> Result<Option<item::Item>, StoreError> {
        let key = key.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let output = self
            .client
            .get_item()
            .table_name(table)
            .set_key(Some(key))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(error::store_error)?;
        Ok(output.item)
    }
}

impl EventLog for DynamoDbStore {
    async fn read(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> Result<Page, StoreError> {
        self.page(stream, range, consistency, false, COMMIT).await
    }

    async fn read_for_fold(
        &self,
        stream: &StreamId,
        range: Range,
        consistency: Consistency,
    ) -> Result<Page<FoldedCommit>, StoreError> {
        self.page(stream, range, consistency, false, self.step()).await
    }

    async fn read_forwards(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> Result<Page, StoreError> {
        let range = Range { after, up_to, limit: Some(FORWARD) };
        self.page(stream, range, Consistency::Strong, true, COMMIT).await
    }

    async fn read_forwards_for_fold(
        &self,
        stream: &StreamId,
        after: u64,
        up_to: u64,
    ) -> Result<Page<FoldedCommit>, StoreError> {
        let range = Range { after, up_to, limit: Some(FORWARD) };
        self.page(stream, range, Consistency::Strong, true, self.step()).await
    }

    async fn get(&self, stream: &StreamId, version: u64) -> Result<Option<Commit>, StoreError> {
        let mut item = self.item(&self.commits, key(stream, version)).await?;
        if item.as_ref().is_some_and(has_body) {
            item = self.read_payloads(&mut item.into_iter().collect()).await?.pop().transpose()?;
        }
        item.map(|item| item::commit(stream, item)).transpose()
    }

    async fn get_all(
        &self,
        names: &[(&StreamId, u64)],
    ) -> Result<Vec<Result<Option<Commit>, StoreError>>, StoreError> {
        let owned = |(name, value): (&str, AttributeValue)| (name.to_owned(), value);
        let keys = names
            .iter()
            .map(|&(stream, version)| key(stream, version).into_iter().map(owned).collect());
        let keys: Vec<_> = keys.collect();
        let calls: Vec<_> = keys.chunks(AT_ONCE).map(<[item::Item]>::to_vec).collect();
        let calls = futures::stream::iter(calls)
            .map(|keys| get_items(&self.client, &self.commits, keys, true));
        let calls = calls.buffered(CALLS).try_collect::<Vec<_>>().await;
        let found = calls.map_err(error::to_store_error)?.into_iter().flatten();
        let (keys, mut items): (Vec<_>, Vec<_>) =
            found.filter_map(|item| Some((item::keys(&item)?, item))).unzip();
        let mut whole = Vec::with_capacity(items.len());
        while !items.is_empty() {
            whole.extend(self.read_payloads(&mut items).await?);
        }
        let mut found: HashMap<_, _> = keys.into_iter().zip(whole).collect();
        let commit = |&(stream, version): &(&StreamId, u64)| {
            let item = found.remove(&(stream.clone(), version));
            item.map(|item| item::commit(stream, item?)).transpose()
        };
        Ok(names.iter().map(commit).collect())
    }

    /// A commit has up to 4 MB in a body object, and 400 KB otherwise.
    fn read_batch_size(&self) -> usize {
        if self.bodies.is_some() { AT_ONCE } else { 10 * AT_ONCE }
    }

    /// Measures a commit as DynamoDB charges it.
    fn stored_bytes(&self, commit: &Commit) -> usize {
        item::commit_bytes(commit, self.compress_over)
    }

    async fn append(
        &self,
        commit: &Commit,
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        if request.is_some() {
            return self.append_all(std::slice::from_ref(commit), request).await;
        }
        let item = match &self.bodies {
            None => item_within_limit(commit, self.compress_over)?,
            Some(bodies) => Box::pin(self.item_of_commit(&**bodies, commit)).await?,
        };
        self.insert(&self.commits, item, AppendError::VersionTaken).await
    }

    async fn append_all(
        &self,
        commits: &[Commit],
        request: Option<&IdempotencyRecord>,
    ) -> Result<(), AppendError> {
        let limit = MAX_TRANSACTION_ITEMS - usize::from(request.is_some());
        if commits.len() > limit {
            return Err(AppendError::TooMany { commits: commits.len(), limit });
        }
        if commits.is_empty() && request.is_none() {
            return Ok(());
        }
        // The database would refuse a transaction that has one item twice as malformed. Callers
        // would mistake that error for an outage and retry.
        let keys: HashSet<_> =
            commits.iter().map(|commit| (&commit.stream, commit.version)).collect();
        if keys.len() < commits.len() {
            return Err(AppendError::VersionTaken);
        }
        // Before any object is stored: no attempt could write such an answer.
        if let Some(request) = request {
            let bytes = item::bytes_of(&item::request_to_item(request));
            if bytes > MAX_ITEM_BYTES {
                return Err(AppendError::TooLarge { bytes, limit: MAX_ITEM_BYTES });
            }
        }
        let mut items = Vec::with_capacity(commits.len());
        for commit in commits {
            items.push(match &self.bodies {
                None => item_within_limit(commit, self.compress_over)?,
                Some(bodies) => Box::pin(self.item_of_commit(&**bodies, commit)).await?,
            });
        }
        let bytes = items.iter().map(item::bytes_of).sum();
        if bytes > MAX_TRANSACTION_BYTES {
            return Err(AppendError::TooLarge { bytes, limit: MAX_TRANSACTION_BYTES });
        }
        self.transact(&items, request).await
    }
}

impl SnapshotStore for DynamoDbStore {
    async fn load_snapshot(
        &self,
        stream: &StreamId,
        schema: u32,
    ) -> Result<Option<(u64, RecordedState)>, StoreError> {
        self.read_snapshot(stream, schema).await
    }

    async fn save_snapshot(
        &self,
        stream: &StreamId,
        version: u64,
        state: &RecordedState,
    ) -> Result<(), StoreError> {
        self.write_snapshot(stream, version, state).await
    }
}

impl IdempotencyStore for DynamoDbStore {
    async fn record_response(&self, request: &IdempotencyRecord) -> Result<(), AppendError> {
        self.insert(self.requests()?, item::request_to_item(request), AppendError::RequestTaken)
            .await
    }

    async fn find_response(&self, key: &str) -> Result<Option<IdempotencyRecord>, StoreError> {
        let key = [(item::REQUEST, AttributeValue::S(key.to_owned()))];
        self.item(self.requests()?, key).await?.map(item::request).transpose()
    }
}
