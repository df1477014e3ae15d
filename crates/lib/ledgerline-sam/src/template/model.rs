//! The resources of a template, as the local stack runs them.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

/// A resolved template: the resources that the local stack runs.
#[derive(Debug, Default)]
pub struct Template {
    /// The functions, in the order of the template.
    pub functions: Vec<Function>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The queues.
    pub queues: Vec<Queue>,
    /// The buckets of S3.
    pub buckets: Vec<Bucket>,
    /// The rules that send the names of new objects to queues.
    pub object_rules: Vec<ObjectRule>,
    /// Names of the event buses.
    pub buses: Vec<String>,
    /// Documents of the policies of operators, with the logical ids of the policies that they are or
    /// continue. An operator with one of them has those before it, too.
    pub operators: Vec<(String, Value)>,
    /// All resources, even those that have no meaning on a laptop.
    pub resources: Vec<Resource>,
    /// The audience of the HTTP API's authorizer: the clients whose tokens it accepts. `None` if
    /// the API has no authorizer. With an authorizer, AWS refuses a request without a token.
    pub audience: Option<Vec<String>>,
    /// The clients of the user pool.
    pub clients: Vec<Client>,
    /// ARN of the function that the user pool invokes after a sign-up, if there is one.
    pub sign_up: Option<String>,
    /// The web pages of other origins that may call the HTTP API; `None` if no page may.
    pub cors: Option<Cors>,
    /// The distribution of the web app, if there is one.
    pub distribution: Option<Distribution>,
    /// Logical ids and types of the resources that have no meaning on a laptop.
    pub ignored: Vec<(String, String)>,
    /// Properties of emulated resources that are not emulated: `HttpApi.Domain`. Also sentences about
    /// the resources of the team's own that the local stack does not run.
    pub ignored_properties: Vec<String>,
}

/// The `CorsConfiguration` of an HTTP API.
///
/// Source: the API Gateway developer guide, "Configure CORS for HTTP APIs in API Gateway".
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Cors {
    /// The origins of pages that may call the API: `https://app.example.com`, `https://*` or `*`.
    pub allow_origins: Vec<String>,
    /// The methods of their requests; `*` for any.
    #[serde(default)]
    pub allow_methods: Vec<String>,
    /// The headers of their requests; `*` for any.
    #[serde(default)]
    pub allow_headers: Vec<String>,
    /// The headers of responses that the pages may read.
    #[serde(default)]
    pub expose_headers: Vec<String>,
    /// The seconds for which a browser caches the response to a preflight request.
    #[serde(default)]
    pub max_age: Option<u32>,
}

/// A CloudFront distribution, with the headers that it adds to the files of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The domain name, which allowed origins and addresses of callbacks contain.
    pub domain: String,
    /// The headers of files by the pattern of their paths, such as `assets/*`, in the order of the
    /// behaviours. The last pattern is `*`.
    pub headers: Vec<(String, Vec<PolicyHeader>)>,
}

/// A header that a policy of a distribution adds to every response, errors included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyHeader {
    /// The name, in small letters.
    pub name: String,
    /// The value.
    pub value: String,
    /// Whether the header replaces that of the file.
    pub is_override: bool,
}

/// A client of a user pool: a program that signs users in, or that gets a token for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    /// Logical id. On the local stack, it is also the id by which the client calls itself.
    pub id: String,
    /// The addresses to which a browser comes back with a code.
    pub callbacks: Vec<String>,
    /// The addresses to which a browser comes back after a logout.
    pub logouts: Vec<String>,
    /// The scopes that it may ask for.
    pub scopes: Vec<String>,
    /// The flows that it may use: `code`, `client_credentials`.
    pub flows: Vec<String>,
    /// The seconds for which an access token is valid.
    pub access_seconds: i64,
}

/// A resource, as CloudFormation lists it.
#[derive(Debug)]
pub struct Resource {
    /// Logical id.
    pub id: String,
    /// Type.
    pub kind: String,
    /// Physical id: the name, or the URL of a queue.
    pub physical: String,
}

