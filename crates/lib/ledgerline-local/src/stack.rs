//! The whole stack: the services and the functions of a template, and the connections between them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use axum::Router;
use futures::FutureExt;
use ledgerline_dynamodb::DynamoDbStore;
use tokio::{net::TcpListener, sync::Notify};

use ledgerline_sam::{
    build,
    lookup::COMMITS,
    manifests,
    template::{self, Event, REGION, Source, Template},
};

use crate::{
    access_log::AccessLog,
    connections::{Connections, Services},
    contract,
    door::{self, Pages},
    gateway::Gateway,
    host::{Function, Host, Launch},
    http_api::{Api, Route},
    iam,
    identity::Authorizer,
    mailbox::Mailbox,
    services::{self, Sqs},
    sign_in,
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
        let ports = Ports::bind(&options).await?;
        let sqs = Sqs::start().await?;
        let source = read_source(&options, hops)?;
        let mut template = template::resolve(&source, &options.parameters, &sqs.url)?;
        let programs = build_functions(&options, &source, &template, hops)?;
        let data = options.data.as_deref();
        let services = Services::start(&template, sqs, data, hops).await?;
        let host = Host::start(hops, options.logs).await?;
        let database = &services.dynamodb.url;
        let functions = add_functions(&host, &template, &programs, database, &ports.aws_url)?;
        let written = Arc::new(Notify::new());
        let connections =
            Connections { template: &template, functions: &functions, services: &services };
        connections.start(&written, data).await?;
        if let Some(file) = &options.env_vars {
            write_env_vars(file, &template, ports.aws.local_addr()?.port(), &options.user)?;
        }
        let log = template.tables.iter().find(|table| table.id == COMMITS).map(|table| {
            let client = aws_sdk_dynamodb::Client::new(&services.dynamodb.sdk_config());
            DynamoDbStore::new(client, &table.name)
        });
        let access = AccessLog::from_template(&source.json()).map(Arc::new);
        let routes = routes(&template, &functions);
        let gateway = gateway(&mut template, &source, &functions, services, &host, access.clone());
        door::serve(ports.aws, gateway.router(), Pages::Linked)?;
        for function in &functions {
            function.warm_up().await?;
        }
        if options.watch {
            let root = options.root();
            let root = root.canonicalize().with_context(|| root.display().to_string())?;
            let (functions, source) = (functions.clone(), source.clone());
            tokio::spawn(Watch { root, functions, source, programs, hops }.run());
        }
        let listed = routes.iter().map(list).collect();
        let url = format!("http://{}", ports.api.local_addr()?);
        let tokens = Arc::new(Tokens::new(url.clone())?);
        let (pages, web_app) = start_web_app(options.root(), &mut template, &url).await?;
        let sign_up = sign_up_trigger(&template, &functions);
        let clients = std::mem::take(&mut template.clients);
        let sign_in = sign_in::router(Arc::clone(&tokens), clients, sign_up);
        let contract = contract::router(options.root().to_owned(), source.stack().to_owned());
        let developer = options.user;
        let authorizer =
            template.audience.map(|audience| Authorizer { developer, audience, tokens });
        let cors = template.cors.map(Arc::new);
        let api = Api::new(routes, written, hops, authorizer, access, cors.clone()).router();
        let api = contract.merge(sign_in).merge(pages).merge(api);
        door::serve(ports.api, api, cors.map_or(Pages::Linked, Pages::Allowed))?;
        let Template { ignored, ignored_properties, .. } = template;
        let aws_url = ports.aws_url;
        Ok(Self {
            url,
            web_app,
            routes: listed,
            aws_url,
            ignored,
            ignored_properties,
            log,
            functions,
        })
    }

    /// Returns the names of the functions.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|function| function.name())
    }
}

impl Options {
    /// Returns the folder of the template, which is the root of the workspace.
    fn root(&self) -> &Path {
        let folder = self.template.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }
}

/// The ports of a stack.
struct Ports {
    api: TcpListener,
    aws: TcpListener,
    aws_url: String,
}

impl Ports {
    async fn bind(options: &Options) -> Result<Self> {
        let api = TcpListener::bind(("127.0.0.1", options.port)).await.with_context(|| {
            format!("port {} is taken; choose another with --port", options.port)
        })?;
        let aws = TcpListener::bind(options.aws_address).await.with_context(|| {
            format!("{} is in use; choose another with --aws-address", options.aws_address)
        })?;
        let aws_url = format!("http://{}", aws.local_addr()?);
        Ok(Self { api, aws, aws_url })
    }
}

/// Returns the trigger of the user pool after a sign-up, if it has one.
fn sign_up_trigger(template: &Template, functions: &[Arc<Function>]) -> Option<sign_in::Trigger> {
    let arn = template.sign_up.as_deref()?.trim_end_matches(":live");
    let function = Arc::clone(functions.iter().find(|function| function.arn() == arn)?);
    Some(Box::new(move |event| {
        let function = Arc::clone(&function);
        // The person has an account even if the trigger fails.
        async move { _ = function.invoke(event.to_string().into_bytes()).await }.boxed()
    }))
}

