//! The buckets of the tanks, with the policies of their template.

use std::{collections::BTreeMap, path::Path};

use ledgerline_sam::template::Source;
use reqwest::{Method, StatusCode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::{iam::access_key, outages::Outage, trace_log::TraceLog};

const OBJECT: &str = "bodies/tank-north/1-1-00ff.jsonl.gz";

struct World {
    url: String,
    iam: Arc<Iam>,
}

impl World {
    async fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledgerline-tank/template.yaml");
        let template = Source::read(&path).unwrap();
        let template = template.template(&BTreeMap::new(), "http://127.0.0.1:1").unwrap();
        let iam = Arc::new(Iam::new(&template, TraceLog { quiet: true }).unwrap());
        let mut all = template.buckets.iter();
        let bucket = all.find(|bucket| bucket.name.ends_with("bodiesbucket")).unwrap();
        let buckets = Buckets::open([bucket.name.clone()], None, Some(iam.clone())).unwrap();
        let url = format!("{}/{}", buckets.serve().await.unwrap(), bucket.name);
        Self { url, iam }
    }

    /// Sends a request with the access key of a function or an administrator.
    async fn send(
        &self,
        caller: &str,
        method: Method,
        key: &str,
        body: &'static str,
        is_conditional: bool,
    ) -> (StatusCode, String) {
        let credential =
            format!("AWS4-HMAC-SHA256 Credential={caller}/20261130/us-east-1/s3/aws4_request");
        let mut request = crate::http_client().request(method, format!("{}/{key}", self.url));
        if is_conditional {
            request = request.header("if-none-match", "*");
        }
        let answer = request.header("authorization", credential).body(body).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }
}

#[tokio::test]
async fn a_function_may_do_what_its_role_allows_and_no_caller_overwrites_or_deletes() {
    let world = World::new().await;
    let [commands, projector, queries] =
        ["TankCommandsFunction", "FillsProjectorFunction", "StockQueriesFunction"].map(access_key);
    let admin = "AKIAADMIN".to_owned();
    let other = OBJECT.replace("tank", "haul");
    for (caller, method, key, is_conditional, expected) in [
        // An object is written once, by a function that appends to its stream.
        (&commands, Method::PUT, OBJECT, false, 403),
        (&projector, Method::PUT, OBJECT, true, 403),
        (&commands, Method::PUT, &*other, true, 403),
        (&commands, Method::PUT, OBJECT, true, 200),
        (&commands, Method::PUT, OBJECT, true, 412),
        (&commands, Method::PUT, OBJECT, false, 403),
        (&admin, Method::PUT, OBJECT, false, 403),
        (&admin, Method::PUT, OBJECT, true, 412),
        // It is read by a function that reads its stream.
        (&commands, Method::GET, OBJECT, false, 200),
        (&projector, Method::GET, OBJECT, false, 200),
        (&projector, Method::HEAD, OBJECT, false, 200),
        (&queries, Method::GET, OBJECT, false, 403),
        (&projector, Method::GET, &other, false, 403),
        // Only a caller that may list the keys learns that there is no object.
        (&projector, Method::GET, "bodies/tank-south/1-1-00ff.jsonl.gz", false, 403),
        (&admin, Method::GET, "bodies/tank-south/1-1-00ff.jsonl.gz", false, 404),
        (&projector, Method::GET, "", false, 403),
        (&admin, Method::GET, "", false, 200),
        // No caller deletes it while the policy of the bucket is there.
        (&commands, Method::DELETE, OBJECT, false, 403),
        (&admin, Method::DELETE, OBJECT, false, 403),
        (&admin, Method::POST, OBJECT, false, 501),
    ] {
        let context = format!("{method} {key} by {caller}, conditional: {is_conditional}");
        let (status, body) = world.send(caller, method, key, "content", is_conditional).await;
        assert_eq!(status, expected, "{context}: {body}");
    }
    let (_, list) =
        world.send(&admin, Method::GET, "?list-type=2&prefix=bodies/tank-", "", false).await;
    let of_object = format!("<Contents><Key>{OBJECT}</Key><Size>7</Size></Contents>");
    assert!(list.contains(&of_object) && list.contains("<KeyCount>1</KeyCount>"), "{list}");
    let (_, list) =
        world.send(&admin, Method::GET, "?list-type=2&prefix=bodies/haul-", "", false).await;
    assert!(list.contains("<KeyCount>0</KeyCount>"), "{list}");
}

