//! The bank's command function, as the HTTP API calls it.

use std::num::NonZeroUsize;

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use bank::account::Account;
use ledgerline::Cache;
use ledgerline_dynamodb::DynamoDbStore;
use ledgerline_lambda::{
    commands::Commands,
    http::{HttpRequest, Response, Routes},
};
use serde_json::{Value, json};

/// As long as the template has answers to requests remembered: three days, one of them for clocks that are a day off, and
/// another one for those that are a day off the other way.
pub const RETENTION_SECONDS: i64 = 259_200;

/// An instance of the function that takes commands, cold.
#[must_use]
pub fn instance(store: &DynamoDbStore) -> Commands<Account, DynamoDbStore> {
    let cache = Cache::new(NonZeroUsize::MIN.saturating_add(99));
    Commands {
        store: store.clone(),
        cache,
        retention: RETENTION_SECONDS,
        route: bank_functions::commands::account::route,
    }
}

/// What is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Method and path, with `{id}` for the account.
    pub route: &'static str,
    /// The account.
    pub account: String,
    /// JSON.
    pub body: Value,
    /// The Idempotency-Key.
    pub key: Option<String>,
}

impl Sent {
    fn request(&self) -> Result<HttpRequest, serde_json::Error> {
        let path = self.route.split_once(' ').map_or("", |(_, path)| path).replace("{id}", &self.account);
        let mut headers = serde_json::Map::new();
        headers.extend(self.key.clone().map(|key| ("idempotency-key".to_owned(), key.into())));
        let event = json!({
            "version": "2.0",
            "routeKey": self.route,
            "rawPath": path,
            "rawQueryString": "",
            "headers": headers,
            "pathParameters": { "id": self.account },
            "requestContext": {
                "authorizer": { "jwt": { "claims": { "sub": "ada" } } },
                "http": { "method": "POST", "path": path },
                "requestId": "r",
                "timeEpoch": 0,
            },
            "body": self.body.to_string(),
            "isBase64Encoded": false,
        });
        serde_json::from_value::<ApiGatewayV2httpRequest>(event).map(HttpRequest::from)
    }

    /// Sends it to this instance.
    pub async fn to(&self, instance: &Commands<Account, DynamoDbStore>) -> Response {
        match self.request() {
            Ok(request) => instance.handle(&request).await.unwrap_or_else(Response::from),
            Err(error) => Response::json(http::StatusCode::BAD_REQUEST, error.to_string().into()),
        }
    }
}

/// What a client sees of an answer, but for the note that it was given before.
#[must_use]
pub fn seen(response: &Response) -> String {
    let headers: Vec<_> = response
        .headers
        .iter()
        .filter(|(name, _)| name != "idempotent-replayed")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let body = response.body.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("{} {} {body}", response.status.as_u16(), headers.join(", "))
}
