//! The examples of the four articles that this project grew out of, one module each; every test says which section it is
//! from.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod running;

use std::num::NonZeroUsize;

use aws_sdk_dynamodb::{Client, config::Builder};
use futures::future::join_all;
use ledgerline::{
    Aggregate, Cache, Commit, Context, EventStore, Execution, Meta, Outcome, StreamId, execute,
};
use ledgerline_dynamodb::DynamoDbStore;
use local::testing::{self, Wire};
use reqwest::{Method, StatusCode};
use running::{
    Local,
    api::{Api, eventually},
};
use serde_json::{Value, json};

/// A store on a real wire, whose calls are counted.
async fn counted() -> (DynamoDbStore, Wire) {
    let dynamodb = testing::dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let wire = Wire::default();
    let config = Builder::from(&testing::sdk_config(&dynamodb)).interceptor(wire.clone());
    (DynamoDbStore::new(Client::from_conf(config.build()), testing::table("CommitsTable")), wire)
}

fn cold<A: Aggregate>() -> Cache<A> {
    Cache::new(NonZeroUsize::new(10).unwrap())
}

async fn send<A: Aggregate>(
    store: &DynamoDbStore,
    cache: &Cache<A>,
    stream: &StreamId,
    command: &A::Command,
    creates: bool,
) -> Result<u64, String> {
    let context = Context { at: jiff::Timestamp::now(), actor: Some("ada".into()) };
    let id = uuid::Uuid::now_v7().to_string();
    let execution = Execution::<A> {
        stream,
        command,
        context: &context,
        command_id: &id,
        meta: &Meta::default(),
        precondition: None,
        creates,
        ledger: None,
    };
    match execute(store, cache, &execution).await {
        Ok(Outcome::Committed(loaded) | Outcome::Unchanged(loaded)) => Ok(loaded.version),
        Ok(Outcome::Repeated(_)) => unreachable!("there is no ledger"),
        Err(error) => Err(error.to_string()),
    }
}

async fn log(store: &DynamoDbStore, stream: &StreamId) -> Vec<Commit> {
    let mut commits = Vec::new();
    while let Some(commit) = store.get(stream, commits.len() as u64 + 1).await.unwrap() {
        commits.push(commit);
    }
    commits
}

fn types(commits: &[Commit]) -> Vec<Vec<&str>> {
    commits
        .iter()
        .map(|commit| commit.events.iter().map(|event| event.event_type.as_str()).collect())
        .collect()
}

/// "Build a CQRS event store with Amazon DynamoDB", on the AWS Database Blog.
mod aws_event_store {
    use std::collections::HashMap;

    use aws_sdk_dynamodb::types::AttributeValue;
    use local::{services::DynamoDb, template};
    use widgets::widget::{Command, Widget};

    use super::*;

    fn create() -> Command {
        Command::Create { name: "Sprocket".into(), description: String::new(), stock: 5 }
    }

    fn commands() -> [Command; 3] {
        [
            Command::ChangeName { name: "Cog".into() },
            Command::ChangeDescription { description: "Round".into() },
            Command::UpdateStock { stock: 4 },
        ]
    }

    fn widget_123() -> StreamId {
        StreamId::new("widget", "123").unwrap()
    }

