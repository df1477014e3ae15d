//! The Lambda host: it runs the functions' binaries behind the Lambda Runtime API. Concurrent
//! invocations run in instances of their own, up to a limit.
//!
//! Source: the developer guide, "Using the Lambda runtime API for custom runtimes".

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    path::{self, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    net::TcpListener,
    process::{Child, Command},
    sync::{Notify, Semaphore, SemaphorePermit, oneshot, watch},
};
use uuid::Uuid;

use crate::{
    door::{self, Pages},
    operations::Logs,
    output,
    trace_log::TraceLog,
};

/// The alias under which event sources invoke a function, because SAM publishes it under this name
/// (`AutoPublishAlias`).
pub(crate) const LIVE: &str = "live";
/// The maximum number of instances of one function: enough for races between instances to happen.
const MAX_INSTANCES: usize = 4;

/// How long the oldest invocation may wait while instances prefer invocations about their own
/// subjects. In tests, the time is so long that a slow machine does not reach it.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 500 });

/// The time that Lambda allows for a function's initialisation.
const INIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The only variables that a function gets from the stack's own environment. They configure
/// libfaketime, with which a test moves the clock of the stack and of all functions at once:
/// <https://github.com/wolfcw/libfaketime>.
const CLOCK: [&str; 5] = [
    "LD_PRELOAD",
    "FAKETIME_TIMESTAMP_FILE",
    "FAKETIME_CACHE_DURATION",
    "FAKETIME_DONT_FAKE_MONOTONIC",
    "NO_FAKE_STAT",
];

/// The parameters with which a function starts.
#[derive(Debug)]
pub struct Launch {
    /// The name of the binary, by which developers know the function.
    pub name: String,
    /// The ARN of the function.
    pub arn: String,
    /// The function's own binary, or the development binary, which finds the function by its name.
    pub program: PathBuf,
    /// The variables of the function's environment, without those that Lambda itself sets.
    pub environment: BTreeMap<String, String>,
    /// The longest time that an invocation may take.
    pub timeout: Duration,
}

/// The error of a failed invocation: the function returned an error, panicked, crashed or timed
/// out.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct InvokeError {
    /// Lambda's `errorType`.
    pub kind: String,
    /// Lambda's `errorMessage`.
    pub message: String,
}

impl InvokeError {
    fn new(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }
}

/// All functions, and the Runtime API that their instances call.
#[derive(Debug)]
pub struct Host {
    functions: Mutex<BTreeMap<String, Arc<Function>>>,
    url: String,
    hops: TraceLog,
    show_logs: bool,
    started: Instant,
    /// The lines that the functions wrote, and a report of each failed invocation.
    pub(crate) logs: Arc<Logs>,
}

/// One function, with its instances and its waiting invocations.
#[derive(Debug)]
pub struct Function {
    launch: Launch,
    host: Weak<Host>,
    instances: Mutex<Instances>,
    work: Notify,
    next_instance: AtomicU64,
    /// Whether the binary is being rebuilt. Meanwhile, invocations wait.
    held: watch::Sender<bool>,
    /// The time of the last HTTP request, in milliseconds since the start of the host; 0 if there
    /// was no request.
    requested: AtomicU64,
    /// The permits for long polls, which leave half of the instances free.
    long_polls: Semaphore,
}

#[derive(Debug, Default)]
struct Instances {
    waiting: VecDeque<Invocation>,
    running: BTreeMap<u64, Instance>,
}

#[derive(Debug)]
struct Invocation {
    id: String,
    payload: Bytes,
    /// The name by which the caller invoked the function: its ARN, with the alias if the caller
    /// named one.
    arn: String,
    /// The subject of the invocation, such as an account.
    subject: Option<String>,
    since: Instant,
    reply: Reply,
}

/// The part of an invocation that an instance receives.
struct Taken {
    id: String,
    payload: Bytes,
    arn: String,
}

type Reply = oneshot::Sender<std::result::Result<Bytes, InvokeError>>;

/// The reason why an instance accepts no more invocations. The host kills such an instance after
/// its current invocation is answered, or at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The binary of the instance was rebuilt.
    Replaced,
    /// The invocation of the instance timed out.
    TimedOut,
}

#[derive(Debug)]
struct Instance {
    /// Whether the instance has asked for work at least once, which ends its initialisation.
    initialised: bool,
    idle: bool,
    /// The reason why the instance accepts no more invocations, if there is one.
    ending: Option<Ending>,
    current: Option<(String, Reply)>,
    kill: Arc<Notify>,
}

