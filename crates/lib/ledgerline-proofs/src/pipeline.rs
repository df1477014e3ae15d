//! Everything behind the log: the fanout, the projectors of an application, and the rows that they
//! write.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
};

use anyhow::{Result, anyhow};
use aws_lambda_events::sqs::SqsMessage;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures::{FutureExt, future::LocalBoxFuture};
use ledgerline::{
    Aggregate, Commit, LogView, RecordedEvent, Write,
    changes::{Fields, Key},
    decode,
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    fanout::{Fanout, Wiring},
    log_projector::{self, LogProjector},
    messages::Message,
    queue::QueueRunner,
    state_projector::StateProjector,
    stream_records::Record,
};
use ledgerline_testing::table;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{faulty_wire::Wire, role::Role, world::World};

/// The rows as text, by table and key.
pub(crate) type Rows = BTreeMap<(&'static str, String), String>;

type RowAfter = Box<dyn Fn(&[Commit]) -> Option<Value>>;

/// A state projector behind the fanout.
pub(crate) struct Stateful {
    pub(crate) table: &'static str,
    /// The category whose states the projector gets.
    pub(crate) category: &'static str,
    project: Box<dyn Fn(Value) -> LocalBoxFuture<'static, Result<()>>>,
    /// Folds the commits of a stream into its row.
    row: RowAfter,
    pub(crate) key: &'static str,
}

impl Stateful {
    /// Delivers a state to the projector.
    pub(crate) async fn project(&self, detail: Value) -> Result<()> {
        (self.project)(detail).await
    }
}

/// A log projector behind a queue.
#[derive(Debug)]
pub(crate) struct Logged {
    pub(crate) table: &'static str,
    /// The URL of the projector's queue.
    pub(crate) url: String,
    /// The categories whose commits the projector gets.
    pub(crate) of: &'static [&'static str],
    /// The handler of the messages, with the projector in it.
    pub(crate) runner: QueueRunner<DynamoDbStore, LogProjector>,
}

/// Creates the fanout of an application's aggregates.
pub(crate) type MakeFanout = fn(
    DynamoDbStore,
    aws_sdk_eventbridge::Client,
    aws_sdk_lambda::Client,
    aws_sdk_sqs::Client,
    Wiring,
) -> Fanout;

/// The function of a state view.
#[derive(Clone)]
pub(crate) struct StateFunction {
    pub(crate) table: &'static str,
    pub(crate) category: &'static str,
    pub(crate) instance: Arc<dyn Fn(&Wire) -> Stateful + Send + Sync>,
}

/// The function of a log view.
#[derive(Debug, Clone)]
pub(crate) struct LogFunction {
    pub(crate) table: &'static str,
    pub(crate) view: LogView,
    pub(crate) role: Arc<Role>,
}

impl LogFunction {
    pub(crate) fn new(table: &'static str, view: LogView) -> Self {
        Self { table, view, role: Role::new(&log_projector::manifest(&view)) }
    }

    /// The projector, with its table behind this wire.
    pub(crate) fn consumer(&self, wire: &Wire) -> LogProjector {
        LogProjector::new(wire.under(&self.role).dynamodb(), table(self.table), self.view)
    }

    pub(crate) fn instance(&self, wire: &Wire) -> Logged {
        Logged {
            table: self.table,
            url: format!("http://wire.invalid/{}.fifo", self.table),
            of: self.view.of,
            runner: QueueRunner {
                store: World::store_at(&wire.under(&self.role)),
                consumer: self.consumer(wire),
            },
        }
    }
}

/// The functions behind the log.
pub(crate) struct Pipeline {
    /// The fanout.
    pub(crate) fanout: Fanout,
    /// The state projectors.
    pub(crate) stateful: Vec<Stateful>,
    /// The log projectors.
    pub(crate) logged: Vec<Logged>,
}

/// The sort key of an item with a position. Inserted rows have the position in an attribute of the
/// same name (rule 9).
const POSITION: &str = "#position";

