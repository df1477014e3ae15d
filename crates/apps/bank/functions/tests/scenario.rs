//! Accounts and transfers over HTTP, as clients use them, at `BASE_URL` or on a local stack.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod accounts;

use accounts::{assert_transactions, open_account};
use futures::future::join_all;
use ledgerline_testing::{Answer, Api, UnderTest, eventually, fresh_id};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// The requests and responses in the life of an account, from opening to closing.
#[tokio::test]
async fn an_account_is_opened_booked_on_and_closed() {
    let bank = UnderTest::start().await;
    let id = fresh_id();
    let account = format!("/accounts/{id}");

    // The account is opened once, under an id of the client's choice.
    let open = json!({ "accountId": &id, "owner": "Doe, Jane & Söhne", "currency": "EUR" });
    let opened = bank.post("/accounts", open.clone()).await;
    assert_eq!(opened.status, StatusCode::CREATED);
    assert_eq!(
        (opened.etag(), opened.headers["location"].as_str()),
        (Some("\"1\""), account.as_str())
    );
    assert_eq!(opened.body, json!({ "accountId": &id, "version": 1 }));
    let again = bank.post("/accounts", open).await;
    assert_eq!((again.status, again.problem()), (StatusCode::CONFLICT, "account-exists"));

    // The account is credited and debited, and the caller reads its own writes.
    let credited = bank
        .post(&format!("{account}/credits"), json!({ "amount": 5000, "reference": "salary" }))
        .await;
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
    assert_eq!((shown.status, shown.etag_version()), (StatusCode::OK, Some(3)));
    let tag = shown.etag().unwrap();
    for (field, expected) in [
        ("owner", json!("Doe, Jane & Söhne")),
        ("currency", json!("EUR")),
        ("totalBalance", json!(1000)),
        ("status", json!("open")),
        ("version", json!(3)),
    ] {
        assert_eq!(shown.body[field], expected, "{field}");
    }
    let known = bank.call(Method::GET, &account, &[("if-none-match", tag)], String::new()).await;
    assert_eq!((known.status, known.etag()), (StatusCode::NOT_MODIFIED, Some(tag)));

    let listed = bank.get(&format!("{account}/transactions?minVersion=3&limit=1")).await;
    let first = &listed.body["transactions"][0];
    for (field, expected) in [
        ("version", json!(3)),
        ("kind", json!("debit")),
        ("amount", json!(4000)),
        ("balance", json!(1000)),
    ] {
        assert_eq!(first[field], expected, "{field}");
    }
    let cursor = listed.body["cursor"].as_str().unwrap();
    let next = bank.get(&format!("{account}/transactions?limit=1&cursor={cursor}")).await;
    assert_eq!(next.body["transactions"][0]["reference"], "salary");

    let owned = eventually("the index shows it", async || {
        // The list is in order of ids, and earlier runs may have left accounts of the same owner.
        let mut path = "/accounts?owner=Doe%2C%20Jane%20%26%20S%C3%B6hne".to_owned();
        loop {
            let owned = bank.get(&path).await;
            assert_eq!(owned.status, StatusCode::OK, "{owned:?}");
            let rows = owned.body["accounts"].as_array().unwrap();
            if let Some(row) = rows.iter().find(|row| row["accountId"] == id) {
                return Some(row.clone());
            }
            let cursor = owned.body["cursor"].as_str()?;
            path = format!("/accounts?owner=Doe%2C%20Jane%20%26%20S%C3%B6hne&cursor={cursor}");
        }
    })
    .await;
    assert_eq!(owned["owner"], "Doe, Jane & Söhne");

    // Only an empty account can be closed. A closed account stays closed.
    let full = bank.post(&format!("{account}/close"), json!({})).await;
    assert_eq!(
        (full.status, full.problem()),
        (StatusCode::UNPROCESSABLE_ENTITY, "balance-not-zero")
    );
    bank.post(&format!("{account}/debits"), json!({ "amount": 1000 })).await;
    let closed = bank.call(Method::POST, &format!("{account}/close"), &[], String::new()).await;
    assert_eq!((closed.status, closed.version()), (StatusCode::OK, 5));
    for (path, body) in [
        ("credits", json!({ "amount": 1 })),
        ("debits", json!({ "amount": 1 })),
        ("close", json!({})),
    ] {
        let refused = bank.post(&format!("{account}/{path}"), body).await;
        assert_eq!(
            (refused.status, refused.problem()),
            (StatusCode::UNPROCESSABLE_ENTITY, "account-closed")
        );
    }
    let shown = bank.get(&format!("{account}?minVersion=5")).await;
    assert_eq!(shown.body["status"], "closed");
    assert_transactions(&bank, &id, 5).await;

    let unknown = format!("/accounts/{}", fresh_id());
    for missing in [
        bank.get(&unknown).await,
        bank.get(&format!("{unknown}/transactions")).await,
        bank.post(&format!("{unknown}/credits"), json!({ "amount": 1 })).await,
    ] {
        assert_eq!((missing.status, missing.problem()), (StatusCode::NOT_FOUND, "unknown-account"));
    }
}

