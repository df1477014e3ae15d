//! The mail of "An AWS Event Sourcing architecture with DynamoDB", and the handlers of the project
//! Beenion. Every test names its section.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use ledgerline_testing::{Api, LocalStack, Tool, eventually, workspace};
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

/// Beenion registers the people who sign up in its user pool.
#[tokio::test]
async fn a_person_who_signs_up_is_registered_and_welcomed_once() {
    let local = LocalStack::start_as(&["--parameter-overrides", "SelfSignUp=true"]).await;
    let mailbox = Api::new(local.aws_url(), None);
    let mails = async || mailbox.get("/mailbox?to=fay@example.com").await.body["mails"].clone();
    let challenge = "A".repeat(43);
    let fields = format!(
        "user=fay&response_type=code&client_id=AppClient&code_challenge={challenge}\
         &code_challenge_method=S256&redirect_uri=http%3A%2F%2Flocalhost%3A3000%2Fcallback"
    );
    // Given a person who signs in for the first time,
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let form = client.build().unwrap().post(format!("{}/oauth2/authorize", local.url));
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let answer = form.body(fields).send().await.unwrap();
    assert!(answer.headers()["location"].to_str().unwrap().contains("code="), "{answer:?}");
    // then the person is a user, and gets one mail.
    eventually("a mail", async || mails().await.get(0).cloned()).await;
    let fay = Api::new(local.url.clone(), Some("fay".into()));
    let again = fay.post("/users", json!({ "name": "Fay", "email": "other@example.com" })).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    // A repeated event changes nothing.
    let event = |name: &str| {
        let attributes = json!({
            "sub": name, "email": format!("{name}@example.com"), "email_verified": "true",
        });
        json!({
            "triggerSource": "PostConfirmation_ConfirmSignUp",
            "request": { "userAttributes": attributes },
        })
    };
    assert_eq!(local.invoke("SignUpFunction", &event("fay")).await, event("fay"));
    let changed = fay.post("/users/fay/email", json!({ "email": "new@example.com" })).await;
    assert_eq!(changed.version(), 2);
    // A command that fails does not block the next person, who registers later.
    local.begin_outage("CommitsTable", "failed", 600).await;
    assert_eq!(local.invoke("SignUpFunction", &event("gil")).await, event("gil"));
    local.begin_outage("CommitsTable", "failed", 0).await;
    let gil = Api::new(local.url.clone(), Some("gil".into()));
    let registered = gil.post("/users", json!({ "name": "Gil", "email": "gil@example.com" })).await;
    assert_eq!(registered.status, StatusCode::CREATED);
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

/// "Kinesis", in "DynamoDB as an event log and bus": the log's changes are in a Kinesis stream,
/// beside the queue.
#[tokio::test]
async fn ratings_come_by_kinesis_while_the_queue_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    let template = std::fs::read_to_string(workspace().join("template.yaml")).unwrap();
    let (before, mapping) = template.split_once("  UserRatingsProjectorKinesis:").unwrap();
    let attempts = "MaximumRetryAttempts: 10000";
    assert!(mapping.contains(attempts));
    let mapping = mapping.replacen(attempts, "MaximumRetryAttempts: 0", 1);
    std::fs::write(&path, [before, "  UserRatingsProjectorKinesis:", &mapping].concat()).unwrap();
    let name = "samconfig.toml";
    std::fs::copy(workspace().join(name), folder.path().join(name)).unwrap();
    let kinesis = "CommitsKinesisStream=arn:aws:kinesis:us-east-1:000000000000:stream/commits";
    let arguments = ["--template", path.to_str().unwrap(), "--parameter-overrides", kinesis];
    let local = LocalStack::start_as(&arguments).await;
    let ada = Api::new(local.url.clone(), Some("ada".into()));
    ada.post("/users", json!({ "name": "ada", "email": "x@example.com" })).await;
    let rate = async |rating: u64| {
        for n in 0..12 {
            let url = format!("https://example.com/{n}");
            let body = json!({ "linkUrl": url, "rating": rating, "title": rating.to_string() });
            assert_eq!(ada.post("/users/ada/ratings", body).await.status, StatusCode::OK);
        }
    };
    let see_ratings = async |rating: u64| {
        eventually("all ratings are shown", async || {
            let page = ada.get("/users/ada/ratings").await.body;
            let shown = page["ratings"].as_array()?.iter();
            let is_rated = |row: &&serde_json::Value| row["rating"] == rating;
            (shown.filter(is_rated).count() == 12).then_some(())
        })
        .await;
    };
    let queue_deliveries = || {
        let hops = local.hops().into_iter();
        let mine = hops.filter(|(_, name, text)| {
            name == "projector" && text.contains("by user-ratings-projector")
        });
        mine.count()
    };
    // While the queue fails, the ratings come by Kinesis.
    local.begin_outage("UserRatingsQueue.fifo", "failed", 600).await;
    rate(1).await;
    see_ratings(1).await;
    // When the queue delivers the same commits, they are duplicates.
    assert_eq!(queue_deliveries(), 0);
    local.begin_outage("UserRatingsQueue.fifo", "failed", 0).await;
    eventually("the queue delivers", async || (queue_deliveries() == 12).then_some(())).await;
    see_ratings(1).await;
    // A batch of Kinesis that Lambda gives up is a dead letter, which names its commits.
    local.begin_outage("UserRatingsTable", "failed", 600).await;
    rate(2).await;
    let ledger = Tool::at(&local);
    eventually("a batch is a dead letter", async || {
        let (_, printed) = ledger.run(&["dead-letters", "Fanout"]);
        printed.iter().any(|row| row["commits"].to_string().contains("link-")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_session_in_the_readme_is_real() {
    ledgerline_testing::session_of_application_is_real().await;
}