impl Pipeline {
    /// A pipeline of these functions, behind this wire.
    pub(crate) fn new(
        fanout: MakeFanout,
        stateful: &[StateFunction],
        logged: &[LogFunction],
        wire: &Wire,
    ) -> Self {
        let logged: Vec<_> = logged.iter().map(|view| view.instance(wire)).collect();
        let stateful: Vec<_> = stateful.iter().map(|view| (view.instance)(wire)).collect();
        // One function for each category is enough: each projector selects the states of its
        // category.
        let categories: BTreeSet<_> = stateful.iter().map(|stateful| stateful.category).collect();
        let wiring = Wiring {
            event_bus: "bus".into(),
            event_source: "ledgerline".into(),
            bus_events: None,
            state_views: categories
                .into_iter()
                .map(|category| (category.to_owned(), vec![category.to_owned()]))
                .collect(),
            log_queues: logged
                .iter()
                .map(|logged| {
                    (logged.url.clone(), logged.of.iter().map(ToString::to_string).collect())
                })
                .collect(),
            dead_letter_queue: "http://wire.invalid/dead-letters".into(),
            max_message_bytes: 256 * 1024,
        };
        let store = World::fanout_store(wire);
        Self {
            fanout: fanout(store, wire.events(), wire.lambda(), wire.sqs(), wiring),
            stateful,
            logged,
        }
    }

    /// The rows that the tables must hold after these commits, given as streams.
    pub(crate) fn fold(&self, streams: &[Vec<Commit>]) -> Result<Rows> {
        let category =
            streams.iter().flatten().next().map_or("", |commit| commit.stream.category());
        let mut rows = Rows::new();
        for stateful in self.stateful.iter().filter(|stateful| stateful.category == category) {
            for stream in streams.iter().filter(|stream| !stream.is_empty()) {
                if let Some(row) = (stateful.row)(stream) {
                    let key = row[stateful.key].as_str().unwrap_or_default().to_owned();
                    rows.insert((stateful.table, key), row.to_string());
                }
            }
        }
        for logged in self.logged.iter().filter(|logged| logged.of.contains(&category)) {
            let keys = logged.runner.consumer.view.table;
            let changes_of = logged.runner.consumer.view.changes;
            let inserts = logged.runner.consumer.view.writes.contains(&Write::Insert);
            let mut folded: BTreeMap<Key, Fields> = BTreeMap::new();
            for stream in streams {
                let mut put_beside = None;
                for commit in stream {
                    let changes = changes_of(commit)?;
                    changes.fold(&mut folded);
                    if inserts && !changes.is_empty() {
                        // Each row has the position: the last row of a commit has its version, and
                        // earlier rows have the previous version.
                        for (place, (key, _)) in changes.iter().enumerate() {
                            let position = if place + 1 == changes.len() {
                                commit.version
                            } else {
                                commit.version - 1
                            };
                            folded
                                .entry(key.clone())
                                .or_default()
                                .insert(POSITION.to_owned(), position.into());
                        }
                    } else {
                        put_beside = Some(commit);
                    }
                }
                if let Some(last) = put_beside {
                    let name = last.stream.as_str();
                    let position = json!({ keys.partition: name, keys.sort: POSITION, "position": last.version });
                    rows.insert((logged.table, format!("{name} {POSITION}")), position.to_string());
                }
            }
            rows.extend(folded.into_iter().map(|((partition, sort), fields)| {
                ((logged.table, format!("{partition} {sort}")), Value::Object(fields).to_string())
            }));
        }
        Ok(rows)
    }

    /// Takes all rows out of the tables.
    pub(crate) async fn take_rows(&self, client: &Client) -> Result<Rows> {
        let mut rows = Rows::new();
        let tables =
            self.stateful.iter().map(|stateful| (stateful.table, stateful.key, None)).chain(
                self.logged.iter().map(|logged| {
                    let keys = logged.runner.consumer.view.table;
                    (logged.table, keys.partition, Some(keys.sort))
                }),
            );
        for (name, partition, sort) in tables {
            for item in take_items(client, name, partition, sort).await? {
                let mut row: Value = serde_dynamo::from_item(item)?;
                if row["tombstone"].is_number() {
                    // The tombstone is the time of a clock, which the fold cannot know.
                    row["tombstone"] = 0.into();
                }
                let part = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                let key = match sort {
                    Some(sort) => format!("{} {}", part(partition), part(sort)),
                    None => part(partition),
                };
                rows.insert((name, key), row.to_string());
            }
        }
        Ok(rows)
    }
}

