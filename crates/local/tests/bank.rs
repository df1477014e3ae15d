//! The bank as its users have it: over HTTP, against the program that `cargo run -p local` runs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod running;

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use reqwest::{Method, StatusCode};
use running::{Local, eventually};
use serde_json::{Value, json};

/// The table of requests and answers, from opening an account to closing it.
#[tokio::test]
async fn an_account_lives_from_opening_to_closing() {
    let bank = Local::start(None).await;
    let id = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
    let account = format!("/accounts/{id}");

    // Opened once, under an id of the client's choice.
    let open = json!({ "accountId": id, "owner": "Doe, Jane & Söhne", "currency": "EUR" });
    let opened = bank.post("/accounts", open.clone()).await;
    assert_eq!(opened.status, StatusCode::CREATED);
    assert_eq!((opened.etag(), opened.headers["location"].as_str()), (Some("\"1\""), account.as_str()));
    assert_eq!(opened.body, json!({ "accountId": id, "version": 1 }));
    let again = bank.post("/accounts", open).await;
    assert_eq!((again.status, again.problem()), (StatusCode::CONFLICT, "account-exists"));

    // Credited and debited; the caller reads what was written.
    let credited =
        bank.post(&format!("{account}/credits"), json!({ "amount": 5000, "reference": "salary" })).await;
    assert_eq!((credited.status, credited.etag()), (StatusCode::OK, Some("\"2\"")));
    assert_eq!(credited.body, json!({ "version": 2, "totalBalance": 5000 }));
    let too_much = bank.post(&format!("{account}/debits"), json!({ "amount": 5001 })).await;
    assert_eq!(
        (too_much.status, too_much.problem()),
        (StatusCode::UNPROCESSABLE_ENTITY, "insufficient-funds")
    );
    let debited = bank.post(&format!("{account}/debits"), json!({ "amount": 4000 })).await;
    assert_eq!(debited.body, json!({ "version": 3, "totalBalance": 1000 }));

    let shown = bank.get(&format!("{account}?minVersion=3")).await;
    assert_eq!((shown.status, shown.etag()), (StatusCode::OK, Some("\"3\"")));
    for (field, expected) in [
        ("owner", json!("Doe, Jane & Söhne")),
        ("currency", json!("EUR")),
        ("totalBalance", json!(1000)),
        ("lastMonthBalance", json!(1000)),
        ("status", json!("open")),
        ("version", json!(3)),
    ] {
        assert_eq!(shown.body[field], expected, "{field}");
    }
    let known = bank.call(Method::GET, &account, &[("if-none-match", "\"3\"")], String::new()).await;
    assert_eq!((known.status, known.etag()), (StatusCode::NOT_MODIFIED, Some("\"3\"")));
    let outdated = bank.call(Method::GET, &account, &[("if-none-match", "\"2\"")], String::new()).await;
    assert_eq!(outdated.status, StatusCode::OK);

    let listed = bank.get(&format!("{account}/transactions?minVersion=3&limit=1")).await;
    let first = &listed.body["transactions"][0];
    for (field, expected) in
        [("version", json!(3)), ("kind", json!("debit")), ("amount", json!(4000)), ("balance", json!(1000))]
    {
        assert_eq!(first[field], expected, "{field}");
    }
    let cursor = listed.body["cursor"].as_str().unwrap();
    let next = bank.get(&format!("{account}/transactions?limit=1&cursor={cursor}")).await;
    assert_eq!(next.body["transactions"][0]["reference"], "salary");

    let owned = eventually("the index shows it", async || {
        let owned = bank.get("/accounts?owner=Doe%2C%20Jane%20%26%20S%C3%B6hne").await;
        owned.body["accounts"][0].is_object().then_some(owned.body)
    })
    .await;
    assert_eq!(owned["accounts"][0]["accountId"], id);

    // If-Match is honoured on every command.
    let stale =
        bank.post_with(&format!("{account}/credits"), &[("if-match", "\"2\"")], json!({ "amount": 1 })).await;
    assert_eq!((stale.status, stale.problem()), (StatusCode::PRECONDITION_FAILED, "precondition-failed"));
    assert_eq!((stale.etag(), &stale.body["version"]), (Some("\"3\""), &json!(3)));
    let matched = bank
        .post_with(&format!("{account}/debits"), &[("if-match", "\"3\"")], json!({ "amount": 999 }))
        .await;
    assert_eq!(matched.version(), 4);

    // Closed when it is empty, and then for good.
    let full = bank.post(&format!("{account}/close"), json!({})).await;
    assert_eq!((full.status, full.problem()), (StatusCode::UNPROCESSABLE_ENTITY, "balance-not-zero"));
    bank.post(&format!("{account}/debits"), json!({ "amount": 1 })).await;
    let closed = bank.call(Method::POST, &format!("{account}/close"), &[], String::new()).await;
    assert_eq!((closed.status, closed.version()), (StatusCode::OK, 6));
    for (path, body) in
        [("credits", json!({ "amount": 1 })), ("debits", json!({ "amount": 1 })), ("close", json!({}))]
    {
        let refused = bank.post(&format!("{account}/{path}"), body).await;
        assert_eq!((refused.status, refused.problem()), (StatusCode::UNPROCESSABLE_ENTITY, "account-closed"));
    }
    let shown = bank.get(&format!("{account}?minVersion=6")).await;
    assert_eq!(shown.body["status"], "closed");
    bank.settled(id).await;

    // What is not there.
    let nobody = "/accounts/00000000-0000-4000-8000-000000000000";
    for path in [nobody.to_owned(), format!("{nobody}/transactions")] {
        let missing = bank.get(&path).await;
        assert_eq!((missing.status, missing.problem()), (StatusCode::NOT_FOUND, "unknown-account"));
    }
    let missing = bank.post(&format!("{nobody}/credits"), json!({ "amount": 1 })).await;
    assert_eq!((missing.status, missing.problem()), (StatusCode::NOT_FOUND, "unknown-account"));
    let behind = bank.get(&format!("{account}?minVersion=7")).await;
    assert_eq!((behind.status, behind.problem()), (StatusCode::SERVICE_UNAVAILABLE, "read-model-behind"));
    assert_eq!(behind.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_request_sent_again_with_its_key_gets_its_first_answer_and_makes_one_commit() {
    let bank = Local::start(None).await;
    let id = bank.account(100).await;
    let path = format!("/accounts/{id}/debits");
    let key = [("idempotency-key", "8e03978e-40d5-43e8-bc93-6894a57f9324")];
    let first = bank.post_with(&path, &key, json!({ "amount": 100 })).await;
    assert_eq!((first.status, first.version()), (StatusCode::OK, 3));

    // At once, several times in parallel; then after other commands went by.
    let same =
        |answer: &running::Answer| (answer.status, answer.etag().map(ToOwned::to_owned), answer.body.clone());
    let again = join_all((0..8).map(|_| bank.post_with(&path, &key, json!({ "amount": 100 })))).await;
    bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 500 })).await;
    let later = bank.call(Method::POST, &path, &key, "{ \"amount\":  100 }".into()).await;
    for answer in again.iter().chain([&later]) {
        assert_eq!(same(answer), same(&first));
        assert_eq!(answer.headers["idempotent-replayed"], "true");
    }
    assert_eq!(bank.log(&id).await.len(), 4);

    let other = bank.post_with(&path, &key, json!({ "amount": 99 })).await;
    assert_eq!((other.status, other.problem()), (StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused"));

    // A creation without an id of its own: the same account, not a second one. And a refusal stays one.
    let key = [("idempotency-key", "open-1")];
    let opened = bank.post_with("/accounts", &key, json!({ "owner": "Bob", "currency": "USD" })).await;
    let again = bank.post_with("/accounts", &key, json!({ "owner": "Bob", "currency": "USD" })).await;
    assert_eq!((same(&opened), &opened.headers["location"]), (same(&again), &again.headers["location"]));
    let key = [("idempotency-key", "too-much")];
    let refused = bank.post_with(&path, &key, json!({ "amount": 501 })).await;
    assert_eq!(refused.problem(), "insufficient-funds");
    bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 500 })).await;
    assert_eq!(same(&bank.post_with(&path, &key, json!({ "amount": 501 })).await), same(&refused));
}

