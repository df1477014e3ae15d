//! The emulated services with a port of their own: DynamoDB with its streams, and SQS.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use aws_config::SdkConfig;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::DefaultBodyLimit,
    http::{HeaderMap, Response},
};
use dynoxide::Database;
use rustack_sqs_core::{config::SqsConfig, handler::RustackSqsHandler, provider::RustackSqs};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use ledgerline_sam::{
    lookup::COMMITS,
    template::{ACCOUNT, Queue, REGION, Table},
};

use crate::{
    door::{self, Pages},
    dynamodb,
    iam::Iam,
    stream_records,
};

/// The request id of errors. No program looks up a request by its id.
const REQUEST: &str = "local";

/// The emulated DynamoDB on a port of its own.
#[expect(missing_debug_implementations, reason = "the database has none")]
pub struct DynamoDb {
    /// The database itself, for access without HTTP.
    pub database: Database,
    /// The URL at which the database listens.
    pub url: String,
}

impl DynamoDb {
    /// Starts the database: in memory, or with the data in this folder. A missing folder is
    /// created.
    ///
    /// # Errors
    /// When the data cannot be opened or no port is free.
    pub async fn start(data: Option<&Path>) -> Result<Self> {
        Self::guarded(data, None).await
    }

    /// Starts the database like [`start`](Self::start), but refuses a function's request that the
    /// function's role does not allow.
    pub(crate) async fn guarded(data: Option<&Path>, iam: Option<Arc<Iam>>) -> Result<Self> {
        let database = match data {
            Some(data) => open(data)?,
            None => stream_records::in_memory()?,
        };
        let (listener, address) = listen().await?;
        dynamodb::serve(listener, database.clone(), iam)?;
        Ok(Self { database, url: format!("http://{address}") })
    }

    /// Creates a table of the template, unless an earlier run created it. Returns how the existing
    /// table differs from the template, if it differs.
    ///
    /// # Errors
    /// When its definition is wrong.
    pub fn create_table(&self, table: &Table) -> Result<Option<String>> {
        create_table(&self.database, table)
    }

    /// Returns the configuration with which SDK clients reach the database.
    #[must_use]
    pub fn sdk_config(&self) -> SdkConfig {
        ledgerline_dynamodb::sdk_config(&self.url)
    }
}

/// Opens the database in a folder. A missing folder is created.
///
/// # Errors
/// When the database cannot be opened.
pub fn open(data: &Path) -> Result<Database> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
    stream_records::open(&data.join("dynamodb.sqlite"))
}

/// Deletes all stream records in the data of a stopped stack, as DynamoDB does after a day. A
/// reader that has not read a record never receives it.
///
/// # Errors
/// When the folder has no data of a local stack, or a running stack uses the data.
pub fn forget_stream_records(data: &Path) -> Result<()> {
    stream_records::forget(&data.join("dynamodb.sqlite"))
}

/// Returns the name of the stack that created the tables in a folder, if there are any. Under
/// another name, the stack would begin with empty tables and hide the data.
pub(crate) fn kept_stack(data: &Path) -> Result<Option<String>> {
    if !data.join("dynamodb.sqlite").exists() {
        return Ok(None);
    }
    let tables =
        open(data)?.list_tables(serde_json::from_str("{}")?).map_err(|error| anyhow!("{error}"))?;
    let suffix = format!("-{COMMITS}");
    let kept = tables.table_names.iter().find_map(|name| name.strip_suffix(&suffix));
    Ok(kept.map(ToOwned::to_owned))
}

/// Creates a table in a database, unless an earlier run created it. Returns how the existing table
/// differs from the template, if it differs.
///
/// # Errors
/// When the database refuses the definition.
pub fn create_table(database: &Database, table: &Table) -> Result<Option<String>> {
    let exists =
        database.list_tables(serde_json::from_str("{}")?).map_err(|error| anyhow!("{error}"))?;
    if exists.table_names.contains(&table.name) {
        let describe = serde_json::from_value(json!({ "TableName": table.name }))?;
        let kept = database
            .describe_table(describe)
            .map_err(|error| anyhow!("{}: {error}", table.name))?;
        let kept = serde_json::to_value(kept)?["Table"].take();
        let added = add_indexes(database, table, &kept)?;
        return Ok(difference(&table.create, &kept, &added));
    }
    let create = serde_json::from_value(table.create.clone())
        .with_context(|| format!("the definition of table {} is not valid", table.name))?;
    database
        .create_table(create)
        .map_err(|error| anyhow!("cannot create {}: {error}", table.name))?;
    if let Some(attribute) = &table.time_to_live {
        let update = serde_json::from_value(serde_json::json!({
            "TableName": table.name,
            "TimeToLiveSpecification": { "AttributeName": attribute, "Enabled": true },
        }))?;
        database.update_time_to_live(update).map_err(|error| anyhow!("{}: {error}", table.name))?;
    }
    Ok(None)
}