/// Reads all items of a table, and deletes them.
pub(crate) async fn take_items(
    client: &Client,
    name: &str,
    partition: &str,
    sort: Option<&str>,
) -> Result<Vec<HashMap<String, AttributeValue>>> {
    let output = client.scan().table_name(table(name)).consistent_read(true).send().await?;
    let items = output.items.unwrap_or_default();
    for item in &items {
        let keys = [Some(partition), sort].into_iter().flatten();
        let key =
            keys.filter_map(|name| Some((name.to_owned(), item.get(name)?.clone()))).collect();
        client.delete_item().table_name(table(name)).set_key(Some(key)).send().await?;
    }
    Ok(items)
}

/// A state projector, with the fold of its rows.
pub(crate) fn stateful<A: Aggregate, Row: Serialize + 'static>(
    name: &'static str,
    projector: StateProjector<A, Row>,
) -> Stateful {
    let keys = projector.view.table;
    let row = projector.view.row;
    let projector = Rc::new(projector);
    let row_after = move |commits: &[Commit]| {
        let last = commits.last()?;
        let id = last.stream.id();
        let version = last.version;
        Some(match row(id, version, state::<A>(commits)?) {
            Some(row) => {
                let mut row = serde_json::to_value(row).ok()?;
                row["version"] = version.into();
                row
            }
            None => json!({ keys.key: id, "tombstone": 0, "version": version }),
        })
    };
    Stateful {
        table: name,
        category: A::CATEGORY,
        project: Box::new(move |detail| {
            let projector = Rc::clone(&projector);
            async move { projector.project(detail).await.map_err(|error| anyhow!(error)) }
                .boxed_local()
        }),
        row: Box::new(row_after),
        key: keys.key,
    }
}

/// The state after all of these commits.
fn state<A: Aggregate>(commits: &[Commit]) -> Option<A::State> {
    let events = commits
        .iter()
        .flat_map(|commit| &commit.events)
        .map(|event: &RecordedEvent| decode::<A>(event));
    let events: Vec<_> = events.collect::<Result<_, _>>().ok()?;
    Some(ledgerline::fold::<A>(A::initial(), &events))
}

/// A commit as a record of the Commits table's stream. An odd version has its payloads in an object,
/// and an even one in the record.
pub(crate) fn record(place: usize, commit: &Commit) -> Record {
    let has_body = commit.version % 2 == 1;
    let mut commit = commit.clone();
    if has_body {
        commit.state = None;
        commit.events.iter_mut().for_each(|event| event.data = "null".to_owned());
    }
    Record {
        sequence_number: format!("{place:021}"),
        created: None,
        run: None,
        has_body,
        commit: Ok(commit),
    }
}

/// Commits as a batch of records of the Commits table's stream.
pub(crate) fn records(commits: &[Commit]) -> Vec<Record> {
    commits.iter().enumerate().map(|(place, commit)| record(place, commit)).collect()
}

/// A message as a queue delivers it to a function.
pub(crate) fn message(id: &str, group: &str, body: &str, receives: usize) -> SqsMessage {
    let mut message = SqsMessage::default();
    message.message_id = Some(id.to_owned());
    message.body = Some(body.to_owned());
    message.attributes = HashMap::from([
        ("MessageGroupId".to_owned(), group.to_owned()),
        ("ApproximateReceiveCount".to_owned(), receives.to_string()),
    ]);
    message
}

/// The message of a commit as a queue delivers it to a function for the first time.
pub(crate) fn commit_message(id: &str, commit: &Commit) -> SqsMessage {
    let body = serde_json::to_string(&Message::Commit(Box::new(commit.clone())));
    message(id, commit.stream.as_str(), &body.unwrap_or_default(), 1)
}
