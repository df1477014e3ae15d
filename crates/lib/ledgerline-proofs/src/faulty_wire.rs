//! The wire between the SDK and the services: an emulated DynamoDB, a bus and queues, all in this
//! process.
//!
//! The faults happen on the wire. It delays, drops, repeats and throttles requests, and loses the
//! answers to applied requests.
//!
//! The time is that of a paused tokio runtime: waiting costs nothing, and the same seed repeats a
//! run.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::{
    AsyncSleep, Credentials, SharedAsyncSleep, SharedCredentialsProvider, Sleep,
    retry::{RetryPartition, TokenBucket},
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
    orchestrator::{HttpRequest, HttpResponse},
    result::ConnectorError,
};
use aws_smithy_types::body::SdkBody;
use base64::{Engine, prelude::BASE64_STANDARD};
use dynoxide::Database;
use fastrand::Rng;
use ledgerline::StreamId;
use ledgerline_dynamodb::{Archive, DynamoDbStore};
use ledgerline_s3::S3Bodies;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::sleep};

use crate::{
    emulated_services::{Answer, Services, answer},
    form::{Form, form},
    role::Role,
};

/// A fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The request and its answer are slow.
    Slow,
    /// The request never arrives: the connection breaks.
    Dropped,
    /// The request is applied, and the connection breaks before the answer.
    ReplyLost,
    /// The request is applied, and no answer arrives.
    Hanging,
    /// No answer arrives. The request is applied up to half a minute later, when its caller has
    /// given up.
    Late,
    /// The request arrives twice. The caller gets the second answer.
    Repeated,
    /// The service throttles the request.
    Throttled,
    /// The service fails before it applies the request.
    Failed,
    /// The service fails after it applied the request.
    AppliedAndFailed,
    /// Another transaction is writing the same item.
    Conflict,
    /// A replica answers that lags by some commits. This happens only to eventually consistent
    /// reads.
    Stale,
    /// The page ends early, as pages do at 1 MB.
    ShortPage,
}

/// All faults, for plans that choose at random.
const FAULTS: [Fault; 12] = [
    Fault::Slow,
    Fault::Dropped,
    Fault::ReplyLost,
    Fault::Hanging,
    Fault::Late,
    Fault::Repeated,
    Fault::Throttled,
    Fault::Failed,
    Fault::AppliedAndFailed,
    Fault::Conflict,
    Fault::Stale,
    Fault::ShortPage,
];

/// Which requests have a fault.
#[derive(Debug, Clone)]
pub enum Plan {
    /// No request has a fault.
    Calm,
    /// This number of a thousand requests has a random fault.
    Random(u32),
    /// About half of the requests are slow.
    Slow,
    /// The next requests have these faults, in this order; later requests have none. `None` is a
    /// request without a fault.
    Script(VecDeque<Option<Fault>>),
    /// The caller crashes at a call: that call is never answered, whether it is applied or not.
    Crash {
        /// The number of answered calls before the crash.
        after: usize,
        /// Whether the call without an answer is applied.
        applied: bool,
    },
}

/// The wire, with the services at its other end. It is cheap to clone.
#[derive(Clone)]
pub struct Wire {
    inner: Arc<Inner>,
    /// The role of the caller; `None` for an administrator.
    role: Option<Arc<Role>>,
}

struct Inner {
    services: Services,
    state: Mutex<State>,
    crashed: Notify,
}

struct State {
    plan: Plan,
    rng: Rng,
    calls: usize,
    faults: BTreeMap<Fault, u64>,
    /// A caller crashes when it passes on a body with this text.
    deadly: Option<String>,
    /// The requests that a role denied, as text.
    denied: Vec<String>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("plan", &self.lock().plan).finish_non_exhaustive()
    }
}

