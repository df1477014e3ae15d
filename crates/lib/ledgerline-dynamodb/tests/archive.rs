//! The archive of a stream: each reader reads it, a repetition changes nothing, and no item loses its
//! payloads to a damaged object.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::HashMap, num::NonZeroU32, sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client, operation::update_item::builders::UpdateItemFluentBuilder, types::AttributeValue,
};
use futures::future::BoxFuture;
use ledgerline::{
    AppendError, Commit, Consistency, EventLog, Range, RecordedState, StoreError, StreamId,
    append_all_once, contract::commit,
};
use ledgerline_dynamodb::{
    Archive, Bodies, DynamoDbStore, ScanPart, StoredCommit, commit_from_image, is_stub_image,
};
use ledgerline_testing::{BodyFailure, MemoryBodies, client_and_wire, table};
use serde_json::{Value, json};
use tokio::time::Instant;

const ALL: Range = Range { after: 0, up_to: u64::MAX, limit: None };
const UNITS: NonZeroU32 = NonZeroU32::MAX;

/// A log with a stream of this number of commits, each with a state.
struct Log {
    client: Client,
    store: DynamoDbStore,
    bodies: Arc<MemoryBodies>,
    commits: Vec<Commit>,
}

impl Log {
    async fn with_commits(number: u64) -> Self {
        let (client, _) = client_and_wire(&["CommitsTable", "RequestsTable"]).await;
        let bodies = Arc::<MemoryBodies>::default();
        let store = DynamoDbStore::new(client.clone(), table("CommitsTable"))
            .with_bodies(bodies.clone(), usize::MAX);
        let commits: Vec<_> = (1..=number).map(full).collect();
        for commit in &commits {
            store.append(commit, None).await.unwrap();
        }
        Self { client, store, bodies, commits }
    }

    fn archive(&self) -> Archive {
        Archive::new(self.store.clone(), self.bodies.clone(), UNITS)
    }

    fn archive_with(&self, put: Put) -> Archive {
        let bodies = Arc::new(OddBodies { bodies: self.bodies.clone(), put });
        Archive::new(self.store.clone(), bodies, UNITS)
    }

    /// The commits as they are read after an archive of the first ones: the archive has no states.
    fn without_states(&self, up_to: u64) -> Vec<Commit> {
        let without = |commit: &Commit| match commit.version <= up_to {
            true => Commit { state: None, ..commit.clone() },
            false => commit.clone(),
        };
        self.commits.iter().map(without).collect()
    }

    async fn read(&self) -> Vec<Commit> {
        self.store.read_forwards(&stream(), 0, u64::MAX).await.unwrap().commits
    }

    /// Returns an update of the item of this version.
    fn update(&self, version: u64) -> UpdateItemFluentBuilder {
        let update = self.client.update_item().table_name(table("CommitsTable"));
        let update = update.key("stream", AttributeValue::S(stream().to_string()));
        update.key("version", AttributeValue::N(version.to_string()))
    }

    async fn items(&self) -> Vec<HashMap<String, AttributeValue>> {
        let scan = self.client.scan().table_name(table("CommitsTable"));
        scan.send().await.unwrap().items.unwrap()
    }
}

fn stream() -> StreamId {
    StreamId::new("tank", "north").unwrap()
}

