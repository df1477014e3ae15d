//! The emulated EventBridge: buses, their rules and the targets of the rules.
//!
//! `PutEvents` accepts an event whatever its targets do, as on AWS. A target that the stack cannot
//! deliver to is refused by `PutTargets`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, Response, StatusCode},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use ledgerline_sam::template::{ACCOUNT, REGION};

use crate::{
    aws_answer::answer,
    pattern::Pattern,
    sources::invocation::{Delivery, Invocations, RuleTarget},
};

/// The most entries of a `PutEvents`.
const MAX_ENTRIES: usize = 10;
/// The most targets of a rule.
const MAX_TARGETS: usize = 5;
/// The bus of requests that name none.
const DEFAULT_BUS: &str = "default";

/// The emulated EventBridge.
#[derive(Debug, Clone)]
pub(crate) struct EventBridge {
    invocations: Arc<Invocations>,
    buses: Arc<Mutex<BTreeMap<String, Bus>>>,
}

/// The rules of a bus, by their names.
type Bus = BTreeMap<String, Rule>;

#[derive(Debug)]
struct Rule {
    /// The rule as `DescribeRule` returns it.
    description: Value,
    pattern: Pattern,
    targets: BTreeMap<String, StoredTarget>,
}

#[derive(Debug)]
struct StoredTarget {
    /// The target as `PutTargets` got it.
    description: Value,
    target: RuleTarget,
}

/// An error of EventBridge.
#[derive(Debug, thiserror::Error)]
#[error("{kind}: {message}")]
pub(crate) struct Refusal {
    kind: &'static str,
    message: String,
}

type CallResult = Result<Value, Refusal>;

fn refusal(kind: &'static str, message: impl Into<String>) -> Refusal {
    Refusal { kind, message: message.into() }
}

fn invalid(message: impl Into<String>) -> Refusal {
    refusal("ValidationException", message)
}

fn missing(what: &str, name: &str) -> Refusal {
    refusal("ResourceNotFoundException", format!("{what} {name} does not exist."))
}

/// Returns a field of a request, which must be there.
fn text<'a>(request: &'a Value, field: &str) -> Result<&'a str, Refusal> {
    request[field].as_str().ok_or_else(|| invalid(format!("`{field}` is missing")))
}

/// Returns the name of the bus in a request, which may be its ARN.
fn bus_name(request: &Value) -> &str {
    let name = request["EventBusName"].as_str().unwrap_or(DEFAULT_BUS);
    name.rsplit('/').next().unwrap_or(name)
}

fn bus_arn(name: &str) -> String {
    format!("arn:aws:events:{REGION}:{ACCOUNT}:event-bus/{name}")
}

impl EventBridge {
    /// An EventBridge with the default bus, which delivers by `invocations`.
    pub(crate) fn new(invocations: Arc<Invocations>) -> Self {
        let buses = BTreeMap::from([(DEFAULT_BUS.to_owned(), Bus::new())]);
        Self { invocations, buses: Arc::new(Mutex::new(buses)) }
    }

