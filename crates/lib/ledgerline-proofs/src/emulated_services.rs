//! Emulated services at the other end of the wire.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use dynoxide::{Database, DynoxideError};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The deduplication window of a FIFO queue.
pub(crate) const DEDUPLICATION: Duration = Duration::from_secs(300);

/// The answer of a service to a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The body: JSON, or an object.
    pub(crate) body: Vec<u8>,
}

/// A message that a queue accepted.
#[derive(Debug, Clone)]
pub struct Queued {
    /// The message group. The queue preserves the order within a group.
    pub group: String,
    /// The deduplication id. The queue remembers it for five minutes.
    pub deduplication: String,
    /// The body of the message.
    pub body: String,
}

/// Decides about each entry of a batch call in turn: `true` refuses the entry.
pub(crate) type Refuse = Box<dyn FnMut(&Value) -> bool + Send>;

/// Everything that the services accepted and no test has taken yet, and the number of mails.
#[derive(Default)]
struct Messages {
    entries: Vec<Value>,
    states: Vec<Value>,
    queues: BTreeMap<String, Vec<Queued>>,
    known: HashMap<(String, String), Instant>,
    refuse: Option<Refuse>,
    mails: u64,
}

/// The services: DynamoDB, S3, a bus, queues, functions of views, and a mail provider.
#[expect(missing_debug_implementations, reason = "the database has none")]
pub struct Services {
    database: Database,
    objects: Objects,
    messages: Mutex<Messages>,
}

/// The objects of S3, by their addresses.
type Objects = Arc<Mutex<HashMap<String, Vec<u8>>>>;

impl Services {
    pub(crate) fn new(database: Database, objects: Objects) -> Self {
        Self { database, objects, messages: Mutex::default() }
    }

