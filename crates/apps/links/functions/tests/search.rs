//! The search in links: a view in OpenSearch, on a local stack with a small server in its place.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use ledgerline::{Commit, EventLog, StreamId};
use ledgerline_testing::{Api, LocalStack, Tool, eventually};
use reqwest::StatusCode;
use serde_json::json;

/// The function that writes the view.
const PROJECTOR: &str = "LinkSearchProjectorFunction";

async fn rate(api: &Api, link: &str, title: &str, tag: &str) {
    let url = format!("https://example.com/{link}");
    let body = json!({ "linkUrl": url, "rating": 4, "title": title, "tags": [tag] });
    let rated = api.post("/users/ada/ratings", body).await;
    assert_eq!(rated.status, StatusCode::OK, "{rated:?}");
}

/// Searches for these words. Returns the titles in the order of their links.
async fn search(api: &Api, words: &str) -> Vec<String> {
    search_in_pages(api, words, 200).await
}

async fn search_in_pages(api: &Api, words: &str, limit: usize) -> Vec<String> {
    let mut found = api.list(&format!("/links?q={words}&limit={limit}"), "links").await;
    found.sort_by_key(|link| link["linkUrl"].to_string());
    found.iter().map(|link| link["title"].as_str().unwrap().to_owned()).collect()
}

async fn eventually_found(api: &Api, words: &str, expected: &[&str]) {
    eventually("the view shows the links", async || {
        (search(api, words).await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn links_are_found_by_their_words_during_a_rebuild_and_after_it() {
    let stack = LocalStack::start_as(&["--search"]).await;
    let ada = &Api::new(stack.url.clone(), Some("ada".to_owned()));
    stack.refresh_generations_each_second("opensearch/link_search").await;

    // Given links with titles and tags,
    for (link, title, tag) in [
        ("a", "A boat, and the sea", "travel"),
        ("b", "The sea", "boat"),
        ("c", "Boats", "sea"),
        ("d", "A boat at sea", "rust"),
    ] {
        rate(ada, link, title, tag).await;
    }
    // then searches of any caller find them, and name wrong parameters.
    let eve = &Api::new(stack.url.clone(), Some("eve".to_owned()));
    eventually_found(eve, "boat%20SEA", &["A boat, and the sea", "The sea", "A boat at sea"]).await;
    assert_eq!(search(eve, "travel%20sea").await, ["A boat, and the sea"]);
    assert_eq!(search_in_pages(eve, "boat", 2).await.len(), 3);
    assert_eq!(search(eve, "nothing").await, [""; 0]);
    for (query, field) in [("", "q"), ("?q=", "q"), ("?q=sea&cursor=eyJ9", "cursor")] {
        let refused = eve.get(&format!("/links{query}")).await;
        assert_eq!(
            (refused.status, &refused.body["field"]),
            (StatusCode::BAD_REQUEST, &json!(field))
        );
    }
    // A cursor is for its own search.
    let first = eve.get("/links?q=sea&limit=1").await;
    let cursor = first.body["cursor"].as_str().unwrap();
    let refused = eve.get(&format!("/links?q=boat&limit=1&cursor={cursor}")).await;
    assert_eq!(refused.body["field"], "cursor", "{refused:?}");
    // A newer state replaces a row.
    rate(ada, "b", "The lake", "boat").await;
    eventually_found(eve, "boat%20sea", &["A boat, and the sea", "A boat at sea"]).await;

    // When the view is rebuilt while it is written and read,
    let ledger = Tool::at(&stack);
    let is_over = AtomicBool::new(false);
    let written = AtomicUsize::new(0);
    let write = async {
        while !is_over.load(Ordering::Relaxed) {
            let number = written.fetch_add(1, Ordering::Relaxed);
            rate(ada, &format!("new/{number:03}"), "Bonus", "new").await;
            assert_eq!(search(eve, "travel").await, ["A boat, and the sea"]);
            // Other tests need the processors, too.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let rebuild = async {
        let switch = ["rebuild", "switch", PROJECTOR, "--write", "--yes", "--why", "a test"];
        let (code, printed) = Tool::end(ledger.start(&switch)).await;
        assert_eq!(code, 0, "{printed:?}");
        is_over.store(true, Ordering::Relaxed);
    };
    futures::join!(write, rebuild);
    // then nothing is lost or doubled.
    eventually_found(eve, "bonus", &vec!["Bonus"; written.load(Ordering::Relaxed)]).await;
    let (_, listed) = ledger.run(&["subscribers"]);
    let view = listed.iter().find(|line| line["who"] == PROJECTOR).unwrap();
    assert_eq!(view["generation"], 1);
    // The tool asks the function for versions.
    let reconcile = ["reconcile", "--younger", "0"];
    let (_, printed) = Tool::end(ledger.start_as("OperatorPolicy", &reconcile)).await;
    let found = printed.iter().find(|line| line["who"] == PROJECTOR).unwrap();
    let streams = written.load(Ordering::Relaxed) + 4;
    assert_eq!((&found["streams"], &found["missing"]), (&json!(streams), &json!(0)), "{found}");
    the_reconciler_finds_lost_rows(&stack).await;
}

/// The reconciler asks the function, too. It skips young commits, so the one here is an hour old.
async fn the_reconciler_finds_lost_rows(stack: &LocalStack) {
    let id = links::link::id("ada", "https://example.com/a");
    let store = stack.store();
    let first = store.get(&StreamId::new("link", &id).unwrap(), 1).await.unwrap().unwrap();
    let old = Commit {
        stream: StreamId::new("link", "old").unwrap(),
        at: Timestamp::now() - SignedDuration::from_hours(1),
        command: "old".into(),
        ..first
    };
    store.append(&old, None).await.unwrap();
    eventually("the view shows the link", async || {
        let title = "A boat, and the sea";
        (search(stack, "travel").await == [title, title]).then_some(())
    })
    .await;
    let compare = async || {
        stack.invoke("ReconcilerFunction", &json!({})).await;
        let lines = stack.logged(r#"{ $.message = "not reconciled" }"#).await;
        lines.into_iter().find(|line| line["who"] == PROJECTOR)
    };
    assert_eq!(compare().await, None);
    // Given an administrator who deletes the index,
    let index = format!("{}/link_search-g1", stack.search_url());
    let deleted = ledgerline_local::http_client().delete(index).send().await.unwrap();
    assert_eq!(deleted.status(), StatusCode::OK);
    // then the row is missing.
    let found = eventually("the reconciler misses the row", compare).await;
    assert_eq!((&found["what"], &found["stream"]), (&json!("missing"), &json!("link-old")));
}
