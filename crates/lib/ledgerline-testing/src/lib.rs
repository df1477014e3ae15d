#![doc = include_str!("../README.md")]
#![expect(
    clippy::missing_panics_doc,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "only tests call this"
)]

mod api_client;
mod copies;
mod local_stack;
mod log;
mod memory_bodies;
mod requests;
mod samples;
mod seed;
mod sessions;
pub mod tank;
mod tool;
mod under_test;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_sdk_sqs::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::{
            AfterDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
        },
    },
    error::BoxError,
};
use axum::{
    Json,
    body::Body,
    http::{HeaderValue, Response, StatusCode},
    routing::post,
};
use dynoxide::Database;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::{
    api_client::{Answer, Api, Quiet, eventually},
    copies::copy_streams,
    local_stack::{LocalStack, has_postgres},
    log::{category_commits, client_and_wire, cold, commits, event_types, send, store_and_wire},
    memory_bodies::{BodyFailure, MemoryBodies},
    requests::any_request_is_answered,
    samples::samples_are_answered,
    seed::{SEED, repeat_command, seed},
    sessions::{Shell, blocks, session_of_application_is_real, sessions_are_real},
    tool::{Differences, Tool, differences},
    under_test::{UnderTest, fresh_id, subject},
};
use ledgerline_local::{
    mailbox::{Mailbox, SendEmail},
    services::{self, DynamoDb},
};
use ledgerline_sam::{build, template};

/// Returns the event of a request of the caller "ada" to this route, with these fields.
#[must_use]
pub fn http_event<Event: DeserializeOwned>(route: &str, fields: Value) -> Event {
    fn merge(into: &mut Value, fields: Value) {
        match (into, fields) {
            (Value::Object(into), Value::Object(fields)) => {
                for (name, value) in fields {
                    merge(into.entry(name).or_insert(Value::Null), value);
                }
            }
            (into, value) => *into = value,
        }
    }
    let (method, path) = route.split_once(' ').unwrap();
    let path = path.replace("{id}", fields["pathParameters"]["id"].as_str().unwrap_or_default());
    let mut event = json!({
        "version": "2.0", "routeKey": route, "rawPath": path, "rawQueryString": "",
        "headers": {}, "isBase64Encoded": false,
        "requestContext": {
            "authorizer": { "jwt": { "claims": { "sub": "ada" } } }, "requestId": "r",
            "http": { "method": method, "path": path, "sourceIp": "192.0.2.1" }, "timeEpoch": 0,
        },
    });
    merge(&mut event, fields);
    serde_json::from_value(event).unwrap()
}

/// The folder of the application of tanks.
const TANKS: &str = ledgerline_tank::FOLDER;

/// Returns the folder of the template that the package's tests run: the nearest one with a
/// `template.yaml`, in the package or above it. The packages beside this one are libraries, and
/// their tests run the tank application.
#[must_use]
pub fn workspace() -> PathBuf {
    nearest_workspace().expect("a test runs under cargo, below a folder with a template.yaml")
}

fn nearest_workspace() -> Option<PathBuf> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    if package.parent() == Path::new(TANKS).parent() {
        return Some(TANKS.into());
    }
    package.ancestors().find(|folder| folder.join("template.yaml").exists()).map(Path::to_owned)
}

/// Whether the tests run the tank application.
fn runs_tanks() -> bool {
    workspace() == Path::new(TANKS)
}

/// Returns the path of a program of the workspace. `local` and `ledger` of the tank application have
/// its aggregates.
pub fn program(name: &str) -> PathBuf {
    match (name, runs_tanks()) {
        ("local", true) => build_once("tank-local"),
        // This package does not depend on the operator's tool, so the program is an example of the
        // tool's package.
        ("ledger", true) => build_once("examples/tank-ledger"),
        _ => build_once(name),
    }
}

/// Returns the path of a program in cargo's folder. The first call builds it, because its sources
/// do not change while tests run.
fn build_once(name: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let build = || match name.strip_prefix("examples/") {
        Some(example) => build::build_example(&workspace(), example).unwrap(),
        None => build::build(&workspace(), &[name]).unwrap().remove(name).unwrap(),
    };
    let program = || find_current(name).unwrap_or_else(build);
    built.entry(name.to_owned()).or_insert_with(program).clone()
}

