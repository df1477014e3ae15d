//! Helpers that the tests of accounts and transfers share.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use ledgerline_dynamodb::ScanPart;
use std::collections::BTreeMap;

use bank::{
    account::{Account, State},
    transfer::Transfer,
    views::{
        balances,
        transactions::{self, Kind},
        transfers::Status,
    },
};
use ledgerline::{Aggregate, Commit, Consistency, EventLog, StreamId, decode, fold, load};
use ledgerline_testing::{Api, LocalStack, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// Requests for accounts over HTTP, and checks of the responses.
pub(crate) trait Accounts {
    /// Opens an account, credits it with the balance, and returns its id.
    async fn account(&self, balance: i64) -> String;

    /// Waits until the view shows all transactions up to a version. Checks that they add up to the
    /// balance.
    async fn shows_its_transactions(&self, id: &str, version: u64);

    /// Returns all transactions, newest first, page by page.
    async fn transactions(&self, id: &str) -> Vec<Value>;

    /// Checks the shown balance of the account's last month. Only the bookings of that month count,
    /// because a month may end during the test.
    async fn shows_its_month(&self, shown: &Value);

    /// Reads all bookings of the bank in their order, in pages of this size.
    async fn bookings(&self, limit: usize) -> Vec<Value>;
}

impl Accounts for Api {
    async fn account(&self, balance: i64) -> String {
        let opened = self.post("/accounts", json!({ "owner": "Ada", "currency": "EUR" })).await;
        assert_eq!(opened.status, StatusCode::CREATED, "{opened:?}");
        let id = opened.body["accountId"].as_str().unwrap().to_owned();
        if balance > 0 {
            let credited =
                self.post(&format!("/accounts/{id}/credits"), json!({ "amount": balance })).await;
            assert_eq!(credited.status, StatusCode::OK, "{credited:?}");
        }
        id
    }

    async fn shows_its_transactions(&self, id: &str, version: u64) {
        eventually("all transactions are shown", async || {
            let answer =
                self.get(&format!("/accounts/{id}/transactions?minVersion={version}")).await;
            (answer.etag_version() == Some(version)).then_some(())
        })
        .await;
        let mut rows = self.transactions(id).await;
        rows.reverse();
        let (mut balance, mut last) = (0, 0);
        for row in &rows {
            let amount = row["amount"].as_i64().unwrap();
            balance += if row["kind"] == "credit" { amount } else { -amount };
            assert_eq!(row["balance"], balance, "{rows:?}");
            assert!(row["version"].as_u64() > Some(last), "{rows:?}");
            last = row["version"].as_u64().unwrap();
        }
        let shown = self.get(&format!("/accounts/{id}?minVersion={version}")).await;
        assert_eq!((shown.version(), &shown.body["totalBalance"]), (version, &json!(balance)));
    }

    async fn transactions(&self, id: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/accounts/{id}/transactions?limit=7{cursor}")).await;
            assert_eq!(page.status, StatusCode::OK, "{page:?}");
            all.extend(page.body["transactions"].as_array().unwrap().iter().cloned());
            match page.body["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    async fn shows_its_month(&self, shown: &Value) {
        let id = shown["accountId"].as_str().unwrap();
        let month = shown["lastMonth"].as_str().unwrap();
        self.shows_its_transactions(id, shown["version"].as_u64().unwrap()).await;
        // The day is the last part of a date.
        let month = month.rsplit_once('-').unwrap().0;
        let rows = self.transactions(id).await;
        let of_month =
            rows.iter().filter(|row| row["bookedOn"].as_str().unwrap().starts_with(month));
        let sum: i64 = of_month
            .map(|row| {
                row["amount"].as_i64().unwrap() * if row["kind"] == "credit" { 1 } else { -1 }
            })
            .sum();
        assert_eq!(shown["lastMonthBalance"], sum, "{rows:?}");
    }

    async fn bookings(&self, limit: usize) -> Vec<Value> {
        let newest = self.get("/bookings?limit=1").await.body;
        let Some(newest) =
            newest["day"].as_str().and_then(|day| day.parse::<jiff::civil::Date>().ok())
        else {
            return Vec::new();
        };
        let mut all = Vec::new();
        // Midnight may pass during the test. No test takes longer than a day.
        for day in [newest.yesterday().unwrap(), newest] {
            let mut cursor = String::new();
            loop {
                let page = self.get(&format!("/bookings?day={day}&limit={limit}{cursor}")).await;
                assert_eq!(page.status, StatusCode::OK, "{page:?}");
                all.extend(page.body["bookings"].as_array().unwrap().iter().cloned());
                match page.body["cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
        }
        all
    }
}

/// Reads of accounts and transfers in the log of a local stack, and checks of the log.
pub(crate) trait Balances {
    /// Returns the commits of an account.
    async fn log(&self, id: &str) -> Vec<Commit>;

    /// Returns the version and the state of an account.
    async fn state(&self, id: &str) -> (u64, State);

    /// Returns all commits of these categories, stream by stream, in the order of versions.
    async fn whole_log(&self, of: &[&str]) -> Vec<Commit>;

    /// Waits until every transfer has ended, and checks in the log that each moved its money once.
    /// That is a debit and a credit, or a debit and a refund, or nothing after a refusal. No money
    /// may appear or disappear. Returns the number of transfers for each outcome.
    async fn money_moved_once(&self) -> BTreeMap<&'static str, usize>;

    /// Waits until both read models show the fold of the log, row by row.
    async fn settled(&self, id: &str);
}

impl Balances for LocalStack {
    async fn log(&self, id: &str) -> Vec<Commit> {
        let store = self.store();
        let stream = StreamId::new("account", id).unwrap();
        let mut commits = Vec::new();
        while let Some(commit) = store.get(&stream, commits.len() as u64 + 1).await.unwrap() {
            commits.push(commit);
        }
        commits
    }

    async fn state(&self, id: &str) -> (u64, State) {
        let stream = StreamId::new("account", id).unwrap();
        let loaded =
            load::<Account>(&self.store(), &stream, None, Consistency::Strong).await.unwrap();
        (loaded.version, loaded.state)
    }

    async fn whole_log(&self, of: &[&str]) -> Vec<Commit> {
        let (store, mut commits, mut after) = (self.store(), Vec::new(), None);
        loop {
            let page = store.scan(ScanPart::WHOLE, after.as_ref(), of, 1_000).await.unwrap();
            commits.extend(page.commits);
            after = page.after;
            if after.is_none() {
                commits.sort_by_key(|commit: &Commit| (commit.stream.clone(), commit.version));
                return commits;
            }
        }
    }

    async fn money_moved_once(&self) -> BTreeMap<&'static str, usize> {
        let transfers = eventually("every transfer has come to its end", async || {
            let commits = self.whole_log(&[Transfer::CATEGORY]).await;
            let of_each = commits.chunk_by(|one, next| one.stream == next.stream);
            let ends = of_each.map(|commits| {
                let events = commits.iter().flat_map(|commit| &commit.events);
                let events: Vec<_> =
                    events.map(|event| decode::<Transfer>(event).unwrap()).collect();
                let end = match Status::from_state(&fold::<Transfer>(Default::default(), &events))
                    .unwrap()
                {
                    Status::Completed | Status::Settled => "credit",
                    Status::Refunded => "refund",
                    Status::Refused => "refused",
                    Status::Stuck => "stuck",
                    Status::Requested | Status::Debited | Status::Returning | Status::Settling => {
                        return None;
                    }
                };
                Some((commits[0].stream.to_string(), end))
            });
            ends.collect::<Option<BTreeMap<_, _>>>()
        })
        .await;
        // For each transfer, the steps at the accounts, and the sum of the money that they added to
        // accounts and took from them.
        let mut moved = BTreeMap::<&str, (Vec<&str>, i64)>::new();
        let mut paid_in = 0;
        let mut balances = BTreeMap::new();
        let commits = self.whole_log(&[Account::CATEGORY]).await;
        for commit in &commits {
            let cause =
                commit.meta.causation_id.as_deref().and_then(|cause| cause.rsplit_once(':'));
            for row in transactions::rows(commit).unwrap() {
                let amount = if row.kind == Kind::Credit { row.amount } else { -row.amount };
                match cause.filter(|(transfer, _)| transfers.contains_key(*transfer)) {
                    Some((transfer, _)) => {
                        let (steps, sum) = moved.entry(transfer).or_default();
                        steps.extend(commit.command.rsplit(':').next());
                        *sum += amount;
                    }
                    None => paid_in += amount,
                }
                balances.insert(row.account_id, row.balance);
            }
        }
        let mut ends = BTreeMap::new();
        for (transfer, end) in &transfers {
            let (mut steps, sum) = moved.remove(transfer.as_str()).unwrap_or_default();
            steps.sort_unstable();
            let expected = match *end {
                "credit" => vec!["credit", "debit"],
                "refund" => vec!["debit", "refund"],
                "refused" => vec![],
                end => panic!("{transfer} is {end}"),
            };
            assert_eq!((steps, sum), (expected, 0), "{transfer}");
            *ends.entry(*end).or_default() += 1;
        }
        assert_eq!(balances.values().sum::<i64>(), paid_in, "no money came or went by itself");
        ends
    }

    async fn settled(&self, id: &str) {
        let (version, state) = self.state(id).await;
        let commits = self.log(id).await;
        assert_eq!(commits.len() as u64, version, "no holes");
        let expected_rows: Vec<_> =
            commits.iter().flat_map(|commit| transactions::rows(commit).unwrap()).collect();
        let balance = eventually("the balance is shown", async || {
            let answer = self.get(&format!("/accounts/{id}")).await;
            (answer.body["version"].as_u64() == Some(version)).then_some(answer.body)
        })
        .await;
        let mut expected = json!(balances::row(id, version, state));
        // The API does not show the keys of the list.
        for hidden in ["openedBy", "listing"] {
            assert!(expected.as_object_mut().unwrap().remove(hidden).is_some());
        }
        assert_eq!(balance, expected);
        eventually("all transactions are shown", async || {
            let answer = self.get(&format!("/accounts/{id}/transactions")).await;
            (answer.etag_version() == Some(version)).then_some(())
        })
        .await;
        let mut shown = self.transactions(id).await;
        shown.reverse();
        let compared = |row: &Value| {
            json!([row["version"], row["kind"], row["amount"], row["balance"], row["at"]])
        };
        let expected: Vec<_> = expected_rows.iter().map(|row| compared(&json!(row))).collect();
        assert_eq!(shown.iter().map(compared).collect::<Vec<_>>(), expected);
    }
}