#[tokio::test]
async fn a_list_continues_after_its_last_key() {
    let buckets = Buckets::open(["b".to_owned()], None, None).unwrap();
    let folder = buckets.bucket("b").unwrap();
    for place in 0..MAX_KEYS + 3 {
        std::fs::write(folder.join(format!("{place:04}")), "x").unwrap();
    }
    let first = String::from_utf8(buckets.list("b", "list-type=2").unwrap()).unwrap();
    assert!(first.contains("<IsTruncated>true</IsTruncated>"));
    let (_, token) = first.split_once("<NextContinuationToken>").unwrap();
    let (token, _) = token.split_once('<').unwrap();
    let rest = buckets.list("b", &format!("continuation-token={token}")).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("<KeyCount>3</KeyCount><IsTruncated>false</IsTruncated>"), "{rest}");
    assert!(rest.contains("<Key>1000</Key>") && !rest.contains("<Key>0999</Key>"), "{rest}");
}

/// A program on this machine must not reach other files through the stack.
#[tokio::test]
async fn a_key_that_looks_like_another_folder_stays_in_its_bucket() {
    let name = format!("outside-{}", std::process::id());
    let outside = tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir().unwrap();
    let path = outside.path().to_str().unwrap();
    assert!(path.bytes().all(|byte| b"/-_".contains(&byte) || byte.is_ascii_alphanumeric()));
    let buckets = Buckets::open(["b".to_owned()], None, None).unwrap();
    let url = buckets.serve().await.unwrap();
    for key in [format!("{path}/new"), format!("x/{path}/new"), "%2e%2e%2fnew".to_owned()] {
        let object = format!("{url}/b/{key}");
        let put = crate::http_client().put(&object).body("content").send().await.unwrap();
        assert_eq!(put.status(), StatusCode::OK, "{key}");
        let found = crate::http_client().get(&object).send().await.unwrap();
        assert_eq!(found.text().await.unwrap(), "content", "{key}");
    }
    assert!(!outside.path().join("new").exists());
    let folder = buckets.bucket("b").unwrap();
    assert!(!folder.with_file_name("new").exists());
    let list = String::from_utf8(buckets.list("b", "list-type=2").unwrap()).unwrap();
    assert!(list.contains("<KeyCount>3</KeyCount>"), "{list}");
}

#[tokio::test]
async fn of_two_puts_at_once_the_second_is_a_conflict() {
    let buckets = Buckets::open(["b".to_owned()], None, None).unwrap();
    let url = buckets.serve().await.unwrap();
    // Given a PUT whose content has not arrived,
    let host = url.strip_prefix("http://").unwrap();
    let mut first = TcpStream::connect(host).await.unwrap();
    let head = format!("host: {host}\r\nconnection: close\r\ncontent-length: 5");
    let request = format!("PUT /b/{OBJECT} HTTP/1.1\r\nif-none-match: *\r\n{head}\r\n\r\nbe");
    first.write_all(request.as_bytes()).await.unwrap();
    ledgerline_testing::eventually("the first PUT", async || {
        (!buckets.writes().is_empty()).then_some(())
    })
    .await;
    // when another one is sent,
    let second = crate::http_client().put(format!("{url}/b/{OBJECT}")).body("x").send();
    let second = second.await.unwrap();
    assert_eq!(second.status(), StatusCode::CONFLICT);
    let conflict = second.text().await.unwrap();
    first.write_all(b"gin").await.unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).await.unwrap();
    // then it is a conflict, and the first one is stored whole.
    assert!(conflict.contains("ConditionalRequestConflict"), "{conflict}");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stored = crate::http_client().get(format!("{url}/b/{OBJECT}")).send().await.unwrap();
    assert_eq!(stored.text().await.unwrap(), "begin");
}

#[tokio::test]
async fn a_bucket_can_have_an_outage() {
    for (answer, status, code) in [("failed", 500, "InternalError"), ("throttled", 503, "SlowDown")]
    {
        let world = World::new().await;
        let outage = serde_json::json!({ "of": "BodiesBucket", "seconds": 60, "answer": answer });
        world.iam.outages.begin(serde_json::from_value::<Outage>(outage).unwrap());
        let commands = access_key("TankCommandsFunction");
        let (failed, body) = world.send(&commands, Method::GET, OBJECT, "", false).await;
        assert!(failed == status && body.contains(code), "{failed}: {body}");
        // It is one of functions.
        let found = world.send("AKIAADMIN", Method::GET, OBJECT, "", false).await;
        assert_eq!(found.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn objects_survive_a_restart_in_the_folder_of_the_data() {
    let data = tempfile::tempdir().unwrap();
    for expected in [None, Some("content")] {
        let buckets = Buckets::open(["b".to_owned()], Some(data.path()), None).unwrap();
        let url = format!("{}/b/{OBJECT}", buckets.serve().await.unwrap());
        let found = crate::http_client().get(&url).send().await.unwrap();
        let found = if found.status() == 200 { Some(found.text().await.unwrap()) } else { None };
        assert_eq!(found.as_deref(), expected);
        crate::http_client().put(url).body("content").send().await.unwrap();
    }
}