fn full(version: u64) -> Commit {
    let mut full = commit(&stream(), version);
    full.events[0].data = r#"{"amount":1.0,"note":"é"}"#.into();
    full.state = Some(RecordedState { schema: 1, data: r#"{"level":1.0}"#.into() });
    full.meta.correlation_id = Some(format!("correlation-{version}"));
    full
}

#[tokio::test]
async fn each_reader_reads_through_stubs() {
    // Given a stream of ten commits, of which six are archived,
    let log = Log::with_commits(10).await;
    let mut archive = log.archive();
    archive.archive(&stream(), 2..=7).await.unwrap();
    assert_eq!((archive.counts().commits, archive.counts().objects), (6, 1));
    let stream = stream();
    let commits: Vec<_> = log
        .without_states(7)
        .into_iter()
        .map(|commit| if commit.version == 1 { full(1) } else { commit })
        .collect();
    // then each reader returns all of them.
    assert_eq!(log.read().await, commits);
    let mut newest_first = commits.clone();
    newest_first.reverse();
    let page = log.store.read(&stream, ALL, Consistency::Strong).await.unwrap();
    assert_eq!(page.commits, newest_first);
    let scanned = log.store.scan(ScanPart::WHOLE, None, &[], 100).await.unwrap();
    assert_eq!((scanned.commits, scanned.damaged), (commits.clone(), 0));
    let names: Vec<_> = (1..=10).map(|version| (&stream, version)).collect();
    let read = log.store.get_all(&names).await.unwrap();
    let read: Vec<_> = read.into_iter().map(|read| read.unwrap().unwrap()).collect();
    assert_eq!(read, commits);
    for commit in &commits {
        let version = commit.version;
        assert_eq!(log.store.get(&stream, version).await.unwrap().as_ref(), Some(commit));
        // A redelivery sends a whole commit.
        let record = log.store.record(&stream, version).await.unwrap().unwrap();
        let image = serde_json::from_value(record["NewImage"].clone()).unwrap();
        let image = commit_from_image(image).unwrap();
        assert_eq!((&image.commit, image.has_body), (commit, false));
        let id = format!("correlation-{version}");
        assert_eq!(log.store.find_correlated(&id).await.unwrap(), [(stream.clone(), version)]);
    }
    // The stream continues, and a lost answer to an archived commit is recognised.
    append_all_once(&log.store, &[full(3)], None).await.unwrap();
    let taken = log.store.append(&full(3), None).await;
    assert!(matches!(taken, Err(AppendError::VersionTaken)), "{taken:?}");
    log.store.append(&full(11), None).await.unwrap();
}

#[tokio::test]
async fn a_stub_keeps_key_command_time_and_the_name_of_its_object() {
    let log = Log::with_commits(3).await;
    let mut survey = log.store.survey("tank");
    let (_, examined) = survey.next().await.unwrap().unwrap();
    assert!(survey.units > 0.0 && survey.next().await.unwrap().is_none());
    assert!(examined.iter().all(|it| it.has_state && it.at == Some(log.commits[0].at)));
    log.archive().archive(&stream(), 1..=3).await.unwrap();
    let mut survey = log.store.survey("tank");
    let (name, stubs) = survey.next().await.unwrap().unwrap();
    assert_eq!(name, stream());
    for (stub, examined) in stubs.iter().zip(examined) {
        let StoredCommit { version, bytes, has_state, ref body, is_stub, .. } = *stub;
        assert_eq!((version, has_state, is_stub), (examined.version, false, true));
        let key = body.as_deref().unwrap();
        assert!(key.starts_with("bodies/tank-north/1-3-"), "{key}");
        assert!(bytes.abs_diff(examined.stub_bytes) < 8, "{bytes} {}", examined.stub_bytes);
    }
    for item in log.items().await {
        let mut names: Vec<_> = item.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["at", "body", "command", "stream", "version"]);
    }
}

/// A new stub rings no alarm on changed commits. Any other change of a commit does.
#[test]
fn the_image_of_a_stub_has_only_what_an_archive_keeps() {
    let name =
        |versions: &str| json!({ "S": format!("{versions}-0123456789abcdef0123456789abcdef") });
    let stub = json!({
        "stream": { "S": "tank-1" }, "version": { "N": "7" }, "at": { "S": "t" },
        "command": { "S": "c" }, "body": name("5-9"),
    });
    let is_stub = |image: &Value| is_stub_image(&serde_json::from_value(image.clone()).unwrap());
    assert!(is_stub(&stub));
    for (field, value) in [
        ("body", name("8-9")),
        ("body", name("1-6")),
        ("body", json!({ "S": "x" })),
        ("body", json!({ "B": "eA==" })),
        ("version", json!({ "S": "7" })),
        ("events", json!({ "L": [] })),
    ] {
        let mut changed = stub.clone();
        changed[field] = value;
        assert!(!is_stub(&changed), "{changed}");
    }
    let mut partial = stub;
    partial.as_object_mut().unwrap().remove("at");
    assert!(!is_stub(&partial));
}

/// A newer program wrote it: this one would lose the field.
#[tokio::test]
async fn an_item_with_a_field_that_the_program_does_not_know_is_not_known() {
    let log = Log::with_commits(5).await;
    for (version, path) in
        [(1, "tenant"), (2, "meta.tenant"), (3, "events[0].tenant"), (4, "#state.tenant")]
    {
        let update = log.update(version).update_expression(format!("SET {path} = :one"));
        let update = if path.starts_with('#') {
            update.expression_attribute_names("#state", "state")
        } else {
            update
        };
        let one = AttributeValue::S("one".into());
        update.expression_attribute_values(":one", one).send().await.unwrap();
    }
    let (_, commits) = log.store.survey("tank").next().await.unwrap().unwrap();
    let known: Vec<_> = commits.iter().map(|commit| commit.is_known).collect();
    assert_eq!(known, [false, false, false, false, true]);
}

/// The fanout reads no objects, and folds a stream whose old commits are stubs.
#[tokio::test]
async fn a_fold_without_a_bucket_ends_at_the_newest_state() {
    let log = Log::with_commits(8).await;
    log.archive().archive(&stream(), 1..=6).await.unwrap();
    let without = DynamoDbStore::new(log.client.clone(), table("CommitsTable"));
    let range = Range { limit: Some(8), ..ALL };
    let page = without.read_for_fold(&stream(), range, Consistency::Strong).await.unwrap();
    let versions: Vec<_> = page.commits.iter().map(|commit| commit.version).collect();
    assert_eq!((versions, page.complete), (vec![8, 7], false));
    let older = Range { up_to: 6, ..range };
    let error = without.read_for_fold(&stream(), older, Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, StoreError::PayloadElsewhere { version: 6, .. }), "{error}");

    // A damaged commit is an error, also if it has the newest state.
    let update = log.update(8).update_expression("SET events = :damaged");
    let damaged = AttributeValue::S("damaged".into());
    update.expression_attribute_values(":damaged", damaged).send().await.unwrap();
    let error = without.read_for_fold(&stream(), range, Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { version: 8, .. }), "{error}");
}