/// Returns the path of a program that is newer than its sources, which cargo lists beside it; `None`
/// if cargo has to look. `cargo test --workspace` builds all programs before the first test, so no
/// test waits for cargo.
fn find_current(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.ancestors().nth(2)?.join(name);
    let list = std::fs::read_to_string(program.with_extension("d")).ok()?;
    let sources: Vec<_> = list.split_once(": ")?.1.split_whitespace().map(Path::new).collect();
    let workspace = workspace();
    // Another clone may have used the same folder for its programs.
    let is_here = sources.iter().any(|source| source.starts_with(&workspace));
    let packages = ["Cargo.toml", "Cargo.lock"].map(|file| workspace.join(file));
    let packages = packages.iter().map(PathBuf::as_path).filter(|file| file.exists());
    let time = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let built = time(&program)?;
    let is_older = |source: &Path| time(source).is_some_and(|time| time <= built);
    (is_here && sources.iter().copied().chain(packages).all(is_older)).then_some(program)
}

/// Returns a command that runs a program of the workspace in another process. The program finds the
/// functions of the workspace built, and does not call cargo.
pub fn command(name: &str) -> Command {
    static FUNCTIONS: LazyLock<PathBuf> = LazyLock::new(|| {
        let workspace = workspace();
        let template = template::load(
            &workspace.join("template.yaml"),
            &BTreeMap::new(),
            "http://127.0.0.1:1",
        );
        let functions = template.expect("the template is read").functions;
        let binaries: Vec<_> = functions.iter().map(|function| function.binary.as_str()).collect();
        let build = || build::build(&workspace, &binaries).expect("the functions build");
        let found = binaries.iter().map(|name| Some(((*name).to_owned(), find_current(name)?)));
        let programs: BTreeMap<_, _> = found.collect::<Option<_>>().unwrap_or_else(build);
        programs
            .values()
            .find_map(|program| program.parent())
            .expect("there is a function")
            .to_owned()
    });
    let mut command = Command::new(program(name));
    command.env(build::BUILT, &*FUNCTIONS);
    command
}

/// The template of the tank application, and the tables that only tests have.
const TANK_TABLES: [(&str, &str); 2] =
    [("template.yaml", ledgerline_tank::TEMPLATE), ("tables.yaml", include_str!("tables.yaml"))];

/// Starts DynamoDB in memory with these tables. Their logical ids are those of the template of the
/// workspace, of the tank application, or of `tables.yaml`.
///
/// The tables have no streams, because no test reads them here, and the emulator's bookkeeping for
/// them grows with every write.
pub async fn dynamodb(tables: &[&str]) -> DynamoDb {
    let dynamodb = DynamoDb::start(None).await.expect("DynamoDB starts");
    create_tables(&dynamodb.database, tables);
    dynamodb
}

/// Creates a database with these tables and without a port, for tests that bring their own wire.
#[must_use]
pub fn database(tables: &[&str]) -> Database {
    let database = Database::memory().expect("DynamoDB starts");
    create_tables(&database, tables);
    database
}

fn create_tables(database: &Database, tables: &[&str]) {
    static TABLES: LazyLock<Vec<template::Table>> = LazyLock::new(|| {
        let read = |text: &str, path: &Path| {
            template::tables_in(text, path).expect("the template is read")
        };
        let of_the_workspace = nearest_workspace().map(|folder| {
            let path = folder.join("template.yaml");
            read(&std::fs::read_to_string(&path).expect("the template is read"), &path)
        });
        let tanks = TANK_TABLES.iter().flat_map(|(path, text)| read(text, Path::new(path)));
        of_the_workspace.into_iter().flatten().chain(tanks).collect()
    });
    for id in tables {
        let known = TABLES.iter().find(|table| table.id == *id);
        let mut create =
            known.unwrap_or_else(|| panic!("no template has the table `{id}`")).create.clone();
        create.as_object_mut().expect("it is an object").remove("StreamSpecification");
        // The name in the template is not used, because tests know the table by its logical id.
        let name = table(id);
        create["TableName"] = name.clone().into();
        let table = template::Table {
            id: (*id).to_owned(),
            name,
            stream_arn: None,
            create,
            time_to_live: None,
            policy: None,
        };
        services::create_table(database, &table).expect("the table is created");
    }
}