/// Reads the template. Its stack has the name of the stack that created the data.
fn read_source(options: &Options, hops: TraceLog) -> Result<Source> {
    let mut source = Source::read(&options.template)?;
    let kept = options.data.as_deref().map(services::kept_stack).transpose()?.flatten();
    if let Some(kept) = kept.filter(|kept| kept != source.stack()) {
        let text = format!(
            "the folder has tables of the stack {kept}, so the stack has this name, not {}",
            source.stack()
        );
        hops.always("data", &text);
        source.rename_stack(kept);
    }
    Ok(source)
}

/// The path of each function's program, by the function's name.
type Programs = BTreeMap<String, PathBuf>;

/// Builds the functions, and compares their manifests with the template.
fn build_functions(
    options: &Options,
    source: &Source,
    template: &Template,
    hops: TraceLog,
) -> Result<Programs> {
    let binaries: Vec<_> =
        template.functions.iter().map(|function| function.binary.as_str()).collect();
    hops.always("build", &format!("{} functions", binaries.len()));
    let programs = build::functions(options.root(), &binaries, options.own_binaries)?;
    let problems = manifests::stale_functions(source, &build::manifests(&programs)?)?;
    if !problems.is_empty() {
        bail!("the template and the functions differ:\n{}", problems.join("\n"));
    }
    Ok(programs)
}

/// Adds the functions to the host, each with its environment.
fn add_functions(
    host: &Arc<Host>,
    template: &Template,
    programs: &Programs,
    database: &str,
    aws_url: &str,
) -> Result<Vec<Arc<Function>>> {
    let services = ["SQS", "EVENTBRIDGE", "LAMBDA", "S3", "SESV2"];
    let endpoints = services.map(|service| (service, aws_url));
    let endpoints = endpoints.into_iter().chain([("DYNAMODB", database)]);
    let endpoints: Vec<_> = endpoints
        .map(|(service, url)| (format!("AWS_ENDPOINT_URL_{service}"), url.to_owned()))
        .collect();
    let add = |function: &template::Function| {
        let variables = [
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
            ("AWS_ACCESS_KEY_ID", iam::access_key(&function.id)),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let mut environment: BTreeMap<_, _> = endpoints.iter().cloned().chain(variables).collect();
        environment.extend(function.environment.clone());
        Ok(host.add(Launch {
            name: function.binary.clone(),
            arn: function.arn.clone(),
            program: programs.get(&function.binary).context("was built")?.clone(),
            environment,
            timeout: Duration::from_secs(function.timeout),
        }))
    };
    template.functions.iter().map(add).collect()
}

/// Returns the address of all services.
fn gateway(
    template: &mut Template,
    source: &Source,
    functions: &[Arc<Function>],
    services: Services,
    host: &Host,
    access: Option<Arc<AccessLog>>,
) -> Gateway {
    let resources = std::mem::take(&mut template.resources);
    let named = template.functions.iter().zip(functions).map(|(definition, function)| {
        let known = resources.iter().filter(|resource| resource.id == definition.id);
        let ids = known.flat_map(|resource| [resource.id.clone(), resource.physical.clone()]);
        (ids.collect(), Arc::clone(function))
    });
    Gateway {
        functions: named.collect(),
        dynamodb: services.dynamodb.url,
        sqs: services.sqs,
        buckets: services.buckets,
        events: services.events,
        invocations: services.invocations,
        stack: source.stack().to_owned(),
        resources,
        template: source.text().to_owned(),
        queues: std::mem::take(&mut template.queues),
        logs: Arc::clone(&host.logs),
        access,
        client: crate::http_client(),
        mailbox: Mailbox::default(),
        hops: services.hops,
        iam: services.iam,
    }
}

/// Returns the pages of the web app at the URL of the API, if the template has a distribution.
/// Serves them at an origin of their own as well, and returns the URLs of both.
async fn start_web_app(
    root: &Path,
    template: &mut Template,
    url: &str,
) -> Result<(Router, Option<[String; 2]>)> {
    let Some(distribution) = &template.distribution else { return Ok((Router::new(), None)) };
    let pages = |api: &str| web_app::router(root, distribution, &template.clients, api);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port is free")?;
    let own = format!("http://{}", listener.local_addr()?);
    door::serve(listener, pages(url), Pages::Linked)?;
    if let Some(cors) = &mut template.cors {
        web_app::allow(cors, distribution, &own);
    }
    Ok((pages("/"), Some([url, &own].map(|origin| format!("{origin}{}", web_app::APP)))))
}

/// Returns the method and path of a route, and the name of its function.
fn list(route: &Route) -> (String, String) {
    (format!("{:<6} {}", route.method, route.path), route.function.name().to_owned())
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
