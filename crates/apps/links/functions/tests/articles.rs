//! The users of "An AWS Event Sourcing architecture with DynamoDB", and the examples of "Serverless
//! Event Sourcing in AWS (Lambda, DynamoDB, SQS)", the project Beenion. Every test names its
//! section.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use futures::future::join_all;
use ledgerline::{Aggregate, StreamId, encode, spec::valid};
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_testing::{Api, LocalStack, cold, commits, counted, event_types, eventually, send};
use links::{
    link,
    link::Link,
    user::{Action, Event, State, User},
};
use reqwest::{Method, StatusCode};
use serde_json::json;

// --- "An AWS Event Sourcing architecture with DynamoDB" ------------------------------------------

/// "Schema design" and "Event envelope": a user registers and changes the email address. Each event
/// has its name, the version of its schema, and its data.
#[tokio::test]
async fn each_event_of_a_user_is_an_item_with_its_envelope() {
    let (store, _) = counted().await;
    let (cache, stream) = (cold::<User>(), StreamId::new("user", "ada").unwrap());
    for action in [
        Action::Register(valid("admin"), valid("example@example.com")),
        Action::UpdateEmail(valid("new.email@example.com")),
    ] {
        let command = user(action);
        send(&store, &cache, &stream, &command, false).await.unwrap();
    }
    let log = commits(&store, &stream).await;
    assert_eq!(event_types(&log), [["UserRegistered"], ["UserEmailUpdated"]]);
    let updated = &log[1].events[0];
    assert_eq!(updated.schema, 1);
    assert_eq!(updated.data, r#"{"email":"new.email@example.com","userId":"ada"}"#);
}

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

// --- Beenion -------------------------------------------------------------------------------------

fn user(action: Action) -> links::user::Command {
    links::user::Command { user_id: valid("ada"), action }
}

async fn registered(store: &DynamoDbStore) -> StreamId {
    let stream = StreamId::new("user", "ada").unwrap();
    let register = user(Action::Register(valid("Ada"), valid("ada@example.com")));
    send(store, &cold::<User>(), &stream, &register, true).await.unwrap();
    stream
}

/// "Aggregate Boundaries": the reducer of the users that a user follows.
#[test]
fn the_reducer_adds_and_removes_followed_users() {
    let followed = |other: &str, following| Event::UserFollowed {
        user_id: "ada".into(),
        followed_user_id: other.into(),
        following,
    };
    let unfollowed = Event::UserUnfollowed {
        user_id: "ada".into(),
        unfollowed_user_id: "bob".into(),
        following: 1,
    };
    let registered = Event::UserRegistered {
        user_id: "ada".into(),
        name: "Ada".into(),
        email: "ada@example.com".into(),
    };
    let events = [registered, followed("bob", 1), followed("cleo", 2), unfollowed];
    let State::Registered(user) = ledgerline::fold::<User>(User::initial(), &events) else {
        panic!()
    };
    assert_eq!(user.follows.keys().collect::<Vec<_>>(), ["cleo"]);
}

/// "Optimistic Concurrency Control", figure 3: followUser is invoked twice at the same time.
#[tokio::test]
async fn of_two_follows_at_once_one_is_stored() {
    let (store, _) = counted().await;
    let stream = registered(&store).await;
    let follow = user(Action::Follow(valid("bob")));
    // The two commands reach two cold instances.
    let (one, two) = (cold::<User>(), cold::<User>());
    let both =
        join_all([&one, &two].map(|cache| send(&store, cache, &stream, &follow, false))).await;
    // The instance that lost the race decides again, and the command changes nothing.
    assert_eq!(both, [Ok(2), Ok(2)]);
    assert_eq!(
        event_types(&commits(&store, &stream).await),
        [["UserRegistered"], ["UserFollowed"]]
    );
}

/// "Snapshots": a load of a user with a thousand events is one query of one read unit.
#[tokio::test]
async fn a_user_with_a_thousand_events_loads_from_the_last_state() {
    let (store, wire) = counted().await;
    let (stream, cache) = (registered(&store).await, cold::<User>());
    for n in 0..500 {
        let other = || valid(format!("u{n}"));
        for action in [Action::Follow(other()), Action::Unfollow(other())] {
            send(&store, &cache, &stream, &user(action), false).await.unwrap();
        }
    }
    wire.take();
    let follow = user(Action::Follow(valid("bob")));
    assert_eq!(send(&store, &cold::<User>(), &stream, &follow, false).await, Ok(1_002));
    let [query, _] = wire.take().try_into().unwrap();
    assert_eq!((query.operation.as_str(), query.units <= 1.0), ("Query", true));
}

/// "Serverless Event Sourcing in AWS", section "Transactions", figures 4 and 5: one item has one
/// event, another item has several. Here, the first command stores four events in one item. The
/// second command stores one event in one item.
#[tokio::test]
async fn a_command_may_store_several_events_in_one_item() {
    let (store, wire) = counted().await;
    let url = "https://example.com/";
    let stream = StreamId::new("link", &link::id("ada", url)).unwrap();
    let rate = |rating: u8, title: Option<&str>| links::link::Command {
        user_id: valid("ada"),
        link_url: valid(url),
        rating: valid(rating),
        title: title.map(valid),
        image: None,
        tags: title.and_then(|_| vec![valid("example")].try_into().ok()),
    };
    let cache = cold::<Link>();
    send(&store, &cache, &stream, &rate(4, Some("Example")), false).await.unwrap();
    wire.take();
    send(&store, &cache, &stream, &rate(5, None), false).await.unwrap();
    assert_eq!(wire.operations(), ["ExecuteStatement"]);
    let log = commits(&store, &stream).await;
    let all = vec!["LinkCreated", "LinkRated", "LinkTagged", "LinkTitleUpdated"];
    assert_eq!(event_types(&log), [all, vec!["LinkRated"]]);
    let rated = links::link::Event::LinkRated {
        user_id: "ada".into(),
        link_url: url.into(),
        rating: 5,
        previous: Some(4),
    };
    assert_eq!(log[1].events, [encode::<Link>(&rated).unwrap()]);
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
