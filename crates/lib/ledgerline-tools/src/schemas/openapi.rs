//! The OpenAPI document of the HTTP API.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Result, bail};
use ledgerline::api::{Occurs, Operation, OperationKind, Operations};
use ledgerline_sam::{
    lookup::scope_prefix,
    sample_events::{self, Sample},
    template::Source,
};
use serde_json::{Map, Value, json};

use super::api_errors;

/// The statuses that API Gateway answers by itself, with `{"message": …}`.
const OF_THE_GATEWAY: [u16; 6] = [401, 403, 413, 429, 500, 503];

/// Makes the document from the operations of all functions. The examples are the bodies, paths and
/// queries of the sample events that are answered with a success.
///
/// # Errors
/// When two functions give one name to different schemas, or the sample events cannot be read.
pub(super) fn document(
    source: &Source,
    operations: &BTreeMap<String, Operations>,
    root: &Path,
) -> Result<Value> {
    let template = source.json();
    let environment = &template["Globals"]["Function"]["Environment"]["Variables"];
    let writer = Writer {
        scopes: scope_prefix(&template).unwrap_or("ledgerline").to_owned(),
        problems: environment["PROBLEM_TYPES"].as_str().unwrap_or("urn:problem:").to_owned(),
        samples: sample_events::samples_for(source, root)?,
    };
    let mut schemas = schemas(operations)?;
    let mut paths = BTreeMap::<&str, Map<String, Value>>::new();
    for operation in operations.values().flat_map(|of| &of.operations) {
        let (method, path) = operation.route.split_once(' ').unwrap_or(("GET", &operation.route));
        let mut written = writer.operation(operation, method, path);
        let text = description(operation, &schemas);
        written["summary"] = json!(summary(operation, &text));
        let scope = format!("Needs the scope `{}`.", writer.scope(operation));
        written["description"] = json!(format!("{text} {scope}").trim_start());
        paths.entry(path).or_default().insert(method.to_ascii_lowercase(), written);
    }
    let tags: BTreeSet<_> = paths.keys().map(|path| tag(path)).collect();
    let tags: Vec<_> = tags.into_iter().map(|tag| json!({ "name": tag })).collect();
    schemas.insert("Problem".into(), api_errors::problem());
    schemas.insert("GatewayMessage".into(), api_errors::gateway_message());
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": source.stack(),
            "version": "1",
            "description": template["Description"].as_str().unwrap_or_default().trim(),
        },
        "servers": [{ "url": "http://127.0.0.1:3000", "description": "The local stack" }],
        "security": [{ "token": [] }],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "An access token. On the local stack, any name is a token too.",
                },
            },
            "parameters": parameters(),
            "headers": shared_headers(),
            "schemas": schemas,
        },
    }))
}

/// Returns the schemas of all functions, by the names of their Rust types.
fn schemas(operations: &BTreeMap<String, Operations>) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::<String, (&String, Value)>::new();
    for (function, Operations { schemas, .. }) in operations {
        for (name, schema) in schemas {
            match all.get(name) {
                Some((other, known)) if known != schema => bail!(
                    "`{other}` and `{function}` give the name `{name}` to two schemas: \
                     rename one, with `#[schemars(rename = \"…\")]` on its type"
                ),
                Some(_) => {}
                None => _ = all.insert(name.clone(), (function, schema.clone())),
            }
        }
    }
    Ok(all.into_iter().map(|(name, (_, schema))| (name, schema)).collect())
}

/// Describes an operation by the comment of its body, or by that of its answer.
fn description(operation: &Operation, schemas: &BTreeMap<String, Value>) -> String {
    let described = |schema: &Value| {
        let name = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
        let schema = name.and_then(|name| schemas.get(name)).unwrap_or(schema);
        schema["description"].as_str().map(|text| text.replace('\n', " "))
    };
    let body_text = operation.body.as_ref().and_then(described);
    body_text.or_else(|| described(&operation.answer)).unwrap_or_default()
}

/// Returns the text that lists of operations show. Generators of clients make comments of it.
fn summary<'o>(operation: &'o Operation, description: &'o str) -> &'o str {
    let sentence = description.split(". ").next().unwrap_or_default().trim_end_matches('.');
    match &operation.summary {
        Some(summary) => summary,
        None if sentence.is_empty() => &operation.route,
        None => sentence,
    }
}

/// The parts of the template and the sample events that all operations share.
struct Writer {
    scopes: String,
    problems: String,
    samples: Vec<Sample>,
}