#[tokio::test]
async fn bad_input_is_answered_with_a_problem_that_names_the_field_and_makes_no_commit() {
    let bank = Local::start(None).await;
    let id = bank.account(100).await;
    let (credits, close) = (format!("/accounts/{id}/credits"), format!("/accounts/{id}/close"));
    let long = "x".repeat(141);
    for (path, body, field) in [
        (&credits, "not json", Value::Null),
        (&credits, "", Value::Null),
        (&credits, "[1]", Value::Null),
        (&credits, "{\"amount\":1", Value::Null),
        (&credits, "{}", json!("amount")),
        (&credits, "{\"amount\":\"1\"}", json!("amount")),
        (&credits, "{\"amount\":null}", json!("amount")),
        (&credits, "{\"amount\":-1}", json!("amount")),
        (&credits, "{\"amount\":0}", json!("amount")),
        (&credits, "{\"amount\":1.5}", json!("amount")),
        (&credits, "{\"amount\":1e3}", json!("amount")),
        (&credits, "{\"amount\":9007199254740992}", json!("amount")),
        (&credits, "{\"amount\":99999999999999999999999999}", json!("amount")),
        (&credits, "{\"amount\":1,\"amount\":2}", json!("amount")),
        (&credits, "{\"amount\":1,\"colour\":\"red\"}", json!("colour")),
        (&credits, &format!("{{\"amount\":1,\"reference\":\"{long}\"}}"), json!("reference")),
        (&credits, "{\"amount\":1,\"reference\":\"a\\u0000b\"}", json!("reference")),
        (&close, "{\"why\":\"because\"}", json!("why")),
        (&"/accounts".into(), "{\"owner\":\"\",\"currency\":\"EUR\"}", json!("owner")),
        (&"/accounts".into(), "{\"owner\":\"Ada\",\"currency\":\"euro\"}", json!("currency")),
        (
            &"/accounts".into(),
            "{\"accountId\":\"1\",\"owner\":\"Ada\",\"currency\":\"EUR\"}",
            json!("accountId"),
        ),
        (&"/accounts/1/credits".into(), "{\"amount\":1}", json!("id")),
        (&"/accounts/..%2F..%2Fetc/credits".into(), "{\"amount\":1}", json!("id")),
        (&"/accounts/%00%ff/credits".into(), "{\"amount\":1}", json!("id")),
        (&format!("/accounts/{{{id}}}/credits"), "{\"amount\":1}", json!("id")),
    ] {
        let answer = bank.call(Method::POST, path, &[], body.to_owned()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}: {answer:?}");
        assert_eq!(
            (answer.problem(), &answer.body["field"]),
            ("invalid-request", &field),
            "{path} {body}: {answer:?}"
        );
        assert!(answer.body["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    }
    let large =
        bank.call(Method::POST, &credits, &[], format!("{{\"amount\":1{}}}", " ".repeat(70_000))).await;
    assert_eq!((large.status, large.problem()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    let key = "k".repeat(129);
    let keyed = bank.post_with(&credits, &[("idempotency-key", &key)], json!({ "amount": 1 })).await;
    assert_eq!((keyed.status, &keyed.body["field"]), (StatusCode::BAD_REQUEST, &json!("Idempotency-Key")));
    for (query, field) in [
        ("transactions?limit=0", "limit"),
        ("transactions?limit=ten", "limit"),
        ("transactions?cursor=zzz", "cursor"),
        ("transactions?minVersion=-1", "minVersion"),
    ] {
        let answer = bank.get(&format!("/accounts/{id}/{query}")).await;
        assert_eq!(
            (answer.status, &answer.body["field"]),
            (StatusCode::BAD_REQUEST, &json!(field)),
            "{query}"
        );
    }
    let answer = bank.get("/accounts").await;
    assert_eq!((answer.status, &answer.body["field"]), (StatusCode::BAD_REQUEST, &json!("owner")));
    assert_eq!(bank.log(&id).await.len(), 2, "nothing of this was stored");
}

/// 64 clients, each of whom comes back when told to, take what there is and not a cent more.
#[tokio::test]
async fn sixty_four_clients_debit_one_account_at_once() {
    let bank = Local::start(None).await;
    let id = bank.account(50).await;
    let debit = async |client: usize| -> Option<u64> {
        loop {
            let reference = format!("client {client}");
            let answer = bank
                .post(&format!("/accounts/{id}/debits"), json!({ "amount": 1, "reference": reference }))
                .await;
            match answer.status {
                StatusCode::OK => return Some(answer.version()),
                StatusCode::UNPROCESSABLE_ENTITY => {
                    assert_eq!(answer.problem(), "insufficient-funds");
                    return None;
                }
                StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE => {}
                other => panic!("{other}: {answer:?}"),
            }
        }
    };
    let mut acknowledged: Vec<_> = join_all((0..64).map(debit)).await.into_iter().flatten().collect();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, (3..=52).collect::<Vec<_>>(), "fifty debits, each with a version of its own");
    assert_eq!(bank.state(&id).await.1.total_balance, 0);
    assert_eq!(bank.log(&id).await.len(), 52);
    bank.settled(&id).await;
}

/// Rule 11: what cannot be read is set aside with its place in the log, and everybody else goes on.
#[tokio::test]
async fn a_poisoned_record_goes_to_the_dead_letters_and_blocks_nobody() {
    let bank = Local::start(None).await;
    let id = bank.account(1).await;
    // Nothing in the product can write this; an operator with a console can.
    bank.damage("account-00000000-0000-4000-8000-000000000000").await;
    let credited = bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
    assert_eq!(credited.status, StatusCode::OK);
    bank.settled(&id).await;
    let letter = eventually("the dead letter arrives", async || bank.dead_letter().await).await;
    assert_eq!(letter["stream"], "account-00000000-0000-4000-8000-000000000000");
    assert_eq!(letter["version"], 1);
    assert!(letter["reason"].as_str().is_some_and(|reason| reason.contains("events")), "{letter}");
}

/// Each function is killed until an invocation of it was cut off in the middle, while credits go through.
#[tokio::test]
async fn functions_killed_in_the_middle_of_a_batch_lose_nothing_and_double_nothing() {
    let bank = Local::start(None).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bank.account(1).await);
    }
    for function in ["fanout", "balances-projector", "transactions-projector"] {
        let cut_off = AtomicBool::new(false);
        let credits = join_all(ids.iter().map(async |id| {
            while !cut_off.load(Ordering::Relaxed) {
                let answer = bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 1 })).await;
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            }
        }));
        let kill = async {
            let mut line = 0;
            while !bank.was_cut_off(function) {
                eventually("it works", async || bank.worked_since(function, line).then_some(())).await;
                line = bank.kill_instances(function);
                eventually("it is seen to be gone", async || {
                    (bank.was_cut_off(function) || bank.worked_since(function, line)).then_some(())
                })
                .await;
            }
            cut_off.store(true, Ordering::Relaxed);
        };
        tokio::join!(credits, kill);
    }
    for id in &ids {
        bank.settled(id).await;
    }
}

#[tokio::test]
async fn a_stack_that_was_killed_goes_on_with_its_data() {
    let data = tempfile::tempdir().unwrap();
    let bank = Local::start(Some(data.path())).await;
    let id = bank.account(1).await;
    let path = format!("/accounts/{id}/credits");
    let key = [("idempotency-key", "before-the-cut")];
    let before = bank.post_with(&path, &key, json!({ "amount": 1 })).await;
    for _ in 0..20 {
        assert_eq!(bank.post(&path, json!({ "amount": 1 })).await.status, StatusCode::OK);
    }
    // At once: most of it has not reached the read models yet.
    bank.kill();

    let bank = Local::start(Some(data.path())).await;
    assert_eq!(bank.state(&id).await.1.total_balance, 22);
    bank.settled(&id).await;
    let again = bank.post_with(&path, &key, json!({ "amount": 1 })).await;
    assert_eq!((again.etag(), &again.body), (before.etag(), &before.body));
    bank.kill();

    // Everything is settled: a third start has nothing to repair.
    let bank = Local::start(Some(data.path())).await;
    assert_eq!(bank.post(&path, json!({ "amount": 1 })).await.version(), 24);
    bank.settled(&id).await;
}