    /// Answers a request in the JSON protocol of AWS.
    pub(crate) async fn answer(&self, headers: &HeaderMap, body: &[u8]) -> Response<Body> {
        let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok());
        let operation = target.and_then(|target| target.split_once('.'));
        let (_, operation) = operation.unwrap_or_default();
        let result = match serde_json::from_slice(body) {
            Ok(request) => self.call(operation, &request).await,
            Err(error) => Err(refusal("SerializationException", error.to_string())),
        };
        match result {
            Ok(body) => answer(StatusCode::OK, body),
            Err(Refusal { kind, message }) => {
                answer(StatusCode::BAD_REQUEST, json!({ "__type": kind, "message": message }))
            }
        }
    }

    /// Runs an operation.
    ///
    /// # Errors
    /// When AWS would refuse the request, or the operation is not emulated.
    pub(crate) async fn call(&self, operation: &str, request: &Value) -> CallResult {
        match operation {
            "CreateEventBus" => self.create_bus(request),
            "ListEventBuses" => {
                let buses = self.buses();
                let described = |name: &String| json!({ "Name": name, "Arn": bus_arn(name) });
                Ok(json!({ "EventBuses": buses.keys().map(described).collect::<Vec<_>>() }))
            }
            "PutRule" => self.put_rule(request),
            "ListRules" => self.list_rules(request),
            "DescribeRule" => self.with_rule(request, "Name", |rule| rule.description.clone()),
            "EnableRule" => self.set_state(request, "ENABLED"),
            "DisableRule" => self.set_state(request, "DISABLED"),
            "DeleteRule" => self.delete_rule(request),
            "PutTargets" => self.put_targets(request).await,
            "RemoveTargets" => self.with_rule(request, "Rule", |rule| {
                let ids = request["Ids"].as_array().into_iter().flatten();
                for id in ids.filter_map(Value::as_str) {
                    rule.targets.remove(id);
                }
                json!({ "FailedEntryCount": 0, "FailedEntries": [] })
            }),
            "ListTargetsByRule" => self.with_rule(request, "Rule", |rule| {
                let targets: Vec<_> =
                    rule.targets.values().map(|target| &target.description).collect();
                json!({ "Targets": targets })
            }),
            "PutEvents" => self.put_events(request),
            "TestEventPattern" => {
                let event = serde_json::from_str::<Value>(text(request, "Event")?);
                let event = event.ok().filter(Value::is_object);
                let event = event.ok_or_else(|| invalid("Event is not a JSON object."))?;
                let pattern = parse_pattern(text(request, "EventPattern")?)?;
                Ok(json!({ "Result": pattern.matches(&event) }))
            }
            _ => Err(refusal(
                "UnknownOperationException",
                format!("the local stack does not emulate {operation} of EventBridge"),
            )),
        }
    }

    fn buses(&self) -> MutexGuard<'_, BTreeMap<String, Bus>> {
        self.buses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create_bus(&self, request: &Value) -> CallResult {
        let name = text(request, "Name")?;
        let mut buses = self.buses();
        if buses.contains_key(name) {
            let message = format!("Event bus {name} already exists.");
            return Err(refusal("ResourceAlreadyExistsException", message));
        }
        buses.insert(name.to_owned(), Bus::new());
        Ok(json!({ "EventBusArn": bus_arn(name) }))
    }

    fn with_rule(
        &self,
        request: &Value,
        field: &str,
        run: impl FnOnce(&mut Rule) -> Value,
    ) -> CallResult {
        let (bus, name) = (bus_name(request), text(request, field)?);
        let mut buses = self.buses();
        let rule = buses.get_mut(bus).and_then(|rules| rules.get_mut(name));
        rule.map(run).ok_or_else(|| missing("Rule", name))
    }

    fn put_rule(&self, request: &Value) -> CallResult {
        let (bus, name) = (bus_name(request), text(request, "Name")?);
        if request["EventPattern"].is_null() {
            return Err(invalid(
                "the local stack has no schedules but those of the template: write an `EventPattern`",
            ));
        }
        let pattern = parse_pattern(text(request, "EventPattern")?)?;
        let mut buses = self.buses();
        let rules = buses.get_mut(bus).ok_or_else(|| missing("Event bus", bus))?;
        let arn = match bus {
            DEFAULT_BUS => format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{name}"),
            bus => format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{bus}/{name}"),
        };
        let description = json!({
            "Name": name,
            "Arn": arn,
            "EventBusName": bus,
            "EventPattern": request["EventPattern"],
            "State": request["State"].as_str().unwrap_or("ENABLED"),
            "Description": request["Description"].as_str().unwrap_or_default(),
        });
        let targets = rules.remove(name).map(|rule| rule.targets).unwrap_or_default();
        rules.insert(name.to_owned(), Rule { description, pattern, targets });
        Ok(json!({ "RuleArn": arn }))
    }

    fn list_rules(&self, request: &Value) -> CallResult {
        let (bus, prefix) = (bus_name(request), request["NamePrefix"].as_str().unwrap_or_default());
        let buses = self.buses();
        let rules = buses.get(bus).ok_or_else(|| missing("Event bus", bus))?;
        let listed = rules.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(json!({ "Rules": listed.map(|(_, rule)| &rule.description).collect::<Vec<_>>() }))
    }

    fn set_state(&self, request: &Value, state: &str) -> CallResult {
        self.with_rule(request, "Name", |rule| {
            rule.description["State"] = state.into();
            json!({})
        })
    }

    fn delete_rule(&self, request: &Value) -> CallResult {
        let (bus, name) = (bus_name(request), text(request, "Name")?);
        let mut buses = self.buses();
        // AWS deletes a rule that does not exist.
        let Some(rules) = buses.get_mut(bus) else { return Ok(json!({})) };
        if rules.get(name).is_some_and(|rule| !rule.targets.is_empty()) {
            return Err(invalid("Rule can't be deleted since it has targets."));
        }
        rules.remove(name);
        Ok(json!({}))
    }

    async fn put_targets(&self, request: &Value) -> CallResult {
        let mut failed = Vec::new();
        for description in request["Targets"].as_array().into_iter().flatten() {
            let target = match serde_json::from_value::<RuleTarget>(description.clone()) {
                Ok(target) => match self.invocations.reject(&target).await {
                    None => Ok(target),
                    Some(reason) => Err(reason),
                },
                Err(error) => {
                    Err(format!("the local stack cannot deliver to such a target: {error}"))
                }
            };
            let put = self.with_rule(request, "Rule", |rule| match target {
                Ok(target)
                    if rule.targets.len() < MAX_TARGETS
                        || rule.targets.contains_key(&target.id) =>
                {
                    let description = description.clone();
                    rule.targets.insert(target.id.clone(), StoredTarget { description, target });
                    Value::Null
                }
                Ok(_) => json!(format!("a rule has at most {MAX_TARGETS} targets")),
                Err(reason) => json!(reason),
            })?;
            if !put.is_null() {
                failed.push(json!({
                    "TargetId": description["Id"],
                    "ErrorCode": "ValidationException",
                    "ErrorMessage": put,
                }));
            }
        }
        Ok(json!({ "FailedEntryCount": failed.len(), "FailedEntries": failed }))
    }

    fn put_events(&self, request: &Value) -> CallResult {
        let entries = request["Entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !(1..=MAX_ENTRIES).contains(&entries.len()) {
            return Err(invalid(format!("`Entries` has 1 to {MAX_ENTRIES} entries")));
        }
        let buses = self.buses();
        let mut failed = 0;
        let mut results = Vec::new();
        for entry in entries {
            let event = match event(entry) {
                Ok(event) => event,
                Err(Refusal { kind, message }) => {
                    failed += 1;
                    results.push(json!({ "ErrorCode": kind, "ErrorMessage": message }));
                    continue;
                }
            };
            results.push(json!({ "EventId": event["id"] }));
            let rules = buses.get(bus_name(entry)).into_iter().flat_map(BTreeMap::values);
            for rule in rules.filter(|rule| {
                rule.description["State"] == "ENABLED" && rule.pattern.matches(&event)
            }) {
                for StoredTarget { target, .. } in rule.targets.values() {
                    self.invocations.deliver(Delivery {
                        rule: rule.description["Arn"].as_str().unwrap_or_default().to_owned(),
                        target: target.clone(),
                        event: event.to_string(),
                    });
                }
            }
        }
        Ok(json!({ "FailedEntryCount": failed, "Entries": results }))
    }
}