/// Adds the indexes that an existing table lacks, as a deployment does, and returns their names.
/// DynamoDB fills a new index from the existing rows.
fn add_indexes(database: &Database, table: &Table, kept: &Value) -> Result<BTreeSet<String>> {
    let listed =
        |table: &Value| table["GlobalSecondaryIndexes"].as_array().cloned().unwrap_or_default();
    let key = |table: &Value| table["KeySchema"].clone();
    if key(kept) != key(&table.create) {
        return Ok(BTreeSet::new());
    }
    let there: Vec<_> = listed(kept).iter().map(|index| index["IndexName"].clone()).collect();
    let mut added = BTreeSet::new();
    for index in
        listed(&table.create).into_iter().filter(|index| !there.contains(&index["IndexName"]))
    {
        let update = serde_json::from_value(json!({
            "TableName": table.name,
            "AttributeDefinitions": table.create["AttributeDefinitions"],
            "GlobalSecondaryIndexUpdates": [{ "Create": index }],
        }))?;
        database
            .update_table(update)
            .map_err(|error| anyhow!("cannot create an index of {}: {error}", table.name))?;
        added.extend(index["IndexName"].as_str().map(ToOwned::to_owned));
    }
    Ok(added)
}

/// Describes the difference between an existing table and its definition, in the key or in the
/// indexes. Without this message, a request that needs the defined key or index would fail without
/// the reason.
fn difference(wanted: &Value, kept: &Value, added: &BTreeSet<String>) -> Option<String> {
    let key = |schema: &Value| {
        let parts = schema.as_array().into_iter().flatten();
        let mut parts: Vec<_> = parts
            .map(|part| (part["KeyType"].to_string(), part["AttributeName"].clone()))
            .collect();
        parts.sort_by(|one, other| one.0.cmp(&other.0));
        let names = parts.iter().filter_map(|(_, name)| name.as_str());
        names.collect::<Vec<_>>().join(" and ")
    };
    let indexes = |table: &Value| -> BTreeMap<String, String> {
        let indexes = table["GlobalSecondaryIndexes"].as_array().into_iter().flatten();
        let described = |index: &Value| {
            let projection = index["Projection"]["ProjectionType"].as_str().unwrap_or_default();
            format!("{} ({projection})", key(&index["KeySchema"]))
        };
        let index =
            |index: &Value| Some((index["IndexName"].as_str()?.to_owned(), described(index)));
        indexes.filter_map(index).collect()
    };
    let wanted_key = key(&wanted["KeySchema"]);
    let kept_key = key(&kept["KeySchema"]);
    if wanted_key != kept_key {
        return Some(format!("its key is {kept_key}, and that of the template is {wanted_key}"));
    }
    let wanted = indexes(wanted);
    let kept = indexes(kept);
    let mut of_template = wanted.iter().filter(|(name, _)| !added.contains(*name));
    let lacks = of_template.find(|(name, key)| kept.get(*name) != Some(*key));
    let more = kept.keys().find(|name| !wanted.contains_key(*name));
    lacks
        .map(|(name, key)| format!("it lacks the template's index {name}, of {key}"))
        .or_else(|| more.map(|name| format!("it has the index {name}, which the template lacks")))
}

/// The emulated SQS on a port of its own. The port is bound before the service starts, because the
/// template's queue URLs contain the port.
#[derive(Debug, Clone)]
pub struct Sqs {
    /// The queues themselves, for access without HTTP.
    pub(crate) provider: Arc<RustackSqs>,
    handler: Arc<RustackSqsHandler>,
    /// The URL at which the service listens.
    pub url: String,
    /// A client of the service.
    pub client: aws_sdk_sqs::Client,
}

