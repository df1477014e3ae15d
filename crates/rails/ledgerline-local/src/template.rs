//! `template.yaml`, read as CloudFormation and SAM read it, as far as the local stack runs it. A
//! part that is not understood is refused with its line, because otherwise the local stack would
//! run something else than what is deployed.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    loops, properties,
    yaml::{self, Kind, Node},
};

/// The account that the emulated services believe to be in.
pub const ACCOUNT: &str = "000000000000";
/// The region that the emulated services believe to be in.
pub const REGION: &str = "us-east-1";
/// The name of a local stack without samconfig.toml.
pub const STACK: &str = "ledgerline";

/// The name of the stack in the samconfig.toml beside a template, if there is one: `stack_name` of
/// the environment `default`.
#[must_use]
pub fn stack_name(template: &Path) -> Option<String> {
    let folder = template.parent().unwrap_or(Path::new(""));
    let text = fs::read_to_string(folder.join("samconfig.toml")).ok()?;
    let config: toml::Table = toml::from_str(&text).ok()?;
    let named = |command: &str| {
        let name = config.get("default")?.get(command)?.get("parameters")?.get("stack_name")?;
        name.as_str().map(ToOwned::to_owned)
    };
    // The parameters of a command go before those of all commands, and `sam deploy --guided` writes
    // the former.
    named("deploy").or_else(|| named("global"))
}

/// An error in a template, with its place.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// There is no such file, or it cannot be read.
    #[error("cannot read the template {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{path}:{line}: {message}", path = path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
}

type Located<T> = Result<T, (usize, String)>;

/// Everything that the local stack runs.
#[derive(Debug, Default)]
pub struct Template {
    /// The functions, in the order of the template.
    pub functions: Vec<Function>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The queues.
    pub queues: Vec<Queue>,
    /// Names of the event buses.
    pub buses: Vec<String>,
    /// All resources, even those that have no meaning on a laptop.
    pub resources: Vec<Resource>,
    /// The audience of the HTTP API's authorizer: the clients whose tokens it takes. `None` if it
    /// has no authorizer, with which AWS refuses a request without a token.
    pub audience: Option<Vec<String>>,
    /// Logical ids and types of the resources that have no meaning on a laptop.
    pub ignored: Vec<(String, String)>,
    /// Properties that are not emulated, of resources that are: `HttpApi.CorsConfiguration`.
    pub ignored_properties: Vec<String>,
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
    /// Its role, which says what it may do, if the template names one.
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
    /// Seconds for which records are gathered, unless a batch is full before.
    #[serde(default)]
    pub maximum_batching_window_in_seconds: u64,
    /// Whether a batch that fails is split.
    #[serde(default)]
    pub bisect_batch_on_function_error: bool,
    /// Retries before a record is given up; -1 for endless.
    #[serde(default = "endless")]
    pub maximum_retry_attempts: i64,
    /// Seconds after which a record is given up; -1 for never.
    #[serde(default = "endless")]
    pub maximum_record_age_in_seconds: i64,
    /// Whether the function reports which records failed.
    #[serde(default)]
    pub function_response_types: Vec<ResponseType>,
    /// Only records that match one of the patterns are passed on.
    #[serde(default)]
    pub filter_criteria: FilterCriteria,
    /// The destination of records that are given up.
    #[serde(default)]
    pub destination_config: DestinationConfig,
    /// The setting is read and not used, because the emulated stream has one shard.
    #[serde(default)]
    #[expect(dead_code, reason = "the emulated stream has one shard, whose order this setting would keep")]
    parallelization_factor: Option<u32>,
}

/// The record at which a new mapping of a stream begins. `LATEST`, which would leave out what was
/// committed before, is not emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StartingPosition {
    /// At the oldest record.
    TrimHorizon,
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
    /// Bounds concurrent invocations.
    #[serde(default)]
    pub scaling_config: ScalingConfig,
}

/// Bounds concurrent invocations of a queue's mapping.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ScalingConfig {
    /// At most this many at once.
    pub maximum_concurrency: Option<usize>,
}

/// A rule on a bus.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct RuleSource {
    /// Its name; made of the logical ids if the template has none.
    #[serde(default)]
    pub rule_name: Option<String>,
    /// Name of the bus.
    pub event_bus_name: String,
    /// The pattern that events must match.
    pub pattern: Value,
    /// The retries of the delivery to the function. It is not used, because delivery never fails
    /// here; only the function does.
    #[serde(default)]
    pub retry_policy: Value,
    /// The destination of events that could not be delivered. It is not used, for the same reason.
    #[serde(default)]
    pub dead_letter_config: Value,
}

