//! The feeds against real tables, and the sums of links. With duplicate, swapped or lost
//! messages, the feeds equal the ratings of the followed users.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::{
    Client,
    config::{Builder, retry::RetryConfig},
};
use ledgerline::{
    Aggregate, Commit, Context, EventLog, Meta, StreamId,
    changes::{Fields, Key},
    encode,
    spec::valid,
};
use ledgerline_dynamodb::{DynamoDbStore, LogRows};
use ledgerline_lambda::{messages::Message, queue::QueueRunner};
use ledgerline_testing::{Crash, Wire, table};
use links::{
    link,
    link::Link,
    user::{Action, State, User},
    views::{feeds, link_ratings},
};
use links_functions::projectors::feeds::FeedProjector;
use proptest::prelude::*;
use serde_json::{Value, json};

const USERS: [&str; 3] = ["ada", "bob", "cleo"];
const LINKS: [&str; 3] = ["https://a.example/", "https://b.example/", "https://c.example/"];

/// The log of the users' actions, and the users' states.
#[derive(Debug, Default)]
struct Log {
    commits: Vec<Commit>,
    users: BTreeMap<String, (u64, links::user::State)>,
    links: BTreeMap<(String, String), (u64, links::link::State)>,
}

impl Log {
    fn commit<A: Aggregate>(&mut self, stream: StreamId, version: u64, events: &[A::Event]) {
        let at = jiff::Timestamp::from_second(1_795_253_400 + self.commits.len() as i64).unwrap();
        self.commits.push(Commit {
            stream,
            version,
            events: events.iter().map(|event| encode::<A>(event).unwrap()).collect(),
            state: None,
            command: format!("c-{}", self.commits.len()),
            at,
            meta: Meta::default(),
        });
    }

    fn user(&mut self, user: &str, action: Action) {
        let context = Context { at: jiff::Timestamp::UNIX_EPOCH, actor: Some(user.to_owned()) };
        let command = links::user::Command { user_id: valid(user), action };
        let (version, state) = self.users.entry(user.to_owned()).or_insert((0, User::initial()));
        let events = User::decide(state, &command, &context).unwrap_or_default();
        if !events.is_empty() {
            *state = ledgerline::fold::<User>(state.clone(), &events);
            *version += 1;
            let version = *version;
            self.commit::<User>(StreamId::new("user", user).unwrap(), version, &events);
        }
    }

    fn rate(&mut self, user: &str, url: &str, rating: u8, more: bool) {
        let context = Context { at: jiff::Timestamp::UNIX_EPOCH, actor: Some(user.to_owned()) };
        let command = links::link::Command {
            user_id: valid(user),
            link_url: valid(url),
            rating: valid(rating),
            title: more.then(|| valid(format!("Title {rating}"))),
            image: None,
            tags: if more { vec![valid(format!("tag{rating}"))].try_into().ok() } else { None },
        };
        let key = (user.to_owned(), url.to_owned());
        let (version, state) = self.links.entry(key).or_insert((0, Link::initial()));
        let events = Link::decide(state, &command, &context).unwrap();
        if !events.is_empty() {
            *state = ledgerline::fold::<Link>(state.clone(), &events);
            *version += 1;
            let version = *version;
            self.commit::<Link>(
                StreamId::new("link", &link::id(user, url)).unwrap(),
                version,
                &events,
            );
        }
    }

    fn commits_in(&self, category: &[&str]) -> Vec<Commit> {
        let wanted = |commit: &&Commit| category.contains(&commit.stream.category());
        self.commits.iter().filter(wanted).cloned().collect()
    }

    /// Returns the feed of each user: the ratings of the users that the user follows.
    fn feeds(&self) -> BTreeSet<(String, String, String, u8)> {
        let mut feeds = BTreeSet::new();
        for (user, (_, state)) in &self.users {
            for ((author, url), (_, link)) in &self.links {
                let State::Registered(user_state) = state else { continue };
                if user_state.follows.contains_key(author) {
                    feeds.insert((user.clone(), author.clone(), url.clone(), link.rating.unwrap()));
                }
            }
        }
        feeds
    }
}

