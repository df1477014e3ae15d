//! Requests of web pages of other origins to every port of a stack.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use ledgerline_sam::template::{self, Event};
use ledgerline_testing::{Answer, Api, LocalStack, workspace};
use reqwest::Method;

/// Returns the ports on which a process listens, as the kernel knows them.
fn ports(process: u32) -> BTreeSet<u16> {
    const LISTENING: &str = "0A";
    let folder = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let sockets: BTreeSet<_> = folder
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{process}/net/{table}"));
    let lines: String = tables.map(|table| fs::read_to_string(table).unwrap()).concat();
    let listening = lines.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_own = fields.get(9).is_some_and(|socket| sockets.contains(*socket));
        let (_, port) = fields.get(1)?.split_once(':')?;
        (is_own && fields[3] == LISTENING).then(|| u16::from_str_radix(port, 16).unwrap())
    });
    listening.collect()
}

/// Sends a request to every path of every port of a stack, and passes the answers on.
async fn knock(
    stack: &LocalStack,
    methods: &[Method],
    headers: impl Fn(u16) -> Vec<(&'static str, String)>,
    check: impl Fn(&str, Answer),
) {
    let template = workspace().join("template.yaml");
    let template = template::load(&template, &BTreeMap::new(), "http://sqs").unwrap();
    let events = template.functions.iter().flat_map(|function| &function.events);
    let routes = events.filter_map(|event| {
        let Event::HttpApi { path, .. } = event else { return None };
        Some(path.as_str())
    });
    let paths: BTreeSet<_> = routes.chain(["/", "/oauth2/token"]).collect();
    let ports = ports(stack.process_id());
    for url in [stack.url().to_owned(), stack.aws_url()] {
        let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(ports.contains(&port), "{url} is not among {ports:?}");
    }
    for port in ports {
        let server = Api::new(format!("http://127.0.0.1:{port}"), None);
        let headers = headers(port);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        for path in &paths {
            for method in methods {
                let answer = server.call(method.clone(), path, &headers, "{}".to_owned()).await;
                check(&format!("{method} {path} at {port} {headers:?}"), answer);
            }
        }
    }
}

#[tokio::test]
async fn no_port_answers_a_page_whose_name_resolves_to_this_machine() {
    let stack = LocalStack::start(None).await;
    let rebound = |port| {
        let host = format!("evil.example:{port}");
        vec![("origin", format!("http://{host}")), ("host", host)]
    };
    knock(&stack, &[Method::GET, Method::POST, Method::OPTIONS], rebound, |request, answer| {
        assert_eq!(answer.status, 421, "{request}");
        let reason = answer.body["detail"].as_str().unwrap();
        assert!(reason.contains("evil.example") && reason.contains("Use `127.0.0.1`"), "{reason}");
    })
    .await;
}

#[tokio::test]
async fn no_port_answers_a_page_of_another_origin() {
    let stack = LocalStack::start(None).await;
    for headers in [
        &[("origin", "https://evil.example"), ("content-type", "text/plain")][..],
        &[("origin", "null"), ("content-type", "application/x-www-form-urlencoded")],
        &[("origin", "http://127.0.0.1:1"), ("authorization", "Bearer eve")],
        &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")],
        &[
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "iframe"),
        ],
    ] {
        let foreign =
            |_| headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let methods = [Method::GET, Method::POST, Method::PUT, Method::OPTIONS];
        knock(&stack, &methods, foreign, |request, answer| {
            assert_eq!(answer.status, 403, "{request}");
            assert!(!answer.headers.contains_key("access-control-allow-origin"), "{request}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_link_of_another_origin_opens_a_page_that_no_page_frames() {
    let stack = LocalStack::start(None).await;
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    for (url, path) in [(stack.url(), "/openapi"), (&stack.aws_url(), "/mailbox")] {
        let server = Api::new(url.to_owned(), None);
        let opened = server.call(Method::GET, path, &link, String::new()).await;
        assert_eq!(opened.status, 200, "{path}");
        assert_eq!(opened.headers["x-frame-options"], "DENY", "{path}");
    }
}