/// Retries and destination of asynchronous invocations.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub struct InvokeConfig {
    /// Retries after the first try: 0, 1 or 2.
    pub maximum_retry_attempts: u32,
    /// Seconds after which an event is given up.
    pub maximum_event_age_in_seconds: u64,
    /// The destination of events that are given up.
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

/// The report that a function gives of a batch.
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

/// The destination of records or events that are given up.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct DestinationConfig {
    /// The destination on failure.
    pub on_failure: Option<Destination>,
}

/// A queue for records or events that are given up.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Destination {
    /// The kind of destination, by SAM's name.
    pub r#type: DestinationType,
    /// ARN of the queue.
    pub destination: String,
}

/// Kinds of destinations that are emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DestinationType {
    /// A standard queue.
    SQS,
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

/// A template as it is written: its loops written out, and the short forms of functions, such as
/// `!Ref`, in their long form.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    root: Node,
    /// The name of the local stack, with which the names of its tables and queues begin.
    pub(crate) stack: String,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// With the line, when the file is missing or no YAML, or has a loop that is not understood.
    pub fn read(path: &Path) -> Result<Self, TemplateError> {
        let text = fs::read_to_string(path)
            .map_err(|source| TemplateError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads a text. The path is for errors.
    ///
    /// # Errors
    /// As those of [`Source::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, TemplateError> {
        let root = yaml::parse(text).and_then(|root| loops::written_out(&root));
        let root =
            root.map_err(|(line, message)| TemplateError::Wrong { path: path.to_owned(), line, message })?;
        let stack = stack_name(path).unwrap_or_else(|| STACK.to_owned());
        Ok(Self { path: path.to_owned(), root, stack })
    }

    /// The whole template as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        self.root.to_json()
    }

    /// The place in the file, such as `template.yaml:12`, of the node to which these keys and
    /// indexes lead, or of the closest one above it that is there.
    #[must_use]
    pub fn place(&self, keys: &[&str]) -> String {
        let mut node = &self.root;
        for key in keys {
            let next = node.get(key).or_else(|| node.items().get(key.parse::<usize>().ok()?));
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        format!("{}:{}", self.path.display(), node.line)
    }

    /// The statements of all policies that the template attaches to somebody or offers, by the
    /// logical id of the resource. Whether a condition leaves a resource or a statement out does
    /// not matter here, and what has no name on a laptop is `*`: a check must see the most that a
    /// statement may allow.
    ///
    /// # Errors
    /// With the line, when there are no resources.
    pub fn statements(&self) -> Result<Vec<(String, Value)>, TemplateError> {
        let scope = Scope::new(self, &BTreeMap::new(), "http://127.0.0.1");
        scope.and_then(|scope| scope.statements()).map_err(|wrong| self.wrong(wrong))
    }

    fn wrong(&self, (line, message): (usize, String)) -> TemplateError {
        TemplateError::Wrong { path: self.path.clone(), line, message }
    }

    /// The template, as far as the local stack runs it.
    ///
    /// `overrides` are values of its parameters; `sqs_url` is the URL of the queues' service.
    ///
    /// # Errors
    /// With the line, when it has something in it that the local stack does not run.
    pub fn template(
        &self,
        overrides: &BTreeMap<String, String>,
        sqs_url: &str,
    ) -> Result<Template, TemplateError> {
        let scope = Scope::new(self, overrides, sqs_url);
        scope.and_then(|scope| scope.template()).map_err(|wrong| self.wrong(wrong))
    }
}

/// Reads a template that has functions, as [`Source::read`] and [`Source::template`] do.
///
/// # Errors
/// As those of both, and when there are no functions.
pub fn load(
    path: &Path,
    overrides: &BTreeMap<String, String>,
    sqs_url: &str,
) -> Result<Template, TemplateError> {
    of(&Source::read(path)?, overrides, sqs_url)
}

/// The template, which must have functions.
pub(crate) fn of(
    source: &Source,
    overrides: &BTreeMap<String, String>,
    sqs_url: &str,
) -> Result<Template, TemplateError> {
    let template = source.template(overrides, sqs_url)?;
    if template.functions.is_empty() {
        let message = "there are no functions".into();
        return Err(TemplateError::Wrong { path: source.path.clone(), line: source.root.line, message });
    }
    Ok(template)
}

/// The tables of a template, which may have no functions, such as the template of the rails' tests.
/// The path is for errors.
///
/// # Errors
/// As those of [`Source::parse`] and [`Source::template`].
pub fn tables_in(text: &str, path: &Path) -> Result<Vec<Table>, TemplateError> {
    Ok(Source::parse(text, path)?.template(&BTreeMap::new(), "http://127.0.0.1:1")?.tables)
}

