//! The wire protocol of the emulated DynamoDB.
//!
//! The database's own server remembers the token of every transaction for ten minutes, as AWS does,
//! and scans all tokens at every transaction. After 12,000 commands, this scan took a sixth of the
//! stack's time, and the share grew. So this module answers the frequent operations of functions
//! itself, and deletes tokens by their age.
//!
//! It passes all other requests on to that server, which words each refusal as AWS does. So it also
//! passes on requests that the database refuses here. The exceptions are the refusals of
//! transactions and of failed conditions: instances that lose races get many of them.
//!
//! One difference from AWS: a transaction that is repeated under its token reports the capacity of
//! its first execution, not that of a read.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::bail;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, Response, StatusCode, header::CONNECTION, request::Parts},
};
use dynoxide::{
    Database, DynoxideError,
    actions::{
        batch_write_item::{
            BatchWriteItemRequest, BatchWriteItemResponse, DeleteRequest, PutRequest,
        },
        execute_transaction::ExecuteTransactionRequest,
        transact_write_items::{
            TransactDelete, TransactPut, TransactWriteItem, TransactWriteItemsRequest,
        },
    },
    types::{CapacityDetail, ConsumedCapacity},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::TcpListener;

use crate::{
    door::{self, Pages},
    iam::Iam,
};

/// The time for which a token is remembered, as on AWS.
const TOKEN_AGE: Duration = Duration::from_secs(600);

/// The maximum number of writes in a batch.
const MAX_BATCH: usize = 25;

/// The maximum number of characters in a token.
const MAX_TOKEN: usize = 36;

/// The maximum size of a request. The largest request is DynamoDB's `BatchWriteItem`.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Serves the database until the process ends.
///
/// # Errors
/// When the listener has no address.
pub(crate) fn serve(
    listener: TcpListener,
    database: Database,
    iam: Option<Arc<Iam>>,
) -> anyhow::Result<()> {
    let wire = Wire { database, client: crate::http_client(), answered: Mutex::default(), iam };
    let router = Router::new().fallback(request).with_state(Arc::new(wire));
    door::serve(listener, router, Pages::None)
}

struct Wire {
    database: Database,
    client: reqwest::Client,
    answered: Mutex<Answered>,
    /// The permissions of the callers; `None` allows every request.
    iam: Option<Arc<Iam>>,
}

async fn request(State(wire): State<Arc<Wire>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY_BYTES).await else {
        return answer(StatusCode::PAYLOAD_TOO_LARGE, Vec::new());
    };
    let target = head
        .headers
        .get("x-amz-target")
        .and_then(|target| target.to_str().ok())
        .unwrap_or_default();
    if let Some((status, refusal)) =
        wire.iam.as_ref().and_then(|iam| iam.refusal(&head.headers, target, &body))
    {
        return answer(status, refusal.to_string().into_bytes());
    }
    if let Some((status, done)) = wire.answer(target, &body) {
        return answer(status, done);
    }
    wire.pass_on(head, body).await.unwrap_or_else(|_| answer(StatusCode::BAD_GATEWAY, Vec::new()))
}