#[tokio::test]
async fn a_survey_has_each_stream_of_the_category_once() {
    let log = Log::with_commits(3).await;
    for id in ["a", "b", "c"] {
        for (category, commits) in [("tank", 2), ("haul", 1)] {
            let stream = StreamId::new(category, id).unwrap();
            for version in 1..=commits {
                log.store.append(&commit(&stream, version), None).await.unwrap();
            }
        }
    }
    let (mut survey, mut found) = (log.store.survey("tank"), HashMap::new());
    while let Some((stream, commits)) = survey.next().await.unwrap() {
        let versions: Vec<_> = commits.iter().map(|commit| commit.version).collect();
        assert_eq!(found.insert(stream.to_string(), versions), None);
    }
    let expected = [("a", 2), ("b", 2), ("c", 2), ("north", 3)]
        .map(|(id, commits)| (format!("tank-{id}"), (1..=commits).collect()));
    assert_eq!(found, expected.into());
}

/// Rule 4, for operators: two of them may archive at once, and each attempt may be repeated.
#[tokio::test]
async fn a_repeated_archive_changes_nothing() {
    let log = Log::with_commits(20).await;
    let stream = stream();
    let (mut one, mut other) = (log.archive(), log.archive());
    let done = tokio::join!(one.archive(&stream, 1..=20), other.archive(&stream, 1..=20));
    done.0.and(done.1).unwrap();
    assert_eq!(one.counts().commits + other.counts().commits, 20);
    let items = log.items().await;
    one.archive(&stream, 1..=20).await.unwrap();
    assert_eq!(one.counts().commits + other.counts().commits, 20);
    assert_eq!(log.items().await, items);
    assert_eq!(log.read().await, log.without_states(20));
    log.bodies.change(|objects| assert_eq!(objects.len(), 1));
}