impl Writer {
    fn operation(&self, operation: &Operation, method: &str, path: &str) -> Value {
        let sample = self.sample(&operation.route);
        let mut written = json!({
            "operationId": operation_id(method, path),
            "tags": [tag(path)],
            "security": [{ "token": [self.scope(operation)] }],
            "parameters": parameters_of(operation, sample),
            "responses": self.responses(operation),
        });
        if let Some(body) = &operation.body {
            let mut content = json!({ "schema": body });
            let example = sample.and_then(|sample| sample["body"].as_str());
            if let Some(example) = example.and_then(|body| serde_json::from_str::<Value>(body).ok())
            {
                content["example"] = example;
            }
            written["requestBody"] =
                json!({ "required": true, "content": { "application/json": content } });
            if let Some(limit) = operation.body_limit {
                written["requestBody"]["description"] = format!("At most {limit} bytes.").into();
            }
        }
        written
    }

    fn scope(&self, operation: &Operation) -> String {
        format!("{}/{}", self.scopes, operation.scope.as_str())
    }

    /// Returns the first sample event of a route that is answered with a success.
    fn sample(&self, route: &str) -> Option<&Value> {
        let is_success = |sample: &&Sample| {
            let status = sample.answer["statusCode"].as_u64().unwrap_or_default();
            sample.event["routeKey"] == *route && (200..300).contains(&status)
        };
        self.samples.iter().find(is_success).map(|sample| &sample.event)
    }

    fn responses(&self, operation: &Operation) -> BTreeMap<String, Value> {
        let mut responses = BTreeMap::new();
        let success = json!({ "application/json": { "schema": operation.answer } });
        match operation.kind {
            OperationKind::Command { creates, .. } => {
                let mut headers = json!({
                    "ETag": always("ETag"),
                    "Idempotent-Replayed": header("Idempotent-Replayed"),
                });
                if creates {
                    headers["Location"] = always("Location");
                }
                let (status, description) =
                    if creates { ("201", "Created.") } else { ("200", "Done.") };
                let response =
                    json!({ "description": description, "headers": headers, "content": success });
                responses.insert(status.to_owned(), response);
            }
            OperationKind::Query { conditional } => {
                let mut response = json!({ "description": "Found.", "content": success });
                if conditional {
                    response["headers"] = json!({ "ETag": header("ETag") });
                    let description = "The representation has the ETag of `If-None-Match`.";
                    let known =
                        json!({ "description": description, "headers": response["headers"] });
                    responses.insert("304".to_owned(), known);
                }
                responses.insert("200".to_owned(), response);
            }
        }
        let is_command = matches!(operation.kind, OperationKind::Command { .. });
        let mut codes = BTreeMap::<u16, Vec<&str>>::new();
        for problem in &operation.problems {
            codes.entry(problem.status).or_default().push(&problem.code);
        }
        for status in OF_THE_GATEWAY {
            codes.entry(status).or_default();
        }
        responses.extend(
            codes.iter().map(|(status, codes)| {
                (status.to_string(), self.refusal(*status, codes, is_command))
            }),
        );
        responses
    }

    /// Returns the response with these kinds of problems.
    fn refusal(&self, status: u16, codes: &[&str], is_command: bool) -> Value {
        let mut content = json!({});
        let mut names: Vec<_> = codes.iter().map(|code| format!("`{code}`")).collect();
        if !codes.is_empty() {
            let types: Vec<_> =
                codes.iter().map(|code| format!("{}{code}", self.problems)).collect();
            content["application/problem+json"] = json!({
                "schema": {
                    "allOf": [{ "$ref": "#/components/schemas/Problem" }],
                    "properties": { "type": { "enum": types }, "status": { "const": status } },
                },
            });
        }
        if OF_THE_GATEWAY.contains(&status) {
            content["application/json"] =
                json!({ "schema": { "$ref": "#/components/schemas/GatewayMessage" } });
            names.push("API Gateway's own".to_owned());
        }
        let mut response =
            json!({ "description": format!("{}.", names.join(", ")), "content": content });
        let names = [
            ("Retry-After", [409, 429, 503].contains(&status)),
            ("WWW-Authenticate", status == 401),
            // The version of the aggregate, if the request expected another one.
            ("ETag", [409, 412, 503].contains(&status)),
            // An idempotency record stores refusals by the domain.
            ("Idempotent-Replayed", is_command && [403, 404, 409, 422].contains(&status)),
        ];
        let names = names.into_iter().filter(|(_, is_sent)| *is_sent);
        let headers: Map<_, _> = names.map(|(name, _)| (name.to_owned(), header(name))).collect();
        if !headers.is_empty() {
            response["headers"] = headers.into();
        }
        response
    }
}

