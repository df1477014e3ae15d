//! The comparison of a contract with the released one.
//!
//! Four rules, whose names are in every message:
//! * `routes-stay`: a route is not removed, and needs no other scope.
//! * `requests-stay-valid`: a request that was valid stays valid.
//! * `answers-stay-readable`: an answer has only values that the released contract allowed.
//! * `shapes-stay`: the schema of an event does not change within its number, and rows that were
//!   stored stay readable.

mod subset;

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

use self::subset::{Comparison, Direction};
use super::Documents;

/// The parts of a schema that change no value: texts for people.
const ANNOTATIONS: [&str; 11] = [
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
    "x-inferred",
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
        // A state of another number is another shape, which a listener has to know.
        if current.is_null() || released["x-schema"] != current["x-schema"] {
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
        (Value::Null, _) => problems.push("a body is required, and was not".to_owned()),
        (_, Value::Null) => problems.push("a body is no longer accepted".to_owned()),
        (before, now) => problems.extend(schemas.differences(before, now)),
    }
    problems
}

fn answer_problems(released: Described<'_>, current: Described<'_>) -> Vec<String> {
    let schemas = Comparison::new(released.document, current.document, Direction::Written);
    let (released, current) = (released.operation, current.operation);
    let is_success = |status: &str| status.starts_with('2');
    let mut problems = Vec::new();
    let kinds = |operation: &Value| -> BTreeSet<String> {
        let responses = operation["responses"].as_object().into_iter().flat_map(|all| all.values());
        let listed = responses.flat_map(|response| {
            let schema = &response["content"]["application/problem+json"]["schema"];
            schema["properties"]["type"]["enum"].as_array().into_iter().flatten()
        });
        listed.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let gone = kinds(released).difference(&kinds(current)).cloned().collect::<Vec<_>>();
    problems.extend(gone.iter().map(|kind| format!("the kind of problem `{kind}` is removed")));
    for (status, response) in released["responses"].as_object().into_iter().flatten() {
        let now = &current["responses"][status];
        if !is_success(status) {
            continue;
        }
        if now.is_null() {
            problems.push(format!("the status {status} is no longer answered"));
            continue;
        }
        let schema = |response: &Value| response["content"]["application/json"]["schema"].clone();
        problems.extend(schemas.differences(&schema(response), &schema(now)));
        for header in response["headers"].as_object().into_iter().flat_map(|headers| headers.keys())
        {
            if now["headers"][header].is_null() {
                problems.push(format!("the header `{header}` is removed"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn api() -> Value {
        json!({
            "paths": { "/tanks/{id}/fills": { "post": {
                "security": [{ "token": ["water/write"] }],
                "parameters": [
                    { "name": "id", "in": "path", "required": true, "schema": { "type": "string" } },
                ],
                "requestBody": { "content": { "application/json": {
                    "schema": { "$ref": "#/components/schemas/Fill" },
                } } },
                "responses": {
                    "200": {
                        "headers": { "ETag": {} },
                        "content": { "application/json": {
                            "schema": { "$ref": "#/components/schemas/Tank" },
                        } },
                    },
                    "422": { "content": { "application/problem+json": { "schema": {
                        "properties": { "type": { "enum": ["urn:water:too-much"] } },
                    } } } },
                },
            } } },
            "components": { "schemas": {
                "Fill": {
                    "type": "object", "additionalProperties": false, "required": ["amount"],
                    "properties": {
                        "amount": { "type": "integer", "minimum": 1, "maximum": 9 },
                        "note": { "type": ["string", "null"], "maxLength": 5 },
                    },
                },
                "Tank": {
                    "type": "object", "required": ["level", "status"],
                    "properties": {
                        "level": { "type": "integer", "format": "int32" },
                        "status": { "enum": ["full", "empty"] },
                        "title": { "type": "integer" },
                        "colour": { "type": "string" },
                        // A type that contains itself.
                        "parts": {
                            "type": "array", "items": { "$ref": "#/components/schemas/Tank" },
                        },
                    },
                },
            } },
        })
    }

    /// Returns the problems of a contract with this value at this pointer. A null removes the
    /// field.
    fn changed(pointer: &str, value: Value) -> String {
        let documents = |api: Value| Documents::from([("openapi.json".into(), api)]);
        let mut new = api();
        match pointer.rsplit_once('/') {
            Some((parent, field)) if value.is_null() => {
                let field = field.replace("~1", "/");
                new.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(&field);
            }
            Some((parent, field)) => new.pointer_mut(parent).unwrap()[field] = value,
            None => {}
        }
        problems(&documents(api()), &documents(new)).join("\n")
    }

    #[test]
    fn the_same_contract_and_a_wider_one_are_compatible() {
        let fill = "/components/schemas/Fill";
        assert_eq!(changed(&format!("{fill}/description"), json!("It fills.")), "");
        assert_eq!(changed(&format!("{fill}/properties/amount/maximum"), json!(10)), "");
        assert_eq!(changed(&format!("{fill}/properties/note/maxLength"), Value::Null), "");
        assert_eq!(changed(&format!("{fill}/properties/colour"), json!({ "type": "string" })), "");
        assert_eq!(
            changed("/components/schemas/Tank/properties/size", json!({ "type": "string" })),
            ""
        );
        assert_eq!(changed("/components/schemas/Tank/properties/level/format", json!("int16")), "");
        assert_eq!(
            changed("/components/schemas/Tank/properties/level/deprecated", json!(true)),
            ""
        );
        assert_eq!(changed("/components/schemas/Tank/properties/status/enum", json!(["full"])), "");
        assert_eq!(changed("/paths/~1new", json!({})), "");
    }

    #[test]
    fn a_change_that_invalidates_requests_is_a_problem() {
        let fill = "/components/schemas/Fill";
        let operation = "/paths/~1tanks~1{id}~1fills/post";
        for (pointer, value, found) in [
            (
                format!("{fill}/properties/amount/maximum"),
                json!(8),
                "amount: `maximum` is 8, and was 9",
            ),
            (
                format!("{fill}/properties/amount/minimum"),
                json!(2),
                "amount: `minimum` is 2, and was 1",
            ),
            (
                format!("{fill}/properties/amount/type"),
                json!("string"),
                "amount: integer is no longer allowed",
            ),
            (
                format!("{fill}/properties/note/maxLength"),
                json!(4),
                "note: `maxLength` is 4, and was 5",
            ),
            (
                format!("{fill}/properties/note/type"),
                json!("string"),
                "note: null is no longer allowed",
            ),
            (format!("{fill}/properties/note/pattern"), json!("^a$"), "note: `pattern` differs"),
            (format!("{fill}/properties/note"), Value::Null, "note is no longer accepted"),
            (
                format!("{fill}/required"),
                json!(["amount", "note"]),
                "note is required, and was not",
            ),
            (format!("{operation}/requestBody"), Value::Null, "a body is no longer accepted"),
            (
                format!("{operation}/parameters/0/name"),
                json!("tank"),
                "the parameter `id` is no longer accepted",
            ),
        ] {
            let problems = changed(&pointer, value);
            assert!(
                problems.contains("requests-stay-valid: POST /tanks/{id}/fills"),
                "{pointer}: {problems}"
            );
            assert!(problems.contains(found), "{pointer}: {problems}");
        }
    }

    #[test]
    fn a_change_that_clients_cannot_read_is_a_problem() {
        let tank = "/components/schemas/Tank";
        let answer = "/paths/~1tanks~1{id}~1fills/post/responses";
        for (pointer, value, found) in [
            (format!("{tank}/properties/level/type"), json!("number"), "level: number is new"),
            (
                format!("{tank}/properties/status/enum"),
                json!(["full", "empty", "leaking"]),
                "status: \"leaking\" is new",
            ),
            (format!("{tank}/required"), json!(["status"]), "level is optional, and was required"),
            (format!("{tank}/properties/colour"), Value::Null, "colour is removed"),
            (format!("{tank}/properties/title/type"), json!("string"), "title: string is new"),
            (
                format!("{tank}/properties/parts/items/$ref"),
                json!("#/components/schemas/Fill"),
                "parts[].level is removed",
            ),
            (
                format!(
                    "{answer}/422/content/application~1problem+json/schema/properties/type/enum"
                ),
                json!(["urn:water:other"]),
                "the kind of problem `urn:water:too-much` is removed",
            ),
            (format!("{answer}/200"), Value::Null, "the status 200 is no longer answered"),
            (format!("{answer}/200/headers/ETag"), Value::Null, "the header `ETag` is removed"),
        ] {
            let problems = changed(&pointer, value);
            assert!(
                problems.contains("answers-stay-readable: POST /tanks/{id}/fills"),
                "{pointer}: {problems}"
            );
            assert!(problems.contains(found), "{pointer}: {problems}");
        }
    }

    #[test]
    fn messages_and_the_states_of_one_number_stay() {
        let messages = |schema: u32, state: Value, messages: Value| {
            let document = json!({
                "channels": { "bus": { "messages": messages } },
                "components": { "schemas": {
                    "tank-state": { "x-schema": schema, "properties": state },
                } },
            });
            Documents::from([("asyncapi.json".into(), document)])
        };
        let level = json!({ "level": { "type": "integer" } });
        let old = messages(1, level.clone(), json!({ "Filled": {} }));
        assert_eq!(
            problems(&old, &messages(2, json!({}), json!({ "Filled": {} }))),
            Vec::<String>::new()
        );
        let removed = problems(&old, &messages(1, json!({}), json!({ "Filled": {} })));
        assert_eq!(removed, ["shapes-stay: tank-state: level is removed"]);
        let gone = problems(&old, &Documents::new());
        assert!(gone.len() == 1 && gone[0].contains("the channel `bus` is released"), "{gone:?}");
        let silent = problems(&old, &messages(1, level, json!({})));
        assert_eq!(silent, ["routes-stay: the channel `bus` lacks the released message `Filled`"]);
    }

    #[test]
    fn a_removed_route_another_scope_and_a_changed_shape_are_problems() {
        assert!(changed("/paths/~1tanks~1{id}~1fills", Value::Null).contains("routes-stay"));
        let scope = changed(
            "/paths/~1tanks~1{id}~1fills/post/security",
            json!([{ "token": ["water/operate"] }]),
        );
        assert!(
            scope.contains("routes-stay: POST /tanks/{id}/fills needs another scope"),
            "{scope}"
        );
        let event = |schema: Value| Documents::from([("events/tank/Filled.1.json".into(), schema)]);
        let old = event(json!({ "type": "object", "title": "a" }));
        assert_eq!(
            problems(&old, &event(json!({ "type": "object", "title": "b" }))),
            Vec::<String>::new()
        );
        assert!(problems(&old, &event(json!({ "type": "array" })))[0].contains("shapes-stay"));
        assert!(problems(&old, &Documents::new())[0].contains("the contract lacks it"));
        let row = |required: Value| {
            Documents::from([(
                "rows/levels.json".into(),
                json!({ "type": "object", "required": required, "properties": { "id": {} } }),
            )])
        };
        let more = problems(&row(json!([])), &row(json!(["id"])));
        assert!(
            more[0].starts_with("shapes-stay: rows/levels.json: id is required, and was not"),
            "{more:?}"
        );
    }
}