/// Returns the name of the table with this logical id.
#[must_use]
pub fn table(id: &str) -> String {
    static STACK: LazyLock<String> = LazyLock::new(|| {
        nearest_workspace()
            .and_then(|folder| template::stack_name(&folder.join("template.yaml")))
            .unwrap_or_else(|| template::STACK.to_owned())
    });
    format!("{}-{id}", *STACK)
}

/// Counts every request on the wire, including retries, and the capacity that the responses report.
#[derive(Debug, Clone, Default)]
pub struct Wire(Arc<Mutex<Vec<Call>>>);

/// A request on the wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The operation, such as `Query`.
    pub operation: String,
    /// The capacity units that it consumed.
    pub units: f64,
    /// The bytes of its response.
    pub bytes: usize,
}

impl Wire {
    /// Returns the requests since the last call.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the operations of the requests since the last call.
    #[must_use]
    pub fn operations(&self) -> Vec<String> {
        self.take().into_iter().map(|call| call.operation).collect()
    }
}

impl Intercept for Wire {
    fn name(&self) -> &'static str {
        "Wire"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Call {
            operation,
            units: 0.0,
            bytes: 0,
        });
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response().body().bytes().unwrap_or_default();
        let units = ledgerline_dynamodb::capacity_units(answer);
        if let Some(call) = self.0.lock().unwrap_or_else(PoisonError::into_inner).last_mut() {
            // With concurrent calls, the last one has the units and bytes of all. Their sum is
            // right.
            call.units += units;
            call.bytes += answer.len();
        }
        Ok(())
    }
}

/// A crash of a program after some of its calls, as all other programs see it: the later calls are
/// never sent.
#[derive(Debug, Clone)]
pub struct Crash(Arc<AtomicUsize>);

impl Default for Crash {
    /// No call fails.
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

impl Crash {
    /// Sends only this many more calls.
    pub fn after(&self, calls: usize) {
        self.0.store(calls, Ordering::SeqCst);
    }

    /// Sends every call again. Returns whether the allowed calls were used up, which is the case
    /// after every unsent call.
    pub fn recover(&self) -> bool {
        self.0.swap(usize::MAX, Ordering::SeqCst) == 0
    }
}

impl Intercept for Crash {
    fn name(&self) -> &'static str {
        "Crash"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let left =
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| "crashed".into())
    }
}

/// SES with a mailbox of its own. A test can make it refuse mails.
#[derive(Debug, Clone, Default)]
pub struct Ses {
    mailbox: Arc<Mailbox>,
    refusals: Arc<Mutex<Vec<(u16, &'static str)>>>,
    pause: Arc<Mutex<Duration>>,
}

impl Ses {
    /// Starts the service, and returns its URL.
    pub async fn start(&self) -> String {
        let listener =
            tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let ses = self.clone();
        let send = async move |Json(mail): Json<SendEmail>| {
            let pause = *ses.pause.lock().unwrap_or_else(PoisonError::into_inner);
            tokio::time::sleep(pause).await;
            let refusal = ses.refusals.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some((status, code)) = refusal {
                let mut refused = Response::new(Body::from(r#"{"message":"no"}"#));
                *refused.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
                refused.headers_mut().insert("x-amzn-errortype", HeaderValue::from_static(code));
                return refused;
            }
            ses.mailbox.send(mail)
        };
        let router = axum::Router::new().route("/v2/email/outbound-emails", post(send));
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    /// Refuses the next `mails` mails with this status and code.
    pub fn refuse(&self, mails: usize, status: u16, code: &'static str) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner) = vec![(status, code); mails];
    }

    /// Waits for this time before the response to every mail.
    pub fn pause(&self, pause: Duration) {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = pause;
    }

    /// Returns the mails that it accepted.
    #[must_use]
    pub fn mails(&self) -> Value {
        let Json(mails) = self.mailbox.mails(None);
        mails["mails"].clone()
    }
}