fn parameters_of(operation: &Operation, sample: Option<&Value>) -> Vec<Value> {
    let example =
        |place: &str, name: &str| sample.and_then(|sample| sample[place].get(name)).cloned();
    let mut parameters = Vec::new();
    for (name, schema) in &operation.path {
        let mut parameter = json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description_of(name, schema),
            "schema": schema,
        });
        if let Some(example) = example("pathParameters", name) {
            parameter["example"] = example;
        }
        parameters.push(parameter);
    }
    for parameter in &operation.query {
        let mut written = json!({
            "name": parameter.name,
            "in": "query",
            "required": parameter.occurs == Occurs::Required,
            "description": description_of(&parameter.name, &parameter.schema),
            "schema": parameter.schema,
        });
        if parameter.occurs == Occurs::Several {
            written["schema"] = json!({ "type": "array", "items": parameter.schema });
            written["explode"] = json!(true);
        } else if let Some(example) = example("queryStringParameters", &parameter.name)
            && parameter.schema["type"] != "integer"
        {
            written["example"] = example;
        }
        parameters.push(written);
    }
    let shared = |name: &str| json!({ "$ref": format!("#/components/parameters/{name}") });
    let names: &[&str] = match operation.kind {
        OperationKind::Command { if_match_required: true, .. } => {
            &["If-Match-Required", "Idempotency-Key", "X-Correlation-Id"]
        }
        OperationKind::Command { if_match_required: false, .. } => {
            &["If-Match", "If-None-Match", "Idempotency-Key", "X-Correlation-Id"]
        }
        OperationKind::Query { conditional: true } => {
            &["If-Match", "If-None-Match", "X-Correlation-Id"]
        }
        OperationKind::Query { conditional: false } => &["X-Correlation-Id"],
    };
    parameters.extend(names.iter().map(|name| shared(name)));
    parameters
}

/// Returns the description of a parameter: a fixed text for those of the libraries, or the text of
/// the parameter's type.
fn description_of(name: &str, schema: &Value) -> String {
    match name {
        "limit" => "The most rows, or commits, in a page.".to_owned(),
        "cursor" => "The cursor of an earlier page.".to_owned(),
        "minVersion" => {
            "The lowest version that the answer may show (read-your-writes).".to_owned()
        }
        "wait" => "The seconds to wait for a commit.".to_owned(),
        _ => schema["description"].as_str().unwrap_or(name).to_owned(),
    }
}

/// Returns the name of an operation: `postAccountsByIdCredits`.
fn operation_id(method: &str, path: &str) -> String {
    let mut id = method.to_ascii_lowercase();
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        let name = segment.trim_start_matches('{').trim_end_matches('}');
        if name != segment {
            id.push_str("By");
        }
        for word in name.split('-') {
            id.extend(word.chars().next().map(|first| first.to_ascii_uppercase()));
            id.push_str(word.get(1..).unwrap_or_default());
        }
    }
    id
}

