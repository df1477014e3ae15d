//! The comparison of a contract with the released one.
//!
//! Four rules, whose names are in every message:
//! * `routes-stay`: a route is not removed, and needs no other scope.
//! * `requests-stay-valid`: a request that was valid stays valid.
//! * `answers-stay-readable`: an answer has only values that the released contract allowed.
//! * `shapes-stay`: the schema of an event does not change within its number, and rows that were
//!   stored stay readable.

mod subset;

use std::path::Path;

use serde_json::Value;

use self::subset::{Comparison, Direction};
use super::Documents;

/// The parts of a schema that change no value: texts for people.
const ANNOTATIONS: [&str; 6] =
    ["$schema", "description", "examples", "example", "title", "x-inferred"];

/// Returns the incompatible changes between two contracts, one sentence each.
pub(super) fn problems(released: &Documents, new: &Documents) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, old) in released {
        let Some(new) = new.get(path) else {
            if path.starts_with("events") || path.starts_with("rows") {
                problems.push(format!(
                    "shapes-stay: {} is released, and no longer there",
                    path.display()
                ));
            }
            continue;
        };
        if path.starts_with("events") {
            if meaning(old) != meaning(new) {
                problems.push(format!(
                    "shapes-stay: {} differs from the released schema: a changed event has the next schema number",
                    path.display()
                ));
            }
        } else if path.starts_with("rows") {
            let found = Comparison { old, new, direction: Direction::Read }.differences(old, new);
            problems.extend(
                found.into_iter().map(|what| format!("shapes-stay: {}: {what}", path.display())),
            );
        } else if path == Path::new("openapi.json") {
            problems.extend(of_routes(old, new));
        }
    }
    problems
}

/// Returns a schema without its texts for people.
fn meaning(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| !ANNOTATIONS.contains(&name.as_str()));
            fields.map(|(name, value)| (name.clone(), meaning(value))).collect()
        }
        Value::Array(values) => values.iter().map(meaning).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

fn of_routes(old: &Value, new: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, operations) in old["paths"].as_object().into_iter().flatten() {
        for (method, released) in operations.as_object().into_iter().flatten() {
            let route = format!("{} {path}", method.to_uppercase());
            let current = &new["paths"][path][method];
            if current.is_null() {
                problems.push(format!("routes-stay: {route} is released, and no longer there"));
                continue;
            }
            if released["security"] != current["security"] {
                problems.push(format!(
                    "routes-stay: {route} needs another scope than the released one"
                ));
            }
            let requests = of_requests((old, released), (new, current));
            problems.extend(
                requests.into_iter().map(|what| format!("requests-stay-valid: {route}: {what}")),
            );
            let answers = of_answers((old, released), (new, current));
            problems.extend(
                answers.into_iter().map(|what| format!("answers-stay-readable: {route}: {what}")),
            );
        }
    }
    problems
}

/// An operation, after the document that it is in.
type Of<'a> = (&'a Value, &'a Value);

fn of_requests((old, released): Of<'_>, (new, current): Of<'_>) -> Vec<String> {
    let schemas = Comparison { old, new, direction: Direction::Read };
    let mut problems = Vec::new();
    let parameters = |document: &Value, operation: &Value| -> Vec<Value> {
        let listed = operation["parameters"].as_array().into_iter().flatten();
        listed.map(|parameter| subset::resolved(document, parameter).clone()).collect()
    };
    let (before, now) = (parameters(old, released), parameters(new, current));
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
    let body = |operation: &Value| {
        operation["requestBody"]["content"]["application/json"]["schema"].clone()
    };
    match (body(released), body(current)) {
        (Value::Null, Value::Null) => {}
        (Value::Null, _) => problems.push("a body is required, and was not".to_owned()),
        (_, Value::Null) => problems.push("a body is no longer accepted".to_owned()),
        (before, now) => problems.extend(schemas.differences(&before, &now)),
    }
    problems
}

fn of_answers((old, released): Of<'_>, (new, current): Of<'_>) -> Vec<String> {
    let schemas = Comparison { old, new, direction: Direction::Written };
    let is_success = |status: &str| status.starts_with('2');
    let mut problems = Vec::new();
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
                problems.push(format!("the header {header} is gone"));
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
                "parameters": [{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }],
                "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Fill" } } } },
                "responses": { "200": {
                    "headers": { "ETag": {} },
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Tank" } } },
                } },
            } } },
            "components": { "schemas": {
                "Fill": {
                    "type": "object", "additionalProperties": false, "required": ["amount"],
                    "properties": { "amount": { "type": "integer", "minimum": 1, "maximum": 9 }, "note": { "type": ["string", "null"], "maxLength": 5 } },
                },
                "Tank": {
                    "type": "object", "required": ["level", "status"],
                    "properties": { "level": { "type": "integer" }, "status": { "enum": ["full", "empty"] } },
                },
            } },
        })
    }

    /// Returns the problem of a contract in which the value at this pointer is another one.
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
            changed("/components/schemas/Tank/properties/colour", json!({ "type": "string" })),
            ""
        );
        assert_eq!(changed("/components/schemas/Tank/properties/status/enum", json!(["full"])), "");
        assert_eq!(changed("/paths/~1new", json!({})), "");
    }

    #[test]
    fn a_request_that_was_valid_stays_valid() {
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
            (
                format!("{fill}/properties/note/pattern"),
                json!("^a$"),
                "note: `pattern` is another one",
            ),
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
    fn an_answer_has_what_the_released_contract_says() {
        let tank = "/components/schemas/Tank";
        let answer = "/paths/~1tanks~1{id}~1fills/post/responses";
        for (pointer, value, found) in [
            (format!("{tank}/properties/level/type"), json!("number"), "level: number is new"),
            (
                format!("{tank}/properties/status/enum"),
                json!(["full", "empty", "leaking"]),
                "status: \"leaking\" is new",
            ),
            (format!("{tank}/required"), json!(["status"]), "level is not always there"),
            (format!("{answer}/200"), Value::Null, "the status 200 is no longer answered"),
            (format!("{answer}/200/headers/ETag"), Value::Null, "the header ETag is gone"),
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
    fn routes_and_shapes_stay() {
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
        assert!(problems(&old, &Documents::new())[0].contains("no longer there"));
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
