//! cqrs-es on dynamo-es, in each of its three modes.

use std::collections::HashMap;

use anyhow::{Result, anyhow};
use async_trait::async_trait;
use aws_sdk_dynamodb::{Client, types::ScalarAttributeType as Type};
use cqrs_es::{
    AggregateError, CqrsFramework, DomainEvent, EventStore,
    event_sink::EventSink,
    persist::{PersistedEventRepository, PersistedEventStore, SerializedEvent},
};
use dynamo_es::DynamoEventRepository;
use ledgerline::Aggregate as _;
use serde::{Deserialize, Serialize};

use super::{Failed, Instance, Peer, create_table};
use crate::bank::{Account, Command, Event, Refused, State, context, metadata};

/// The aggregate of cqrs-es, which is the state.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Aggregate(pub State);

impl DomainEvent for Event {
    fn event_type(&self) -> String {
        ledgerline::EventTypes::event_type(self).name.to_owned()
    }

    fn event_version(&self) -> String {
        "1".into()
    }
}

impl cqrs_es::Aggregate for Aggregate {
    const TYPE: &'static str = "account";

    type Command = Command;
    type Event = Event;
    type Error = Refused;
    type Services = ();

    async fn handle(&mut self, command: Command, (): &(), sink: &EventSink<Self>) -> Result<(), Refused> {
        for event in Account::decide(&self.0, &command, &context()).map_err(Refused)? {
            sink.write(event, self).await;
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) {
        self.0 = Account::evolve(std::mem::take(&mut self.0), &event);
    }
}

/// How often the store saves a snapshot.
#[derive(Debug, Clone, Copy)]
pub enum Keeps {
    /// Never: the store has only events.
    Events,
    /// Once for this number of events.
    Every(usize),
    /// With every commit.
    Always,
}

/// The bank on cqrs-es and its two tables.
pub struct Cqrs {
    client: Client,
    keeps: Keeps,
    tables: [String; 2],
}

type Store = PersistedEventStore<DynamoEventRepository, Aggregate>;

impl Cqrs {
    /// Creates the two tables.
    pub async fn new(client: Client, keeps: Keeps) -> Result<Self> {
        let tables =
            ["events", "snapshots"].map(|table| format!("cqrs-{table}-{keeps:?}").replace(['(', ')'], "-"));
        let key = [("AggregateTypeAndId", Type::S), ("AggregateIdSequence", Type::N)];
        create_table(&client, &tables[0], &key).await?;
        create_table(&client, &tables[1], &key[..1]).await?;
        Ok(Self { client, keeps, tables })
    }

    fn repository(&self) -> DynamoEventRepository {
        DynamoEventRepository::new(self.client.clone()).with_tables(&self.tables[0], &self.tables[1])
    }

    fn store(&self) -> Store {
        match self.keeps {
            Keeps::Events => Store::new_event_store(self.repository()),
            Keeps::Every(events) => Store::new_snapshot_store(self.repository(), events),
            Keeps::Always => Store::new_aggregate_store(self.repository()),
        }
    }
}

struct Process {
    store: Store,
    commands: CqrsFramework<Aggregate, Store>,
}

#[async_trait]
impl Peer for Cqrs {
    fn name(&self) -> String {
        match self.keeps {
            Keeps::Events => "cqrs-es, events".into(),
            Keeps::Every(events) => format!("cqrs-es, a snapshot each {events}"),
            Keeps::Always => "cqrs-es, aggregate store".into(),
        }
    }

    async fn instance(&self) -> Result<Box<dyn Instance>> {
        Ok(Box::new(Process {
            store: self.store(),
            commands: CqrsFramework::new(self.store(), Vec::new(), ()),
        }))
    }

    async fn fill(&self, account: &str, from: u64, to: u64) -> Result<()> {
        // Commits of twenty events each are stored like twenty commits of one event, and are
        // faster. The library has no room for more events in one transaction.
        let (repository, mut state) = (self.repository(), Account::initial());
        if from > 0 {
            state = self.store().load_aggregate(account).await?.aggregate.0;
        }
        let mut snapshot = snapshot_number(&repository, account).await?;
        let sequences: Vec<u64> = (from + 1..=to).collect();
        for sequences in sequences.chunks(20) {
            let mut events = Vec::new();
            for sequence in sequences {
                let command = if *sequence == 1 { Command::Open } else { Command::Credit(1) };
                for event in Account::decide(&state, &command, &context()).map_err(Refused)? {
                    state = Account::evolve(state, &event);
                    events.push(SerializedEvent::new(
                        account.to_owned(),
                        usize::try_from(*sequence)?,
                        "account".into(),
                        event.event_type(),
                        event.event_version(),
                        serde_json::to_value(&event)?,
                        serde_json::to_value(metadata())?,
                    ));
                }
            }
            let update = (!matches!(self.keeps, Keeps::Events)).then(|| {
                snapshot += 1;
                serde_json::to_value(Aggregate(state.clone()))
                    .map(|state| (account.to_owned(), state, snapshot))
            });
            repository.persist::<Aggregate>(&events, update.transpose()?).await?;
        }
        Ok(())
    }
}

async fn snapshot_number(repository: &DynamoEventRepository, account: &str) -> Result<usize> {
    let snapshot = repository.get_snapshot::<Aggregate>(account).await?;
    Ok(snapshot.map_or(0, |snapshot| snapshot.current_snapshot))
}

#[async_trait]
impl Instance for Process {
    async fn credit(&self, account: &str, _: Option<&str>) -> Result<(), Failed> {
        let metadata: HashMap<String, String> = metadata();
        match self.commands.execute_with_metadata(account, Command::Credit(1), metadata).await {
            Ok(()) => Ok(()),
            Err(AggregateError::AggregateConflict) => Err(Failed::Conflict),
            Err(error) => Err(Failed::Other(anyhow!(error))),
        }
    }

    async fn balance(&self, account: &str) -> Result<i64> {
        Ok(self.store.load_aggregate(account).await?.aggregate.0.balance)
    }
}
