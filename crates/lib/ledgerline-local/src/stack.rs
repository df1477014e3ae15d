//! The whole stack: the services and the functions of a template, and the connections between them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicUsize},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use axum::Router;
use ledgerline_dynamodb::DynamoDbStore;
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
};

use ledgerline_sam::{
    build, check,
    grants::COMMITS,
    template::{self, Event, REGION, Source, Template},
};

use crate::{
    access_log::AccessLog,
    checkpoint::Checkpoint,
    contract,
    gateway::Gateway,
    host::{Function, Host, Launch},
    http_api::{Api, Route},
    iam::{self, Iam},
    identity::Authorizer,
    mailbox::Mailbox,
    pattern::Filters,
    rules,
    services::{self, DynamoDb, EventBridge, Sqs},
    sign_in,
    sources::{invocation::Invocations, queue, stream},
    stream_records::{self, Stream},
    tokens::Tokens,
    trace_log::TraceLog,
    watch::Watch,
    web_app,
};

/// The options of the local stack.
#[derive(Debug, Clone)]
pub struct Options {
    /// The path of the template.
    pub template: PathBuf,
    /// Values of the template's parameters.
    pub parameters: BTreeMap<String, String>,
    /// Port of the HTTP API on 127.0.0.1; 0 for any free one.
    pub port: u16,
    /// Address of the emulated AWS services; port 0 for any free one.
    pub aws_address: SocketAddr,
    /// The user of API requests without a token.
    pub user: String,
    /// The file to which the functions' environment is written, as `sam local` reads it.
    pub env_vars: Option<PathBuf>,
    /// The folder of the data; `None` for data in memory.
    pub data: Option<PathBuf>,
    /// Show all log lines of the functions, not only warnings and errors.
    pub logs: bool,
    /// Do not print hops.
    pub quiet: bool,
    /// Serve edits of the functions' sources.
    pub watch: bool,
    /// Run the functions' own binaries, even if the workspace has a development binary.
    pub own_binaries: bool,
}

/// A running stack, which ends with the process.
#[derive(Debug)]
pub struct Stack {
    /// The URL of the HTTP API.
    pub url: String,
    /// The URLs of the web app, if the template has a distribution: on the port of the API, and on a
    /// port of its own, which makes the pages those of another origin.
    pub web_app: Option<[String; 2]>,
    /// The method and path of each route, and the name of its function.
    pub routes: Vec<(String, String)>,
    /// The URL of the emulated services, which is the value of `AWS_ENDPOINT_URL` for the AWS CLI
    /// and SDKs.
    pub aws_url: String,
    /// Logical id and type of each resource of the template that is not emulated.
    pub ignored: Vec<(String, String)>,
    /// The properties that are not emulated, of resources that are emulated.
    pub ignored_properties: Vec<String>,
    /// The log, if the template has one.
    pub log: Option<DynamoDbStore>,
    functions: Vec<Arc<Function>>,
}