/// An action of a user.
#[derive(Debug, Clone)]
enum Step {
    Rate(usize, usize, u8, bool),
    Follow(usize, usize),
    Unfollow(usize, usize),
}

fn log(steps: &[Step]) -> Log {
    let mut log = Log::default();
    for user in USERS {
        log.user(user, Action::Register(valid(user), valid(format!("{user}@example.com"))));
    }
    for step in steps {
        match *step {
            Step::Rate(user, link, rating, more) => {
                log.rate(USERS[user], LINKS[link], rating, more)
            }
            Step::Follow(user, other) => log.user(USERS[user], Action::Follow(valid(USERS[other]))),
            Step::Unfollow(user, other) => {
                log.user(USERS[user], Action::Unfollow(valid(USERS[other])))
            }
        }
    }
    log
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..3_usize, 0..3_usize, 1..=5_u8, any::<bool>()).prop_map(|(u, l, r, m)| Step::Rate(u, l, r, m)),
        2 => (0..3_usize, 0..3_usize).prop_map(|(u, o)| Step::Follow(u, o)),
        1 => (0..3_usize, 0..3_usize).prop_map(|(u, o)| Step::Unfollow(u, o)),
    ];
    prop::collection::vec(step, 1..24)
}

/// The projector of feeds with its table, and the log behind it.
struct World {
    runner: QueueRunner<DynamoDbStore, FeedProjector>,
    client: Client,
    wire: Wire,
    crash: Crash,
}

impl World {
    async fn new(log: &[Commit]) -> Self {
        let dynamodb = ledgerline_testing::dynamodb(&["CommitsTable", "FeedsTable"]).await;
        let (wire, crash) = (Wire::default(), Crash::default());
        let config = Builder::from(&dynamodb.sdk_config())
            .retry_config(RetryConfig::disabled())
            .interceptor(crash.clone())
            .interceptor(wire.clone());
        let watched = Client::from_conf(config.build());
        let store = DynamoDbStore::new(watched.clone(), table("CommitsTable"));
        for commit in log {
            store.append(commit, None).await.unwrap();
        }
        wire.take();
        let table = LogRows::new(watched, table("FeedsTable"), feeds::TABLE);
        let runner = QueueRunner { store, consumer: FeedProjector { table } };
        Self { runner, client: Client::new(&dynamodb.sdk_config()), wire, crash }
    }

    async fn deliver(&self, commit: &Commit) -> Result<(), String> {
        let body = serde_json::to_string(&Message::Commit(Box::new(commit.clone()))).unwrap();
        self.runner.message(&body).await.map_err(|error| error.to_string())
    }

    /// Returns every item of the table except positions.
    async fn rows(&self) -> BTreeMap<Key, Fields> {
        let mut rows = BTreeMap::new();
        let mut start = None;
        loop {
            let scan =
                self.client.scan().table_name(table("FeedsTable")).set_exclusive_start_key(start);
            let page = scan.send().await.unwrap();
            for item in page.items.unwrap_or_default() {
                let row: Fields = serde_dynamo::from_item(item).unwrap();
                let key = |name: &str| row[name].as_str().unwrap().to_owned();
                rows.insert((key(feeds::TABLE.partition), key(feeds::TABLE.sort)), row);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                rows.retain(|key, _| key.1 != "#position");
                return rows;
            }
        }
    }
}