/// A template as it is written, as JSON.
///
/// # Errors
/// As those of [`Source::read`].
pub fn tree(path: &Path) -> Result<Value, TemplateError> {
    Ok(Source::read(path)?.json())
}

struct Scope<'a> {
    root: &'a Node,
    stack: &'a str,
    parameters: HashMap<String, Value>,
    sqs_url: &'a str,
}

impl<'a> Scope<'a> {
    fn new(source: &'a Source, overrides: &BTreeMap<String, String>, sqs_url: &'a str) -> Located<Self> {
        let Source { root, stack, path: _ } = source;
        let declared = root.get("Parameters").map_or(&[][..], Node::entries);
        for name in overrides.keys() {
            if !declared.iter().any(|(parameter, _)| parameter == name) {
                return Err((
                    root.get("Parameters").map_or(root.line, |node| node.line),
                    format!("there is no parameter {name}"),
                ));
            }
        }
        let mut parameters = HashMap::new();
        for (name, parameter) in declared {
            let value = overrides
                .get(name)
                .cloned()
                .or_else(|| parameter.get("Default").and_then(Node::text))
                .ok_or((parameter.line, format!("parameter {name} has no default and was not given")))?;
            let allowed: Vec<_> =
                parameter.get("AllowedValues").map_or(&[][..], Node::items).iter().collect();
            if !allowed.is_empty() && !allowed.iter().any(|allowed| allowed.text().as_ref() == Some(&value)) {
                return Err((parameter.line, format!("parameter {name} cannot be {value}")));
            }
            let kind = parameter.get("Type").and_then(Node::as_str);
            if kind == Some("CommaDelimitedList") {
                let values = value.split(',').map(str::trim).filter(|value| !value.is_empty());
                parameters.insert(name.clone(), values.map(Value::from).collect());
                continue;
            }
            let number = kind == Some("Number");
            let value = match value.parse::<i64>() {
                Ok(value) if number => value.into(),
                Err(_) if number => {
                    return Err((parameter.line, format!("parameter {name} is no whole number")));
                }
                Ok(_) | Err(_) => Value::String(value),
            };
            parameters.insert(name.clone(), value);
        }
        Ok(Self { root, stack, parameters, sqs_url })
    }