impl Stack {
    /// Starts the services and the functions, and returns when the stack is ready.
    ///
    /// # Errors
    /// When the template is wrong, the functions do not build or start, or a port is taken.
    pub async fn start(options: Options) -> Result<Self> {
        let hops = TraceLog { quiet: options.quiet };
        // The ports are bound first, so that a taken port is reported before the build, which may
        // take minutes.
        let listener = TcpListener::bind(("127.0.0.1", options.port)).await.with_context(|| {
            format!("port {} is taken; choose another with --port", options.port)
        })?;
        let aws_listener = TcpListener::bind(options.aws_address).await.with_context(|| {
            format!("{} is in use; choose another with --aws-address", options.aws_address)
        })?;
        let aws_address = aws_listener.local_addr()?;
        let sqs = Arc::new(Sqs::start().await?);
        let mut source = Source::read(&options.template)?;
        if let Some(kept) = options.data.as_deref().map(services::kept_stack).transpose()?.flatten()
            && kept != source.stack()
        {
            let text = format!(
                "the folder has tables of the stack {kept}, so the stack has this name, not {}",
                source.stack()
            );
            hops.always("data", &text);
            source.rename_stack(kept);
        }
        let text =
            std::fs::read_to_string(&options.template).context("the template cannot be read")?;
        let mut template = template::resolve(&source, &options.parameters, &sqs.url)?;

        let binaries: Vec<_> =
            template.functions.iter().map(|function| function.binary.as_str()).collect();
        let folder = options.template.parent().filter(|folder| !folder.as_os_str().is_empty());
        let root = folder.unwrap_or(Path::new("."));
        hops.always("build", &format!("{} functions", binaries.len()));
        let programs = build::functions(root, &binaries, options.own_binaries)?;
        let problems = check::wiring(&source, &check::manifests(&programs)?);
        if !problems.is_empty() {
            bail!("the template and the functions differ:\n{}", problems.join("\n"));
        }

        let iam = Arc::new(Iam::new(&template, hops)?);
        let dynamodb = DynamoDb::guarded(options.data.as_deref(), Some(Arc::clone(&iam))).await?;
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
        let under_way = Arc::new(AtomicUsize::new(0));
        let invocations = Arc::new(Invocations {
            targets: OnceLock::new(),
            rules: OnceLock::new(),
            outages: Arc::clone(&iam.outages),
            sqs: sqs.client.clone(),
            hops,
            under_way: Arc::clone(&under_way),
        });
        let events = EventBridge::start(Arc::clone(&invocations) as _).await?;

        let host = Host::start(hops, options.logs).await?;
        let environment = BTreeMap::from([
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
            ("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.url.clone()),
            ("AWS_ENDPOINT_URL_SQS", format!("http://{aws_address}")),
            ("AWS_ENDPOINT_URL_EVENTBRIDGE", format!("http://{aws_address}")),
            ("AWS_ENDPOINT_URL_LAMBDA", format!("http://{aws_address}")),
            ("AWS_ENDPOINT_URL_SESV2", format!("http://{aws_address}")),
        ]);
        let mut functions = Vec::new();
        for function in &template.functions {
            let program = programs.get(&function.binary).context("was built")?.clone();
            let mut environment: BTreeMap<_, _> = environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect();
            environment.insert("AWS_ACCESS_KEY_ID".to_owned(), iam::access_key(&function.id));
            environment.extend(function.environment.clone());
            functions.push(host.add(Launch {
                name: function.binary.clone(),
                arn: function.arn.clone(),
                program,
                environment,
                timeout: Duration::from_secs(function.timeout),
            }));
        }

        rules::connect(&template, &functions, &invocations, &sqs, &events).await?;
        let written = Arc::new(Notify::new());
        let mut readers = BTreeMap::<_, (Stream, Vec<_>)>::new();
        for (mapping, delivered) in streams(&template, &functions, &dynamodb, &sqs, &written, hops)?
        {
            let stream = mapping.stream.clone();
            let mut passed = delivered.clone();
            // The name of the file contains the consumer, because another consumer of the same
            // stream has another position.
            let name = format!("delivered-{}-{}", mapping.stream.table, mapping.function.name());
            let checkpoint = options.data.as_ref().map(|data| data.join(name));
            if let Some(checkpoint) = checkpoint {
                let position = std::fs::read_to_string(&checkpoint).unwrap_or_default();
                mapping.delivered.send_replace(position.clone());
                let (kept, seen) = watch::channel(position);
                passed = seen;
                // Each queue comes before its dead-letter queue. So the check finds a message that
                // moves in between in the second one.
                let mut queues: Vec<_> = template.queues.iter().collect();
                queues.sort_by_key(|queue| !queue.attributes.contains_key("RedrivePolicy"));
                let queues = queues
                    .into_iter()
                    .map(|queue| sqs.queue_url(&queue.arn))
                    .collect::<Result<_>>()?;
                let checkpoint = Checkpoint {
                    file: checkpoint,
                    delivered,
                    kept,
                    polling: Arc::clone(&mapping.polling),
                    sqs: Arc::clone(&sqs),
                    queues,
                    events: Arc::clone(&events.provider),
                    under_way: Arc::clone(&under_way),
                };
                tokio::spawn(checkpoint.run());
            }
            tokio::spawn(mapping.run());
            readers.entry(stream.table.clone()).or_insert((stream, Vec::new())).1.push(passed);
        }
        for (stream, readers) in readers.into_values() {
            tokio::spawn(stream_records::leave(dynamodb.database.clone(), stream, readers));
        }
        for (definition, event) in template
            .functions
            .iter()
            .flat_map(|function| function.events.iter().map(move |event| (function, event)))
        {
            if let Event::Schedule(period) = event {
                tokio::spawn(on_schedule(
                    Arc::clone(&invocations),
                    definition.arn.clone(),
                    *period,
                ));
            }
        }
        for mapping in queues(&template, &functions, &sqs, hops)? {
            let concurrency =
                mapping.source.scaling_config.maximum_concurrency.unwrap_or(queue::CONCURRENCY);
            for _ in 0..concurrency {
                tokio::spawn(mapping.clone().run());
            }
        }

        if let Some(file) = &options.env_vars {
            write_env_vars(file, &template, aws_address.port(), &options.user)?;
        }
        let named = template.functions.iter().zip(&functions).map(|(definition, function)| {
            let of_it = template.resources.iter().filter(|resource| resource.id == definition.id);
            let ids = of_it
                .flat_map(|resource| [resource.id.clone(), resource.physical.clone()])
                .collect();
            (ids, Arc::clone(function))
        });
        let access = AccessLog::from_template(&source.json()).map(Arc::new);
        let stack = source.stack().to_owned();
        let gateway = Gateway {
            dynamodb: dynamodb.url.clone(),
            sqs: Arc::clone(&sqs),
            events,
            functions: named.collect(),
            invocations,
            stack: stack.clone(),
            resources: std::mem::take(&mut template.resources),
            template: text,
            queues: std::mem::take(&mut template.queues),
            logs: Arc::clone(&host.logs),
            access: access.clone(),
            client: crate::http_client(),
            mailbox: Mailbox::default(),
            hops,
            iam,
        };
        tokio::spawn(async move { axum::serve(aws_listener, gateway.router()).await });

        let log = template.tables.iter().find(|table| table.id == COMMITS).map(|table| {
            DynamoDbStore::new(aws_sdk_dynamodb::Client::new(&dynamodb.sdk_config()), &table.name)
        });
        let routes = routes(&template, &functions);
        for function in &functions {
            function.warm_up().await?;
        }
        let address = listener.local_addr()?;
        let listed = routes
            .iter()
            .map(|route| {
                (format!("{:<6} {}", route.method, route.path), route.function.name().to_owned())
            })
            .collect();
        if options.watch {
            let root = root.canonicalize().with_context(|| root.display().to_string())?;
            tokio::spawn(
                Watch { root, functions: functions.clone(), source, programs, hops }.run(),
            );
        }
        let url = format!("http://{address}");
        let tokens = Arc::new(Tokens::new(url.clone())?);
        let clients = std::mem::take(&mut template.clients);
        let app = |distribution, api: &str| web_app::router(root, distribution, &clients, api);
        let (app, web_app) = match &template.distribution {
            Some(distribution) => {
                let own = serve_app(app(distribution, &url)).await?;
                if let Some(cors) = &mut template.cors {
                    web_app::allow(cors, distribution, &own);
                }
                let urls = [&url, &own].map(|origin| format!("{origin}{}", web_app::APP));
                (app(distribution, "/"), Some(urls))
            }
            None => (Router::new(), None),
        };
        let sign_in = sign_in::router(Arc::clone(&tokens), clients);
        let authorizer = template.audience.map(|audience| Authorizer {
            developer: options.user,
            audience,
            tokens,
        });
        let contract = contract::router(root.to_owned(), stack);
        let api = Api::new(routes, written, hops, authorizer, access, template.cors).router();
        let api = contract.merge(sign_in).merge(app).merge(api);
        tokio::spawn(async move {
            axum::serve(listener, api.into_make_service_with_connect_info::<SocketAddr>()).await
        });
        Ok(Self {
            url,
            web_app,
            routes: listed,
            aws_url: format!("http://{aws_address}"),
            ignored: template.ignored,
            ignored_properties: template.ignored_properties,
            log,
            functions,
        })
    }

    /// Returns the names of the functions.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|function| function.name())
    }
}