impl Sqs {
    /// Starts the service without queues.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self> {
        let (listener, address) = listen().await?;
        let provider = Arc::new(RustackSqs::new(SqsConfig {
            skip_signature_validation: true,
            default_region: REGION.into(),
            account_id: ACCOUNT.into(),
            host: address.ip().to_string(),
            port: address.port(),
        }));
        let handler = Arc::new(RustackSqsHandler::new(Arc::clone(&provider)));
        let url = format!("http://{address}");
        let client = aws_sdk_sqs::Client::new(&ledgerline_dynamodb::sdk_config(&url));
        let sqs = Self { provider, handler, url, client };
        let served = sqs.clone();
        let answer =
            async move |headers: HeaderMap, body: Bytes| served.answer(&headers, body).await;
        let router = Router::new().fallback(answer).layer(DefaultBodyLimit::disable());
        door::serve(listener, router, Pages::None)?;
        Ok(sqs)
    }

    /// Answers a request as the service's port does.
    pub(crate) async fn answer(&self, headers: &HeaderMap, body: Bytes) -> Response<Body> {
        use rustack_sqs_http::{dispatch, response, router};
        let answered = async {
            dispatch::dispatch_operation(
                self.handler.as_ref(),
                router::resolve_operation(headers)?,
                body,
            )
            .await
        };
        answered
            .await
            .unwrap_or_else(|error| response::error_to_response(&error, REQUEST))
            .map(Body::new)
    }

    /// Creates the queues, dead-letter queues first, because the other queues refer to them.
    ///
    /// # Errors
    /// When an attribute is wrong.
    pub(crate) async fn create_queues(&self, queues: &[Queue]) -> Result<()> {
        let mut queues: Vec<_> = queues.iter().collect();
        queues.sort_by_key(|queue| queue.attributes.contains_key("RedrivePolicy"));
        for queue in queues {
            let mut create = self.client.create_queue().queue_name(&queue.name);
            for (name, value) in &queue.attributes {
                create = create.attributes(name.as_str().into(), value);
            }
            create.send().await.with_context(|| format!("cannot create queue {}", queue.name))?;
        }
        Ok(())
    }

    /// Returns the URL of the queue with this ARN.
    ///
    /// # Errors
    /// When the ARN has another region or account.
    pub fn queue_url(&self, arn: &str) -> Result<String> {
        self.provider.queue_url_for_arn(arn).map_err(|error| anyhow!("{arn}: {error}"))
    }
}

async fn listen() -> Result<(TcpListener, SocketAddr)> {
    let listener =
        TcpListener::bind(("127.0.0.1", 0)).await.context("127.0.0.1 has no free port")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_table_that_differs_from_the_template_is_reported() {
        let key = |name: &str, kind: &str| json!({ "AttributeName": name, "KeyType": kind });
        let table = |keys: Value, indexes: Value| {
            let mut create = json!({
                "TableName": "Views", "KeySchema": keys, "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [
                    { "AttributeName": "id", "AttributeType": "S" }, { "AttributeName": "owner", "AttributeType": "S" },
                ],
            });
            if indexes.is_array() {
                create["GlobalSecondaryIndexes"] = indexes;
            }
            Table {
                id: "Views".into(),
                name: "Views".into(),
                stream_arn: None,
                create,
                time_to_live: None,
                policy: None,
            }
        };
        let by_owner = json!([{
            "IndexName": "byOwner", "KeySchema": [key("owner", "HASH")], "Projection": { "ProjectionType": "ALL" },
        }]);
        let by_owner_again = by_owner.clone();
        let id = json!([key("id", "HASH")]);
        let database = Database::memory().unwrap();
        let kept = table(id.clone(), by_owner.clone());
        assert_eq!(create_table(&database, &kept).unwrap(), None, "it is made");
        assert_eq!(create_table(&database, &kept).unwrap(), None, "it is the same");
        let different = |table: &Table| create_table(&database, table).unwrap().unwrap_or_default();
        assert!(
            different(&table(json!([key("owner", "HASH")]), by_owner)).contains("its key is id")
        );
        assert!(
            different(&table(id.clone(), Value::Null))
                .contains("byOwner, which the template lacks")
        );
        let by_id = json!([{
            "IndexName": "byId", "KeySchema": [key("id", "HASH")], "Projection": { "ProjectionType": "ALL" },
        }]);
        let text = |text: &str| json!({ "S": text });
        let item =
            json!({ "TableName": "Views", "Item": { "id": text("1"), "owner": text("ada") } });
        database.put_item(serde_json::from_value(item).unwrap()).unwrap();
        let with_both = json!([by_owner_again[0], by_id[0]]);
        assert_eq!(
            create_table(&database, &table(id, with_both)).unwrap(),
            None,
            "an index is added"
        );
        let query = json!({
            "TableName": "Views", "IndexName": "byId", "KeyConditionExpression": "id = :id",
            "ExpressionAttributeValues": { ":id": text("1") },
        });
        let found = database.query(serde_json::from_value(query).unwrap()).unwrap();
        let found = serde_json::to_value(found).unwrap();
        assert_eq!(found["Items"][0]["owner"], text("ada"), "and has the rows that there were");
        let keys = json!([{
            "IndexName": "byOwner", "KeySchema": [key("owner", "HASH")], "Projection": { "ProjectionType": "KEYS_ONLY" },
        }]);
        assert!(different(&table(json!([key("id", "HASH")]), keys)).contains("owner (KEYS_ONLY)"));
    }
}
