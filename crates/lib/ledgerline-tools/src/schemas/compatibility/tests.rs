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
                    "headers": { "ETag": { "required": true, "schema": { "type": "string" } } },
                    "content": { "application/json": {
                        "schema": { "$ref": "#/components/schemas/Tank" },
                    } },
                },
                "422": {
                    "headers": { "Retry-After": { "$ref": "#/components/headers/Retry-After" } },
                    "content": { "application/problem+json": { "schema": {
                        "properties": { "type": { "enum": ["urn:water:too-much"] } },
                    } } },
                },
            },
        } } },
        "components": { "headers": { "Retry-After": { "schema": { "type": "integer" } } }, "schemas": {
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
    assert_eq!(changed("/components/schemas/Tank/properties/level/deprecated", json!(true)), "");
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
        (format!("{fill}/required"), json!(["amount", "note"]), "note is required, and was not"),
        (format!("{operation}/requestBody"), Value::Null, "a body is no longer accepted"),
        (format!("{operation}/requestBody/required"), json!(true), "a body is required"),
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
    let refusal_422 = api().pointer(&format!("{answer}/422")).unwrap().clone();
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
            format!("{answer}/422/content/application~1problem+json/schema/properties/type/enum"),
            json!(["urn:water:other"]),
            "the kind of problem `urn:water:too-much` is removed",
        ),
        (format!("{answer}/200"), Value::Null, "the status 200 is no longer answered"),
        (
            format!("{answer}/409"),
            refusal_422,
            "the kind of problem `urn:water:too-much` has the status 409 and 422, and had 422",
        ),
        (format!("{answer}/200/headers/ETag"), Value::Null, "the header `ETag` of 200 is removed"),
        (
            format!("{answer}/200/headers/ETag/required"),
            json!(false),
            "the header `ETag` of 200 is optional, and was required",
        ),
        (
            format!("{answer}/200/headers/ETag/schema/type"),
            json!("number"),
            "the header `ETag` of 200: number is new",
        ),
        (
            "/components/headers/Retry-After/schema/type".to_owned(),
            json!("string"),
            "the header `Retry-After` of 422: string is new",
        ),
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
                format!("tank-state.{schema}"): { "properties": state },
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
    assert_eq!(removed, ["shapes-stay: tank-state.1: level is removed"]);
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
    assert!(scope.contains("routes-stay: POST /tanks/{id}/fills needs another scope"), "{scope}");
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