impl Wire {
    /// A wire without faults to this database.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self::connect(Services::new(database, Arc::default()))
    }

    /// Another wire without faults to the same database and objects.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::connect(self.inner.services.fork())
    }

    fn connect(services: Services) -> Self {
        let state = State {
            plan: Plan::Calm,
            rng: Rng::with_seed(0),
            calls: 0,
            faults: BTreeMap::new(),
            deadly: None,
            denied: Vec::new(),
        };
        let inner = Inner { services, state: Mutex::new(state), crashed: Notify::new() };
        Self { inner: Arc::new(inner), role: None }
    }

    /// The same wire for a function with this role: the database denies all requests that the role
    /// does not allow.
    pub(crate) fn under(&self, role: &Arc<Role>) -> Self {
        Self { inner: Arc::clone(&self.inner), role: Some(Arc::clone(role)) }
    }

    /// Reports a missing grant by its name. Otherwise the only symptom would be a call that always
    /// fails.
    pub(crate) fn ensure_nothing_denied(&self) -> Result<()> {
        let denied = std::mem::take(&mut self.lock().denied);
        ensure!(denied.is_empty(), "{}", denied.join("; "));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The services at its other end.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.inner.services
    }

    /// Follows this plan from this call on. The seed decides random choices.
    pub fn follow(&self, plan: Plan, seed: u64) {
        let mut state = self.lock();
        state.plan = plan;
        state.rng = Rng::with_seed(seed);
    }

    /// Ends all faults, except crashes by [`Self::crash_at`].
    pub fn calm(&self) {
        self.lock().plan = Plan::Calm;
    }

    /// Makes callers crash, from this call on, in a call that passes on `text` to the bus, a queue
    /// or a function. The call may be applied or not. Dead letters can still be written, because
    /// they are sent with `SendMessage`, not in a batch.
    pub fn crash_at(&self, text: Option<String>) {
        self.lock().deadly = text;
    }

    /// The number of calls since the previous call of this method.
    #[must_use]
    pub fn take_calls(&self) -> usize {
        std::mem::take(&mut self.lock().calls)
    }

    /// How often each fault happened since the previous call.
    #[must_use]
    pub fn take_faults(&self) -> BTreeMap<Fault, u64> {
        std::mem::take(&mut self.lock().faults)
    }

    /// Waits for the crash of [`Plan::Crash`], or for a crash by [`Self::crash_at`].
    pub async fn crashed(&self) {
        self.inner.crashed.notified().await;
    }

    /// A client of the database, with the timeouts and retries of the functions.
    #[must_use]
    pub fn dynamodb(&self) -> aws_sdk_dynamodb::Client {
        let config = aws_sdk_dynamodb::config::Builder::from(&self.sdk_config());
        aws_sdk_dynamodb::Client::from_conf(config.retry_partition(partition()).build())
    }

    /// A client of the bus.
    #[must_use]
    pub fn events(&self) -> aws_sdk_eventbridge::Client {
        let config = aws_sdk_eventbridge::config::Builder::from(&self.sdk_config());
        aws_sdk_eventbridge::Client::from_conf(config.retry_partition(partition()).build())
    }

    /// A client that invokes functions.
    #[must_use]
    pub fn lambda(&self) -> aws_sdk_lambda::Client {
        let config = aws_sdk_lambda::config::Builder::from(&self.sdk_config());
        aws_sdk_lambda::Client::from_conf(config.retry_partition(partition()).build())
    }

    /// A client of the queues.
    #[must_use]
    pub fn sqs(&self) -> aws_sdk_sqs::Client {
        let config = aws_sdk_sqs::config::Builder::from(&self.sdk_config());
        aws_sdk_sqs::Client::from_conf(config.retry_partition(partition()).build())
    }

    /// A configuration for clients of other services.
    #[must_use]
    pub fn sdk_config(&self) -> SdkConfig {
        let wire = self.clone();
        let client = http_client_fn(move |_, _| SharedHttpConnector::new(wire.clone()));
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-central-1"))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::for_tests()))
            .endpoint_url("http://wire.invalid")
            .http_client(client)
            .sleep_impl(SharedAsyncSleep::new(Asleep))
            .retry_config(ledgerline_lambda::retries())
            .timeout_config(ledgerline_lambda::timeouts())
            .build()
    }

    /// The fault of the next request, and its latency in each direction.
    fn next(&self, operation: &str, body: &Value) -> (Option<Fault>, [Duration; 2]) {
        let mut state = self.lock();
        state.calls += 1;
        let mut latency = || Duration::from_millis(state.rng.u64(1..20));
        let latency = [latency(), latency()];
        let fault = match &mut state.plan {
            Plan::Calm | Plan::Crash { .. } => None,
            Plan::Slow => state.rng.bool().then_some(Fault::Slow),
            Plan::Script(faults) => faults.pop_front().flatten(),
            Plan::Random(permille) => {
                let permille = *permille;
                (state.rng.u32(0..1_000) < permille)
                    .then(|| FAULTS[state.rng.usize(0..FAULTS.len())])
            }
        };
        let writes = [
            "PutItem",
            "TransactWriteItems",
            "ExecuteStatement",
            "ExecuteTransaction",
            "PutObject",
        ];
        let is_query = operation == "Query";
        let applies = |fault: &Fault| {
            (*fault != Fault::Conflict || writes.contains(&operation))
                && (*fault != Fault::Stale || is_query && body["ConsistentRead"] != true)
                && (*fault != Fault::ShortPage || is_query)
        };
        let fault = fault.filter(applies);
        if let Some(fault) = fault {
            *state.faults.entry(fault).or_default() += 1;
        }
        (fault, latency)
    }

    /// Whether the caller crashes at this call; if so, whether the call is applied.
    fn crashes(&self, operation: &str, body: &Value) -> Option<bool> {
        let mut state = self.lock();
        let passes_on = ["PutEvents", "SendMessageBatch", "Invoke"].contains(&operation);
        if state.deadly.as_ref().is_some_and(|text| passes_on && body.to_string().contains(text)) {
            return Some(state.rng.bool());
        }
        match &mut state.plan {
            Plan::Crash { after: 0, applied } => Some(*applied),
            Plan::Crash { after, .. } => {
                *after -= 1;
                None
            }
            Plan::Calm | Plan::Random(_) | Plan::Slow | Plan::Script(_) => None,
        }
    }

    async fn carry(
        self,
        operation: String,
        is_of_dynamodb: bool,
        body: Value,
    ) -> Result<HttpResponse, ConnectorError> {
        let denied = self
            .role
            .as_ref()
            .filter(|_| is_of_dynamodb)
            .and_then(|role| role.denies(&operation, &body));
        if let Some(denied) = denied {
            self.lock().denied.push(denied.clone());
            return response(answer::deny(&denied));
        }
        let (fault, [there, back]) = self.next(&operation, &body);
        sleep(there).await;
        if let Some(applied) = self.crashes(&operation, &body) {
            if applied {
                self.apply(&operation, &body).await;
            }
            self.inner.crashed.notify_one();
            return futures::future::pending().await;
        }
        let answered = match fault {
            None => self.apply(&operation, &body).await,
            Some(fault) => self.misbehave(fault, operation, body, [there, back]).await?,
        };
        sleep(back).await;
        response(answered)
    }

    /// Applies a request. With [`Form::Stubs`], it also archives the commits with even
    /// versions.
    async fn apply(&self, operation: &str, body: &Value) -> Answer {
        let answered = self.inner.services.call(operation, body);
        if form() == Form::Stubs {
            let quiet = self.fork();
            for (stream, version) in inserted(body).filter(|(_, version)| version % 2 == 0) {
                let table = ledgerline_testing::table("CommitsTable");
                let log = DynamoDbStore::new(quiet.dynamodb(), table);
                let bodies = Arc::new(S3Bodies::new(&quiet.sdk_config(), "bodies"));
                let mut archive = Archive::new(log, bodies, NonZeroU32::MAX);
                // A proof may store a commit that no archive can read.
                let _ = archive.archive(&stream, version..=version).await;
            }
        }
        answered
    }

    /// Answers a request with a fault.
    async fn misbehave(
        &self,
        fault: Fault,
        operation: String,
        mut body: Value,
        [there, back]: [Duration; 2],
    ) -> Result<Answer, ConnectorError> {
        let services = &self.inner.services;
        let broken = || ConnectorError::io("the connection broke".into());
        Ok(match fault {
            Fault::Slow => {
                sleep(there * 20).await;
                let answered = self.apply(&operation, &body).await;
                sleep(back * 20).await;
                answered
            }
            Fault::Dropped => return Err(broken()),
            Fault::ReplyLost => {
                self.apply(&operation, &body).await;
                sleep(back).await;
                return Err(broken());
            }
            Fault::Hanging => {
                self.apply(&operation, &body).await;
                futures::future::pending().await
            }
            Fault::Late => {
                let wire = self.clone();
                tokio::spawn(async move {
                    sleep(back * 1_500).await;
                    wire.apply(&operation, &body).await;
                });
                futures::future::pending().await
            }
            Fault::Repeated => {
                self.apply(&operation, &body).await;
                sleep(back).await;
                self.apply(&operation, &body).await
            }
            Fault::Throttled => answer::throttle(&operation, &body, back.subsec_millis() % 2 == 0),
            Fault::Failed => answer::fail(),
            Fault::AppliedAndFailed => {
                self.apply(&operation, &body).await;
                answer::fail()
            }
            Fault::Conflict => answer::conflict(&operation, &body),
            Fault::Stale => {
                services.stale(&operation, &mut body, 1 + u64::from(back.subsec_millis() % 3))
            }
            Fault::ShortPage => {
                body["Limit"] = 1.into();
                self.apply(&operation, &body).await
            }
        })
    }
}