/// Returns the group of an operation: the first part of its path.
fn tag(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

fn header(name: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{name}") })
}

/// Returns the headers to which responses refer. A `Location` is always there, so it is written
/// where it is used.
fn shared_headers() -> Value {
    let mut headers = headers();
    headers.as_object_mut().map(|headers| headers.remove("Location"));
    headers
}

/// Returns a header that every response has.
fn always(name: &str) -> Value {
    let mut header = headers()[name].clone();
    header["required"] = json!(true);
    header
}

fn headers() -> Value {
    json!({
        "ETag": {
            "description": "The version of the aggregate: `\"3\"`, or `\"3.9f86d081\"` with a \
                hash of the representation.",
            "schema": { "type": "string", "pattern": "^\"[0-9]+(\\.[0-9a-f]{8})?\"$" },
        },
        "Idempotent-Replayed": {
            "description": "The answer is the stored one of an earlier request with the same \
                Idempotency-Key.",
            "schema": { "type": "string", "const": "true" },
        },
        "Location": {
            "description": "The path of the new aggregate.",
            "schema": { "type": "string" },
        },
        "WWW-Authenticate": {
            "description": "The scheme of tokens.",
            "schema": { "type": "string" },
        },
        "Retry-After": {
            "description": "The seconds after which the client may send the request again.",
            "schema": { "type": "string", "pattern": "^[0-9]+$" },
        },
    })
}

fn parameters() -> Value {
    let header = |name: &str, required: bool, schema: Value, description: &str| {
        json!({
            "name": name,
            "in": "header",
            "required": required,
            "schema": schema,
            "description": description,
        })
    };
    let condition = json!({ "type": "string" });
    let if_match =
        "The version that the client knows, as an ETag. At another version, the answer is 412.";
    json!({
        "If-Match": header("If-Match", false, condition.clone(), if_match),
        "If-Match-Required": header("If-Match", true, condition.clone(), if_match),
        "If-None-Match": header(
            "If-None-Match",
            false,
            condition,
            "A query answers 304 if the client has this representation. A command succeeds only \
                at another version; with `*`, only if the aggregate does not exist.",
        ),
        "Idempotency-Key": header(
            "Idempotency-Key",
            false,
            json!({ "type": "string", "pattern": "^[!-+\\--~]{1,128}$" }),
            "A key that the client chooses. The API carries out requests with the same key \
                once, and answers later ones with the stored answer.",
        ),
        "X-Correlation-Id": header(
            "X-Correlation-Id",
            false,
            json!({ "type": "string" }),
            "An id for the logs and for the commits that the request causes.",
        ),
    })
}

#[cfg(test)]
mod tests {
    use ledgerline::{api::ProblemKind, manifest::Scope};

    use super::*;

    fn operations(function: &str, schema: Value) -> (String, Operations) {
        let operation = Operation {
            route: "POST /tanks/{id}/fills".into(),
            scope: Scope::Write,
            summary: None,
            kind: OperationKind::Command { creates: false, if_match_required: true },
            path: BTreeMap::from([("id".into(), json!({ "type": "string" }))]),
            query: Vec::new(),
            body: Some(json!({ "$ref": "#/components/schemas/Fill" })),
            body_limit: Some(1_000_000),
            answer: json!(true),
            problems: vec![ProblemKind { status: 422, code: "too-much".into() }],
        };
        let schemas = BTreeMap::from([("Fill".into(), schema)]);
        (function.to_owned(), Operations { operations: vec![operation], schemas })
    }

    #[test]
    fn an_operation_has_its_scope_its_conditions_and_its_problems() {
        let writer =
            Writer { scopes: "water".into(), problems: "urn:water:".into(), samples: Vec::new() };
        let (_, tank) = operations("tank-commands", json!({}));
        let written = writer.operation(&tank.operations[0], "POST", "/tanks/{id}/fills");
        assert_eq!(written["operationId"], "postTanksByIdFills");
        assert_eq!(written["security"], json!([{ "token": ["water/write"] }]));
        let refusal = &written["responses"]["422"]["content"]["application/problem+json"]["schema"];
        assert_eq!(refusal["properties"]["type"]["enum"], json!(["urn:water:too-much"]));
        let parameters = written["parameters"].to_string();
        assert!(parameters.contains("If-Match-Required"), "{parameters}");
        assert!(written["responses"]["429"]["headers"]["Retry-After"].is_object());
        assert_eq!(written["requestBody"]["description"], "At most 1000000 bytes.");
    }

    #[test]
    fn a_summary_is_the_text_of_the_route_or_the_first_sentence_of_its_description() {
        let (_, tank) =
            operations("tank-commands", json!({ "description": "Fills\na tank. Once." }));
        let mut operation = tank.operations[0].clone();
        let text = description(&operation, &tank.schemas);
        assert_eq!(summary(&operation, &text), "Fills a tank");
        assert_eq!(summary(&operation, ""), operation.route);
        operation.summary = Some("Fill a tank".into());
        assert_eq!(summary(&operation, &text), "Fill a tank");
    }

    #[test]
    fn two_schemas_of_one_name_are_refused() {
        let same = BTreeMap::from([operations("a", json!({})), operations("b", json!({}))]);
        assert_eq!(schemas(&same).unwrap().len(), 1);
        let other = BTreeMap::from([operations("a", json!({})), operations("b", json!(true))]);
        let error = schemas(&other).unwrap_err().to_string();
        assert!(error.starts_with("`a` and `b` give the name `Fill` to two schemas"), "{error}");
    }
}