    /// "Event table", figure 3, and "Loading and saving aggregate examples", figures 9 to 13: what the table holds after
    /// CreateWidget, ChangeWidgetName, ChangeWidgetDescription and the update of the stock.
    #[tokio::test]
    async fn widget_123_is_a_stream_of_four_events() {
        let (store, _) = counted().await;
        let cache = cold::<Widget>();
        assert_eq!(send(&store, &cache, &widget_123(), &create(), true).await, Ok(1));
        for (version, command) in (2..).zip(commands()) {
            assert_eq!(send(&store, &cache, &widget_123(), &command, false).await, Ok(version));
        }
        let log = log(&store, &widget_123()).await;
        let expected =
            ["WidgetCreated", "WidgetNameChanged", "WidgetDescriptionChanged", "WidgetStockUpdated"];
        assert_eq!(types(&log), expected.map(|event| vec![event]));
        assert_eq!(log[1].events[0].data, r#"{"name":"Cog"}"#);
        // "Snapshot table", figure 5: the state of the newest event, with no table and no write of its own.
        let state: Value = serde_json::from_str(&log[3].state.as_ref().unwrap().data).unwrap();
        assert_eq!((&state["name"], &state["stock"]), (&json!("Cog"), &json!(4)));
    }

    /// The article's own algorithms on its own three tables, as it describes them, step by step.
    struct Article {
        client: Client,
        wire: Wire,
    }

    impl Article {
        async fn new() -> Self {
            let dynamodb = DynamoDb::start(None).await.unwrap();
            for (name, sorted) in [("aggregate", false), ("event", true), ("snapshot", true)] {
                let key = |name: &str, kind: &str| json!({ "AttributeName": name, "KeyType": kind });
                let number = |name: &str| json!({ "AttributeName": name, "AttributeType": "N" });
                let (mut keys, mut attributes) = (vec![key("PK", "HASH")], vec![number("PK")]);
                if sorted {
                    keys.push(key("SK", "RANGE"));
                    attributes.push(number("SK"));
                }
                let create = json!({
                    "TableName": name, "KeySchema": keys, "AttributeDefinitions": attributes,
                    "BillingMode": "PAY_PER_REQUEST",
                });
                let table =
                    template::Table { name: name.into(), stream_arn: None, create, time_to_live: None };
                dynamodb.create_table(&table).unwrap();
            }
            let wire = Wire::default();
            let config = Builder::from(&testing::sdk_config(&dynamodb)).interceptor(wire.clone());
            Self { client: Client::from_conf(config.build()), wire }
        }

        fn key(number: u64) -> AttributeValue {
            AttributeValue::N(number.to_string())
        }

        /// "Loading an aggregate algorithm": the aggregate, its last events as items, the last snapshot, the remaining
        /// events. The version and the number of the last event.
        async fn load(&self) -> (u64, u64) {
            let aggregate = self.client.get_item().table_name("aggregate").key("PK", Self::key(123));
            let aggregate = aggregate.send().await.unwrap().item.unwrap();
            for (number, payload) in aggregate["last_events"].as_m().unwrap() {
                let put = self.client.put_item().table_name("event").item("PK", Self::key(123));
                let put = put.item("SK", AttributeValue::N(number.clone())).item("payload", payload.clone());
                put.condition_expression("attribute_not_exists(PK)").send().await.unwrap();
            }
            let last = |table| {
                let query = self.client.query().table_name(table).key_condition_expression("PK = :pk");
                query.expression_attribute_values(":pk", Self::key(123)).scan_index_forward(false)
            };
            assert_eq!(last("snapshot").limit(1).send().await.unwrap().count, 0);
            let events = last("event").send().await.unwrap().items.unwrap();
            let newest = events[0]["SK"].as_n().unwrap().parse().unwrap();
            (aggregate["version"].as_n().unwrap().parse().unwrap(), newest)
        }

        /// "Saving an aggregate algorithm": the aggregate with its new events, if its version is the one that was read.
        async fn save(&self, version: Option<u64>, event: u64) {
            let events = HashMap::from([(event.to_string(), AttributeValue::S("{}".into()))]);
            let put = self.client.put_item().table_name("aggregate").item("PK", Self::key(123));
            let put = put.item("version", Self::key(version.map_or(0, |version| version + 1)));
            let put = put.item("last_events", AttributeValue::M(events));
            let put = match version {
                None => put.condition_expression("attribute_not_exists(PK)"),
                Some(version) => put
                    .condition_expression("#version = :version")
                    .expression_attribute_names("#version", "version")
                    .expression_attribute_values(":version", Self::key(version)),
            };
            put.send().await.unwrap();
        }
    }

    /// "Loading an aggregate algorithm" and "Saving an aggregate algorithm": the calls of both ways, counted. docs/data.md
    /// has them in a table.
    #[tokio::test]
    async fn a_command_that_took_five_calls_takes_one_or_two() {
        let article = Article::new().await;
        article.save(None, 1).await;
        assert_eq!(article.wire.operations(), ["PutItem"]);
        let (version, newest) = article.load().await;
        article.save(Some(version), newest + 1).await;
        assert_eq!(article.wire.operations(), ["GetItem", "PutItem", "Query", "Query", "PutItem"]);

        let (store, wire) = counted().await;
        let warm = cold::<Widget>();
        send(&store, &warm, &widget_123(), &create(), true).await.unwrap();
        assert_eq!(wire.operations(), ["ExecuteStatement"]);
        let [name, description, stock] = commands();
        send(&store, &cold::<Widget>(), &widget_123(), &name, false).await.unwrap();
        let [query, write] = wire.take().try_into().unwrap();
        assert_eq!((query.operation.as_str(), write.operation.as_str()), ("Query", "ExecuteStatement"));
        assert!(query.units <= 1.0 && write.units == 1.0);
        let warm = cold::<Widget>();
        send(&store, &warm, &widget_123(), &description, false).await.unwrap();
        wire.take();
        send(&store, &warm, &widget_123(), &stock, false).await.unwrap();
        assert_eq!(wire.operations(), ["ExecuteStatement"]);
    }

    /// "Event store change data capture with DynamoDB Streams": the query side shows what was written.
    #[tokio::test]
    async fn the_stream_brings_a_widget_to_the_read_side() {
        let local = Local::start(None).await;
        let id = uuid::Uuid::new_v4().to_string();
        local.post("/widgets", json!({ "widgetId": &id, "name": "Sprocket" })).await;
        local.post(&format!("/widgets/{id}/name"), json!({ "name": "Cog" })).await;
        let shown = local.get(&format!("/widgets/{id}?minVersion=2")).await;
        assert_eq!(shown.body["name"], "Cog");
    }
}

/// "An AWS Event Sourcing architecture with DynamoDB".
mod event_log_and_bus {
    use ledgerline::{EventType, Rejection, RejectionKind, fold};
    use links::user::{Action, User};
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug)]
    struct Counter;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    #[serde(tag = "type", content = "data")]
    enum Step {
        Increment,
        Decrement,
    }

    #[derive(Debug, Clone, PartialEq)]
    struct Never;

    impl std::fmt::Display for Never {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("never")
        }
    }

    impl Rejection for Never {
        fn kind(&self) -> RejectionKind {
            RejectionKind::Refused
        }

        fn code(&self) -> &'static str {
            "never"
        }
    }

    impl Aggregate for Counter {
        const CATEGORY: &'static str = "counter";
        const STATE_SCHEMA: u32 = 1;
        const EVENTS: &'static [EventType] = &[EventType::new("Increment"), EventType::new("Decrement")];

        type State = i64;
        type Event = Step;
        type Command = Step;
        type Rejection = Never;

        fn initial() -> i64 {
            0
        }

        fn evolve(counter: i64, step: &Step) -> i64 {
            match step {
                Step::Increment => counter + 1,
                Step::Decrement => counter - 1,
            }
        }

        fn decide(_: &i64, step: &Step, _: &Context) -> Result<Vec<Step>, Never> {
            Ok(vec![step.clone()])
        }
    }

    /// "A trivialized example".
    #[test]
    fn the_fold_of_a_counter_is_2() {
        let events = [Step::Increment, Step::Increment, Step::Increment, Step::Decrement];
        assert_eq!(fold::<Counter>(Counter::initial(), &events), 2);
    }

    /// "Schema design" and "Event envelope": a user who registers and has mails sent elsewhere, each event with its name,
    /// the version of its shape, and its data.
    #[tokio::test]
    async fn a_user_is_a_row_for_each_event_in_its_envelope() {
        let (store, _) = counted().await;
        let (cache, stream) = (cold::<User>(), StreamId::new("user", "ada").unwrap());
        let email = |email: &str| email.to_owned();
        for action in [
            Action::Register { name: "admin".into(), email: email("example@example.com") },
            Action::UpdateEmail { email: email("new.email@example.com") },
        ] {
            let command = links::user::Command { user_id: "ada".into(), action };
            send(&store, &cache, &stream, &command, false).await.unwrap();
        }
        let log = log(&store, &stream).await;
        assert_eq!(types(&log), [["UserRegistered"], ["UserEmailUpdated"]]);
        let updated = &log[1].events[0];
        assert_eq!(updated.schema, 1);
        assert_eq!(updated.data, r#"{"email":"new.email@example.com","userId":"ada"}"#);
    }

    /// "Event Bus": "a email service listening for User.Registered events and sending a welcome email message".
    #[tokio::test]
    async fn a_registration_is_welcomed_with_one_mail() {
        let local = Local::start(None).await;
        let registered = local.post("/users", json!({ "name": "Ada", "email": "example@example.com" })).await;
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

    /// "HTTP optimistic concurrency control example", its four parts. Stale is 412 here, as RFC 9110 has it, where the
    /// article says 409; versions begin at 1, not at 0.
    #[tokio::test]
    async fn create_get_update_and_delete_are_guarded_by_the_etag() {
        let local = Local::start(None).await;
        let id = "d8e8b51e-0337-4300-b414-0cc65918aaf8";
        let path = format!("/todo/{id}");
        // 1. Create
        let create = json!({ "id": id, "title": "TODO", "message": "Make coffee" });
        let created = local.post("/todo", create.clone()).await;
        assert_eq!((created.status, created.etag()), (StatusCode::CREATED, Some("\"1\"")));
        assert_eq!(local.post("/todo", create).await.status, StatusCode::CONFLICT);
        // 2. Get
        let got = local.get(&format!("{path}?minVersion=1")).await;
        assert_eq!((got.etag(), &got.body["message"]), (Some("\"1\""), &json!("Make coffee")));
        // 3. Update
        let body = json!({ "title": "TODO", "message": "Make 2 coffees" });
        let unknown = format!("/todo/{}", uuid::Uuid::new_v4());
        for (path, tag, status) in [
            (&unknown, "\"1\"", StatusCode::NOT_FOUND),
            (&path, "\"9\"", StatusCode::PRECONDITION_FAILED),
            (&path, "\"1\"", StatusCode::OK),
            (&path, "\"1\"", StatusCode::PRECONDITION_FAILED),
        ] {
            let answer = local.post_with(path, &[("If-Match", tag)], body.clone()).await;
            assert_eq!(answer.status, status, "{path} {tag}");
        }
        // 4. Delete
        for (path, tag, status) in [
            (&unknown, "\"1\"", StatusCode::NOT_FOUND),
            (&path, "\"1\"", StatusCode::PRECONDITION_FAILED),
            (&path, "\"2\"", StatusCode::OK),
            (&path, "\"3\"", StatusCode::NOT_FOUND),
        ] {
            let answer = local.call(Method::DELETE, path, &[("If-Match", tag)], String::new()).await;
            assert_eq!(answer.status, status, "{path} {tag}");
        }
        assert_eq!(local.get(&format!("{path}?minVersion=3")).await.status, StatusCode::NOT_FOUND);
        // "Accountants Don't Use Erasers": the log has all of it.
        let log = log(&local.store(), &StreamId::new("todo", id).unwrap()).await;
        assert_eq!(types(&log), [["TodoCreated"], ["TodoUpdated"], ["TodoDeleted"]]);
    }
}

/// "Serverless Event Sourcing in AWS (Lambda, DynamoDB, SQS)": the project Beenion.
mod beenion {
    use ledgerline::encode;
    use links::{
        link,
        link::Link,
        user::{Action, Event, User},
    };

    use super::*;

    fn user(action: Action) -> links::user::Command {
        links::user::Command { user_id: "ada".into(), action }
    }

    async fn registered(store: &DynamoDbStore) -> StreamId {
        let stream = StreamId::new("user", "ada").unwrap();
        let register = user(Action::Register { name: "Ada".into(), email: "ada@example.com".into() });
        send(store, &cold::<User>(), &stream, &register, true).await.unwrap();
        stream
    }

    /// "Aggregate Boundaries": the reducer of those whom a user follows.
    #[test]
    fn the_reducer_adds_and_removes_those_whom_a_user_follows() {
        let followed = |other: &str, following| Event::UserFollowed {
            user_id: "ada".into(),
            followed_user_id: other.into(),
            following,
        };
        let unfollowed =
            Event::UserUnfollowed { user_id: "ada".into(), unfollowed_user_id: "bob".into(), following: 1 };
        let events = [followed("bob", 1), followed("cleo", 2), unfollowed];
        let state = ledgerline::fold::<User>(User::initial(), &events);
        assert_eq!(state.follows.keys().collect::<Vec<_>>(), ["cleo"]);
    }

    /// "Optimistic Concurrency Control", figure 3: followUser is invoked twice at the same time.
    #[tokio::test]
    async fn of_two_follows_at_once_one_is_stored() {
        let (store, _) = counted().await;
        let stream = registered(&store).await;
        let follow = user(Action::Follow { other: "bob".into() });
        // Two instances, which know nothing of each other.
        let (one, two) = (cold::<User>(), cold::<User>());
        let both = join_all([&one, &two].map(|cache| send(&store, cache, &stream, &follow, false))).await;
        // The one that lost decides again, and finds that there is nothing left to do.
        assert_eq!(both, [Ok(2), Ok(2)]);
        assert_eq!(types(&log(&store, &stream).await), [["UserRegistered"], ["UserFollowed"]]);
    }

    /// "Snapshots": a user with a thousand events is loaded with one query of one read unit.
    #[tokio::test]
    async fn a_user_with_a_thousand_events_loads_from_the_last_state() {
        let (store, wire) = counted().await;
        let (stream, cache) = (registered(&store).await, cold::<User>());
        for n in 0..500 {
            for action in
                [Action::Follow { other: format!("u{n}") }, Action::Unfollow { other: format!("u{n}") }]
            {
                send(&store, &cache, &stream, &user(action), false).await.unwrap();
            }
        }
        wire.take();
        let follow = user(Action::Follow { other: "bob".into() });
        assert_eq!(send(&store, &cold::<User>(), &stream, &follow, false).await, Ok(1_002));
        let [query, _] = wire.take().try_into().unwrap();
        assert_eq!((query.operation.as_str(), query.units <= 1.0), ("Query", true));
    }

    /// "Transactions", figures 4 and 5: an item with one event, and one with several.
    #[tokio::test]
    async fn a_command_may_store_several_events_in_one_item() {
        let (store, wire) = counted().await;
        let url = "https://example.com/";
        let stream = StreamId::new("link", &link::id("ada", url)).unwrap();
        let rate = |rating: u8, title: Option<&str>| links::link::Command {
            user_id: "ada".into(),
            link_url: url.into(),
            rating,
            title: title.map(Into::into),
            image: None,
            tags: title.map(|_| vec!["example".into()]),
        };
        let cache = cold::<Link>();
        send(&store, &cache, &stream, &rate(4, Some("Example")), false).await.unwrap();
        wire.take();
        send(&store, &cache, &stream, &rate(5, None), false).await.unwrap();
        assert_eq!(wire.operations(), ["ExecuteStatement"]);
        let log = log(&store, &stream).await;
        let all = vec!["LinkCreated", "LinkRated", "LinkTagged", "LinkTitleUpdated"];
        assert_eq!(types(&log), [all, vec!["LinkRated"]]);
        let rated = links::link::Event::LinkRated {
            user_id: "ada".into(),
            link_url: url.into(),
            rating: 5,
            previous: Some(4),
        };
        assert_eq!(log[1].events, [encode::<Link>(&rated).unwrap()]);
    }

    /// "Why use CQRS/Event Sourcing?": the three queries. "Projections & Process Managers": "each event handler must be
    /// isolated, so an error in one handler doesn't affect others", and goes on where it was.
    #[tokio::test]
    async fn a_handler_that_fails_stops_no_other_and_catches_up() {
        let local = Local::start(None).await;
        for token in ["ada", "bob"] {
            let api = Api::new(local.url.clone(), Some(token.into()));
            api.post("/users", json!({ "name": token, "email": "x@example.com" })).await;
        }
        let (ada, bob) = (
            Api::new(local.url.clone(), Some("ada".into())),
            Api::new(local.url.clone(), Some("bob".into())),
        );
        ada.call(Method::PUT, "/users/ada/follows/bob", &[], String::new()).await;
        // The handler of feeds is killed again and again while ratings come.
        for n in 0..10 {
            local.kill_instances("feeds-projector");
            let body = json!({ "linkUrl": format!("https://example.com/{n}"), "rating": 3 });
            assert_eq!(bob.post("/users/bob/ratings", body).await.status, StatusCode::OK);
        }
        let count =
            async |path: &str, name: &str| ada.get(path).await.body[name].as_array().map_or(0, Vec::len);
        for (path, name, expected) in [
            ("/users/bob/ratings", "ratings", 10),
            ("/links/ratings?url=https://example.com/3", "ratings", 1),
            ("/users/ada/feed", "feed", 10),
        ] {
            eventually(path, async || (count(path, name).await == expected).then_some(())).await;
        }
    }
}

/// "Serverless event-sourcing with AWS: State of the art data synchronization", by Kumo.
mod kumo {
    use super::*;

    /// "First and foremost, in event sourcing, the order of events is essential": with 50 on the account, two purchases of
    /// 40 and 25 come at once.
    #[tokio::test]
    async fn nobody_is_overdrawn_by_two_purchases_at_once() {
        let local = Local::start(None).await;
        let id = local.account(50).await;
        let path = format!("/accounts/{id}/debits");
        let purchase = |amount: i64| {
            let (local, path) = (&local, &path);
            async move { local.post(path, json!({ "amount": amount })).await.status }
        };
        let mut answers = join_all([40, 25].map(purchase)).await;
        answers.sort();
        assert_eq!(answers, [StatusCode::OK, StatusCode::UNPROCESSABLE_ENTITY]);
    }

    /// "A trick to make data synchronization and replay easier" and "The job of the projectors become trivial": the row is
    /// the state that the event carries. "The replay is then extremely simple": whatever is sent again changes nothing.
    #[tokio::test]
    async fn a_replay_changes_nothing() {
        let local = Local::start(None).await;
        let id = local.account(500).await;
        local.post(&format!("/accounts/{id}/debits"), json!({ "amount": 30 })).await;
        local.settled(&id).await;
        let before = (local.get(&format!("/accounts/{id}")).await, local.transactions(&id).await);
        assert_eq!(
            (&before.0.body["totalBalance"], &before.0.body["lastMonthBalance"]),
            (&json!(470), &json!(470))
        );

        // The commits once more, newest first, as the runbook replays them.
        let records: Vec<_> =
            local.stream_records(&format!("account-{id}")).await.into_iter().rev().collect();
        assert_eq!(records.len(), 3);
        let url = format!("{}/2015-03-31/functions/FanoutFunction/invocations", local.aws_url());
        let answer =
            reqwest::Client::new().post(url).json(&json!({ "Records": records })).send().await.unwrap();
        assert_eq!(answer.json::<Value>().await.unwrap(), json!({ "batchItemFailures": [] }));
        // One more command goes the same way after them.
        local.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
        local.settled(&id).await;
        assert_eq!(local.transactions(&id).await[1..], before.1);
    }
}
