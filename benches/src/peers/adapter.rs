//! event-store-adapter-rs, with a snapshot after a number of events.

use std::collections::HashMap;

use anyhow::{Result, anyhow};
use async_trait::async_trait;
use aws_sdk_dynamodb::{Client, types::ScalarAttributeType as Type};
use event_store_adapter_rs::{
    AggregateId, DynamoDbOptions, DynamoDbTables, EventEnvelope, EventStoreError, EventStoreForDynamoDB,
    SnapshotEnvelope,
};
use ledgerline::Aggregate as _;
use serde::{Deserialize, Serialize};

use super::{Failed, Instance, Peer, create_table};
use crate::bank::{Account, Command, Event, Refused, State, context, metadata};

#[derive(Debug, Clone)]
struct AccountId(String);

impl AggregateId for AccountId {
    fn type_name(&self) -> String {
        "account".into()
    }

    fn value(&self) -> String {
        self.0.clone()
    }
}

/// The payload of an event. It contains the metadata of the command, because the library has no
/// place for them.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    event: Event,
    metadata: HashMap<String, String>,
}

type Store = EventStoreForDynamoDB<AccountId, State, Payload>;

/// The bank on event-store-adapter-rs and its three tables, without a history of snapshots.
pub struct Adapter {
    store: Store,
    every: u64,
}

impl Adapter {
    /// Creates the three tables. Each event whose number is a multiple of `every` writes the
    /// snapshot.
    pub async fn new(client: Client, every: u64) -> Result<Self> {
        let [journal, snapshot, head] =
            ["journal", "snapshot", "head"].map(|table| format!("adapter-{table}-{every}"));
        create_table(&client, &journal, &[("aid", Type::S), ("seq_nr", Type::N)]).await?;
        create_table(&client, &snapshot, &[("aid", Type::S), ("skey", Type::N)]).await?;
        create_table(&client, &head, &[("aid", Type::S)]).await?;
        let tables = DynamoDbTables {
            journal_table_name: journal,
            snapshot_table_name: snapshot,
            head_table_name: head,
            snapshot_history_index_name: "history".into(),
        };
        Ok(Self { store: Store::open(client, tables, DynamoDbOptions::default()).await?, every })
    }

    fn process(&self) -> Process {
        Process { store: self.store.clone(), every: self.every }
    }
}

struct Process {
    store: Store,
    every: u64,
}

impl Process {
    async fn load(&self, account: &AccountId) -> Result<(State, u64), EventStoreError> {
        let Some(read) = self.store.get_latest_snapshot_by_id(account).await? else {
            return Ok((Account::initial(), 0));
        };
        let (snapshot, head) = read.into_parts();
        let (mut state, mut version) = snapshot
            .map_or((Account::initial(), 0), |snapshot| (snapshot.aggregate().clone(), snapshot.seq_nr()));
        if version < head {
            for event in self.store.get_events_by_id_since_seq_nr(account, version + 1).await? {
                version = event.seq_nr();
                state = Account::evolve(state, &event.payload().event);
            }
        }
        Ok((state, version))
    }

    async fn send(
        &self,
        account: &AccountId,
        (state, version): (State, u64),
        command: Command,
    ) -> Result<State, Failed> {
        let events =
            Account::decide(&state, &command, &context()).map_err(|refusal| anyhow!(Refused(refusal)))?;
        let (mut state, mut version) = (state, version);
        for event in events {
            version += 1;
            state = Account::evolve(state, &event);
            let name = ledgerline::EventTypes::event_type(&event).name;
            let payload = Payload { event, metadata: metadata() };
            let event =
                EventEnvelope::new(account.clone(), version, chrono::Utc::now(), payload).with_manifest(name);
            let stored = if version % self.every == 0 {
                let snapshot = SnapshotEnvelope::new(state.clone(), version);
                self.store.persist_event_and_snapshot(event, snapshot).await
            } else {
                self.store.persist_event(event).await
            };
            stored.map_err(|error| match error {
                EventStoreError::OptimisticLock { .. } => Failed::Conflict,
                error => Failed::Other(anyhow!(error)),
            })?;
        }
        Ok(state)
    }
}

#[async_trait]
impl Peer for Adapter {
    fn name(&self) -> String {
        match self.every {
            1 => "event-store-adapter-rs, a snapshot with each event".into(),
            every => format!("event-store-adapter-rs, a snapshot each {every}"),
        }
    }

    async fn instance(&self) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.process()))
    }

    async fn fill(&self, account: &str, from: u64, to: u64) -> Result<()> {
        let (process, account) = (self.process(), AccountId(account.into()));
        let (mut state, _) = process.load(&account).await?;
        for version in from..to {
            let command = if version == 0 { Command::Open } else { Command::Credit(1) };
            state = process.send(&account, (state, version), command).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Instance for Process {
    async fn credit(&self, account: &str, _: Option<&str>) -> Result<(), Failed> {
        let account = AccountId(account.into());
        let loaded = self.load(&account).await.map_err(|error| anyhow!(error))?;
        self.send(&account, loaded, Command::Credit(1)).await.map(drop)
    }

    async fn balance(&self, account: &str) -> Result<i64> {
        Ok(self.load(&AccountId(account.into())).await?.0.balance)
    }
}