/// Returns the commits that the statements of a request insert: their first parameters are the keys.
fn inserted(body: &Value) -> impl Iterator<Item = (StreamId, u64)> {
    let commits = ledgerline_testing::table("CommitsTable");
    let of_transaction = body["TransactStatements"].as_array().into_iter().flatten();
    of_transaction.chain([body]).filter_map(move |statement| {
        let text = statement["Statement"].as_str()?;
        let parameters = &statement["Parameters"];
        let stream = StreamId::try_from(parameters[0]["S"].as_str()?.to_owned()).ok()?;
        let version = parameters[1]["N"].as_str()?.parse().ok()?;
        (text.starts_with("INSERT") && text.contains(&commits)).then_some((stream, version))
    })
}

/// A partition without a retry budget. All clients of the process share the SDK's own budget, so a
/// run would depend on earlier runs.
fn partition() -> RetryPartition {
    RetryPartition::custom("proofs").token_bucket(TokenBucket::unlimited()).build()
}

/// Sleeps in the virtual time of the runtime.
#[derive(Debug)]
struct Asleep;

impl AsyncSleep for Asleep {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(sleep(duration))
    }
}

fn response(answer: Answer) -> Result<HttpResponse, ConnectorError> {
    let body = SdkBody::from(answer.body);
    let status = aws_smithy_runtime_api::http::StatusCode::try_from(answer.status);
    let mut response =
        HttpResponse::new(status.map_err(|error| ConnectorError::other(error.into(), None))?, body);
    response.headers_mut().insert("content-type", "application/x-amz-json-1.0");
    Ok(response)
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").unwrap_or_default();
        let operation = match target.rsplit('.').next().filter(|operation| !operation.is_empty()) {
            Some(operation) => operation.to_owned(),
            // Lambda and the mail provider send no such header: each of their operations has its
            // own address.
            None if request.uri().ends_with("/invocations") => "Invoke".to_owned(),
            // S3 names an object in the address.
            None if request.method() == "GET" => "GetObject".to_owned(),
            None if request.method() == "PUT" => "PutObject".to_owned(),
            None => "SendEmail".to_owned(),
        };
        let body = request.body().bytes().unwrap_or_default();
        let body = if operation.ends_with("Object") {
            json!({ "key": request.uri(), "content": BASE64_STANDARD.encode(body) })
        } else {
            serde_json::from_slice(body).unwrap_or_default()
        };
        let is_of_dynamodb = target.starts_with("DynamoDB_");
        HttpConnectorFuture::new(self.clone().carry(operation, is_of_dynamodb, body))
    }
}