impl Wire {
    /// Passes a request on to the database's own server. The door cannot protect that server,
    /// which allows every web page, so its port is open only during the request.
    async fn pass_on(&self, mut head: Parts, body: Bytes) -> anyhow::Result<Response<Body>> {
        let own = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}{}", own.local_addr()?, head.uri);
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let request = self.client.request(head.method, url).headers(head.headers).body(body).send();
        let server = dynoxide::server::serve_on(own, self.database.clone());
        let response = tokio::select! {
            response = request => response?,
            () = server => bail!("the database's own server ended"),
        };
        Ok(Response::from(response).map(Body::new))
    }

    /// Answers a frequent operation. Returns `None` if the database's own server must answer: for
    /// other operations, and for errors except failed conditions and failed transactions.
    fn answer(&self, target: &str, body: &[u8]) -> Option<(StatusCode, Vec<u8>)> {
        let database = &self.database;
        let operation = target.strip_prefix("DynamoDB_20120810.")?;
        match operation {
            "BatchGetItem" => call(body, |request| database.batch_get_item(request)),
            "BatchWriteItem" => Some((StatusCode::OK, batch(database, body)?)),
            "ExecuteStatement" => call(body, |request| database.execute_statement(request)),
            "GetItem" => call(body, |request| database.get_item(request)),
            "PutItem" => call(body, |request| database.put_item(request)),
            "Query" => call(body, |request| database.query(request)),
            "Scan" => call(body, |request| database.scan(request)),
            "UpdateItem" => call(body, |request| database.update_item(request)),
            "ExecuteTransaction" => {
                let mut request: ExecuteTransactionRequest = serde_json::from_slice(body).ok()?;
                let token = request.client_request_token.take();
                self.once(operation, token, body, || database.execute_transaction(request))
            }
            "TransactWriteItems" => {
                let mut request: TransactWriteItemsRequest = serde_json::from_slice(body).ok()?;
                let token = request.client_request_token.take();
                self.once(operation, token, body, || database.transact_write_items(request))
            }
            _ => None,
        }
    }

    /// Executes a transaction, or returns the first answer of a transaction that was executed under
    /// this token. Returns `None` if the token itself is wrong.
    ///
    /// A refusal is not remembered, and is answered here. If the request were passed on, the
    /// database's own server might execute the transaction under a token that is unknown here.
    fn once<A: Serialize>(
        &self,
        operation: &str,
        token: Option<String>,
        body: &[u8],
        execute: impl FnOnce() -> Result<A, DynoxideError>,
    ) -> Option<(StatusCode, Vec<u8>)> {
        let executed =
            |done: Result<A, DynoxideError>| match done.map(|done| serde_json::to_vec(&done)) {
                Ok(Ok(done)) => (StatusCode::OK, done),
                Ok(Err(_)) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
                Err(error) => refusal(&error),
            };
        let Some(token) = token else {
            return Some(executed(execute()));
        };
        if token.len() > MAX_TOKEN {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let request = hasher.finish();
        // The lock is held during the execution. Of two requests with the same token, one waits and
        // then finds the other's answer.
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.forget(Instant::now());
        let key = format!("{operation} {token}");
        Some(match answered.answers.get(&key) {
            Some((first, done)) if *first == request => (StatusCode::OK, done.clone()),
            Some(_) => {
                let message = "the token was used for another transaction".to_owned();
                refusal(&DynoxideError::IdempotentParameterMismatchException(message))
            }
            None => {
                let (status, done) = executed(execute());
                if status == StatusCode::OK {
                    answered.remember(key, request, done.clone(), Instant::now());
                }
                (status, done)
            }
        })
    }
}

/// The transactions of the last ten minutes.
#[derive(Debug, Default)]
struct Answered {
    /// The hash of each request, and its answer, by operation and token.
    answers: HashMap<String, (u64, Vec<u8>)>,
    /// The time of each answer, oldest first.
    ages: VecDeque<(Instant, String)>,
}

impl Answered {
    fn remember(&mut self, key: String, request: u64, done: Vec<u8>, now: Instant) {
        self.ages.push_back((now, key.clone()));
        self.answers.insert(key, (request, done));
    }

    /// Deletes the answers that are too old, and visits no others.
    fn forget(&mut self, now: Instant) {
        while let Some((_, key)) =
            self.ages.pop_front_if(|(at, _)| now.duration_since(*at) >= TOKEN_AGE)
        {
            self.answers.remove(&key);
        }
    }
}

fn refusal(error: &DynoxideError) -> (StatusCode, Vec<u8>) {
    let status = StatusCode::from_u16(error.status_code()).unwrap_or(StatusCode::BAD_REQUEST);
    (status, error.to_json().into_bytes())
}

fn call<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    call: impl FnOnce(Q) -> Result<A, DynoxideError>,
) -> Option<(StatusCode, Vec<u8>)> {
    match call(serde_json::from_slice(body).ok()?) {
        Ok(done) => Some((StatusCode::OK, serde_json::to_vec(&done).ok()?)),
        // If this refusal contains the item, `ExecuteStatement` words it differently from other
        // operations.
        Err(
            failed @ (DynoxideError::ConditionalCheckFailedException(_, None)
            | DynoxideError::DuplicateItemException(_)),
        ) => Some(refusal(&failed)),
        Err(_) => None,
    }
}