/// Delivers commits in this order, and then the head of every stream, so that no commit is missing
/// in the end.
async fn deliver_all(world: &World, commits: &[Commit], order: &[prop::sample::Index]) {
    for index in order {
        world.deliver(index.get(commits)).await.unwrap();
    }
    let last: BTreeMap<_, _> = commits.iter().map(|commit| (&commit.stream, commit)).collect();
    for commit in last.values() {
        world.deliver(commit).await.unwrap();
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// The sums of a link equal the sums over the states of all users' ratings.
    #[test]
    fn the_summary_of_a_link_counts_the_last_rating_of_each_user(steps in steps()) {
        let log = log(&steps);
        let mut rows = BTreeMap::new();
        for commit in log.commits_in(&["link"]) {
            (link_ratings::VIEW.changes)(&commit).unwrap().fold(&mut rows);
        }
        for url in LINKS {
            let ratings = log.links.iter().filter(|((_, rated), _)| rated == url);
            let ratings: Vec<_> =
                ratings.map(|(_, (_, state))| u64::from(state.rating.unwrap())).collect();
            let summary = rows.get(&(url.to_owned(), link_ratings::SUMMARY.to_owned()));
            let shown = summary.map(|row| (row["count"].clone(), row["sum"].clone()));
            let sum = ratings.iter().sum::<u64>();
            let expected = (!ratings.is_empty()).then(|| (json!(ratings.len()), json!(sum)));
            assert_eq!(shown, expected, "{url}");
        }
    }

    /// Rules 7 and 9 for the shown entries of the feeds. The entries depend on two categories, and
    /// the order between the categories does not matter.
    #[test]
    fn feeds_equal_the_fold_after_any_delivery(
        steps in steps(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let log = log(&steps);
        run(async {
            let world = World::new(&log.commits).await;
            deliver_all(&world, &log.commits, &order).await;
            assert_eq!(visible_ratings(&world).await, log.feeds());
        });
    }
}

/// Returns the ratings in the feed of each user, as the query shows them.
async fn visible_ratings(world: &World) -> BTreeSet<(String, String, String, u8)> {
    let rows = world.rows().await;
    let mut shown = BTreeSet::new();
    for user in USERS {
        let of = |partition: String| {
            rows.iter().filter(move |(key, _)| key.0 == partition).map(|(_, row)| row)
        };
        let following: BTreeMap<_, _> = of(feeds::followings_partition(user))
            .map(|row| serde_json::from_value::<feeds::Follow>(Value::Object(row.clone())).unwrap())
            .map(|follow| (follow.entry, follow.following))
            .collect();
        for row in of(feeds::feed_partition(user)) {
            let entry: feeds::Entry = serde_json::from_value(Value::Object(row.clone())).unwrap();
            if feeds::shown(&entry, &following) {
                let rating = &rows[&(feeds::ratings(&entry.author), entry.link.clone())];
                let new = shown.insert((
                    user.to_owned(),
                    entry.author,
                    rating["linkUrl"].as_str().unwrap().to_owned(),
                    u8::try_from(rating["rating"].as_u64().unwrap()).unwrap(),
                ));
                assert!(new, "{entry:?} is shown twice", entry = entry.entry);
            }
        }
    }
    shown
}

/// Rule 7: a slow instance continues with rows that it read before the following ended. Its entry
/// is in the table, and the feed does not show it. The late entry does not hide the entry of a new
/// following either.
#[tokio::test]
async fn a_late_entry_of_an_ended_following_is_not_shown() {
    let log = log(&[
        Step::Follow(0, 1),
        Step::Rate(1, 0, 4, false),
        Step::Unfollow(0, 1),
        Step::Follow(0, 1),
    ]);
    let world = World::new(&log.commits).await;
    for commit in &log.commits {
        world.deliver(commit).await.unwrap();
    }
    let rows = world.rows().await;
    let (_, entry) = rows.iter().find(|(key, _)| key.0 == feeds::feed_partition("ada")).unwrap();
    let entry: feeds::Entry = serde_json::from_value(Value::Object(entry.clone())).unwrap();
    let place = entry.entry.rsplit_once('#').unwrap().0;
    let late = feeds::Entry::new("ada", 1, "bob", place, &entry.link);
    world.runner.consumer.table.put_all(&[late]).await.unwrap();
    assert_eq!(visible_ratings(&world).await, log.feeds());
    assert_eq!(log.feeds().len(), 1);
}

/// A following adds the newest ratings, not all of them.
#[tokio::test]
async fn a_following_adds_the_recent_ratings() {
    let mut log = log(&[]);
    for n in 0..=feeds::RECENT {
        log.rate("bob", &format!("https://{n}.example/"), 3, false);
    }
    log.user("ada", Action::Follow(valid("bob")));
    let world = World::new(&log.commits).await;
    for commit in &log.commits {
        world.deliver(commit).await.unwrap();
    }
    let shown = visible_ratings(&world).await;
    assert_eq!(shown.len(), usize::try_from(feeds::RECENT).unwrap());
    assert!(shown.iter().all(|(_, _, url, _)| url != "https://0.example/"));
}

/// The cost of the end of a following grows with the entries that the following added, not with all
/// ratings of its author.
#[tokio::test]
async fn the_end_of_a_following_removes_its_entries_and_reads_no_further() {
    let mut log = log(&[]);
    for n in 0..3 * feeds::RECENT {
        log.rate("bob", &format!("https://{n}.example/"), 3, false);
    }
    log.user("ada", Action::Follow(valid("bob")));
    log.rate("bob", LINKS[0], 4, false);
    log.user("ada", Action::Unfollow(valid("bob")));
    let world = World::new(&log.commits).await;
    for commit in &log.commits {
        world.wire.take();
        world.deliver(commit).await.unwrap();
    }
    // The calls read the position and the row of the following, and then delete the 101 links, 25
    // in a call.
    let calls = world.wire.operations();
    let count = |name: &str| calls.iter().filter(|call| *call == name).count();
    assert_eq!((count("GetItem"), count("Query"), count("BatchWriteItem")), (2, 1, 5), "{calls:?}");
    let rows = world.rows().await;
    assert!(!rows.keys().any(|key| key.0.starts_with("feed#")));
}

/// A rating for 10,000 followers needs a bounded number of calls of bounded size. After a crash, it
/// needs only the calls for the pages after the stored progress.
#[tokio::test]
async fn a_rating_reaches_ten_thousand_followers_and_resumes_after_a_crash() {
    const FOLLOWERS: usize = 10_000;
    let mut log = log(&[]);
    log.rate("bob", LINKS[0], 4, true);
    let rating = log.commits_in(&["link"]).remove(0);
    let world = World::new(&log.commits).await;
    let follow = |n: usize| feeds::Follow {
        owner: feeds::followers("bob"),
        entry: format!("follower-{n:05}"),
        following: 1,
        from: None,
    };
    let followers: Vec<_> = (0..FOLLOWERS).map(follow).collect();
    world.runner.consumer.table.put_all(&followers).await.unwrap();
    world.wire.take();

    // The function crashes in the middle of the sixth thousand.
    world.crash.after(5 * 42 + 20);
    assert!(world.deliver(&rating).await.is_err());
    assert!(world.crash.recover());
    let first: Vec<_> = world.wire.operations();
    world.deliver(&rating).await.unwrap();
    let second = world.wire.operations();
    let count = |calls: &[String], name: &str| calls.iter().filter(|call| *call == name).count();
    // All followers need 400 calls. At most one page of 40 calls is repeated.
    let batches = count(&first, "BatchWriteItem") + count(&second, "BatchWriteItem");
    assert!((400..=440).contains(&batches), "{batches}");
    assert!(count(&second, "BatchWriteItem") <= 240, "it goes on from the mark");
    assert_eq!(count(&second, "TransactWriteItems"), 0, "it is not begun twice");
    assert!(second.len() < 300, "{}", second.len());

    let rows = world.rows().await;
    let feeds = rows.keys().filter(|key| key.0.starts_with("feed#")).count();
    assert_eq!(feeds, FOLLOWERS);
    // A second delivery is a duplicate, because the position is past the commit.
    world.deliver(&rating).await.unwrap();
    assert_eq!(world.wire.operations(), ["GetItem"]);
}

/// The budgets of the feeds, without a follower.
#[tokio::test]
async fn a_later_rating_is_one_write() {
    let mut log = log(&[]);
    log.rate("bob", LINKS[0], 4, true);
    log.rate("bob", LINKS[0], 5, true);
    let commits = log.commits_in(&["link"]);
    // A first rating needs a write to begin, a query for followers, and a write to end. A later
    // rating needs one write.
    let world = World::new(&commits).await;
    world.deliver(&commits[0]).await.unwrap();
    assert_eq!(world.wire.operations(), ["GetItem", "TransactWriteItems", "Query", "PutItem"]);
    world.deliver(&commits[1]).await.unwrap();
    assert_eq!(world.wire.operations(), ["TransactWriteItems"]);
}
