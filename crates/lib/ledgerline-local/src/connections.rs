//! The services of a template, and the sources that invoke its functions.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use tokio::sync::{Notify, watch};

use ledgerline_sam::lookup::COMMITS;
use ledgerline_sam::template::{
    self, Destination, DestinationType, Event, QueueSource, StreamSource, Template,
};

use crate::{
    buckets::Buckets,
    bus_rules,
    event_bus::EventBridge,
    host::Function,
    iam::{Iam, access_key},
    pattern::Filters,
    services::{DynamoDb, Sqs},
    shard_checkpoint::Checkpoint,
    sources::{invocation::Invocations, kinesis_shards, on_failure::OnFailure, queue, stream},
    stream_records::{self, Stream},
    trace_log::TraceLog,
};

/// SQS's default visibility timeout of a queue, in seconds.
const DEFAULT_VISIBILITY_TIMEOUT: u64 = 30;

/// The running services of a template.
pub(crate) struct Services {
    pub(crate) dynamodb: DynamoDb,
    pub(crate) sqs: Arc<Sqs>,
    pub(crate) buckets: Buckets,
    pub(crate) events: EventBridge,
    pub(crate) invocations: Arc<Invocations>,
    pub(crate) iam: Arc<Iam>,
    pub(crate) hops: TraceLog,
}

impl Services {
    /// Starts the services, and creates the tables and queues of a template.
    pub(crate) async fn start(
        template: &Template,
        sqs: Sqs,
        data: Option<&Path>,
        hops: TraceLog,
    ) -> Result<Self> {
        let iam = Arc::new(Iam::new(template, hops)?);
        let dynamodb = DynamoDb::guarded(data, Some(Arc::clone(&iam))).await?;
        for table in &template.tables {
            if let Some(difference) = dynamodb.create_table(table)? {
                hops.always(
                    "data",
                    &format!(
                        "{} keeps its earlier definition: {difference}. Functions that need the new one will fail: start with another folder",
                        table.name
                    ),
                );
            }
        }
        sqs.create_queues(&template.queues).await?;
        let names = template.buckets.iter().map(|bucket| bucket.name.clone());
        let buckets = Buckets::open(names, data, Some(Arc::clone(&iam)))?;
        let invocations = Arc::new(Invocations {
            targets: OnceLock::new(),
            outages: Arc::clone(&iam.outages),
            sqs: sqs.client.clone(),
            hops,
            under_way: Arc::default(),
        });
        let events = EventBridge::new(Arc::clone(&invocations));
        Ok(Self { dynamodb, sqs: Arc::new(sqs), buckets, events, invocations, iam, hops })
    }
}

/// The functions of a template, and the services with their sources.
pub(crate) struct Connections<'a> {
    pub(crate) template: &'a Template,
    pub(crate) functions: &'a [Arc<Function>],
    pub(crate) services: &'a Services,
}