/// Serves the web app on a free port, and returns its origin.
async fn serve_app(app: Router) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port is free")?;
    let origin = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(origin)
}

type StreamMapping = (stream::Mapping, watch::Receiver<String>);

fn streams(
    template: &Template,
    functions: &[Arc<Function>],
    dynamodb: &DynamoDb,
    sqs: &Sqs,
    written: &Arc<Notify>,
    hops: TraceLog,
) -> Result<Vec<StreamMapping>> {
    let mut mappings = Vec::new();
    for (definition, function) in template.functions.iter().zip(functions) {
        for event in &definition.events {
            let Event::Stream(source) = event else { continue };
            let table = template
                .tables
                .iter()
                .find(|table| table.stream_arn.as_ref() == Some(&source.stream));
            let table = table.ok_or_else(|| {
                anyhow!("{}: no table has the stream {}", definition.id, source.stream)
            })?;
            let destination = source.destination_config.on_failure.as_ref();
            let on_failure = destination
                .map(|destination| sqs.queue_url(&destination.destination))
                .transpose()?;
            let (delivered, watched) = watch::channel(String::new());
            let mapping = stream::Mapping {
                database: dynamodb.database.clone(),
                stream: Stream::find(&dynamodb.database, &table.name)?,
                filters: Filters::parse(&source.filter_criteria)?,
                source: source.clone(),
                function: Arc::clone(function),
                on_failure: on_failure.map(|queue| (sqs.client.clone(), queue)),
                written: Arc::clone(written),
                polling: Arc::default(),
                delivered,
                hops,
                is_first: mappings
                    .iter()
                    .all(|(known, _): &StreamMapping| known.stream.table != table.name),
            };
            mappings.push((mapping, watched));
        }
    }
    Ok(mappings)
}