#[tokio::test]
async fn a_retry_with_its_key_gets_the_first_response_and_adds_no_commit() {
    let bank = UnderTest::start().await;
    let id = open_account(&bank, 100).await;
    let path = format!("/accounts/{id}/debits");
    let key = fresh_id();
    let key = [("idempotency-key", key.as_str())];
    let first = bank.post_with(&path, &key, json!({ "amount": 100 })).await;
    assert_eq!((first.status, first.version()), (StatusCode::OK, 3));

    // The client retries the request several times in parallel, and once more after another
    // command.
    let same = |answer: &Answer| {
        (answer.status, answer.etag().map(ToOwned::to_owned), answer.body.clone())
    };
    let again =
        join_all((0..8).map(|_| bank.post_with(&path, &key, json!({ "amount": 100 })))).await;
    bank.post(&format!("/accounts/{id}/credits"), json!({ "amount": 500 })).await;
    let later = bank.call(Method::POST, &path, &key, "{ \"amount\":  100 }".into()).await;
    for answer in again.iter().chain([&later]) {
        assert_eq!(same(answer), same(&first));
        assert_eq!(answer.headers["idempotent-replayed"], "true");
    }
    let shown = bank.get(&format!("/accounts/{id}?minVersion=4")).await;
    assert_eq!((shown.version(), &shown.body["totalBalance"]), (4, &json!(500)));
}