fn parse_pattern(pattern: &str) -> Result<Pattern, Refusal> {
    Pattern::parse(pattern).map_err(|reason| {
        let message = format!("Event pattern is not valid. Reason: {reason}");
        refusal("InvalidEventPatternException", message)
    })
}

/// Returns the event of an entry. Source: the API reference of `PutEventsResultEntry`.
fn event(entry: &Value) -> CallResult {
    let field = |name: &str| {
        let value = entry[name].as_str().filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            let reason = format!("{name} is a required argument.");
            let message = format!("Parameter {name} is not valid. Reason: {reason}");
            refusal("InvalidArgument", message)
        })
    };
    let (source, kind, detail) = (field("Source")?, field("DetailType")?, field("Detail")?);
    if source.starts_with("aws.") {
        return Err(refusal("NotAuthorizedForSourceException", "Not authorized for the source."));
    }
    let detail = serde_json::from_str::<Value>(detail).ok().filter(Value::is_object);
    let detail = detail.ok_or_else(|| refusal("MalformedDetail", "Detail is malformed."))?;
    let time = entry["Time"].as_f64().and_then(|time| Duration::try_from_secs_f64(time).ok());
    let time = time.and_then(|time| Timestamp::UNIX_EPOCH.checked_add(time).ok());
    let time = time.unwrap_or_else(Timestamp::now);
    Ok(json!({
        "version": "0",
        "id": Uuid::new_v4().to_string(),
        "detail-type": kind,
        "source": source,
        "account": ACCOUNT,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "region": REGION,
        "resources": entry["Resources"].as_array().cloned().unwrap_or_default(),
        "detail": detail,
    }))
}