/// Invokes a function at this interval, the first time at once.
async fn on_schedule(invocations: Arc<Invocations>, arn: String, period: Duration) {
    let event = serde_json::json!({ "source": "aws.events", "detail-type": "Scheduled Event", "detail": {} })
        .to_string();
    let mut times = tokio::time::interval(period);
    loop {
        times.tick().await;
        invocations.begin(&arn, &event);
    }
}

fn queues(
    template: &Template,
    functions: &[Arc<Function>],
    sqs: &Sqs,
    hops: TraceLog,
) -> Result<Vec<queue::Mapping>> {
    let mut mappings = Vec::new();
    for (definition, function) in template.functions.iter().zip(functions) {
        for event in &definition.events {
            let Event::Queue(source) = event else { continue };
            let queue = template.queues.iter().find(|queue| queue.arn == source.queue);
            let queue = queue
                .ok_or_else(|| anyhow!("{}: there is no queue {}", definition.id, source.queue))?;
            let visible = queue
                .attributes
                .get("VisibilityTimeout")
                .and_then(|seconds| seconds.parse().ok())
                .unwrap_or(30);
            if visible < definition.timeout {
                bail!(
                    "{}: the queue's visibility timeout of {visible} s is below the function's timeout of {} s, which Lambda refuses",
                    definition.id,
                    definition.timeout
                );
            }
            if !(1..=10).contains(&source.batch_size) {
                bail!(
                    "{}: a batch of {} messages is not emulated, only 1 to 10",
                    definition.id,
                    source.batch_size
                );
            }
            mappings.push(queue::Mapping {
                turn: Arc::default(),
                queues: Arc::clone(&sqs.provider),
                url: sqs.queue_url(&source.queue)?,
                source: source.clone(),
                function: Arc::clone(function),
                hops,
            });
        }
    }
    Ok(mappings)
}

fn routes(template: &Template, functions: &[Arc<Function>]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (definition, function) in template.functions.iter().zip(functions) {
        for event in &definition.events {
            if let Event::HttpApi { method, path, scopes } = event {
                routes.push(Route {
                    method: method.clone(),
                    path: path.clone(),
                    scopes: scopes.clone(),
                    function: Arc::clone(function),
                });
            }
        }
    }
    routes
}

/// Writes the environment of every function by its logical id, into the file that `sam local
/// --env-vars` reads. Without the file, SAM would use logical ids as the names of tables and
/// queues. The functions run in containers, where Docker's name of this machine is
/// `host.docker.internal`.
fn write_env_vars(file: &Path, template: &Template, aws_port: u16, user: &str) -> Result<()> {
    let aws_url = format!("http://host.docker.internal:{aws_port}");
    let functions: BTreeMap<_, BTreeMap<_, _>> = template
        .functions
        .iter()
        .map(|function| {
            let mut environment = function.environment.clone();
            environment.insert("AWS_ENDPOINT_URL".into(), aws_url.clone());
            environment.insert("DEVELOPMENT_USER".into(), user.into());
            (&function.id, environment)
        })
        .collect();
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    std::fs::write(file, serde_json::to_string_pretty(&functions)?)
        .with_context(|| format!("cannot write {}", file.display()))
}
