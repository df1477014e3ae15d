//! The comparison of a contract with the released one.
//!
//! Four rules, whose names are in every message:
//! * `routes-stay`: a route is not removed, and needs no other scope.
//! * `requests-stay-valid`: a request that was valid stays valid.
//! * `answers-stay-readable`: an answer has only values that the released contract allowed.
//! * `shapes-stay`: the schema of an event does not change within its number, and rows that were
//!   stored stay readable.

mod subset;

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use self::subset::{Comparison, Direction};
use super::Documents;

/// The parts of a schema that change no value: texts for people.
const ANNOTATIONS: [&str; 10] = [
    "$comment",
    "$schema",
    "default",
    "deprecated",
    "description",
    "example",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];
/// The keywords whose fields are names, and not keywords.
const NAMED: [&str; 3] = ["$defs", "patternProperties", "properties"];

/// Returns the incompatible changes between two contracts, one sentence each.
pub(super) fn problems(released: &Documents, new: &Documents) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, old) in released {
        let Some(new) = new.get(path) else {
            if path.starts_with("events") || path.starts_with("rows") {
                problems.push(format!(
                    "shapes-stay: `{}` is released, and the contract lacks it: restore the type",
                    path.display()
                ));
            } else if path == Path::new("asyncapi.json") {
                problems.extend(message_problems(old, &Value::Null));
            }
            continue;
        };
        if path.starts_with("events") {
            if meaning(old) != meaning(new) {
                problems.push(format!(
                    "shapes-stay: `{}` differs from the released schema: give the changed event \
                        the next schema number",
                    path.display()
                ));
            }
        } else if path.starts_with("rows") {
            let found = Comparison::new(old, new, Direction::Read).differences(old, new);
            problems.extend(
                found.into_iter().map(|what| format!("shapes-stay: {}: {what}", path.display())),
            );
        } else if path == Path::new("openapi.json") {
            problems.extend(route_problems(old, new));
        } else if path == Path::new("asyncapi.json") {
            problems.extend(message_problems(old, new));
        }
    }
    problems
}

/// Returns a schema without its texts for people.
fn meaning(schema: &Value) -> Value {
    let field = |(name, value): (&String, &Value)| {
        let meaning = match value.as_object().filter(|_| NAMED.contains(&name.as_str())) {
            Some(named) => {
                named.iter().map(|(name, schema)| (name.clone(), meaning(schema))).collect()
            }
            None => meaning(value),
        };
        (name.clone(), meaning)
    };
    match schema {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| !ANNOTATIONS.contains(&name.as_str()));
            fields.map(field).collect()
        }
        Value::Array(values) => values.iter().map(meaning).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// Compares what is on the bus and the queues: channels and messages stay, and a state changes only
/// with its schema number.
fn message_problems(old: &Value, new: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (channel, released) in old["channels"].as_object().into_iter().flatten() {
        let current = &new["channels"][channel];
        if current.is_null() {
            problems.push(format!(
                "routes-stay: the channel `{channel}` is released, and the contract lacks it: \
                    restore the channel"
            ));
            continue;
        }
        for message in released["messages"].as_object().into_iter().flat_map(|of| of.keys()) {
            if current["messages"][message].is_null() {
                problems.push(format!(
                    "routes-stay: the channel `{channel}` lacks the released message `{message}`"
                ));
            }
        }
    }
    for (name, released) in old["components"]["schemas"].as_object().into_iter().flatten() {
        let current = &new["components"]["schemas"][name];
        // A state of another number has another name: a client must know its shape.
        if current.is_null() {
            continue;
        }
        let compared = Comparison::new(old, new, Direction::Written);
        let found = compared.differences(released, current);
        problems.extend(found.into_iter().map(|what| format!("shapes-stay: {name}: {what}")));
    }
    problems
}

fn route_problems(old: &Value, new: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, operations) in old["paths"].as_object().into_iter().flatten() {
        for (method, released) in operations.as_object().into_iter().flatten() {
            let route = format!("{} {path}", method.to_uppercase());
            let current = &new["paths"][path][method];
            if current.is_null() {
                problems.push(format!(
                    "routes-stay: `{route}` is released, and the contract \
                    lacks it: restore the route"
                ));
                continue;
            }
            if released["security"] != current["security"] {
                problems.push(format!(
                    "routes-stay: {route} needs another scope than the released one"
                ));
            }
            let released = Described { document: old, operation: released };
            let current = Described { document: new, operation: current };
            let requests = request_problems(released, current);
            problems.extend(
                requests.into_iter().map(|what| format!("requests-stay-valid: {route}: {what}")),
            );
            let answers = answer_problems(released, current);
            problems.extend(
                answers.into_iter().map(|what| format!("answers-stay-readable: {route}: {what}")),
            );
        }
    }
    problems
}

