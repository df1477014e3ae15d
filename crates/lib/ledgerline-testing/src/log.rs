//! The log on a real wire, and commands to it without HTTP.

use std::num::NonZeroUsize;

use aws_sdk_dynamodb::{Client, config::Builder};
use ledgerline::{
    Aggregate, Cache, Commit, Context, EventLog, Execution, Meta, Outcome, StreamId, execute,
};
use ledgerline_dynamodb::{DynamoDbStore, ScanPart};

use super::{LocalStack, Wire, dynamodb, table};

/// Returns a client of an emulated database with these tables, and the record of its calls.
pub async fn client_and_wire(tables: &[&str]) -> (Client, Wire) {
    let dynamodb = dynamodb(tables).await;
    let wire = Wire::default();
    let config = Builder::from(&dynamodb.sdk_config()).interceptor(wire.clone());
    (Client::from_conf(config.build()), wire)
}

/// Returns a store in an emulated database, and the record of its calls.
pub async fn store_and_wire() -> (DynamoDbStore, Wire) {
    let (client, wire) = client_and_wire(&["CommitsTable", "RequestsTable"]).await;
    let store = DynamoDbStore::new(client, table("CommitsTable"));
    (store.with_requests(table("RequestsTable")), wire)
}

/// Returns the cache of a cold instance.
#[must_use]
pub fn cold<A: Aggregate>() -> Cache<A> {
    Cache::new(NonZeroUsize::new(10).unwrap())
}

/// Sends a command as a command function does. Returns the version after the command, or the error.
///
/// # Errors
/// The message that the caller gets.
pub async fn send<A: Aggregate>(
    store: &DynamoDbStore,
    cache: &Cache<A>,
    stream: &StreamId,
    command: &A::Command,
    creates: bool,
) -> Result<u64, String> {
    let context = Context { at: jiff::Timestamp::now(), actor: Some("ada".into()) };
    let id = uuid::Uuid::now_v7().to_string();
    let execution = Execution::<A> {
        stream,
        command: Some(command),
        context: &context,
        command_id: &id,
        meta: &Meta::default(),
        precondition: None,
        creates,
        idempotency: None,
    };
    match execute(store, cache, &DynamoDbStore::HOST, &execution).await {
        Ok(Outcome::Committed(loaded) | Outcome::Unchanged(loaded)) => Ok(loaded.version),
        Ok(Outcome::Repeated(_)) => unreachable!("there is no ledger"),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns all commits of a stream, the oldest first.
pub async fn commits(store: &DynamoDbStore, stream: &StreamId) -> Vec<Commit> {
    let mut commits = Vec::new();
    while let Some(commit) = store.get(stream, commits.len() as u64 + 1).await.unwrap() {
        commits.push(commit);
    }
    commits
}

/// Returns the commits of a category on a local stack, stream by stream, each stream in its order.
pub async fn category_commits(stack: &LocalStack, category: &str) -> Vec<Commit> {
    let store = stack.store();
    let (mut commits, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(ScanPart::WHOLE, after.as_ref(), &[category], 1_000).await.unwrap();
        commits.extend(page.commits);
        after = page.after;
        if after.is_none() {
            commits.sort_by_key(|commit: &Commit| (commit.stream.clone(), commit.version));
            return commits;
        }
    }
}

/// Returns the types of the events, commit by commit.
#[must_use]
pub fn event_types(commits: &[Commit]) -> Vec<Vec<&str>> {
    commits
        .iter()
        .map(|commit| commit.events.iter().map(|event| event.event_type.as_str()).collect())
        .collect()
}