impl Instances {
    /// Returns the place of the next invocation for the instance: the oldest invocation about a
    /// subject that the instance owns. Without such an invocation, returns the place of the oldest
    /// of all. The oldest of all also comes first once it has waited longer than [`PATIENCE`].
    fn next_place(&self, instance: u64) -> Option<usize> {
        let oldest = self.waiting.front()?;
        if oldest.since.elapsed() > PATIENCE {
            return Some(0);
        }
        let is_own = |invocation: &Invocation| {
            invocation.subject.as_ref().is_some_and(|subject| self.owner(subject) == Some(instance))
        };
        Some(self.waiting.iter().position(is_own).unwrap_or(0))
    }

    /// Returns the instance that a subject prefers, by rendezvous hashing. The preference changes
    /// only if the instance stops taking work, or if a new instance has a higher hash.
    fn owner(&self, subject: &str) -> Option<u64> {
        let takes_work = |instance: &Instance| instance.initialised && instance.ending.is_none();
        let working = self.running.iter().filter(|(_, instance)| takes_work(instance));
        working.map(|(id, _)| *id).max_by_key(|id| {
            let mut hasher = DefaultHasher::new();
            (subject, id).hash(&mut hasher);
            hasher.finish()
        })
    }
}

/// Starts one instance of a function, and invokes it with each of the payloads. As on the local
/// stack, the instance gets no environment but this one.
///
/// # Errors
/// When the instance ends before it asks for work, or an invocation fails.
pub async fn invoke_program(
    program: &std::path::Path,
    environment: BTreeMap<String, String>,
    payloads: impl IntoIterator<Item = Vec<u8>>,
) -> Result<Vec<Value>> {
    let host = Host::start(TraceLog { quiet: true }, false).await?;
    let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let function = host.add(Launch {
        arn: format!("arn:aws:lambda:us-east-1:000000000000:function:{name}"),
        name,
        program: program.to_owned(),
        environment,
        timeout: Duration::from_secs(10),
    });
    function.warm_up().await?;
    let mut answers = Vec::new();
    for payload in payloads {
        function.idle().await;
        answers.push(serde_json::from_slice(&function.invoke(payload).await?)?);
    }
    Ok(answers)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Starts the Runtime API, without functions.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) async fn start(hops: TraceLog, show_logs: bool) -> Result<Arc<Self>> {
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).await.context("127.0.0.1 has no free port")?;
        // The URL has a scheme, because the runtime accepts no path in a URL without one. The path
        // distinguishes the instances.
        let url = format!("http://{}", listener.local_addr()?);
        let started = Instant::now();
        let host = Arc::new(Self {
            functions: Mutex::default(),
            url,
            hops,
            show_logs,
            started,
            logs: Arc::default(),
        });
        let api = Router::new()
            .route("/{function}/{instance}/2018-06-01/runtime/invocation/next", get(next))
            .route(
                "/{function}/{instance}/2018-06-01/runtime/invocation/{id}/response",
                post(response),
            )
            .route("/{function}/{instance}/2018-06-01/runtime/invocation/{id}/error", post(error))
            .route("/{function}/{instance}/2018-06-01/runtime/init/error", post(init_error))
            // The largest synchronous response on Lambda has 6 MB.
            .layer(DefaultBodyLimit::max(6 * 1024 * 1024))
            .with_state(Arc::clone(&host));
        door::serve(listener, api, Pages::None)?;
        Ok(host)
    }

    pub(crate) fn add(self: &Arc<Self>, launch: Launch) -> Arc<Function> {
        let function = Arc::new(Function {
            host: Arc::downgrade(self),
            instances: Mutex::default(),
            work: Notify::new(),
            next_instance: AtomicU64::new(1),
            held: watch::channel(false).0,
            requested: AtomicU64::new(0),
            long_polls: Semaphore::new(MAX_INSTANCES / 2),
            launch,
        });
        lock(&self.functions).insert(function.launch.name.clone(), Arc::clone(&function));
        function
    }

    fn function(&self, name: &str) -> Option<Arc<Function>> {
        lock(&self.functions).get(name).cloned()
    }
}