    fn resources(&self) -> Located<&'a [(String, Node)]> {
        Ok(self.root.get("Resources").ok_or((self.root.line, "there are no Resources".to_owned()))?.entries())
    }

    fn template(&self) -> Located<Template> {
        let mut template = Template::default();
        for (name, globals) in self.root.get("Globals").map_or(&[][..], Node::entries) {
            let kind = format!("AWS::Serverless::{name}");
            let names = properties::not_emulated(&format!("Globals.{name}"), &kind, Some(globals));
            template.ignored_properties.extend(names);
        }
        for (id, resource) in self.resources()? {
            if let Some(condition) = resource.get("Condition")
                && !self.condition(condition)?
            {
                continue;
            }
            let kind = resource_type(id, resource)?;
            template.resources.push(Resource {
                id: id.clone(),
                // SAM makes a function of it.
                kind: kind.replace("Serverless::Function", "Lambda::Function"),
                physical: self.physical(id, resource.line)?.reference,
            });
            let names = properties::not_emulated(id, kind, resource.get("Properties"));
            template.ignored_properties.extend(names);
            match kind {
                "AWS::Serverless::Function" => template.functions.push(self.function(id, resource)?),
                "AWS::DynamoDB::Table" => template.tables.push(self.table(id, resource)?),
                "AWS::SQS::Queue" => template.queues.push(self.queue(id, resource)?),
                "AWS::Events::EventBus" => template.buses.push(self.physical(id, resource.line)?.name),
                "AWS::Serverless::HttpApi" => template.audience = self.audience(id, resource)?,
                // They are read with the function that names them.
                "AWS::IAM::Role" | "AWS::IAM::ManagedPolicy" => {}
                "AWS::SNS::Subscription"
                    if resource.get("Properties").and_then(|node| node.get("Protocol")?.as_str())
                        == Some("email") => {}
                wiring @ ("AWS::Events::Rule"
                | "AWS::Lambda::EventSourceMapping"
                | "AWS::Lambda::Function"
                | "AWS::Serverless::SimpleTable"
                | "AWS::SNS::Subscription") => {
                    return Err((resource.line, format!("{id}: {wiring} is not emulated")));
                }
                other => template.ignored.push((id.clone(), other.to_owned())),
            }
        }
        Ok(template)
    }

    fn statements(&self) -> Located<Vec<(String, Value)>> {
        let mut statements = Vec::new();
        for (id, resource) in self.resources()? {
            let Some(properties) = resource.get("Properties") else { continue };
            let properties = self.widest(properties).to_json();
            let documents = match resource_type(id, resource)? {
                "AWS::IAM::ManagedPolicy" => vec![&properties["PolicyDocument"]],
                "AWS::IAM::Role" | "AWS::IAM::User" | "AWS::IAM::Group" => {
                    let policies = properties["Policies"].as_array().into_iter().flatten();
                    policies.map(|policy| &policy["PolicyDocument"]).collect()
                }
                _ => continue,
            };
            let of_document =
                documents.into_iter().flat_map(|document| crate::permissions::list(&document["Statement"]));
            statements.extend(of_document.map(|statement| (id.clone(), statement.clone())));
        }
        Ok(statements)
    }

    /// A value with both sides of each `Fn::If`, and `*` for what cannot be resolved.
    fn widest(&self, node: &Node) -> Node {
        let line = node.line;
        let sides = |node: &Node| -> Option<Vec<Node>> {
            let [(function, argument)] = node.entries() else { return None };
            let sides = argument.items().get(1..).filter(|_| function == "Fn::If")?;
            Some(sides.iter().filter(|side| !is_no_value(side)).map(|side| self.widest(side)).collect())
        };
        match &node.kind {
            Kind::Scalar(_) => node.clone(),
            Kind::List(items) => {
                let item = |item: &Node| sides(item).unwrap_or_else(|| vec![self.widest(item)]);
                Node { line, kind: Kind::List(items.iter().flat_map(item).collect()) }
            }
            Kind::Map(entries) => {
                if let Some(sides) = sides(node) {
                    return Node { line, kind: Kind::List(sides) };
                }
                if let [(function, argument)] = entries.as_slice()
                    && (function == "Ref" || function.starts_with("Fn::"))
                {
                    let resolved = self.call(function, argument);
                    return resolved.unwrap_or_else(|_| Node::string(line, "*".to_owned()));
                }
                let entry = |(name, value): &(String, Node)| (name.clone(), self.widest(value));
                Node { line, kind: Kind::Map(entries.iter().map(entry).collect()) }
            }
        }
    }

    // --- Resources ----------------------------------------------------------------------------------------------

    fn function(&self, id: &str, resource: &Node) -> Located<Function> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Properties {
            #[serde(default = "three")]
            timeout: u64,
            #[serde(default)]
            environment: Environment,
            #[serde(default)]
            event_invoke_config: InvokeConfig,
            #[serde(default)]
            logging_config: LoggingConfig,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase")]
        struct LoggingConfig {
            #[serde(default)]
            application_log_level: Option<String>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase")]
        struct Environment {
            #[serde(default)]
            variables: BTreeMap<String, Value>,
        }
        fn three() -> u64 {
            3
        }
        let binary = resource
            .get("Metadata")
            .and_then(|metadata| metadata.get("BuildProperties"))
            .and_then(|properties| properties.get("Binary"))
            .and_then(Node::as_str)
            .ok_or((resource.line, format!("{id} needs Metadata.BuildProperties.Binary")))?;
        let node = resource.get("Properties").ok_or((resource.line, format!("{id} has no Properties")))?;
        let globals = self.root.get("Globals").and_then(|globals| globals.get("Function"));
        let pick = |name: &str| -> Located<Option<Node>> {
            let own = node.get(name).map(|node| self.resolve(node)).transpose()?;
            let global =
                globals.and_then(|globals| globals.get(name)).map(|node| self.resolve(node)).transpose()?;
            Ok(match (own, global) {
                (Some(own), Some(global)) => Some(merge(own, global)),
                (own, global) => own.or(global),
            })
        };
        let mut merged = Vec::new();
        for name in ["Timeout", "Environment", "EventInvokeConfig", "LoggingConfig"] {
            merged.extend(pick(name)?.map(|node| (name.to_owned(), node)));
        }
        let merged = Node { line: node.line, kind: Kind::Map(merged) };
        let properties: Properties = typed(&merged, id)?;
        // Lambda passes the level on in this variable.
        let level = properties.logging_config.application_log_level;
        let level = level.map(|level| ("AWS_LAMBDA_LOG_LEVEL".to_owned(), Value::String(level)));
        let environment = properties
            .environment
            .variables
            .into_iter()
            .chain(level)
            .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)))
            .collect();
        let mut events = Vec::new();
        for (name, event) in node.get("Events").map_or(&[][..], Node::entries) {
            events.push(self.event(&format!("{id}.Events.{name}"), name, event)?);
        }
        Ok(Function {
            id: id.to_owned(),
            binary: binary.to_owned(),
            arn: self.physical(id, resource.line)?.arn,
            environment,
            timeout: properties.timeout,
            invoke_config: properties.event_invoke_config,
            events,
            role: node.get("Role").map(|role| self.role(role)).transpose()?,
        })
    }

    /// The role that a function names: `!GetAtt <name>Role.Arn`.
    fn role(&self, role: &Node) -> Located<Role> {
        let resource = |node: &Node, kind: &str| -> Located<(String, Node)> {
            let attribute = node.get("Fn::GetAtt").map(|path| path.items().first().unwrap_or(path));
            let id = attribute.or(node.get("Ref")).and_then(Node::as_str).unwrap_or_default();
            let id = id.split('.').next().unwrap_or_default();
            let found = self.resources()?.iter().find(|(name, _)| name == id).map(|(_, resource)| resource);
            match found.filter(|found| found.get("Type").and_then(Node::as_str) == Some(kind)) {
                Some(found) => Ok((id.to_owned(), self.properties(id, found)?)),
                None => Err((node.line, format!("it names no {kind} of the template"))),
            }
        };
        let (id, properties) = resource(role, "AWS::IAM::Role")?;
        let mut policies: Vec<_> = properties
            .get("Policies")
            .map_or(&[][..], Node::items)
            .iter()
            .filter_map(|policy| Some(policy.get("PolicyDocument")?.to_json()))
            .collect();
        // The list is read as it is written, because its resolved values would be names, which do
        // not lead to the policies.
        let written = self.resources()?.iter().find(|(name, _)| *name == id).map(|(_, resource)| resource);
        let managed = written.and_then(|role| role.get("Properties")?.get("ManagedPolicyArns"));
        for policy in managed.map_or(&[][..], Node::items) {
            let (_, properties) = resource(policy, "AWS::IAM::ManagedPolicy")?;
            policies.extend(properties.get("PolicyDocument").map(Node::to_json));
        }
        Ok(Role { name: format!("{}-{id}", self.stack), policies })
    }

    /// The audience of the API's default authorizer; `None` if it has no authorizer. Issuers do not
    /// matter, because no signature is verified here.
    fn audience(&self, id: &str, resource: &Node) -> Located<Option<Vec<String>>> {
        let authorization = resource.get("Properties").and_then(|properties| properties.get("Auth"));
        let Some(authorization) = authorization else { return Ok(None) };
        let named = |name| authorization.get(name).map(|node: &Node| self.resolve(node)).transpose();
        let Some(default) = named("DefaultAuthorizer")?.and_then(|node| node.text()) else {
            return Ok(None);
        };
        let known = authorization.get("Authorizers").and_then(|authorizers| authorizers.get(&default));
        match known.and_then(|authorizer| authorizer.get("JwtConfiguration")) {
            Some(jwt) => {
                let audience = jwt.get("audience").map(|audience| self.resolve(audience)).transpose()?;
                let names = audience.iter().flat_map(Node::items).filter_map(Node::text);
                Ok(Some(names.filter(|name| !name.is_empty()).collect()))
            }
            None => Err((
                authorization.line,
                format!("{id}: {default} is no JWT authorizer, which is all that is emulated"),
            )),
        }
    }

    fn event(&self, place: &str, name: &str, event: &Node) -> Located<Event> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase", deny_unknown_fields)]
        struct Route {
            method: String,
            path: String,
            #[serde(default)]
            #[expect(dead_code, reason = "there is one API here")]
            api_id: Option<String>,
            #[serde(default)]
            auth: Authorization,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase", deny_unknown_fields)]
        struct Authorization {
            #[serde(default)]
            authorization_scopes: Vec<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase", deny_unknown_fields)]
        struct Schedule {
            schedule: String,
        }
        let kind =
            event.get("Type").and_then(Node::as_str).ok_or((event.line, format!("{place} has no Type")))?;
        let properties = event.get("Properties").ok_or((event.line, format!("{place} has no Properties")))?;
        let properties = self.resolve(properties)?;
        match kind {
            "HttpApi" => {
                let route: Route = typed(&properties, place)?;
                if route.path.contains("+}") || !route.path.starts_with('/') {
                    return Err((event.line, format!("{place}: the path {} is not emulated", route.path)));
                }
                Ok(Event::HttpApi {
                    method: route.method.to_uppercase(),
                    path: route.path,
                    scopes: route.auth.authorization_scopes,
                })
            }
            "DynamoDB" => Ok(Event::Stream(typed(&properties, place)?)),
            "SQS" => Ok(Event::Queue(typed(&properties, place)?)),
            "Schedule" => {
                let schedule: Schedule = typed(&properties, place)?;
                let message = || format!("{place}: the schedule {} is not emulated", schedule.schedule);
                Ok(Event::Schedule(rate(&schedule.schedule).ok_or_else(|| (event.line, message()))?))
            }
            "EventBridgeRule" => Ok(Event::Rule { name: name.to_owned(), rule: typed(&properties, place)? }),
            other => Err((event.line, format!("{place}: events of type {other} are not emulated"))),
        }
    }

    fn table(&self, id: &str, resource: &Node) -> Located<Table> {
        let properties = self.properties(id, resource)?;
        let physical = self.physical(id, resource.line)?;
        let mut create = Map::from_iter([("TableName".to_owned(), json!(physical.name))]);
        for name in ["AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "LocalSecondaryIndexes"] {
            if let Some(node) = properties.get(name) {
                create.insert(name.into(), node.to_json());
            }
        }
        create.insert("BillingMode".into(), json!("PAY_PER_REQUEST"));
        let stream = properties.get("StreamSpecification").and_then(|stream| stream.get("StreamViewType"));
        if let Some(view) = stream.and_then(Node::as_str) {
            create.insert(
                "StreamSpecification".into(),
                json!({ "StreamEnabled": true, "StreamViewType": view }),
            );
        }
        let time_to_live = properties
            .get("TimeToLiveSpecification")
            .filter(|specification| {
                specification.get("Enabled").and_then(Node::text).as_deref() == Some("true")
            })
            .and_then(|specification| specification.get("AttributeName"))
            .and_then(Node::text);
        Ok(Table {
            id: id.to_owned(),
            stream_arn: stream.map(|_| stream_arn(&physical.arn)),
            name: physical.name,
            create: Value::Object(create),
            time_to_live,
            policy: properties
                .get("ResourcePolicy")
                .and_then(|policy| policy.get("PolicyDocument"))
                .map(Node::to_json),
        })
    }

    fn queue(&self, id: &str, resource: &Node) -> Located<Queue> {
        let properties = self.properties(id, resource)?;
        let mut attributes = HashMap::new();
        for name in [
            "FifoQueue",
            "ContentBasedDeduplication",
            "DeduplicationScope",
            "FifoThroughputLimit",
            "VisibilityTimeout",
            "DelaySeconds",
            "MaximumMessageSize",
            "MessageRetentionPeriod",
            "ReceiveMessageWaitTimeSeconds",
        ] {
            if let Some(value) = properties.get(name).and_then(Node::text) {
                attributes.insert(name.to_owned(), value);
            }
        }
        if let Some(policy) = properties.get("RedrivePolicy") {
            attributes.insert("RedrivePolicy".into(), policy.to_json().to_string());
        }
        let physical = self.physical(id, resource.line)?;
        Ok(Queue { name: physical.name, arn: physical.arn, attributes })
    }

    fn properties(&self, id: &str, resource: &Node) -> Located<Node> {
        match resource.get("Properties") {
            Some(properties) => self.resolve(properties),
            None => Err((resource.line, format!("{id} has no Properties"))),
        }
    }

    // --- Names --------------------------------------------------------------------------------------------------

    fn physical(&self, id: &str, line: usize) -> Located<Physical> {
        let resource = self.resources()?.iter().find(|(name, _)| name == id).map(|(_, resource)| resource);
        let resource = resource.ok_or((line, format!("there is no resource or parameter {id}")))?;
        let property = |name: &str| -> Located<Option<String>> {
            let node = resource.get("Properties").and_then(|properties| properties.get(name));
            Ok(node.map(|node| self.resolve(node)).transpose()?.and_then(|node| node.text()))
        };
        let named = |given: Option<String>, suffix: &str| {
            given.unwrap_or_else(|| format!("{}-{id}{suffix}", self.stack))
        };
        let kind = resource_type(id, resource)?;
        Ok(match kind {
            "AWS::DynamoDB::Table" => {
                let name = named(property("TableName")?, "");
                let arn = format!("arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}");
                Physical { reference: name.clone(), name, arn }
            }
            "AWS::SQS::Queue" => {
                let fifo = property("FifoQueue")?.is_some_and(|fifo| fifo == "true");
                let name = named(property("QueueName")?, if fifo { ".fifo" } else { "" });
                let arn = format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}");
                Physical { reference: format!("{}/{ACCOUNT}/{name}", self.sqs_url), name, arn }
            }
            "AWS::Events::EventBus" => {
                let name = named(property("Name")?, "");
                let arn = format!("arn:aws:events:{REGION}:{ACCOUNT}:event-bus/{name}");
                Physical { reference: name.clone(), name, arn }
            }
            "AWS::Serverless::Function" => {
                let name = named(property("FunctionName")?, "");
                let arn = format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}");
                Physical { reference: name.clone(), name, arn }
            }
            _ => Physical {
                reference: id.to_owned(),
                name: id.to_owned(),
                arn: format!("arn:aws:local:::{id}"),
            },
        })
    }

    fn reference(&self, name: &str, line: usize) -> Located<Node> {
        if let Some(value) = self.parameters.get(name) {
            let scalar = |value: &Value| Node { line, kind: Kind::Scalar(value.clone()) };
            return Ok(match value.as_array() {
                Some(values) => Node { line, kind: Kind::List(values.iter().map(scalar).collect()) },
                None => scalar(value),
            });
        }
        let value = match name {
            "AWS::Region" => REGION.into(),
            "AWS::AccountId" => ACCOUNT.into(),
            "AWS::StackName" => self.stack.into(),
            "AWS::Partition" => "aws".into(),
            "AWS::URLSuffix" => "amazonaws.com".into(),
            // The alias that SAM publishes a function under.
            alias if alias.ends_with(".Alias") => {
                format!("{}:live", self.physical(alias.trim_end_matches(".Alias"), line)?.arn)
            }
            _ => self.physical(name, line)?.reference,
        };
        Ok(Node::string(line, value))
    }

    fn attribute(&self, path: &str, line: usize) -> Located<String> {
        let (id, attribute) = path
            .split_once('.')
            .ok_or((line, format!("GetAtt needs a resource and an attribute, not {path}")))?;
        let physical = self.physical(id, line)?;
        match attribute {
            "Arn" => Ok(physical.arn),
            "StreamArn" => Ok(stream_arn(&physical.arn)),
            "QueueName" | "Name" => Ok(physical.name),
            "QueueUrl" => Ok(physical.reference),
            other => Err((line, format!("the attribute {other} of {id} is not emulated"))),
        }
    }

    // --- Functions of the template language ---------------------------------------------------------------------

    fn resolve(&self, node: &Node) -> Located<Node> {
        let line = node.line;
        match &node.kind {
            Kind::Scalar(_) => Ok(node.clone()),
            Kind::List(items) => {
                let mut resolved = Vec::new();
                for item in items {
                    let item = self.chosen(item)?;
                    if !is_no_value(item) {
                        resolved.push(self.resolve(item)?);
                    }
                }
                Ok(Node { line, kind: Kind::List(resolved) })
            }
            Kind::Map(entries) if is_choice(entries) => self.resolve(self.chosen(node)?),
            Kind::Map(entries) => {
                if let [(function, argument)] = entries.as_slice()
                    && (function == "Ref" || function.starts_with("Fn::"))
                {
                    return self.call(function, argument);
                }
                let mut resolved = Vec::new();
                for (name, value) in entries {
                    let value = self.chosen(value)?;
                    if !is_no_value(value) {
                        resolved.push((name.clone(), self.resolve(value)?));
                    }
                }
                Ok(Node { line, kind: Kind::Map(resolved) })
            }
        }
    }

    /// The value of an `Fn::If`, which may be `AWS::NoValue`.
    fn chosen<'n>(&self, mut node: &'n Node) -> Located<&'n Node> {
        while let [(function, argument)] = node.entries()
            && function == "Fn::If"
        {
            let [condition, yes, no] = argument.items() else {
                return Err((argument.line, "If needs a condition and two values".into()));
            };
            node = if self.condition(condition)? { yes } else { no };
        }
        Ok(node)
    }

    fn call(&self, function: &str, argument: &Node) -> Located<Node> {
        let line = argument.line;
        let text = |node: &Node| node.text().ok_or((line, format!("{function} needs text")));
        match function {
            "Ref" => self.reference(&text(argument)?, line),
            "Fn::GetAtt" => {
                let path = match argument.items() {
                    [id, attribute] => format!("{}.{}", text(id)?, text(attribute)?),
                    _ => text(argument)?,
                };
                Ok(Node::string(line, self.attribute(&path, line)?))
            }
            "Fn::Sub" => {
                let (template, variables) = match argument.items() {
                    [template, variables] => (text(template)?, self.resolve(variables)?),
                    _ => (text(argument)?, Node { line, kind: Kind::Map(Vec::new()) }),
                };
                Ok(Node::string(line, self.substitute(&template, &variables, line)?))
            }
            "Fn::Join" => match argument.items() {
                [separator, list] => {
                    let list = self.resolve(list)?;
                    let parts: Vec<_> = list.items().iter().map(text).collect::<Result<_, _>>()?;
                    Ok(Node::string(line, parts.join(&text(separator)?)))
                }
                _ => Err((line, "Join needs a separator and a list".into())),
            },
            "Fn::Split" => match argument.items() {
                [separator, whole] => {
                    let (separator, whole) = (text(separator)?, text(&self.resolve(whole)?)?);
                    let part = |part: &str| Node::string(line, part.to_owned());
                    Ok(Node { line, kind: Kind::List(whole.split(separator.as_str()).map(part).collect()) })
                }
                _ => Err((line, "Split needs a separator and a text".into())),
            },
            other => Err((line, format!("{other} is not emulated"))),
        }
    }

    fn substitute(&self, template: &str, variables: &Node, line: usize) -> Located<String> {
        let mut result = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or((line, "Sub has a ${ without }".to_owned()))?;
            result.push_str(before);
            if let Some(literal) = name.strip_prefix('!') {
                result.push_str(&format!("${{{literal}}}"));
            } else if let Some(value) = variables.get(name).and_then(Node::text) {
                result.push_str(&value);
            } else if name.contains('.') {
                result.push_str(&self.attribute(name, line)?);
            } else {
                result.push_str(&self.reference(name, line)?.text().unwrap_or_default());
            }
            rest = after;
        }
        result.push_str(rest);
        Ok(result)
    }

    fn condition(&self, node: &Node) -> Located<bool> {
        let line = node.line;
        if let Some(name) = node.as_str() {
            let conditions = self.root.get("Conditions");
            let condition = conditions.and_then(|conditions| conditions.get(name));
            return self.condition(condition.ok_or((line, format!("there is no condition {name}")))?);
        }
        let [(function, argument)] = node.entries() else {
            return Err((line, "a condition is a name or one function".into()));
        };
        let mut all = argument.items().iter().map(|item| self.condition(item));
        match function.as_str() {
            "Condition" => self.condition(argument),
            "Fn::Equals" => match argument.items() {
                [left, right] => Ok(self.resolve(left)?.text() == self.resolve(right)?.text()),
                _ => Err((line, "Equals needs two values".into())),
            },
            "Fn::Not" => all.next().unwrap_or(Ok(false)).map(|value| !value),
            "Fn::And" => all.try_fold(true, |result, value| Ok(result & value?)),
            "Fn::Or" => all.try_fold(false, |result, value| Ok(result | value?)),
            other => Err((line, format!("the condition {other} is not emulated"))),
        }
    }
}