/// A Lambda function.
#[derive(Debug)]
pub struct Function {
    /// Logical id.
    pub id: String,
    /// Name of the binary target that is its program.
    pub binary: String,
    /// ARN.
    pub arn: String,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Seconds that an invocation may take.
    pub timeout: u64,
    /// Retries and destination of asynchronous invocations.
    pub invoke_config: InvokeConfig,
    /// The sources that invoke it.
    pub events: Vec<Event>,
    /// Its role with its permissions, if the template names one.
    pub role: Option<Role>,
}

/// The role of a function.
#[derive(Debug)]
pub struct Role {
    /// Name.
    pub name: String,
    /// Policy documents: its own, and those of the template's managed policies that it names.
    pub policies: Vec<Value>,
}

/// A source that invokes a function.
#[derive(Debug)]
pub enum Event {
    /// A route of the HTTP API.
    HttpApi {
        /// The method in upper case, or `ANY`.
        method: String,
        /// The path, with `{parameters}`.
        path: String,
        /// The scopes of which a token must have one; empty for any token.
        scopes: Vec<String>,
    },
    /// The stream of a table.
    Stream(StreamSource),
    /// The Kinesis stream that gets the changes of the log.
    Kinesis(StreamSource),
    /// A queue.
    Queue(QueueSource),
    /// A schedule, with the time between two invocations.
    Schedule(Duration),
    /// A rule on a bus.
    Rule {
        /// Logical id of the event.
        name: String,
        /// The rule.
        rule: RuleSource,
    },
}

/// A stream's event source mapping.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct StreamSource {
    /// ARN of the stream.
    pub stream: String,
    /// The record at which a new mapping begins.
    pub starting_position: StartingPosition,
    /// The most records in one invocation.
    #[serde(default = "hundred")]
    pub batch_size: usize,
    /// Seconds for which records are gathered, unless a batch is full earlier.
    #[serde(default)]
    pub maximum_batching_window_in_seconds: u64,
    /// Whether a batch that fails is split.
    #[serde(default)]
    pub bisect_batch_on_function_error: bool,
    /// Retries before a record goes to the dead-letter queue; -1 for no limit.
    #[serde(default = "endless")]
    pub maximum_retry_attempts: i64,
    /// The age, in seconds, at which a record goes to the dead-letter queue; -1 for no limit.
    #[serde(default = "endless")]
    pub maximum_record_age_in_seconds: i64,
    /// Whether the function reports which records failed.
    #[serde(default)]
    pub function_response_types: Vec<ResponseType>,
    /// The patterns of the records that are passed on. A record must match one of them.
    #[serde(default)]
    pub filter_criteria: FilterCriteria,
    /// The dead-letter queue of records.
    #[serde(default)]
    pub destination_config: DestinationConfig,
    /// The setting is read and not used, because the emulated stream has one shard.
    #[serde(default)]
    #[expect(
        dead_code,
        reason = "the emulated stream has one shard, whose order this setting would keep"
    )]
    parallelization_factor: Option<u32>,
}

/// The record at which a new mapping of a stream begins. `LATEST` is not emulated, because it would
/// leave out all earlier commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StartingPosition {
    /// At the oldest record.
    TrimHorizon,
    /// After the newest record. The local stack begins at the oldest one, because its Kinesis
    /// stream is new.
    Latest,
}

/// A queue's event source mapping.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct QueueSource {
    /// ARN of the queue.
    pub queue: String,
    /// The most messages in one invocation.
    #[serde(default = "ten")]
    pub batch_size: i32,
    /// Whether the function reports which messages failed.
    #[serde(default)]
    pub function_response_types: Vec<ResponseType>,
    /// The limit of concurrent invocations.
    #[serde(default)]
    pub scaling_config: ScalingConfig,
}

/// The limit of concurrent invocations of a queue's mapping.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ScalingConfig {
    /// The most concurrent invocations.
    pub maximum_concurrency: Option<usize>,
}