impl Function {
    /// Returns the variables of the function's environment.
    #[must_use]
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.launch.environment
    }

    /// Returns the name of the binary.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// Returns the path of the function's program.
    pub(crate) fn program(&self) -> &path::Path {
        &self.launch.program
    }

    /// Returns the ARN of the function.
    #[must_use]
    pub fn arn(&self) -> &str {
        &self.launch.arn
    }

    /// Starts an instance and waits for the end of its initialisation, so that a misconfigured
    /// function shows at once.
    ///
    /// # Errors
    /// When the instance ends before it asks for work.
    pub(crate) async fn warm_up(self: &Arc<Self>) -> Result<()> {
        let instance = self.start_instance(&mut lock(&self.instances));
        loop {
            match lock(&self.instances).running.get(&instance) {
                Some(instance) if instance.initialised => return Ok(()),
                Some(_) => {}
                None => {
                    anyhow::bail!(
                        "{} ended during its initialisation; its output is above",
                        self.name()
                    )
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until an instance asks for work, so that the next invocation does not start another
    /// instance.
    pub(crate) async fn idle(&self) {
        while !lock(&self.instances).running.values().any(|instance| instance.idle) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns a permit for a long poll; `None` if all permits are in use.
    pub(crate) fn long_poll(&self) -> Option<SemaphorePermit<'_>> {
        self.long_polls.try_acquire().ok()
    }

    /// Stores the time at which a client of the HTTP API calls this function, and waits while the
    /// function's binary is being rebuilt.
    pub(crate) async fn note_request(&self) {
        if let Some(host) = self.host.upgrade() {
            self.requested.store(host.started.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
        self.wait_for_release().await;
    }

    /// Returns the time of the last HTTP request, which is comparable between the functions of a
    /// host.
    pub(crate) fn last_requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    async fn wait_for_release(&self) {
        // The wait cannot fail, because the sender lives as long as the function, which is borrowed
        // here.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    /// Makes new invocations wait until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Ends the wait that [`hold`](Self::hold) begins.
    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }

    /// Ends the instances of the old binary, at once or after their current invocation. The next
    /// invocation starts an instance of the new binary.
    pub(crate) fn end_instances(&self) {
        for instance in lock(&self.instances).running.values_mut() {
            instance.ending.get_or_insert(Ending::Replaced);
            if instance.current.is_none() {
                instance.kill.notify_one();
            }
        }
    }

    /// Invokes the function and waits for its answer.
    ///
    /// # Errors
    /// When the invocation fails.
    pub async fn invoke(
        self: &Arc<Self>,
        payload: Vec<u8>,
    ) -> std::result::Result<Bytes, InvokeError> {
        self.invoke_about(None, payload).await
    }

    /// Invokes the function with a payload about this subject, such as an account, and waits for
    /// the answer.
    ///
    /// When invocations wait, each instance first takes those about its own subjects, because it
    /// caches their states. If each of four instances took any command, another instance would
    /// mostly have run the account's previous command. A command on an outdated state takes three
    /// calls instead of one.
    ///
    /// # Errors
    /// When the invocation fails.
    pub(crate) async fn invoke_about(
        self: &Arc<Self>,
        subject: Option<String>,
        payload: Vec<u8>,
    ) -> std::result::Result<Bytes, InvokeError> {
        self.invoke_as(format!("{}:{LIVE}", self.launch.arn), subject, payload).await
    }

    /// Invokes the function by this ARN, which a caller of Lambda's `Invoke` chooses: with an
    /// alias, or without one.
    ///
    /// # Errors
    /// When the invocation fails.
    pub(crate) async fn invoke_as(
        self: &Arc<Self>,
        arn: String,
        subject: Option<String>,
        payload: Vec<u8>,
    ) -> std::result::Result<Bytes, InvokeError> {
        self.wait_for_release().await;
        let (reply, answer) = oneshot::channel();
        {
            let mut instances = lock(&self.instances);
            let id = Uuid::new_v4().to_string();
            let since = Instant::now();
            instances.waiting.push_back(Invocation {
                id,
                payload: payload.into(),
                arn,
                subject,
                since,
                reply,
            });
            let takes_work = |instance: &&Instance| {
                instance.ending.is_none() && (instance.idle || !instance.initialised)
            };
            let free = instances.running.values().filter(takes_work).count();
            let wanted = instances.waiting.len() > free && instances.running.len() < MAX_INSTANCES;
            if wanted {
                self.start_instance(&mut instances);
            }
        }
        // The instance that was busy last gets the work: its cache is the least likely to be
        // outdated, and instances that are not needed stay idle.
        self.work.notify_last();
        answer.await.unwrap_or_else(|_| {
            Err(InvokeError::new("Local.HostEnded", "the local stack is stopping"))
        })
    }

    /// Starts an instance. The caller counts the running instances under the same lock, so that two
    /// callers do not both take the last place.
    fn start_instance(self: &Arc<Self>, instances: &mut Instances) -> u64 {
        let id = self.next_instance.fetch_add(1, Ordering::Relaxed);
        let kill = Arc::new(Notify::new());
        let instance = Instance {
            initialised: false,
            idle: false,
            ending: None,
            current: None,
            kill: Arc::clone(&kill),
        };
        instances.running.insert(id, instance);
        let function = Arc::clone(self);
        tokio::spawn(async move {
            let ended = function.run_instance(id, &kill).await;
            function.instance_ended(id, &ended);
        });
        id
    }

    /// Runs the process of an instance until it ends. Returns how the process ended.
    async fn run_instance(&self, id: u64, kill: &Notify) -> String {
        let Some(host) = self.host.upgrade() else { return "the local stack is stopping".into() };
        let mut child = match self.spawn(&host, id) {
            Ok(child) => child,
            Err(error) => {
                return format!("{} cannot be started: {error}", self.launch.program.display());
            }
        };
        host.hops.line(
            "function",
            &format!("{} started (pid {})", self.launch.name, child.id().unwrap_or(0)),
        );
        drop(host);
        tokio::select! {
            status = child.wait() => match status {
                Ok(status) => format!("the process ended: {status}"),
                Err(error) => format!("the process cannot be observed: {error}"),
            },
            () = kill.notified() => {
                let _ = child.kill().await;
                match lock(&self.instances).running.get(&id).and_then(|instance| instance.ending) {
                    Some(Ending::TimedOut) => format!("the invocation took longer than {} s", self.launch.timeout.as_secs()),
                    Some(Ending::Replaced) | None => "a new build replaced the process".into(),
                }
            }
            () = self.hangs_in_init(id) => {
                let _ = child.kill().await;
                format!("the initialisation took longer than {} s", INIT_TIMEOUT.as_secs())
            }
        }
    }

    /// Starts the process of an instance, whose logs the host shows.
    fn spawn(&self, host: &Host, id: u64) -> std::io::Result<Child> {
        let mut command = Command::new(&self.launch.program);
        // All functions are one program: the name lets a developer find, and kill, one of them.
        #[cfg(unix)]
        command.arg0(&self.launch.name);
        command
            .env_clear()
            .envs(CLOCK.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(&self.launch.environment)
            .env("AWS_LAMBDA_RUNTIME_API", format!("{}/{}/{id}", host.url, self.launch.name))
            .env("AWS_LAMBDA_FUNCTION_NAME", &self.launch.name)
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256")
            .env("AWS_LAMBDA_LOG_GROUP_NAME", "local")
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "local")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let name = || self.launch.name.clone();
        if let Some(output) = child.stdout.take() {
            tokio::spawn(copy_logs(name(), host.show_logs, Arc::clone(&host.logs), output));
        }
        if let Some(output) = child.stderr.take() {
            tokio::spawn(copy_logs(name(), host.show_logs, Arc::clone(&host.logs), output));
        }
        Ok(child)
    }

    /// Returns if the instance has not asked for work in time; otherwise, waits for ever.
    async fn hangs_in_init(&self, id: u64) {
        tokio::time::sleep(INIT_TIMEOUT).await;
        if lock(&self.instances).running.get(&id).is_some_and(|instance| instance.initialised) {
            std::future::pending::<()>().await;
        }
    }

    fn instance_ended(self: &Arc<Self>, id: u64, how: &str) {
        let mut instances = lock(&self.instances);
        let ended = instances.running.remove(&id);
        let initialised = ended.as_ref().is_some_and(|instance| instance.initialised);
        let ending = ended.as_ref().and_then(|instance| instance.ending);
        if let Some((invocation, reply)) = ended.and_then(|instance| instance.current) {
            self.report(
                &invocation,
                if ending == Some(Ending::TimedOut) { "timeout" } else { "error" },
            );
            let _ = reply.send(Err(InvokeError::new("Runtime.ExitError", how)));
        }
        if !initialised
            && ending.is_none()
            && !instances.running.values().any(|instance| instance.initialised)
        {
            // A function that cannot start would not start for the next invocation either. So all
            // waiting invocations fail, instead of endless retries.
            for invocation in instances.waiting.drain(..) {
                let _ = invocation.reply.send(Err(InvokeError::new("Runtime.InitError", how)));
            }
        }
        let wanted = !instances.waiting.is_empty()
            && instances.running.values().all(|instance| instance.ending.is_some());
        if wanted {
            self.start_instance(&mut instances);
        }
        drop(instances);
        // The ended instance may have been woken for work that it did not take, so another instance
        // is woken.
        self.work.notify_one();
        if let Some(host) = self.host.upgrade() {
            host.hops.line("function", &format!("{}: {how}", self.launch.name));
        }
    }

    /// Returns the next invocation for an instance; `None` if the instance is gone or ending.
    async fn next_invocation(self: &Arc<Self>, instance: u64) -> Option<Taken> {
        loop {
            // The notification is enabled before the check, so that work that arrives in between is
            // not missed.
            let mut work = std::pin::pin!(self.work.notified());
            work.as_mut().enable();
            {
                let mut instances = lock(&self.instances);
                // Removes abandoned invocations, whose callers are gone.
                instances.waiting.retain(|invocation| !invocation.reply.is_closed());
                let place = instances.next_place(instance);
                let Instances { waiting, running } = &mut *instances;
                let Some(this) = running.get_mut(&instance) else {
                    self.work.notify_one();
                    return None;
                };
                this.initialised = true;
                if this.ending.is_some() {
                    // The instance is about to be killed, and another instance takes the work that
                    // woke this one.
                    self.work.notify_one();
                    return None;
                }
                if let Some(invocation) = place.and_then(|place| waiting.remove(place)) {
                    let Invocation { id, payload, arn, reply, .. } = invocation;
                    this.idle = false;
                    this.current = Some((id.clone(), reply));
                    self.limit(instance, id.clone(), Arc::clone(&this.kill));
                    return Some(Taken { id, payload, arn });
                }
                this.idle = true;
            }
            work.await;
        }
    }

    /// Logs the report of a failed invocation in Lambda's form, so that the filters of the runbook
    /// and of alarms find it. With `SystemLogLevel: WARN`, Lambda logs no other reports.
    fn report(&self, invocation: &str, status: &str) {
        let Some(host) = self.host.upgrade() else { return };
        let record = json!({ "requestId": invocation, "status": status });
        let report = json!({ "type": "platform.report", "record": record });
        host.logs.add(&self.launch.name, &report.to_string());
    }

    /// Kills the instance if this invocation has not finished within the function's timeout.
    fn limit(self: &Arc<Self>, instance: u64, invocation: String, kill: Arc<Notify>) {
        let function = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(function.launch.timeout).await;
            // The instance is marked under the lock. If it answers before its process is dead, it
            // takes no further invocation, which would be killed too.
            let mut instances = lock(&function.instances);
            let Some(late) = instances.running.get_mut(&instance) else { return };
            if late.current.as_ref().is_some_and(|(current, _)| *current == invocation) {
                late.ending = Some(Ending::TimedOut);
                kill.notify_one();
            }
        });
    }

    fn finish(
        &self,
        instance: u64,
        id: &str,
        result: std::result::Result<Bytes, InvokeError>,
    ) -> StatusCode {
        let mut instances = lock(&self.instances);
        let Some(instance) = instances.running.get_mut(&instance) else {
            return StatusCode::BAD_REQUEST;
        };
        match instance.current.take_if(|(current, _)| current == id) {
            Some((_, reply)) => {
                if instance.ending.is_some() {
                    instance.kill.notify_one();
                }
                if result.is_err() {
                    self.report(id, "error");
                }
                let _ = reply.send(result);
                StatusCode::ACCEPTED
            }
            None => StatusCode::BAD_REQUEST,
        }
    }
}

async fn next(
    State(host): State<Arc<Host>>,
    Path((function, instance)): Path<(String, u64)>,
) -> Response {
    let Some(function) = host.function(&function) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let Some(Taken { id, payload, arn }) = function.next_invocation(instance).await else {
        return StatusCode::GONE.into_response();
    };
    let deadline =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + function.launch.timeout;
    let trace = format!("Root=1-{:08x}-{}", deadline.as_secs(), &id.replace('-', "")[..24]);
    let headers = [
        ("Lambda-Runtime-Aws-Request-Id", id),
        ("Lambda-Runtime-Deadline-Ms", deadline.as_millis().to_string()),
        ("Lambda-Runtime-Invoked-Function-Arn", arn),
        ("Lambda-Runtime-Trace-Id", trace),
        ("Content-Type", "application/json".to_owned()),
    ];
    (headers, payload).into_response()
}

async fn response(
    State(host): State<Arc<Host>>,
    Path((function, instance, id)): Path<(String, u64, String)>,
    body: Bytes,
) -> StatusCode {
    host.function(&function)
        .map_or(StatusCode::NOT_FOUND, |function| function.finish(instance, &id, Ok(body)))
}

async fn error(
    State(host): State<Arc<Host>>,
    Path((function, instance, id)): Path<(String, u64, String)>,
    body: Bytes,
) -> StatusCode {
    let error = function_error(&body);
    host.function(&function)
        .map_or(StatusCode::NOT_FOUND, |function| function.finish(instance, &id, Err(error)))
}

async fn init_error(
    Path((function, _)): Path<(String, u64)>,
    _headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    report(&function, &function_error(&body).to_string());
    StatusCode::ACCEPTED
}

fn function_error(body: &[u8]) -> InvokeError {
    let body: Value = serde_json::from_slice(body).unwrap_or_else(|_| json!({}));
    let text = |name: &str| body[name].as_str().unwrap_or("unknown").to_owned();
    InvokeError { kind: text("errorType"), message: text("errorMessage") }
}

/// Stores the lines that a function writes, and prints them. Without `all`, it prints no metrics,
/// and no lines of the levels `TRACE`, `DEBUG` and `INFO`.
async fn copy_logs(function: String, all: bool, logs: Arc<Logs>, output: impl AsyncRead + Unpin) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        logs.add(&function, &line);
        let parsed = serde_json::from_str::<Value>(&line).unwrap_or_default();
        let is_metric = parsed.get("_aws").is_some();
        if all
            || !(is_metric || matches!(parsed["level"].as_str(), Some("TRACE" | "DEBUG" | "INFO")))
        {
            report(&function, &line);
        }
    }
}

fn report(function: &str, line: &str) {
    output::error_line(format_args!("[{function}] {line}"));
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Asks for work in place of an instance's process, which only waits to be killed.
    pub(crate) fn next(
        host: &Host,
        instance: u64,
    ) -> tokio::task::JoinHandle<Option<(String, Bytes)>> {
        let url = format!("{}/f/{instance}/2018-06-01/runtime/invocation/next", host.url);
        tokio::spawn(async move {
            let answer = crate::http_client().get(url).send().await.unwrap();
            let id =
                answer.headers().get("Lambda-Runtime-Aws-Request-Id")?.to_str().unwrap().to_owned();
            Some((id, answer.bytes().await.unwrap()))
        })
    }

    pub(crate) async fn respond(host: &Host, instance: u64, id: &str, body: &'static str) {
        answer(host, instance, id, "response", body).await;
    }

    pub(crate) async fn fail(host: &Host, instance: u64, id: &str) {
        answer(host, instance, id, "error", r#"{"errorType":"Broken","errorMessage":"no"}"#).await;
    }

    async fn answer(host: &Host, instance: u64, id: &str, kind: &str, body: &'static str) {
        let url = format!("{}/f/{instance}/2018-06-01/runtime/invocation/{id}/{kind}", host.url);
        let answer = crate::http_client().post(url).body(body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 202);
    }

    async fn until(function: &Function, holds: impl Fn(&BTreeMap<u64, Instance>) -> bool) {
        // The loop counts checks and not seconds: between two checks, every task that can make
        // progress does so.
        for _ in 0..12_000 {
            if holds(&lock(&function.instances).running) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the instances do not reach that state");
    }

    fn invoke(
        function: &Arc<Function>,
        payload: &str,
    ) -> impl Future<Output = Bytes> + Send + Unpin + 'static {
        let function = Arc::clone(function);
        let payload = payload.as_bytes().to_vec();
        Box::pin(async move { function.invoke(payload).await.unwrap() })
    }

    /// Starts a host with a function whose process only waits to be killed.
    async fn waiting(timeout: Duration) -> (Arc<Host>, Arc<Function>, tempfile::TempDir) {
        waiting_as("arn", timeout).await
    }

    /// Starts the same host as `waiting`, with this ARN of the function.
    pub(crate) async fn waiting_as(
        arn: &str,
        timeout: Duration,
    ) -> (Arc<Host>, Arc<Function>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("waits");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let host = Host::start(TraceLog { quiet: true }, false).await.unwrap();
        let function = host.add(Launch {
            name: "f".into(),
            arn: arn.into(),
            program,
            environment: BTreeMap::new(),
            timeout,
        });
        (host, function, folder)
    }

    /// With `SystemLogLevel: WARN`, Lambda reports only failures, which include errors that a
    /// function returns.
    #[tokio::test]
    async fn an_invocation_that_fails_is_reported_and_one_that_succeeds_is_not() {
        for fails in [false, true] {
            let (host, function, _folder) = waiting(Duration::from_secs(600)).await;
            let invoked = {
                let function = Arc::clone(&function);
                tokio::spawn(async move { function.invoke(b"work".to_vec()).await })
            };
            until(&function, |running| running.contains_key(&1)).await;
            let (id, _) = next(&host, 1).await.unwrap().unwrap();
            match fails {
                true => fail(&host, 1, &id).await,
                false => respond(&host, 1, &id, "done").await,
            }
            assert_eq!(invoked.await.unwrap().is_err(), fails);
            let pattern = r#"{ $.type = "platform.report" && $.record.status != "success" }"#;
            let found = host
                .logs
                .filter(json!({ "filterPattern": pattern }).to_string().as_bytes())
                .unwrap();
            assert_eq!(found["events"].as_array().unwrap().len(), usize::from(fails), "{found}");
        }
    }

    #[tokio::test]
    async fn the_instance_that_was_busy_last_gets_the_next_invocation() {
        let (host, function, _folder) = waiting(Duration::from_secs(60)).await;
        let both = ["a", "b"].map(|payload| tokio::spawn(invoke(&function, payload)));
        until(&function, |running| running.len() == 2).await;
        let instances: Vec<u64> = lock(&function.instances).running.keys().copied().collect();
        for instance in &instances {
            let (id, _) = next(&host, *instance).await.unwrap().unwrap();
            respond(&host, *instance, &id, "done").await;
        }
        for invoked in both {
            assert_eq!(invoked.await.unwrap(), "done");
        }
        let (first, last) = (instances[0], instances[1]);
        let idle_for_longer = next(&host, first);
        until(&function, |running| running[&first].idle).await;
        let busy_last = next(&host, last);
        until(&function, |running| running[&last].idle).await;

        let work = tokio::spawn(invoke(&function, "c"));

        let (by, taken) = tokio::select! {
            taken = idle_for_longer => (first, taken),
            taken = busy_last => (last, taken),
        };
        assert_eq!((by, taken.unwrap().unwrap().1), (last, Bytes::from("c")));
        work.abort();
    }

    #[tokio::test]
    async fn an_instance_prefers_its_own_subjects_and_no_invocation_waits_long_for_its_instance() {
        let (host, function, _folder) = waiting(Duration::from_secs(600)).await;
        let invoke_about = |subject: &str| {
            let function = Arc::clone(&function);
            let subject = subject.to_owned();
            tokio::spawn(async move {
                function.invoke_about(Some(subject.clone()), subject.into()).await
            })
        };
        let taken = async |instance| {
            let (id, payload) = next(&host, instance).await.unwrap().unwrap();
            respond(&host, instance, &id, "done").await;
            String::from_utf8(payload.to_vec()).unwrap()
        };
        for _ in 0..2 {
            tokio::spawn(invoke(&function, "init"));
        }
        until(&function, |running| running.len() == 2).await;
        let ids: Vec<u64> = lock(&function.instances).running.keys().copied().collect();
        for id in &ids {
            taken(*id).await;
        }
        let subjects: Vec<_> = (0..64).map(|n| format!("account {n}")).collect();
        let of = |id| {
            let instances = lock(&function.instances);
            let own = subjects.iter().filter(|subject| instances.owner(subject) == Some(id));
            own.cloned().collect::<Vec<_>>()
        };
        let (first, second) = (of(ids[0]), of(ids[1]));
        assert!(first.len() >= 3 && second.len() >= 3, "{first:?} {second:?}");

        // Given invocations for both instances, the oldest one for the second instance.
        for (number, subject) in [&second[0], &first[0], &second[1]].into_iter().enumerate() {
            invoke_about(subject);
            while lock(&function.instances).waiting.len() <= number {
                tokio::task::yield_now().await;
            }
        }
        // When the first instance asks, it gets its own invocation. It then gets the remaining one,
        // because no instance idles while invocations wait.
        assert_eq!(
            [taken(ids[0]).await, taken(ids[0]).await],
            [first[0].clone(), second[0].clone()]
        );
        assert_eq!(taken(ids[1]).await, second[1]);

        // Given an invocation of the second instance that has waited long, and one of the first.
        invoke_about(&second[2]);
        invoke_about(&first[1]);
        while lock(&function.instances).waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        lock(&function.instances).waiting[0].since -= PATIENCE * 2;
        // When the first instance asks, it gets the invocation that has waited longest.
        assert_eq!(taken(ids[0]).await, second[2]);
    }

    #[tokio::test]
    async fn an_invocation_whose_caller_is_gone_leaves_the_queue() {
        let (host, function, _folder) = waiting(Duration::from_secs(600)).await;
        let abandoned = tokio::spawn(invoke(&function, "abandoned"));
        until(&function, |running| running.contains_key(&1)).await;
        abandoned.abort();
        assert!(abandoned.await.unwrap_err().is_cancelled());
        let wanted = tokio::spawn(invoke(&function, "wanted"));
        while lock(&function.instances).waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        let (_, payload) = next(&host, 1).await.unwrap().unwrap();
        assert_eq!(payload, "wanted");
        wanted.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_function_never_has_more_instances_than_the_maximum() {
        let (_host, function, _folder) = waiting(Duration::from_secs(600)).await;
        let invocations: Vec<_> =
            (0..64).map(|_| tokio::spawn(invoke(&function, "work"))).collect();
        let reached = async {
            while lock(&function.instances).waiting.len() < 64 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reached).await.unwrap();
        assert_eq!(lock(&function.instances).running.len(), MAX_INSTANCES);
        invocations.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// A rebuild of the binary meanwhile changes nothing.
    #[tokio::test]
    async fn an_invocation_that_times_out_fails_with_the_timeout_as_the_reason() {
        for replaced in [false, true] {
            let (host, function, _folder) = waiting(Duration::from_millis(300)).await;
            let late = {
                let function = Arc::clone(&function);
                tokio::spawn(async move { function.invoke(b"late".to_vec()).await })
            };
            until(&function, |running| running.contains_key(&1)).await;
            next(&host, 1).await.unwrap().unwrap();
            if replaced {
                function.end_instances();
                function.release();
            }
            let error = late.await.unwrap().unwrap_err().to_string();
            assert!(error.contains("the invocation took longer than"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_running_invocation_ends_on_the_old_binary_and_a_waiting_one_runs_on_the_new_one() {
        let (host, function, _folder) = waiting(Duration::from_secs(600)).await;

        let before = tokio::spawn(invoke(&function, "before"));
        until(&function, |running| running.contains_key(&1)).await;
        let (busy, payload) = next(&host, 1).await.unwrap().unwrap();
        assert_eq!(payload, "before");

        function.hold();
        let mut meanwhile = invoke(&function, "meanwhile");
        assert!(futures::poll!(&mut meanwhile).is_pending());
        assert!(
            lock(&function.instances).waiting.is_empty(),
            "no instance is offered what is held"
        );
        let meanwhile = tokio::spawn(meanwhile);

        function.end_instances();
        function.release();
        until(&function, |running| running.contains_key(&2)).await;
        let (new, payload) = next(&host, 2).await.unwrap().unwrap();
        assert_eq!(payload, "meanwhile", "a new instance does it");
        respond(&host, 1, &busy, "of the old one").await;
        assert_eq!(before.await.unwrap(), "of the old one");
        until(&function, |running| !running.contains_key(&1)).await;
        respond(&host, 2, &new, "of the new one").await;
        assert_eq!(meanwhile.await.unwrap(), "of the new one");

        // After a failed build, the instance continues.
        let work = next(&host, 2);
        until(&function, |running| running[&2].idle).await;
        function.hold();
        let later = tokio::spawn(invoke(&function, "later"));
        function.release();
        let (same, payload) = work.await.unwrap().unwrap();
        assert_eq!(payload, "later");
        respond(&host, 2, &same, "done").await;
        assert_eq!(later.await.unwrap(), "done");

        // An idle instance of the old binary gets no more work, and the next invocation starts a
        // new instance.
        let work = next(&host, 2);
        until(&function, |running| running[&2].idle).await;
        function.end_instances();
        function.release();
        let last = tokio::spawn(invoke(&function, "last"));
        assert_eq!(work.await.unwrap(), None);
        until(&function, |running| running.keys().eq([&3])).await;
        let (_, payload) = next(&host, 3).await.unwrap().unwrap();
        assert_eq!(payload, "last");
        last.abort();
    }
}
