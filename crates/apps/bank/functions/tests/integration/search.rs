//! The search in transactions: a view in PostgreSQL, on a local stack with a real server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::accounts::open_account;
use ledgerline_testing::{Api, LocalStack, Tool, eventually, has_postgres};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// The function that writes the view.
const PROJECTOR: &str = "TransactionsSearchProjectorFunction";

async fn credit(api: &Api, id: &str, reference: &str) -> u64 {
    let body = json!({ "amount": 1, "reference": reference });
    api.post(&format!("/accounts/{id}/credits"), body).await.version()
}

/// Searches for these words, in pages of two. Returns the versions, the newest first.
async fn search(api: &Api, id: &str, words: &str) -> Vec<u64> {
    let path = format!("/accounts/{id}/transactions/search?q={words}&limit=2");
    let found = api.list(&path, "transactions").await;
    found.iter().map(|row| row["version"].as_u64().unwrap()).collect()
}

async fn eventually_found(api: &Api, id: &str, words: &str, expected: &[u64]) {
    eventually("the view shows the credits", async || {
        (search(api, id, words).await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn transactions_are_found_by_their_owner_during_a_rebuild_and_after_it() {
    if !has_postgres() {
        return;
    }
    let stack = LocalStack::start_as(&["--postgres"]).await;
    stack.refresh_generations_each_second("postgres/transactions").await;

    // Given credits with references,
    let id = &open_account(&stack, 0).await;
    for (reference, version) in
        [("Rent for May", 2), ("salary", 3), ("rent, and the garage", 4), ("the rent of June", 5)]
    {
        assert_eq!(credit(&stack, id, reference).await, version);
    }
    stack.get(&format!("/accounts/{id}?minVersion=5")).await;
    // then searches find them, and name wrong parameters.
    eventually_found(&stack, id, "rent", &[5, 4, 2]).await;
    assert_eq!(search(&stack, id, "rent%20-may").await, [5, 4]);
    assert_eq!(search(&stack, id, "%22rent%20of%22").await, [5]);
    assert_eq!(search(&stack, id, "'%20OR%20true%20--").await, [0; 0]);
    let path = |query: &str| format!("/accounts/{id}/transactions/search{query}");
    for (query, field) in [("", "q"), ("?q=", "q"), ("?q=rent&cursor=eyJ9", "cursor")] {
        let refused = stack.get(&path(query)).await;
        assert_eq!(
            (refused.status, &refused.body["field"]),
            (StatusCode::BAD_REQUEST, &json!(field))
        );
    }
    let other = Api::new(stack.url.clone(), Some("eve".to_owned())).get(&path("?q=rent")).await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);

    // When the view is rebuilt while it is written and read,
    let ledger = Tool::at(&stack);
    let is_over = AtomicBool::new(false);
    let credits = AtomicU64::new(5);
    let write = async {
        while !is_over.load(Ordering::Relaxed) {
            credits.store(credit(&stack, id, "bonus").await, Ordering::Relaxed);
            assert_eq!(search(&stack, id, "rent").await, [5, 4, 2]);
        }
    };
    let rebuild = async {
        for verb in ["switch", "drop"] {
            let write = ["--write", "--yes", "--why", "a test"];
            let child = ledger.start(&[&["rebuild", verb, PROJECTOR], &write[..]].concat());
            let (code, printed) = Tool::end(child).await;
            assert_eq!(code, 0, "{verb}: {printed:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    };
    futures::join!(write, rebuild);
    // then nothing is lost or doubled.
    let last = credits.load(Ordering::Relaxed);
    let expected: Vec<_> = (6..=last).rev().collect();
    eventually_found(&stack, id, "bonus", &expected).await;
    // People see the new generation, and columns with types.
    let (people, connection) =
        tokio_postgres::connect(&stack.database_url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let shown = "SELECT sum(amount)::bigint, min(booked_on) <= current_date, \
                 obj_description('transactions'::regclass) FROM transactions";
    let shown = people.query_one(shown, &[]).await.unwrap();
    assert_eq!(shown.get::<_, i64>(0), i64::try_from(last).unwrap() - 1);
    assert_eq!((shown.get(1), shown.get(2)), (true, "g1"));
    let (_, listed) = ledger.run(&["subscribers"]);
    let view = listed.iter().find(|line| line["who"] == PROJECTOR).unwrap();
    assert_eq!((&view["generation"], &view["other"]), (&json!(1), &Value::Null));

    // The tool asks the function for positions, which a reader may not.
    let reconcile = ["reconcile", "--younger", "0"];
    let (code, printed) = Tool::end(ledger.start_as("OperatorPolicy", &reconcile)).await;
    assert_eq!(code, 0, "{printed:?}");
    let (_, printed) = ledger.run(&reconcile);
    let unknown = printed.iter().find(|line| line["what"] == "unreadable");
    let unknown = unknown.unwrap_or_else(|| panic!("{printed:?}"));
    assert_eq!(unknown["who"], PROJECTOR);
    assert!(unknown["reason"].to_string().contains("needs OperatorPolicy"), "{unknown}");
}