/// A rule on a bus.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct RuleSource {
    /// Its name. If the template has none, the name consists of the logical ids.
    #[serde(default)]
    pub rule_name: Option<String>,
    /// Name of the bus.
    pub event_bus_name: String,
    /// The pattern that events must match.
    pub pattern: Value,
    /// The retries of the delivery to the function. If the function fails after the delivery, its
    /// [`InvokeConfig`] defines the retries.
    #[serde(default)]
    pub retry_policy: RetryPolicy,
    /// The dead-letter queue of events that could not be delivered.
    #[serde(default)]
    pub dead_letter_config: DeadLetterConfig,
}

/// The retries of a rule's deliveries to a target.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Retries after the first attempt.
    pub maximum_retry_attempts: u32,
    /// The age, in seconds, at which an event goes to the dead-letter queue.
    pub maximum_event_age_in_seconds: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { maximum_retry_attempts: 185, maximum_event_age_in_seconds: 86_400 }
    }
}

/// The dead-letter queue of a rule's target, if there is one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct DeadLetterConfig {
    /// ARN of the queue.
    pub arn: Option<String>,
}

/// Retries and destination of asynchronous invocations.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub struct InvokeConfig {
    /// Retries after the first attempt: 0, 1 or 2.
    pub maximum_retry_attempts: u32,
    /// The age, in seconds, at which an event goes to the dead-letter queue.
    pub maximum_event_age_in_seconds: u64,
    /// The dead-letter queue of events.
    pub destination_config: DestinationConfig,
}

impl Default for InvokeConfig {
    fn default() -> Self {
        Self {
            maximum_retry_attempts: 2,
            maximum_event_age_in_seconds: 21_600,
            destination_config: DestinationConfig::default(),
        }
    }
}

/// The kind of report that a function returns for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum ResponseType {
    /// The records or messages that failed.
    ReportBatchItemFailures,
}

/// Patterns of which a record must match one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct FilterCriteria {
    /// The patterns.
    pub filters: Vec<Filter>,
}

/// A pattern.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Filter {
    /// JSON text in the pattern language of EventBridge.
    pub pattern: String,
}

/// The dead-letter queue of records or events, if there is one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct DestinationConfig {
    /// The destination on failure.
    pub on_failure: Option<Destination>,
}

/// A dead-letter queue.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Destination {
    /// The kind of destination, by SAM's name. Only SAM has this field: the mapping of
    /// CloudFormation names a bucket.
    #[serde(default = "bucket")]
    pub r#type: DestinationType,
    /// ARN of the queue or bucket.
    pub destination: String,
}

fn bucket() -> DestinationType {
    DestinationType::S3
}

/// A kind of destination that is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DestinationType {
    /// A standard queue.
    SQS,
    /// A bucket, for the records of a stream.
    S3,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Logical id.
    pub id: String,
    /// Name.
    pub name: String,
    /// ARN of its stream, if it has one.
    pub stream_arn: Option<String>,
    /// The `CreateTable` request.
    pub create: Value,
    /// The attribute that holds the time at which an item expires.
    pub time_to_live: Option<String>,
    /// The policy that is attached to it.
    pub policy: Option<Value>,
}

/// A bucket of S3.
#[derive(Debug)]
pub struct Bucket {
    /// Name.
    pub name: String,
    /// The document of its policy.
    pub policy: Option<Value>,
}

/// A rule of the default bus that sends the names of new objects to a queue.
#[derive(Debug, Clone)]
pub struct ObjectRule {
    /// Name of the bucket.
    pub bucket: String,
    /// The beginning of the keys of the objects.
    pub prefix: String,
    /// ARN of the queue.
    pub queue: String,
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    /// Name.
    pub name: String,
    /// ARN.
    pub arn: String,
    /// The attributes of the `CreateQueue` request.
    pub attributes: HashMap<String, String>,
}

fn hundred() -> usize {
    100
}

fn ten() -> i32 {
    10
}

fn endless() -> i64 {
    -1
}
