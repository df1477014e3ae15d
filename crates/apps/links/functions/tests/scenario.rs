//! Users, ratings and feeds over HTTP, as clients use them, at `BASE_URL` or on a local stack.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use ledgerline_testing::{Api, UnderTest, eventually, fresh_id, subject};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// The project Beenion: ratings, follows and feeds.
#[tokio::test]
async fn a_feed_has_the_ratings_of_the_followed_users() {
    let links = UnderTest::start().await;
    let me = links.me();
    let other = links.stranger();
    let bob = subject(&other).unwrap_or_else(|| "somebody-else".to_owned());
    for (api, id, name) in [(&*links, &me, "Ada"), (&other, &bob, "Bob")] {
        let registered = api
            .post("/users", json!({ "name": name, "email": "success@simulator.amazonses.com" }))
            .await;
        // An earlier run may have registered the users.
        assert!(
            [StatusCode::CREATED, StatusCode::CONFLICT].contains(&registered.status),
            "{registered:?}"
        );
        if registered.status == StatusCode::CREATED {
            assert_eq!(registered.body["userId"], **id);
        }
    }
    let follow = async |method: Method| {
        let path = format!("/users/{me}/follows/{bob}");
        links.call(method, &path, &[], String::new()).await
    };
    assert_eq!(follow(Method::DELETE).await.status, StatusCode::OK);
    let url = format!("https://example.com/{}", fresh_id());
    let rate = async |api: &Api, id: &str, body: Value| {
        api.post(&format!("/users/{id}/ratings"), body).await
    };
    let rated =
        rate(&other, &bob, json!({ "linkUrl": &url, "rating": 4, "title": "It", "tags": ["x"] }))
            .await;
    assert_eq!((rated.status, rated.version()), (StatusCode::OK, 1), "{rated:?}");
    assert_eq!(
        rate(&links, &bob, json!({ "linkUrl": &url, "rating": 1 })).await.problem(),
        "not-you"
    );
    for (body, field) in [
        (json!({ "linkUrl": &url, "rating": 6 }), "rating"),
        (json!({ "linkUrl": "ftp://x", "rating": 1 }), "linkUrl"),
        (json!({ "linkUrl": &url }), "rating"),
    ] {
        assert_eq!(rate(&links, &me, body).await.body["field"], field);
    }

    let feed = format!("/users/{me}/feed");
    let in_feed = async || {
        let feed = links.get(&format!("{feed}?limit=200")).await;
        assert_eq!(feed.status, StatusCode::OK, "{feed:?}");
        feed.body["feed"].as_array().unwrap().iter().find(|entry| entry["linkUrl"] == *url).cloned()
    };
    assert_eq!(in_feed().await, None);
    // A following adds the existing ratings, and a repeated following changes nothing.
    let followed = follow(Method::PUT).await;
    assert_eq!(follow(Method::PUT).await.version(), followed.version());
    let entry = eventually("it is brought in", async || in_feed().await).await;
    assert_eq!(
        (&entry["userId"], &entry["rating"], &entry["title"]),
        (&json!(bob), &json!(4), &json!("It"))
    );
    // The projector adds later ratings to the feed too. A second rating of a link replaces the
    // first one in the feed.
    rate(&other, &bob, json!({ "linkUrl": &url, "rating": 2 })).await;
    eventually("it is rated again", async || in_feed().await.filter(|entry| entry["rating"] == 2))
        .await;
    let newer = format!("https://example.com/{}", fresh_id());
    rate(&other, &bob, json!({ "linkUrl": &newer, "rating": 5 })).await;
    let newest = eventually("the newest is first", async || {
        let page = links.get(&format!("{feed}?limit=1")).await;
        (page.body["feed"][0]["linkUrl"] == *newer).then_some(page)
    })
    .await;
    let cursor = newest.body["cursor"].as_str().expect("there is more");
    assert_eq!(
        links.get(&format!("{feed}?limit=1&cursor={cursor}")).await.body["feed"][0]["linkUrl"],
        *url
    );
    let follows = format!("/users/{me}/follows");
    let followings = async || links.get(&follows).await.body["follows"].clone();
    assert_eq!(followings().await, json!([{ "userId": bob }]));
    for path in [&feed, &follows] {
        assert_eq!(other.get(path).await.problem(), "not-you");
    }

    // The average counts each user once.
    rate(&links, &me, json!({ "linkUrl": &url, "rating": 5 })).await;
    let of_link = format!("/links/ratings?url={url}");
    eventually("both count once", async || {
        let all = links.get(&of_link).await.body;
        (all["count"] == 2 && all["average"] == 3.5 && all["ratings"].as_array()?.len() == 2)
            .then_some(())
    })
    .await;
    let mine = links.get(&format!("/users/{me}/ratings?limit=200")).await;
    let mine = mine.body["ratings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rating| rating["linkUrl"] == *url)
        .count();
    assert_eq!(mine, 1);

    follow(Method::DELETE).await;
    eventually("it is gone", async || in_feed().await.is_none().then_some(())).await;
    assert_eq!(followings().await, json!([]));
}
