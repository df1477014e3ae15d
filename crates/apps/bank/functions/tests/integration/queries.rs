//! The queries of accounts answer the sample events from real tables.

use std::{process::Command, time::Duration};

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use aws_sdk_dynamodb::Client;
use bank::{
    account::{Account, Opened, State},
    views::{balances, transactions},
};
use bank_functions::queries::account::routes;
use http::StatusCode;
use ledgerline::Aggregate;
use ledgerline_dynamodb::{CommitChanges, DynamoDbStore, LogRows, StateRows};
use ledgerline_lambda::{
    http::{Problem, Response, Routes},
    queries::{Patience, Queries, Views},
};
use serde_json::{Value, json};

const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";
/// The subject of the token in the samples.
const CALLER: &str = "2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10";

async fn queries() -> Queries {
    let dynamodb =
        ledgerline_testing::dynamodb(&["BalancesTable", "CommitsTable", "TransactionsTable"]).await;
    let client = Client::new(&dynamodb.sdk_config());
    let balances_table = ledgerline_testing::table("BalancesTable");
    let balances = StateRows::new(client.clone(), &*balances_table, balances::TABLE);
    let transactions_table = ledgerline_testing::table("TransactionsTable");
    let transactions = LogRows::new(client.clone(), &*transactions_table, transactions::TABLE);
    let log = DynamoDbStore::new(client.clone(), ledgerline_testing::table("CommitsTable"));
    let state = State::Open(Opened {
        owner: "Ada".into(),
        opened_by: Some(CALLER.into()),
        total_balance: 7,
        ..Opened::default()
    });
    balances.put_newer(&balances::row(ID, 1, state).unwrap(), 1).await.unwrap();
    let row = transactions::Row {
        account_id: ID.into(),
        entry: "1".into(),
        version: 1,
        kind: transactions::Kind::Credit,
        amount: 7,
        balance: 7,
        reference: None,
        booked_on: jiff::civil::date(2026, 11, 21),
        at: jiff::Timestamp::UNIX_EPOCH,
    };
    let mut changes = ledgerline::Changes::new(transactions::TABLE);
    changes.put(&row).unwrap();
    let stream = &Account::stream(ID).unwrap();
    transactions.deliver(CommitChanges { stream, version: 1, changes }).await.unwrap();
    let views = Views::new(Patience::new(Duration::from_millis(60), log));
    let views = views.with_table(balances::TABLE, client.clone(), balances_table);
    let views = views.with_table(transactions::TABLE, client, transactions_table);
    Queries { routes: routes(), views }
}