/// Writes a batch in one transaction. The database would write each item in a transaction of its
/// own, which takes most of the time of a rebuild. Returns `None` for a batch that is invalid or
/// that a transaction cannot write; then the database's own server answers.
fn batch(database: &Database, body: &[u8]) -> Option<Vec<u8>> {
    let request: BatchWriteItemRequest = serde_json::from_slice(body).ok()?;
    let is_known = |mode: &String| ["INDEXES", "NONE", "TOTAL"].contains(&mode.as_str());
    if request.return_item_collection_metrics.is_some()
        || !request.return_consumed_capacity.iter().all(is_known)
        || request.request_items.values().any(Vec::is_empty)
    {
        return None;
    }
    let mut transact_items = Vec::new();
    for (table_name, writes) in request.request_items {
        for write in writes {
            transact_items.push(match (write.put_request, write.delete_request) {
                (Some(PutRequest { item }), None) => {
                    let put = TransactPut {
                        table_name: table_name.clone(),
                        item,
                        ..TransactPut::default()
                    };
                    TransactWriteItem { put: Some(put), ..TransactWriteItem::default() }
                }
                (None, Some(DeleteRequest { key })) => {
                    let delete = TransactDelete {
                        table_name: table_name.clone(),
                        key,
                        ..TransactDelete::default()
                    };
                    TransactWriteItem { delete: Some(delete), ..TransactWriteItem::default() }
                }
                (Some(_), Some(_)) | (None, None) => return None,
            });
        }
    }
    if transact_items.len() > MAX_BATCH {
        return None;
    }
    let mode = request.return_consumed_capacity.filter(|mode| mode != "NONE");
    let transaction = TransactWriteItemsRequest {
        transact_items,
        return_consumed_capacity: mode.as_ref().map(|_| "INDEXES".to_owned()),
        ..TransactWriteItemsRequest::default()
    };
    let done = database.transact_write_items(transaction).ok()?;
    let is_detailed = mode.as_deref() == Some("INDEXES");
    let consumed = |capacity| halve_units(capacity, is_detailed);
    let consumed_capacity = mode
        .is_some()
        .then(|| done.consumed_capacity.unwrap_or_default().into_iter().map(consumed).collect());
    serde_json::to_vec(&BatchWriteItemResponse {
        consumed_capacity,
        ..BatchWriteItemResponse::default()
    })
    .ok()
}

/// Converts the units of a transaction into those of other writes. A transaction takes twice the
/// units of a table, and the same units of its indexes.
fn halve_units(taken: ConsumedCapacity, is_detailed: bool) -> ConsumedCapacity {
    let detail = |capacity_units| CapacityDetail { capacity_units, ..CapacityDetail::default() };
    let table = taken.table.map_or(0.0, |table| table.capacity_units) / 2.0;
    let indexes = taken.global_secondary_indexes.map(|indexes| -> HashMap<_, _> {
        indexes.into_iter().map(|(name, index)| (name, detail(index.capacity_units))).collect()
    });
    let of_indexes: f64 =
        indexes.iter().flat_map(HashMap::values).map(|index| index.capacity_units).sum();
    let taken = ConsumedCapacity {
        table_name: taken.table_name,
        capacity_units: table + of_indexes,
        ..ConsumedCapacity::default()
    };
    if is_detailed {
        return ConsumedCapacity {
            table: Some(detail(table)),
            global_secondary_indexes: indexes,
            ..taken
        };
    }
    taken
}

