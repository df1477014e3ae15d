//! Ledgerline: a store, a cache for each instance, and idempotency records.

use std::num::NonZeroUsize;

use anyhow::{Result, anyhow, bail};
use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use ledgerline::{
    Aggregate, Cache, Consistency, ExecuteError, Execution, Idempotency, Outcome, Refusal, execute, load,
};
use ledgerline_dynamodb::DynamoDbStore;

use super::{Failed, Instance, Peer};
use crate::bank::{Account, Command, State, context, meta};

/// The bank on Ledgerline and the tables of the template.
pub struct Ours {
    client: Client,
}

impl Ours {
    /// Creates a bank on the tables of the template, which must exist.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn process(&self) -> Process {
        let store = DynamoDbStore::new(self.client.clone(), ledgerline_testing::table("CommitsTable"))
            .with_requests(ledgerline_testing::table("RequestsTable"));
        Process { store, cache: Cache::new(NonZeroUsize::MIN) }
    }
}

struct Process {
    store: DynamoDbStore,
    cache: Cache<Account>,
}

impl Process {
    async fn send(
        &self,
        account: &str,
        command: Command,
        key: Option<&str>,
    ) -> Result<Outcome<Account>, ExecuteError> {
        let (stream, context, meta) =
            (Account::stream(account).map_err(anyhow::Error::from), context(), meta());
        let stream = stream.unwrap_or_else(|error| panic!("{error}"));
        let id = key.map_or_else(|| uuid::Uuid::now_v7().to_string(), ToOwned::to_owned);
        let answer = |answer: Result<(&State, u64), &Refusal>| match answer {
            Ok((state, version)) => serde_json::json!({ "version": version, "account": state }).to_string(),
            Err(refusal) => refusal.to_string(),
        };
        let idempotency = key.map(|key| Idempotency {
            key,
            fingerprint: "credit 1",
            retention: 86_400,
            answer: &answer,
        });
        let creates = matches!(command, Command::Open);
        let execution =
            Execution { creates, idempotency, ..Execution::new(&stream, &command, &context, &id, &meta) };
        execute(&self.store, &self.cache, &DynamoDbStore::HOST, &execution).await
    }
}

#[async_trait]
impl Peer for Ours {
    fn name(&self) -> String {
        "Ledgerline".into()
    }

    fn takes_keys(&self) -> bool {
        true
    }

    async fn instance(&self) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.process()))
    }

    async fn fill(&self, account: &str, from: u64, to: u64) -> Result<()> {
        let process = self.process();
        for version in from + 1..=to {
            let command = if version == 1 { Command::Open } else { Command::Credit(1) };
            let outcome = process.send(account, command, None).await?;
            if !matches!(outcome, Outcome::Committed(_)) {
                bail!("nothing was committed at {version}");
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Instance for Process {
    async fn credit(&self, account: &str, key: Option<&str>) -> Result<(), Failed> {
        match self.send(account, Command::Credit(1), key).await {
            Ok(_) => Ok(()),
            Err(ExecuteError::Contended) => Err(Failed::Conflict),
            Err(error) => Err(Failed::Other(anyhow!(error))),
        }
    }

    async fn balance(&self, account: &str) -> Result<i64> {
        let stream = Account::stream(account)?;
        Ok(load::<Account>(&self.store, &stream, None, Consistency::Strong).await?.state.balance)
    }
}
