//! The ledger of all bookings. The stack writes it in one order while the test kills functions, and
//! a custom subscriber builds the same rows from `$all`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::accounts::{bookings, open_account};
use bank::views::bookings::{Books, Row, TABLE, changes};
use futures::future::join_all;
use ledgerline::{
    Changes,
    all::{Cursor, Filter, Subscription},
};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_testing::{LocalStack, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// A custom subscriber outside of Lambda. It stores its cursor and its positions in a file, next to
/// its rows.
struct Consumer<'a> {
    subscription: Subscription<DynamoDbStore, DynamoDbStore>,
    folder: &'a Path,
}

/// The subscriber's data in one file. The subscriber replaces the file as a whole, so rows,
/// positions and cursor always belong together.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Kept {
    cursor: Option<Cursor>,
    books: Books,
    /// The position and the memory of each stream.
    streams: BTreeMap<String, (u64, String)>,
    rows: Vec<Row>,
}

impl Consumer<'_> {
    fn load(&self) -> Kept {
        let text = std::fs::read_to_string(self.folder.join("books.json"));
        text.map_or_else(|_| Kept::default(), |text| serde_json::from_str(&text).unwrap())
    }

    /// Applies one page. Returns whether there is more.
    async fn page(&self) -> bool {
        let mut kept = self.load();
        let after = kept.cursor.take().unwrap_or_else(Cursor::beginning);
        let page = self.subscription.read_page(after).await.unwrap();
        for delivered in page.delivered {
            let commit = delivered.commit.unwrap();
            let (position, currency) = kept.streams.entry(commit.stream.to_string()).or_default();
            loop {
                let due = self.subscription.due_commits(&commit, *position).await.unwrap();
                if due.is_empty() {
                    break;
                }
                for commit in due {
                    let mut made = Changes::new(TABLE);
                    changes(&mut kept.books, currency, &commit, &mut made).unwrap();
                    let mut rows = BTreeMap::new();
                    made.fold(&mut rows);
                    let rows = rows
                        .into_values()
                        .map(|row| serde_json::from_value::<Row>(row.into()).unwrap());
                    kept.rows.extend(rows);
                    *position = commit.version;
                }
            }
        }
        kept.cursor = Some(page.cursor);
        let new = self.folder.join("new");
        let file = self.folder.join("books.json");
        std::fs::write(&new, serde_json::to_string(&kept).unwrap()).unwrap();
        std::fs::rename(new, file).unwrap();
        !page.complete
    }
}