fn answer(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/x-amz-json-1.0"));
    response
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use ledgerline_sam::template::Table;

    use crate::services;

    /// Creates a table with these keys: the name, type and role of each.
    pub(crate) fn create_table(database: &Database, name: &str, keys: &[(&str, &str, &str)]) {
        let attributes = keys
            .iter()
            .map(|(name, kind, _)| json!({ "AttributeName": name, "AttributeType": kind }));
        let schema =
            keys.iter().map(|(name, _, role)| json!({ "AttributeName": name, "KeyType": role }));
        let create = json!({
            "TableName": name, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": attributes.collect::<Value>(), "KeySchema": schema.collect::<Value>(),
        });
        let table = Table {
            id: name.to_owned(),
            name: name.to_owned(),
            stream_arn: None,
            create,
            time_to_live: None,
            policy: None,
        };
        services::create_table(database, &table).unwrap();
    }

    /// Creates a database with one table, whose items have the key `request`.
    fn with_requests() -> Database {
        let database = Database::memory().unwrap();
        create_table(&database, REQUESTS, &[("request", "S", "HASH")]);
        database
    }

    const REQUESTS: &str = "requests";

    /// Serves that database. Returns its URL and the table's name.
    async fn wire() -> (String, String) {
        let database = with_requests();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        serve(listener, database, None).unwrap();
        (url, REQUESTS.to_owned())
    }

    async fn send(url: &str, operation: &str, body: Value) -> (u16, Value) {
        let request = crate::http_client().post(url).body(body.to_string());
        let request = request
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("DynamoDB_20120810.{operation}"))
            .header("x-amz-date", "20261122T000000Z")
            .header("authorization", "AWS4-HMAC-SHA256 Credential=a/20261122/b/dynamodb/aws4_request, SignedHeaders=host, Signature=c");
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    fn adds(table: &str, token: Option<&str>, amount: &str) -> Value {
        let mut transaction = json!({ "TransactItems": [{ "Update": {
            "TableName": table,
            "Key": { "request": { "S": "1" } },
            "UpdateExpression": "ADD n :n",
            "ExpressionAttributeValues": { ":n": { "N": amount } },
        } }] });
        if let Some(token) = token {
            transaction["ClientRequestToken"] = json!(token);
        }
        transaction
    }

    async fn sum(url: &str, table: &str) -> Value {
        let get = json!({ "TableName": table, "Key": { "request": { "S": "1" } } });
        send(url, "GetItem", get).await.1["Item"]["n"]["N"].clone()
    }

    #[tokio::test]
    async fn a_transaction_is_executed_once_for_each_token() {
        let (url, table) = wire().await;
        for (token, amount, status, expected) in [
            (Some("a"), "1", 200, "1"),
            (Some("a"), "1", 200, "1"),
            (Some("b"), "1", 200, "2"),
            (None, "1", 200, "3"),
            (None, "1", 200, "4"),
            (Some("a"), "5", 400, "4"),
        ] {
            let (answered, body) =
                send(&url, "TransactWriteItems", adds(&table, token, amount)).await;
            assert_eq!(
                (answered, sum(&url, &table).await),
                (status, json!(expected)),
                "{token:?}: {body}"
            );
            if status == 400 {
                assert!(
                    body["__type"]
                        .as_str()
                        .unwrap()
                        .ends_with("#IdempotentParameterMismatchException")
                );
            }
        }
    }

    #[tokio::test]
    async fn a_refused_transaction_may_be_retried_under_its_token() {
        let (url, table) = wire().await;
        let mut guarded = adds(&table, Some("a"), "1");
        guarded["TransactItems"][0]["Update"]["ConditionExpression"] = json!("attribute_exists(n)");
        let (status, body) = send(&url, "TransactWriteItems", guarded.clone()).await;
        assert_eq!(status, 400);
        assert!(
            body["__type"].as_str().unwrap().ends_with("#TransactionCanceledException"),
            "{body}"
        );
        assert_eq!(body["CancellationReasons"][0]["Code"], "ConditionalCheckFailed", "{body}");

        send(&url, "TransactWriteItems", adds(&table, None, "1")).await;
        assert_eq!(send(&url, "TransactWriteItems", guarded).await.0, 200);
        assert_eq!(sum(&url, &table).await, "2");
    }

    #[tokio::test]
    async fn the_databases_own_server_answers_other_operations_and_refusals() {
        let (url, table) = wire().await;
        let put = json!({ "TableName": table, "Item": { "request": { "S": "1" } }, "ConditionExpression": "attribute_exists(n)" });
        let (status, body) = send(&url, "PutItem", put).await;
        assert_eq!(status, 400);
        assert!(
            body["__type"].as_str().unwrap().ends_with("#ConditionalCheckFailedException"),
            "{body}"
        );
        assert_eq!(
            send(&url, "ListTables", json!({})).await,
            (200, json!({ "TableNames": [table] }))
        );
        let (status, body) =
            send(&url, "TransactWriteItems", adds(&table, Some(&"x".repeat(37)), "1")).await;
        assert_eq!(status, 400);
        assert!(body["message"].as_str().unwrap().contains("clientRequestToken"), "{body}");
    }

    #[tokio::test]
    async fn a_failed_condition_is_answered_in_the_words_of_the_databases_own_server() {
        let database = with_requests();
        let table = REQUESTS;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(dynoxide::server::serve_on(listener, database.clone()));
        let client = crate::http_client();
        let wire = Wire { database, client, answered: Mutex::default(), iam: None };
        let item = json!({ "request": { "S": "1" } });
        let put = json!({ "TableName": table, "Item": item });
        send(&own_url, "PutItem", put.clone()).await;
        let guarded = |condition: &str| {
            let mut put = put.clone();
            put["ConditionExpression"] = json!(condition);
            put
        };
        let mut with_the_item = guarded("attribute_exists(n)");
        with_the_item["ReturnValuesOnConditionCheckFailure"] = json!("ALL_OLD");
        let update = json!({
            "TableName": table, "Key": item, "UpdateExpression": "ADD n :one", "ConditionExpression": "n = :one",
            "ExpressionAttributeValues": { ":one": { "N": "1" } },
        });
        let insert = json!({ "Statement": format!("INSERT INTO \"{table}\" VALUE {{'request': ?}}"), "Parameters": [{ "S": "1" }] });
        for (operation, request, here) in [
            ("PutItem", guarded("attribute_exists(n)"), true),
            ("UpdateItem", update, true),
            ("ExecuteStatement", insert, true),
            ("PutItem", with_the_item, false),
            ("PutItem", guarded("attribute_exists("), false),
        ] {
            let answer = wire
                .answer(&format!("DynamoDB_20120810.{operation}"), request.to_string().as_bytes());
            let (status, expected) = send(&own_url, operation, request).await;
            assert_eq!((status, answer.is_some()), (400, here), "{operation}: {expected}");
            if let Some((status, body)) = answer {
                assert_eq!(status, StatusCode::BAD_REQUEST);
                assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
            }
        }
    }

    #[test]
    fn a_batch_consumes_the_units_and_writes_the_rows_of_the_databases_own_batch() {
        let create = json!({
            "TableName": "rows", "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }, { "AttributeName": "owner", "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
            "GlobalSecondaryIndexes": [{ "IndexName": "byOwner", "KeySchema": [{ "AttributeName": "owner", "KeyType": "HASH" }], "Projection": { "ProjectionType": "ALL" } }],
        });
        let databases = [(); 2].map(|()| {
            let database = Database::memory().unwrap();
            database.create_table(serde_json::from_value(create.clone()).unwrap()).unwrap();
            database
        });
        let [here, itself] = &databases;
        let put = |id: &str, owner: &str, size: usize| {
            json!({ "PutRequest": { "Item": {
                "id": { "S": id }, "owner": { "S": owner }, "text": { "S": "x".repeat(size) }
            } } })
        };
        let delete = |id: &str| json!({ "DeleteRequest": { "Key": { "id": { "S": id } } } });
        for (mode, writes) in [
            ("INDEXES", vec![put("a", "ada", 3_500), put("b", "bob", 10), put("c", "ada", 10)]),
            (
                "INDEXES",
                vec![put("a", "ada", 10), put("b", "ada", 2_000), delete("c"), delete("d")],
            ),
            ("TOTAL", vec![put("c", "ada", 1_020), delete("a")]),
            ("NONE", vec![put("a", "bob", 1)]),
        ] {
            let body =
                json!({ "RequestItems": { "rows": writes }, "ReturnConsumedCapacity": mode })
                    .to_string();
            let request = serde_json::from_str(&body).unwrap();
            let expected = serde_json::to_value(itself.batch_write_item(request).unwrap()).unwrap();
            let done = batch(here, body.as_bytes()).expect("it is answered here");
            assert_eq!(serde_json::from_slice::<Value>(&done).unwrap(), expected, "{body}");
        }
        let rows = |database: &Database| {
            let scan = serde_json::from_value(json!({ "TableName": "rows" })).unwrap();
            serde_json::to_value(database.scan(scan).unwrap()).unwrap()
        };
        assert_eq!(rows(here), rows(itself));
        for refused in [
            json!({ "RequestItems": { "rows": [put("a", "ada", 1), put("a", "bob", 1)] } }),
            json!({ "RequestItems": { "rows": vec![delete("a"); 26] } }),
            json!({ "RequestItems": { "none": [delete("a")] } }),
            json!({ "RequestItems": { "rows": [{}] } }),
            json!({ "RequestItems": { "rows": [delete("a")], "none": [] } }),
            json!({ "RequestItems": { "rows": [delete("a")] }, "ReturnConsumedCapacity": "ALL" }),
        ] {
            assert!(batch(here, refused.to_string().as_bytes()).is_none(), "{refused}");
        }
        assert_eq!(rows(here), rows(itself));
    }

    #[test]
    fn tokens_are_deleted_by_their_age() {
        let mut answered = Answered::default();
        let start = Instant::now();
        for second in 0..20 {
            let now = start + Duration::from_secs(second);
            answered.forget(now);
            answered.remember(second.to_string(), 0, Vec::new(), now);
        }
        answered.forget(start + TOKEN_AGE + Duration::from_secs(4));
        let mut left: Vec<u64> = answered.answers.keys().map(|key| key.parse().unwrap()).collect();
        left.sort_unstable();
        assert_eq!((left, answered.ages.len()), ((5..20).collect(), 15));
    }
}
