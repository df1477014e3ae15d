//! The tanks under load: fills, and their two views.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use ledgerline::{Aggregate, Consistency, load, testing::tank::Tank};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_tank::views;
use ledgerline_testing::{Quiet, commits, table};
use reqwest::{Client, StatusCode, redirect::Policy};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

/// The time without a change after which a command that a view does not show counts as lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// The number of tanks that are installed, compared and awaited at once.
const AT_ONCE: usize = 16;

/// The tanks of a run, and their acknowledged versions.
#[derive(Debug)]
pub(super) struct Depot {
    http: Client,
    url: String,
    store: DynamoDbStore,
    tanks: Vec<(String, AtomicU64)>,
}

impl Depot {
    /// Installs this number of new tanks.
    pub(super) async fn install(
        url: &Url,
        aws_url: &Url,
        tanks: u64,
        clients: u64,
    ) -> Result<Self> {
        // The client uses no proxy and no redirection, so that nothing leaves this machine.
        let http = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .pool_max_idle_per_host(clients as usize)
            .timeout(Duration::from_secs(40))
            .build()?;
        let aws = ledgerline_dynamodb::sdk_config(aws_url.as_str().trim_end_matches('/'));
        let store = DynamoDbStore::new(aws_sdk_dynamodb::Client::new(&aws), table("CommitsTable"));
        let tanks = (0..tanks).map(|_| (Uuid::new_v4().to_string(), AtomicU64::new(0))).collect();
        let this = Self { http, url: url.as_str().trim_end_matches('/').to_owned(), store, tanks };
        let installed = stream::iter(&this.tanks).map(|(id, version)| {
            let body = json!({ "tankId": id, "site": "Load", "liquid": "water" });
            let this = &this;
            async move {
                version.store(this.post("/tanks", body).await?, Ordering::Relaxed);
                anyhow::Ok(())
            }
        });
        installed
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot install the tanks")?;
        Ok(this)
    }

    pub(super) fn any_tank(&self) -> usize {
        fastrand::usize(..self.tanks.len())
    }

    /// Fills a tank, and returns the version after the fill.
    pub(super) async fn fill(&self, tank: usize) -> Result<u64> {
        let (id, newest) = &self.tanks[tank];
        let version = self.post(&format!("/tanks/{id}/fills"), json!({ "amount": 1 })).await?;
        newest.fetch_max(version, Ordering::Relaxed);
        Ok(version)
    }

    /// Waits until a view shows this version. View 1 is the level, and view 2 the readings.
    pub(super) async fn shows(&self, tank: usize, view: usize, version: u64) -> Result<()> {
        let (id, _) = &self.tanks[tank];
        let path = match view {
            1 => format!("/tanks/{id}?minVersion={version}"),
            _ => format!("/tanks/{id}/readings?minVersion={version}&limit=1"),
        };
        let mut last = None;
        let mut quiet = Quiet::new(PATIENCE);
        loop {
            let response = self.http.get(format!("{}{path}", self.url)).send().await?;
            let shown = response
                .headers()
                .get("etag")
                .and_then(|etag| etag.to_str().ok())
                .unwrap_or_default();
            // The tag is the version, a dot and a hash.
            let shown = shown.trim_matches('"').split('.').next().unwrap_or_default();
            let shown: u64 = shown.parse().unwrap_or(0);
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

    /// Waits until both views show all acknowledged versions.
    pub(super) async fn all_shown(&self) -> Result<()> {
        let tanks = stream::iter(0..self.tanks.len()).map(|tank| async move {
            let version = self.tanks[tank].1.load(Ordering::Relaxed);
            self.shows(tank, 1, version).await?;
            self.shows(tank, 2, version).await
        });
        tanks.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Compares every row of both views with the fold of the log.
    pub(super) async fn views_are_the_fold(&self) -> Result<String> {
        let tanks = stream::iter(&self.tanks).map(|(id, version)| async move {
            let acknowledged = version.load(Ordering::Relaxed);
            let stream = Tank::stream(id)?;
            let commits = commits(&self.store, &stream).await;
            let versions = commits.iter().map(|commit| commit.version);
            ensure!(
                versions.eq(1..=commits.len() as u64),
                "tank {id} has gaps or duplicates in its versions"
            );
            ensure!(
                commits.len() as u64 >= acknowledged,
                "tank {id} has lost acknowledged commits"
            );

            let folded = load::<Tank>(&self.store, &stream, None, Consistency::Strong).await?;
            let mut expected = json!(views::level(id, folded.version, folded.state));
            // The API does not show the installer.
            expected.as_object_mut().and_then(|row| row.remove("installedBy"));
            let shown = self.get(&format!("/tanks/{id}")).await?;
            ensure!(shown == expected, "tank {id} is shown as {shown}, not as {expected}");

            let rows: Result<Vec<_>, _> = commits.iter().map(views::readings_of).collect();
            let expected: Vec<_> =
                rows?.into_iter().flatten().map(|row| compared_fields(&json!(row))).collect();
            let shown = self.readings(id).await?;
            ensure!(shown == expected, "tank {id} has other readings than the log");
            anyhow::Ok(shown.len())
        });
        let rows: Vec<usize> = tanks.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(format!(
            "{} levels and {} readings are equal to the fold of the log",
            rows.len(),
            rows.iter().sum::<usize>()
        ))
    }

    /// Returns all readings as the API shows them, oldest first.
    async fn readings(&self, id: &str) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/tanks/{id}/readings?limit=100{cursor}")).await?;
            all.extend(page["readings"].as_array().into_iter().flatten().map(compared_fields));
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
        answer["version"]
            .as_u64()
            .with_context(|| format!("POST {path} is answered without a version"))
    }
}

/// Returns the fields of a reading that are compared.
fn compared_fields(row: &Value) -> Value {
    json!([row["version"], row["amount"], row["level"], row["at"]])
}
