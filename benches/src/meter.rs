//! A proxy in front of the emulated DynamoDB that counts billable units. It adds
//! `ReturnConsumedCapacity` to each request, and reads the capacity from the answer.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response, StatusCode},
};
use serde_json::Value;

/// The traffic of the wire, and its billable units.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// The number of requests, failed ones included.
    pub calls: f64,
    /// Read units.
    pub reads: f64,
    /// Write units.
    pub writes: f64,
    /// The bytes of requests and answers together.
    pub bytes: f64,
}

impl Counts {
    /// The price of a million times these counts, in dollars: on-demand tables in us-east-1
    /// (docs/costs.md).
    pub fn dollars_per_million(&self) -> f64 {
        self.reads * 0.125 + self.writes * 0.625
    }

    /// The mean of these counts over `times` commands.
    pub fn each(self, times: f64) -> Self {
        Self {
            calls: self.calls / times,
            reads: self.reads / times,
            writes: self.writes / times,
            bytes: self.bytes / times,
        }
    }
}

/// The running proxy, and its counts.
#[derive(Debug, Clone)]
pub struct Meter {
    /// The URL at which it listens.
    pub url: String,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Clone)]
struct Proxy {
    database: String,
    client: reqwest::Client,
    counts: Arc<Mutex<Counts>>,
}

impl Meter {
    /// Starts the proxy in front of the database at this URL.
    pub async fn start(database: &str) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let counts = Arc::<Mutex<Counts>>::default();
        let proxy =
            Proxy { database: database.to_owned(), client: reqwest::Client::new(), counts: counts.clone() };
        let router = Router::new()
            .fallback(forward)
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(proxy);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { url, counts })
    }

    /// The counts since the previous call.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn forward(State(proxy): State<Proxy>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    proxy.metered(&headers, &body).await.unwrap_or_else(|error| {
        eprintln!("the meter: {error:#}");
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

impl Proxy {
    async fn metered(&self, headers: &HeaderMap, body: &Bytes) -> Result<Response<Body>> {
        let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok());
        let target = target.ok_or_else(|| anyhow!("a request without an operation"))?;
        let operation = target.rsplit('.').next().unwrap_or_default();
        let mut request: Value = serde_json::from_slice(body)?;
        if !operation.contains("Table") {
            request["ReturnConsumedCapacity"] = "TOTAL".into();
        }

        let mut forwarded = self.client.post(&self.database);
        for name in ["x-amz-target", "content-type", "authorization", "x-amz-date"] {
            if let Some(value) = headers.get(name) {
                forwarded = forwarded.header(name, value.as_bytes());
            }
        }
        let answer = forwarded.body(request.to_string()).send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let answer = answer.bytes().await?;
        let (reads, writes) =
            units(operation, &request, &serde_json::from_slice(&answer)?, status.is_success())?;
        {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            counts.calls += 1.0;
            counts.reads += reads;
            counts.writes += writes;
            #[expect(clippy::cast_precision_loss, reason = "no request has 2^53 bytes")]
            let bytes = (body.len() + answer.len()) as f64;
            counts.bytes += bytes;
        }
        let mut response = Response::new(Body::from(answer));
        *response.status_mut() = status;
        for name in ["content-type", "x-amz-crc32", "x-amzn-requestid"] {
            if let Some(value) = headers.get(name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    }
}

/// The read units and write units of a request.
fn units(operation: &str, request: &Value, answer: &Value, succeeded: bool) -> Result<(f64, f64)> {
    let statement = request["Statement"].as_str().unwrap_or_default();
    let writes = match operation {
        "GetItem" | "BatchGetItem" | "TransactGetItems" | "Query" | "Scan" => false,
        "PutItem" | "UpdateItem" | "DeleteItem" | "BatchWriteItem" | "TransactWriteItems" => true,
        "ExecuteTransaction" => true,
        "ExecuteStatement" => !statement.trim_start().starts_with("SELECT"),
        _ => return Ok((0.0, 0.0)),
    };
    let units = if succeeded {
        let consumed = &answer["ConsumedCapacity"];
        let tables = consumed.as_array().map_or(std::slice::from_ref(consumed), Vec::as_slice);
        let units = |table: &Value| table["CapacityUnits"].as_f64();
        let units: Option<f64> = tables.iter().map(units).sum();
        units.ok_or_else(|| anyhow!("{operation} was answered without its capacity"))?
    } else if writes {
        // AWS bills a write that fails its condition like one that succeeds, but its answer does
        // not contain the capacity. Every item of such a write has less than a kilobyte: one unit,
        // or two in a transaction.
        let items = ["TransactItems", "TransactStatements"]
            .map(|items| request[items].as_array().map_or(0, Vec::len));
        match items.into_iter().sum::<usize>() {
            0 => 1.0,
            items => 2.0 * f64::from(u32::try_from(items)?),
        }
    } else {
        0.0
    };
    Ok(if writes { (0.0, units) } else { (units, 0.0) })
}

/// Compares the metered units with the documentation of AWS, for each kind of measured request.
pub async fn is_right(client: &aws_sdk_dynamodb::Client, meter: &Meter) -> Result<()> {
    use aws_sdk_dynamodb::types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put,
        ScalarAttributeType, TransactWriteItem,
    };
    let table = "meter";
    client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(KeySchemaElement::builder().attribute_name("k").key_type(KeyType::Hash).build()?)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name("k")
                .attribute_type(ScalarAttributeType::S)
                .build()?,
        )
        .send()
        .await?;
    // A key of two bytes and a text make an item of just over five kilobytes. It takes six write
    // units and two read units, or one for an eventually consistent read.
    let key = AttributeValue::S("k".into());
    let text = AttributeValue::S("t".repeat(5 * 1024));
    let put = || Put::builder().table_name(table).item("k", key.clone()).item("t", text.clone());
    let mut seen = Vec::new();
    let mut note = |what: &'static str, expected: (f64, f64)| {
        let counts = meter.take();
        seen.push((what, (counts.reads, counts.writes) == expected && counts.calls == 1.0));
    };
    meter.take();

    client.put_item().table_name(table).item("k", key.clone()).item("t", text.clone()).send().await?;
    note("a PutItem", (0.0, 6.0));
    let transaction = TransactWriteItem::builder().put(put().build()?).build();
    client.transact_write_items().transact_items(transaction).send().await?;
    note("a TransactWriteItems", (0.0, 12.0));
    client.get_item().table_name(table).key("k", key.clone()).consistent_read(true).send().await?;
    note("a strong GetItem", (2.0, 0.0));
    let query = client.query().table_name(table).key_condition_expression("k = :k");
    query.expression_attribute_values(":k", key.clone()).send().await?;
    note("an eventual Query", (1.0, 0.0));
    let insert = client.execute_statement().statement("INSERT INTO \"meter\" VALUE {'k': ?, 't': ?}");
    insert.set_parameters(Some(vec![AttributeValue::S("l".into()), text.clone()])).send().await?;
    note("an INSERT", (0.0, 6.0));
    let short = Put::builder()
        .table_name(table)
        .item("k", key.clone())
        .condition_expression("attribute_not_exists(k)");
    let transaction = TransactWriteItem::builder().put(short.build()?).build();
    let refused = client.transact_write_items().transact_items(transaction).send().await;
    anyhow::ensure!(refused.is_err(), "the condition did not hold");
    note("a refused transaction", (0.0, 2.0));

    let wrong: Vec<_> = seen.into_iter().filter(|(_, right)| !right).map(|(what, _)| what).collect();
    anyhow::ensure!(wrong.is_empty(), "metered otherwise: {}", wrong.join(", "));
    Ok(())
}