/// The names that a deployment would give a resource.
struct Physical {
    name: String,
    reference: String,
    arn: String,
}

/// The time in an expression of a schedule: `rate(5 minutes)`.
fn rate(expression: &str) -> Option<Duration> {
    let (number, unit) = expression.strip_prefix("rate(")?.strip_suffix(')')?.split_once(' ')?;
    let seconds = match unit.trim_end_matches('s') {
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok().filter(|number| *number > 0)? * seconds))
}

fn stream_arn(table_arn: &str) -> String {
    format!("{table_arn}/stream/local")
}

fn resource_type<'n>(id: &str, resource: &'n Node) -> Located<&'n str> {
    resource.get("Type").and_then(Node::as_str).ok_or((resource.line, format!("{id} has no Type")))
}

fn is_choice(entries: &[(String, Node)]) -> bool {
    matches!(entries, [(function, _)] if function == "Fn::If")
}

fn is_no_value(node: &Node) -> bool {
    matches!(node.entries(), [(function, argument)] if function == "Ref" && argument.as_str() == Some("AWS::NoValue"))
}

/// Merges own values over global ones, and maps entry by entry, as SAM merges its Globals.
fn merge(own: Node, global: Node) -> Node {
    match (own.kind, global.kind) {
        (Kind::Map(own_entries), Kind::Map(global_entries)) => {
            let mut entries = own_entries;
            for (name, global) in global_entries {
                match entries.iter().position(|(own_name, _)| *own_name == name) {
                    Some(index) => {
                        let (name, own) = entries.swap_remove(index);
                        entries.push((name, merge(own, global)));
                    }
                    None => entries.push((name, global)),
                }
            }
            Node { line: own.line, kind: Kind::Map(entries) }
        }
        (kind, _) => Node { line: own.line, kind },
    }
}

/// Reads a resolved node, and finds the line of what cannot be read.
fn typed<T: DeserializeOwned>(node: &Node, place: &str) -> Located<T> {
    serde_path_to_error::deserialize(node.to_json()).map_err(|error| {
        (node.closest(error.path()).line, format!("{place}.{}: {}", error.path(), error.inner()))
    })
}
