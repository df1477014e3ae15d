//! The bank under load: accounts, credits, and the two views of them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bank::{
    account::Account,
    views::{balances, transactions},
};
use futures::{StreamExt, TryStreamExt, stream};
use ledgerline::{Commit, Consistency, EventStore, Range, StreamId, load};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_local::services;
use ledgerline_testing::Quiet;
use reqwest::{Client, StatusCode, redirect::Policy};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

/// After this time without a change, a command that a view does not show counts as lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// The number of accounts that are opened, compared and waited for at once.
const AT_ONCE: usize = 16;

/// Accounts of a run, and the versions that were acknowledged.
#[derive(Debug)]
pub(super) struct Bank {
    http: Client,
    url: String,
    store: DynamoDbStore,
    accounts: Vec<(String, AtomicU64)>,
}

impl Bank {
    /// Opens this number of new accounts.
    pub(super) async fn open(url: &Url, aws_url: &Url, accounts: u64, clients: u64) -> Result<Self> {
        // No proxy and no redirection: nothing leaves this machine.
        let http = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .pool_max_idle_per_host(clients as usize)
            .timeout(Duration::from_secs(40))
            .build()?;
        let aws = services::sdk_config(aws_url.as_str().trim_end_matches('/'));
        let store = DynamoDbStore::new(
            aws_sdk_dynamodb::Client::new(&aws),
            ledgerline_testing::table("CommitsTable"),
        );
        let accounts = (0..accounts).map(|_| (Uuid::new_v4().to_string(), AtomicU64::new(0))).collect();
        let this = Self { http, url: url.as_str().trim_end_matches('/').to_owned(), store, accounts };
        let opened = stream::iter(&this.accounts).map(|(id, version)| {
            let body = json!({ "accountId": id, "owner": "Load", "currency": "EUR" });
            let this = &this;
            async move {
                version.store(this.post("/accounts", body).await?, Ordering::Relaxed);
                anyhow::Ok(())
            }
        });
        opened
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot open the accounts")?;
        Ok(this)
    }

    pub(super) fn any_account(&self) -> usize {
        fastrand::usize(..self.accounts.len())
    }

    /// Credits an account, and returns the version after the credit.
    pub(super) async fn credit(&self, account: usize) -> Result<u64> {
        let (id, newest) = &self.accounts[account];
        let version = self.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await?;
        newest.fetch_max(version, Ordering::Relaxed);
        Ok(version)
    }

    /// Waits until a view shows this version: 1 is the balance, 2 the transactions.
    pub(super) async fn shows(&self, account: usize, view: usize, version: u64) -> Result<()> {
        let (id, _) = &self.accounts[account];
        let view = if view == 1 { "" } else { "/transactions" };
        let path = format!("/accounts/{id}{view}?minVersion={version}&limit=1");
        let (mut last, mut quiet) = (None, Quiet::new(PATIENCE));
        loop {
            let response = self.http.get(format!("{}{path}", self.url)).send().await?;
            let shown =
                response.headers().get("etag").and_then(|etag| etag.to_str().ok()).unwrap_or_default();
            // The version is followed by the hash of the row.
            let shown = shown
                .trim_matches('"')
                .split('.')
                .next()
                .and_then(|version| version.parse().ok())
                .unwrap_or(0_u64);
            if response.status() == StatusCode::OK && shown >= version {
                return Ok(());
            }
            let status = response.status();
            let changed = last.replace(shown) != Some(shown);
            ensure!(
                !quiet.is_over(changed),
                "GET {path} answers {status}, version {shown}, for {PATIENCE:?}"
            );
        }
    }

    /// Waits until both views show all that was acknowledged.
    pub(super) async fn all_shown(&self) -> Result<()> {
        let accounts = stream::iter(0..self.accounts.len()).map(|account| async move {
            let version = self.accounts[account].1.load(Ordering::Relaxed);
            self.shows(account, 1, version).await?;
            self.shows(account, 2, version).await
        });
        accounts.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Compares every row of both views with the fold of the log.
    pub(super) async fn views_are_the_fold(&self) -> Result<String> {
        let accounts = stream::iter(&self.accounts).map(|(id, version)| async move {
            let acknowledged = version.load(Ordering::Relaxed);
            let stream = StreamId::new("account", id)?;
            let commits = self.commits(&stream).await?;
            let versions = commits.iter().map(|commit| commit.version);
            ensure!(
                versions.eq(1..=commits.len() as u64),
                "account {id} has holes or doubles in its versions"
            );
            ensure!(commits.len() as u64 >= acknowledged, "account {id} has lost acknowledged commits");

            let folded = load::<Account>(&self.store, &stream, None, Consistency::Strong).await?;
            let mut expected = json!(balances::row(id, folded.version, folded.state));
            // The API does not show the keys of the list.
            for hidden in ["openedBy", "listing"] {
                expected.as_object_mut().and_then(|row| row.remove(hidden));
            }
            let shown = self.get(&format!("/accounts/{id}")).await?;
            ensure!(shown == expected, "account {id} is shown as {shown}, not as {expected}");

            let rows: Result<Vec<_>, _> = commits.iter().map(transactions::rows).collect();
            let expected: Vec<_> = rows?.into_iter().flatten().map(|row| compared(&json!(row))).collect();
            let shown = self.transactions(id).await?;
            ensure!(shown == expected, "account {id} has other transactions than the log");
            anyhow::Ok(shown.len())
        });
        let rows: Vec<usize> = accounts.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(format!(
            "{} balances and {} transactions are equal to the fold of the log",
            rows.len(),
            rows.iter().sum::<usize>()
        ))
    }

    /// The whole stream, oldest first.
    async fn commits(&self, stream: &StreamId) -> Result<Vec<Commit>> {
        let mut commits = BTreeMap::new();
        let mut up_to = u64::MAX >> 1;
        loop {
            let range = Range { after: 0, up_to, limit: None };
            let page = self.store.read(stream, range, Consistency::Strong).await?;
            commits.extend(page.commits.into_iter().map(|commit| (commit.version, commit)));
            if page.complete {
                return Ok(commits.into_values().collect());
            }
            up_to = commits.keys().next().map_or(0, |oldest| oldest - 1);
        }
    }

    /// All transactions as they are shown, oldest first.
    async fn transactions(&self, id: &str) -> Result<Vec<Value>> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/accounts/{id}/transactions?limit=100{cursor}")).await?;
            all.extend(page["transactions"].as_array().into_iter().flatten().map(compared));
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => {
                    all.reverse();
                    return Ok(all);
                }
            }
        }
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let response = self.http.get(format!("{}{path}", self.url)).send().await?;
        let status = response.status();
        ensure!(status == StatusCode::OK, "GET {path} is answered {status}");
        Ok(response.json().await?)
    }

    /// Sends a command, and returns the version after it.
    async fn post(&self, path: &str, body: Value) -> Result<u64> {
        let response = self.http.post(format!("{}{path}", self.url)).json(&body).send().await?;
        let status = response.status();
        let answer: Value = response.json().await?;
        ensure!(status.is_success(), "POST {path} is answered {status}: {}", answer["title"]);
        answer["version"].as_u64().with_context(|| format!("POST {path} is answered without a version"))
    }
}

/// The fields of a transaction that are compared.
fn compared(row: &Value) -> Value {
    json!([row["version"], row["kind"], row["amount"], row["balance"], row["at"]])
}