    /// Other services with the same database and objects.
    pub(crate) fn fork(&self) -> Self {
        Self::new(self.database.clone(), Arc::clone(&self.objects))
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses, from this call on, the entries of `PutEvents` and `SendMessageBatch` for which
    /// `refuse` returns `true`. `None` refuses no entry.
    pub(crate) fn refuse(&self, refuse: Option<Refuse>) {
        self.messages().refuse = refuse;
    }

    /// The details of the entries on the bus since the previous call.
    #[must_use]
    pub fn take_entries(&self) -> Vec<Value> {
        std::mem::take(&mut self.messages().entries)
    }

    /// The states with which functions were invoked since the previous call.
    pub(crate) fn take_states(&self) -> Vec<Value> {
        std::mem::take(&mut self.messages().states)
    }

    /// The messages that a queue accepted since the previous call, in the order of the queue.
    #[must_use]
    pub fn take_messages(&self, url: &str) -> Vec<Queued> {
        self.messages().queues.remove(url).unwrap_or_default()
    }

    /// The number of mails that were sent.
    pub(crate) fn mails(&self) -> u64 {
        self.messages().mails
    }

    /// Answers one request.
    pub(crate) fn call(&self, operation: &str, body: &Value) -> Answer {
        match operation {
            "PutEvents" => self.put_events(body),
            "SendMessageBatch" => self.send_message_batch(body),
            // The invocation is asynchronous: the caller gets 202 before the function runs.
            "Invoke" => {
                let states = body["states"].as_array().cloned().unwrap_or_default();
                self.messages().states.extend(states);
                Answer { status: 202, body: Vec::new() }
            }
            "SendMessage" => {
                self.queue(body["QueueUrl"].as_str().unwrap_or_default(), body);
                ok(&json!({ "MessageId": "m" }))
            }
            "SendEmail" => {
                self.messages().mails += 1;
                ok(&json!({ "MessageId": "m" }))
            }
            "PutObject" => self.put_object(body),
            "GetObject" => {
                let object = self.objects().get(&body["key"].to_string()).cloned();
                object.map_or_else(
                    || answer::refuse_object(404, "NoSuchKey"),
                    |body| Answer { status: 200, body },
                )
            }
            operation => dynamodb(&self.database, operation, body),
        }
    }

    /// Answers like a replica that lags by `lag` commits. The wire sends only eventually consistent
    /// reads to this function.
    pub(crate) fn stale(&self, operation: &str, body: &mut Value, lag: u64) -> Answer {
        let values = &body["ExpressionAttributeValues"];
        let number = |name: &str| values[name]["N"].as_str().and_then(|n| n.parse::<u64>().ok());
        if let (Some(lowest), Some(highest)) = (number(":lowest"), number(":highest")) {
            let mut newest = body.clone();
            newest["Limit"] = 1.into();
            let newest: Value =
                serde_json::from_slice(&self.call(operation, &newest).body).unwrap_or_default();
            let newest =
                newest["Items"][0]["version"]["N"].as_str().and_then(|n| n.parse::<u64>().ok());
            let seen = newest.unwrap_or(0).saturating_sub(lag).min(highest);
            if seen < lowest {
                return ok(&json!({ "Items": [], "Count": 0, "ScannedCount": 0 }));
            }
            body["ExpressionAttributeValues"][":highest"]["N"] = seen.to_string().into();
        }
        self.call(operation, body)
    }

    /// Stores an object under a new key.
    fn put_object(&self, body: &Value) -> Answer {
        let content = body["content"].as_str().map(|content| BASE64_STANDARD.decode(content));
        match (self.objects().entry(body["key"].to_string()), content) {
            (Entry::Vacant(place), Some(Ok(content))) => {
                place.insert(content);
                ok(&Value::Null)
            }
            _ => answer::refuse_object(412, "PreconditionFailed"),
        }
    }

    fn put_events(&self, body: &Value) -> Answer {
        let mut messages = self.messages();
        let mut results = Vec::new();
        for (place, entry) in body["Entries"].as_array().into_iter().flatten().enumerate() {
            if messages.refuse.as_mut().is_some_and(|refuse| refuse(entry)) {
                results
                    .push(json!({ "ErrorCode": "InternalFailure", "ErrorMessage": "try again" }));
                continue;
            }
            match entry["Detail"].as_str().map(serde_json::from_str) {
                Some(Ok(detail)) => {
                    messages.entries.push(detail);
                    results.push(json!({ "EventId": place.to_string() }));
                }
                Some(Err(_)) | None => {
                    results.push(
                        json!({ "ErrorCode": "MalformedDetail", "ErrorMessage": "Detail is malformed." }),
                    );
                }
            }
        }
        let failed = results.iter().filter(|result| result["ErrorCode"].is_string()).count();
        ok(&json!({ "FailedEntryCount": failed, "Entries": results }))
    }

    fn send_message_batch(&self, body: &Value) -> Answer {
        let url = body["QueueUrl"].as_str().unwrap_or_default();
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for entry in body["Entries"].as_array().into_iter().flatten() {
            let refused = self.messages().refuse.as_mut().is_some_and(|refuse| refuse(entry));
            if refused {
                failed.push(
                    json!({ "Id": entry["Id"], "Code": "InternalError", "SenderFault": false }),
                );
                continue;
            }
            self.queue(url, entry);
            successful.push(json!({ "Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "" }));
        }
        ok(&json!({ "Successful": successful, "Failed": failed }))
    }

    /// Adds a message to a FIFO queue. A message with a known deduplication id is answered like a
    /// new one, and not stored a second time.
    fn queue(&self, url: &str, entry: &Value) {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let mut messages = self.messages();
        let now = Instant::now();
        let id = text("MessageDeduplicationId");
        if !id.is_empty() {
            let known = messages.known.insert((url.to_owned(), id.clone()), now);
            if let Some(before) = known.filter(|before| now.duration_since(*before) < DEDUPLICATION)
            {
                // The window begins with the first message. A duplicate does not extend the window.
                messages.known.insert((url.to_owned(), id), before);
                return;
            }
        }
        let group = text("MessageGroupId");
        let body = text("MessageBody");
        let queued = Queued { group, deduplication: id, body };
        messages.queues.entry(url.to_owned()).or_default().push(queued);
    }
}

fn ok(body: &Value) -> Answer {
    Answer { status: 200, body: body.to_string().into_bytes() }
}

fn dynamodb(database: &Database, operation: &str, body: &Value) -> Answer {
    /// Reads the request, calls the database, and writes the answer.
    fn call_database<Request: DeserializeOwned, Response: Serialize>(
        body: &Value,
        call: impl FnOnce(Request) -> Result<Response, DynoxideError>,
    ) -> Result<String, DynoxideError> {
        let wrong =
            |error: serde_json::Error| DynoxideError::SerializationException(error.to_string());
        let request = serde_json::from_value(body.clone()).map_err(wrong)?;
        serde_json::to_string(&call(request)?).map_err(wrong)
    }
    let answer = match operation {
        "PutItem" => call_database(body, |request| database.put_item(request)),
        "GetItem" => call_database(body, |request| database.get_item(request)),
        "DeleteItem" => call_database(body, |request| database.delete_item(request)),
        "UpdateItem" => call_database(body, |request| database.update_item(request)),
        "Query" => call_database(body, |request| database.query(request)),
        "Scan" => call_database(body, |request| database.scan(request)),
        "BatchGetItem" => call_database(body, |request| database.batch_get_item(request)),
        "BatchWriteItem" => call_database(body, |request| database.batch_write_item(request)),
        "TransactWriteItems" => {
            call_database(body, |request| database.transact_write_items(request))
        }
        "ExecuteStatement" => call_database(body, |request| database.execute_statement(request)),
        "ExecuteTransaction" => {
            call_database(body, |request| database.execute_transaction(request))
        }
        other => Err(DynoxideError::ValidationException(format!("{other:?} is not emulated"))),
    };
    match answer {
        Ok(body) => Answer { status: 200, body: body.into_bytes() },
        Err(error) => Answer { status: error.status_code(), body: error.to_json().into_bytes() },
    }
}

/// Answers that AWS documents and the emulator never gives by itself. `tests/conformance.rs` checks
/// that the store understands them. At a real endpoint, it also checks that the store understands
/// every answer to a race.
pub(crate) mod answer {
    use serde_json::{Value, json};

    use super::Answer;

    fn error(status: u16, name: &str, mut body: Value) -> Answer {
        body["__type"] = format!("com.amazonaws.dynamodb.v20120810#{name}").into();
        Answer { status, body: body.to_string().into_bytes() }
    }

    /// The answer of S3 that refuses a request.
    pub(crate) fn refuse_object(status: u16, code: &str) -> Answer {
        Answer { status, body: format!("<Error><Code>{code}</Code></Error>").into_bytes() }
    }

    /// The number of items of a transaction; `None` for another operation.
    fn item_count(operation: &str, body: &Value) -> Option<usize> {
        let items = match operation {
            "ExecuteTransaction" => &body["TransactStatements"],
            "TransactWriteItems" => &body["TransactItems"],
            _ => return None,
        };
        items.as_array().map(Vec::len)
    }

    fn cancellation(items: usize, code: &str, message: &str) -> Answer {
        let mut reasons = vec![json!({ "Code": "None" }); items];
        reasons[0] = json!({ "Code": code, "Message": message });
        let codes: Vec<_> = reasons.iter().filter_map(|reason| reason["Code"].as_str()).collect();
        let message = format!(
            "Transaction cancelled, please refer cancellation reasons for specific reasons [{}]",
            codes.join(", ")
        );
        error(
            400,
            "TransactionCanceledException",
            json!({ "message": message, "Message": message, "CancellationReasons": reasons }),
        )
    }

    /// The answer that another transaction is writing the same item.
    pub(crate) fn conflict(operation: &str, body: &Value) -> Answer {
        if operation == "PutObject" {
            return refuse_object(409, "ConditionalRequestConflict");
        }
        let message = "Transaction is ongoing for the item";
        match item_count(operation, body) {
            Some(items) => cancellation(items, "TransactionConflict", message),
            None => error(400, "TransactionConflictException", json!({ "message": message })),
        }
    }

    /// The answer that the table has no capacity left. For a transaction, `for_an_item` puts the
    /// reason into the cancellation of one of its items.
    pub(crate) fn throttle(operation: &str, body: &Value, for_an_item: bool) -> Answer {
        if ["PutObject", "GetObject"].contains(&operation) {
            return refuse_object(503, "SlowDown");
        }
        let message = "The level of configured provisioned throughput for the table was exceeded. Consider increasing \
             your provisioning level with the UpdateTable API.";
        match item_count(operation, body).filter(|_| for_an_item) {
            Some(items) => cancellation(items, "ThrottlingError", message),
            None => {
                let reason = json!({
                    "reason": "TableWriteProvisionedThroughputExceeded",
                    "resource": "arn:aws:dynamodb:eu-west-1:000000000000:table/throttled",
                });
                let body = json!({ "message": message, "ThrottlingReasons": [reason] });
                error(400, "ProvisionedThroughputExceededException", body)
            }
        }
    }

    /// The answer that the caller's role does not allow the request.
    pub(crate) fn deny(why: &str) -> Answer {
        error(400, "AccessDeniedException", json!({ "Message": why }))
    }

    /// The answer of a service that failed.
    pub(crate) fn fail() -> Answer {
        error(500, "InternalServerError", json!({ "message": "Internal server error" }))
    }
}