#[tokio::test]
async fn an_invalid_request_gets_a_problem_that_names_the_field_and_adds_no_commit() {
    let bank = UnderTest::start().await;
    let id = open_account(&bank, 100).await;
    let credits = format!("/accounts/{id}/credits");
    let close = format!("/accounts/{id}/close");
    let long = "x".repeat(141);
    for (path, body, field) in [
        (&credits, "not json", Value::Null),
        (&credits, "{\"amount\":0}", json!("amount")),
        (&credits, "{\"amount\":1,\"colour\":\"red\"}", json!("colour")),
        (&credits, &format!("{{\"amount\":1,\"reference\":\"{long}\"}}"), json!("reference")),
        (&close, "{\"why\":\"because\"}", json!("why")),
        (&"/accounts".into(), "{\"owner\":\"\",\"currency\":\"EUR\"}", json!("owner")),
        (&"/accounts".into(), "{\"owner\":\"Ada\",\"currency\":\"ZZZ\"}", json!("currency")),
        (&"/accounts/1/credits".into(), "{\"amount\":1}", json!("id")),
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
    let next = bank.post_with(&credits, &[("if-match", "\"2\"")], json!({ "amount": 1 })).await;
    assert_eq!(next.version(), 3, "nothing of this was stored");
}

/// An account belongs to the caller who opened it. Other callers get the response for an account
/// that does not exist, and their commands are refused.
#[tokio::test]
async fn an_account_belongs_to_the_caller_who_opened_it() {
    let bank = UnderTest::start().await;
    let stranger = bank.stranger();
    let id = open_account(&bank, 100).await;
    let account = format!("/accounts/{id}");
    assert_eq!(bank.get(&format!("{account}?minVersion=2")).await.status, StatusCode::OK);

    // The account refuses every command of another caller, at every version.
    for (path, headers, body) in [
        ("credits", vec![], json!({ "amount": 1 })),
        ("debits", vec![], json!({ "amount": 1_000_000 })),
        ("debits", vec![("if-match", "\"1\"")], json!({ "amount": 1 })),
        ("close", vec![], json!({})),
    ] {
        let refused = stranger.post_with(&format!("{account}/{path}"), &headers, body).await;
        assert_eq!(
            (refused.status, refused.problem()),
            (StatusCode::FORBIDDEN, "not-your-account"),
            "{path}"
        );
        assert_eq!(refused.etag(), None);
    }
    for path in [account.clone(), format!("{account}/transactions")] {
        let hidden = stranger.get(&path).await;
        assert_eq!((hidden.status, hidden.problem()), (StatusCode::NOT_FOUND, "unknown-account"));
        let waited = stranger.get(&format!("{path}?minVersion=1")).await;
        assert_eq!(
            (waited.problem(), waited.etag()),
            ("read-model-behind", Some("\"0\"")),
            "{path}"
        );
    }
    let again = json!({ "accountId": &id, "owner": "Eve", "currency": "EUR" });
    let taken = stranger.post_with("/accounts", &[("if-match", "\"9\"")], again).await;
    assert_eq!(
        (taken.status, taken.problem(), taken.etag()),
        (StatusCode::CONFLICT, "account-exists", None)
    );
    let listed = stranger.get("/accounts?owner=Ada&limit=200").await;
    let listed = listed.body["accounts"].as_array().unwrap().clone();
    assert!(listed.iter().all(|row| row["accountId"] != id), "{listed:?}");

    // Two callers may use the same key: each gets its own response.
    let key = fresh_id();
    let key = [("idempotency-key", key.as_str())];
    let mine = bank.post_with(&format!("{account}/debits"), &key, json!({ "amount": 1 })).await;
    let theirs =
        stranger.post_with(&format!("{account}/debits"), &key, json!({ "amount": 1 })).await;
    assert_eq!((mine.status, theirs.status), (StatusCode::OK, StatusCode::FORBIDDEN));

    // A caller with the scope to read cannot write.
    let reader = bank.reader().await;
    assert_eq!(reader.post("/accounts", json!({})).await.status, StatusCode::FORBIDDEN);
    assert_eq!(
        reader.post(&format!("{account}/debits"), json!({ "amount": 1 })).await.body["message"],
        "Forbidden"
    );
    assert_eq!(reader.get("/accounts").await.status, StatusCode::OK);
    // Routes with the data of all callers require a scope of their own.
    for path in ["/events", "/bookings"] {
        assert_eq!(reader.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }

    if let UnderTest::There(api) = &bank {
        let anonymous = Api::new(api.url.clone(), None);
        assert_eq!(anonymous.get(&account).await.status, StatusCode::UNAUTHORIZED);
        assert_eq!(anonymous.post("/accounts", json!({})).await.status, StatusCode::UNAUTHORIZED);
    }
}

/// A transfer writes two accounts, one after the other. The money is never in both. If the receiver
/// refuses the credit, the transfer refunds the money.
#[tokio::test]
async fn money_is_transferred_or_refunded() {
    let bank = UnderTest::start().await;
    let other = bank.stranger();
    let from = open_account(&bank, 100).await;
    let to = open_account(&other, 0).await;
    let transfer = async |amount: i64, currency: &str| {
        let id = fresh_id();
        let body = json!({
            "transferId": &id, "fromAccountId": &from, "toAccountId": &to, "amount": amount, "currency": currency,
        });
        let requested = bank.post("/transfers", body).await;
        assert_eq!(
            (requested.status, &requested.body["status"]),
            (StatusCode::CREATED, &json!("requested"))
        );
        id
    };
    let ends = async |id: &str, status: &str, reason: Option<&str>| {
        let answer = eventually(&format!("the transfer is {status}"), async || {
            let answer = bank.get(&format!("/transfers/{id}")).await;
            (answer.body["status"] == status).then_some(answer)
        })
        .await;
        assert_eq!(answer.body["reason"].as_str(), reason);
    };
    let balance = async |api: &Api, id: &str, version: u64| {
        api.get(&format!("/accounts/{id}?minVersion={version}")).await.body["totalBalance"]
            .as_i64()
            .unwrap()
    };
    let arrives = transfer(30, "EUR").await;
    ends(&arrives, "completed", None).await;
    assert_eq!((balance(&bank, &from, 3).await, balance(&other, &to, 2).await), (70, 30));
    assert_eq!(other.get(&format!("/transfers/{arrives}")).await.problem(), "unknown-transfer");

    ends(&transfer(71, "EUR").await, "refused", Some("insufficient-funds")).await;
    ends(&transfer(1, "USD").await, "refused", Some("other-currency")).await;
    other.post(&format!("/accounts/{to}/debits"), json!({ "amount": 30 })).await;
    other.post(&format!("/accounts/{to}/close"), json!({})).await;
    ends(&transfer(70, "EUR").await, "refunded", Some("not-accepted")).await;
    assert_eq!(balance(&bank, &from, 5).await, 70);
    let to_itself =
        json!({ "fromAccountId": &from, "toAccountId": &from, "amount": 1, "currency": "EUR" });
    assert_eq!(bank.post("/transfers", to_itself).await.problem(), "same-account");
}

/// A user outside the group of operators gets 403, even with a token that has the scope of
/// operators.
#[tokio::test]
async fn only_an_operator_settles_a_transfer() {
    // Given a transfer,
    let bank = UnderTest::start().await;
    let [other, to] = [open_account(&bank, 5).await, open_account(&bank, 0).await];
    let id = fresh_id();
    let body = json!({
        "transferId": &id, "fromAccountId": &other, "toAccountId": &to, "amount": 1, "currency": "EUR",
    });
    assert_eq!(bank.post("/transfers", body).await.status, StatusCode::CREATED);
    let settle = async |api: &Api| {
        let body = json!({ "toAccountId": &other, "reason": "agreed with the customer" });
        api.post(&format!("/transfers/{id}/settlements"), body).await
    };
    // when callers who are not operators settle it,
    assert_eq!(settle(&bank.no_operator().await).await.problem(), "not-an-operator");
    // then they are refused, as they are without the scope,
    let status = async |api: Api| {
        let republications = api
            .post(&format!("/accounts/{other}/republications"), json!({ "reason": "a try" }))
            .await;
        (settle(&api).await.status, republications.status)
    };
    let forbidden = (StatusCode::FORBIDDEN, StatusCode::FORBIDDEN);
    assert_eq!(status(bank.reader().await).await, forbidden);
    assert_eq!(status(bank.reader_of_events().await).await, forbidden);
    // and an operator may, if the transfer is stuck.
    assert_eq!(settle(&bank.operator().await).await.problem(), "transfer-not-stuck");
}

#[tokio::test]
async fn a_program_reads_the_events_of_all_callers_and_a_user_does_not() {
    let bank = UnderTest::start().await;
    let id = open_account(&bank, 7).await;
    let program = bank.reader_of_events().await;
    eventually("the events are in the order", async || {
        let mut after = "beginning".to_owned();
        loop {
            let page =
                program.get(&format!("/events?category=account&limit=1000&after={after}")).await;
            assert_eq!(page.status, StatusCode::OK, "{page:?}");
            let commits = page.body["commits"].as_array().unwrap();
            if commits.iter().any(|commit| commit["stream"] == format!("account-{id}")) {
                return Some(());
            }
            if page.body["complete"] == true {
                return None;
            }
            after = page.body["cursor"].as_str().unwrap().to_owned();
        }
    })
    .await;
    for api in [bank.reader().await, bank.operator().await, bank.no_operator().await] {
        assert_eq!(api.get("/events").await.status, StatusCode::FORBIDDEN);
        assert_eq!(api.get("/bookings").await.status, StatusCode::FORBIDDEN);
    }
}
