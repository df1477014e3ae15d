//! The emulated services: DynamoDB with its streams, SQS and EventBridge, each on a port of its own.

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::{Context, Result, anyhow};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use dynoxide::Database;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::Service};
use hyper_util::rt::TokioIo;
use rustack_events_core::{
    config::EventsConfig, delivery::TargetDelivery, handler::RustackEventsHandler, provider::RustackEvents,
};
use rustack_events_http::service::{EventsHttpConfig, EventsHttpService};
use rustack_sqs_core::{config::SqsConfig, handler::RustackSqsHandler, provider::RustackSqs};
use rustack_sqs_http::service::{SqsHttpConfig, SqsHttpService};
use tokio::net::TcpListener;

use crate::{
    dynamodb, stream_records,
    template::{ACCOUNT, REGION, Table, Template},
};

/// DynamoDB on a port.
#[expect(missing_debug_implementations, reason = "the database has none")]
pub struct DynamoDb {
    /// The database behind it, for what has no place on the wire.
    pub database: Database,
    /// Where it listens.
    pub url: String,
}

impl DynamoDb {
    /// Starts it: in memory, or with the data in this folder, which is created if there is none.
    ///
    /// # Errors
    /// When the data cannot be opened or no port is free.
    pub async fn start(data: Option<&Path>) -> Result<Self> {
        let database = match data {
            Some(data) => open(data)?,
            None => stream_records::in_memory()?,
        };
        let (listener, address) = listen().await?;
        dynamodb::serve(listener, database.clone()).await?;
        Ok(Self { database, url: format!("http://{address}") })
    }

    /// Creates a table of the template, unless it is there since an earlier run.
    ///
    /// # Errors
    /// When its definition is wrong.
    pub fn create_table(&self, table: &Table) -> Result<()> {
        create_table(&self.database, table)
    }

    /// How clients find it.
    #[must_use]
    pub fn sdk_config(&self) -> SdkConfig {
        sdk_config(&self.url)
    }
}

/// Opens the tables in a folder, which is created if there is none.
///
/// # Errors
/// When they cannot be opened.
pub fn open(data: &Path) -> Result<Database> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
    stream_records::open(&data.join("dynamodb.sqlite"))
}

/// Creates a table in a database, unless it is there since an earlier run.
pub(crate) fn create_table(database: &Database, table: &Table) -> Result<()> {
    let exists = database.list_tables(serde_json::from_str("{}")?).map_err(|error| anyhow!("{error}"))?;
    if exists.table_names.contains(&table.name) {
        return Ok(());
    }
    let create = serde_json::from_value(table.create.clone())
        .with_context(|| format!("the definition of table {}", table.name))?;
    database.create_table(create).map_err(|error| anyhow!("cannot create {}: {error}", table.name))?;
    if let Some(attribute) = &table.time_to_live {
        let update = serde_json::from_value(serde_json::json!({
            "TableName": table.name,
            "TimeToLiveSpecification": { "AttributeName": attribute, "Enabled": true },
        }))?;
        database.update_time_to_live(update).map_err(|error| anyhow!("{}: {error}", table.name))?;
    }
    Ok(())
}

/// SQS on a port, bound before it serves, because the template's queue URLs name the port.
#[derive(Debug)]
pub struct Sqs {
    provider: Arc<RustackSqs>,
    /// Where it listens.
    pub url: String,
    /// A client of it.
    pub client: aws_sdk_sqs::Client,
}

impl Sqs {
    /// Starts it without queues.
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
        tokio::spawn(serve(listener, SqsHttpService::new(handler, SqsHttpConfig::default())));
        let url = format!("http://{address}");
        let client = aws_sdk_sqs::Client::new(&sdk_config(&url));
        Ok(Self { provider, url, client })
    }

    /// Creates the queues: dead-letter queues first, because the others refer to them.
    ///
    /// # Errors
    /// When an attribute is wrong.
    pub async fn create_queues(&self, template: &Template) -> Result<()> {
        let mut queues: Vec<_> = template.queues.iter().collect();
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

    /// The URL of the queue with this ARN.
    ///
    /// # Errors
    /// When the ARN is none of this region and account.
    pub fn queue_url(&self, arn: &str) -> Result<String> {
        self.provider.queue_url_for_arn(arn).map_err(|error| anyhow!("{arn}: {error}"))
    }
}

/// EventBridge on a port.
#[derive(Debug)]
pub struct EventBridge {
    /// For counting deliveries under way.
    pub provider: Arc<RustackEvents>,
    /// Where it listens.
    pub url: String,
    /// A client of it.
    pub client: aws_sdk_eventbridge::Client,
}

impl EventBridge {
    /// Starts it without buses; events that match a rule go to `delivery`.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(delivery: Arc<dyn TargetDelivery>) -> Result<Self> {
        let (listener, address) = listen().await?;
        let config = EventsConfig {
            skip_signature_validation: true,
            default_region: REGION.into(),
            account_id: ACCOUNT.into(),
            host: address.ip().to_string(),
            port: address.port(),
        };
        let provider = Arc::new(RustackEvents::new(config, delivery));
        let handler = Arc::new(RustackEventsHandler::new(Arc::clone(&provider)));
        tokio::spawn(serve(listener, EventsHttpService::new(handler, EventsHttpConfig::default())));
        let url = format!("http://{address}");
        let client = aws_sdk_eventbridge::Client::new(&sdk_config(&url));
        Ok(Self { provider, url, client })
    }
}

async fn listen() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port is free on 127.0.0.1")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn serve<S, B>(listener: TcpListener, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = std::convert::Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    while let Ok((connection, _)) = listener.accept().await {
        let service = service.clone();
        tokio::spawn(async move {
            // A client that hangs up in the middle is nobody's fault.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
        });
    }
}

/// An SDK configuration for an emulated service: its URL, and credentials that nobody checks.
#[must_use]
pub fn sdk_config(url: &str) -> SdkConfig {
    let credentials = aws_sdk_sqs::config::Credentials::new("local", "local", None, None, "local");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(url)
        .credentials_provider(aws_sdk_sqs::config::SharedCredentialsProvider::new(credentials))
        .build()
}
