//! Requests that no well-behaved client sends, to every route of a workspace.

use std::collections::BTreeMap;

use fastrand::Rng;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Answer, LocalStack, workspace};
use ledgerline_sam::template::{self, Event, Source};

/// The number of requests to each route.
const REQUESTS: usize = 60;
/// The name of a parameter that no route has.
const UNKNOWN: &str = "zzz";
const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

/// Names of parameters that some route may have, with a bar between two names.
const PARAMETERS: &str = "limit|cursor|minVersion|q|after|category|type|day|accountId|url|owner|status|Limit|minversion|";
/// Values, as they stand in a URL, with a bar between two values.
const VALUES: &str = "|0|1|-1|%2B5|+5|05|1e3|1.0|18446744073709551616|now|beginning|null|a,b|%00|%ff|\
    %F0%9F%98%80|%E2%80%8B|%22|*|2026-11-26T23:00:00-05:00|2026-02-30|eyJhIjoiYiJ9|\
    163082d2-b005-45d7-9eb6-aa1f83efd55d";
const HEADERS: [(&str, &[&str]); 4] = [
    (
        "if-match",
        &["*", "\"1\"", "W/\"1\"", "1", "\"", "", "\"1\",\"2\"", "\"99999999999999999999\""],
    ),
    ("if-none-match", &["*", "\"1\"", "W/\"1\"", "1", "\"", "", "\"1\", x"]),
    ("idempotency-key", &["a", "", "a b", "a,b", "é"]),
    ("x-correlation-id", &["a", "", "a b"]),
];

/// Sends requests with any names, repeats, types, lengths and encodings to every route. Every
/// response must name the problem: the server never fails, and ignores nothing silently.
pub async fn any_request_is_answered() {
    let seed = super::seed();
    let mut rng = Rng::with_seed(seed);
    let (local, is_whole) = LocalStack::start_whole().await;
    let source = Source::read(&workspace().join("template.yaml")).unwrap();
    let template = match is_whole {
        true => template::resolve_all(&source),
        false => template::resolve(&source, &BTreeMap::new(), "http://127.0.0.1"),
    };
    let functions = template.unwrap().functions;
    let routes =
        functions.iter().flat_map(|function| &function.events).filter_map(|event| match event {
            Event::HttpApi { method, path, .. } => Some((method.clone(), path.clone())),
            Event::Stream(_)
            | Event::Kinesis(_)
            | Event::Queue(_)
            | Event::Schedule(_)
            | Event::Rule { .. } => None,
        });
    let (mut wrong, mut answers) = (Vec::new(), BTreeMap::<u16, usize>::new());
    for (method, path) in routes {
        for _ in 0..REQUESTS {
            let request = Request::any(&mut rng, &method, &path);
            let answer = request.send(&local).await;
            wrong.extend(request.problem(&answer));
            *answers.entry(answer.status.as_u16()).or_default() += 1;
        }
    }
    println!("seed {seed}, answers by status: {answers:?}");
    let test = std::thread::current();
    let again = super::repeat_command(seed, "", test.name().unwrap_or_default());
    assert!(wrong.is_empty(), "{}\n{again}", wrong.join("\n"));
}

#[derive(Debug)]
struct Request {
    method: String,
    path: String,
    query: Vec<(&'static str, &'static str)>,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
}

impl Request {
    fn any(rng: &mut Rng, method: &str, pattern: &str) -> Self {
        let segment = |rng: &mut Rng, part: &str| match part.starts_with('{') {
            true if rng.u8(0..3) > 0 => ID.to_owned(),
            true => match any_text(rng, VALUES) {
                "" => ID.to_owned(),
                value => value.to_owned(),
            },
            false => part.to_owned(),
        };
        let parts: Vec<_> = pattern.split('/').map(|part| segment(rng, part)).collect();
        let mut query = Vec::new();
        while rng.bool() && query.len() < 4 {
            let name = if rng.u8(0..5) == 0 { UNKNOWN } else { any_text(rng, PARAMETERS) };
            query.push((name, any_text(rng, VALUES)));
        }
        let mut headers = Vec::new();
        for (name, values) in HEADERS {
            if rng.u8(0..4) == 0 {
                headers.push((name, values[rng.usize(..values.len())]));
            }
        }
        let body = match rng.u8(0..8) {
            0 => String::new(),
            1 => "{".to_owned(),
            2 => "[1]".to_owned(),
            3 => format!("{{\"amount\":{}}}", "9".repeat(rng.usize(1..400))),
            _ => any_json(rng, 0).to_string(),
        };
        Self { method: method.to_owned(), path: parts.join("/"), query, headers, body }
    }

    async fn send(&self, local: &LocalStack) -> Answer {
        let query: Vec<_> =
            self.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = if query.is_empty() {
            self.path.clone()
        } else {
            format!("{}?{}", self.path, query.join("&"))
        };
        let body = if self.method == "GET" { String::new() } else { self.body.clone() };
        let method = Method::from_bytes(self.method.as_bytes()).unwrap();
        local.call(method, &path, &self.headers, body).await
    }

    /// Returns the problem of a response, if it has one.
    fn problem(&self, answer: &Answer) -> Option<String> {
        let waits = self.query.iter().any(|(name, _)| *name == "minVersion");
        let status = answer.status.as_u16();
        let has_unknown =
            self.query.iter().any(|(name, _)| [UNKNOWN, "Limit", "minversion", ""].contains(name));
        let is_repeated = self.query.iter().enumerate().any(|(place, (name, _))| {
            !["category", "type"].contains(name)
                && self.query[..place].iter().any(|(other, _)| other == name)
        });
        // A path with a character that no route accepts is no path of the API.
        let is_elsewhere = answer.body["message"] == "Not Found";
        let expected = match status {
            503 => waits,
            500.. => false,
            // The API itself refuses a path that is no text.
            400 => answer.body["message"] == "Bad Request" || !answer.problem().is_empty(),
            _ if is_elsewhere => true,
            // A route must not ignore a part of the query.
            _ => !has_unknown && !is_repeated,
        };
        (!expected).then(|| format!("{self:?} is answered {status} {}", answer.body))
    }
}

/// Returns one of the texts between the bars.
fn any_text(rng: &mut Rng, texts: &'static str) -> &'static str {
    let texts: Vec<_> = texts.split('|').collect();
    texts[rng.usize(..texts.len())]
}

/// Returns any JSON: fields that some command may have, with values that it may not.
fn any_json(rng: &mut Rng, depth: usize) -> Value {
    const FIELDS: &str =
        "id|name|title|owner|currency|amount|reference|reason|to|linkUrl|rating|tags|message|other";
    const TEXTS: &str = "| |a|EUR|163082d2-b005-45d7-9eb6-aa1f83efd55d|\u{200b}|\u{0}|https://example.com/|\
        auth0:7c|\u{1f600}";
    match rng.u8(0..if depth == 0 { 2 } else { 9 }) {
        0..=1 => (0..rng.usize(0..5))
            .map(|_| (any_text(rng, FIELDS).to_owned(), any_json(rng, depth + 1)))
            .collect(),
        2 => Value::Null,
        3 => rng.i64(..).into(),
        4 => json!(rng.f64() * 1e9),
        5 => rng.bool().into(),
        6 if depth < 4 => (0..rng.usize(0..4)).map(|_| any_json(rng, depth + 1)).collect(),
        7 => "x".repeat(rng.usize(0..3_000)).into(),
        _ => any_text(rng, TEXTS).into(),
    }
}