#[tokio::test]
async fn the_ledger_of_all_bookings_adds_up_while_functions_are_killed() {
    let bank = LocalStack::start(None).await;
    let accounts = join_all((0..6).map(|_| open_account(&bank, 1_000))).await;
    let dollars = bank.post("/accounts", json!({ "owner": "Eve", "currency": "USD" })).await;
    let dollars = dollars.body["accountId"].as_str().unwrap().to_owned();
    let credited = bank.post(&format!("/accounts/{dollars}/credits"), json!({ "amount": 5 })).await;
    assert_eq!(credited.status, StatusCode::OK);
    // Transfers and bookings run at once, while the test kills instances.
    let transfers = (0..30).map(|number: usize| {
        let from = &accounts[number % 6];
        let to = &accounts[(number * 5 + 1) % 6];
        let asked =
            json!({ "fromAccountId": from, "toAccountId": to, "amount": number + 1, "currency": "EUR" });
        let bank = &bank;
        async move {
            if number.is_multiple_of(5) {
                for function in ["bookings-subscription", "sequencer", "transfer", "transfers-projector"] {
                    bank.kill_instances(function);
                }
            }
            bank.post("/transfers", asked).await.body["transferId"].as_str().map(ToOwned::to_owned)
        }
    });
    let transfers: Vec<_> = join_all(transfers).await.into_iter().flatten().collect();
    assert!(transfers.len() >= 20, "{transfers:?}");
    for transfer in &transfers {
        eventually("the transfer is completed", async || {
            let answer = bank.get(&format!("/transfers/{transfer}")).await;
            (answer.body["status"] == "completed").then_some(())
        })
        .await;
    }
    // The test waits for each account's newest version, so that the ledger has all of the account's
    // bookings.
    let mut sum = 0;
    for account in &accounts {
        let newest = bank.get(&format!("/accounts/{account}")).await;
        let version = newest.body["version"].as_u64().unwrap();
        sum += newest.body["totalBalance"].as_i64().unwrap();
        eventually("the ledger has the account's bookings", async || {
            let path = format!("/bookings?accountId={account}&minVersion={version}&limit=1");
            (bank.get(&path).await.status == StatusCode::OK).then_some(())
        })
        .await;
    }
    assert_eq!(sum, 6_000);

    let rows = bookings(&bank, 7).await;
    assert_eq!(rows.len(), 6 + 1 + 2 * transfers.len());
    let mut balances = BTreeMap::<&str, i64>::new();
    for (number, row) in (1_u64..).zip(&rows) {
        assert_eq!(row["number"], number, "without holes");
        let account = row["accountId"].as_str().unwrap();
        balances.insert(account, row["balance"].as_i64().unwrap());
        let in_euros =
            balances.iter().filter(|(account, _)| **account != dollars).map(|(_, balance)| balance);
        if row["currency"] == "EUR" {
            let held = &row["held"];
            assert_eq!(held["inAccounts"], in_euros.sum::<i64>(), "{row}");
        } else {
            assert_eq!(row["held"], json!({ "inAccounts": 5, "underWay": 0 }));
        }
    }
    // After the last credit, the sums show that no money under way is lost.
    let paid_in = rows.iter().rposition(|row| row["amount"] == 1_000).unwrap();
    for row in rows[paid_in..].iter().filter(|row| row["currency"] == "EUR") {
        let held = |name: &str| row["held"][name].as_i64().unwrap();
        assert_eq!(held("inAccounts") + held("underWay"), 6_000, "{row}");
    }

    // A custom subscriber runs the same module, restarts after each page, and gets the same rows.
    let folder = tempfile::tempdir().unwrap();
    let filter =
        Filter { categories: BTreeSet::from(["account".to_owned()]), events: BTreeSet::new() };
    let consumer = || {
        let (sequence, log) = (bank.streams("SequenceTable"), bank.store());
        let filter = filter.clone();
        let subscription = Subscription { sequence, log, filter, limit: 7 };
        Consumer { subscription, folder: folder.path() }
    };
    while consumer().page().await {}
    let kept = consumer().load();
    let compared = |row: &Value| {
        json!([row["number"], row["accountId"], row["version"], row["held"], row["at"]])
    };
    let own: Vec<_> = kept.rows.iter().map(|row| compared(&json!(row))).collect();
    assert_eq!(own, rows.iter().map(compared).collect::<Vec<_>>());

    // The query has pages, days, a tag, and a version to wait for.
    let page = bank.get("/bookings").await;
    assert_eq!(
        (page.etag_version(), &page.body["last"]),
        (Some(rows.len() as u64), &json!(rows.len()))
    );
    let day = kept.books.day();
    let of_day = bank.get(&format!("/bookings?day={day}&limit=1")).await;
    assert_eq!(of_day.body["bookings"].as_array().unwrap().len(), 1);
    assert_eq!(bank.get("/bookings?day=2001-01-01").await.body["bookings"], json!([]));
    let known = [("if-none-match", of_day.etag().unwrap())];
    let path = format!("/bookings?day={day}&limit=1");
    let again = bank.call(reqwest::Method::GET, &path, &known, String::new()).await;
    assert_eq!(again.status, StatusCode::NOT_MODIFIED);
    let other_page = bank.call(reqwest::Method::GET, "/bookings", &known, String::new()).await;
    assert_eq!(other_page.status, StatusCode::OK, "each page is a representation of its own");
    for (query, field) in [
        ("day=tomorrow", "day"),
        ("limit=0", "limit"),
        ("minVersion=1", "accountId"),
        ("accountId=%20", "accountId"),
        ("cursor=x", "day"),
        ("day=2026-11-24&cursor=x", "cursor"),
    ] {
        let answer = bank.get(&format!("/bookings?{query}")).await;
        assert_eq!(
            (answer.status, &answer.body["field"]),
            (StatusCode::BAD_REQUEST, &json!(field)),
            "{query}"
        );
    }
}