/// An operation, with the document in which its references are resolved.
#[derive(Debug, Clone, Copy)]
struct Described<'a> {
    document: &'a Value,
    operation: &'a Value,
}

impl<'a> Described<'a> {
    fn parameters(self) -> Vec<&'a Value> {
        let listed = self.operation["parameters"].as_array().into_iter().flatten();
        listed.map(|parameter| subset::resolve(self.document, parameter)).collect()
    }

    fn responses(self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.operation["responses"].as_object().into_iter().flatten()
    }

    /// Returns the kinds of problems with the statuses under which they are answered.
    fn problem_statuses(self) -> BTreeMap<&'a str, String> {
        let mut statuses = BTreeMap::<&str, String>::new();
        for (status, response) in self.responses() {
            let schema = &response["content"]["application/problem+json"]["schema"];
            let kinds = schema["properties"]["type"]["enum"].as_array().into_iter().flatten();
            for kind in kinds.filter_map(Value::as_str) {
                let all = statuses.entry(kind).or_default();
                *all += if all.is_empty() { "" } else { " and " };
                *all += status;
            }
        }
        statuses
    }

    fn requires_body(self) -> bool {
        self.operation["requestBody"]["required"] == true
    }

    fn body(self) -> &'a Value {
        &self.operation["requestBody"]["content"]["application/json"]["schema"]
    }
}

fn request_problems(released: Described<'_>, current: Described<'_>) -> Vec<String> {
    let schemas = Comparison::new(released.document, current.document, Direction::Read);
    let mut problems = Vec::new();
    let (before, now) = (released.parameters(), current.parameters());
    let same =
        |one: &Value, other: &Value| one["name"] == other["name"] && one["in"] == other["in"];
    for parameter in &before {
        let name = parameter["name"].as_str().unwrap_or_default();
        match now.iter().find(|current| same(current, parameter)) {
            None => problems.push(format!("the parameter `{name}` is no longer accepted")),
            Some(current) => {
                let found = schemas.differences(&parameter["schema"], &current["schema"]);
                problems.extend(
                    found.into_iter().map(|what| format!("the parameter `{name}`: {what}")),
                );
            }
        }
    }
    for parameter in now.iter().filter(|parameter| parameter["required"] == true) {
        if !before.iter().any(|known| same(known, parameter) && known["required"] == true) {
            let name = parameter["name"].as_str().unwrap_or_default();
            problems.push(format!("the parameter `{name}` is required, and was not"));
        }
    }
    match (released.body(), current.body()) {
        (Value::Null, Value::Null) => {}
        (Value::Null, _) if !current.requires_body() => {}
        (Value::Null, _) => problems.push("a body is required, and was not".to_owned()),
        (_, Value::Null) => problems.push("a body is no longer accepted".to_owned()),
        (before, now) => problems.extend(schemas.differences(before, now)),
    }
    if current.requires_body() && !released.requires_body() && !released.body().is_null() {
        problems.push("a body is required, and was not".to_owned());
    }
    problems
}

fn answer_problems(released: Described<'_>, current: Described<'_>) -> Vec<String> {
    let schemas = Comparison::new(released.document, current.document, Direction::Written);
    let mut problems = Vec::new();
    let statuses = current.problem_statuses();
    for (kind, was) in released.problem_statuses() {
        match statuses.get(kind) {
            None => problems.push(format!("the kind of problem `{kind}` is removed")),
            Some(is) if *is != was => problems
                .push(format!("the kind of problem `{kind}` has the status {is}, and had {was}")),
            Some(_) => {}
        }
    }
    for (status, response) in released.responses() {
        let now = &current.operation["responses"][status];
        let is_success = status.starts_with('2');
        if now.is_null() {
            // The kinds of problems say whether a refusal is missing.
            let gone = is_success.then(|| format!("the status {status} is no longer answered"));
            problems.extend(gone);
            continue;
        }
        if is_success {
            let content = |response: &Value| response["content"]["application/json"].clone();
            let (was, is) = (content(response), content(now));
            problems.extend(schemas.differences(&was["schema"], &is["schema"]));
        }
        for (name, was) in response["headers"].as_object().into_iter().flatten() {
            let was = subset::resolve(released.document, was);
            let is = subset::resolve(current.document, &now["headers"][name]);
            let place = format!("the header `{name}` of {status}");
            if is.is_null() {
                problems.push(format!("{place} is removed"));
                continue;
            }
            if was["required"] == true && is["required"] != true {
                problems.push(format!("{place} is optional, and was required"));
            }
            let found = schemas.differences(&was["schema"], &is["schema"]);
            problems.extend(found.into_iter().map(|what| format!("{place}: {what}")));
        }
    }
    problems
}

#[cfg(test)]
mod tests;
