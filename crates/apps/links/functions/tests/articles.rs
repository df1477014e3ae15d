//! The mail of "An AWS Event Sourcing architecture with DynamoDB", and the handlers of the project
//! Beenion. Every test names its section.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use ledgerline_testing::{Api, LocalStack, eventually};
use reqwest::{Method, StatusCode};
use serde_json::json;

/// "Event Bus": "a email service listening for User.Registered events and sending a welcome email
/// message".
#[tokio::test]
async fn a_registration_is_welcomed_with_one_mail() {
    let local = LocalStack::start(None).await;
    let registered =
        local.post("/users", json!({ "name": "Ada", "email": "example@example.com" })).await;
    assert_eq!(registered.status, StatusCode::CREATED);
    let mailbox = Api::new(local.aws_url(), None);
    let mails = async || mailbox.get("/mailbox?to=example@example.com").await.body["mails"].clone();
    let mail = eventually("a mail", async || mails().await.get(0).cloned()).await;
    assert_eq!(mail["subject"], "Welcome");
    local.post("/users/developer/email", json!({ "email": "new.email@example.com" })).await;
    eventually("the process manager has seen both", async || {
        let position = local.position("WelcomeEmailPositionsTable", "user-developer").await;
        (position == Some(2)).then_some(())
    })
    .await;
    assert_eq!(mails().await.as_array().map(Vec::len), Some(1));
}

/// "Why use CQRS/Event Sourcing?": the three queries. "Projections & Process Managers": "each event
/// handler must be isolated, so an error in one handler doesn't affect others", and a failed
/// handler resumes where it stopped.
#[tokio::test]
async fn a_handler_that_fails_stops_no_other_and_catches_up() {
    let local = LocalStack::start(None).await;
    for token in ["ada", "bob"] {
        let api = Api::new(local.url.clone(), Some(token.into()));
        api.post("/users", json!({ "name": token, "email": "x@example.com" })).await;
    }
    let (ada, bob) = (
        Api::new(local.url.clone(), Some("ada".into())),
        Api::new(local.url.clone(), Some("bob".into())),
    );
    ada.call(Method::PUT, "/users/ada/follows/bob", &[], String::new()).await;
    // The test kills the projector of feeds repeatedly while ratings arrive.
    for n in 0..10 {
        local.kill_instances("feeds-projector");
        let body = json!({ "linkUrl": format!("https://example.com/{n}"), "rating": 3 });
        assert_eq!(bob.post("/users/bob/ratings", body).await.status, StatusCode::OK);
    }
    let count = async |path: &str, name: &str| {
        ada.get(path).await.body[name].as_array().map_or(0, Vec::len)
    };
    for (path, name, expected) in [
        ("/users/bob/ratings", "ratings", 10),
        ("/links/ratings?url=https://example.com/3", "ratings", 1),
        ("/users/ada/feed", "feed", 10),
    ] {
        eventually(path, async || (count(path, name).await == expected).then_some(())).await;
    }
}

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    ledgerline_testing::session_of_application_is_real().await;
}