/// The item of a commit is the only copy until its object was read.
#[tokio::test]
async fn no_item_becomes_a_stub_before_its_object_was_read_and_compared() {
    for failure in [BodyFailure::Lost, BodyFailure::AnswerLost, BodyFailure::Throttled] {
        let log = Log::with_commits(3).await;
        log.bodies.fail(&[failure]);
        let error = log.archive().archive(&stream(), 1..=3).await.unwrap_err();
        assert!(!matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(log.items().await.iter().all(|item| item.contains_key("events")));
        log.archive().archive(&stream(), 1..=3).await.unwrap();
        assert_eq!(log.read().await, log.without_states(3));
    }
    // An object under the key that is another one, and a bucket that loses what it accepted.
    for (put, damage) in [(Put::Cut, "it has another hash"), (Put::Lost, "it does not exist")] {
        let log = Log::with_commits(3).await;
        let mut archive = log.archive_with(put);
        let error = archive.archive(&stream(), 1..=3).await.unwrap_err().to_string();
        assert!(error.contains(damage), "{error}");
        assert!(log.items().await.iter().all(|item| item.contains_key("events")));
    }
}

/// The effect of a PUT that a bucket accepts.
#[derive(Debug, Clone)]
enum Put {
    /// The object is stored without its last byte.
    Cut,
    /// Nothing is stored.
    Lost,
    /// The object is stored, and an item changes first.
    After(Box<UpdateItemFluentBuilder>),
}

/// A bucket whose PUT has such an effect.
#[derive(Debug)]
struct OddBodies {
    bodies: Arc<MemoryBodies>,
    put: Put,
}

impl Bodies for OddBodies {
    fn put_new<'a>(
        &'a self,
        key: &'a str,
        mut object: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            match self.put.clone() {
                Put::Lost => return Ok(true),
                Put::Cut => _ = object.pop(),
                Put::After(change) => _ = change.send().await.unwrap(),
            }
            self.bodies.put_new(key, object).await
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        self.bodies.get(key)
    }
}

/// An administrator may have replaced a commit: nothing is archived in its name.
#[tokio::test]
async fn an_item_of_another_command_is_not_replaced() {
    let log = Log::with_commits(3).await;
    let change = log.update(2).update_expression("SET command = :other");
    let change = change.expression_attribute_values(":other", AttributeValue::S("other".into()));
    // The change happens after the archive has read the commits.
    let mut archive = log.archive_with(Put::After(Box::new(change)));
    let error = archive.archive(&stream(), 1..=3).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { version: 2, .. }), "{error}");
    let changed = log.store.get(&stream(), 2).await.unwrap().unwrap();
    assert_eq!((changed.command.as_str(), &changed.events), ("other", &log.commits[1].events));
}

#[tokio::test]
async fn a_long_stream_is_archived_in_several_objects_within_the_write_units() {
    let log = Log::with_commits(1_030).await;
    tokio::time::pause();
    let began = Instant::now();
    let units = NonZeroU32::new(100).unwrap();
    let mut archive = Archive::new(log.store.clone(), log.bodies.clone(), units);
    archive.archive(&stream(), 1..=1_030).await.unwrap();
    let archived = archive.counts();
    assert_eq!((archived.commits, archived.objects), (1_030, 2));
    // The first updates wait for nothing.
    let least = Duration::from_secs_f64((archived.write_units - 8.0) / 100.0);
    assert!(began.elapsed() >= least, "{:?} {archived:?}", began.elapsed());
    tokio::time::resume();
    let after: Vec<_> = log.read().await.iter().map(|commit| commit.version).collect();
    assert_eq!(after, (1..=1_000).collect::<Vec<_>>());
}