fn sample(name: &str) -> Value {
    let path =
        format!("{}/../../../../events/account-queries/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

async fn ask(event: Value) -> Result<Response, Problem> {
    let request: ApiGatewayV2httpRequest = serde_json::from_value(event).unwrap();
    queries().await.handle(&request.into()).await
}

#[tokio::test]
async fn the_queries_answer_the_samples() {
    let account = ask(sample("account")).await.unwrap();
    assert_eq!(
        (account.status, &account.body.unwrap()["totalBalance"]),
        (StatusCode::OK, &json!(7))
    );
    let transactions = ask(sample("transactions")).await.unwrap().body.unwrap();
    assert_eq!(transactions["transactions"][0]["amount"], 7);
    let accounts = ask(sample("accounts")).await.unwrap().body.unwrap();
    assert_eq!(accounts["accounts"][0]["accountId"], ID);
}

#[tokio::test]
async fn another_caller_gets_the_response_for_an_account_that_does_not_exist() {
    for name in ["account", "transactions"] {
        let mut event = sample(name);
        event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = json!("somebody-else");
        for query in ["", "minVersion=1", "minVersion=99"] {
            event["rawQueryString"] = json!(query);
            let theirs = ask(event.clone()).await.unwrap_err();
            let mut nobodys = event.clone();
            nobodys["pathParameters"]["id"] = json!("00000000-0000-4000-8000-000000000000");
            assert_eq!(theirs, ask(nobodys).await.unwrap_err(), "{name}?{query}");
        }
    }
    let mut event = sample("accounts");
    event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = json!("somebody-else");
    assert_eq!(ask(event).await.unwrap().body, Some(json!({ "accounts": [] })));
}

/// An API deployed without its authorizer must not answer requests without a caller.
#[tokio::test]
async fn a_request_without_a_caller_is_refused() {
    for name in ["account", "transactions", "accounts"] {
        let mut event = sample(name);
        event["requestContext"].as_object_mut().unwrap().remove("authorizer");
        let problem = ask(event).await.unwrap_err();
        assert_eq!(
            (problem.status, problem.code),
            (StatusCode::UNAUTHORIZED, "unauthenticated"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn accounts_are_listed_by_owner_and_not_by_the_prefix_of_a_name() {
    for (query, expected) in [("", 1), ("owner=Ada", 1), ("owner=Ad", 0), ("owner=Adam", 0)] {
        let mut event = sample("accounts");
        event["rawQueryString"] = json!(query);
        let body = ask(event).await.unwrap().body.unwrap();
        assert_eq!(body["accounts"].as_array().unwrap().len(), expected, "{query}");
    }
}

/// DynamoDB refuses an exclusive start key outside of the queried keys. Without an earlier check of
/// the cursor, the client would get the problem of an outage.
#[tokio::test]
async fn a_cursor_of_another_owners_list_is_refused() {
    let mut event = sample("accounts");
    event["rawQueryString"] = json!("owner=Ada&limit=1");
    let page = ask(event).await.unwrap().body.unwrap();
    let cursor = page["cursor"].as_str().unwrap();
    for (owner, expected) in [("Ada", None), ("Bob", Some("cursor"))] {
        let mut event = sample("accounts");
        event["rawQueryString"] = json!(format!("owner={owner}&cursor={cursor}"));
        assert_eq!(
            ask(event).await.err().and_then(|problem| problem.field).as_deref(),
            expected,
            "{owner}"
        );
    }
}

#[tokio::test]
async fn a_version_that_is_not_shown_in_time_is_reported_as_missing() {
    for name in ["account", "transactions"] {
        let mut event = sample(name);
        event["rawQueryString"] = json!("minVersion=1");
        assert_eq!(ask(event.clone()).await.unwrap().status, StatusCode::OK);
        event["rawQueryString"] = json!("minVersion=2");
        let problem = ask(event).await.unwrap_err();
        assert_eq!(
            (problem.status, problem.code),
            (StatusCode::SERVICE_UNAVAILABLE, "read-model-behind")
        );
        assert_eq!(problem.version, Some(1));
    }
}

/// Starts a function with this environment, and returns the first line of its log. The function
/// must exit with an error.
fn first_log_line(environment: &[(&str, &str)]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_account-queries"))
        .env_clear()
        .envs(environment.iter().copied())
        .env("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:1")
        .output()
        .unwrap();
    assert!(!output.status.success());
    serde_json::from_slice(output.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap()
}

#[test]
fn a_function_without_its_configuration_names_the_variable_and_exits() {
    let line = first_log_line(&[("BALANCES_TABLE", "b")]);
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["error"], "the environment variable `TRANSACTIONS_TABLE` is not set");
    assert!(line["timestamp"].as_str().is_some_and(|time| time.parse::<jiff::Timestamp>().is_ok()));
}

/// The check of the wiring compares the template with this output.
#[test]
fn a_function_prints_its_manifest() {
    let output = Command::new(env!("CARGO_BIN_EXE_account-queries"))
        .env_clear()
        .arg("--manifest")
        .output()
        .unwrap();
    let manifest: Value = serde_json::from_slice(&output.stdout).unwrap();
    let routes = manifest["source"]["http"].as_array().unwrap();
    assert!(
        routes.contains(&json!({ "route": "GET /accounts/{id}/transactions", "scope": "read" }))
    );
    assert_eq!(manifest["tables"][0]["indexes"][0]["name"], "ofOpener");
    let variables = [
        "BALANCES_TABLE",
        "COMMITS_TABLE",
        "PROBLEM_TYPES",
        "READ_YOUR_WRITE_TIMEOUT_MS",
        "TRANSACTIONS_TABLE",
    ];
    assert_eq!(manifest["variables"], json!(variables));
}

/// On AWS, a development user would admit every caller as one user.
#[test]
fn a_development_user_is_for_emulators_only() {
    let line = first_log_line(&[("DEVELOPMENT_USER", "developer")]);
    assert_eq!(
        line["error"],
        "the environment variable `DEVELOPMENT_USER` is not valid: the variable is for emulators only, and AWS_ENDPOINT_URL is not set"
    );
}