impl Connections<'_> {
    /// Starts all sources. `written` wakes the readers of streams, and `data` is the folder of
    /// their checkpoints.
    ///
    /// # Errors
    /// When a source is wrong.
    pub(crate) async fn start(&self, written: &Arc<Notify>, data: Option<&Path>) -> Result<()> {
        let Services { invocations, sqs, events, .. } = self.services;
        bus_rules::connect(self.template, self.functions, invocations, sqs, events).await?;
        self.start_streams(written, data)?;
        for (definition, _, event) in self.events() {
            if let Event::Schedule(period) = event {
                let invocations = Arc::clone(invocations);
                tokio::spawn(invoke_at_intervals(invocations, definition.arn.clone(), *period));
            }
        }
        self.start_queues()
    }

    fn events(&self) -> impl Iterator<Item = (&template::Function, &Arc<Function>, &Event)> {
        let functions = self.template.functions.iter().zip(self.functions);
        functions.flat_map(|(definition, function)| {
            definition.events.iter().map(move |event| (definition, function, event))
        })
    }

    fn start_streams(&self, written: &Arc<Notify>, data: Option<&Path>) -> Result<()> {
        let mut readers = BTreeMap::<_, (Stream, Vec<_>)>::new();
        for (definition, function, event) in self.events() {
            for mut mapping in self.stream_mappings(definition, function, event, written)? {
                let is_table_stream = mapping.kinesis.is_none();
                mapping.is_first = is_table_stream && !readers.contains_key(&mapping.stream.table);
                let delivered = mapping.delivered.subscribe();
                let passed = match data {
                    Some(data) => self.start_checkpoint(&mapping, delivered, data)?,
                    None => delivered,
                };
                let stream = mapping.stream.clone();
                readers.entry(stream.table.clone()).or_insert((stream, Vec::new())).1.push(passed);
                tokio::spawn(mapping.run());
            }
        }
        for (stream, readers) in readers.into_values() {
            let database = self.services.dynamodb.database.clone();
            tokio::spawn(stream_records::leave(database, stream, readers));
        }
        Ok(())
    }

    /// Returns the mapping of a table's stream, or those of the halves of a Kinesis stream.
    fn stream_mappings(
        &self,
        definition: &template::Function,
        function: &Arc<Function>,
        event: &Event,
        written: &Arc<Notify>,
    ) -> Result<Vec<stream::Mapping>> {
        let (source, is_kinesis) = match event {
            Event::Stream(source) => (source, false),
            Event::Kinesis(source) => (source, true),
            Event::HttpApi { .. } | Event::Queue(_) | Event::Schedule(_) | Event::Rule { .. } => {
                return Ok(Vec::new());
            }
        };
        let mut tables = self.template.tables.iter();
        let table = tables.find(|table| match is_kinesis {
            true => table.id == COMMITS,
            false => table.stream_arn.as_ref() == Some(&source.stream),
        });
        let table = table.ok_or_else(|| {
            anyhow!("{}: no table has the stream {}", definition.id, source.stream)
        })?;
        let halves = match is_kinesis {
            true => kinesis_shards::Half::both(&source.stream, &table.name).map(Some).into(),
            false => vec![None],
        };
        let mapping = |kinesis| {
            Ok(stream::Mapping {
                kinesis,
                ..self.stream_mapping(definition, function, source, &table.name, written)?
            })
        };
        halves.into_iter().map(mapping).collect()
    }

    fn stream_mapping(
        &self,
        definition: &template::Function,
        function: &Arc<Function>,
        source: &StreamSource,
        table: &str,
        written: &Arc<Notify>,
    ) -> Result<stream::Mapping> {
        let Services { dynamodb, sqs, hops, .. } = self.services;
        let destination = source.destination_config.on_failure.as_ref();
        let on_failure = destination
            .map(|destination| self.on_failure(&definition.id, destination))
            .transpose()?;
        Ok(stream::Mapping {
            database: dynamodb.database.clone(),
            stream: Stream::find(&dynamodb.database, table)?,
            filters: Filters::parse(&source.filter_criteria)?,
            source: source.clone(),
            kinesis: None,
            function: Arc::clone(function),
            on_failure: on_failure.map(|destination| (sqs.client.clone(), destination)),
            written: Arc::clone(written),
            polling: Arc::default(),
            delivered: watch::channel(String::new()).0,
            hops: *hops,
            is_first: false,
        })
    }

    /// Returns the destination of batches that Lambda gives up.
    fn on_failure(&self, function: &str, destination: &Destination) -> Result<OnFailure> {
        let Services { sqs, buckets, .. } = self.services;
        let arn = &destination.destination;
        if destination.r#type == DestinationType::SQS {
            return Ok(OnFailure::Queue(sqs.queue_url(arn)?));
        }
        let name = arn.rsplit(':').next().unwrap_or_default();
        let rules = self.template.object_rules.iter().filter(|rule| rule.bucket == name);
        let rules = rules.map(|rule| Ok((rule.prefix.clone(), sqs.queue_url(&rule.queue)?)));
        let rules = rules.collect::<Result<_>>()?;
        let (buckets, name, caller) = (buckets.clone(), name.to_owned(), access_key(function));
        Ok(OnFailure::Bucket { buckets, name, caller, rules })
    }

    /// Starts the checkpoint of a mapping, and returns the position in its file.
    fn start_checkpoint(
        &self,
        mapping: &stream::Mapping,
        delivered: watch::Receiver<String>,
        data: &Path,
    ) -> Result<watch::Receiver<String>> {
        let Services { sqs, invocations, .. } = self.services;
        // The name of the file contains the consumer, because another consumer of the same stream
        // has another position.
        let half = mapping.kinesis.as_ref().map(|half| format!("-kinesis-{}", half.number));
        let table = &mapping.stream.table;
        let function = mapping.function.name();
        let file = format!("delivered-{table}-{function}{}", half.unwrap_or_default());
        let file = data.join(file);
        let position = std::fs::read_to_string(&file).unwrap_or_default();
        mapping.delivered.send_replace(position.clone());
        let (kept, passed) = watch::channel(position);
        // Each queue comes before its dead-letter queue. So the check finds a message that moves in
        // between in the second one.
        let mut queues: Vec<_> = self.template.queues.iter().collect();
        queues.sort_by_key(|queue| !queue.attributes.contains_key("RedrivePolicy"));
        let queues =
            queues.into_iter().map(|queue| sqs.queue_url(&queue.arn)).collect::<Result<_>>()?;
        let checkpoint = Checkpoint {
            file,
            delivered,
            kept,
            polling: Arc::clone(&mapping.polling),
            sqs: Arc::clone(sqs),
            queues,
            under_way: Arc::clone(&invocations.under_way),
        };
        tokio::spawn(checkpoint.run());
        Ok(passed)
    }

    fn start_queues(&self) -> Result<()> {
        let Services { sqs, hops, .. } = self.services;
        for (definition, function, event) in self.events() {
            let Event::Queue(source) = event else { continue };
            self.check_queue(definition, source)?;
            let mapping = queue::Mapping {
                turn: Arc::default(),
                queues: Arc::clone(&sqs.provider),
                url: sqs.queue_url(&source.queue)?,
                source: source.clone(),
                function: Arc::clone(function),
                hops: *hops,
            };
            let concurrency = source.scaling_config.maximum_concurrency;
            for _ in 0..concurrency.unwrap_or(queue::CONCURRENCY) {
                tokio::spawn(mapping.clone().run());
            }
        }
        Ok(())
    }

    /// Checks a source as Lambda does.
    fn check_queue(&self, definition: &template::Function, source: &QueueSource) -> Result<()> {
        let (id, timeout) = (&definition.id, definition.timeout);
        let queue = self.template.queues.iter().find(|queue| queue.arn == source.queue);
        let queue = queue.ok_or_else(|| anyhow!("{id}: there is no queue {}", source.queue))?;
        let visible = queue.attributes.get("VisibilityTimeout");
        let visible =
            visible.and_then(|seconds| seconds.parse().ok()).unwrap_or(DEFAULT_VISIBILITY_TIMEOUT);
        if visible < timeout {
            bail!(
                "{id}: the queue's visibility timeout of {visible} s is below the function's timeout of {timeout} s, which Lambda refuses"
            );
        }
        if !(1..=10).contains(&source.batch_size) {
            let batch = source.batch_size;
            bail!("{id}: a batch of {batch} messages is not emulated, only 1 to 10");
        }
        Ok(())
    }
}

/// Invokes a function at this interval, the first time at once.
async fn invoke_at_intervals(invocations: Arc<Invocations>, arn: String, period: Duration) {
    let event = serde_json::json!({ "source": "aws.events", "detail-type": "Scheduled Event", "detail": {} })
        .to_string();
    let mut times = tokio::time::interval(period);
    loop {
        times.tick().await;
        invocations.begin(&arn, &event);
    }
}
